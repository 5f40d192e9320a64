//! What can be wrong with PTX text.

/// PTX text that cannot be turned into a program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {what}")]
#[non_exhaustive]
pub struct ParseError {
    /// Line of the text, from 1.
    pub line: u32,
    /// What is wrong, with the name it is wrong about.
    pub what: String,
}

impl ParseError {
    pub(crate) fn new(line: u32, what: impl Into<String>) -> Self {
        Self { line, what: what.into() }
    }
}
