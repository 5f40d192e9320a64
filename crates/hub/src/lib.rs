//! Models by name: a small catalogue, the Hugging Face hub, the package index, and the folder that
//! holds what was fetched.
//!
//! A download goes on where it broke off, is compared with its SHA-256 as it comes, and has its
//! name only when it is complete. Nothing here knows tensors or terminals: progress is an
//! [`Event`], and whether a licence is accepted is the caller's question.
//!
//! ```no_run
//! use fucina_hub::{Config, Plan, Reference};
//!
//! let config = Config::from_env()?;
//! let plan = Plan::of(&Reference::parse("qwen2.5-coder-0.5b")?, &config)?;
//! println!("{}: {}", plan.name, plan.licence.name);
//! let pulled = plan.pull(&config, &mut |_| {})?;
//! println!("{}", pulled.path.display());
//! # Ok::<(), fucina_hub::Error>(())
//! ```
//!
//! Internal: moves in lockstep with the other crates.

#![forbid(unsafe_code)]

pub mod catalogue;
mod config;
mod digest;
mod error;
mod fetch;
mod files;
mod http;
mod index;
mod licence;
mod name;
mod part;
mod pull;
mod repo;
mod space;
mod store;
mod wheel;

pub use config::{Config, DEFAULT_ENDPOINT, Token};
pub use digest::Sha256;
pub use error::Error;
pub use licence::Licence;
pub use name::Reference;
pub use pull::{Event, Plan, PlannedFile, Pulled};
pub use space::free_bytes;
pub use store::{Contents, Leftover, Record, Store, Stored};
