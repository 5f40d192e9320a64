//! A tiny random model, and its file.

use std::collections::BTreeMap;

use fucina_gguf::{File, Value, Writer};
use fucina_runtime::DType;
use fucina_testkit::Rng;

pub(crate) const HIDDEN: usize = 40;
pub(crate) const HEADS: usize = 4;
pub(crate) const KV_HEADS: usize = 2;
/// Not `HIDDEN / HEADS`.
pub(crate) const HEAD_DIM: usize = 16;
pub(crate) const FF: usize = 56;
/// One global layer, the sixth.
pub(crate) const LAYERS: usize = 7;
pub(crate) const VOCAB: usize = 272;
pub(crate) const WINDOW: usize = 5;
pub(crate) const EPS: f32 = 1e-6;

/// Weights by name, as f32 that the file's type holds exactly.
pub(crate) struct Tiny {
    pub(crate) tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
    half: bool,
}

impl Tiny {
    pub(crate) fn new(half: bool) -> Self {
        let mut rng = Rng::new(33);
        let mut tensors = BTreeMap::new();
        let mut add = |name: String, shape: &[usize]| {
            let len = shape.iter().product();
            let values: Vec<f32> = match shape {
                // As stored: around one, since files have the one added.
                [_] => (0..len).map(|_| 1.0 + 0.3 * rng.normal()).collect(),
                [_, k] => rng.normals(len, 1.5 / (*k as f32).sqrt()),
                _ => unreachable!("vectors and matrices"),
            };
            let values = values.into_iter().map(|x| match (half, shape.len()) {
                (true, 2) => f16_value(f16_bits(f64::from(x))) as f32,
                _ => x,
            });
            tensors.insert(name, (shape.to_vec(), values.collect()));
        };
        add("token_embd.weight".into(), &[VOCAB, HIDDEN]);
        add("output_norm.weight".into(), &[HIDDEN]);
        for layer in 0..LAYERS {
            let mut add = |name: &str, shape: &[usize]| {
                add(format!("blk.{layer}.{name}.weight"), shape);
            };
            add("attn_q", &[HEADS * HEAD_DIM, HIDDEN]);
            add("attn_k", &[KV_HEADS * HEAD_DIM, HIDDEN]);
            add("attn_v", &[KV_HEADS * HEAD_DIM, HIDDEN]);
            add("attn_output", &[HIDDEN, HEADS * HEAD_DIM]);
            add("attn_q_norm", &[HEAD_DIM]);
            add("attn_k_norm", &[HEAD_DIM]);
            for norm in ["attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm"] {
                add(norm, &[HIDDEN]);
            }
            add("ffn_gate", &[FF, HIDDEN]);
            add("ffn_up", &[FF, HIDDEN]);
            add("ffn_down", &[HIDDEN, FF]);
        }
        Self { tensors, half }
    }

    /// The file, with keys changed, or left out where the value is `None`, and tensors left out.
    pub(crate) fn file(&self, changes: &[(&str, Option<Value>)], without: &str) -> File {
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
        for (name, (shape, values)) in &self.tensors {
            if name == without {
                continue;
            }
            // The file's order of dimensions is the other way round.
            let dims: Vec<usize> = shape.iter().rev().copied().collect();
            let (dtype, bytes): (_, Vec<u8>) = if self.half && shape.len() == 2 {
                let half = |&x: &f32| f16_bits(f64::from(x)).to_le_bytes();
                (DType::F16, values.iter().flat_map(half).collect())
            } else {
                (DType::F32, values.iter().flat_map(|x| x.to_le_bytes()).collect())
            };
            writer.tensor(name, dtype, &dims, bytes).unwrap();
        }
        File::from_bytes(writer.to_bytes().unwrap()).unwrap()
    }
}

fn keys() -> BTreeMap<String, Value> {
    let count = |size: usize| Value::from(u32::try_from(size).unwrap());
    let mut tokens = vec!["<unk>".to_owned(), "<bos>".to_owned(), "<eos>".to_owned()];
    tokens.extend((0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")));
    let types: Vec<i32> = [2, 3, 3].into_iter().chain([6; 256]).collect();
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let pairs = [
        ("general.architecture", Value::from("gemma3")),
        ("gemma3.context_length", count(64)),
        ("gemma3.embedding_length", count(HIDDEN)),
        ("gemma3.block_count", count(LAYERS)),
        ("gemma3.feed_forward_length", count(FF)),
        ("gemma3.attention.head_count", count(HEADS)),
        ("gemma3.attention.head_count_kv", count(KV_HEADS)),
        ("gemma3.attention.key_length", count(HEAD_DIM)),
        ("gemma3.attention.value_length", count(HEAD_DIM)),
        ("gemma3.attention.layer_norm_rms_epsilon", EPS.into()),
        ("gemma3.attention.sliding_window", count(WINDOW)),
        ("gemma3.attn_logit_softcapping", 2f32.into()),
        ("gemma3.final_logit_softcapping", 4f32.into()),
        ("gemma3.rope.freq_base", 1e6f32.into()),
        ("gemma3.rope.scaling.type", "linear".into()),
        ("gemma3.rope.scaling.factor", 8f32.into()),
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

/// The nearest f16, ties to even. Only for what f16 can hold.
pub(crate) fn f16_bits(x: f64) -> u16 {
    assert!(x.abs() < 65504.0);
    let sign = if x < 0.0 { 0x8000 } else { 0 };
    // The spacing is 2^-10 of the power of two below, and that of 2^-14 for what is smaller.
    let exponent = (x.abs().log2().floor() as i32).max(-14);
    let steps = (x.abs() / 2f64.powi(exponent - 10)).round_ties_even() as u16;
    // 1024 to 2048 steps are normal: the carry into the exponent comes out right by itself.
    let base = u16::try_from(exponent + 14).unwrap() << 10;
    sign | (base + steps)
}

pub(crate) fn f16_value(bits: u16) -> f64 {
    let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
    let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
    sign * match exponent {
        0 => fraction * 2f64.powi(-24),
        _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
    }
}

#[test]
fn f16_is_rounded_as_it_is_defined() {
    for (x, bits) in
        [(0.0, 0), (1.0, 0x3c00), (-2.0, 0xc000), (65503.9, 0x7bff), (2f64.powi(-24), 1)]
    {
        assert_eq!(f16_bits(x), bits, "{x}");
    }
    // Ties go to the even one; just below a power of two, up into the next.
    assert_eq!(f16_bits(1.0 + 2f64.powi(-11)), 0x3c00);
    assert_eq!(f16_bits(1.0 + 3.0 * 2f64.powi(-11)), 0x3c02);
    assert_eq!(f16_bits(2.0 - 2f64.powi(-12)), 0x4000);
    for bits in (0..0x7bff).step_by(7) {
        assert_eq!(f16_bits(f16_value(bits)), bits);
    }
}
