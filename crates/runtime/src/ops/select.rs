//! Ops that choose or join elements: rows of a table, the largest of a row, concatenation.

use fucina_accel::{self as accel, Call};
use fucina_dtype::DType;
use fucina_kernels::{dense, reduce};

use crate::error::{Error, Result};
use crate::ops;
use crate::tensor::DynTensor;

impl DynTensor {
    /// Looks up rows of a table `[v, d]` of any format: `out[t, d] = self[ids[t], d]`, in f32.
    ///
    /// # Errors
    ///
    /// Fails if `ids` is not a vector of i32, if an id is out of range, or with the device's
    /// fault.
    pub fn rows(&self, ids: &Self) -> Result<Self> {
        let op = "rows";
        let (&[v, d], &[_]) = (self.shape(), ids.shape()) else {
            let why = "the table is a matrix and the ids are a vector";
            return Err(Error::Shapes { op, lhs: self.dims(), rhs: ids.dims(), why });
        };
        let table = self.contiguous()?;
        let ids = ids.contiguous()?;
        let wanted = ids.data::<i32>()?;
        let outside = |&&id: &&i32| usize::try_from(id).map_or(true, |id| id >= v);
        if let Some(&id) = wanted.iter().find(outside) {
            return Err(Error::OutOfRange { op, index: id.into(), limit: v });
        }
        let rt = table.runtime();
        let call = Call::Rows(accel::Rows { table: table.operand(op)?, ids: ids.operand(op)? });
        ops::run(rt, &call, |out| {
            let (isa, raw) = (rt.isa(), table.bytes(op)?);
            let row_bytes = raw.len().checked_div(v).unwrap_or(0);
            for (id, out) in wanted.iter().zip(out.chunks_exact_mut(d.max(1))) {
                let id = usize::try_from(*id).unwrap_or(0);
                dense::decode_row(isa, table.dtype(), &raw[id * row_bytes..][..row_bytes], out);
            }
            Ok(())
        })
    }

    /// The `k` largest elements of each row of the innermost axis, largest first, and their
    /// places as i32. Equal elements keep their order. NaN counts as smaller than everything.
    ///
    /// # Errors
    ///
    /// Fails if a row has fewer than `k` elements, or with the device's fault.
    pub fn top_k(&self, k: usize) -> Result<(Self, Self)> {
        let op = "top_k";
        let x = self.to_f32()?.contiguous()?;
        let Some(&cols) = x.shape().last().filter(|&&cols| k <= cols) else {
            return Err(Error::Shape { op, shape: self.dims(), why: "a row has fewer elements" });
        };
        let mut shape = x.dims();
        shape[x.shape().len() - 1] = k;
        let rt = x.runtime();
        let mut values = rt.empty(DType::F32, &shape, op)?;
        let mut places = rt.empty(DType::I32, &shape, op)?;
        if values.is_empty() {
            return Ok((values, places));
        }
        let (v, p) = (values.data_mut::<f32>()?, places.data_mut::<i32>()?);
        let rows = v.chunks_exact_mut(k.max(1)).zip(p.chunks_exact_mut(k.max(1)));
        let mut best = vec![(0, 0.0); k];
        for (x, (values, places)) in x.data::<f32>()?.chunks_exact(cols.max(1)).zip(rows) {
            let found = reduce::top_k(rt.isa(), x, &mut best);
            // Fewer numbers than places: what is left are NaN.
            let nan = x.iter().enumerate().filter(|(_, value)| value.is_nan());
            for (to, (at, &value)) in best[found..].iter_mut().zip(nan) {
                *to = (at, value);
            }
            for (&(at, value), (to_value, to_place)) in
                best.iter().zip(values.iter_mut().zip(places))
            {
                *to_value = value;
                *to_place = i32::try_from(at).map_err(|_| {
                    let why = "a row has more elements than i32 counts";
                    Error::Shape { op, shape: self.dims(), why }
                })?;
            }
        }
        Ok((values, places))
    }

    /// Joins tensors along `axis`.
    ///
    /// # Errors
    ///
    /// Fails if there is none, if types or other axes differ, or with a device's fault.
    pub fn concat(parts: &[&Self], axis: usize) -> Result<Self> {
        let op = "concat";
        let Some(&first) = parts.first() else {
            let shape = accel::Shape::default();
            return Err(Error::Shape { op, shape, why: "there is nothing to join" });
        };
        if axis >= first.shape().len() {
            return Err(Error::Shape { op, shape: first.dims(), why: "it has no such axis" });
        }
        let mut shape = first.dims();
        shape[axis] = 0;
        for part in parts {
            let why = if part.dtype() != first.dtype() {
                Some("the element types differ")
            } else if part.shape().len() != first.shape().len()
                || (0..shape.len()).any(|at| at != axis && part.shape()[at] != first.shape()[at])
            {
                Some("another axis differs")
            } else {
                None
            };
            if let Some(why) = why {
                return Err(Error::Shapes { op, lhs: first.dims(), rhs: part.dims(), why });
            }
            shape[axis] = shape[axis].checked_add(part.shape()[axis]).ok_or(Error::Shapes {
                op,
                lhs: first.dims(),
                rhs: part.dims(),
                why: "the size overflows",
            })?;
        }
        let parts = parts.iter().map(|part| part.contiguous()).collect::<Result<Vec<_>>>()?;
        let outer: usize = shape[..axis].iter().product();
        let mut out = first.runtime().empty(first.dtype(), &shape, op)?;
        if out.is_empty() {
            return Ok(out);
        }
        let dst = out.bytes_mut(op)?;
        let mut at = 0;
        for index in 0..outer {
            for part in &parts {
                let src = part.bytes(op)?;
                let len = src.len() / outer;
                dst[at..at + len].copy_from_slice(&src[index * len..][..len]);
                at += len;
            }
        }
        Ok(out)
    }
}
