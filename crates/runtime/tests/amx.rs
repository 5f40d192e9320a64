//! Products on the AMX arm, on the CPU or in software, against f64 and against other arms.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a test: small numbers, and a panic is a failure"
)]

use fucina_accel::PoolConfig;
use fucina_amx_emulator::counts;
use fucina_runtime::{DType, DynTensor, GroupRows, Groups, Isa, Runtime, cpu_row_kernels};
use fucina_testkit::{DotOracle, Rng};

/// AMX, or `None` and a word on a CPU without the AVX-512 that its kernels need.
fn amx() -> Option<Isa> {
    if Isa::best().name() == "avx512-amx" {
        return Some(Isa::best());
    }
    fucina_amx_emulator::install();
    // SAFETY: from here on the emulator executes what the CPU does not.
    let isa = unsafe { Isa::with_emulated_amx() };
    if isa.is_none() {
        println!("SKIPPED: AMX kernels need a CPU with AVX-512 VNNI and BF16");
    }
    isa
}

/// Memory of the pool is poisoned, so that what nobody wrote shows.
fn runtime(isa: Isa, threads: usize) -> Runtime {
    let pool = PoolConfig { poison: true, ..PoolConfig::default() };
    Runtime::builder().threads(threads).pool(pool).isa(isa).build().unwrap()
}

/// Weights of a format, and what they decode to.
fn weights(rt: &Runtime, dtype: DType, shape: &[usize], rng: &mut Rng) -> (DynTensor, Vec<f32>) {
    let len = shape.iter().product();
    let mut bytes = vec![0; dtype.row_bytes(len).unwrap()];
    dtype.encode(&rng.normals(len, 1.0), &mut bytes).unwrap();
    let mut values = vec![0.0; len];
    dtype.decode(&bytes, &mut values).unwrap();
    let mut weights = rt.tensor_from_bytes(dtype, shape, bytes.into()).unwrap();
    weights.pack().unwrap();
    (weights, values)
}

/// How far a product with packed weights may be off, whichever kernel ran: half a step of 8 bits for
/// each activation, or two roundings to bf16, each of 2^-8; and the additions in f32.
///
/// Parts of 16-bit weights are nearer than that.
fn packed_bound(x: &[f32], w: &[f32]) -> f64 {
    let oracle = DotOracle::new(x, w);
    let steps = x.chunks(32).zip(w.chunks(32)).map(|(x, w)| {
        let amax = x.iter().fold(0f32, |max, x| max.max(x.abs()));
        f64::from(amax) / 254.0 * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
    });
    let roundings = (2.0 * 2f64.powi(-8) + 2f64.powi(-16)) * oracle.magnitude();
    steps.sum::<f64>().max(roundings) + oracle.bound() * 4.0
}

#[track_caller]
fn assert_product(out: &[f32], x: &[f32], w: &[f32], k: usize, label: &str) {
    let n = w.len() / k;
    assert_eq!(out.len(), x.len() / k * n, "{label}");
    for (r, out) in out.chunks_exact(n).enumerate() {
        for (c, &got) in out.iter().enumerate() {
            let (x, w) = (&x[r * k..][..k], &w[c * k..][..k]);
            let error = (f64::from(got) - DotOracle::new(x, w).value()).abs();
            assert!(error <= packed_bound(x, w), "{label} at [{r}, {c}]: {got}, off by {error}");
        }
    }
}

#[test]
fn packed_products_of_any_rows_are_right_on_any_threads() {
    let Some(isa) = amx() else { return };
    for threads in [1, 3] {
        let rt = runtime(isa, threads);
        let mut rng = Rng::new(1);
        for (dtype, n, k) in
            [(DType::Q4_K, 72, 512), (DType::Q6_K, 33, 256), (DType::Q5_0, 50, 352)]
        {
            let (w, values) = weights(&rt, dtype, &[n, k], &mut rng);
            for m in [1, 8, 9, 24, 25, 40, 64, 65, 130] {
                let x = rng.normals(m * k, 1.0);
                let out = rt.tensor(&[m, k], &x).unwrap().matmul_t(&w).unwrap().to_vec().unwrap();
                assert_product(&out, &x, &values, k, &format!("{dtype} {m} rows"));
            }
        }
    }
}

/// More rows than a task takes, and more panels than a call takes.
#[test]
fn large_packed_products_are_right() {
    let Some(isa) = amx() else { return };
    let rt = runtime(isa, 2);
    let mut rng = Rng::new(2);
    let (n, k) = (330, 256);
    let (w, values) = weights(&rt, DType::Q8_0, &[n, k], &mut rng);
    for m in [513, 700] {
        let x = rng.normals(m * k, 1.0);
        let out = rt.tensor(&[m, k], &x).unwrap().matmul_t(&w).unwrap().to_vec().unwrap();
        assert_product(&out, &x, &values, k, &format!("{m} rows"));
    }
}

/// The tiles of integers make no difference at all; those of bf16 run only where the plan says so.
#[test]
fn the_plan_decides_which_tiles_run() {
    let Some(isa) = amx() else { return };
    let Some(plain) = Isa::from_name("avx512-vnni") else { return };
    let emulated = isa != Isa::best();
    let (dtype, n, k) = (DType::Q4_K, 40, 256);
    let ranges = cpu_row_kernels(dtype, isa);
    assert_eq!(ranges.len(), 3, "{ranges:?}");
    for range in ranges {
        let m = range.last.unwrap_or(range.first + 40);
        let product = |isa| {
            let rt = runtime(isa, 2);
            let mut rng = Rng::new(3);
            let (w, _) = weights(&rt, dtype, &[n, k], &mut rng);
            let x = rng.normals(m * k, 1.0);
            rt.tensor(&[m, k], &x).unwrap().matmul_t(&w).unwrap().to_vec().unwrap()
        };
        let before = counts();
        let (got, want) = (product(isa), product(plain));
        if range.kernel.ends_with("bf16") {
            assert!(!emulated || counts().bf16 > before.bf16, "{range:?}");
        } else {
            assert_eq!(got, want, "{range:?}");
        }
        if range.kernel.ends_with("int8") {
            assert!(!emulated || counts().int8 > before.int8, "{range:?}");
        }
    }
}

/// Few, some and many rows for each expert, and none; rows by token and sorted.
#[test]
fn grouped_products_are_right() {
    let Some(isa) = amx() else { return };
    let rt = runtime(isa, 2);
    let (experts, used, n, k) = (4, 2, 40, 256);
    for (dtype, tokens) in [
        (DType::Q4_K, 3),
        (DType::Q4_K, 60),
        (DType::Q4_K, 150),
        (DType::Q6_K, 150),
        (DType::F16, 20),
        (DType::BF16, 150),
    ] {
        let mut rng = Rng::new(4);
        let (w, values) = weights(&rt, dtype, &[experts, n, k], &mut rng);
        // Expert 2 gets nothing, expert 3 every eighth token.
        let choices: Vec<[i32; 2]> =
            (0..tokens).map(|token| if token % 8 == 7 { [3, 1] } else { [1, 0] }).collect();
        let ids = rt.tensor(&[tokens, used], choices.as_flattened()).unwrap();
        let groups = Groups::new(&ids, experts).unwrap();
        let mut order: Vec<usize> = (0..tokens * used).collect();
        order.sort_by_key(|&at| (choices.as_flattened()[at], at));
        for (kind, m) in [(GroupRows::Tokens, tokens), (GroupRows::Sorted, tokens * used)] {
            let (x, before) = (rng.normals(m * k, 1.0), counts());
            let out = rt.tensor(&[m, k], &x).unwrap();
            let out = out.grouped_matmul_t(&w, &groups, kind).unwrap().to_vec().unwrap();
            let tiles = matches!(dtype, DType::F16 | DType::BF16) && isa != Isa::best();
            assert!(!tiles || counts().bf16 > before.bf16, "{dtype} {tokens} tokens");
            for (row, &at) in order.iter().enumerate() {
                let source = if kind == GroupRows::Tokens { at / used } else { row };
                let expert = usize::try_from(choices.as_flattened()[at]).unwrap();
                let (x, w) = (&x[source * k..][..k], &values[expert * n * k..][..n * k]);
                let label = format!("{dtype} {tokens} tokens {kind:?} row {row}");
                assert_product(&out[row * n..][..n], x, w, k, &label);
            }
        }
    }
}

/// 16-bit weights: two parts leave out `2^-15` of each product at most, and up to three times as many
/// products are added.
#[test]
fn products_of_16_bit_weights_are_right_on_any_threads() {
    let Some(isa) = amx() else { return };
    for (threads, m, n, k) in
        [(1, 9, 5, 33), (3, 8, 40, 64), (3, 33, 130, 96), (2, 300, 70, 64), (2, 40, 9, 513)]
    {
        let rt = runtime(isa, threads);
        for dtype in [DType::F16, DType::BF16] {
            let mut rng = Rng::new(6);
            let (w, values) = weights(&rt, dtype, &[n, k], &mut rng);
            let x = rng.normals(m * k, 1.0);
            let before = counts();
            let out = rt.tensor(&[m, k], &x).unwrap().matmul_t(&w).unwrap().to_vec().unwrap();
            assert!(m < 9 || counts().bf16 > before.bf16 || isa == Isa::best());
            for (at, &got) in out.iter().enumerate() {
                let (r, c) = (at / n, at % n);
                let oracle = DotOracle::new(&x[r * k..][..k], &values[c * k..][..k]);
                let bound = 2f64.powi(-15) * oracle.magnitude() + 3.1 * oracle.bound();
                let error = (f64::from(got) - oracle.value()).abs();
                assert!(error <= bound, "{dtype} {m}x{n}x{k} [{r}, {c}]: {got}, off by {error}");
            }
        }
    }
}

#[test]
fn a_batch_of_products_with_16_bit_weights_is_right() {
    let Some(isa) = amx() else { return };
    let rt = runtime(isa, 2);
    let (batch, m, n, k) = (3, 10, 6, 40);
    let mut rng = Rng::new(7);
    let (w, values) = {
        let len = batch * n * k;
        let mut bytes = vec![0; 2 * len];
        DType::F16.encode(&rng.normals(len, 1.0), &mut bytes).unwrap();
        let mut values = vec![0.0; len];
        DType::F16.decode(&bytes, &mut values).unwrap();
        (rt.tensor_from_bytes(DType::F16, &[batch, n, k], bytes.into()).unwrap(), values)
    };
    let x = rng.normals(batch * m * k, 1.0);
    let lhs = rt.tensor(&[batch, m, k], &x).unwrap();
    let out = lhs.batch_contract(&w, (0, 0), (2, 2)).unwrap().to_vec().unwrap();
    for (at, &got) in out.iter().enumerate() {
        let (b, r, c) = (at / (m * n), at / n % m, at % n);
        let oracle = DotOracle::new(&x[(b * m + r) * k..][..k], &values[(b * n + c) * k..][..k]);
        let bound = 2f64.powi(-15) * oracle.magnitude() + 3.1 * oracle.bound();
        assert!((f64::from(got) - oracle.value()).abs() <= bound, "[{b}, {r}, {c}]: {got}");
    }
}

#[test]
fn not_a_number_ends_as_one_in_its_row() {
    let Some(isa) = amx() else { return };
    let rt = runtime(isa, 2);
    let mut rng = Rng::new(5);
    let (n, k) = (20, 256);
    let (w, _) = weights(&rt, DType::Q5_K, &[n, k], &mut rng);
    for m in [5, 20, 80] {
        let mut x = rng.normals(m * k, 1.0);
        x[3 * k + 77] = f32::INFINITY;
        let out = rt.tensor(&[m, k], &x).unwrap().matmul_t(&w).unwrap().to_vec().unwrap();
        for (r, row) in out.chunks_exact(n).enumerate() {
            assert!(row.iter().all(|x| x.is_finite() == (r != 3)), "row {r} of {m}");
        }
    }
}
