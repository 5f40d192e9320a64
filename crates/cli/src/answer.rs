//! What a model writes: shown as it comes, and kept.

use std::time::{Duration, Instant};

use crate::printer::Printer;
use crate::terminal;

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// What becomes of thoughts on standard output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Thoughts {
    /// They are left out.
    Hidden,
    /// Shown in faint letters.
    Dimmed,
    /// Shown between their tags.
    Tagged,
}

impl Thoughts {
    /// What fits standard output. Where nobody looks on, only what is said matters.
    pub(crate) fn on_stdout(hide: bool) -> Self {
        if hide || !terminal::is_output() {
            Self::Hidden
        } else if terminal::has_colour() {
            Self::Dimmed
        } else {
            Self::Tagged
        }
    }
}

/// An answer in the making.
#[derive(Debug)]
pub(crate) struct Answer {
    out: Printer,
    thoughts: Thoughts,
    /// A thought is being shown.
    thinking: bool,
    /// What the model said, without its thoughts.
    pub(crate) text: String,
    /// The thoughts, where they were told apart.
    pub(crate) thought: Option<String>,
    pub(crate) ids: Vec<u32>,
    /// Memory of keys and values.
    pub(crate) cache_bytes: usize,
    /// Tokens of the prompt that came from a file.
    pub(crate) restored: usize,
    /// Why the prompt is not in a file now, if it was to be.
    pub(crate) unsaved: Option<String>,
    /// From `start` to the first text.
    pub(crate) first_token: Option<Duration>,
    start: Instant,
}

impl Answer {
    /// `live`: whether to show anything.
    pub(crate) fn new(live: bool, thoughts: Thoughts, start: Instant) -> Self {
        Self {
            out: Printer::new(live),
            thoughts,
            thinking: false,
            text: String::new(),
            thought: None,
            ids: Vec::new(),
            cache_bytes: 0,
            restored: 0,
            unsaved: None,
            first_token: None,
            start,
        }
    }

    /// A token and the text that became complete with it.
    pub(crate) fn token(&mut self, id: u32, text: &str) {
        self.ids.push(id);
        self.say(text);
    }

    /// The model says something.
    pub(crate) fn say(&mut self, text: &str) {
        self.end_thought(true);
        self.text.push_str(text);
        self.out.write(text);
        self.first_token.get_or_insert_with(|| self.start.elapsed());
    }

    /// The model thinks something.
    pub(crate) fn think(&mut self, text: &str) {
        self.first_token.get_or_insert_with(|| self.start.elapsed());
        if !std::mem::replace(&mut self.thinking, true) {
            self.out.write_raw(match self.thoughts {
                Thoughts::Hidden => "",
                Thoughts::Dimmed => DIM,
                Thoughts::Tagged => "<think>\n",
            });
        }
        if self.thoughts != Thoughts::Hidden {
            self.out.write(text);
        }
    }

    fn end_thought(&mut self, goes_on: bool) {
        if std::mem::take(&mut self.thinking) && self.thoughts != Thoughts::Hidden {
            let dimmed = self.thoughts == Thoughts::Dimmed;
            self.out.write_raw(if dimmed { PLAIN } else { "\n</think>" });
            self.out.write(if goes_on { "\n\n" } else { "\n" });
        }
    }

    /// The answer is over: ends the line.
    pub(crate) fn finish(&mut self) {
        self.end_thought(false);
        self.out.end_line();
    }

    /// Writes the line of an answer without a text. What reads a pipe counts lines; a person sees
    /// that nothing came.
    pub(crate) fn end_empty(&mut self) {
        if !terminal::is_output() {
            self.out.end_empty();
        }
    }

    /// Shows text that is not the model's.
    pub(crate) fn echo(&mut self, text: &str) {
        self.out.write(text);
    }

    pub(crate) const fn is_closed(&self) -> bool {
        self.out.is_closed()
    }

    pub(crate) const fn failed(&self) -> bool {
        self.out.failed()
    }

    /// # Errors
    ///
    /// As [`Printer::check`].
    pub(crate) fn check(&mut self) -> anyhow::Result<()> {
        self.out.check()
    }
}
