//! A tiny random model, and its file.

use std::collections::BTreeMap;

use fucina_gguf::{File, Value, Writer};
use fucina_runtime::DType;
use fucina_testkit::Rng;

pub(crate) const HIDDEN: usize = 64;
pub(crate) const HEADS: usize = 4;
pub(crate) const KV_HEADS: usize = 2;
pub(crate) const HEAD_DIM: usize = 16;
pub(crate) const FF: usize = 56;
pub(crate) const LAYERS: usize = 2;
pub(crate) const VOCAB: usize = 68;
/// Rows of the vocabulary that have a token; the others are padding, as files have it.
const TOKENS: usize = 64;
pub(crate) const EPS: f32 = 1e-6;
/// A low base, so that a short text sees slow pairs turn.
pub(crate) const BASE: f64 = 100.0;

/// Weights by name, and what its file says beside the sizes.
pub(crate) struct Tiny {
    pub(crate) tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    arch: &'static str,
    keys: BTreeMap<String, Value>,
    rng: Rng,
}

impl Tiny {
    pub(crate) fn new(arch: &'static str, keys: BTreeMap<String, Value>) -> Self {
        let mut tiny = Self { tensors: BTreeMap::new(), arch, keys, rng: Rng::new(34) };
        tiny.matrix("token_embd.weight".into(), [VOCAB, HIDDEN]);
        tiny.norm("output_norm.weight".into());
        for layer in 0..LAYERS {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            tiny.matrix(name("attn_q"), [HEADS * HEAD_DIM, HIDDEN]);
            tiny.matrix(name("attn_k"), [KV_HEADS * HEAD_DIM, HIDDEN]);
            tiny.matrix(name("attn_v"), [KV_HEADS * HEAD_DIM, HIDDEN]);
            tiny.matrix(name("attn_output"), [HIDDEN, HEADS * HEAD_DIM]);
            tiny.norm(name("attn_norm"));
            tiny.norm(name("ffn_norm"));
            tiny.matrix(name("ffn_gate"), [FF, HIDDEN]);
            tiny.matrix(name("ffn_up"), [FF, HIDDEN]);
            tiny.matrix(name("ffn_down"), [HIDDEN, FF]);
        }
        tiny
    }

    /// Gives the model an output matrix of its own.
    pub(crate) fn untie(&mut self) {
        self.matrix("output.weight".into(), [VOCAB, HIDDEN]);
    }

    /// Gives queries, keys and values biases, as Qwen 2 has them.
    pub(crate) fn add_biases(&mut self) {
        for layer in 0..LAYERS {
            for (part, len) in
                [("q", HEADS * HEAD_DIM), ("k", KV_HEADS * HEAD_DIM), ("v", KV_HEADS * HEAD_DIM)]
            {
                let values = self.rng.normals(len, 0.7);
                self.tensors.insert(format!("blk.{layer}.attn_{part}.bias"), (vec![len], values));
            }
        }
    }

    fn matrix(&mut self, name: String, shape: [usize; 2]) {
        let [n, k] = shape;
        let values = self.rng.normals(n * k, 1.5 / (k as f32).sqrt());
        self.tensors.insert(name, (shape.to_vec(), values));
    }

    fn norm(&mut self, name: String) {
        let values = (0..HIDDEN).map(|_| 1.0 + 0.3 * self.rng.normal()).collect();
        self.tensors.insert(name, (vec![HIDDEN], values));
    }

    pub(crate) fn file(&self) -> File {
        let mut writer = Writer::new();
        for (key, value) in self.sizes().into_iter().chain(self.keys.clone()) {
            writer.set(&key, value).unwrap();
        }
        for (name, (shape, values)) in &self.tensors {
            // The file's order of dimensions is the other way round.
            let dims: Vec<usize> = shape.iter().rev().copied().collect();
            let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
            writer.tensor(name, DType::F32, &dims, bytes).unwrap();
        }
        File::from_bytes(writer.to_bytes().unwrap()).unwrap()
    }

    fn sizes(&self) -> BTreeMap<String, Value> {
        let count = |size: usize| Value::from(u32::try_from(size).unwrap());
        let tokens: Vec<String> = (0..TOKENS).map(|id| format!("t{id}")).collect();
        let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
        let sizes = [
            ("context_length", count(64)),
            ("embedding_length", count(HIDDEN)),
            ("block_count", count(LAYERS)),
            ("feed_forward_length", count(FF)),
            ("attention.head_count", count(HEADS)),
            ("attention.head_count_kv", count(KV_HEADS)),
            ("attention.layer_norm_rms_epsilon", EPS.into()),
            ("rope.freq_base", (BASE as f32).into()),
        ];
        let sizes = sizes.into_iter().map(|(key, value)| (format!("{}.{key}", self.arch), value));
        let others = [
            ("general.architecture", Value::from(self.arch)),
            ("tokenizer.ggml.model", "gpt2".into()),
            ("tokenizer.ggml.pre", "llama-bpe".into()),
            ("tokenizer.ggml.add_bos_token", false.into()),
            ("tokenizer.ggml.tokens", tokens.into()),
            ("tokenizer.ggml.merges", Vec::<&str>::new().into()),
        ];
        sizes.chain(others.map(|(key, value)| (key.to_owned(), value))).collect()
    }
}
