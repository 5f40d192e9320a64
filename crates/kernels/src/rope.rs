//! Rotary position embedding: tables of angles, and the rotation of one head.
//!
//! A head of `d` elements has its first `r <= d` rotated, two at a time; the rest is copied. Pair
//! `i` turns by `position * base^(-2i/r)` radians, changed by [`Scaling`] and frequency factors.

use crate::dispatch::recompile;
use crate::isa::Isa;

mod scalar;
mod table;

pub use table::{RopeConfig, Scaling, angles};

/// Which two elements make a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairing {
    /// `2i` and `2i + 1` (the `llama` architecture in GGUF files).
    Interleaved,
    /// `i` and `i + r/2` (most other architectures, among them `qwen2` and `qwen3`).
    Halves,
}

/// Rotates one head: with `a, b` a pair, `out = (a cos - b sin, a sin + b cos)`.
///
/// `cos` and `sin` are one row of the tables of [`angles`], `[r/2]`. `x` and `out` are `[d]`;
/// elements from `r` on are copied. Every instruction set returns the same bits.
///
/// # Panics
///
/// Panics if `cos` and `sin`, or `x` and `out`, differ in length, or if `2 * cos.len() > x.len()`.
pub fn rotate(isa: Isa, x: &[f32], cos: &[f32], sin: &[f32], pairing: Pairing, out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "x and out differ in length");
    assert_eq!(cos.len(), sin.len(), "cos and sin differ in length");
    assert!(cos.len() <= x.len() / 2, "{} angles for a head of {}", cos.len(), x.len());
    recompile!(isa => scalar::rotate,
        (x: &[f32], cos: &[f32], sin: &[f32], pairing: Pairing, out: &mut [f32]));
}

#[cfg(test)]
mod tests;
