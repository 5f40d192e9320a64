//! `fucina chat` at a terminal: a pseudo-terminal, with this test at the keys.

#![cfg(test)]
#![cfg(unix)]

mod common;

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use common::chat::{CHATML, changed, embedded_with};
use common::{asset, fucina};
use fucina::gguf::{Array, Value};
use nix::pty::{Winsize, openpty};

/// Longest wait for anything: a machine may be busy.
const PATIENCE: Duration = Duration::from_secs(60);

/// What is sent when a prompt begins: from here on a paste is to be marked as one.
const READY: &str = "\x1b[?2004h";

/// A command and the terminal that it runs at.
struct Terminal {
    child: Child,
    keys: File,
    screen: Receiver<Vec<u8>>,
    /// All that was shown.
    shown: Vec<u8>,
    /// How much of it was looked at.
    seen: usize,
}

impl Terminal {
    fn start(command: &mut Command) -> Self {
        let size = Winsize { ws_row: 40, ws_col: 200, ws_xpixel: 0, ws_ypixel: 0 };
        let pty = openpty(&size, None).unwrap();
        let end = || pty.slave.try_clone().unwrap();
        command.env("TERM", "xterm");
        command.stdin(end()).stdout(end()).stderr(end());
        let child = command.spawn().unwrap();
        // The command holds copies, and they must be the only ones.
        command.stdin(std::process::Stdio::null());
        command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
        drop(pty.slave);
        let keys = File::from(pty.master);
        let mut screen = keys.try_clone().unwrap();
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error is the end: the last copy of the other side is closed.
            while let Ok(len @ 1..) = screen.read(&mut bytes) {
                if sender.send(bytes[..len].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, keys, screen: receiver, shown: Vec::new(), seen: 0 }
    }

    fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.shown).into_owned()
    }

    /// Waits until `text` is shown, after what was waited for before.
    #[track_caller]
    fn expect(&mut self, text: &str) {
        let end = Instant::now() + PATIENCE;
        loop {
            let rest = &self.shown[self.seen..];
            if let Some(at) = rest.windows(text.len()).position(|w| w == text.as_bytes()) {
                self.seen += at + text.len();
                return;
            }
            match self.screen.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.shown.extend(bytes),
                Err(_) => panic!("{text:?} does not come after {:?}", self.text()),
            }
        }
    }

    /// Waits for the end of the command.
    #[track_caller]
    fn end(&mut self) -> Option<i32> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.screen.recv_timeout(end.saturating_duration_since(Instant::now())) {
                Ok(bytes) => self.shown.extend(bytes),
                Err(RecvTimeoutError::Disconnected) => return self.child.wait().unwrap().code(),
                Err(RecvTimeoutError::Timeout) => panic!("no end after {:?}", self.text()),
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A test that failed leaves a command behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn history(name: &str) -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("history-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    folder.join("lines")
}

fn chat(model: &str, history: &PathBuf, extra: &[&str]) -> Terminal {
    let mut command = fucina();
    command.args(["chat", model, "--greedy", "-n", "6"]).args(extra);
    Terminal::start(command.env("FUCINA_HISTORY", history))
}

#[test]
fn a_person_types_and_reads_answers() {
    let history = history("talk");
    let model = embedded_with("terminal", CHATML);
    let mut terminal = chat(&model, &history, &[]);
    terminal.expect("/help lists commands");
    terminal.expect(READY);
    // What was typed is cleared, and not sent.
    terminal.press("never sent\x03");
    terminal.expect(READY);
    terminal.press("/hlep\r");
    terminal.expect("there is no command /hlep");
    terminal.expect(READY);
    terminal.press("/load no/such/file\r");
    terminal.expect("cannot load");
    // Whoever types ahead loses nothing.
    terminal.press("one\\\rtwo\r/stats\r");
    terminal.expect("turns    1");
    terminal.expect("tokens held");
    // Between prompts the end of input is the kernel's to read, and comes to nothing.
    terminal.expect(READY);
    terminal.press("\x04");
    assert_eq!(terminal.end(), Some(0));
    assert!(terminal.text().contains("1 turn · prompt"), "{:?}", terminal.text());
    let kept = std::fs::read_to_string(&history).unwrap();
    assert!(kept.contains("/stats") && kept.contains("one\\\\\\ntwo"), "{kept:?}");
    assert!(!kept.contains("never sent"), "{kept:?}");
    let mode = |path: &std::path::Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&history), 0o600);
    assert_eq!(mode(history.parent().unwrap()), 0o700);
    // The arrow up brings back the last line of the former chat.
    let mut terminal = chat(&model, &history, &["-q"]);
    terminal.expect(READY);
    terminal.press("\x1b[A\r");
    terminal.expect("turns    0");
    terminal.press("/exit\r");
    assert_eq!(terminal.end(), Some(0));
}

#[test]
fn no_history_keeps_nothing() {
    let history = history("none");
    let model = embedded_with("silent", CHATML);
    let mut terminal = chat(&model, &history, &["--no-history"]);
    terminal.expect(READY);
    terminal.press("/set\r");
    terminal.expect("max-tokens");
    terminal.expect(READY);
    terminal.press("\x04");
    assert_eq!(terminal.end(), Some(0));
    assert!(!history.exists());
}

#[test]
fn a_history_that_cannot_be_used_is_a_warning() {
    let model = embedded_with("odd-history", CHATML);
    let mut terminal = chat(&model, &PathBuf::from("/dev/zero"), &[]);
    terminal.expect("warning: lines are not kept");
    terminal.expect(READY);
    terminal.press("/exit\r");
    assert_eq!(terminal.end(), Some(0));
}

fn signal(terminal: &Terminal, name: &str) {
    let kill = format!("kill -{name} {}", terminal.child.id());
    assert!(Command::new("sh").args(["-c", &kill]).status().unwrap().success());
}

#[test]
fn an_interrupt_stops_the_answer_and_not_the_chat() {
    let model = embedded_with("interrupt", CHATML);
    let history = history("interrupt");
    let mut command = fucina();
    // The slowest kernels on one thread, and an answer that does not end before the context does.
    command.args(["chat", &model, "--greedy", "--threads", "1", "--stop", "\u{1}"]);
    command.env("FUCINA_CPU_ISA", "scalar").env("FUCINA_HISTORY", &history);
    let mut terminal = Terminal::start(&mut command);
    terminal.expect(READY);
    for delay in (0..12).map(|attempt| Duration::from_millis(5 << attempt)) {
        terminal.press("/clear\r");
        terminal.expect(READY);
        terminal.press("Who is Emma?\r");
        terminal.expect("Emma?");
        std::thread::sleep(delay);
        signal(&terminal, "INT");
        // Too late is possible: the context is full, or the prompt is there and the signal ends it.
        terminal.expect(READY);
        if terminal.text().contains("(stopped; what came stays") {
            terminal.press("/stats\r");
            terminal.expect("turns    1");
            terminal.press("/exit\r");
            assert_eq!(terminal.end(), Some(0));
            return;
        }
    }
    panic!("no signal came during an answer: {:?}", terminal.text());
}

#[test]
fn a_signal_at_the_prompt_gives_the_terminal_back() {
    let model = embedded_with("raw", CHATML);
    let mut terminal = chat(&model, &history("raw"), &[]);
    let modes = |terminal: &Terminal| nix::sys::termios::tcgetattr(&terminal.keys).unwrap();
    let before = modes(&terminal);
    terminal.expect(READY);
    assert_ne!(modes(&terminal).local_flags, before.local_flags, "it is raw now");
    signal(&terminal, "TERM");
    let end = Instant::now() + PATIENCE;
    while terminal.child.try_wait().unwrap().is_none() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(terminal.child.wait().unwrap().code(), Some(130));
    assert_eq!(modes(&terminal).local_flags, before.local_flags);
    assert_eq!(modes(&terminal).input_flags, before.input_flags);
}

/// The byte tokens of escape and comma, in the alphabet of such vocabularies, change places. So the
/// model writes an escape wherever it would write a comma.
fn model_that_escapes() -> String {
    let swap = &mut |key: &str, value: &Value| {
        let mut value = value.clone();
        if key == "tokenizer.ggml.tokens" {
            let Value::Array(Array::Str(tokens)) = &value else { panic!("{value:?}") };
            let swapped = tokens.view().iter().map(|token| match token {
                "," => "\u{11b}",
                "\u{11b}" => ",",
                _ => token,
            });
            value = swapped.collect::<Vec<&str>>().into();
        }
        Some(value)
    };
    changed(&asset(), "escapes", swap, Some("{{ messages[-1].content }}"))
}

#[test]
fn a_model_cannot_steer_the_terminal() {
    let model = model_that_escapes();
    let text = "It is a truth universally acknowledged";
    // A pipe gets what the model wrote.
    let args = ["run", &model, "--chat", text, "--greedy", "-n", "40", "-q"];
    let piped = common::call(&args).ok().stdout;
    assert!(piped.contains('\x1b'), "the test needs a model that writes escapes: {piped:?}");
    for args in [&args[..], &["run", &model, text, "--greedy", "-n", "40", "-q"]] {
        let mut terminal = Terminal::start(fucina().args(args));
        assert_eq!(terminal.end(), Some(0));
        let shown = terminal.text();
        assert!(shown.contains('␛') && !shown.contains('\x1b'), "{shown:?}");
    }
}

#[test]
fn colours_are_for_terminals_that_want_them() {
    let thinking = embedded_with("dim", "{{ messages[-1].content }}<think>\n");
    let args = ["run", &*thinking, "--chat", "It is", "--greedy", "-n", "4", "-q"];
    let mut dim = Terminal::start(fucina().args(args));
    dim.expect("\x1b[2m");
    dim.expect("\x1b[0m");
    assert_eq!(dim.end(), Some(0));
    let mut plain = Terminal::start(fucina().args(args).env("NO_COLOR", "1"));
    assert_eq!(plain.end(), Some(0));
    let text = plain.text();
    assert!(text.starts_with("<think>\r\n") && text.ends_with("\r\n</think>\r\n"), "{text:?}");
    assert!(!text.contains('\x1b'), "{text:?}");
    let mut hidden = Terminal::start(fucina().args(args).arg("--hide-thinking"));
    assert_eq!(hidden.end(), Some(0));
    assert_eq!(hidden.text(), "");
}
