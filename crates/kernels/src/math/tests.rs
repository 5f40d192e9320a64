use super::{exp, exp_or_zero, gelu_erf, gelu_tanh, sigmoid, silu, tanh};

/// 2^-24, the unit of the stated bounds.
const U: f64 = 1.0 / 16_777_216.0;
/// The smallest positive f32.
const QUANTUM: f64 = f32::from_bits(1) as f64;

/// About four million floats of both signs: every exponent, every low bit pattern in turn.
fn sweep() -> impl Iterator<Item = f32> {
    (0..u32::MAX).step_by(1009).map(f32::from_bits).filter(|x| x.is_finite())
}

/// Checks `f` against `reference` (f64) within `bound(x)` units, plus `1 + |x|` quanta: where a
/// factor of `x` is subnormal, its rounding is multiplied by `x`. The quanta only matter below
/// 1e-36. A reference beyond the largest f32 must give infinity.
fn assert_accurate(f: fn(f32) -> f32, reference: fn(f64) -> f64, bound: fn(f64) -> f64) {
    let mut worst = (0.0, 0.0);
    for x in sweep() {
        let (got, want) = (f(x), reference(f64::from(x)));
        let quanta = (1.0 + f64::from(x).abs()).min(200.0) * QUANTUM;
        let allowed = bound(f64::from(x)) * U * want.abs() + quanta;
        // Rounding to nearest takes what lies above this to infinity.
        let largest = f64::from(f32::MAX) * (1.0 + U / 2.0);
        if want.abs() - allowed > largest {
            assert_eq!(got.abs(), f32::INFINITY, "f({x:e})");
            continue;
        }
        if got.is_infinite() && want.abs() + allowed >= largest {
            continue;
        }
        let error = (f64::from(got) - want).abs();
        assert!(error <= allowed, "f({x:e}): got {got:e}, want {want:e}, allowed {allowed:e}");
        if want.abs() > 1e-30 && error / want.abs() / U > worst.0 {
            worst = (error / want.abs() / U, f64::from(x));
        }
    }
    println!("worst error {:.2} u at {:e}", worst.0, worst.1);
}

/// Complementary error function in f64: Taylor series, then the continued fraction (Lentz).
fn erfc(z: f64) -> f64 {
    if z < 0.0 {
        return 2.0 - erfc(-z);
    }
    let root_pi = std::f64::consts::PI.sqrt();
    if z < 2.0 {
        let (mut term, mut sum) = (z, z);
        for n in 1..100_u32 {
            term *= -z * z / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 1.0 - 2.0 / root_pi * sum;
    }
    // erfc(z) = exp(-z^2) / sqrt(pi) / (z + (1/2) / (z + 1 / (z + (3/2) / (z + ...))))
    let fraction = (1..200_u32).rev().fold(z, |below, n| z + f64::from(n) / 2.0 / below);
    (-z * z).exp() / root_pi / fraction
}

fn reference_sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// 2 sqrt(2 / pi) (x + 0.044715 x^3)
fn gelu_argument(x: f64) -> f64 {
    2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))
}

#[test]
fn the_reference_erfc_has_published_values() {
    // Abramowitz and Stegun, table 7.1, and its complement.
    for (z, want) in [(0.0, 1.0), (0.5, 0.479_500_122), (1.0, 0.157_299_207), (2.0, 0.004_677_735)]
    {
        assert!((erfc(z) - want).abs() < 1e-9, "erfc({z}) = {}", erfc(z));
    }
    // The two halves meet.
    assert!((erfc(2.0 - 1e-12) / erfc(2.0) - 1.0).abs() < 1e-10);
}

#[test]
fn exp_is_within_two_units() {
    assert_accurate(exp, f64::exp, |_| 2.0);
}

#[test]
fn exp_or_zero_is_exp_down_to_the_normal_numbers() {
    for x in sweep().filter(|&x| x <= 0.0) {
        let (got, want) = (exp_or_zero(x), f64::from(x).exp());
        if x < -87.0 {
            assert_eq!(got.to_bits(), 0, "f({x:e})");
        } else {
            assert!(got.is_normal(), "f({x:e}): got {got:e}");
            assert!((f64::from(got) - want).abs() <= 2.0 * U * want, "f({x:e}): got {got:e}");
        }
    }
    assert_eq!(exp_or_zero(f32::NEG_INFINITY).to_bits(), 0);
    assert_eq!(exp_or_zero(0.0), 1.0);
    assert!(exp_or_zero(f32::NAN).is_nan());
}

#[test]
fn tanh_is_within_six_units() {
    assert_accurate(tanh, f64::tanh, |_| 6.0);
}

#[test]
fn sigmoid_is_within_four_units_in_both_tails() {
    assert_accurate(sigmoid, reference_sigmoid, |_| 4.0);
}

#[test]
fn silu_is_within_five_units() {
    assert_accurate(silu, |x| x * reference_sigmoid(x), |_| 5.0);
}

#[test]
fn gelu_tanh_is_within_the_rounding_of_its_argument() {
    let reference = |x| x * reference_sigmoid(gelu_argument(x));
    assert_accurate(gelu_tanh, reference, |x| 6.0 + 6.0 * gelu_argument(x).abs());
}

#[test]
fn gelu_erf_is_within_the_rounding_of_its_exponent() {
    let reference = |x: f64| x * 0.5 * erfc(-x / std::f64::consts::SQRT_2);
    assert_accurate(gelu_erf, reference, |x| 14.0 + x * x / 2.0);
}

#[test]
fn exp_rounds_subnormal_results_instead_of_flushing() {
    for x in [-87.5_f32, -90.0, -95.0, -100.0, -103.0, -103.9] {
        let want = f64::from(x).exp();
        assert!((f64::from(exp(x)) - want).abs() <= QUANTUM, "exp({x})");
        assert!(exp(x) > 0.0 && exp(x) < f32::MIN_POSITIVE, "exp({x})");
    }
    assert_eq!(exp(-104.5), 0.0);
}

#[test]
fn special_values_have_their_limits() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    assert_eq!((exp(inf), exp(-inf), exp(0.0), exp(-0.0)), (inf, 0.0, 1.0, 1.0));
    assert_eq!((tanh(inf), tanh(-inf)), (1.0, -1.0));
    assert_eq!(tanh(-0.0).to_bits(), (-0.0_f32).to_bits());
    assert_eq!((sigmoid(inf), sigmoid(-inf), sigmoid(0.0)), (1.0, 0.0, 0.5));
    for f in [silu, gelu_tanh, gelu_erf] {
        assert_eq!((f(inf), f(-inf), f(0.0)), (inf, 0.0, 0.0));
        assert_eq!((f(1e30), f(-1e30)), (1e30, 0.0));
    }
    for f in [exp, tanh, sigmoid, silu, gelu_tanh, gelu_erf] {
        assert!(f(nan).is_nan());
        assert!(f(-nan).is_nan());
    }
}
