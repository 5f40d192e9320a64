//! Text that is written to standard output as it comes.

use std::io::{self, IsTerminal as _, Write as _};

use crate::terminal;

/// Writes and remembers whether it could. Nothing is written after a failure.
#[derive(Debug, Default)]
pub(crate) struct Printer {
    /// Whether to write at all.
    live: bool,
    /// Standard output is a terminal: control characters are replaced.
    terminal: bool,
    /// The last character that was written.
    last: Option<char>,
    /// Standard output was closed by its reader.
    closed: bool,
    error: Option<io::Error>,
}

impl Printer {
    pub(crate) fn new(live: bool) -> Self {
        Self { live, terminal: io::stdout().is_terminal(), ..Self::default() }
    }

    /// Writes text of a model or a user.
    pub(crate) fn write(&mut self, text: &str) {
        self.last = text.chars().next_back().or(self.last);
        if self.terminal {
            self.write_raw(&terminal::neutral(text));
        } else {
            self.write_raw(text);
        }
    }

    /// Writes what the command made itself, such as a change of colour.
    pub(crate) fn write_raw(&mut self, text: &str) {
        if !self.live || text.is_empty() || self.failed() {
            return;
        }
        let mut stdout = io::stdout().lock();
        match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => self.closed = true,
            Err(error) => self.error = Some(error),
        }
    }

    /// Ends the line, if one was begun.
    pub(crate) fn end_line(&mut self) {
        if self.last.is_some_and(|last| last != '\n') {
            self.write("\n");
        }
    }

    /// Ends a line in which nothing was written.
    pub(crate) fn end_empty(&mut self) {
        if self.last.is_none() {
            self.write("\n");
        }
    }

    pub(crate) const fn is_closed(&self) -> bool {
        self.closed
    }

    pub(crate) const fn failed(&self) -> bool {
        self.closed || self.error.is_some()
    }

    /// What went wrong, but for a reader that had enough.
    ///
    /// # Errors
    ///
    /// Fails if something could not be written.
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        match self.error.take() {
            Some(error) => {
                Err(anyhow::Error::new(error).context("could not write to standard output"))
            }
            None => Ok(()),
        }
    }
}
