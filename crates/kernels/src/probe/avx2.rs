#![deny(unsafe_code)]

use std::arch::x86_64::{
    _mm256_add_epi32, _mm256_fmadd_ps, _mm256_madd_epi16, _mm256_maddubs_epi16, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_set1_ps,
};
use std::hint::black_box;

use super::CHAINS;

#[target_feature(enable = "avx2,fma")]
pub(super) fn multiply_add_f32(rounds: usize) -> u64 {
    let factor = _mm256_set1_ps(black_box(0.999_999));
    let term = _mm256_set1_ps(black_box(1e-6));
    let mut sums = [_mm256_set1_ps(1.0); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_fmadd_ps(*sum, factor, term);
        }
    }
    black_box(sums);
    2 * (rounds * CHAINS * 8) as u64
}

#[target_feature(enable = "avx2")]
pub(super) fn dot_i8(rounds: usize) -> u64 {
    let x = _mm256_set1_epi8(black_box(3));
    let ones = _mm256_set1_epi16(black_box(1));
    let mut sums = [_mm256_set1_epi8(black_box(1)); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            // The sum itself is a factor: products of what stays the same would leave the loop.
            let pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(*sum, x), ones);
            *sum = _mm256_add_epi32(*sum, pairs);
        }
    }
    black_box(sums);
    2 * (rounds * CHAINS * 32) as u64
}
