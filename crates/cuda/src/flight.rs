//! A command in flight, as the seam sees it.

use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use fucina_accel::{CommandError, InFlight};

use crate::driver::{CuError, Entered, Event, sub};
use crate::memory::Buffer;
use crate::pages::Locked;
use crate::queue::{Device, Done, count};
use crate::staging;
use crate::timing::Mark;

/// Times that a finished command is asked for before the thread parks.
const SPINS: u32 = 64;

/// One command.
pub(crate) struct Command {
    pub(crate) device: Arc<Device>,
    pub(crate) done: Arc<Done>,
    /// Its place in the compute lane.
    pub(crate) place: u64,
    /// The output. The pool may hand the operands' memory out again at once, but not this.
    pub(crate) out: Arc<Buffer>,
    /// The locked pages of the output's allocation, which the allocation owns.
    pub(crate) target: Weak<Locked>,
}

impl Command {
    fn outcome(&self, known: &Result<(), CuError>) -> Result<(), CommandError> {
        known.as_ref().map_or_else(|error| Err(self.device.lose(error)), |()| Ok(()))
    }

    /// Makes the context current; a failure is final, unless the outcome is known by now.
    fn enter(&self) -> Result<Entered<'_>, Result<(), CommandError>> {
        self.device.context.enter().map_err(|error| {
            self.done.settle(Err(error.clone()));
            match self.done.known() {
                Some(known) => self.outcome(known),
                None => Err(self.device.lose(&error)),
            }
        })
    }

    /// Waits for an event: a short while by asking, then parked. Its own status counts.
    fn wait(entered: &Entered<'_>, event: &Event) -> Result<(), CuError> {
        for _ in 0..SPINS {
            if entered.has_passed(event)? {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        entered.await_event(event)
    }

    /// Downloads between two marks, if somebody watches.
    ///
    /// # Safety
    ///
    /// As for [`InFlight::publish`].
    unsafe fn download_watched(
        &self,
        entered: &Entered<'_>,
        out: NonNull<[u8]>,
    ) -> Result<(), CuError> {
        let Some(timing) = self.device.timing.get() else {
            // SAFETY: passed on to the caller.
            return unsafe { self.download(entered, out) };
        };
        let lane = &self.device.lanes.download;
        entered.wait(lane, self.done.event())?;
        let start = timing.stamp(entered, lane)?;
        // SAFETY: passed on to the caller.
        unsafe { self.download(entered, out) }?;
        // The bytes are there, whatever comes of the second mark. Everything before it has passed,
        // so the wait takes no time worth mentioning.
        if let Ok(end) = timing.stamp(entered, lane)
            && Self::wait(entered, &end).is_ok()
        {
            let (command, mark) = (self.device.command(self.place), Mark::new(start, end));
            timing.downloaded(entered, command, &mark, out.len());
        }
        Ok(())
    }

    /// # Safety
    ///
    /// As for [`InFlight::publish`].
    unsafe fn download(&self, entered: &Entered<'_>, out: NonNull<[u8]>) -> Result<(), CuError> {
        let (start, len_bytes) = (out.cast::<u8>(), out.len());
        let lane = &self.device.lanes.download;
        entered.wait(lane, self.done.event())?;
        let event = self.device.events.take(entered)?;
        if let Some(locked) = self.target.upgrade() {
            let first = start.addr().get();
            for piece in locked.pieces(first..first + len_bytes) {
                let at = piece.start - first;
                let from = self.out.address() + at as u64;
                let to = sub(start, &(at..at + piece.len()));
                // SAFETY: the pages are locked, the caller owns the bytes until this has waited,
                // and the buffer is as large as the output.
                unsafe { entered.download(lane, to, from, piece.len()) }?;
            }
            entered.record(&event, lane)?;
            return Self::wait(entered, &event);
        }
        for at in (0..len_bytes).step_by(staging::MAX_BYTES) {
            let part = at..len_bytes.min(at + staging::MAX_BYTES);
            let from = self.out.address() + at as u64;
            let Some(piece) = self.device.staging.take(part.len()) else {
                Self::wait(entered, self.done.event())?;
                // SAFETY: the caller owns the bytes, and the driver returns when they are there.
                unsafe { entered.download_now(sub(start, &part), from, part.len()) }?;
                continue;
            };
            // SAFETY: the piece is page-locked, and nobody else uses it until this has waited.
            unsafe { entered.download(lane, piece.memory().start(), from, part.len()) }?;
            let arrived = entered.record(&event, lane).and_then(|()| Self::wait(entered, &event));
            if let Err(error) = arrived {
                // The device may still write it.
                std::mem::forget(piece);
                return Err(error);
            }
            // SAFETY: the caller owns the bytes, and the copy into the piece has passed.
            unsafe { piece.memory().copy_out(sub(start, &part), part.len()) };
        }
        Ok(())
    }
}

// SAFETY: a command is made once for each accepted call. Its mark is recorded in the compute lane
// after everything that reads host memory: uploads come before it by an event. The lane runs in
// order, so a mark that has passed says the same of all earlier ones. `publish` returns only after
// the last copy into `out` has passed. Outcomes are stored once. Drops free handles and give memory
// back; they do not wait for the device.
unsafe impl InFlight for Command {
    fn poll(&self) -> Option<Result<(), CommandError>> {
        if let Some(known) = self.done.known() {
            return Some(self.outcome(known));
        }
        match self.enter() {
            Ok(entered) => self.done.poll(&entered).map(|known| self.outcome(known)),
            Err(outcome) => Some(outcome),
        }
    }

    fn retire(&self) -> Result<(), CommandError> {
        if self.done.known().is_none() {
            let entered = match self.enter() {
                Ok(entered) => entered,
                Err(outcome) => return outcome,
            };
            self.done.settle(Self::wait(&entered, self.done.event()));
            self.done.tell(&entered);
        }
        self.done.known().map_or(Ok(()), |known| self.outcome(known))
    }

    unsafe fn publish(&self, out: NonNull<[u8]>) -> Result<(), CommandError> {
        if let Some(known) = self.done.known() {
            self.outcome(known)?;
        }
        let entered = match self.device.context.enter() {
            Ok(entered) => entered,
            Err(error) => return Err(self.device.lose(&error)),
        };
        // SAFETY: passed on to the caller.
        let downloaded = unsafe { self.download_watched(&entered, out) };
        // The download came after the command, so the command has run if the download has.
        self.done.settle(downloaded.clone());
        self.done.tell(&entered);
        if let Err(error) = downloaded {
            return Err(self.device.lose(&error));
        }
        count(&self.device.counters.downloads, 1);
        count(&self.device.counters.downloaded_bytes, out.len());
        Ok(())
    }
}
