#![deny(unsafe_code)]

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, vcombine_f32, vcombine_s32, vcvtq_f32_s32, vdup_n_f32,
    vdup_n_s32, vdupq_n_f32, vdupq_n_s8, vdupq_n_s32, vfmaq_f32, vfmsq_f32, vget_high_f32,
    vget_low_f32, vmulq_f32, vreinterpretq_s8_s32, vreinterpretq_s8_s64, vreinterpretq_s32_s8,
    vreinterpretq_s64_s8, vzip1q_s32, vzip1q_s64, vzip2q_s32, vzip2q_s64,
};

use super::neon::{LANES, bias, header, planes, records, scales, unpack};
use super::neon_dotprod;
use crate::isa::aarch64::{load_quads, matmul_2x2, store_f32x4};
use crate::quant::PANEL_COLS;
use crate::quant::format::Packed;
use crate::quant::quantize::{XBlock, word};

/// Registers of four columns in one pass: half of a panel.
const C: usize = 2;
/// Registers of sums for two rows of a pass: two by two each.
const PAIRS: usize = C * LANES / 2;

/// An instruction multiplies 8 k of two rows by 8 k of two columns; a register of sums holds two rows
/// of two columns. A last single row goes through the dot products.
///
/// Vector instructions for 1024 products, in a tile of eight rows and sixteen columns with 4 bits in
/// groups of 32: 32 products, 8 to unpack, 8 and 4 to bring 8 k of columns and of rows together, 24
/// to scale. The sums of such a tile are in memory: 4 pairs of loads and 4 of stores.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(super) fn matmul<F: Packed>(panel: &[u8], x: &[XBlock], out: &mut [[f32; PANEL_COLS]]) {
    let rows = out.len();
    let mut row = 0;
    while rows - row >= 8 {
        tile::<F, 4>(panel, pairs(x, row, rows), &mut out[row..]);
        row += 8;
    }
    if rows - row >= 4 {
        tile::<F, 2>(panel, pairs(x, row, rows), &mut out[row..]);
        row += 4;
    }
    if rows - row >= 2 {
        tile::<F, 1>(panel, pairs(x, row, rows), &mut out[row..]);
        row += 2;
    }
    if rows - row >= 1 {
        neon_dotprod::tile::<F, 1, 4>(panel, 0, records(x, row, rows), &mut out[row..]);
    }
}

/// The records of `R` pairs of rows.
fn pairs<const R: usize>(x: &[XBlock], first: usize, rows: usize) -> [[&[XBlock]; 2]; R] {
    std::array::from_fn(|r| records(x, first + 2 * r, rows))
}

/// All columns of `R` pairs of rows.
#[target_feature(enable = "neon,dotprod,i8mm")]
fn tile<F: Packed, const R: usize>(
    panel: &[u8],
    x: [[&[XBlock]; 2]; R],
    out: &mut [[f32; PANEL_COLS]],
) {
    let mut sums = [[[vdupq_n_f32(0.0); PAIRS]; R]; 2];
    for (u, unit) in panel.chunks_exact(F::UNIT_BYTES).enumerate() {
        let headers = [header::<F, C>(unit, 0), header::<F, C>(unit, C)];
        for g in 0..F::ELEMS / 32 {
            let block = u * (F::ELEMS / 32) + g;
            let x: [[&XBlock; 2]; R] = x.map(|x| x.map(|x| &x[block]));
            let rows = octets(&x);
            for (half, sums) in sums.iter_mut().enumerate() {
                let (first, header) = (C * half, headers[half]);
                let planes = planes::<F, C>(unit, g, first);
                if F::GROUP == 32 {
                    let mut acc = start::<F, R>(&x, 0);
                    octet::<F, 0, R>(planes, &rows, &mut acc);
                    octet::<F, 1, R>(planes, &rows, &mut acc);
                    octet::<F, 2, R>(planes, &rows, &mut acc);
                    octet::<F, 3, R>(planes, &rows, &mut acc);
                    add_group::<F, R>(&acc, scales::<F, C>(unit, g, first, header), &x, 0, sums);
                } else {
                    let mut acc = start::<F, R>(&x, 1);
                    octet::<F, 0, R>(planes, &rows, &mut acc);
                    octet::<F, 1, R>(planes, &rows, &mut acc);
                    let scale = scales::<F, C>(unit, 2 * g, first, header);
                    add_group::<F, R>(&acc, scale, &x, 1, sums);
                    let mut acc = start::<F, R>(&x, 2);
                    octet::<F, 2, R>(planes, &rows, &mut acc);
                    octet::<F, 3, R>(planes, &rows, &mut acc);
                    let scale = scales::<F, C>(unit, 2 * g + 1, first, header);
                    add_group::<F, R>(&acc, scale, &x, 2, sums);
                }
            }
        }
    }
    store(&sums, out);
}

/// The quants of both rows of each pair, eight k to a register.
#[target_feature(enable = "neon")]
#[inline]
fn octets<const R: usize>(x: &[[&XBlock; 2]; R]) -> [[int8x16_t; 4]; R] {
    let mut octets = [[vdupq_n_s8(0); 4]; R];
    for (octets, [a, b]) in octets.iter_mut().zip(x) {
        for half in 0..2 {
            let a = vreinterpretq_s64_s8(load_quads(&a.as_chunks().0[half]));
            let b = vreinterpretq_s64_s8(load_quads(&b.as_chunks().0[half]));
            octets[2 * half] = vreinterpretq_s8_s64(vzip1q_s64(a, b));
            octets[2 * half + 1] = vreinterpretq_s8_s64(vzip2q_s64(a, b));
        }
    }
    octets
}

/// Takes the offset off in advance.
#[target_feature(enable = "neon")]
#[inline]
fn start<F: Packed, const R: usize>(x: &[[&XBlock; 2]; R], part: usize) -> [[int32x4_t; PAIRS]; R] {
    let mut acc = [[vdupq_n_s32(0); PAIRS]; R];
    for (acc, [a, b]) in acc.iter_mut().zip(x) {
        let a = vdup_n_s32(bias::<F>(a, part));
        let b = vdup_n_s32(bias::<F>(b, part));
        *acc = [vcombine_s32(a, b); PAIRS];
    }
    acc
}

/// Adds the products of 8 k: of quads `2 * P` and `2 * P + 1`.
#[target_feature(enable = "neon,i8mm")]
#[inline]
fn octet<F: Packed, const P: usize, const R: usize>(
    planes: &[u8],
    x: &[[int8x16_t; 4]; R],
    acc: &mut [[int32x4_t; PAIRS]; R],
) {
    let (first, second) = unpack::<F, P, C>(planes);
    for c in 0..C {
        let (a, b) = (vreinterpretq_s32_s8(first[c]), vreinterpretq_s32_s8(second[c]));
        let low = vreinterpretq_s8_s32(vzip1q_s32(a, b));
        let high = vreinterpretq_s8_s32(vzip2q_s32(a, b));
        for (acc, x) in acc.iter_mut().zip(x) {
            acc[2 * c] = matmul_2x2(acc[2 * c], x[P], low);
            acc[2 * c + 1] = matmul_2x2(acc[2 * c + 1], x[P], high);
        }
    }
}

/// Scales exact sums and adds them.
#[target_feature(enable = "neon")]
#[inline]
fn add_group<F: Packed, const R: usize>(
    acc: &[[int32x4_t; PAIRS]; R],
    (scales, mins): ([float32x4_t; C], [float32x4_t; C]),
    x: &[[&XBlock; 2]; R],
    part: usize,
    sums: &mut [[float32x4_t; PAIRS]; R],
) {
    let (scales, mins) = (twice(scales), twice(mins));
    for ((sums, acc), x) in sums.iter_mut().zip(acc).zip(x) {
        let scale = of_rows(x, word::SCALE);
        let scaled_sum = of_rows(x, word::SCALED_SUMS[part]);
        for p in 0..PAIRS {
            let scale = vmulq_f32(scales[p], scale);
            sums[p] = vfmaq_f32(sums[p], vcvtq_f32_s32(acc[p]), scale);
            if F::MIN {
                sums[p] = vfmsq_f32(sums[p], mins[p], scaled_sum);
            }
        }
    }
}

/// Pairs of columns, each pair twice.
#[target_feature(enable = "neon")]
#[inline]
fn twice(columns: [float32x4_t; C]) -> [float32x4_t; PAIRS] {
    let mut pairs = [columns[0]; PAIRS];
    for (pairs, v) in pairs.as_chunks_mut().0.iter_mut().zip(columns) {
        let (low, high) = (vget_low_f32(v), vget_high_f32(v));
        *pairs = [vcombine_f32(low, low), vcombine_f32(high, high)];
    }
    pairs
}

/// A float of the records of two rows, each twice.
#[target_feature(enable = "neon")]
#[inline]
fn of_rows([a, b]: &[&XBlock; 2], word: usize) -> float32x4_t {
    vcombine_f32(vdup_n_f32(f32::from_bits(a[word])), vdup_n_f32(f32::from_bits(b[word])))
}

/// Writes the sums of a tile.
#[target_feature(enable = "neon")]
#[inline]
fn store<const R: usize>(sums: &[[[float32x4_t; PAIRS]; R]; 2], out: &mut [[f32; PANEL_COLS]]) {
    for (half, sums) in sums.iter().enumerate() {
        for (sums, out) in sums.iter().zip(out.as_chunks_mut::<2>().0) {
            for (c, [left, right]) in sums.as_chunks().0.iter().enumerate() {
                let [a, b] = &mut *out;
                let at = C * half + c;
                let first = vcombine_f32(vget_low_f32(*left), vget_low_f32(*right));
                let second = vcombine_f32(vget_high_f32(*left), vget_high_f32(*right));
                store_f32x4(&mut a.as_chunks_mut().0[at], first);
                store_f32x4(&mut b.as_chunks_mut().0[at], second);
            }
        }
    }
}
