//! How many threads are inside the library at once.
//!
//! OpenBLAS has a fixed number of buffers, at least 50 whatever it was built for; a call beyond them
//! ends the process in some versions.

use std::sync::{Condvar, Mutex, PoisonError};

/// Calls at once: below the least number of buffers.
pub(crate) const MOST: usize = 32;

#[derive(Debug)]
pub(crate) struct Slots {
    free: Mutex<usize>,
    freed: Condvar,
}

/// The right to call the library, until it is dropped.
pub(crate) struct Slot<'a>(&'a Slots);

impl Slots {
    pub(crate) const fn new() -> Self {
        Self { free: Mutex::new(MOST), freed: Condvar::new() }
    }

    /// Waits for a call of another thread to end, if there are too many. Such a call waits for
    /// nothing, so it ends.
    pub(crate) fn take(&self) -> Slot<'_> {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let none = |free: &mut usize| *free == 0;
        let mut free = self.freed.wait_while(free, none).unwrap_or_else(PoisonError::into_inner);
        *free -= 1;
        Slot(self)
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        *self.0.free.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;

    #[test]
    fn more_threads_than_slots_take_turns() {
        let (slots, inside, most) = (Slots::new(), AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..2 * MOST {
                scope.spawn(|| {
                    for _ in 0..20 {
                        let _slot = slots.take();
                        most.fetch_max(inside.fetch_add(1, SeqCst) + 1, SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, SeqCst);
                    }
                });
            }
        });
        assert!((1..=MOST).contains(&most.into_inner()));
        assert_eq!(*slots.free.lock().unwrap(), MOST);
    }
}
