#![deny(unsafe_code)]

use super::{BinaryOp, UnaryOp};
use crate::math;

#[inline(always)]
pub(super) fn binary(op: BinaryOp, a: &[f32], b: &[f32], out: &mut [f32]) {
    match op {
        BinaryOp::Add => map2(a, b, out, |a, b| a + b),
        BinaryOp::Sub => map2(a, b, out, |a, b| a - b),
        BinaryOp::Mul => map2(a, b, out, |a, b| a * b),
        BinaryOp::Div => map2(a, b, out, |a, b| a / b),
    }
}

#[inline(always)]
pub(super) fn binary_scalar(op: BinaryOp, a: &[f32], b: f32, out: &mut [f32]) {
    match op {
        BinaryOp::Add => map(a, out, |a| a + b),
        BinaryOp::Sub => map(a, out, |a| a - b),
        BinaryOp::Mul => map(a, out, |a| a * b),
        BinaryOp::Div => map(a, out, |a| a / b),
    }
}

#[inline(always)]
pub(super) fn unary(op: UnaryOp, x: &[f32], out: &mut [f32]) {
    match op {
        UnaryOp::Neg => map(x, out, |x| -x),
        UnaryOp::Exp => map(x, out, math::exp),
        UnaryOp::Silu => map(x, out, math::silu),
        UnaryOp::GeluTanh => map(x, out, math::gelu_tanh),
        UnaryOp::GeluErf => map(x, out, math::gelu_erf),
        UnaryOp::Sigmoid => map(x, out, math::sigmoid),
        UnaryOp::Tanh => map(x, out, math::tanh),
        UnaryOp::Relu => map(x, out, |x| if x <= 0.0 { 0.0 } else { x }),
        UnaryOp::Sqrt => map(x, out, f32::sqrt),
        UnaryOp::Scale(factor) => map(x, out, |x| factor * x),
        UnaryOp::SoftCap(cap) => map(x, out, |x| cap * math::tanh(x / cap)),
    }
}

#[inline(always)]
pub(super) fn axpy(alpha: f32, x: &[f32], y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        *y += alpha * x;
    }
}

#[inline(always)]
pub(super) fn scale_in_place(factor: f32, x: &mut [f32]) {
    for x in x {
        *x *= factor;
    }
}

#[inline(always)]
fn map(x: &[f32], out: &mut [f32], f: impl Fn(f32) -> f32) {
    for (out, &x) in out.iter_mut().zip(x) {
        *out = f(x);
    }
}

#[inline(always)]
fn map2(a: &[f32], b: &[f32], out: &mut [f32], f: impl Fn(f32, f32) -> f32) {
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = f(a, b);
    }
}
