#![deny(unsafe_code)]

use std::arch::x86_64::{
    __m256, __m256i, _mm_cvtsi128_si32, _mm_max_epu32, _mm_shuffle_epi32, _mm256_add_epi32,
    _mm256_and_si256, _mm256_blend_epi32, _mm256_blend_ps, _mm256_castps_si256,
    _mm256_castsi256_si128, _mm256_cvtepi32_ps, _mm256_cvtps_epi32, _mm256_extracti128_si256,
    _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_max_epu32, _mm256_mul_ps, _mm256_mullo_epi32,
    _mm256_packs_epi16, _mm256_packs_epi32, _mm256_permute2x128_si256, _mm256_permutevar8x32_epi32,
    _mm256_set1_epi8, _mm256_set1_epi16, _mm256_set1_epi32, _mm256_set1_ps, _mm256_setr_epi32,
    _mm256_shuffle_epi32,
};

use super::{BLOCK, XBlock, finish, scale_and_factor};
use crate::isa::x86::{load_f32x8, store_u32x8};

/// The same bits as the scalar version: the conversion rounds to nearest, ties to even.
#[target_feature(enable = "avx2")]
pub(super) fn quantize<'a>(x: &[[f32; BLOCK]], out: impl Iterator<Item = &'a mut XBlock>) {
    for (x, out) in x.iter().zip(out) {
        let [a, b, c, d] = load(x);
        let (scale, factor) = scale_and_factor(max_bits([a, b, c, d]));
        if factor == 0.0 {
            out.fill(0);
            finish(out, scale, [0; 2]);
            continue;
        }
        let factor = _mm256_set1_ps(factor);
        let (a, b) = (round(a, factor), round(b, factor));
        let (c, d) = (round(c, factor), round(d, factor));
        // Packing works in each 128-bit half: words come out as 0 2 4 6 | 1 3 5 7.
        let packed = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
        let order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
        let quants = _mm256_permutevar8x32_epi32(packed, order);
        let (words, rest) = out.split_at_mut(8);
        if let (Some(words), Some(rest)) = (words.first_chunk_mut(), rest.first_chunk_mut()) {
            store_u32x8(words, quants);
            store_u32x8(rest, scale_and_sums(quants, scale));
        }
    }
}

/// What [`finish`] writes, for 32 quants in order.
#[target_feature(enable = "avx2")]
#[inline]
fn scale_and_sums(quants: __m256i, scale: f32) -> __m256i {
    let pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), quants);
    let sums = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
    let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b01_00_11_10>(sums));
    // Each lane of a 128-bit half: the sum of that half of the quants. Then that of the other.
    let sums = _mm256_add_epi32(sums, _mm256_shuffle_epi32::<0b10_11_00_01>(sums));
    let other = _mm256_permute2x128_si256::<1>(sums, sums);
    let both = _mm256_add_epi32(sums, other);
    let sums = _mm256_blend_epi32::<0b0100_0100>(both, sums);
    let sums = _mm256_blend_epi32::<0b0010_1000>(sums, other);
    let scale = _mm256_set1_ps(scale);
    let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(sums), scale);
    let scaled = _mm256_blend_ps::<0b0000_0001>(scaled, scale);
    let factors = _mm256_setr_epi32(0, 0, 0, 0, -16, -32, -32, -128);
    let negated = _mm256_mullo_epi32(sums, factors);
    _mm256_blend_epi32::<0b1111_0000>(_mm256_castps_si256(scaled), negated)
}

#[target_feature(enable = "avx2")]
#[inline]
fn load(x: &[f32; BLOCK]) -> [__m256; 4] {
    let (chunks, _) = x.as_chunks::<8>();
    [load_f32x8(&chunks[0]), load_f32x8(&chunks[1]), load_f32x8(&chunks[2]), load_f32x8(&chunks[3])]
}

/// Bits of the largest magnitude, compared as integers so that NaN wins.
#[target_feature(enable = "avx2")]
#[inline]
fn max_bits([a, b, c, d]: [__m256; 4]) -> u32 {
    let ab = _mm256_max_epu32(magnitude(a), magnitude(b));
    let max = _mm256_max_epu32(ab, _mm256_max_epu32(magnitude(c), magnitude(d)));
    let max = _mm_max_epu32(_mm256_castsi256_si128(max), _mm256_extracti128_si256::<1>(max));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b01_00_11_10>(max));
    let max = _mm_max_epu32(max, _mm_shuffle_epi32::<0b10_11_00_01>(max));
    _mm_cvtsi128_si32(max).cast_unsigned()
}

#[target_feature(enable = "avx2")]
#[inline]
fn magnitude(v: __m256) -> __m256i {
    _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(i32::MAX))
}

#[target_feature(enable = "avx2")]
#[inline]
fn round(v: __m256, factor: __m256) -> __m256i {
    _mm256_cvtps_epi32(_mm256_mul_ps(v, factor))
}
