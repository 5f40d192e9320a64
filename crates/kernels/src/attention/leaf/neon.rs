#![deny(unsafe_code)]

use std::arch::aarch64::{
    float32x4_t, vaddq_f32, vaddvq_f32, vcvt_f32_f16, vcvtq_f32_s32, vdupq_n_f32, vfmaq_f32,
    vfmaq_n_f32, vget_high_s16, vget_high_u16, vget_low_s16, vget_low_u16, vmovl_s8, vmovl_s16,
    vreinterpret_f16_u16,
};

use fucina_dtype::BlockQ8_0;

use super::{Rows, scalar};
use crate::convert::Q8_0_ELEMS;
use crate::convert::scalar::f16_value;
use crate::isa::aarch64::{load_f32x4, load_i8x8, load_u16x8, store_f32x4, transpose_4x4};

const LANES: usize = 4;
/// Elements that are loaded together: two registers.
const WIDTH: usize = 2 * LANES;
/// Registers of a block.
const VECTORS: usize = Q8_0_ELEMS / LANES;
/// Registers of columns in a tile.
const COLUMNS: usize = 4;

/// Four rows of sixteen columns are summed in 16 of the 32 registers.
#[target_feature(enable = "neon")]
pub(super) fn matmul_add(lhs: Rows<'_>, rhs: &[f32], n: usize, out: &mut [f32]) {
    for column in (0..n).step_by(COLUMNS * LANES) {
        let mut row = 0;
        while row + 4 <= lhs.count {
            tile::<4>(lhs, row, &rhs[column..], n, &mut out[row * n + column..]);
            row += 4;
        }
        while row < lhs.count {
            tile::<1>(lhs, row, &rhs[column..], n, &mut out[row * n + column..]);
            row += 1;
        }
    }
}

/// `M` rows times [`COLUMNS`] registers. `rhs` and `out` begin at the tile.
#[target_feature(enable = "neon")]
fn tile<const M: usize>(lhs: Rows<'_>, row: usize, rhs: &[f32], n: usize, out: &mut [f32]) {
    let mut a = [&[][..]; M];
    for (i, a) in a.iter_mut().enumerate() {
        *a = lhs.row(row + i);
    }
    let mut sums = [[vdupq_n_f32(0.0); COLUMNS]; M];
    for k in 0..lhs.width {
        let b = rhs[k * n..][..COLUMNS * LANES].as_chunks::<LANES>().0;
        let mut columns = [vdupq_n_f32(0.0); COLUMNS];
        for (column, b) in columns.iter_mut().zip(b) {
            *column = load_f32x4(b);
        }
        for (sums, a) in sums.iter_mut().zip(&a) {
            for (sum, &column) in sums.iter_mut().zip(&columns) {
                *sum = vfmaq_n_f32(*sum, column, a[k]);
            }
        }
    }
    for (i, sums) in sums.iter().enumerate() {
        let out = out[i * n..][..COLUMNS * LANES].as_chunks_mut::<LANES>().0;
        for (out, &sum) in out.iter_mut().zip(sums) {
            store_f32x4(out, vaddq_f32(load_f32x4(out), sum));
        }
    }
}

#[target_feature(enable = "neon")]
pub(super) fn transpose(rows: Rows<'_>, n: usize, out: &mut [f32]) {
    let whole = rows.width / LANES;
    for first in (0..n).step_by(LANES) {
        for group in 0..whole {
            let mut square = [vdupq_n_f32(0.0); LANES];
            for (i, v) in square.iter_mut().enumerate().take(rows.count.saturating_sub(first)) {
                *v = load_f32x4(&rows.row(first + i).as_chunks::<LANES>().0[group]);
            }
            for (i, v) in transpose_4x4(square).into_iter().enumerate() {
                let out = &mut out[(group * LANES + i) * n + first..];
                store_f32x4(&mut out.as_chunks_mut::<LANES>().0[0], v);
            }
        }
    }
    scalar::transpose(rows, whole * LANES, n, out);
}

/// Eight elements as two registers of f32.
#[target_feature(enable = "neon")]
#[inline]
fn load_f32(x: &[f32; WIDTH]) -> [float32x4_t; 2] {
    let (halves, _) = x.as_chunks::<LANES>();
    [load_f32x4(&halves[0]), load_f32x4(&halves[1])]
}

/// As [`load_f32`], of f16 bits.
#[target_feature(enable = "neon")]
#[inline]
fn load_f16(x: &[u16; WIDTH]) -> [float32x4_t; 2] {
    let bits = load_u16x8(x);
    [
        vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(bits))),
        vcvt_f32_f16(vreinterpret_f16_u16(vget_high_u16(bits))),
    ]
}

/// As [`load_f32`], of quants.
#[target_feature(enable = "neon")]
#[inline]
fn load_quants(x: &[i8; WIDTH]) -> [float32x4_t; 2] {
    let wide = vmovl_s8(load_i8x8(x));
    [vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_s16(vget_high_s16(wide)))]
}

#[target_feature(enable = "neon")]
pub(super) fn dots(q: &[f32], rows: Rows<'_>, out: &mut [f32]) {
    dots_of(q, rows, out, |x| load_f32(x));
}

#[target_feature(enable = "neon")]
pub(super) fn dots_f16(q: &[f32], rows: Rows<'_, u16>, out: &mut [f32]) {
    dots_of(q, rows, out, |x| load_f16(x));
}

#[target_feature(enable = "neon")]
pub(super) fn mix(weights: &[f32], rows: Rows<'_>, out: &mut [f32]) {
    mix_of(weights, rows, out, |x| load_f32(x));
}

#[target_feature(enable = "neon")]
pub(super) fn mix_f16(weights: &[f32], rows: Rows<'_, u16>, out: &mut [f32]) {
    mix_of(weights, rows, out, |x| load_f16(x));
}

#[target_feature(enable = "neon")]
#[inline]
fn dots_of<T: Copy + Default>(
    q: &[f32],
    rows: Rows<'_, T>,
    out: &mut [f32],
    load: impl Fn(&[T; WIDTH]) -> [float32x4_t; 2] + Copy,
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
#[target_feature(enable = "neon")]
#[inline]
fn dot_rows<const M: usize, T: Copy + Default>(
    q: &[f32],
    rows: Rows<'_, T>,
    first: usize,
    load: impl Fn(&[T; WIDTH]) -> [float32x4_t; 2],
) -> [f32; M] {
    let (q, q_tail) = q.as_chunks::<WIDTH>();
    let mut whole = [&[][..]; M];
    for (i, whole) in whole.iter_mut().enumerate() {
        *whole = rows.row(first + i).as_chunks::<WIDTH>().0;
    }
    let mut sums = [[vdupq_n_f32(0.0); 2]; M];
    for (group, q) in q.iter().enumerate() {
        let q = load_f32(q);
        for (sums, row) in sums.iter_mut().zip(&whole) {
            add_products(sums, q, load(&row[group]));
        }
    }
    if !q_tail.is_empty() {
        let q = load_f32(&padded(q_tail));
        for (i, sums) in sums.iter_mut().enumerate() {
            let tail = rows.row(first + i).as_chunks::<WIDTH>().1;
            add_products(sums, q, load(&padded(tail)));
        }
    }
    sums.map(|[a, b]| vaddvq_f32(vaddq_f32(a, b)))
}

#[target_feature(enable = "neon")]
#[inline]
fn add_products(sums: &mut [float32x4_t; 2], a: [float32x4_t; 2], b: [float32x4_t; 2]) {
    sums[0] = vfmaq_f32(sums[0], a[0], b[0]);
    sums[1] = vfmaq_f32(sums[1], a[1], b[1]);
}

#[target_feature(enable = "neon")]
#[inline]
fn mix_of<T: Copy + Default>(
    weights: &[f32],
    rows: Rows<'_, T>,
    out: &mut [f32],
    load: impl Fn(&[T; WIDTH]) -> [float32x4_t; 2] + Copy,
) {
    let mut column = 0;
    while out.len() - column >= WIDTH {
        column += match out.len() - column {
            64.. => mix_columns::<8, T>(weights, rows, column, out, load),
            32.. => mix_columns::<4, T>(weights, rows, column, out, load),
            _ => mix_columns::<1, T>(weights, rows, column, out, load),
        };
    }
    if column < out.len() {
        let mut sums = [[0.0; LANES]; 2];
        let mut registers = [vdupq_n_f32(0.0); 2];
        for (i, &weight) in weights.iter().enumerate() {
            let tail = load(&padded(&rows.row(i)[column..]));
            add_products(&mut registers, [vdupq_n_f32(weight); 2], tail);
        }
        store_f32x4(&mut sums[0], registers[0]);
        store_f32x4(&mut sums[1], registers[1]);
        for (out, sum) in out[column..].iter_mut().zip(sums.as_flattened()) {
            *out += sum;
        }
    }
}

/// `V` times two registers of columns, summed in registers. Returns the number of columns.
#[target_feature(enable = "neon")]
#[inline]
fn mix_columns<const V: usize, T>(
    weights: &[f32],
    rows: Rows<'_, T>,
    column: usize,
    out: &mut [f32],
    load: impl Fn(&[T; WIDTH]) -> [float32x4_t; 2],
) -> usize {
    let mut sums = [[vdupq_n_f32(0.0); 2]; V];
    for (i, &weight) in weights.iter().enumerate() {
        let weight = vdupq_n_f32(weight);
        let row = rows.row(i)[column..][..V * WIDTH].as_chunks::<WIDTH>().0;
        for (sums, row) in sums.iter_mut().zip(row) {
            add_products(sums, [weight; 2], load(row));
        }
    }
    add_to(&sums, &mut out[column..][..V * WIDTH]);
    V * WIDTH
}

/// `out += sums`.
#[target_feature(enable = "neon")]
#[inline]
fn add_to<const V: usize>(sums: &[[float32x4_t; 2]; V], out: &mut [f32]) {
    for (out, &sum) in out.as_chunks_mut::<LANES>().0.iter_mut().zip(sums.as_flattened()) {
        store_f32x4(out, vaddq_f32(load_f32x4(out), sum));
    }
}

/// A last, short vector, filled up with zeros.
#[inline]
fn padded<T: Copy + Default>(tail: &[T]) -> [T; WIDTH] {
    let mut vector = [T::default(); WIDTH];
    vector[..tail.len()].copy_from_slice(tail);
    vector
}

#[target_feature(enable = "neon")]
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
#[target_feature(enable = "neon")]
#[inline]
fn dot_blocks<const M: usize>(q: &[f32], rows: Rows<'_, BlockQ8_0>, first: usize) -> [f32; M] {
    let mut blocks = [&[][..]; M];
    for (i, blocks) in blocks.iter_mut().enumerate() {
        *blocks = rows.row(first + i);
    }
    let mut sums = [vdupq_n_f32(0.0); M];
    for (group, q) in q.as_chunks::<Q8_0_ELEMS>().0.iter().enumerate() {
        let mut vectors = [[vdupq_n_f32(0.0); 2]; VECTORS / 2];
        for (v, q) in vectors.iter_mut().zip(q.as_chunks::<WIDTH>().0) {
            *v = load_f32(q);
        }
        for (sum, blocks) in sums.iter_mut().zip(&blocks) {
            let block = &blocks[group];
            let mut products = [vdupq_n_f32(0.0); 2];
            for (&q, quants) in vectors.iter().zip(block.qs.as_chunks::<WIDTH>().0) {
                add_products(&mut products, q, load_quants(quants));
            }
            let products = vaddq_f32(products[0], products[1]);
            *sum = vfmaq_n_f32(*sum, products, scale(block));
        }
    }
    sums.map(|sum| vaddvq_f32(sum))
}

#[target_feature(enable = "neon")]
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
#[target_feature(enable = "neon")]
#[inline]
fn mix_blocks<const B: usize>(
    weights: &[f32],
    rows: Rows<'_, BlockQ8_0>,
    group: usize,
    out: &mut [[f32; Q8_0_ELEMS]],
) -> usize {
    let mut sums = [[[vdupq_n_f32(0.0); 2]; VECTORS / 2]; B];
    for (i, &weight) in weights.iter().enumerate() {
        for (sums, block) in sums.iter_mut().zip(&rows.row(i)[group..][..B]) {
            let weight = vdupq_n_f32(weight * scale(block));
            for (sums, quants) in sums.iter_mut().zip(block.qs.as_chunks::<WIDTH>().0) {
                add_products(sums, [weight; 2], load_quants(quants));
            }
        }
    }
    for (out, sums) in out.iter_mut().zip(&sums) {
        add_to(sums, out);
    }
    B
}

/// The scale of a block.
#[target_feature(enable = "neon")]
#[inline]
fn scale(block: &BlockQ8_0) -> f32 {
    f16_value(block.d.get())
}
