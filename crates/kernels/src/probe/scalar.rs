#![deny(unsafe_code)]

use std::hint::black_box;

/// Lanes of the portable loops, which the compiler puts into the registers that every CPU of the
/// target has.
const LANES: usize = 32;

pub(super) fn multiply_add_f32(rounds: usize) -> u64 {
    let (factor, term) = (black_box(0.999_999_f32), black_box(1e-6_f32));
    let mut sums = [1.0f32; LANES];
    for _ in 0..rounds {
        for sum in &mut sums {
            *sum = *sum * factor + term;
        }
    }
    black_box(sums);
    2 * (rounds * LANES) as u64
}

pub(super) fn dot_i8(rounds: usize) -> u64 {
    let mut sums = [0i32; LANES / 2];
    let (mut x, w) = (black_box([3i16; LANES]), black_box([-5i16; LANES]));
    for _ in 0..rounds {
        // What is multiplied must change, or the products are taken out of the loop.
        x = black_box(x);
        for (at, sum) in sums.iter_mut().enumerate() {
            let product = |at: usize| i32::from(x[at]) * i32::from(w[at]);
            *sum = sum.wrapping_add(product(2 * at) + product(2 * at + 1));
        }
    }
    black_box(sums);
    2 * (rounds * LANES) as u64
}

#[inline(always)]
pub(super) fn read(words: &[u64]) -> u64 {
    let (chunks, rest) = words.as_chunks::<64>();
    let mut all = [0; 64];
    for chunk in chunks {
        for (all, word) in all.iter_mut().zip(chunk) {
            *all ^= word;
        }
    }
    all.iter().chain(rest).fold(0, |all, word| all ^ word)
}
