//! The view that a block has of global memory: allocations it has met, the last one first.

use std::sync::Arc;

use super::fault::{FaultKind, Stop};
use super::inst::{D, L};
use super::memory::{Memory, Region};
use super::warp::lanes_of;

/// Allocations that a block has used.
pub(crate) struct Global<'a> {
    memory: &'a dyn Memory,
    met: Vec<Arc<Region>>,
    last: usize,
    pub(crate) check_uninitialised: bool,
}

impl<'a> Global<'a> {
    pub(crate) fn new(memory: &'a dyn Memory, check_uninitialised: bool) -> Self {
        Self { memory, met: Vec::new(), last: 0, check_uninitialised }
    }

    /// The allocation that holds an access, and the access's byte offset.
    #[inline]
    pub(crate) fn find(
        &mut self,
        lane: usize,
        address: u64,
        size: u32,
        write: bool,
    ) -> Result<(&Region, usize), Stop> {
        if let Some(region) = self.met.get(self.last)
            && let Ok(offset) = region.check(address, size, write)
        {
            return Ok((&self.met[self.last], offset));
        }
        self.search(lane, address, size, write)
    }

    #[cold]
    fn search(
        &mut self,
        lane: usize,
        address: u64,
        size: u32,
        write: bool,
    ) -> Result<(&Region, usize), Stop> {
        let known = self.met.iter().position(|region| region.contains(address, 1));
        let index = match known {
            Some(index) => index,
            None => {
                let Some(region) = self.memory.region(address) else {
                    let kind = FaultKind::OutOfBounds { space: "global", size, write };
                    return Err(Stop::at(kind, lane, address));
                };
                self.met.push(region);
                self.met.len() - 1
            }
        };
        self.last = index;
        let region = &self.met[index];
        match region.check(address, size, write) {
            Ok(offset) => Ok((region, offset)),
            Err(kind) => Err(Stop::at(kind, lane, address)),
        }
    }

    /// Loads one, two, or a multiple of four bytes.
    #[inline]
    pub(crate) fn load(&mut self, lane: usize, address: u64, size: u32) -> Result<[u32; 4], Stop> {
        let check = self.check_uninitialised;
        let (region, at) = self.find(lane, address, size, false)?;
        let mut out = [0; 4];
        let mut whole = true;
        if size <= 4 {
            (out[0], whole) = region.load(at, size);
        } else {
            for (index, out) in out[..size as usize / 4].iter_mut().enumerate() {
                let (value, written) = region.load(at + 4 * index, 4);
                *out = value;
                whole &= written;
            }
        }
        if check && !whole {
            return Err(Stop::at(FaultKind::Uninitialised { space: "global" }, lane, address));
        }
        Ok(out)
    }

    /// Loads a word for each lane.
    #[inline]
    pub(crate) fn load_lanes(
        &mut self,
        addresses: &D,
        active: u32,
        out: &mut L,
    ) -> Result<(), Stop> {
        let first = active.trailing_zeros() as usize;
        self.find(first, addresses[first], 4, false)?;
        let region = &self.met[self.last];
        let mut rest = 0;
        for lane in lanes_of(active) {
            let (value, written) = match region.check(addresses[lane], 4, false) {
                Ok(at) => region.load(at, 4),
                Err(_) => (0, false),
            };
            out[lane] = value;
            rest |= u32::from(!written) << lane;
        }
        // Other allocations, and faults.
        for lane in lanes_of(rest) {
            out[lane] = self.load(lane, addresses[lane], 4)?[0];
        }
        Ok(())
    }

    /// Stores one, two, or a multiple of four bytes.
    #[inline]
    pub(crate) fn store(
        &mut self,
        lane: usize,
        address: u64,
        size: u32,
        values: [u32; 4],
    ) -> Result<(), Stop> {
        let (region, at) = self.find(lane, address, size, true)?;
        if size < 4 {
            region.store(at, size, values[0]);
            return Ok(());
        }
        for (index, value) in values[..size as usize / 4].iter().enumerate() {
            region.store(at + 4 * index, 4, *value);
        }
        Ok(())
    }
}
