//! `cargo xtask ci`: every check in order, cheap ones first, until one fails.

use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};

use crate::process::{self, Tests, cargo};
use crate::workspace::{Metadata, root};
use crate::{arch, coverage, device_check, knobs, licences, links, neon, ptx, tools};

/// The variable that names the folder of large golden files, and where that folder is usually found.
const ORACLES: &str = "FUCINA_ORACLES";
const USUAL_ORACLES: &str = "../shared/oracles";

/// A step: its name, and what it does; the text it returns goes into the report.
type Step = (&'static str, fn() -> Result<String>);

const QUICK: &[Step] = &[
    ("fmt", || silent(&mut cargo("fmt --all --check"))),
    ("clippy", || {
        silent(&mut cargo("clippy --workspace --all-targets --all-features -- -D warnings"))
    }),
    ("arch", || arch::run().map(|()| String::new())),
    ("knobs", || knobs::run().map(|()| String::new())),
    ("ptx", || ptx::check().map(|()| String::new())),
    ("licences", || licences::run().map(|()| String::new())),
    ("links", || links::run().map(|()| String::new())),
    ("coverage", || coverage::run().map(|()| String::new())),
    ("tests", tests),
];

const FULL: &[Step] =
    &[("neon", neon::ci), ("loom", loom), ("doc", doc), ("bench", benches), ("device", device)];

/// Runs the steps and prints the report.
pub(crate) fn run(quick: bool) -> Result<()> {
    let steps = QUICK.iter().chain(if quick { &[] } else { FULL });
    let start = Instant::now();
    let mut report = Vec::new();
    for (name, step) in steps {
        eprintln!("\n== {name}");
        let begin = Instant::now();
        let said = step().with_context(|| format!("ci stopped at step `{name}`"));
        let seconds = begin.elapsed().as_secs_f64();
        if said.is_err() {
            print_report(&report);
            println!("{name:10} {seconds:8.1}  FAILED");
        }
        report.push((*name, seconds, said?));
    }
    print_report(&report);
    println!("ci: {} steps passed in {:.0} s", report.len(), start.elapsed().as_secs_f64());
    Ok(())
}

fn print_report(report: &[(&str, f64, String)]) {
    println!("\n{:10} {:>8}", "step", "seconds");
    for (name, seconds, said) in report {
        println!("{name:10} {seconds:8.1}  {said}");
    }
}

fn silent(command: &mut Command) -> Result<String> {
    process::run(command).map(|()| String::new())
}

fn tests() -> Result<String> {
    let mut command = cargo("test --workspace --all-features");
    set_oracles(&mut command);
    let tests = process::run_tests(&mut command)?;
    for skip in &tests.skips {
        println!("{skip}");
    }
    Ok(tests.summary())
}

fn loom() -> Result<String> {
    tools::loom_tests().map(|tests: Tests| tests.summary())
}

fn doc() -> Result<String> {
    let mut command = cargo("doc --workspace --no-deps --all-features");
    silent(command.env("RUSTDOCFLAGS", "-D warnings"))
}

/// The smallest set of the device check, on the stand-in for the driver.
fn device() -> Result<String> {
    if cfg!(target_os = "linux") {
        return device_check::simulated();
    }
    Ok("skipped: the stand-in for the driver is for Linux".to_owned())
}

/// Starts every benchmark once with `--quick`: it must run, its figures are not looked at.
fn benches() -> Result<String> {
    let metadata = Metadata::read()?;
    let benches: Vec<_> = metadata.targets.iter().filter(|t| t.kind == "bench").collect();
    for bench in &benches {
        let line = format!("bench -p {} --bench {} -- --quick", bench.package, bench.name);
        process::run(&mut cargo(&line))?;
    }
    Ok(format!("{} benchmarks started", benches.len()))
}

/// Points the tests at the large golden files, where they lie in the usual place.
fn set_oracles(command: &mut Command) {
    let usual = root().join(USUAL_ORACLES);
    if std::env::var_os(ORACLES).is_none() && usual.is_dir() {
        println!("{ORACLES} is not set: using {USUAL_ORACLES}");
        command.env(ORACLES, usual);
    }
}
