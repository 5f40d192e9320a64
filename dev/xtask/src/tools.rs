//! Checks that need another build: loom, sanitizers, Miri, fuzzing. One command each.

use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};
use clap::ValueEnum;

use crate::process::{self, HOST, Tests, cargo, target_dir, works};
use crate::workspace::{Metadata, root};

/// Crates with unsafe code in which every leak is a fault.
const OWNING_CRATES: &str = "-p fucina-gguf -p fucina-kernels";
/// Crates with unsafe code that leak memory on purpose: what a failed command may still touch is
/// never reused. Their tests count such leaks themselves.
const LEAKING_CRATES: &str = "-p fucina-accel -p fucina-runtime";

/// A sanitizer of the compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Sanitizer {
    /// Memory errors and leaks
    Address,
    /// Data races
    Thread,
}

/// Runs the loom models of every crate that has them.
pub(crate) fn loom() -> Result<()> {
    println!("loom: {}", loom_tests()?.summary());
    Ok(())
}

/// As [`loom`], for the report of `ci`.
pub(crate) fn loom_tests() -> Result<Tests> {
    let metadata = Metadata::read()?;
    let users = metadata.edges.iter().filter(|edge| edge.to == "loom");
    let mut crates: Vec<&str> = users.map(|edge| edge.from.as_str()).collect();
    crates.dedup();
    ensure!(!crates.is_empty(), "no crate depends on loom");
    let mut total = Tests::default();
    for name in crates {
        let mut command = cargo(&format!("test -p {name} --lib --release loom"));
        command.env("RUSTFLAGS", "--cfg loom").env("CARGO_TARGET_DIR", target_dir("loom"));
        total.add(process::run_tests(&mut command)?);
    }
    Ok(total)
}

/// Runs the tests of the crates with unsafe code under a sanitizer.
pub(crate) fn sanitize(which: Sanitizer) -> Result<()> {
    let tests = match which {
        Sanitizer::Address => address()?,
        Sanitizer::Thread => thread()?,
    };
    println!("sanitize: {}", tests.summary());
    Ok(())
}

/// Tests ask for more memory than there is, to see the error: the sanitizers' allocators must
/// refuse as the system's does, and not end the process.
const ALLOCATOR: &str = "allocator_may_return_null=1";

fn address() -> Result<Tests> {
    ensure!(
        works("cargo", &["+nightly", "--version"]),
        "the address sanitizer needs a nightly toolchain: rustup toolchain install nightly"
    );
    let mut total = Tests::default();
    for (crates, leaks) in [(OWNING_CRATES, 1), (LEAKING_CRATES, 0)] {
        let line = format!("+nightly test --target {HOST} {crates} --all-features --lib --tests");
        let mut command = cargo(&line);
        command
            .env("RUSTFLAGS", "-Zsanitizer=address")
            .env("ASAN_OPTIONS", format!("{ALLOCATOR}:detect_leaks={leaks}"))
            .env("CARGO_TARGET_DIR", target_dir("asan"));
        total.add(process::run_tests(&mut command)?);
    }
    Ok(total)
}

/// Debian packages of a compiler with the sources of its standard library: without an instrumented
/// one, the thread sanitizer reports races that do not exist.
const THREAD_PACKAGES: &str =
    "rustc-web libstd-rust-web-dev rust-web-src clang-19 libclang-rt-19-dev";

/// A test that asks whether fresh memory stays untouched: this sanitizer's allocator touches it all.
const THREAD_SKIP: &str = "fresh_memory_is_not_touched";

fn thread() -> Result<Tests> {
    let found = works("/usr/bin/rustc", &["--version"]) && works("clang-19", &["--version"]);
    if !found {
        bail!("the thread sanitizer needs Debian packages: apt-get install {THREAD_PACKAGES}");
    }
    let flags =
        "-Zsanitizer=thread -Zexternal-clangrt -Clinker=clang-19 -Clink-arg=-fsanitize=thread";
    let mut command = cargo(&format!(
        "+stable test -Zbuild-std=std,panic_unwind,test --target {HOST} {OWNING_CRATES} \
         {LEAKING_CRATES} --all-features --lib --tests -- --skip {THREAD_SKIP}"
    ));
    command
        .env("RUSTC", "/usr/bin/rustc")
        .env("RUSTDOC", "/usr/bin/rustdoc")
        .env("RUSTC_BOOTSTRAP", "1")
        .env("RUSTFLAGS", flags)
        .env("TSAN_OPTIONS", ALLOCATOR)
        .env("CARGO_TARGET_DIR", target_dir("tsan"));
    process::run_tests(&mut command)
}

/// Runs the tests that Miri can run, where Miri is installed.
pub(crate) fn miri() -> Result<()> {
    if !works("cargo", &["+nightly", "miri", "--version"]) {
        bail!(
            "NOTHING WAS CHECKED: Miri is not installed \
             (rustup +nightly component add miri rust-src); `cargo xtask sanitize` is the substitute"
        );
    }
    let mut command = cargo("+nightly miri test -p fucina-dtype -p fucina-accel --lib");
    command
        .env("CARGO_TARGET_DIR", target_dir("miri"))
        // Reading golden files needs the real file system.
        .env("MIRIFLAGS", "-Zmiri-disable-isolation");
    println!("miri: {}", process::run_tests(&mut command)?.summary());
    Ok(())
}

/// Processors to emulate, and the kernels that the command must choose on them.
const OLD_CPUS: &[(&str, &str)] = &[("Nehalem", "scalar"), ("Haswell", "avx2")];

/// Runs the release binary on emulated processors without newer instructions: a kernel that does
/// not ask first would end it.
pub(crate) fn old_cpus() -> Result<()> {
    let emulator = "qemu-x86_64-static";
    if !works(emulator, &["--version"]) {
        bail!("NOTHING WAS CHECKED: {emulator} is not installed (Debian's qemu-user-static)");
    }
    let target = target_dir("release-x86-64");
    process::run(cargo("build --release -p fucina-cli").env("CARGO_TARGET_DIR", &target))?;
    let program = target.join("release/fucina");
    let mut texts = Vec::new();
    for (cpu, kernels) in OLD_CPUS {
        let output = Command::new(emulator)
            .args(["-cpu", cpu])
            .arg(&program)
            .args(["run", "It is a truth", "-n", "12", "--greedy"])
            .env_remove("FUCINA_CPU_ISA")
            .output()
            .context("cannot start the emulator")?;
        let said = String::from_utf8_lossy(&output.stderr);
        if !output.status.success() || !said.contains(&format!("cpu {kernels},")) {
            bail!("{cpu}: {}, {kernels} kernels expected: {}", output.status, said.trim());
        }
        texts.push(output.stdout);
    }
    if texts.iter().any(|text| *text != texts[0] || text.is_empty()) {
        bail!("the emulated processors write different texts");
    }
    println!("old-cpus: {} emulated processors write the same text", OLD_CPUS.len());
    Ok(())
}

/// Runs every fuzz target for `seconds`, from the committed corpus. What it finds on the way goes
/// into a folder of its own; what breaks a target is kept in `dev/fuzz/artifacts`.
pub(crate) fn fuzz(seconds: u32) -> Result<()> {
    let folder = root().join("dev/fuzz");
    if !works("cargo", &["fuzz", "--version"]) {
        process::run(&mut cargo("install cargo-fuzz --locked"))?;
    }
    let list = cargo("+nightly fuzz list --fuzz-dir .")
        // Cargo sets it for this program, and the fuzzer would take it for its own.
        .env_remove("CARGO_MANIFEST_DIR")
        .current_dir(&folder)
        .output()?;
    ensure!(list.status.success(), "cargo fuzz list: {}", String::from_utf8_lossy(&list.stderr));
    let targets = String::from_utf8(list.stdout)?;
    ensure!(!targets.trim().is_empty(), "dev/fuzz has no target");
    for target in targets.split_whitespace() {
        let seeds = folder.join("corpus").join(target);
        let found = target_dir("fuzz-corpus").join(target);
        std::fs::create_dir_all(&found)?;
        std::fs::create_dir_all(folder.join("artifacts").join(target))?;
        let mut command = cargo(&format!("+nightly fuzz run --fuzz-dir . {target}"));
        command
            .arg(&found)
            .args(seeds.is_dir().then_some(&seeds))
            .arg("--")
            .arg(format!("-max_total_time={seconds}"));
        process::run(command.env_remove("CARGO_MANIFEST_DIR").current_dir(&folder))?;
    }
    println!("fuzz: {} targets, {seconds} s each", targets.split_whitespace().count());
    Ok(())
}
