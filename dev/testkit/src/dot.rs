//! A dot product with the error bound of any f32 evaluation of it.

/// A dot product in f64, with what is needed to bound an f32 result.
#[derive(Debug, Clone, Copy)]
pub struct DotOracle {
    value: f64,
    /// Sum of `|a * b|`: how much cancellation can amplify rounding.
    magnitude: f64,
    terms: usize,
}

impl DotOracle {
    /// Computes the dot product of `a` and `b` in f64.
    ///
    /// # Panics
    ///
    /// Panics if the operands differ in length.
    pub fn new(a: &[f32], b: &[f32]) -> Self {
        assert_eq!(a.len(), b.len(), "operands differ in length");
        let products = a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b));
        Self {
            value: products.clone().sum(),
            magnitude: products.map(f64::abs).sum(),
            terms: a.len(),
        }
    }

    /// The dot product itself.
    pub const fn value(&self) -> f64 {
        self.value
    }

    /// Sum of the absolute values of the products.
    pub const fn magnitude(&self) -> f64 {
        self.magnitude
    }

    /// Largest error that any order of f32 additions of the products can make.
    ///
    /// This is the textbook bound `n * u * sum |a * b|`, with `u = 2^-24`. It holds for every
    /// association order, so one bound serves every vector width.
    pub fn bound(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "a test has fewer than 2^53 terms")]
        let terms = self.terms as f64;
        terms * f64::from(f32::EPSILON) / 2.0 * self.magnitude
    }

    /// Checks an f32 result.
    ///
    /// # Panics
    ///
    /// Panics with `label` if `got` is further from the oracle than the bound, or is not a number.
    #[track_caller]
    pub fn assert_close(&self, got: f32, label: &str) {
        let error = (f64::from(got) - self.value).abs();
        assert!(
            error <= self.bound(),
            "{label}: got {got}, want {}, error {error:e} > bound {:e} ({} terms)",
            self.value,
            self.bound(),
            self.terms,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_admits_a_plain_f32_loop() {
        let mut rng = crate::Rng::new(4);
        let (a, b) = (rng.normals(1000, 1.0), rng.normals(1000, 1.0));
        let got = a.iter().zip(&b).fold(0.0_f32, |sum, (&a, &b)| sum + a * b);
        DotOracle::new(&a, &b).assert_close(got, "f32 loop");
    }

    #[test]
    #[should_panic(expected = "one term short")]
    fn the_bound_rejects_a_missing_term() {
        let a = [1.0_f32; 8];
        DotOracle::new(&a, &a).assert_close(7.0, "one term short");
    }

    #[test]
    #[should_panic(expected = "not a number")]
    fn the_bound_rejects_nan() {
        DotOracle::new(&[1.0], &[1.0]).assert_close(f32::NAN, "not a number");
    }
}
