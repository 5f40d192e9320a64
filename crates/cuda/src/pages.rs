//! Locked host pages, so that the device copies from and to tensors directly.
//!
//! The driver locks whole pages and refuses pages that are locked already, and allocations share
//! the pages at their ends. So the pages that belong to one allocation alone are locked together,
//! and each page at an end is locked by itself, once, for all allocations that reach into it. That
//! way pages are unlocked before the allocation that holds them is freed.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, Weak};

use crate::driver::{Context, Entered, LockedPages, held};

pub(crate) const PAGE_BYTES: usize = 4096;

/// Smaller allocations are copied through staging memory: locking costs more than the copy.
pub(crate) const MIN_BYTES: usize = 64 << 10;

/// Pages at the ends of allocations, by address.
#[derive(Default)]
pub(crate) struct SharedPages(Mutex<HashMap<usize, Weak<Lock>>>);

/// Locked pages, with the context that they are locked in.
struct Lock {
    _pages: LockedPages,
}

/// The locked pages of one allocation. Dropped before the allocation is freed.
pub(crate) struct Locked {
    /// Consecutive parts, each locked by itself. A copy must not cross from one to the next.
    parts: Vec<(Range<usize>, Arc<Lock>)>,
}

impl Locked {
    /// Locks the pages of the allocation `start..start + len_bytes`. `None` if the system refuses.
    ///
    /// # Safety
    ///
    /// The allocation stays where it is until the result is dropped.
    pub(crate) unsafe fn new(
        context: &Arc<Context>,
        shared: &SharedPages,
        start: usize,
        len_bytes: usize,
    ) -> Option<Self> {
        let entered = context.enter().ok()?;
        let mut parts = Vec::with_capacity(3);
        for range in split(start, start.checked_add(len_bytes)?)? {
            // SAFETY: the pages of the allocation are mapped for as long as the caller says. Those
            // at the ends stay mapped as long as any allocation reaches into them, and each such
            // allocation has its own reference.
            let lock = unsafe { shared.lock(&entered, &range, start, start + len_bytes) }?;
            parts.push((range, lock));
        }
        Some(Self { parts })
    }

    /// The pieces of `bytes`, a range of addresses, that one copy each may cover.
    pub(crate) fn pieces(&self, bytes: Range<usize>) -> impl Iterator<Item = Range<usize>> {
        self.parts.iter().filter_map(move |(part, _)| {
            let piece = part.start.max(bytes.start)..part.end.min(bytes.end);
            (!piece.is_empty()).then_some(piece)
        })
    }
}

impl SharedPages {
    /// Locks a range of pages, or finds the lock of an end page.
    ///
    /// # Safety
    ///
    /// As for [`Locked::new`].
    unsafe fn lock(
        &self,
        entered: &Entered<'_>,
        range: &Range<usize>,
        start: usize,
        end: usize,
    ) -> Option<Arc<Lock>> {
        // SAFETY: passed on to the caller.
        let new = || unsafe { entered.register(range.start, range.len()) }.ok();
        if start <= range.start && range.end <= end {
            return Some(Arc::new(Lock { _pages: new()? }));
        }
        let mut pages = held(&self.0);
        if let Some(lock) = pages.get(&range.start).and_then(Weak::upgrade) {
            return Some(lock);
        }
        // A lock whose last reference is just being dropped makes the driver refuse this one: the
        // bytes are then staged.
        let lock = Arc::new(Lock { _pages: new()? });
        if pages.len() == pages.capacity() {
            pages.retain(|_, lock| lock.strong_count() > 0);
        }
        pages.insert(range.start, Arc::downgrade(&lock));
        Some(lock)
    }
}

/// The pages of `start..end`: those at the ends that others may share, and the rest together.
fn split(start: usize, end: usize) -> Option<Vec<Range<usize>>> {
    let (first, last) =
        (start / PAGE_BYTES * PAGE_BYTES, end.checked_next_multiple_of(PAGE_BYTES)?);
    let own = start.checked_next_multiple_of(PAGE_BYTES)?..end / PAGE_BYTES * PAGE_BYTES;
    if own.is_empty() {
        let pages = (first..last).step_by(PAGE_BYTES);
        return Some(pages.map(|page| page..page + PAGE_BYTES).collect());
    }
    let parts = [first..own.start, own.clone(), own.end..last];
    Some(parts.into_iter().filter(|part| !part.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_that_others_may_share_stand_alone() {
        let page = PAGE_BYTES;
        let split = |start, end| {
            split(start, end).map(|parts| {
                parts.into_iter().map(|part| (part.start, part.end)).collect::<Vec<_>>()
            })
        };
        assert_eq!(split(4 * page, 9 * page), Some(vec![(4 * page, 9 * page)]));
        assert_eq!(
            split(4 * page + 64, 9 * page - 1),
            Some(vec![(4 * page, 5 * page), (5 * page, 8 * page), (8 * page, 9 * page)])
        );
        assert_eq!(split(4 * page + 1, 4 * page + 2), Some(vec![(4 * page, 5 * page)]));
        assert_eq!(
            split(4 * page + 1, 5 * page + 2),
            Some(vec![(4 * page, 5 * page), (5 * page, 6 * page)])
        );
        assert_eq!(split(usize::MAX - 5, usize::MAX), None);
    }
}
