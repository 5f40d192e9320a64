//! Device memory, and the commands that use it.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use fucina_dtype::DType;

use super::chaos::Plan;
use super::kernels::{Dense, Kernel};
use crate::completion::Completion;
use crate::operand::Operand;
use crate::residency::Charge;
use crate::shape::Shape;
use crate::submission::Ticket;

/// Memory of the device. It starts poisoned, and is filled once: by an upload or by a kernel.
pub(super) struct DeviceBuffer {
    bytes: RwLock<Vec<u8>>,
    /// Delivered when the bytes are there, or never will be.
    pub(super) ready: Completion,
    /// The last decoded view: weights are decoded once.
    decoded: Mutex<Option<(View, Arc<[f32]>)>>,
    _charge: Charge,
}

impl DeviceBuffer {
    pub(super) fn poisoned(len_bytes: usize, charge: Charge) -> Self {
        Self {
            bytes: RwLock::new(vec![0xff; len_bytes]),
            ready: Completion::default(),
            decoded: Mutex::new(None),
            _charge: charge,
        }
    }

    pub(super) fn len_bytes(&self) -> usize {
        self.read().len()
    }

    pub(super) fn read(&self) -> RwLockReadGuard<'_, Vec<u8>> {
        self.bytes.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn write(&self) -> RwLockWriteGuard<'_, Vec<u8>> {
        self.bytes.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// The elements of `view` as dense f32.
    fn decode(&self, view: &View) -> Result<Arc<[f32]>, String> {
        let mut decoded = self.decoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((known, elems)) = &*decoded
            && known == view
        {
            return Ok(Arc::clone(elems));
        }
        let elems: Arc<[f32]> = view.decode(&self.read())?.into();
        if view.dtype != DType::F32 {
            *decoded = Some((*view, Arc::clone(&elems)));
        }
        Ok(elems)
    }
}

/// Host memory that an upload will read.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostBytes {
    start: NonNull<u8>,
    len_bytes: usize,
}

// SAFETY: the address is used only by `copy_to`, whose contract does not depend on the thread.
unsafe impl Send for HostBytes {}

impl HostBytes {
    /// The bytes `range` of the storage at `base`.
    pub(super) fn new(base: NonNull<u8>, range: Range<usize>) -> Self {
        // An offset without `unsafe`: the address is dereferenced only by `copy_to`.
        let start = NonNull::new(base.as_ptr().wrapping_add(range.start)).unwrap_or(base);
        Self { start, len_bytes: range.len() }
    }

    /// Copies the bytes to the device.
    ///
    /// # Safety
    ///
    /// The range lies inside memory that is still allocated, and nothing writes it during the
    /// call.
    pub(super) unsafe fn copy_to(self, device: &mut [u8]) {
        assert_eq!(device.len(), self.len_bytes, "an upload fills its buffer");
        // SAFETY: the caller vouches for the source; the assertion for the target, which is
        // device memory and so does not overlap.
        unsafe { self.start.copy_to_nonoverlapping(NonNull::from(device).cast(), self.len_bytes) };
    }
}

/// What a command waits for before it reads an input.
pub(super) enum Dependency {
    /// The bytes are on the device, or will be when the buffer is ready. The ticket is that of
    /// the command which fills it, and names the cause if that fails.
    Ready(Option<Ticket>),
    /// The command brings the bytes itself.
    Upload(HostBytes),
}

/// An operand on the device.
pub(super) struct Input {
    pub(super) buffer: Arc<DeviceBuffer>,
    pub(super) dependency: Dependency,
    /// First byte of the storage that the buffer holds.
    start: usize,
    view: View,
}

impl Input {
    /// `buffer` holds the bytes of the operand's storage from `start` on.
    pub(super) fn new(
        buffer: Arc<DeviceBuffer>,
        operand: &Operand<'_>,
        start: usize,
        dependency: Dependency,
    ) -> Self {
        Self { buffer, dependency, start, view: View::new(operand, start) }
    }

    /// Another operand on the same bytes.
    pub(super) fn again(&self, operand: &Operand<'_>) -> Self {
        let ticket = match &self.dependency {
            Dependency::Ready(ticket) => ticket.clone(),
            Dependency::Upload(_) => None,
        };
        Self::new(Arc::clone(&self.buffer), operand, self.start, Dependency::Ready(ticket))
    }

    /// The buffer that the command fills from the host, and the first byte that it holds.
    pub(super) fn upload(&self) -> Option<(usize, Arc<DeviceBuffer>)> {
        match self.dependency {
            Dependency::Upload(_) => Some((self.start, Arc::clone(&self.buffer))),
            Dependency::Ready(_) => None,
        }
    }

    /// The elements for a kernel.
    pub(super) fn dense(&self) -> Result<Dense, String> {
        if self.view.dtype == DType::I32 {
            return Ok(Dense::ids(self.view.shape, self.view.ids(&self.buffer.read())?));
        }
        Ok(Dense::new(self.view.shape, self.buffer.decode(&self.view)?))
    }
}

/// Where the elements of an operand lie in a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct View {
    dtype: DType,
    offset_bytes: usize,
    shape: Shape,
    strides: Shape,
}

impl View {
    fn new(operand: &Operand<'_>, start: usize) -> Self {
        Self {
            dtype: operand.dtype(),
            offset_bytes: operand.offset_bytes() - start,
            shape: operand.shape(),
            strides: operand.strides(),
        }
    }

    /// Calls `row` with the byte offset of each row (the last axis), in order.
    fn each_row(&self, mut row: impl FnMut(usize) -> Option<()>) -> Option<()> {
        let (unit_elems, unit_bytes) = self.dtype.unit();
        let outer = &self.shape[..self.shape.len().saturating_sub(1)];
        let rows: usize = if self.shape.contains(&0) { 0 } else { outer.iter().product() };
        for index in 0..rows {
            let (mut rest, mut elems) = (index, 0);
            for axis in (0..outer.len()).rev() {
                elems += rest % outer[axis] * self.strides[axis];
                rest /= outer[axis];
            }
            row(self.offset_bytes + elems / unit_elems * unit_bytes)?;
        }
        Some(())
    }

    fn decode(&self, bytes: &[u8]) -> Result<Vec<f32>, String> {
        let outside = || "operand outside its device memory".to_owned();
        let row_elems = self.shape.last().copied().unwrap_or(1);
        let step = self.strides.last().copied().unwrap_or(1);
        let mut out = Vec::with_capacity(self.shape.elems().ok_or_else(outside)?);
        if step == 1 || row_elems <= 1 {
            let row_bytes = self.dtype.row_bytes(row_elems).ok_or_else(outside)?;
            let decoded = self.each_row(|at| {
                let from = out.len();
                out.resize(from + row_elems, 0.0);
                let src = bytes.get(at..at.checked_add(row_bytes)?)?;
                self.dtype.decode(src, &mut out[from..]).ok()
            });
            decoded.ok_or_else(outside)?;
            return Ok(out);
        }
        let size = self.dtype.unit().1;
        let decoded = self.each_row(|at| {
            for i in 0..row_elems {
                let at = at.checked_add(i.checked_mul(step)?.checked_mul(size)?)?;
                let mut elem = [0.0];
                self.dtype.decode(bytes.get(at..at.checked_add(size)?)?, &mut elem).ok()?;
                out.push(elem[0]);
            }
            Some(())
        });
        decoded.ok_or_else(outside)?;
        Ok(out)
    }

    fn ids(&self, bytes: &[u8]) -> Result<Vec<i32>, String> {
        let outside = || "operand outside its device memory".to_owned();
        let (&[len], &[step]) = (&*self.shape, &*self.strides) else { return Err(outside()) };
        let id = |i: usize| {
            let at = self.offset_bytes.checked_add(i.checked_mul(step)?.checked_mul(4)?)?;
            let bytes = bytes.get(at..)?.first_chunk::<4>()?;
            Some(i32::from_le_bytes(*bytes))
        };
        (0..len).map(id).collect::<Option<_>>().ok_or_else(outside)
    }
}

/// A command in a lane's queue.
pub(super) struct Job {
    pub(super) kernel: Kernel,
    pub(super) inputs: Vec<Input>,
    pub(super) out: Arc<DeviceBuffer>,
    pub(super) plan: Plan,
    /// Position among all commands; set when the lane takes it.
    pub(super) number: u64,
    /// Device memory that only this command needs.
    pub(super) bytes: usize,
}

impl Job {
    pub(super) fn new(
        kernel: Kernel,
        inputs: Vec<Input>,
        out: Arc<DeviceBuffer>,
        plan: Plan,
    ) -> Self {
        let uploads = inputs.iter().filter_map(Input::upload);
        let bytes = out.len_bytes() + uploads.map(|(_, buffer)| buffer.len_bytes()).sum::<usize>();
        Self { kernel, inputs, out, plan, number: 0, bytes }
    }
}
