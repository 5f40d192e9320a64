//! `cargo xtask device-check`: what a machine with a GPU needs to show that the kernels work there.
//!
//! The folder that this makes holds three programs and `run.sh`, and runs without cargo and without
//! the repository.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::process::{self, cargo, target_dir};
use crate::workspace::root;

/// Largest sum of the files, so that they travel easily.
const MAX_BYTES: u64 = 60 << 20;

const SCRIPT: &str = "dev/device-check/run.sh";

/// Where cargo puts each program, below the folder of the profile.
const PROGRAMS: [(&str, &str); 3] =
    [("fucina", "fucina"), ("examples/device_check", "device_check"), ("xtask", "xtask")];

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run the smallest set here, on the simulated driver, instead of building for elsewhere
    #[arg(long)]
    simulated: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if args.simulated { simulated().map(|said| println!("device-check: {said}")) } else { build() }
}

/// Builds and strips the programs, and puts the script beside them.
fn build() -> Result<()> {
    let packages = "-p fucina-cli -p xtask -p fucina-cuda --bins --example device_check";
    process::run(&mut cargo(&format!("build --release {packages}")))?;
    let folder = fresh(&target_dir("device-check"))?;
    let mut bytes = 0;
    for (built, name) in PROGRAMS {
        let (from, to) = (target_dir("release").join(built), folder.join(name));
        fs::copy(&from, &to).with_context(|| format!("cannot copy {}", from.display()))?;
        process::run(Command::new("strip").arg(&to)).context("binutils strip the programs")?;
        bytes += fs::metadata(&to)?.len();
    }
    fs::copy(root().join(SCRIPT), folder.join("run.sh"))?;
    ensure!(bytes <= MAX_BYTES, "the programs have {bytes} bytes, more than {MAX_BYTES}");
    let mib = bytes / (1 << 20);
    println!("device-check: {mib} MiB in {}", folder.display());
    println!("there, on a machine with a GPU: ./run.sh --out logs");
    Ok(())
}

/// Runs the script with what the tests have built. Returns what the report says.
pub(crate) fn simulated() -> Result<String> {
    // As the tests are built, so that nothing is built twice.
    process::run(&mut cargo("build --workspace --all-features --lib --bins --examples"))?;
    let debug = target_dir("debug");
    let folder = fresh(&target_dir("device-check-simulated"))?;
    for (built, name) in PROGRAMS {
        link(&debug.join(built), &folder.join(name))?;
    }
    link(&root().join(SCRIPT), &folder.join("run.sh"))?;
    let mut command = Command::new(folder.join("run.sh"));
    command
        .args(["--quick", "--out"])
        .arg(folder.join("logs"))
        .env("FUCINA_CUDA_LIBRARY", debug.join("libfucina_cuda_driver.so"));
    process::run(&mut command)?;
    let table = fs::read_to_string(folder.join("logs/table"))?;
    let passed = table.lines().filter(|line| line.contains(" ok ")).count();
    // Two of what it has are for real devices.
    ensure!(passed >= 6, "only {passed} steps passed:\n{table}");
    Ok(format!("{passed} steps passed on the simulated driver"))
}

/// An empty folder.
fn fresh(folder: &Path) -> Result<PathBuf> {
    if folder.exists() {
        fs::remove_dir_all(folder).with_context(|| format!("cannot empty {}", folder.display()))?;
    }
    fs::create_dir_all(folder)?;
    Ok(folder.to_owned())
}

#[cfg(unix)]
fn link(from: &Path, to: &Path) -> Result<()> {
    ensure!(from.exists(), "{} was not built", from.display());
    std::os::unix::fs::symlink(from, to).map_err(Into::into)
}

#[cfg(not(unix))]
fn link(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to).map(|_| ()).map_err(Into::into)
}
