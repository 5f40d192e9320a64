#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m256, __m256i, _mm_cvtsi32_si128, _mm_cvtsi64_si128, _mm256_abs_epi8, _mm256_add_epi16,
    _mm256_add_epi32, _mm256_and_si256, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps,
    _mm256_cvtepu8_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_sign_epi8,
    _mm256_sll_epi16, _mm256_sra_epi32, _mm256_srl_epi16, _mm256_srli_epi16, _mm256_xor_si256,
};

use super::{Out, Records, part};
use crate::isa::x86::{load_u8x16, load_u8x32, prefetch_ahead, store_f32x8};
use crate::quant::PANEL_COLS;
use crate::quant::format::Packed;
use crate::quant::quantize::{Bias, XBlock, word};

/// Columns of one pass over a panel: the lanes of a register.
const HALF: usize = PANEL_COLS / 2;

/// Up to twelve rows share each unpacked quad. What is left after whole tiles goes through the next
/// larger one, so that no count of rows is slower than one more.
#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn matmul<F: Packed>(
    panels: &[u8],
    x: Records<'_>,
    out: &mut Out<'_, '_>,
    scratch: &mut [XBlock],
) {
    let mut row = 0;
    while row < out.rows {
        row += match out.rows - row {
            1 => tiles::<F, 1>(panels, x, row, out, scratch),
            2 => tiles::<F, 2>(panels, x, row, out, scratch),
            3 | 4 => tiles::<F, 4>(panels, x, row, out, scratch),
            5 | 6 => tiles::<F, 6>(panels, x, row, out, scratch),
            7 | 8 => tiles::<F, 8>(panels, x, row, out, scratch),
            _ => tiles::<F, 12>(panels, x, row, out, scratch),
        };
    }
}

/// `MR` rows from `row` on with every panel. Returns `MR`.
#[target_feature(enable = "avx2,f16c,fma")]
fn tiles<F: Packed, const MR: usize>(
    panels: &[u8],
    x: Records<'_>,
    row: usize,
    out: &mut Out<'_, '_>,
    scratch: &mut [XBlock],
) -> usize {
    let x = x.interleaved::<MR>(row, scratch);
    for (p, panel) in panels.chunks_exact(out.panel_bytes).enumerate() {
        let mut results = [[0.0; PANEL_COLS]; MR];
        // Six bits have the most lines and the fewest spare instructions: only the first rows ask
        // for what later rows find in a cache.
        let ahead = row == 0 || F::GROUP == 32;
        tile::<F, MR>(panel, 0, ahead, x, &mut results);
        tile::<F, MR>(panel, 1, ahead, x, &mut results);
        out.put(p, row, &results);
    }
    MR
}

/// Columns `8 * side` to `8 * side + 7` of `MR` rows.
#[target_feature(enable = "avx2,f16c,fma")]
fn tile<F: Packed, const MR: usize>(
    panel: &[u8],
    side: usize,
    ahead: bool,
    x: &[[XBlock; MR]],
    out: &mut [[f32; PANEL_COLS]],
) {
    let mut sums = [_mm256_setzero_ps(); MR];
    for (u, unit) in panel.chunks_exact(F::UNIT_BYTES).enumerate() {
        let (d, m) = headers::<F>(unit, side);
        for b in 0..F::ELEMS / 32 {
            let planes = &unit[F::QUANTS_AT + b * F::QUANT_BYTES + 32 * side..];
            if side == 0 && ahead {
                prefetch_ahead(&planes[..F::QUANT_BYTES]);
            }
            let x = &x[u * (F::ELEMS / 32) + b];
            // One call: what is called twice is not always inlined, and sums then go through memory.
            for half in 0..32 / F::GROUP {
                let scales = scales::<F>(unit, 32 / F::GROUP * b + half, side, d, m);
                group::<F, MR>(planes, x, half, scales, &mut sums);
            }
        }
    }
    store(side, sums, out);
}

/// Adds one group: 32 k, or one half of them.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn group<F: Packed, const MR: usize>(
    planes: &[u8],
    x: &[XBlock; MR],
    half: usize,
    scales: (__m256, __m256),
    sums: &mut [__m256; MR],
) {
    let mut acc = start::<F, MR>(x, half);
    quads::<F, MR, 0>(planes, x, half, &mut acc);
    if F::GROUP == 32 {
        quads::<F, MR, 1>(planes, x, half, &mut acc);
    }
    finish::<F, MR>(scales, x, half, acc, sums);
}

/// Writes columns `8 * side` and up.
#[target_feature(enable = "avx")]
#[inline]
pub(super) fn store<const MR: usize>(
    side: usize,
    sums: [__m256; MR],
    out: &mut [[f32; PANEL_COLS]],
) {
    for (out, sum) in out.iter_mut().zip(sums) {
        if let Some(out) = out[HALF * side..].first_chunk_mut() {
            store_f32x8(out, sum);
        }
    }
}

/// `d` and `m` of eight columns.
#[target_feature(enable = "avx2,f16c")]
#[inline]
pub(super) fn headers<F: Packed>(unit: &[u8], side: usize) -> (__m256, __m256) {
    let m =
        if F::MIN { load_f16(unit, 2 * (PANEL_COLS + HALF * side)) } else { _mm256_setzero_ps() };
    (load_f16(unit, 2 * HALF * side), m)
}

/// What a sum of products starts with: `-OFFSET * sum(x)`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn bias<F: Packed>(x: &XBlock, half: usize) -> __m256i {
    if F::OFFSET == 0 {
        return _mm256_setzero_si256();
    }
    let bias = Bias::new(F::OFFSET, part::<F>(half));
    let shift = _mm_cvtsi32_si128(bias.shift.cast_signed());
    _mm256_sra_epi32(_mm256_set1_epi32(x[bias.word].cast_signed()), shift)
}

/// Sums of 4-bit quants stay in i16: 8 of 15 * 127 * 2. Other sums are i32 from the start. Quants of
/// 8 bits are used as signed bytes, so nothing is taken off.
#[target_feature(enable = "avx2")]
#[inline]
fn start<F: Packed, const MR: usize>(x: &[XBlock; MR], half: usize) -> [__m256i; MR] {
    let mut acc = [_mm256_setzero_si256(); MR];
    if F::BITS == 5 || F::BITS == 6 {
        for (acc, x) in acc.iter_mut().zip(x) {
            *acc = bias::<F>(x, half);
        }
    }
    acc
}

/// Adds the products of quads `4 * H` to `4 * H + 3` of a group.
///
/// `maddubs` gives sums of two products as i16, added up as far as they cannot saturate: 8 of
/// 15 * 127 * 2, 4 of 31 * 127 * 2, 2 of 63 * 127 * 2 or 1 of 128 * 127 * 2.
#[target_feature(enable = "avx2")]
#[inline]
fn quads<F: Packed, const MR: usize, const H: usize>(
    planes: &[u8],
    x: &[XBlock; MR],
    half: usize,
    acc: &mut [__m256i; MR],
) {
    let ((w0, w1), (w2, w3)) = if H == 0 {
        (unpack::<F, 0>(planes, half), unpack::<F, 1>(planes, half))
    } else {
        (unpack::<F, 2>(planes, half), unpack::<F, 3>(planes, half))
    };
    let at = 4 * (half + H);
    for (acc, x) in acc.iter_mut().zip(x) {
        let p0 = products::<F>(w0, x[at]);
        let p1 = products::<F>(w1, x[at + 1]);
        let p2 = products::<F>(w2, x[at + 2]);
        let p3 = products::<F>(w3, x[at + 3]);
        if F::BITS == 8 {
            let (a, b) =
                (_mm256_add_epi32(widen(p0), widen(p1)), _mm256_add_epi32(widen(p2), widen(p3)));
            *acc = _mm256_add_epi32(*acc, _mm256_add_epi32(a, b));
            continue;
        }
        let (a, b) = (_mm256_add_epi16(p0, p1), _mm256_add_epi16(p2, p3));
        *acc = match F::BITS {
            4 => _mm256_add_epi16(*acc, _mm256_add_epi16(a, b)),
            5 => _mm256_add_epi32(*acc, widen(_mm256_add_epi16(a, b))),
            _ => _mm256_add_epi32(*acc, _mm256_add_epi32(widen(a), widen(b))),
        };
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn products<F: Packed>(w: __m256i, x: u32) -> __m256i {
    let x = _mm256_set1_epi32(x.cast_signed());
    if F::BITS < 8 {
        return _mm256_maddubs_epi16(w, x);
    }
    // |signed| <= 128 is unsigned, and x, never -128, can take the sign.
    let signed = _mm256_xor_si256(w, _mm256_set1_epi8(i8::MIN));
    _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
}

#[target_feature(enable = "avx2")]
#[inline]
fn widen(sums: __m256i) -> __m256i {
    _mm256_madd_epi16(sums, _mm256_set1_epi16(1))
}

/// Adds a group to the sums.
#[target_feature(enable = "avx2,fma")]
#[inline]
fn finish<F: Packed, const MR: usize>(
    scales: (__m256, __m256),
    x: &[XBlock; MR],
    half: usize,
    mut acc: [__m256i; MR],
    sums: &mut [__m256; MR],
) {
    if F::BITS == 4 {
        for (acc, x) in acc.iter_mut().zip(x) {
            *acc = _mm256_add_epi32(widen(*acc), bias::<F>(x, half));
        }
    }
    add_group::<F, MR>(scales, x, half, acc, sums);
}

/// Adds a group whose sums of products are complete.
#[target_feature(enable = "avx2,fma")]
#[inline]
pub(super) fn add_group<F: Packed, const MR: usize>(
    (scale, min): (__m256, __m256),
    x: &[XBlock; MR],
    half: usize,
    acc: [__m256i; MR],
    sums: &mut [__m256; MR],
) {
    for ((sum, x), acc) in sums.iter_mut().zip(x).zip(acc) {
        let scale = _mm256_mul_ps(scale, _mm256_set1_ps(f32::from_bits(x[word::SCALE])));
        *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc), scale, *sum);
        if F::MIN {
            let scaled_sum = f32::from_bits(x[word::SCALED_SUMS[part::<F>(half)]]);
            *sum = _mm256_fnmadd_ps(min, _mm256_set1_ps(scaled_sum), *sum);
        }
    }
}

/// Quads `2 * P` and `2 * P + 1` of a group, for eight columns, as unsigned bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn unpack<F: Packed, const P: usize>(planes: &[u8], half: usize) -> (__m256i, __m256i) {
    if F::BITS == 8 {
        return (load(planes, 4 * half + 2 * P), load(planes, 4 * half + 2 * P + 1));
    }
    let low = load(planes, 2 * half + P);
    let mask = _mm256_set1_epi8(0x0f);
    let first = _mm256_and_si256(low, mask);
    let second = _mm256_and_si256(_mm256_srli_epi16::<4>(low), mask);
    match F::BITS {
        5 => {
            const { assert!(F::BITS != 5 || F::GROUP == 32, "a plane holds a bit of 32 k") };
            let (high, mask) = (load(planes, 4), _mm256_set1_epi8(0x10));
            (
                with_high(first, shift(high, 4 - 2 * P.cast_signed()), mask),
                with_high(second, shift(high, 3 - 2 * P.cast_signed()), mask),
            )
        }
        6 => {
            let (high, mask) = (load(planes, 4 + P / 2 + half), _mm256_set1_epi8(0x30));
            let left = 4 - 4 * (P % 2).cast_signed();
            (
                with_high(first, shift(high, left), mask),
                with_high(second, shift(high, left - 2), mask),
            )
        }
        _ => (first, second),
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn with_high(low: __m256i, high: __m256i, mask: __m256i) -> __m256i {
    _mm256_or_si256(low, _mm256_and_si256(high, mask))
}

/// Shifts bytes left, or right if `left` is negative. Bits from a neighbour are left to the mask.
#[target_feature(enable = "avx2")]
#[inline]
fn shift(v: __m256i, left: isize) -> __m256i {
    #[expect(clippy::cast_possible_truncation, clippy::cast_possible_wrap, reason = "below 8")]
    let count = _mm_cvtsi32_si128(left.unsigned_abs() as i32);
    if left >= 0 { _mm256_sll_epi16(v, count) } else { _mm256_srl_epi16(v, count) }
}

/// The scales and minimums of group `g`, for eight columns.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn scales<F: Packed>(
    unit: &[u8],
    g: usize,
    side: usize,
    d: __m256,
    m: __m256,
) -> (__m256, __m256) {
    if !F::SUB {
        return (d, m);
    }
    let load = |at: usize| {
        let bytes = unit[at..].first_chunk().copied().unwrap_or_default();
        _mm_cvtsi64_si128(i64::from_le_bytes(bytes))
    };
    let at = F::SUB_AT + g * F::SUB_BYTES + HALF * side;
    let scale = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(load(at)));
    let min =
        if F::MIN { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(load(at + PANEL_COLS))) } else { m };
    (_mm256_mul_ps(d, scale), _mm256_mul_ps(m, min))
}

/// Eight columns of plane `p` of a group of 32 k.
#[target_feature(enable = "avx2")]
#[inline]
fn load(planes: &[u8], p: usize) -> __m256i {
    match planes[64 * p..].first_chunk() {
        Some(plane) => load_u8x32(plane),
        None => _mm256_setzero_si256(),
    }
}

/// Eight scales at a byte offset.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn load_f16(unit: &[u8], at: usize) -> __m256 {
    match unit[at..].first_chunk() {
        Some(bytes) => _mm256_cvtph_ps(load_u8x16(bytes)),
        None => _mm256_setzero_ps(),
    }
}
