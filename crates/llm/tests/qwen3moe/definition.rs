//! The forward pass in f64, straight from the definition: all tokens at once, expert after expert,
//! no sorting and no tricks. Sizes and weights come from a file.

use std::collections::{BTreeMap, BTreeSet};

use fucina_gguf::File;

/// What a runner may get wrong. [`Rules::default`] is what it should do.
#[derive(Clone, Copy)]
pub(crate) struct Rules {
    pub(crate) normalized: bool,
    /// Softmax over the chosen experts once more, on top of the one over all.
    pub(crate) softmax_twice: bool,
    /// The experts with the smallest scores.
    pub(crate) smallest: bool,
    pub(crate) more_used: usize,
    /// The router reads what was not normed, or was normed twice.
    pub(crate) router_norms: usize,
    pub(crate) gate_and_up_swapped: bool,
    pub(crate) head_norms: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            normalized: true,
            softmax_twice: false,
            smallest: false,
            more_used: 0,
            router_norms: 1,
            gate_and_up_swapped: false,
            head_norms: true,
        }
    }
}

/// Two experts of which one was chosen.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Tie {
    pub(crate) swap: Swap,
    /// By how much the score of the one that was chosen is larger.
    pub(crate) margin: f64,
    /// What this margin changes by if the router's input changes by its own size, in a random
    /// direction.
    pub(crate) slope: f64,
}

/// For a token, an expert in place of another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Swap {
    pub(crate) token: usize,
    pub(crate) layer: usize,
    pub(crate) out: usize,
    pub(crate) instead: usize,
}

/// The result of a pass.
pub(crate) struct Pass {
    /// `[tokens, vocab]`.
    pub(crate) logits: Vec<f64>,
    /// For each token and layer, the last expert that was chosen and the first that was not.
    pub(crate) ties: Vec<Tie>,
}

/// A model of a file.
pub(crate) struct Definition {
    weights: BTreeMap<String, Vec<f32>>,
    pub(crate) layers: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    experts: usize,
    used: usize,
    eps: f64,
    base: f64,
    pub(crate) vocab: usize,
}

fn silu(x: f64) -> f64 {
    x / (1.0 + (-x).exp())
}

fn softmax(scores: &[f64]) -> Vec<f64> {
    let max = scores.iter().copied().fold(f64::MIN, f64::max);
    let exps: Vec<f64> = scores.iter().map(|score| (score - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.iter().map(|exp| exp / sum).collect()
}

impl Definition {
    pub(crate) fn read(file: &File) -> Self {
        let weights = file.tensors().iter().map(|info| {
            let mut values = vec![0.0; info.len_elems()];
            info.dtype().unwrap().decode(&file.tensor_data(info).unwrap(), &mut values).unwrap();
            (info.name().to_owned(), values)
        });
        let count = |key: &str| file.metadata().usize(&format!("qwen3moe.{key}")).unwrap();
        let real = |key: &str| f64::from(file.metadata().f32(&format!("qwen3moe.{key}")).unwrap());
        Self {
            weights: weights.collect(),
            layers: count("block_count"),
            hidden: count("embedding_length"),
            heads: count("attention.head_count"),
            kv_heads: count("attention.head_count_kv"),
            head_dim: count("attention.key_length"),
            experts: count("expert_count"),
            used: count("expert_used_count"),
            eps: real("attention.layer_norm_rms_epsilon"),
            base: real("rope.freq_base"),
            vocab: file.tensor("token_embd.weight").unwrap().shape()[1],
        }
    }

    /// Runs tokens, with some choices of experts changed.
    pub(crate) fn run(&self, rules: &Rules, tokens: &[u32], swaps: &BTreeSet<Swap>) -> Pass {
        let embedding = &self.weights["token_embd.weight"];
        let mut x: Vec<Vec<f64>> = tokens
            .iter()
            .map(|&id| &embedding[id as usize * self.hidden..][..self.hidden])
            .map(|row| row.iter().map(|&value| f64::from(value)).collect())
            .collect();
        let mut ties = Vec::new();
        for layer in 0..self.layers {
            self.attend(rules, layer, &mut x);
            for (token, x) in x.iter_mut().enumerate() {
                let of_token = |swap: &&Swap| swap.layer == layer && swap.token == token;
                let swaps: Vec<_> = swaps.iter().filter(of_token).copied().collect();
                let (out, tie) = self.mixture(rules, layer, x, &swaps);
                x.iter_mut().zip(out).for_each(|(x, more)| *x += more);
                ties.extend(tie.map(|tie| Tie { swap: Swap { token, ..tie.swap }, ..tie }));
            }
        }
        let output = ["output", "token_embd"]
            .into_iter()
            .find(|name| self.weights.contains_key(&format!("{name}.weight")));
        let logits = x
            .iter()
            .flat_map(|x| self.product(output.unwrap(), 0, &self.norm("output_norm", x)))
            .collect();
        Pass { logits, ties }
    }

    fn named(&self, name: &str) -> &[f32] {
        &self.weights[&format!("{name}.weight")]
    }

    /// `x` times matrix number `expert` of a tensor.
    fn product(&self, name: &str, expert: usize, x: &[f64]) -> Vec<f64> {
        let weights = self.named(name);
        let experts = if name.ends_with("_exps") { self.experts } else { 1 };
        let matrix = weights.chunks_exact(weights.len() / experts).nth(expert).unwrap();
        assert!(matrix.len().is_multiple_of(x.len()), "{name}");
        let dot = |row: &[f32]| row.iter().zip(x).map(|(&w, &x)| f64::from(w) * x).sum();
        matrix.chunks_exact(x.len()).map(dot).collect()
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
        let root = (mean + self.eps).sqrt();
        self.named(name).iter().zip(x).map(|(&w, &x)| f64::from(w) * x / root).collect()
    }

    /// The heads of queries or keys, normed and rotated.
    fn heads(&self, rules: &Rules, name: &str, x: &[f64], position: usize) -> Vec<Vec<f64>> {
        let (dim, pairs) = (self.head_dim, self.head_dim / 2);
        let heads = self.product(name, 0, x);
        let heads = heads.chunks_exact(dim).map(|head| {
            let norm = format!("{name}_norm");
            let mut head = if rules.head_norms { self.norm(&norm, head) } else { head.to_vec() };
            for pair in 0..pairs {
                let angle = position as f64 * self.base.powf(-2.0 * pair as f64 / dim as f64);
                let (a, b) = (head[pair], head[pair + pairs]);
                head[pair] = a * angle.cos() - b * angle.sin();
                head[pair + pairs] = a * angle.sin() + b * angle.cos();
            }
            head
        });
        heads.collect()
    }

    fn attend(&self, rules: &Rules, layer: usize, x: &mut [Vec<f64>]) {
        let block = format!("blk.{layer}");
        let (mut keys, mut values) = (Vec::new(), Vec::new());
        for (position, x) in x.iter_mut().enumerate() {
            let h = self.norm(&format!("{block}.attn_norm"), x);
            let queries = self.heads(rules, &format!("{block}.attn_q"), &h, position);
            keys.push(self.heads(rules, &format!("{block}.attn_k"), &h, position));
            values.push(self.product(&format!("{block}.attn_v"), 0, &h));
            let mut attended = Vec::new();
            for (head, query) in queries.iter().enumerate() {
                let kv = head / (self.heads / self.kv_heads);
                let scores: Vec<f64> = keys
                    .iter()
                    .map(|keys| query.iter().zip(&keys[kv]).map(|(q, k)| q * k).sum::<f64>())
                    .map(|dot| dot / (self.head_dim as f64).sqrt())
                    .collect();
                let weights = softmax(&scores);
                attended.extend((kv * self.head_dim..(kv + 1) * self.head_dim).map(|at| {
                    weights.iter().zip(&values).map(|(w, value)| w * value[at]).sum::<f64>()
                }));
            }
            let out = self.product(&format!("{block}.attn_output"), 0, &attended);
            x.iter_mut().zip(out).for_each(|(x, more)| *x += more);
        }
    }

    /// What the experts of a layer add, and how close the choice was.
    fn mixture(
        &self,
        rules: &Rules,
        layer: usize,
        x: &[f64],
        swaps: &[Swap],
    ) -> (Vec<f64>, Option<Tie>) {
        let name = |name: &str| format!("blk.{layer}.ffn_{name}");
        let normed = self.norm(&name("norm"), x);
        let routed = match rules.router_norms {
            0 => x.to_vec(),
            1 => normed.clone(),
            _ => self.norm(&name("norm"), &normed),
        };
        let scores = self.product(&name("gate_inp"), 0, &routed);
        let mut order: Vec<usize> = (0..self.experts).collect();
        let sign = if rules.smallest { -1.0 } else { 1.0 };
        order.sort_by(|&a, &b| (sign * scores[b]).total_cmp(&(sign * scores[a])));
        let used = self.used + rules.more_used;
        let tie = order.get(used).map(|&instead| {
            let out = order[used - 1];
            let row = |expert: usize| &self.named(&name("gate_inp"))[expert * x.len()..][..x.len()];
            let apart = row(out).iter().zip(row(instead)).map(|(&a, &b)| f64::from(a - b).powi(2));
            let size = routed.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            Tie {
                swap: Swap { token: 0, layer, out, instead },
                margin: scores[out] - scores[instead],
                slope: (apart.sum::<f64>() * size).sqrt(),
            }
        });
        let mut chosen = order[..used].to_vec();
        for swap in swaps {
            let at = chosen.iter().position(|&expert| expert == swap.out).unwrap();
            chosen[at] = swap.instead;
        }
        let all = softmax(&scores);
        let mut weights: Vec<f64> = chosen.iter().map(|&expert| all[expert]).collect();
        if rules.normalized {
            let sum: f64 = weights.iter().sum();
            weights.iter_mut().for_each(|weight| *weight /= sum);
        }
        if rules.softmax_twice {
            weights = softmax(&weights);
        }
        let mut out = vec![0.0; x.len()];
        for (expert, weight) in chosen.into_iter().zip(weights) {
            let gate = self.product(&name("gate_exps"), expert, &normed);
            let up = self.product(&name("up_exps"), expert, &normed);
            let swapped = rules.gate_and_up_swapped;
            let (gate, up) = if swapped { (up, gate) } else { (gate, up) };
            let inner: Vec<f64> = gate.iter().zip(&up).map(|(&g, &u)| silu(g) * u).collect();
            let down = self.product(&name("down_exps"), expert, &inner);
            out.iter_mut().zip(down).for_each(|(out, down)| *out += weight * down);
        }
        (out, tie)
    }
}
