//! Signals and closed outputs.
#![cfg(test)]
#![cfg(unix)]

mod common;

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

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

/// Stops a generation that is under way. `None` if the signal came too early or too late.
fn stop(name: &str, extra: &[&str], delay: Duration) -> Option<(i32, String, String)> {
    let mut child = slow(extra);
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut text = String::new();
    if extra.contains(&"--json") {
        std::thread::sleep(delay);
    } else {
        // The prompt, which is written when the generation begins.
        stdout.read_line(&mut text).unwrap();
    }
    signal(&child, name);
    stdout.read_to_string(&mut text).unwrap();
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    let code = child.wait().unwrap().code()?;
    (code != 0 && !text.is_empty()).then_some((code, text, stderr))
}

/// As [`stop`]. A machine may be fast, slow or busy, so the delay doubles from attempt to attempt:
/// starting takes less than half as long as generating.
fn stop_in_time(name: &str, extra: &[&str]) -> (i32, String, String) {
    let delays = (0..12).map(|attempt| Duration::from_millis(5 << attempt));
    let mut attempts = delays.filter_map(|delay| stop(name, extra, delay));
    attempts.next().expect("a signal comes while a generation runs")
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
