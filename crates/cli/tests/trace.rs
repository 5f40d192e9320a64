//! `--trace`: a whole model with every call forced through the simulated CUDA driver, and what the
//! file says of it.

#![cfg(test)]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use common::{call_with, file};
use serde_json::Value;

/// The simulator's library, which the build of this test has made.
fn library() -> String {
    let test = std::env::current_exe().expect("a test knows where it is");
    let path = test.parent().expect("a test lies in a folder").join("libfucina_cuda_driver.so");
    assert!(path.exists(), "{} was not built", path.display());
    path.to_str().expect("the path is UTF-8").to_owned()
}

/// A few tokens of the embedded model, with a trace. The object of `--json`, and the events.
fn run(name: &str, variables: &[(&str, &str)]) -> (Value, Value) {
    let path = file(name, b"");
    let args = ["run", "It is", "-n", "3", "--greedy", "--json", "-q", "--trace", &path];
    let done = call_with(&args, variables).ok();
    let text = std::fs::read_to_string(PathBuf::from(path)).expect("the trace was written");
    (done.json(), serde_json::from_str(&text).expect("a trace is JSON"))
}

fn events<'t>(trace: &'t Value, cat: &str) -> Vec<&'t Value> {
    let all = trace["traceEvents"].as_array().expect("a list of events");
    all.iter().filter(|event| event["cat"] == cat).collect()
}

/// What the format asks of every event.
fn check_format(trace: &Value) {
    for event in trace["traceEvents"].as_array().expect("a list of events") {
        let ph = event["ph"].as_str().expect("a phase");
        assert!(matches!(ph, "X" | "M"), "{event}");
        assert!(event["name"].as_str().is_some_and(|name| !name.is_empty()), "{event}");
        for time in ["ts", "dur"] {
            assert!(event[time].as_f64().is_some_and(|t| t.is_finite() && t >= 0.0), "{event}");
        }
        assert!(event["pid"].is_u64() && event["tid"].is_u64(), "{event}");
        assert!(event["args"].is_object(), "{event}");
    }
    assert_eq!(trace["otherData"]["dropped_records"], 0);
}

#[test]
fn a_forced_model_streams_no_weight_and_uploads_each_activation_once() {
    let (cpu, on_cpu) = run("trace-cpu.json", &[("FUCINA_GPU", "0")]);
    let library = library();
    let forced = [("FUCINA_GPU", "force"), ("FUCINA_CUDA_LIBRARY", library.as_str())];
    let (gpu, trace) = run("trace-gpu.json", &forced);
    assert_eq!(gpu["ids"], cpu["ids"], "the tokens of the CPU");
    check_format(&on_cpu);
    check_format(&trace);

    let calls = events(&trace, "call");
    let (offloaded, stayed): (Vec<&Value>, Vec<&Value>) =
        calls.iter().partition(|call| call["args"]["ran_on"] == "cuda");
    assert!(offloaded.len() > 100, "{} of {}", offloaded.len(), calls.len());
    for call in &stayed {
        let why = call["args"]["why"].as_str().expect("a reason");
        assert!(why.starts_with("cuda: "), "{call}");
    }
    for call in &offloaded {
        let args = &call["args"];
        assert_eq!(args["why"], "offloading is forced");
        assert!(args["device_us"].is_number() && args["submit_us"].is_number(), "{call}");
        assert!(!args["inputs"].as_array().expect("a list").is_empty(), "{call}");
    }
    assert_eq!(events(&trace, "device").len(), offloaded.len());

    // By what the bytes are, not by what the provider says of them.
    let mut uploads: BTreeMap<(u64, u64, u64), u32> = BTreeMap::new();
    let mut kinds = BTreeSet::new();
    for upload in events(&trace, "copy").iter().filter(|event| event["name"] == "upload") {
        let args = &upload["args"];
        kinds.insert(args["kind"].as_str().expect("a kind").to_owned());
        if args["kind"] != "table" {
            let number = |name: &str| args[name].as_u64().expect("a number");
            *uploads.entry((number("content"), number("offset"), number("bytes"))).or_default() +=
                1;
            assert_ne!(args["arrival"], "uploaded again", "{upload}");
            assert!(args["kind"] != "weight" || args["arrival"] == "uploaded", "{upload}");
        }
    }
    assert!(kinds.contains("weight") && kinds.contains("activation"), "{kinds:?}");
    let twice: Vec<_> = uploads.iter().filter(|(_, count)| **count > 1).collect();
    assert!(twice.is_empty(), "uploaded more than once: {twice:?}");
}

#[test]
fn calls_on_the_cpu_say_why_and_take_time() {
    let (_, trace) = run("trace-reason.json", &[("FUCINA_GPU", "0")]);
    check_format(&trace);
    let calls = events(&trace, "call");
    assert!(!calls.is_empty());
    for call in &calls {
        assert_eq!(call["args"]["ran_on"], "cpu");
        assert_eq!(call["args"]["why"], "no provider");
        assert!(call["args"]["shapes"].is_array() && call["args"]["format"].is_string());
    }
    assert!(calls.iter().any(|call| call["dur"].as_f64().is_some_and(|us| us > 0.0)));
}

#[test]
fn a_path_that_cannot_be_written_is_told_at_once() {
    let args = ["run", "It is", "-n", "1", "--trace", "no/such/folder/trace.json"];
    call_with(&args, &[]).failed(2, &["--trace", "no/such/folder"]);
}
