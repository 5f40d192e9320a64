#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m256, _mm_castsi128_ps, _mm_setzero_ps, _mm256_add_ps, _mm256_castpd_ps, _mm256_castps_pd,
    _mm256_fmadd_ps, _mm256_permute2f128_ps, _mm256_set_m128, _mm256_set1_ps, _mm256_setzero_ps,
    _mm256_unpackhi_pd, _mm256_unpackhi_ps, _mm256_unpacklo_pd, _mm256_unpacklo_ps,
};

use super::super::dot::Elem;
use super::super::dot::avx2::load;
use super::pack::Source;
use super::{ROW_STEP, Tile};
use crate::isa::x86::{load_f32x8, load_u8x16, prefetch, store_f32x8};

/// Columns of a panel: a tile of four rows is 12 sums, three registers of columns and one of a row.
pub(super) const NR: usize = 24;
/// Columns of a register.
pub(super) const LANES: usize = 8;

/// A panel of rows times a panel of [`NR`] columns.
#[target_feature(enable = "avx2,fma")]
pub(super) fn tile(lhs: &[[f32; ROW_STEP]], panel: &[f32], mut to: Tile<'_, '_>) {
    for first in (0..to.height).step_by(4) {
        match to.height - first {
            1 => tile_of::<1>(lhs, panel, &mut to, first),
            2 => tile_of::<2>(lhs, panel, &mut to, first),
            3 => tile_of::<3>(lhs, panel, &mut to, first),
            _ => tile_of::<4>(lhs, panel, &mut to, first),
        }
    }
}

/// `ROWS` rows from row `first` of the panel. All in one function, and without references to the
/// sums, so that nothing keeps them out of registers.
#[expect(clippy::needless_range_loop, reason = "an iterator over sums is a reference to them")]
#[target_feature(enable = "avx2,fma")]
fn tile_of<const ROWS: usize>(
    lhs: &[[f32; ROW_STEP]],
    panel: &[f32],
    to: &mut Tile<'_, '_>,
    first: usize,
) {
    for r in 0..ROWS {
        prefetch(to.row(first + r));
    }
    let first = first.min(ROW_STEP - ROWS);
    let mut sums = [[_mm256_setzero_ps(); 3]; ROWS];
    for (x, w) in lhs.iter().zip(panel.as_chunks::<NR>().0) {
        let (w, _) = w.as_chunks::<LANES>();
        let w = [load_f32x8(&w[0]), load_f32x8(&w[1]), load_f32x8(&w[2])];
        for r in 0..ROWS {
            let x = _mm256_set1_ps(x[first + r]);
            for c in 0..3 {
                sums[r][c] = _mm256_fmadd_ps(w[c], x, sums[r][c]);
            }
        }
    }
    let add = to.add;
    for r in 0..ROWS {
        let row = to.row(first + r);
        let mut values = [[0.0; LANES]; 3];
        if row.len() < NR {
            if add {
                values.as_flattened_mut()[..row.len()].copy_from_slice(row);
            }
            for c in 0..3 {
                let sum = _mm256_add_ps(load_f32x8(&values[c]), sums[r][c]);
                store_f32x8(&mut values[c], sum);
            }
            row.copy_from_slice(&values.as_flattened()[..row.len()]);
            continue;
        }
        let (to, _) = row.as_chunks_mut();
        for c in 0..3 {
            let before = if add { load_f32x8(&to[c]) } else { _mm256_setzero_ps() };
            store_f32x8(&mut to[c], _mm256_add_ps(before, sums[r][c]));
        }
    }
}

/// `out[j * width + i] = source[i, j]`, decoded. Rows that are missing to `width` are zero.
#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn transpose<E: Elem>(source: Source<'_>, out: &mut [f32], width: usize) {
    for i in (0..width).step_by(LANES) {
        for j in (0..source.cols / LANES * LANES).step_by(LANES) {
            let mut halves = [[_mm256_setzero_ps(); 4]; 2];
            let [low_half, high_half] = &mut halves;
            for (at, (first, second)) in low_half.iter_mut().zip(high_half).enumerate() {
                let low = source.part::<E>(i + at, j, LANES);
                let high = source.part::<E>(i + at + 4, j, LANES);
                [*first, *second] = load_halves::<E>(low, high);
            }
            for (half, first) in halves.into_iter().zip([j, j + 4]) {
                for (at, values) in (first..).zip(fours(half)) {
                    if let Some(to) = out[at * width + i..].first_chunk_mut() {
                        store_f32x8(to, values);
                    }
                }
            }
        }
        for j in source.cols / LANES * LANES..source.cols {
            for (at, to) in out[j * width + i..][..LANES].iter_mut().enumerate() {
                *to = source.part::<E>(i + at, j, 1).map_or(0.0, E::decode);
            }
        }
    }
}

/// Elements 0 to 3 of two rows, then elements 4 to 7. A missing row is zero.
#[target_feature(enable = "avx2,f16c,fma")]
#[inline]
fn load_halves<E: Elem>(low: Option<&[u8]>, high: Option<&[u8]>) -> [__m256; 2] {
    if size_of::<f32>() == E::BYTES {
        // Halves of registers come from memory at no cost.
        let quarter = |row: Option<&[u8]>, at: usize| {
            let bytes = row.and_then(|row| row[at..].first_chunk());
            bytes.map_or_else(|| _mm_setzero_ps(), |bytes| _mm_castsi128_ps(load_u8x16(bytes)))
        };
        let both = |at| _mm256_set_m128(quarter(high, at), quarter(low, at));
        return [both(0), both(16)];
    }
    let row = |row: Option<&[u8]>| row.map_or_else(|| _mm256_setzero_ps(), |row| load::<E>(row));
    let (low, high) = (row(low), row(high));
    [_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high)]
}

/// Four columns of eight rows: rows 0 to 3 are in the low halves, rows 4 to 7 in the high ones.
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
