use fucina_testkit::{Rng, assert_bits_equal};

use super::softmax;
use crate::isa::Isa;

const U: f64 = 1.0 / 16_777_216.0;

fn run(isa: Isa, x: &[f32], scale: f32) -> Vec<f32> {
    let mut x = x.to_vec();
    softmax(isa, &mut x, scale);
    x
}

#[track_caller]
fn check(x: &[f32], scale: f32, label: &str) {
    let logits: Vec<f64> = x.iter().map(|&x| f64::from(x) * f64::from(scale)).collect();
    let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = logits.iter().map(|logit| (logit - max).exp()).sum();
    // Rounding of the two products and of their difference are absolute errors of the exponent,
    // so relative errors of the weight; exp adds 2 u. The sum has the error of its largest
    // terms (for those the exponent is near that of the maximum); it and the division round once.
    let error = |logit: f64| (logit.abs() + max.abs() + (logit - max).abs() + 2.0) * U;
    let sum_error = logits.iter().map(|&l| (l - max).exp() * error(l)).sum::<f64>() / total;
    for isa in Isa::available() {
        for (i, (&got, &logit)) in run(isa, x, scale).iter().zip(&logits).enumerate() {
            let want = (logit - max).exp() / total;
            // 1.001 for the products of errors; the quantum for subnormal results.
            let bound = 1.001 * want * (error(logit) + sum_error + 2.0 * U) + 1.5e-45;
            let off = (f64::from(got) - want).abs();
            assert!(
                off <= bound,
                "{label} {}[{i}]: {got}, {want}, {off:e} > {bound:e}",
                isa.name()
            );
        }
    }
}

#[test]
fn every_length_is_right() {
    let mut rng = Rng::new(1);
    for len in (1..=70).chain([127, 128, 129, 1000, 32_003]) {
        check(&rng.normals(len, 4.0), 0.7, &format!("length {len}"));
    }
}

#[test]
fn large_and_negative_scales_are_right() {
    let x = Rng::new(2).normals(65, 1.0);
    for scale in [-1.0, 100.0, -1000.0, 1e-6] {
        check(&x, scale, &format!("scale {scale}"));
    }
    check(&[1e30, -1e30, 1e30], 1.0, "huge logits");
}

#[test]
fn masked_elements_are_zero() {
    let masked = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY, 1.0];
    for isa in Isa::available() {
        assert_eq!(run(isa, &masked, 2.0), [0.0, 0.5, 0.0, 0.5], "{}", isa.name());
    }
}

#[test]
fn a_fully_masked_row_is_zero_and_an_empty_one_empty() {
    for isa in Isa::available() {
        for len in 0..=300 {
            let out = run(isa, &vec![f32::NEG_INFINITY; len], 0.5);
            assert_bits_equal(&out, &vec![0.0; len], isa.name());
        }
    }
}

#[test]
fn nan_and_plus_infinity_spread() {
    for isa in Isa::available() {
        for rest in [1.0, f32::NEG_INFINITY, f32::NAN] {
            for at in [0, 15, 16, 64, 66] {
                for poison in [f32::NAN, f32::INFINITY] {
                    let mut x = [rest; 67];
                    x[at] = poison;
                    let all = run(isa, &x, 1.0).iter().all(|x| x.is_nan());
                    assert!(all, "{} {poison} at {at} among {rest}", isa.name());
                }
            }
        }
    }
}

#[test]
fn every_instruction_set_returns_the_same_bits() {
    let mut rng = Rng::new(3);
    for len in 0..=130 {
        let x = rng.normals(len, 3.0);
        for isa in Isa::available() {
            assert_bits_equal(&run(isa, &x, 0.3), &run(Isa::Scalar, &x, 0.3), isa.name());
        }
    }
}
