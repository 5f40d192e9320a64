use fucina_testkit::{Rng, assert_bits_equal};

use super::{Activation, glu};
use crate::isa::Isa;
use crate::math;

type Unary = fn(f32) -> f32;

/// The functions are tested against f64 in `math`; here each must be the one that was asked for,
/// at every length, and multiplied by its own `up`.
#[test]
fn every_activation_gates_its_neighbour() {
    let cases: [(Activation, Unary); 3] = [
        (Activation::Silu, math::silu),
        (Activation::GeluTanh, math::gelu_tanh),
        (Activation::GeluErf, math::gelu_erf),
    ];
    let mut rng = Rng::new(1);
    for len in (0..=70).chain([1001]) {
        let (gate, up) = (rng.normals(len, 3.0), rng.normals(len, 1.0));
        for (act, function) in cases {
            let want: Vec<f32> = gate.iter().zip(&up).map(|(&g, &u)| function(g) * u).collect();
            for isa in Isa::available() {
                let mut out = vec![f32::NAN; len];
                glu(isa, act, &gate, &up, &mut out);
                assert_bits_equal(&out, &want, &format!("{act:?} {} {len}", isa.name()));
            }
        }
    }
}

/// Published values: silu(1) = 0.731058579, and both GELU at 1 (0.841191991 and 0.841344746).
#[test]
fn the_activations_are_told_apart() {
    for (act, want) in [
        (Activation::Silu, 0.731_058_6_f32),
        (Activation::GeluTanh, 0.841_192),
        (Activation::GeluErf, 0.841_344_8),
    ] {
        for isa in Isa::available() {
            let mut out = [0.0];
            glu(isa, act, &[1.0], &[1.0], &mut out);
            // Within the stated 14.5 u of `math`, and one rounding of the constant.
            assert!((out[0] - want).abs() < 16.0 / 16_777_216.0, "{act:?}: {}", out[0]);
        }
    }
}
