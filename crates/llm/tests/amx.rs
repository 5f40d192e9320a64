//! Whole models on the AMX arm, on the CPU or in software.
//!
//! Bounds are those of `parity.rs`: activations in 8 bits make the largest error of all arms, 0.6 %
//! of a product; bf16 makes 0.23 %. So the logits are off by `0.006 * sqrt(2 * (2 * layers + 1))` of
//! their standard deviation, and two arms by at most twice that from each other.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    reason = "a test: small numbers, and a panic is a failure"
)]

use std::path::Path;

use fucina_amx_emulator::counts;
use fucina_gguf::File;
use fucina_llm::tokenizer::{Bos, Special};
use fucina_llm::{Model, SessionOptions};
use fucina_runtime::{Isa, Runtime};
use fucina_testkit::{golden_path, read_f32};

const AUSTEN: &str = "../crates/cli/assets/austen-q8_0.gguf";

/// AMX, or `None` and a word on a CPU without the AVX-512 that its kernels need.
fn amx() -> Option<Isa> {
    if Isa::best().name() == "avx512-amx" {
        return Some(Isa::best());
    }
    fucina_amx_emulator::install();
    // SAFETY: from here on the emulator executes what the CPU does not.
    let isa = unsafe { Isa::with_emulated_amx() };
    if isa.is_none() {
        println!("SKIPPED: AMX kernels need a CPU with AVX-512 VNNI and BF16");
    }
    isa
}

fn load(isa: Isa, path: &Path) -> Model {
    let rt = Runtime::builder().threads(2).isa(isa).build().unwrap();
    Model::load(&rt, &File::open(path).unwrap(), &|_, _| ()).unwrap()
}

/// Checks logits against others, to `times` the error of one arm.
#[track_caller]
fn assert_near(got: &[f32], want: &[f32], layers: usize, times: f64, label: &str) {
    assert_eq!(got.len(), want.len(), "{label}");
    let n = got.len() as f64;
    let mean = want.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
    let std = (want.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum::<f64>() / n).sqrt();
    let errors = got.iter().zip(want).map(|(&a, &b)| f64::from(a) - f64::from(b));
    let rms = (errors.clone().map(|e| e * e).sum::<f64>() / n).sqrt() / std;
    let max = errors.fold(0.0, |max: f64, error| max.max(error.abs())) / std;
    let bound = times * 0.006 * (2.0 * (2 * layers + 1) as f64).sqrt();
    println!("{label}: rms {rms:.4}, max {max:.4}, bound {bound:.4}");
    assert!(rms <= bound && max <= 6.0 * bound, "{label}: rms {rms}, max {max}, bound {bound}");
}

#[test]
fn prompts_match_the_exact_forward_pass() {
    let Some(isa) = amx() else { return };
    let text = std::fs::read_to_string(golden_path("models/models.json")).unwrap();
    let oracles: serde_json::Value = serde_json::from_str(&text).unwrap();
    for (name, path, layers) in [
        ("austen-q8_0.gguf", AUSTEN, 4),
        ("random-llama-q4_k_m.gguf", "models/random-llama-q4_k_m.gguf", 2),
        ("random-qwen2-q4_k_m.gguf", "models/random-qwen2-q4_k_m.gguf", 2),
    ] {
        let ids: Vec<u32> =
            serde_json::from_value(oracles["models"][name]["prompt_ids"].clone()).unwrap();
        let want = read_f32(&golden_path(&format!("models/{name}.logits.f32")));
        let model = load(isa, &golden_path(path));
        let mut session = model.session(&SessionOptions::default()).unwrap();
        let before = counts();
        let got = session.feed_all(&ids).unwrap();
        let tiles = counts().int8 > before.int8 || counts().bf16 > before.bf16;
        assert!(tiles || isa == Isa::best(), "{name}: tiles were used");
        assert_near(&got, &want, layers, 1.0, name);
    }
}

/// A prompt that is long enough for bf16, and a greedy continuation, beside the scalar arm.
#[test]
fn a_generation_stays_near_that_of_the_scalar_arm() {
    let Some(isa) = amx() else { return };
    let path = golden_path(AUSTEN);
    let (model, scalar) = (load(isa, &path), load(Isa::Scalar, &path));
    let text = std::fs::read_to_string(golden_path("texts/pride-and-prejudice-1.txt")).unwrap();
    let ids = model.tokenizer().encode(&text, Special::Plain, Bos::Auto).unwrap();
    let ids = &ids[..100];
    let mut session = model.session(&SessionOptions::default()).unwrap();
    let mut other = scalar.session(&SessionOptions::default()).unwrap();
    let before = counts();
    let (mut got, mut want) = (session.feed(ids).unwrap(), other.feed(ids).unwrap());
    assert!(counts().bf16 > before.bf16 || isa == Isa::best(), "tiles of bf16 were used");
    for step in 0..24 {
        assert_near(&got, &want, 4, 2.0, &format!("step {step}"));
        let best = (0..want.len()).max_by(|&a, &b| want[a].total_cmp(&want[b])).unwrap();
        let best = [u32::try_from(best).unwrap()];
        (got, want) = (session.feed(&best).unwrap(), other.feed(&best).unwrap());
    }
}
