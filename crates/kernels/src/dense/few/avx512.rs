#![deny(unsafe_code)]

use std::arch::x86_64::{_mm512_add_ps, _mm512_fmadd_ps, _mm512_set1_ps, _mm512_setzero_ps};
use std::hint::black_box;

use super::{Ahead, STEP, Step, Weights};
use crate::isa::x86::{load_f32x16, prefetch_line, store_f32x16};

/// Elements of a register.
pub(super) const LANES: usize = 16;
/// Most registers of activations.
pub(super) const MOST_REGS: usize = 3;

/// See [`Few::panel`](super::Few::panel): `regs` registers of activations, and as many weight rows as
/// make up to 24 sums.
#[target_feature(enable = "avx512f")]
pub(super) fn panel(regs: usize, w: (Weights<'_>, Ahead<'_>), x: &[f32], sums: (&mut [f32], bool)) {
    match regs {
        1 => tile::<12, 1>(w, x, sums),
        2 => tile::<12, 2>(w, x, sums),
        _ => tile::<8, 3>(w, x, sums),
    }
}

/// All in one function, and without references to the sums, so that nothing keeps them out of
/// registers.
#[expect(clippy::needless_range_loop, reason = "an iterator over sums is a reference to them")]
#[target_feature(enable = "avx512f")]
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
    let mut sums = [[_mm512_setzero_ps(); REGS]; ROWS];
    for (i, x) in x.as_chunks::<STEP>().0.iter().enumerate() {
        let mut weights = [&[[0; 4]; STEP]; ROWS];
        for r in 0..ROWS {
            weights[r] = &rows[r][i];
            prefetch_line(ahead.bytes, r * ahead.stride + i * ahead.bytes_a_step);
        }
        // So that addresses are no chain of sums.
        let weights = black_box(weights);
        for t in 0..STEP {
            let mut columns = [_mm512_setzero_ps(); REGS];
            for c in 0..REGS {
                columns[c] = load_f32x16(&x[t][c]);
            }
            for r in 0..ROWS {
                let w = _mm512_set1_ps(f32::from_le_bytes(weights[r][t]));
                for c in 0..REGS {
                    sums[r][c] = _mm512_fmadd_ps(w, columns[c], sums[r][c]);
                }
            }
        }
    }
    let (to, _) = to.as_chunks_mut::<LANES>();
    let (to, _) = to.as_chunks_mut::<REGS>();
    for r in 0..ROWS {
        for c in 0..REGS {
            let to = &mut to[r][c];
            let before = if add { load_f32x16(to) } else { _mm512_setzero_ps() };
            store_f32x16(to, _mm512_add_ps(before, sums[r][c]));
        }
    }
}
