//! Products with 16-bit weights in tiles: activations are packed once, then one task for each tile
//! of the output.

use fucina_dtype::DType;
use fucina_kernels::dense::{Rows, SPLIT_BLOCK, Split};

use super::matmul::{SERIAL_WORK, copy_tile, work};
use crate::error::Result;
use crate::ops;
use crate::runtime::Runtime;
use crate::scratch;
use crate::tensor::DynTensor;

/// Rows of activations of one task, whole tiles: their results stay in a cache.
const TASK_ROWS: usize = 256;
/// Weights of one task, in pairs of tiles.
const TASK_COLS: usize = 64;

/// `x: [m, k]` times contiguous weights `[n, k]`. No size is zero.
pub(super) fn rows(
    rt: &Runtime,
    plan: Split,
    x: &[f32],
    w: &DynTensor,
    out: &mut [f32],
) -> Result<()> {
    let &[n, k] = w.shape() else { unreachable!("rank two by construction") };
    let (m, dtype, block_words) = (x.len() / k, w.dtype(), Split::block_words(k));
    let serial = work([m, n, k]) < SERIAL_WORK;
    let len_bytes = m.div_ceil(SPLIT_BLOCK) * block_words * 4;
    let mut storage = rt.pool().take(len_bytes)?;
    let words: &mut [u32] = ops::elems_mut(&mut storage, len_bytes, ("dot", DType::I32))?;
    let pack = |block: usize, out: &mut [u32]| {
        let first = block * SPLIT_BLOCK;
        plan.pack(&x[first * k..m.min(first + SPLIT_BLOCK) * k], k, out);
    };
    if serial {
        words.chunks_exact_mut(block_words).enumerate().for_each(|(at, out)| pack(at, out));
    } else {
        rt.team().for_each_chunk(words, block_words, pack);
    }
    let (words, raw) = (&*words, w.bytes("dot")?);
    let row_bytes = raw.len() / n;
    let cols =
        if serial { n } else { (n / (8 * rt.threads())).next_multiple_of(32).clamp(32, TASK_COLS) };
    let rows_a_task = m.div_ceil(m.div_ceil(TASK_ROWS)).next_multiple_of(32);
    rt.team().for_each_tile(out, n, (rows_a_task, cols), |mut tile| {
        let (rows, cols, first) = (tile.rows.len(), tile.cols.len(), tile.cols.start);
        let blocks = tile.rows.start / SPLIT_BLOCK..tile.rows.end.div_ceil(SPLIT_BLOCK);
        let x = &words[blocks.start * block_words..blocks.end * block_words];
        let w = Rows { dtype, k, bytes: &raw[first * row_bytes..tile.cols.end * row_bytes] };
        scratch::with(rows * cols + plan.scratch_len(rows, cols), |scratch| {
            let (result, scratch) = scratch.split_at_mut(rows * cols);
            plan.multiply(w, (x, rows), result, scratch);
            copy_tile(&mut tile, first, result, cols);
        });
    });
    Ok(())
}
