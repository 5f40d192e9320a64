//! What damaged files give: an error that names the key or the tensor.

use fucina_gguf::Value;
use fucina_llm::Error;
use fucina_runtime::{DType, Runtime};

use crate::tiny::{self, Changes, EXPERTS};

fn load(changes: Changes<'_>, without: &str) -> Result<fucina_llm::Model, Error> {
    let rt = Runtime::builder().threads(1).build().unwrap();
    tiny::load(&rt, &tiny::file(DType::F32, changes, without))
}

#[track_caller]
fn fails(changes: Changes<'_>, without: &str, words: &[&str]) {
    let error = load(changes, without).unwrap_err().to_string();
    assert!(words.iter().all(|word| error.contains(word)), "{error}, not {words:?}");
}

const COUNT: &str = "qwen3moe.expert_count";
const USED: &str = "qwen3moe.expert_used_count";
const INNER: &str = "qwen3moe.expert_feed_forward_length";
const BLOCK: &str = "qwen3moe.feed_forward_length";

#[test]
fn counts_of_experts_that_cannot_be_are_named() {
    for key in [COUNT, USED, INNER] {
        fails(&[(key, None)], "", &[key]);
        fails(&[(key, Some(0u32.into()))], "", &[key, "at least one"]);
        fails(&[(key, Some("many".into()))], "", &[key]);
    }
    fails(&[(USED, Some((EXPERTS as u32 + 1).into()))], "", &[USED, "11", "more than there are"]);
    fails(&[(USED, Some(u64::MAX.into()))], "", &[USED]);
    // More or fewer experts, or larger ones, than the tensors have.
    fails(&[(COUNT, Some(7u32.into()))], "", &["ffn_gate_inp", "[7, 64]", "[10, 64]"]);
    fails(&[(COUNT, Some(u64::MAX.into()))], "", &["ffn_gate_inp"]);
    fails(&[(INNER, Some(97u32.into()))], "", &["ffn_gate_exps", "[10, 97, 64]", "[10, 96, 64]"]);
    fails(&[(INNER, Some(u64::MAX.into()))], "", &["ffn_gate_exps"]);
}

#[test]
fn missing_tensors_are_named() {
    for name in ["ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps", "attn_k_norm"] {
        let name = format!("blk.1.{name}.weight");
        fails(&[], &name, &[&name]);
    }
}

/// Files may give the size of an expert, or that of all experts of a token together.
#[test]
fn the_size_of_an_expert_may_follow_from_that_of_the_block() {
    let without = (INNER, None);
    assert!(load(&[without.clone(), (BLOCK, Some(288u32.into()))], "").is_ok());
    // Where both are given, that of the expert counts.
    for other in [1u32, 5000] {
        assert!(load(&[(BLOCK, Some(other.into()))], "").is_ok());
    }
    fails(&[without.clone(), (BLOCK, Some(144u32.into()))], "", &["ffn_gate_exps", "48"]);
    fails(&[without.clone(), (BLOCK, Some(2u32.into()))], "", &[BLOCK, "less than one"]);
    fails(&[without, (BLOCK, Some(0u32.into()))], "", &[BLOCK, "at least one"]);
}

#[test]
fn routers_of_another_kind_are_refused() {
    let key = |name: &str| format!("qwen3moe.{name}");
    for (name, good, bad) in [
        ("expert_gating_func", Value::from(1u32), Value::from(2u32)),
        ("expert_shared_count", 0u32.into(), 1u32.into()),
        ("expert_weights_scale", 1f32.into(), 2.5f32.into()),
        ("expert_weights_norm", false.into(), "yes".into()),
    ] {
        let name = key(name);
        assert!(load(&[(&name, Some(good))], "").is_ok(), "{name}");
        fails(&[(&name, Some(bad))], "", &[&name]);
    }
}
