//! The plain block as its papers define it, in f64, without any of the library's code.

use half::f16;

use crate::tiny::{EPS, FF, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, Tiny, VOCAB};

/// What the families differ in.
#[derive(Clone)]
pub(crate) struct Rules {
    /// Radians for one position, for each pair that turns.
    pub(crate) frequencies: Vec<f64>,
    /// Factor of cosine and sine.
    pub(crate) magnitude: f64,
    /// Whether pairs are halves of the rotated part, or neighbours.
    pub(crate) halves: bool,
}

/// Elements of the keys, or of the values, of one token in one layer.
const KV: usize = KV_HEADS * HEAD_DIM;

/// The keys and values that the cache of a runner has, by layer: those of all tokens in f16.
pub(crate) type Stored = Vec<[Vec<f16>; 2]>;

/// The logits after each token, `[tokens, VOCAB]`. Keys and values are rounded to f16. If there is
/// a cache of a runner, each of its elements is checked, with `error` of the row's rms allowed
/// beside the rounding, and used: so what lies between two numbers of f16 may be either.
pub(crate) fn logits(
    model: &Tiny,
    rules: &Rules,
    tokens: &[u32],
    cache: Option<(&Stored, f64)>,
) -> Vec<f64> {
    let pass = Pass { model, rules, cache };
    let embedding = pass.weights("token_embd.weight");
    let mut x: Vec<Vec<f64>> = tokens
        .iter()
        .map(|&id| embedding[id as usize * HIDDEN..][..HIDDEN].iter())
        .map(|row| row.map(|&value| f64::from(value)).collect())
        .collect();
    for layer in 0..LAYERS {
        pass.layer(layer, &mut x);
    }
    let output = if model.tensors.contains_key("output.weight") { "output" } else { "token_embd" };
    x.iter().flat_map(|row| pass.product(output, &pass.norm("output_norm", row), VOCAB)).collect()
}

struct Pass<'a> {
    model: &'a Tiny,
    rules: &'a Rules,
    cache: Option<(&'a Stored, f64)>,
}

impl Pass<'_> {
    fn weights(&self, name: &str) -> &[f32] {
        &self.model.tensors[name].1
    }

    fn product(&self, name: &str, x: &[f64], rows: usize) -> Vec<f64> {
        let weights = self.weights(&format!("{name}.weight"));
        assert_eq!(weights.len(), rows * x.len(), "{name}");
        let dot = |row: &[f32]| row.iter().zip(x).map(|(&w, &x)| f64::from(w) * x).sum();
        let mut y: Vec<f64> = weights.chunks_exact(x.len()).map(dot).collect();
        if let Some((_, bias)) = self.model.tensors.get(&format!("{name}.bias")) {
            y.iter_mut().zip(bias).for_each(|(y, &bias)| *y += f64::from(bias));
        }
        y
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let root = (mean + f64::from(EPS)).sqrt();
        let weights = self.weights(&format!("{name}.weight")).iter();
        weights.zip(x).map(|(&w, &x)| f64::from(w) * x / root).collect()
    }

    fn rotate(&self, x: &mut [f64], position: usize) {
        let Rules { frequencies, magnitude, halves } = self.rules;
        let pairs = frequencies.len();
        for (pair, frequency) in frequencies.iter().enumerate() {
            let (sin, cos) = (position as f64 * frequency).sin_cos();
            let at = if *halves { [pair, pair + pairs] } else { [2 * pair, 2 * pair + 1] };
            let [a, b] = at.map(|at| magnitude * x[at]);
            x[at[0]] = a * cos - b * sin;
            x[at[1]] = a * sin + b * cos;
        }
    }

    /// Keys (`which` is 0) or values of one token as the cache has them.
    fn round(&self, layer: usize, which: usize, position: usize, exact: &[f64]) -> Vec<f64> {
        let Some((stored, error)) = self.cache else {
            return exact.iter().map(|&x| f16::from_f64(x).to_f64()).collect();
        };
        let stored = &stored[layer][which][position * KV..][..KV];
        let rms = (exact.iter().map(|x| x * x).sum::<f64>() / KV as f64).sqrt();
        let check = |(&stored, &exact): (&f16, &f64)| {
            let stored = stored.to_f64();
            // Half the step from one number of f16 to the next.
            let half_step = stored.abs().max(2f64.powi(-14)).log2().floor().exp2() / 2048.0;
            let off = (stored - exact).abs();
            assert!(off <= half_step + error * rms, "{layer} {which} {position}: {stored} {exact}");
            stored
        };
        stored.iter().zip(exact).map(check).collect()
    }

    fn layer(&self, layer: usize, x: &mut [Vec<f64>]) {
        let block = format!("blk.{layer}");
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (position, x) in x.iter_mut().enumerate() {
            let h = self.norm(&format!("{block}.attn_norm"), x);
            let project = |part: &str, heads: usize| {
                self.product(&format!("{block}.attn_{part}"), &h, heads * HEAD_DIM)
            };
            let (mut q, mut k) = (project("q", HEADS), project("k", KV_HEADS));
            for head in q.chunks_exact_mut(HEAD_DIM).chain(k.chunks_exact_mut(HEAD_DIM)) {
                self.rotate(head, position);
            }
            keys.push(self.round(layer, 0, position, &k));
            values.push(self.round(layer, 1, position, &project("v", KV_HEADS)));
            let attended: Vec<f64> =
                (0..HEADS).flat_map(|head| attend(head, &q, &keys, &values)).collect();
            let out = self.product(&format!("{block}.attn_output"), &attended, HIDDEN);
            x.iter_mut().zip(out).for_each(|(x, more)| *x += more);
            let h = self.norm(&format!("{block}.ffn_norm"), x);
            let gate = self.product(&format!("{block}.ffn_gate"), &h, FF);
            let up = self.product(&format!("{block}.ffn_up"), &h, FF);
            let silu = |x: f64| x / (1.0 + (-x).exp());
            let inner: Vec<f64> = gate.iter().zip(up).map(|(&gate, up)| silu(gate) * up).collect();
            let out = self.product(&format!("{block}.ffn_down"), &inner, HIDDEN);
            x.iter_mut().zip(out).for_each(|(x, more)| *x += more);
        }
    }
}

/// One head's output at the last position.
fn attend(head: usize, q: &[f64], keys: &[Vec<f64>], values: &[Vec<f64>]) -> Vec<f64> {
    let query = &q[head * HEAD_DIM..][..HEAD_DIM];
    let kv = head / (HEADS / KV_HEADS) * HEAD_DIM;
    let score = |key: &Vec<f64>| {
        let dot: f64 = query.iter().zip(&key[kv..]).map(|(q, k)| q * k).sum();
        (dot / (HEAD_DIM as f64).sqrt()).exp()
    };
    let weights: Vec<f64> = keys.iter().map(score).collect();
    let sum: f64 = weights.iter().sum();
    let element = |at: usize| {
        weights.iter().zip(values).map(|(w, value)| w * value[kv + at]).sum::<f64>() / sum
    };
    (0..HEAD_DIM).map(element).collect()
}
