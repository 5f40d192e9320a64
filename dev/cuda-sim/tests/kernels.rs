//! Kernels compiled from CUDA C by NVRTC 12.0, against references in f64.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "tests panic when something is wrong, and sizes are small"
)]

mod common;

use common::{Arg, Device, read_f32s};
use fucina_cuda_sim::ptx::Module;
use fucina_testkit::Rng;

const SMOKE: &str = include_str!("data/smoke.ptx");

/// `a[m, k] * b[k, n]`, and the same of absolute values, for bounds.
fn product(a: &[f32], b: &[f32], [m, n, k]: [usize; 3]) -> (Vec<f64>, Vec<f64>) {
    let (mut sums, mut sizes) = (vec![0.0; m * n], vec![0.0; m * n]);
    for row in 0..m {
        for col in 0..n {
            for i in 0..k {
                let term = f64::from(a[row * k + i]) * f64::from(b[i * n + col]);
                sums[row * n + col] += term;
                sizes[row * n + col] += term.abs();
            }
        }
    }
    (sums, sizes)
}

/// A sum of k products in f32, in any order, errs by at most k roundings of the absolute sum.
fn assert_product(out: &[f32], a: &[f32], b: &[f32], dims: [usize; 3]) {
    let (sums, sizes) = product(a, b, dims);
    for (index, value) in out.iter().enumerate() {
        let bound = sizes[index] * dims[2] as f64 * f64::from(f32::EPSILON);
        let error = (f64::from(*value) - sums[index]).abs();
        assert!(error <= bound, "element {index}: {value}, not {}", sums[index]);
    }
}

fn rounded(values: Vec<f32>) -> Vec<f32> {
    values.into_iter().map(|value| half::f16::from_f32(value).to_f32()).collect()
}

#[test]
fn a_tiled_gemm_in_f32_is_right_at_every_edge() {
    let module = Module::parse(SMOKE).unwrap();
    let mut rng = Rng::new(1);
    for dims in [[1, 1, 1], [16, 16, 16], [17, 33, 20], [40, 15, 65]] {
        let [m, n, k] = dims;
        let device = Device::new();
        let (a, b) = (rng.normals(m * k, 1.0), rng.normals(k * n, 1.0));
        let (da, db) = (device.f32s(&a), device.f32s(&b));
        let out = device.poisoned((m * n * 4) as u64);
        let grid = [n.div_ceil(16) as u32, m.div_ceil(16) as u32, 1];
        let [dm, dn, dk] = dims.map(|dim| Arg::U32(dim as u32));
        let args = [Arg::Buffer(&da), Arg::Buffer(&db), Arg::Buffer(&out), dm, dn, dk];
        device.launch(&module, "gemm_f32", (grid, [16, 16, 1], 0), &args).unwrap();
        assert_product(&read_f32s(&out), &a, &b, dims);
    }
}

#[test]
fn a_wmma_gemm_is_right() {
    let module = Module::parse(SMOKE).unwrap();
    let mut rng = Rng::new(2);
    let dims = [32, 128, 48];
    let [m, n, k] = dims;
    let device = Device::new();
    let (a, b) = (rounded(rng.normals(m * k, 1.0)), rounded(rng.normals(k * n, 1.0)));
    let (da, db) = (device.f16s(&a), device.f16s(&b));
    let out = device.poisoned((m * n * 4) as u64);
    let [dm, dn, dk] = dims.map(|dim| Arg::U32(dim as u32));
    let args = [Arg::Buffer(&da), Arg::Buffer(&db), Arg::Buffer(&out), dm, dn, dk];
    let grid = [(n / 64) as u32, (m / 16) as u32, 1];
    let stats = device.launch(&module, "gemm_wmma", (grid, [128, 1, 1], 0), &args).unwrap();
    assert_product(&read_f32s(&out), &a, &b, dims);
    assert_eq!(stats.products, (m * n * k) as u64);
}

#[test]
fn a_gemv_with_shuffles_is_right() {
    let module = Module::parse(SMOKE).unwrap();
    let mut rng = Rng::new(3);
    let (m, k) = (37, 130);
    let device = Device::new();
    let (a, x) = (rounded(rng.normals(m * k, 1.0)), rounded(rng.normals(k, 1.0)));
    let (da, dx) = (device.f16s(&a), device.f16s(&x));
    let out = device.poisoned((m * 4) as u64);
    let args = [
        Arg::Buffer(&da),
        Arg::Buffer(&dx),
        Arg::Buffer(&out),
        Arg::U32(m as u32),
        Arg::U32(k as u32),
    ];
    device.launch(&module, "gemv_h2", ([10, 1, 1], [128, 1, 1], 0), &args).unwrap();
    assert_product(&read_f32s(&out), &a, &x, [m, 1, k]);
}
