//! Device memory that holds the current bytes of a storage.
//!
//! Host and device copies can both be valid. A copy answers only for its own byte range. A
//! [`Budget`] bounds the device memory of a provider, and makes room by dropping copies whose
//! bytes the host also has, least recently used first.

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::id::DeviceId;
use crate::timeline::Arrival;

type Object = Arc<dyn Any + Send + Sync>;

/// A provider's device memory for a byte range of one storage. Clones refer to the same memory.
///
/// Dropping the last reference to the object must not block: the device may still use the memory,
/// and then the command in flight holds a reference too.
#[derive(Clone)]
pub struct DeviceCopy {
    device: DeviceId,
    range: Range<usize>,
    cell: Arc<Cell>,
}

/// What a [`Budget`] can empty.
struct Cell {
    object: Mutex<Option<Object>>,
    /// The host has the same bytes, so nothing is lost with the copy.
    host_has_it: AtomicBool,
    last_use: AtomicU64,
}

/// Counts uses of copies, so that the budget knows which one is the oldest.
static CLOCK: AtomicU64 = AtomicU64::new(0);

impl DeviceCopy {
    /// Device memory `object` on `device`, for the bytes `range` of the storage that it will be
    /// added to.
    pub fn new(device: DeviceId, range: Range<usize>, object: Object) -> Self {
        let cell = Cell {
            object: Mutex::new(Some(object)),
            host_has_it: AtomicBool::new(false),
            last_use: AtomicU64::new(CLOCK.fetch_add(1, Ordering::Relaxed)),
        };
        Self { device, range, cell: Arc::new(cell) }
    }

    /// Device of the memory.
    pub fn device(&self) -> DeviceId {
        self.device
    }

    /// Bytes of the storage that the memory holds.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// Returns the memory, unless the budget has dropped it or it is not a `T`.
    pub fn object<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.cell.last_use.store(CLOCK.fetch_add(1, Ordering::Relaxed), Ordering::Relaxed);
        let object = held(&self.cell.object).clone()?;
        object.downcast().ok()
    }

    fn is_gone(&self) -> bool {
        held(&self.cell.object).is_none()
    }
}

impl fmt::Debug for DeviceCopy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (device, range, gone) = (self.device, &self.range, self.is_gone());
        f.debug_struct("DeviceCopy")
            .field("device", &device)
            .field("range", range)
            .field("gone", &gone)
            .finish()
    }
}

/// The device copies of one storage.
#[derive(Debug, Default)]
pub(crate) struct Copies(Vec<DeviceCopy>);

impl Copies {
    /// Returns the copy on `device` that holds all of `range`.
    pub(crate) fn find(&self, device: DeviceId, range: &Range<usize>) -> Option<DeviceCopy> {
        let holds = |copy: &&DeviceCopy| {
            copy.device == device
                && copy.range.start <= range.start
                && range.end <= copy.range.end
                && !copy.is_gone()
        };
        self.0.iter().find(holds).cloned()
    }

    /// Bytes that copies on `device` hold. Copies that overlap count each.
    pub(crate) fn len_bytes(&self, device: DeviceId) -> usize {
        let held = self.0.iter().filter(|copy| copy.device == device && !copy.is_gone());
        held.map(|copy| copy.range.len()).sum()
    }

    /// How bytes that no copy holds would get to `device`, as far as earlier copies tell.
    pub(crate) fn arrival(&self, device: DeviceId, range: &Range<usize>) -> Arrival {
        let near = |copy: &&DeviceCopy| {
            copy.device == device && copy.range.start < range.end && range.start < copy.range.end
        };
        let mut arrival = Arrival::Uploaded;
        for copy in self.0.iter().filter(near) {
            if !copy.is_gone() {
                return Arrival::UploadedGrown;
            }
            if copy.range.start <= range.start && range.end <= copy.range.end {
                arrival = Arrival::UploadedAgain;
            }
        }
        arrival
    }

    /// Adds a copy. Copies on the same device that it covers, and emptied ones, are returned:
    /// the caller drops them when it holds no lock.
    #[must_use]
    pub(crate) fn add(&mut self, copy: DeviceCopy, host_has_it: bool) -> Vec<DeviceCopy> {
        copy.cell.host_has_it.store(host_has_it, Ordering::Relaxed);
        let covered = |old: &mut DeviceCopy| {
            let inside = copy.range.start <= old.range.start && old.range.end <= copy.range.end;
            old.is_gone() || (old.device == copy.device && inside)
        };
        let old = self.0.extract_if(.., covered).collect();
        self.0.push(copy);
        old
    }

    /// The host has the bytes now.
    pub(crate) fn host_has_them(&self) {
        for copy in &self.0 {
            copy.cell.host_has_it.store(true, Ordering::Relaxed);
        }
    }

    /// The host is about to write from byte `start` on: copies keep what is before it.
    pub(crate) fn cut(&mut self, start: usize) {
        self.0.retain_mut(|copy| {
            copy.range.end = copy.range.end.min(start);
            copy.range.start < copy.range.end
        });
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes every copy.
    pub(crate) fn take(&mut self) -> Vec<DeviceCopy> {
        std::mem::take(&mut self.0)
    }
}

/// Bounds the device memory of a provider. Clones share the same account.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    limit_bytes: usize,
    book: Mutex<Book>,
}

#[derive(Default)]
struct Book {
    used_bytes: usize,
    evictions: u64,
    cells: Vec<Weak<Cell>>,
}

impl fmt::Debug for Book {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Book").field("used_bytes", &self.used_bytes).finish_non_exhaustive()
    }
}

impl Budget {
    /// An account with room for `limit_bytes`.
    pub fn new(limit_bytes: usize) -> Self {
        Self(Arc::new(Account { limit_bytes, book: Mutex::new(Book::default()) }))
    }

    /// Reserves `len_bytes`, dropping copies that the host also has if there is no room. `None`
    /// if that is not enough.
    ///
    /// The provider keeps the [`Charge`] inside the object that it charges for.
    pub fn charge(&self, len_bytes: usize) -> Option<Charge> {
        loop {
            if let Some(charge) = self.try_charge(len_bytes) {
                return Some(charge);
            }
            if !self.evict_one() {
                return None;
            }
        }
    }

    /// Drops the copy that was used longest ago, of those that the host also has and that no
    /// command uses. `false` if there is none.
    pub fn evict_one(&self) -> bool {
        let (oldest, cells) = held(&self.0.book).evict_oldest();
        // Dropping an object gives its charge back, so this happens without the lock.
        drop(cells);
        oldest.is_some()
    }

    /// Reserves `len_bytes` if there is room as it is.
    pub fn try_charge(&self, len_bytes: usize) -> Option<Charge> {
        let mut book = held(&self.0.book);
        let used_bytes = book.used_bytes.checked_add(len_bytes)?;
        if used_bytes > self.0.limit_bytes {
            return None;
        }
        book.used_bytes = used_bytes;
        Some(Charge { budget: self.clone(), len_bytes })
    }

    /// Lets the budget drop `copy` when room is needed.
    pub fn track(&self, copy: &DeviceCopy) {
        let mut book = held(&self.0.book);
        if book.cells.len() == book.cells.capacity() {
            book.cells.retain(|cell| cell.strong_count() > 0);
        }
        book.cells.push(Arc::downgrade(&copy.cell));
    }

    /// Bytes that are charged now.
    pub fn used_bytes(&self) -> usize {
        held(&self.0.book).used_bytes
    }

    /// Copies that were dropped to make room.
    pub fn evictions(&self) -> u64 {
        held(&self.0.book).evictions
    }
}

impl Book {
    /// Empties the least recently used cell that the host can do without and that no command
    /// uses. Returns what was in it, and the cells that it looked at: the caller may own the last
    /// reference to one of them by now.
    fn evict_oldest(&mut self) -> (Option<Object>, Vec<Arc<Cell>>) {
        let mut cells: Vec<_> = self.cells.iter().filter_map(Weak::upgrade).collect();
        cells.sort_by_key(|cell| cell.last_use.load(Ordering::Relaxed));
        let spare = cells.iter().filter(|cell| cell.host_has_it.load(Ordering::Relaxed));
        let object = spare.into_iter().find_map(|cell| {
            let mut object = held(&cell.object);
            // A command in flight, or a caller that has just looked the copy up, holds a clone.
            let unused = object.as_ref().is_some_and(|object| Arc::strong_count(object) == 1);
            if unused { object.take() } else { None }
        });
        self.evictions += u64::from(object.is_some());
        (object, cells)
    }
}

/// Device memory that counts against a [`Budget`] until it is dropped.
#[derive(Debug)]
pub struct Charge {
    budget: Budget,
    len_bytes: usize,
}

impl Drop for Charge {
    fn drop(&mut self) {
        held(&self.budget.0.book).used_bytes -= self.len_bytes;
    }
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
