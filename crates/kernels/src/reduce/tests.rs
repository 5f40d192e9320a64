use fucina_testkit::{DotOracle, Rng};

use super::*;

#[test]
fn argmax_is_the_first_of_the_largest() {
    let mut rng = Rng::new(1);
    for len in (0..=200).chain([1000]) {
        // Few distinct values, so that there are ties.
        let x: Vec<f32> = (0..len).map(|_| f32::from(rng.next_i8() / 16)).collect();
        let mut want: Option<(usize, f32)> = None;
        for (i, &x) in x.iter().enumerate() {
            if want.is_none_or(|(_, max)| x > max) {
                want = Some((i, x));
            }
        }
        for isa in Isa::available() {
            assert_eq!(argmax(isa, &x), want, "{} {len}", isa.name());
        }
    }
}

#[test]
fn argmax_passes_over_nan() {
    for isa in Isa::available() {
        for at in [0, 1, 63, 64, 130] {
            let mut x = [f32::NAN; 131];
            assert_eq!(argmax(isa, &x), None, "{}", isa.name());
            x[at] = f32::NEG_INFINITY;
            assert_eq!(argmax(isa, &x), Some((at, f32::NEG_INFINITY)), "{}", isa.name());
            x[at] = f32::INFINITY;
            assert_eq!(argmax(isa, &x), Some((at, f32::INFINITY)), "{}", isa.name());
        }
        assert_eq!(argmax(isa, &[-0.0, 0.0]).map(|(i, _)| i), Some(0), "{}", isa.name());
    }
}

/// A stable sort of everything.
fn sorted(x: &[f32]) -> Vec<(usize, f32)> {
    let mut all: Vec<_> = x.iter().copied().enumerate().filter(|(_, x)| !x.is_nan()).collect();
    all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap());
    all
}

#[track_caller]
fn check_top_k(x: &[f32], k: usize, label: &str) {
    let want = sorted(x);
    let want = &want[..k.min(want.len())];
    for isa in Isa::available() {
        let mut out = vec![(usize::MAX, f32::NAN); k];
        let len = top_k(isa, x, &mut out);
        assert_eq!(&out[..len], want, "{label} {} k={k}", isa.name());
        assert!(out[len..].iter().all(|(i, _)| *i == usize::MAX), "{label}: wrote beyond the end");
    }
}

#[test]
fn top_k_is_the_head_of_a_stable_sort() {
    let mut rng = Rng::new(2);
    for len in [0, 1, 2, 63, 64, 65, 1000, 16_383, 16_384, 40_000] {
        let random = rng.normals(len, 5.0);
        let ties: Vec<f32> = (0..len).map(|_| f32::from(rng.next_i8() / 8)).collect();
        let mut rising = random.clone();
        rising.sort_by(f32::total_cmp);
        let falling: Vec<f32> = rising.iter().rev().copied().collect();
        for k in [0, 1, 2, 40, 63, 64, 1000, 4096, 4097, 50_000] {
            check_top_k(&random, k, "random");
            check_top_k(&ties, k, "ties");
            check_top_k(&rising, k, "rising");
            check_top_k(&falling, k, "falling");
            check_top_k(&vec![2.5; len], k, "constant");
        }
    }
}

#[test]
fn top_k_orders_special_values() {
    let mut rng = Rng::new(3);
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-45, -1e-45, f32::MIN];
    for len in [7, 100, 20_000] {
        let x: Vec<f32> = (0..len).map(|_| special[rng.below(special.len())]).collect();
        for k in [1, 3, len / 2, len, len + 9] {
            check_top_k(&x, k, "special");
        }
        check_top_k(&vec![f32::NAN; len], 5, "only NaN");
        check_top_k(&vec![f32::NEG_INFINITY; len], 5, "only minus infinity");
    }
}

#[test]
fn sum_is_rounded_once() {
    let mut rng = Rng::new(4);
    for len in (0..=70).chain([1000, 100_003]) {
        let x = rng.normals(len, 100.0);
        let want: f64 = x.iter().map(|&x| f64::from(x)).sum();
        let magnitude: f64 = x.iter().map(|&x| f64::from(x).abs()).sum();
        for isa in Isa::available() {
            // One rounding to f32, and the f64 additions in either order.
            let bound = want.abs() / 16_777_216.0 + 2.0 * len as f64 * f64::EPSILON * magnitude;
            let error = (f64::from(sum(isa, &x)) - want).abs();
            assert!(error <= bound, "{} {len}: {error:e} > {bound:e}", isa.name());
            assert_eq!(sum(isa, &x).to_bits(), sum(Isa::Scalar, &x).to_bits(), "{}", isa.name());
        }
    }
    // 2^24 + 1 - 2^24: f32 additions would lose the one.
    for isa in Isa::available() {
        assert_eq!(sum(isa, &[16_777_216.0, 1.0, -16_777_216.0]), 1.0, "{}", isa.name());
    }
}

#[test]
fn dot_is_within_the_stated_bound_of_the_oracle() {
    let mut rng = Rng::new(5);
    for len in (0..=140).chain([1000, 4096, 16_384]) {
        let (a, b) = (rng.normals(len, 1.0), rng.normals(len, 1.0));
        let oracle = DotOracle::new(&a, &b);
        // A lane adds len / 64 products and the tree has 6 levels; the product rounds as well.
        let bound = (len as f64 / 64.0 + 8.0) / 16_777_216.0 * oracle.magnitude();
        for isa in Isa::available() {
            let got = dot_f32(isa, &a, &b);
            let error = (f64::from(got) - oracle.value()).abs();
            assert!(error <= bound, "{} {len}: {error:e} > {bound:e}", isa.name());
            assert_eq!(got.to_bits(), dot_f32(Isa::Scalar, &a, &b).to_bits(), "{}", isa.name());
        }
    }
}

#[test]
fn one_element_that_is_not_finite_is_found_anywhere() {
    for len in (1..=70).chain([128, 129]) {
        for isa in Isa::available() {
            assert!(!has_non_finite(isa, &vec![f32::MAX; len]), "{} {len}", isa.name());
            for at in 0..len {
                for poison in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut x = vec![1e-40; len];
                    x[at] = poison;
                    assert!(has_non_finite(isa, &x), "{} {poison} at {at} of {len}", isa.name());
                }
            }
        }
    }
}
