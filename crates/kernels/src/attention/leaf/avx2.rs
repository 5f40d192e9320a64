#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m256, _mm_set1_epi16, _mm256_add_ps, _mm256_castpd_ps, _mm256_castps_pd,
    _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_mul_ps,
    _mm256_permute2f128_ps, _mm256_set1_ps, _mm256_setzero_ps, _mm256_unpackhi_pd,
    _mm256_unpackhi_ps, _mm256_unpacklo_pd, _mm256_unpacklo_ps,
};

use fucina_dtype::BlockQ8_0;

use super::{Rows, scalar};
use crate::convert::Q8_0_ELEMS;
use crate::isa::x86::{load_f32x8, store_f32x8, sum_f32x8};
use crate::isa::x86_ops::{load_i8x8, load_u16x8};

const LANES: usize = 8;
/// Vectors of a block.
const VECTORS: usize = Q8_0_ELEMS / LANES;

#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn matmul_add(lhs: Rows<'_>, rhs: &[f32], n: usize, out: &mut [f32]) {
    let mut column = 0;
    while column < n {
        column += columns::<2>(lhs, rhs, n, column, out);
    }
}

/// All rows of `V` vectors of columns. Returns the number of columns.
#[target_feature(enable = "avx2,f16c,fma")]
fn columns<const V: usize>(
    lhs: Rows<'_>,
    rhs: &[f32],
    n: usize,
    column: usize,
    out: &mut [f32],
) -> usize {
    let mut row = 0;
    while row + 4 <= lhs.count {
        tile::<4, V>(lhs, row, &rhs[column..], n, &mut out[row * n + column..]);
        row += 4;
    }
    while row < lhs.count {
        tile::<1, V>(lhs, row, &rhs[column..], n, &mut out[row * n + column..]);
        row += 1;
    }
    V * LANES
}

/// `M` rows times `V` vectors, in registers. `rhs` and `out` begin at the tile.
#[target_feature(enable = "avx2,f16c,fma")]
fn tile<const M: usize, const V: usize>(
    lhs: Rows<'_>,
    row: usize,
    rhs: &[f32],
    n: usize,
    out: &mut [f32],
) {
    let mut a = [&[][..]; M];
    for (i, a) in a.iter_mut().enumerate() {
        *a = lhs.row(row + i);
    }
    let mut sums = [[_mm256_setzero_ps(); V]; M];
    for k in 0..lhs.width {
        let b = &rhs[k * n..][..V * LANES];
        let b = b.as_chunks::<LANES>().0;
        for (sums, a) in sums.iter_mut().zip(&a) {
            let a = _mm256_set1_ps(a[k]);
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = _mm256_fmadd_ps(a, load_f32x8(b), *sum);
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        let out = out[i * n..][..V * LANES].as_chunks_mut::<LANES>().0;
        for (out, &sum) in out.iter_mut().zip(sums) {
            store_f32x8(out, _mm256_add_ps(load_f32x8(out), sum));
        }
    }
}

#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn transpose(rows: Rows<'_>, n: usize, out: &mut [f32]) {
    let whole = rows.width / LANES;
    for first in (0..n).step_by(LANES) {
        for group in 0..whole {
            let mut square = [_mm256_setzero_ps(); LANES];
            for (i, v) in square.iter_mut().enumerate().take(rows.count.saturating_sub(first)) {
                *v = load_f32x8(&rows.row(first + i).as_chunks::<LANES>().0[group]);
            }
            for (i, v) in transpose_square(square).into_iter().enumerate() {
                let out = &mut out[(group * LANES + i) * n + first..];
                store_f32x8(&mut out.as_chunks_mut::<LANES>().0[0], v);
            }
        }
    }
    scalar::transpose(rows, whole * LANES, n, out);
}

/// Transposes 8 x 8: pairs, then fours, inside each half register; then the halves.
#[target_feature(enable = "avx2")]
#[inline]
fn transpose_square(v: [__m256; 8]) -> [__m256; 8] {
    let mut pairs = v;
    for i in (0..8).step_by(2) {
        pairs[i] = _mm256_unpacklo_ps(v[i], v[i + 1]);
        pairs[i + 1] = _mm256_unpackhi_ps(v[i], v[i + 1]);
    }
    let mut fours = pairs;
    for i in (0..8).step_by(4) {
        for half in 0..2 {
            let low = _mm256_castps_pd(pairs[i + half]);
            let high = _mm256_castps_pd(pairs[i + 2 + half]);
            fours[i + 2 * half] = _mm256_castpd_ps(_mm256_unpacklo_pd(low, high));
            fours[i + 2 * half + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(low, high));
        }
    }
    // fours[4 i + j] holds, in half l, column 4 l + j of rows 4 i to 4 i + 3.
    let mut out = fours;
    for j in 0..4 {
        out[j] = _mm256_permute2f128_ps::<0x20>(fours[j], fours[4 + j]);
        out[4 + j] = _mm256_permute2f128_ps::<0x31>(fours[j], fours[4 + j]);
    }
    out
}

#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn dots(q: &[f32], rows: Rows<'_>, out: &mut [f32]) {
    dots_of(q, rows, out, |x| load_f32x8(x));
}

#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn dots_f16(q: &[f32], rows: Rows<'_, u16>, out: &mut [f32]) {
    dots_of(q, rows, out, |x| _mm256_cvtph_ps(load_u16x8(x)));
}

#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn mix(weights: &[f32], rows: Rows<'_>, out: &mut [f32]) {
    mix_of(weights, rows, out, |x| load_f32x8(x));
}

#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn mix_f16(weights: &[f32], rows: Rows<'_, u16>, out: &mut [f32]) {
    mix_of(weights, rows, out, |x| _mm256_cvtph_ps(load_u16x8(x)));
}

#[target_feature(enable = "avx2,f16c,fma")]
#[inline]
fn dots_of<T: Copy + Default>(
    q: &[f32],
    rows: Rows<'_, T>,
    out: &mut [f32],
    load: impl Fn(&[T; LANES]) -> __m256 + Copy,
) {
    let (quads, rest) = out.as_chunks_mut::<4>();
    let done = quads.len() * 4;
    for (i, quad) in quads.iter_mut().enumerate() {
        *quad = dot_rows(q, rows, i * 4, load);
    }
    for (i, out) in rest.iter_mut().enumerate() {
        [*out] = dot_rows(q, rows, done + i, load);
    }
}

/// Dot products of `q` with `M` rows: each load of `q` serves all of them.
#[target_feature(enable = "avx2,f16c,fma")]
#[inline]
fn dot_rows<const M: usize, T: Copy + Default>(
    q: &[f32],
    rows: Rows<'_, T>,
    first: usize,
    load: impl Fn(&[T; LANES]) -> __m256,
) -> [f32; M] {
    let (q, q_tail) = q.as_chunks::<LANES>();
    let mut whole = [&[][..]; M];
    for (i, whole) in whole.iter_mut().enumerate() {
        *whole = rows.row(first + i).as_chunks::<LANES>().0;
    }
    let mut sums = [_mm256_setzero_ps(); M];
    for (group, q) in q.iter().enumerate() {
        let q = load_f32x8(q);
        for (sum, row) in sums.iter_mut().zip(&whole) {
            *sum = _mm256_fmadd_ps(q, load(&row[group]), *sum);
        }
    }
    if !q_tail.is_empty() {
        let q = load_f32x8(&padded(q_tail));
        for (i, sum) in sums.iter_mut().enumerate() {
            let tail = rows.row(first + i).as_chunks::<LANES>().1;
            *sum = _mm256_fmadd_ps(q, load(&padded(tail)), *sum);
        }
    }
    let mut out = [0.0; M];
    for (out, &sum) in out.iter_mut().zip(&sums) {
        *out = sum_f32x8(sum);
    }
    out
}

#[target_feature(enable = "avx2,f16c,fma")]
#[inline]
fn mix_of<T: Copy + Default>(
    weights: &[f32],
    rows: Rows<'_, T>,
    out: &mut [f32],
    load: impl Fn(&[T; LANES]) -> __m256 + Copy,
) {
    let mut column = 0;
    while out.len() - column >= LANES {
        column += match out.len() - column {
            64.. => mix_columns::<8, T>(weights, rows, column, out, load),
            32.. => mix_columns::<4, T>(weights, rows, column, out, load),
            _ => mix_columns::<1, T>(weights, rows, column, out, load),
        };
    }
    if column < out.len() {
        let mut sum = _mm256_setzero_ps();
        for (i, &weight) in weights.iter().enumerate() {
            let tail = load(&padded(&rows.row(i)[column..]));
            sum = _mm256_fmadd_ps(_mm256_set1_ps(weight), tail, sum);
        }
        let mut sums = [0.0; LANES];
        store_f32x8(&mut sums, sum);
        for (out, sum) in out[column..].iter_mut().zip(sums) {
            *out += sum;
        }
    }
}

/// `V` vectors of columns, summed in registers. Returns the number of columns.
#[target_feature(enable = "avx2,f16c,fma")]
#[inline]
fn mix_columns<const V: usize, T>(
    weights: &[f32],
    rows: Rows<'_, T>,
    column: usize,
    out: &mut [f32],
    load: impl Fn(&[T; LANES]) -> __m256,
) -> usize {
    let mut sums = [_mm256_setzero_ps(); V];
    for (i, &weight) in weights.iter().enumerate() {
        let weight = _mm256_set1_ps(weight);
        let row = rows.row(i)[column..][..V * LANES].as_chunks::<LANES>().0;
        for (sum, row) in sums.iter_mut().zip(row) {
            *sum = _mm256_fmadd_ps(weight, load(row), *sum);
        }
    }
    let out = out[column..][..V * LANES].as_chunks_mut::<LANES>().0;
    for (out, &sum) in out.iter_mut().zip(&sums) {
        store_f32x8(out, _mm256_add_ps(load_f32x8(out), sum));
    }
    V * LANES
}

/// A last, short vector, filled up with zeros.
#[inline]
fn padded<T: Copy + Default>(tail: &[T]) -> [T; LANES] {
    let mut vector = [T::default(); LANES];
    vector[..tail.len()].copy_from_slice(tail);
    vector
}

#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn dots_q8_0(q: &[f32], rows: Rows<'_, BlockQ8_0>, out: &mut [f32]) {
    let (quads, rest) = out.as_chunks_mut::<4>();
    let done = quads.len() * 4;
    for (i, quad) in quads.iter_mut().enumerate() {
        *quad = dot_blocks(q, rows, i * 4);
    }
    for (i, out) in rest.iter_mut().enumerate() {
        [*out] = dot_blocks(q, rows, done + i);
    }
}

/// As [`dot_rows`], over blocks: the products of a block are summed before its scale is applied.
#[target_feature(enable = "avx2,f16c,fma")]
#[inline]
fn dot_blocks<const M: usize>(q: &[f32], rows: Rows<'_, BlockQ8_0>, first: usize) -> [f32; M] {
    let mut blocks = [&[][..]; M];
    for (i, blocks) in blocks.iter_mut().enumerate() {
        *blocks = rows.row(first + i);
    }
    let mut sums = [_mm256_setzero_ps(); M];
    for (group, q) in q.as_chunks::<Q8_0_ELEMS>().0.iter().enumerate() {
        let mut vectors = [_mm256_setzero_ps(); VECTORS];
        for (v, q) in vectors.iter_mut().zip(q.as_chunks::<LANES>().0) {
            *v = load_f32x8(q);
        }
        for (sum, blocks) in sums.iter_mut().zip(&blocks) {
            let block = &blocks[group];
            let mut products = _mm256_setzero_ps();
            for (&q, quants) in vectors.iter().zip(block.qs.as_chunks::<LANES>().0) {
                products = _mm256_fmadd_ps(q, values(quants), products);
            }
            *sum = _mm256_fmadd_ps(scale(block), products, *sum);
        }
    }
    let mut out = [0.0; M];
    for (out, &sum) in out.iter_mut().zip(&sums) {
        *out = sum_f32x8(sum);
    }
    out
}

#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn mix_q8_0(weights: &[f32], rows: Rows<'_, BlockQ8_0>, out: &mut [f32]) {
    let out = out.as_chunks_mut::<Q8_0_ELEMS>().0;
    let mut group = 0;
    while group < out.len() {
        group += match out.len() - group {
            2.. => mix_blocks::<2>(weights, rows, group, &mut out[group..]),
            _ => mix_blocks::<1>(weights, rows, group, &mut out[group..]),
        };
    }
}

/// `B` blocks of columns from block `group` on, summed in registers. `out` begins there. Returns
/// the number of blocks.
#[target_feature(enable = "avx2,f16c,fma")]
#[inline]
fn mix_blocks<const B: usize>(
    weights: &[f32],
    rows: Rows<'_, BlockQ8_0>,
    group: usize,
    out: &mut [[f32; Q8_0_ELEMS]],
) -> usize {
    let mut sums = [[_mm256_setzero_ps(); VECTORS]; B];
    for (i, &weight) in weights.iter().enumerate() {
        let weight = _mm256_set1_ps(weight);
        for (sums, block) in sums.iter_mut().zip(&rows.row(i)[group..][..B]) {
            let weight = _mm256_mul_ps(weight, scale(block));
            for (sum, quants) in sums.iter_mut().zip(block.qs.as_chunks::<LANES>().0) {
                *sum = _mm256_fmadd_ps(weight, values(quants), *sum);
            }
        }
    }
    for (out, sums) in out.iter_mut().zip(&sums) {
        for (out, &sum) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums) {
            store_f32x8(out, _mm256_add_ps(load_f32x8(out), sum));
        }
    }
    B
}

/// Quants as floats.
#[target_feature(enable = "avx2,f16c,fma")]
#[inline]
fn values(quants: &[i8; LANES]) -> __m256 {
    _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load_i8x8(quants)))
}

/// The scale of a block in every lane. Converting all of them avoids a dependency on what the
/// register held.
#[target_feature(enable = "avx2,f16c,fma")]
#[inline]
fn scale(block: &BlockQ8_0) -> __m256 {
    let bits = block.d.get().cast_signed();
    _mm256_cvtph_ps(_mm_set1_epi16(bits))
}
