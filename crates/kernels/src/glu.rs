//! Gated linear units: SwiGLU and the two GeGLU.

use crate::dispatch::recompile;
use crate::isa::Isa;

mod scalar;

/// What is applied to the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// [`crate::math::silu`]: SwiGLU.
    Silu,
    /// [`crate::math::gelu_tanh`]: GeGLU, as most model files mean it.
    GeluTanh,
    /// [`crate::math::gelu_erf`]: GeGLU with the exact GELU.
    GeluErf,
}

/// `out[i] = act(gate[i]) * up[i]`. Every instruction set returns the same bits.
///
/// # Panics
///
/// Panics if `gate`, `up` and `out` differ in length.
pub fn glu(isa: Isa, act: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    assert_eq!(gate.len(), up.len(), "gate and up differ in length");
    assert_eq!(gate.len(), out.len(), "gate and out differ in length");
    recompile!(isa => scalar::glu,
        (act: Activation, gate: &[f32], up: &[f32], out: &mut [f32]));
}

#[cfg(test)]
mod tests;
