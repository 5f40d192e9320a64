//! What can be wrong with a vocabulary, a text or a list of ids.

/// A vocabulary that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A metadata key is absent or does not have the type it needs.
    #[error(transparent)]
    Metadata(#[from] fucina_gguf::Error),
    /// The file's tokenizer is of a kind that is not implemented.
    #[error(
        "the tokenizer model `{name}` is not supported; supported: `gpt2` (byte-level BPE), `llama` \
         (SentencePiece)"
    )]
    UnsupportedModel {
        /// The value of `tokenizer.ggml.model`.
        name: String,
    },
    /// The vocabulary has no tokens.
    #[error("the vocabulary is empty")]
    EmptyVocabulary,
    /// The vocabulary is larger than ids can count.
    #[error("the vocabulary has {tokens} tokens and {bytes} bytes; the limit is 2^31 of each")]
    TooLarge {
        /// Number of tokens.
        tokens: usize,
        /// Bytes of all texts together.
        bytes: usize,
    },
    /// The type array does not have one entry for each token.
    #[error("the vocabulary has {tokens} tokens but {types} token types")]
    TypeCount {
        /// Number of tokens.
        tokens: usize,
        /// Number of types.
        types: usize,
    },
    /// A token type is not one of the format's numbers.
    #[error("token {id} has the unknown type {value}")]
    UnknownType {
        /// The token.
        id: u32,
        /// Its type.
        value: i64,
    },
    /// The scores are not one for each token.
    #[error("the vocabulary has {tokens} tokens but {scores} scores")]
    ScoreCount {
        /// Number of tokens.
        tokens: usize,
        /// Number of scores.
        scores: usize,
    },
    /// A score cannot be compared.
    #[error("the score of token {id} is not a number")]
    ScoreNotANumber {
        /// The token.
        id: u32,
    },
    /// A byte token does not say which byte it is.
    #[error("token {id} is of the type byte, but its text `{text}` is not like `<0x41>`")]
    ByteToken {
        /// The token.
        id: u32,
        /// Its text.
        text: String,
    },
    /// Two tokens that merges can make have the same text.
    #[error("tokens {first} and {second} have the same text `{text}`")]
    DuplicateToken {
        /// The lower id.
        first: u32,
        /// The higher id.
        second: u32,
        /// Their text, as the file writes it.
        text: String,
    },
    /// A merge is not two texts with a space between.
    #[error("merge {index} (`{text}`) is not two tokens separated by a space")]
    MalformedMerge {
        /// Its place in the list.
        index: usize,
        /// The entry.
        text: String,
    },
    /// A merge has a part or a result that is not in the vocabulary.
    #[error("merge {index} needs the token `{token}`, which the vocabulary lacks")]
    MergeOfUnknownToken {
        /// Its place in the list.
        index: usize,
        /// The text that is missing.
        token: String,
    },
    /// A designated token (begin, end, ...) is not in the vocabulary.
    #[error("`{key}` is {id}, but the vocabulary has {vocab_size} tokens")]
    IdOutOfRange {
        /// The key that names the token.
        key: &'static str,
        /// Its value.
        id: i64,
        /// Number of tokens.
        vocab_size: usize,
    },
    /// The special tokens cannot be made into a search automaton.
    #[error("the special tokens cannot be indexed: {detail}")]
    SpecialTokens {
        /// The cause.
        detail: String,
    },
    /// A pre-tokenizer pattern does not compile.
    #[error("the pattern of the pre-tokenizer `{name}` cannot be compiled: {detail}")]
    Pattern {
        /// The pre-tokenizer.
        name: &'static str,
        /// The cause.
        detail: String,
    },
}

/// What was odd about a vocabulary that can still be used. Ids may differ from those that the
/// model was trained with.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// The file names a pre-tokenizer that is not known.
    #[error("the pre-tokenizer `{name}` is not known; `{used}` is used and some ids may be wrong")]
    UnknownPreTokenizer {
        /// The name in the file.
        name: String,
        /// What is used in its place.
        used: &'static str,
    },
    /// The file names no pre-tokenizer.
    #[error("the file names no pre-tokenizer; `{used}` is used and some ids may be wrong")]
    NoPreTokenizer {
        /// What is used.
        used: &'static str,
    },
    /// Merges that name a token that is matched as a whole or never, so they cannot apply.
    #[error("{count} merges name control or user-defined tokens and are left out, first `{first}`")]
    MergesOfSpecialTokens {
        /// How many.
        count: usize,
        /// The first one.
        first: String,
    },
    /// Bytes that no token stands for. Text that needs one of them cannot be encoded.
    #[error("no token stands for {count} of the 256 bytes, first {first:#04x}")]
    BytesWithoutToken {
        /// How many.
        count: usize,
        /// The first one.
        first: u8,
    },
    /// The file asks for a text without repeated spaces.
    #[error("the file asks to remove extra spaces; they are kept and some ids may be wrong")]
    ExtraSpacesKept,
    /// A begin token is asked for but not named.
    #[error("the file asks for a begin token but names none; texts start without one")]
    NoBeginToken,
    /// An end token is asked for but not named.
    #[error("the file asks for an end token but names none; texts end without one")]
    NoEndToken,
    /// A designated token that is not needed is not in the vocabulary.
    #[error("`{key}` is {id}, beyond the vocabulary of {vocab_size} tokens; it is ignored")]
    IdIgnored {
        /// The key that names the token.
        key: &'static str,
        /// Its value.
        id: i64,
        /// Number of tokens.
        vocab_size: usize,
    },
}

/// A text that cannot be encoded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EncodeError {
    /// No token stands for a byte of the text.
    #[error("no token of this vocabulary stands for the byte {byte:#04x} at offset {offset}")]
    NoTokenForByte {
        /// The byte.
        byte: u8,
        /// Where in the text.
        offset: usize,
    },
    /// The text is longer than positions can count.
    #[error("the text has {len_bytes} bytes; the limit is {limit_bytes}")]
    TextTooLong {
        /// Its length.
        len_bytes: usize,
        /// The limit.
        limit_bytes: usize,
    },
    /// A begin token is demanded of a vocabulary that names none.
    #[error("this vocabulary has no begin token")]
    NoBeginToken,
}

/// Ids that cannot be decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// An id is not in the vocabulary.
    #[error("token id {id} is not in the vocabulary of {vocab_size} tokens")]
    IdOutOfRange {
        /// The id.
        id: u32,
        /// Number of tokens.
        vocab_size: usize,
    },
}
