//! Attention, against a softmax in f64.

use fucina_testkit::Rng;

use crate::gpu::{Gpu, Kernels, Params, Shape, fails, read_f32};

#[derive(Debug, Clone, Copy)]
struct Case {
    t: usize,
    s: usize,
    heads: usize,
    group: usize,
    d: usize,
    dv: usize,
    causal: bool,
    q_offset: usize,
    window: usize,
    soft_cap: f32,
    splits: usize,
    half: bool,
    q_size: f32,
}

const PLAIN: Case = Case {
    t: 5,
    s: 9,
    heads: 4,
    group: 2,
    d: 64,
    dv: 64,
    causal: true,
    q_offset: 4,
    window: 0,
    soft_cap: 0.0,
    splits: 1,
    half: true,
    q_size: 1.0,
};

/// Operands with gaps between their rows.
struct Operands {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    strides: [[usize; 2]; 3],
}

impl Case {
    fn kv_heads(&self) -> usize {
        self.heads / self.group
    }

    fn operands(&self, rng: &mut Rng) -> Operands {
        let strides = [
            [self.heads * self.d + 16, self.d],
            [self.kv_heads() * self.d + 8, self.d],
            [self.kv_heads() * self.dv + 24, self.dv],
        ];
        let mut random = |rows: usize, stride: usize, size: f32| -> Vec<f32> {
            let values = rng.normals(rows * stride, size);
            if size == 1.0 && self.half {
                return values.iter().map(|&v| half::f16::from_f32(v).to_f32()).collect();
            }
            values
        };
        let k = random(self.s, strides[1][0], 1.0);
        let v = random(self.s, strides[2][0], 1.0);
        // Queries are f32 whatever the keys are.
        let q = random(self.t, strides[0][0], self.q_size * 1.000_1);
        Operands { q, k, v, strides }
    }

    fn upload(&self, gpu: &Gpu, values: &[f32]) -> std::sync::Arc<fucina_cuda_sim::exec::Region> {
        if self.half {
            let halves = values.iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes());
            gpu.upload(&halves.collect::<Vec<_>>())
        } else {
            gpu.upload_f32(values)
        }
    }

    fn scale(&self) -> f32 {
        1.0 / (self.d as f32).sqrt() / self.q_size
    }

    fn run(
        &self,
        module: &Kernels,
        name: &str,
        rows: usize,
        threads: usize,
        shared: usize,
        x: &Operands,
    ) -> Vec<f32> {
        let gpu = Gpu::new((self.t + self.s) as u64);
        let (out_rows, dv) = (self.t * self.heads, self.dv);
        let parts = gpu.floats(self.splits * out_rows * dv);
        let max_sum = gpu.floats(self.splits * out_rows * 2);
        let params = Params::new().buffer(&gpu.upload_f32(&x.q));
        let params = params.buffer(&self.upload(&gpu, &x.k)).buffer(&self.upload(&gpu, &x.v));
        let params = params.buffer(&parts);
        let params = if self.splits > 1 { params.buffer(&max_sum) } else { params.null() };
        let params = params.longs(&x.strides.concat()).longs(&[self.q_offset, self.window]);
        let params = params.ints(&[self.t, self.s, self.heads, self.group, self.d, dv]);
        let params = params.float(self.scale()).float(self.soft_cap).int(usize::from(self.causal));
        let grid = [(self.t * self.group).div_ceil(rows), self.kv_heads(), self.splits];
        let shape: Shape = (grid, threads, shared);
        gpu.launch(module, name, shape, &params);
        if self.splits == 1 {
            return read_f32(&parts, out_rows * dv);
        }
        let out = gpu.floats(out_rows * dv);
        let params = Params::new().buffer(&parts).buffer(&max_sum).buffer(&out);
        let params = params.long(out_rows).ints(&[self.splits, dv]);
        let shape = ([out_rows, 1, 1], 128, 0);
        gpu.launch(&Kernels::load("attention.sm70"), "attention_combine", shape, &params);
        read_f32(&out, out_rows * dv)
    }

    fn sees(&self, i: usize, j: usize) -> bool {
        let position = self.q_offset + i;
        (!self.causal || j <= position) && (self.window == 0 || j + self.window > position)
    }

    /// `rounding` is the relative error of a query's or weight's element: 2^-24 or 2^-11.
    fn check(&self, out: &[f32], x: &Operands, rounding: f64, label: &str) {
        for (at, &got) in out.iter().enumerate() {
            let (i, head, e) = (at / self.dv / self.heads, at / self.dv % self.heads, at % self.dv);
            let q = &x.q[i * x.strides[0][0] + head * self.d..][..self.d];
            let seen: Vec<usize> = (0..self.s).filter(|&j| self.sees(i, j)).collect();
            let (mut scores, mut slack) = (Vec::new(), 0f64);
            for &j in &seen {
                let k = &x.k[j * x.strides[1][0] + head / self.group * self.d..][..self.d];
                let (sum, size) = crate::weights::dot(q, k);
                let scale = f64::from(self.scale());
                let (score, size) = (sum * scale, size * scale);
                let cap = f64::from(self.soft_cap);
                scores.push(if cap > 0.0 { cap * (score / cap).tanh() } else { score });
                // Rounding of the query, of the sums, and of the cap.
                let sums = (self.d + 4) as f64 * 2f64.powi(-23);
                slack = slack.max(
                    (rounding + sums) * size + cap * 2f64.powi(-21) + 2f64.powi(-22) * score.abs(),
                );
            }
            let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let weights: Vec<f64> = scores.iter().map(|score| (score - top).exp()).collect();
            let total: f64 = weights.iter().sum();
            let (mut want, mut size, mut largest) = (0.0, 0.0, 0f64);
            for (&j, weight) in seen.iter().zip(&weights) {
                let v = f64::from(x.v[j * x.strides[2][0] + head / self.group * self.dv + e]);
                want += weight / total * v;
                size += weight / total * v.abs();
                largest = largest.max(v.abs());
            }
            // A score that is off by `slack` changes a weight by that share, and the sum, too; weights
            // are rounded, those below the range of f16 absolutely; sums are f32.
            let adding = (seen.len() + 16) as f64 * 2f64.powi(-22);
            let bound = (2.0 * slack * (1.0 + slack) + rounding + adding) * size
                + if rounding > 1e-6 { seen.len() as f64 * 2f64.powi(-24) * largest } else { 1e-9 };
            let error = (f64::from(got) - want).abs();
            assert!(
                error <= bound,
                "{label} {self:?}[{at}]: {got}, not {want}: {error:e} > {bound:e}"
            );
        }
    }
}

/// Shapes with every mask, ragged ends, groups, rows that see nothing, and splits without keys.
fn cases() -> Vec<Case> {
    vec![
        PLAIN,
        Case { t: 1, s: 1, heads: 1, group: 1, q_offset: 0, ..PLAIN },
        Case {
            t: 33,
            s: 70,
            heads: 2,
            group: 1,
            d: 40,
            dv: 56,
            q_offset: 37,
            window: 20,
            soft_cap: 30.0,
            ..PLAIN
        },
        Case { t: 3, s: 40, heads: 6, group: 3, causal: false, splits: 3, ..PLAIN },
        Case { t: 40, s: 40, heads: 3, group: 3, dv: 40, q_offset: 0, splits: 2, ..PLAIN },
        Case { t: 4, s: 10, heads: 2, group: 1, q_offset: 20, window: 3, ..PLAIN },
        Case { t: 2, s: 130, heads: 8, group: 8, q_offset: 128, splits: 40, ..PLAIN },
        Case { t: 2, s: 33, q_size: 1e8, q_offset: 31, ..PLAIN },
    ]
}

#[test]
fn attention_in_f32_is_right() {
    let kernels = Kernels::load("attention.sm70");
    let mut rng = Rng::new(1);
    for half in [false, true] {
        let name = if half { "f16" } else { "f32" };
        for case in cases() {
            let case = Case { half, ..case };
            let x = case.operands(&mut rng);
            let out = case.run(&kernels, &format!("attention_{name}_d64"), 32, 256, 0, &x);
            case.check(&out, &x, 2f64.powi(-24), "tile");
            for rows in [1, 4] {
                let kernel = format!("attention_decode_{name}_d64_r{rows}");
                let out = case.run(&kernels, &kernel, rows, 128, 0, &x);
                case.check(&out, &x, 2f64.powi(-24), "decode");
            }
        }
        for (size, rows, d) in
            [(128, 32, 128), (128, 32, 80), (128, 32, 96), (256, 16, 256), (256, 16, 160)]
        {
            let case = Case { t: 5, s: 37, d, dv: d, q_offset: 32, half, ..PLAIN };
            let x = case.operands(&mut rng);
            let kernel = format!("attention_{name}_d{size}");
            case.check(&case.run(&kernels, &kernel, rows, 256, 0, &x), &x, 2f64.powi(-24), &kernel);
            for rows in [1, 4] {
                let kernel = format!("attention_decode_{name}_d{size}_r{rows}");
                let out = case.run(&kernels, &kernel, rows, 128, 0, &x);
                case.check(&out, &x, 2f64.powi(-24), &kernel);
            }
        }
        // The tiled kernel takes any head size.
        let case = Case { t: 3, s: 7, d: 33, dv: 17, q_offset: 4, half, ..PLAIN };
        let x = case.operands(&mut rng);
        let out = case.run(&kernels, &format!("attention_{name}_d64"), 32, 256, 0, &x);
        case.check(&out, &x, 2f64.powi(-24), "odd");
    }
}

#[test]
fn attention_on_tensor_cores_is_right() {
    let kernels = Kernels::load("attention.sm80");
    let mut rng = Rng::new(2);
    let mut all = cases();
    all.push(Case { t: 70, s: 130, heads: 2, group: 2, causal: false, ..PLAIN });
    all.push(Case { t: 65, s: 65, heads: 1, group: 1, q_offset: 0, splits: 2, ..PLAIN });
    for case in all {
        let x = case.operands(&mut rng);
        let out = case.run(&kernels, "attention_mma_f16_d64", 64, 128, 24576, &x);
        case.check(&out, &x, 2f64.powi(-11), "mma");
    }
    for (size, shared, d) in
        [(128, 49152, 128), (128, 49152, 80), (256, 65536, 256), (256, 65536, 136)]
    {
        let case = Case { t: 20, s: 70, d, dv: d, q_offset: 50, ..PLAIN };
        let x = case.operands(&mut rng);
        let kernel = format!("attention_mma_f16_d{size}");
        let out = case.run(&kernels, &kernel, 64, 128, shared, &x);
        case.check(&out, &x, 2f64.powi(-11), &kernel);
    }
}

/// A key that a row does not see may hold anything.
#[test]
fn keys_out_of_sight_do_not_matter() {
    let kernels = Kernels::load("attention.sm70");
    let mut rng = Rng::new(3);
    let case = Case { t: 6, s: 40, q_offset: 30, window: 9, half: false, ..PLAIN };
    let mut x = case.operands(&mut rng);
    for token in [0, 12, 39] {
        x.k[token * x.strides[1][0]..][..x.strides[1][0]].fill(f32::NAN);
        x.v[token * x.strides[2][0]..][..x.strides[2][0]].fill(f32::INFINITY);
    }
    for (kernel, rows, threads) in [
        ("attention_f32_d64", 32, 256),
        ("attention_decode_f32_d64_r1", 1, 128),
        ("attention_decode_f32_d64_r4", 4, 128),
    ] {
        let out = case.run(&kernels, kernel, rows, threads, 0, &x);
        case.check(&out, &x, 2f64.powi(-24), kernel);
    }
}

/// Without any one of its barriers or waits, a kernel is wrong, and it is seen.
#[test]
fn every_barrier_of_attention_matters() {
    let mut rng = Rng::new(4);
    let case = Case { t: 20, s: 200, q_offset: 180, ..PLAIN };
    let x = case.operands(&mut rng);
    for (module, kernel, rows, threads, shared) in [
        ("attention.sm70", "attention_f16_d64", 32, 256, 0),
        ("attention.sm70", "attention_decode_f16_d64_r4", 4, 128, 0),
        ("attention.sm80", "attention_mma_f16_d64", 64, 128, 24576),
    ] {
        for (label, mutant) in Kernels::without_each_barrier(module, kernel) {
            let check = || {
                let out = case.run(&mutant, kernel, rows, threads, shared, &x);
                case.check(&out, &x, 2f64.powi(-11), &label);
            };
            assert!(fails(check), "{label}: nothing fails");
        }
    }
}
