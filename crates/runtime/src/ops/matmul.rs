//! Contractions: `out[b, m, n] = lhs[b, m, k] * rhs[b, n, k]ᵀ`, f32 out, any weights.
//!
//! The kernel follows from the weights and the number of rows: packed panels, or what [`Route`] says of
//! scalar floats. Tasks are tiles of the output.

use fucina_accel::{Call, MatMul, Shape};
use fucina_dtype::DType;
use fucina_kernels::dense::{self, Route};
use fucina_kernels::quant::{PANEL_COLS, Plan, activation_len};

use super::blas;
use super::panels::{Activations, multiply_tile, panels_a_task, rows_a_task};
use crate::error::{Error, Result};
use crate::ops::gemm::gemm;
use crate::ops::{self, few, split};
use crate::runtime::Runtime;
use crate::scratch;
use crate::tensor::DynTensor;
use crate::threads::TileMut;
use crate::weight::Packed;

/// Work in multiply-adds that is not worth waking a second thread for.
pub(super) const SERIAL_WORK: usize = 1 << 16;
/// Work in multiply-adds for which the rows of a batch are packed apart from those of others.
const BATCH_WORK: usize = 1 << 20;
/// Rows from which small products go through blocked GEMM.
const GEMM_ROWS: usize = 12;

/// Most weight rows of a task that streams them: whole tiles of any height.
const TASK_COLS: usize = 96;

impl DynTensor {
    /// `out[a.., b..] = Σ self[a.., x] * rhs[b.., x]` over the axes `(of self, of rhs)`.
    ///
    /// `self` is converted to f32. `rhs` may be of any type; a block format has `x` innermost.
    ///
    /// # Errors
    ///
    /// Fails if the sizes differ, if the result has more than four axes, or with a device's fault.
    pub fn contract(&self, rhs: &Self, axes: (usize, usize)) -> Result<Self> {
        let op = "dot";
        let (lhs, lhs_rest) = to_rows(self, axes.0, op)?;
        let (right, rhs_rest) = to_rows(rhs, axes.1, op)?;
        let shape = joined(&lhs_rest, &rhs_rest).ok_or(Error::Shapes {
            op,
            lhs: self.dims(),
            rhs: rhs.dims(),
            why: "the result has more than four axes",
        })?;
        let lhs = lhs.reshape(&[1, lhs.shape()[0], lhs.shape()[1]])?;
        // Panels of several matrices are padded apart, so they are no panels of one.
        let packed = rhs.packed().filter(|_| axes.1 == 1 && rhs.shape().len() == 2);
        let right3 = right.reshape(&[1, right.shape()[0], right.shape()[1]])?;
        matmul(&lhs, &right3, packed.map(AsRef::as_ref), (self, rhs))?.reshape(&shape)
    }

    /// `self[m, k] * rhs[n, k]ᵀ`, the linear layer.
    ///
    /// # Errors
    ///
    /// As [`contract`](Self::contract).
    pub fn matmul_t(&self, rhs: &Self) -> Result<Self> {
        let inner = |tensor: &Self| tensor.shape().len().saturating_sub(1);
        self.contract(rhs, (inner(self), inner(rhs)))
    }

    /// `out[y, a.., b..] = Σ self[y, a.., x] * rhs[y, b.., x]`, the batch axis first.
    ///
    /// # Errors
    ///
    /// As [`contract`](Self::contract).
    pub fn batch_contract(
        &self,
        rhs: &Self,
        batch: (usize, usize),
        axes: (usize, usize),
    ) -> Result<Self> {
        let op = "batch_dot";
        let (lhs, lhs_rest) = to_batched_rows(self, batch.0, axes.0, op)?;
        let (right, rhs_rest) = to_batched_rows(rhs, batch.1, axes.1, op)?;
        let misfit = |why| Error::Shapes { op, lhs: self.dims(), rhs: rhs.dims(), why };
        let rest = joined(&lhs_rest, &rhs_rest).filter(|rest| rest.len() < fucina_accel::MAX_RANK);
        let rest = rest.ok_or_else(|| misfit("the result has more than four axes"))?;
        if lhs.shape()[0] != right.shape()[0] {
            return Err(misfit("the sizes of the batch axis differ"));
        }
        let mut shape = vec![lhs.shape()[0]];
        shape.extend_from_slice(&rest);
        matmul(&lhs, &right, None, (self, rhs))?.reshape(&shape)
    }
}

/// All axes but `axis` merged into rows: `[rows, k]`, and the sizes of the merged axes.
fn to_rows(tensor: &DynTensor, axis: usize, op: &'static str) -> Result<(DynTensor, Shape)> {
    let last = moved_last(tensor, axis, op)?;
    let (&k, rest) = last.shape().split_last().expect("the axis exists");
    let rest = Shape::new(rest).expect("fewer axes than before");
    let rows = rest.elems().expect("fits, as the tensor does");
    Ok((last.reshape(&[rows, k])?, rest))
}

fn to_batched_rows(
    tensor: &DynTensor,
    batch: usize,
    axis: usize,
    op: &'static str,
) -> Result<(DynTensor, Shape)> {
    let rank = tensor.shape().len();
    if batch >= rank || axis >= rank || batch == axis {
        let why = "the batch axis and the contracted axis are not two axes of it";
        return Err(Error::Shape { op, shape: tensor.dims(), why });
    }
    let mut order = vec![batch];
    order.extend((0..rank).filter(|&at| at != batch && at != axis));
    order.push(axis);
    let ordered = tensor.permute(&order)?;
    let rest = Shape::new(&ordered.shape()[1..rank - 1]).expect("fewer axes than before");
    let (b, k) = (tensor.shape()[batch], tensor.shape()[axis]);
    let rows = rest.elems().expect("fits, as the tensor does");
    Ok((ordered.reshape(&[b, rows, k])?, rest))
}

fn moved_last(tensor: &DynTensor, axis: usize, op: &'static str) -> Result<DynTensor> {
    let rank = tensor.shape().len();
    if axis >= rank {
        return Err(Error::Shape { op, shape: tensor.dims(), why: "it has no such axis" });
    }
    if axis + 1 == rank {
        return Ok(tensor.clone());
    }
    let mut order: Vec<usize> = (0..rank).filter(|&at| at != axis).collect();
    order.push(axis);
    tensor.permute(&order)
}

fn joined(a: &Shape, b: &Shape) -> Option<Shape> {
    b.iter().try_fold(*a, |shape, &dim| shape.with(dim))
}

/// The product of `[b, m, k]` and `[b or 1, n, k]`. `shown` are the caller's operands, for errors.
fn matmul(
    lhs: &DynTensor,
    rhs: &DynTensor,
    packed: Option<&Packed>,
    shown: (&DynTensor, &DynTensor),
) -> Result<DynTensor> {
    let op = "dot";
    if lhs.shape()[2] != rhs.shape()[2] {
        let why = "the sizes of the contracted axis differ";
        return Err(Error::Shapes { op, lhs: shown.0.dims(), rhs: shown.1.dims(), why });
    }
    let lhs = lhs.to_f32()?;
    let rt = lhs.runtime();
    let call = Call::MatMul(MatMul { lhs: lhs.operand(op)?, rhs: rhs.operand(op)? });
    ops::run(rt, &call, |out| blas::product(rt, &lhs, (rhs, shown.1), packed, out))
}

/// The product with kernels of our own.
pub(super) fn cpu(
    rt: &Runtime,
    lhs: &DynTensor,
    rhs: &DynTensor,
    packed: Option<&Packed>,
    out: &mut [f32],
) -> Result<()> {
    let &[batches, m, k] = lhs.shape() else { unreachable!("rank three by construction") };
    let n = rhs.shape()[1];
    if out.is_empty() {
        return Ok(());
    }
    if k == 0 {
        out.fill(0.0);
        return Ok(());
    }
    if let Some(packed) = packed {
        let lhs = lhs.contiguous()?;
        return packed_rows(rt, lhs.data()?, packed, (batches * m, n, k), out);
    }
    if few::is_wide(rt, rhs, m) {
        return few::wide(rt, lhs, rhs, out);
    }
    // Packing has its price, and batches have it each.
    let least = if batches > 1 { BATCH_WORK } else { SERIAL_WORK };
    let route = match Route::new(rt.isa(), rhs.dtype(), m) {
        _ if rhs.dtype() == DType::F32 && !rhs.is_contiguous() => Route::Blocked,
        Route::Few(_) if work([m, n, k]) < least && m >= GEMM_ROWS => Route::Blocked,
        Route::Few(_) if work([m, n, k]) < least => Route::Stream,
        route => route,
    };
    if let Route::Blocked = route {
        let rhs = if rhs.dtype() == DType::F32 { rhs.clone() } else { rhs.contiguous()? };
        return gemm(rt, lhs, &rhs, out);
    }
    for (batch, out) in out.chunks_exact_mut(m * n).enumerate() {
        let lhs = lhs.narrow(0, batch, 1)?.reshape(&[m, k])?;
        let rhs =
            rhs.narrow(0, if rhs.shape()[0] == 1 { 0 } else { batch }, 1)?.reshape(&[n, k])?;
        let (lhs, rhs) = (lhs.contiguous()?, rhs.contiguous()?);
        match route {
            Route::Split(plan) => split::rows(rt, plan, lhs.data()?, &rhs, out)?,
            Route::Few(plan) => few::rows(rt, plan, lhs.data()?, &rhs, out)?,
            Route::Stream | Route::Blocked => rows(rt, lhs.data()?, &rhs, out)?,
        }
    }
    Ok(())
}

/// Multiply-adds. A broadcast view can have more of them than `usize` counts.
pub(super) fn work(sizes: [usize; 3]) -> usize {
    sizes.into_iter().fold(1, usize::saturating_mul)
}

/// Packed weights: brings the activations into the form that the plan asks for, then one task for
/// each tile of panels.
fn packed_rows(
    rt: &Runtime,
    x: &[f32],
    packed: &Packed,
    (m, n, k): (usize, usize, usize),
    out: &mut [f32],
) -> Result<()> {
    let (layout, panels) = (packed.layout(), packed.panels()?);
    let plan = Plan::new(rt.isa(), layout, m);
    let activations = Activations::new(rt, plan, x, k)?;
    let (words, len) = (activations.words()?, activation_len(k));
    let rows = rows_a_task(plan, m, k);
    let group = if work([m, n, k]) < SERIAL_WORK {
        layout.panels()
    } else {
        panels_a_task(plan, layout, (8 * rt.threads()).div_ceil(m.div_ceil(rows)))
    };
    rt.team().for_each_tile(out, n, (rows, group * PANEL_COLS), |mut tile| {
        let plan = plan.with_rows(tile.rows.len());
        multiply_tile(plan, (layout, panels), &words[tile.rows.start * len..], &mut tile);
    });
    Ok(())
}

/// Copies a block of `width` columns, row-major, to the tile's columns from `first` on.
pub(super) fn copy_tile(tile: &mut TileMut<'_, f32>, first: usize, block: &[f32], width: usize) {
    let cols = width.min(tile.cols.end - first);
    let at = first - tile.cols.start;
    for (row, values) in tile.rows.clone().zip(block.chunks_exact(width)) {
        tile.row_mut(row)[at..at + cols].copy_from_slice(&values[..cols]);
    }
}

/// Contiguous rows of any format, streamed once for each block of activation rows.
fn rows(rt: &Runtime, x: &[f32], w: &DynTensor, out: &mut [f32]) -> Result<()> {
    let &[n, k] = w.shape() else { unreachable!("rank two by construction") };
    let (isa, dtype, m) = (rt.isa(), w.dtype(), x.len() / k);
    let raw = w.bytes("dot")?;
    let row_bytes = raw.len() / n;
    let serial = work([m, n, k]) < SERIAL_WORK;
    let cols = if serial { n } else { (n / (8 * rt.threads())).clamp(1, TASK_COLS) };
    let row_block = m.min(256);
    rt.team().for_each_tile(out, n, (row_block, cols), |mut tile| {
        let (rows, cols, first) = (tile.rows.len(), tile.cols.len(), tile.cols.start);
        let x = &x[tile.rows.start * k..tile.rows.end * k];
        let bytes = &raw[first * row_bytes..tile.cols.end * row_bytes];
        scratch::with(rows * cols + dense::scratch_len(isa, dtype, (rows, cols), k), |scratch| {
            let (result, scratch) = scratch.split_at_mut(rows * cols);
            dense::matmul_rows(isa, dense::Rows { dtype, k, bytes }, x, result, scratch);
            copy_tile(&mut tile, first, result, cols);
        });
    });
    Ok(())
}
