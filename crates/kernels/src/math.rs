//! Elementary functions that vectorize: no branch, no table, no call.
//!
//! Only `+ - * /`, comparisons and bit operations are used, so every instruction set returns the
//! same bits. Bounds are stated in units of `u = 2^-24` relative to the exact result. Results near
//! the subnormal range are off by up to `(1 + |x|) * 2^-149` more. NaN gives NaN; infinities give
//! the limits.
//!
//! The polynomials were fitted for this file (Remez exchange on the stated intervals, then
//! rounded to f32).

#![deny(unsafe_code)]

/// 1.5 * 2^23: adding it rounds an f32 below 2^22 to an integer, which sits in the low bits.
const ROUND: f32 = 12_582_912.0;
/// High part of ln 2, nine bits: `n * LN2_HIGH` is exact for every exponent `n`.
const LN2_HIGH: f32 = 0.693_359_4; // 355 / 512, exactly
/// ln 2 - [`LN2_HIGH`].
const LN2_LOW: f32 = -2.121_944_4e-4;
/// Below this, `x * sigmoid(x)` and its kin are zero, and `-inf * 0` must not become NaN.
const TAIL: f32 = -200.0;

/// Splits `e^x` into `(1 + q) * 2^n` with `|q| < 0.42`. Returns `(q, n)`.
///
/// `q = e^r - 1` for `|r| <= ln(2) / 2`, by `r + r^2 * p(r)`; `p` has degree 4 and a fit error of
/// 6.3e-8, which is 7.5e-9 in `q`.
#[inline(always)]
fn exp_parts(x: f32) -> (f32, i32) {
    let shifted = x * std::f32::consts::LOG2_E + ROUND;
    let n = shifted.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let rounded = shifted - ROUND;
    let r = (x - rounded * LN2_HIGH) - rounded * LN2_LOW;
    let p = 1.394_121_4e-3 * r + 8.363_235e-3;
    let p = (p * r + 4.166_637_4e-2) * r + 1.666_657_7e-1;
    let p = p * r + 0.5;
    (r + r * r * p, n)
}

/// 2^n for a normal result; any `n` is safe.
#[inline(always)]
fn pow2(n: i32) -> f32 {
    f32::from_bits(n.wrapping_add(127).cast_unsigned() << 23)
}

/// The larger of `x` and `low`, but NaN stays NaN.
#[inline(always)]
fn at_least(x: f32, low: f32) -> f32 {
    if x < low { low } else { x }
}

/// The smaller of `x` and `high`, but NaN stays NaN.
#[inline(always)]
fn at_most(x: f32, high: f32) -> f32 {
    if x > high { high } else { x }
}

/// `e^x`, within 2 u (two units in the last place). Subnormal results are rounded, not flushed.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    // e^89 overflows and e^-104 is below half of the smallest subnormal.
    let (q, n) = exp_parts(at_most(at_least(x, -104.0), 89.0));
    // Two steps, so that neither factor overflows and only the last product rounds.
    let half = n >> 1;
    (1.0 + q) * pow2(half) * pow2(n.wrapping_sub(half))
}

/// `e^x` for `x <= 0`, within 2 u; zero below -87, where the result would leave the normal numbers. A
/// CPU takes a hundred cycles and more to make a subnormal number, and so to make a zero of what
/// is masked.
#[inline(always)]
pub fn exp_or_zero(x: f32) -> f32 {
    const LOWEST: f32 = -87.0;
    let (q, n) = exp_parts(at_least(x, LOWEST));
    let e = (1.0 + q) * pow2(n);
    if x < LOWEST { 0.0 } else { e }
}

/// Hyperbolic tangent, within 6 u. Keeps the sign of zero.
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    // tanh(a) = m / (m + 2) with m = e^(2a) - 1: no cancellation near zero. Above 10 it is 1.
    let (q, n) = exp_parts(2.0 * at_most(x.abs(), 10.0));
    let scale = pow2(n);
    let m = scale * q + (scale - 1.0);
    (m / (m + 2.0)).copysign(x)
}

/// `1 / (1 + e^-x)`, within 4 u on both sides.
#[inline(always)]
pub fn sigmoid(x: f32) -> f32 {
    let e = exp(-x.abs());
    let numerator = if x < 0.0 { e } else { 1.0 };
    numerator / (1.0 + e)
}

/// `x * sigmoid(x)`, within 5 u; zero at minus infinity.
#[inline(always)]
pub fn silu(x: f32) -> f32 {
    at_least(x, TAIL) * sigmoid(x)
}

/// GELU by its tanh formula, `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`; zero at
/// minus infinity.
///
/// Computed as `x * sigmoid(v)`, `v` being twice the argument of tanh, so the negative tail does
/// not cancel: within `(6 + 6 |v|) u`.
#[inline(always)]
pub fn gelu_tanh(x: f32) -> f32 {
    const LINEAR: f32 = 1.595_769; // 2 * sqrt(2 / pi)
    const CUBIC: f32 = 0.071_354_814; // 0.044715 times that
    at_least(x, TAIL) * sigmoid(x * (LINEAR + CUBIC * (x * x)))
}

/// GELU by its definition, `x * (1 + erf(x / sqrt(2))) / 2`; zero at minus infinity.
///
/// Within `(14 + x^2 / 2) u`: the negative tail keeps its relative accuracy up to the rounding of
/// its exponent.
#[inline(always)]
pub fn gelu_erf(x: f32) -> f32 {
    at_least(x, TAIL) * normal_cdf(x)
}

/// Probability that a standard normal value is below `x`.
///
/// The tail at `-a` is `e^(-a^2 / 2) * p(q) / (1 + 2a)` with `q = (a - 4) / (a + 4)`; `p` has
/// degree 10 and a relative fit error of 3.2e-9 for `a` in [0, 15].
#[inline(always)]
fn normal_cdf(x: f32) -> f32 {
    let a = at_most(x.abs(), 15.0);
    let q = (a - 4.0) / (a + 4.0);
    let p = -1.479_942_8e-4 * q - 6.076_302e-5;
    let p = (p * q + 1.558_840_3e-3) * q - 1.260_657_1e-3;
    let p = (p * q - 1.051_428e-2) * q + 4.437_673_3e-2;
    let p = (p * q - 9.525_924e-2) * q + 1.289_069e-1;
    let p = (p * q - 9.638_009e-2) * q - 2.300_919_8e-2;
    let p = p * q + 8.496_957_7e-1;
    let tail = exp(-0.5 * (a * a)) * p / (1.0 + 2.0 * a);
    if x < 0.0 { tail } else { 1.0 - tail }
}

#[cfg(test)]
mod tests;
