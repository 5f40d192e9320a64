//! Memory whose storage is gone while a command may still touch it.
//!
//! Dropping a storage never blocks: the memory waits here together with its fence. The pool looks
//! after what it handed out; [`ORPHANS`] takes memory without a pool.

use std::mem;
use std::sync::{Arc, Mutex, PoisonError};

use crate::buffer::Memory;
use crate::fence::{Fence, FenceState};
use crate::trace::Trace;

/// Memory and its fence.
#[derive(Debug)]
pub(crate) struct Parked {
    memory: Memory,
    fence: Fence,
    trace: Option<Arc<Trace>>,
}

/// What became of parked memory.
pub(crate) enum Verdict {
    /// No command touches it.
    Free(Memory),
    /// Not yet known.
    Parked(Parked),
    /// It was given up.
    Leaked,
}

impl Parked {
    pub(crate) fn new(memory: Memory, fence: Fence, trace: Option<Arc<Trace>>) -> Self {
        Self { memory, fence, trace }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.memory.capacity()
    }

    /// Asks the devices, without blocking. A fault that nobody saw is counted here.
    pub(crate) fn judge(mut self) -> Verdict {
        let state = self.fence.state();
        if state == FenceState::Closed {
            return Verdict::Parked(self);
        }
        let fault = self.fence.writer.as_ref().and_then(|writer| writer.fault());
        if let (true, Some(trace), Some(fault)) = (self.fence.unseen_fault, &self.trace, fault) {
            trace.discarded_fault(&fault);
        }
        if state == FenceState::Open {
            return Verdict::Free(self.memory);
        }
        self.memory.leak();
        Verdict::Leaked
    }
}

/// Memory that no pool looks after: borrowed memory, and what outlives its pool.
static ORPHANS: Mutex<Vec<Parked>> = Mutex::new(Vec::new());

/// Leaves memory to the process. It is freed at a later call of [`sweep_orphans`].
pub(crate) fn park_orphan(orphan: Parked) {
    sweep_orphans();
    ORPHANS.lock().unwrap_or_else(PoisonError::into_inner).push(orphan);
}

/// Frees the orphans that no command touches any more. Returns how many are left.
pub(crate) fn sweep_orphans() -> usize {
    let orphans = || ORPHANS.lock().unwrap_or_else(PoisonError::into_inner);
    // Devices are asked and memory is freed without the lock: both run code of others.
    let taken = mem::take(&mut *orphans());
    let mut left = Vec::new();
    for parked in taken {
        match parked.judge() {
            Verdict::Parked(parked) => left.push(parked),
            Verdict::Free(memory) => drop(memory),
            Verdict::Leaked => {}
        }
    }
    let mut orphans = orphans();
    orphans.append(&mut left);
    orphans.len()
}
