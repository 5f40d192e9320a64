//! Ops on single elements.

use super::{Check, Inputs};
use crate::error::CallError;
use crate::operand::Operand;
use crate::shape::Shape;

/// Activation of the gate of a [`Glu`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Activation {
    /// `x / (1 + exp(-x))`.
    Silu,
    /// `x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `x/2 * (1 + erf(x / sqrt(2)))`.
    GeluErf,
}

impl Activation {
    pub(super) fn glu_name(self) -> &'static str {
        match self {
            Self::Silu => "swiglu",
            Self::GeluTanh => "geglu_tanh",
            Self::GeluErf => "geglu_erf",
        }
    }
}

/// `out = activation(gate) * up`.
#[derive(Debug, Clone, Copy)]
pub struct Glu<'a> {
    /// What is activated, f32, any shape.
    pub gate: Operand<'a>,
    /// What is gated, f32, the same shape.
    pub up: Operand<'a>,
    /// Activation of the gate.
    pub activation: Activation,
}

impl<'a> Glu<'a> {
    pub(super) fn inputs(&self) -> Inputs<'_, 'a> {
        [Some(&self.gate), Some(&self.up), None]
    }

    pub(super) fn check(&self, check: Check) -> Result<Shape, CallError> {
        check.shapes(self.gate.shape() == self.up.shape(), "both are the same")?;
        check.f32(0, &self.gate)?;
        check.f32(1, &self.up)?;
        Ok(self.gate.shape())
    }
}

/// An elementwise op of two operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BinaryOp {
    /// `a + b`.
    Add,
    /// `a - b`.
    Sub,
    /// `a * b`.
    Mul,
    /// `a / b`.
    Div,
}

impl BinaryOp {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Div => "div",
        }
    }
}

/// `out = a op b`. Broadcasting is expressed by strides of 0.
#[derive(Debug, Clone, Copy)]
pub struct Binary<'a> {
    /// What is computed.
    pub op: BinaryOp,
    /// Left operand, f32, any shape.
    pub a: Operand<'a>,
    /// Right operand, f32, the same shape.
    pub b: Operand<'a>,
}

impl<'a> Binary<'a> {
    pub(super) fn inputs(&self) -> Inputs<'_, 'a> {
        [Some(&self.a), Some(&self.b), None]
    }

    pub(super) fn check(&self, check: Check) -> Result<Shape, CallError> {
        check.shapes(self.a.shape() == self.b.shape(), "both are the same after broadcasting")?;
        check.f32(0, &self.a)?;
        check.f32(1, &self.b)?;
        Ok(self.a.shape())
    }
}

/// An elementwise op of one operand.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub enum UnaryOp {
    /// An activation function.
    Activation(Activation),
    /// `exp(x)`.
    Exp,
    /// `-x`.
    Neg,
    /// `x * factor`.
    Scale(f32),
    /// `cap * tanh(x / cap)`; the cap is positive.
    SoftCap(f32),
    /// `tanh(x)`.
    Tanh,
    /// `1 / (1 + exp(-x))`.
    Sigmoid,
    /// `max(x, 0)`; NaN stays NaN.
    Relu,
    /// `sqrt(x)`; NaN below zero.
    Sqrt,
    /// The elements as they are: makes a strided operand dense.
    Copy,
}

impl UnaryOp {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Activation(Activation::Silu) => "silu",
            Self::Activation(Activation::GeluTanh) => "gelu_tanh",
            Self::Activation(Activation::GeluErf) => "gelu_erf",
            Self::Exp => "exp",
            Self::Neg => "neg",
            Self::Scale(_) => "scale",
            Self::SoftCap(_) => "soft_cap",
            Self::Tanh => "tanh",
            Self::Sigmoid => "sigmoid",
            Self::Relu => "relu",
            Self::Sqrt => "sqrt",
            Self::Copy => "copy",
        }
    }
}

/// `out = op(x)`.
#[derive(Debug, Clone, Copy)]
pub struct Unary<'a> {
    /// What is computed.
    pub op: UnaryOp,
    /// Operand, f32, any shape.
    pub x: Operand<'a>,
}

impl<'a> Unary<'a> {
    pub(super) fn inputs(&self) -> Inputs<'_, 'a> {
        [Some(&self.x), None, None]
    }

    pub(super) fn check(&self, check: Check) -> Result<Shape, CallError> {
        check.f32(0, &self.x)?;
        if let UnaryOp::SoftCap(cap) = self.op {
            check.argument(cap > 0.0 && cap.is_finite(), "cap", "it is finite and positive")?;
        }
        Ok(self.x.shape())
    }
}
