//! Elementwise ops against the oracle, special values and broadcasting included.

use std::sync::Arc;

use fucina_dtype::DType;

use super::Report;
use super::data::{Data, Random};
use super::ops::{Case, MakeCall};
use super::oracle::{self, U, Want};
use crate::call::{Activation, Binary, BinaryOp, Call, Glu, Unary, UnaryOp};
use crate::provider::Provider;

const ACTIVATIONS: [Activation; 3] = [Activation::Silu, Activation::GeluTanh, Activation::GeluErf];

pub(super) fn check(make: &dyn Fn() -> Arc<dyn Provider>, report: &mut Report) {
    let provider = make();
    let mut cases = Vec::new();
    for op in ACTIVATIONS.map(UnaryOp::Activation).into_iter().chain([
        UnaryOp::Exp,
        UnaryOp::Neg,
        UnaryOp::Scale(-0.3),
        UnaryOp::SoftCap(30.0),
        UnaryOp::Tanh,
        UnaryOp::Sigmoid,
        UnaryOp::Relu,
        UnaryOp::Sqrt,
        UnaryOp::Copy,
    ]) {
        cases.push(unary(op));
    }
    cases.push(strided_copy());
    for op in [BinaryOp::Add, BinaryOp::Sub, BinaryOp::Mul, BinaryOp::Div] {
        cases.extend(
            [None, Some(vec![0, 1]), Some(vec![1, 0]), Some(vec![0, 0])].map(|b| binary(op, b)),
        );
    }
    cases.extend(ACTIVATIONS.map(glu));
    for case in cases {
        report.record(case.name.as_str(), case.run(&*provider));
    }
}

/// Small, large, tiny and special arguments.
fn arguments() -> Vec<f32> {
    let mut random = Random::new(5);
    let mut values: Vec<f32> = (0..101).map(|_| random.unit() * 12.0).collect();
    values.extend([0.0, -0.0, 1e-20, -1e-20, 60.0, -60.0, 1e4, -1e4]);
    values.extend([f32::NAN, f32::INFINITY]);
    values
}

fn unary(op: UnaryOp) -> Case {
    let mut x = arguments();
    if !matches!(op, UnaryOp::Activation(_)) {
        // An activation at minus infinity is infinity times zero, and devices differ.
        x.push(f32::NEG_INFINITY);
    }
    let exact = matches!(op, UnaryOp::Neg | UnaryOp::Relu | UnaryOp::Copy);
    let want = x.iter().map(|&x| {
        let want = oracle::pointwise(|x| oracle::unary(op, x), f64::from(x));
        if exact { Want { bound: 0.0, ..want } } else { want }
    });
    let (want, inputs) = (want.collect(), vec![Data::f32s(&[x.len()], &x)]);
    let call: MakeCall = Box::new(move |inputs| Call::Unary(Unary { op, x: inputs[0] }));
    Case { name: format!("unary {op:?}"), inputs, call, want }
}

/// `[2, 3, 4]` seen as `[4, 2, 3]`.
fn strided_copy() -> Case {
    let mut x = Data::random(DType::F32, &[4, 2, 3], &mut Random::new(1));
    let values = x.values();
    x.strides = Some(vec![1, 12, 4]);
    let order =
        (0..4).flat_map(|i| (0..2).flat_map(move |j| (0..3).map(move |k| i + 12 * j + 4 * k)));
    let want = order.map(|at| Want { value: values[at], bound: 0.0 }).collect();
    let call: MakeCall = Box::new(|inputs| Call::Unary(Unary { op: UnaryOp::Copy, x: inputs[0] }));
    Case { name: "copy of a permuted view".to_owned(), inputs: vec![x], call, want }
}

/// `[5, 7] op [5, 7]`, the second operand with strides `b`.
fn binary(op: BinaryOp, strides: Option<Vec<usize>>) -> Case {
    let mut random = Random::new(9);
    let a = Data::random(DType::F32, &[5, 7], &mut random);
    let mut b = Data::random(DType::F32, &[5, 7], &mut random);
    b.strides = strides;
    let [s0, s1] = b.strides.as_deref().map_or([7, 1], |s| [s[0], s[1]]);
    let (left, right) = (a.values(), b.values());
    let want = (0..35).map(|at| oracle::binary(op, left[at], right[at / 7 * s0 + at % 7 * s1]));
    let name = format!("binary {op:?} with strides {s0} and {s1}");
    let want = want.collect();
    let call: MakeCall =
        Box::new(move |inputs| Call::Binary(Binary { op, a: inputs[0], b: inputs[1] }));
    Case { name, inputs: vec![a, b], call, want }
}

fn glu(activation: Activation) -> Case {
    let gate = arguments();
    let mut random = Random::new(3);
    let up: Vec<f32> = gate.iter().map(|_| random.unit()).collect();
    let want = gate.iter().zip(&up).map(|(&gate, &up)| {
        let (gate, up) = (f64::from(gate), f64::from(up));
        let active = oracle::pointwise(|x| oracle::activation(activation, x), gate);
        let value = active.value * up;
        Want::new(value, active.bound * up.abs() + U * value.abs())
    });
    let want = want.collect();
    let inputs = vec![Data::f32s(&[1, gate.len()], &gate), Data::f32s(&[1, up.len()], &up)];
    let call: MakeCall =
        Box::new(move |inputs| Call::Glu(Glu { gate: inputs[0], up: inputs[1], activation }));
    Case { name: format!("glu {activation:?}"), inputs, call, want }
}
