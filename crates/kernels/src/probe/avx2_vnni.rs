#![deny(unsafe_code)]

use std::arch::x86_64::{_mm256_dpbusd_avx_epi32, _mm256_set1_epi8};
use std::hint::black_box;

use super::CHAINS;

#[target_feature(enable = "avx2,avxvnni")]
pub(super) fn dot_i8(rounds: usize) -> u64 {
    let (x, w) = (_mm256_set1_epi8(black_box(3)), _mm256_set1_epi8(black_box(-5)));
    let mut sums = [_mm256_set1_epi8(black_box(0)); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm256_dpbusd_avx_epi32(*sum, x, w);
        }
    }
    black_box(sums);
    2 * (rounds * CHAINS * 32) as u64
}
