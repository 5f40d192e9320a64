//! Device memory, pooled under one budget.
//!
//! Sizes are rounded up geometrically, so that memory fits again. A buffer remembers the last
//! command of the compute lane that uses it, so memory can be handed out before that command has
//! run: a later command of the same lane needs no wait, and an upload waits for it on the device.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use fucina_accel::{Budget, Charge};
use fucina_dtype::DType;

use crate::driver::{Context, DeviceMemory, held};
use crate::sys::DevicePtr;

/// Smallest unit, which also is the alignment that the driver gives.
const UNIT_BYTES: usize = 512;

/// Rounds up to one of eight sizes between a power of two and the next: at most an eighth is lost.
fn rounded(len_bytes: usize) -> Option<usize> {
    let len_bytes = len_bytes.max(1).checked_next_multiple_of(UNIT_BYTES)?;
    let step = (len_bytes.checked_next_power_of_two()? / 16).max(UNIT_BYTES);
    len_bytes.checked_next_multiple_of(step)
}

/// The device memory of one provider.
pub(crate) struct DevicePool {
    context: Arc<Context>,
    budget: Budget,
    /// By size; the newest last.
    free: Mutex<BTreeMap<usize, Vec<Block>>>,
    /// Commands of the compute lane up to this place are known to have run.
    finished: AtomicU64,
    /// Threads that make room: what comes back unused goes to the driver.
    making_room: AtomicUsize,
}

/// Memory of the driver with its place in the budget.
struct Block {
    memory: DeviceMemory,
    last_use: u64,
    _charge: Charge,
}

/// Device memory that some bytes live in. Goes back to the pool when it is dropped.
pub(crate) struct Buffer {
    pool: Arc<DevicePool>,
    block: Option<Block>,
    address: DevicePtr,
    /// Place of the last command of the compute lane that uses the memory.
    last_use: AtomicU64,
    /// What is known of weights that lie here: the word with their largest magnitude.
    known: Mutex<Vec<(WeightKey, Arc<Self>)>>,
}

/// Weights within a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct WeightKey {
    pub(crate) offset: u64,
    pub(crate) rows: usize,
    pub(crate) row_bytes: usize,
    pub(crate) k: usize,
    pub(crate) dtype: DType,
}

/// Matrices of one buffer whose largest weights are remembered.
const MAX_KNOWN: usize = 64;

impl Buffer {
    /// Keeps the word with the largest magnitude of some weights, as long as they are here.
    pub(crate) fn remember(&self, key: WeightKey, largest: Arc<Self>) {
        let mut known = held(&self.known);
        if known.len() < MAX_KNOWN && known.iter().all(|(other, _)| *other != key) {
            known.push((key, largest));
        }
    }

    /// The bytes are about to change.
    pub(crate) fn forget(&self) {
        held(&self.known).clear();
    }

    /// The word that was kept.
    pub(crate) fn recall(&self, key: &WeightKey) -> Option<Arc<Self>> {
        held(&self.known).iter().find(|(known, _)| known == key).map(|(_, word)| Arc::clone(word))
    }

    pub(crate) const fn address(&self) -> DevicePtr {
        self.address
    }

    /// Size of the memory, at least what was asked for.
    pub(crate) fn len_bytes(&self) -> usize {
        self.block.as_ref().map_or(0, |block| block.memory.len_bytes())
    }

    /// Notes that the command at `place` of the compute lane uses the memory.
    pub(crate) fn used_by(&self, place: u64) {
        self.last_use.fetch_max(place, Ordering::Relaxed);
    }

    /// The last command that used the memory before it was taken from the pool, if nothing has
    /// used it since.
    pub(crate) fn last_use(&self) -> u64 {
        self.last_use.load(Ordering::Relaxed)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let Some(mut block) = self.block.take() else { return };
        block.last_use = self.last_use();
        self.pool.give_back(block);
    }
}

impl DevicePool {
    pub(crate) fn new(context: &Arc<Context>, budget: Budget) -> Arc<Self> {
        let context = Arc::clone(context);
        Arc::new(Self {
            context,
            budget,
            free: Mutex::default(),
            finished: AtomicU64::new(0),
            making_room: AtomicUsize::new(0),
        })
    }

    pub(crate) const fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Notes that the commands of the compute lane up to `place` have run.
    pub(crate) fn finished(&self, place: u64) {
        self.finished.fetch_max(place, Ordering::Relaxed);
    }

    fn is_idle(&self, block: &Block) -> bool {
        block.last_use <= self.finished.load(Ordering::Relaxed)
    }

    /// Takes memory for `len_bytes`. `None` if the budget or the driver has no more.
    pub(crate) fn take(self: &Arc<Self>, len_bytes: usize) -> Option<Buffer> {
        let size = rounded(len_bytes)?;
        let block = self.reuse(size).or_else(|| self.fresh(size))?;
        Some(self.buffer(block))
    }

    /// Takes memory that nobody has to give up.
    pub(crate) fn take_spare(self: &Arc<Self>, len_bytes: usize) -> Option<Buffer> {
        let size = rounded(len_bytes)?;
        let block = self.reuse(size).or_else(|| self.allocate(size)).or_else(|| {
            self.trim();
            self.allocate(size)
        })?;
        Some(self.buffer(block))
    }

    fn buffer(self: &Arc<Self>, block: Block) -> Buffer {
        Buffer {
            pool: Arc::clone(self),
            address: block.memory.address(),
            last_use: AtomicU64::new(block.last_use),
            block: Some(block),
            known: Mutex::default(),
        }
    }

    /// A free block of the size: one that nothing uses any more, or else the oldest.
    fn reuse(&self, size: usize) -> Option<Block> {
        let mut free = held(&self.free);
        let blocks = free.get_mut(&size)?;
        let idle = blocks.iter().rposition(|block| self.is_idle(block));
        let oldest = || (0..blocks.len()).min_by_key(|&at| blocks[at].last_use);
        let at = idle.or_else(oldest)?;
        Some(blocks.swap_remove(at))
    }

    fn fresh(&self, size: usize) -> Option<Block> {
        if let Some(block) = self.allocate(size) {
            return Some(block);
        }
        // Free memory of other sizes first; then copies that the host also has, one by one: what
        // is still in use goes back to the shelf, where it may just fit.
        self.trim();
        self.making_room.fetch_add(1, Ordering::Relaxed);
        let block = loop {
            if let Some(block) = self.reuse(size).or_else(|| self.allocate(size)) {
                break Some(block);
            }
            if !self.budget.evict_one() {
                break None;
            }
        };
        self.making_room.fetch_sub(1, Ordering::Relaxed);
        block
    }

    /// Allocates if the budget has room as it is.
    fn allocate(&self, size: usize) -> Option<Block> {
        let charge = self.budget.try_charge(size)?;
        let memory = self.context.enter().ok()?.alloc(size).ok()?;
        Some(Block { memory, last_use: 0, _charge: charge })
    }

    /// Gives free memory that nothing uses any more back to the driver.
    pub(crate) fn trim(&self) {
        let mut idle = Vec::new();
        for blocks in held(&self.free).values_mut() {
            idle.extend(blocks.extract_if(.., |block| self.is_idle(block)));
        }
        drop(idle);
    }

    fn give_back(&self, block: Block) {
        if self.making_room.load(Ordering::Relaxed) > 0 && self.is_idle(&block) {
            return drop(block);
        }
        held(&self.free).entry(block.memory.len_bytes()).or_default().push(block);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_rounded_up_by_an_eighth_at_most() {
        for len in [0, 1, 511, 512, 513, 4096, 5000, 1 << 20, (1 << 20) + 1, 123_456_789] {
            let size = rounded(len).unwrap();
            assert!(size >= len && size.is_multiple_of(UNIT_BYTES), "{len} {size}");
            assert!(size <= len.max(1) + len / 8 + UNIT_BYTES, "{len} {size}");
            assert_eq!(rounded(size), Some(size), "{len}");
        }
        assert_eq!(rounded(usize::MAX), None);
        assert_eq!(rounded((1 << 63) + 1), None, "the next power of two does not exist");
    }
}
