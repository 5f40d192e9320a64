//! A checked view of a storage.
//!
//! Providers hand operands to devices unchecked, so the fields are private and the constructor
//! guarantees that every element lies inside the storage.

use std::ops::Range;

use fucina_dtype::DType;

use crate::error::OperandError;
use crate::shape::{MAX_RANK, Shape};
use crate::storage::Storage;

/// Elements of a storage: type, place, shape and strides.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a> {
    storage: &'a Storage,
    dtype: DType,
    offset_bytes: usize,
    shape: Shape,
    strides: Shape,
    end_bytes: usize,
}

impl<'a> Operand<'a> {
    /// Views `storage` from `offset_bytes` on. `strides` are in elements, one for each axis; a
    /// stride of 0 repeats the same elements.
    ///
    /// Elements of a block format are stored in whole blocks: the last axis has stride 1 and
    /// whole blocks, and the other strides are whole blocks.
    ///
    /// # Errors
    ///
    /// Says which condition does not hold: the number of axes, whole blocks, the alignment of
    /// scalar elements, or that every element lies inside the storage.
    pub fn new(
        storage: &'a Storage,
        dtype: DType,
        offset_bytes: usize,
        shape: &[usize],
        strides: &[usize],
    ) -> Result<Self, OperandError> {
        let rank = OperandError::Rank { axes: shape.len(), strides: strides.len() };
        let (Some(shape), Some(strides)) = (Shape::new(shape), Shape::new(strides)) else {
            return Err(rank);
        };
        if shape.len() != strides.len() {
            return Err(rank);
        }
        let (unit_elems, unit_bytes) = dtype.unit();
        if unit_elems > 1 {
            check_blocks(dtype, unit_elems, &shape, &strides)?;
        } else {
            let address = storage.as_ptr().addr().get().wrapping_add(offset_bytes);
            if !address.is_multiple_of(unit_bytes) {
                return Err(OperandError::Misaligned { dtype, offset_bytes });
            }
        }
        let len_bytes = storage.len_bytes();
        let error = OperandError::OutOfBounds { dtype, offset_bytes, shape, strides, len_bytes };
        // A stride of a size-0 or size-1 axis is never used; the number of elements still has to
        // fit `usize`, because kernels count them.
        if shape.elems().is_none() {
            return Err(error);
        }
        let end_bytes = span_bytes(dtype, &shape, &strides)
            .and_then(|span| offset_bytes.checked_add(span))
            .filter(|&end| end <= len_bytes)
            .ok_or(error)?;
        Ok(Self { storage, dtype, offset_bytes, shape, strides, end_bytes })
    }

    /// Views dense row-major elements from `offset_bytes` on.
    ///
    /// # Errors
    ///
    /// As for [`Operand::new`].
    pub fn dense(
        storage: &'a Storage,
        dtype: DType,
        offset_bytes: usize,
        shape: &[usize],
    ) -> Result<Self, OperandError> {
        let rank = OperandError::Rank { axes: shape.len(), strides: shape.len() };
        let dims = Shape::new(shape).ok_or(rank)?;
        let strides = dims.dense_strides().ok_or(OperandError::OutOfBounds {
            dtype,
            offset_bytes,
            shape: dims,
            strides: Shape::default(),
            len_bytes: storage.len_bytes(),
        })?;
        Self::new(storage, dtype, offset_bytes, shape, &strides)
    }

    /// The storage.
    pub fn storage(&self) -> &'a Storage {
        self.storage
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Start of the first element, in bytes from the start of the storage.
    pub fn offset_bytes(&self) -> usize {
        self.offset_bytes
    }

    /// Sizes of the axes.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Strides in elements, one for each axis.
    pub fn strides(&self) -> Shape {
        self.strides
    }

    /// Number of elements, repeated ones included.
    pub fn elems(&self) -> usize {
        self.shape.elems().unwrap_or(usize::MAX)
    }

    /// Smallest byte range of the storage that holds every element.
    pub fn byte_range(&self) -> Range<usize> {
        self.offset_bytes..self.end_bytes
    }

    /// Reports whether the elements are dense and in row-major order.
    pub fn is_dense(&self) -> bool {
        if self.elems() == 0 {
            return true;
        }
        let mut step = 1;
        for (&dim, &stride) in self.shape.iter().zip(self.strides.iter()).rev() {
            if dim != 1 && stride != step {
                return false;
            }
            step *= dim;
        }
        true
    }

    /// Reports whether the last axis is dense; the strides of the others do not matter.
    pub fn has_dense_rows(&self) -> bool {
        match (self.shape.last(), self.strides.last()) {
            (Some(&dim), Some(&stride)) => dim <= 1 || stride == 1,
            _ => true,
        }
    }
}

/// Checks that rows are whole contiguous blocks.
fn check_blocks(
    dtype: DType,
    unit_elems: usize,
    shape: &Shape,
    strides: &Shape,
) -> Result<(), OperandError> {
    if shape.contains(&0) {
        return Ok(());
    }
    let error = OperandError::Blocks { dtype, shape: *shape, strides: *strides };
    let (Some((&row, dims)), Some((&step, strides))) = (shape.split_last(), strides.split_last())
    else {
        return Err(error);
    };
    let whole = |(&dim, &stride): (&usize, &usize)| dim <= 1 || stride.is_multiple_of(unit_elems);
    let rows = dims.iter().zip(strides).all(whole);
    if rows && row.is_multiple_of(unit_elems) && (step == 1 || row == 0) {
        Ok(())
    } else {
        Err(error)
    }
}

/// Bytes from the first element to the end of the last one. `None` if that does not fit `usize`.
fn span_bytes(dtype: DType, shape: &[usize], strides: &[usize]) -> Option<usize> {
    const { assert!(MAX_RANK == 4, "the loop below is short") };
    if shape.contains(&0) {
        return Some(0);
    }
    let mut last = 0usize;
    for (&dim, &stride) in shape.iter().zip(strides) {
        last = last.checked_add((dim - 1).checked_mul(stride)?)?;
    }
    let (unit_elems, unit_bytes) = dtype.unit();
    // `last` is the last element of some block.
    (last / unit_elems).checked_add(1)?.checked_mul(unit_bytes)
}
