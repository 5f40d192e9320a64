#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m256, __m256i, _mm_cvtsi32_si128, _mm_cvtsi64_si128, _mm256_abs_epi8, _mm256_add_epi16,
    _mm256_add_epi32, _mm256_and_si256, _mm256_cvtepi8_epi32, _mm256_cvtepi32_ps,
    _mm256_cvtepu8_epi32, _mm256_cvtph_ps, _mm256_fmadd_ps, _mm256_fnmadd_ps, _mm256_madd_epi16,
    _mm256_maddubs_epi16, _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_epi16,
    _mm256_set1_epi32, _mm256_set1_ps, _mm256_setzero_ps, _mm256_setzero_si256, _mm256_sign_epi8,
    _mm256_sll_epi16, _mm256_sra_epi32, _mm256_srl_epi16, _mm256_srli_epi16, _mm256_xor_si256,
};

use super::records;
use crate::isa::x86::{load_u8x16, load_u8x32, prefetch_ahead, store_f32x8};
use crate::quant::PANEL_COLS;
use crate::quant::format::Packed;
use crate::quant::quantize::{Bias, XBlock, word};

/// Columns of one pass over a panel: the lanes of a register.
pub(super) const HALF: usize = PANEL_COLS / 2;

/// Four rows share each unpacked quad; what is left over goes through smaller tiles.
#[target_feature(enable = "avx2,f16c,fma")]
pub(super) fn matmul<F: Packed>(panel: &[u8], x: &[XBlock], out: &mut [[f32; PANEL_COLS]]) {
    let rows = out.len();
    let mut row = 0;
    while rows - row >= 4 {
        halves::<F, 4>(panel, records(x, row, rows), &mut out[row..]);
        row += 4;
    }
    if rows - row >= 2 {
        halves::<F, 2>(panel, records(x, row, rows), &mut out[row..]);
        row += 2;
    }
    if rows - row >= 1 {
        halves::<F, 1>(panel, records(x, row, rows), &mut out[row..]);
    }
}

/// Both halves of a panel, one after the other: the sums of one fill the registers.
#[target_feature(enable = "avx2,f16c,fma")]
fn halves<F: Packed, const MR: usize>(
    panel: &[u8],
    x: [&[XBlock]; MR],
    out: &mut [[f32; PANEL_COLS]],
) {
    tile::<F, MR>(panel, 0, x, out);
    tile::<F, MR>(panel, 1, x, out);
}

/// Columns `8 * half` to `8 * half + 7` of `MR` rows.
#[target_feature(enable = "avx2,f16c,fma")]
fn tile<F: Packed, const MR: usize>(
    panel: &[u8],
    half: usize,
    x: [&[XBlock]; MR],
    out: &mut [[f32; PANEL_COLS]],
) {
    let mut sums = [_mm256_setzero_ps(); MR];
    for (u, unit) in panel.chunks_exact(F::UNIT_BYTES).enumerate() {
        let d = load_f16(unit, 2 * HALF * half);
        let m = if F::MIN {
            load_f16(unit, 2 * (PANEL_COLS + HALF * half))
        } else {
            _mm256_setzero_ps()
        };
        for g in 0..F::ELEMS / 32 {
            let planes = &unit[F::QUANTS_AT + g * F::QUANT_BYTES + 32 * half..];
            if MR < 4 && half == 0 {
                prefetch_ahead(&planes[..F::QUANT_BYTES]);
            }
            let block = u * (F::ELEMS / 32) + g;
            let x: [&XBlock; MR] = x.map(|x| &x[block]);
            let at = F::SUB_AT + g * (32 / F::GROUP) * F::SUB_BYTES + HALF * half;
            if F::GROUP == 32 {
                let mut acc = Acc::<MR>::start::<F>(&x, 0);
                acc.pair::<F, 0>(planes, &x);
                acc.pair::<F, 1>(planes, &x);
                acc.pair::<F, 2>(planes, &x);
                acc.pair::<F, 3>(planes, &x);
                acc.finish::<F>(scales::<F>(unit, at, d, m), &x, 0, &mut sums);
            } else {
                let mut acc = Acc::<MR>::start::<F>(&x, 1);
                acc.pair::<F, 0>(planes, &x);
                acc.pair::<F, 1>(planes, &x);
                acc.finish::<F>(scales::<F>(unit, at, d, m), &x, 1, &mut sums);
                let mut acc = Acc::<MR>::start::<F>(&x, 2);
                acc.pair::<F, 2>(planes, &x);
                acc.pair::<F, 3>(planes, &x);
                acc.finish::<F>(scales::<F>(unit, at + F::SUB_BYTES, d, m), &x, 2, &mut sums);
            }
        }
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        if let Some(out) = out[HALF * half..].first_chunk_mut() {
            store_f32x8(out, sum);
        }
    }
}

/// Exact sums of products of one group.
///
/// `maddubs` gives sums of two products as i16. They stay in i16 as long as they cannot saturate:
/// 8 of 15 * 127 * 2, 4 of 31 * 127 * 2, 2 of 63 * 127 * 2 or 1 of 128 * 127 * 2.
struct Acc<const MR: usize> {
    narrow: [__m256i; MR],
    wide: [__m256i; MR],
}

impl<const MR: usize> Acc<MR> {
    /// Takes the offset off in advance. Quants of 8 bits are used as signed bytes instead.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn start<F: Packed>(x: &[&XBlock; MR], part: usize) -> Self {
        let mut wide = [_mm256_setzero_si256(); MR];
        if F::OFFSET > 0 && F::BITS < 8 {
            let bias = Bias::new(F::OFFSET, part);
            let shift = _mm_cvtsi32_si128(bias.shift.cast_signed());
            for (wide, x) in wide.iter_mut().zip(x) {
                let start = _mm256_set1_epi32(x[bias.word].cast_signed());
                *wide = _mm256_sra_epi32(start, shift);
            }
        }
        Self { narrow: [_mm256_setzero_si256(); MR], wide }
    }

    /// Adds the products of quads `2 * P` and `2 * P + 1`.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn pair<F: Packed, const P: usize>(&mut self, planes: &[u8], x: &[&XBlock; MR]) {
        let (first, second) = unpack::<F, P>(planes);
        self.quad::<F>(first, 2 * P, x);
        if F::BITS == 8 {
            self.widen();
        }
        self.quad::<F>(second, 2 * P + 1, x);
        if F::BITS >= 6 || (F::BITS == 5 && P % 2 == 1) {
            self.widen();
        }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn quad<F: Packed>(&mut self, w: __m256i, j: usize, x: &[&XBlock; MR]) {
        let signed = _mm256_xor_si256(w, _mm256_set1_epi8(i8::MIN));
        for (narrow, x) in self.narrow.iter_mut().zip(x) {
            let x = _mm256_set1_epi32(x[j].cast_signed());
            // |signed| <= 128 is unsigned, and x, never -128, can take the sign.
            let products = if F::BITS == 8 {
                _mm256_maddubs_epi16(_mm256_abs_epi8(signed), _mm256_sign_epi8(x, signed))
            } else {
                _mm256_maddubs_epi16(w, x)
            };
            *narrow = _mm256_add_epi16(*narrow, products);
        }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn widen(&mut self) {
        for (narrow, wide) in self.narrow.iter_mut().zip(&mut self.wide) {
            *wide = _mm256_add_epi32(*wide, _mm256_madd_epi16(*narrow, _mm256_set1_epi16(1)));
            *narrow = _mm256_setzero_si256();
        }
    }

    /// Adds the group to the sums.
    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn finish<F: Packed>(
        mut self,
        (scale, min): (__m256, __m256),
        x: &[&XBlock; MR],
        part: usize,
        sums: &mut [__m256; MR],
    ) {
        if F::BITS == 4 {
            self.widen();
        }
        for ((sum, x), acc) in sums.iter_mut().zip(x).zip(self.wide) {
            let scale = _mm256_mul_ps(scale, _mm256_set1_ps(f32::from_bits(x[word::SCALE])));
            *sum = _mm256_fmadd_ps(_mm256_cvtepi32_ps(acc), scale, *sum);
            if F::MIN {
                let scaled_sum = f32::from_bits(x[word::SCALED_SUMS[part]]);
                *sum = _mm256_fnmadd_ps(min, _mm256_set1_ps(scaled_sum), *sum);
            }
        }
    }
}

/// Quads `2 * P` and `2 * P + 1` of eight columns, as unsigned bytes.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn unpack<F: Packed, const P: usize>(planes: &[u8]) -> (__m256i, __m256i) {
    if F::BITS == 8 {
        return (load(planes, 2 * P), load(planes, 2 * P + 1));
    }
    let low = load(planes, P);
    let mask = _mm256_set1_epi8(0x0f);
    let first = _mm256_and_si256(low, mask);
    let second = _mm256_and_si256(_mm256_srli_epi16::<4>(low), mask);
    match F::BITS {
        5 => {
            let (high, mask) = (load(planes, 4), _mm256_set1_epi8(0x10));
            (
                with_high(first, shift(high, 4 - 2 * P.cast_signed()), mask),
                with_high(second, shift(high, 3 - 2 * P.cast_signed()), mask),
            )
        }
        6 => {
            let (high, mask) = (load(planes, 4 + P / 2), _mm256_set1_epi8(0x30));
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

/// The scales and minimums of a group whose scales start at `at`.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn scales<F: Packed>(unit: &[u8], at: usize, d: __m256, m: __m256) -> (__m256, __m256) {
    if !F::SUB {
        return (d, m);
    }
    let load = |at: usize| {
        let bytes = unit[at..].first_chunk().copied().unwrap_or_default();
        _mm_cvtsi64_si128(i64::from_le_bytes(bytes))
    };
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
pub(super) fn load_f16(unit: &[u8], at: usize) -> __m256 {
    match unit[at..].first_chunk() {
        Some(bytes) => _mm256_cvtph_ps(load_u8x16(bytes)),
        None => _mm256_setzero_ps(),
    }
}
