//! Each op against a reference in f64, written apart from the kernels.

#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a test: small numbers, and a panic is a failure"
)]

use fucina_runtime::{
    Activation, AttentionParams, CacheType, DType, DynTensor, Error, KvCache, KvShape, Pairing,
    RopeConfig, RopeTable, Runtime, Scaling, Tensor, UnaryOp, axes,
};
use fucina_testkit::{DotOracle, Rng};
use half::{bf16, f16};

axes! {
    /// Batch.
    Batch,
    /// Rows.
    Row,
    /// Columns.
    Col,
    /// The contracted axis.
    Inner,
}

fn rt(threads: usize) -> Runtime {
    Runtime::builder().threads(threads).build().unwrap()
}

fn normals(rng: &mut Rng, len: usize) -> Vec<f32> {
    (0..len).map(|_| rng.normal()).collect()
}

#[track_caller]
fn close(got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (at, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= tolerance * want.abs().max(1.0), "{at}: {got} {want}");
    }
}

/// Row-major copies of rows and columns, so that the oracle sees what a view means.
fn check_matmul(lhs: &DynTensor, rhs: &DynTensor, label: &str) {
    let (&[m, k], &[n, _]) = (lhs.shape(), rhs.shape()) else { panic!("rank two") };
    let out = lhs.matmul_t(rhs).unwrap();
    assert_eq!(out.shape(), [m, n], "{label}");
    let (a, b, out) = (lhs.to_vec().unwrap(), rhs.to_vec().unwrap(), out.to_vec().unwrap());
    // 16-bit weights may be multiplied in parts of bf16, without the least products.
    let in_parts = rhs.dtype() != DType::F32 && lhs.runtime().isa().name() == "avx512-amx";
    for i in 0..m {
        for j in 0..n {
            let oracle = DotOracle::new(&a[i * k..][..k], &b[j * k..][..k]);
            let (got, label) = (out[i * n + j], format!("{label} [{i}, {j}]"));
            if in_parts {
                let error = (f64::from(got) - oracle.value()).abs();
                let bound = 2f64.powi(-15) * oracle.magnitude() + 3.1 * oracle.bound();
                assert!(error <= bound, "{label}: {got}, want {}", oracle.value());
            } else {
                oracle.assert_close(got, &label);
            }
        }
    }
}

#[test]
fn matmul_of_floats_matches_f64_at_every_edge() {
    let mut rng = Rng::new(1);
    for threads in [1, 3] {
        let rt = rt(threads);
        for (m, n, k) in [
            (1, 1, 1),
            (1, 5, 0),
            (0, 5, 3),
            (3, 0, 2),
            (2, 3, 5),
            (9, 31, 33),
            (12, 17, 64),
            (33, 65, 127),
            (65, 130, 96),
            (1, 300, 513),
        ] {
            let a = rt.tensor(&[m, k], &normals(&mut rng, m * k)).unwrap();
            let w = normals(&mut rng, n * k);
            let f = rt.tensor(&[n, k], &w).unwrap();
            check_matmul(&a, &f, &format!("f32 {m}x{n}x{k}"));
            let halves: Vec<_> = w.iter().map(|&x| f16::from_f32(x)).collect();
            check_matmul(&a, &rt.tensor(&[n, k], &halves).unwrap(), &format!("f16 {m}x{n}x{k}"));
            let brains: Vec<_> = w.iter().map(|&x| bf16::from_f32(x)).collect();
            check_matmul(&a, &rt.tensor(&[n, k], &brains).unwrap(), &format!("bf16 {m}x{n}x{k}"));
        }
    }
}

#[test]
fn matmul_takes_views_of_every_stride() {
    let (rt, mut rng) = (rt(2), Rng::new(2));
    let a = rt.tensor(&[40, 24], &normals(&mut rng, 40 * 24)).unwrap();
    let b = rt.tensor(&[24, 36], &normals(&mut rng, 24 * 36)).unwrap();
    check_matmul(&a, &b.permute(&[1, 0]).unwrap(), "transposed weights");
    check_matmul(&a.permute(&[1, 0]).unwrap(), &a.permute(&[1, 0]).unwrap(), "both transposed");
    let part = a.narrow(1, 3, 17).unwrap();
    check_matmul(&part, &part, "rows of a wider matrix");
    check_matmul(&part.narrow(0, 1, 2).unwrap(), &part, "few rows of a wider matrix");
    let row = a.narrow(0, 5, 1).unwrap();
    check_matmul(&row.broadcast(&[4, 24]).unwrap(), &a, "broadcast rows");
    check_matmul(&a, &row.broadcast(&[4, 24]).unwrap(), "broadcast weights");
    let col = a.narrow(1, 0, 1).unwrap();
    check_matmul(&col, &col, "size-one inner axis");
    check_matmul(&col.broadcast(&[40, 9]).unwrap(), &a.narrow(1, 0, 9).unwrap(), "stride-0 inner");
}

/// Enough work that no row count takes the path of small products.
#[test]
fn few_rows_match_f64_in_both_layouts() {
    let (n, k) = (301, 270);
    let mut rng = Rng::new(21);
    for threads in [1, 3] {
        let rt = rt(threads);
        let w = rt.tensor(&[n, k], &normals(&mut rng, n * k)).unwrap();
        let b = rt.tensor(&[k, n + 5], &normals(&mut rng, k * (n + 5))).unwrap();
        let columns = b.narrow(1, 2, n).unwrap().permute(&[1, 0]).unwrap();
        for m in [1, 2, 3, 5, 8, 9, 16, 17, 24, 25, 33, 64] {
            let a = rt.tensor(&[m, k], &normals(&mut rng, m * k)).unwrap();
            check_matmul(&a, &w, &format!("rows of weights, {m}"));
            check_matmul(&a, &columns, &format!("columns of weights, {m}"));
        }
    }
}

#[test]
fn few_rows_of_a_batch_match_one_by_one() {
    let (rt, mut rng) = (rt(2), Rng::new(22));
    let (m, n, k) = (6, 45, 300);
    let a = rt.tensor(&[3, m, k], &normals(&mut rng, 3 * m * k)).unwrap();
    let b = rt.tensor(&[3, k, n], &normals(&mut rng, 3 * k * n)).unwrap();
    let shared = b.narrow(0, 1, 1).unwrap().broadcast(&[3, k, n]).unwrap();
    for right in [&b, &shared] {
        let out = a.batch_contract(right, (0, 0), (2, 1)).unwrap();
        for batch in 0..3 {
            let part = |t: &DynTensor| {
                let part = t.narrow(0, batch, 1).unwrap();
                part.reshape(&[part.shape()[1], part.shape()[2]]).unwrap()
            };
            let one = part(&a).matmul_t(&part(right).permute(&[1, 0]).unwrap()).unwrap();
            assert_eq!(part(&out).to_vec().unwrap(), one.to_vec().unwrap(), "{batch}");
        }
    }
}

#[test]
fn batched_contractions_match_one_by_one() {
    let (rt, mut rng) = (rt(2), Rng::new(3));
    let a: Tensor<(Batch, Row, Inner)> =
        Tensor::from_slice(&rt, [3, 5, 7], &normals(&mut rng, 105)).unwrap();
    let b: Tensor<(Inner, Batch, Col)> =
        Tensor::from_slice(&rt, [7, 3, 4], &normals(&mut rng, 84)).unwrap();
    let out: Tensor<(Batch, Row, Col)> = a.batch_dot(&b, Batch, Inner).unwrap();
    let by_batch: Tensor<(Batch, Col, Inner)> = b.permute().unwrap();
    for batch in 0..3 {
        let flat = |t: &DynTensor| {
            let part = t.narrow(0, batch, 1).unwrap();
            let shape = [part.shape()[1], part.shape()[2]];
            part.reshape(&shape).unwrap()
        };
        let one = flat(a.as_dyn()).matmul_t(&flat(by_batch.as_dyn())).unwrap();
        assert_eq!(flat(out.as_dyn()).to_vec().unwrap(), one.to_vec().unwrap());
    }
    // One matrix for the whole batch, by a stride of zero (the fold that must not lose batches).
    let one = rt.tensor(&[1, 32, 32], &normals(&mut rng, 1024)).unwrap();
    let many = rt.tensor(&[32, 32, 32], &normals(&mut rng, 32768)).unwrap();
    let wide = one.broadcast(&[32, 32, 32]).unwrap();
    let got = wide.batch_contract(&many, (0, 0), (2, 2)).unwrap();
    let want = wide.copy().unwrap().batch_contract(&many, (0, 0), (2, 2)).unwrap();
    assert_eq!(got.to_vec().unwrap(), want.to_vec().unwrap());
    let got = many.batch_contract(&wide, (0, 0), (2, 2)).unwrap();
    let want = many.batch_contract(&wide.copy().unwrap(), (0, 0), (2, 2)).unwrap();
    assert_eq!(got.to_vec().unwrap(), want.to_vec().unwrap());
}

#[test]
fn dot_contracts_any_axis_of_up_to_four() {
    let (rt, mut rng) = (rt(1), Rng::new(4));
    let x: Tensor<(Row, Inner, Batch)> =
        Tensor::from_slice(&rt, [2, 3, 4], &normals(&mut rng, 24)).unwrap();
    let w: Tensor<(Inner, Col)> = Tensor::from_slice(&rt, [3, 5], &normals(&mut rng, 15)).unwrap();
    let y: Tensor<(Row, Batch, Col)> = x.dot(&w, Inner).unwrap();
    let (xs, ws) = (x.to_vec().unwrap(), w.to_vec().unwrap());
    let want: Vec<f64> = (0..40)
        .map(|at| {
            let (r, b, c): (usize, usize, usize) = (at / 20, at / 5 % 4, at % 5);
            let term = |i: usize| f64::from(xs[r * 12 + i * 4 + b]) * f64::from(ws[i * 5 + c]);
            (0..3).map(term).sum()
        })
        .collect();
    close(&y.to_vec().unwrap(), &want, 1e-6);
    let scalar: Tensor<()> = {
        let v: Tensor<(Inner,)> = Tensor::from_slice(&rt, [3], &[1.0f32, 2.0, 3.0]).unwrap();
        v.dot(&v, Inner).unwrap()
    };
    assert_eq!(scalar.item().unwrap(), 14.0);
}

/// Activations are rounded to 8 bits for each block of 32, which bounds the error by half a step
/// times the magnitude of the weights.
#[test]
fn matmul_of_every_block_format_is_within_the_bound_of_its_activations() {
    let mut rng = Rng::new(5);
    for info in DType::BLOCK_FORMATS {
        let rt = rt(2);
        let path = format!("blocks/{}.blocks", golden_name(info.dtype));
        let golden = std::fs::read(fucina_testkit::golden_path(&path)).unwrap();
        let (k, n) = (2 * info.elems.max(128), 19);
        let row_bytes = info.dtype.row_bytes(k).unwrap();
        let raw: Vec<u8> = golden.iter().copied().cycle().take(n * row_bytes).collect();
        let mut w = rt.tensor_from_bytes(info.dtype, &[n, k], raw.into()).unwrap();
        let rows = w.to_vec().unwrap();
        for m in [1, 2, 7, 33] {
            let x = normals(&mut rng, m * k);
            let a = rt.tensor(&[m, k], &x).unwrap();
            let plain = a.matmul_t(&w).unwrap().to_vec().unwrap();
            w.pack().unwrap();
            let packed = a.matmul_t(&w).unwrap().to_vec().unwrap();
            for i in 0..m {
                for j in 0..n {
                    let (x, w) = (&x[i * k..][..k], &rows[j * k..][..k]);
                    let exact: f64 =
                        x.iter().zip(w).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
                    let steps = x.chunks(32).zip(w.chunks(32)).map(|(x, w)| {
                        let amax = x.iter().fold(0f32, |max, x| max.max(x.abs()));
                        f64::from(amax) / 254.0 * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
                    });
                    let bound = steps.sum::<f64>() + DotOracle::new(x, w).bound() * 4.0;
                    let label = format!("{:?} m={m} [{i}, {j}]", info.dtype);
                    let at = i * n + j;
                    let error = (f64::from(packed[at]) - exact).abs();
                    assert!(error <= bound, "{label} packed: {} {exact} {bound}", packed[at]);
                    let error = (f64::from(plain[at]) - exact).abs();
                    assert!(error <= bound, "{label} plain: {} {exact} {bound}", plain[at]);
                }
            }
        }
    }
}

fn golden_name(dtype: DType) -> String {
    let name = dtype.name().to_lowercase();
    name.replace("_k", "_K")
}

#[test]
fn activations_beyond_f16_and_non_finite_ones_stay_right() {
    let rt = rt(2);
    let mut w = rt.zeros(DType::Q8_0, &[16, 64]).unwrap();
    let mut raw = vec![0u8; 16 * 68];
    for block in raw.chunks_exact_mut(34) {
        block[..2].copy_from_slice(&f16::ONE.to_le_bytes());
        block[2..].fill(1);
    }
    w = {
        let _ = w;
        rt.tensor_from_bytes(DType::Q8_0, &[16, 64], raw.into()).unwrap()
    };
    w.pack().unwrap();
    for m in [1, 4, 33] {
        let mut x = vec![0f32; m * 64];
        x[0] = 3e5;
        let out = rt.tensor(&[m, 64], &x).unwrap().matmul_t(&w).unwrap().to_vec().unwrap();
        assert!((out[0] - 3e5).abs() <= 3e5 / 254.0, "{}", out[0]);
        for bad in [f32::NAN, f32::INFINITY] {
            x[0] = bad;
            let out = rt.tensor(&[m, 64], &x).unwrap().matmul_t(&w).unwrap().to_vec().unwrap();
            assert!(!out[0].is_finite(), "{bad} became {}", out[0]);
            assert!(out[16..].iter().all(|&y| y == 0.0), "other rows are not touched");
        }
    }
}

#[test]
fn shape_errors_name_the_op_and_both_shapes() {
    let rt = rt(1);
    let zeros = |shape: &[usize]| rt.zeros(DType::F32, shape).unwrap();
    let (a, b) = (zeros(&[2, 3]), zeros(&[4, 5]));
    let table = RopeTable::new(&rt, &config(4), &[0, 1]).unwrap();
    let attention =
        AttentionParams { scale: 1.0, causal: true, q_offset: 0, window: None, soft_cap: None };
    let errors = [
        (a.matmul_t(&b).unwrap_err(), ["dot", "[2, 3]", "[4, 5]"]),
        (a.add(&b).unwrap_err(), ["broadcast", "[4, 5]", "[2, 3]"]),
        (a.glu(Activation::Silu, &b).unwrap_err(), ["glu", "[2, 3]", "[4, 5]"]),
        (a.rms_norm(Some(&zeros(&[4])), 1e-6).unwrap_err(), ["rms_norm", "[2, 3]", "[4]"]),
        (
            zeros(&[3, 1, 4]).rope(&table, Pairing::Halves).unwrap_err(),
            ["rope", "[3, 1, 4]", "[2, 2]"],
        ),
        (
            zeros(&[2, 3, 4])
                .attention(&zeros(&[5, 2, 4]), &zeros(&[5, 2, 4]), &attention)
                .unwrap_err(),
            ["attention", "[2, 3, 4]", "[5, 2, 4]"],
        ),
        (DynTensor::concat(&[&a, &b], 0).unwrap_err(), ["concat", "[2, 3]", "[4, 5]"]),
        (
            a.rows(&rt.zeros(DType::I32, &[1, 1]).unwrap()).unwrap_err(),
            ["rows", "[2, 3]", "[1, 1]"],
        ),
    ];
    for (error, words) in errors {
        let text = error.to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text} lacks one of {words:?}");
    }
}

#[test]
fn elementwise_ops_broadcast_the_right_side() {
    let (rt, mut rng) = (rt(2), Rng::new(6));
    let (x, row, col) = (normals(&mut rng, 12), normals(&mut rng, 4), normals(&mut rng, 3));
    let a = rt.tensor(&[3, 4], &x).unwrap();
    let b = rt.tensor(&[4], &row).unwrap();
    let c = rt.tensor(&[3, 1], &col).unwrap();
    let want = |f: fn(f64, f64) -> f64, by: &dyn Fn(usize) -> f32| -> Vec<f64> {
        (0..12).map(|at| f(x[at].into(), by(at).into())).collect()
    };
    close(&a.add(&b).unwrap().to_vec().unwrap(), &want(|a, b| a + b, &|at| row[at % 4]), 1e-7);
    close(&a.sub(&c).unwrap().to_vec().unwrap(), &want(|a, b| a - b, &|at| col[at / 4]), 1e-7);
    close(&a.mul(&a).unwrap().to_vec().unwrap(), &want(|a, b| a * b, &|at| x[at]), 1e-7);
    close(&a.div(&b).unwrap().to_vec().unwrap(), &want(|a, b| a / b, &|at| row[at % 4]), 1e-6);
    let t = rt.tensor(&[4, 3], &x).unwrap().permute(&[1, 0]).unwrap();
    close(
        &a.add(&t).unwrap().to_vec().unwrap(),
        &want(|a, b| a + b, &|at| x[at % 4 * 3 + at / 4]),
        1e-6,
    );
    close(&a.unary(UnaryOp::Exp).unwrap().to_vec().unwrap(), &want(|a, _| a.exp(), &|_| 0.0), 1e-6);
    let silu: Vec<f64> = x.iter().map(|&x| f64::from(x) / (1.0 + (-f64::from(x)).exp())).collect();
    let product: Vec<f64> = silu.iter().zip(&x).map(|(s, &x)| s * f64::from(x)).collect();
    close(&a.glu(Activation::Silu, &a).unwrap().to_vec().unwrap(), &product, 1e-6);
}

#[test]
fn norm_and_softmax_work_on_the_innermost_axis() {
    let (rt, mut rng) = (rt(2), Rng::new(7));
    for (rows, cols) in [(1, 1), (3, 33), (65, 257), (0, 4), (4, 0)] {
        let x = normals(&mut rng, rows * cols);
        let w = normals(&mut rng, cols);
        let a = rt.tensor(&[rows, cols], &x).unwrap();
        let weight = rt.tensor(&[cols], &w).unwrap();
        let mut norm = Vec::new();
        let mut soft = Vec::new();
        for row in x.chunks(cols.max(1)) {
            let square: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / cols as f64;
            norm.extend(
                row.iter()
                    .zip(&w)
                    .map(|(&x, &w)| f64::from(x) / (square + 1e-6).sqrt() * f64::from(w)),
            );
            let sum: f64 = row.iter().map(|&x| (0.5 * f64::from(x)).exp()).sum();
            soft.extend(row.iter().map(|&x| (0.5 * f64::from(x)).exp() / sum));
        }
        close(&a.rms_norm(Some(&weight), 1e-6).unwrap().to_vec().unwrap(), &norm, 1e-6);
        close(&a.softmax(0.5).unwrap().to_vec().unwrap(), &soft, 1e-6);
    }
}

fn config(dims: usize) -> RopeConfig<'static> {
    RopeConfig { dims, base: 10_000.0, freq_factors: None, scaling: Scaling::None }
}

#[test]
fn rope_rotates_pairs_by_position() {
    let (rt, mut rng) = (rt(1), Rng::new(8));
    let x = normals(&mut rng, 2 * 3 * 6);
    let a = rt.tensor(&[2, 3, 6], &x).unwrap();
    let table = RopeTable::new(&rt, &config(4), &[5, 9]).unwrap();
    for pairing in [Pairing::Interleaved, Pairing::Halves] {
        let mut want: Vec<f64> = x.iter().map(|&x| x.into()).collect();
        for (at, head) in want.chunks_mut(6).enumerate() {
            for pair in 0..2 {
                let (i, j) = match pairing {
                    Pairing::Interleaved => (2 * pair, 2 * pair + 1),
                    Pairing::Halves => (pair, pair + 2),
                };
                let angle = [5.0, 9.0][at / 3] * 10_000f64.powf(-(pair as f64) / 2.0);
                let (a, b) = (head[i], head[j]);
                head[i] = a * angle.cos() - b * angle.sin();
                head[j] = a * angle.sin() + b * angle.cos();
            }
        }
        close(&a.rope(&table, pairing).unwrap().to_vec().unwrap(), &want, 1e-6);
    }
    assert!(RopeTable::new(&rt, &config(3), &[0]).is_err());
    let factors = [1.0; 3];
    let wrong = RopeConfig { freq_factors: Some(&factors), ..config(4) };
    assert!(RopeTable::new(&rt, &wrong, &[0]).is_err());
}

#[test]
fn rows_top_k_and_concat_choose_the_right_elements() {
    let rt = rt(2);
    let table: Vec<f32> = (0..20).map(|x| x as f32).collect();
    let table = rt.tensor(&[5, 4], &table).unwrap();
    let ids = rt.tensor(&[3], &[4, 0, 4]).unwrap();
    let want = [16., 17., 18., 19., 0., 1., 2., 3., 16., 17., 18., 19.];
    assert_eq!(table.rows(&ids).unwrap().to_vec().unwrap(), want);
    for bad in [5, -1, i32::MIN, i32::MAX] {
        let ids = rt.tensor(&[1], &[bad]).unwrap();
        let error = table.rows(&ids).unwrap_err();
        assert_eq!(error, Error::OutOfRange { op: "rows", index: bad.into(), limit: 5 });
    }
    let x = rt.tensor(&[2, 4], &[1.0f32, 3.0, 3.0, 2.0, f32::NAN, -1.0, 0.0, -2.0]).unwrap();
    let (values, places) = x.top_k(2).unwrap();
    assert_eq!(values.to_vec().unwrap(), [3.0, 3.0, 0.0, -1.0]);
    assert_eq!(places.data::<i32>().unwrap(), [1, 2, 2, 1]);
    assert!(x.top_k(5).is_err());
    let (a, b) = (table.narrow(1, 0, 1).unwrap(), table.narrow(1, 2, 2).unwrap());
    let joined = DynTensor::concat(&[&a, &b], 1).unwrap();
    assert_eq!(joined.shape(), [5, 3]);
    assert_eq!(joined.narrow(0, 1, 1).unwrap().to_vec().unwrap(), [4.0, 6.0, 7.0]);
    assert!(DynTensor::concat(&[], 0).is_err());
}

/// Attention in f64, straight from the definition.
fn attention(
    q: &[f32],
    k: &[f32],
    v: &[f32],
    size: [usize; 5],
    params: &AttentionParams,
) -> Vec<f64> {
    let [tokens, heads, kv_heads, dim, positions] = size;
    let mut out = Vec::new();
    for t in 0..tokens {
        for h in 0..heads {
            let kv = h / (heads / kv_heads);
            let at = params.q_offset + t;
            let sees =
                |s: usize| (!params.causal || s <= at) && params.window.is_none_or(|w| s + w > at);
            let score = |s: usize| -> f64 {
                let dot: f64 = (0..dim)
                    .map(|d| {
                        let q = q[(t * heads + h) * dim + d];
                        f64::from(q) * f64::from(k[(s * kv_heads + kv) * dim + d])
                    })
                    .sum();
                let score = dot * f64::from(params.scale);
                params.soft_cap.map_or(score, |c| f64::from(c) * (score / f64::from(c)).tanh())
            };
            let weights: Vec<f64> =
                (0..positions).map(|s| if sees(s) { score(s).exp() } else { 0.0 }).collect();
            let sum: f64 = weights.iter().sum();
            for d in 0..dim {
                let value = |s: usize| f64::from(v[(s * kv_heads + kv) * dim + d]);
                let total: f64 = weights.iter().enumerate().map(|(s, w)| w * value(s)).sum();
                out.push(if sum > 0.0 { total / sum } else { 0.0 });
            }
        }
    }
    out
}

#[test]
fn attention_matches_its_definition() {
    let (rt, mut rng) = (rt(3), Rng::new(9));
    for (tokens, heads, kv_heads, dim, positions) in [
        (1, 1, 1, 1, 1),
        (3, 4, 2, 8, 7),
        (37, 2, 1, 33, 40),
        (1, 6, 3, 64, 130),
        (40, 2, 2, 16, 40),
    ] {
        let q = normals(&mut rng, tokens * heads * dim);
        let k = normals(&mut rng, positions * kv_heads * dim);
        let v = normals(&mut rng, positions * kv_heads * dim);
        let (qs, kvs) = ([tokens, heads, dim], [positions, kv_heads, dim]);
        let (qt, kt) = (rt.tensor(&qs, &q).unwrap(), rt.tensor(&kvs, &k).unwrap());
        let vt = rt.tensor(&kvs, &v).unwrap();
        for (causal, window, soft_cap) in [
            (true, None, None),
            (false, None, Some(2.0)),
            (true, Some(5), None),
            (false, Some(3), Some(1.0)),
        ] {
            let q_offset = positions - tokens;
            let params = AttentionParams { scale: 0.3, causal, q_offset, window, soft_cap };
            let want = attention(&q, &k, &v, [tokens, heads, kv_heads, dim, positions], &params);
            let got = qt.attention(&kt, &vt, &params).unwrap();
            close(&got.to_vec().unwrap(), &want, 2e-5);
        }
    }
    let (q, k) =
        (rt.zeros(DType::F32, &[2, 1, 4]).unwrap(), rt.zeros(DType::F32, &[0, 1, 4]).unwrap());
    let params =
        AttentionParams { scale: 1.0, causal: true, q_offset: 0, window: None, soft_cap: None };
    assert_eq!(q.attention(&k, &k, &params).unwrap().to_vec().unwrap(), [0.0; 8]);
    let far = AttentionParams { q_offset: usize::MAX, ..params };
    assert!(q.attention(&k, &k, &far).is_err());
}

/// What a cache makes of values, by the format crate's own codec.
fn stored(cache: CacheType, x: &[f32]) -> Vec<f32> {
    let mut bytes = vec![0; cache.dtype().row_bytes(x.len()).unwrap()];
    cache.dtype().encode(x, &mut bytes).unwrap();
    let mut back = vec![0.0; x.len()];
    cache.dtype().decode(&bytes, &mut back).unwrap();
    back
}

#[test]
fn the_cache_holds_what_was_appended() {
    for (cache, dim) in [(CacheType::F16, 4), (CacheType::F16, 33), (CacheType::Q8_0, 64)] {
        holds_what_was_appended(cache, dim);
    }
}

fn holds_what_was_appended(cache: CacheType, dim: usize) {
    let (rt, mut rng) = (rt(2), Rng::new(10));
    let shape = KvShape { layers: 2, capacity: 13, kv_heads: 2, k_dim: dim, v_dim: dim, cache };
    let per_head = cache.dtype().row_bytes(dim).unwrap();
    assert_eq!(shape.bytes(), Some(2 * 13 * 2 * 2 * per_head));
    let mut kv = KvCache::new(&rt, shape).unwrap();
    let (mut ks, mut vs) = (Vec::new(), Vec::new());
    // The last one is more than the few rows that attention reads as they are stored.
    for tokens in [1, 3, 9] {
        let (k, v) = (normals(&mut rng, tokens * 2 * dim), normals(&mut rng, tokens * 2 * dim));
        let q = normals(&mut rng, tokens * 4 * dim);
        let tensor = |x: &[f32], heads| rt.tensor(&[tokens, heads, dim], x).unwrap();
        for layer in 0..2 {
            kv.append(layer, &tensor(&k, 2), &tensor(&v, 2)).unwrap();
        }
        ks.extend(stored(cache, &k));
        vs.extend(stored(cache, &v));
        let params = AttentionParams {
            scale: 0.2,
            causal: true,
            q_offset: kv.len(),
            window: None,
            soft_cap: None,
        };
        let want = attention(&q, &ks, &vs, [tokens, 4, 2, dim, ks.len() / 2 / dim], &params);
        close(&kv.attend(1, &tensor(&q, 4), &params).unwrap().to_vec().unwrap(), &want, 1e-5);
        kv.advance(tokens).unwrap();
    }
    let one = rt.zeros(DType::F32, &[1, 2, dim]).unwrap();
    assert_eq!(kv.append(0, &one, &one), Err(Error::CacheFull { capacity: 13, wanted: 14 }));
    kv.truncate(4);
    kv.append(0, &one, &one).unwrap();
    let wrong = rt.zeros(DType::F32, &[1, 1, dim]).unwrap();
    assert!(matches!(kv.append(0, &wrong, &one), Err(Error::Shape { op: "kv_cache", .. })));
}

/// Nothing of the size of a broadcast view can be packed.
#[test]
fn a_product_over_more_elements_than_addresses_is_an_error() {
    let rt = Runtime::builder().threads(2).build().unwrap();
    let row = rt.tensor(&[1, 1], &[2.0f32]).unwrap().broadcast(&[1, 1 << 61]).unwrap();
    let error = row.matmul_t(&row).unwrap_err();
    assert!(error.to_string().contains("allocate"), "{error}");
}
