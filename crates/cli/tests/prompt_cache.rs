//! `--prompt-cache`, as a user sees it.

#![cfg(test)]

mod common;

use std::path::Path;

use common::{call, file};
use serde_json::Value;

const PROMPT: &str = "It is a truth universally acknowledged, that a single man";

fn run(prompt: &str, flags: &[&str]) -> Value {
    let args = ["run", prompt, "-n", "24", "--greedy", "--json"];
    call(&[&args[..], flags].concat()).ok().json()
}

fn restored(done: &Value) -> u64 {
    done["cache"]["restored_tokens"].as_u64().unwrap()
}

/// A name in the folder of the tests that no file has.
fn fresh(name: &str) -> String {
    let path = file(name, b"");
    std::fs::remove_file(&path).unwrap();
    path
}

#[test]
fn the_text_is_the_same_without_a_cache_with_a_new_one_and_with_an_old_one() {
    for cache_type in ["f16", "q8_0"] {
        let path = fresh(&format!("same-{cache_type}.kv"));
        let plain = run(PROMPT, &["--cache-type", cache_type]);
        let flags = ["--prompt-cache", &path, "--cache-type", cache_type];
        let first = run(PROMPT, &flags);
        let written = std::fs::read(&path).unwrap();
        let second = run(PROMPT, &flags);
        let tokens = plain["prompt_ids"].as_array().unwrap().len() as u64;
        assert_eq!((restored(&first), restored(&second)), (0, tokens - 1));
        assert_eq!(
            (&first["timings"]["prompt_tokens"], &second["timings"]["prompt_tokens"]),
            (&tokens.into(), &1.into())
        );
        assert_eq!(first["ids"], plain["ids"], "{cache_type}");
        assert_eq!(second["ids"], plain["ids"], "{cache_type}");
        assert!(std::fs::read(&path).unwrap() == written, "nothing new, so nothing is written");
    }
}

#[test]
fn a_longer_prompt_takes_the_beginning_and_leaves_the_rest() {
    let path = fresh("longer.kv");
    run(PROMPT, &["--prompt-cache", &path]);
    let before = std::fs::metadata(&path).unwrap().len();
    let longer = format!("{PROMPT} in possession of a good fortune");
    let done = run(&longer, &["--prompt-cache", &path]);
    assert!(restored(&done) > 5, "{done}");
    assert_eq!(done["ids"], run(&longer, &[])["ids"]);
    assert!(std::fs::metadata(&path).unwrap().len() > before);
    // The penalties look at the prompt too, wherever it came from.
    let penalty = ["--repeat-penalty", "1.7"];
    let cached = run(&longer, &[&penalty[..], &["--prompt-cache", &path]].concat());
    assert_eq!(cached["ids"], run(&longer, &penalty)["ids"]);
    assert_ne!(cached["ids"], done["ids"]);
    let shorter = run("It is a truth", &["--prompt-cache", &path, "--prompt-cache-ro"]);
    assert_eq!(shorter["timings"]["prompt_tokens"], 1);
    let summary = call(&["run", &longer, "-n", "1", "--prompt-cache", &path]).ok().stderr;
    assert!(summary.contains("prompt 1 tok") && summary.contains(" restored"), "{summary}");
}

#[test]
fn a_file_for_reading_stays_as_it_is_and_has_to_be_there() {
    let path = fresh("read-only.kv");
    let flags = ["--prompt-cache", &path, "--prompt-cache-ro"];
    call(&[&["run", PROMPT][..], &flags].concat()).failed(1, &["read-only.kv", "could not read"]);
    assert!(!Path::new(&path).exists());
    run(PROMPT, &["--prompt-cache", &path]);
    let written = std::fs::read(&path).unwrap();
    let other = "It is a truth that nobody knew before";
    assert!(restored(&run(other, &flags)) > 2);
    assert!(std::fs::read(&path).unwrap() == written);
    call(&["run", PROMPT, "--prompt-cache-ro"]).failed(2, &["--prompt-cache"]);
}

#[test]
fn what_is_no_cache_of_this_model_is_4_and_stays_as_it_is() {
    let path = fresh("good.kv");
    run(PROMPT, &["--prompt-cache", &path]);
    let good = std::fs::read(&path).unwrap();
    let mut damaged = good.clone();
    damaged[500] ^= 4;
    let cut = &good[..good.len() - 1];
    for (name, bytes, words) in [
        ("foreign.kv", &b"It is a truth universally acknowledged"[..], "not a saved session"),
        ("empty.kv", b"", "cut short: 0 of 72"),
        ("damaged.kv", &damaged, "damaged: the checksum"),
        ("cut.kv", cut, "cut short"),
    ] {
        let path = file(name, bytes);
        let done = call(&["run", PROMPT, "-n", "1", "--prompt-cache", &path]);
        done.failed(4, &[name, words, "remove it or name another"]);
        assert!(std::fs::read(&path).unwrap() == bytes, "{name} changed");
    }
    call(&["run", PROMPT, "--prompt-cache", &path, "--cache-type", "q8_0"])
        .failed(4, &["are f16", "q8_0"]);
    let folder = Path::new(&path).parent().unwrap().to_str().unwrap();
    call(&["run", PROMPT, "--prompt-cache", folder]).failed(2, &["is not a file"]);
}

#[test]
fn a_folder_that_is_not_there_is_told_before_anything_is_computed() {
    let path = fresh("parent.kv");
    for nowhere in [format!("{path}.d/x.kv"), format!("{path}.d/e/x.kv")] {
        let done = call(&["run", PROMPT, "--prompt-cache", &nowhere]);
        done.failed(2, &["x.kv", "is not there", "create it"]);
        assert_eq!(done.stdout, "");
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_cache_that_cannot_be_written_is_a_warning_and_the_run_goes_on() {
    // Nobody can create a file there, not even root.
    let args = ["run", PROMPT, "-n", "24", "--greedy", "--prompt-cache", "/proc/x.kv"];
    let done = call(&args).ok();
    assert_eq!(done.stdout, call(&args[..5]).ok().stdout);
    for words in ["warning: could not write the prompt cache `/proc/x.kv`", "generated 24 tok"] {
        assert!(done.stderr.contains(words), "{done:?}");
    }
    assert_eq!(call(&[&args[..], &["-q"]].concat()).ok().stderr, "");
}

#[cfg(unix)]
#[test]
fn only_the_owner_can_read_a_cache_and_a_link_to_it_stays() {
    use std::os::unix::fs::{PermissionsExt as _, symlink};
    // The link of an earlier run first: the file behind it would come back through it.
    let (link, path) = (fresh("link.kv"), fresh("linked.kv"));
    run(PROMPT, &["--prompt-cache", &path]);
    let before = std::fs::metadata(&path).unwrap();
    assert_eq!(before.permissions().mode() & 0o777, 0o600);
    symlink(&path, &link).unwrap();
    run(&format!("{PROMPT} in possession"), &["--prompt-cache", &link]);
    assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
    assert!(std::fs::metadata(&path).unwrap().len() > before.len());
}
