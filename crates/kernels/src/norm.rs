//! Normalization of one row.

use crate::dispatch::recompile;
use crate::isa::Isa;

mod scalar;

/// RMS norm: `out[i] = x[i] / sqrt(mean(x^2) + eps) * weight[i]`.
///
/// Computed in f64 and rounded once, so the square of a large `x` does not overflow and `x = 1e20`
/// is an ordinary row. A NaN makes the whole row NaN. An infinity makes itself NaN and the rest
/// zero. Every instruction set returns the same bits.
///
/// # Panics
///
/// Panics if `x`, `out` and `weight` differ in length.
pub fn rms_norm(isa: Isa, x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "x and out differ in length");
    if let Some(weight) = weight {
        assert_eq!(x.len(), weight.len(), "x and weight differ in length");
    }
    recompile!(isa => scalar::rms_norm,
        (x: &[f32], weight: Option<&[f32]>, eps: f32, out: &mut [f32]));
}

#[cfg(test)]
mod tests;
