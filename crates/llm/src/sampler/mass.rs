//! The weights of all tokens of a vocabulary: how large their sum is, and where a part of it ends.
//!
//! A weight is `exp((logit - best) / temperature)`. These functions are fast and only nearly exact,
//! so they state how far off they may be, or do not answer: whoever needs more does what is exact.

/// How far a sum of weights may be from that of exact exponentials, added up one by one: this part of
/// the sum, or less.
///
/// The polynomial leaves out `r^8 / 8! + ..` with `|r| <= 0.5 ln 2`, below `7.5e-9` of `e^r`. Its
/// argument is off by `2^-51 * 700` at most, `3.2e-13`, and each operation by `2^-53`. One weight after
/// the other, [`MOST`] of them, rounds by `2^-53 * 2^22`, or `4.7e-10`; by lane and block by less.
pub(super) const ERROR: f64 = 1e-8;

/// Weights that [`ERROR`] holds for.
pub(super) const MOST: usize = 1 << 22;

/// Logits of a block.
const BLOCK: usize = 1024;
/// Weights that are calculated side by side.
const LANES: usize = 8;

/// Below this a weight counts as that of this: some `1e-304`, while that of the best is 1.
const LEAST: f64 = -700.0;

/// What makes exponents out of logits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Scale {
    best: f64,
    /// 1 divided by the temperature.
    factor: f64,
}

impl Scale {
    /// For the highest logit and a temperature above 0.
    pub(super) fn new(best: f32, temperature: f32) -> Self {
        Self { best: f64::from(best), factor: 1.0 / f64::from(temperature) }
    }

    fn exponent(self, logit: f32) -> f64 {
        let exponent = (f64::from(logit) - self.best) * self.factor;
        // Written so that it is one instruction.
        if exponent > LEAST { exponent } else { LEAST }
    }

    /// The sum of the weights of a block.
    fn sum(self, logits: &[f32]) -> f64 {
        let (chunks, rest) = logits.as_chunks::<LANES>();
        let mut lanes = [0.0; LANES];
        for chunk in chunks {
            for (lane, &logit) in lanes.iter_mut().zip(chunk) {
                *lane += exp(self.exponent(logit));
            }
        }
        lanes.iter().sum::<f64>() + rest.iter().map(|&logit| exp(self.exponent(logit))).sum::<f64>()
    }
}

/// The sum of all weights; `blocks` gets those of its parts. `None` if there are more than [`MOST`].
pub(super) fn total(scale: Scale, logits: &[f32], blocks: &mut Vec<f64>) -> Option<f64> {
    blocks.clear();
    if logits.len() > MOST {
        return None;
    }
    blocks.extend(logits.chunks(BLOCK).map(|block| scale.sum(block)));
    Some(blocks.iter().sum())
}

/// The first token at which the weights of it and all before it exceed `part` of their sum. `None`
/// if that cannot be told for certain.
pub(super) fn find(scale: Scale, logits: &[f32], part: f64, blocks: &mut Vec<f64>) -> Option<u32> {
    let total = total(scale, logits, blocks)?;
    let (goal, slack) = (total * part, 2.0 * ERROR * total);
    let mut before = 0.0;
    let block = blocks.iter().position(|sum| {
        let here = before + sum > goal;
        before += if here { 0.0 } else { *sum };
        here
    })?;
    let first = block * BLOCK;
    for (at, &logit) in logits[first..].iter().enumerate() {
        let after = before + exp(scale.exponent(logit));
        if after > goal {
            let certain = before < goal - slack && after > goal + slack;
            return certain.then(|| u32::try_from(first + at).unwrap_or(u32::MAX));
        }
        before = after;
    }
    None
}

/// `e^x` for `x` from [`LEAST`] to 0.
///
/// `x = n ln 2 + r`: the series of `e^r`, times a power of two that is made of bits.
#[inline]
fn exp(x: f64) -> f64 {
    /// Added to a number below `2^51`, leaves its nearest integer in the last bits.
    const ROUND: f64 = 6_755_399_441_055_744.0;
    // ln 2 in two parts; the first ends in zeros, so that its product with `n` is exact.
    const LN2: [f64; 2] = [0.693_147_180_369_123_8, 1.908_214_929_270_587_7e-10];
    let rounded = x * std::f64::consts::LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = x - n * LN2[0] - n * LN2[1];
    let mut value = 1.0 / 5_040.0;
    for factorial in [720.0, 120.0, 24.0, 6.0, 2.0, 1.0, 1.0] {
        value = value * r + 1.0 / factorial;
    }
    value * f64::from_bits(rounded.to_bits().wrapping_add(1023) << 52)
}

#[cfg(test)]
mod tests;
