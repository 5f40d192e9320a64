//! Finding literal tokens (control and user-defined ones) in a text.
//!
//! The leftmost wins, then the longest. One pass over the text, however many tokens there are.

use aho_corasick::{AhoCorasick, MatchKind};

use super::error::Error;
use super::vocab::Tokens;

/// A part of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Part {
    /// Bytes `start..end`, to be split and merged.
    Text(usize, usize),
    /// A literal token.
    Token(u32),
}

/// An automaton over literal tokens.
#[derive(Debug)]
pub(super) struct LiteralTokens {
    /// `None` when there are no such tokens.
    automaton: Option<AhoCorasick>,
    ids: Vec<u32>,
}

impl LiteralTokens {
    /// Takes the literal tokens of the vocabulary; without the control ones unless
    /// `with_control`. Of several with the same text the lowest id counts.
    pub(super) fn new(tokens: &Tokens, with_control: bool) -> Result<Self, Error> {
        let (ids, texts): (Vec<u32>, Vec<&[u8]>) = tokens
            .iter()
            .filter(|(_, text, kind)| {
                let wanted = kind.is_literal() && (with_control || !kind.is_control());
                wanted && !text.is_empty()
            })
            .map(|(id, text, _)| (id, text))
            .unzip();
        let automaton = if ids.is_empty() {
            None
        } else {
            let built = AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
            Some(built.map_err(|e| Error::SpecialTokens { detail: e.to_string() })?)
        };
        Ok(Self { automaton, ids })
    }

    /// Cuts `text` into literal tokens and what lies between.
    pub(super) fn parts<'a>(&'a self, text: &'a str) -> impl Iterator<Item = Part> + 'a {
        let mut matches = self.automaton.as_ref().map(|automaton| automaton.find_iter(text));
        let mut done = 0;
        let mut pending = None;
        std::iter::from_fn(move || {
            if let Some(token) = pending.take() {
                return Some(token);
            }
            let start = done;
            let Some(found) = matches.as_mut().and_then(Iterator::next) else {
                done = text.len();
                return (start < done).then_some(Part::Text(start, done));
            };
            done = found.end();
            let token = Part::Token(self.ids[found.pattern().as_usize()]);
            if start == found.start() {
                return Some(token);
            }
            pending = Some(token);
            Some(Part::Text(start, found.start()))
        })
    }
}
