//! The forward pass in f64, straight from the definition: all tokens at once, every score of every
//! position, no tricks. Keys and values are rounded to f16, because that is what the cache holds.

use crate::tiny::{
    EPS, FF, HEAD_DIM, HEADS, HIDDEN, KV_HEADS, LAYERS, Tiny, VOCAB, WINDOW, f16_bits, f16_value,
};

/// What a runner may get wrong. [`Rules::right`] is what it should do.
#[derive(Clone)]
pub(crate) struct Rules {
    pub(crate) window: usize,
    pub(crate) pattern: usize,
    pub(crate) local_base: f64,
    pub(crate) local_factor: f64,
    pub(crate) global_base: f64,
    pub(crate) global_factor: f64,
    pub(crate) scale: f64,
    pub(crate) cap: f64,
    pub(crate) logit_cap: f64,
    pub(crate) embedding: f64,
    pub(crate) activation: fn(f64) -> f64,
    pub(crate) halves: bool,
    /// Added to norm weights.
    pub(crate) more_norm: f64,
    pub(crate) post_norms: bool,
    pub(crate) head_norms: bool,
}

impl Rules {
    pub(crate) fn right() -> Self {
        Self {
            window: WINDOW,
            pattern: 6,
            local_base: 1e4,
            local_factor: 1.0,
            global_base: 1e6,
            global_factor: 8.0,
            scale: 1.0 / (HEAD_DIM as f64).sqrt(),
            cap: 2.0,
            logit_cap: 4.0,
            embedding: (HIDDEN as f64).sqrt(),
            activation: gelu_tanh,
            halves: true,
            more_norm: 0.0,
            post_norms: true,
            head_norms: true,
        }
    }
}

pub(crate) fn gelu_tanh(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}

/// The exact GELU: the normal distribution function by its series, good for |x| < 6.
pub(crate) fn gelu_erf(x: f64) -> f64 {
    let (mut term, mut sum) = (x, x);
    for n in 1..200 {
        term *= x * x / f64::from(2 * n + 1);
        sum += term;
    }
    let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
    x * (0.5 + density * sum)
}

pub(crate) fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

/// Logits after each token, `[tokens, vocab]`.
pub(crate) fn logits(model: &Tiny, rules: &Rules, tokens: &[u32]) -> Vec<f64> {
    let pass = Pass { model, rules };
    let embedding = pass.weights("token_embd");
    let mut x: Vec<Vec<f64>> = tokens
        .iter()
        .map(|&id| embedding[id as usize * HIDDEN..][..HIDDEN].iter())
        .map(|row| row.map(|&value| rules.embedding * f64::from(value)).collect())
        .collect();
    for layer in 0..LAYERS {
        pass.layer(layer, &mut x);
    }
    x.iter()
        .flat_map(|row| pass.product("token_embd", &pass.norm("output_norm", row), VOCAB))
        .map(|logit| rules.logit_cap * (logit / rules.logit_cap).tanh())
        .collect()
}

struct Pass<'a> {
    model: &'a Tiny,
    rules: &'a Rules,
}

impl Pass<'_> {
    fn weights(&self, name: &str) -> &[f32] {
        &self.model.tensors[&format!("{name}.weight")].1
    }

    fn product(&self, name: &str, x: &[f64], rows: usize) -> Vec<f64> {
        let weights = self.weights(name);
        assert_eq!(weights.len(), rows * x.len(), "{name}");
        let dot = |row: &[f32]| row.iter().zip(x).map(|(&w, &x)| f64::from(w) * x).sum();
        weights.chunks_exact(x.len()).map(dot).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let root = (mean + f64::from(EPS)).sqrt();
        let weights = self.weights(name).iter();
        weights.zip(x).map(|(&w, &x)| (f64::from(w) + self.rules.more_norm) * x / root).collect()
    }

    fn post_norm(&self, name: &str, x: Vec<f64>) -> Vec<f64> {
        if self.rules.post_norms { self.norm(name, &x) } else { x }
    }

    fn rotate(&self, x: &mut [f64], position: usize, base: f64, factor: f64) {
        let pairs = HEAD_DIM / 2;
        for pair in 0..pairs {
            let angle = position as f64 / factor * base.powf(-2.0 * pair as f64 / HEAD_DIM as f64);
            let at =
                if self.rules.halves { [pair, pair + pairs] } else { [2 * pair, 2 * pair + 1] };
            let [a, b] = at.map(|at| x[at]);
            x[at[0]] = a * angle.cos() - b * angle.sin();
            x[at[1]] = a * angle.sin() + b * angle.cos();
        }
    }

    /// Heads of one projection: normed and rotated if they have a norm.
    fn heads(
        &self,
        block: &str,
        name: &str,
        count: usize,
        (h, position): (&[f64], usize),
        (base, factor): (f64, f64),
    ) -> Vec<Vec<f64>> {
        let flat = self.product(&format!("{block}.{name}"), h, count * HEAD_DIM);
        let heads = flat.chunks_exact(HEAD_DIM).map(|head| {
            if name == "attn_v" {
                return head.to_vec();
            }
            let norm = format!("{block}.{name}_norm");
            let mut head =
                if self.rules.head_norms { self.norm(&norm, head) } else { head.to_vec() };
            self.rotate(&mut head, position, base, factor);
            head
        });
        heads.collect()
    }

    fn layer(&self, layer: usize, x: &mut [Vec<f64>]) {
        let (rules, block) = (self.rules, format!("blk.{layer}"));
        let local = !(layer + 1).is_multiple_of(rules.pattern);
        let (window, turn) = if local {
            (rules.window, (rules.local_base, rules.local_factor))
        } else {
            (usize::MAX, (rules.global_base, rules.global_factor))
        };
        let cached = |heads: Vec<Vec<f64>>| -> Vec<Vec<f64>> {
            let half = |x: f64| f16_value(f16_bits(x));
            heads.into_iter().map(|head| head.into_iter().map(half).collect()).collect()
        };
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (position, x) in x.iter_mut().enumerate() {
            let h = self.norm(&format!("{block}.attn_norm"), x);
            let at = (h.as_slice(), position);
            let queries = self.heads(&block, "attn_q", HEADS, at, turn);
            keys.push(cached(self.heads(&block, "attn_k", KV_HEADS, at, turn)));
            values.push(cached(self.heads(&block, "attn_v", KV_HEADS, at, turn)));
            let mut attended = Vec::new();
            for (head, query) in queries.iter().enumerate() {
                let kv = head / (HEADS / KV_HEADS);
                let visible = (0..=position).filter(|&key| position - key < window);
                let weights: Vec<(usize, f64)> = visible
                    .map(|key| {
                        let dot: f64 = query.iter().zip(&keys[key][kv]).map(|(q, k)| q * k).sum();
                        (key, (rules.cap * (rules.scale * dot / rules.cap).tanh()).exp())
                    })
                    .collect();
                let sum: f64 = weights.iter().map(|(_, weight)| weight).sum();
                attended.extend((0..HEAD_DIM).map(|at| {
                    weights.iter().map(|&(key, w)| w * values[key][kv][at]).sum::<f64>() / sum
                }));
            }
            let out = self.product(&format!("{block}.attn_output"), &attended, HIDDEN);
            let out = self.post_norm(&format!("{block}.post_attention_norm"), out);
            x.iter_mut().zip(out).for_each(|(x, more)| *x += more);
            let h = self.norm(&format!("{block}.ffn_norm"), x);
            let gate = self.product(&format!("{block}.ffn_gate"), &h, FF);
            let up = self.product(&format!("{block}.ffn_up"), &h, FF);
            let inner: Vec<f64> =
                gate.iter().zip(&up).map(|(&gate, up)| (rules.activation)(gate) * up).collect();
            let out = self.product(&format!("{block}.ffn_down"), &inner, HIDDEN);
            let out = self.post_norm(&format!("{block}.post_ffw_norm"), out);
            x.iter_mut().zip(out).for_each(|(x, more)| *x += more);
        }
    }
}
