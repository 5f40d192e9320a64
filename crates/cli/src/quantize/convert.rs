//! Tensors from one type to another, a batch of blocks at a time, on all threads.

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::thread;

use bytes::Bytes;
use fucina::DType;

use crate::exit::{Exit, Failure};
use crate::progress::Progress;
use crate::signals;

/// Elements that a thread converts at a time: 1 MiB of f32, and whole blocks of every format.
const CHUNK: usize = 1 << 18;

/// What all tensors of a file share while it is written.
pub(crate) struct Work {
    pub(crate) threads: usize,
    total: u64,
    state: Mutex<State>,
}

struct State {
    progress: Progress,
    done: u64,
    stopped: Option<Stop>,
}

/// Why writing ended early, other than because writing failed.
pub(crate) enum Stop {
    Interrupted,
    Failed(Failure),
}

/// A tensor and the types it has and gets. The types are equal for one that is copied.
pub(crate) struct Tensor {
    pub(crate) name: String,
    pub(crate) data: Bytes,
    pub(crate) conversion: Option<(DType, DType)>,
}

/// Buffers of one thread.
#[derive(Default)]
struct Slot {
    values: Vec<f32>,
    bytes: Vec<u8>,
}

impl Work {
    /// `total` is in bytes of the input.
    pub(crate) fn new(threads: usize, total: u64, quiet: bool) -> Self {
        let progress = Progress::new("quantizing", true, quiet);
        let state = Mutex::new(State { progress, done: 0, stopped: None });
        Self { threads, total, state }
    }

    /// Writes a tensor in its new type.
    ///
    /// # Errors
    ///
    /// Fails if `out` does. If values cannot be converted, or a signal came, the error is a
    /// placeholder, and the reason is in [`stopped`](Self::stopped).
    pub(crate) fn write(&self, tensor: &Tensor, out: &mut dyn Write) -> io::Result<()> {
        let Some((from, to)) = tensor.conversion else {
            return tensor.data.chunks(4 * CHUNK).try_for_each(|bytes| {
                out.write_all(bytes)?;
                self.advance(bytes.len())
            });
        };
        let chunk_bytes = from.row_bytes(CHUNK).unwrap_or(usize::MAX);
        let mut slots: Vec<Slot> = (0..self.threads).map(|_| Slot::default()).collect();
        let mut first = 0;
        for batch in tensor.data.chunks(chunk_bytes.saturating_mul(self.threads)) {
            let parts: Vec<&[u8]> = batch.chunks(chunk_bytes).collect();
            let convert = |slot: &mut Slot, at: usize| {
                slot.convert(parts[at], (from, to), first + at * CHUNK, &tensor.name)
            };
            let results = on_threads(&mut slots[..parts.len()], &convert)?;
            for (slot, result) in slots.iter().zip(results) {
                result.or_else(|failure| self.stop(Stop::Failed(failure)))?;
                out.write_all(&slot.bytes)?;
            }
            first += parts.len() * CHUNK;
            self.advance(batch.len())?;
        }
        Ok(())
    }

    /// Why the work ended early, if it did.
    pub(crate) fn stopped(self) -> Option<Stop> {
        self.state.into_inner().unwrap_or_else(PoisonError::into_inner).stopped
    }

    fn advance(&self, bytes: usize) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.done += bytes as u64;
        state.progress.set(state.done, self.total);
        drop(state);
        if signals::stop_asked() { self.stop(Stop::Interrupted) } else { Ok(()) }
    }

    fn stop(&self, why: Stop) -> io::Result<()> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).stopped = Some(why);
        Err(io::Error::other("stopped"))
    }
}

impl Slot {
    /// Converts whole blocks; the first of them is element `first` of the tensor.
    fn convert(
        &mut self,
        src: &[u8],
        (from, to): (DType, DType),
        first: usize,
        name: &str,
    ) -> Result<(), Failure> {
        let (unit_elems, unit_bytes) = from.unit();
        let elems = src.len() / unit_bytes * unit_elems;
        self.values.resize(elems, 0.0);
        self.bytes.resize(to.row_bytes(elems).unwrap_or(0), 0);
        let failed = |error: &dyn std::fmt::Display| {
            Failure::new(Exit::Model, format!("tensor `{name}`: {error}"))
        };
        from.decode(src, &mut self.values).map_err(|error| failed(&error))?;
        to.encode(&self.values, &mut self.bytes).map_err(|error| failed(&error.offset_by(first)))
    }
}

/// Calls `convert` for each slot with its number, the last one on this thread.
fn on_threads(
    slots: &mut [Slot],
    convert: &(impl Fn(&mut Slot, usize) -> Result<(), Failure> + Sync),
) -> io::Result<Vec<Result<(), Failure>>> {
    thread::scope(|scope| {
        let Some((last, others)) = slots.split_last_mut() else { return Ok(Vec::new()) };
        let count = others.len();
        let mut running = Vec::with_capacity(count);
        for (at, slot) in others.iter_mut().enumerate() {
            let work = move || convert(slot, at);
            running.push(thread::Builder::new().spawn_scoped(scope, work)?);
        }
        let result = convert(last, count);
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        Ok(running.into_iter().map(join).chain([result]).collect())
    })
}
