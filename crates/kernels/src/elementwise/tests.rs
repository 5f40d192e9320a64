use fucina_testkit::{Rng, assert_bits_equal};

use super::*;
use crate::math;

type Binary = fn(f32, f32) -> f32;
type Unary = fn(f32) -> f32;

/// Lengths around every vector width and its unrolled multiples.
fn lengths() -> impl Iterator<Item = usize> {
    (0..=70).chain([127, 128, 129, 255, 257, 1000])
}

/// Ordinary values with the special ones among them.
fn values(rng: &mut Rng, len: usize) -> Vec<f32> {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-40, f32::MAX];
    let mut values = rng.normals(len, 10.0);
    for (i, value) in values.iter_mut().enumerate() {
        if i % 5 == 3 {
            *value = special[rng.below(special.len())];
        }
    }
    values
}

#[test]
fn binary_operations_are_those_of_ieee_754() {
    let cases: [(BinaryOp, Binary); 4] = [
        (BinaryOp::Add, |a, b| a + b),
        (BinaryOp::Sub, |a, b| a - b),
        (BinaryOp::Mul, |a, b| a * b),
        (BinaryOp::Div, |a, b| a / b),
    ];
    let mut rng = Rng::new(1);
    for len in lengths() {
        let (a, b) = (values(&mut rng, len), values(&mut rng, len));
        for (op, function) in cases {
            let want: Vec<f32> = a.iter().zip(&b).map(|(&a, &b)| function(a, b)).collect();
            let with_scalar: Vec<f32> = a.iter().map(|&a| function(a, -2.5)).collect();
            for isa in Isa::available() {
                let label = format!("{op:?} {} {len}", isa.name());
                let mut out = vec![7.0; len];
                binary(isa, op, &a, &b, &mut out);
                assert_bits_equal(&out, &want, &label);
                binary_scalar(isa, op, &a, -2.5, &mut out);
                assert_bits_equal(&out, &with_scalar, &label);
            }
        }
    }
}

#[test]
fn unary_operations_are_the_named_functions_at_every_length() {
    let cases: [(UnaryOp, Unary); 11] = [
        (UnaryOp::Neg, |x| -x),
        (UnaryOp::Exp, math::exp),
        (UnaryOp::Silu, math::silu),
        (UnaryOp::GeluTanh, math::gelu_tanh),
        (UnaryOp::GeluErf, math::gelu_erf),
        (UnaryOp::Sigmoid, math::sigmoid),
        (UnaryOp::Tanh, math::tanh),
        (UnaryOp::Relu, |x| if x.is_nan() { x } else { x.max(0.0) }),
        (UnaryOp::Sqrt, f32::sqrt),
        (UnaryOp::Scale(-0.3), |x| -0.3 * x),
        (UnaryOp::SoftCap(30.0), |x| 30.0 * math::tanh(x / 30.0)),
    ];
    let mut rng = Rng::new(2);
    for len in lengths() {
        let x = values(&mut rng, len);
        for (op, function) in cases {
            let want: Vec<f32> = x.iter().map(|&x| function(x)).collect();
            for isa in Isa::available() {
                let mut out = vec![7.0; len];
                unary(isa, op, &x, &mut out);
                // A zero of either sign is fine where the function is max(x, 0).
                if op == UnaryOp::Relu {
                    out.iter_mut().for_each(|x| *x += 0.0);
                }
                assert_bits_equal(&out, &want, &format!("{op:?} {} {len}", isa.name()));
            }
        }
    }
}

#[test]
fn axpy_and_scale_in_place_round_each_operation() {
    let mut rng = Rng::new(3);
    for len in lengths() {
        let (x, y) = (values(&mut rng, len), values(&mut rng, len));
        let sums: Vec<f32> = x.iter().zip(&y).map(|(&x, &y)| y + 1.1 * x).collect();
        let scaled: Vec<f32> = x.iter().map(|&x| x * 1.1).collect();
        for isa in Isa::available() {
            let mut out = y.clone();
            axpy(isa, 1.1, &x, &mut out);
            assert_bits_equal(&out, &sums, &format!("axpy {} {len}", isa.name()));
            let mut out = x.clone();
            scale_in_place(isa, 1.1, &mut out);
            assert_bits_equal(&out, &scaled, &format!("scale {} {len}", isa.name()));
        }
    }
}

#[test]
#[should_panic(expected = "a and out differ")]
fn a_short_output_is_refused() {
    binary(Isa::Scalar, BinaryOp::Add, &[1.0; 3], &[1.0; 3], &mut [0.0; 2]);
}
