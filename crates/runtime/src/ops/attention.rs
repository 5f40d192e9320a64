//! Attention over keys and values of any number of positions.

use fucina_accel::{self as accel, Call};
use fucina_dtype::DType;
use fucina_kernels::attention::{self, Kv, KvData, KvView, Params};
use fucina_kernels::convert::Q8_0_ELEMS;

use crate::error::{Error, Result};
use crate::ops;
use crate::runtime::Runtime;
use crate::scratch;
use crate::tensor::DynTensor;

/// Query rows of one task: half a tile of the kernel, or a whole one.
const QUERY_ROWS: [usize; 2] = [attention::TILE_ROWS / 2, attention::TILE_ROWS];
/// Multiply-adds below which a second thread costs more than it saves.
const SERIAL_WORK: usize = 1 << 15;

impl DynTensor {
    /// `softmax(scale * self · kᵀ) · v` for each head.
    ///
    /// `self` is `[tokens, heads, dim]`, `k` is `[positions, kv_heads, dim]` and `v` is
    /// `[positions, kv_heads, v_dim]`, both f32, f16 or `Q8_0`. Each key head serves `heads / kv_heads`
    /// query heads. The result is `[tokens, heads, v_dim]`.
    ///
    /// # Errors
    ///
    /// Fails if the shapes do not fit, or with the device's fault.
    pub fn attention(&self, k: &Self, v: &Self, params: &Params) -> Result<Self> {
        let op = "attention";
        let q = self.to_f32()?.contiguous()?;
        let rt = q.runtime();
        let &Params { scale, causal, q_offset, window, soft_cap } = params;
        if q.shape().last() == Some(&0) {
            return Err(Error::Shape { op, shape: self.dims(), why: "a head has no elements" });
        }
        if q_offset.checked_add(q.shape().first().copied().unwrap_or(0)).is_none() {
            return Err(Error::Shape { op, shape: self.dims(), why: "the positions overflow" });
        }
        let call = Call::Attention(accel::Attention {
            q: q.operand(op)?,
            k: k.operand(op)?,
            v: v.operand(op)?,
            scale,
            causal,
            q_offset,
            window,
            soft_cap,
        });
        ops::run(rt, &call, |out| cpu(rt, &q, k, v, params, out))
    }
}

fn cpu(
    rt: &Runtime,
    q: &DynTensor,
    k: &DynTensor,
    v: &DynTensor,
    params: &Params,
    out: &mut [f32],
) -> Result<()> {
    let (&[tokens, heads, dim], &[positions, kv_heads, v_dim]) = (q.shape(), v.shape()) else {
        unreachable!("the shapes are checked")
    };
    let (k, v) = (inner_dense(k)?, inner_dense(v)?);
    let (isa, q, kv) = (rt.isa(), q.data::<f32>()?, (Heads::new(&k)?, Heads::new(&v)?));
    if out.is_empty() {
        return Ok(());
    }
    if positions == 0 {
        out.fill(0.0);
        return Ok(());
    }
    let sizes = [tokens, heads, positions, dim];
    let serial = sizes.into_iter().fold(1, usize::saturating_mul) < SERIAL_WORK;
    // The kernel's large tiles, if that leaves a few of them for each thread.
    let many = tokens.div_ceil(QUERY_ROWS[1]).saturating_mul(heads) >= 4 * rt.threads();
    let tile =
        if serial { (tokens, heads * v_dim) } else { (QUERY_ROWS[usize::from(many)], v_dim) };
    rt.team().for_each_tile(out, heads * v_dim, tile, |mut tile| {
        let rows = tile.rows.clone();
        let first_head = tile.cols.start / v_dim;
        let len = attention::scratch_len(dim, v_dim);
        scratch::with(rows.len() * v_dim + len, |scratch| {
            let (result, scratch) = scratch.split_at_mut(rows.len() * v_dim);
            for head in first_head..tile.cols.end / v_dim {
                let kv_head = head / (heads / kv_heads);
                let kv = Kv { k: kv.0.head(kv_head), v: kv.1.head(kv_head), start: 0 };
                let (data, row_stride) = (&q[head * dim..], heads * dim);
                let queries = attention::Queries { data, row_stride, rows: rows.clone() };
                attention::attend(isa, params, &queries, &kv, result, scratch);
                let at = (head - first_head) * v_dim;
                for (row, values) in rows.clone().zip(result.chunks_exact(v_dim)) {
                    tile.row_mut(row)[at..at + v_dim].copy_from_slice(values);
                }
            }
        });
    });
    Ok(())
}

/// A view whose heads are runs of memory, which the kernel asks for.
fn inner_dense(kv: &DynTensor) -> Result<DynTensor> {
    let dense = kv.shape()[2] <= 1 || kv.strides()[2] == 1;
    if dense { Ok(kv.clone()) } else { kv.contiguous() }
}

/// Keys or values `[positions, kv_heads, dim]`.
struct Heads<'a> {
    elems: KvData<'a>,
    strides: (usize, usize),
    len: usize,
    dim: usize,
}

impl<'a> Heads<'a> {
    fn new(tensor: &'a DynTensor) -> Result<Self> {
        let elems = match tensor.dtype() {
            DType::F16 => KvData::F16(tensor.elems::<u16>("attention")?),
            DType::Q8_0 => KvData::Q8_0(tensor.blocks("attention")?),
            _ => KvData::F32(tensor.elems_f32("attention")?),
        };
        let strides = (tensor.strides()[0], tensor.strides()[1]);
        Ok(Self { elems, strides, len: tensor.shape()[0], dim: tensor.shape()[2] })
    }

    fn head(&self, head: usize) -> KvView<'a> {
        let start = head * self.strides.1;
        let data = match self.elems {
            KvData::F16(elems) => KvData::F16(elems.get(start..).unwrap_or(&[])),
            KvData::F32(elems) => KvData::F32(elems.get(start..).unwrap_or(&[])),
            KvData::Q8_0(blocks) => KvData::Q8_0(blocks.get(start / Q8_0_ELEMS..).unwrap_or(&[])),
        };
        KvView { data, row_stride: self.strides.0, len: self.len, dim: self.dim }
    }
}
