//! Eager tensors in which accelerators are callable, and language models from GGUF files.
//!
//! An op that is worth offloading is submitted when it is called; its result is an ordinary
//! tensor, and the host waits only where it reads the bytes. There is no graph.
//!
//! ```no_run
//! use std::ops::ControlFlow;
//! use fucina::llm::{Event, GenerateOptions, Model, SessionOptions, generate,
//!     sampler::{Sampler, SamplerConfig}, tokenizer::{Bos, Special}};
//!
//! let rt = fucina::runtime()?;
//! let file = fucina::gguf::File::open("model.gguf")?;
//! let model = Model::load(&rt, &file, &|_, _| ())?;
//! let prompt = model.tokenizer().encode("Once upon a time", Special::Plain, Bos::Auto)?;
//! let mut session = model.session(&SessionOptions::default())?;
//! let mut sampler = Sampler::new(SamplerConfig::default())?;
//! let options = GenerateOptions::default().max_tokens(Some(64));
//! generate(&mut session, &prompt, &mut sampler, &options, &mut |event| {
//!     if let Event::Token { text, .. } = event {
//!         print!("{text}");
//!     }
//!     ControlFlow::Continue(())
//! })?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![forbid(unsafe_code)]

mod providers;

/// The examples of the README, compiled and run.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
pub struct Readme;

/// Write an accelerator: storage, fences, the provider trait.
pub use fucina_accel as accel;
/// Read and write GGUF files.
pub use fucina_gguf as gguf;
/// Language models.
pub use fucina_llm as llm;
pub use fucina_runtime::*;
pub use providers::{Found, FoundDevice, default_devices, default_providers};

/// A runtime with the knobs of the environment and every accelerator of this machine.
///
/// # Errors
///
/// Fails if a variable holds a value that it does not take.
pub fn runtime() -> std::result::Result<Runtime, ConfigError> {
    let config = Config::from_env()?;
    default_providers(&config)?
        .into_iter()
        .filter_map(|found| found.provider.ok())
        .fold(Runtime::builder().config(config), |builder, provider| builder.provider(provider))
        .build()
}
