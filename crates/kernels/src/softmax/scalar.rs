#![deny(unsafe_code)]

use crate::math;
use crate::reduce::scalar::max_ignoring_nan;

const LANES: usize = 16;

#[inline(always)]
pub(super) fn softmax(x: &mut [f32], scale: f32) {
    for x in x.iter_mut() {
        *x *= scale;
    }
    let max = max_ignoring_nan(x);
    if max == f32::NEG_INFINITY {
        return spread_nan(x);
    }
    for x in x.iter_mut() {
        *x = math::exp(*x - max);
    }
    let sum = sum(x);
    for x in x.iter_mut() {
        *x /= sum;
    }
}

/// No element is a number above minus infinity: the row becomes zeros, or NaN if there is one.
#[inline(always)]
fn spread_nan(x: &mut [f32]) {
    let value = if x.iter().any(|x| x.is_nan()) { f32::NAN } else { 0.0 };
    x.fill(value);
}

/// Sum in f64, rounded once. The lanes make the order the same for every vector width.
#[inline(always)]
fn sum(x: &[f32]) -> f32 {
    let mut sums = [0.0_f64; LANES];
    let (chunks, tail) = x.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, &x) in sums.iter_mut().zip(chunk) {
            *sum += f64::from(x);
        }
    }
    for (sum, &x) in sums.iter_mut().zip(tail) {
        *sum += f64::from(x);
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the point")]
    let sum = sums.iter().sum::<f64>() as f32;
    sum
}
