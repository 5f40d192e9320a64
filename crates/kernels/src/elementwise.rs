//! Elementwise arithmetic and functions. Every instruction set returns the same bits.

use crate::dispatch::recompile;
use crate::isa::Isa;

mod scalar;

/// An operation on two numbers, as IEEE 754 defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BinaryOp {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `a / b`
    Div,
}

/// A function of one number. The accuracy of each is stated in [`crate::math`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum UnaryOp {
    /// `-x`
    Neg,
    /// `e^x`
    Exp,
    /// `x * sigmoid(x)`
    Silu,
    /// GELU by its tanh formula.
    GeluTanh,
    /// GELU by its definition.
    GeluErf,
    /// `1 / (1 + e^-x)`
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// `x` if positive, else zero. NaN stays NaN.
    Relu,
    /// Square root, correctly rounded; NaN below zero.
    Sqrt,
    /// `factor * x`
    Scale(f32),
    /// `cap * tanh(x / cap)`
    SoftCap(f32),
}

/// `out[i] = a[i] op b[i]`.
///
/// # Panics
///
/// Panics if `a`, `b` and `out` differ in length.
pub fn binary(isa: Isa, op: BinaryOp, a: &[f32], b: &[f32], out: &mut [f32]) {
    assert_eq!(a.len(), b.len(), "a and b differ in length");
    assert_eq!(a.len(), out.len(), "a and out differ in length");
    recompile!(isa => scalar::binary, (op: BinaryOp, a: &[f32], b: &[f32], out: &mut [f32]));
}

/// `out[i] = a[i] op b`.
///
/// # Panics
///
/// Panics if `a` and `out` differ in length.
pub fn binary_scalar(isa: Isa, op: BinaryOp, a: &[f32], b: f32, out: &mut [f32]) {
    assert_eq!(a.len(), out.len(), "a and out differ in length");
    recompile!(isa => scalar::binary_scalar, (op: BinaryOp, a: &[f32], b: f32, out: &mut [f32]));
}

/// `out[i] = op(x[i])`.
///
/// # Panics
///
/// Panics if `x` and `out` differ in length.
pub fn unary(isa: Isa, op: UnaryOp, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "x and out differ in length");
    recompile!(isa => scalar::unary, (op: UnaryOp, x: &[f32], out: &mut [f32]));
}

/// `y[i] += alpha * x[i]`, two roundings.
///
/// # Panics
///
/// Panics if `x` and `y` differ in length.
pub fn axpy(isa: Isa, alpha: f32, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "x and y differ in length");
    recompile!(isa => scalar::axpy, (alpha: f32, x: &[f32], y: &mut [f32]));
}

/// `x[i] *= factor`.
pub fn scale_in_place(isa: Isa, factor: f32, x: &mut [f32]) {
    recompile!(isa => scalar::scale_in_place, (factor: f32, x: &mut [f32]));
}

#[cfg(test)]
mod tests;
