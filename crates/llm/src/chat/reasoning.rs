//! Tells what a model thinks from what it answers, while the text arrives.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// A part of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    Reasoning,
    Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It is not known yet whether the answer starts with a thought.
    Undecided,
    Thinking,
    Answering,
}

/// Splits an answer. Line breaks at the ends of a thought, and between it and the answer, belong
/// to neither.
#[derive(Debug)]
pub(super) struct Splitter {
    state: State,
    /// Not passed on yet.
    held: String,
    /// Whether line breaks are to be dropped before the next text.
    at_start: bool,
}

impl Splitter {
    /// For an answer to `prompt`, which may have opened a thought.
    pub(super) fn new(prompt: &str) -> Self {
        let opened = prompt.trim_end().ends_with(OPEN);
        let state = if opened { State::Thinking } else { State::Undecided };
        Self { state, held: String::new(), at_start: opened }
    }

    /// Adds text, and passes on what is certain.
    pub(super) fn push(&mut self, text: &str, out: &mut dyn FnMut(Part, &str)) {
        self.held.push_str(text);
        if self.state == State::Undecided {
            let start = self.held.trim_start();
            if let Some(rest) = start.strip_prefix(OPEN) {
                self.held = rest.to_owned();
                (self.state, self.at_start) = (State::Thinking, true);
            } else if !OPEN.starts_with(start) {
                self.state = State::Answering;
            }
        }
        if self.state == State::Thinking {
            if let Some(at) = self.held.find(CLOSE) {
                let rest = self.held.split_off(at + CLOSE.len());
                self.held.truncate(at);
                let len = self.held.trim_end_matches('\n').len();
                self.pass(Part::Reasoning, len, out);
                self.held = rest;
                (self.state, self.at_start) = (State::Answering, true);
            } else {
                let open = (1..CLOSE.len()).rev().find(|&len| self.held.ends_with(&CLOSE[..len]));
                let certain = &self.held[..self.held.len() - open.unwrap_or(0)];
                let len = certain.trim_end_matches('\n').len();
                self.pass(Part::Reasoning, len, out);
            }
        }
        if self.state == State::Answering {
            self.pass(Part::Content, self.held.len(), out);
        }
    }

    /// Ends the text: what was held back.
    pub(super) fn finish(mut self, out: &mut dyn FnMut(Part, &str)) {
        let part = if self.state == State::Thinking { Part::Reasoning } else { Part::Content };
        let len = match part {
            Part::Reasoning => self.held.trim_end_matches('\n').len(),
            Part::Content => self.held.len(),
        };
        self.pass(part, len, out);
    }

    /// Passes the first `len` bytes on.
    fn pass(&mut self, part: Part, len: usize, out: &mut dyn FnMut(Part, &str)) {
        let text = &self.held[..len];
        let text = if self.at_start { text.trim_start_matches('\n') } else { text };
        if !text.is_empty() {
            out(part, text);
            self.at_start = false;
        }
        self.held.drain(..len);
    }
}

#[cfg(test)]
mod tests;
