//! Text to token ids and back, from what a GGUF file carries: byte-level BPE, and `SentencePiece`
//! vocabularies with scores.
//!
//! Encoding: literal tokens are found first (`special`). In byte-level BPE the text between is cut
//! into words (`split`), and the bytes of each word are merged by rank (`merges`). A
//! `SentencePiece` vocabulary merges the characters of the whole text between by the scores of
//! what they become (`pieces`). Time is linear in the text but for the logarithm of the longest
//! run.
//!
//! Texts are not normalized: a letter and its combining accent stay two characters, as GGUF
//! runners do it.
//!
//! # Examples
//!
//! ```
//! use fucina_llm::tokenizer::{Bos, ControlTokens, Special, Tokenizer, Vocab};
//!
//! let vocab = Vocab { tokens: vec!["a", "b", "ab"], merges: vec!["a b"], ..Vocab::default() };
//! let (tokenizer, _warnings) = Tokenizer::new(&vocab)?;
//! let ids = tokenizer.encode("abba", Special::Plain, Bos::Auto)?;
//! assert_eq!(ids, [2, 1, 0]);
//! assert_eq!(tokenizer.decode(&ids, ControlTokens::Show)?, "abba");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod alphabet;
mod build;
mod error;
mod gguf;
mod hash;
mod merges;
mod pieces;
mod special;
mod split;
mod stream;
mod vocab;

pub use error::{DecodeError, EncodeError, Error, Warning};
pub use stream::Stream;
pub use vocab::{Algorithm, TokenType, Vocab};

use merges::{Merges, Word};
use pieces::{PieceWork, Pieces};
use special::{LiteralTokens, Part};
use split::Splitter;
use vocab::{TextIndex, Tokens};

/// Whether the texts of control tokens mean the tokens when they occur in a text.
///
/// User-defined tokens are text and are found either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Special {
    /// `<|im_end|>` is the control token: for prompts that a chat template made.
    Parse,
    /// `<|im_end|>` is ten characters: for text from users and files.
    Plain,
}

/// Whether an encoded text starts with the begin token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bos {
    /// As the file says.
    Auto,
    /// Yes.
    Always,
    /// No: for text that continues another, and for templates that write the token themselves.
    Never,
}

/// What decoding does with control tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ControlTokens {
    /// Their texts appear.
    Show,
    /// They leave no trace.
    Skip,
}

/// A tokenizer.
#[derive(Debug)]
pub struct Tokenizer {
    tokens: Tokens,
    scheme: Scheme,
    all_literals: LiteralTokens,
    plain_literals: LiteralTokens,
    ids: DesignatedIds,
    /// Ascending.
    eog: Vec<u32>,
}

/// How the text between literal tokens becomes tokens.
#[derive(Debug)]
enum Scheme {
    BytePairs(BytePairs),
    Pieces(Pieces),
}

/// Byte-level BPE.
#[derive(Debug)]
struct BytePairs {
    /// Normal tokens by their bytes.
    by_bytes: TextIndex,
    /// The token of each single byte.
    byte_tokens: [Option<u32>; 256],
    merges: Merges,
    splitter: Splitter,
}

/// Working memory of one text.
#[derive(Debug, Default)]
struct Work {
    word: Word,
    pieces: PieceWork,
}

/// Tokens with a role. All are in the vocabulary.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DesignatedIds {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn.
    pub eot: Option<u32>,
    /// Ends a message.
    pub eom: Option<u32>,
    /// Fills up a batch.
    pub pad: Option<u32>,
    /// Whether [`Bos::Auto`] adds `bos`.
    pub add_bos: bool,
    /// Whether the file asks for `eos` after a whole text. [`Tokenizer::encode`] does not add it:
    /// a prompt is a beginning.
    pub add_eos: bool,
}

impl Tokenizer {
    /// The ids of `text`.
    ///
    /// # Errors
    ///
    /// Returns [`EncodeError::NoTokenForByte`] if the vocabulary cannot express a byte of the
    /// text, [`EncodeError::TextTooLong`] from 2^31 bytes on, and [`EncodeError::NoBeginToken`]
    /// for [`Bos::Always`] without such a token.
    pub fn encode(&self, text: &str, special: Special, bos: Bos) -> Result<Vec<u32>, EncodeError> {
        let literals = match special {
            Special::Parse => &self.all_literals,
            Special::Plain => &self.plain_literals,
        };
        self.encode_with(text, literals, None, bos)
    }

    /// As [`Self::encode`] with [`Special::Parse`], except that no control token lies across a
    /// `mark` or is a single character before one. Marks are not part of the text.
    pub(crate) fn encode_marked(
        &self,
        text: &str,
        mark: Option<char>,
        bos: Bos,
    ) -> Result<Vec<u32>, EncodeError> {
        self.encode_with(text, &self.all_literals, mark, bos)
    }

    fn encode_with(
        &self,
        text: &str,
        literals: &LiteralTokens,
        mark: Option<char>,
        bos: Bos,
    ) -> Result<Vec<u32>, EncodeError> {
        let limit_bytes = (1 << 31) - 1;
        if text.len() > limit_bytes {
            return Err(EncodeError::TextTooLong { len_bytes: text.len(), limit_bytes });
        }
        let mut ids = Vec::with_capacity(text.len() / 4 + 2);
        match bos {
            Bos::Never => {}
            Bos::Auto => ids.extend(self.ids.bos.filter(|_| self.ids.add_bos)),
            Bos::Always => ids.push(self.ids.bos.ok_or(EncodeError::NoBeginToken)?),
        }
        let mut work = Work::default();
        let mut after_literal = true;
        let (mut start, mut at) = (0, 0);
        for part in literals.parts(text) {
            let id = match part {
                Part::Token(id) => id,
                Part::Text(_, end) => {
                    at = end;
                    continue;
                }
            };
            let end = at + self.tokens.get(id).map_or(0, <[u8]>::len);
            if mark.is_some_and(|mark| self.is_marked(id, &text[at..], mark)) {
                at = end;
                continue;
            }
            self.encode_span(
                (&text[start..at], start),
                mark,
                &mut after_literal,
                &mut work,
                &mut ids,
            )?;
            ids.push(id);
            after_literal = true;
            (start, at) = (end, end);
        }
        self.encode_span((&text[start..], start), mark, &mut after_literal, &mut work, &mut ids)?;
        Ok(ids)
    }

    /// Whether the control token that `text` starts with is a single character before a mark.
    fn is_marked(&self, id: u32, text: &str, mark: char) -> bool {
        let mut chars = text.chars().skip(1);
        let single =
            self.tokens.get(id).map(<[u8]>::len) == text.chars().next().map(char::len_utf8);
        single && self.is_control(id) && chars.next() == Some(mark)
    }

    /// Appends the ids of a text between literal tokens, which may have marks. Behind them there
    /// may be control tokens, which are text, and user-defined ones, which are not.
    fn encode_span(
        &self,
        (text, offset): (&str, usize),
        mark: Option<char>,
        after_literal: &mut bool,
        work: &mut Work,
        ids: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        if text.is_empty() {
            return Ok(());
        }
        let Some(mark) = mark.filter(|&mark| text.contains(mark)) else {
            self.encode_part((text, offset), *after_literal, work, ids)?;
            *after_literal = false;
            return Ok(());
        };
        let text = text.replace(mark, "");
        for part in self.plain_literals.parts(&text) {
            match part {
                Part::Token(id) => ids.push(id),
                Part::Text(start, end) => {
                    let part = (&text[start..end], offset + start);
                    self.encode_part(part, *after_literal, work, ids)?;
                }
            }
            *after_literal = matches!(part, Part::Token(_));
        }
        Ok(())
    }

    /// Appends the ids of a text without literal tokens, which starts at `offset`.
    fn encode_part(
        &self,
        (text, offset): (&str, usize),
        after_literal: bool,
        work: &mut Work,
        ids: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        match &self.scheme {
            Scheme::Pieces(pieces) => {
                let work = &mut work.pieces;
                pieces.encode(&self.tokens, (text, offset), after_literal, work, ids)
            }
            Scheme::BytePairs(pairs) => {
                let mut at = offset;
                for bytes in pairs.splitter.words(text).map(str::as_bytes) {
                    pairs.encode_word(&self.tokens, (bytes, at), &mut work.word, ids)?;
                    at += bytes.len();
                }
                Ok(())
            }
        }
    }

    /// The text of `ids`, with `U+FFFD` where their bytes are not UTF-8. Shows a space that
    /// encoding [put before the text](Self::adds_space_prefix): only the caller knows whether the
    /// ids begin a text or continue one.
    ///
    /// # Errors
    ///
    /// Returns [`DecodeError::IdOutOfRange`] for an id that the vocabulary lacks.
    pub fn decode(&self, ids: &[u32], control: ControlTokens) -> Result<String, DecodeError> {
        let bytes = self.decode_bytes(ids, control)?;
        Ok(String::from_utf8(bytes)
            .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned()))
    }

    /// The bytes of `ids`, which need not be UTF-8.
    ///
    /// # Errors
    ///
    /// As [`Self::decode`].
    pub fn decode_bytes(
        &self,
        ids: &[u32],
        control: ControlTokens,
    ) -> Result<Vec<u8>, DecodeError> {
        let mut bytes = Vec::with_capacity(ids.len() * 4);
        for &id in ids {
            append_bytes(self, id, control, &mut bytes)?;
        }
        Ok(bytes)
    }

    /// A decoder for ids that arrive one at a time.
    #[must_use]
    pub const fn stream(&self, control: ControlTokens) -> Stream<'_> {
        Stream::new(self, control)
    }

    /// The bytes that a token stands for, which may be part of a character.
    ///
    /// # Errors
    ///
    /// As [`Self::decode`].
    pub fn token_bytes(&self, id: u32) -> Result<&[u8], DecodeError> {
        let vocab_size = self.vocab_size();
        self.tokens.get(id).ok_or(DecodeError::IdOutOfRange { id, vocab_size })
    }

    /// The token whose whole text is `text`, be it a literal or a normal one.
    #[must_use]
    pub fn token_id(&self, text: &str) -> Option<u32> {
        let mut parts = self.all_literals.parts(text);
        if let (Some(Part::Token(id)), None) = (parts.next(), parts.next()) {
            return Some(id);
        }
        match &self.scheme {
            Scheme::BytePairs(pairs) => pairs.find(&self.tokens, text.as_bytes()),
            Scheme::Pieces(pieces) => pieces.find(&self.tokens, text.as_bytes()),
        }
    }

    /// The type of a token; `None` for an id that the vocabulary lacks.
    #[must_use]
    pub fn token_type(&self, id: u32) -> Option<TokenType> {
        self.tokens.kind(id)
    }

    /// Whether a token steers the model and is not text. False for an unknown id.
    #[must_use]
    pub fn is_control(&self, id: u32) -> bool {
        self.tokens.kind(id).is_some_and(TokenType::is_control)
    }

    /// Whether generation ends with this token.
    #[must_use]
    pub fn is_end_of_generation(&self, id: u32) -> bool {
        self.eog.binary_search(&id).is_ok()
    }

    /// The tokens that end generation, ascending: the designated ends of text, turn and message,
    /// and literal tokens whose text is known to mean one.
    #[must_use]
    pub fn end_of_generation_ids(&self) -> &[u32] {
        &self.eog
    }

    /// The tokens with a role.
    #[must_use]
    pub const fn designated_ids(&self) -> &DesignatedIds {
        &self.ids
    }

    /// Number of tokens; ids are below it.
    #[must_use]
    pub fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    /// The name of the pre-tokenizer in use, or `none` for `SentencePiece`.
    #[must_use]
    pub const fn pre_tokenizer(&self) -> &'static str {
        match &self.scheme {
            Scheme::BytePairs(pairs) => pairs.splitter.rule().name(),
            Scheme::Pieces(_) => "none",
        }
    }

    /// Whether encoding puts a space before a text, which decoding then shows.
    #[must_use]
    pub const fn adds_space_prefix(&self) -> bool {
        match &self.scheme {
            Scheme::BytePairs(_) => false,
            Scheme::Pieces(pieces) => pieces.space_prefix,
        }
    }
}

impl BytePairs {
    /// Appends the ids of one word, which starts at `offset` in the text.
    fn encode_word(
        &self,
        tokens: &Tokens,
        (bytes, offset): (&[u8], usize),
        word: &mut Word,
        ids: &mut Vec<u32>,
    ) -> Result<(), EncodeError> {
        if self.splitter.rule().whole_words_first
            && let Some(id) = self.find(tokens, bytes)
        {
            ids.push(id);
            return Ok(());
        }
        word.ids.clear();
        for (at, &byte) in bytes.iter().enumerate() {
            let token = self.byte_tokens[usize::from(byte)];
            let missing = EncodeError::NoTokenForByte { byte, offset: offset + at };
            word.ids.push(token.ok_or(missing)?);
        }
        self.merges.apply(word, ids);
        Ok(())
    }

    /// The normal token with these bytes.
    fn find(&self, tokens: &Tokens, bytes: &[u8]) -> Option<u32> {
        self.by_bytes.find(bytes, |id| tokens.get(id).unwrap_or_default())
    }
}

/// Appends what decoding shows of `id`.
fn append_bytes(
    tokenizer: &Tokenizer,
    id: u32,
    control: ControlTokens,
    out: &mut Vec<u8>,
) -> Result<(), DecodeError> {
    let bytes = tokenizer.token_bytes(id)?;
    if control == ControlTokens::Show || !tokenizer.is_control(id) {
        out.extend_from_slice(bytes);
    }
    Ok(())
}
