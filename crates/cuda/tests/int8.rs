//! Products with activations in 8 bits, through the provider. The kernels have tests of their own; this
//! one shows that the choice reaches them.

#![allow(clippy::cast_sign_loss, reason = "the numbers of a test are small")]

mod common;

use common::Rig;
use common::scenario::pool;
use fucina_accel::{Call, GroupedMatMul, MatMul, Operand, Pool, Storage, submit};
use fucina_cuda_driver::control::Config;
use fucina_dtype::DType;
use fucina_testkit::Rng;

const K: usize = 512;

fn storage(pool: &Pool, bytes: &[u8]) -> Storage {
    let mut storage = pool.take(bytes.len()).expect("memory");
    storage.host_mut().expect("host memory").copy_from_slice(bytes);
    storage
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Each 32 activations as multiples of 1/127 of the largest.
fn rounded(x: &[f32]) -> Vec<f32> {
    let blocks = x.chunks(32).flat_map(|block| {
        let largest = block.iter().fold(0.0f32, |max, x| x.abs().max(max));
        let (scale, inverse) = (largest / 127.0, 127.0 / largest);
        block.iter().map(move |x| (x * inverse).round_ties_even() * scale)
    });
    blocks.collect()
}

/// Weights of one format: stored, and as they decode.
struct Weights {
    bytes: Vec<u8>,
    values: Vec<f32>,
}

impl Weights {
    fn random(dtype: DType, rows: usize, rng: &mut Rng) -> Self {
        let mut bytes = vec![0; rows * dtype.row_bytes(K).expect("whole blocks")];
        dtype.encode(&rng.normals(rows * K, 0.1), &mut bytes).expect("finite values");
        let mut values = vec![0.0; rows * K];
        dtype.decode(&bytes, &mut values).expect("whole blocks");
        Self { bytes, values }
    }
}

/// The bound has no room for the rounding of activations: products of others than these would fail.
fn assert_product(got: f32, x: &[f32], w: &[f32], label: &str) {
    let (mut want, mut size, mut largest) = (0.0, 0.0, 0.0f64);
    for (x, w) in x.iter().zip(w) {
        let term = f64::from(*x) * f64::from(*w);
        want += term;
        size += term.abs() + f64::from(x.abs());
        largest = largest.max(f64::from(w.abs()));
    }
    let bound = (K + 8) as f64 * 2f64.powi(-24) * size * largest.max(1.0);
    let error = (f64::from(got) - want).abs();
    assert!(error <= bound, "{label}: {got}, not {want}: {error:e} > {bound:e}");
}

fn run(rig: &Rig, pool: &Pool, call: &Call<'_>) -> Vec<f32> {
    let out = pool.take(call.out_bytes().expect("a valid call")).expect("memory");
    let out = submit(&*rig.provider(), call, out).map_err(|(why, _)| why).expect("taken");
    let bytes = out.host().expect("no fault");
    bytes.as_chunks::<4>().0.iter().map(|&b| f32::from_le_bytes(b)).collect()
}

fn rig(capability: i32) -> Rig {
    let config = Config { capability, ..Config::default() };
    Rig::with(config, |cuda| cuda.quant_int8 = true)
}

#[test]
fn products_multiply_whole_numbers_where_that_is_chosen() {
    let mut rng = Rng::new(1);
    for capability in [70, 90] {
        let (rig, pool) = (rig(capability), pool());
        for dtype in [DType::Q4_K, DType::Q6_K, DType::Q8_0] {
            for m in [1, 5, 9, 70] {
                let n = 66;
                let weights = Weights::random(dtype, n, &mut rng);
                let x = rng.normals(m * K, 1.0);
                let (lhs, rhs) = (storage(&pool, &bytes(&x)), storage(&pool, &weights.bytes));
                let lhs = Operand::dense(&lhs, DType::F32, 0, &[1, m, K]).expect("a view");
                let rhs = Operand::dense(&rhs, dtype, 0, &[1, n, K]).expect("a view");
                let out = run(&rig, &pool, &Call::MatMul(MatMul { lhs, rhs }));
                let x = rounded(&x);
                for (at, got) in out.into_iter().enumerate() {
                    let (x, w) = (&x[at / n * K..][..K], &weights.values[at % n * K..][..K]);
                    assert_product(got, x, w, &format!("{dtype} {m} rows, element {at}"));
                }
            }
        }
        drop(pool);
        rig.finish();
    }
}

#[test]
fn experts_multiply_whole_numbers_where_that_is_chosen() {
    let mut rng = Rng::new(2);
    for capability in [70, 90] {
        let (rig, pool) = (rig(capability), pool());
        for offsets in [[0, 1, 1, 2], [0, 33, 33, 104]] {
            let (n, dtype, rows) = (20, DType::Q5_K, offsets[3] as usize);
            let weights = Weights::random(dtype, 3 * n, &mut rng);
            let x = rng.normals(rows * K, 1.0);
            let ids: Vec<i32> = (0..offsets[3]).rev().collect();
            let (lhs, rhs) = (storage(&pool, &bytes(&x)), storage(&pool, &weights.bytes));
            let op = GroupedMatMul {
                x: Operand::dense(&lhs, DType::F32, 0, &[rows, K]).expect("a view"),
                weights: Operand::dense(&rhs, dtype, 0, &[3, n, K]).expect("a view"),
                offsets: &offsets,
                row_ids: Some(&ids),
            };
            let out = run(&rig, &pool, &Call::GroupedMatMul(op));
            let x = rounded(&x);
            for (at, got) in out.into_iter().enumerate() {
                let row = at / n;
                let expert = offsets.iter().rposition(|&start| start as usize <= row);
                let expert = expert.expect("the first begins at 0").min(2);
                let x = &x[(rows - 1 - row) * K..][..K];
                let w = &weights.values[(expert * n + at % n) * K..][..K];
                assert_product(got, x, w, &format!("{offsets:?}, element {at}"));
            }
        }
        drop(pool);
        rig.finish();
    }
}
