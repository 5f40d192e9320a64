#![deny(unsafe_code)]

use std::arch::x86_64::{_mm512_fmadd_ps, _mm512_set1_ps, _mm512_setzero_ps};

use super::{Part, STRIP};
use crate::isa::x86::{load_f32x16, store_f32x16};

/// Elements of a register.
pub(super) const LANES: usize = 16;

/// Adds some rows of `x`, element after element of `k`, times up to [`STRIP`] rows of `b`, to `sums`,
/// whole registers of columns.
#[target_feature(enable = "avx512f")]
pub(super) fn add(rows: usize, x: &[f32], b: Part<'_>, sums: &mut [f32]) {
    macro_rules! by_rows {
        ($($rows:literal)*) => {
            match rows {
                $($rows => add_of::<$rows>(x, b, sums),)*
                _ => unreachable!("{rows} rows are no group"),
            }
        };
    }
    by_rows!(1 2 3 4 5 6 7 8);
}

#[target_feature(enable = "avx512f")]
fn add_of<const ROWS: usize>(x: &[f32], b: Part<'_>, sums: &mut [f32]) {
    let (x, _) = x.as_chunks::<ROWS>();
    match x.first_chunk::<STRIP>() {
        Some(x) => strip::<ROWS, STRIP>(x, b, sums),
        None => {
            for (i, x) in x.iter().enumerate() {
                strip::<ROWS, 1>(&[*x], b.below(i), sums);
            }
        }
    }
}

/// `DEPTH` rows of `b`, from left to right.
#[expect(clippy::needless_range_loop, reason = "an iterator over sums is a reference to them")]
#[target_feature(enable = "avx512f")]
fn strip<const ROWS: usize, const DEPTH: usize>(
    x: &[[f32; ROWS]; DEPTH],
    b: Part<'_>,
    sums: &mut [f32],
) {
    let cols = sums.len() / ROWS;
    let mut rows: [&[[f32; LANES]]; DEPTH] = [&[]; DEPTH];
    for i in 0..DEPTH {
        rows[i] = b.row(i, cols).as_chunks().0;
    }
    for c in 0..cols / LANES {
        let mut columns = [_mm512_setzero_ps(); DEPTH];
        for i in 0..DEPTH {
            columns[i] = load_f32x16(&rows[i][c]);
            b.prefetch(i + DEPTH, c * LANES);
        }
        for r in 0..ROWS {
            if let Some(to) = sums[r * cols + c * LANES..].first_chunk_mut() {
                let mut sum = load_f32x16(to);
                for i in 0..DEPTH {
                    sum = _mm512_fmadd_ps(columns[i], _mm512_set1_ps(x[i][r]), sum);
                }
                store_f32x16(to, sum);
            }
        }
    }
}
