#![deny(unsafe_code)]

use super::Activation;
use crate::math;

#[inline(always)]
pub(super) fn glu(act: Activation, gate: &[f32], up: &[f32], out: &mut [f32]) {
    match act {
        Activation::Silu => gated(gate, up, out, math::silu),
        Activation::GeluTanh => gated(gate, up, out, math::gelu_tanh),
        Activation::GeluErf => gated(gate, up, out, math::gelu_erf),
    }
}

#[inline(always)]
fn gated(gate: &[f32], up: &[f32], out: &mut [f32], act: impl Fn(f32) -> f32) {
    for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
        *out = act(gate) * up;
    }
}
