//! The lanes of a device and the commands in flight.
//!
//! Three streams: uploads, computation, downloads, joined by events. A command is what one call
//! puts into them; its place is its number in the compute stream.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use fucina_accel::{
    Arrival, CommandError, CommandId, Decline, Moved, ProviderCounters, ProviderId, Timeline,
    Uploads,
};

use crate::driver::{Context, CuError, Entered, Event, Events, Stream, held};
use crate::inputs::{Held, Inputs, Source};
use crate::memory::{Buffer, DevicePool};
use crate::ops::{Plan, Step};
use crate::pages::SharedPages;
use crate::staging::Staging;
use crate::timing::{Mark, Marks, Timing};

/// A device in use. Commands that outlive the provider keep it.
pub(crate) struct Device {
    pub(crate) context: Arc<Context>,
    pub(crate) provider: ProviderId,
    pub(crate) events: Arc<Events>,
    pub(crate) memory: Arc<DevicePool>,
    pub(crate) staging: Arc<Staging>,
    pub(crate) shared_pages: SharedPages,
    pub(crate) counters: Counters,
    pub(crate) lanes: Lanes,
    /// If somebody watches.
    pub(crate) timing: OnceLock<Arc<Timing>>,
    queue: Mutex<Queue>,
    max_in_flight: usize,
    lost: AtomicBool,
}

/// The streams.
pub(crate) struct Lanes {
    pub(crate) upload: Stream,
    pub(crate) compute: Stream,
    pub(crate) download: Stream,
}

/// Number of the compute lane, which is the one that a submission names.
pub(crate) const COMPUTE_LANE: u32 = 0;

struct Queue {
    next_place: u64,
    /// The upload lane has been told to wait for the commands up to this place.
    awaited: u64,
    in_flight: VecDeque<(u64, Arc<Done>)>,
}

/// What tells that a command has run.
pub(crate) struct Done {
    event: Event,
    outcome: OnceLock<Result<(), CuError>>,
    /// What the uploads read.
    staged: Mutex<Vec<Held>>,
    /// What is told of the command once it has run.
    marks: Option<Mutex<Option<Marks>>>,
}

impl Done {
    pub(crate) const fn event(&self) -> &Event {
        &self.event
    }

    /// The outcome, if it is known.
    pub(crate) fn known(&self) -> Option<&Result<(), CuError>> {
        self.outcome.get()
    }

    /// Asks the driver. Does not block.
    pub(crate) fn poll(&self, entered: &Entered<'_>) -> Option<&Result<(), CuError>> {
        if self.known().is_none() {
            // A question that is refused is asked once more: a lost device refuses again.
            let asked = entered.has_passed(&self.event);
            match asked.or_else(|_| entered.has_passed(&self.event)) {
                Ok(false) => return None,
                Ok(true) => {
                    self.settle(Ok(()));
                    self.tell(entered);
                }
                Err(error) => self.settle(Err(error)),
            }
        }
        self.known()
    }

    /// Tells when the command ran, once; after it has.
    pub(crate) fn tell(&self, entered: &Entered<'_>) {
        let marks = self.marks.as_ref().and_then(|marks| held(marks).take());
        if let (Some(marks), Some(Ok(()))) = (marks, self.known()) {
            marks.tell(entered, &self.event);
        }
    }

    /// Records the outcome; the first one stays. What the uploads read is let go before anybody
    /// can know of it: then the pages may be freed. After a failure it is given up, because the
    /// device may still read it.
    pub(crate) fn settle(&self, result: Result<(), CuError>) {
        let mut staged = held(&self.staged);
        let let_go = std::mem::take(&mut *staged);
        if self.outcome.get().unwrap_or(&result).is_ok() {
            drop(let_go);
        } else {
            std::mem::forget(let_go);
        }
        let _ = self.outcome.set(result);
    }
}

/// Totals of the provider.
#[derive(Default)]
pub(crate) struct Counters {
    pub(crate) submitted: AtomicU64,
    pub(crate) faults: AtomicU64,
    pub(crate) uploads: AtomicU64,
    pub(crate) uploaded_bytes: AtomicU64,
    pub(crate) downloads: AtomicU64,
    pub(crate) downloaded_bytes: AtomicU64,
    pub(crate) reused_copies: AtomicU64,
    /// How operands got here: weights, and all else.
    pub(crate) operands: Mutex<[Uploads; 2]>,
    pub(crate) tables: Mutex<Moved>,
}

impl Counters {
    /// Counts how an operand got here.
    pub(crate) fn arrived(&self, is_weight: bool, arrival: Arrival, len_bytes: usize) {
        held(&self.operands)[usize::from(!is_weight)].add(arrival, len_bytes);
    }
}

pub(crate) fn count(counter: &AtomicU64, more: usize) {
    counter.fetch_add(more as u64, Ordering::Relaxed);
}

impl Device {
    /// Makes the lanes and the pools of a context.
    pub(crate) fn new(
        context: &Arc<Context>,
        memory: Arc<DevicePool>,
        max_in_flight: usize,
    ) -> Result<Self, CuError> {
        let entered = context.enter()?;
        let lanes = Lanes {
            upload: entered.stream()?,
            compute: entered.stream()?,
            download: entered.stream()?,
        };
        Ok(Self {
            context: Arc::clone(context),
            provider: ProviderId::fresh(),
            events: Events::new(context, false),
            timing: OnceLock::new(),
            memory,
            staging: Staging::new(context),
            shared_pages: SharedPages::default(),
            counters: Counters::default(),
            lanes,
            queue: Mutex::new(Queue { next_place: 1, awaited: 0, in_flight: VecDeque::new() }),
            max_in_flight,
            lost: AtomicBool::new(false),
        })
    }

    /// Lets commands from now on tell when they run. Without the driver's help there is nothing to
    /// tell.
    pub(crate) fn observe(&self, timeline: &Arc<Timeline>) {
        let Ok(entered) = self.context.enter() else { return };
        let events = Events::new(&self.context, true);
        if self.timing.get().is_none()
            && let Ok(timing) = Timing::new(&entered, &self.lanes.compute, events, timeline)
        {
            let _ = self.timing.set(Arc::new(timing));
        }
    }

    /// The command at `place` of the compute lane.
    pub(crate) fn command(&self, place: u64) -> CommandId {
        CommandId { lane: self.provider.device(0).lane(COMPUTE_LANE), place }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire) || self.context.is_forked()
    }

    /// Every error of work that was accepted ends the context, by the driver's rules.
    pub(crate) fn lose(&self, error: &CuError) -> CommandError {
        if !self.lost.swap(true, Ordering::AcqRel) {
            count(&self.counters.faults, 1);
        }
        CommandError::Lost { code: error.to_string() }
    }

    /// Declines if there is no room for another command.
    pub(crate) fn has_room(&self, entered: &Entered<'_>) -> Result<(), Decline> {
        self.room(&mut held(&self.queue), entered)
    }

    fn room(&self, queue: &mut Queue, entered: &Entered<'_>) -> Result<(), Decline> {
        self.reap(queue, entered)?;
        if queue.in_flight.len() < self.max_in_flight { Ok(()) } else { Err(Decline::Busy) }
    }

    /// Lets go of what the uploads of commands have read, up to the one at `place`, which has run.
    pub(crate) fn release_uploads(&self, entered: &Entered<'_>, place: u64) {
        let queue = held(&self.queue);
        for (_, done) in queue.in_flight.iter().take_while(|(at, _)| *at <= place) {
            if done.known().is_none() {
                done.settle(Ok(()));
                done.tell(entered);
            }
        }
    }

    /// Forgets the commands that have run.
    fn reap(&self, queue: &mut Queue, entered: &Entered<'_>) -> Result<(), Decline> {
        while let Some((place, done)) = queue.in_flight.front() {
            match done.poll(entered) {
                None => break,
                Some(Ok(())) => self.memory.finished(*place),
                Some(Err(error)) => {
                    self.lose(error);
                    return Err(Decline::DeviceLost);
                }
            }
            queue.in_flight.pop_front();
        }
        Ok(())
    }

    /// Puts a command into the lanes. Its number and its mark, or the reason why the device has
    /// nothing of it.
    pub(crate) fn enqueue(
        &self,
        entered: &Entered<'_>,
        inputs: &mut Inputs,
        plan: &Plan,
    ) -> Result<(u64, Arc<Done>), Decline> {
        let mut queue = held(&self.queue);
        self.room(&mut queue, entered)?;
        let place = queue.next_place;
        let timing = self.timing.get();
        let event =
            timing.map_or_else(|| self.events.take(entered), |timing| timing.event(entered));
        let event = event.map_err(|_| Decline::Refused)?;
        let sent = self.send(entered, &mut queue, inputs, plan).and_then(|marks| {
            entered.record(&event, &self.lanes.compute)?;
            Ok(marks)
        });
        let Ok(marks) = sent else {
            let why = self.take_back(entered);
            if why == Decline::DeviceLost {
                // The device may still read them.
                std::mem::forget(inputs.take_held());
            }
            return Err(why);
        };
        if let Some(timing) = timing {
            timing.inputs(self.command(place), inputs.seen);
        }
        for buffer in inputs.buffers.iter().chain(&plan.buffers) {
            buffer.used_by(place);
        }
        let staged = inputs.take_held();
        let (outcome, staged) = (OnceLock::new(), Mutex::new(staged));
        let done =
            Arc::new(Done { event, outcome, staged, marks: marks.map(|m| Mutex::new(Some(m))) });
        queue.in_flight.push_back((place, Arc::clone(&done)));
        queue.next_place += 1;
        count(&self.counters.submitted, 1);
        Ok((place, done))
    }

    fn send(
        &self,
        entered: &Entered<'_>,
        queue: &mut Queue,
        inputs: &Inputs,
        plan: &Plan,
    ) -> Result<Option<Marks>, CuError> {
        let (uploads, timing) = (&inputs.uploads, self.timing.get());
        let mut marks = Vec::new();
        for (number, upload) in uploads.iter().enumerate() {
            self.wait_for_last_use(entered, queue, &upload.buffer)?;
            let start = timing.map(|t| t.stamp(entered, &self.lanes.upload)).transpose()?;
            match &upload.source {
                Source::Done => {}
                Source::Host(pieces, _) => {
                    for piece in pieces {
                        piece.upload(entered, &self.lanes.upload, upload.buffer.address())?;
                    }
                }
                Source::Staged(piece) => {
                    let (memory, len) = (piece.memory(), upload.len_bytes);
                    let to = upload.buffer.address() + upload.at as u64;
                    let from = memory.start();
                    // SAFETY: the piece is page-locked, belongs to this upload, and is kept with
                    // the mark of the command; so is the buffer, through its last use.
                    unsafe { entered.upload(&self.lanes.upload, to, from, len) }?;
                }
            }
            if let (Some(timing), Some(start)) = (timing, start) {
                let mark = Mark::new(start, timing.stamp(entered, &self.lanes.upload)?);
                marks.push((mark, upload.len_bytes, inputs.operand_of(number)));
            }
        }
        if uploads.iter().any(|upload| !matches!(upload.source, Source::Done)) {
            let uploaded = self.events.take(entered)?;
            entered.record(&uploaded, &self.lanes.upload)?;
            entered.wait(&self.lanes.compute, &uploaded)?;
        }
        let start = timing.map(|t| t.stamp(entered, &self.lanes.compute)).transpose()?;
        for step in &plan.steps {
            match step {
                // SAFETY: the op's planner has matched the arguments to the kernel and the sizes
                // to the buffers. Buffers that go back to the pool remember this command.
                Step::Launch(launch) => unsafe { entered.launch(&self.lanes.compute, launch) },
                // SAFETY: the same holds for the operands of a product, and the caller has locked
                // the queue.
                Step::Gemm(blas, gemm) => unsafe { blas.run(entered, gemm) }
                    .inspect_err(|_| plan.library_refused.set(true)),
            }?;
        }
        let command = self.command(queue.next_place);
        Ok(timing.zip(start).map(|(t, start)| Marks::new(Arc::clone(t), command, marks, start)))
    }

    /// Lets the upload lane wait for the command that still uses the memory of a buffer.
    fn wait_for_last_use(
        &self,
        entered: &Entered<'_>,
        queue: &mut Queue,
        buffer: &Buffer,
    ) -> Result<(), CuError> {
        let last_use = buffer.last_use();
        if last_use <= queue.awaited {
            return Ok(());
        }
        let mut users = queue.in_flight.iter().rev();
        if let Some((_, done)) = users.find(|(place, _)| *place <= last_use) {
            entered.wait(&self.lanes.upload, &done.event)?;
        }
        queue.awaited = last_use;
        Ok(())
    }

    /// As [`wait_for_last_use`](Self::wait_for_last_use), without the queue at hand.
    pub(crate) fn wait_before_upload(
        &self,
        entered: &Entered<'_>,
        buffer: &Buffer,
    ) -> Result<(), CuError> {
        self.wait_for_last_use(entered, &mut held(&self.queue), buffer)
    }

    /// After the driver refused a part of a command: waits until the parts before it have run, so
    /// that nothing of the command is left and the call can run elsewhere.
    fn take_back(&self, entered: &Entered<'_>) -> Decline {
        for lane in [&self.lanes.upload, &self.lanes.compute] {
            if let Err(error) = entered.drain(lane) {
                self.lose(&error);
                return Decline::DeviceLost;
            }
        }
        Decline::Refused
    }

    /// Waits until every lane is empty, and forgets the commands.
    pub(crate) fn drain(&self) {
        let Ok(entered) = self.context.enter() else { return };
        for lane in [&self.lanes.upload, &self.lanes.compute, &self.lanes.download] {
            if let Err(error) = entered.drain(lane) {
                self.lose(&error);
            }
        }
        let mut queue = held(&self.queue);
        let _ = self.reap(&mut queue, &entered);
        if self.is_lost() {
            // Their errors belong to whoever holds them.
            queue.in_flight.clear();
        }
    }

    pub(crate) fn totals(&self) -> ProviderCounters {
        if let Ok(entered) = self.context.enter() {
            let _ = self.reap(&mut held(&self.queue), &entered);
        }
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (counters, budget) = (&self.counters, self.memory.budget());
        let mut totals = ProviderCounters::default();
        totals.submitted = get(&counters.submitted);
        totals.faults = get(&counters.faults);
        totals.uploads = get(&counters.uploads);
        totals.uploaded_bytes = get(&counters.uploaded_bytes);
        totals.downloads = get(&counters.downloads);
        totals.downloaded_bytes = get(&counters.downloaded_bytes);
        totals.reused_copies = get(&counters.reused_copies);
        [totals.weights, totals.activations] = *held(&counters.operands);
        totals.tables = *held(&counters.tables);
        totals.in_flight = held(&self.queue).in_flight.len() as u64;
        totals.evictions = budget.evictions();
        totals.device_bytes = budget.used_bytes() as u64;
        totals
    }
}
