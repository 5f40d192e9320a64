#![deny(unsafe_code)]

use std::arch::x86_64::{_mm512_dpbusd_epi32, _mm512_fmadd_ps, _mm512_set1_epi8, _mm512_set1_ps};
use std::hint::black_box;

use super::CHAINS;

#[target_feature(enable = "avx512f")]
pub(super) fn multiply_add_f32(rounds: usize) -> u64 {
    let factor = _mm512_set1_ps(black_box(0.999_999));
    let term = _mm512_set1_ps(black_box(1e-6));
    let mut sums = [_mm512_set1_ps(1.0); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_fmadd_ps(*sum, factor, term);
        }
    }
    black_box(sums);
    2 * (rounds * CHAINS * 16) as u64
}

#[target_feature(enable = "avx512f,avx512vnni")]
pub(super) fn dot_i8(rounds: usize) -> u64 {
    let (x, w) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(-5)));
    let mut sums = [_mm512_set1_epi8(black_box(0)); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = _mm512_dpbusd_epi32(*sum, x, w);
        }
    }
    black_box(sums);
    2 * (rounds * CHAINS * 64) as u64
}
