//! Products of few rows with scalar weights: activations are packed once, then one task for each
//! tile of the output.

use fucina_dtype::DType;
use fucina_kernels::dense::{Few, Route, Rows, Wide, multiply_wide, wide_scratch_len};

use super::matmul::{SERIAL_WORK, copy_tile, work};
use crate::error::Result;
use crate::ops;
use crate::runtime::Runtime;
use crate::scratch;
use crate::tensor::DynTensor;

const OP: &str = "dot";

/// Most weights of one task.
const TASK_COLS: usize = 96;

/// Most columns of one task of a wide product: sums stay in a first-level cache.
const WIDE_COLS: usize = 512;

/// `x: [m, k]` times contiguous weights `[n, k]`. No size is zero.
pub(super) fn rows(
    rt: &Runtime,
    plan: Few,
    x: &[f32],
    w: &DynTensor,
    out: &mut [f32],
) -> Result<()> {
    let &[n, k] = w.shape() else { unreachable!("rank two by construction") };
    let (m, dtype) = (x.len() / k, w.dtype());
    let serial = work([m, n, k]) < SERIAL_WORK;
    let len_bytes = plan.packed_len(k).unwrap_or(usize::MAX).saturating_mul(4);
    let mut storage = rt.pool().take(len_bytes)?;
    let packed: &mut [f32] = ops::elems_mut(&mut storage, len_bytes, (OP, DType::F32))?;
    let pack = |block: usize, out: &mut [f32]| plan.pack(x, k, block, out);
    if serial {
        packed.chunks_mut(plan.block_len()).enumerate().for_each(|(at, out)| pack(at, out));
    } else {
        rt.team().for_each_chunk(packed, plan.block_len(), pack);
    }
    let (packed, raw) = (&*packed, w.bytes(OP)?);
    let row_bytes = raw.len() / n;
    let step = plan.tile_rows();
    let cols =
        if serial { n } else { (n / (8 * rt.threads()) / step * step).clamp(step, TASK_COLS) };
    rt.team().for_each_tile(out, n, (m, cols), |mut tile| {
        let (cols, first) = (tile.cols.len(), tile.cols.start);
        let w = Rows { dtype, k, bytes: &raw[first * row_bytes..tile.cols.end * row_bytes] };
        scratch::with(m * cols + plan.scratch_len(), |scratch| {
            let (result, scratch) = scratch.split_at_mut(m * cols);
            plan.multiply(w, packed, result, scratch);
            copy_tile(&mut tile, first, result, cols);
        });
    });
    Ok(())
}

/// Whether [`wide`] multiplies `m` rows with `rhs: [b, n, k]`: f32, and rows of `n` are contiguous.
pub(super) fn is_wide(rt: &Runtime, rhs: &DynTensor, m: usize) -> bool {
    let (&[_, n, k], &[_, of_n, of_k]) = (rhs.shape(), rhs.strides()) else {
        unreachable!("rank three by construction")
    };
    let rows = rhs.dtype() == DType::F32 && of_n == 1 && of_k >= n && k > 1 && n >= 32;
    rows && Route::wide(rt.isa(), m)
}

/// `lhs: [b, m, k]` times `rhs: [b or 1, n, k]` of which [`is_wide`] holds. No size is zero.
pub(super) fn wide(rt: &Runtime, lhs: &DynTensor, rhs: &DynTensor, out: &mut [f32]) -> Result<()> {
    let (&[batches, m, k], &[own, n, _]) = (lhs.shape(), rhs.shape()) else {
        unreachable!("rank three by construction")
    };
    let (data, &[of_batch, _, row_stride]) = (rhs.elems_f32(OP)?, rhs.strides()) else {
        unreachable!("rank three by construction")
    };
    let of_batch = if own == 1 { 0 } else { of_batch };
    let lhs = lhs.contiguous()?;
    let x = lhs.data::<f32>()?;
    let serial = work([batches * m, n, k]) < SERIAL_WORK;
    let cols = if serial { n } else { (n / (4 * rt.threads()) / 32 * 32).clamp(32, WIDE_COLS) };
    rt.team().for_each_tile(out, n, (m, cols), |mut tile| {
        let (cols, first, batch) = (tile.cols.len(), tile.cols.start, tile.rows.start / m);
        let b = Wide { data: &data[batch * of_batch + first..], row_stride };
        scratch::with(m * cols + wide_scratch_len(m, cols), |scratch| {
            let (result, scratch) = scratch.split_at_mut(m * cols);
            multiply_wide(rt.isa(), (&x[batch * m * k..][..m * k], m), b, result, scratch);
            copy_tile(&mut tile, first, result, cols);
        });
    });
    Ok(())
}
