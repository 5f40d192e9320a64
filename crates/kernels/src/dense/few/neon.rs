#![deny(unsafe_code)]

use std::arch::aarch64::{float32x4_t, vaddq_f32, vdupq_n_f32, vreinterpretq_f32_u8};

use super::{Ahead, Columns, STEP, Step, Weights};
use crate::isa::aarch64::{
    load_f32x4, load_u8x16, mul_add_lane, prefetch_line, store_f32x4, transpose_4x4,
};

/// Elements of a register.
pub(super) const LANES: usize = 4;
/// Most registers of activations.
pub(super) const MOST_REGS: usize = 3;

/// See [`Few::panel`](super::Few::panel): `regs` registers of activations, and as many weight rows as
/// leave registers for their weights: 25 to 27 of 32 are in use.
#[target_feature(enable = "neon")]
pub(super) fn panel(regs: usize, w: (Weights<'_>, Ahead<'_>), x: &[f32], sums: (&mut [f32], bool)) {
    match regs {
        1 => tile::<12, 1>(w, x, sums),
        2 => tile::<8, 2>(w, x, sums),
        _ => tile::<6, 3>(w, x, sums),
    }
}

/// All in one function, and without references to the sums, so that nothing keeps them out of
/// registers.
#[expect(clippy::needless_range_loop, reason = "an iterator over sums is a reference to them")]
#[target_feature(enable = "neon")]
fn tile<const ROWS: usize, const REGS: usize>(
    (w, ahead): (Weights<'_>, Ahead<'_>),
    x: &[f32],
    (to, add): (&mut [f32], bool),
) {
    let mut rows: [&[Step]; ROWS] = [&[]; ROWS];
    for r in 0..ROWS {
        rows[r] = w.row(r);
    }
    let (x, _) = x.as_chunks::<LANES>();
    let (x, _) = x.as_chunks::<REGS>();
    let mut sums = [[vdupq_n_f32(0.0); REGS]; ROWS];
    for (i, x) in x.as_chunks::<STEP>().0.iter().enumerate() {
        for r in 0..ROWS {
            prefetch_line(ahead.bytes, r * ahead.stride + i * ahead.bytes_a_step);
        }
        for (quad, x) in x.as_chunks::<LANES>().0.iter().enumerate() {
            let mut weights = [vdupq_n_f32(0.0); ROWS];
            for r in 0..ROWS {
                weights[r] = four_weights(&rows[r][i], quad);
            }
            for t in 0..LANES {
                let mut columns = [vdupq_n_f32(0.0); REGS];
                for c in 0..REGS {
                    columns[c] = load_f32x4(&x[t][c]);
                }
                for r in 0..ROWS {
                    for c in 0..REGS {
                        sums[r][c] = mul_add_lane(sums[r][c], columns[c], weights[r], t);
                    }
                }
            }
        }
    }
    let (to, _) = to.as_chunks_mut::<LANES>();
    let (to, _) = to.as_chunks_mut::<REGS>();
    for r in 0..ROWS {
        for c in 0..REGS {
            let to = &mut to[r][c];
            let before = if add { load_f32x4(to) } else { vdupq_n_f32(0.0) };
            store_f32x4(to, vaddq_f32(before, sums[r][c]));
        }
    }
}

/// A quarter of a step.
#[target_feature(enable = "neon")]
#[inline]
fn four_weights(step: &Step, quad: usize) -> float32x4_t {
    let (quads, _) = step.as_flattened().as_chunks();
    vreinterpretq_f32_u8(load_u8x16(&quads[quad]))
}

/// `out[i * width + r]` is column `i` of row `r`. Rows that are missing to `width`, and columns that
/// are missing to fill `out`, are zero.
#[target_feature(enable = "neon")]
pub(super) fn transpose(x: Columns<'_>, out: &mut [f32], width: usize) {
    let whole = x.cols.len() / LANES * LANES;
    for first in (0..width).step_by(LANES) {
        let rows: [_; LANES] = std::array::from_fn(|i| x.row(first + i));
        for at in (0..whole).step_by(LANES) {
            let mut square = [vdupq_n_f32(0.0); LANES];
            for (to, row) in square.iter_mut().zip(rows) {
                if let Some(values) = row.get(at..).and_then(|row| row.first_chunk()) {
                    *to = load_f32x4(values);
                }
            }
            for (i, column) in (at..).zip(transpose_4x4(square)) {
                if let Some(to) = out[i * width + first..].first_chunk_mut() {
                    store_f32x4(to, column);
                }
            }
        }
        for i in whole..out.len() / width {
            for (to, row) in out[i * width + first..][..LANES].iter_mut().zip(rows) {
                *to = row.get(i).copied().unwrap_or(0.0);
            }
        }
    }
}
