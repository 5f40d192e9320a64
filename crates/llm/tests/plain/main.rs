//! `llama` and `qwen2`, the plain block: tiny random models against the definition in f64, for each
//! thing that files of these families vary in: RoPE scaling, the output, biases, partial rotation.
//!
//! Bound. Weights and activations are f32 on our side, so a product of up to 64 terms is off by
//! about `sqrt(64) * 2^-25` of its size. From one layer to the next lie about ten such steps, in
//! two layers 20: in all `sqrt(20 * 64) * 2^-25`, 1.1e-6 of the standard deviation. That error also
//! moves a few keys and values over the middle between two numbers of f16, which the definition
//! rounds to as well. The numbers are up to 2^-10 apart, so the share of elements that jump is
//! about `1.1e-6 / 2^-11`, 0.22 %: eleven of the 5120 elements. One of them is one of 64 elements
//! that a token attends to, so it moves what the token gets by up to `2^-10 / sqrt(64)`, 1.2e-4; if
//! every token saw all eleven with their full weight, by `sqrt(11)` times as much, 4.1e-4. The
//! bound of the rms is the sum; the largest of 2720 differences may be six times as much.

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

use definition::{Rules, logits};
use fucina_gguf::Value;
use fucina_llm::{Error, Model, SessionOptions};
use fucina_runtime::Runtime;
use tiny::{BASE, HEAD_DIM, Tiny, VOCAB};

const RMS: f64 = 1.1e-6 + 4.1e-4;
const TOKENS: usize = 40;
const PAIRS: usize = HEAD_DIM / 2;

fn tokens() -> Vec<u32> {
    (0..TOKENS).map(|at| u32::try_from((at * at * 7 + 3 * at + 1) % VOCAB).unwrap()).collect()
}

fn load(tiny: &Tiny) -> Result<Model, Error> {
    let rt = Runtime::builder().threads(2).build().unwrap();
    Model::load(&rt, &tiny.file(), &|_, _| ())
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
        let got = model.session(&SessionOptions::default()).unwrap().feed_all(&tokens()).unwrap();
        let (rms, max) = difference(&got, &logits(&tiny, &rules, &tokens()));
        println!("{label}: rms {rms:.2e} (bound {RMS:.2e}), max {max:.2e}");
        assert!(rms <= RMS && max <= 6.0 * RMS, "{label}: rms {rms}, max {max}, bound {RMS}");
    }
}

/// Every variant differs from every other by far more than the bound: a file that is read as
/// another variant cannot pass.
#[test]
fn variants_cannot_be_mistaken_for_each_other() {
    let all: Vec<_> = cases()
        .iter()
        .map(|case| (case.label, logits(&case.tiny, &case.rules, &tokens())))
        .collect();
    for (at, (label, logits)) in all.iter().enumerate() {
        let narrow: Vec<f32> = logits.iter().map(|&x| x as f32).collect();
        for (other, theirs) in &all[at + 1..] {
            let (rms, _) = difference(&narrow, theirs);
            assert!(rms > 20.0 * RMS, "{label} and {other} differ by {rms} only");
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
