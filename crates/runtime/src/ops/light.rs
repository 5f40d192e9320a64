//! Ops that touch each element a few times: element-wise, norms, softmax, RoPE, gated units.

use fucina_accel::{self as accel, Call};
use fucina_kernels::elementwise::{self, BinaryOp, UnaryOp};
use fucina_kernels::glu::{self, Activation};
use fucina_kernels::rope::{self, Pairing, RopeConfig};
use fucina_kernels::{norm, softmax};

use crate::error::{Error, Result};
use crate::ops;
use crate::runtime::Runtime;
use crate::tensor::DynTensor;

/// Elements below which a second thread costs more than it saves.
const SERIAL_ELEMS: usize = 1 << 14;

/// Elements of one task, in whole rows of `row` elements.
fn chunk(rt: &Runtime, len: usize, row: usize) -> usize {
    let row = row.max(1);
    if len < SERIAL_ELEMS {
        return len.max(row);
    }
    (len / row).div_ceil(4 * rt.threads()).max(1) * row
}

impl DynTensor {
    /// `out = op(self)`, element by element, in f32.
    ///
    /// # Errors
    ///
    /// Fails if the tensor does not hold floats, or with the device's fault.
    pub fn unary(&self, op: UnaryOp) -> Result<Self> {
        let x = self.to_f32()?.contiguous()?;
        let rt = x.runtime();
        let call = Call::Unary(accel::Unary { op: unary_op(op), x: x.operand("unary")? });
        ops::run(rt, &call, |out| {
            let (isa, x) = (rt.isa(), x.data::<f32>()?);
            let step = chunk(rt, x.len(), 1);
            rt.team().for_each_chunk(out, step, |index, out| {
                elementwise::unary(isa, op, &x[index * step..][..out.len()], out);
            });
            Ok(())
        })
    }

    /// `factor * self`.
    ///
    /// # Errors
    ///
    /// As [`unary`](Self::unary).
    pub fn scale(&self, factor: f32) -> Result<Self> {
        self.unary(UnaryOp::Scale(factor))
    }

    /// `self + rhs`. `rhs` is broadcast: its axes of size one repeat, and missing outer axes do.
    ///
    /// # Errors
    ///
    /// Fails if the shapes do not fit, or with the device's fault.
    pub fn add(&self, rhs: &Self) -> Result<Self> {
        self.binary(BinaryOp::Add, rhs)
    }

    /// `self - rhs`. As [`add`](Self::add).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn sub(&self, rhs: &Self) -> Result<Self> {
        self.binary(BinaryOp::Sub, rhs)
    }

    /// `self * rhs`, element by element. As [`add`](Self::add).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn mul(&self, rhs: &Self) -> Result<Self> {
        self.binary(BinaryOp::Mul, rhs)
    }

    /// `self / rhs`, element by element. As [`add`](Self::add).
    ///
    /// # Errors
    ///
    /// As there.
    pub fn div(&self, rhs: &Self) -> Result<Self> {
        self.binary(BinaryOp::Div, rhs)
    }

    fn binary(&self, op: BinaryOp, rhs: &Self) -> Result<Self> {
        let a = self.to_f32()?.contiguous()?;
        let b = rhs.to_f32()?;
        let b = if a.shape() == b.shape() { b } else { b.broadcast(a.shape())? };
        let rt = a.runtime();
        let call = Call::Binary(accel::Binary {
            op: binary_op(op),
            a: a.operand("binary")?,
            b: b.operand("binary")?,
        });
        ops::run(rt, &call, |out| binary_cpu(rt, op, &a, &b, out))
    }

    /// RMS norm of each row of the innermost axis: `x / sqrt(mean(x²) + eps) * weight`.
    ///
    /// # Errors
    ///
    /// Fails if `weight` is not one row, or with the device's fault.
    pub fn rms_norm(&self, weight: Option<&Self>, eps: f32) -> Result<Self> {
        let op = "rms_norm";
        let (x, rows, cols) = self.as_rows(op)?;
        let weight = weight.map(|weight| weight.to_f32()?.contiguous()).transpose()?;
        let rt = x.runtime();
        let operand = weight.as_ref().map(|weight| weight.operand(op)).transpose()?;
        let call = Call::RmsNorm(accel::RmsNorm { x: x.operand(op)?, weight: operand, eps });
        let out = ops::run(rt, &call, |out| {
            let (isa, x) = (rt.isa(), x.data::<f32>()?);
            let weight = weight.as_ref().map(Self::data::<f32>).transpose()?;
            for_rows(rt, out, (rows, cols), |row, out| {
                norm::rms_norm(isa, &x[row * cols..][..cols], weight, eps, out);
            });
            Ok(())
        })?;
        out.reshape(self.shape())
    }

    /// Softmax of `scale * self` over the innermost axis.
    ///
    /// # Errors
    ///
    /// Fails with the device's fault.
    pub fn softmax(&self, scale: f32) -> Result<Self> {
        let op = "softmax";
        let (x, rows, cols) = self.as_rows(op)?;
        let rt = x.runtime();
        let call = Call::Softmax(accel::Softmax { x: x.operand(op)?, scale });
        let out = ops::run(rt, &call, |out| {
            let (isa, x) = (rt.isa(), x.data::<f32>()?);
            for_rows(rt, out, (rows, cols), |row, out| {
                out.copy_from_slice(&x[row * cols..][..cols]);
                softmax::softmax(isa, out, scale);
            });
            Ok(())
        })?;
        out.reshape(self.shape())
    }

    /// `activation(self) * up`: SwiGLU with `Silu`, GeGLU with a `Gelu`.
    ///
    /// # Errors
    ///
    /// Fails if the shapes differ, or with the device's fault.
    pub fn glu(&self, activation: Activation, up: &Self) -> Result<Self> {
        let op = "glu";
        let (gate, up) = (self.to_f32()?.contiguous()?, up.to_f32()?.contiguous()?);
        let rt = gate.runtime();
        let call = Call::Glu(accel::Glu {
            gate: gate.operand(op)?,
            up: up.operand(op)?,
            activation: accel_activation(activation),
        });
        ops::run(rt, &call, |out| {
            let (isa, gate, up) = (rt.isa(), gate.data::<f32>()?, up.data::<f32>()?);
            let step = chunk(rt, gate.len(), 1);
            rt.team().for_each_chunk(out, step, |index, out| {
                let range = index * step..index * step + out.len();
                glu::glu(isa, activation, &gate[range.clone()], &up[range], out);
            });
            Ok(())
        })
    }

    /// Rotates `[tokens, heads, head_dim]` by position: the first `2 * pairs` elements of each
    /// head, where the table has `pairs` columns. The rest is copied.
    ///
    /// # Errors
    ///
    /// Fails if the table has other tokens or too many pairs, or with the device's fault.
    pub fn rope(&self, table: &RopeTable, pairing: Pairing) -> Result<Self> {
        let op = "rope";
        let x = self.to_f32()?.contiguous()?;
        let rt = x.runtime();
        let pairing_of_call = match pairing {
            Pairing::Interleaved => accel::Pairing::Interleaved,
            Pairing::Halves => accel::Pairing::Halves,
        };
        let call = Call::Rope(accel::Rope {
            x: x.operand(op)?,
            cos: table.cos.operand(op)?,
            sin: table.sin.operand(op)?,
            pairing: pairing_of_call,
        });
        ops::run(rt, &call, |out| {
            let &[tokens, heads, dim] = x.shape() else { unreachable!("the call is valid") };
            let (isa, x) = (rt.isa(), x.data::<f32>()?);
            let (cos, sin) = (table.cos.data::<f32>()?, table.sin.data::<f32>()?);
            let pairs = table.cos.shape()[1];
            for_rows(rt, out, (tokens, heads * dim), |token, out| {
                let (cos, sin) = (&cos[token * pairs..][..pairs], &sin[token * pairs..][..pairs]);
                let x = &x[token * heads * dim..][..heads * dim];
                for (x, out) in x.chunks_exact(dim.max(1)).zip(out.chunks_exact_mut(dim.max(1))) {
                    rope::rotate(isa, x, cos, sin, pairing, out);
                }
            });
            Ok(())
        })
    }

    /// The tensor as contiguous f32 rows: `[rows, cols]`.
    fn as_rows(&self, op: &'static str) -> Result<(Self, usize, usize)> {
        let Some((&cols, outer)) = self.shape().split_last() else {
            return Err(Error::Shape { op, shape: self.dims(), why: "it has no axis" });
        };
        let rows = outer.iter().product();
        Ok((self.to_f32()?.contiguous()?.reshape(&[rows, cols])?, rows, cols))
    }
}

/// Runs `task(row, out)` for each row of `out`, on the team if there is enough work.
pub(super) fn for_rows(
    rt: &Runtime,
    out: &mut [f32],
    (rows, cols): (usize, usize),
    task: impl Fn(usize, &mut [f32]) + Sync,
) {
    if rows == 0 || cols == 0 {
        return;
    }
    let step = chunk(rt, rows * cols, cols);
    rt.team().for_each_chunk(out, step, |index, out| {
        for (offset, out) in out.chunks_exact_mut(cols).enumerate() {
            task(index * step / cols + offset, out);
        }
    });
}

/// `a` is contiguous; `b` has the same shape and any strides.
fn binary_cpu(
    rt: &Runtime,
    op: BinaryOp,
    a: &DynTensor,
    b: &DynTensor,
    out: &mut [f32],
) -> Result<()> {
    let (isa, a_elems) = (rt.isa(), a.data::<f32>()?);
    if b.is_contiguous() {
        let b = b.data::<f32>()?;
        let step = chunk(rt, out.len(), 1);
        rt.team().for_each_chunk(out, step, |index, out| {
            let range = index * step..index * step + out.len();
            elementwise::binary(isa, op, &a_elems[range.clone()], &b[range], out);
        });
        return Ok(());
    }
    // A row that repeats is the common case: a bias, or a scale for each row.
    let (&cols, _) = a.shape().split_last().expect("a scalar is contiguous");
    let last = b.strides().last().copied();
    let b_elems = b.elems_f32("binary")?;
    let starts = b.row_starts();
    for_rows(rt, out, (starts.len(), cols), |row, out| {
        let (a, b) = (&a_elems[row * cols..][..cols], &b_elems[starts[row]..]);
        match last {
            Some(1) => elementwise::binary(isa, op, a, &b[..cols], out),
            Some(0) => elementwise::binary_scalar(isa, op, a, b[0], out),
            stride => {
                let stride = stride.unwrap_or(1);
                for (col, (out, a)) in out.iter_mut().zip(a).enumerate() {
                    let pair = (std::slice::from_ref(a), &b[col * stride..][..1]);
                    elementwise::binary(isa, op, pair.0, pair.1, std::slice::from_mut(out));
                }
            }
        }
    });
    Ok(())
}

/// Cosines and sines for [`DynTensor::rope`], one row for each token.
#[derive(Debug, Clone)]
pub struct RopeTable {
    cos: DynTensor,
    sin: DynTensor,
}

impl RopeTable {
    /// Computes the table for tokens at `positions`. Every layer of a forward pass shares it.
    ///
    /// # Errors
    ///
    /// Fails if `config.dims` is odd or the frequency factors have another length, or without
    /// memory.
    pub fn new(rt: &Runtime, config: &RopeConfig<'_>, positions: &[i32]) -> Result<Self> {
        let pairs = config.dims / 2;
        let shape = accel::Shape::of([positions.len(), config.dims]);
        if !config.dims.is_multiple_of(2) {
            return Err(Error::Shape { op: "rope", shape, why: "rotated elements come in pairs" });
        }
        if config.freq_factors.is_some_and(|factors| factors.len() != pairs) {
            return Err(Error::Shape { op: "rope", shape, why: "one frequency factor for a pair" });
        }
        let mut cos = rt.empty(fucina_dtype::DType::F32, &[positions.len(), pairs], "rope")?;
        let mut sin = rt.empty(fucina_dtype::DType::F32, &[positions.len(), pairs], "rope")?;
        if !cos.is_empty() {
            rope::angles(config, positions, cos.data_mut()?, sin.data_mut()?);
        }
        Ok(Self { cos, sin })
    }

    /// The part of the last `tokens` tokens.
    ///
    /// # Errors
    ///
    /// Fails if there are fewer.
    pub fn last(&self, tokens: usize) -> Result<Self> {
        let all = self.cos.shape()[0];
        let first = all.checked_sub(tokens).ok_or(Error::Shape {
            op: "rope",
            shape: self.cos.dims(),
            why: "the table has fewer tokens",
        })?;
        Ok(Self {
            cos: self.cos.narrow(0, first, tokens)?,
            sin: self.sin.narrow(0, first, tokens)?,
        })
    }
}

const fn unary_op(op: UnaryOp) -> accel::UnaryOp {
    match op {
        UnaryOp::Neg => accel::UnaryOp::Neg,
        UnaryOp::Exp => accel::UnaryOp::Exp,
        UnaryOp::Silu => accel::UnaryOp::Activation(accel::Activation::Silu),
        UnaryOp::GeluTanh => accel::UnaryOp::Activation(accel::Activation::GeluTanh),
        UnaryOp::GeluErf => accel::UnaryOp::Activation(accel::Activation::GeluErf),
        UnaryOp::Sigmoid => accel::UnaryOp::Sigmoid,
        UnaryOp::Tanh => accel::UnaryOp::Tanh,
        UnaryOp::Relu => accel::UnaryOp::Relu,
        UnaryOp::Sqrt => accel::UnaryOp::Sqrt,
        UnaryOp::Scale(factor) => accel::UnaryOp::Scale(factor),
        UnaryOp::SoftCap(cap) => accel::UnaryOp::SoftCap(cap),
    }
}

const fn binary_op(op: BinaryOp) -> accel::BinaryOp {
    match op {
        BinaryOp::Add => accel::BinaryOp::Add,
        BinaryOp::Sub => accel::BinaryOp::Sub,
        BinaryOp::Mul => accel::BinaryOp::Mul,
        BinaryOp::Div => accel::BinaryOp::Div,
    }
}

const fn accel_activation(activation: Activation) -> accel::Activation {
    match activation {
        Activation::Silu => accel::Activation::Silu,
        Activation::GeluTanh => accel::Activation::GeluTanh,
        Activation::GeluErf => accel::Activation::GeluErf,
    }
}
