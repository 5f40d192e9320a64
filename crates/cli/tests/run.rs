//! `fucina run`, as a user sees it.

#![cfg(test)]

mod common;

use std::io::Write as _;
use std::process::Stdio;

use common::{Done, asset, call, call_with, file, fucina};
use fucina::DType;
use fucina::gguf::{File, Writer};
use fucina_testkit::golden_path;
use serde_json::Value;

fn golden() -> Value {
    let text = std::fs::read_to_string(golden_path("models/models.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn with_input(args: &[&str], input: &[u8]) -> Done {
    let mut child = fucina()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // An error may end the process before it has read everything.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap().into()
}

#[test]
fn the_embedded_model_continues_the_golden_prompt_on_every_instruction_set() {
    let golden = golden();
    let prompt = golden["prompt"].as_str().unwrap();
    let model = &golden["models"]["austen-q8_0.gguf"];
    for isa in fucina::Isa::available() {
        let args = ["run", prompt, "--greedy", "-n", "24", "--json"];
        let record = call_with(&args, &[("FUCINA_CPU_ISA", isa.name())]).ok().json();
        assert_eq!(record["prompt_ids"], model["prompt_ids"], "{}", isa.name());
        assert_eq!(record["ids"], model["exact_greedy"], "{}", isa.name());
        assert_eq!(record["text"], model["llama_cpp_text"], "{}", isa.name());
        assert_eq!(record["backend"]["isa"], isa.name());
    }
}

#[test]
fn text_goes_to_stdout_and_the_summary_to_stderr() {
    let prompt = "It is a truth universally acknowledged";
    let done = call(&["run", prompt, "--greedy", "-n", "12"]).ok();
    assert!(done.stdout.starts_with(prompt), "{done:?}");
    assert!(done.stdout.len() > prompt.len() + 12, "{done:?}");
    assert!(done.stdout.ends_with('\n') && !done.stdout.ends_with("\n\n"), "{done:?}");
    let summary = done.stderr.strip_suffix('\n').unwrap();
    assert!(!summary.contains('\n'), "one line: {done:?}");
    let parts = ["austen-q8_0 · 3.7 M params Q8_0 · cpu ", "prompt 11 tok", "generated 12 tok"];
    for part in parts.into_iter().chain(["first token"]) {
        assert!(summary.contains(part), "`{part}` is not in {summary}");
    }
    let bare = call(&["run", prompt, "--greedy", "-n", "12", "--no-echo"]).ok();
    assert_eq!(format!("{prompt}{}", bare.stdout), done.stdout);
}

#[test]
fn quiet_says_nothing_but_the_text() {
    let args = ["run", "It is", "--greedy", "-n", "4"];
    let quiet = call(&[&args[..], &["--quiet"]].concat()).ok();
    assert_eq!(quiet.stderr, "");
    assert_eq!(quiet.stdout, call(&args).ok().stdout);
}

#[test]
fn json_is_one_object_that_agrees_with_the_text() {
    let args = ["run", "She was", "--seed", "5", "-n", "20"];
    let text = call(&args).ok().stdout;
    let done = call(&[&args[..], &["--json"]].concat()).ok();
    let record = done.json();
    let continued = format!("She was{}", record["text"].as_str().unwrap());
    assert_eq!(continued.trim_end_matches('\n'), text.trim_end_matches('\n'));
    assert_eq!(record["prompt"], "She was");
    assert_eq!(record["stop"], "max_tokens");
    assert_eq!(record["seed"], 5);
    assert_eq!(record["ids"].as_array().unwrap().len(), 20);
    assert_eq!(record["model"]["architecture"], "qwen3");
    assert_eq!(record["timings"]["generated_tokens"], 20);
    assert!(record["timings"]["first_token_ms"].as_f64().unwrap() > 0.0);
    // No limit on the time: a machine may be busy. The log shows it.
    println!("first token after {} ms", record["timings"]["first_token_ms"]);
}

#[test]
fn the_seed_decides_the_text() {
    let text = |seed: &str| call(&["run", "It is", "-n", "40", "--seed", seed, "-q"]).ok().stdout;
    assert_eq!(text("7"), text("7"));
    // 40 draws from 40 candidates each: equal texts from other seeds would be a fixed seed.
    assert!(["8", "9", "10"].iter().any(|seed| text(seed) != text("7")));
    let seed = |done: Done| done.ok().json()["seed"].as_u64().unwrap();
    let args = ["run", "It is", "-n", "1", "--json"];
    assert_ne!(seed(call(&args)), seed(call(&args)), "random unless asked for");
}

#[test]
fn threads_do_not_change_the_text() {
    let text = |threads| {
        call(&["run", "It is", "--greedy", "-n", "16", "-q", "--threads", threads]).ok().stdout
    };
    assert_eq!(text("1"), text("2"));
    assert_eq!(text("1"), text("5"));
}

#[test]
fn a_model_on_disk_is_named_before_the_prompt() {
    let path = asset();
    let path = path.to_str().unwrap();
    let args = ["It is", "--greedy", "-n", "8"];
    let named = call(&[&["run", path], &args[..]].concat()).ok();
    assert_eq!(named.stdout, call(&[&["run"], &args[..]].concat()).ok().stdout);
    let json = call(&["run", path, "It is", "-n", "1", "--json"]).ok().json();
    assert_eq!(json["model"]["path"], path);
}

#[test]
fn other_families_run() {
    for family in ["llama", "qwen2"] {
        let path = golden_path(&format!("models/random-{family}-q4_k_m.gguf"));
        let json = call(&["run", path.to_str().unwrap(), "It is", "-n", "3", "--json"]).ok().json();
        assert_eq!(json["model"]["architecture"], family);
    }
}

#[test]
fn a_prompt_from_standard_input_loses_its_last_line_break_only() {
    let text = |input: &[u8]| {
        with_input(&["run", "-", "--greedy", "-n", "4", "--json"], input).ok().json()["prompt"]
            .clone()
    };
    assert_eq!(text(b"It is"), "It is");
    assert_eq!(text(b"It is\n"), "It is");
    assert_eq!(text(b"It\nis\r\n"), "It\nis");
    assert_eq!(text(b"It is\n\n"), "It is\n");
    with_input(&["run", "-"], b"It \xff is").failed(4, &["UTF-8", "byte 3"]);
    with_input(&["run", "-"], b"\n").failed(4, &["empty"]);
}

#[test]
fn a_full_context_ends_the_text_and_says_so() {
    let done = call(&["run", "It is", "--ctx", "16", "--greedy", "-n", "99", "--ignore-eos"]).ok();
    assert!(done.stderr.contains("the context is full"), "{done:?}");
    let record =
        call(&["run", "It is", "--ctx", "16", "--json", "-n", "99", "--ignore-eos"]).ok().json();
    assert_eq!(record["stop"], "context_full");
    // The last token is chosen and needs no room.
    let tokens =
        record["prompt_ids"].as_array().unwrap().len() + record["ids"].as_array().unwrap().len();
    assert_eq!(tokens, 17);
}

/// The embedded model with an unknown pre-tokenizer and a tensor too many.
fn odd_model() -> String {
    let source = File::open(asset()).unwrap();
    let mut writer = Writer::new();
    for (key, value) in source.metadata().iter() {
        let value = if key == "tokenizer.ggml.pre" { "odd".into() } else { value.clone() };
        writer.set(key, value).unwrap();
    }
    for info in source.tensors() {
        let data = source.tensor_data(info).unwrap();
        writer.tensor(info.name(), info.dtype().unwrap(), info.shape(), data).unwrap();
    }
    writer.tensor("spare.weight", DType::F32, &[1], vec![0_u8; 4]).unwrap();
    file("odd.gguf", &writer.to_bytes().unwrap())
}

#[test]
fn warnings_are_one_line_each_and_quiet_silences_them() {
    let path = odd_model();
    let done = call(&["run", &path, "It is", "-n", "1"]).ok();
    let lines: Vec<&str> = done.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "two warnings and the summary: {done:?}");
    assert!(lines[0].starts_with("fucina: warning: ") && lines[0].contains("`odd`"), "{done:?}");
    assert!(lines[1].contains("1 tensor of its file, first `spare.weight`"), "{done:?}");
    assert_eq!(call(&["run", &path, "It is", "-n", "1", "-q"]).ok().stderr, "");
    let bench = call(&["bench", &path, "-p", "1", "-n", "0", "-r", "1", "-t", "1,2"]).ok();
    assert_eq!(bench.stderr.lines().count(), 2, "not again for each number of threads: {bench:?}");
}

#[test]
fn the_type_of_the_cache_is_chosen_and_shown() {
    let run = |cache: &str| {
        let args = ["run", "She was", "-n", "8", "--greedy", "--cache-type", cache];
        let summary = call(&args).ok().stderr;
        (summary, call(&[&args[..], &["--json"]].concat()).ok().json())
    };
    // 512 positions of four layers with two key and two value heads of 64 elements.
    let (f16, q8_0) = (run("f16"), run("q8_0"));
    assert!(f16.0.contains("cache 1.00 MiB f16"), "{}", f16.0);
    assert!(q8_0.0.contains("cache 544.00 KiB q8_0"), "{}", q8_0.0);
    assert_eq!(
        f16.1["cache"],
        serde_json::json!({ "type": "f16", "bytes": 1 << 20, "restored_tokens": 0 })
    );
    assert_eq!(q8_0.1["cache"]["bytes"], 544 << 10);
    call(&["run", "x", "--cache-type", "q4_0"]).failed(2, &["q4_0", "f16, q8_0"]);
}
