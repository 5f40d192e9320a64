//! Lanes fix the order of additions, so that every vector width gives the same bits.

#![deny(unsafe_code)]

/// Elements that are examined together: whole vectors of every width, and a rare exit.
pub(super) const BLOCK: usize = 64;

#[inline(always)]
pub(super) fn argmax(x: &[f32]) -> Option<(usize, f32)> {
    let max = max_ignoring_nan(x);
    for (block, xs) in x.chunks(BLOCK).enumerate() {
        if xs.iter().fold(false, |found, &x| found | (x == max)) {
            let at = xs.iter().position(|&x| x == max)?;
            return Some((block * BLOCK + at, xs[at]));
        }
    }
    None
}

/// The largest number, or minus infinity if there is none.
#[inline(always)]
pub(crate) fn max_ignoring_nan(x: &[f32]) -> f32 {
    let mut lanes = [f32::NEG_INFINITY; BLOCK];
    let (blocks, tail) = x.as_chunks::<BLOCK>();
    for block in blocks {
        for (lane, &x) in lanes.iter_mut().zip(block) {
            *lane = larger(*lane, x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(tail) {
        *lane = larger(*lane, x);
    }
    lanes.iter().fold(f32::NEG_INFINITY, |max, &x| larger(max, x))
}

/// `x` if it is larger, else `max`: a NaN in `x` is passed over.
#[inline(always)]
pub(super) fn larger(max: f32, x: f32) -> f32 {
    if x > max { x } else { max }
}

#[inline(always)]
pub(super) fn sum(x: &[f32]) -> f32 {
    let mut lanes = [0.0_f64; 16];
    let (chunks, tail) = x.as_chunks::<16>();
    for chunk in chunks {
        for (lane, &x) in lanes.iter_mut().zip(chunk) {
            *lane += f64::from(x);
        }
    }
    for (lane, &x) in lanes.iter_mut().zip(tail) {
        *lane += f64::from(x);
    }
    #[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the point")]
    let sum = lanes.iter().sum::<f64>() as f32;
    sum
}

#[inline(always)]
pub(super) fn dot_f32(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0_f32; BLOCK];
    let (a, a_tail) = a.as_chunks::<BLOCK>();
    let (b, b_tail) = b.as_chunks::<BLOCK>();
    for (a, b) in a.iter().zip(b) {
        for (lane, (&a, &b)) in lanes.iter_mut().zip(a.iter().zip(b)) {
            *lane += a * b;
        }
    }
    for (lane, (&a, &b)) in lanes.iter_mut().zip(a_tail.iter().zip(b_tail)) {
        *lane += a * b;
    }
    let mut width = BLOCK / 2;
    while width > 0 {
        let (low, high) = lanes.split_at_mut(width);
        for (low, &high) in low.iter_mut().zip(high.iter()) {
            *low += high;
        }
        width /= 2;
    }
    lanes[0]
}

#[inline(always)]
pub(super) fn has_non_finite(x: &[f32]) -> bool {
    x.chunks(BLOCK).any(|xs| xs.iter().fold(false, |found, x| found | !x.is_finite()))
}
