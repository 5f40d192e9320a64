//! Keeps the text of messages from becoming control tokens.
//!
//! A template mixes its own control tokens with text from people into one string, and the
//! encoder finds control tokens in that string. So that `<|im_end|>` in a message stays text, a
//! mark is put inside: a noncharacter that occurs nowhere else. The encoder finds no control
//! token across a mark, and takes it out before the text is merged into tokens.
//!
//! Also marked: a message that ends with the beginning of a control token or begins with the end of
//! one, so that two messages cannot make one together. A template that itself cuts pieces out of
//! a message and joins what is left can still do that.

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};

use super::template::TemplateError;
use crate::tokenizer::Tokenizer;

/// Longest part of a control token that is looked for at the ends of a text, in bytes.
const MAX_EDGE_BYTES: usize = 256;

/// The control tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct Guard {
    /// `None` if there are none.
    automaton: Option<AhoCorasick>,
    /// The texts, sorted.
    texts: Vec<String>,
    /// The texts from back to front, sorted.
    reversed: Vec<String>,
}

impl Guard {
    pub(super) fn new(tokenizer: &Tokenizer) -> Self {
        let size = u32::try_from(tokenizer.vocab_size()).unwrap_or(u32::MAX);
        let mut texts: Vec<String> = (0..size)
            .filter(|&id| tokenizer.is_control(id))
            .filter_map(|id| tokenizer.token_bytes(id).ok())
            .filter_map(|bytes| String::from_utf8(bytes.to_vec()).ok())
            .filter(|text| !text.is_empty())
            .collect();
        texts.sort();
        let mut reversed: Vec<String> =
            texts.iter().map(|text| text.chars().rev().collect()).collect();
        reversed.sort();
        // The tokenizer has built one over the same texts and more.
        let automaton = AhoCorasick::builder().match_kind(MatchKind::Standard).build(&texts).ok();
        Self { automaton: automaton.filter(|_| !texts.is_empty()), texts, reversed }
    }

    /// Marks every text in `values` where it needs to be. Returns the mark, if there is one now.
    ///
    /// `others` are texts that the result will be mixed with.
    pub(super) fn protect(
        &self,
        values: &mut [&mut Value],
        others: &[&str],
    ) -> Result<Option<char>, TemplateError> {
        let mut needed = false;
        for value in &mut *values {
            edit(value, &mut |text| {
                needed |= !self.places(text).is_empty();
                None
            });
        }
        if !needed {
            return Ok(None);
        }
        let mark = free_mark(values, others).ok_or(TemplateError::NoMark)?;
        for value in values {
            edit(value, &mut |text| {
                let places = self.places(text);
                (!places.is_empty()).then(|| insert(text, &places, mark))
            });
        }
        Ok(Some(mark))
    }

    /// Where a mark must go, ascending: after the first character of each control token, and of
    /// each beginning of one at the end; before the last character of each end of one at the start.
    fn places(&self, text: &str) -> Vec<usize> {
        let Some(automaton) = &self.automaton else { return Vec::new() };
        let second = |at: usize| at + text[at..].chars().next().map_or(0, char::len_utf8);
        let mut places: Vec<usize> =
            automaton.find_overlapping_iter(text).map(|found| second(found.start())).collect();
        let trimmed = text.trim_end();
        let near = trimmed.len().saturating_sub(MAX_EDGE_BYTES);
        let mut starts = trimmed.char_indices().rev().map(|(at, _)| at);
        places.extend(
            starts
                .by_ref()
                .take_while(|&at| at >= near)
                .filter(|&at| begins_any(&self.texts, &trimmed[at..]))
                .map(second),
        );
        let skipped = text.len() - text.trim_start().len();
        let mut beginning = String::new();
        for (at, c) in text[skipped..].char_indices().take(MAX_EDGE_BYTES) {
            beginning.insert(0, c);
            if begins_any(&self.reversed, &beginning) {
                places.push(skipped + at);
            }
        }
        places.sort_unstable();
        places.dedup();
        places
    }
}

/// Whether one of the sorted `texts` begins with `part` and is longer.
fn begins_any(texts: &[String], part: &str) -> bool {
    let after = texts.partition_point(|text| text.as_str() <= part);
    texts.get(after).is_some_and(|text| text.starts_with(part))
}

fn insert(text: &str, places: &[usize], mark: char) -> String {
    let mut out = String::with_capacity(text.len() + places.len() * mark.len_utf8());
    let mut done = 0;
    for &place in places {
        out.push_str(&text[done..place]);
        out.push(mark);
        done = place;
    }
    out + &text[done..]
}

/// Calls `change` with every text in `value`, keys included, and puts its answer in place.
fn edit(value: &mut Value, change: &mut dyn FnMut(&str) -> Option<String>) {
    match value {
        Value::String(text) => {
            if let Some(changed) = change(text) {
                *text = changed;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| edit(item, change)),
        Value::Object(object) => {
            let changed: Map<String, Value> = std::mem::take(object)
                .into_iter()
                .map(|(key, mut item)| {
                    edit(&mut item, change);
                    (change(&key).unwrap_or(key), item)
                })
                .collect();
            *object = changed;
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// A noncharacter that occurs nowhere.
fn free_mark(values: &mut [&mut Value], others: &[&str]) -> Option<char> {
    let mut used = Vec::new();
    let mut note = |text: &str| {
        used.extend(text.chars().filter(|c| ('\u{fdd0}'..='\u{fdef}').contains(c)));
        used.sort_unstable();
        used.dedup();
    };
    others.iter().for_each(|text| note(text));
    for value in values {
        edit(value, &mut |text| {
            note(text);
            None
        });
    }
    ('\u{fdd0}'..='\u{fdef}').find(|mark| !used.contains(mark))
}

#[cfg(test)]
mod tests;
