//! Decoding token by token, without ever splitting a character.
//!
//! Invariant: `held` is a proper beginning of one UTF-8 sequence, at most three bytes. All that
//! was pushed is in the returned texts, then `held`. The texts joined equal the text that
//! decoding all ids at once gives.

use super::Tokenizer;
use super::error::DecodeError;
use super::{ControlTokens, append_bytes};

/// A decoder for ids that arrive one at a time.
///
/// ```
/// use fucina_llm::tokenizer::{ControlTokens, Tokenizer, Vocab};
///
/// // The two bytes of `é`, each a token of its own.
/// let (tokenizer, _) = Tokenizer::new(&Vocab { tokens: vec!["Ã", "©"], ..Vocab::default() })?;
/// let mut stream = tokenizer.stream(ControlTokens::Skip);
/// assert_eq!(stream.push(0)?, "");
/// assert_eq!(stream.push(1)?, "é");
/// assert_eq!(stream.finish(), "");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    control: ControlTokens,
    held: Vec<u8>,
    text: String,
}

impl<'a> Stream<'a> {
    pub(super) const fn new(tokenizer: &'a Tokenizer, control: ControlTokens) -> Self {
        Self { tokenizer, control, held: Vec::new(), text: String::new() }
    }

    /// Adds a token and returns the text that is complete by now, which may be empty.
    ///
    /// # Errors
    ///
    /// Returns [`DecodeError::IdOutOfRange`] for an id that the vocabulary lacks; the decoder is
    /// then as before.
    pub fn push(&mut self, id: u32) -> Result<&str, DecodeError> {
        self.text.clear();
        append_bytes(self.tokenizer, id, self.control, &mut self.held)?;
        let held = complete_text(&self.held, &mut self.text);
        self.held.drain(..self.held.len() - held);
        Ok(&self.text)
    }

    /// Ends the text: `U+FFFD` if it breaks off inside a character, else nothing.
    #[must_use]
    pub fn finish(self) -> &'static str {
        if self.held.is_empty() { "" } else { "\u{fffd}" }
    }
}

/// Appends `bytes` to `text`, with `U+FFFD` for what is not UTF-8, but for an incomplete sequence
/// at the end. Returns the length of that sequence.
fn complete_text(bytes: &[u8], text: &mut String) -> usize {
    let mut done = 0;
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        done += chunk.valid().len();
        let invalid = chunk.invalid();
        if invalid.is_empty() {
            continue;
        }
        let at_end = done + invalid.len() == bytes.len();
        if at_end && str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none()) {
            return invalid.len();
        }
        text.push('\u{fffd}');
        done += invalid.len();
    }
    0
}
