//! The raw loads and stores of 16-bit elements.

use std::arch::x86_64::{
    __m128i, __m256i, _mm_loadl_epi64, _mm_loadu_si128, _mm_storeu_si128, _mm256_loadu_si256,
    _mm256_storeu_si256,
};

/// Loads 8 bytes into the low half.
#[target_feature(enable = "sse2")]
#[inline]
pub(crate) fn load_i8x8(x: &[i8; 8]) -> __m128i {
    // SAFETY: the reference is valid for reads of 8 bytes; `loadl` needs no alignment.
    unsafe { _mm_loadl_epi64(x.as_ptr().cast()) }
}

/// Loads 16 bytes.
#[target_feature(enable = "sse2")]
#[inline]
pub(crate) fn load_i8x16(x: &[i8; 16]) -> __m128i {
    // SAFETY: the reference is valid for reads of 16 bytes; `loadu` needs no alignment.
    unsafe { _mm_loadu_si128(x.as_ptr().cast()) }
}

/// Loads 8 16-bit elements.
#[target_feature(enable = "sse2")]
#[inline]
pub(crate) fn load_u16x8(x: &[u16; 8]) -> __m128i {
    // SAFETY: the reference is valid for reads of 16 bytes; `loadu` needs no alignment.
    unsafe { _mm_loadu_si128(x.as_ptr().cast()) }
}

/// Stores 8 16-bit elements.
#[target_feature(enable = "sse2")]
#[inline]
pub(crate) fn store_u16x8(x: &mut [u16; 8], v: __m128i) {
    // SAFETY: the reference is valid for writes of 16 bytes; `storeu` needs no alignment.
    unsafe { _mm_storeu_si128(x.as_mut_ptr().cast(), v) }
}

/// Loads 16 16-bit elements.
#[target_feature(enable = "avx")]
#[inline]
pub(crate) fn load_u16x16(x: &[u16; 16]) -> __m256i {
    // SAFETY: the reference is valid for reads of 32 bytes; `loadu` needs no alignment.
    unsafe { _mm256_loadu_si256(x.as_ptr().cast()) }
}

/// Stores 16 16-bit elements.
#[target_feature(enable = "avx")]
#[inline]
pub(crate) fn store_u16x16(x: &mut [u16; 16], v: __m256i) {
    // SAFETY: the reference is valid for writes of 32 bytes; `storeu` needs no alignment.
    unsafe { _mm256_storeu_si256(x.as_mut_ptr().cast(), v) }
}
