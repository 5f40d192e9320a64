//! What the header says about each tensor, checked against the file.

use std::sync::Arc;

use fucina_dtype::DType;

use crate::error::Error;
use crate::ggml::{self, GgmlType};

/// Name, shape, type and place of one tensor.
///
/// ```
/// use fucina_dtype::DType;
/// use fucina_gguf::{File, Writer};
///
/// let mut writer = Writer::new();
/// writer.tensor("w", DType::F32, &[3, 2], vec![0_u8; 24])?;
/// let file = File::from_bytes(writer.to_bytes()?)?;
///
/// let info = file.tensor("w")?;
/// assert_eq!(info.shape(), [3, 2]); // innermost dimension first, as GGUF has it
/// assert_eq!(info.shape_row_major(), [2, 3]); // rows, columns
/// assert_eq!(info.dtype()?, DType::F32);
/// assert_eq!(info.len_bytes(), 24);
/// # Ok::<(), fucina_gguf::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    pub(crate) file: Arc<str>,
    pub(crate) name: Arc<str>,
    pub(crate) n_dims: usize,
    pub(crate) dims: [usize; crate::MAX_DIMS],
    pub(crate) ggml_type: u32,
    /// Index of the file of a split model.
    pub(crate) part: usize,
    /// Absolute position in that file.
    pub(crate) start: usize,
    pub(crate) len_bytes: usize,
}

impl TensorInfo {
    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sizes of the dimensions, innermost (contiguous) first, as GGUF and GGML order them. Empty
    /// for a scalar. No size is zero, and their product fits `usize`.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.dims[..self.n_dims]
    }

    /// Sizes of the dimensions, outermost first: `[.., rows, cols]`.
    #[must_use]
    pub fn shape_row_major(&self) -> Vec<usize> {
        self.shape().iter().rev().copied().collect()
    }

    /// Number of elements.
    #[must_use]
    pub fn len_elems(&self) -> usize {
        self.shape().iter().product()
    }

    /// The type's id in GGML's numbering.
    #[must_use]
    pub fn ggml_type(&self) -> u32 {
        self.ggml_type
    }

    /// GGML's name of the type, such as `Q4_K`, or "unknown".
    #[must_use]
    pub fn type_name(&self) -> &'static str {
        ggml::lookup(self.ggml_type).map_or("unknown", |t| t.name)
    }

    /// The element type.
    ///
    /// # Errors
    ///
    /// [`Error::UnsupportedType`] if the workspace has no such type. A file with such a tensor
    /// opens all the same.
    pub fn dtype(&self) -> Result<DType, Error> {
        DType::from_ggml_id(self.ggml_type).ok_or_else(|| Error::UnsupportedType {
            file: Arc::clone(&self.file),
            tensor: (&*self.name).into(),
            ggml_type: self.ggml_type,
            type_name: self.type_name(),
        })
    }

    /// Stored size in bytes.
    ///
    /// GGML's types all have a known size. For an id that GGML does not define, this is the space
    /// up to the next tensor or the end of the file: an upper bound.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Position of the first byte, counted from the start of its file.
    #[must_use]
    pub fn file_offset(&self) -> usize {
        self.start
    }

    /// Number of the file that holds the data, from 0. Always 0 unless the model is split.
    #[must_use]
    pub fn part(&self) -> usize {
        self.part
    }
}

/// A tensor as described, before it is known to lie inside a file. Reader and writer share it, so
/// that they refuse the same shapes.
#[derive(Debug)]
pub(crate) struct Described<'a> {
    pub(crate) file: &'a Arc<str>,
    pub(crate) name: &'a str,
    /// Innermost first.
    pub(crate) shape: &'a [u64],
    pub(crate) ggml_type: u32,
}

impl Described<'_> {
    /// Size in bytes, or `None` if the type is unknown to GGML.
    pub(crate) fn len_bytes(&self) -> Result<Option<u64>, Error> {
        let (file, tensor) = (|| Arc::clone(self.file), || self.name.into());
        if self.shape.len() > crate::MAX_DIMS {
            let n_dims = self.shape.len() as u64;
            return Err(Error::TooManyDims { file: file(), tensor: tensor(), n_dims });
        }
        if self.shape.contains(&0) {
            return Err(Error::ZeroDim {
                file: file(),
                tensor: tensor(),
                shape: self.shape.into(),
            });
        }
        let elems = self.shape.iter().try_fold(1_u64, |elems, &dim| elems.checked_mul(dim));
        let overflow =
            || Error::SizeOverflow { file: file(), tensor: tensor(), shape: self.shape.into() };
        // GGML counts in i64, and so do other readers of these files.
        let elems = elems.filter(|&n| n <= i64::MAX as u64 && usize::try_from(n).is_ok());
        let elems = elems.ok_or_else(overflow)?;
        let Some(ggml_type) = ggml::lookup(self.ggml_type) else { return Ok(None) };
        let row_elems = self.shape.first().copied().unwrap_or(1);
        if !row_elems.is_multiple_of(ggml_type.elems) {
            return Err(self.partial_block(ggml_type, row_elems));
        }
        let len = (elems / ggml_type.elems).checked_mul(ggml_type.bytes);
        len.filter(|&n| n <= i64::MAX as u64).ok_or_else(overflow).map(Some)
    }

    fn partial_block(&self, ggml_type: &GgmlType, row_elems: u64) -> Error {
        Error::PartialBlock {
            file: Arc::clone(self.file),
            tensor: self.name.into(),
            type_name: ggml_type.name,
            row_elems,
            block_elems: ggml_type.elems,
        }
    }
}
