//! Runs the built binary.

#![allow(dead_code, reason = "every test file uses its own part")]

pub(crate) mod chat;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// The command, without the variables of ours that the test run may have.
pub(crate) fn fucina() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fucina"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("FUCINA_") {
            command.env_remove(name);
        }
    }
    command.env_remove("NO_COLOR").stdin(Stdio::null());
    command
}

/// What a finished command left behind.
#[derive(Debug)]
pub(crate) struct Done {
    pub code: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
            stderr: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
        }
    }
}

impl Done {
    /// One sentence on standard error, nothing on standard output.
    #[track_caller]
    pub(crate) fn failed(&self, code: i32, words: &[&str]) {
        assert_eq!(self.code, Some(code), "{self:?}");
        assert_eq!(self.stdout, "", "{self:?}");
        self.says(words);
    }

    /// The last line of standard error is one of ours, and it is made for people.
    #[track_caller]
    pub(crate) fn says(&self, words: &[&str]) {
        let line = self.stderr.lines().last().unwrap_or_default();
        assert!(line.starts_with("fucina: "), "{self:?}");
        for word in words {
            assert!(line.contains(word), "`{word}` is not in {line:?}");
        }
        for noise in ["panicked", "backtrace", "Error {", "Err(", "Some(", "RUST_"] {
            assert!(!self.stderr.contains(noise), "{self:?}");
        }
    }

    #[track_caller]
    pub(crate) fn ok(self) -> Self {
        assert_eq!(self.code, Some(0), "{self:?}");
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> serde_json::Value {
        assert_eq!(self.stdout.lines().count(), 1, "one object on one line: {self:?}");
        serde_json::from_str(&self.stdout).expect("stdout is JSON")
    }
}

pub(crate) fn call(args: &[&str]) -> Done {
    fucina().args(args).output().expect("the binary starts").into()
}

pub(crate) fn call_with(args: &[&str], variables: &[(&str, &str)]) -> Done {
    let mut command = fucina();
    command.args(args).envs(variables.iter().copied());
    command.output().expect("the binary starts").into()
}

/// The embedded model as a file.
pub(crate) fn asset() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("assets/austen-q8_0.gguf")
}

/// Writes a file for one test.
pub(crate) fn file(name: &str, bytes: &[u8]) -> String {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).expect("the folder of test files is writable");
    path.to_str().expect("the path is UTF-8").to_owned()
}
