//! Scalar functions in f64.

use crate::call::{Activation, BinaryOp, UnaryOp};

/// The error function, to about 1e-15.
///
/// Its Taylor series where that does not cancel much, the continued fraction of the complement
/// beyond.
pub(super) fn erf(x: f64) -> f64 {
    if x.is_nan() {
        return x;
    }
    let size = x.abs();
    let value = if size > 6.0 {
        1.0
    } else if size > 2.5 {
        let mut fraction = 0.0;
        for i in (1..=60).rev() {
            fraction = f64::from(i) / 2.0 / (size + fraction);
        }
        1.0 - (-size * size).exp() / (size + fraction) / std::f64::consts::PI.sqrt()
    } else {
        let (mut term, mut sum) = (size, size);
        for n in 1..80 {
            term *= -size * size / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    };
    value.copysign(x)
}

pub(super) fn activation(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x * sigmoid(x),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            x / 2.0 * (1.0 + inner.tanh())
        }
        Activation::GeluErf => x / 2.0 * (1.0 + erf(x / std::f64::consts::SQRT_2)),
    }
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

pub(super) fn binary(op: BinaryOp, a: f64, b: f64) -> f64 {
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
    }
}

pub(super) fn unary(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Activation(function) => activation(function, x),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Neg => -x,
        UnaryOp::Scale(factor) => x * f64::from(factor),
        UnaryOp::SoftCap(cap) => f64::from(cap) * (x / f64::from(cap)).tanh(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Sigmoid => sigmoid(x),
        // `max` would turn NaN into 0.
        UnaryOp::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Copy => x,
    }
}
