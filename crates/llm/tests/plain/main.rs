//! `llama` and `qwen2`, the plain block: tiny random models against the definition in f64, for each
//! thing that files of these families vary in: RoPE scaling, the output, biases, partial rotation.
//!
//! Bound. Weights and activations are f32 on our side, so a product of up to 64 terms is off by
//! about `sqrt(64) * 2^-25` of its size. From one layer to the next lie about ten such steps, in
//! two layers 20: in all `sqrt(20 * 64) * 2^-25`, 1.1e-6 of the standard deviation. The largest of
//! some thousands of such differences may be six times as much. Keys and values are rounded to f16
//! on the way, and an error of any size moves a few of them to the other side of a middle: the
//! definition takes them as our cache has them, once it has found each to be a right rounding.

#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a test: small numbers, and a panic is a failure"
)]

mod definition;
mod tiny;

use std::collections::BTreeMap;

use definition::{Rules, Stored, logits};
use fucina_gguf::Value;
use fucina_llm::{Error, Model, Session, SessionOptions};
use fucina_runtime::Runtime;
use half::f16;
use tiny::{BASE, HEAD_DIM, KV_HEADS, LAYERS, Tiny, VOCAB};

const RMS: f64 = 1.1e-6;
/// The largest of some thousands of differences, by their rms.
const LARGEST: f64 = 6.0;
const TOKENS: usize = 40;
const PAIRS: usize = HEAD_DIM / 2;

fn tokens() -> Vec<u32> {
    (0..TOKENS).map(|at| u32::try_from((at * at * 7 + 3 * at + 1) % VOCAB).unwrap()).collect()
}

fn load(tiny: &Tiny) -> Result<Model, Error> {
    let rt = Runtime::builder().threads(2).build().unwrap();
    Model::load(&rt, &tiny.file(), &|_, _| ())
}

/// The keys and values that a session holds, from what it saves: 72 bytes of header, the tokens,
/// and for each layer the keys of all tokens, then the values.
fn stored(session: &Session<'_>) -> Stored {
    let mut saved = Vec::new();
    session.save(&mut saved).unwrap();
    let rows = TOKENS * KV_HEADS * HEAD_DIM;
    let halves: Vec<f16> = saved[72 + 4 * TOKENS..]
        .chunks_exact(2)
        .map(|bytes| f16::from_le_bytes([bytes[0], bytes[1]]))
        .collect();
    // What is left is a checksum of 16 bytes.
    assert_eq!(halves.len(), LAYERS * 2 * rows + 8);
    let layer = |at: usize| [0, 1].map(|which| halves[(2 * at + which) * rows..][..rows].to_vec());
    (0..LAYERS).map(layer).collect()
}

/// Rms and largest difference, as parts of the standard deviation of `want`.
fn difference(got: &[f32], want: &[f64]) -> (f64, f64) {
    assert_eq!(got.len(), want.len());
    let n = want.len() as f64;
    let mean = want.iter().sum::<f64>() / n;
    let std = (want.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n).sqrt();
    let errors = || got.iter().zip(want).map(|(&a, &b)| (f64::from(a) - b).abs() / std);
    let rms = (errors().map(|error| error * error).sum::<f64>() / n).sqrt();
    assert!(rms.is_finite());
    (rms, errors().fold(0.0, f64::max))
}

/// A model and the rules that it follows.
struct Case {
    label: &'static str,
    tiny: Tiny,
    rules: Rules,
}

fn plain_frequencies() -> Vec<f64> {
    (0..PAIRS).map(|i| BASE.powf(-2.0 * i as f64 / HEAD_DIM as f64)).collect()
}

fn case(label: &'static str, arch: &'static str, keys: &[(&str, Value)]) -> Case {
    let keys = keys.iter().map(|(key, value)| (format!("{arch}.{key}"), value.clone()));
    let keys: BTreeMap<String, Value> = keys.collect();
    let rules = Rules { frequencies: plain_frequencies(), magnitude: 1.0, halves: arch == "qwen2" };
    Case { label, tiny: Tiny::new(arch, keys), rules }
}

/// The frequency scaling of Llama 3.1 as its `apply_scaling` defines it, for factor 8 and 32
/// trained positions: waves shorter than 32 / 4 stay, those longer than 32 / 1 are 8 times as long,
/// and what lies between is mixed by the number of turns.
fn llama_3_frequencies() -> Vec<f64> {
    let scaled = |frequency: f64| {
        let wave = std::f64::consts::TAU / frequency;
        if wave < 8.0 {
            frequency
        } else if wave > 32.0 {
            frequency / 8.0
        } else {
            let smooth = (32.0 / wave - 1.0) / (4.0 - 1.0);
            (1.0 - smooth) * frequency / 8.0 + smooth * frequency
        }
    };
    plain_frequencies().into_iter().map(scaled).collect()
}

/// By hand for 16 dimensions, base 100 and 16 positions: pair `i` makes `16 / (2 pi) * 100^(-i/8)`
/// turns, which is 2 at i = 0.42 and a quarter at i = 4.03. So pair 0 is fast, and pairs from 5 on
/// are slow.
fn yarn_frequencies() -> Vec<f64> {
    let slow = [0.0, 0.2, 0.4, 0.6, 0.8, 1.0, 1.0, 1.0];
    let mix = |(plain, slow): (f64, f64)| plain * (1.0 - slow) + plain / 4.0 * slow;
    plain_frequencies().into_iter().zip(slow).map(mix).collect()
}

fn scaled(label: &'static str, factor: f64, keys: &[(&str, Value)]) -> Case {
    let mut case = case(label, "llama", keys);
    case.rules.frequencies.iter_mut().for_each(|frequency| *frequency /= factor);
    case
}

fn cases() -> Vec<Case> {
    let plain = || case("llama", "llama", &[]);
    let linear: [(&str, Value); 2] =
        [("rope.scaling.type", "linear".into()), ("rope.scaling.factor", 4f32.into())];
    let yarn: [(&str, Value); 6] = [
        ("rope.scaling.type", "yarn".into()),
        ("rope.scaling.factor", 4f32.into()),
        ("rope.scaling.original_context_length", 16u32.into()),
        ("rope.scaling.attn_factor", 1.25f32.into()),
        ("rope.scaling.yarn_beta_fast", 2f32.into()),
        ("rope.scaling.yarn_beta_slow", 0.25f32.into()),
    ];
    let mut cases = vec![
        plain(),
        case("qwen2", "qwen2", &[]),
        scaled("linear", 4.0, &linear),
        scaled("the older key for linear", 2.0, &[("rope.scale_linear", 2f32.into())]),
    ];
    for (label, arch) in [("yarn", "llama"), ("yarn of qwen2", "qwen2")] {
        let mut case = case(label, arch, &yarn);
        case.rules.frequencies = yarn_frequencies();
        case.rules.magnitude = 1.25 * (1.0 + 0.1 * 4f64.ln());
        cases.push(case);
    }
    let mut llama_3 = Case { label: "llama 3", ..plain() };
    let factors = plain_frequencies().into_iter().zip(llama_3_frequencies());
    let factors: Vec<f32> = factors.map(|(plain, scaled)| (plain / scaled) as f32).collect();
    llama_3.tiny.tensors.insert("rope_freqs.weight".into(), (vec![PAIRS], factors));
    llama_3.rules.frequencies = llama_3_frequencies();
    cases.push(llama_3);

    let mut partial = case("half of each head", "llama", &[("rope.dimension_count", 8u32.into())]);
    partial.rules.frequencies = (0..4).map(|i| BASE.powf(-2.0 * f64::from(i) / 8.0)).collect();
    cases.push(partial);

    let mut untied = Case { label: "an output of its own", ..plain() };
    untied.tiny.untie();
    cases.push(untied);
    for (label, arch) in [("biases", "qwen2"), ("biases of llama", "llama")] {
        let mut biased = case(label, arch, &[]);
        biased.tiny.add_biases();
        cases.push(biased);
    }
    cases
}

#[test]
fn every_variant_matches_the_definition() {
    for Case { label, tiny, rules } in cases() {
        let model = load(&tiny).unwrap();
        assert_eq!(model.info().unused_tensors, Vec::<String>::new(), "{label}");
        let mut session = model.session(&SessionOptions::default()).unwrap();
        let got = session.feed_all(&tokens()).unwrap();
        let cache = stored(&session);
        let want = logits(&tiny, &rules, &tokens(), Some((&cache, LARGEST * RMS)));
        let (rms, max) = difference(&got, &want);
        println!("{label}: rms {rms:.2e} (bound {RMS:.2e}), max {max:.2e}");
        assert!(rms <= RMS && max <= LARGEST * RMS, "{label}: rms {rms}, max {max}, bound {RMS}");
    }
}

/// Every variant differs from every other by more than a thousand times the bound: a file that is
/// read as another variant cannot pass.
#[test]
fn variants_cannot_be_mistaken_for_each_other() {
    let all: Vec<_> = cases()
        .iter()
        .map(|case| (case.label, logits(&case.tiny, &case.rules, &tokens(), None)))
        .collect();
    for (at, (label, logits)) in all.iter().enumerate() {
        let narrow: Vec<f32> = logits.iter().map(|&x| x as f32).collect();
        for (other, theirs) in &all[at + 1..] {
            let (rms, _) = difference(&narrow, theirs);
            assert!(rms > 1000.0 * RMS, "{label} and {other} differ by {rms} only");
        }
    }
}

#[test]
fn scaling_that_is_not_known_or_makes_no_sense_is_named() {
    let cases: [(&str, Value, &str); 7] = [
        ("rope.scaling.type", "longrope".into(), "none, linear and yarn"),
        ("rope.scaling.type", 3u32.into(), "str"),
        ("rope.scaling.factor", 0f32.into(), "positive"),
        ("rope.scaling.factor", f32::INFINITY.into(), "positive"),
        ("rope.scaling.attn_factor", (-1f32).into(), "positive"),
        ("rope.scaling.yarn_beta_slow", f32::NAN.into(), "positive"),
        ("rope.scaling.original_context_length", 0u32.into(), "at least one"),
    ];
    for (key, value, word) in cases {
        let mut keys = vec![("rope.scaling.type", Value::from("yarn"))];
        keys.retain(|(other, _)| *other != key);
        keys.push((key, value));
        let error = load(&case(key, "llama", &keys).tiny).unwrap_err().to_string();
        assert!(error.contains(key) && error.contains(word), "{error}");
    }
    let mut short = case("short", "llama", &[]);
    short.tiny.tensors.insert("rope_freqs.weight".into(), (vec![PAIRS - 1], vec![1.0; PAIRS - 1]));
    let error = load(&short.tiny).unwrap_err().to_string();
    assert!(error.contains("rope_freqs.weight"), "{error}");
}
