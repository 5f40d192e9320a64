//! Ops on elements and on rows.

use fucina_testkit::Rng;

use crate::gpu::{Gpu, Kernels, Params, read_f32};

type Op = (&'static str, fn(f64, f64) -> f64);

const PARAMETER: f64 = 2.5;

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
    x / 2.0 * (1.0 + inner.tanh())
}

/// By the Maclaurin series: the standard library has no error function. Right to 1e-13 up to 5.
fn erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        let n = f64::from(n);
        term *= -x * x / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * 2.0 / std::f64::consts::PI.sqrt()
}

fn gelu_erf(x: f64) -> f64 {
    x / 2.0 * (1.0 + erf(x / std::f64::consts::SQRT_2))
}

const OPS: &[Op] = &[
    ("op_add", |a, b| a + b),
    ("op_sub", |a, b| a - b),
    ("op_mul", |a, b| a * b),
    ("op_div", |a, b| a / b),
    ("op_swiglu", |a, b| a * sigmoid(a) * b),
    ("op_geglu_tanh", |a, b| gelu_tanh(a) * b),
    ("op_geglu_erf", |a, b| gelu_erf(a) * b),
    ("op_silu", |a, _| a * sigmoid(a)),
    ("op_gelu_tanh", |a, _| gelu_tanh(a)),
    ("op_gelu_erf", |a, _| gelu_erf(a)),
    ("op_exp", |a, _| a.exp()),
    ("op_neg", |a, _| -a),
    ("op_scale", |a, _| a * PARAMETER),
    ("op_soft_cap", |a, _| PARAMETER * (a / PARAMETER).tanh()),
    ("op_tanh", |a, _| a.tanh()),
    ("op_sigmoid", |a, _| sigmoid(a)),
    ("op_relu", |a, _| a.max(0.0)),
    ("op_sqrt", |a, _| a.sqrt()),
    ("op_copy", |a, _| a),
];

/// Few roundings, each of at most 2^-24 of something no larger than |x| + |y| or the result; functions
/// of the library are right to 2 units in the last place, and exponents carry their rounding over.
fn assert_near(got: f32, want: f64, inputs: f64, label: &str) {
    if want.is_nan() {
        assert!(got.is_nan(), "{label}: {got}, not NaN");
        return;
    }
    let bound = 2f64.powi(-20) * want.abs() + 2f64.powi(-21) * inputs.min(8.0);
    let error = (f64::from(got) - want).abs();
    assert!(error <= bound, "{label}: {got}, not {want}: {error:e} > {bound:e}");
}

struct Element<'a> {
    a: &'a [f32],
    b: &'a [f32],
    sizes: [usize; 4],
    strides: Option<([usize; 4], [usize; 4])>,
    elems: usize,
}

impl Element<'_> {
    fn run(&self, name: &str) -> Vec<f32> {
        let gpu = Gpu::new(self.elems as u64);
        let (a, b) = (gpu.upload_f32(self.a), gpu.upload_f32(self.b));
        let out = gpu.floats(self.elems);
        let params = Params::new().buffer(&a).buffer(&b).buffer(&out).long(self.elems);
        let (to_a, to_b) = self.strides.unwrap_or_default();
        let params = params.longs(&to_a).longs(&to_b).ints(&self.sizes);
        let params = params.float(PARAMETER as f32).int(usize::from(self.strides.is_none()));
        let grid = self.elems.div_ceil(1024);
        gpu.launch(&Kernels::load("elementwise.sm70"), name, ([grid, 1, 1], 256, 0), &params);
        read_f32(&out, self.elems)
    }

    fn places(&self, at: usize) -> (usize, usize) {
        let Some((to_a, to_b)) = self.strides else { return (at, at) };
        let (mut rest, mut places) = (at, (0, 0));
        for axis in (0..4).rev() {
            let here = rest % self.sizes[axis];
            rest /= self.sizes[axis];
            places = (places.0 + here * to_a[axis], places.1 + here * to_b[axis]);
        }
        places
    }
}

#[test]
fn elements_are_right_dense_strided_and_broadcast() {
    let mut rng = Rng::new(1);
    let a: Vec<f32> = (0..4000).map(|_| rng.uniform(-4.0, 4.0)).collect();
    let b: Vec<f32> = (0..4000).map(|_| rng.uniform(0.5, 2.0)).collect();
    let strided = ([1, 2, 60, 300], [0, 7, 0, 21]);
    for (elems, sizes, strides) in
        [(1, [1; 4], None), (1027, [1, 1, 1, 1027], None), (210, [2, 3, 5, 7], Some(strided))]
    {
        let element = Element { a: &a, b: &b, sizes, strides, elems };
        for (name, op) in OPS {
            for (at, got) in element.run(name).into_iter().enumerate() {
                let (i, j) = element.places(at);
                let (x, y) = (f64::from(a[i]), f64::from(b[j]));
                let label = format!("{name}({x}, {y})");
                assert_near(got, op(x, y), x.abs() * y.abs().max(1.0) + y.abs(), &label);
            }
        }
    }
}

#[test]
fn what_is_not_finite_stays_so() {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, f32::MAX, f32::MIN];
    let b = [1.0; 6];
    let element = Element { a: &special, b: &b, sizes: [1, 1, 1, 6], strides: None, elems: 6 };
    for (name, want) in [
        ("op_relu", [f32::NAN, f32::INFINITY, 0.0, -0.0, f32::MAX, 0.0]),
        ("op_copy", special),
        ("op_tanh", [f32::NAN, 1.0, -1.0, -0.0, 1.0, -1.0]),
        ("op_sigmoid", [f32::NAN, 1.0, 0.0, 0.5, 1.0, 0.0]),
        ("op_soft_cap", [f32::NAN, 2.5, -2.5, -0.0, 2.5, -2.5]),
        ("op_exp", [f32::NAN, f32::INFINITY, 0.0, 1.0, f32::INFINITY, 0.0]),
        ("op_mul", special),
    ] {
        fucina_testkit::assert_bits_equal(&element.run(name), &want, name);
    }
}

fn row_op(
    name: &str,
    x: &[f32],
    weight: Option<&[f32]>,
    [rows, d, row_stride, col_stride]: [usize; 4],
    parameter: f32,
) -> Vec<f32> {
    let gpu = Gpu::new(d as u64);
    let device = gpu.upload_f32(x);
    let weight = weight.map(|weight| gpu.upload_f32(weight));
    let out = gpu.floats(rows * d);
    let params = Params::new().buffer(&device);
    let params = match &weight {
        Some(weight) => params.buffer(weight),
        None => params.null(),
    };
    let params = params.buffer(&out).longs(&[row_stride, col_stride, 2]).int(d).float(parameter);
    gpu.launch(&Kernels::load("norm.sm70"), name, ([rows, 1, 1], 256, 0), &params);
    read_f32(&out, rows * d)
}

#[test]
fn normalized_rows_are_right_at_every_magnitude() {
    let mut rng = Rng::new(2);
    for d in (1..=66).step_by(5).chain([130, 255, 256, 257, 1030]) {
        for size in [1.0, 1e20, 1e-20] {
            let (rows, stride) = (3, 2 * d + 3);
            let x = rng.normals(rows * stride, size);
            let weight = rng.normals(2 * d, 1.0);
            let with_weight = d % 2 == 0;
            let out =
                row_op("rms_norm", &x, with_weight.then_some(&weight), [rows, d, stride, 2], 1e-6);
            for (at, got) in out.into_iter().enumerate() {
                let row = |i: usize| f64::from(x[at / d * stride + 2 * i]);
                let mean = (0..d).map(|i| row(i) * row(i)).sum::<f64>() / d as f64;
                let scale = if with_weight { f64::from(weight[at % d * 2]) } else { 1.0 };
                let want = row(at % d) / (mean + f64::from(1e-6f32)).sqrt() * scale;
                // Squares add with at most d/256 + 16 roundings, halved by the root; six more.
                let bound = ((d / 256) as f64 + 24.0) * 2f64.powi(-24) * want.abs() + 1e-44;
                let error = (f64::from(got) - want).abs();
                assert!(error <= bound, "{d} of {size:e}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn a_softmax_is_right_and_does_not_overflow() {
    let mut rng = Rng::new(3);
    for d in (1..=66).step_by(7).chain([130, 256, 257, 1030]) {
        for scale in [1.0, 300.0, -2.0] {
            let (rows, stride) = (3, d + 3);
            let x = rng.normals(rows * stride, 1.0);
            let out = row_op("softmax", &x, None, [rows, d, stride, 1], scale);
            for (at, got) in out.into_iter().enumerate() {
                let row = |i: usize| f64::from(scale * x[at / d * stride + i]);
                let top = (0..d).map(row).fold(f64::NEG_INFINITY, f64::max);
                let sum: f64 = (0..d).map(|i| (row(i) - top).exp()).sum();
                let want = (row(at % d) - top).exp() / sum;
                // The difference of scores is rounded to 2^-24 of itself, and that much of it is the
                // relative error of its exponential.
                let relative =
                    ((row(at % d) - top).abs() + (d / 256) as f64 + 24.0) * 2f64.powi(-24);
                let bound = relative * want + 1e-38;
                let error = (f64::from(got) - want).abs();
                assert!(error <= bound, "{d} at {scale}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn heads_turn_by_their_angles() {
    let mut rng = Rng::new(4);
    let (tokens, heads, d) = (3, 5, 67);
    for name in ["rope_interleaved", "rope_halves"] {
        for half in [0, 1, 8, 33] {
            let x = rng.normals(tokens * heads * d * 2, 1.0);
            let (cos, sin) = (rng.normals(tokens * 40, 1.0), rng.normals(tokens * 40, 1.0));
            let gpu = Gpu::new(half as u64);
            let out = gpu.floats(tokens * heads * d);
            let params = Params::new().buffer(&gpu.upload_f32(&x)).buffer(&gpu.upload_f32(&cos));
            let params = params.buffer(&gpu.upload_f32(&sin)).buffer(&out);
            let strides = [2 * heads * d, d, 1];
            let params = params.longs(&strides).longs(&[40, 1]).longs(&[1, tokens]);
            let params = params.ints(&[heads, d, half]);
            let grid = [(heads * (d - half)).div_ceil(256), tokens, 1];
            gpu.launch(&Kernels::load("norm.sm70"), name, (grid, 256, 0), &params);
            for (at, got) in read_f32(&out, tokens * heads * d).into_iter().enumerate() {
                let (token, head, i) = (at / d / heads, at / d % heads, at % d);
                let x = |i: usize| f64::from(x[token * strides[0] + head * d + i]);
                let (pair, first) = match name {
                    "rope_halves" => (i % half.max(1), i < half),
                    _ => (i / 2, i % 2 == 0),
                };
                let want = if i < 2 * half {
                    let (c, s) = (cos[token * 40 + pair], sin[token + pair * tokens]);
                    let other = match (name, first) {
                        ("rope_halves", true) => i + half,
                        ("rope_halves", false) => i - half,
                        (_, true) => i + 1,
                        (_, false) => i - 1,
                    };
                    let sign = if first { -1.0 } else { 1.0 };
                    x(i) * f64::from(c) + sign * x(other) * f64::from(s)
                } else {
                    x(i)
                };
                // Two products and a sum of values below 6.
                let error = (f64::from(got) - want).abs();
                assert!(error <= 72.0 * 2f64.powi(-24), "{name} {half} {at}: {got}, not {want}");
            }
        }
    }
}

#[test]
fn results_of_experts_come_back_together() {
    let mut rng = Rng::new(5);
    let (tokens, rows, d) = (4, 9, 300);
    for used in [0, 1, 3] {
        let x = rng.normals(rows * 2 * d, 1.0);
        let weights = rng.normals(tokens * 8, 1.0);
        let ids: Vec<i32> = (0..tokens * used).map(|i| (i * 7 % rows) as i32).collect();
        let gpu = Gpu::new(1);
        let out = gpu.floats(tokens * d);
        let params = Params::new().buffer(&gpu.upload_f32(&x)).buffer(&gpu.upload_f32(&weights));
        let params = params.buffer(&gpu.upload_i32(&ids)).buffer(&out);
        let params = params.longs(&[2 * d, 2]).longs(&[8, 2]).ints(&[used, d]);
        let grid = [d.div_ceil(256), tokens, 1];
        gpu.launch(&Kernels::load("norm.sm70"), "combine", (grid, 256, 0), &params);
        for (at, got) in read_f32(&out, tokens * d).into_iter().enumerate() {
            let (token, i) = (at / d, at % d);
            let (mut want, mut size) = (0.0, 0.0);
            for j in 0..used {
                let row = ids[token * used + j] as usize;
                let term =
                    f64::from(weights[token * 8 + 2 * j]) * f64::from(x[row * 2 * d + 2 * i]);
                want += term;
                size += term.abs();
            }
            let error = (f64::from(got) - want).abs();
            assert!(error <= 4.0 * 2f64.powi(-24) * size, "{used} {at}: {got}, not {want}");
        }
    }
}
