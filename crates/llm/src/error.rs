//! What can go wrong between a file and a text.

use fucina_runtime as runtime;

use crate::chat::TemplateError;
use crate::sampler::SampleError;
use crate::saved::SavedError;
use crate::tokenizer;

/// Shorthand for a result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A part of a model, in the order in which they run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The look-up of the tokens.
    Embedding,
    /// A layer, the first being 0, as in the names of its tensors.
    Layer(usize),
    /// The last norm and the product with the vocabulary.
    Output,
}

impl std::fmt::Display for Stage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Embedding => f.write_str("the embedding"),
            Self::Layer(layer) => write!(f, "layer {layer}"),
            Self::Output => f.write_str("the output"),
        }
    }
}

/// A model could not be loaded or run.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file is damaged or lacks something.
    #[error(transparent)]
    File(#[from] fucina_gguf::Error),
    /// No family of this name.
    #[error(
        "the architecture `{found}` is not supported; supported are {}",
        crate::model::architectures().collect::<Vec<_>>().join(", ")
    )]
    Architecture {
        /// The value of `general.architecture`.
        found: String,
    },
    /// A metadata value makes no sense.
    #[error("the key `{key}` is {value}: {why}")]
    Metadata {
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// A tensor has another shape than the metadata say.
    #[error("the tensor `{name}` has the shape {found:?}; the metadata ask for {expected:?}")]
    TensorShape {
        /// The tensor.
        name: String,
        /// Shape by the metadata, row-major.
        expected: Vec<usize>,
        /// Shape in the file, row-major.
        found: Vec<usize>,
    },
    /// A tensor that is used as a vector of f32 has another type.
    #[error("the tensor `{name}` is {found}; f32, f16 or bf16 expected")]
    TensorType {
        /// The tensor.
        name: String,
        /// Its type.
        found: &'static str,
    },
    /// The vocabulary does not fit the embedding.
    #[error("the vocabulary has {tokens} tokens, but the embedding has only {rows} rows")]
    Vocabulary {
        /// Tokens of the tokenizer.
        tokens: usize,
        /// Rows of the embedding.
        rows: usize,
    },
    /// The tokenizer cannot be built.
    #[error(transparent)]
    Tokenizer(#[from] tokenizer::Error),
    /// A text cannot be encoded.
    #[error(transparent)]
    Encode(#[from] tokenizer::EncodeError),
    /// An id cannot be decoded.
    #[error(transparent)]
    Decode(#[from] tokenizer::DecodeError),
    /// There is nothing to continue.
    #[error("the prompt has no tokens; give some text")]
    EmptyPrompt,
    /// The prompt does not fit the context.
    #[error(
        "the prompt has {prompt} tokens and {held} are held, but the context has room for \
         {context}; shorten the prompt or raise the context size"
    )]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens already in the context.
        held: usize,
        /// Size of the context.
        context: usize,
    },
    /// A context size that the model was not made for.
    #[error("a context of {wanted} tokens is not possible; the model takes 1 to {limit}")]
    Context {
        /// Size asked for.
        wanted: usize,
        /// Largest size.
        limit: usize,
    },
    /// A saved session cannot be used.
    #[error(transparent)]
    Saved(#[from] SavedError),
    /// A text to be scored is shorter than a chunk of it.
    #[error(
        "the text has {tokens} tokens, and one chunk has {needed}; give a longer text or lower \
         the context size"
    )]
    TextTooShort {
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a chunk.
        needed: usize,
    },
    /// Two models that are compared have other vocabularies.
    #[error("the models have other vocabularies: {expected} and {found} tokens")]
    OtherVocabulary {
        /// Tokens of the first.
        expected: usize,
        /// Tokens of the second.
        found: usize,
    },
    /// The arithmetic went wrong: a value is NaN or infinite.
    #[error(
        "the values after {stage} are not finite: the model's weights are damaged or too large; \
         look at them with `fucina inspect --check`"
    )]
    NotFinite {
        /// The first part of the model whose values are not finite.
        stage: Stage,
    },
    /// The logits cannot be sampled from.
    #[error(transparent)]
    Sample(#[from] SampleError),
    /// The chat template is damaged, or refuses the conversation.
    #[error(transparent)]
    Template(#[from] TemplateError),
    /// No template, and the vocabulary is of no known family.
    #[error("the file has no chat template; give one with --chat-template FILE")]
    NoChatTemplate,
    /// A tensor op failed.
    #[error(transparent)]
    Tensor(#[from] runtime::Error),
}
