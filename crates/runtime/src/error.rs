//! What can go wrong in a tensor call.

use fucina_accel::{AllocError, CallError, DeviceError, OperandError, Shape, StorageError};
use fucina_dtype::DType;

use crate::kv_cache::CacheType;

/// Shorthand for a tensor result.
pub type Result<T> = std::result::Result<T, Error>;

/// A call that could not be carried out. Nothing was changed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Two operands do not fit together.
    #[error("{op}: shapes {lhs} and {rhs} do not fit: {why}")]
    Shapes {
        /// The op.
        op: &'static str,
        /// Shape of the first operand.
        lhs: Shape,
        /// Shape of the second operand, or the shape asked for.
        rhs: Shape,
        /// The rule that they break.
        why: &'static str,
    },
    /// One operand does not suit the op.
    #[error("{op}: shape {shape} does not suit: {why}")]
    Shape {
        /// The op.
        op: &'static str,
        /// Shape of the operand.
        shape: Shape,
        /// The rule that it breaks.
        why: &'static str,
    },
    /// The op does not take this element type.
    #[error("{op}: {expected} expected, found {found:?}; convert with `to_f32`")]
    DType {
        /// The op.
        op: &'static str,
        /// What the op takes.
        expected: &'static str,
        /// What it was given.
        found: DType,
    },
    /// An index or a range is outside its axis.
    #[error("{op}: {index} is out of range, the limit is {limit}")]
    OutOfRange {
        /// The op.
        op: &'static str,
        /// The offending index or end of range.
        index: i64,
        /// One past the largest index allowed.
        limit: usize,
    },
    /// A slice of the elements was asked for, and they are not one run of memory.
    #[error("{op}: the view {shape} with strides {strides} is not contiguous; call `contiguous`")]
    NotContiguous {
        /// The accessor.
        op: &'static str,
        /// Shape of the view.
        shape: Shape,
        /// Its strides in elements.
        strides: Shape,
    },
    /// A tensor is to be written while other tensors see the same storage.
    #[error("{op}: the storage is shared with another tensor; drop it or write to a `copy`")]
    Shared {
        /// The accessor.
        op: &'static str,
    },
    /// A tensor over borrowed read-only bytes is to be written.
    #[error("{op}: the storage is read-only; write to a `copy`")]
    ReadOnly {
        /// The accessor.
        op: &'static str,
    },
    /// Mapped bytes do not have the alignment of their element type.
    #[error("{op}: the mapped bytes are not aligned for {dtype:?}; use `copy` or `to_vec`")]
    Unaligned {
        /// The accessor.
        op: &'static str,
        /// Element type.
        dtype: DType,
    },
    /// The bytes given for a tensor do not have the size of its shape.
    #[error("a {dtype:?} tensor of shape {shape} takes {expected:?} bytes, {found} were given")]
    Size {
        /// Element type.
        dtype: DType,
        /// Shape.
        shape: Shape,
        /// Size of the shape. `None` if rows are not whole blocks, or if the size overflows.
        expected: Option<usize>,
        /// Size of the bytes given.
        found: usize,
    },
    /// The KV cache has no room for more positions.
    #[error("the KV cache holds {capacity} positions, {wanted} are needed; raise the context size")]
    CacheFull {
        /// Positions that fit.
        capacity: usize,
        /// Positions that the call needs.
        wanted: usize,
    },
    /// Heads are not whole blocks of the type of the KV cache.
    #[error("a {cache} KV cache takes heads of whole blocks of {}, this one has {dim}; use f16",
        .cache.dtype().unit().0)]
    CacheHead {
        /// Type of the cache.
        cache: CacheType,
        /// Elements of the head.
        dim: usize,
    },
    /// The seam refuses the call.
    #[error(transparent)]
    Call(Box<CallError>),
    /// The seam refuses a view as an operand.
    #[error("{op}: {error}")]
    Operand {
        /// The op.
        op: &'static str,
        /// What is wrong with the view.
        error: Box<OperandError>,
    },
    /// The seam refuses to hand out the bytes.
    #[error(transparent)]
    Storage(Box<StorageError>),
    /// A device command that these bytes depend on failed.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Memory could not be had.
    #[error(transparent)]
    Alloc(#[from] AllocError),
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        Self::Call(Box::new(error))
    }
}
