//! The operands of a call on the device: found there, or on their way.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

use fucina_accel::{Arrival, Call, Decline, DeviceCopy, Input, Operand, Storage};

use crate::driver::{CuError, Entered, Stream, held, sub};
use crate::memory::Buffer;
use crate::pages::{self, Locked};
use crate::queue::{Device, count};
use crate::staging::{self, Piece};
use crate::sys::DevicePtr;

/// The operands of one call, in its order.
pub(crate) struct Inputs {
    /// Address of the first element of each operand.
    pub(crate) addresses: Vec<DevicePtr>,
    /// Memory that the operands lie in, one for each; then that of tables.
    pub(crate) buffers: Vec<Arc<Buffer>>,
    pub(crate) uploads: Vec<Upload>,
    /// Range of the storage that each upload brings, and the operand that it is for. Tables come
    /// last, and have none.
    kept: Vec<(usize, Range<usize>, Arrival)>,
    /// What a timeline shows of the operands.
    pub(crate) seen: [Option<Input>; 3],
}

/// Bytes that a command brings to the device.
pub(crate) struct Upload {
    pub(crate) buffer: Arc<Buffer>,
    /// Where in the buffer it goes.
    pub(crate) at: usize,
    pub(crate) len_bytes: usize,
    pub(crate) source: Source,
}

/// Where an upload comes from.
pub(crate) enum Source {
    /// It is on the device already.
    Done,
    /// From locked pages of the host, each piece by one copy.
    Host(Vec<HostPiece>, Arc<Locked>),
    /// From staging memory.
    Staged(Piece),
}

/// Part of an upload, in locked pages.
pub(crate) struct HostPiece {
    from: NonNull<u8>,
    at: usize,
    len_bytes: usize,
}

// SAFETY: the address is used only by `upload`, which does not depend on the thread.
unsafe impl Send for HostPiece {}

impl HostPiece {
    pub(crate) fn upload(
        &self,
        entered: &Entered<'_>,
        stream: &Stream,
        to: DevicePtr,
    ) -> Result<(), CuError> {
        let to = to + self.at as DevicePtr;
        // SAFETY: the pages are locked. The seam keeps the operand's bytes allocated and unwritten
        // until the command has finished, and the buffer is as large as the operand's range.
        unsafe { entered.upload(stream, to, self.from, self.len_bytes) }
    }
}

impl Upload {
    /// Bytes of the host, by way of staging memory.
    pub(crate) fn staged(device: &Device, bytes: &[u8]) -> Result<Self, Decline> {
        if bytes.len() > staging::MAX_BYTES {
            return Err(Decline::UnsupportedShape);
        }
        let buffer = take(device, bytes.len())?;
        let from = NonNull::from(bytes).cast();
        // SAFETY: a shared slice is readable, and nothing writes it.
        let piece = unsafe { stage(device, from, bytes.len()) }?;
        Ok(Self { buffer, at: 0, len_bytes: bytes.len(), source: Source::Staged(piece) })
    }

    fn take_held(&mut self) -> Option<Held> {
        match std::mem::replace(&mut self.source, Source::Done) {
            Source::Staged(piece) => Some(Held::Piece(piece)),
            Source::Host(_, locked) => Some(Held::Pages(locked)),
            Source::Done => None,
        }
    }
}

/// What an upload reads, and what has to stay as it is until the upload has passed.
#[expect(dead_code, reason = "held, not looked at")]
pub(crate) enum Held {
    /// Staging memory.
    Piece(Piece),
    /// Pages of the program that are locked.
    Pages(Arc<Locked>),
}

fn take(device: &Device, len_bytes: usize) -> Result<Arc<Buffer>, Decline> {
    device.memory.take(len_bytes).map(Arc::new).ok_or(Decline::OutOfDeviceMemory)
}

/// Copies bytes to staging memory.
///
/// # Safety
///
/// `from` is readable for `len_bytes`, and nothing writes it meanwhile.
unsafe fn stage(device: &Device, from: NonNull<u8>, len_bytes: usize) -> Result<Piece, Decline> {
    let mut piece = device.staging.take(len_bytes).ok_or(Decline::HostMemory)?;
    // SAFETY: passed on to the caller; no command uses a piece that was just taken.
    unsafe { piece.memory_mut().fill(from, len_bytes) };
    Ok(piece)
}

impl Inputs {
    /// Finds the operands of a call on the device, and prepares the others for upload.
    ///
    /// # Safety
    ///
    /// As for [`Provider::submit`](fucina_accel::Provider::submit).
    pub(crate) unsafe fn of(
        device: &Device,
        entered: &Entered<'_>,
        call: &Call<'_>,
    ) -> Result<Self, Decline> {
        let (addresses, buffers) = (Vec::with_capacity(3), Vec::with_capacity(3));
        let (uploads, kept) = (Vec::new(), Vec::new());
        let mut inputs = Self { addresses, buffers, uploads, kept, seen: [None; 3] };
        let operands: Vec<&Operand<'_>> = call.inputs().collect();
        for (index, operand) in operands.iter().enumerate() {
            let same = |other: &&Operand<'_>| {
                std::ptr::eq(other.storage(), operand.storage())
                    && other.byte_range() == operand.byte_range()
            };
            if let Some(twin) = operands[..index].iter().position(same) {
                inputs.addresses.push(inputs.addresses[twin]);
                inputs.buffers.push(Arc::clone(&inputs.buffers[twin]));
                continue;
            }
            // SAFETY: passed on to the caller.
            unsafe { inputs.add(device, entered, index, operand) }?;
        }
        Ok(inputs)
    }

    unsafe fn add(
        &mut self,
        device: &Device,
        entered: &Entered<'_>,
        index: usize,
        operand: &Operand<'_>,
    ) -> Result<(), Decline> {
        let (storage, range) = (operand.storage(), operand.byte_range());
        let copy = storage.device_copy(device.provider.device(0), range.clone());
        if let Some(copy) = copy
            && let Some(buffer) = copy.object::<Buffer>()
        {
            let address = buffer.address() + (range.start - copy.range().start) as DevicePtr;
            // A copy that was made for another element type may begin at an odd place.
            let (elems, bytes) = operand.dtype().unit();
            if elems > 1 || address.is_multiple_of(bytes as DevicePtr) {
                self.see(device, index, operand, Arrival::OnDevice);
                self.addresses.push(address);
                self.buffers.push(buffer);
                count(&device.counters.reused_copies, 1);
                device.counters.arrived(storage.is_read_only(), Arrival::OnDevice, range.len());
                return Ok(());
            }
        }
        // A host boundary, if the bytes are pending elsewhere.
        storage.host().map_err(|_| Decline::Faulted)?;
        if let Some(grown) = grown(device, storage, &range) {
            // SAFETY: passed on to the caller.
            return unsafe { self.add_tail(device, entered, (index, operand), grown) };
        }
        let buffer = take_with_room(device, storage, &range)?;
        // SAFETY: the bytes are on the host; the caller keeps them allocated and unwritten.
        let source = unsafe { source(device, entered, storage, &range, (&buffer, 0)) }?;
        self.addresses.push(buffer.address());
        self.buffers.push(Arc::clone(&buffer));
        let arrival = storage.arrival(device.provider.device(0), range.clone());
        self.see(device, index, operand, arrival);
        if matches!(source, Source::Done) {
            // The bytes are there, whatever becomes of this call.
            let len_bytes = range.len();
            keep(device, storage, (range, len_bytes, arrival), buffer);
            return Ok(());
        }
        self.kept.push((index, range.clone(), arrival));
        self.uploads.push(Upload { buffer, at: 0, len_bytes: range.len(), source });
        Ok(())
    }

    /// Adds an operand of which the device lacks the end only. Commands in flight may read what is
    /// before it in the same memory; nothing reads the end, because the host has written it since.
    unsafe fn add_tail(
        &mut self,
        device: &Device,
        entered: &Entered<'_>,
        (index, operand): (usize, &Operand<'_>),
        Grown { buffer, first, start, tail }: Grown,
    ) -> Result<(), Decline> {
        let (storage, range) = (operand.storage(), operand.byte_range());
        let at = tail.start - first;
        buffer.forget();
        // SAFETY: passed on to the caller.
        let source = unsafe { source(device, entered, storage, &tail, (&buffer, at)) }?;
        self.addresses.push(start);
        self.buffers.push(Arc::clone(&buffer));
        self.see(device, index, operand, Arrival::UploadedGrown);
        let (all, len_bytes) = (first..range.end, tail.len());
        if matches!(source, Source::Done) {
            keep(device, storage, (all, len_bytes, Arrival::UploadedGrown), buffer);
            return Ok(());
        }
        self.kept.push((index, all, Arrival::UploadedGrown));
        self.uploads.push(Upload { buffer, at, len_bytes, source });
        Ok(())
    }

    /// What the uploads read, for whoever knows when they have.
    pub(crate) fn take_held(&mut self) -> Vec<Held> {
        self.uploads.iter_mut().filter_map(Upload::take_held).collect()
    }

    /// Notes how an operand gets to the device, for those who watch.
    fn see(&mut self, device: &Device, index: usize, operand: &Operand<'_>, arrival: Arrival) {
        if device.timing.get().is_none() {
            return;
        }
        let (storage, range) = (operand.storage(), operand.byte_range());
        if let Some(seen) = self.seen.get_mut(index) {
            *seen = Some(Input {
                operand: index,
                content: storage.content(),
                offset_bytes: range.start,
                len_bytes: range.len(),
                is_weight: storage.is_read_only(),
                arrival,
            });
        }
    }

    /// The operand that an upload is for; `None` for a table.
    pub(crate) fn operand_of(&self, upload: usize) -> Option<usize> {
        self.kept.get(upload).map(|(operand, ..)| *operand)
    }

    /// Lets later calls find what the device has been given.
    pub(crate) fn keep(&self, device: &Device, call: &Call<'_>) {
        for upload in &self.uploads[self.kept.len()..] {
            held(&device.counters.tables).add(upload.len_bytes);
        }
        for (upload, (index, range, arrival)) in self.uploads.iter().zip(&self.kept) {
            let Some(operand) = call.inputs().nth(*index) else { continue };
            let place = (range.clone(), upload.len_bytes, *arrival);
            keep(device, operand.storage(), place, Arc::clone(&upload.buffer));
        }
    }
}

/// Part of an operand that is on the device, in memory with room for the rest.
struct Grown {
    buffer: Arc<Buffer>,
    /// Byte of the storage that the buffer begins with.
    first: usize,
    /// Address of the operand.
    start: DevicePtr,
    /// Bytes of the storage that the device lacks.
    tail: Range<usize>,
}

/// The beginning of `range` on the device, if the rest fits after it: a cache that has grown.
fn grown(device: &Device, storage: &Storage, range: &Range<usize>) -> Option<Grown> {
    if storage.is_read_only() || range.is_empty() {
        return None;
    }
    let copy = storage.device_copy(device.provider.device(0), range.start..range.start + 1)?;
    let (first, held) = (copy.range().start, copy.range().end);
    let buffer = copy.object::<Buffer>()?;
    let start = buffer.address() + (range.start - first) as DevicePtr;
    // What is not aligned for a kernel's loads begins anew.
    let fits = range.end - first <= buffer.len_bytes() && start.is_multiple_of(16);
    (held < range.end && fits).then_some(Grown { buffer, first, start, tail: held..range.end })
}

/// Memory for a range of a storage: with room for half as much again, if the storage goes on after
/// it and there is memory that nobody needs. What is a part of a whole that can be written may be a
/// cache.
fn take_with_room(
    device: &Device,
    storage: &Storage,
    range: &Range<usize>,
) -> Result<Arc<Buffer>, Decline> {
    let rest = if storage.is_read_only() { 0 } else { storage.len_bytes() - range.end };
    let room = rest.min(range.len() / 2);
    let roomy = if room > 0 { device.memory.take_spare(range.len() + room) } else { None };
    roomy.map_or_else(|| take(device, range.len()), |buffer| Ok(Arc::new(buffer)))
}

/// Lets later calls find bytes of a storage: a range, of which so many bytes came in that way.
fn keep(
    device: &Device,
    storage: &Storage,
    (range, len_bytes, arrival): (Range<usize>, usize, Arrival),
    buffer: Arc<Buffer>,
) {
    device.counters.arrived(storage.is_read_only(), arrival, len_bytes);
    count(&device.counters.uploads, 1);
    count(&device.counters.uploaded_bytes, len_bytes);
    let copy = DeviceCopy::new(device.provider.device(0), range, buffer as Arc<_>);
    device.memory.budget().track(&copy);
    storage.add_device_copy(copy);
}

/// How the bytes `range` of a storage get to the device, to byte `at` of a buffer.
///
/// # Safety
///
/// The bytes are on the host. They stay allocated and unwritten until the command has finished.
unsafe fn source(
    device: &Device,
    entered: &Entered<'_>,
    storage: &Storage,
    range: &Range<usize>,
    (buffer, at): (&Buffer, usize),
) -> Result<Source, Decline> {
    let (start, len_bytes) = (sub(storage.as_ptr(), range), range.len());
    // Pages of a mapped file are not locked: that would keep the whole file in memory.
    if len_bytes >= pages::MIN_BYTES
        && !storage.is_read_only()
        && let Some(locked) = locked(device, storage)
    {
        let first = start.addr().get();
        let piece = |bytes: Range<usize>| HostPiece {
            from: sub(start, &(bytes.start - first..bytes.end - first)),
            at: at + bytes.start - first,
            len_bytes: bytes.len(),
        };
        let pieces = locked.pieces(first..first + len_bytes).map(piece).collect();
        return Ok(Source::Host(pieces, locked));
    }
    if len_bytes <= staging::MAX_BYTES {
        // SAFETY: passed on to the caller.
        return unsafe { stage(device, start, len_bytes) }.map(Source::Staged);
    }
    // SAFETY: passed on to the caller.
    unsafe { upload_now(device, entered, (start, len_bytes), (buffer, at)) }?;
    Ok(Source::Done)
}

/// The locked pages of a storage's allocation.
pub(crate) fn locked(device: &Device, storage: &Storage) -> Option<Arc<Locked>> {
    let start = storage.as_ptr().as_ptr().expose_provenance();
    let len_bytes = storage.capacity_bytes();
    storage.resource(device.provider, || {
        // SAFETY: the storage destroys its resources before it frees the allocation.
        unsafe { Locked::new(&device.context, &device.shared_pages, start, len_bytes) }
    })
}

/// Brings many bytes to the device, piece by piece, and waits for them. This is how the weights of
/// a mapped file get there, once.
///
/// # Safety
///
/// `from` is readable for `len_bytes`, and nothing writes it meanwhile.
unsafe fn upload_now(
    device: &Device,
    entered: &Entered<'_>,
    (from, len_bytes): (NonNull<u8>, usize),
    (buffer, first): (&Buffer, usize),
) -> Result<(), Decline> {
    let refused = |_: CuError| Decline::Refused;
    device.wait_before_upload(entered, buffer).map_err(refused)?;
    // Two pieces: one is filled while the other is on its way.
    let mut pieces = Vec::new();
    for _ in 0..2 {
        let piece = device.staging.take(staging::MAX_BYTES).ok_or(Decline::HostMemory)?;
        pieces.push((piece, device.events.take(entered).map_err(refused)?));
    }
    let lane = &device.lanes.upload;
    let mut sent = Ok(());
    for (number, at) in (0..len_bytes).step_by(staging::MAX_BYTES).enumerate() {
        let (piece, event) = &mut pieces[number % 2];
        let part = at..len_bytes.min(at + staging::MAX_BYTES);
        sent = (|| {
            if number >= 2 {
                entered.await_event(event)?;
            }
            // SAFETY: the caller vouches for the bytes. The piece's last upload has passed.
            unsafe { piece.memory_mut().fill(sub(from, &part), part.len()) };
            let to = buffer.address() + (first + at) as DevicePtr;
            let from = piece.memory().start();
            // SAFETY: the piece is page-locked and kept until the lane is empty, and the buffer is
            // as large as the bytes.
            unsafe { entered.upload(lane, to, from, part.len()) }?;
            entered.record(event, lane)
        })();
        if sent.is_err() {
            break;
        }
    }
    match entered.drain(lane) {
        Ok(()) => sent.map_err(refused),
        Err(error) => {
            device.lose(&error);
            // The device may still read them.
            std::mem::forget(pieces);
            Err(Decline::DeviceLost)
        }
    }
}
