//! A command in flight, as the seam sees it.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, Weak};

use fucina_accel::{CommandError, InFlight};

use crate::driver::{CuError, Entered, Event, held, sub};
use crate::memory::Buffer;
use crate::pages::Locked;
use crate::queue::{Device, Done, count};
use crate::staging::{self, Piece};
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
    /// The copy to the host, or why there is none, if it was started ahead.
    pub(crate) coming: Mutex<Option<Started>>,
}

/// A copy that was asked for.
type Started = Result<Option<Coming>, (CuError, Target)>;

impl Command {
    fn outcome(&self, known: &Result<(), CuError>) -> Result<(), CommandError> {
        known.as_ref().map_or_else(|error| Err(self.device.lose(error)), |()| Ok(()))
    }

    /// Records how the command ended. What earlier commands held is let go with it: whoever learns
    /// that this one has run may free what those have read.
    fn has_run(&self, entered: &Entered<'_>, result: Result<(), CuError>) {
        let fine = result.is_ok();
        self.done.settle(result);
        self.done.tell(entered);
        if fine {
            self.device.release_uploads(entered, self.place);
        }
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

    /// Queues the copy of the output. `None` if it takes more than one piece of staging memory.
    ///
    /// # Safety
    ///
    /// As for [`InFlight::prefetch`]: the caller waits for the copy before it gives `out` away.
    unsafe fn start(&self, entered: &Entered<'_>, out: NonNull<[u8]>) -> Started {
        let (start, len_bytes) = (out.cast::<u8>(), out.len());
        let (device, lane) = (&self.device, &self.device.lanes.download);
        let source = self.out.address();
        let (locked, mut piece) = (self.target.upgrade(), None);
        if locked.is_none() {
            if len_bytes > staging::MAX_BYTES {
                return Ok(None);
            }
            piece = device.staging.take(len_bytes);
            if piece.is_none() {
                return Ok(None);
            }
        }
        let first = start.addr().get();
        let sent = (|| {
            let (event, began) = (device.events.take(entered)?, self.began(entered)?);
            entered.wait(lane, self.done.event())?;
            for part in locked.iter().flat_map(|locked| locked.pieces(first..first + len_bytes)) {
                let at = part.start - first;
                let to = sub(start, &(at..at + part.len()));
                // SAFETY: the pages are locked, the caller owns the bytes until this has been
                // waited for, and the buffer is as large as the output.
                unsafe { entered.download(lane, to, source + at as u64, part.len()) }?;
            }
            if let Some(piece) = &piece {
                let to = piece.memory().start();
                // SAFETY: the piece is page-locked, and nobody else gets it before this has been
                // waited for.
                unsafe { entered.download(lane, to, source, len_bytes) }?;
            }
            entered.record(&event, lane)?;
            Ok((event, began))
        })();
        let target = Target { piece, _locked: locked };
        match sent {
            Ok((event, began)) => Ok(Some(Coming { event, began, target })),
            Err(error) => Err((error, target)),
        }
    }

    /// The first of two marks around a copy, if somebody watches.
    fn began(&self, entered: &Entered<'_>) -> Result<Option<Event>, CuError> {
        let Some(timing) = self.device.timing.get() else { return Ok(None) };
        let lane = &self.device.lanes.download;
        entered.wait(lane, self.done.event())?;
        timing.stamp(entered, lane).map(Some)
    }

    /// Waits for a copy that was started. After an error the staging memory of the copy is given
    /// up, unless the lane is found empty.
    ///
    /// # Safety
    ///
    /// As for [`InFlight::publish`], with the `out` that the copy was started with.
    unsafe fn finish(
        &self,
        entered: &Entered<'_>,
        coming: Coming,
        out: NonNull<[u8]>,
    ) -> Result<(), CuError> {
        let Coming { event, began, target } = coming;
        if let Err(error) = Self::wait(entered, &event) {
            // The wait was refused, or the device is lost: another way to wait tells.
            if entered.drain(&self.device.lanes.download).is_err() {
                std::mem::forget(target);
                return Err(error);
            }
        }
        if let Some(piece) = &target.piece {
            // SAFETY: the caller owns the bytes, and the copy into the piece has passed.
            unsafe { piece.memory().copy_out(out.cast(), out.len()) };
        }
        self.tell_copy(entered, began, out.len());
        Ok(())
    }

    /// Tells when a copy ran, which has passed.
    fn tell_copy(&self, entered: &Entered<'_>, began: Option<Event>, len_bytes: usize) {
        let Some((timing, began)) = self.device.timing.get().zip(began) else { return };
        // The bytes are there, whatever comes of the second mark. Everything before it has passed,
        // so the wait takes no time worth mentioning.
        if let Ok(end) = timing.stamp(entered, &self.device.lanes.download)
            && Self::wait(entered, &end).is_ok()
        {
            let (command, mark) = (self.device.command(self.place), Mark::new(began, end));
            timing.downloaded(entered, command, &mark, len_bytes);
        }
    }

    /// Copies the output through staging memory, piece by piece, or through the driver's own where
    /// there is none. Needs no event of its own, so it also serves where one was refused.
    ///
    /// # Safety
    ///
    /// As for [`InFlight::publish`], and the command has run.
    unsafe fn download_in_pieces(
        &self,
        entered: &Entered<'_>,
        out: NonNull<[u8]>,
    ) -> Result<(), CuError> {
        let (start, len_bytes) = (out.cast::<u8>(), out.len());
        let lane = &self.device.lanes.download;
        let began = self.began(entered).unwrap_or(None);
        for at in (0..len_bytes).step_by(staging::MAX_BYTES) {
            let part = at..len_bytes.min(at + staging::MAX_BYTES);
            let (from, to) = (self.out.address() + at as u64, sub(start, &part));
            let Some(piece) = self.device.staging.take(part.len()) else {
                // SAFETY: the caller owns the bytes, and the driver returns when they are there.
                unsafe { entered.download_now(to, from, part.len()) }?;
                continue;
            };
            // SAFETY: the piece is page-locked, and nobody else uses it until the lane is empty.
            let sent = unsafe { entered.download(lane, piece.memory().start(), from, part.len()) };
            if let Err(error) = entered.drain(lane) {
                // The device may still write it.
                std::mem::forget(piece);
                return Err(error);
            }
            if sent.is_err() {
                // SAFETY: as above.
                unsafe { entered.download_now(to, from, part.len()) }?;
                continue;
            }
            // SAFETY: the caller owns the bytes, and the copy into the piece has passed.
            unsafe { piece.memory().copy_out(to, part.len()) };
        }
        self.tell_copy(entered, began, len_bytes);
        Ok(())
    }

    /// Brings the output to `out`: waits for the copy that was started, or starts one, or copies
    /// in another way what the driver refuses to copy in this one.
    ///
    /// # Safety
    ///
    /// As for [`InFlight::publish`].
    unsafe fn bring(&self, entered: &Entered<'_>, out: NonNull<[u8]>) -> Result<(), CommandError> {
        let started = match held(&self.coming).take() {
            Some(started) => started,
            // SAFETY: passed on to the caller, who gets `out` back after the wait below.
            None => unsafe { self.start(entered, out) },
        };
        match started {
            Ok(Some(coming)) => {
                // SAFETY: passed on to the caller; this is the copy into `out`.
                let finished = unsafe { self.finish(entered, coming, out) };
                return finished.map_err(|error| self.lost(&error));
            }
            Ok(None) => {}
            // A part of it may be under way.
            Err((error, target)) => {
                if entered.drain(&self.device.lanes.download).is_err() {
                    std::mem::forget(target);
                    return Err(self.lost(&error));
                }
            }
        }
        self.await_run(entered).map_err(|error| self.lost(&error))?;
        // SAFETY: passed on to the caller; the command has run.
        unsafe { self.download_in_pieces(entered, out) }.map_err(|error| {
            // A device that answers is not lost: only this result is.
            match entered.drain(&self.device.lanes.download) {
                Ok(()) => CommandError::Failed { code: error.to_string() },
                Err(error) => self.lost(&error),
            }
        })
    }

    /// The device is gone, and with it how the command ended.
    fn lost(&self, error: &CuError) -> CommandError {
        self.done.settle(Err(error.clone()));
        self.device.lose(error)
    }

    /// Waits until the command has run: for its event, or for the whole lane where the driver
    /// refuses that.
    fn await_run(&self, entered: &Entered<'_>) -> Result<(), CuError> {
        Self::wait(entered, self.done.event())
            .or_else(|_| entered.drain(&self.device.lanes.compute))
    }
}

/// A copy to the host that is under way.
pub(crate) struct Coming {
    event: Event,
    /// Its start, if somebody watches.
    began: Option<Event>,
    target: Target,
}

/// What a copy writes: staging memory, or locked pages of the output. Forgotten, and so never used
/// again, if nobody can say that the device has let go of it.
pub(crate) struct Target {
    piece: Option<Piece>,
    _locked: Option<Arc<Locked>>,
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
            Ok(entered) => {
                let outcome = self.done.poll(&entered).map(|known| self.outcome(known));
                if matches!(outcome, Some(Ok(()))) {
                    self.device.release_uploads(&entered, self.place);
                }
                outcome
            }
            Err(outcome) => Some(outcome),
        }
    }

    fn retire(&self) -> Result<(), CommandError> {
        if self.done.known().is_none() {
            let entered = match self.enter() {
                Ok(entered) => entered,
                Err(outcome) => return outcome,
            };
            self.has_run(&entered, self.await_run(&entered));
        }
        self.done.known().map_or(Ok(()), |known| self.outcome(known))
    }

    unsafe fn prefetch(&self, out: NonNull<[u8]>) {
        if let Ok(entered) = self.device.context.enter() {
            // SAFETY: passed on to the caller, who publishes in any case. A part of a copy that was
            // refused is waited for there, too.
            let started = unsafe { self.start(&entered, out) };
            *held(&self.coming) = Some(started);
        }
    }

    unsafe fn publish(&self, out: NonNull<[u8]>) -> Result<(), CommandError> {
        if let Some(Err(error)) = self.done.known() {
            std::mem::forget(held(&self.coming).take());
            return Err(self.device.lose(error));
        }
        let entered = match self.device.context.enter() {
            Ok(entered) => entered,
            Err(error) => return Err(self.device.lose(&error)),
        };
        // SAFETY: passed on to the caller.
        let brought = unsafe { self.bring(&entered, out) };
        match &brought {
            // The copy came after the command, so the command has run if the copy has.
            Ok(()) | Err(CommandError::Failed { .. }) => self.has_run(&entered, Ok(())),
            Err(_) => {}
        }
        brought?;
        count(&self.device.counters.downloads, 1);
        count(&self.device.counters.downloaded_bytes, out.len());
        Ok(())
    }
}
