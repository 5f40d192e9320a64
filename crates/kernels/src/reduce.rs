//! Reductions of one slice.

use crate::dispatch::recompile;
use crate::isa::Isa;

pub(crate) mod scalar;
mod select;

/// The largest element and the first index that holds it.
///
/// NaN is ignored; `None` if there is no number. Zeros of both signs are equal. Every instruction
/// set returns the same.
pub fn argmax(isa: Isa, x: &[f32]) -> Option<(usize, f32)> {
    recompile!(isa => scalar::argmax, (x: &[f32]) -> Option<(usize, f32)>)
}

/// The `out.len()` largest elements as (index, value), largest first; equal values by index.
///
/// Returns how many were written: fewer than `out.len()` if `x` has fewer numbers. NaN is ignored
/// and zeros of both signs are equal. Time is linear in `x.len()`, whatever the values, plus the
/// sort of the result. Every instruction set returns the same.
pub fn top_k(isa: Isa, x: &[f32], out: &mut [(usize, f32)]) -> usize {
    recompile!(isa => select::top_k, (x: &[f32], out: &mut [(usize, f32)]) -> usize)
}

/// Sum of the elements, kept in f64 and rounded once. Every instruction set returns the same bits.
pub fn sum(isa: Isa, x: &[f32]) -> f32 {
    recompile!(isa => scalar::sum, (x: &[f32]) -> f32)
}

/// Dot product in f32: 64 partial sums, so the error is below
/// `(x.len() / 64 + 8) * 2^-24 * sum |a b|`. Every instruction set returns the same bits.
///
/// # Panics
///
/// Panics if `a` and `b` differ in length.
pub fn dot_f32(isa: Isa, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len(), "a and b differ in length");
    recompile!(isa => scalar::dot_f32, (a: &[f32], b: &[f32]) -> f32)
}

/// Whether an element is NaN or infinite.
pub fn has_non_finite(isa: Isa, x: &[f32]) -> bool {
    recompile!(isa => scalar::has_non_finite, (x: &[f32]) -> bool)
}

#[cfg(test)]
mod tests;
