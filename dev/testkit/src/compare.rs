//! Comparing slices of f32: exact, or within a bound for each element.

/// How two slices agree, for bounds that are stated about the whole (and for messages).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Agreement {
    /// Largest `|got - want|`; infinite if `got` has a NaN where `want` has none.
    pub max_abs: f64,
    /// Where that is.
    pub at: usize,
    /// Root of the mean square of `got - want`.
    pub rms: f64,
    /// Root of the mean square of `want`.
    pub rms_want: f64,
}

impl Agreement {
    /// Measures `got` against `want`.
    ///
    /// # Panics
    ///
    /// Panics if the lengths differ or are zero.
    #[track_caller]
    pub fn of(got: &[f32], want: &[f32]) -> Self {
        assert_eq!(got.len(), want.len(), "slices differ in length");
        assert!(!got.is_empty(), "nothing to compare");
        let mut result = Self { max_abs: -1.0, at: 0, rms: 0.0, rms_want: 0.0 };
        for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
            let error = abs_error(got, want);
            if error > result.max_abs {
                (result.max_abs, result.at) = (error, at);
            }
            result.rms += error * error;
            result.rms_want += f64::from(want) * f64::from(want);
        }
        #[expect(clippy::cast_precision_loss, reason = "a test has fewer than 2^53 elements")]
        let len = got.len() as f64;
        result.rms = (result.rms / len).sqrt();
        result.rms_want = (result.rms_want / len).sqrt();
        result
    }

    /// `rms / rms_want`: the error of the whole relative to the size of the whole.
    pub fn relative_rms(&self) -> f64 {
        self.rms / self.rms_want
    }
}

/// `|got - want|`, zero for two NaN or two equal infinities, infinite for one NaN.
fn abs_error(got: f32, want: f32) -> f64 {
    if got == want || (got.is_nan() && want.is_nan()) {
        return 0.0;
    }
    let error = (f64::from(got) - f64::from(want)).abs();
    if error.is_nan() { f64::INFINITY } else { error }
}

/// Checks every element against its own bound, `bound(index)`.
///
/// # Panics
///
/// Panics with `label` at the first element further away than its bound, or if lengths differ.
#[track_caller]
pub fn assert_within(got: &[f32], want: &[f32], bound: impl Fn(usize) -> f64, label: &str) {
    assert_eq!(got.len(), want.len(), "{label}: slices differ in length");
    for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
        let (error, bound) = (abs_error(got, want), bound(at));
        assert!(
            error <= bound,
            "{label}[{at}]: got {got}, want {want}, error {error:e} > bound {bound:e}"
        );
    }
}

/// Checks that every element has the same bits, so that -0 differs from 0. Any NaN equals any NaN.
///
/// # Panics
///
/// Panics with `label` at the first difference, or if lengths differ.
#[track_caller]
pub fn assert_bits_equal(got: &[f32], want: &[f32], label: &str) {
    assert_eq!(got.len(), want.len(), "{label}: slices differ in length");
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        assert!(
            got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()),
            "{label}[{at}]: got {got:e} ({:#010x}), want {want:e} ({:#010x})",
            got.to_bits(),
            want.to_bits()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreement_finds_the_worst_element() {
        let agreement = Agreement::of(&[1.0, 2.5, -3.0], &[1.0, 2.0, -3.25]);
        assert_eq!((agreement.max_abs, agreement.at), (0.5, 1));
        assert!((agreement.rms - (0.3125_f64 / 3.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn a_nan_against_a_number_is_infinitely_wrong() {
        assert_eq!(Agreement::of(&[f32::NAN], &[0.0]).max_abs, f64::INFINITY);
        assert_eq!(Agreement::of(&[0.0], &[f32::NAN]).max_abs, f64::INFINITY);
        assert_eq!(Agreement::of(&[f32::NAN], &[f32::NAN]).max_abs, 0.0);
    }

    #[test]
    #[should_panic(expected = "row[1]")]
    fn within_names_the_element() {
        assert_within(&[1.0, 2.0], &[1.0, 2.5], |_| 0.25, "row");
    }

    #[test]
    #[should_panic(expected = "sign[0]")]
    fn bits_tell_minus_zero_from_zero() {
        assert_bits_equal(&[-0.0], &[0.0], "sign");
    }
}
