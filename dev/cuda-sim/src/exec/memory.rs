//! Device memory: allocations with bounds, an initialised bit for every byte, and poison.
//!
//! Words are atomics, so blocks may run on several host threads. A plain access is a relaxed one;
//! order between blocks comes from the kernel's own atomics and fences, as on a device.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

use super::fault::FaultKind;

/// What fills memory that nobody has written: a NaN in every floating-point format.
pub const POISON: u32 = 0xffff_ffff;

/// Global memory as a launch sees it.
pub trait Memory: Sync {
    /// The live allocation that contains `address`.
    fn region(&self, address: u64) -> Option<Arc<Region>>;
}

/// One allocation.
#[derive(Debug)]
pub struct Region {
    base: u64,
    len: u64,
    words: Box<[AtomicU32]>,
    /// Low four bits of each: which bytes of the word are initialised.
    written: Box<[AtomicU8]>,
    alive: AtomicBool,
    read_only: AtomicBool,
    /// Held by 64-bit atomics, which span two words.
    pair: Mutex<()>,
}

fn zeroed<T: Default>(count: usize) -> Box<[T]> {
    (0..count).map(|_| T::default()).collect()
}

impl Region {
    /// Poisoned memory at `base`, a multiple of 256.
    ///
    /// # Panics
    /// If `base` is no multiple of 256 or `len` is larger than the host's memory can be.
    #[must_use]
    pub fn new(base: u64, len: u64) -> Self {
        assert!(base.is_multiple_of(256), "an allocation starts at a multiple of 256");
        let count = usize::try_from(len.div_ceil(4)).expect("an allocation fits the host's memory");
        let words: Box<[AtomicU32]> = (0..count).map(|_| AtomicU32::new(POISON)).collect();
        Self {
            base,
            len,
            words,
            written: zeroed(count),
            alive: AtomicBool::new(true),
            read_only: AtomicBool::new(false),
            pair: Mutex::new(()),
        }
    }

    /// Address of the first byte.
    #[must_use]
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Length in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.len
    }

    /// Whether it has not been freed.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.alive.load(Ordering::Relaxed)
    }

    /// Marks it freed: kernels that still use it fault.
    pub fn kill(&self) {
        self.alive.store(false, Ordering::SeqCst);
    }

    /// Forbids or allows kernels to write it.
    pub fn set_read_only(&self, read_only: bool) {
        self.read_only.store(read_only, Ordering::SeqCst);
    }

    /// Whether `len` bytes at `address` lie inside.
    #[must_use]
    pub fn contains(&self, address: u64, len: u64) -> bool {
        address >= self.base
            && (address - self.base).checked_add(len).is_some_and(|end| end <= self.len)
    }

    /// Copies bytes in and marks them initialised.
    ///
    /// # Panics
    /// If the range leaves the region.
    pub fn write(&self, address: u64, bytes: &[u8]) {
        assert!(self.contains(address, bytes.len() as u64), "a write leaves the region");
        let mut at = self.offset(address);
        let mut rest = bytes;
        while !rest.is_empty() {
            let take = (4 - at % 4).min(rest.len());
            let mut word = [0; 4];
            word[..take].copy_from_slice(&rest[..take]);
            self.put(at, take, u32::from_le_bytes(word));
            rest = &rest[take..];
            at += take;
        }
    }

    /// Copies bytes out, whether initialised or not.
    ///
    /// # Panics
    /// If the range leaves the region.
    pub fn read(&self, address: u64, out: &mut [u8]) {
        assert!(self.contains(address, out.len() as u64), "a read leaves the region");
        let mut at = self.offset(address);
        let mut rest = out;
        while !rest.is_empty() {
            let take = (4 - at % 4).min(rest.len());
            let word = self.words[at / 4].load(Ordering::Relaxed) >> (8 * (at % 4));
            let (now, later) = rest.split_at_mut(take);
            now.copy_from_slice(&word.to_le_bytes()[..take]);
            rest = later;
            at += take;
        }
    }

    /// First byte of the range that nobody has written.
    ///
    /// # Panics
    /// If the range leaves the region.
    #[must_use]
    pub fn first_uninitialised(&self, address: u64, len: u64) -> Option<u64> {
        assert!(self.contains(address, len), "a range leaves the region");
        (address..address + len).find(|byte| {
            let at = self.offset(*byte);
            self.written[at / 4].load(Ordering::Relaxed) >> (at % 4) & 1 == 0
        })
    }

    /// Copies a range inside the region, initialised bits included. Ranges may be of two regions.
    ///
    /// # Panics
    /// If a range leaves its region.
    pub fn copy_from(&self, to: u64, source: &Self, from: u64, len: u64) {
        assert!(self.contains(to, len) && source.contains(from, len), "a copy leaves a region");
        for index in 0..len {
            let mut byte = [0];
            source.read(from + index, &mut byte);
            if source.first_uninitialised(from + index, 1).is_none() {
                self.write(to + index, &byte);
            } else {
                self.poison(to + index, 1);
            }
        }
    }

    /// Makes bytes uninitialised again.
    ///
    /// # Panics
    /// If the range leaves the region.
    pub fn poison(&self, address: u64, len: u64) {
        assert!(self.contains(address, len), "a range leaves the region");
        for byte in address..address + len {
            let at = self.offset(byte);
            self.put(at, 1, POISON & 0xff);
            self.written[at / 4].fetch_and(!(1 << (at % 4)), Ordering::Relaxed);
        }
    }

    fn offset(&self, address: u64) -> usize {
        usize::try_from(address - self.base).expect("offsets fit the host's memory")
    }

    /// Writes `len` bytes that do not cross a word.
    #[inline]
    fn put(&self, at: usize, len: usize, value: u32) {
        if len == 4 {
            self.words[at / 4].store(value, Ordering::Relaxed);
            self.written[at / 4].store(0xf, Ordering::Relaxed);
            return;
        }
        let shift = 8 * (at % 4);
        let mask = ((1_u32 << (8 * len)) - 1) << shift;
        let value = value << shift & mask;
        let update = |old: u32| Some(old & !mask | value);
        let word = &self.words[at / 4];
        let _ = word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, update);
        let bits = ((1_u8 << len) - 1) << (at % 4);
        self.written[at / 4].fetch_or(bits, Ordering::Relaxed);
    }

    /// Bounds, life and alignment of an access; gives its byte offset.
    #[inline]
    pub(crate) fn check(&self, address: u64, size: u32, write: bool) -> Result<usize, FaultKind> {
        let offset = address.wrapping_sub(self.base);
        let inside = offset < self.len && u64::from(size) <= self.len - offset;
        if !inside || !self.is_alive() {
            return Err(FaultKind::OutOfBounds { space: "global", size, write });
        }
        if offset & u64::from(size - 1) != 0 {
            return Err(FaultKind::Misaligned { space: "global", align: size });
        }
        if write && self.read_only.load(Ordering::Relaxed) {
            return Err(FaultKind::ReadOnly);
        }
        Ok(self.offset(address))
    }

    /// Loads up to four bytes of one word; the flag says whether they are initialised.
    #[inline]
    pub(crate) fn load(&self, at: usize, width: u32) -> (u32, bool) {
        let word = self.words[at / 4].load(Ordering::Relaxed);
        let bits = self.written[at / 4].load(Ordering::Relaxed);
        if width == 4 {
            return (word, bits == 0xf);
        }
        let value = word >> (8 * (at % 4)) & ((1 << (8 * width)) - 1);
        let need = (1_u8 << width) - 1;
        (value, bits >> (at % 4) & need == need)
    }

    /// Stores up to four bytes of one word.
    #[inline]
    pub(crate) fn store(&self, at: usize, width: u32, value: u32) {
        self.put(at, width as usize, value);
    }

    /// Replaces a 32-bit word by `f` of it; gives the old value.
    pub(crate) fn update(&self, at: usize, f: impl Fn(u32) -> u32) -> u32 {
        let order = Ordering::SeqCst;
        let word = &self.words[at / 4];
        word.fetch_update(order, order, |old| Some(f(old))).unwrap_or_else(|old| old)
    }

    /// Keeps other 64-bit atomics of this region out.
    pub(crate) fn lock_pairs(&self) -> MutexGuard<'_, ()> {
        self.pair.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Allocations by address: the memory of a device.
#[derive(Debug)]
pub struct DeviceMemory {
    regions: RwLock<BTreeMap<u64, Arc<Region>>>,
    next: Mutex<u64>,
    limit: u64,
    used: Mutex<u64>,
}

/// Distance between allocations, so that an access past one end never meets the next.
const GUARD: u64 = 1 << 16;

/// First address; nothing below it is ever valid.
const FIRST: u64 = 0x7f00_0000_0000;

/// A device without room for an allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("no room for {asked} bytes: {used} of {limit} are in use")]
pub struct OutOfMemory {
    /// Bytes asked for.
    pub asked: u64,
    /// Bytes in use.
    pub used: u64,
    /// Bytes of the device.
    pub limit: u64,
}

impl DeviceMemory {
    /// A device with `limit` bytes.
    #[must_use]
    pub fn new(limit: u64) -> Self {
        Self {
            regions: RwLock::new(BTreeMap::new()),
            next: Mutex::new(FIRST),
            limit,
            used: Mutex::new(0),
        }
    }

    /// Allocates poisoned memory. Addresses are never used twice.
    ///
    /// # Errors
    /// When the device's memory does not suffice.
    pub fn allocate(&self, len: u64) -> Result<Arc<Region>, OutOfMemory> {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        if len > self.limit - *used {
            return Err(OutOfMemory { asked: len, used: *used, limit: self.limit });
        }
        *used += len;
        drop(used);
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        let base = *next;
        *next = base + (len + GUARD).next_multiple_of(256);
        drop(next);
        let region = Arc::new(Region::new(base, len));
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        regions.insert(base, Arc::clone(&region));
        Ok(region)
    }

    /// Frees the allocation that starts at `base`; `false` if there is none.
    pub fn free(&self, base: u64) -> bool {
        let mut regions = self.regions.write().unwrap_or_else(PoisonError::into_inner);
        let Some(region) = regions.remove(&base) else { return false };
        region.kill();
        *self.used.lock().unwrap_or_else(PoisonError::into_inner) -= region.len;
        true
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        *self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Bytes of the device.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

impl Memory for DeviceMemory {
    fn region(&self, address: u64) -> Option<Arc<Region>> {
        let regions = self.regions.read().unwrap_or_else(PoisonError::into_inner);
        let (_, region) = regions.range(..=address).next_back()?;
        region.contains(address, 1).then(|| Arc::clone(region))
    }
}
