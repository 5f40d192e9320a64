//! How right a result is.

use fucina::DType;

use super::shapes::Case;
use crate::bench::operands::{Random, Weights};

/// Elements of a result that are computed again in f64.
const SAMPLES: usize = 256;

/// Largest difference of two results. A NaN is infinitely far from everything.
pub(super) fn max_abs(a: &[f32], b: &[f32]) -> f64 {
    let far = |(a, b): (&f32, &f32)| {
        let distance = (f64::from(*a) - f64::from(*b)).abs();
        if distance.is_nan() { f64::INFINITY } else { distance }
    };
    a.iter().zip(b).map(far).fold(0.0, f64::max)
}

/// How some elements of a result compare with the sums in f64.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Exactness {
    /// Root of the mean square error over that of the values.
    pub(super) relative_rms: f64,
    /// Largest error, as a part of the bound of what a device may do.
    pub(super) of_bound: f64,
}

impl Exactness {
    pub(super) fn of(
        case: &Case,
        weights: &Weights,
        x: &[f32],
        out: &[f32],
    ) -> anyhow::Result<Self> {
        let (m, n, k) = (case.m, weights.n, weights.k);
        let mut random = Random::new(out.len());
        let (mut errors, mut squares, mut of_bound) = (0.0, 0.0, 0f64);
        for _ in 0..SAMPLES.min(m * n) {
            let (row, column) = (random.below(m), random.below(n));
            let weights = weights.row(column)?;
            let want = Sum::of(&x[row * k..][..k], &weights);
            let error = (f64::from(out[row * n + column]) - want.value).abs();
            let error = if error.is_nan() { f64::INFINITY } else { error };
            errors += error * error;
            squares += want.value * want.value;
            of_bound = of_bound.max(error / want.bound(case));
        }
        Ok(Self { relative_rms: (errors / squares.max(f64::MIN_POSITIVE)).sqrt(), of_bound })
    }
}

/// A dot product in f64.
struct Sum {
    value: f64,
    magnitude: f64,
    /// Sum of the magnitudes of the activations, times the largest weight.
    decode: f64,
    /// The same the other way round.
    step: f64,
    terms: usize,
}

impl Sum {
    fn of(x: &[f32], weights: &[f32]) -> Self {
        let products = x.iter().zip(weights).map(|(x, w)| f64::from(*x) * f64::from(*w));
        let largest = |of: &[f32]| f64::from(of.iter().fold(0f32, |most, x| most.max(x.abs())));
        let sum = |of: &[f32]| of.iter().map(|x| f64::from(x.abs())).sum::<f64>();
        Self {
            value: products.clone().sum(),
            magnitude: products.map(f64::abs).sum(),
            decode: sum(x) * largest(weights),
            step: sum(weights) * largest(x),
            terms: x.len(),
        }
    }

    /// Any order of f32 additions errs by at most `(k + 1) u` times the sum of magnitudes. Operands
    /// that are rounded to f16 add twice 2^-11 of it, and a little for the square. Blocks may be
    /// decoded in three operations of another order than the codec's. Activations in 8 bits are off by
    /// up to half a step of 1/127 of the largest.
    #[expect(clippy::cast_precision_loss, reason = "a size below 2^53")]
    fn bound(&self, case: &Case) -> f64 {
        const U: f64 = 1.0 / 16_777_216.0;
        let rounding = if case.dtype == DType::F32 { 0.0 } else { 2.1 / 2048.0 };
        let decode = if case.dtype.is_block() { 3.0 * U * self.decode } else { 0.0 };
        let step = if case.eight_bits { self.step / 253.0 } else { 0.0 };
        let sum = (self.terms + 1) as f64 * U + rounding;
        sum * self.magnitude + decode + step + f64::from(f32::MIN_POSITIVE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_off_by_one_weight_exceeds_its_bound() {
        let sum = Sum::of(&[0.25; 64], &[0.0625; 64]);
        assert_eq!((sum.value, sum.magnitude), (1.0, 1.0));
        let one = 0.25 * 0.0625;
        let bound = |dtype, eight_bits| {
            sum.bound(&Case { eight_bits, ..Case::new("", dtype, [1, 1, 64], 1) })
        };
        assert!(one > bound(DType::F32, false) && one > bound(DType::Q8_0, true));
        assert!(bound(DType::F16, false) > 1.0 / 2048.0, "rounding to f16 is allowed");
        assert!(bound(DType::F32, false) < 1e-5, "and for f32 it is not");
        assert!(bound(DType::Q8_0, true) > 1.0 / 254.0, "and to 8 bits by choice");
    }

    #[test]
    fn a_nan_is_infinitely_far() {
        assert_eq!(max_abs(&[1.0, f32::NAN], &[1.0, 0.0]), f64::INFINITY);
        assert_eq!(max_abs(&[1.0, 2.0], &[1.5, 2.0]), 0.5);
    }
}
