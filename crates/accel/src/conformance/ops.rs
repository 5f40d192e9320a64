//! Products, attention and row ops against the oracle: edge shapes, formats, strides.

use std::sync::Arc;

use fucina_dtype::DType;

use super::data::{Data, Random};
use super::oracle::{self, U, Want, real};
use super::{Check, Config, Report, Stop, ensure, offload, pool};
use crate::call::{Attention, Call, MatMul, Pairing, RmsNorm, Rope, Rows, Softmax};
use crate::operand::Operand;
use crate::provider::Provider;
use crate::storage::Storage;

/// Makes the call from its operands.
pub(super) type MakeCall = Box<dyn for<'a> Fn(&[Operand<'a>]) -> Call<'a>>;

/// One call and its right answer.
pub(super) struct Case {
    pub(super) name: String,
    pub(super) inputs: Vec<Data>,
    pub(super) call: MakeCall,
    pub(super) want: Vec<Want>,
}

impl Case {
    /// Offloads the call and compares.
    pub(super) fn run(&self, provider: &dyn Provider) -> Check {
        let pool = pool();
        let storages: Vec<_> = self.inputs.iter().map(Data::storage).collect();
        let operands = operands(&self.inputs, &storages)?;
        compare(&offload(provider, &pool, &(self.call)(&operands))?, &self.want)
    }
}

/// Views what [`Data::storage`] has made of each input.
pub(super) fn operands<'a>(
    inputs: &[Data],
    storages: &'a [Storage],
) -> Result<Vec<Operand<'a>>, Stop> {
    let operands = inputs.iter().zip(storages).map(|(data, storage)| data.operand(storage));
    operands.collect::<Result<_, _>>().map_err(|error| Stop::Fail(error.to_string()))
}

/// Compares an output with the right answer.
pub(super) fn compare(out: &Storage, want: &[Want]) -> Check {
    let (chunks, _) = out.host()?.as_chunks::<4>();
    ensure(chunks.len() == want.len(), || format!("{} elements", chunks.len()))?;
    for (i, (&got, want)) in chunks.iter().zip(want).enumerate() {
        let got = f32::from_le_bytes(got);
        let Want { value, bound } = *want;
        ensure(want.accepts(got), || format!("element {i}: {got}, not {value} within {bound:e}"))?;
    }
    Ok(())
}

pub(super) fn check(make: &dyn Fn() -> Arc<dyn Provider>, config: Config, report: &mut Report) {
    let provider = make();
    let mut cases = matmul_shapes(config);
    cases.extend(matmul_formats(config));
    cases.extend([matmul_transposed(config), matmul_nan(), rms_norm_without_weight()]);
    for d in [1, 5, 32, 33, 65] {
        cases.extend([1, 3, 9].map(|rows| rms_norm(rows, d)));
        cases.extend([1, 3, 9].map(|rows| softmax(rows, d)));
        cases.push(softmax_special(d));
    }
    for pairing in [Pairing::Interleaved, Pairing::Halves] {
        cases.extend(
            [(8, 4), (8, 3), (7, 3), (2, 1), (6, 0)].map(|(d, half)| rope(d, half, pairing)),
        );
    }
    cases.extend(attentions(config));
    cases.extend(DType::ALL.iter().filter_map(|&dtype| rows(dtype)));
    for case in cases {
        report.record(case.name.as_str(), case.run(&*provider));
    }
}

/// `[b, m, k] x [rhs_b, n, k]`.
fn matmul(dtypes: [DType; 2], [b, rhs_b, m, n, k]: [usize; 5], config: Config) -> Case {
    let mut random = Random::new((m * 31 + n) as u64 * 31 + k as u64);
    let lhs = Data::random(dtypes[0], &[b, m, k], &mut random);
    let rhs = Data::random(dtypes[1], &[rhs_b, n, k], &mut random);
    let name = format!("matmul {} {b}x{m}x{k} {} {rhs_b}x{n}x{k}", dtypes[0], dtypes[1]);
    let (a, w) = (lhs.values(), rhs.values());
    let row = |values: &[f64], row: usize| values[row * k..][..k].to_vec();
    let mut want = Vec::new();
    for index in 0..b * m * n {
        let (batch, i, j) = (index / (m * n), index / n % m, index % n);
        let weights = row(&w, if rhs_b == 1 { 0 } else { batch } * n + j);
        let rounding = config.operand_rounding;
        let is_block = dtypes[1].is_block();
        want.push(oracle::dot(&row(&a, batch * m + i), &weights, rounding, is_block));
    }
    Case { name, inputs: vec![lhs, rhs], call: product(), want }
}

fn product() -> MakeCall {
    Box::new(|inputs| Call::MatMul(MatMul { lhs: inputs[0], rhs: inputs[1] }))
}

fn matmul_shapes(config: Config) -> Vec<Case> {
    let f32s = [DType::F32, DType::F32];
    let mut cases = Vec::new();
    for m in (1..=9).chain([31, 32, 33, 63, 64, 65]) {
        cases.push(matmul(f32s, [1, 1, m, 5, 33], config));
    }
    for (n, k) in [(1, 1), (1, 64), (33, 1), (64, 64), (65, 7), (31, 257), (127, 129)] {
        cases.extend([1, 3, 33].map(|m| matmul(f32s, [1, 1, m, n, k], config)));
    }
    for [b, rhs_b] in [[2, 2], [3, 1], [5, 5]] {
        cases.push(matmul(f32s, [b, rhs_b, 3, 5, 17], config));
        cases.push(matmul(f32s, [b, rhs_b, 33, 40, 64], config));
    }
    for sizes in
        [[1, 1, 0, 3, 4], [1, 1, 3, 0, 4], [1, 1, 3, 4, 0], [0, 1, 3, 4, 5], [0, 0, 3, 4, 5]]
    {
        cases.push(matmul(f32s, sizes, config));
    }
    cases
}

/// Every pair of an activation type and a weight type.
fn matmul_formats(config: Config) -> Vec<Case> {
    let lhs = [DType::F32, DType::F16, DType::BF16];
    let is_weight = |dtype: &&DType| dtype.is_block() || lhs.contains(dtype);
    let mut cases = Vec::new();
    for &rhs in DType::ALL.iter().filter(is_weight) {
        let k = rhs.unit().0.max(32);
        for lhs in lhs {
            cases.extend([1, 4, 33].map(|m| matmul([lhs, rhs], [1, 1, m, 7, 2 * k], config)));
        }
    }
    cases
}

/// The same product with both operands stored column by column.
fn matmul_transposed(config: Config) -> Case {
    let (m, n, k) = (3, 5, 9);
    let plain = matmul([DType::F32, DType::F32], [1, 1, m, n, k], config);
    let transposed = |data: &Data, rows: usize| {
        let columns = (0..k).flat_map(|p| (0..rows).map(move |i| i * k + p));
        let bytes = columns.flat_map(|at| data.bytes[at * 4..][..4].to_vec()).collect();
        let strides = Some(vec![0, 1, rows]);
        Data { dtype: DType::F32, shape: data.shape.clone(), strides, bytes }
    };
    let inputs = vec![transposed(&plain.inputs[0], m), transposed(&plain.inputs[1], n)];
    Case { name: "matmul transposed".to_owned(), inputs, ..plain }
}

/// One NaN spoils its row of the output, an infinity times zero is NaN, and nothing else changes.
fn matmul_nan() -> Case {
    let (m, n, k) = (3, 4, 8);
    let mut lhs = vec![1f32; m * k];
    lhs[k + 2] = f32::NAN;
    lhs[2 * k + 5] = f32::INFINITY;
    let mut rhs = vec![1f32; n * k];
    rhs[k + 5] = 0.0;
    rhs[2 * k + 5] = -1.0;
    let inf = f64::INFINITY;
    let row = |value: f64| [value; 4];
    let values = [row(8.0), row(f64::NAN), [inf, f64::NAN, -inf, inf]].concat();
    // The zero and the minus one also count in the first row.
    let values = values.into_iter().enumerate().map(|(i, value)| match i {
        1 => 7.0,
        2 => 6.0,
        _ => value,
    });
    let want = values.map(|value| Want::new(value, 0.0)).collect();
    let inputs = vec![Data::f32s(&[1, m, k], &lhs), Data::f32s(&[1, n, k], &rhs)];
    Case { name: "matmul of NaN and infinities".to_owned(), inputs, call: product(), want }
}

fn rms_norm(rows: usize, d: usize) -> Case {
    let mut random = Random::new((rows * 100 + d) as u64);
    let x = Data::random(DType::F32, &[rows, d], &mut random);
    let weight = Data::random(DType::F32, &[d], &mut random);
    let eps = 1e-5;
    let want = oracle::rms_norm(&x, Some(&weight), eps);
    let call: MakeCall = Box::new(move |inputs| {
        Call::RmsNorm(RmsNorm { x: inputs[0], weight: Some(inputs[1]), eps })
    });
    Case { name: format!("rms_norm {rows}x{d}"), inputs: vec![x, weight], call, want }
}

/// Also a row of zeros, which divides by the root of eps alone.
fn rms_norm_without_weight() -> Case {
    let x =
        Data::f32s(&[3, 4], &[1.0, -2.0, 3.0, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0, f32::NAN, 1.0, 1.0]);
    let want = oracle::rms_norm(&x, None, 1e-6);
    let call: MakeCall =
        Box::new(|inputs| Call::RmsNorm(RmsNorm { x: inputs[0], weight: None, eps: 1e-6 }));
    Case { name: "rms_norm without weight".to_owned(), inputs: vec![x], call, want }
}

fn softmax_of(name: String, x: Data, scale: f32) -> Case {
    let d = x.shape[1];
    let scores: Vec<f64> = x.values().iter().map(|x| x * f64::from(scale)).collect();
    let want = scores.chunks(d).flat_map(|row| oracle::softmax(row, 0.0)).collect();
    let call: MakeCall = Box::new(move |inputs| Call::Softmax(Softmax { x: inputs[0], scale }));
    Case { name, inputs: vec![x], call, want }
}

fn softmax(rows: usize, d: usize) -> Case {
    let mut random = Random::new((rows * 100 + d) as u64);
    let mut x = Data::random(DType::F32, &[rows, d], &mut random);
    if d > 1 {
        // Padded rows.
        x.bytes.extend_from_slice(&[0xff; 4].repeat(rows));
        let padded: Vec<u8> = x.bytes[..rows * d * 4].to_vec();
        x.bytes = padded.chunks(d * 4).flat_map(|row| [row, &[0; 4]].concat()).collect();
        x.strides = Some(vec![d + 1, 1]);
        let dense: Vec<u8> = padded;
        let plain = Data { dtype: DType::F32, shape: x.shape.clone(), strides: None, bytes: dense };
        let case = softmax_of(format!("softmax {rows}x{d} in padded rows"), plain, 30.0);
        return Case { inputs: vec![x], ..case };
    }
    softmax_of(format!("softmax {rows}x{d}"), x, 30.0)
}

/// Large scores do not overflow, minus infinity weighs nothing, NaN spoils its row only.
fn softmax_special(d: usize) -> Case {
    let mut values = vec![0f32; 4 * d];
    values[0] = 1e30;
    values[d] = -1e30;
    values[3 * d] = f32::NAN;
    if d > 1 {
        values[2 * d] = f32::NEG_INFINITY;
    }
    softmax_of(format!("softmax of special values, {d} wide"), Data::f32s(&[4, d], &values), 1.0)
}

fn rope(d: usize, half: usize, pairing: Pairing) -> Case {
    let (tokens, heads) = (3, 2);
    let mut random = Random::new((d * 10 + half) as u64);
    let x = Data::random(DType::F32, &[tokens, heads, d], &mut random);
    let cos = Data::random(DType::F32, &[tokens, half], &mut random);
    let sin = Data::random(DType::F32, &[tokens, half], &mut random);
    let want = oracle::rope(&x, &cos, &sin, pairing);
    let call: MakeCall = Box::new(move |inputs| {
        Call::Rope(Rope { x: inputs[0], cos: inputs[1], sin: inputs[2], pairing })
    });
    let name = format!("rope {pairing:?} {} of {d}", 2 * half);
    Case { name, inputs: vec![x, cos, sin], call, want }
}

/// The scalar arguments of an attention.
#[derive(Debug, Clone, Copy)]
struct Mask {
    causal: bool,
    q_offset: usize,
    window: Option<usize>,
    soft_cap: Option<f32>,
}

fn attentions(config: Config) -> Vec<Case> {
    let full = Mask { causal: false, q_offset: 0, window: None, soft_cap: None };
    let causal = Mask { causal: true, ..full };
    let mut cases = Vec::new();
    for kv in [DType::F32, DType::F16, DType::Q8_0] {
        let unit = kv.unit().0;
        // [t, heads, kv_heads, s, d, dv]
        for [t, heads, kv_heads, s, d, dv] in
            [[1, 1, 1, 1, 8, 8], [3, 4, 2, 9, 8, 6], [5, 6, 1, 33, 7, 9], [2, 2, 2, 65, 16, 16]]
        {
            // Heads of whole blocks: one block for the smallest, two for the others.
            let whole = |d: usize| if unit == 1 { d } else { d.div_ceil(8) * unit };
            let sizes = [t, heads, kv_heads, s, whole(d), whole(dv)];
            for mask in [
                full,
                Mask { q_offset: sizes[3] - sizes[0].min(sizes[3]), ..causal },
                Mask { q_offset: 2, ..causal },
                Mask { q_offset: 3, window: Some(2), ..causal },
                Mask { soft_cap: Some(0.5), ..full },
            ] {
                cases.push(attention(kv, sizes, mask, config));
            }
        }
        // No key at all, and queries beyond the window of all keys.
        let d = unit.max(8);
        cases.push(attention(kv, [2, 2, 1, 0, d, d], causal, config));
        let beyond = Mask { q_offset: 100, window: Some(4), ..causal };
        cases.push(attention(kv, [2, 2, 1, 5, d, d], beyond, config));
    }
    cases
}

fn attention(kv: DType, sizes: [usize; 6], mask: Mask, config: Config) -> Case {
    let [t, heads, kv_heads, s, d, dv] = sizes;
    let mut random = Random::new((t * 100 + s) as u64);
    let q = Data::random(DType::F32, &[t, heads, d], &mut random);
    let k = Data::random(kv, &[s, kv_heads, d], &mut random);
    let v = Data::random(kv, &[s, kv_heads, dv], &mut random);
    let scale = 0.7f32;
    let (queries, keys, values) = (q.values(), k.values(), v.values());
    let mut want = Vec::new();
    for index in 0..t * heads {
        let (i, group) = (index / heads, index % heads * kv_heads / heads);
        let p = mask.q_offset + i;
        let sees = |j: &usize| {
            (!mask.causal || *j <= p) && mask.window.is_none_or(|window| *j + window > p)
        };
        let seen: Vec<usize> = (0..s).filter(sees).collect();
        let query = &queries[index * d..][..d];
        let rounding = config.operand_rounding;
        let dot = |&j: &usize| {
            oracle::dot(query, &keys[(j * kv_heads + group) * d..][..d], rounding, false)
        };
        let dots: Vec<Want> = seen.iter().map(dot).collect();
        let cap = |score: f64| {
            mask.soft_cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
        };
        let scores: Vec<f64> = dots.iter().map(|dot| cap(dot.value * f64::from(scale))).collect();
        // The cap has no slope above one; it and the scale round a few times.
        let slack =
            dots.iter().map(|dot| dot.bound + 8.0 * U * dot.value.abs()).fold(0.0, f64::max);
        let weights = oracle::softmax(&scores, slack);
        for column in 0..dv {
            let (mut value, mut bound) = (0.0, 0.0);
            for (weight, &j) in weights.iter().zip(&seen) {
                let v = values[(j * kv_heads + group) * dv + column];
                value += weight.value * v;
                let relative = (real(s) + 4.0) * U + 2.1 * rounding;
                bound += weight.bound * v.abs() + relative * (weight.value * v).abs();
            }
            want.push(Want::new(value, bound));
        }
    }
    let Mask { causal, q_offset, window, soft_cap } = mask;
    let call: MakeCall = Box::new(move |inputs| {
        let (q, k, v) = (inputs[0], inputs[1], inputs[2]);
        Call::Attention(Attention { q, k, v, scale, causal, q_offset, window, soft_cap })
    });
    let name = format!("attention {kv} {sizes:?} {mask:?}");
    Case { name, inputs: vec![q, k, v], call, want }
}

/// The chosen rows, decoded. Scalars are exact; blocks may round in another order than the codec.
fn rows(dtype: DType) -> Option<Case> {
    if matches!(dtype, DType::I32 | DType::U8) {
        return None;
    }
    let (v, d) = (5, dtype.unit().0.max(7) * if dtype.is_block() { 2 } else { 1 });
    let table = Data::random(dtype, &[v, d], &mut Random::new(d as u64));
    let ids = [4, 0, 3, 3, 1];
    let values = table.values();
    let want = ids.iter().flat_map(|&id| {
        let row = &values[id * d..][..d];
        let largest = row.iter().fold(0f64, |max, x| max.max(x.abs()));
        let bound = if dtype.is_block() { 8.0 * U * largest } else { 0.0 };
        row.iter().map(move |&value| Want { value, bound }).collect::<Vec<_>>()
    });
    let want = want.collect();
    let ids = Data::ids(&ids.map(|id| i32::try_from(id).unwrap_or(0)));
    let call: MakeCall = Box::new(|inputs| Call::Rows(Rows { table: inputs[0], ids: inputs[1] }));
    Some(Case { name: format!("rows of {dtype}"), inputs: vec![table, ids], call, want })
}
