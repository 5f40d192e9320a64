//! Host memory as the device may see it: page-locked by the driver, or locked pages of the program.

use std::collections::BTreeMap;
use std::ops::Range;
use std::ptr;

/// A range of host addresses.
pub(crate) type HostRange = Range<usize>;

const PAGE: usize = 4096;

/// What is locked.
#[derive(Default)]
pub(crate) struct Host {
    /// Start and end of what `cuMemHostAlloc` gave.
    pub(crate) allocated: BTreeMap<usize, usize>,
    /// First and last page, and the address that was named.
    pub(crate) registered: BTreeMap<usize, usize>,
}

impl Host {
    /// Locks the pages of a range. `false` if one of them is locked already.
    pub(crate) fn register(&mut self, range: &HostRange) -> bool {
        let (start, end) = (range.start / PAGE * PAGE, range.end.next_multiple_of(PAGE));
        let overlaps = |(&from, &to): (&usize, &usize)| from < end && start < to;
        if self.registered.iter().chain(&self.allocated).any(overlaps) {
            return false;
        }
        self.registered.insert(start, end);
        true
    }

    /// Undoes [`register`](Self::register), for the address that was given there.
    pub(crate) fn unregister(&mut self, start: usize) -> bool {
        self.registered.remove(&(start / PAGE * PAGE)).is_some()
    }

    /// Whether one lock covers the range.
    pub(crate) fn is_locked(&self, range: &HostRange) -> bool {
        let covers = |map: &BTreeMap<usize, usize>| {
            map.range(..=range.start).next_back().is_some_and(|(_, &end)| range.end <= end)
        };
        covers(&self.registered) || covers(&self.allocated)
    }

    /// The bytes of a range, which must be locked now.
    pub(crate) fn read(&self, range: &HostRange) -> Result<Vec<u8>, &'static str> {
        if !self.is_locked(range) {
            return Err("a copy reads host memory that is not locked any more");
        }
        let mut bytes = vec![0; range.len()];
        let from = ptr::with_exposed_provenance::<u8>(range.start);
        // SAFETY: the program has locked the pages, which it may do only while they are mapped, and
        // promises with the copy that it does not write them.
        unsafe { ptr::copy_nonoverlapping(from, bytes.as_mut_ptr(), range.len()) };
        Ok(bytes)
    }

    /// Writes the bytes of a range, which must be locked now.
    pub(crate) fn write(&self, range: &HostRange, bytes: &[u8]) -> Result<(), &'static str> {
        if !self.is_locked(range) {
            return Err("a copy writes host memory that is not locked any more");
        }
        let to = ptr::with_exposed_provenance_mut::<u8>(range.start);
        // SAFETY: as in `read`; the program promises that nothing else accesses them.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), to, range.len()) };
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_locked_once_and_copies_stay_inside_one_lock() {
        let mut host = Host::default();
        assert!(host.register(&(0x1800..0x2800)));
        assert!(!host.register(&(0x2fff..0x3001)), "page 2 is locked");
        assert!(host.register(&(0x3000..0x4000)));
        assert!(host.is_locked(&(0x1000..0x3000)));
        assert!(!host.is_locked(&(0x2000..0x3001)), "two locks");
        assert!(host.unregister(0x1800));
        assert!(!host.unregister(0x1800));
        assert!(!host.is_locked(&(0x1800..0x1900)));
    }
}
