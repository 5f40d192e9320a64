//! The right answers, in f64, and how far an f32 device may be from them.
//!
//! Written apart from every kernel: no code is shared with the reference provider.

use super::data::Data;
use crate::call::{Activation, BinaryOp, Pairing, UnaryOp};

/// Unit roundoff of f32.
pub(super) const U: f64 = 1.0 / 16_777_216.0;

/// A value, and the largest error that is not a mistake.
#[derive(Debug, Clone, Copy)]
pub(super) struct Want {
    pub(super) value: f64,
    pub(super) bound: f64,
}

impl Want {
    /// A value with a bound; results too small for an f32 may become zero.
    pub(super) fn new(value: f64, bound: f64) -> Self {
        Self { value, bound: bound + f64::from(f32::MIN_POSITIVE) }
    }

    pub(super) fn accepts(self, got: f32) -> bool {
        #[expect(clippy::cast_possible_truncation, reason = "the nearest f32 is meant")]
        let nearest = self.value as f32;
        if nearest.is_nan() {
            got.is_nan()
        } else if nearest.is_infinite() {
            got == nearest
        } else {
            (f64::from(got) - self.value).abs() <= self.bound
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "sizes are far below 2^53")]
pub(super) fn real(x: usize) -> f64 {
    x as f64
}

/// A dot product of `a` and `b`.
///
/// Any order of f32 additions errs by at most `k u` times the sum of magnitudes (`k - 1` sums and
/// one product each). Rounded operands add twice their relative error. Decoding a block to f32
/// may take three operations in another order than the codec does, each relative to the largest
/// magnitude of the row.
pub(super) fn dot(a: &[f64], b: &[f64], rounding: f64, is_block: bool) -> Want {
    let value = a.iter().zip(b).map(|(a, b)| a * b).sum();
    let magnitude: f64 = a.iter().zip(b).map(|(a, b)| (a * b).abs()).sum();
    let largest = b.iter().fold(0f64, |max, b| max.max(b.abs()));
    let decode: f64 =
        if is_block { 3.0 * U * largest * a.iter().map(|a| a.abs()).sum::<f64>() } else { 0.0 };
    // The squares of small errors are below one more unit.
    Want::new(value, (real(a.len() + 1) * U + 2.1 * rounding) * magnitude + decode)
}

/// The error function: its integral, by Simpson's rule.
pub(super) fn erf(x: f64) -> f64 {
    let end = x.clamp(-7.0, 7.0);
    let steps = 2000;
    let h = end / real(steps);
    let f = |i: usize| (-(real(i) * h).powi(2)).exp();
    let inner: f64 = (1..steps).map(|i| f(i) * if i % 2 == 0 { 2.0 } else { 4.0 }).sum();
    2.0 / std::f64::consts::PI.sqrt() * h / 3.0 * (f(0) + inner + f(steps))
}

pub(super) fn activation(activation: Activation, x: f64) -> f64 {
    match activation {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            0.5 * x * (1.0 + (0.797_884_560_802_865_4 * (x + 0.044_715 * x.powi(3))).tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x * std::f64::consts::FRAC_1_SQRT_2)),
    }
}

pub(super) fn unary(op: UnaryOp, x: f64) -> f64 {
    match op {
        UnaryOp::Activation(function) => activation(function, x),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Neg => -x,
        UnaryOp::Scale(factor) => f64::from(factor) * x,
        UnaryOp::SoftCap(cap) => (x / f64::from(cap)).tanh() * f64::from(cap),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Relu if x.is_nan() => x,
        UnaryOp::Relu => x.max(0.0),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Copy => x,
    }
}

/// An elementwise function of one f32.
///
/// Eight roundings, each of a quantity that is bounded by the argument, by the result, or by what
/// a relative change of the argument does to the result (numerically: the slope).
pub(super) fn pointwise(f: impl Fn(f64) -> f64, x: f64) -> Want {
    let value = f(x);
    let h = 1e-6 * x.abs();
    let slope = (f(x + h) - f(x - h)) / (2.0 * h);
    let sizes = [x, value, x * slope].map(f64::abs);
    let size: f64 = sizes.into_iter().filter(|size| size.is_finite()).sum();
    Want::new(value, 8.0 * U * size)
}

pub(super) fn binary(op: BinaryOp, a: f64, b: f64) -> Want {
    let value = match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
    };
    // One rounding; a division may be a reciprocal and a product.
    let roundings = if op == BinaryOp::Div { 3.0 } else { 1.0 };
    Want::new(value, roundings * U * value.abs())
}

/// `d` squares and sums, a mean, a root and two products.
pub(super) fn rms_norm(x: &Data, weight: Option<&Data>, eps: f32) -> Vec<Want> {
    let d = x.shape[1];
    let weight = weight.map(Data::values);
    let norm = |row: &[f64]| {
        let mean = row.iter().map(|x| x * x).sum::<f64>() / real(d);
        let scale = 1.0 / (mean + f64::from(eps)).sqrt();
        let weight = &weight;
        row.iter()
            .enumerate()
            .map(|(i, x)| {
                let value = x * scale * weight.as_ref().map_or(1.0, |weight| weight[i]);
                Want::new(value, (real(d) / 2.0 + 8.0) * U * value.abs())
            })
            .collect::<Vec<_>>()
    };
    x.values().chunks(d.max(1)).flat_map(norm).collect()
}

/// The exponentials of `scores`, divided by their sum, and a bound of each one's relative error:
/// the argument of the exponential errs by `slack` and by its own rounding, and so does every
/// term of the sum.
pub(super) fn softmax(scores: &[f64], slack: f64) -> Vec<Want> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let total: f64 = exps.iter().sum();
    let largest = scores.iter().filter(|s| s.is_finite()).fold(0f64, |m, s| m.max(s.abs()));
    let argument = slack + 4.0 * U * largest;
    let relative = 2.2 * argument + (real(scores.len()) + 8.0) * U;
    exps.iter().map(|exp| Want::new(exp / total, exp / total * relative)).collect()
}

/// Two products and a sum.
pub(super) fn rope(x: &Data, cos: &Data, sin: &Data, pairing: Pairing) -> Vec<Want> {
    let (heads, d, half) = (x.shape[1], x.shape[2], cos.shape[1]);
    let (x, cos, sin) = (x.values(), cos.values(), sin.values());
    let rotated = |(at, &x_at): (usize, &f64)| {
        let (row, i) = (at / d, at % d);
        let (pair, is_second) = match pairing {
            Pairing::Interleaved => (i / 2, i % 2 == 1),
            Pairing::Halves => (i % half.max(1), i >= half),
        };
        if i >= 2 * half {
            return Want { value: x_at, bound: 0.0 };
        }
        let distance = if pairing == Pairing::Interleaved { 1 } else { half };
        let angle = row / heads * half + pair;
        let (left, right) = if is_second {
            (x_at * cos[angle], x[at - distance] * sin[angle])
        } else {
            (x_at * cos[angle], -x[at + distance] * sin[angle])
        };
        Want::new(left + right, 2.0 * U * (left.abs() + right.abs()))
    };
    x.iter().enumerate().map(rotated).collect()
}
