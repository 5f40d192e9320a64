#![deny(unsafe_code)]

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int16x8_t, int32x4_t, uint8x16_t, vaddq_s32, vandq_u8, vbslq_u8,
    vcreate_s8, vcreate_u8, vcreate_u16, vcvt_f32_f16, vcvtq_f32_s32, vcvtq_f32_u32, vdupq_n_f32,
    vdupq_n_s8, vdupq_n_s16, vdupq_n_s32, vdupq_n_u8, veorq_u8, vfmaq_f32, vfmsq_n_f32,
    vget_low_s8, vget_low_s16, vget_low_u16, vmlal_high_s8, vmlal_s8, vmovl_s8, vmovl_s16,
    vmovl_u8, vmovl_u16, vmulq_f32, vmulq_n_f32, vpadalq_s16, vpaddlq_s16, vpaddq_s32,
    vreinterpret_f16_u16, vreinterpretq_s8_s32, vreinterpretq_s8_u8, vshlq_u8, vshrq_n_u8,
};

use super::Out;
use crate::isa::aarch64::{load_u8x16, store_f32x4};
use crate::quant::PANEL_COLS;
use crate::quant::format::Packed;
use crate::quant::quantize::{Bias, XBlock, word};

/// Columns of a register.
pub(super) const LANES: usize = 4;
/// Registers of a panel.
pub(super) const REGISTERS: usize = PANEL_COLS / LANES;

/// NEON without dot products of bytes.
///
/// An instruction multiplies eight bytes and adds the products to eight lanes of 16 bits. Vector
/// instructions for 1024 products, in a tile of four rows and eight columns with 4 bits in groups
/// of 32: 128 products, 32 broadcasts of activations, 16 to unpack, 56 to sum and scale.
#[target_feature(enable = "neon")]
pub(super) fn matmul<F: Packed>(panels: &[u8], x: &[XBlock], out: &mut Out<'_, '_>) {
    let mut row = 0;
    while row < out.rows {
        row += match out.rows - row {
            1 => tiles::<F, 1, 4>(panels, x, row, out),
            // Sums of 8 bits take twice the registers.
            4.. if F::BITS < 8 => tiles::<F, 4, 2>(panels, x, row, out),
            _ => tiles::<F, 2, 2>(panels, x, row, out),
        };
    }
}

/// `MR` rows from `row` on with every panel, `C` registers of columns at a time. Returns `MR`.
#[target_feature(enable = "neon")]
fn tiles<F: Packed, const MR: usize, const C: usize>(
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

/// The record of each of `N` rows that start at row `first` of `rows`.
#[inline]
pub(super) fn records<const N: usize>(x: &[XBlock], first: usize, rows: usize) -> [&[XBlock]; N] {
    let len = x.len() / rows;
    std::array::from_fn(|r| &x[(first + r) * len..][..len])
}

/// `C` registers of columns, from register `first` on, of `MR` rows.
#[target_feature(enable = "neon")]
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
                let mut acc = Acc::<MR, C>::zero();
                acc.pair::<F, 0>(planes, &x);
                acc.pair::<F, 1>(planes, &x);
                acc.pair::<F, 2>(planes, &x);
                acc.pair::<F, 3>(planes, &x);
                let scales = scales::<F, C>(unit, g, first, header);
                add_group::<F, MR, C>(&acc.total::<F>(&x, 0), scales, &x, 0, &mut sums);
            } else {
                let mut acc = Acc::<MR, C>::zero();
                acc.pair::<F, 0>(planes, &x);
                acc.pair::<F, 1>(planes, &x);
                let scale = scales::<F, C>(unit, 2 * g, first, header);
                add_group::<F, MR, C>(&acc.total::<F>(&x, 1), scale, &x, 1, &mut sums);
                let mut acc = Acc::<MR, C>::zero();
                acc.pair::<F, 2>(planes, &x);
                acc.pair::<F, 3>(planes, &x);
                let scale = scales::<F, C>(unit, 2 * g + 1, first, header);
                add_group::<F, MR, C>(&acc.total::<F>(&x, 2), scale, &x, 2, &mut sums);
            }
        }
    }
    store(&sums, first, out);
}

/// Exact sums of products of one group.
///
/// They stay in 16 bits as long as they fit: 8 of 31 * 127, 4 of 63 * 127 or 2 of 128 * 127 to a
/// lane.
struct Acc<const MR: usize, const C: usize> {
    narrow: [[[int16x8_t; 2]; C]; MR],
    wide: [[[int32x4_t; 2]; C]; MR],
}

impl<const MR: usize, const C: usize> Acc<MR, C> {
    #[target_feature(enable = "neon")]
    #[inline]
    fn zero() -> Self {
        Self { narrow: [[[vdupq_n_s16(0); 2]; C]; MR], wide: [[[vdupq_n_s32(0); 2]; C]; MR] }
    }

    /// Adds the products of quads `2 * P` and `2 * P + 1`.
    #[target_feature(enable = "neon")]
    #[inline]
    fn pair<F: Packed, const P: usize>(&mut self, planes: &[u8], x: &[&XBlock; MR]) {
        const {
            let quads = if F::BITS == 8 { 2 } else { F::GROUP / 4 };
            let largest = if F::BITS == 8 { 128 } else { (1 << F::BITS) - 1 };
            assert!(largest * 127 * quads < 1 << 15, "a sum of products leaves 16 bits");
        };
        let (first, second) = unpack::<F, P, C>(planes);
        self.quad(&first, x, 2 * P);
        self.quad(&second, x, 2 * P + 1);
        if F::BITS == 8 {
            for (narrow, wide) in self.narrow.iter_mut().zip(&mut self.wide) {
                for (narrow, wide) in
                    narrow.as_flattened_mut().iter_mut().zip(wide.as_flattened_mut())
                {
                    *wide = vpadalq_s16(*wide, *narrow);
                    *narrow = vdupq_n_s16(0);
                }
            }
        }
    }

    #[target_feature(enable = "neon")]
    #[inline]
    fn quad(&mut self, w: &[int8x16_t; C], x: &[&XBlock; MR], j: usize) {
        for (narrow, x) in self.narrow.iter_mut().zip(x) {
            let x = vreinterpretq_s8_s32(vdupq_n_s32(x[j].cast_signed()));
            for (narrow, &w) in narrow.iter_mut().zip(w) {
                narrow[0] = vmlal_s8(narrow[0], vget_low_s8(w), vget_low_s8(x));
                narrow[1] = vmlal_high_s8(narrow[1], w, x);
            }
        }
    }

    /// The sums of each column, with the offset of the format taken off.
    #[target_feature(enable = "neon")]
    #[inline]
    fn total<F: Packed>(&self, x: &[&XBlock; MR], part: usize) -> [[int32x4_t; C]; MR] {
        let mut totals = [[vdupq_n_s32(0); C]; MR];
        for (r, totals) in totals.iter_mut().enumerate() {
            for (c, total) in totals.iter_mut().enumerate() {
                let [low, high] = self.narrow[r][c];
                *total = if F::BITS == 8 {
                    vpaddq_s32(self.wide[r][c][0], self.wide[r][c][1])
                } else {
                    vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high))
                };
                if F::BITS < 8 && F::OFFSET > 0 {
                    *total = vaddq_s32(*total, vdupq_n_s32(bias::<F>(tail(x[r]), part)));
                }
            }
        }
        totals
    }
}

/// The words of a block after the quants.
pub(super) type Tail = [u32; 8];

/// See [`Tail`].
#[inline]
pub(super) fn tail(x: &XBlock) -> &Tail {
    &x.as_chunks().0[1]
}

/// Word `word` of a block as a float.
#[inline]
pub(super) fn float(tail: &Tail, word: usize) -> f32 {
    f32::from_bits(tail[word - 8])
}

/// What takes the offset of a format off the sum of a group. Quants of 8 bits are signed here: they
/// have none.
#[inline]
pub(super) fn bias<F: Packed>(tail: &Tail, part: usize) -> i32 {
    if F::BITS == 8 || F::OFFSET == 0 {
        return 0;
    }
    let bias = Bias::new(F::OFFSET, part);
    tail[bias.word - 8].cast_signed() >> bias.shift
}

/// Scales exact sums and adds them.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn add_group<F: Packed, const MR: usize, const C: usize>(
    totals: &[[int32x4_t; C]; MR],
    (scales, mins): ([float32x4_t; C], [float32x4_t; C]),
    x: &[&XBlock; MR],
    part: usize,
    sums: &mut [[float32x4_t; C]; MR],
) {
    for ((sums, totals), x) in sums.iter_mut().zip(totals).zip(x) {
        let scale = float(tail(x), word::SCALE);
        let scaled_sum = float(tail(x), word::SCALED_SUMS[part]);
        for c in 0..C {
            let scale = vmulq_n_f32(scales[c], scale);
            sums[c] = vfmaq_f32(sums[c], vcvtq_f32_s32(totals[c]), scale);
            if F::MIN {
                sums[c] = vfmsq_n_f32(sums[c], mins[c], scaled_sum);
            }
        }
    }
}

/// Writes the sums of a tile to its columns.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn store<const MR: usize, const C: usize>(
    sums: &[[float32x4_t; C]; MR],
    first: usize,
    out: &mut [[f32; PANEL_COLS]],
) {
    for (sums, out) in sums.iter().zip(out) {
        for (&sum, out) in sums.iter().zip(&mut out.as_chunks_mut().0[first..]) {
            store_f32x4(out, sum);
        }
    }
}

/// The quants of group `g` of 32 k, from register `first` on. Its length is a constant, so that no
/// load of [`unpack`] needs a check.
#[inline]
pub(super) fn planes<F: Packed, const C: usize>(unit: &[u8], g: usize, first: usize) -> &[u8] {
    let at = F::QUANTS_AT + g * F::QUANT_BYTES + 4 * LANES * first;
    &unit[at..][..F::QUANT_BYTES - 4 * LANES * (REGISTERS - C)]
}

/// Quads `2 * P` and `2 * P + 1` of `C` registers of columns, as signed bytes.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn unpack<F: Packed, const P: usize, const C: usize>(
    planes: &[u8],
) -> ([int8x16_t; C], [int8x16_t; C]) {
    let (mut first, mut second) = ([vdupq_n_s8(0); C], [vdupq_n_s8(0); C]);
    for c in 0..C {
        let plane = |p: usize| match planes[64 * p + 4 * LANES * c..].first_chunk() {
            Some(plane) => load_u8x16(plane),
            None => vdupq_n_u8(0),
        };
        let (a, b) = if F::BITS == 8 {
            let sign = vdupq_n_u8(0x80);
            (veorq_u8(plane(2 * P), sign), veorq_u8(plane(2 * P + 1), sign))
        } else {
            let low = plane(P);
            let (a, b) = (vandq_u8(low, vdupq_n_u8(0x0f)), vshrq_n_u8::<4>(low));
            match F::BITS {
                5 => {
                    let high = plane(4);
                    let left = 4 - 2 * P.cast_signed();
                    (with_high(a, high, left, 0x10), with_high(b, high, left - 1, 0x10))
                }
                6 => {
                    let high = plane(4 + P / 2);
                    let left = 4 - 4 * (P % 2).cast_signed();
                    (with_high(a, high, left, 0x30), with_high(b, high, left - 2, 0x30))
                }
                _ => (a, b),
            }
        };
        (first[c], second[c]) = (vreinterpretq_s8_u8(a), vreinterpretq_s8_u8(b));
    }
    (first, second)
}

/// Takes the bits that `mask` names from `high`, shifted left, or right if `left` is negative.
#[target_feature(enable = "neon")]
#[inline]
fn with_high(low: uint8x16_t, high: uint8x16_t, left: isize, mask: u8) -> uint8x16_t {
    #[expect(clippy::cast_possible_truncation, reason = "-8 to 8")]
    let high = vshlq_u8(high, vdupq_n_s8(left as i8));
    vbslq_u8(vdupq_n_u8(mask), high, low)
}

/// The scales of a unit and of its minimums.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn header<F: Packed, const C: usize>(
    unit: &[u8],
    first: usize,
) -> ([float32x4_t; C], [float32x4_t; C]) {
    let (mut d, mut m) = ([vdupq_n_f32(0.0); C], [vdupq_n_f32(0.0); C]);
    load_f16(unit, 2 * LANES * first, &mut d);
    if F::MIN {
        load_f16(unit, 2 * (PANEL_COLS + LANES * first), &mut m);
    }
    (d, m)
}

/// `C` times four f16 from a byte offset on.
#[target_feature(enable = "neon")]
#[inline]
fn load_f16<const C: usize>(unit: &[u8], at: usize, out: &mut [float32x4_t; C]) {
    let bytes = &unit[at..][..8 * C];
    for (out, &bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = vcvt_f32_f16(vreinterpret_f16_u16(vcreate_u16(u64::from_le_bytes(bytes))));
    }
}

/// The scales and minimums of group `g`.
#[target_feature(enable = "neon")]
#[inline]
pub(super) fn scales<F: Packed, const C: usize>(
    unit: &[u8],
    g: usize,
    first: usize,
    (mut d, mut m): ([float32x4_t; C], [float32x4_t; C]),
) -> ([float32x4_t; C], [float32x4_t; C]) {
    if !F::SUB {
        return (d, m);
    }
    let at = F::SUB_AT + g * F::SUB_BYTES + LANES * first;
    let bytes = unit[at..][..LANES * C].as_chunks().0;
    for (d, &bytes) in d.iter_mut().zip(bytes) {
        let wide = vmovl_s8(vcreate_s8(u64::from(u32::from_le_bytes(bytes))));
        *d = vmulq_f32(*d, vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))));
    }
    if F::MIN {
        let bytes = unit[at + PANEL_COLS..][..LANES * C].as_chunks().0;
        for (m, &bytes) in m.iter_mut().zip(bytes) {
            let wide = vmovl_u8(vcreate_u8(u64::from(u32::from_le_bytes(bytes))));
            *m = vmulq_f32(*m, vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))));
        }
    }
    (d, m)
}
