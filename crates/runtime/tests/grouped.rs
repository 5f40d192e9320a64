//! Products with one of several matrices for each row, against f64 written apart from the kernels.

#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a test: small numbers, and a panic is a failure"
)]

use std::sync::Arc;

use fucina_accel::reference::{ReferenceConfig, ReferenceProvider};
use fucina_accel::{PoolConfig, Provider};
use fucina_runtime::{
    Config, DType, DynTensor, Error, GroupRows, Groups, Offload, Runtime, Tensor, axes,
};
use fucina_testkit::{DotOracle, Rng};

axes! {
    /// Tokens.
    Token,
    /// Choices.
    Choice,
    /// Experts.
    Expert,
    /// Sorted rows.
    Sorted,
    /// Outputs.
    Out,
    /// The contracted axis.
    Inner,
}

/// Memory of the pool is poisoned, so that what nobody wrote shows.
fn rt(threads: usize) -> Runtime {
    let pool = PoolConfig { poison: true, ..PoolConfig::default() };
    Runtime::builder().threads(threads).pool(pool).build().unwrap()
}

fn normals(rng: &mut Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.normal()).collect()
}

/// A router that sends `counts[e]` rows to expert `e`, in an order that is not sorted.
fn choices(counts: &[usize], used: usize) -> Vec<usize> {
    let experts = counts.iter().enumerate();
    let mut sorted: Vec<_> =
        experts.flat_map(|(e, &count)| std::iter::repeat_n(e, count)).collect();
    let mut rng = Rng::new(9);
    for at in (1..sorted.len()).rev() {
        sorted.swap(at, rng.below(at + 1));
    }
    assert!(sorted.len().is_multiple_of(used), "whole tokens");
    sorted
}

fn groups(rt: &Runtime, choices: &[usize], used: usize, experts: usize) -> Groups {
    let ids: Vec<_> = choices.iter().map(|&e| i32::try_from(e).unwrap()).collect();
    Groups::new(&rt.tensor(&[ids.len() / used, used], &ids).unwrap(), experts).unwrap()
}

/// Weights of a format, and what they decode to.
fn weights(rt: &Runtime, dtype: DType, shape: [usize; 3], rng: &mut Rng) -> (DynTensor, Vec<f32>) {
    let len = shape.iter().product();
    let mut bytes = vec![0; dtype.row_bytes(len).unwrap()];
    dtype.encode(&normals(rng, len), &mut bytes).unwrap();
    let mut values = vec![0.0; len];
    dtype.decode(&bytes, &mut values).unwrap();
    (rt.tensor_from_bytes(dtype, &shape, bytes.into()).unwrap(), values)
}

/// How far a dot product of 8-bit activations may be off: half a step for each of them.
fn quantized_bound(x: &[f32], w: &[f32]) -> f64 {
    let steps = x.chunks(32).zip(w.chunks(32)).map(|(x, w)| {
        let amax = x.iter().fold(0f32, |max, x| max.max(x.abs()));
        f64::from(amax) / 254.0 * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
    });
    steps.sum::<f64>() + DotOracle::new(x, w).bound() * 4.0
}

/// Both kinds of rows, packed and not, of one shape.
fn check(rt: &Runtime, dtype: DType, [n, k]: [usize; 2], counts: &[usize], used: usize) {
    let mut rng = Rng::new((n * 1000 + k) as u64);
    let choices = choices(counts, used);
    let (rows, experts) = (choices.len(), counts.len());
    let tokens = rows / used;
    let groups = groups(rt, &choices, used, experts);
    // Sorted by expert, and by token within an expert.
    let mut order: Vec<usize> = (0..rows).collect();
    order.sort_by_key(|&at| (choices[at], at));
    let (mut w, values) = weights(rt, dtype, [experts, n, k], &mut rng);
    for packed in [false, true] {
        if packed {
            w.pack().unwrap();
            assert_eq!(w.packed_bytes() > 0, dtype.is_block() && rows > 0 && n > 0 && k > 0);
        }
        for (kind, m) in [(GroupRows::Tokens, tokens), (GroupRows::Sorted, rows)] {
            let x = normals(&mut rng, m * k);
            let out = rt.tensor(&[m, k], &x).unwrap();
            let out = out.grouped_matmul_t(&w, &groups, kind).unwrap();
            assert_eq!(out.shape(), [rows, n]);
            let out = out.to_vec().unwrap();
            for (row, &at) in order.iter().enumerate() {
                let source = if kind == GroupRows::Tokens { at / used } else { row };
                let x = &x[source * k..][..k];
                for j in 0..n {
                    let w = &values[(choices[at] * n + j) * k..][..k];
                    let (oracle, got) = (DotOracle::new(x, w), out[row * n + j]);
                    let label = format!("{dtype} {counts:?} {kind:?} packed {packed} [{row}, {j}]");
                    if packed && dtype.is_block() {
                        let error = (f64::from(got) - oracle.value()).abs();
                        assert!(error <= quantized_bound(x, w), "{label}: {got} {error}");
                    } else {
                        oracle.assert_close(got, &label);
                    }
                }
            }
        }
    }
}

#[test]
fn grouped_products_of_floats_match_f64_at_every_edge() {
    for threads in [1, 3] {
        let rt = rt(threads);
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            check(&rt, dtype, [5, 33], &[0, 1, 7, 33, 40], 1);
            check(&rt, dtype, [65, 17], &[0, 2, 0, 14, 8, 0], 3);
            check(&rt, dtype, [1, 1], &[3], 1);
            check(&rt, dtype, [130, 96], &[0, 0, 64, 0], 8);
            check(&rt, dtype, [4, 0], &[2, 2], 2);
            check(&rt, dtype, [0, 4], &[2, 2], 2);
            check(&rt, dtype, [3, 5], &[0, 0], 2);
        }
        // More rows than one band has.
        check(&rt, DType::F32, [3, 8], &[1, 600, 0, 3], 2);
    }
}

#[test]
fn grouped_products_of_every_block_format_match_f64() {
    let rt = rt(2);
    for &dtype in DType::ALL.iter().filter(|dtype| dtype.is_block()) {
        let k = 2 * dtype.unit().0;
        // Panels of 16 columns: less than one, two and a bit. The padding of an expert's last
        // panel is not the next expert's first row.
        check(&rt, dtype, [7, k], &[0, 1, 7, 33, 39], 4);
        check(&rt, dtype, [33, k], &[2, 0, 1, 0], 1);
        check(&rt, dtype, [16, k], &[0, 0, 0, 8], 8);
    }
    check(&rt, DType::Q8_0, [5, 32], &[900, 0, 1, 1], 2);
    check(&rt, DType::Q4_K, [0, 256], &[1, 1], 1);
}

/// What a gated unit gives is often beyond the range of f16, and a bad row spoils itself only.
#[test]
fn activations_beyond_f16_and_non_finite_ones_stay_in_their_row() {
    let (rt, mut rng) = (rt(2), Rng::new(6));
    let choices = [1, 0, 1, 2];
    let groups = groups(&rt, &choices, 1, 3);
    let (mut w, values) = weights(&rt, DType::Q8_0, [3, 20, 64], &mut rng);
    w.pack().unwrap();
    for bad in [3e5, f32::NAN, f32::INFINITY] {
        let mut x = normals(&mut rng, 4 * 64);
        x[2 * 64 + 5] = bad;
        let out = rt.tensor(&[4, 64], &x).unwrap();
        let out = out.grouped_matmul_t(&w, &groups, GroupRows::Tokens).unwrap().to_vec().unwrap();
        // Sorted: tokens 1, 0, 2, 3.
        for (row, token) in [1, 0, 2, 3].into_iter().enumerate() {
            for j in 0..20 {
                let (x, got) = (&x[token * 64..][..64], out[row * 20 + j]);
                let w = &values[(choices[token] * 20 + j) * 64..][..64];
                if token == 2 && !bad.is_finite() {
                    assert!(!got.is_finite(), "{bad} became {got}");
                    continue;
                }
                let error = (f64::from(got) - DotOracle::new(x, w).value()).abs();
                assert!(error <= quantized_bound(x, w), "{bad} [{row}, {j}]: {got} {error}");
            }
        }
    }
}

/// Packed experts are no packed matrix: a plain product takes their rows, whatever the padding.
#[test]
fn a_plain_product_with_packed_experts_reads_their_rows() {
    let (rt, mut rng) = (rt(2), Rng::new(5));
    let (mut w, values) = weights(&rt, DType::Q8_0, [3, 5, 32], &mut rng);
    w.pack().unwrap();
    let x = normals(&mut rng, 2 * 32);
    let out = rt.tensor(&[2, 32], &x).unwrap().matmul_t(&w).unwrap();
    assert_eq!(out.shape(), [2, 3, 5]);
    for (at, got) in out.to_vec().unwrap().into_iter().enumerate() {
        let (x, w) = (&x[at / 15 * 32..][..32], &values[at % 15 * 32..][..32]);
        DotOracle::new(x, w).assert_close(got, "plain");
    }
}

#[test]
fn groups_are_sorted_by_expert_and_then_by_token() {
    let rt = rt(1);
    let ids = rt.tensor(&[3, 2], &[4, 1, 1, 0, 4, 1]).unwrap();
    let groups = Groups::new(&ids, 6).unwrap();
    assert_eq!((groups.experts(), groups.tokens(), groups.rows()), (6, 3, 6));
    let ranges: Vec<_> = (0..6).map(|e| groups.group(e)).collect();
    assert_eq!(ranges, [0..1, 1..4, 4..4, 4..4, 4..6, 6..6]);
    // Sorted rows: token 1, tokens 0, 1, 2, tokens 0, 2.
    let x = rt.tensor(&[3, 1], &[10.0f32, 20.0, 30.0]).unwrap();
    let w = rt.tensor(&[6, 1, 1], &[1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
    let y = x.grouped_matmul_t(&w, &groups, GroupRows::Tokens).unwrap();
    assert_eq!(y.to_vec().unwrap(), [20.0, 20.0, 40.0, 60.0, 50.0, 150.0]);
    // Choice by choice: token 0 took experts 4 and 1, and so on.
    let factors = rt.tensor(&[3, 2], &[1.0f32, 0.5, 2.0, 1.0, 0.0, -1.0]).unwrap();
    let sums = y.combine(&factors, &groups).unwrap();
    assert_eq!(sums.to_vec().unwrap(), [50.0 + 10.0, 80.0 + 20.0, -60.0]);
    // The same from a view with strides.
    let wide = rt.tensor(&[2, 3], &[4, 1, 4, 1, 0, 1]).unwrap().permute(&[1, 0]).unwrap();
    assert_eq!(Groups::new(&wide, 6).unwrap(), groups);
}

#[test]
fn experts_that_do_not_exist_are_named() {
    let rt = rt(1);
    for id in [-1, 3, i32::MAX, i32::MIN] {
        let ids = rt.tensor(&[2, 2], &[0, 1, id, 2]).unwrap();
        let error = Groups::new(&ids, 3).unwrap_err();
        assert_eq!(error, Error::OutOfRange { op: "groups", index: id.into(), limit: 3 });
    }
    let ids = rt.tensor(&[4], &[0, 1, 2, 0]).unwrap();
    assert!(matches!(Groups::new(&ids, 3), Err(Error::Shape { .. })));
    let ids = rt.tensor(&[2, 2], &[0i32; 4]).unwrap();
    assert!(matches!(Groups::new(&ids, usize::MAX), Err(Error::Shape { .. })));
    let floats = rt.tensor(&[2, 2], &[0f32; 4]).unwrap();
    assert!(matches!(Groups::new(&floats, 3), Err(Error::DType { .. })));
    let none = rt.tensor::<i32>(&[0, 2], &[]).unwrap();
    assert_eq!(Groups::new(&none, 0).unwrap().rows(), 0);
}

#[test]
fn shapes_that_do_not_fit_are_errors_that_show_both() {
    let rt = rt(1);
    let zeros = |shape: &[usize]| rt.zeros(DType::F32, shape).unwrap();
    let groups = groups(&rt, &[0, 1, 1, 2], 2, 3);
    let product = |x: &[usize], w: &[usize], rows| {
        zeros(x).grouped_matmul_t(&zeros(w), &groups, rows).map(|out| out.shape().to_vec())
    };
    assert_eq!(product(&[2, 8], &[3, 5, 8], GroupRows::Tokens).unwrap(), [4, 5]);
    assert_eq!(product(&[4, 8], &[3, 5, 8], GroupRows::Sorted).unwrap(), [4, 5]);
    for (x, w, rows) in [
        (&[4, 8][..], &[3, 5, 8][..], GroupRows::Tokens),
        (&[2, 8], &[3, 5, 8], GroupRows::Sorted),
        (&[2, 8], &[4, 5, 8], GroupRows::Tokens),
        (&[2, 8], &[3, 5, 7], GroupRows::Tokens),
        (&[2, 8], &[3, 8], GroupRows::Tokens),
        (&[2, 1, 8], &[3, 5, 8], GroupRows::Tokens),
        (&[2, 8], &[1, 3, 5, 8], GroupRows::Tokens),
    ] {
        let text = product(x, w, rows).unwrap_err().to_string();
        let shown = |shape: &[usize]| text.contains(&format!("{shape:?}"));
        assert!(text.contains("grouped_matmul") && shown(x) && shown(w), "{text}");
    }
    for (x, w) in
        [(&[3, 8][..], &[2, 2][..]), (&[4, 8], &[4, 1]), (&[4, 8], &[2, 3]), (&[4], &[2, 2])]
    {
        let text = zeros(x).combine(&zeros(w), &groups).unwrap_err().to_string();
        assert!(text.contains("combine"), "{text}");
    }
}

#[test]
fn rows_are_divided_by_their_sum() {
    let rt = rt(1);
    let x = rt.tensor(&[2, 3], &[1.0f32, 2.0, 4.0, 0.1, 0.1, 0.1]).unwrap();
    let out = x.divide_by_sum().unwrap().to_vec().unwrap();
    // The nearest f32 of each quotient: one rounding.
    assert_eq!(out[..3], [1.0 / 7.0, 2.0 / 7.0, 4.0 / 7.0]);
    let third = 0.1f32 / (0.1f32 + 0.1 + 0.1);
    assert_eq!(out[3..], [third; 3]);
    assert_eq!(x.to_vec().unwrap()[0], 1.0, "the operand is left alone");
    let bad = rt.tensor(&[2, 2], &[f32::NAN, 1.0, 1.0, 3.0]).unwrap();
    let out = bad.divide_by_sum().unwrap().to_vec().unwrap();
    assert!(out[0].is_nan() && out[1].is_nan());
    assert_eq!(out[2..], [0.25, 0.75]);
}

/// A router whose scores are not numbers still chooses experts that exist, and the numbers that it
/// gives them are not numbers either: nothing is hidden and nothing is out of range.
#[test]
fn a_router_of_nan_chooses_experts_that_exist() {
    let rt = rt(1);
    let nan = f32::NAN;
    let scores = [[1.0f32, 5.0, 3.0, 4.0], [nan, nan, 2.0, nan], [nan; 4]].concat();
    let scores = rt.tensor(&[3, 4], &scores).unwrap();
    let (values, places) = scores.top_k(3).unwrap();
    assert_eq!(places.data::<i32>().unwrap(), [1, 3, 2, 2, 0, 1, 0, 1, 2]);
    let values = values.to_vec().unwrap();
    assert_eq!(values[..4], [5.0, 4.0, 3.0, 2.0]);
    assert!(values[4..].iter().all(|value| value.is_nan()), "{values:?}");
    assert_eq!(Groups::new(&places, 4).unwrap().rows(), 9);
}

#[test]
fn equal_scores_choose_the_first_experts() {
    let rt = rt(1);
    let scores = rt.tensor(&[1, 6], &[0.5f32, 0.5, 0.5, 0.75, 0.5, 0.75]).unwrap();
    let (_, places) = scores.top_k(4).unwrap();
    assert_eq!(places.data::<i32>().unwrap(), [3, 5, 0, 1]);
}

/// A block of experts, through typed tensors.
fn block(rt: &Runtime) -> Vec<f32> {
    let mut rng = Rng::new(21);
    let (tokens, used, experts, n, k) = (9, 3, 7, 40, 64);
    let x: Tensor<(Token, Inner)> =
        Tensor::from_slice(rt, [tokens, k], &normals(&mut rng, tokens * k)).unwrap();
    let up: Tensor<(Expert, Out, Inner)> =
        Tensor::from_slice(rt, [experts, n, k], &normals(&mut rng, experts * n * k)).unwrap();
    let down: Tensor<(Expert, Inner, Out)> =
        Tensor::from_slice(rt, [experts, k, n], &normals(&mut rng, experts * n * k)).unwrap();
    let scores: Tensor<(Token, Expert)> =
        Tensor::from_slice(rt, [tokens, experts], &normals(&mut rng, tokens * experts)).unwrap();
    let (values, places) = scores.softmax(Expert, 1.0).unwrap().top_k(used).unwrap();
    let groups = Groups::new(places.as_dyn(), experts).unwrap();
    let weights: Tensor<(Token, Choice)> =
        Tensor::from_dyn(values.as_dyn().divide_by_sum().unwrap()).unwrap();
    let inner: Tensor<(Sorted, Out)> = x.dot_grouped(&up, &groups, GroupRows::Tokens).unwrap();
    let out: Tensor<(Sorted, Inner)> =
        inner.dot_grouped(&down, &groups, GroupRows::Sorted).unwrap();
    out.combine(&weights, &groups).unwrap().to_vec().unwrap()
}

#[test]
fn r06_a_block_of_experts_gives_the_same_with_and_without_a_provider() {
    let want = block(&rt(2));
    for seed in 0..4 {
        let mut config = ReferenceConfig::default();
        (config.lanes, config.seed, config.max_delay_us) = (3, seed, 100);
        config.decline_percent = if seed == 3 { 50 } else { 0 };
        let provider = Arc::new(ReferenceProvider::new(config));
        let mut config = Config::default();
        (config.offload, config.threads) = (Offload::Force, Some(2));
        let shared = Arc::clone(&provider) as Arc<dyn Provider>;
        let rt = Runtime::builder().config(config).provider(shared).build().unwrap();
        let got = block(&rt);
        // Sums of 64 and 40 products of numbers of order one, in another order.
        for (got, want) in got.iter().zip(&want) {
            assert!((got - want).abs() <= 2e-5 * want.abs().max(50.0), "{got} {want}");
        }
        let counters = rt.trace().counters();
        assert!(seed == 3 || counters.offloaded() == 4, "softmax, two products and the sum");
    }
}

#[test]
fn the_number_of_threads_does_not_show() {
    let want = block(&rt(1));
    for threads in [2, 3, 8] {
        assert_eq!(block(&rt(threads)), want, "{threads} threads");
    }
}
