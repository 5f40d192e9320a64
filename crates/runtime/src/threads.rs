//! The worker team: one persistent set of threads that every heavy op shares.
//!
//! A *region* runs a closure for each task index. The calling thread takes part. Workers claim
//! indices from one cursor, so uneven tasks and slow cores balance out. A worker that is asleep or
//! descheduled when a region opens is never waited for: only workers that joined are.
//!
//! Invariant of the `unsafe` code here: the closure of a region outlives every use of it, because
//! [`Team::run`] does not return or unwind before the region is closed and all workers that joined
//! it have left.
//!
//! Not here: what is worth a region at all. Ops decide that.

use std::any::Any;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{PoisonError, TryLockError};
use std::time::{Duration, Instant};

use crate::cores::cpu_time_covers;
use crate::sync::Ordering::SeqCst;
use crate::sync::{
    Arc, AtomicBool, AtomicU64, AtomicUsize, Builder, Condvar, JoinHandle, Mutex, MutexGuard,
    UnsafeCell, fence,
};

/// How long a worker looks for the next region before it parks. Decode leaves a few microseconds
/// between its regions; a longer spin takes cycles from other processes.
const SPIN: Duration = Duration::from_micros(50);

/// Most threads of a team. `state` counts them in 15 bits.
const MAX_THREADS: usize = 1024;

/// `state` holds the generation above these bits, then the open bit, then the joined workers.
const JOINED_MASK: u64 = 0x7fff;
const OPEN: u64 = 0x8000;
const GENERATION: u64 = 0x1_0000;

/// A persistent team of worker threads. See the module.
pub struct Team {
    shared: Arc<Shared>,
    /// The workers, held by whoever has a region open: one at a time. A second caller runs its
    /// region alone instead of waiting.
    workers: Mutex<Vec<JoinHandle<()>>>,
    /// Workers that the next region should have.
    wanted: AtomicUsize,
}

struct Shared {
    state: AtomicU64,
    cursor: AtomicUsize,
    job: UnsafeCell<Job>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    /// A worker with this number or a higher one ends.
    keep: AtomicUsize,
    /// Nanoseconds for which a thread looks before it parks.
    spin: AtomicU64,
    /// Parked workers.
    sleepers: AtomicUsize,
    sleep_lock: Mutex<()>,
    wake: Condvar,
    /// Whether the caller of the region is parked.
    caller_waits: AtomicBool,
    done_lock: Mutex<()>,
    done: Condvar,
}

/// The closure of the open region, with its lifetime erased.
#[derive(Clone, Copy)]
struct Job {
    run: *const (dyn Fn(usize) + Sync),
    tasks: usize,
}

// SAFETY: `job` is written only by the thread that holds `Team::workers`, while the region is
// closed and no worker is joined; it is read only by joined workers. Joining is an acquire of the
// opening store. All other fields are `Send + Sync`.
unsafe impl Send for Shared {}
// SAFETY: as for `Send`.
unsafe impl Sync for Shared {}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl std::fmt::Debug for Team {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Team").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

impl Team {
    /// Starts a team of `threads` threads, the caller of a region included. Zero counts as one,
    /// and more than 1024 as 1024. A worker that the system refuses to start is left out: the team
    /// is then smaller.
    pub fn new(threads: usize) -> Self {
        let shared = Arc::new(Shared {
            state: AtomicU64::new(0),
            cursor: AtomicUsize::new(0),
            job: UnsafeCell::new(Job { run: &|_| (), tasks: 0 }),
            panic: Mutex::new(None),
            keep: AtomicUsize::new(0),
            spin: AtomicU64::new(0),
            sleepers: AtomicUsize::new(0),
            sleep_lock: Mutex::new(()),
            wake: Condvar::new(),
            caller_waits: AtomicBool::new(false),
            done_lock: Mutex::new(()),
            done: Condvar::new(),
        });
        let (workers, wanted) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
        let team = Self { shared, workers, wanted };
        team.set_threads(threads);
        team.resize(&mut lock(&team.workers));
        team
    }

    /// Number of threads that can take part in a region, the caller included.
    pub fn threads(&self) -> usize {
        self.wanted.load(SeqCst) + 1
    }

    /// Changes the number of threads, with the limits of [`new`](Self::new), from the next region
    /// on. Returns at once; a region that is open keeps its threads.
    pub fn set_threads(&self, threads: usize) {
        self.wanted.store(threads.clamp(1, MAX_THREADS) - 1, SeqCst);
    }

    /// Ends or starts workers until there are as many as wanted. No region is open.
    fn resize(&self, workers: &mut Vec<JoinHandle<()>>) {
        let wanted = self.wanted.load(SeqCst);
        if workers.len() == wanted {
            return;
        }
        // More threads than cores: a spinning worker would hold up a working one.
        let may_spin = cpu_time_covers(wanted + 1) && !cfg!(loom);
        let spin = if may_spin { SPIN } else { Duration::ZERO };
        self.shared.spin.store(u64::try_from(spin.as_nanos()).unwrap_or(0), SeqCst);
        self.shared.keep.store(wanted, SeqCst);
        if workers.len() > wanted {
            self.shared.wake_sleepers();
            for worker in workers.drain(wanted..) {
                // A worker catches the panics of its tasks, so it ends normally.
                let _ = worker.join();
            }
        }
        for index in workers.len()..wanted {
            let shared = Arc::clone(&self.shared);
            let builder = Builder::new().name(format!("fucina-{}", index + 1));
            match builder.spawn(move || shared.work(index)) {
                Ok(worker) => workers.push(worker),
                Err(_) => {
                    // Fewer threads compute the same. Unless somebody has changed the number again,
                    // the refusal is not asked for at every region.
                    let have = workers.len();
                    let _ = self.wanted.compare_exchange(wanted, have, SeqCst, SeqCst);
                    break;
                }
            }
        }
    }

    /// Runs `task(0)`, …, `task(tasks - 1)`, in any order, on the team and the calling thread.
    /// Returns when all are done. A nested or concurrent call runs on its own thread alone.
    ///
    /// # Panics
    ///
    /// Panics if there are more than `isize::MAX` tasks. Resumes the first panic of a task, after
    /// the region is over.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        // Each thread may move the cursor once past the end; it must not wrap.
        assert!(isize::try_from(tasks).is_ok(), "{tasks} tasks are too many");
        let alone = |task| (0..tasks).for_each(task);
        if tasks < 2 {
            return alone(task);
        }
        let mut workers = match self.workers.try_lock() {
            Ok(workers) => workers,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return alone(task),
        };
        self.resize(&mut workers);
        if workers.is_empty() {
            drop(workers);
            return alone(task);
        }
        let task: &(dyn Fn(usize) + Sync) = &task;
        let shared = &*self.shared;
        shared.open(task, tasks);
        let own = catch_unwind(AssertUnwindSafe(|| shared.claim(task, tasks)));
        if own.is_err() {
            shared.cursor.store(tasks, SeqCst);
        }
        shared.close();
        let theirs = lock(&shared.panic).take();
        drop(workers);
        if let Some(payload) = own.err().or(theirs) {
            resume_unwind(payload);
        }
    }

    /// Splits `data` into chunks of `chunk_len` elements, the last one shorter, and runs
    /// `task(index, chunk)` for each.
    ///
    /// # Panics
    ///
    /// Panics if `chunk_len` is zero, and as [`run`](Self::run).
    pub fn for_each_chunk<T: Send>(
        &self,
        data: &mut [T],
        chunk_len: usize,
        task: impl Fn(usize, &mut [T]) + Sync,
    ) {
        assert!(chunk_len > 0, "a chunk holds at least one element");
        let len = data.len();
        let base = SendPtr(data.as_mut_ptr());
        self.run(len.div_ceil(chunk_len), |index| {
            let start = index * chunk_len;
            let base = &base;
            // SAFETY: `start < len`, so the address stays inside `data`.
            let at = unsafe { base.0.add(start) };
            // SAFETY: the range is inside `data`, which is borrowed mutably for the whole region,
            // and `run` calls each index once, so no two chunks overlap.
            let chunk = unsafe { std::slice::from_raw_parts_mut(at, chunk_len.min(len - start)) };
            task(index, chunk);
        });
    }

    /// Splits a row-major matrix of `cols` columns into tiles and runs `task` for each. Tiles at
    /// the right and lower edge are smaller.
    ///
    /// # Panics
    ///
    /// Panics if `data` is not whole rows or a tile is empty, and as [`run`](Self::run).
    pub fn for_each_tile<T: Send>(
        &self,
        data: &mut [T],
        cols: usize,
        (tile_rows, tile_cols): (usize, usize),
        task: impl Fn(TileMut<'_, T>) + Sync,
    ) {
        if data.is_empty() {
            return;
        }
        assert!(cols > 0 && data.len().is_multiple_of(cols), "the matrix is not whole rows");
        assert!(tile_rows > 0 && tile_cols > 0, "a tile holds at least one element");
        let rows = data.len() / cols;
        let across = cols.div_ceil(tile_cols);
        let base = SendPtr(data.as_mut_ptr());
        self.run(rows.div_ceil(tile_rows) * across, |index| {
            let (row, col) = (index / across * tile_rows, index % across * tile_cols);
            let base = &base;
            task(TileMut {
                base: base.0,
                row_stride: cols,
                rows: row..rows.min(row + tile_rows),
                cols: col..cols.min(col + tile_cols),
                _data: std::marker::PhantomData,
            });
        });
    }

    /// As [`for_each_tile`](Self::for_each_tile), with tiles of unequal heights: the rows of one
    /// tile are one of `bands`. The task gets the number of the band as well. Rows of no band are
    /// left alone.
    ///
    /// # Panics
    ///
    /// Panics if `data` is not whole rows, if the bands are not in order, overlap or leave the
    /// matrix, if `tile_cols` is zero, and as [`run`](Self::run).
    pub fn for_each_band<T: Send>(
        &self,
        data: &mut [T],
        cols: usize,
        (bands, tile_cols): (&[Range<usize>], usize),
        task: impl Fn(usize, TileMut<'_, T>) + Sync,
    ) {
        if data.is_empty() {
            return;
        }
        assert!(cols > 0 && data.len().is_multiple_of(cols), "the matrix is not whole rows");
        assert!(tile_cols > 0, "a tile holds at least one element");
        let end = bands.iter().fold(0, |end, band| {
            assert!(end <= band.start && band.start <= band.end, "bands are in order");
            band.end
        });
        assert!(end <= data.len() / cols, "a band is outside the matrix");
        let across = cols.div_ceil(tile_cols);
        let base = SendPtr(data.as_mut_ptr());
        let tasks = bands.len().checked_mul(across).expect("fewer tiles than addresses");
        self.run(tasks, |index| {
            let (band, col) = (index / across, index % across * tile_cols);
            let base = &base;
            // The bands are disjoint, and so are the tiles of a band.
            let tile = TileMut {
                base: base.0,
                row_stride: cols,
                rows: bands[band].clone(),
                cols: col..cols.min(col + tile_cols),
                _data: std::marker::PhantomData,
            };
            task(band, tile);
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.set_threads(1);
        self.resize(&mut lock(&self.workers));
    }
}

struct SendPtr<T>(*mut T);
// SAFETY: the pointer is used only for disjoint parts of a slice of `T: Send`; see its users.
unsafe impl<T: Send> Sync for SendPtr<T> {}

/// A rectangle of a row-major matrix that one task owns.
#[derive(Debug)]
pub struct TileMut<'a, T> {
    base: *mut T,
    row_stride: usize,
    /// Rows of the matrix that the tile covers.
    pub(crate) rows: Range<usize>,
    /// Columns of the matrix that the tile covers.
    pub(crate) cols: Range<usize>,
    _data: std::marker::PhantomData<&'a mut [T]>,
}

impl<T> TileMut<'_, T> {
    /// The first element, and how many elements lie from one row to the next.
    pub fn as_raw(&mut self) -> (*mut T, usize) {
        let first = self.rows.start * self.row_stride + self.cols.start;
        // SAFETY: no further than one past the end of the matrix, by construction.
        (unsafe { self.base.add(first) }, self.row_stride)
    }

    /// The part of row `row` of the matrix that the tile covers.
    ///
    /// # Panics
    ///
    /// Panics if the tile does not cover the row.
    pub fn row_mut(&mut self, row: usize) -> &mut [T] {
        assert!(self.rows.contains(&row), "row {row} is outside the tile");
        // SAFETY: `row` and `cols` are inside the matrix, by the assertion and by construction.
        let at = unsafe { self.base.add(row * self.row_stride + self.cols.start) };
        // SAFETY: tiles are disjoint and each is handed out once, and the slice borrows the tile
        // mutably, so nothing else refers to these elements.
        unsafe { std::slice::from_raw_parts_mut(at, self.cols.len()) }
    }
}

impl Shared {
    /// Publishes a region. The caller holds `Team::workers` and the state is closed and empty.
    fn open(&self, task: &(dyn Fn(usize) + Sync), tasks: usize) {
        let run: *const (dyn Fn(usize) + Sync + '_) = task;
        // SAFETY: only the lifetime changes. See the invariant of the module.
        #[expect(clippy::disallowed_methods, reason = "no safe cast extends a trait object")]
        let run = unsafe {
            std::mem::transmute::<*const (dyn Fn(usize) + Sync + '_), *const (dyn Fn(usize) + Sync)>(
                run,
            )
        };
        // SAFETY: no worker is joined, so nobody reads `job`; the lock excludes other writers.
        self.job.with_mut(|job| unsafe { *job = Job { run, tasks } });
        self.cursor.store(0, SeqCst);
        self.state.fetch_add(GENERATION + OPEN, SeqCst);
        // Pairs with the fence in `sleep_until`: either the worker sees the region, or this sees
        // the worker.
        fence(SeqCst);
        if self.sleepers.load(SeqCst) > 0 {
            self.wake_sleepers();
        }
    }

    fn wake_sleepers(&self) {
        // Taking the lock orders this after the check that a worker makes before it sleeps.
        drop(lock(&self.sleep_lock));
        self.wake.notify_all();
    }

    /// Closes the region and waits for the workers that joined it.
    fn close(&self) {
        self.state.fetch_and(!OPEN, SeqCst);
        let empty = || self.state.load(SeqCst) & JOINED_MASK == 0;
        if spin_until(self.spin(), empty) {
            return;
        }
        let mut guard = lock(&self.done_lock);
        self.caller_waits.store(true, SeqCst);
        // Pairs with the fence in `leave`: either this sees the worker gone, or the worker sees
        // this wait.
        fence(SeqCst);
        while !empty() {
            guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_waits.store(false, SeqCst);
    }

    /// Runs unclaimed tasks until none is left.
    fn claim(&self, task: &(dyn Fn(usize) + Sync), tasks: usize) {
        loop {
            let index = self.cursor.fetch_add(1, SeqCst);
            if index >= tasks {
                return;
            }
            task(index);
        }
    }

    /// Joins the open region, if there is one. Returns whether it did.
    fn join(&self) -> bool {
        let mut state = self.state.load(SeqCst);
        while state & OPEN != 0 {
            match self.state.compare_exchange_weak(state, state + 1, SeqCst, SeqCst) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    fn leave(&self) {
        let before = self.state.fetch_sub(1, SeqCst);
        fence(SeqCst);
        if before & JOINED_MASK == 1 && self.caller_waits.load(SeqCst) {
            drop(lock(&self.done_lock));
            self.done.notify_all();
        }
    }

    fn spin(&self) -> Duration {
        Duration::from_nanos(self.spin.load(SeqCst))
    }

    /// The life of worker `index`.
    fn work(&self, index: usize) {
        let mut seen = 0;
        let ends = || index >= self.keep.load(SeqCst);
        while !ends() {
            let news = || {
                let state = self.state.load(SeqCst);
                (state & OPEN != 0 && state & !(GENERATION - 1) != seen) || ends()
            };
            if !spin_until(self.spin(), news) {
                self.sleep_until(news);
            }
            if !self.join() {
                continue;
            }
            seen = self.state.load(SeqCst) & !(GENERATION - 1);
            // SAFETY: this worker is joined, so the caller of the region cannot change `job`.
            let job = self.job.with(|job| unsafe { *job });
            // SAFETY: the closure lives until this worker has left; see the invariant.
            let task = unsafe { &*job.run };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| self.claim(task, job.tasks))) {
                self.cursor.store(job.tasks, SeqCst);
                let mut first = lock(&self.panic);
                match &*first {
                    None => *first = Some(payload),
                    // Dropping it would run code of the task, which may panic again, and this
                    // worker must leave the region.
                    Some(_) => std::mem::forget(payload),
                }
            }
            self.leave();
        }
    }

    fn sleep_until(&self, news: impl Fn() -> bool) {
        let mut guard = lock(&self.sleep_lock);
        self.sleepers.fetch_add(1, SeqCst);
        fence(SeqCst);
        while !news() {
            guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.sleepers.fetch_sub(1, SeqCst);
        drop(guard);
    }
}

/// Spins for at most `limit`. Returns whether `done` came true.
fn spin_until(limit: Duration, done: impl Fn() -> bool) -> bool {
    if done() {
        return true;
    }
    if limit.is_zero() {
        return false;
    }
    let start = Instant::now();
    loop {
        for _ in 0..64 {
            std::hint::spin_loop();
            if done() {
                return true;
            }
        }
        if start.elapsed() > limit {
            return false;
        }
    }
}

#[cfg(test)]
#[cfg(not(loom))]
#[path = "threads_tests.rs"]
mod tests;
