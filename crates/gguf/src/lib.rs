//! GGUF files, read and written, every bound checked.
//!
//! GGUF is the file format in which language models travel: typed metadata, tensor descriptions,
//! and the tensors' bytes. This crate reads and writes versions 2 and 3, including models that are
//! split over several files. It knows bytes and [`DType`](fucina_dtype::DType)s, and no tensor
//! library.
//!
//! A file is outside input: whatever it contains, [`File`] returns an [`Error`] that names the key
//! or tensor, and does not panic, and does not reserve memory for counts that the file cannot
//! hold. Tensor data is a zero-copy slice of the mapped file.
//!
//! ```
//! use fucina_dtype::DType;
//! use fucina_gguf::{File, Writer};
//!
//! let mut writer = Writer::new();
//! writer.set("general.name", "tiny")?;
//! writer.tensor("w", DType::F32, &[2], vec![0, 0, 128, 63, 0, 0, 0, 64])?;
//! let file = File::from_bytes(writer.to_bytes()?)?;
//!
//! assert_eq!(file.metadata().str("general.name")?, "tiny");
//! let data = file.tensor_data(file.tensor("w")?)?;
//! assert_eq!(data[..4], 1.0_f32.to_le_bytes());
//! # Ok::<(), fucina_gguf::Error>(())
//! ```
//!
//! Public, with a stable interface.

#![deny(unsafe_code)]

mod cursor;
mod encode;
mod error;
mod file;
mod ggml;
mod header;
mod map;
mod metadata;
mod sink;
mod split;
mod strings;
mod tensors;
mod value;
mod write;

pub use error::Error;
pub use file::File;
pub use map::{Access, AccessUsed};
pub use metadata::Metadata;
pub use strings::{StrArray, StrIter, Strings};
pub use tensors::TensorInfo;
pub use value::{Array, Value};
pub use write::{Data, Writer};

/// Most dimensions of a tensor, as in GGML.
pub const MAX_DIMS: usize = 4;

/// Longest key or tensor name in bytes.
pub const MAX_NAME_BYTES: usize = 65_535;

/// Most levels of arrays inside arrays.
pub const MAX_ARRAY_DEPTH: usize = 4;

/// Largest `general.alignment`, 16 MiB: a few times the largest page in use.
pub const MAX_ALIGNMENT: usize = 1 << 24;

/// Alignment of a file that has no `general.alignment`.
pub const DEFAULT_ALIGNMENT: usize = 32;

/// The header, all metadata and tensor descriptions, ends within this many bytes, 256 MiB. The
/// largest in use have about 20 MiB. It bounds what a damaged file can cost.
pub const MAX_HEADER_BYTES: usize = 1 << 28;
