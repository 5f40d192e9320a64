//! A result that arrives once, from another thread.
//!
//! For providers that learn of completion on a thread of their own. Waiting spins for a moment
//! and then parks.

use crate::error::CommandError;
use crate::sync::{AtomicU8, Condvar, Mutex, Ordering, lock, wait};

const PENDING: u8 = 0;
const COMPLETE: u8 = 1;

/// Looks at the flag before a waiter parks: about a microsecond.
const SPINS: u32 = if cfg!(loom) { 0 } else { 100 };

/// See the module.
#[derive(Debug)]
pub struct Completion {
    /// [`COMPLETE`] once the result is there. Stored with `Release` after the result, loaded with
    /// `Acquire`: who sees it also sees what the completing thread wrote before.
    flag: AtomicU8,
    result: Mutex<Option<Result<(), CommandError>>>,
    arrived: Condvar,
}

impl Default for Completion {
    fn default() -> Self {
        Self { flag: AtomicU8::new(PENDING), result: Mutex::new(None), arrived: Condvar::new() }
    }
}

impl Completion {
    /// Delivers the result. Later deliveries are ignored and return `false`.
    pub fn complete(&self, result: Result<(), CommandError>) -> bool {
        let mut slot = lock(&self.result);
        let first = slot.is_none();
        slot.get_or_insert(result);
        self.flag.store(COMPLETE, Ordering::Release);
        drop(slot);
        self.arrived.notify_all();
        first
    }

    /// Returns the result if it is there.
    pub fn poll(&self) -> Option<Result<(), CommandError>> {
        if self.flag.load(Ordering::Acquire) == PENDING {
            return None;
        }
        lock(&self.result).clone()
    }

    /// Blocks until the result is there.
    ///
    /// # Errors
    ///
    /// Returns the error that was delivered.
    pub fn wait(&self) -> Result<(), CommandError> {
        for _ in 0..SPINS {
            if self.flag.load(Ordering::Acquire) == COMPLETE {
                break;
            }
            std::hint::spin_loop();
        }
        let mut slot = lock(&self.result);
        loop {
            if let Some(result) = &*slot {
                return result.clone();
            }
            slot = wait(&self.arrived, slot);
        }
    }
}
