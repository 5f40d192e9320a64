//! Every class of failure: its exit code, and a sentence that helps.

#![cfg(test)]

mod common;

use std::ffi::OsStr;

use common::{asset, call, call_with, file, fucina};
use fucina::gguf::{File, Writer};

#[test]
fn a_wrong_command_line_is_2() {
    call(&["run", "--tmp", "1", "x"]).failed(2, &["--tmp", "similar", "--temp", "--help"]);
    call(&["run"]).failed(2, &["PROMPT"]);
    call(&["walk"]).failed(2, &["walk"]);
    call(&["run", "It", "is", "a"]).failed(2, &["quotes"]);
    call(&["run", "model.gguf"]).failed(2, &["model.gguf", "prompt is missing"]);
    call(&["run", "x", "--threads", "0"]).failed(2, &["--threads", "1 to 1024"]);
    call(&["run", "x", "--greedy", "--temp", "1"]).failed(2, &["--greedy", "--temp"]);
    call(&["run", "x", "--ctx", "513"]).failed(2, &["513", "512"]);
    call(&["run", "x", "--ctx", "0"]).failed(2, &["1 to 512"]);
    for (flag, value) in [
        ("--temp", "-1"),
        ("--temp", "nan"),
        ("--top-p", "1.5"),
        ("--min-p", "-0.5"),
        ("--repeat-penalty", "0"),
        ("--presence-penalty", "inf"),
    ] {
        call(&["run", "x", flag, value]).failed(2, &[flag, "must be"]);
    }
    call(&["bench", "-p", "513"]).failed(2, &["pp513", "512"]);
    call(&["bench", "-n", "8", "-d", "505"]).failed(2, &["tg8 @ d505", "at most 7"]);
    call(&["bench", "-p", "0", "-n", "0"]).failed(2, &["no test"]);
    call(&["bench", "--json", "--csv"]).failed(2, &["--csv"]);
}

#[test]
fn no_command_prints_help_and_is_2() {
    let done = call(&[]);
    assert_eq!((done.code, &*done.stdout), (Some(2), ""));
    for command in ["run", "bench", "inspect", "doctor", "Examples:", "Exit codes:"] {
        assert!(done.stderr.contains(command), "{command} is not in {done:?}");
    }
}

#[test]
fn help_and_version_go_to_stdout() {
    let version = call(&["--version"]).ok();
    assert_eq!(version.stdout, format!("fucina {}\n", env!("CARGO_PKG_VERSION")));
    for command in ["run", "bench", "inspect", "doctor"] {
        let help = call(&[command, "--help"]).ok();
        assert!(help.stdout.contains(&format!("fucina {command}")), "{help:?}");
        assert_eq!(help.stderr, "");
    }
}

#[test]
fn a_wrong_variable_is_2_and_is_named() {
    let wrong = [
        ("FUCINA_THREADS", "none"),
        ("FUCINA_CPU_ISA", "avx9000"),
        ("FUCINA_GPU", "perhaps"),
        ("FUCINA_POOL_MB", "-1"),
        ("FUCINA_GPU_MIN_WORK", "1e9"),
    ];
    for (name, value) in wrong {
        for args in [&["run", "x"][..], &["bench"], &["inspect"]] {
            call_with(args, &[(name, value)]).failed(2, &[name, value]);
        }
    }
}

#[test]
fn a_model_that_cannot_be_read_is_3() {
    for command in [&["run", "no-such.gguf", "x"][..], &["bench", "no-such.gguf"]] {
        call(command).failed(3, &["no-such.gguf", "check the path"]);
    }
    call(&["inspect", "no-such.gguf"]).failed(3, &["no-such.gguf"]);
    call(&["run", env!("CARGO_MANIFEST_DIR"), "x"]).failed(3, &["not a regular file"]);
    let text = file("text.gguf", b"hello, this is no model");
    call(&["run", &text, "x"]).failed(3, &["not a GGUF file"]);
    let empty = file("empty.gguf", b"");
    call(&["run", &empty, "x"]).failed(3, &["empty.gguf"]);
}

#[test]
fn a_truncated_model_is_3() {
    let whole = std::fs::read(asset()).unwrap();
    for len in [12, 4000, whole.len() / 2, whole.len() - 1] {
        let path = file(&format!("cut-{len}.gguf"), &whole[..len]);
        call(&["run", &path, "x"]).failed(3, &["cut short or damaged"]);
        call(&["inspect", &path]).failed(3, &["cut short or damaged"]);
    }
}

#[test]
fn an_unknown_architecture_is_3_and_the_known_ones_are_listed() {
    let mut writer = Writer::new();
    writer.set("general.architecture", "mamba9").unwrap();
    let path = file("mamba9.gguf", &writer.to_bytes().unwrap());
    call(&["run", &path, "x"]).failed(3, &["mamba9", "llama", "qwen2", "qwen3"]);
    let path = file("nameless.gguf", &Writer::new().to_bytes().unwrap());
    call(&["run", &path, "x"]).failed(3, &["general.architecture", "missing"]);
}

#[test]
fn names_from_a_file_cannot_steer_the_terminal() {
    let mut writer = Writer::new();
    writer.set("general.architecture", "a\u{1b}[2Jb\nc").unwrap();
    let path = file("escape.gguf", &writer.to_bytes().unwrap());
    call(&["run", &path, "x"]).failed(3, &["a\\u{1b}[2Jb\\nc"]);
    let shown = call(&["inspect", &path]).ok();
    assert!(!shown.stdout.contains('\u{1b}'), "{shown:?}");
}

#[test]
fn a_prompt_that_cannot_be_used_is_4() {
    call(&["run", ""]).failed(4, &["empty"]);
    let long = "word ".repeat(600);
    call(&["run", &long]).failed(4, &["tokens", "512", "shorten"]);
    call(&["run", "It is a truth universally acknowledged", "--ctx", "4"])
        .failed(4, &["11 tokens", "holds 4", "--ctx"]);
}

#[cfg(unix)]
#[test]
fn an_argument_that_is_not_utf8_is_4() {
    use std::os::unix::ffi::OsStrExt as _;
    let mut command = fucina();
    command.arg("run").arg(OsStr::from_bytes(b"It \xff is"));
    common::Done::from(command.output().unwrap()).failed(4, &["UTF-8"]);
}

#[test]
fn weights_that_are_not_numbers_fail_and_point_to_the_check() {
    let mut bytes = std::fs::read(asset()).unwrap();
    let parsed = File::open(asset()).unwrap();
    let at = parsed.tensor("output_norm.weight").unwrap().file_offset();
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    let path = file("nan-norm.gguf", &bytes);
    let done = call(&["run", &path, "x", "--no-echo"]);
    done.failed(1, &["after the output", "not finite", "inspect --check"]);
    let done = call(&["inspect", &path, "--check"]);
    assert_eq!(done.code, Some(3), "{done:?}");
    done.says(&["1 tensor", "nan-norm"]);
    assert!(done.stdout.contains("NaN values: 1"), "{done:?}");
}
