#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m256, _mm_castsi128_ps, _mm_setzero_ps, _mm256_add_ps, _mm256_castpd_ps, _mm256_castps_pd,
    _mm256_castps256_ps128, _mm256_fmadd_ps, _mm256_permute2f128_ps, _mm256_set_m128,
    _mm256_set1_ps, _mm256_setzero_ps, _mm256_unpackhi_pd, _mm256_unpackhi_ps, _mm256_unpacklo_pd,
    _mm256_unpacklo_ps,
};

use super::super::dot::Elem;
use super::super::dot::avx2::load;
use super::pack::Source;
use super::{LINES, STEPS, Tile};
use crate::isa::x86::{
    load_f32x8, load_u8x16, prefetch, prefetch_second, store_f32x2, store_f32x4, store_f32x8,
};

/// Rows of a panel: a tile is 12 sums, two registers of columns and one or two of a row.
pub(super) const ROWS: usize = 6;
/// Columns of a panel.
pub(super) const NR: usize = 16;
/// Columns of a register.
pub(super) const LANES: usize = 8;
/// Registers of columns.
const REGISTERS: usize = NR / LANES;

/// A panel of rows times a panel of [`NR`] columns.
#[target_feature(enable = "avx2,fma")]
pub(super) fn tile(lhs: &[f32], panel: &[f32], to: Tile<'_, '_>) {
    macro_rules! by_height {
        ($($rows:literal)*) => {
            match (to.height, to.width.div_ceil(LANES)) {
                $(
                    ($rows, 1) => tile_of::<$rows, 1>(lhs, panel, to),
                    ($rows, _) => tile_of::<$rows, REGISTERS>(lhs, panel, to),
                )*
                (rows, _) => unreachable!("{rows} rows are not a panel"),
            }
        };
    }
    by_height!(1 2 3 4 5 6);
}

/// `HEIGHT` rows times `COLS` registers of columns. All in one function, and without references to
/// the sums, so that nothing keeps them out of registers.
#[expect(clippy::needless_range_loop, reason = "an iterator over sums is a reference to them")]
#[target_feature(enable = "avx2,fma")]
fn tile_of<const HEIGHT: usize, const COLS: usize>(
    lhs: &[f32],
    panel: &[f32],
    mut to: Tile<'_, '_>,
) {
    let mut sums = [[_mm256_setzero_ps(); COLS]; HEIGHT];
    let (lines, mut ahead) = (to.lines(), to.ahead.as_ptr());
    let (lhs, lhs_rest) = lhs.as_chunks::<{ STEPS * ROWS }>();
    let (panel, panel_rest) = panel.as_chunks::<{ STEPS * NR }>();
    for (at, (x, w)) in lhs.iter().zip(panel).enumerate() {
        prefetch(lines[at % LINES]);
        for line in 0..(STEPS * ROWS).div_ceil(16) {
            prefetch_second(ahead.wrapping_add(line * 16));
        }
        ahead = ahead.wrapping_add(STEPS * ROWS);
        for step in 0..STEPS {
            let (x, w) = (&x.as_chunks::<ROWS>().0[step], &w.as_chunks::<NR>().0[step]);
            let (w, _) = w.as_chunks::<LANES>();
            let mut columns = [_mm256_setzero_ps(); COLS];
            for c in 0..COLS {
                columns[c] = load_f32x8(&w[c]);
            }
            for r in 0..HEIGHT {
                let x = _mm256_set1_ps(x[r]);
                for c in 0..COLS {
                    sums[r][c] = _mm256_fmadd_ps(columns[c], x, sums[r][c]);
                }
            }
        }
    }
    for (x, w) in lhs_rest.as_chunks::<ROWS>().0.iter().zip(panel_rest.as_chunks::<NR>().0) {
        let (w, _) = w.as_chunks::<LANES>();
        let mut columns = [_mm256_setzero_ps(); COLS];
        for c in 0..COLS {
            columns[c] = load_f32x8(&w[c]);
        }
        for r in 0..HEIGHT {
            let x = _mm256_set1_ps(x[r]);
            for c in 0..COLS {
                sums[r][c] = _mm256_fmadd_ps(columns[c], x, sums[r][c]);
            }
        }
    }
    let add = to.add;
    if to.width < COLS * LANES {
        for r in 0..HEIGHT {
            let mut values = [[0.0; LANES]; REGISTERS];
            let row = to.row(r);
            if add {
                values.as_flattened_mut()[..row.len()].copy_from_slice(row);
            }
            for c in 0..COLS {
                let sum = _mm256_add_ps(load_f32x8(&values[c]), sums[r][c]);
                store_f32x8(&mut values[c], sum);
            }
            row.copy_from_slice(&values.as_flattened()[..row.len()]);
        }
        return;
    }
    for r in 0..HEIGHT {
        let (to, _) = to.row(r).as_chunks_mut();
        for c in 0..COLS {
            let before = if add { load_f32x8(&to[c]) } else { _mm256_setzero_ps() };
            store_f32x8(&mut to[c], _mm256_add_ps(before, sums[r][c]));
        }
    }
}

/// `out[j][i] = source[i, j]`, decoded, for all columns. Rows that are missing to `W`, which is even,
/// are zero.
#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn transpose<E: Elem, const W: usize>(source: Source<'_>, out: &mut [[f32; W]]) {
    for i in (0..W).step_by(LANES) {
        if source.rows >= i + LANES {
            transpose_rows::<E, W, true>(source, i, out);
        } else {
            transpose_rows::<E, W, false>(source, i, out);
        }
    }
}

/// The rows from `i`, a register of them. `ALL`: none of them is missing.
#[target_feature(enable = "avx2,f16c,fma")]
#[inline]
fn transpose_rows<E: Elem, const W: usize, const ALL: bool>(
    source: Source<'_>,
    i: usize,
    out: &mut [[f32; W]],
) {
    let rows: [&[u8]; LANES] = std::array::from_fn(|at| {
        let row = source.part::<E>(i + at, 0, source.cols);
        if ALL { row.expect("no row is missing") } else { row.unwrap_or_default() }
    });
    let (squares, rest) = out.as_chunks_mut::<LANES>();
    for (at, out) in squares.iter_mut().enumerate() {
        let bytes = at * LANES * E::BYTES..(at + 1) * LANES * E::BYTES;
        let part = |row: usize| {
            if ALL { Some(&rows[row][bytes.clone()]) } else { rows[row].get(bytes.clone()) }
        };
        let [a, e] = load_halves::<E>(part(0), part(4));
        let [b, f] = load_halves::<E>(part(1), part(5));
        let [c, g] = load_halves::<E>(part(2), part(6));
        let [d, h] = load_halves::<E>(part(3), part(7));
        let (low, high) = (fours([a, b, c, d]), fours([e, f, g, h]));
        for l in 0..4 {
            store_even(&mut out[l][i..], low[l]);
            store_even(&mut out[l + 4][i..], high[l]);
        }
    }
    let done = squares.len() * LANES;
    for (j, out) in (done..).zip(rest) {
        for (row, to) in rows.iter().zip(&mut out[i..]) {
            *to = row.get(j * E::BYTES..(j + 1) * E::BYTES).map_or(0.0, E::decode);
        }
    }
}

/// Stores the first eight elements, or as many as there are, an even number.
#[target_feature(enable = "avx")]
#[inline]
fn store_even(to: &mut [f32], mut values: __m256) {
    if let Some(to) = to.first_chunk_mut() {
        return store_f32x8(to, values);
    }
    let (fours, rest) = to.as_chunks_mut::<4>();
    if let Some(to) = fours.first_mut() {
        store_f32x4(to, _mm256_castps256_ps128(values));
        values = _mm256_permute2f128_ps::<0x81>(values, values);
    }
    if let Some(to) = rest.first_chunk_mut() {
        store_f32x2(to, _mm256_castps256_ps128(values));
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
