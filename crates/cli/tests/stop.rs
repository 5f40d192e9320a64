//! Signals and closed outputs.
#![cfg(test)]
#![cfg(unix)]

mod common;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};

use common::fucina;

/// A generation that takes a while: the slowest kernels on one thread, up to the full context.
fn slow(extra: &[&str]) -> Child {
    let mut command = fucina();
    command.args(["run", "It is\n", "--threads", "1", "--ignore-eos", "-n", "9999"]).args(extra);
    command.env("FUCINA_CPU_ISA", "scalar").stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn signal(child: &Child, name: &str) {
    // The shell has `kill` built in; the program of that name may not be installed.
    let kill = format!("kill -{name} {}", child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

/// Stops a generation after its first line. `None` if it ended before the signal came.
fn stop(name: &str, extra: &[&str]) -> Option<(i32, String, String)> {
    let mut child = slow(extra);
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    if !extra.contains(&"--json") {
        stdout.read_line(&mut text).unwrap();
    } else {
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
    signal(&child, name);
    stdout.read_to_string(&mut text).unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let code = child.wait().unwrap().code()?;
    (code != 0).then_some((code, text, stderr))
}

/// As [`stop`], again if a busy machine was too slow to send the signal in time.
fn stop_in_time(name: &str, extra: &[&str]) -> (i32, String, String) {
    let attempts = std::iter::repeat_with(|| stop(name, extra)).take(10);
    attempts.flatten().next().expect("one of ten generations is slower than a signal")
}

#[test]
fn a_signal_stops_after_a_token_and_keeps_what_was_written() {
    for name in ["INT", "TERM"] {
        let (code, text, stderr) = stop_in_time(name, &[]);
        assert_eq!(code, 130, "{stderr}");
        assert!(text.starts_with("It is\n") && text.ends_with('\n'), "{text:?}");
        assert!(stderr.contains("interrupted") && stderr.contains("generated"), "{stderr}");
        assert!(!stderr.contains("panicked"), "{stderr}");
        assert_eq!(stderr.lines().count(), 1, "the summary and nothing else: {stderr}");
    }
}

#[test]
fn an_interrupted_generation_still_writes_its_json() {
    let (code, text, _) = stop_in_time("INT", &["--json"]);
    assert_eq!(code, 130);
    let record: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(record["stop"], "interrupted");
}

#[test]
fn a_reader_that_had_enough_is_no_error() {
    let mut child = slow(&[]);
    let mut first = [0];
    child.stdout.take().unwrap().read_exact(&mut first).unwrap();
    // The read end is closed now.
    let done = common::Done::from(child.wait_with_output().unwrap()).ok();
    assert_eq!(done.stderr, "");
    for args in [&["inspect"][..], &["doctor"], &["--help"], &["bench", "-p", "1", "-n", "1"]] {
        let mut child = fucina();
        child.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = child.spawn().unwrap();
        drop(child.stdout.take());
        common::Done::from(child.wait_with_output().unwrap()).ok();
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_disk_is_an_error() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    for args in [&["run", "x", "-n", "2"][..], &["run", "x", "-n", "2", "--json"], &["doctor"]] {
        let output = fucina().args(args).stdout(full()).stderr(Stdio::piped()).output().unwrap();
        common::Done::from(output).failed(1, &["No space left"]);
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_closed_standard_error_does_not_stop_the_text() {
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let mut command = fucina();
    command.args(["run", "It is", "-n", "2"]).stdout(Stdio::piped()).stderr(full);
    let done = common::Done::from(command.output().unwrap()).ok();
    assert!(done.stdout.starts_with("It is"), "{done:?}");
}
