//! Lanes: one thread and one in-order queue each.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;

use super::chaos::Fate;
use super::device::{Dependency, Job};
use crate::error::CommandError;
use crate::provider::{Decline, ProviderCounters};

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the lanes of a device share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) lost: AtomicBool,
    pub(super) gate: Gate,
    pub(super) counters: Counters,
    in_flight: Mutex<InFlight>,
    idle: Condvar,
}

#[derive(Default)]
struct InFlight {
    commands: usize,
    bytes: usize,
}

impl Shared {
    pub(super) fn in_flight(&self) -> usize {
        held(&self.in_flight).commands
    }

    pub(super) fn wait_idle(&self) {
        let in_flight = held(&self.in_flight);
        drop(self.idle.wait_while(in_flight, |in_flight| in_flight.commands > 0));
    }

    /// Counts a command as finished and tells the host, as one step: who sees one sees both.
    fn finished(&self, bytes: usize, tell_host: impl FnOnce()) {
        let mut in_flight = held(&self.in_flight);
        in_flight.commands -= 1;
        in_flight.bytes -= bytes;
        tell_host();
        drop(in_flight);
        self.idle.notify_all();
    }
}

/// Holds the device back while it is closed.
#[derive(Default)]
pub(super) struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    pub(super) fn set(&self, closed: bool) {
        *held(&self.closed) = closed;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let closed = held(&self.closed);
        drop(self.opened.wait_while(closed, |closed| *closed));
    }
}

#[derive(Default)]
pub(super) struct Counters {
    pub(super) submitted: AtomicU64,
    pub(super) reused_copies: AtomicU64,
    faults: AtomicU64,
    uploads: AtomicU64,
    uploaded_bytes: AtomicU64,
    downloads: AtomicU64,
    downloaded_bytes: AtomicU64,
}

impl Counters {
    pub(super) fn get(&self) -> ProviderCounters {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        ProviderCounters {
            submitted: get(&self.submitted),
            faults: get(&self.faults),
            uploads: get(&self.uploads),
            uploaded_bytes: get(&self.uploaded_bytes),
            downloads: get(&self.downloads),
            downloaded_bytes: get(&self.downloaded_bytes),
            reused_copies: get(&self.reused_copies),
            ..ProviderCounters::default()
        }
    }

    pub(super) fn count_download(&self, len_bytes: usize) {
        self.downloads.fetch_add(1, Ordering::Relaxed);
        self.downloaded_bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
    }

    fn count_upload(&self, len_bytes: usize) {
        self.uploads.fetch_add(1, Ordering::Relaxed);
        self.uploaded_bytes.fetch_add(len_bytes as u64, Ordering::Relaxed);
    }
}

/// One in-order queue.
#[derive(Default)]
pub(super) struct Lane {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Jobs that are queued or running.
    unfinished: usize,
    /// No more jobs come.
    closed: bool,
    /// The thread is to end, or has ended, without finishing its jobs.
    dead: bool,
}

impl Queue {
    fn has_room(&self, max_in_flight: usize) -> Result<(), Decline> {
        if self.dead || self.closed {
            Err(Decline::DeviceLost)
        } else if self.unfinished >= max_in_flight {
            Err(Decline::Busy)
        } else {
            Ok(())
        }
    }
}

impl Lane {
    /// Declines early, before device memory is looked for.
    pub(super) fn has_room(&self, max_in_flight: usize) -> Result<(), Decline> {
        held(&self.queue).has_room(max_in_flight)
    }

    /// Takes a job, if that keeps the number and the bytes in flight within `bounds`. Returns its
    /// number, which grows along the queue.
    pub(super) fn push(
        &self,
        mut job: Job,
        bounds: (usize, usize),
        shared: &Shared,
    ) -> Result<u64, Decline> {
        let mut queue = held(&self.queue);
        queue.has_room(bounds.0)?;
        let mut in_flight = held(&shared.in_flight);
        if in_flight.bytes.saturating_add(job.bytes) > bounds.1 {
            return Err(Decline::Busy);
        }
        in_flight.commands += 1;
        in_flight.bytes += job.bytes;
        drop(in_flight);
        let number = shared.counters.submitted.fetch_add(1, Ordering::Relaxed);
        job.number = number;
        queue.jobs.push_back(job);
        queue.unfinished += 1;
        drop(queue);
        self.changed.notify_all();
        Ok(number)
    }

    /// The thread ends when the queue is empty.
    pub(super) fn close(&self) {
        held(&self.queue).closed = true;
        self.changed.notify_all();
    }

    /// The thread ends now.
    pub(super) fn kill(&self) {
        held(&self.queue).dead = true;
        self.changed.notify_all();
    }

    /// The thread of the lane.
    pub(super) fn run(&self, shared: &Shared) {
        // Also runs when a bug unwinds the thread.
        let _guard = LaneEnd { lane: self, shared };
        loop {
            let mut queue = self
                .changed
                .wait_while(held(&self.queue), |queue| {
                    queue.jobs.is_empty() && !queue.closed && !queue.dead
                })
                .unwrap_or_else(PoisonError::into_inner);
            if queue.dead {
                return;
            }
            let Some(job) = queue.jobs.pop_front() else { return };
            drop(queue);
            let result = catch_unwind(AssertUnwindSafe(|| execute(&job, shared)));
            let panicked = |_| Err(CommandError::Failed { code: "kernel panicked".to_owned() });
            self.deliver(job, result.unwrap_or_else(panicked), shared);
        }
    }

    /// Reports the end of a job to everyone who waits for it.
    fn deliver(&self, job: Job, result: Result<(), CommandError>, shared: &Shared) {
        if result.is_err() {
            shared.counters.faults.fetch_add(1, Ordering::Relaxed);
        }
        let Job { inputs, out, bytes, .. } = job;
        for input in inputs {
            if let (Dependency::Upload(_), Err(error)) = (&input.dependency, &result) {
                // Has no effect if the upload took place: then only the kernel failed.
                input.buffer.ready.complete(Err(error.clone()));
            }
        }
        // First, so that the room is there when the host learns of the end.
        held(&self.queue).unfinished -= 1;
        shared.finished(bytes, || {
            out.ready.complete(result);
        });
    }
}

/// Fails what a dead lane leaves behind.
struct LaneEnd<'a> {
    lane: &'a Lane,
    shared: &'a Shared,
}

impl Drop for LaneEnd<'_> {
    fn drop(&mut self) {
        let mut queue = held(&self.lane.queue);
        queue.dead = true;
        let jobs = std::mem::take(&mut queue.jobs);
        drop(queue);
        for job in jobs {
            self.lane.deliver(job, Err(lost("lane ended")), self.shared);
        }
    }
}

fn lost(code: &str) -> CommandError {
    CommandError::Lost { code: code.to_owned() }
}

fn execute(job: &Job, shared: &Shared) -> Result<(), CommandError> {
    shared.gate.pass();
    check_device(shared)?;
    thread::sleep(job.plan.delay(0));
    // All uploads first: they make device copies that later commands use, whether or not a
    // dependency of this one fails.
    for input in &job.inputs {
        if let Dependency::Upload(host) = &input.dependency {
            let mut device = input.buffer.write();
            // SAFETY: the command is not finished, so the seam keeps the memory of its operands
            // allocated and the host from writing it.
            unsafe { host.copy_to(&mut device) };
            shared.counters.count_upload(device.len());
            drop(device);
            input.buffer.ready.complete(Ok(()));
        }
    }
    for input in &job.inputs {
        if let Dependency::Ready(writer) = &input.dependency {
            // The wait on the device for another lane.
            if let Err(error) = input.buffer.ready.wait() {
                let cause = writer.as_ref().and_then(|writer| writer.retire().err());
                return Err(cause.map_or(error, CommandError::Skipped));
            }
        }
    }
    thread::sleep(job.plan.delay(1));
    check_device(shared)?;
    match job.plan.fate(job.number) {
        Fate::Runs => {}
        Fate::Faults => return Err(CommandError::Failed { code: "injected fault".to_owned() }),
        Fate::LosesDevice => {
            shared.lost.store(true, Ordering::Release);
            return Err(lost("injected loss"));
        }
    }
    compute(job).map_err(|code| CommandError::Failed { code })
}

fn check_device(shared: &Shared) -> Result<(), CommandError> {
    if shared.lost.load(Ordering::Acquire) { Err(lost("device lost")) } else { Ok(()) }
}

/// Runs the kernel in device memory.
fn compute(job: &Job) -> Result<(), String> {
    let inputs = job.inputs.iter().map(|input| input.dense()).collect::<Result<Vec<_>, _>>()?;
    let result = job.kernel.run(&inputs)?;
    let mut out = job.out.write();
    let (chunks, rest) = out.as_chunks_mut::<4>();
    if chunks.len() != result.len() || !rest.is_empty() {
        return Err("kernel output of the wrong size".to_owned());
    }
    for (at, value) in chunks.iter_mut().zip(result) {
        *at = value.to_le_bytes();
    }
    Ok(())
}
