//! `cargo xtask neon`: the kernels for Arm, built here and run on emulated processors.
//!
//! It proves results, not speed: an emulator says nothing about time.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::process::{self, Tests, cargo, target_dir, works};

const TARGET: &str = "aarch64-unknown-linux-gnu";
const EMULATOR: &str = "qemu-aarch64-static";
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// Where the cross compiler's C library lies.
const SYSROOT: &str = "/usr/aarch64-linux-gnu";
/// Debian's compiler: its packages include the sources of the standard library.
const RUSTC: &str = "/usr/bin/rustc";
const STD_SOURCES: &str = "/usr/lib/rustlib/src/rust/library/std";
const LINTER: &str = "/usr/bin/clippy-driver";
/// What ends each argument that the linter finds in its variable.
const LINT_SEPARATOR: &str = "__CLIPPY_HACKERY__";

/// What the command starts or reads, and the Debian packages that bring it.
const NEEDS: &[(&str, &str)] = &[
    (EMULATOR, "qemu-user-static"),
    (LINKER, "gcc-aarch64-linux-gnu libc6-dev-arm64-cross"),
    (RUSTC, "rustc-web libstd-rust-web-dev"),
    (LINTER, "rust-web-clippy"),
];

/// What to check.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run on this processor only
    #[arg(long, value_enum)]
    cpu: Option<Cpu>,
    /// Also let the command write a text on each processor, and compare the texts
    #[arg(long)]
    text: bool,
}

/// A processor that the emulator knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Cpu {
    /// Everything the emulator has: dot products and matrix products of bytes
    Max,
    /// Dot products of bytes, no matrix products
    NeoverseN1,
    /// Neither
    CortexA72,
}

impl Cpu {
    const ALL: [Self; 3] = [Self::Max, Self::NeoverseN1, Self::CortexA72];

    /// The emulator's name.
    const fn name(self) -> &'static str {
        match self {
            Self::Max => "max",
            Self::NeoverseN1 => "neoverse-n1",
            Self::CortexA72 => "cortex-a72",
        }
    }

    /// Every instruction set that must be found, best last.
    const fn isas(self) -> &'static [&'static str] {
        match self {
            Self::Max => &["scalar", "neon", "neon-dotprod", "neon-i8mm"],
            Self::NeoverseN1 => &["scalar", "neon", "neon-dotprod"],
            Self::CortexA72 => &["scalar", "neon"],
        }
    }

    /// Arguments of `cargo test`. The first processor runs every version of every kernel; on the
    /// others, what no instruction set changes is left out.
    const fn tests(self) -> &'static str {
        match self {
            Self::Max => "-p fucina-kernels -p fucina-dtype --lib",
            Self::NeoverseN1 | Self::CortexA72 => "-p fucina-kernels --lib -- --skip math::",
        }
    }

    fn emulator(self) -> [&'static str; 5] {
        [EMULATOR, "-cpu", self.name(), "-L", SYSROOT]
    }
}

/// Lints the kernels for Arm and runs their tests on each processor.
pub(crate) fn run(args: &Args) -> Result<()> {
    if let Some(missing) = missing() {
        bail!("NOTHING WAS CHECKED: {missing}");
    }
    let cpus = args.cpu.as_ref().map_or(&Cpu::ALL[..], std::slice::from_ref);
    lint()?;
    let mut total = Tests::default();
    for cpu in cpus {
        eprintln!("\n== {}: {}", cpu.name(), cpu.isas().join(", "));
        total.add(test(*cpu)?);
    }
    println!("neon: {} processors, {}", cpus.len(), total.summary());
    if args.text {
        compare_texts(cpus)?;
    }
    Ok(())
}

/// The first thing that is not installed, and how to install it.
fn missing() -> Option<String> {
    for (program, packages) in NEEDS {
        if !works(program, &["--version"]) {
            return Some(format!("{program} is not installed (apt-get install {packages})"));
        }
    }
    let sources = Path::new(STD_SOURCES);
    (!sources.is_dir())
        .then(|| format!("{} is missing (apt-get install rust-web-src)", sources.display()))
}

/// `cargo +stable <verb> <args>` for the target, with the standard library built from source.
fn build(verb: &str, args: &str) -> Command {
    let mut command = cargo(&format!(
        "+stable {verb} -Zbuild-std=std,panic_unwind,test --target {TARGET} {args}"
    ));
    command
        .env("RUSTC", RUSTC)
        .env("RUSTDOC", "/usr/bin/rustdoc")
        .env("RUSTC_BOOTSTRAP", "1")
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", LINKER)
        .env("CARGO_TARGET_DIR", target_dir("neon"))
        // Names of functions are enough for a failed test, and half the time to build.
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
        .env_remove("FUCINA_CPU_ISA");
    command
}

/// Code for Arm is not compiled by the usual checks, so its lints run here.
fn lint() -> Result<()> {
    let mut command = build("check", "-p fucina-kernels");
    command
        .env("RUSTC_WORKSPACE_WRAPPER", LINTER)
        // What follows a `return` may be left out for Arm.
        .env("CLIPPY_ARGS", ["-Dwarnings", "-Aclippy::needless_return", ""].join(LINT_SEPARATOR))
        .env("CARGO_TARGET_DIR", target_dir("neon-lint"));
    process::run(&mut command)
}

fn test(cpu: Cpu) -> Result<Tests> {
    let mut command = build("test", cpu.tests());
    command
        .env("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", cpu.emulator().join(" "))
        .env("FUCINA_REQUIRE_ISA", cpu.isas().join(","));
    process::run_tests(&mut command)
}

/// Lets the command write on each emulated processor, forced to each of its instruction sets.
fn compare_texts(cpus: &[Cpu]) -> Result<()> {
    process::run(&mut build("build", "-p fucina-cli"))?;
    let program = target_dir("neon").join(TARGET).join("debug/fucina");
    let mut texts: Vec<(String, Vec<u8>)> = Vec::new();
    for cpu in cpus {
        for isa in cpu.isas() {
            let [emulator, arguments @ ..] = cpu.emulator();
            let output = Command::new(emulator)
                .args(arguments)
                .arg(&program)
                .args(["run", "It is a truth", "-n", "12", "--greedy"])
                .env("FUCINA_CPU_ISA", isa)
                .output()
                .context("cannot start the emulator")?;
            let said = String::from_utf8_lossy(&output.stderr);
            if !output.status.success() || !said.contains(&format!("cpu {isa},")) {
                bail!("{}, {isa}: {}: {}", cpu.name(), output.status, said.trim());
            }
            texts.push((format!("{} {isa}", cpu.name()), output.stdout));
        }
    }
    let Some((_, first)) = texts.first() else { bail!("no text was written") };
    let other = texts.iter().find(|(_, text)| text != first || text.is_empty());
    if let Some((label, text)) = other {
        let text = String::from_utf8_lossy(text);
        bail!("{label} writes another text: {text}, not {}", String::from_utf8_lossy(first));
    }
    println!("neon: {} emulated runs write the same text", texts.len());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_processor_has_what_the_weaker_one_has() {
        for pair in Cpu::ALL.windows(2) {
            assert!(pair[0].isas().starts_with(pair[1].isas()));
            assert!(pair[0].isas().len() > pair[1].isas().len());
        }
    }
}
