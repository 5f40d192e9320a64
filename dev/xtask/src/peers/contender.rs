//! A contender: how it is started, and the lines that are exchanged with it (dev/peers/README.md).

use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};

/// Who competes with whom.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// With all that the machine has.
    Best,
    /// With AVX2 and no more.
    Avx2,
}

/// What one can be started with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Contender {
    /// In the record and in tables.
    pub(super) name: String,
    pub(super) class: Class,
    /// Runs products. The number of threads comes after the arguments.
    pub(super) program: PathBuf,
    pub(super) arguments: Vec<String>,
    /// After the number of threads.
    pub(super) library: Option<PathBuf>,
    pub(super) variables: Vec<(String, String)>,
    /// Runs whole models, if it does.
    pub(super) models: Option<PathBuf>,
}

/// Variables that tell a peer how many threads it has.
const THREADS: [&str; 4] =
    ["RAYON_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS"];

/// How soon idle threads of a peer stop looking for work: in milliseconds, and as a power of two of
/// clocks. They would take a core from whoever has the next turn.
const IDLE: [(&str, &str); 2] = [("KMP_BLOCKTIME", "2"), ("OPENBLAS_THREAD_TIMEOUT", "22")];

/// How long a turn's threads have to come to rest before the next turn.
const REST: Duration = Duration::from_millis(10);

impl Contender {
    pub(super) fn is_ours(&self) -> bool {
        self.name.starts_with("fucina")
    }

    /// The command of a program of it, after the words that were asked for.
    pub(super) fn command(&self, program: &PathBuf, with: Option<&str>) -> Command {
        let mut words = with.unwrap_or_default().split_whitespace();
        let mut command = match words.next() {
            None => Command::new(program),
            Some(first) => {
                let mut command = Command::new(first);
                command.args(words).arg(program);
                command
            }
        };
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }

    pub(super) fn start(&self, threads: usize, with: Option<&str>) -> Result<Running> {
        let mut command = self.command(&self.program, with);
        command.args(&self.arguments).arg(threads.to_string()).args(&self.library);
        command.envs(IDLE).envs(THREADS.map(|name| (name, threads.to_string())));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("cannot start {}", self.name))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let (Some(to), Some(from)) = (to, from) else { bail!("{} has no pipes", self.name) };
        Ok(Running { child, to, from: BufReader::new(from) })
    }
}

/// A contender that was started. It ends with this value.
pub(super) struct Running {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

/// What a contender says of a case.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Opened {
    /// Against f64.
    pub(super) error: f64,
    pub(super) kernel: String,
}

impl Running {
    /// Sends a line and returns the answer. A contender that cannot do it says `no` and why.
    fn ask(&mut self, line: &str) -> Result<String> {
        let asked = writeln!(self.to, "{line}").and_then(|()| self.to.flush());
        let mut answer = String::new();
        if asked.is_err() || self.from.read_line(&mut answer)? == 0 {
            bail!("it ended: {}", self.child.wait()?);
        }
        let answer = answer.trim_end();
        if let Some(why) = answer.strip_prefix("no ") {
            bail!("{why}");
        }
        Ok(answer.to_owned())
    }

    pub(super) fn open(&mut self, case: &str) -> Result<Opened> {
        opened(&self.ask(&format!("open {case}"))?)
    }

    /// Times of the calls of a turn, in nanoseconds.
    pub(super) fn run(&mut self, ms: f64) -> Result<Vec<f64>> {
        let times = times(&self.ask(&format!("run {ms}"))?);
        std::thread::sleep(REST);
        times
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It ends by itself when its input does, but not while it computes.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn opened(answer: &str) -> Result<Opened> {
    let mut words = answer.splitn(3, ' ');
    let is_ok = words.next() == Some("ok");
    let error = words.next().and_then(|error| error.parse().ok());
    let (true, Some(error)) = (is_ok, error) else { bail!("it answered {answer:?}") };
    Ok(Opened { error, kernel: words.next().unwrap_or_default().to_owned() })
}

fn times(answer: &str) -> Result<Vec<f64>> {
    let mut words = answer.split(' ');
    ensure!(words.next() == Some("ns"), "it answered {answer:?}");
    let times: Result<Vec<f64>, _> = words.map(str::parse).collect();
    let times = times.with_context(|| format!("it answered {answer:?}"))?;
    ensure!(!times.is_empty(), "it made no call");
    Ok(times)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A contender that is a shell.
    fn shell(script: &str) -> Running {
        let contender = Contender {
            name: "shell".to_owned(),
            class: Class::Best,
            program: "sh".into(),
            arguments: vec!["-c".to_owned(), script.to_owned()],
            library: None,
            variables: vec![("WHO".to_owned(), "me".to_owned())],
            models: None,
        };
        contender.start(2, None).unwrap()
    }

    #[test]
    fn lines_are_exchanged_and_the_variables_are_set() {
        let mut running = shell(
            "while read -r what rest; do case $what in \
             open) echo \"ok 0.5 $WHO $RAYON_NUM_THREADS $rest\";; \
             run) echo ns 3 1 2;; esac; done",
        );
        let opened = running.open("Q4_K 1 2 3").unwrap();
        assert_eq!(opened, Opened { error: 0.5, kernel: "me 2 Q4_K 1 2 3".to_owned() });
        assert_eq!(running.run(1.0).unwrap(), [3.0, 1.0, 2.0]);
    }

    #[test]
    fn a_contender_that_cannot_or_ends_says_why() {
        let said = |script: &str| shell(script).open("x").unwrap_err().to_string();
        assert_eq!(said("read line; echo no such format"), "such format");
        assert!(said("read line; exit 3").contains("it ended: exit status: 3"));
        assert!(said("read line; kill -ILL $$").contains("signal: 4"));
        assert!(said("read line; echo ok").contains("it answered"));
        assert!(times("ns").is_err() && times("ns x").is_err() && times("ok").is_err());
    }

    #[test]
    fn words_come_before_the_program() {
        let contender = Contender {
            name: "fucina".to_owned(),
            class: Class::Best,
            program: "a".into(),
            arguments: Vec::new(),
            library: None,
            variables: Vec::new(),
            models: None,
        };
        let command = contender.command(&"b".into(), Some("chrt -f 5"));
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        assert_eq!(command.get_program(), "chrt");
        assert_eq!(words, ["-f", "5", "b"]);
        assert!(contender.is_ours());
    }
}
