//! Small models of random weights, in the formats that files mix.

use std::collections::BTreeMap;

use fucina::DType;
use fucina::gguf::{File, Value, Writer};
use fucina_testkit::Rng;

/// Blocks of K-quants have 256 elements.
const HIDDEN: usize = 256;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const HEAD_DIM: usize = 64;
const INNER: usize = 256;
pub(crate) const LAYERS: usize = 2;
pub(crate) const EXPERTS: usize = 6;
const USED: usize = 2;
const VOCAB: usize = 272;

/// The family of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Arch {
    Qwen3,
    Qwen3moe,
}

impl Arch {
    const fn name(self) -> &'static str {
        match self {
            Self::Qwen3 => "qwen3",
            Self::Qwen3moe => "qwen3moe",
        }
    }
}

/// The format of a matrix.
pub(crate) type Mix = fn(name: &str, layer: usize) -> DType;

/// As files of the kind `Q4_K_M` mix them.
pub(crate) fn q4_k_m(name: &str, layer: usize) -> DType {
    match name {
        "token_embd" => DType::Q6_K,
        "attn_v" | "ffn_down" | "ffn_down_exps" if layer == 0 => DType::Q6_K,
        _ => DType::Q4_K,
    }
}

/// `Q5_K`, with `Q8_0` where a matrix adds to the residual stream.
pub(crate) fn q5_k_q8_0(name: &str, _layer: usize) -> DType {
    match name {
        "token_embd" | "attn_output" | "ffn_down" | "ffn_down_exps" => DType::Q8_0,
        _ => DType::Q5_K,
    }
}

/// A file of a model whose matrices have the formats of `mix`.
pub(crate) fn file(arch: Arch, mix: Mix, seed: u64) -> File {
    let mut writer = Writer::new();
    for (key, value) in keys(arch) {
        writer.set(&key, value).unwrap();
    }
    let mut rng = Rng::new(seed);
    let mut add = |name: String, dtype: DType, shape: &[usize], values: Vec<f32>| {
        let mut bytes = vec![0; dtype.row_bytes(values.len()).unwrap()];
        dtype.encode(&values, &mut bytes).unwrap();
        // The file's order of dimensions is the other way round.
        let dims: Vec<usize> = shape.iter().rev().copied().collect();
        writer.tensor(&name, dtype, &dims, bytes).unwrap();
    };
    for (block, name, shape) in tensors(arch) {
        let layer = block.unwrap_or(0);
        let prefix = block.map_or(String::new(), |layer| format!("blk.{layer}."));
        let len = shape.iter().product();
        let (dtype, values) = match shape[..] {
            [_] => (DType::F32, (0..len).map(|_| 1.0 + 0.3 * rng.normal()).collect()),
            // Routers are never quantized.
            _ if name == "ffn_gate_inp" => (DType::F32, rng.normals(len, 0.12)),
            // As large as what the layers add, as in a trained model.
            _ if name == "token_embd" => (mix(name, layer), rng.normals(len, 0.5)),
            [.., k] => (mix(name, layer), rng.normals(len, 1.0 / (k as f32).sqrt())),
            [] => unreachable!("vectors, matrices and experts"),
        };
        add(format!("{prefix}{name}.weight"), dtype, &shape, values);
    }
    File::from_bytes(writer.to_bytes().unwrap()).unwrap()
}

/// Layer, name and shape of every tensor.
fn tensors(arch: Arch) -> Vec<(Option<usize>, &'static str, Vec<usize>)> {
    let mut tensors =
        vec![(None, "token_embd", vec![VOCAB, HIDDEN]), (None, "output_norm", vec![HIDDEN])];
    for layer in 0..LAYERS {
        let mut add = |name, shape: &[usize]| tensors.push((Some(layer), name, shape.to_vec()));
        add("attn_norm", &[HIDDEN]);
        add("attn_q", &[HEADS * HEAD_DIM, HIDDEN]);
        add("attn_k", &[KV_HEADS * HEAD_DIM, HIDDEN]);
        add("attn_v", &[KV_HEADS * HEAD_DIM, HIDDEN]);
        add("attn_output", &[HIDDEN, HEADS * HEAD_DIM]);
        add("attn_q_norm", &[HEAD_DIM]);
        add("attn_k_norm", &[HEAD_DIM]);
        add("ffn_norm", &[HIDDEN]);
        match arch {
            Arch::Qwen3 => {
                add("ffn_gate", &[INNER, HIDDEN]);
                add("ffn_up", &[INNER, HIDDEN]);
                add("ffn_down", &[HIDDEN, INNER]);
            }
            Arch::Qwen3moe => {
                add("ffn_gate_inp", &[EXPERTS, HIDDEN]);
                add("ffn_gate_exps", &[EXPERTS, INNER, HIDDEN]);
                add("ffn_up_exps", &[EXPERTS, INNER, HIDDEN]);
                add("ffn_down_exps", &[EXPERTS, HIDDEN, INNER]);
            }
        }
    }
    tensors
}

fn keys(arch: Arch) -> BTreeMap<String, Value> {
    let count = |size: usize| Value::from(u32::try_from(size).unwrap());
    let mut tokens = vec!["<unk>".to_owned(), "<bos>".to_owned(), "<eos>".to_owned()];
    tokens.extend((0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")));
    let types: Vec<i32> = [2, 3, 3].into_iter().chain([6; 256]).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let of_arch = [
        ("context_length", count(128)),
        ("embedding_length", count(HIDDEN)),
        ("block_count", count(LAYERS)),
        ("feed_forward_length", count(INNER)),
        ("expert_count", count(EXPERTS)),
        ("expert_used_count", count(USED)),
        ("expert_feed_forward_length", count(INNER)),
        ("attention.head_count", count(HEADS)),
        ("attention.head_count_kv", count(KV_HEADS)),
        ("attention.key_length", count(HEAD_DIM)),
        ("attention.value_length", count(HEAD_DIM)),
        ("attention.layer_norm_rms_epsilon", 1e-6f32.into()),
        ("rope.freq_base", 1e6f32.into()),
    ];
    let of_arch = of_arch.into_iter().map(|(key, value)| (format!("{}.{key}", arch.name()), value));
    let others = [
        ("general.architecture", Value::from(arch.name())),
        ("tokenizer.ggml.model", "llama".into()),
        ("tokenizer.ggml.scores", vec![0f32; tokens.len()].into()),
        ("tokenizer.ggml.token_type", types.into()),
        ("tokenizer.ggml.tokens", tokens.into()),
        ("tokenizer.ggml.bos_token_id", 1u32.into()),
        ("tokenizer.ggml.eos_token_id", 2u32.into()),
        ("tokenizer.ggml.add_space_prefix", false.into()),
    ];
    let others = others.into_iter().map(|(key, value)| (key.to_owned(), value));
    of_arch.chain(others).collect()
}
