use fucina_testkit::{Rng, assert_bits_equal};

use super::rms_norm;
use crate::isa::Isa;

/// 2^-24: one rounding to f32. The f64 work before it adds less than a millionth of that.
const ROUNDING: f64 = 1.000_001 / 16_777_216.0;
/// Half of the smallest subnormal, the rounding error of a subnormal result.
const HALF_QUANTUM: f64 = f32::from_bits(1) as f64 / 2.0;

fn run(isa: Isa, x: &[f32], weight: Option<&[f32]>, eps: f32) -> Vec<f32> {
    let mut out = vec![f32::NAN; x.len()];
    rms_norm(isa, x, weight, eps, &mut out);
    out
}

#[track_caller]
fn check(x: &[f32], weight: Option<&[f32]>, eps: f32, label: &str) {
    let mean = x.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / x.len() as f64;
    let root = (mean + f64::from(eps)).sqrt();
    let exact = |i: usize| f64::from(x[i]) / root * f64::from(weight.map_or(1.0, |w| w[i]));
    for isa in Isa::available() {
        for (i, &got) in run(isa, x, weight, eps).iter().enumerate() {
            let bound = ROUNDING * exact(i).abs() + HALF_QUANTUM;
            let error = (f64::from(got) - exact(i)).abs();
            assert!(error <= bound, "{label} {}[{i}]: {got:e}, {:e}", isa.name(), exact(i));
        }
    }
}

#[test]
fn every_width_is_right() {
    let mut rng = Rng::new(1);
    for width in (1..=130).chain([1023, 4096, 4099]) {
        let (x, weight) = (rng.normals(width, 2.0), rng.normals(width, 1.0));
        check(&x, Some(&weight), 1e-6, &format!("width {width}"));
        check(&x, None, 1e-5, &format!("width {width}, no weight"));
    }
}

#[test]
fn squares_neither_overflow_nor_vanish() {
    let mut rng = Rng::new(2);
    for scale in [1e20, 1e37, 1e-20, 1e-38] {
        let x = rng.normals(67, scale);
        check(&x, None, 0.0, &format!("scale {scale:e}"));
        check(&x, Some(&[3.0; 67]), 1e-6, &format!("scale {scale:e} with eps"));
    }
    check(&[f32::MAX; 9], None, 1e-6, "the largest float");
}

#[test]
fn a_row_of_zeros_stays_zero() {
    for isa in Isa::available() {
        assert_bits_equal(&run(isa, &[0.0; 19], None, 1e-6), &[0.0; 19], isa.name());
        assert!(run(isa, &[], None, 1e-6).is_empty());
    }
}

#[test]
fn values_that_are_not_finite_show() {
    for isa in Isa::available() {
        for at in [0, 15, 16, 36] {
            let mut x = [1.0; 37];
            x[at] = f32::NAN;
            assert!(run(isa, &x, None, 1e-6).iter().all(|x| x.is_nan()), "{}", isa.name());
            x[at] = f32::INFINITY;
            let out = run(isa, &x, None, 1e-6);
            for (i, &out) in out.iter().enumerate() {
                assert!(if i == at { out.is_nan() } else { out == 0.0 }, "{} [{i}]", isa.name());
            }
        }
    }
}

#[test]
fn every_instruction_set_returns_the_same_bits() {
    let mut rng = Rng::new(3);
    for width in 1..=70 {
        let (x, weight) = (rng.normals(width, 1.0), rng.normals(width, 1.0));
        let want = run(Isa::Scalar, &x, Some(&weight), 1e-6);
        for isa in Isa::available() {
            assert_bits_equal(&run(isa, &x, Some(&weight), 1e-6), &want, isa.name());
        }
    }
}
