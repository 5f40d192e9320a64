//! A provider whose commands end when the test says so. It computes nothing: command number `n`
//! fills its output with the byte `n + 1`.

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::call::Call;
use crate::completion::Completion;
use crate::error::CommandError;
use crate::id::ProviderId;
use crate::provider::{Decline, DeviceInfo, Provider};
use crate::residency::DeviceCopy;
use crate::storage::Storage;
use crate::submission::{InFlight, Submission};

/// See the module.
#[derive(Debug)]
pub struct ManualProvider {
    id: ProviderId,
    lane: AtomicU32,
    decline: Mutex<Option<Decline>>,
    output_copy: Mutex<Option<Range<usize>>>,
    ends_at_once: AtomicBool,
    commands: Mutex<Vec<Arc<Manual>>>,
    copies: Arc<Mutex<Vec<Copied>>>,
}

/// A command, for tests to look at.
#[derive(Debug)]
pub struct Manual {
    number: usize,
    fill: u8,
    end: Completion,
    retires: AtomicUsize,
    publishes: AtomicUsize,
    /// Starts and ends of copies to the host, over all commands.
    copies: Arc<Mutex<Vec<Copied>>>,
    #[cfg(loom)]
    bytes: Witness,
}

/// Part of bringing the output of a command to the host, by the command's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Copied {
    /// Started ahead.
    Prefetched(usize),
    /// Waited for.
    Published(usize),
}

/// Stands for bytes in a model: the checker reports accesses that nothing orders.
#[cfg(loom)]
#[derive(Debug, Default)]
pub struct Witness(loom::cell::UnsafeCell<()>);

// SAFETY: there is no byte to race for; the model checker watches the accesses.
#[cfg(loom)]
unsafe impl Sync for Witness {}

#[cfg(loom)]
impl Witness {
    /// Reads the bytes.
    pub fn read(&self) {
        self.0.with(|_| ());
    }

    /// Writes the bytes.
    pub fn write(&self) {
        self.0.with_mut(|_| ());
    }
}

impl Default for ManualProvider {
    fn default() -> Self {
        Self {
            id: ProviderId::fresh(),
            lane: AtomicU32::new(0),
            decline: Mutex::new(None),
            output_copy: Mutex::new(None),
            ends_at_once: AtomicBool::new(false),
            commands: Mutex::default(),
            copies: Arc::default(),
        }
    }
}

impl ManualProvider {
    /// Puts the commands that follow on lane `lane`.
    pub fn set_lane(&self, lane: u32) {
        self.lane.store(lane, Ordering::Relaxed);
    }

    /// Declines every call from now on, or none.
    pub fn set_decline(&self, decline: Option<Decline>) {
        *self.decline.lock().unwrap_or_else(PoisonError::into_inner) = decline;
    }

    /// Claims that the device copies of the outputs that follow hold `range`, true or not.
    pub fn set_output_copy(&self, range: Range<usize>) {
        *self.output_copy.lock().unwrap_or_else(PoisonError::into_inner) = Some(range);
    }

    /// Lets the commands that follow end well by themselves.
    pub fn set_ends_at_once(&self) {
        self.ends_at_once.store(true, Ordering::Relaxed);
    }

    /// Lets command `number` end well.
    ///
    /// # Panics
    ///
    /// Panics if there is no such command.
    pub fn finish(&self, number: usize) {
        self.end(number, Ok(()));
    }

    /// Lets command `number` end as `result` says.
    ///
    /// # Panics
    ///
    /// Panics if there is no such command.
    pub fn end(&self, number: usize, result: Result<(), CommandError>) {
        let command = Arc::clone(&self.commands()[number]);
        command.end.complete(result);
    }

    /// How often command `number` was asked for its output.
    ///
    /// # Panics
    ///
    /// Panics if there is no such command.
    pub fn publishes(&self, number: usize) -> usize {
        self.commands()[number].publishes.load(Ordering::Relaxed)
    }

    /// What was asked of commands to bring their outputs, in order.
    pub fn copies(&self) -> Vec<Copied> {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How often a thread waited for command `number`.
    ///
    /// # Panics
    ///
    /// Panics if there is no such command.
    pub fn retires(&self, number: usize) -> usize {
        self.commands()[number].retires.load(Ordering::Relaxed)
    }

    /// Reads the output of command `number` as the host does, for the model checker.
    ///
    /// # Panics
    ///
    /// Panics if there is no such command.
    #[cfg(loom)]
    pub fn look(&self, number: usize) {
        let command = Arc::clone(&self.commands()[number]);
        command.bytes.read();
    }

    fn commands(&self) -> MutexGuard<'_, Vec<Arc<Manual>>> {
        self.commands.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Provider for ManualProvider {
    fn name(&self) -> &'static str {
        "manual"
    }

    fn device(&self) -> DeviceInfo {
        let name = "manual device".to_owned();
        DeviceInfo { id: self.id.device(0), name, memory_bytes: 0, is_unified: false }
    }

    unsafe fn submit(&self, call: &Call<'_>, _out: &Storage) -> Result<Submission, Decline> {
        if let Some(decline) = *self.decline.lock().unwrap_or_else(PoisonError::into_inner) {
            return Err(decline);
        }
        let out_bytes = call.out_bytes().map_err(|_| Decline::InvalidCall)?;
        let mut commands = self.commands();
        let fill = u8::try_from(commands.len() % 255 + 1).unwrap_or(1);
        let command = Arc::new(Manual {
            fill,
            end: Completion::default(),
            number: commands.len(),
            retires: AtomicUsize::new(0),
            copies: Arc::clone(&self.copies),
            publishes: AtomicUsize::new(0),
            #[cfg(loom)]
            bytes: Witness::default(),
        });
        if self.ends_at_once.load(Ordering::Relaxed) {
            command.end.complete(Ok(()));
        }
        let place = commands.len() as u64;
        commands.push(Arc::clone(&command));
        let device = self.id.device(0);
        let claim = self.output_copy.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let copy =
            DeviceCopy::new(device, claim.unwrap_or(0..out_bytes), Arc::clone(&command) as _);
        let lane = device.lane(self.lane.load(Ordering::Relaxed));
        Ok(Submission::new(lane, place, command).with_output_copy(copy))
    }
}

impl Manual {
    fn note(&self, copied: Copied) {
        self.copies.lock().unwrap_or_else(PoisonError::into_inner).push(copied);
    }
}

// SAFETY: the command touches no host memory except in `publish`, where it fills exactly `out`.
// Nothing here unwinds. Tests end the commands of one lane in order.
unsafe impl InFlight for Manual {
    fn poll(&self) -> Option<Result<(), CommandError>> {
        self.end.poll()
    }

    fn retire(&self) -> Result<(), CommandError> {
        self.retires.fetch_add(1, Ordering::Relaxed);
        self.end.wait()
    }

    unsafe fn prefetch(&self, _out: NonNull<[u8]>) {
        self.note(Copied::Prefetched(self.number));
    }

    unsafe fn publish(&self, out: NonNull<[u8]>) -> Result<(), CommandError> {
        self.note(Copied::Published(self.number));
        self.publishes.fetch_add(1, Ordering::Relaxed);
        self.end.wait()?;
        #[cfg(loom)]
        self.bytes.write();
        // SAFETY: the caller owns `out` for the call.
        unsafe { out.cast::<u8>().write_bytes(self.fill, out.len()) };
        Ok(())
    }
}
