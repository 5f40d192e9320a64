//! Chat templates: Jinja, with what templates of published models expect around it.
//!
//! A template comes with a file and may be hostile. Its work is bounded: the size of the source,
//! the depth of nesting and recursion, and a budget ("fuel") of steps and bytes that grows with
//! the conversation only.

mod environment;
mod guards;
mod json;
mod methods;
mod ops;
mod program;
mod repr;
mod time;
mod value;

use std::time::SystemTime;

use fucina_gguf::Metadata;
use minijinja::Environment;
use serde_json::{Map, Value};

use super::message::Message;
use crate::tokenizer::{ControlTokens, Tokenizer};

/// Longest source of a template. The longest published ones have 30 KB.
const MAX_SOURCE_BYTES: usize = 128 << 10;

/// The key of a file's template.
pub(crate) const KEY: &str = "tokenizer.chat_template";

/// The template, to the engine.
const NAME: &str = "chat template";

/// A template is damaged, or a conversation cannot be rendered with it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TemplateError {
    /// The source is not a template.
    #[error("line {line} of the chat template: {detail}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        detail: String,
    },
    /// Something that the template does is not possible with this conversation.
    #[error("line {line} of the chat template failed: {detail}")]
    Render {
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        detail: String,
    },
    /// The template itself refuses the conversation.
    #[error("the chat template refuses the conversation: {message}")]
    Refused {
        /// Line, from 1.
        line: usize,
        /// What it says.
        message: String,
    },
    /// The template does not end, or makes too much text.
    #[error(
        "line {line} of the chat template goes beyond the limit of {fuel} steps; the template is \
         damaged, or the conversation is far too long"
    )]
    Limit {
        /// Line, from 1.
        line: usize,
        /// The limit: steps, or 64 bytes each.
        fuel: u64,
    },
    /// The source is too long.
    #[error("the chat template has {bytes} bytes; the longest may have {limit}")]
    TooLong {
        /// Its length.
        bytes: usize,
        /// The limit.
        limit: usize,
    },
    /// The system gives no thread to compile with.
    #[error("the chat template could not be compiled: {detail}")]
    Resources {
        /// What it says.
        detail: String,
    },
    /// A message holds what looks like a control token, and every character that could mark it.
    #[error("a message contains all of the noncharacters U+FDD0 to U+FDEF; take them out")]
    NoMark,
    /// Tool arguments or tools are nested too deeply.
    #[error("a value of the conversation is nested deeper than {limit} levels")]
    TooDeep {
        /// The limit.
        limit: usize,
    },
}

/// Texts of tokens that templates know by name. Empty where the vocabulary has none.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct SpecialTexts {
    /// `bos_token`.
    pub bos: String,
    /// `eos_token`.
    pub eos: String,
}

impl SpecialTexts {
    /// The texts given.
    #[must_use]
    pub fn new(bos: impl Into<String>, eos: impl Into<String>) -> Self {
        Self { bos: bos.into(), eos: eos.into() }
    }

    /// The texts of a vocabulary.
    #[must_use]
    pub fn of(tokenizer: &Tokenizer) -> Self {
        let ids = tokenizer.designated_ids();
        let text = |id: Option<u32>| {
            let text = id.and_then(|id| tokenizer.decode(&[id], ControlTokens::Show).ok());
            text.unwrap_or_default()
        };
        Self { bos: text(ids.bos), eos: text(ids.eos) }
    }
}

/// What a conversation is rendered with, beside its messages.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct RenderOptions {
    /// Tools that the model may call, as JSON schemas in the form that its template expects.
    pub tools: Vec<Value>,
    /// Ends with what makes the model answer.
    pub add_generation_prompt: bool,
    /// Whether the model is to think first; `None` leaves it to the template.
    pub enable_thinking: Option<bool>,
    /// The time that the template sees, in UTC; `None` for the present.
    pub now: Option<SystemTime>,
    /// More variables.
    pub extra: Map<String, Value>,
}

impl Default for RenderOptions {
    fn default() -> Self {
        Self {
            tools: Vec::new(),
            add_generation_prompt: true,
            enable_thinking: None,
            now: None,
            extra: Map::new(),
        }
    }
}

/// A compiled chat template.
///
/// ```
/// use fucina_llm::chat::{ChatTemplate, Message, RenderOptions, SpecialTexts};
///
/// let source = "{% for m in messages %}{{ m.role }}: {{ m.content | trim }}\n{% endfor %}";
/// let template = ChatTemplate::new(source, SpecialTexts::default())?;
/// let text = template.render(&[Message::user(" Hello! ")], &RenderOptions::default())?;
/// assert_eq!(text, "user: Hello!\n");
/// # Ok::<(), fucina_llm::chat::TemplateError>(())
/// ```
pub struct ChatTemplate {
    env: Environment<'static>,
    specials: SpecialTexts,
    source: String,
    /// What the engine is given.
    normalized: String,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { specials, source, .. } = self;
        f.debug_struct("ChatTemplate")
            .field("specials", specials)
            .field("source", source)
            .finish_non_exhaustive()
    }
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    ///
    /// Fails if the source is no template, or is too long.
    pub fn new(source: &str, specials: SpecialTexts) -> Result<Self, TemplateError> {
        if source.len() > MAX_SOURCE_BYTES {
            let (bytes, limit) = (source.len(), MAX_SOURCE_BYTES);
            return Err(TemplateError::TooLong { bytes, limit });
        }
        let normalized = environment::normalized(source);
        environment::check(&normalized)?;
        let env = environment::environment();
        Ok(Self { env, specials, source: source.to_owned(), normalized })
    }

    /// The template that a file carries; `None` if it has none.
    ///
    /// # Errors
    ///
    /// As [`Self::new`], and if the key has another type.
    pub fn from_gguf(metadata: &Metadata, tokenizer: &Tokenizer) -> crate::Result<Option<Self>> {
        let Some(source) = metadata.str_opt(KEY)? else { return Ok(None) };
        Ok(Some(Self::new(source, SpecialTexts::of(tokenizer))?))
    }

    /// The source.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template looks at [`RenderOptions::enable_thinking`].
    #[must_use]
    pub fn supports_thinking(&self) -> bool {
        self.source.contains("enable_thinking")
    }

    /// Whether the template looks at [`RenderOptions::tools`].
    #[must_use]
    pub fn supports_tools(&self) -> bool {
        self.source.contains("tools")
    }

    /// The text of a conversation.
    ///
    /// # Errors
    ///
    /// Returns [`TemplateError::Refused`] if the template says that it does not take such a
    /// conversation, and other errors if it is damaged.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
    ) -> Result<String, TemplateError> {
        let messages: Vec<Value> = messages.iter().map(Message::to_json).collect();
        self.render_json(&messages, options)
    }

    /// As [`render`](Self::render), for messages that are objects of a form that the template
    /// knows.
    ///
    /// # Errors
    ///
    /// As there.
    pub fn render_json(
        &self,
        messages: &[Value],
        options: &RenderOptions,
    ) -> Result<String, TemplateError> {
        let context = value::Context::new(messages, &self.specials, options)?;
        environment::render(&self.env, &self.normalized, context)
    }
}

impl TemplateError {
    /// What the engine reports.
    fn from_engine(error: &minijinja::Error, fuel: u64) -> Self {
        let line = error.line().unwrap_or(1);
        let detail = || match error.detail() {
            Some(detail) => printable(&format!("{}: {detail}", error.kind())),
            None => error.kind().to_string(),
        };
        let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
        while let Some(inner) = source {
            if let Some(refusal) = inner.downcast_ref::<environment::Refusal>() {
                return Self::Refused { line, message: printable(&refusal.0) };
            }
            source = inner.source();
        }
        match error.kind() {
            minijinja::ErrorKind::OutOfFuel => Self::Limit { line, fuel },
            minijinja::ErrorKind::SyntaxError => Self::Syntax { line, detail: detail() },
            _ => Self::Render { line, detail: detail() },
        }
    }
}

/// What a template says, for a terminal: not too long, and without control characters.
fn printable(text: &str) -> String {
    const MOST: usize = 1000;
    let clean = |c: char| if c.is_control() && c != '\n' { char::REPLACEMENT_CHARACTER } else { c };
    let mut out: String = text.chars().take(MOST).map(clean).collect();
    if text.chars().nth(MOST).is_some() {
        out.push('…');
    }
    out
}

#[cfg(test)]
mod tests;
