//! Products with packed weights: activations in the form that the plan of kernels asks for, and
//! the tile of a task.

use fucina_accel::Storage;
use fucina_dtype::DType;
use fucina_kernels::quant::{
    Kernel, PANEL_COLS, PackLayout, Plan, activation_len, matmul_planned, planned_scratch_len,
};
use zerocopy::FromBytes;

use super::matmul::{SERIAL_WORK, work};
use crate::error::{Error, Result};
use crate::ops;
use crate::runtime::Runtime;
use crate::scratch;
use crate::threads::TileMut;
use crate::threads_matrix::matrix;

/// Words of a row in a step of activations.
const STEP_WORDS: usize = 16;

/// Rows of activations in the form that the kernels of a plan read.
pub(super) struct Activations {
    storage: Storage,
    len_bytes: usize,
}

impl Activations {
    /// Writes rows of `k` elements. `k` is not zero.
    pub(super) fn new(rt: &Runtime, plan: Plan, x: &[f32], k: usize) -> Result<Self> {
        let (len, m) = (activation_len(k), x.len() / k);
        let words = plan.room(m) * len;
        let len_bytes = words * 4 + plan.rows_behind() * len * 4;
        let mut storage = rt.pool().take(len_bytes)?;
        let words: &mut [u32] = ops::elems_mut(&mut storage, words * 4, ("dot", DType::I32))?;
        let tasks = if work([m, k, 1]) < SERIAL_WORK { 1 } else { 8 * rt.threads() };
        let together = plan.rows_together();
        if (2..=together).contains(&m) {
            // One tile: cut along k.
            let (step, steps) = (plan.room(m) * STEP_WORDS, (len / STEP_WORDS).div_ceil(tasks));
            rt.team().for_each_chunk(words, step * steps, |task, out| {
                plan.write((x, k), task * steps, out);
            });
        } else {
            let rows = m.div_ceil(together).div_ceil(tasks).max(1) * together;
            rt.team().for_each_chunk(words, rows * len, |task, out| {
                let x = x[task * rows * k..].chunks(together * k);
                for (x, out) in x.zip(out.chunks_mut(together * len)) {
                    plan.write((x, k), 0, out);
                }
            });
        }
        Ok(Self { storage, len_bytes })
    }

    /// The records of the rows, one after the other, and [`Plan::rows_behind`] of any content.
    pub(super) fn words(&self) -> Result<&[u32]> {
        let bytes = &self.storage.host()?[..self.len_bytes];
        <[u32]>::ref_from_bytes(bytes)
            .map_err(|_| Error::Unaligned { op: "dot", dtype: DType::I32 })
    }
}

/// Panels of one task should stay in a core's second-level cache.
const PANEL_GROUP_BYTES: usize = 1 << 20;

/// Rows for one task out of `m`, not zero: about equal blocks of whole tiles, none larger than the
/// plan wants.
pub(super) fn rows_a_task(plan: Plan, m: usize, k: usize) -> usize {
    m.div_ceil(m.div_ceil(plan.row_block(k))).next_multiple_of(plan.tile_rows())
}

/// Panels of one task: few enough to stay in a cache, many enough that each task has worth to
/// arrange its rows for. Tiles take them in pairs.
pub(super) fn panels_a_task(plan: Plan, layout: &PackLayout, tasks: usize) -> usize {
    let most = (PANEL_GROUP_BYTES / layout.panel_bytes().max(1)).clamp(1, 32);
    let panels = (layout.panels() / tasks.max(1)).clamp(1, most);
    if plan.kernel() == Kernel::Vector { panels } else { panels.next_multiple_of(2) }
}

/// The panels of one matrix times the rows of a tile of the output. `x` begins with these rows.
pub(super) fn multiply_tile(
    plan: Plan,
    (layout, panels): (&PackLayout, &[u8]),
    x: &[u32],
    tile: &mut TileMut<'_, f32>,
) {
    let (rows, k) = (tile.rows.len(), layout.k());
    let at_once = plan.panels_at_once(rows, k).min(tile.cols.len().div_ceil(PANEL_COLS));
    let (first_panel, mut out) = (tile.cols.start / PANEL_COLS, matrix(tile));
    scratch::with(planned_scratch_len(plan, k, (at_once, rows)), |scratch| {
        for (first, at) in
            (0..out.cols()).step_by(at_once * PANEL_COLS).zip((first_panel..).step_by(at_once))
        {
            let cols = first..out.cols().min(first + at_once * PANEL_COLS);
            let len = cols.len().div_ceil(PANEL_COLS) * layout.panel_bytes();
            let panels = &panels[at * layout.panel_bytes()..][..len];
            matmul_planned(plan, (layout, panels), (x, rows), &mut out.columns(cols), scratch);
        }
    });
}
