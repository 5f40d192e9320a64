#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m256, _mm256_castpd_ps, _mm256_castps_pd, _mm256_permute2f128_ps, _mm256_setzero_ps,
    _mm256_unpackhi_pd, _mm256_unpackhi_ps, _mm256_unpacklo_pd, _mm256_unpacklo_ps,
    _mm512_fmadd_ps, _mm512_set1_ps, _mm512_setzero_ps,
};

use super::super::dot::Elem;
use super::super::dot::avx2::load;
use super::{COLS, Columns, activations};
use crate::isa::x86::{load_f32x16, store_f32x8, store_f32x16};

/// Decodes `rows` into `panel`, then multiplies all rows of `x`, eight at a time.
#[target_feature(enable = "avx2,f16c,fma,avx512f")]
pub(super) fn pack_and_multiply<E: Elem>(
    (rows, k): (&[u8], usize),
    x: &[f32],
    panel: &mut [f32],
    mut to: Columns<'_>,
) {
    pack::<E>(rows, k, panel);
    let (panel, m) = (panel.as_chunks().0, x.len() / k);
    let mut row = 0;
    while m - row >= 8 {
        tile::<8>(panel, activations(x, k, row), row, &mut to);
        row += 8;
    }
    if m - row >= 4 {
        tile::<4>(panel, activations(x, k, row), row, &mut to);
        row += 4;
    }
    while m - row >= 1 {
        tile::<1>(panel, activations(x, k, row), row, &mut to);
        row += 1;
    }
}

#[target_feature(enable = "avx512f")]
fn tile<const MR: usize>(panel: &[[f32; COLS]], x: [&[f32]; MR], row: usize, to: &mut Columns<'_>) {
    let mut sums = [[_mm512_setzero_ps(); 2]; MR];
    let x = x.map(|x| &x[..panel.len()]);
    for (i, w) in panel.iter().enumerate() {
        let (w, _) = w.as_chunks::<16>();
        let w = [load_f32x16(&w[0]), load_f32x16(&w[1])];
        for (sums, x) in sums.iter_mut().zip(&x) {
            let x = _mm512_set1_ps(x[i]);
            sums[0] = _mm512_fmadd_ps(w[0], x, sums[0]);
            sums[1] = _mm512_fmadd_ps(w[1], x, sums[1]);
        }
    }
    for (r, sums) in sums.iter().enumerate() {
        let mut values = [[0.0; 16]; 2];
        store_f32x16(&mut values[0], sums[0]);
        store_f32x16(&mut values[1], sums[1]);
        to.write(row + r, values.as_flattened());
    }
}

/// Decodes rows into a panel. Columns without a row are zero.
#[target_feature(enable = "avx2,f16c,fma")]
fn pack<E: Elem>(rows: &[u8], k: usize, panel: &mut [f32]) {
    let row_bytes = k * E::BYTES;
    let row = |c: usize| rows.get(c * row_bytes..(c + 1) * row_bytes);
    let (panel, _) = panel.as_chunks_mut::<COLS>();
    for first in (0..COLS).step_by(8) {
        for start in (0..k / 8 * 8).step_by(8) {
            let mut square = [_mm256_setzero_ps(); 8];
            for (c, values) in square.iter_mut().enumerate() {
                if let Some(row) = row(first + c) {
                    *values = load::<E>(&row[start * E::BYTES..][..8 * E::BYTES]);
                }
            }
            for (values, to) in transpose(square).into_iter().zip(&mut panel[start..]) {
                if let Some(to) = to[first..].first_chunk_mut() {
                    store_f32x8(to, values);
                }
            }
        }
        for (i, to) in panel.iter_mut().enumerate().skip(k / 8 * 8) {
            for (c, to) in to[first..first + 8].iter_mut().enumerate() {
                *to = row(first + c).map_or(0.0, |row| E::decode(&row[i * E::BYTES..]));
            }
        }
    }
}

/// Rows become columns.
#[target_feature(enable = "avx2")]
#[inline]
fn transpose(rows: [__m256; 8]) -> [__m256; 8] {
    // Pairs of rows, then fours: `fours[i]` holds columns i and i + 4 of four rows.
    let [a, b, c, d, e, f, g, h] = rows;
    let low = fours(a, b, c, d);
    let high = fours(e, f, g, h);
    let mut columns = [_mm256_setzero_ps(); 8];
    for i in 0..4 {
        columns[i] = _mm256_permute2f128_ps::<0x20>(low[i], high[i]);
        columns[i + 4] = _mm256_permute2f128_ps::<0x31>(low[i], high[i]);
    }
    columns
}

#[target_feature(enable = "avx2")]
#[inline]
fn fours(a: __m256, b: __m256, c: __m256, d: __m256) -> [__m256; 4] {
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
