#![deny(unsafe_code)]

use std::arch::aarch64::{
    float32x4_t, int32x4_t, vcombine_f32, vcombine_s32, vcvtq_f32_s32, vdup_n_f32, vdup_n_s32,
    vdupq_n_f32, vdupq_n_s8, vdupq_n_s32, vfmaq_f32, vfmsq_f32, vget_high_f32, vget_low_f32,
    vmulq_f32, vreinterpretq_s8_s32, vreinterpretq_s32_s8, vzip1q_s32, vzip2q_s32,
};

use super::neon::{LANES, Tail, bias, float, header, planes, scales, tail, unpack};
use super::{Out, neon_dotprod};
use crate::isa::aarch64::{load_quads, matmul_2x2, store_f32x4};
use crate::quant::PANEL_COLS;
use crate::quant::format::Packed;
use crate::quant::quantize::{XBlock, word};

/// Registers of four columns in one pass: half of a panel.
const C: usize = 2;
/// Registers of sums for two rows of a pass: two by two each.
const PAIRS: usize = C * LANES / 2;

/// A block of two rows of activations: 8 k of one row and 8 k of the other, four times; then what
/// follows the quants in each of the two.
type Pair = [XBlock; 2];

/// An instruction multiplies 8 k of two rows by 8 k of two columns; a register of sums holds two rows
/// of two columns. A last single row goes through the dot products. What is left of others goes
/// through the next larger tile, the last row standing in for one that is missing.
///
/// Vector instructions for 1024 products, in a tile of eight rows and sixteen columns with 4 bits in
/// groups of 32: 32 products, 8 to unpack, 8 to bring 8 k of a column together, 24 to scale: 72. With
/// six, four and two rows: 77, 88 and 120.
#[target_feature(enable = "neon,dotprod,i8mm")]
pub(super) fn matmul<F: Packed>(
    panels: &[u8],
    x: &[XBlock],
    out: &mut Out<'_, '_>,
    scratch: &mut [XBlock],
) {
    let mut row = 0;
    while row < out.rows {
        row += match out.rows - row {
            1 => neon_dotprod::tiles::<F, 1, 4>(panels, x, row, out),
            2 => tiles::<F, 1>(panels, x, row, out, scratch),
            3 | 4 => tiles::<F, 2>(panels, x, row, out, scratch),
            5 | 6 => tiles::<F, 3>(panels, x, row, out, scratch),
            _ => tiles::<F, 4>(panels, x, row, out, scratch),
        };
    }
}

/// `2 * R` rows from `row` on with every panel. Returns their number.
#[target_feature(enable = "neon,dotprod,i8mm")]
fn tiles<F: Packed, const R: usize>(
    panels: &[u8],
    x: &[XBlock],
    row: usize,
    out: &mut Out<'_, '_>,
    scratch: &mut [XBlock],
) -> usize {
    let x = pairs::<R>(x, row, out.rows, scratch);
    for (p, panel) in panels.chunks_exact(out.panel_bytes).enumerate() {
        let mut results = [[[0.0; PANEL_COLS]; 2]; R];
        tile::<F, R>(panel, x, results.as_flattened_mut());
        out.put(p, row, results.as_flattened());
    }
    2 * R
}

/// Blocks of the same k of `R` pairs of rows, side by side.
fn pairs<'a, const R: usize>(
    x: &[XBlock],
    first: usize,
    rows: usize,
    scratch: &'a mut [XBlock],
) -> &'a [[Pair; R]] {
    let len = x.len() / rows;
    let tile = scratch[..2 * R * len].as_chunks_mut::<2>().0.as_chunks_mut().0;
    let row = |row: usize| &x[row.min(rows - 1) * len..][..len];
    for r in 0..R {
        let (a, b) = (row(first + 2 * r), row(first + 2 * r + 1));
        for (tile, (a, b)) in tile.iter_mut().zip(a.iter().zip(b)) {
            let [octets, tails]: &mut Pair = &mut tile[r];
            let quads = a.as_chunks().0.iter().zip(b.as_chunks().0);
            for (octet, (a, b)) in octets.as_chunks_mut().0.iter_mut().zip(quads) {
                let ([a0, a1], [b0, b1]) = (*a, *b);
                *octet = [a0, a1, b0, b1];
            }
            tails.as_chunks_mut().0.copy_from_slice(&[*tail(a), *tail(b)]);
        }
    }
    tile
}

/// All columns of `R` pairs of rows.
#[target_feature(enable = "neon,dotprod,i8mm")]
fn tile<F: Packed, const R: usize>(panel: &[u8], x: &[[Pair; R]], out: &mut [[f32; PANEL_COLS]]) {
    let mut sums = [[[vdupq_n_f32(0.0); PAIRS]; R]; 2];
    for (u, unit) in panel.chunks_exact(F::UNIT_BYTES).enumerate() {
        let headers = [header::<F, C>(unit, 0), header::<F, C>(unit, C)];
        for g in 0..F::ELEMS / 32 {
            let x = &x[u * (F::ELEMS / 32) + g];
            for (half, sums) in sums.iter_mut().enumerate() {
                let (first, header) = (C * half, headers[half]);
                let planes = planes::<F, C>(unit, g, first);
                if F::GROUP == 32 {
                    let mut acc = start::<F, R>(x, 0);
                    octet::<F, 0, R>(planes, x, &mut acc);
                    octet::<F, 1, R>(planes, x, &mut acc);
                    octet::<F, 2, R>(planes, x, &mut acc);
                    octet::<F, 3, R>(planes, x, &mut acc);
                    add_group::<F, R>(&acc, scales::<F, C>(unit, g, first, header), x, 0, sums);
                } else {
                    let mut acc = start::<F, R>(x, 1);
                    octet::<F, 0, R>(planes, x, &mut acc);
                    octet::<F, 1, R>(planes, x, &mut acc);
                    let scale = scales::<F, C>(unit, 2 * g, first, header);
                    add_group::<F, R>(&acc, scale, x, 1, sums);
                    let mut acc = start::<F, R>(x, 2);
                    octet::<F, 2, R>(planes, x, &mut acc);
                    octet::<F, 3, R>(planes, x, &mut acc);
                    let scale = scales::<F, C>(unit, 2 * g + 1, first, header);
                    add_group::<F, R>(&acc, scale, x, 2, sums);
                }
            }
        }
    }
    store(&sums, out);
}

/// The tails of both rows.
#[inline]
fn tails([_, tails]: &Pair) -> &[Tail; 2] {
    let (tails, _) = tails.as_chunks().0.as_chunks();
    &tails[0]
}

/// Takes the offset off in advance.
#[target_feature(enable = "neon")]
#[inline]
fn start<F: Packed, const R: usize>(x: &[Pair; R], part: usize) -> [[int32x4_t; PAIRS]; R] {
    let mut acc = [[vdupq_n_s32(0); PAIRS]; R];
    for (acc, x) in acc.iter_mut().zip(x) {
        let [a, b] = tails(x);
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
    x: &[Pair; R],
    acc: &mut [[int32x4_t; PAIRS]; R],
) {
    let mut rows = [vdupq_n_s8(0); R];
    for (row, [octets, _]) in rows.iter_mut().zip(x) {
        *row = load_quads(&octets.as_chunks().0[P]);
    }
    let (first, second) = unpack::<F, P, C>(planes);
    for c in 0..C {
        let (a, b) = (vreinterpretq_s32_s8(first[c]), vreinterpretq_s32_s8(second[c]));
        let low = vreinterpretq_s8_s32(vzip1q_s32(a, b));
        let high = vreinterpretq_s8_s32(vzip2q_s32(a, b));
        for (acc, &rows) in acc.iter_mut().zip(&rows) {
            acc[2 * c] = matmul_2x2(acc[2 * c], rows, low);
            acc[2 * c + 1] = matmul_2x2(acc[2 * c + 1], rows, high);
        }
    }
}

/// Scales exact sums and adds them.
#[target_feature(enable = "neon")]
#[inline]
fn add_group<F: Packed, const R: usize>(
    acc: &[[int32x4_t; PAIRS]; R],
    (scales, mins): ([float32x4_t; C], [float32x4_t; C]),
    x: &[Pair; R],
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
fn of_rows(x: &Pair, word: usize) -> float32x4_t {
    let [a, b] = tails(x).map(|tail| float(&tail, word));
    vcombine_f32(vdup_n_f32(a), vdup_n_f32(b))
}

/// Writes the sums of the rows that exist.
#[target_feature(enable = "neon")]
#[inline]
fn store<const R: usize>(sums: &[[[float32x4_t; PAIRS]; R]; 2], out: &mut [[f32; PANEL_COLS]]) {
    for (half, sums) in sums.iter().enumerate() {
        for (sums, out) in sums.iter().zip(out.chunks_mut(2)) {
            for (c, [left, right]) in sums.as_chunks().0.iter().enumerate() {
                let first = vcombine_f32(vget_low_f32(*left), vget_low_f32(*right));
                let second = vcombine_f32(vget_high_f32(*left), vget_high_f32(*right));
                for (out, sum) in out.iter_mut().zip([first, second]) {
                    store_f32x4(&mut out.as_chunks_mut().0[C * half + c], sum);
                }
            }
        }
    }
}
