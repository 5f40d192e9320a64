//! Internal to Fucina; the `fucina` crate is its public face. Language models on eager tensors.
//!
//! A [`Model`] comes from a GGUF file alone: network, weights and tokenizer. A [`Session`] holds
//! the keys and values of one text. [`generate()`] runs a prompt and samples.
//!
//! Not here: ops and where they run (the runtime), and the file format (the gguf crate).

#![forbid(unsafe_code)]

pub mod chat;
mod error;
mod generate;
mod loader;
mod model;
mod models;
mod pack;
mod perplexity;
pub mod sampler;
mod saved;
mod stop;
pub mod tokenizer;

pub use error::{Error, Result, Stage};
pub use generate::{Event, GenerateOptions, Generated, Stop, generate};
pub use loader::Memory;
pub use model::{
    DEFAULT_CONTEXT, LoadOptions, Model, ModelInfo, Session, SessionOptions, WeightPlace,
    architectures,
};
pub use pack::{Pack, PackPlan, is_table};
pub use perplexity::{Against, Mean, Perplexity, PerplexityOptions, perplexity};
pub use saved::SavedError;
pub use stop::{StopError, StopMatcher, StopStrings};
