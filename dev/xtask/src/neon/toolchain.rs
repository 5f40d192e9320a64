//! The compiler for Arm, and what it must find.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use crate::process::{self, cargo, target_dir, works};

pub(super) const TARGET: &str = "aarch64-unknown-linux-gnu";
pub(super) const EMULATOR: &str = "qemu-aarch64-static";
/// Where the cross compiler's C library lies.
pub(super) const SYSROOT: &str = "/usr/aarch64-linux-gnu";
const LINKER: &str = "aarch64-linux-gnu-gcc";
/// Debian's compiler: its packages include the sources of the standard library.
const RUSTC: &str = "/usr/bin/rustc";
const STD_SOURCES: &str = "/usr/lib/rustlib/src/rust/library/std";
const LINTER: &str = "/usr/bin/clippy-driver";
/// The compiler whose warnings are errors. Those of another are shown: it may have lints that
/// nobody has seen, and a check of a change must not fail because Debian has moved on.
const KNOWN_COMPILER: &str = "1.96";
/// What ends each argument that the linter finds in its variable.
const LINT_SEPARATOR: &str = "__CLIPPY_HACKERY__";
/// Packages with code for Arm, or above such.
const CHECKED: &str = "-p fucina-kernels -p fucina-runtime -p fucina-cuda";

/// A file, and the Debian packages that bring it.
type Need = (&'static str, &'static str);

const TO_CHECK: &[Need] = &[
    (RUSTC, "rustc-web libstd-rust-web-dev"),
    (STD_SOURCES, "rust-web-src"),
    (LINTER, "rust-web-clippy"),
];

const TO_RUN: &[Need] =
    &[(EMULATOR, "qemu-user-static"), (LINKER, "gcc-aarch64-linux-gnu libc6-dev-arm64-cross")];

/// The first thing that is not installed, and how to install it.
pub(super) fn missing() -> Option<String> {
    first_missing(TO_RUN).or_else(missing_to_check)
}

/// As [`missing`], of what [`check`] needs.
pub(super) fn missing_to_check() -> Option<String> {
    first_missing(TO_CHECK).or_else(|| too_old(&version().unwrap_or_default()))
}

/// An older system's packages bring an older compiler.
fn too_old(version: &str) -> Option<String> {
    let needed = env!("CARGO_PKG_RUST_VERSION");
    let numbers = |version: &str| -> Option<(u32, u32)> {
        let (major, rest) = version.split_once('.')?;
        Some((major.parse().ok()?, rest.split('.').next()?.parse().ok()?))
    };
    (numbers(version) < numbers(needed))
        .then(|| format!("{RUSTC} {needed} or later is missing: this is {version:?}"))
}

fn first_missing(needs: &[Need]) -> Option<String> {
    let (name, packages) =
        needs.iter().find(|(name, _)| !Path::new(name).is_dir() && !works(name, &["--version"]))?;
    Some(format!("{name} is missing (Debian: apt-get install {packages})"))
}

/// `cargo <verb> <args>` for the target, with the standard library built from source.
pub(super) fn build(verb: &str, args: &str) -> Command {
    let mut command =
        cargo(&format!("{verb} -Zbuild-std=std,panic_unwind,test --target {TARGET} {args}"));
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

/// Whether the compiler is the known one.
pub(super) fn is_known() -> bool {
    version().is_ok_and(|version| version.starts_with(&format!("{KNOWN_COMPILER}.")))
}

/// Checks types and lints of the code for Arm, which the usual checks leave out.
pub(super) fn check() -> Result<String> {
    let known = is_known();
    // What follows a `return` may be left out for Arm.
    let lints = if known { "-Dwarnings" } else { "-Wwarnings" };
    let lints = [lints, "-Aclippy::needless_return", ""].join(LINT_SEPARATOR);
    let mut command = build("check", &format!("{CHECKED} --all-targets"));
    command
        .env("RUSTC_WORKSPACE_WRAPPER", LINTER)
        .env("CLIPPY_ARGS", lints)
        .env("CARGO_TARGET_DIR", target_dir("neon-check"))
        // Only the standard library is compiled, and nothing runs.
        .env("CARGO_PROFILE_DEV_OPT_LEVEL", "0");
    process::run(&mut command)?;
    if known {
        return Ok(format!("types and lints are fine for {TARGET}"));
    }
    let version = version()?;
    Ok(format!(
        "types are fine; warnings of rustc {version} do not count, {KNOWN_COMPILER} is known"
    ))
}

/// The version of the compiler.
fn version() -> Result<String> {
    let output = Command::new(RUSTC).arg("--version").output().context("cannot start rustc")?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let version = said.strip_prefix("rustc ").and_then(|said| said.split_whitespace().next());
    ensure!(version.is_some(), "{RUSTC} --version says: {}", said.trim());
    Ok(version.unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_packages() {
        let needs: &[Need] = &[("/", "base-files"), ("no-such-program", "a b")];
        let said = "no-such-program is missing (Debian: apt-get install a b)";
        assert_eq!(first_missing(needs).as_deref(), Some(said));
        assert_eq!(first_missing(&needs[..1]), None);
    }

    #[test]
    fn an_old_compiler_is_as_good_as_none() {
        let needed = env!("CARGO_PKG_RUST_VERSION");
        for version in ["1.85.0", "1.9.0", "0.99.0", "", "what"] {
            assert!(too_old(version).is_some_and(|said| said.contains(needed)), "{version}");
        }
        for version in [needed, "1.100.0-nightly", "2.0.0"] {
            assert_eq!(too_old(version), None);
        }
    }
}
