#![deny(unsafe_code)]

use std::arch::aarch64::{
    vdup_n_s8, vdupq_n_f32, vdupq_n_s16, vfmaq_f32, vget_low_s8, vmlal_s8, vreinterpretq_s8_s16,
};
use std::hint::black_box;

use super::CHAINS;

#[target_feature(enable = "neon")]
pub(super) fn multiply_add_f32(rounds: usize) -> u64 {
    let factor = vdupq_n_f32(black_box(0.999_999));
    let term = vdupq_n_f32(black_box(1e-6));
    let mut sums = [vdupq_n_f32(1.0); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = vfmaq_f32(term, *sum, factor);
        }
    }
    black_box(sums);
    2 * (rounds * CHAINS * 4) as u64
}

#[target_feature(enable = "neon")]
pub(super) fn dot_i8(rounds: usize) -> u64 {
    let w = vdup_n_s8(black_box(-5));
    let mut sums = [vdupq_n_s16(black_box(3)); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            // The sum itself is a factor: products of what stays the same would leave the loop.
            *sum = vmlal_s8(*sum, vget_low_s8(vreinterpretq_s8_s16(*sum)), w);
        }
    }
    black_box(sums);
    2 * (rounds * CHAINS * 8) as u64
}
