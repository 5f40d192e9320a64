//! Tables of angles. Everything is computed in f64 and rounded once.

#![deny(unsafe_code)]

/// How far a model turns for one position.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeConfig<'a> {
    /// `r`, the number of rotated elements of a head. Even.
    pub dims: usize,
    /// Base of the geometric sequence of frequencies, such as 10000.
    pub base: f32,
    /// Divisors of the frequencies, `[r/2]` (the tensor `rope_freqs.weight`; Llama 3 stores its
    /// scaling this way).
    pub freq_factors: Option<&'a [f32]>,
    /// Change for contexts longer than the trained one.
    pub scaling: Scaling,
}

/// Change of the angles for contexts longer than the trained one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Scaling {
    /// None.
    None,
    /// Positions divided by `factor`.
    Linear {
        /// Context length over trained length.
        factor: f32,
    },
    /// `YaRN` (Peng et al., "Efficient Context Window Extension of Large Language Models", arXiv
    /// 2309.00071).
    ///
    /// Fast pairs keep their frequency, slow pairs divide it by `factor`, and a ramp mixes
    /// between. The paper's text makes the ramp linear in the number of turns that a pair makes
    /// over the trained context; its authors' program, and so every model trained with it, makes
    /// it linear in the index of the pair, between the whole indices around `beta_fast` and
    /// `beta_slow` turns. This is the second. Cosines and sines are multiplied by
    /// `attn_factor * (1 + 0.1 ln(factor))`, which makes the attention logits sharper.
    Yarn {
        /// Context length over trained length.
        factor: f32,
        /// Trained length.
        original_context: u32,
        /// Weight of the ramp: 1 is the paper; 0 turns it and the logarithm off, which is
        /// [`Scaling::Linear`] times `attn_factor`.
        ext_factor: f32,
        /// Extra factor of cosine and sine; 1 is the paper.
        attn_factor: f32,
        /// Pairs that turn more often than this over the trained context keep their frequency.
        beta_fast: f32,
        /// Pairs that turn less often than this divide their frequency by `factor`.
        beta_slow: f32,
    },
}

/// Fills `cos` and `sin`, `[positions, r/2]`.
///
/// # Panics
///
/// Panics if `dims` is odd, if there are frequency factors but not `dims / 2` of them, or if the
/// tables are not `positions.len() * dims / 2` long.
pub fn angles(config: &RopeConfig<'_>, positions: &[i32], cos: &mut [f32], sin: &mut [f32]) {
    assert!(config.dims.is_multiple_of(2), "{} rotated elements do not pair up", config.dims);
    let half = config.dims / 2;
    if let Some(factors) = config.freq_factors {
        assert_eq!(factors.len(), half, "one frequency factor for each pair");
    }
    assert_eq!(cos.len(), positions.len() * half, "size of cos");
    assert_eq!(sin.len(), positions.len() * half, "size of sin");
    let magnitude = magnitude(config.scaling);
    for pair in 0..half {
        let frequency = frequency(config, pair);
        for (row, &position) in positions.iter().enumerate() {
            let (s, c) = (f64::from(position) * frequency).sin_cos();
            cos[row * half + pair] = round(c * magnitude);
            sin[row * half + pair] = round(s * magnitude);
        }
    }
}

/// Radians for one position.
fn frequency(config: &RopeConfig<'_>, pair: usize) -> f64 {
    let exponent = -2.0 * as_f64(pair) / as_f64(config.dims);
    let factor = config.freq_factors.map_or(1.0, |factors| f64::from(factors[pair]));
    let plain = f64::from(config.base).powf(exponent) / factor;
    match config.scaling {
        Scaling::None => plain,
        Scaling::Linear { factor } => plain / f64::from(factor),
        Scaling::Yarn { factor, original_context, ext_factor, beta_fast, beta_slow, .. } => {
            let context = f64::from(original_context);
            let low = pair_that_turns(config, context, beta_fast).floor().max(0.0);
            let high = pair_that_turns(config, context, beta_slow).ceil();
            let high = high.min(as_f64(config.dims) - 1.0);
            // A ramp of no width is a step: the floor of its width only avoids 0 / 0.
            let ramp = ((as_f64(pair) - low) / (high - low).max(1e-3)).clamp(0.0, 1.0);
            let keep = (1.0 - ramp) * f64::from(ext_factor);
            plain / f64::from(factor) * (1.0 - keep) + plain * keep
        }
    }
}

/// The (fractional) index of the pair that makes `turns` turns over `context` positions.
fn pair_that_turns(config: &RopeConfig<'_>, context: f64, turns: f32) -> f64 {
    let ratio = context / (f64::from(turns) * std::f64::consts::TAU);
    as_f64(config.dims) * ratio.ln() / (2.0 * f64::from(config.base).ln())
}

/// Factor of cosine and sine.
fn magnitude(scaling: Scaling) -> f64 {
    match scaling {
        Scaling::None | Scaling::Linear { .. } => 1.0,
        Scaling::Yarn { factor, ext_factor, attn_factor, .. } => {
            let sharpen = if ext_factor == 0.0 { 0.0 } else { 0.1 * f64::from(factor).ln() };
            f64::from(attn_factor) * (1.0 + sharpen)
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a head has fewer than 2^53 elements")]
fn as_f64(n: usize) -> f64 {
    n as f64
}

#[expect(clippy::cast_possible_truncation, reason = "rounding to f32 is the point")]
fn round(x: f64) -> f32 {
    x as f32
}
