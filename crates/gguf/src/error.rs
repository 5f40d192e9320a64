//! Everything that can go wrong, as values that tests can compare.
//!
//! Each message names the file and the key or tensor, and says what to do where something can be
//! done. I/O errors are stored as kind and message, because `std::io::Error` has no equality.

use std::io;
use std::sync::Arc;

use fucina_dtype::DType;

/// A GGUF file could not be read, written, or does not hold what was asked for.
///
/// ```
/// use fucina_gguf::{Error, File, Writer};
///
/// let file = File::from_bytes(Writer::new().to_bytes()?)?;
/// let error = file.tensor("output.weight").unwrap_err();
/// assert!(matches!(error, Error::MissingTensor { .. }));
/// assert_eq!(error.to_string(), "<memory>: tensor `output.weight` is missing");
/// # Ok::<(), Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused.
    #[error("{file}: could not {action}: {message}")]
    Io {
        /// The file.
        file: Arc<str>,
        /// What was tried.
        action: &'static str,
        /// Kind of the I/O error.
        kind: io::ErrorKind,
        /// The operating system's words.
        message: Box<str>,
    },
    /// The path names a directory, a pipe or a device.
    #[error("{file}: is not a regular file; give the path of a .gguf file")]
    NotAFile {
        /// The path.
        file: Arc<str>,
    },
    /// The first bytes are not a GGUF header.
    #[error("{file}: is not a GGUF file: {hint}")]
    NotGguf {
        /// The file.
        file: Arc<str>,
        /// What the file looks like instead.
        hint: &'static str,
    },
    /// Magic or version are byte-swapped.
    #[error("{file}: is a big-endian GGUF file; convert it to little-endian first")]
    BigEndian {
        /// The file.
        file: Arc<str>,
    },
    /// Neither version 2 nor 3.
    #[error(
        "{file}: GGUF version {version} is not supported, only 2 and 3 are; convert the file again"
    )]
    UnsupportedVersion {
        /// The file.
        file: Arc<str>,
        /// The version found or asked for.
        version: u32,
    },
    /// The file ends inside something.
    #[error(
        "{file}: {what} needs {needed} bytes at offset {offset}, but only {available} are left; \
         the file is cut short or damaged, fetch it again"
    )]
    Truncated {
        /// The file.
        file: Arc<str>,
        /// What was being read.
        what: Box<str>,
        /// Absolute position in the file.
        offset: u64,
        /// Bytes that it claims.
        needed: u64,
        /// Bytes that are left.
        available: u64,
    },
    /// A count cannot be true, because so many items need more bytes than the file has.
    #[error(
        "{file}: {what} claims {count} items, but at most {most} fit into the rest of the file; \
         the file is cut short or damaged, fetch it again"
    )]
    CountTooLarge {
        /// The file.
        file: Arc<str>,
        /// What is counted.
        what: Box<str>,
        /// The claim.
        count: u64,
        /// Upper bound from the bytes that are left.
        most: u64,
    },
    /// A string is not UTF-8.
    #[error("{file}: {what} is not valid UTF-8")]
    InvalidUtf8 {
        /// The file.
        file: Arc<str>,
        /// Which string.
        what: Box<str>,
    },
    /// A bool is stored as something other than 0 or 1.
    #[error("{file}: key `{key}`: a bool is stored as {value}, only 0 and 1 are allowed")]
    InvalidBool {
        /// The file.
        file: Arc<str>,
        /// The key.
        key: Box<str>,
        /// The byte found.
        value: u8,
    },
    /// A metadata value has a type that GGUF does not define.
    #[error("{file}: key `{key}` has the unknown value type {id}")]
    UnknownValueType {
        /// The file.
        file: Arc<str>,
        /// The key.
        key: Box<str>,
        /// The type id.
        id: u32,
    },
    /// Arrays inside arrays, too many levels of them.
    #[error("{file}: key `{key}` nests arrays deeper than {limit} levels")]
    NestedTooDeep {
        /// The file.
        file: Arc<str>,
        /// The key.
        key: Box<str>,
        /// The limit, [`MAX_ARRAY_DEPTH`](crate::MAX_ARRAY_DEPTH).
        limit: usize,
    },
    /// A key or tensor name is empty or longer than [`MAX_NAME_BYTES`](crate::MAX_NAME_BYTES).
    #[error("{file}: {what} is {len_bytes} bytes long, 1 to {max} are allowed", max = crate::MAX_NAME_BYTES)]
    BadName {
        /// The file.
        file: Arc<str>,
        /// Which name.
        what: Box<str>,
        /// Its length.
        len_bytes: u64,
    },
    /// The key occurs twice.
    #[error("{file}: key `{key}` occurs twice")]
    DuplicateKey {
        /// The file.
        file: Arc<str>,
        /// The key.
        key: Box<str>,
    },
    /// The key is not in the file.
    #[error("{file}: key `{key}` is missing")]
    MissingKey {
        /// The file.
        file: Arc<str>,
        /// The key.
        key: Box<str>,
    },
    /// The key is there with another type.
    #[error("{file}: key `{key}` should be {wanted}, but is {found}")]
    WrongType {
        /// The file.
        file: Arc<str>,
        /// The key.
        key: Box<str>,
        /// The type asked for.
        wanted: &'static str,
        /// The type in the file.
        found: &'static str,
    },
    /// An integer does not fit the type asked for.
    #[error("{file}: key `{key}` is {value}, which does not fit {wanted}")]
    OutOfRange {
        /// The file.
        file: Arc<str>,
        /// The key.
        key: Box<str>,
        /// The value in the file.
        value: i128,
        /// The type asked for.
        wanted: &'static str,
    },
    /// `general.alignment` is not a power of two from 1 to
    /// [`MAX_ALIGNMENT`](crate::MAX_ALIGNMENT).
    #[error(
        "{file}: key `general.alignment` is {alignment}, a power of two up to {max} is required",
        max = crate::MAX_ALIGNMENT
    )]
    BadAlignment {
        /// The file.
        file: Arc<str>,
        /// The value found.
        alignment: u64,
    },
    /// Two tensors have one name.
    #[error("{file}: tensor `{tensor}` occurs twice")]
    DuplicateTensor {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: Box<str>,
    },
    /// More dimensions than GGML has.
    #[error("{file}: tensor `{tensor}` has {n_dims} dimensions, at most {max} are allowed", max = crate::MAX_DIMS)]
    TooManyDims {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: Box<str>,
        /// Dimensions claimed.
        n_dims: u64,
    },
    /// A dimension is zero.
    #[error("{file}: tensor `{tensor}` has a dimension of size zero: {shape:?}")]
    ZeroDim {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: Box<str>,
        /// Shape, innermost dimension first.
        shape: Box<[u64]>,
    },
    /// The row of a block format is not whole blocks.
    #[error(
        "{file}: tensor `{tensor}`: a row of {row_elems} elements is not a whole number of \
         {type_name} blocks of {block_elems}"
    )]
    PartialBlock {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: Box<str>,
        /// GGML's name of the format.
        type_name: &'static str,
        /// Elements in a row.
        row_elems: u64,
        /// Elements in a block.
        block_elems: u64,
    },
    /// The size of the tensor does not fit the address space.
    #[error("{file}: tensor `{tensor}` with shape {shape:?} is too large to address")]
    SizeOverflow {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: Box<str>,
        /// Shape, innermost dimension first.
        shape: Box<[u64]>,
    },
    /// The offset is not a multiple of the alignment.
    #[error("{file}: tensor `{tensor}` starts at {offset}, not a multiple of {alignment}")]
    Misaligned {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: Box<str>,
        /// Offset in the data section.
        offset: u64,
        /// The file's alignment.
        alignment: u64,
    },
    /// The tensor does not end inside the file.
    #[error(
        "{file}: tensor `{tensor}` needs {len_bytes} bytes at {offset} of the data section, which \
         has {available}; the file is cut short or damaged, fetch it again"
    )]
    OutOfBounds {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: Box<str>,
        /// Offset in the data section.
        offset: u64,
        /// Bytes of the tensor; zero if its type is unknown.
        len_bytes: u64,
        /// Bytes in the data section.
        available: u64,
    },
    /// Two tensors claim the same bytes.
    #[error("{file}: tensors `{first}` and `{second}` overlap")]
    Overlap {
        /// The file.
        file: Arc<str>,
        /// The tensor that starts first.
        first: Box<str>,
        /// The other one.
        second: Box<str>,
    },
    /// The tensor's type has no [`DType`].
    #[error(
        "{file}: tensor `{tensor}` has the type {type_name} ({ggml_type}), which is not supported"
    )]
    UnsupportedType {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: Box<str>,
        /// The `ggml_type` id.
        ggml_type: u32,
        /// GGML's name, or "unknown".
        type_name: &'static str,
    },
    /// GGUF has no such type, so that the tensor cannot be written.
    #[error("{file}: tensor `{tensor}` cannot be written, GGUF has no type {dtype:?}")]
    NotInGguf {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: Box<str>,
        /// Its type.
        dtype: DType,
    },
    /// The tensor is not in the file.
    #[error("{file}: tensor `{tensor}` is missing")]
    MissingTensor {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: Box<str>,
    },
    /// The [`TensorInfo`](crate::TensorInfo) belongs to another file.
    #[error("{file}: tensor `{tensor}` was described by another file")]
    ForeignTensor {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: Box<str>,
    },
    /// A part of a split model is not there.
    #[error("{file}: part {part} of {count} is missing; put `{part_file}` beside the first part")]
    MissingPart {
        /// The first part.
        file: Arc<str>,
        /// Number of the missing part, from 1.
        part: u64,
        /// Number of parts.
        count: u64,
        /// Path of the missing part.
        part_file: Box<str>,
    },
    /// A part other than the first was opened.
    #[error("{file}: is part {part} of {count} of a split model; open `{first}` instead")]
    NotFirstPart {
        /// The file.
        file: Arc<str>,
        /// Its number, from 1.
        part: u64,
        /// Number of parts.
        count: u64,
        /// The file to open.
        first: Box<str>,
    },
    /// The parts do not belong together.
    #[error("{file}: the split model is inconsistent: {what} is {found}, expected {expected}")]
    SplitMismatch {
        /// The file.
        file: Arc<str>,
        /// What differs.
        what: &'static str,
        /// The value found.
        found: u64,
        /// The value expected.
        expected: u64,
    },
    /// The other parts of a split model cannot be found from this name.
    #[error(
        "{file}: is the first of {count} parts, but is not named `NAME-00001-of-{count:05}.gguf`; \
         rename it so that the other parts can be found"
    )]
    SplitName {
        /// The file.
        file: Arc<str>,
        /// Number of parts.
        count: u64,
    },
    /// One part of a split model was given as bytes.
    #[error(
        "{file}: is part {part} of {count} of a split model; save the parts as files and open the \
         first"
    )]
    SplitInMemory {
        /// The file.
        file: Arc<str>,
        /// Its number, from 1.
        part: u64,
        /// Number of parts.
        count: u64,
    },
    /// A tensor's data had another length than its shape and type demand.
    #[error("{file}: tensor `{tensor}` needs {expected} bytes of data, {found} were given")]
    DataLength {
        /// The file.
        file: Arc<str>,
        /// The tensor.
        tensor: Box<str>,
        /// Bytes that shape and type demand.
        expected: u64,
        /// Bytes given. One more than expected stands for any greater number.
        found: u64,
    },
}

impl Error {
    /// Keeps what is comparable of an I/O error.
    pub(crate) fn io(file: &Arc<str>, action: &'static str, error: &io::Error) -> Self {
        let message = error.to_string().into_boxed_str();
        Self::Io { file: Arc::clone(file), action, kind: error.kind(), message }
    }
}
