#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m512, __m512i, _mm_cvtsi32_si128, _mm512_add_epi32, _mm512_and_si512, _mm512_cvtepi8_epi32,
    _mm512_cvtepi32_ps, _mm512_cvtepu8_epi32, _mm512_cvtph_ps, _mm512_dpbusd_epi32,
    _mm512_fmadd_ps, _mm512_fnmadd_ps, _mm512_mul_ps, _mm512_or_si512, _mm512_set1_epi8,
    _mm512_set1_epi32, _mm512_set1_ps, _mm512_setzero_ps, _mm512_setzero_si512, _mm512_sll_epi16,
    _mm512_sll_epi32, _mm512_srl_epi16, _mm512_srli_epi16,
};

use super::records;
use crate::isa::x86::{load_u8x16, load_u8x32, load_u8x64, prefetch_ahead, store_f32x16};
use crate::quant::PANEL_COLS;
use crate::quant::format::Packed;
use crate::quant::quantize::{XBlock, word};

/// Eight rows share each unpacked quad; what is left over goes through smaller tiles.
#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
pub(super) fn matmul<F: Packed>(panel: &[u8], x: &[XBlock], out: &mut [[f32; PANEL_COLS]]) {
    let rows = out.len();
    let mut row = 0;
    while rows - row >= 8 {
        tile::<F, 8, 1>(panel, records(x, row, rows), &mut out[row..]);
        row += 8;
    }
    if rows - row >= 4 {
        tile::<F, 4, 2>(panel, records(x, row, rows), &mut out[row..]);
        row += 4;
    }
    if rows - row >= 2 {
        tile::<F, 2, 2>(panel, records(x, row, rows), &mut out[row..]);
        row += 2;
    }
    if rows - row >= 1 {
        tile::<F, 1, 4>(panel, records(x, row, rows), &mut out[row..]);
    }
}

#[target_feature(enable = "avx2,f16c,fma,avx512f,avx512bw,avx512vl,avx512vnni")]
fn tile<F: Packed, const MR: usize, const CH: usize>(
    panel: &[u8],
    x: [&[XBlock]; MR],
    out: &mut [[f32; PANEL_COLS]],
) {
    let mut sums = [_mm512_setzero_ps(); MR];
    for (u, unit) in panel.chunks_exact(F::UNIT_BYTES).enumerate() {
        let d = load_f16(unit, 0);
        let m = if F::MIN { load_f16(unit, 2 * PANEL_COLS) } else { _mm512_setzero_ps() };
        for g in 0..F::ELEMS / 32 {
            let planes = &unit[F::QUANTS_AT + g * F::QUANT_BYTES..][..F::QUANT_BYTES];
            if MR < 8 {
                prefetch_ahead(planes);
            }
            let block = u * (F::ELEMS / 32) + g;
            let x: [&XBlock; MR] = x.map(|x| &x[block]);
            if F::GROUP == 32 {
                let mut acc = start::<F, MR, CH>(&x, 0);
                pair::<F, MR, CH, 0>(planes, &x, &mut acc);
                pair::<F, MR, CH, 1>(planes, &x, &mut acc);
                pair::<F, MR, CH, 2>(planes, &x, &mut acc);
                pair::<F, MR, CH, 3>(planes, &x, &mut acc);
                finish::<F, MR, CH>(scales::<F>(unit, g, d, m), &x, 0, acc, &mut sums);
            } else {
                let mut acc = start::<F, MR, CH>(&x, 1);
                pair::<F, MR, CH, 0>(planes, &x, &mut acc);
                pair::<F, MR, CH, 1>(planes, &x, &mut acc);
                finish::<F, MR, CH>(scales::<F>(unit, 2 * g, d, m), &x, 1, acc, &mut sums);
                let mut acc = start::<F, MR, CH>(&x, 2);
                pair::<F, MR, CH, 2>(planes, &x, &mut acc);
                pair::<F, MR, CH, 3>(planes, &x, &mut acc);
                finish::<F, MR, CH>(scales::<F>(unit, 2 * g + 1, d, m), &x, 2, acc, &mut sums);
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        store_f32x16(out, sum);
    }
}

/// Takes the offset off in advance: `-OFFSET * sum(x)`. `part` is 0 for the whole block, 1 and 2
/// for its halves.
#[target_feature(enable = "avx512f")]
#[inline]
fn start<F: Packed, const MR: usize, const CH: usize>(
    x: &[&XBlock; MR],
    part: usize,
) -> [[__m512i; MR]; CH] {
    let mut acc = [[_mm512_setzero_si512(); MR]; CH];
    if F::OFFSET > 0 {
        let shift = _mm_cvtsi32_si128(F::OFFSET.trailing_zeros().cast_signed());
        for (acc, x) in acc[0].iter_mut().zip(x) {
            let neg_sum = _mm512_set1_epi32(x[word::NEG_SUMS[part]].cast_signed());
            *acc = _mm512_sll_epi32(neg_sum, shift);
        }
    }
    acc
}

/// Adds the products of quads `2 * P` and `2 * P + 1`.
#[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
#[inline]
fn pair<F: Packed, const MR: usize, const CH: usize, const P: usize>(
    planes: &[u8],
    x: &[&XBlock; MR],
    acc: &mut [[__m512i; MR]; CH],
) {
    let (first, second) = unpack::<F, P>(planes);
    for (acc, x) in acc[2 * P % CH].iter_mut().zip(x) {
        *acc = _mm512_dpbusd_epi32(*acc, first, _mm512_set1_epi32(x[2 * P].cast_signed()));
    }
    for (acc, x) in acc[(2 * P + 1) % CH].iter_mut().zip(x) {
        *acc = _mm512_dpbusd_epi32(*acc, second, _mm512_set1_epi32(x[2 * P + 1].cast_signed()));
    }
}

/// Quads `2 * P` and `2 * P + 1` as unsigned bytes.
#[target_feature(enable = "avx512f,avx512bw")]
#[inline]
fn unpack<F: Packed, const P: usize>(planes: &[u8]) -> (__m512i, __m512i) {
    if F::BITS == 8 {
        return (load(planes, 2 * P), load(planes, 2 * P + 1));
    }
    let low = load(planes, P);
    let mask = _mm512_set1_epi8(0x0f);
    let first = _mm512_and_si512(low, mask);
    let second = _mm512_and_si512(_mm512_srli_epi16::<4>(low), mask);
    match F::BITS {
        5 => {
            let (high, mask) = (load(planes, 4), _mm512_set1_epi8(0x10));
            (
                with_high(first, shift(high, 4 - 2 * P.cast_signed()), mask),
                with_high(second, shift(high, 3 - 2 * P.cast_signed()), mask),
            )
        }
        6 => {
            let (high, mask) = (load(planes, 4 + P / 2), _mm512_set1_epi8(0x30));
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
fn scales<F: Packed>(unit: &[u8], g: usize, d: __m512, m: __m512) -> (__m512, __m512) {
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

/// Adds a group to the sums.
#[target_feature(enable = "avx512f")]
#[inline]
fn finish<F: Packed, const MR: usize, const CH: usize>(
    (scale, min): (__m512, __m512),
    x: &[&XBlock; MR],
    part: usize,
    acc: [[__m512i; MR]; CH],
    sums: &mut [__m512; MR],
) {
    for (r, (sum, x)) in sums.iter_mut().zip(x).enumerate() {
        let acc = match CH {
            4 => _mm512_add_epi32(
                _mm512_add_epi32(acc[0][r], acc[1][r]),
                _mm512_add_epi32(acc[2][r], acc[3][r]),
            ),
            2 => _mm512_add_epi32(acc[0][r], acc[1][r]),
            _ => acc[0][r],
        };
        let scale = _mm512_mul_ps(scale, _mm512_set1_ps(f32::from_bits(x[word::SCALE])));
        *sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(acc), scale, *sum);
        if F::MIN {
            let scaled_sum = f32::from_bits(x[word::SCALED_SUMS[part]]);
            *sum = _mm512_fnmadd_ps(min, _mm512_set1_ps(scaled_sum), *sum);
        }
    }
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
fn load_f16(unit: &[u8], at: usize) -> __m512 {
    match unit[at..].first_chunk() {
        Some(bytes) => _mm512_cvtph_ps(load_u8x32(bytes)),
        None => _mm512_setzero_ps(),
    }
}
