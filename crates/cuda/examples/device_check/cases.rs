//! The calls of the parity sweep.

use fucina_accel::{
    Attention, Call, Decline, GroupedMatMul, MatMul, Operand, Pool, Provider, Storage, submit,
};
use fucina_dtype::DType;
use fucina_testkit::Rng;

use crate::data::{Rounding, Rows, U, Want, compare, dot, real};

const FORMATS: [DType; 10] = [
    DType::F32,
    DType::F16,
    DType::BF16,
    DType::Q4_0,
    DType::Q5_0,
    DType::Q8_0,
    DType::Q4_K,
    DType::Q5_K,
    DType::Q6_K,
    DType::TQ2_0,
];

/// Rows around the kernels for few rows, and around the heights of tiles.
const ROWS: [usize; 18] = [1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, 31, 33, 63, 65, 127, 129, 300];
const QUICK_ROWS: [usize; 4] = [1, 5, 9, 33];

/// One call and what it has to give.
pub(crate) struct Case {
    pub(crate) name: String,
    eight_bits: bool,
    what: What,
}

enum What {
    Product { dtype: DType, m: usize, n: usize, k: usize, outliers: bool },
    Grouped { dtype: DType, groups: &'static [usize], n: usize, k: usize, gather: bool },
    Attention(Heads),
}

#[derive(Clone, Copy)]
struct Heads {
    kv: DType,
    queries: usize,
    keys: usize,
    heads: usize,
    kv_heads: usize,
    d: usize,
    window: Option<usize>,
    soft_cap: Option<f32>,
}

/// Every case. Attention does not depend on the switches for products. Only blocks are multiplied with
/// activations in 8 bits.
pub(crate) fn all(quick: bool, with_attention: bool, eight_bits: bool) -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in FORMATS.into_iter().filter(|dtype| !eight_bits || dtype.is_block()) {
        products(dtype, quick, &mut cases);
        grouped(dtype, quick, &mut cases);
    }
    if with_attention {
        attentions(quick, &mut cases);
    }
    for case in &mut cases {
        case.eight_bits = eight_bits;
    }
    cases
}

fn products(dtype: DType, quick: bool, cases: &mut Vec<Case>) {
    let unit = dtype.unit().0.max(32);
    // Columns and contracted sizes that end inside of a tile, and enough of k for splits.
    let sizes: &[[usize; 2]] =
        if quick { &[[68, 1]] } else { &[[1, 1], [63, 3], [68, 8], [129, 5], [1024, 16]] };
    let rows: &[usize] = if quick { &QUICK_ROWS } else { &ROWS };
    for &[n, blocks] in sizes {
        // Formats with blocks of 256 have eight times as many elements as others.
        let k = if unit == 32 { blocks * 64 + 32 } else { blocks * unit };
        for &m in rows {
            let name = format!("{dtype} {m}x{n}x{k}");
            cases.push(Case {
                name,
                eight_bits: false,
                what: What::Product { dtype, m, n, k, outliers: false },
            });
        }
        let (m, outliers) = (17, true);
        let name = format!("{dtype} {m}x{n}x{k} beyond f16");
        cases.push(Case {
            name,
            eight_bits: false,
            what: What::Product { dtype, m, n, k, outliers },
        });
    }
}

fn grouped(dtype: DType, quick: bool, cases: &mut Vec<Case>) {
    let k = 2 * dtype.unit().0.max(32);
    let groups: &[&[usize]] = if quick {
        &[&[0, 1, 7, 33]]
    } else {
        &[&[0, 1, 7, 33, 40], &[1, 0, 1, 1], &[128, 0, 129]]
    };
    for &groups in groups {
        for gather in [false, true] {
            let from = if gather { " gathered" } else { "" };
            let n = if quick { 36 } else { 132 };
            let name = format!("{dtype} experts {groups:?} {n}x{k}{from}");
            cases.push(Case {
                name,
                eight_bits: false,
                what: What::Grouped { dtype, groups, n, k, gather },
            });
        }
    }
}

fn attentions(quick: bool, cases: &mut Vec<Case>) {
    let (dims, sizes): (&[usize], &[[usize; 2]]) = if quick {
        (&[64], &[[1, 33], [9, 9]])
    } else {
        let sizes = &[[1, 1], [1, 1000], [2, 129], [7, 7], [33, 65], [128, 640]];
        (&[64, 80, 128, 256], sizes)
    };
    for kv in [DType::F32, DType::F16] {
        for &d in dims {
            for &[queries, keys] in sizes {
                for (window, soft_cap) in [(None, None), (Some(17), None), (None, Some(5.0))] {
                    let heads =
                        Heads { kv, queries, keys, heads: 8, kv_heads: 2, d, window, soft_cap };
                    let name = format!(
                        "attention {kv} {queries} of {keys}, {d} wide, {window:?} {soft_cap:?}"
                    );
                    cases.push(Case { name, eight_bits: false, what: What::Attention(heads) });
                }
            }
        }
    }
}

impl Case {
    fn rounding(&self, dtype: DType) -> Rounding {
        Rounding { is_block: dtype.is_block(), eight_bits: self.eight_bits }
    }

    /// Runs the call on the device. The largest error, as a part of its bound.
    pub(crate) fn run(&self, provider: &dyn Provider, pool: &Pool) -> Result<f64, String> {
        match self.what {
            What::Product { dtype, m, n, k, outliers } => {
                let rounding = self.rounding(dtype);
                product(provider, pool, (dtype, rounding, outliers), [m, n, k])
            }
            What::Grouped { dtype, groups, n, k, gather } => {
                let rounding = self.rounding(dtype);
                experts(provider, pool, (dtype, rounding, groups, gather), [n, k])
            }
            What::Attention(heads) => attention(provider, pool, heads),
        }
    }
}

fn offload(provider: &dyn Provider, pool: &Pool, call: &Call<'_>) -> Result<Storage, String> {
    let bytes = call.out_bytes().map_err(|error| error.to_string())?;
    let out = pool.take(bytes).map_err(|error| error.to_string())?;
    submit(provider, call, out).map_err(|(why, _): (Decline, _)| format!("declined: {why}"))
}

fn view<'a>(rows: &'a Rows, shape: &[usize]) -> Result<Operand<'a>, String> {
    Operand::dense(&rows.storage, rows.dtype, Rows::OFFSET, shape)
        .map_err(|error| error.to_string())
}

/// Activations: a row in three is beyond the range of f16, and one is tiny, if outliers are wanted.
fn activations(m: usize, k: usize, outliers: bool, rng: &mut Rng) -> Rows {
    let mut values = rng.normals(m * k, 1.0);
    if outliers {
        for (row, values) in values.chunks_exact_mut(k).enumerate() {
            let scale = [1.0, 3e5, 1e-4][row % 3];
            for value in values {
                *value *= scale;
            }
        }
    }
    Rows::new(DType::F32, k, &values)
}

fn product(
    provider: &dyn Provider,
    pool: &Pool,
    (dtype, rounding, outliers): (DType, Rounding, bool),
    [m, n, k]: [usize; 3],
) -> Result<f64, String> {
    let mut rng = Rng::new((m * 31 + n) as u64 * 31 + k as u64);
    let x = activations(m, k, outliers, &mut rng);
    let weights = Rows::normal(dtype, n, k, &mut rng);
    let call = MatMul { lhs: view(&x, &[1, m, k])?, rhs: view(&weights, &[1, n, k])? };
    let out = offload(provider, pool, &Call::MatMul(call))?;
    let largest = weights.largest();
    let each = (0..m).flat_map(|row| (0..n).map(move |column| (row, column)));
    let want: Vec<Want> =
        each.map(|(row, column)| dot(x.row(row), weights.row(column), rounding, largest)).collect();
    compare(&out, &want)
}

fn experts(
    provider: &dyn Provider,
    pool: &Pool,
    (dtype, rounding, groups, gather): (DType, Rounding, &[usize], bool),
    [n, k]: [usize; 2],
) -> Result<f64, String> {
    let mut rng = Rng::new((n * 31 + k) as u64);
    let rows: usize = groups.iter().sum();
    let sources = if gather { 11 } else { rows };
    let x = Rows::normal(DType::F32, sources, k, &mut rng);
    let weights = Rows::normal(dtype, groups.len() * n, k, &mut rng);
    let id = |row: usize| i32::try_from(row).map_err(|error| error.to_string());
    let mut offsets = vec![0];
    for &rows in groups {
        offsets.push(offsets[offsets.len() - 1] + id(rows)?);
    }
    let source = |row: usize| if gather { (row * 7 + row / 3) % sources } else { row };
    let ids = (0..rows).map(|row| id(source(row))).collect::<Result<Vec<_>, _>>()?;
    let call = GroupedMatMul {
        x: view(&x, &[sources, k])?,
        weights: view(&weights, &[groups.len(), n, k])?,
        offsets: &offsets,
        row_ids: gather.then_some(&ids),
    };
    let out = offload(provider, pool, &Call::GroupedMatMul(call))?;
    let largest = weights.largest();
    let experts = groups.iter().enumerate().flat_map(|(at, &rows)| std::iter::repeat_n(at, rows));
    let mut want = Vec::with_capacity(rows * n);
    for (row, expert) in experts.enumerate() {
        let x = x.row(source(row));
        want.extend(
            (0..n).map(|column| dot(x, weights.row(expert * n + column), rounding, largest)),
        );
    }
    compare(&out, &want)
}

/// Queries are the last positions. Scores err as products do, the exponential by what its argument
/// errs, and every weight by the error of the sum as well.
fn attention(provider: &dyn Provider, pool: &Pool, sizes: Heads) -> Result<f64, String> {
    let Heads { kv, queries, keys, heads, kv_heads, d, window, soft_cap } = sizes;
    let mut rng = Rng::new((queries * 31 + keys) as u64 * 31 + d as u64);
    let q = Rows::normal(DType::F32, queries * heads, d, &mut rng);
    let k = Rows::normal(kv, keys * kv_heads, d, &mut rng);
    let v = Rows::normal(kv, keys * kv_heads, d, &mut rng);
    let (scale, q_offset) = (0.125f32, keys - queries);
    let call = Attention {
        q: view(&q, &[queries, heads, d])?,
        k: view(&k, &[keys, kv_heads, d])?,
        v: view(&v, &[keys, kv_heads, d])?,
        scale,
        causal: true,
        q_offset,
        window,
        soft_cap,
    };
    let out = offload(provider, pool, &Call::Attention(call))?;
    let most_k = k.largest();
    let cap = |score: f64| match soft_cap.map(f64::from) {
        Some(cap) => cap * (score / cap).tanh(),
        None => score,
    };
    let mut want = Vec::with_capacity(queries * heads * d);
    for row in 0..queries * heads {
        let (position, group) = (q_offset + row / heads, row % heads * kv_heads / heads);
        let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
        let seen = first..=position;
        let dots: Vec<Want> = seen
            .clone()
            .map(|key| dot(q.row(row), k.row(key * kv_heads + group), Rounding::default(), most_k))
            .collect();
        let scores: Vec<f64> = dots.iter().map(|dot| cap(dot.value * f64::from(scale))).collect();
        let slack = dots.iter().map(|dot| f64::from(scale) * dot.bound + 8.0 * U * dot.value.abs());
        let argument = slack.fold(0.0, f64::max);
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let exps: Vec<f64> = scores.iter().map(|score| (score - most).exp()).collect();
        let total: f64 = exps.iter().sum();
        // Both the term and the sum err by `argument`, and weights and values may be f16.
        let relative = 2.2 * argument + 2.0 * (real(keys) + 12.0) * U + 2.1 / 2048.0;
        want.extend((0..d).map(|column| {
            let terms = exps
                .iter()
                .zip(seen.clone())
                .map(|(exp, key)| exp / total * f64::from(v.row(key * kv_heads + group)[column]));
            let magnitude: f64 = terms.clone().map(f64::abs).sum();
            Want { value: terms.sum(), bound: relative * magnitude + f64::from(f32::MIN_POSITIVE) }
        }));
    }
    compare(&out, &want)
}
