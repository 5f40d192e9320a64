#![deny(unsafe_code)]

use std::arch::aarch64::{int8x16_t, int32x4_t, vdupq_n_f32, vdupq_n_s8, vdupq_n_s32};

use super::Out;
use super::neon::{
    REGISTERS, add_group, bias, header, planes, records, scales, store, tail, unpack,
};
use crate::isa::aarch64::{dot_lane, load_quads};
use crate::quant::PANEL_COLS;
use crate::quant::format::Packed;
use crate::quant::quantize::XBlock;

/// As the NEON version, with one instruction for a quad of four columns, which takes the
/// activations from a lane.
///
/// Vector instructions for 1024 products, in a tile of four rows and eight columns with 4 bits in
/// groups of 32: 64 products, 16 to unpack, 24 to scale.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn matmul<F: Packed>(panels: &[u8], x: &[XBlock], out: &mut Out<'_, '_>) {
    let mut row = 0;
    while row < out.rows {
        row += match out.rows - row {
            1 => tiles::<F, 1, 4>(panels, x, row, out),
            2 | 3 => tiles::<F, 2, 4>(panels, x, row, out),
            _ => tiles::<F, 4, 2>(panels, x, row, out),
        };
    }
}

/// `MR` rows from `row` on with every panel, `C` registers of columns at a time. Returns `MR`.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn tiles<F: Packed, const MR: usize, const C: usize>(
    panels: &[u8],
    x: &[XBlock],
    row: usize,
    out: &mut Out<'_, '_>,
) -> usize {
    let x = records(x, row, out.rows);
    for (p, panel) in panels.chunks_exact(out.panel_bytes).enumerate() {
        let mut results = [[0.0; PANEL_COLS]; MR];
        for first in (0..REGISTERS).step_by(C) {
            tile::<F, MR, C>(panel, first, x, &mut results);
        }
        out.put(p, row, &results);
    }
    MR
}

/// `C` registers of columns, from register `first` on, of `MR` rows.
#[target_feature(enable = "neon,dotprod")]
fn tile<F: Packed, const MR: usize, const C: usize>(
    panel: &[u8],
    first: usize,
    x: [&[XBlock]; MR],
    out: &mut [[f32; PANEL_COLS]],
) {
    let mut sums = [[vdupq_n_f32(0.0); C]; MR];
    for (u, unit) in panel.chunks_exact(F::UNIT_BYTES).enumerate() {
        let header = header::<F, C>(unit, first);
        for g in 0..F::ELEMS / 32 {
            let planes = planes::<F, C>(unit, g, first);
            let block = u * (F::ELEMS / 32) + g;
            let x: [&XBlock; MR] = x.map(|x| &x[block]);
            if F::GROUP == 32 {
                let mut acc = start::<F, MR, C>(&x, 0);
                half::<F, 0, 1, MR, C>(planes, &x, &mut acc);
                half::<F, 2, 3, MR, C>(planes, &x, &mut acc);
                let scales = scales::<F, C>(unit, g, first, header);
                add_group::<F, MR, C>(&acc, scales, &x, 0, &mut sums);
            } else {
                let mut acc = start::<F, MR, C>(&x, 1);
                half::<F, 0, 1, MR, C>(planes, &x, &mut acc);
                let scale = scales::<F, C>(unit, 2 * g, first, header);
                add_group::<F, MR, C>(&acc, scale, &x, 1, &mut sums);
                let mut acc = start::<F, MR, C>(&x, 2);
                half::<F, 2, 3, MR, C>(planes, &x, &mut acc);
                let scale = scales::<F, C>(unit, 2 * g + 1, first, header);
                add_group::<F, MR, C>(&acc, scale, &x, 2, &mut sums);
            }
        }
    }
    store(&sums, first, out);
}

/// Takes the offset off in advance.
#[target_feature(enable = "neon")]
#[inline]
fn start<F: Packed, const MR: usize, const C: usize>(
    x: &[&XBlock; MR],
    part: usize,
) -> [[int32x4_t; C]; MR] {
    let mut acc = [[vdupq_n_s32(0); C]; MR];
    for (acc, x) in acc.iter_mut().zip(x) {
        *acc = [vdupq_n_s32(bias::<F>(tail(x), part)); C];
    }
    acc
}

/// Adds the products of quads `2 * P` to `2 * Q + 1`: of 16 k, with `Q = P + 1`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
fn half<F: Packed, const P: usize, const Q: usize, const MR: usize, const C: usize>(
    planes: &[u8],
    x: &[&XBlock; MR],
    acc: &mut [[int32x4_t; C]; MR],
) {
    let mut registers = [vdupq_n_s8(0); MR];
    for (register, x) in registers.iter_mut().zip(x) {
        *register = load_quads(&x.as_chunks().0[P / 2]);
    }
    let (first, second) = unpack::<F, P, C>(planes);
    quad::<0, MR, C>(&first, &registers, acc);
    quad::<1, MR, C>(&second, &registers, acc);
    let (first, second) = unpack::<F, Q, C>(planes);
    quad::<2, MR, C>(&first, &registers, acc);
    quad::<3, MR, C>(&second, &registers, acc);
}

#[target_feature(enable = "neon,dotprod")]
#[inline]
fn quad<const LANE: u32, const MR: usize, const C: usize>(
    w: &[int8x16_t; C],
    x: &[int8x16_t; MR],
    acc: &mut [[int32x4_t; C]; MR],
) {
    for c in 0..C {
        for (acc, &x) in acc.iter_mut().zip(x) {
            acc[c] = dot_lane::<LANE>(acc[c], w[c], x);
        }
    }
}
