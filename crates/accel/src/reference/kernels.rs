//! The kernels: dense f32 in, dense f32 out, f64 in between.

use std::ops::Range;
use std::sync::Arc;

use super::math;
use crate::call::{Activation, BinaryOp, Call, Pairing, UnaryOp};
use crate::shape::Shape;

/// An operand as a kernel sees it.
pub(super) struct Dense {
    shape: Shape,
    elems: Arc<[f32]>,
    /// For the one integer operand there is.
    ids: Vec<i32>,
}

impl Dense {
    pub(super) fn new(shape: Shape, elems: Arc<[f32]>) -> Self {
        Self { shape, elems, ids: Vec::new() }
    }

    pub(super) fn ids(shape: Shape, ids: Vec<i32>) -> Self {
        Self { shape, elems: Arc::new([]), ids }
    }
}

/// What a command computes.
#[derive(Debug)]
pub(super) enum Kernel {
    MatMul,
    RmsNorm {
        eps: f32,
    },
    Rope {
        pairing: Pairing,
    },
    Attention(Attention),
    Glu(Activation),
    Binary(BinaryOp),
    Unary(UnaryOp),
    Softmax {
        scale: f32,
    },
    Rows,
    /// For each row, its expert and the row of the activations that it reads.
    GroupedMatMul(Vec<(usize, usize)>),
    /// The rows that are added up, token by token.
    Combine(Vec<usize>),
}

/// The scalar arguments of an attention.
#[derive(Debug)]
pub(super) struct Attention {
    scale: f64,
    soft_cap: Option<f32>,
    /// For each query, the keys that it sees.
    visible: Vec<Range<usize>>,
}

impl Kernel {
    /// The kernel for `call`. `None` if there is none.
    pub(super) fn of(call: &Call<'_>) -> Option<Self> {
        Some(match call {
            Call::MatMul(_) => Self::MatMul,
            Call::RmsNorm(op) => Self::RmsNorm { eps: op.eps },
            Call::Rope(op) => Self::Rope { pairing: op.pairing },
            Call::Attention(op) => {
                let (t, s) = (op.q.shape()[0], op.k.shape()[0]);
                let visible = (0..t).map(|i| op.visible(i, s)).collect();
                let (scale, soft_cap) = (f64::from(op.scale), op.soft_cap);
                Self::Attention(Attention { scale, soft_cap, visible })
            }
            Call::Glu(op) => Self::Glu(op.activation),
            Call::Binary(op) => Self::Binary(op.op),
            Call::Unary(op) => Self::Unary(op.op),
            Call::Softmax(op) => Self::Softmax { scale: op.scale },
            Call::Rows(_) => Self::Rows,
            Call::GroupedMatMul(op) => {
                let [_, experts, ..] = op.sizes();
                let rows = |expert| op.group(expert).map(move |row| (expert, op.source(row)));
                Self::GroupedMatMul((0..experts).flat_map(rows).collect())
            }
            Call::Combine(op) => {
                let ids = op.ids.iter().map(|&id| usize::try_from(id).ok());
                Self::Combine(ids.collect::<Option<_>>()?)
            }
        })
    }

    /// Computes the output.
    pub(super) fn run(&self, inputs: &[Dense]) -> Result<Vec<f32>, String> {
        Ok(match (self, inputs) {
            (Self::MatMul, [lhs, rhs]) => matmul(lhs, rhs),
            (Self::RmsNorm { eps }, [x, weight @ ..]) => rms_norm(x, weight.first(), *eps),
            (Self::Rope { pairing }, [x, cos, sin]) => rope(x, cos, sin, *pairing),
            (Self::Attention(args), [q, k, v]) => attention(args, q, k, v),
            (Self::Glu(activation), [gate, up]) => {
                let glu = |gate, up| math::activation(*activation, gate) * up;
                zip(gate, up, glu)
            }
            (Self::Binary(op), [a, b]) => zip(a, b, |a, b| math::binary(*op, a, b)),
            (Self::Unary(op), [x]) => {
                x.elems.iter().map(|&x| narrow(math::unary(*op, f64::from(x)))).collect()
            }
            (Self::Softmax { scale }, [x]) => softmax(x, f64::from(*scale)),
            (Self::Rows, [table, ids]) => return rows(table, ids),
            (Self::GroupedMatMul(rows), [x, weights]) => grouped_matmul(rows, x, weights),
            (Self::Combine(ids), [x, weights]) => combine(ids, x, weights),
            _ => return Err("wrong number of operands".to_owned()),
        })
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the result is f32; this is its rounding")]
fn narrow(x: f64) -> f32 {
    x as f32
}

/// Sum of products. Four sums, so that the additions do not wait for each other.
fn dot(a: &[f32], b: &[f32]) -> f64 {
    let mut sums = [0f64; 4];
    let (a4, a_rest) = a.as_chunks::<4>();
    let (b4, b_rest) = b.as_chunks::<4>();
    for (a, b) in a4.iter().zip(b4) {
        for (sum, (&a, &b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += f64::from(a) * f64::from(b);
        }
    }
    let rest: f64 = a_rest.iter().zip(b_rest).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
    sums.iter().sum::<f64>() + rest
}

fn matmul(lhs: &Dense, rhs: &Dense) -> Vec<f32> {
    let (&[b, m, k], &[rhs_b, n, _]) = (&*lhs.shape, &*rhs.shape) else { return Vec::new() };
    let mut out = Vec::with_capacity(b * m * n);
    for batch in 0..b {
        let rhs_batch = if rhs_b == 1 { 0 } else { batch };
        for i in 0..m {
            let row = &lhs.elems[(batch * m + i) * k..][..k];
            for j in 0..n {
                out.push(narrow(dot(row, &rhs.elems[(rhs_batch * n + j) * k..][..k])));
            }
        }
    }
    out
}

#[expect(clippy::cast_precision_loss, reason = "a row has fewer than 2^53 elements")]
fn rms_norm(x: &Dense, weight: Option<&Dense>, eps: f32) -> Vec<f32> {
    let d = x.shape[1];
    let mut out = Vec::with_capacity(x.elems.len());
    for row in x.elems.chunks_exact(d.max(1)) {
        let scale = (dot(row, row) / d as f64 + f64::from(eps)).sqrt().recip();
        out.extend(row.iter().enumerate().map(|(i, &x)| {
            let weight = weight.map_or(1.0, |weight| f64::from(weight.elems[i]));
            narrow(f64::from(x) * scale * weight)
        }));
    }
    out
}

fn rope(x: &Dense, cos: &Dense, sin: &Dense, pairing: Pairing) -> Vec<f32> {
    let (heads, d, half) = (x.shape[1], x.shape[2], cos.shape[1]);
    let mut out = x.elems.to_vec();
    for (index, head) in out.chunks_exact_mut(d.max(1)).enumerate() {
        for i in 0..half {
            let (a, b) = match pairing {
                Pairing::Interleaved => (2 * i, 2 * i + 1),
                Pairing::Halves => (i, i + half),
            };
            let angle = index / heads * half + i;
            let (c, s) = (f64::from(cos.elems[angle]), f64::from(sin.elems[angle]));
            let (x, y) = (f64::from(head[a]), f64::from(head[b]));
            head[a] = narrow(x * c - y * s);
            head[b] = narrow(y * c + x * s);
        }
    }
    out
}

fn attention(args: &Attention, q: &Dense, k: &Dense, v: &Dense) -> Vec<f32> {
    let (&[t, heads, d], &[_, kv_heads, dv]) = (&*q.shape, &*v.shape) else { return Vec::new() };
    let mut out = vec![0f32; t * heads * dv];
    let mut sums = vec![0f64; dv];
    for index in 0..t * heads {
        let (i, head) = (index / heads, index % heads);
        let group = head / (heads / kv_heads);
        let keys = args.visible[i].clone();
        let query = &q.elems[index * d..][..d];
        let score = |j: usize| {
            let score = args.scale * dot(query, &k.elems[(j * kv_heads + group) * d..][..d]);
            let cap = args.soft_cap.map(f64::from);
            cap.map_or(score, |cap| cap * (score / cap).tanh())
        };
        let mut scores: Vec<f64> = keys.clone().map(score).collect();
        let total = exp_in_place(&mut scores);
        sums.fill(0.0);
        for (j, weight) in keys.zip(scores) {
            let value = &v.elems[(j * kv_heads + group) * dv..][..dv];
            for (sum, &value) in sums.iter_mut().zip(value) {
                *sum += weight * f64::from(value);
            }
        }
        for (out, &sum) in out[index * dv..][..dv].iter_mut().zip(&sums) {
            // No key, no total: the output stays zero.
            *out = if args.visible[i].is_empty() { 0.0 } else { narrow(sum / total) };
        }
    }
    out
}

/// Replaces scores by their exponentials, shifted so that none overflows. Returns the sum.
fn exp_in_place(scores: &mut [f64]) -> f64 {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    for score in &mut *scores {
        *score = (*score - max).exp();
    }
    scores.iter().sum()
}

fn softmax(x: &Dense, scale: f64) -> Vec<f32> {
    let d = x.shape[1];
    let mut out = Vec::with_capacity(x.elems.len());
    for row in x.elems.chunks_exact(d.max(1)) {
        let mut scores: Vec<f64> = row.iter().map(|&x| scale * f64::from(x)).collect();
        let total = exp_in_place(&mut scores);
        out.extend(scores.into_iter().map(|score| narrow(score / total)));
    }
    out
}

fn zip(a: &Dense, b: &Dense, op: impl Fn(f64, f64) -> f64) -> Vec<f32> {
    let pairs = a.elems.iter().zip(b.elems.iter());
    pairs.map(|(&a, &b)| narrow(op(f64::from(a), f64::from(b)))).collect()
}

fn rows(table: &Dense, ids: &Dense) -> Result<Vec<f32>, String> {
    let (v, d) = (table.shape[0], table.shape[1]);
    let mut out = Vec::with_capacity(ids.ids.len() * d);
    for &id in &ids.ids {
        let row = usize::try_from(id).ok().filter(|&row| row < v);
        let row = row.ok_or_else(|| format!("row {id} of a table of {v} rows"))?;
        out.extend_from_slice(&table.elems[row * d..][..d]);
    }
    Ok(out)
}

fn grouped_matmul(rows: &[(usize, usize)], x: &Dense, weights: &Dense) -> Vec<f32> {
    let (n, k) = (weights.shape[1], weights.shape[2]);
    let mut out = Vec::with_capacity(rows.len() * n);
    for &(expert, source) in rows {
        let row = &x.elems[source * k..][..k];
        out.extend((0..n).map(|j| narrow(dot(row, &weights.elems[(expert * n + j) * k..][..k]))));
    }
    out
}

fn combine(ids: &[usize], x: &Dense, weights: &Dense) -> Vec<f32> {
    let (t, used, d) = (weights.shape[0], weights.shape[1], x.shape[1]);
    let mut out = Vec::with_capacity(t * d);
    for token in 0..t {
        let pairs = token * used..(token + 1) * used;
        out.extend((0..d).map(|i| {
            let term =
                |at: usize| f64::from(weights.elems[at]) * f64::from(x.elems[ids[at] * d + i]);
            narrow(pairs.clone().map(term).sum())
        }));
    }
    out
}
