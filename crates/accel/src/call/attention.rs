//! Attention and its position embedding.

use fucina_dtype::DType;

use super::{Check, Inputs, product};
use crate::error::CallError;
use crate::operand::Operand;
use crate::shape::Shape;

/// Which elements of a head rotate together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Pairing {
    /// Elements `2i` and `2i + 1`.
    Interleaved,
    /// Elements `i` and `i + r/2`.
    Halves,
}

/// Rotates the first `r` of the `d` elements of each head; the others are copied.
///
/// For pair `(a, b)` number `i` of token `t`, with `c = cos[t, i]` and `s = sin[t, i]`, the
/// output is `(a * c - b * s, b * c + a * s)`.
#[derive(Debug, Clone, Copy)]
pub struct Rope<'a> {
    /// Heads, `[tokens, heads, d]`, f32.
    pub x: Operand<'a>,
    /// Cosines of the angles, `[tokens, r/2]`, f32.
    pub cos: Operand<'a>,
    /// Sines of the angles, `[tokens, r/2]`, f32.
    pub sin: Operand<'a>,
    /// Which elements rotate together.
    pub pairing: Pairing,
}

impl<'a> Rope<'a> {
    pub(super) fn inputs(&self) -> Inputs<'_, 'a> {
        [Some(&self.x), Some(&self.cos), Some(&self.sin)]
    }

    pub(super) fn check(&self, check: Check) -> Result<Shape, CallError> {
        const NEED: &str = "[tokens, heads, d] x [tokens, r/2] x [tokens, r/2], r at most d";
        let [tokens, heads, d] = check.axes(&self.x, NEED)?;
        let cos: [usize; 2] = check.axes(&self.cos, NEED)?;
        let sin: [usize; 2] = check.axes(&self.sin, NEED)?;
        check.shapes(cos == sin && cos[0] == tokens && cos[1] <= d / 2, NEED)?;
        for (index, operand) in [&self.x, &self.cos, &self.sin].into_iter().enumerate() {
            check.f32(index, operand)?;
        }
        Ok(Shape::of([tokens, heads, d]))
    }
}

/// `out[i, h] = sum_j softmax_j(cap(scale * q[i, h] · k[j, g])) * v[j, g]` with
/// `g = h / (heads / kv_heads)`.
///
/// Key `j` is visible to query `i`, whose position is `p = q_offset + i`, if `j <= p` (causal) and
/// `j > p - window` (windowed). A query that sees no key gives zeros.
#[derive(Debug, Clone, Copy)]
pub struct Attention<'a> {
    /// Queries, `[t, heads, d]`, f32.
    pub q: Operand<'a>,
    /// Keys, `[s, kv_heads, d]`, f32, f16 or `Q8_0`.
    pub k: Operand<'a>,
    /// Values, `[s, kv_heads, dv]`, f32, f16 or `Q8_0`.
    pub v: Operand<'a>,
    /// Multiplies the scores. Finite.
    pub scale: f32,
    /// Queries see no later keys.
    pub causal: bool,
    /// Position of the first query.
    pub q_offset: usize,
    /// Queries see this many latest keys, their own position included. Not zero.
    pub window: Option<usize>,
    /// `cap(x) = soft_cap * tanh(x / soft_cap)`. Positive.
    pub soft_cap: Option<f32>,
}

impl<'a> Attention<'a> {
    /// Keys that query `i` sees: a range of `0..s`, possibly empty.
    pub fn visible(&self, i: usize, s: usize) -> std::ops::Range<usize> {
        let next = self.q_offset.saturating_add(i).saturating_add(1);
        let end = if self.causal { s.min(next) } else { s };
        let start = self.window.map_or(0, |window| next.saturating_sub(window));
        start.min(end)..end
    }

    pub(super) fn work(&self) -> u64 {
        let (q, k, v) = (self.q.shape(), self.k.shape(), self.v.shape());
        let at = |shape: &Shape, axis: usize| shape.get(axis).copied().unwrap_or(0);
        let width = at(&q, 2).saturating_add(at(&v, 2));
        product(&[at(&q, 0), at(&q, 1), at(&k, 0), width])
    }

    pub(super) fn inputs(&self) -> Inputs<'_, 'a> {
        [Some(&self.q), Some(&self.k), Some(&self.v)]
    }

    pub(super) fn check(&self, check: Check) -> Result<Shape, CallError> {
        const NEED: &str =
            "[t, heads, d] x [s, kv_heads, d] x [s, kv_heads, dv], heads a multiple of kv_heads";
        let [t, heads, d] = check.axes(&self.q, NEED)?;
        let [s, kv_heads, k_d] = check.axes(&self.k, NEED)?;
        let [v_s, v_heads, dv] = check.axes(&self.v, NEED)?;
        let grouped = kv_heads > 0 && heads.is_multiple_of(kv_heads);
        check.shapes(k_d == d && v_s == s && v_heads == kv_heads && grouped, NEED)?;
        check.f32(0, &self.q)?;
        for (index, operand) in [(1, &self.k), (2, &self.v)] {
            let allowed = [DType::F32, DType::F16, DType::Q8_0];
            check.dtype(index, operand, &allowed, "it is f32, f16 or Q8_0")?;
        }
        check.argument(self.scale.is_finite(), "scale", "it is finite")?;
        check.argument(self.window != Some(0), "window", "it is at least 1")?;
        let cap = self.soft_cap.is_none_or(|cap| cap > 0.0 && cap.is_finite());
        check.argument(cap, "soft_cap", "it is finite and positive")?;
        Ok(Shape::of([t, heads, dv]))
    }
}
