//! Products with activations in 8 bits.

use std::sync::Arc;

use fucina_cuda_sim::exec::Region;
use fucina_dtype::DType;
use fucina_testkit::Rng;

use crate::gpu::{Gpu, Kernels, Params, read_bytes, read_f32};
use crate::weights::{GEMM_FORMATS, Weights, dot, lengths};

struct Quantized {
    x: Arc<Region>,
    scale: Arc<Region>,
    stride: usize,
}

fn quantize(gpu: &Gpu, x: &[f32], k: usize, ids: Option<&[i32]>) -> Quantized {
    let rows = ids.map_or(x.len() / k, <[i32]>::len);
    let stride = k.next_multiple_of(64);
    let from = gpu.upload_f32(x);
    let out = Quantized {
        x: gpu.halves(rows * stride / 2),
        scale: gpu.floats(rows * stride / 16),
        stride,
    };
    let params = Params::new().buffer(&from);
    let params = match ids {
        Some(ids) => params.buffer(&gpu.upload_i32(ids)),
        None => params.null(),
    };
    let params = params.buffer(&out.x).buffer(&out.scale).long(k).ints(&[k, stride]);
    gpu.launch(&Kernels::load("quantize.sm70"), "quantize_i8", ([rows, 1, 1], 256, 0), &params);
    out
}

/// What the kernels make of the activations, by the definition.
fn rounded(x: &[f32], k: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for row in x.chunks_exact(k) {
        for block in row.chunks(32) {
            let largest = block.iter().fold(0.0f32, |max, x| x.abs().max(max));
            let inverse = if largest > 1e-36 { 127.0 / largest } else { 0.0 };
            let scale = largest / 127.0;
            out.extend(block.iter().map(|x| (x * inverse).round_ties_even() * scale));
        }
    }
    out
}

#[test]
fn quantizing_rounds_to_the_nearest_and_pads_with_zeros() {
    let mut rng = Rng::new(1);
    for k in [1, 32, 33, 64, 100, 1060] {
        let mut x = rng.normals(4 * k, 1.0);
        x[k] = 3e38;
        x[2 * k..3 * k].fill(0.0);
        x[3 * k] = f32::NAN;
        let gpu = Gpu::new(k as u64);
        let ids = [3, 1, 0, 2, 1];
        let out = quantize(&gpu, &x, k, Some(&ids));
        let bytes = read_bytes(&out.x, ids.len() * out.stride);
        let scales = read_f32(&out.scale, ids.len() * out.stride / 16);
        for (row, &id) in ids.iter().enumerate() {
            let from = &x[id as usize * k..][..k];
            for (block, bytes) in bytes[row * out.stride..][..out.stride].chunks(32).enumerate() {
                let pair = &scales[(row * out.stride / 32 + block) * 2..][..2];
                let quants: Vec<i32> = bytes.iter().map(|&b| i32::from(b.cast_signed())).collect();
                let want = from.get(32 * block..).unwrap_or_default();
                let want = &want[..want.len().min(32)];
                if want.iter().any(|x| x.is_nan()) {
                    assert!(pair.iter().all(|x| x.is_nan()), "a block with NaN says so");
                    continue;
                }
                assert!(quants[want.len()..].iter().all(|&q| q == 0), "pads");
                let sum: i32 = quants.iter().sum();
                assert_eq!(pair[1].to_bits(), (pair[0] * sum as f32).to_bits());
                for (&q, &x) in quants.iter().zip(want) {
                    let (scale, x) = (f64::from(pair[0]), f64::from(x));
                    // Half a step, and what two roundings of f32 add.
                    let error = (f64::from(q) * scale - x).abs();
                    assert!(error <= 0.5 * scale * (1.0 + 1e-4), "{x} is not {q} * {scale}");
                }
            }
        }
    }
}

struct Product<'a> {
    weights: &'a Weights,
    x: &'a [f32],
    n: usize,
}

impl Product<'_> {
    /// Against the rounded activations: only scales and sums are rounded in f32. And against the exact
    /// ones: half a step of each activation.
    fn check(&self, out: &[f32], rows: impl Fn(usize) -> (usize, usize), label: &str) {
        let k = self.weights.k;
        let rounded = rounded(self.x, k);
        for (at, &got) in out.iter().enumerate() {
            let (row, expert) = rows(at / self.n);
            let w = self.weights.row(expert * self.n + at % self.n);
            let x = &rounded[row * k..][..k];
            let (want, size) = dot(x, w);
            // The parts of an affine weight may exceed their difference, see `check_f32` in quant.rs.
            let sizes: f64 = x.iter().map(|x| f64::from(x.abs())).sum();
            let parts = size + 2.0 * sizes * self.weights.largest();
            let bound = (k + 8) as f64 * 2f64.powi(-24) * parts;
            let error = (f64::from(got) - want).abs();
            assert!(error <= bound, "{label}[{at}]: {got}, not {want}: {error:e} > {bound:e}");
            let exact = &self.x[row * k..][..k];
            let (want, _) = dot(exact, w);
            let steps: f64 = exact
                .chunks(32)
                .zip(w.chunks(32))
                .map(|(x, w)| {
                    let largest = x.iter().fold(0.0, |max, x| f64::from(x.abs()).max(max));
                    largest / 254.0 * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
                })
                .sum();
            let (error, bound) = ((f64::from(got) - want).abs(), 1.001 * steps + bound);
            assert!(error <= bound, "{label}[{at}]: {got}, exactly {want}: {error:e} > {bound:e}");
        }
    }
}

fn activations(m: usize, k: usize, rng: &mut Rng) -> Vec<f32> {
    let mut x = rng.normals(m * k, 1.0);
    for (row, x) in x.chunks_exact_mut(k).enumerate() {
        if row % 3 == 0 {
            x[row % k] = -3.1e5;
        }
    }
    x
}

fn block_formats() -> impl Iterator<Item = DType> {
    GEMM_FORMATS.iter().copied().filter(|dtype| dtype.is_block())
}

const TILED: [(u32, &str, usize); 2] = [(70, "dp4a", 256), (80, "mma", 128)];

#[test]
fn tiled_products_are_right() {
    let mut rng = Rng::new(2);
    for dtype in block_formats() {
        let name = dtype.name().to_lowercase();
        for (chip, kind, threads) in TILED {
            let kernels = Kernels::load(&format!("gemm_i8_{name}.sm{chip}"));
            for (at, (m, n)) in [(1, 1), (9, 65), (33, 64), (64, 63), (65, 130)].iter().enumerate()
            {
                let (m, n) = (*m, *n);
                let k = lengths(dtype)[at % lengths(dtype).len()];
                let splits = 1 + at % 3;
                let weights = Weights::random(dtype, n, k, &mut rng);
                let x = activations(m, k, &mut rng);
                let gpu = Gpu::new(at as u64);
                let quantized = quantize(&gpu, &x, k, None);
                let device = gpu.upload(&weights.bytes);
                let planes = gpu.floats(splits * m * n);
                let params = Params::new().buffer(&quantized.x).buffer(&quantized.scale);
                let params = params.buffer(&device).buffer(&planes).null().null();
                let params = params.longs(&[weights.row_bytes(), 0, m * n]);
                let params = params.ints(&[m, n, k, quantized.stride]);
                let shape = ([m.div_ceil(64), n.div_ceil(64), splits], threads, 0);
                gpu.launch(&kernels, &format!("gemm_i8_{name}_{kind}"), shape, &params);
                let planes = read_f32(&planes, splits * m * n);
                let out: Vec<f32> =
                    (0..m * n).map(|i| (0..splits).map(|s| planes[s * m * n + i]).sum()).collect();
                let label = format!("{name} {kind} {m}x{n}x{k} z{splits}");
                Product { weights: &weights, x: &x, n }.check(&out, |row| (row, 0), &label);
            }
        }
    }
}

#[test]
fn grouped_products_are_right() {
    let mut rng = Rng::new(3);
    let counts = [0, 1, 7, 33, 70];
    for dtype in block_formats() {
        let name = dtype.name().to_lowercase();
        let (n, k) = (68, lengths(dtype)[1]);
        let weights = Weights::random(dtype, counts.len() * n, k, &mut rng);
        let x = activations(20, k, &mut rng);
        let (mut tiles, mut experts) = (Vec::new(), Vec::new());
        for (expert, &count) in counts.iter().enumerate() {
            for tile in 0..usize::div_ceil(count, 64) {
                tiles.extend([expert, experts.len(), count, tile].map(|v| v as i32));
            }
            experts.extend(std::iter::repeat_n(expert, count));
        }
        let rows = experts.len();
        let ids: Vec<i32> = (0..rows).map(|row| (row * 7 % 20) as i32).collect();
        for (chip, kind, threads) in TILED {
            let gpu = Gpu::new(1);
            let quantized = quantize(&gpu, &x, k, None);
            let out = gpu.floats(rows * n);
            let params = Params::new().buffer(&quantized.x).buffer(&quantized.scale);
            let params = params.buffer(&gpu.upload(&weights.bytes)).buffer(&out);
            let params = params.buffer(&gpu.upload_i32(&tiles)).buffer(&gpu.upload_i32(&ids));
            let row_bytes = weights.row_bytes();
            let params = params.longs(&[row_bytes, n * row_bytes, rows * n]);
            let params = params.ints(&[rows, n, k, quantized.stride]);
            let kernels = Kernels::load(&format!("gemm_i8_{name}.sm{chip}"));
            let shape = ([tiles.len() / 4, n.div_ceil(64), 1], threads, 0);
            gpu.launch(&kernels, &format!("gemm_i8_{name}_{kind}"), shape, &params);
            let out = read_f32(&out, rows * n);
            let source = |row: usize| (ids[row] as usize, experts[row]);
            let label = format!("{name} {kind} grouped");
            Product { weights: &weights, x: &x, n }.check(&out, source, &label);
        }
    }
}

#[test]
fn products_for_few_rows_are_right() {
    let mut rng = Rng::new(4);
    for dtype in block_formats() {
        let name = dtype.name().to_lowercase();
        let kernels = Kernels::load(&format!("gemv_i8_{name}.sm70"));
        for (at, m) in (1..=9).enumerate() {
            for (rows, per_block) in [(1, 8), (2, 8), (4, 4), (8, 4)] {
                let k = lengths(dtype)[(at + rows) % lengths(dtype).len()];
                let n = [1, 7, 8, 9, 33][(at + rows) % 5];
                let experts: Vec<i32> = (0..m).map(|row| (row * 2 % 3) as i32).collect();
                let ids: Vec<i32> = (0..m).map(|row| (row * 4 % m) as i32).collect();
                // Experts only where each row has a block of its own.
                let grouped = rows == 1;
                let weights = Weights::random(dtype, if grouped { 3 * n } else { n }, k, &mut rng);
                let x = activations(m, k, &mut rng);
                let gpu = Gpu::new(at as u64);
                let quantized = quantize(&gpu, &x, k, None);
                let out = gpu.floats(m * n);
                let params = Params::new().buffer(&quantized.x).buffer(&quantized.scale);
                let params = params.buffer(&gpu.upload(&weights.bytes)).buffer(&out);
                let params = if grouped {
                    params.buffer(&gpu.upload_i32(&experts)).buffer(&gpu.upload_i32(&ids))
                } else {
                    params.null().null()
                };
                let params = params.longs(&[weights.row_bytes(), n * weights.row_bytes()]);
                let params = params.ints(&[m, n, k, quantized.stride]);
                let shape = ([n.div_ceil(per_block), m.div_ceil(rows), 1], 128, 0);
                let kernel = format!("gemv_i8_{name}_r{rows}");
                gpu.launch(&kernels, &kernel, shape, &params);
                let source = |row: usize| match grouped {
                    true => (ids[row] as usize, experts[row] as usize),
                    false => (row, 0),
                };
                let label = format!("{kernel} {m}x{n}x{k}");
                Product { weights: &weights, x: &x, n }.check(
                    &read_f32(&out, m * n),
                    source,
                    &label,
                );
            }
        }
    }
}
