//! What a tokenizer is made from, and the compact form in which it keeps the tokens.
//!
//! Invariant: every token's bytes lie in one arena; `ends` is ascending and has one entry for
//! each id. Nothing here knows about merges or text.

use std::hash::{BuildHasher, Hasher};

use super::alphabet;
use super::error::Error;
use super::hash::SeededState;

/// What kind of token an id stands for (`tokenizer.ggml.token_type`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum TokenType {
    /// The file does not say; treated as [`Self::Normal`].
    Undefined,
    /// A byte string that merges make.
    Normal,
    /// The token for unknown input; matched like a control token.
    Unknown,
    /// Steers the model and is not text: turn markers, end of text.
    Control,
    /// Text that is always matched as a whole, before any merge.
    UserDefined,
    /// Fills a gap in the numbering.
    Unused,
    /// A single byte.
    Byte,
}

impl TokenType {
    /// The type with the number `value` in a file.
    ///
    /// # Errors
    ///
    /// Returns [`Error::UnknownType`] for a number that the format does not define.
    pub fn from_number(id: u32, value: i64) -> Result<Self, Error> {
        Ok(match value {
            0 => Self::Undefined,
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => return Err(Error::UnknownType { id, value }),
        })
    }

    /// Whether the token is matched as a literal text and never made by merges.
    pub(super) const fn is_literal(self) -> bool {
        matches!(self, Self::Unknown | Self::Control | Self::UserDefined)
    }

    /// Whether the token steers the model and is not text.
    pub(super) const fn is_control(self) -> bool {
        matches!(self, Self::Unknown | Self::Control)
    }
}

/// How text becomes tokens (`tokenizer.ggml.model`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Algorithm {
    /// Byte-level BPE (`gpt2`): words are cut out first, and a list of merges says what becomes
    /// one.
    #[default]
    ByteLevelBpe,
    /// `SentencePiece` BPE (`llama`): tokens have scores, and the neighbours whose token has the
    /// highest become one.
    SentencePiece,
}

/// A vocabulary as plain data, borrowed from wherever it was read.
///
/// Texts are as a GGUF file writes them. For byte-level BPE that is the byte alphabet of GPT-2, and
/// literally for control and user-defined tokens. For `SentencePiece` a space is `U+2581`, and a
/// byte token is `<0x41>`.
#[derive(Debug, Clone, Default)]
pub struct Vocab<'a> {
    /// How text becomes tokens.
    pub algorithm: Algorithm,
    /// The text of each id.
    pub tokens: Vec<&'a str>,
    /// The type of each id; empty if every token is normal.
    pub types: Vec<TokenType>,
    /// The score of each id; the higher goes first. Only for `SentencePiece`.
    pub scores: Vec<f32>,
    /// Pairs of tokens, separated by a space, that become one; the best first. Only for
    /// byte-level BPE.
    pub merges: Vec<&'a str>,
    /// The name of the rule that splits text into words (`tokenizer.ggml.pre`). Only for
    /// byte-level BPE.
    pub pre: Option<&'a str>,
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
    /// Whether a text starts with `bos`; `None` leaves it to the pre-tokenizer's family, and means
    /// yes for `SentencePiece`.
    pub add_bos: Option<bool>,
    /// Whether a whole text ends with `eos`.
    pub add_eos: bool,
    /// Whether a space is put before a text that begins, or that follows a literal token; `None`
    /// means yes. Only for `SentencePiece`.
    pub add_space_prefix: Option<bool>,
}

/// How `SentencePiece` vocabularies write the space.
pub(super) const SPACE: char = '\u{2581}';

/// The byte of a text such as `<0x41>`.
fn byte_of(text: &str) -> Option<u8> {
    let digits = text.strip_prefix("<0x")?.strip_suffix('>')?;
    let plain = digits.len() == 2 && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    plain.then(|| u8::from_str_radix(digits, 16).ok())?
}

/// The bytes and types of all tokens.
#[derive(Debug)]
pub(super) struct Tokens {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    types: Vec<TokenType>,
}

impl Tokens {
    /// Translates the texts of `vocab` to bytes.
    ///
    /// In byte-level BPE, a text of a normal token with a character outside the alphabet stands for
    /// itself.
    pub(super) fn new(vocab: &Vocab<'_>) -> Result<Self, Error> {
        let tokens = vocab.tokens.len();
        if tokens == 0 {
            return Err(Error::EmptyVocabulary);
        }
        if !vocab.types.is_empty() && vocab.types.len() != tokens {
            return Err(Error::TypeCount { tokens, types: vocab.types.len() });
        }
        let total: usize = vocab.tokens.iter().map(|text| text.len()).sum();
        let limit = 1 << 31;
        if tokens >= limit || total >= limit {
            return Err(Error::TooLarge { tokens, bytes: total });
        }
        let types = if vocab.types.is_empty() {
            vec![TokenType::Normal; tokens]
        } else {
            vocab.types.clone()
        };
        let mut bytes = Vec::with_capacity(total);
        let mut ends = Vec::with_capacity(tokens);
        for ((text, &kind), id) in vocab.tokens.iter().zip(&types).zip(0u32..) {
            match vocab.algorithm {
                Algorithm::ByteLevelBpe => {
                    if kind.is_literal() || !alphabet::decode_into(text, &mut bytes) {
                        bytes.extend_from_slice(text.as_bytes());
                    }
                }
                Algorithm::SentencePiece if kind == TokenType::Byte => {
                    let wrong = || Error::ByteToken { id, text: (*text).to_owned() };
                    bytes.push(byte_of(text).ok_or_else(wrong)?);
                }
                Algorithm::SentencePiece if kind.is_control() => {
                    bytes.extend_from_slice(text.as_bytes());
                }
                Algorithm::SentencePiece => {
                    bytes.extend_from_slice(text.replace(SPACE, " ").as_bytes());
                }
            }
            ends.push(u32::try_from(bytes.len()).expect("the total is below 2^31"));
        }
        bytes.shrink_to_fit();
        Ok(Self { bytes, ends, types })
    }

    /// Number of tokens.
    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The bytes of `id`, if it is in the vocabulary.
    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let index = id as usize;
        let end = *self.ends.get(index)? as usize;
        let start = if index == 0 { 0 } else { self.ends[index - 1] as usize };
        Some(&self.bytes[start..end])
    }

    /// The type of `id`, if it is in the vocabulary.
    pub(super) fn kind(&self, id: u32) -> Option<TokenType> {
        self.types.get(id as usize).copied()
    }

    /// All tokens in order of id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u32, &[u8], TokenType)> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).zip(&self.types).zip(0u32..).map(|(((&start, &end), &kind), id)| {
            (id, &self.bytes[start as usize..end as usize], kind)
        })
    }
}

/// Finds ids by text: open addressing over ids, so the texts are not kept twice.
#[derive(Debug)]
pub(super) struct TextIndex {
    /// `id + 1`, or 0 for a free slot. The length is a power of two, at most half full.
    slots: Vec<u32>,
    hasher: SeededState,
}

impl TextIndex {
    /// An index with room for `len` ids.
    pub(super) fn with_capacity(len: usize) -> Self {
        let slots = (2 * len.max(1)).next_power_of_two();
        Self { slots: vec![0; slots], hasher: SeededState::new() }
    }

    /// Adds `id` with the text `key`, unless an id with that text is there: then returns it.
    pub(super) fn insert<'t>(
        &mut self,
        id: u32,
        key: &[u8],
        text_of: impl Fn(u32) -> &'t [u8],
    ) -> Option<u32> {
        let slot = self.slot(key, text_of);
        if let Some(first) = self.slots[slot].checked_sub(1) {
            return Some(first);
        }
        self.slots[slot] = id + 1;
        None
    }

    /// The id with the text `key`.
    pub(super) fn find<'t>(&self, key: &[u8], text_of: impl Fn(u32) -> &'t [u8]) -> Option<u32> {
        self.slots[self.slot(key, text_of)].checked_sub(1)
    }

    /// The slot that holds `key` or, if none does, the free one where it belongs.
    fn slot<'t>(&self, key: &[u8], text_of: impl Fn(u32) -> &'t [u8]) -> usize {
        let mask = self.slots.len() - 1;
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key);
        #[expect(clippy::cast_possible_truncation, reason = "a hash; only its low bits are used")]
        let mut slot = hasher.finish() as usize & mask;
        while let Some(id) = self.slots[slot].checked_sub(1) {
            if text_of(id) == key {
                break;
            }
            slot = (slot + 1) & mask;
        }
        slot
    }
}
