#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m256, _mm256_add_ps, _mm256_castpd_ps, _mm256_castps_pd, _mm256_fmadd_ps,
    _mm256_permute2f128_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_unpackhi_pd,
    _mm256_unpackhi_ps, _mm256_unpacklo_pd, _mm256_unpacklo_ps,
};
use std::hint::black_box;

use super::{Ahead, Columns, STEP, Step, Weights};
use crate::isa::x86::{load_f32x8, prefetch_line, store_f32x8};

/// Elements of a register.
pub(super) const LANES: usize = 8;
/// Most registers of activations: three would leave none for a weight.
pub(super) const MOST_REGS: usize = 2;

/// See [`Few::panel`](super::Few::panel): `regs` registers of activations, and as many weight rows as
/// make 12 sums.
#[target_feature(enable = "avx2,fma")]
pub(super) fn panel(regs: usize, w: (Weights<'_>, Ahead<'_>), x: &[f32], sums: (&mut [f32], bool)) {
    match regs {
        1 => tile::<12, 1>(w, x, sums),
        _ => tile::<6, 2>(w, x, sums),
    }
}

/// All in one function, and without references to the sums, so that nothing keeps them out of
/// registers.
#[expect(clippy::needless_range_loop, reason = "an iterator over sums is a reference to them")]
#[target_feature(enable = "avx2,fma")]
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
    let mut sums = [[_mm256_setzero_ps(); REGS]; ROWS];
    for (i, x) in x.as_chunks::<STEP>().0.iter().enumerate() {
        let mut weights = [&[[0; 4]; STEP]; ROWS];
        for r in 0..ROWS {
            weights[r] = &rows[r][i];
            prefetch_line(ahead.bytes, r * ahead.stride + i * ahead.bytes_a_step);
        }
        // So that addresses are no chain of sums.
        let weights = black_box(weights);
        for t in 0..STEP {
            let mut columns = [_mm256_setzero_ps(); REGS];
            for c in 0..REGS {
                columns[c] = load_f32x8(&x[t][c]);
            }
            for r in 0..ROWS {
                let w = _mm256_set1_ps(f32::from_le_bytes(weights[r][t]));
                for c in 0..REGS {
                    sums[r][c] = _mm256_fmadd_ps(w, columns[c], sums[r][c]);
                }
            }
        }
    }
    let (to, _) = to.as_chunks_mut::<LANES>();
    let (to, _) = to.as_chunks_mut::<REGS>();
    for r in 0..ROWS {
        for c in 0..REGS {
            let to = &mut to[r][c];
            let before = if add { load_f32x8(to) } else { _mm256_setzero_ps() };
            store_f32x8(to, _mm256_add_ps(before, sums[r][c]));
        }
    }
}

/// `out[i * width + r]` is column `i` of row `r`. Rows that are missing to `width`, and columns that
/// are missing to fill `out`, are zero.
#[target_feature(enable = "avx2")]
pub(super) fn transpose(x: Columns<'_>, out: &mut [f32], width: usize) {
    let whole = x.cols.len() / LANES * LANES;
    for first in (0..width).step_by(LANES) {
        let rows: [_; LANES] = std::array::from_fn(|i| x.row(first + i));
        for at in (0..whole).step_by(LANES) {
            let mut square = [_mm256_setzero_ps(); LANES];
            for (to, row) in square.iter_mut().zip(rows) {
                *to = match row.get(at..).and_then(|row| row.first_chunk()) {
                    Some(values) => load_f32x8(values),
                    None => _mm256_setzero_ps(),
                };
            }
            for (i, column) in (at..).zip(transposed(square)) {
                if let Some(to) = out[i * width + first..].first_chunk_mut() {
                    store_f32x8(to, column);
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

/// Rows become columns.
#[target_feature(enable = "avx2")]
#[inline]
fn transposed([a, b, c, d, e, f, g, h]: [__m256; LANES]) -> [__m256; LANES] {
    let (low, high) = (fours([a, b, c, d]), fours([e, f, g, h]));
    let mut columns = [_mm256_setzero_ps(); LANES];
    for i in 0..4 {
        columns[i] = _mm256_permute2f128_ps::<0x20>(low[i], high[i]);
        columns[i + 4] = _mm256_permute2f128_ps::<0x31>(low[i], high[i]);
    }
    columns
}

/// Columns 0 to 3 of four rows in the low halves, columns 4 to 7 in the high ones.
#[target_feature(enable = "avx2")]
#[inline]
fn fours([a, b, c, d]: [__m256; 4]) -> [__m256; 4] {
    let ab = [_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)];
    let cd = [_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d)];
    let pd = |v: __m256| _mm256_castps_pd(v);
    [
        _mm256_castpd_ps(_mm256_unpacklo_pd(pd(ab[0]), pd(cd[0]))),
        _mm256_castpd_ps(_mm256_unpackhi_pd(pd(ab[0]), pd(cd[0]))),
        _mm256_castpd_ps(_mm256_unpacklo_pd(pd(ab[1]), pd(cd[1]))),
        _mm256_castpd_ps(_mm256_unpackhi_pd(pd(ab[1]), pd(cd[1]))),
    ]
}
