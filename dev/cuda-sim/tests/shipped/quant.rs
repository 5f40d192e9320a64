//! Products with weights in block formats and 16-bit floats.

use std::sync::Arc;

use fucina_cuda_sim::exec::Region;
use fucina_dtype::DType;
use fucina_testkit::Rng;

use crate::ROWS;
use crate::gpu::{Gpu, Kernels, Params, fails, read_f32};
use crate::weights::{GEMM_FORMATS, Weights, Wide, lengths};

/// Rows of activations as the tiled kernels take them.
struct Packed {
    x: Arc<Region>,
    scale: Arc<Region>,
    stride: usize,
}

fn pack(gpu: &Gpu, x: &[f32], k: usize) -> Packed {
    let rows = x.len() / k;
    let stride = k.next_multiple_of(64);
    let from = gpu.upload_f32(x);
    let packed = Packed { x: gpu.halves(rows * stride), scale: gpu.floats(rows), stride };
    let params = Params::new().buffer(&from).null().buffer(&packed.x).buffer(&packed.scale);
    let params = params.long(k).ints(&[k, stride]);
    gpu.launch(&Kernels::load("pack.sm70"), "pack_f16_f32", ([rows, 1, 1], 256, 0), &params);
    packed
}

/// The word that `weight_max` writes.
fn weight_max(gpu: &Gpu, weights: &Weights, device: &Region) -> Arc<Region> {
    let word = gpu.upload(&[0; 4]);
    let rows = weights.values.len() / weights.k;
    let params = Params::new().buffer(device).buffer(&word).longs(&[weights.row_bytes(), rows]);
    let name = format!("weight_max_{}", weights.name());
    gpu.launch(&Kernels::load("rows.sm70"), &name, ([3, 1, 1], 256, 0), &params.int(weights.k));
    word
}

/// How a tiled kernel is launched.
#[derive(Clone, Copy)]
struct Tiled {
    chip: u32,
    bm: usize,
}

impl Tiled {
    fn all() -> Vec<Self> {
        let of = |chip: u32, sizes: &[usize]| -> Vec<Self> {
            sizes.iter().map(|&bm| Self { chip, bm }).collect()
        };
        [of(70, &[32, 64]), of(80, &[16, 32, 64, 128])].concat()
    }

    fn kernel(self, weights: &Weights) -> String {
        format!("gemm_{}_m{}", weights.name(), self.bm)
    }

    fn module(self, dtype: DType) -> Kernels {
        Kernels::load(&format!("gemm_{}.sm{}", dtype.name().to_lowercase(), self.chip))
    }

    /// As the README of the kernels says.
    fn dynamic_shared(self) -> usize {
        match (self.chip, self.bm) {
            (70, _) => 0,
            (_, 16) => 24576,
            (_, 32) => 32768,
            (_, 64) => 40960,
            _ => 65536,
        }
    }
}

/// The operands of a tiled product on a device.
struct Problem<'a> {
    gpu: &'a Gpu,
    weights: &'a Weights,
    x: &'a [f32],
    n: usize,
    splits: usize,
}

impl Problem<'_> {
    fn k(&self) -> usize {
        self.weights.k
    }

    fn m(&self) -> usize {
        self.x.len() / self.k()
    }

    /// One matrix for all rows.
    fn run(&self, kernels: &Kernels, tiled: Tiled) -> Vec<f32> {
        let m = self.m();
        self.run_with(kernels, tiled, m.div_ceil(tiled.bm), m, None)
    }

    fn run_with(
        &self,
        kernels: &Kernels,
        tiled: Tiled,
        row_tiles: usize,
        out_rows: usize,
        grouped: Option<(&Region, &Region)>,
    ) -> Vec<f32> {
        let Self { gpu, weights, n, splits, .. } = *self;
        let packed = pack(gpu, self.x, self.k());
        let device = gpu.upload(&weights.bytes);
        let max = weight_max(gpu, weights, &device);
        let plane = out_rows * n;
        let out = gpu.floats(splits * plane);
        let params = Params::new().buffer(&packed.x).buffer(&packed.scale).buffer(&device);
        let params = params.buffer(&max).buffer(&out);
        let params = match grouped {
            Some((tiles, ids)) => params.buffer(tiles).buffer(ids),
            None => params.null().null(),
        };
        let params = params.longs(&[weights.row_bytes(), n * weights.row_bytes(), plane]);
        let params = params.ints(&[out_rows, n, self.k(), packed.stride]);
        let shape = ([row_tiles, n.div_ceil(64), splits], 128, tiled.dynamic_shared());
        gpu.launch(kernels, &tiled.kernel(weights), shape, &params);
        if splits == 1 { read_f32(&out, plane) } else { reduce(gpu, &out, plane, splits) }
    }

    /// See the README of the kernels: both operands are rounded to f16, sums are f32 (and may be cut off
    /// rather than rounded), and what is far below the largest of its row is rounded absolutely.
    fn check(&self, out: &[f32], rows: impl Fn(usize) -> (usize, usize), label: &str) {
        let k = self.k();
        let sums = (k as f64 + 2.0 + self.splits as f64) * 2f64.powi(-23);
        let far_below = k as f64 * 2f64.powi(-38) * self.weights.largest();
        let (x, w) = (Wide::new(self.x, k), Wide::new(&self.weights.values, k));
        for (row, out) in out.chunks_exact(self.n).enumerate() {
            let (x_row, expert) = rows(row);
            let absolute = far_below * x.largest(x_row);
            for (col, &got) in out.iter().enumerate() {
                let (want, size) = x.dot(x_row, &w, expert * self.n + col);
                let bound = (2f64.powi(-10) + sums) * size + absolute;
                let error = (f64::from(got) - want).abs();
                assert!(
                    error <= bound,
                    "{label}[{row}, {col}]: {got}, not {want}: {error:e} > {bound:e}"
                );
            }
        }
    }
}

fn reduce(gpu: &Gpu, planes: &Region, elems: usize, splits: usize) -> Vec<f32> {
    let out = gpu.floats(elems);
    let params = Params::new().buffer(planes).buffer(&out).long(elems).int(splits);
    let shape = ([elems.div_ceil(1024), 1, 1], 256, 0);
    gpu.launch(&Kernels::load("pack.sm70"), "reduce_splits", shape, &params);
    read_f32(&out, elems)
}

/// Activations with one channel far outside the range of f16 in every third row, one of tiny rows, and
/// ordinary ones.
fn activations(m: usize, k: usize, rng: &mut Rng) -> Vec<f32> {
    let mut x = rng.normals(m * k, 1.0);
    for (row, x) in x.chunks_exact_mut(k).enumerate() {
        match row % 3 {
            0 => x[row % k] = 3.1e5,
            1 => x.iter_mut().for_each(|x| *x *= 1e-9),
            _ => {}
        }
    }
    x
}

fn tiled_products_are_right(dtype: DType) {
    let mut rng = Rng::new(dtype.name().len() as u64 + 40);
    let columns = [1, 63, 64, 65, 130];
    for (case, tiled) in Tiled::all().into_iter().enumerate() {
        let kernels = tiled.module(dtype);
        for (at, &m) in ROWS.iter().enumerate() {
            // Larger tiles see the counts around them, and a few below.
            if m > 2 * tiled.bm + 1 || (tiled.bm >= 64 && m > 3 && m < 31) {
                continue;
            }
            let k = lengths(dtype)[(at + case) % lengths(dtype).len()];
            let n = columns[(at + 2 * case) % columns.len()];
            let splits = 1 + (at + case) % 3;
            let weights = Weights::random(dtype, n, k, &mut rng);
            let x = activations(m, k, &mut rng);
            let gpu = Gpu::new(at as u64);
            let problem = Problem { gpu: &gpu, weights: &weights, x: &x, n, splits };
            let out = problem.run(&kernels, tiled);
            let label = format!("{dtype} {m}x{n}x{k} m{} sm{} z{splits}", tiled.bm, tiled.chip);
            problem.check(&out, |row| (row, 0), &label);
        }
    }
}

fn grouped_products_are_right(dtype: DType) {
    let mut rng = Rng::new(7);
    let (n, k) = (68, *lengths(dtype).last().unwrap());
    let counts = [0, 1, 7, 33, 40];
    let weights = Weights::random(dtype, counts.len() * n, k, &mut rng);
    let x = activations(30, k, &mut rng);
    for tiled in Tiled::all() {
        let (mut tiles, mut experts) = (Vec::new(), Vec::new());
        for (expert, &count) in counts.iter().enumerate() {
            for tile in 0..usize::div_ceil(count, tiled.bm) {
                tiles.extend([expert, experts.len(), count, tile].map(|v| v as i32));
            }
            experts.extend(std::iter::repeat_n(expert, count));
        }
        // A record of padding.
        tiles.extend([0; 4]);
        let ids: Vec<i32> = (0..experts.len()).map(|row| (row * 11 % 30) as i32).collect();
        let gpu = Gpu::new(3);
        let problem = Problem { gpu: &gpu, weights: &weights, x: &x, n, splits: 1 };
        let (device_tiles, device_ids) = (gpu.upload_i32(&tiles), gpu.upload_i32(&ids));
        let out = problem.run_with(
            &tiled.module(dtype),
            tiled,
            tiles.len() / 4,
            experts.len(),
            Some((&device_tiles, &device_ids)),
        );
        let label = format!("{dtype} grouped m{} sm{}", tiled.bm, tiled.chip);
        problem.check(&out, |row| (ids[row] as usize, experts[row]), &label);
    }
}

fn scalar_products_are_right(dtype: DType) {
    let mut rng = Rng::new(11);
    let name = dtype.name().to_lowercase();
    let kernels = Kernels::load(&format!("gemm_{name}.sm70"));
    for (case, &(m, n)) in [(1, 1), (9, 63), (64, 65), (65, 68)].iter().enumerate() {
        let k = lengths(dtype)[case % lengths(dtype).len()];
        let splits = 1 + case % 2;
        let weights = Weights::random(dtype, n, k, &mut rng);
        let x = activations(m, k, &mut rng);
        let gpu = Gpu::new(case as u64);
        let (device_x, device_w) = (gpu.upload_f32(&x), gpu.upload(&weights.bytes));
        let out = gpu.floats(splits * m * n);
        let params = Params::new().buffer(&device_x).null().buffer(&device_w).null().buffer(&out);
        let params = params.null().null().longs(&[weights.row_bytes(), 0, m * n]);
        let params = params.ints(&[m, n, k, k]);
        let shape = ([m.div_ceil(64), n.div_ceil(64), splits], 256, 0);
        gpu.launch(&kernels, &format!("gemm_{name}_scalar"), shape, &params);
        let out = match splits {
            1 => read_f32(&out, m * n),
            _ => reduce(&gpu, &out, m * n, splits),
        };
        check_f32(&out, &x, &weights, n, |row| (row, 0), &format!("{dtype} scalar {m}x{n}x{k}"));
    }
}

/// Experts in f32, which only the fallback takes.
#[test]
fn grouped_products_in_f32_are_right() {
    let mut rng = Rng::new(31);
    let (n, k, counts) = (37, 70, [3, 0, 65, 1]);
    let weights = Weights::random(DType::F32, counts.len() * n, k, &mut rng);
    let x = activations(9, k, &mut rng);
    let (mut tiles, mut experts) = (Vec::new(), Vec::new());
    for (expert, &count) in counts.iter().enumerate() {
        for tile in 0..usize::div_ceil(count, 64) {
            tiles.extend([expert, experts.len(), count, tile].map(|v| v as i32));
        }
        experts.extend(std::iter::repeat_n(expert, count));
    }
    let ids: Vec<i32> = (0..experts.len()).map(|row| (row * 5 % 9) as i32).collect();
    let rows = experts.len();
    let gpu = Gpu::new(1);
    let (device_x, device_w) = (gpu.upload_f32(&x), gpu.upload(&weights.bytes));
    let out = gpu.floats(rows * n);
    let params = Params::new().buffer(&device_x).null().buffer(&device_w).null().buffer(&out);
    let params = params.buffer(&gpu.upload_i32(&tiles)).buffer(&gpu.upload_i32(&ids));
    let params = params.longs(&[4 * k, 4 * n * k, rows * n]).ints(&[rows, n, k, k]);
    let kernels = Kernels::load("gemm_f32.sm70");
    let shape = ([tiles.len() / 4, n.div_ceil(64), 1], 256, 0);
    gpu.launch(&kernels, "gemm_f32_scalar", shape, &params);
    let source = |row: usize| (ids[row] as usize, experts[row]);
    check_f32(&read_f32(&out, rows * n), &x, &weights, n, source, "grouped f32");
}

/// Nothing is rounded but the decoded weights (three operations at most) and the f32 sums.
fn check_f32(
    out: &[f32],
    x: &[f32],
    weights: &Weights,
    n: usize,
    rows: impl Fn(usize) -> (usize, usize),
    label: &str,
) {
    let k = weights.k;
    let largest = weights.largest();
    let (wide, w) = (Wide::new(x, k), Wide::new(&weights.values, k));
    for (row, out) in out.chunks_exact(n).enumerate() {
        let (x_row, expert) = rows(row);
        // The parts of an affine weight may be larger than their difference: by the scale times the
        // largest quant, which the largest weight of the matrix stands for.
        let sizes: f64 = x[x_row * k..][..k].iter().map(|x| f64::from(x.abs())).sum();
        let decoded = 4.0 * 2f64.powi(-24) * sizes * largest;
        for (col, &got) in out.iter().enumerate() {
            let (want, size) = wide.dot(x_row, &w, expert * n + col);
            let bound = (k + 2) as f64 * 2f64.powi(-24) * size + decoded;
            let error = (f64::from(got) - want).abs();
            assert!(
                error <= bound,
                "{label}[{row}, {col}]: {got}, not {want}: {error:e} > {bound:e}"
            );
        }
    }
}

fn products_for_few_rows_are_right(dtype: DType) {
    let mut rng = Rng::new(13);
    let name = dtype.name().to_lowercase();
    let kernels = Kernels::load(&format!("gemv_{name}.sm70"));
    for (at, m) in (1..=9).chain([17]).enumerate() {
        for (rows, per_block) in [(1, 8), (2, 8), (4, 4), (8, 4)] {
            let k = lengths(dtype)[(at + rows) % lengths(dtype).len()];
            let n = [1, 7, 8, 9, 33][(at + rows) % 5];
            let weights = Weights::random(dtype, n, k, &mut rng);
            let x = activations(m, k, &mut rng);
            let gpu = Gpu::new(at as u64);
            let (device_x, device_w) = (gpu.upload_f32(&x), gpu.upload(&weights.bytes));
            let out = gpu.floats(m * n);
            let params = Params::new().buffer(&device_x).buffer(&device_w).buffer(&out);
            let params = params.null().null().longs(&[k, weights.row_bytes(), 0]);
            let shape = ([n.div_ceil(per_block), m.div_ceil(rows), 1], 128, 0);
            let kernel = format!("gemv_{name}_r{rows}");
            gpu.launch(&kernels, &kernel, shape, &params.ints(&[m, n, k]));
            let label = format!("{kernel} {m}x{n}x{k}");
            check_f32(&read_f32(&out, m * n), &x, &weights, n, |row| (row, 0), &label);
        }
    }
}

/// An infinite activation gives what it gives on paper, also where lanes find their row ended: nothing
/// times infinity must not come in.
#[test]
fn an_infinity_is_not_multiplied_by_the_elements_after_a_row() {
    for (name, dtype) in [("q8_0", DType::Q8_0), ("q4_0", DType::Q4_0), ("q5_0", DType::Q5_0)] {
        let mut rng = Rng::new(37);
        let kernels = Kernels::load(&format!("gemv_{name}.sm70"));
        for k in [32, 64, 288] {
            let n = 9;
            let weights = Weights::random(dtype, n, k, &mut rng);
            let mut x: Vec<f32> = (0..2 * k).map(|_| rng.uniform(-1.0, 1.0)).collect();
            x[5] = f32::INFINITY;
            let gpu = Gpu::new(3);
            let (device_x, device_w) = (gpu.upload_f32(&x), gpu.upload(&weights.bytes));
            for (rows, per_block) in [(1, 8), (2, 8), (4, 4), (8, 4)] {
                let out = gpu.floats(2 * n);
                let params = Params::new().buffer(&device_x).buffer(&device_w).buffer(&out);
                let params = params.null().null().longs(&[k, weights.row_bytes(), 0]);
                let shape = ([n.div_ceil(per_block), 2_usize.div_ceil(rows), 1], 128, 0);
                let kernel = format!("gemv_{name}_r{rows}");
                gpu.launch(&kernels, &kernel, shape, &params.ints(&[2, n, k]));
                let got = read_f32(&out, 2 * n);
                for (col, &got) in got[..n].iter().enumerate() {
                    let want = weights.values[col * k + 5] * f32::INFINITY;
                    let same = if want.is_nan() { got.is_nan() } else { got == want };
                    assert!(same, "{kernel}, k {k}, column {col}: {got}, not {want}");
                }
                assert!(got[n..].iter().all(|y| y.is_finite()), "{kernel}, k {k}: {got:?}");
            }
        }
    }
}

fn each_row_may_have_its_expert(dtype: DType) {
    let mut rng = Rng::new(17);
    let name = dtype.name().to_lowercase();
    let (n, k) = (19, lengths(dtype)[1]);
    let (experts, ids) = ([2, 0, 3, 2, 1, 0], [1, 1, 0, 2, 2, 0]);
    let weights = Weights::random(dtype, 4 * n, k, &mut rng);
    let x = activations(3, k, &mut rng);
    let gpu = Gpu::new(5);
    let (device_x, device_w) = (gpu.upload_f32(&x), gpu.upload(&weights.bytes));
    let out = gpu.floats(experts.len() * n);
    let params = Params::new().buffer(&device_x).buffer(&device_w).buffer(&out);
    let params = params.buffer(&gpu.upload_i32(&experts)).buffer(&gpu.upload_i32(&ids));
    let params = params.longs(&[k, weights.row_bytes(), n * weights.row_bytes()]);
    let params = params.ints(&[experts.len(), n, k]);
    let kernels = Kernels::load(&format!("gemv_{name}.sm70"));
    let shape = ([usize::div_ceil(n, 8), experts.len(), 1], 128, 0);
    gpu.launch(&kernels, &format!("gemv_{name}_r1"), shape, &params);
    let rows = |row: usize| (ids[row] as usize, experts[row] as usize);
    check_f32(&read_f32(&out, experts.len() * n), &x, &weights, n, rows, &name);
}

macro_rules! for_each_format {
    ($($name:ident: $dtype:ident;)+) => {$(
        mod $name {
            use fucina_dtype::DType;

            #[test]
            fn tiled_products_are_right() {
                super::tiled_products_are_right(DType::$dtype);
            }

            #[test]
            fn grouped_products_are_right() {
                super::grouped_products_are_right(DType::$dtype);
            }

            #[test]
            fn scalar_products_are_right() {
                super::scalar_products_are_right(DType::$dtype);
            }
        }
    )+};
}

for_each_format! {
    q4_0: Q4_0;
    q5_0: Q5_0;
    q8_0: Q8_0;
    q4_k: Q4_K;
    q5_k: Q5_K;
    q6_k: Q6_K;
    tq2_0: TQ2_0;
    f16: F16;
    bf16: BF16;
}

#[test]
fn products_for_few_rows_are_right_in_every_block_format() {
    for &dtype in GEMM_FORMATS.iter().filter(|dtype| dtype.is_block()) {
        products_for_few_rows_are_right(dtype);
        each_row_may_have_its_expert(dtype);
    }
}

/// The order of blocks and warps has no influence on the result.
#[test]
fn every_schedule_gives_the_same_bits() {
    let mut rng = Rng::new(19);
    let (m, n, k) = (33, 65, 768);
    let weights = Weights::random(DType::Q5_K, n, k, &mut rng);
    let x = activations(m, k, &mut rng);
    for tiled in Tiled::all() {
        let kernels = tiled.module(DType::Q5_K);
        let run = |seed| {
            let gpu = Gpu::new(seed);
            Problem { gpu: &gpu, weights: &weights, x: &x, n, splits: 3 }.run(&kernels, tiled)
        };
        let first = run(0);
        for seed in 1..4 {
            fucina_testkit::assert_bits_equal(&run(seed), &first, &tiled.kernel(&weights));
        }
    }
}

/// 32 activations of 3000 with one sign, and weights whose scales are far below those of f16.
#[test]
fn magnitudes_outside_f16_do_not_matter() {
    let mut rng = Rng::new(23);
    let (m, n, k) = (5, 17, 256);
    // In the last one, one scale alone would take the sum out of the range of f32.
    let sizes = [(3e3, 0x7b00), (1e30, 0x3800), (1e-30, 0x3800), (3e3, 0x0001), (1e37, 0x0001)];
    for (x_size, d) in sizes {
        let mut weights = Weights::random(DType::Q8_0, n, k, &mut rng);
        for block in weights.bytes.chunks_exact_mut(34) {
            block[..2].copy_from_slice(&u16::to_le_bytes(d));
        }
        let weights = Weights::stored(DType::Q8_0, weights.bytes, n, k);
        let x: Vec<f32> = (0..m * k).map(|_| rng.uniform(0.5, 1.0) * x_size).collect();
        for tiled in Tiled::all() {
            let gpu = Gpu::new(1);
            let problem = Problem { gpu: &gpu, weights: &weights, x: &x, n, splits: 1 };
            let out = problem.run(&tiled.module(DType::Q8_0), tiled);
            problem.check(&out, |row| (row, 0), &format!("{x_size:e} by {d:#x}"));
        }
    }
}

/// An infinity or NaN stays in its own row.
#[test]
fn a_row_that_is_not_finite_does_not_spread() {
    let mut rng = Rng::new(29);
    let (m, n, k) = (20, 9, 64);
    let weights = Weights::random(DType::Q4_0, n, k, &mut rng);
    let mut x = activations(m, k, &mut rng);
    (x[2 * k + 5], x[7 * k]) = (f32::INFINITY, f32::NAN);
    for tiled in Tiled::all() {
        let gpu = Gpu::new(1);
        let problem = Problem { gpu: &gpu, weights: &weights, x: &x, n, splits: 1 };
        let mut out = problem.run(&tiled.module(DType::Q4_0), tiled);
        for row in [2, 7] {
            let row = &mut out[row * n..][..n];
            assert!(row.iter().all(|y| !y.is_finite()), "{row:?}");
        }
        // The others are compared with what they would be alone.
        let mut clean = x.clone();
        clean[2 * k..3 * k].fill(0.0);
        clean[7 * k..8 * k].fill(0.0);
        out[2 * n..3 * n].fill(0.0);
        out[7 * n..8 * n].fill(0.0);
        let problem = Problem { gpu: &gpu, weights: &weights, x: &clean, n, splits: 1 };
        problem.check(&out, |row| (row, 0), "not finite");
    }
}

/// Without any one of its barriers or waits, a kernel is wrong, and it is seen.
#[test]
fn every_barrier_of_a_tiled_product_matters() {
    let mut rng = Rng::new(37);
    let (n, k) = (65, 768);
    let weights = Weights::random(DType::Q4_K, n, k, &mut rng);
    for tiled in Tiled::all() {
        let x = activations(tiled.bm, k, &mut rng);
        let module = format!("gemm_q4_k.sm{}", tiled.chip);
        for (label, mutant) in Kernels::without_each_barrier(&module, &tiled.kernel(&weights)) {
            let check = || {
                let gpu = Gpu::new(1);
                let problem = Problem { gpu: &gpu, weights: &weights, x: &x, n, splits: 1 };
                problem.check(&problem.run(&mutant, tiled), |row| (row, 0), &label);
            };
            assert!(fails(check), "{label}: nothing fails");
        }
    }
}
