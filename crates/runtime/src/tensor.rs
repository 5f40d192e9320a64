//! The tensor of run-time rank: a view of a storage.
//!
//! Views of one storage share its fence, so a read through any of them waits for the same command.
//! Nothing here computes; see `ops`.

use std::sync::Arc;

use fucina_accel::{Operand, Shape, Storage};
use fucina_dtype::DType;
use half::{bf16, f16};
use zerocopy::{FromBytes, Immutable, IntoBytes};

use crate::error::{Error, Result};
use crate::runtime::Runtime;
use crate::shape::reshape_strides;
use crate::weight::Packed;

/// An element type that the host can see as a slice.
pub trait Element: FromBytes + IntoBytes + Immutable + Copy + Send + Sync + 'static {
    /// The type's name in a tensor.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($type:ty = $dtype:ident),+) => {
        $(impl Element for $type {
            const DTYPE: DType = DType::$dtype;
        })+
    };
}
elements!(f32 = F32, f16 = F16, bf16 = BF16, i32 = I32, u8 = U8);

/// A view of a storage: element type, shape, strides and offset.
///
/// Clones and views share the bytes. A tensor is written only through `&mut` and only while no
/// other tensor shares its storage, so a tensor that you hold never changes under you.
#[derive(Clone)]
pub struct DynTensor {
    rt: Runtime,
    storage: Arc<Storage>,
    dtype: DType,
    shape: Shape,
    /// In elements.
    strides: Shape,
    /// In elements. Whole blocks, for a block format.
    offset: usize,
    packed: Option<Arc<Packed>>,
}

impl std::fmt::Debug for DynTensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DynTensor")
            .field("dtype", &self.dtype)
            .field("shape", &self.shape)
            .field("ready", &self.storage.is_ready())
            .finish_non_exhaustive()
    }
}

impl DynTensor {
    /// A contiguous tensor over a storage that holds at least its bytes.
    pub(crate) fn new(rt: &Runtime, storage: Arc<Storage>, dtype: DType, shape: Shape) -> Self {
        let strides = shape.dense_strides().expect("the bytes fit a storage");
        Self { rt: rt.clone(), storage, dtype, shape, strides, offset: 0, packed: None }
    }

    /// The runtime that the tensor belongs to.
    pub fn runtime(&self) -> &Runtime {
        &self.rt
    }

    /// Element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Sizes, outermost axis first.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    pub(crate) fn dims(&self) -> Shape {
        self.shape
    }

    /// Steps between neighbours along each axis, in elements.
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Reports whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The shared storage.
    pub fn storage(&self) -> &Arc<Storage> {
        &self.storage
    }

    pub(crate) fn packed(&self) -> Option<&Arc<Packed>> {
        self.packed.as_ref()
    }

    pub(crate) fn set_packed(&mut self, packed: Arc<Packed>) {
        self.packed = Some(packed);
    }

    /// The view as an operand of a call.
    pub(crate) fn operand(&self, op: &'static str) -> Result<Operand<'_>> {
        Operand::new(&self.storage, self.dtype, self.offset_bytes(), &self.shape, &self.strides)
            .map_err(|error| Error::Operand { op, error: Box::new(error) })
    }

    fn offset_bytes(&self) -> usize {
        let (elems, bytes) = self.dtype.unit();
        self.offset / elems * bytes
    }

    /// Reports, without blocking, whether a host read would not wait for a device.
    ///
    /// # Errors
    ///
    /// Returns the fault of the device command that should have produced the bytes, if it is
    /// known by now.
    pub fn is_ready(&self) -> Result<bool> {
        if !self.storage.is_ready() {
            return Ok(false);
        }
        let fault = self.storage.writer().and_then(|writer| writer.fault());
        fault.map_or(Ok(true), |fault| Err(fault.into()))
    }

    /// Blocks until the command that produces the bytes is done. Copies nothing to the host.
    ///
    /// # Errors
    ///
    /// Returns the fault of the device command that should have produced them.
    pub fn wait(&self) -> Result<()> {
        Ok(self.storage.wait()?)
    }

    /// Reports whether the elements are one run of memory, in row-major order.
    pub fn is_contiguous(&self) -> bool {
        let mut next = 1;
        self.is_empty()
            || self.shape.iter().zip(self.strides.iter()).rev().all(|(&dim, &stride)| {
                let fits = dim == 1 || stride == next;
                next *= dim;
                fits
            })
    }

    fn check_contiguous(&self, op: &'static str) -> Result<()> {
        if self.is_contiguous() {
            return Ok(());
        }
        Err(Error::NotContiguous { op, shape: self.shape, strides: self.strides })
    }

    /// The bytes of a contiguous view.
    pub(crate) fn bytes(&self, op: &'static str) -> Result<&[u8]> {
        self.check_contiguous(op)?;
        let host = self.storage.host()?;
        Ok(&host[self.offset_bytes()..][..self.len_bytes()])
    }

    pub(crate) fn bytes_mut(&mut self, op: &'static str) -> Result<&mut [u8]> {
        self.check_contiguous(op)?;
        let range = self.offset_bytes()..self.offset_bytes() + self.len_bytes();
        self.packed = None;
        let storage = Arc::get_mut(&mut self.storage).ok_or(Error::Shared { op })?;
        Ok(&mut storage.host_mut().map_err(|error| crate::ops::storage_error(error, op))?[range])
    }

    /// Bytes `range` of the view, for writing. Waits only for readers of these bytes.
    pub(crate) fn bytes_range_mut(
        &mut self,
        range: std::ops::Range<usize>,
        op: &'static str,
    ) -> Result<&mut [u8]> {
        self.check_contiguous(op)?;
        let start = self.offset_bytes();
        let storage = Arc::get_mut(&mut self.storage).ok_or(Error::Shared { op })?;
        storage
            .host_range_mut(start + range.start..start + range.end)
            .map_err(|error| crate::ops::storage_error(error, op))
    }

    /// `len_bytes` bytes from the view's first element on.
    pub(crate) fn span(&self, len_bytes: usize) -> Result<&[u8]> {
        Ok(&self.storage.host()?[self.offset_bytes()..][..len_bytes])
    }

    /// Where each row of the innermost axis starts, in elements from the first, in row-major order.
    pub(crate) fn row_starts(&self) -> Vec<usize> {
        let mut starts = Vec::new();
        self.for_each_row(|start, _, _| starts.push(start));
        starts
    }

    /// Size of the elements in bytes.
    pub(crate) fn len_bytes(&self) -> usize {
        let (elems, bytes) = self.dtype.unit();
        self.len() / elems * bytes
    }

    fn check_dtype<T: Element>(&self, op: &'static str) -> Result<()> {
        if self.dtype == T::DTYPE {
            return Ok(());
        }
        Err(Error::DType { op, expected: T::DTYPE.name(), found: self.dtype })
    }

    /// The elements, after a wait for the command that produces them.
    ///
    /// # Errors
    ///
    /// Fails if `T` is not the element type, if the view is not contiguous, if mapped bytes are
    /// not aligned, or with the device's fault.
    pub fn data<T: Element>(&self) -> Result<&[T]> {
        self.check_dtype::<T>("data")?;
        let unaligned = |_| Error::Unaligned { op: "data", dtype: self.dtype };
        <[T]>::ref_from_bytes(self.bytes("data")?).map_err(unaligned)
    }

    /// The elements for writing, after a wait for every command that uses the storage.
    ///
    /// # Errors
    ///
    /// As [`data`](Self::data), and if another tensor shares the storage or it is read-only.
    pub fn data_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        self.check_dtype::<T>("data_mut")?;
        let unaligned = Error::Unaligned { op: "data_mut", dtype: self.dtype };
        <[T]>::mut_from_bytes(self.bytes_mut("data_mut")?).map_err(|_| unaligned)
    }

    /// The only element, as f32.
    ///
    /// # Errors
    ///
    /// Fails if there is not exactly one element, or as [`to_vec`](Self::to_vec).
    pub fn item(&self) -> Result<f32> {
        match self.to_vec()?[..] {
            [value] => Ok(value),
            _ => Err(Error::Shape { op: "item", shape: self.shape, why: "not one element" }),
        }
    }

    /// A copy of the elements as f32, in row-major order. Block formats are decoded.
    ///
    /// # Errors
    ///
    /// Fails for integers beyond what f32 holds exactly, or with the device's fault.
    pub fn to_vec(&self) -> Result<Vec<f32>> {
        let tensor = self.to_f32()?.contiguous()?;
        Ok(tensor.data::<f32>()?.to_vec())
    }

    /// Reports whether the storage lies at an address that suits the element type.
    pub(crate) fn is_aligned(&self) -> Result<bool> {
        let align = match self.dtype {
            DType::F32 | DType::I32 => 4,
            DType::F16 | DType::BF16 => 2,
            _ => 1,
        };
        Ok(self.storage.host()?.as_ptr().addr().is_multiple_of(align))
    }

    /// The same view of another storage, which has the same elements in another scalar type.
    pub(crate) fn on_storage(&self, storage: Arc<Storage>, dtype: DType) -> Self {
        Self { storage, dtype, packed: None, ..self.clone() }
    }

    fn view(&self, shape: Shape, strides: Shape, offset: usize) -> Self {
        let (rt, storage, dtype) = (self.rt.clone(), Arc::clone(&self.storage), self.dtype);
        Self { rt, storage, dtype, shape, strides, offset, packed: None }
    }

    /// The same elements under another shape. Shares the storage where the strides allow it, and
    /// copies otherwise.
    ///
    /// # Errors
    ///
    /// Fails if the shape has another number of elements, more than four axes, or would split the
    /// blocks of a block format.
    pub fn reshape(&self, shape: &[usize]) -> Result<Self> {
        let op = "reshape";
        let Some(dims) = Shape::new(shape) else {
            return Err(Error::Shape { op, shape: self.shape, why: "more than four axes" });
        };
        if dims.elems() != Some(self.len()) || dims.dense_strides().is_none() {
            let why = "the number of elements differs";
            return Err(Error::Shapes { op, lhs: self.shape, rhs: dims, why });
        }
        if dims.last().is_some_and(|&cols| self.dtype.row_bytes(cols).is_none()) {
            let why = "rows would not be whole blocks";
            return Err(Error::Shapes { op, lhs: self.shape, rhs: dims, why });
        }
        match reshape_strides(&self.shape, &self.strides, &dims) {
            Some(strides) => {
                let mut view = self.view(dims, strides, self.offset);
                if dims == self.shape {
                    view.packed.clone_from(&self.packed);
                }
                Ok(view)
            }
            None => {
                Ok(Self::new(&self.rt, Arc::clone(&self.contiguous()?.storage), self.dtype, dims))
            }
        }
    }

    fn check_axis(&self, op: &'static str, axis: usize) -> Result<()> {
        if axis < self.shape.len() {
            return Ok(());
        }
        let index = i64::try_from(axis).unwrap_or(i64::MAX);
        Err(Error::OutOfRange { op, index, limit: self.shape.len() })
    }

    /// The part `start..start + len` of one axis. Shares the storage.
    ///
    /// # Errors
    ///
    /// Fails if the range leaves the axis, or splits a block.
    pub fn narrow(&self, axis: usize, start: usize, len: usize) -> Result<Self> {
        let op = "narrow";
        self.check_axis(op, axis)?;
        let limit = self.shape[axis];
        match start.checked_add(len) {
            Some(end) if end <= limit => {}
            end => {
                let index = end.and_then(|end| i64::try_from(end).ok()).unwrap_or(i64::MAX);
                return Err(Error::OutOfRange { op, index, limit });
            }
        }
        let (unit, _) = self.dtype.unit();
        let inner = axis + 1 == self.shape.len();
        if inner && !(start.is_multiple_of(unit) && len.is_multiple_of(unit)) {
            return Err(Error::Shape { op, shape: self.shape, why: "the range splits a block" });
        }
        let mut shape = self.shape;
        shape[axis] = len;
        // An empty view keeps the offset, so that it stays inside the storage.
        let empty = shape.contains(&0);
        let offset = if empty { self.offset } else { self.offset + start * self.strides[axis] };
        Ok(self.view(shape, self.strides, offset))
    }

    /// The axes in another order. Shares the storage.
    ///
    /// # Errors
    ///
    /// Fails if `order` does not name each axis once, or moves the inner axis of a block format.
    pub fn permute(&self, order: &[usize]) -> Result<Self> {
        let op = "permute";
        let rank = self.shape.len();
        let why = if order.len() != rank || (0..rank).any(|axis| !order.contains(&axis)) {
            Some("the order does not name each axis once")
        } else if self.dtype.unit().0 > 1 && order.last() != Some(&(rank - 1)) {
            Some("the inner axis of a block format stays inner")
        } else {
            None
        };
        if let Some(why) = why {
            return Err(Error::Shape { op, shape: self.shape, why });
        }
        let (mut shape, mut strides) = (self.shape, self.strides);
        for (to, &from) in order.iter().enumerate() {
            (shape[to], strides[to]) = (self.shape[from], self.strides[from]);
        }
        Ok(self.view(shape, strides, self.offset))
    }

    /// Repeats axes of size one, and adds axes in front, without a copy.
    ///
    /// # Errors
    ///
    /// Fails if an axis of another size would have to change.
    pub fn broadcast(&self, shape: &[usize]) -> Result<Self> {
        let op = "broadcast";
        let Some(dims) = Shape::new(shape) else {
            return Err(Error::Shape { op, shape: self.shape, why: "more than four axes" });
        };
        let why = "only axes of size one repeat";
        let misfit = Error::Shapes { op, lhs: self.shape, rhs: dims, why };
        let Some(lead) = shape.len().checked_sub(self.shape.len()) else { return Err(misfit) };
        if dims.elems().is_none() || dims.dense_strides().is_none() {
            return Err(Error::Shape { op, shape: dims, why: "the size overflows" });
        }
        let mut strides = dims;
        strides[..lead].fill(0);
        for axis in 0..self.shape.len() {
            strides[lead + axis] = match (self.shape[axis], dims[lead + axis]) {
                (from, to) if from == to => self.strides[axis],
                (1, _) if self.dtype.unit().0 == 1 => 0,
                _ => return Err(misfit),
            };
        }
        Ok(self.view(dims, strides, self.offset))
    }

    /// The same tensor if it is contiguous, else a copy that is.
    ///
    /// # Errors
    ///
    /// Fails without memory, or with the device's fault.
    pub fn contiguous(&self) -> Result<Self> {
        if self.is_contiguous() { Ok(self.clone()) } else { self.copy() }
    }

    /// A contiguous copy in a storage of its own.
    ///
    /// # Errors
    ///
    /// As [`contiguous`](Self::contiguous).
    pub fn copy(&self) -> Result<Self> {
        let mut copy = self.rt.empty(self.dtype, &self.shape, "copy")?;
        let (unit, unit_bytes) = self.dtype.unit();
        let src = &self.storage.host()?[self.offset_bytes()..];
        let dst = copy.bytes_mut("copy")?;
        let mut at = 0;
        let inner = self.strides.last() == Some(&1) || self.shape.is_empty();
        self.for_each_row(|start, cols, stride| {
            let start = start / unit * unit_bytes;
            let len = cols / unit * unit_bytes;
            if inner {
                dst[at..][..len].copy_from_slice(&src[start..][..len]);
            } else {
                for (col, to) in dst[at..][..len].chunks_exact_mut(unit_bytes).enumerate() {
                    to.copy_from_slice(&src[start + col * stride * unit_bytes..][..unit_bytes]);
                }
            }
            at += len;
        });
        Ok(copy)
    }

    /// Calls `row(start, cols, stride)` for each row, in row-major order. `start` is relative to
    /// the view's offset.
    fn for_each_row(&self, mut row: impl FnMut(usize, usize, usize)) {
        if self.is_empty() {
            return;
        }
        let (cols, stride) = match (self.shape.last(), self.strides.last()) {
            (Some(&cols), Some(&stride)) => (cols, stride),
            _ => (1, 1),
        };
        let outer = self.shape.len().saturating_sub(1);
        for index in 0..self.shape[..outer].iter().product() {
            let (mut rest, mut start) = (index, 0);
            for axis in (0..outer).rev() {
                start += rest % self.shape[axis] * self.strides[axis];
                rest /= self.shape[axis];
            }
            row(start, cols, stride);
        }
    }
}
