//! `--placement`: where the weights are after a run on the simulated CUDA driver, and why.

#![cfg(test)]

mod common;

use common::{Done, call_with};
use serde_json::Value;

/// The simulator's library, which the build of this test has made.
fn library() -> String {
    let test = std::env::current_exe().expect("a test knows where it is");
    let path = test.parent().expect("a test lies in a folder").join("libfucina_cuda_driver.so");
    assert!(path.exists(), "{} was not built", path.display());
    path.to_str().expect("the path is UTF-8").to_owned()
}

/// Two tokens of the embedded model.
fn run(variables: &[(&str, &str)]) -> Done {
    let library = library();
    let args = ["run", "It", "-n", "2", "--greedy", "--json", "-q", "--placement"];
    let given = [("FUCINA_CUDA_LIBRARY", library.as_str())];
    call_with(&args, &[&given, variables].concat()).ok()
}

fn weights(done: &Done) -> Vec<Value> {
    done.json()["placement"].as_array().expect("an array").clone()
}

fn number(value: &Value) -> u64 {
    value.as_u64().expect("a number")
}

/// The row of the table for a kind of weight.
fn row<'d>(done: &'d Done, kind: &str) -> &'d str {
    let found = done.stderr.lines().find(|line| line.starts_with(kind));
    found.unwrap_or_else(|| panic!("no row for {kind}: {}", done.stderr))
}

#[test]
fn forced_weights_are_on_the_device_and_were_uploaded_once() {
    let done = run(&[("FUCINA_GPU", "force")]);
    let weights = weights(&done);
    let matrices = weights.iter().filter(|weight| weight["type"] == "Q8_0");
    assert!(matrices.clone().count() > 4 * 7, "four layers of seven, and the embedding");
    for weight in matrices {
        let device = &weight["devices"][0];
        assert_eq!(device["provider"], "cuda");
        assert_eq!((&device["resident_bytes"], number(&device["uploads"])), (&weight["bytes"], 1));
        let calls = weight["calls"].as_array().expect("an array");
        assert!(!calls.is_empty() && calls.iter().all(|c| c["ran_on"] == "cuda"), "{weight}");
        assert!(number(&calls[0]["calls"]) >= 2, "one for each pass: {weight}");
    }
    let row = row(&done, "blk.*.attn_q.weight");
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(cells[1..3], ["Q8_0", "4"], "{row}");
    assert!(row.ends_with("8 on cuda"), "four layers, two passes: {row}");
    assert!(done.stderr.contains("of device memory in use; 0 copies dropped"), "{}", done.stderr);
}

#[test]
fn weights_that_had_to_go_were_uploaded_more_than_once() {
    let budget = [("FUCINA_GPU", "force"), ("FUCINA_GPU_VRAM_BUDGET", "700000")];
    let done = run(&budget);
    let weights = weights(&done);
    let again = weights.iter().any(|weight| number(&weight["devices"][0]["uploads"]) > 1);
    let gone = weights.iter().any(|weight| {
        number(&weight["devices"][0]["resident_bytes"]) == 0
            && number(&weight["devices"][0]["uploads"]) > 0
    });
    assert!(again && gone, "{}", done.stderr);
    for words in [" dropped ", " times more", "copies dropped to make room"] {
        assert!(done.stderr.contains(words), "{words}: {}", done.stderr);
    }
    assert!(!done.stderr.contains("; 0 copies dropped"), "{}", done.stderr);
}

#[test]
fn weights_below_a_gate_stay_on_the_host_and_say_why() {
    let done = run(&[]);
    for weight in weights(&done) {
        assert_eq!(number(&weight["devices"][0]["uploads"]), 0, "{weight}");
    }
    let row = row(&done, "blk.*.attn_q.weight");
    assert!(row.contains(" host ") && row.contains("8 on the CPU (below FUCINA_GPU_"), "{row}");
}

#[test]
fn without_a_device_one_line_says_so() {
    let done = run(&[("FUCINA_GPU", "0")]);
    assert!(done.stderr.contains("no device is in use; `fucina doctor` says why"), "{done:?}");
    assert!(weights(&done).iter().all(|w| w["devices"] == serde_json::json!([])));
}
