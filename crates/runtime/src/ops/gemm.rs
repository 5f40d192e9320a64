//! Products with many rows: `out[b, m, n] = lhs[b, m, k] * rhs[b, n, k]ᵀ`, f32 at any strides, or
//! weights of 16 bits that are decoded on the way.
//!
//! The left operand is packed once, by all threads. Then a task owns a rectangle of the output, and
//! packs its columns of the right operand itself: each weight is decoded once, or once for each of
//! a few bands of rows.

use std::ops::Range;

use fucina_dtype::DType;
use fucina_kernels::dense::{self, Lhs, Matrix, Rhs, row_step};

use super::matmul::{SERIAL_WORK, work};
use crate::error::Result;
use crate::ops;
use crate::runtime::Runtime;
use crate::scratch;
use crate::tensor::DynTensor;
use crate::threads_matrix::matrix;

const OP: &str = "dot";

/// Elements of the packed left operand that are held at a time, 32 MiB. Rows beyond them take
/// another turn, for which the right operand is packed again.
const PACKED_ELEMS: usize = 8 << 20;

/// Columns of a task: at least enough to pay for the left operand that passes over them, at most
/// what a core's second-level cache holds for one block of `k`.
const TASK_COLS: Range<usize> = 96..288;

/// Rows below which a task packs its columns for too little work.
const TASK_ROWS: usize = 256;

/// The right operand of every batch.
enum Right<'a> {
    F32 {
        elems: &'a [f32],
        /// Of the batch, of `n` and of `k`.
        strides: [usize; 3],
    },
    Rows {
        dtype: DType,
        bytes: &'a [u8],
        row_bytes: usize,
        /// From one batch to the next.
        batch_bytes: usize,
    },
}

impl<'a> Right<'a> {
    fn new(rhs: &'a DynTensor, batches: usize) -> Result<Self> {
        let &[own, n, _] = rhs.shape() else { unreachable!("rank three by construction") };
        let shared = own == 1 && batches != 1;
        if rhs.dtype() == DType::F32 {
            let &[batch, row, col] = rhs.strides() else { unreachable!("rank three") };
            let strides = [if shared { 0 } else { batch }, row, col];
            return Ok(Self::F32 { elems: rhs.elems_f32(OP)?, strides });
        }
        let bytes = rhs.bytes(OP)?;
        let batch_bytes = if shared { 0 } else { bytes.len() / own };
        let row_bytes = bytes.len() / (own * n);
        Ok(Self::Rows { dtype: rhs.dtype(), bytes, row_bytes, batch_bytes })
    }

    /// Some columns of the transposed operand of a batch.
    fn columns(&self, batch: usize, cols: &Range<usize>, k: usize) -> Rhs<'a> {
        match *self {
            Self::F32 { elems, strides: [of_batch, of_n, of_k] } => {
                let first = batch * of_batch + cols.start * of_n;
                Rhs::Matrix(Matrix::new(&elems[first..], of_k, of_n))
            }
            Self::Rows { dtype, bytes, row_bytes, batch_bytes } => {
                let first = batch * batch_bytes + cols.start * row_bytes;
                let bytes = &bytes[first..][..cols.len() * row_bytes];
                Rhs::Rows(dense::Rows { dtype, k, bytes })
            }
        }
    }
}

/// A product whose sizes are checked. None of them is zero.
struct Gemm<'a> {
    rt: &'a Runtime,
    /// Elements of the left operand, and the strides of batch, row and column.
    lhs: (&'a [f32], [usize; 3]),
    right: Right<'a>,
    n: usize,
    k: usize,
}

/// `lhs: [b, m, k]` in f32 at any strides, `rhs: [b or 1, n, k]` in f32 at any strides or contiguous
/// in a 16-bit format. No size is zero.
pub(super) fn gemm(rt: &Runtime, lhs: &DynTensor, rhs: &DynTensor, out: &mut [f32]) -> Result<()> {
    let (&[batches, m, k], n) = (lhs.shape(), rhs.shape()[1]) else { unreachable!("rank three") };
    let &[batch, row, col] = lhs.strides() else { unreachable!("rank three by construction") };
    let lhs = (lhs.elems_f32(OP)?, [batch, row, col]);
    let gemm = Gemm { rt, lhs, right: Right::new(rhs, batches)?, n, k };
    let step = row_step(rt.isa());
    let rows_at_once = (PACKED_ELEMS / k).max(TASK_ROWS) / step * step;
    if m > rows_at_once {
        for (batch, out) in out.chunks_exact_mut(m * n).enumerate() {
            for (out, first) in out.chunks_mut(rows_at_once * n).zip((0..).step_by(rows_at_once)) {
                gemm.part(batch..batch + 1, first..m.min(first + rows_at_once), out)?;
            }
        }
        return Ok(());
    }
    let at_once = (rows_at_once / m.next_multiple_of(step)).max(1);
    for (out, first) in out.chunks_mut(at_once * m * n).zip((0..).step_by(at_once)) {
        gemm.part(first..batches.min(first + at_once), 0..m, out)?;
    }
    Ok(())
}

impl Gemm<'_> {
    /// The same rows of some batches. `out` has all of them, one after the other.
    fn part(&self, batches: Range<usize>, rows: Range<usize>, out: &mut [f32]) -> Result<()> {
        let (isa, m, k) = (self.rt.isa(), rows.len(), self.k);
        // A broadcast operand can have more elements than there are addresses: the pool refuses them.
        let batch_elems = dense::packed_lhs_len(isa, m, k).unwrap_or(usize::MAX);
        let len_bytes = batch_elems.saturating_mul(batches.len()).saturating_mul(4);
        let mut storage = self.rt.pool().take(len_bytes)?;
        let packed: &mut [f32] = ops::elems_mut(&mut storage, len_bytes, (OP, DType::F32))?;
        let serial = work([batches.len() * m, self.n, k]) < SERIAL_WORK;
        self.pack(&batches, &rows, packed, serial);
        let packed = &*packed;
        let (bands, cols) = tiles(self.rt, (batches.len(), m, self.n), serial);
        self.rt.team().for_each_band(out, self.n, (&bands, cols), |band, mut tile| {
            let (batch, first) = (bands[band].start / m, bands[band].start % m);
            let lhs = Lhs::new(isa, &packed[batch * batch_elems..][..batch_elems], m, k);
            let rhs = self.right.columns(batches.start + batch, &tile.cols, k);
            let rows = first..first + tile.rows.len();
            scratch::with(dense::multiply_scratch_len(tile.cols.len(), k), |scratch| {
                dense::multiply(isa, (lhs, rows), rhs, &mut matrix(&mut tile), scratch);
            });
        });
        Ok(())
    }

    /// Packs the left operand of some batches.
    fn pack(&self, batches: &Range<usize>, rows: &Range<usize>, out: &mut [f32], serial: bool) {
        let (isa, m, k) = (self.rt.isa(), rows.len(), self.k);
        let (elems, [of_batch, of_row, of_col]) = self.lhs;
        // Panels of all batches are counted through.
        let (panels, panel_elems) = (m.div_ceil(row_step(isa)), row_step(isa) * k);
        let all = panels * batches.len();
        let panels_a_task = if serial { all } else { all.div_ceil(4 * self.rt.threads()) };
        self.rt.team().for_each_chunk(out, panels_a_task * panel_elems, |task, mut out| {
            let mut at = task * panels_a_task;
            while !out.is_empty() {
                let (batch, panel) = (at / panels, at % panels);
                let count = (panels - panel).min(out.len() / panel_elems);
                let (to, rest) = std::mem::take(&mut out).split_at_mut(count * panel_elems);
                let first = (batches.start + batch) * of_batch + rows.start * of_row;
                let a = Matrix::new(&elems[first..], of_row, of_col);
                let here = panel * row_step(isa)..m.min((panel + count) * row_step(isa));
                dense::pack_lhs(isa, (a, m, k), here, to);
                (out, at) = (rest, at + count);
            }
        });
    }
}

/// The bands of rows of all batches, and the columns of a task: several tasks for each thread.
fn tiles(
    rt: &Runtime,
    (batches, m, n): (usize, usize, usize),
    serial: bool,
) -> (Vec<Range<usize>>, usize) {
    let threads = if serial { 1 } else { rt.threads() };
    let wanted = if serial { 1 } else { (4 * threads).div_ceil(batches) };
    // A whole number of rounds for each thread, where there is more than one.
    let across = (n / TASK_COLS.start).min(wanted).max(n.div_ceil(TASK_COLS.end));
    let across = if across > threads { across.next_multiple_of(threads) } else { across };
    let cols = n.div_ceil(across).next_multiple_of(dense::column_step(rt.isa()));
    let bands = wanted.div_ceil(n.div_ceil(cols)).min(m.div_ceil(TASK_ROWS));
    let rows = m.div_ceil(bands).next_multiple_of(row_step(rt.isa()));
    let bands = (0..batches).flat_map(|batch| {
        let (first, end) = (batch * m, batch * m + m);
        (first..end).step_by(rows).map(move |at| at..end.min(at + rows))
    });
    (bands.collect(), cols)
}
