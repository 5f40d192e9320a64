//! Starting cargo and counting what its tests say.

use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::workspace::root;

/// The target that sanitized and loom builds name, so that build scripts are left alone.
pub(crate) const HOST: &str = "x86_64-unknown-linux-gnu";

/// `cargo <line>`, in the root of the repository. The line is split at spaces.
pub(crate) fn cargo(line: &str) -> Command {
    let mut command = Command::new("cargo");
    command.args(line.split_whitespace()).current_dir(root());
    command
}

/// A build folder of its own beside the main one: other flags would rebuild everything.
pub(crate) fn target_dir(name: &str) -> PathBuf {
    #[expect(clippy::disallowed_methods, reason = "cargo's own variable")]
    let base = std::env::var("CARGO_TARGET_DIR").map_or_else(|_| root().join("target"), Into::into);
    base.join(name)
}

/// Whether a program can be started and succeeds.
pub(crate) fn works(program: &str, args: &[&str]) -> bool {
    let status =
        Command::new(program).args(args).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// Runs `command` to its end, after saying what it is.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    announce(command);
    let status = command.status().with_context(|| format!("cannot start {}", shown(command)))?;
    ensure!(status.success(), "{} failed ({status})", shown(command));
    Ok(())
}

/// What the tests of a command said.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Tests {
    pub(crate) passed: u64,
    pub(crate) ignored: u64,
    /// The lines of tests that skipped themselves.
    pub(crate) skips: Vec<String>,
}

impl Tests {
    /// Reads one line of output.
    fn read(&mut self, line: &str) {
        let line = line.trim();
        if let Some(counts) = line.strip_prefix("test result: ok. ") {
            self.passed += count_before(counts, " passed");
            self.ignored += count_before(counts, " ignored");
        } else if line.starts_with("SKIPPED ") {
            self.skips.push(line.to_owned());
        }
    }

    /// Adds what another command said.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.ignored += other.ignored;
        self.skips.extend(other.skips);
    }

    /// One line for the report.
    pub(crate) fn summary(&self) -> String {
        format!(
            "{} tests passed, {} ignored, {} skipped themselves",
            self.passed,
            self.ignored,
            self.skips.len()
        )
    }
}

/// The number in front of `word`, where `counts` looks like `17 passed; 0 failed; 1 ignored`.
fn count_before(counts: &str, word: &str) -> u64 {
    let head = counts.split(word).next().unwrap_or_default();
    head.rsplit(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

/// Runs a `cargo test` command, shows its output as it comes, and counts. No test at all is an error:
/// a filter that matches nothing must not look like success.
pub(crate) fn run_tests(command: &mut Command) -> Result<Tests> {
    announce(command);
    let mut child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start {}", shown(command)))?;
    let tests = tee(&mut child)?;
    let status = child.wait()?;
    if !status.success() {
        bail!("{} failed ({status})", shown(command));
    }
    ensure!(tests.passed > 0, "{} ran no test", shown(command));
    Ok(tests)
}

/// Copies both streams to ours, line by line, and reads them on the way.
fn tee(child: &mut Child) -> Result<Tests> {
    let stdout = child.stdout.take().context("the output of cargo is not piped")?;
    let stderr = child.stderr.take().context("the errors of cargo are not piped")?;
    std::thread::scope(|scope| {
        let errors = scope.spawn(|| copy_lines(stderr, &mut std::io::stderr()));
        let mut tests = copy_lines(stdout, &mut std::io::stdout())?;
        match errors.join() {
            Ok(said) => tests.skips.extend(said?.skips),
            Err(_) => bail!("the thread that reads the errors of cargo panicked"),
        }
        Ok(tests)
    })
}

fn copy_lines(from: impl Read, to: &mut impl Write) -> Result<Tests> {
    let mut tests = Tests::default();
    let mut from = BufReader::new(from);
    let mut line = Vec::new();
    while from.read_until(b'\n', &mut line)? > 0 {
        to.write_all(&line)?;
        tests.read(&String::from_utf8_lossy(&line));
        line.clear();
    }
    Ok(tests)
}

fn announce(command: &Command) {
    eprintln!("\n$ {}", shown(command));
}

/// The command as a shell would take it.
fn shown(command: &Command) -> String {
    let mut words = Vec::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            words.push(format!("{}={}", name.to_string_lossy(), quoted(&value.to_string_lossy())));
        }
    }
    words.push(command.get_program().to_string_lossy().into_owned());
    words.extend(command.get_args().map(|arg| quoted(&arg.to_string_lossy())));
    words.join(" ")
}

fn quoted(word: &str) -> String {
    if word.contains(' ') { format!("'{word}'") } else { word.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_and_skips_are_counted() {
        let output = "running 3 tests\n\
            test result: ok. 17 passed; 0 failed; 2 ignored; 0 measured; 0 filtered out\n\
            SKIPPED a: no folder\n\
            test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let mut copy = Vec::new();
        let tests = copy_lines(output.as_bytes(), &mut copy).unwrap();
        let skips = vec!["SKIPPED a: no folder".to_owned()];
        assert_eq!(tests, Tests { passed: 20, ignored: 2, skips });
        assert_eq!(copy, output.as_bytes());
    }

    #[test]
    fn commands_are_shown_as_typed() {
        let mut command = cargo("test -p x");
        command.env("RUSTFLAGS", "--cfg loom");
        assert_eq!(shown(&command), "RUSTFLAGS='--cfg loom' cargo test -p x");
    }

    #[test]
    fn a_program_that_is_missing_does_not_work() {
        assert!(works("cargo", &["--version"]));
        assert!(!works("no-such-program", &[]));
    }
}
