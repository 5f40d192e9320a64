//! Kernels compiled from CUDA C by NVRTC 12.0, against references in f64.

#![allow(
    clippy::unwrap_used,
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "tests panic when something is wrong, and sizes are small"
)]

mod common;

use common::{Arg, Device, read_f32s, read_u32s};
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

const KERNELS: &str = include_str!("data/kernels.ptx");

/// A device with its own order of warps and blocks.
fn device(seed: u64) -> Device {
    let mut device = Device::new();
    device.options.seed = seed;
    device
}

#[test]
fn a_gemm_with_copies_in_flight_and_matrix_fragments_is_right_at_every_edge() {
    let module = Module::parse(KERNELS).unwrap();
    let mut rng = Rng::new(4);
    for (seed, dims) in
        [[32, 32, 32], [1, 1, 32], [33, 31, 64], [70, 100, 160]].into_iter().enumerate()
    {
        let [m, n, k] = dims;
        let device = device(seed as u64);
        let (a, b) = (rounded(rng.normals(m * k, 1.0)), rounded(rng.normals(n * k, 1.0)));
        let (da, db) = (device.f16s(&a), device.f16s(&b));
        let out = device.poisoned((m * n * 4) as u64);
        let [dm, dn, dk] = dims.map(|dim| Arg::U32(dim as u32));
        let args = [Arg::Buffer(&da), Arg::Buffer(&db), Arg::Buffer(&out), dm, dn, dk];
        let grid = [n.div_ceil(32) as u32, m.div_ceil(32) as u32, 1];
        device.launch(&module, "gemm_mma", (grid, [64, 1, 1], 0), &args).unwrap();
        let across: Vec<f32> = (0..k * n).map(|i| b[i % n * k + i / n]).collect();
        assert_product(&read_f32s(&out), &a, &across, dims);
    }
}

#[test]
fn sums_by_shuffles_and_atomics_are_exact() {
    let module = Module::parse(KERNELS).unwrap();
    for (seed, count) in [0_u32, 1, 31, 1000, 4097].into_iter().enumerate() {
        let device = device(seed as u64);
        let values: Vec<u32> = (0..count.max(1)).map(|i| i.wrapping_mul(2_654_435_761)).collect();
        let (input, out) = (device.u32s(&values), device.u32s(&[7]));
        let args = [Arg::Buffer(&input), Arg::Buffer(&out), Arg::U32(count)];
        device.launch(&module, "sum", ([3, 1, 1], [96, 1, 1], 0), &args).unwrap();
        let want = values[..count as usize].iter().fold(7_u32, |sum, v| sum.wrapping_add(*v));
        assert_eq!(read_u32s(&out), [want]);
    }
}

#[test]
fn a_histogram_by_shared_atomics_is_exact() {
    let module = Module::parse(KERNELS).unwrap();
    let device = device(5);
    let mut rng = Rng::new(9);
    let bytes: Vec<u8> = (0..5000).map(|_| rng.next_i8().unsigned_abs()).collect();
    let (input, out) = (device.bytes(&bytes), device.u32s(&[0; 256]));
    let args = [Arg::Buffer(&input), Arg::Buffer(&out), Arg::U32(5000)];
    device.launch(&module, "histogram", ([4, 1, 1], [128, 1, 1], 0), &args).unwrap();
    let mut want = vec![0; 256];
    bytes.iter().for_each(|byte| want[usize::from(*byte)] += 1);
    assert_eq!(read_u32s(&out), want);
}

#[test]
fn the_last_block_sees_what_the_others_wrote() {
    let module = Module::parse(KERNELS).unwrap();
    for seed in 0..6 {
        let device = device(seed);
        let values: Vec<f32> = (0..64 * 9).map(|i| i as f32).collect();
        let (input, parts, out) = (device.f32s(&values), device.poisoned(36), device.poisoned(4));
        let args = [Arg::Buffer(&input), Arg::Buffer(&parts), Arg::Buffer(&out)];
        device.launch(&module, "last_block", ([9, 1, 1], [32, 1, 1], 0), &args).unwrap();
        assert_eq!(read_f32s(&out), [(576 * 575 / 2) as f32]);
    }
}

#[test]
fn named_barriers_order_a_producer_and_a_consumer() {
    let module = Module::parse(KERNELS).unwrap();
    for seed in 0..20 {
        let device = device(seed);
        let values: Vec<u32> = (0..32 * 10).collect();
        let (input, out) = (device.u32s(&values), device.poisoned(32 * 10 * 4));
        let args = [Arg::Buffer(&input), Arg::Buffer(&out), Arg::U32(10)];
        device.launch(&module, "produce", ([1, 1, 1], [64, 1, 1], 0), &args).unwrap();
        let want: Vec<u32> = values.iter().map(|i| 3 * (i / 32 * 32 + 31 - i % 32)).collect();
        assert_eq!(read_u32s(&out), want);
    }
}

#[test]
fn lanes_that_part_meet_again() {
    let module = Module::parse(KERNELS).unwrap();
    let device = device(0);
    let values: Vec<f32> = (0..32).map(|i| (i as f32 - 12.0) * 0.37).collect();
    let (input, out) = (device.f32s(&values), device.poisoned(128));
    let args = [Arg::Buffer(&input), Arg::Buffer(&out)];
    device.launch(&module, "ways", ([1, 1, 1], [32, 1, 1], 0), &args).unwrap();
    for (i, value) in read_f32s(&out).into_iter().enumerate() {
        let x = f64::from(values[i]);
        let own = |at: usize| x + ((at + 8 * 8 - i) % 8) as f64;
        let want = match i % 7 {
            0 => ((3.0 * x + 0.5) * x - 2.0) * x + 1.0,
            1 => own(i % 8),
            2 => x.abs().sqrt(),
            3 if x > 0.0 => x.exp(),
            3 => (x * 1000.0).sin(),
            4 => 4.0,
            5 => x % 0.25,
            _ => (0..i).map(|j| own(j % 8)).sum(),
        };
        // The argument of the sine is rounded to f32, at about 4000.
        let bound = if i % 7 == 3 { 5e-4 } else { 1e-5 };
        assert!(
            (f64::from(value) - want).abs() <= bound * want.abs().max(1.0),
            "{i}: {value}, {want}"
        );
    }
}

const MATH: &str = include_str!("data/math.ptx");

/// Functions of the mathematics library, in the order of the kernel, and their relative errors in
/// units of 2^-23: what the library states, with one more for the rounding of an argument.
fn math(x: f32, y: f32) -> Vec<(f64, f64)> {
    let (a, b) = (f64::from(x), f64::from(y));
    let size = a.abs();
    let whole = |v: f32| f64::from(v).trunc();
    vec![
        (a.exp(), 2.0),
        (a.exp2(), 2.0),
        (size.ln(), 2.0),
        (size.log2(), 2.0),
        (size.log10(), 3.0),
        (size.ln_1p(), 2.0),
        (a.exp_m1(), 2.0),
        (size.powf(b), 9.0),
        (f64::from(x * 1000.0).sin(), 3.0),
        (f64::from(x * 100_000.0).cos(), 3.0),
        (a.tan(), 5.0),
        (a.atan(), 3.0),
        (a.atan2(b), 4.0),
        (a.sinh(), 4.0),
        (a.cosh(), 3.0),
        (a.tanh(), 3.0),
        (a.cbrt(), 2.0),
        (a.hypot(b), 4.0),
        (a % b, 0.0),
        (1.0 / size.sqrt(), 3.0),
        (a.round(), 0.0),
        (f64::from(x - y).max(0.0), 0.0),
        (a.exp() - b.abs().ln() * a.sin(), 1.0),
        (f64::from(whole(x * 1e6) as f32), 0.0),
        (f64::from((((x * 100.0) as i32) / ((y * 10.0) as i32 | 1)) as f32), 0.0),
        (f64::from((((x * 1e6) as i64) % ((y * 1e3) as i64 | 1)) as f32), 0.0),
    ]
}

#[test]
fn the_mathematics_library_is_as_exact_as_it_says() {
    let module = Module::parse(MATH).unwrap();
    let device = device(1);
    let mut rng = Rng::new(8);
    let count = 256;
    let xs: Vec<f32> = (0..count).map(|_| rng.uniform(-9.0, 9.0)).collect();
    let ys: Vec<f32> = (0..count).map(|_| rng.uniform(0.1, 3.0)).collect();
    let (dx, dy) = (device.f32s(&xs), device.f32s(&ys));
    let functions = math(1.0, 1.0).len();
    let out = device.poisoned((functions * count * 4) as u64);
    let args = [Arg::Buffer(&dx), Arg::Buffer(&dy), Arg::Buffer(&out), Arg::U32(count as u32)];
    device.launch(&module, "math", ([1, 1, 1], [256, 1, 1], 0), &args).unwrap();
    let out = read_f32s(&out);
    for i in 0..count {
        for (f, (want, ulps)) in math(xs[i], ys[i]).into_iter().enumerate() {
            let got = f64::from(out[f * count + i]);
            let bound = ulps * f64::from(f32::EPSILON) * want.abs();
            assert!((got - want).abs() <= bound, "{f} of {}, {}: {got}, {want}", xs[i], ys[i]);
        }
    }
}
