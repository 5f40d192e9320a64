#![deny(unsafe_code)]

use std::arch::aarch64::{vdupq_n_s8, vdupq_n_s32};
use std::hint::black_box;

use super::CHAINS;
use crate::isa::aarch64::dot_lane;

#[target_feature(enable = "neon,dotprod")]
pub(super) fn dot_i8(rounds: usize) -> u64 {
    let (x, w) = (vdupq_n_s8(black_box(3)), vdupq_n_s8(black_box(-5)));
    let mut sums = [vdupq_n_s32(black_box(0)); CHAINS];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = dot_lane::<0>(*sum, w, x);
        }
    }
    black_box(sums);
    2 * (rounds * CHAINS * 16) as u64
}
