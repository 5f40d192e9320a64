//! The prompt of a terminal, with editing and a history.

use std::borrow::Cow;
use std::path::PathBuf;

use anyhow::Context as _;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Editor, Helper};

use super::history;
use super::input::{Entry, Input, goes_on, meant};
use crate::{output, terminal};

const PROMPT: &str = "> ";

/// A terminal that a person types at.
pub(super) struct Prompt {
    editor: Editor<Rules, FileHistory>,
    /// Where the history is kept. `None`: nowhere.
    history: Option<PathBuf>,
}

impl Prompt {
    /// # Errors
    ///
    /// Fails if the terminal cannot be used.
    pub(super) fn new(history: Option<PathBuf>) -> anyhow::Result<Self> {
        let config = Config::builder().max_history_size(history::ENTRIES);
        let config = config.context("cannot set up the history")?.build();
        let mut editor = Editor::with_config(config).context("cannot set up the terminal")?;
        editor.set_helper(Some(Rules { colour: terminal::has_colour() }));
        let mut prompt = Self { editor, history };
        prompt.load();
        Ok(prompt)
    }

    fn load(&mut self) {
        let Some(path) = &self.history else { return };
        let loaded = history::prepare(path)
            .map_err(ReadlineError::from)
            .and_then(|there| if there { self.editor.load_history(path) } else { Ok(()) });
        if let Err(error) = loaded {
            self.give_up(&error);
        }
    }

    fn remember(&mut self, text: &str) {
        // Kept in memory; whether it is new does not matter here.
        let _ = self.editor.add_history_entry(text);
        let Some(path) = &self.history else { return };
        if let Err(error) = self.editor.append_history(path) {
            self.give_up(&error);
        }
    }

    /// Goes on without a history on disk: a chat is worth more.
    fn give_up(&mut self, error: &ReadlineError) {
        if let Some(path) = self.history.take() {
            let path = path.display();
            output::warning(&format!("lines are not kept, because of `{path}`: {error}"));
        }
    }
}

impl Input for Prompt {
    fn next(&mut self) -> anyhow::Result<Entry> {
        // Ctrl-C is a key here and no signal.
        match self.editor.readline(PROMPT) {
            Ok(text) => {
                if !text.trim().is_empty() {
                    self.remember(&text);
                }
                Ok(meant(&text))
            }
            Err(ReadlineError::Interrupted | ReadlineError::Signal(_)) => Ok(Entry::Interrupted),
            Err(ReadlineError::Eof) => Ok(Entry::End),
            Err(error) => Err(error).context("cannot read from the terminal"),
        }
    }
}

/// When a text is complete, and how the prompt looks.
struct Rules {
    colour: bool,
}

impl Validator for Rules {
    fn validate(&self, text: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let more = goes_on(text.input());
        Ok(if more { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

impl Highlighter for Rules {
    fn highlight_prompt<'b, 's: 'b, 'p: 'b>(
        &'s self,
        prompt: &'p str,
        _default: bool,
    ) -> Cow<'b, str> {
        if self.colour { format!("\x1b[1m{prompt}\x1b[0m").into() } else { prompt.into() }
    }
}

impl Completer for Rules {
    type Candidate = String;
}

impl Hinter for Rules {
    type Hint = String;
}

impl Helper for Rules {}
