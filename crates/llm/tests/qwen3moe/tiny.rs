//! A tiny random model, and its file.

use std::collections::BTreeMap;

use fucina_gguf::{File, Value, Writer};
use fucina_runtime::{DType, Runtime};
use fucina_testkit::Rng;

use fucina_llm::{Error, Model};

const HIDDEN: usize = 64;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
/// Not `HIDDEN / HEADS`.
const HEAD_DIM: usize = 32;
/// Panels of 16 columns do not divide it.
const INNER: usize = 96;
pub(crate) const EXPERTS: usize = 10;
const USED: usize = 3;
const LAYERS: usize = 2;
pub(crate) const VOCAB: usize = 272;

/// Keys changed, or left out where the value is `None`.
pub(crate) type Changes<'a> = &'a [(&'a str, Option<Value>)];

/// A file with the matrices in a type, changed, and with a tensor left out.
pub(crate) fn file(dtype: DType, changes: Changes<'_>, without: &str) -> File {
    let mut pairs = keys();
    for (key, value) in changes {
        match value {
            Some(value) => pairs.insert((*key).to_owned(), value.clone()),
            None => pairs.remove(*key),
        };
    }
    let mut writer = Writer::new();
    for (key, value) in pairs {
        writer.set(&key, value).unwrap();
    }
    let mut rng = Rng::new(5);
    for (name, shape) in tensors() {
        let len = shape.iter().product();
        let (dtype, values) = match shape[..] {
            [_] => (DType::F32, (0..len).map(|_| 1.0 + 0.3 * rng.normal()).collect::<Vec<_>>()),
            // Routers stay f32, as in real files.
            _ if name.contains("gate_inp") => (DType::F32, rng.normals(len, 0.12)),
            // As large as what the layers add, as in a trained model.
            _ if name.contains("embd") => (dtype, rng.normals(len, 0.5)),
            [.., k] => (dtype, rng.normals(len, 1.0 / (k as f32).sqrt())),
            [] => unreachable!("vectors, matrices and experts"),
        };
        if name == without {
            continue;
        }
        let mut bytes = vec![0; dtype.row_bytes(len).unwrap()];
        dtype.encode(&values, &mut bytes).unwrap();
        // The file's order of dimensions is the other way round.
        let dims: Vec<usize> = shape.iter().rev().copied().collect();
        writer.tensor(&name, dtype, &dims, bytes).unwrap();
    }
    File::from_bytes(writer.to_bytes().unwrap()).unwrap()
}

pub(crate) fn load(rt: &Runtime, file: &File) -> Result<Model, Error> {
    Model::load(rt, file, &|_, _| ())
}

fn tensors() -> Vec<(String, Vec<usize>)> {
    let mut tensors = vec![
        ("token_embd.weight".to_owned(), vec![VOCAB, HIDDEN]),
        ("output_norm.weight".to_owned(), vec![HIDDEN]),
    ];
    for layer in 0..LAYERS {
        let mut add = |name: &str, shape: &[usize]| {
            tensors.push((format!("blk.{layer}.{name}.weight"), shape.to_vec()));
        };
        add("attn_norm", &[HIDDEN]);
        add("attn_q", &[HEADS * HEAD_DIM, HIDDEN]);
        add("attn_k", &[KV_HEADS * HEAD_DIM, HIDDEN]);
        add("attn_v", &[KV_HEADS * HEAD_DIM, HIDDEN]);
        add("attn_output", &[HIDDEN, HEADS * HEAD_DIM]);
        add("attn_q_norm", &[HEAD_DIM]);
        add("attn_k_norm", &[HEAD_DIM]);
        add("ffn_norm", &[HIDDEN]);
        add("ffn_gate_inp", &[EXPERTS, HIDDEN]);
        add("ffn_gate_exps", &[EXPERTS, INNER, HIDDEN]);
        add("ffn_up_exps", &[EXPERTS, INNER, HIDDEN]);
        add("ffn_down_exps", &[EXPERTS, HIDDEN, INNER]);
    }
    tensors
}

fn keys() -> BTreeMap<String, Value> {
    let count = |size: usize| Value::from(u32::try_from(size).unwrap());
    let mut tokens = vec!["<unk>".to_owned(), "<bos>".to_owned(), "<eos>".to_owned()];
    tokens.extend((0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")));
    let types: Vec<i32> = [2, 3, 3].into_iter().chain([6; 256]).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let pairs = [
        ("general.architecture", Value::from("qwen3moe")),
        ("qwen3moe.context_length", count(128)),
        ("qwen3moe.embedding_length", count(HIDDEN)),
        ("qwen3moe.block_count", count(LAYERS)),
        ("qwen3moe.expert_count", count(EXPERTS)),
        ("qwen3moe.expert_used_count", count(USED)),
        ("qwen3moe.expert_feed_forward_length", count(INNER)),
        ("qwen3moe.attention.head_count", count(HEADS)),
        ("qwen3moe.attention.head_count_kv", count(KV_HEADS)),
        ("qwen3moe.attention.key_length", count(HEAD_DIM)),
        ("qwen3moe.attention.value_length", count(HEAD_DIM)),
        ("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6f32.into()),
        ("qwen3moe.rope.freq_base", 1e6f32.into()),
        ("tokenizer.ggml.model", "llama".into()),
        ("tokenizer.ggml.scores", vec![0f32; tokens.len()].into()),
        ("tokenizer.ggml.token_type", types.into()),
        ("tokenizer.ggml.tokens", tokens.into()),
        ("tokenizer.ggml.bos_token_id", 1u32.into()),
        ("tokenizer.ggml.eos_token_id", 2u32.into()),
        ("tokenizer.ggml.add_space_prefix", false.into()),
    ];
    pairs.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
