#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m512, __m512i, _mm_cvtsi32_si128, _mm512_add_epi32, _mm512_and_si512, _mm512_cvtepi8_epi32,
    _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_mul_ps, _mm512_or_si512, _mm512_set1_epi8,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_sll_epi16,
    _mm512_sra_epi32, _mm512_srl_epi16, _mm512_srli_epi16,
};

use super::{Out, Records, part};
use crate::isa::x86::{load_u8x16, load_u8x32, load_u8x64, prefetch_ahead, store_f32x16};
use crate::quant::PANEL_COLS;
use crate::quant::format::Packed;
use crate::quant::quantize::{Bias, XBlock, word};

/// Rows of a tile, and independent sums of one row: a tile needs about ten sums to keep both
/// multipliers busy. What is left after whole tiles goes through the next larger one, so that no
/// count of rows is slower than one more.
#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn matmul<F: Packed>(
    panels: &[u8],
    x: Records<'_>,
    out: &mut Out<'_, '_>,
    scratch: &mut [XBlock],
) {
    let mut row = 0;
    while row < out.rows {
        row += match out.rows - row {
            1 => tiles::<F, 1, 4>(panels, x, row, out, scratch),
            2 => tiles::<F, 2, 4>(panels, x, row, out, scratch),
            3 | 4 => tiles::<F, 4, 2>(panels, x, row, out, scratch),
            5 | 6 => tiles::<F, 6, 2>(panels, x, row, out, scratch),
            7 | 8 => tiles::<F, 8, 2>(panels, x, row, out, scratch),
            _ => tiles::<F, 12, 1>(panels, x, row, out, scratch),
        };
    }
}

/// `MR` rows from `row` on with every panel. Returns `MR`.
#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn tiles<F: Packed, const MR: usize, const CH: usize>(
    panels: &[u8],
    x: Records<'_>,
    row: usize,
    out: &mut Out<'_, '_>,
    scratch: &mut [XBlock],
) -> usize {
    let x = x.interleaved::<MR>(row, scratch);
    for (p, panel) in panels.chunks_exact(out.panel_bytes).enumerate() {
        let mut results = [[0.0; PANEL_COLS]; MR];
        out.ask(p, row, MR);
        tile::<F, MR, CH>(panel, x, &mut results);
        out.put(p, row, &results);
    }
    MR
}

#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn tile<F: Packed, const MR: usize, const CH: usize>(
    panel: &[u8],
    x: &[[XBlock; MR]],
    out: &mut [[f32; PANEL_COLS]],
) {
    let mut sums = [_mm512_setzero_ps(); MR];
    for (u, unit) in panel.chunks_exact(F::UNIT_BYTES).enumerate() {
        let d = load_f16(unit, 0);
        let m = if F::MIN { load_f16(unit, 2 * PANEL_COLS) } else { _mm512_setzero_ps() };
        for b in 0..F::ELEMS / 32 {
            let planes = &unit[F::QUANTS_AT + b * F::QUANT_BYTES..][..F::QUANT_BYTES];
            prefetch_ahead(planes);
            let x = &x[u * (F::ELEMS / 32) + b];
            if F::GROUP == 32 {
                let scales = scales::<F>(unit, b, d, m);
                let acc = products::<F, MR, CH>(planes, x, 0);
                for ((sum, x), acc) in sums.iter_mut().zip(x).zip(acc) {
                    *sum = add_whole::<F>(*sum, x, scales, acc);
                }
            } else {
                let low_scales = scales::<F>(unit, 2 * b, d, m);
                let high_scales = scales::<F>(unit, 2 * b + 1, d, m);
                let low = products::<F, MR, CH>(planes, x, 0);
                let high = products::<F, MR, CH>(planes, x, 1);
                for (((sum, x), low), high) in sums.iter_mut().zip(x).zip(low).zip(high) {
                    *sum = add_halves::<F>(*sum, x, (low_scales, low), (high_scales, high));
                }
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        store_f32x16(out, sum);
    }
}

/// Exact sums of the products of a group: of 32 k, or of a half of them.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
fn products<F: Packed, const MR: usize, const CH: usize>(
    planes: &[u8],
    x: &[XBlock; MR],
    half: usize,
) -> [__m512i; MR] {
    let mut acc = start::<F, MR, CH>(x, half);
    pair::<F, MR, CH, 0>(planes, x, half, &mut acc);
    pair::<F, MR, CH, 1>(planes, x, half, &mut acc);
    if F::GROUP == 32 {
        pair::<F, MR, CH, 2>(planes, x, half, &mut acc);
        pair::<F, MR, CH, 3>(planes, x, half, &mut acc);
    }
    let mut sums = acc[0];
    for (r, sum) in sums.iter_mut().enumerate() {
        *sum = match CH {
            4 => _mm512_add_epi32(
                _mm512_add_epi32(acc[0][r], acc[1][r]),
                _mm512_add_epi32(acc[2][r], acc[3][r]),
            ),
            2 => _mm512_add_epi32(acc[0][r], acc[1][r]),
            _ => acc[0][r],
        };
    }
    sums
}

/// Takes the offset off in advance: `-OFFSET * sum(x)`.
#[target_feature(enable = "avx512f")]
#[inline]
fn start<F: Packed, const MR: usize, const CH: usize>(
    x: &[XBlock; MR],
    half: usize,
) -> [[__m512i; MR]; CH] {
    let mut acc = [[_mm512_setzero_si512(); MR]; CH];
    if F::OFFSET > 0 {
        let bias = Bias::new(F::OFFSET, part::<F>(half));
        let shift = _mm_cvtsi32_si128(bias.shift.cast_signed());
        for (acc, x) in acc[0].iter_mut().zip(x) {
            let start = _mm512_set1_epi32(x[bias.word].cast_signed());
            *acc = _mm512_sra_epi32(start, shift);
        }
    }
    acc
}

/// Adds the products of quads `2 * P` and `2 * P + 1` of a group.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
fn pair<F: Packed, const MR: usize, const CH: usize, const P: usize>(
    planes: &[u8],
    x: &[XBlock; MR],
    half: usize,
    acc: &mut [[__m512i; MR]; CH],
) {
    let (first, second) = unpack::<F, P>(planes, half);
    let at = 4 * half + 2 * P;
    for (acc, x) in acc[2 * P % CH].iter_mut().zip(x) {
        *acc = _mm512_dpbusd_epi32(*acc, first, _mm512_set1_epi32(x[at].cast_signed()));
    }
    for (acc, x) in acc[(2 * P + 1) % CH].iter_mut().zip(x) {
        *acc = _mm512_dpbusd_epi32(*acc, second, _mm512_set1_epi32(x[at + 1].cast_signed()));
    }
}

/// Quads `2 * P` and `2 * P + 1` of a group as unsigned bytes.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
pub(super) fn unpack<F: Packed, const P: usize>(planes: &[u8], half: usize) -> (__m512i, __m512i) {
    if F::BITS == 8 {
        return (load(planes, 4 * half + 2 * P), load(planes, 4 * half + 2 * P + 1));
    }
    let low = load(planes, 2 * half + P);
    let mask = _mm512_set1_epi8(0x0f);
    let first = _mm512_and_si512(low, mask);
    let second = _mm512_and_si512(_mm512_srli_epi16::<4>(low), mask);
    match F::BITS {
        5 => {
            const { assert!(F::BITS != 5 || F::GROUP == 32, "a plane holds a bit of 32 k") };
            let (high, mask) = (load(planes, 4), _mm512_set1_epi8(0x10));
            (
                with_high(first, shift(high, 4 - 2 * P.cast_signed()), mask),
                with_high(second, shift(high, 3 - 2 * P.cast_signed()), mask),
            )
        }
        6 => {
            let (high, mask) = (load(planes, 4 + P / 2 + half), _mm512_set1_epi8(0x30));
            let left = 4 - 4 * (P % 2).cast_signed();
            (
                with_high(first, shift(high, left), mask),
                with_high(second, shift(high, left - 2), mask),
            )
        }
        _ => (first, second),
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn with_high(low: __m512i, high: __m512i, mask: __m512i) -> __m512i {
    _mm512_or_si512(low, _mm512_and_si512(high, mask))
}

/// Shifts bytes left, or right if `left` is negative. Bits from a neighbour are left to the mask.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn shift(v: __m512i, left: isize) -> __m512i {
    #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "below 8")]
    let count = _mm_cvtsi32_si128(left.unsigned_abs() as i32);
    if left >= 0 { _mm512_sll_epi16(v, count) } else { _mm512_srl_epi16(v, count) }
}

/// The scales and minimums of group `g`.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn scales<F: Packed>(unit: &[u8], g: usize, d: __m512, m: __m512) -> Scales {
    if !F::SUB {
        return (d, m);
    }
    let at = F::SUB_AT + g * F::SUB_BYTES;
    let (scales, mins) = (&unit[at..], &unit[at + F::SUB_BYTES - PANEL_COLS..]);
    let scale = match scales.first_chunk() {
        Some(bytes) => _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(load_u8x16(bytes))),
        None => d,
    };
    let min = match mins.first_chunk() {
        Some(bytes) if F::MIN => _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(load_u8x16(bytes))),
        _ => m,
    };
    (_mm512_mul_ps(d, scale), _mm512_mul_ps(m, min))
}

/// The scales and minimums of a group.
pub(super) type Scales = (__m512, __m512);

/// Adds the products of 32 k with a row that share a scale.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn add_whole<F: Packed>(
    sum: __m512,
    x: &XBlock,
    (scale, min): Scales,
    products: __m512i,
) -> __m512 {
    let scale = _mm512_mul_ps(scale, _mm512_set1_ps(f32::from_bits(x[word::SCALE])));
    let sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(products), scale, sum);
    less::<F>(sum, x, 0, min)
}

/// Adds the products of 32 k with a row, whose halves have scales of their own. That of the
/// activations is applied once.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn add_halves<F: Packed>(
    sum: __m512,
    x: &XBlock,
    ((low_scale, low_min), low): (Scales, __m512i),
    ((high_scale, high_min), high): (Scales, __m512i),
) -> __m512 {
    let both = _mm512_mul_ps(_mm512_cvtepi32_ps(low), low_scale);
    let both = _mm512_fmadd_ps(_mm512_cvtepi32_ps(high), high_scale, both);
    let sum = _mm512_fmadd_ps(both, _mm512_set1_ps(f32::from_bits(x[word::SCALE])), sum);
    less::<F>(less::<F>(sum, x, 0, low_min), x, 1, high_min)
}

/// Takes the minimums of a group off.
#[target_feature(enable = "avx512f")]
#[inline]
fn less<F: Packed>(sum: __m512, x: &XBlock, half: usize, min: __m512) -> __m512 {
    if !F::MIN {
        return sum;
    }
    let scaled_sum = f32::from_bits(x[word::SCALED_SUMS[part::<F>(half)]]);
    _mm512_fnmadd_ps(min, _mm512_set1_ps(scaled_sum), sum)
}

/// Plane `p` of a group of 32 k.
#[target_feature(enable = "avx512f")]
#[inline]
fn load(planes: &[u8], p: usize) -> __m512i {
    match planes[64 * p..].first_chunk() {
        Some(plane) => load_u8x64(plane),
        None => _mm512_setzero_si512(),
    }
}

/// 16 scales at a byte offset.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn load_f16(unit: &[u8], at: usize) -> __m512 {
    match unit[at..].first_chunk() {
        Some(bytes) => _mm512_cvtph_ps(load_u8x32(bytes)),
        None => _mm512_setzero_ps(),
    }
}
