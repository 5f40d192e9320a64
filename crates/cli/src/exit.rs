//! Exit codes, and which failure has which. `docs/cli.md` promises them.

use std::fmt;
use std::io;
use std::process::ExitCode;

use fucina::llm::chat::TemplateError;
use fucina::{ConfigError, gguf, llm};

use crate::output;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what was asked, or the reader of its output had enough.
    Ok = 0,
    /// Something failed that is not listed below.
    Failed = 1,
    /// A flag, an argument or an environment variable is wrong.
    Usage = 2,
    /// The model is missing, unreadable, damaged or of an unsupported kind.
    Model = 3,
    /// The prompt cannot be used.
    Input = 4,
    /// A signal stopped it.
    Interrupted = 130,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// A failure of the command itself, with its code.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::Usage, message)
    }

    pub(crate) fn input(message: impl Into<String>) -> Self {
        Self::new(Exit::Input, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

/// Prints the sentence of an error and returns the code.
pub(crate) fn report(result: anyhow::Result<Exit>) -> Exit {
    match result {
        Ok(exit) => exit,
        Err(error) => match code(&error) {
            // Whoever read the output has closed it: nobody is there to be told.
            None => Exit::Ok,
            Some(exit) => {
                output::error(&format!("{error:#}"));
                exit
            }
        },
    }
}

/// The code of an error. `None` if standard output was closed.
fn code(error: &anyhow::Error) -> Option<Exit> {
    // A failure may also stand as the context of another error.
    if let Some(failure) = error.downcast_ref::<Failure>() {
        return Some(failure.exit);
    }
    for cause in error.chain() {
        if let Some(failure) = cause.downcast_ref::<Failure>() {
            return Some(failure.exit);
        }
        if let Some(error) = cause.downcast_ref::<llm::Error>() {
            return Some(llm_code(error));
        }
        if cause.is::<gguf::Error>() {
            return Some(Exit::Model);
        }
        if cause.is::<ConfigError>() {
            return Some(Exit::Usage);
        }
        if cause.is::<llm::tokenizer::EncodeError>() {
            return Some(Exit::Input);
        }
        if let Some(error) = cause.downcast_ref::<fucina_hub::Error>() {
            return Some(hub_code(error));
        }
        let closed = |error: &io::Error| error.kind() == io::ErrorKind::BrokenPipe;
        if cause.downcast_ref::<io::Error>().is_some_and(closed) {
            return None;
        }
    }
    Some(Exit::Failed)
}

fn llm_code(error: &llm::Error) -> Exit {
    match error {
        llm::Error::File(_)
        | llm::Error::Architecture { .. }
        | llm::Error::Metadata { .. }
        | llm::Error::TensorShape { .. }
        | llm::Error::TensorType { .. }
        | llm::Error::Vocabulary { .. }
        | llm::Error::OtherVocabulary { .. }
        | llm::Error::Tokenizer(_)
        | llm::Error::NoChatTemplate => Exit::Model,
        llm::Error::Saved(llm::SavedError::Io { .. }) => Exit::Failed,
        // The file has the template, the user the conversation.
        llm::Error::Template(TemplateError::Syntax { .. } | TemplateError::TooLong { .. }) => {
            Exit::Model
        }
        llm::Error::Template(TemplateError::Resources { .. }) => Exit::Failed,
        llm::Error::Template(_)
        | llm::Error::Encode(_)
        | llm::Error::EmptyPrompt
        | llm::Error::PromptTooLong { .. }
        | llm::Error::TextTooShort { .. }
        | llm::Error::Saved(_) => Exit::Input,
        llm::Error::Context { .. } | llm::Error::Tensor(fucina::Error::CacheHead { .. }) => {
            Exit::Usage
        }
        _ => Exit::Failed,
    }
}

const fn hub_code(error: &fucina_hub::Error) -> Exit {
    use fucina_hub::Error as Hub;
    match error {
        Hub::Name { .. }
        | Hub::Unknown { .. }
        | Hub::Ambiguous { .. }
        | Hub::Choices { .. }
        | Hub::Variable { .. }
        | Hub::NoFolder => Exit::Usage,
        _ => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code_of(error: impl Into<anyhow::Error>) -> Option<Exit> {
        code(&error.into().context("outer"))
    }

    #[test]
    fn every_kind_of_failure_has_its_code_through_any_context() {
        let long = llm::Error::PromptTooLong { prompt: 9, held: 0, context: 4 };
        assert_eq!(code_of(Failure::usage("x")), Some(Exit::Usage));
        assert_eq!(code_of(long), Some(Exit::Input));
        let context = anyhow::Error::from(io::Error::other("x")).context(Failure::input("y"));
        assert_eq!(code(&context), Some(Exit::Input));
        let template = |error| code_of(llm::Error::Template(error));
        let detail = || "d".to_owned();
        assert_eq!(template(TemplateError::Resources { detail: detail() }), Some(Exit::Failed));
        let (line, detail) = (1, detail());
        assert_eq!(template(TemplateError::Syntax { line, detail }), Some(Exit::Model));
        assert_eq!(code_of(llm::Error::Context { wanted: 9, limit: 4 }), Some(Exit::Usage));
        assert_eq!(code_of(llm::Error::Architecture { found: "x".into() }), Some(Exit::Model));
        assert_eq!(code_of(gguf::Error::NotAFile { file: "x".into() }), Some(Exit::Model));
        assert_eq!(code_of(fucina_hub::Error::NoFolder), Some(Exit::Usage));
        let offline = fucina_hub::Error::Network { host: "h".into(), reason: "r".into() };
        assert_eq!(code_of(offline), Some(Exit::Failed));
        assert_eq!(code_of(io::Error::other("disk full")), Some(Exit::Failed));
        assert_eq!(code_of(io::Error::from(io::ErrorKind::BrokenPipe)), None);
    }
}
