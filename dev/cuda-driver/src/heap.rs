//! Device memory, with the copies that a driver makes and the checks that it does not.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use fucina_cuda_sim::exec::{DeviceMemory, Memory, Region};
use fucina_cuda_sim::ptx::Variable;

/// The memory of the device.
pub(crate) struct Heap {
    pub(crate) memory: DeviceMemory,
    /// What the program allocated; variables of modules are not among it.
    live: Mutex<BTreeSet<u64>>,
}

impl Heap {
    pub(crate) fn new(limit_bytes: usize) -> Self {
        Self { memory: DeviceMemory::new(limit_bytes as u64), live: Mutex::default() }
    }

    fn live_set(&self) -> std::sync::MutexGuard<'_, BTreeSet<u64>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn alloc(&self, len_bytes: usize) -> Option<u64> {
        let region = self.memory.allocate(len_bytes as u64).ok()?;
        self.live_set().insert(region.base());
        Some(region.base())
    }

    pub(crate) fn free(&self, address: u64) -> bool {
        self.live_set().remove(&address) && self.memory.free(address)
    }

    pub(crate) fn live(&self) -> usize {
        self.live_set().len()
    }

    pub(crate) fn used_bytes(&self) -> usize {
        usize::try_from(self.memory.used()).unwrap_or(usize::MAX)
    }

    /// Places the variables of a module.
    pub(crate) fn place(&self, variables: &[Variable]) -> Option<Vec<u64>> {
        let place = |variable: &Variable| {
            let region = self.memory.allocate(u64::from(variable.size)).ok()?;
            region.write(region.base(), &variable.init);
            Some(region.base())
        };
        variables.iter().map(place).collect()
    }

    pub(crate) fn remove(&self, variables: &[u64]) {
        for &base in variables {
            self.memory.free(base);
        }
    }

    /// The allocation that holds all of a range.
    fn region(&self, range: &Range<u64>) -> Result<std::sync::Arc<Region>, String> {
        let (start, len) = (range.start, range.end - range.start);
        let inside = |region: &std::sync::Arc<Region>| region.contains(start, len);
        let found = self.memory.region(start).filter(inside);
        found.ok_or_else(|| format!("{len} bytes at {start:#x} are in no allocation"))
    }

    /// Leaves bytes that nobody can rely on.
    pub(crate) fn scribble(&self, range: &Range<u64>) -> Result<(), String> {
        self.region(range)?.poison(range.start, range.end - range.start);
        Ok(())
    }

    pub(crate) fn upload(&self, to: u64, bytes: &[u8]) -> Result<(), String> {
        self.region(&(to..to + bytes.len() as u64))?.write(to, bytes);
        Ok(())
    }

    pub(crate) fn download(&self, from: u64, bytes: &mut [u8]) -> Result<(), String> {
        let len = bytes.len() as u64;
        let region = self.region(&(from..from + len))?;
        if let Some(address) = region.first_uninitialised(from, len) {
            return Err(format!("nothing has written the byte at {address:#x}"));
        }
        region.read(from, bytes);
        Ok(())
    }
}
