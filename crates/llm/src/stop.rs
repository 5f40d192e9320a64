//! Stop strings: where a generated text ends before the model ends it.
//!
//! Invariant: what a [`StopMatcher`] has passed on and what it holds are the text so far, and it
//! holds the longest end that begins a stop string, no more. The result does not depend on how
//! the text was cut into pieces.

use std::sync::Arc;

/// Most stop strings at once.
const MAX_STRINGS: usize = 64;

/// Longest stop string, in bytes.
const MAX_BYTES: usize = 1024;

/// A set of stop strings that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StopError {
    /// An empty one would stop before the first token.
    #[error("a stop string is empty; leave it out")]
    Empty,
    /// One is too long.
    #[error("a stop string has {bytes} bytes; the longest may have {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// There are too many.
    #[error("there are {count} stop strings; at most {limit} are possible")]
    TooMany {
        /// How many.
        count: usize,
        /// The limit.
        limit: usize,
    },
}

/// Texts that end a generation. Neither they nor what follows is part of the result.
///
/// The first one that becomes complete counts; of those that end at the same place, the longest.
///
/// ```
/// use fucina_llm::StopStrings;
///
/// let stops = StopStrings::new(["\nUser:", "###"])?;
/// let mut matcher = stops.matcher();
/// assert_eq!(matcher.push("Yes.\nUse"), ("Yes.", None));
/// assert_eq!(matcher.push(" it.\nUser: no"), ("\nUse it.", Some(0)));
/// # Ok::<(), fucina_llm::StopError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StopStrings {
    patterns: Arc<[Pattern]>,
}

/// A stop string with, for each of its prefixes, the longest proper prefix that also ends it.
#[derive(Debug, PartialEq, Eq)]
struct Pattern {
    text: String,
    fallback: Vec<usize>,
}

impl Pattern {
    fn new(text: String) -> Self {
        let bytes = text.as_bytes();
        let mut fallback = vec![0; bytes.len()];
        let mut held = 0;
        for at in 1..bytes.len() {
            while held > 0 && bytes[at] != bytes[held] {
                held = fallback[held - 1];
            }
            held += usize::from(bytes[at] == bytes[held]);
            fallback[at] = held;
        }
        Self { text, fallback }
    }

    /// How much of the pattern ends the text after `byte`, if `held` bytes did before it.
    fn step(&self, mut held: usize, byte: u8) -> usize {
        let bytes = self.text.as_bytes();
        while held > 0 && bytes[held] != byte {
            held = self.fallback[held - 1];
        }
        held + usize::from(bytes[held] == byte)
    }
}

impl StopStrings {
    /// Takes the texts.
    ///
    /// # Errors
    ///
    /// Refuses an empty text, one beyond 1024 bytes, and more than 64 of them.
    pub fn new<I>(texts: I) -> Result<Self, StopError>
    where
        I: IntoIterator<Item: Into<String>>,
    {
        let mut patterns: Vec<Pattern> = Vec::new();
        for text in texts {
            let text: String = text.into();
            if text.is_empty() {
                return Err(StopError::Empty);
            }
            if text.len() > MAX_BYTES {
                return Err(StopError::TooLong { bytes: text.len(), limit: MAX_BYTES });
            }
            patterns.push(Pattern::new(text));
            if patterns.len() > MAX_STRINGS {
                return Err(StopError::TooMany { count: patterns.len(), limit: MAX_STRINGS });
            }
        }
        Ok(Self { patterns: patterns.into() })
    }

    /// The texts, in the order given.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &str> {
        self.patterns.iter().map(|pattern| &*pattern.text)
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// A matcher at the start of a text.
    #[must_use]
    pub fn matcher(&self) -> StopMatcher {
        StopMatcher {
            patterns: Arc::clone(&self.patterns),
            held: vec![0; self.patterns.len()],
            text: String::new(),
            passed: 0,
            stopped: None,
        }
    }
}

/// Looks for stop strings in a text that arrives in pieces.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    patterns: Arc<[Pattern]>,
    /// For each pattern, how many of its bytes end the text.
    held: Vec<usize>,
    /// What the last call passed on, then what is held back.
    text: String,
    /// Length of the first part.
    passed: usize,
    stopped: Option<usize>,
}

impl StopMatcher {
    /// Adds a piece. Returns the text that can be passed on, which may be empty, and the index of
    /// the stop string that is complete now. After one, every call returns nothing more.
    pub fn push(&mut self, piece: &str) -> (&str, Option<usize>) {
        self.text.drain(..self.passed);
        self.passed = 0;
        if self.stopped.is_some() {
            return ("", self.stopped);
        }
        for (at, &byte) in piece.as_bytes().iter().enumerate() {
            if let Some(index) = self.step(byte) {
                self.text.push_str(&piece[..=at]);
                let len = self.text.len() - self.patterns[index].text.len();
                self.text.truncate(len);
                self.passed = len;
                self.stopped = Some(index);
                return (&self.text, self.stopped);
            }
        }
        self.text.push_str(piece);
        self.passed = self.text.len() - self.held.iter().max().copied().unwrap_or(0);
        (&self.text[..self.passed], None)
    }

    /// Ends the text: what was held back for a stop string that did not come.
    #[must_use]
    pub fn finish(mut self) -> String {
        self.text.split_off(self.passed)
    }

    /// Advances every pattern. Returns the longest that is complete.
    fn step(&mut self, byte: u8) -> Option<usize> {
        let mut complete: Option<usize> = None;
        for (index, (pattern, held)) in self.patterns.iter().zip(&mut self.held).enumerate() {
            *held = pattern.step(*held, byte);
            if *held == pattern.text.len() {
                let len = |index: usize| self.patterns[index].text.len();
                complete = complete.filter(|&best| len(best) >= *held).or(Some(index));
            }
        }
        complete
    }
}

#[cfg(test)]
mod tests;
