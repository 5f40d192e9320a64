//! The simulated device: objects, queues, and the rules that a driver enforces or, worse, does not.
//!
//! What is queued runs when the host asks for something, in an order that a seed chooses among all
//! that the streams and events allow. So a wait that is missing shows, and the same seed shows it
//! again. What a real driver would let pass and then do wrong is written down as a violation.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::Arc;

use crate::blas::{self, Gemm};
use crate::control::{Config, Report, Schedule};
use crate::heap::Heap;
use crate::host::{Host, HostRange};
use crate::kernel::Loaded;
use crate::status::{self, Status};

/// A device that is busy or idle, with everything that was made on it.
#[derive(Default)]
pub(crate) struct Sim {
    pub(crate) config: Config,
    pub(crate) report: Report,
    pub(crate) violations: Vec<String>,
    pub(crate) heap: Option<Arc<Heap>>,
    pub(crate) host: Host,
    pub(crate) streams: BTreeMap<u64, Stream>,
    pub(crate) events: BTreeMap<u64, Event>,
    pub(crate) modules: BTreeMap<u64, Arc<Loaded>>,
    pub(crate) functions: BTreeMap<u64, Function>,
    pub(crate) retained: u64,
    pub(crate) blas: BTreeMap<u64, blas::Handle>,
    next_handle: u64,
    random: u64,
    /// The status that every call returns once the context is broken.
    sticky: Option<Status>,
    /// Calls by name, for injected failures.
    calls: HashMap<&'static str, u64>,
    launches: u64,
    /// Simulated time, which goes on with each thing that the device does and means nothing else.
    clock_ns: u64,
    /// Questions since something was queued last.
    queries: u64,
}

/// Questions in a row that a lazy device answers without doing anything.
const PATIENCE: u64 = 200;

/// A kernel of a module.
#[derive(Clone)]
pub(crate) struct Function {
    pub(crate) module: u64,
    pub(crate) name: String,
    /// Dynamic shared memory that a launch may ask for.
    pub(crate) max_dynamic_shared: u32,
}

/// An in-order queue.
#[derive(Default)]
pub(crate) struct Stream {
    queue: VecDeque<Op>,
    pub(crate) destroyed: bool,
}

/// How often an event was recorded, and which of the marks the device has passed. A mark may be
/// passed before an earlier one that lies in another stream.
#[derive(Default)]
pub(crate) struct Event {
    recorded: u64,
    passed: BTreeSet<u64>,
    pub(crate) destroyed: bool,
    /// It was made to tell the time.
    timed: bool,
    /// When the newest of the marks was passed.
    passed_ns: u64,
}

impl Event {
    pub(crate) fn new(timed: bool) -> Self {
        Self { timed, ..Self::default() }
    }
}

/// One thing that a stream does.
pub(crate) enum Op {
    Upload { to: u64, from: HostRange },
    Download { to: HostRange, from: u64 },
    Launch(Launch),
    Gemm(Gemm),
    Record { event: u64, version: u64 },
    Wait { event: u64, version: u64 },
}

/// A kernel with its arguments.
pub(crate) struct Launch {
    pub(crate) function: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) dynamic_shared: u32,
    pub(crate) params: Vec<u8>,
}

type Result<T> = std::result::Result<T, Status>;

impl Sim {
    pub(crate) fn configure(&mut self, config: Config) {
        *self = Self { random: config.seed, next_handle: 0x1000, config, ..Self::default() };
    }

    pub(crate) fn heap(&mut self) -> Arc<Heap> {
        let limit = self.config.memory_bytes;
        Arc::clone(self.heap.get_or_insert_with(|| Arc::new(Heap::new(limit))))
    }

    pub(crate) fn handle(&mut self) -> u64 {
        // Addresses of objects look like addresses, and are never used twice.
        self.next_handle += 0x40;
        self.next_handle
    }

    /// What each call does first: it counts, it may be chosen to fail or to do nothing (`false`),
    /// and a broken context answers everything with its fault.
    pub(crate) fn begin(&mut self, call: &'static str) -> Result<bool> {
        let calls = self.calls.entry(call).or_default();
        let number = *calls;
        *calls += 1;
        if let Some(code) = self.sticky {
            return Err(code);
        }
        if self.config.fail.is(call, number) {
            return Err(self.config.fail.code);
        }
        Ok(!self.config.ignore.is(call, number))
    }

    /// Reports whether the context is broken.
    pub(crate) const fn is_broken(&self) -> bool {
        self.sticky.is_some()
    }

    pub(crate) fn calls(&self, call: &str) -> u64 {
        self.calls.get(call).copied().unwrap_or(0)
    }

    pub(crate) fn violation(&mut self, what: impl Into<String>) {
        self.report.violations += 1;
        self.violations.push(what.into());
    }

    fn random(&mut self, below: u64) -> u64 {
        // SplitMix64.
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    fn stream(&mut self, stream: u64) -> Result<&mut Stream> {
        if self.streams.get(&stream).is_none_or(|found| found.destroyed) {
            self.violation("a stream was used that does not exist");
        }
        self.streams.get_mut(&stream).ok_or(status::INVALID_HANDLE)
    }

    fn event(&mut self, event: u64) -> Result<&mut Event> {
        if self.events.get(&event).is_none_or(|found| found.destroyed) {
            self.violation("an event was used that does not exist");
        }
        self.events.get_mut(&event).ok_or(status::INVALID_HANDLE)
    }

    pub(crate) fn push(&mut self, stream: u64, op: Op) -> Result<()> {
        self.queries = 0;
        self.stream(stream)?.queue.push_back(op);
        match self.config.schedule {
            Schedule::Eager => self.settle(&|sim: &Self| sim.is_idle()),
            // Now and then the device is quick.
            Schedule::Random => {
                let steps = self.random(4).saturating_sub(1);
                (0..steps).try_for_each(|_| self.step().map(|_| ()))
            }
            Schedule::CopiesFirst => self.run_copies(),
            Schedule::Lazy => Ok(()),
        }
    }

    pub(crate) fn record(&mut self, event: u64, stream: u64) -> Result<()> {
        let found = self.event(event)?;
        found.recorded += 1;
        let version = found.recorded;
        self.push(stream, Op::Record { event, version })
    }

    pub(crate) fn wait(&mut self, stream: u64, event: u64) -> Result<()> {
        let version = self.event(event)?.recorded;
        self.push(stream, Op::Wait { event, version })
    }

    /// Whether the device has passed an event. Asking lets some time pass; a lazy device moves only
    /// when somebody asks again and again.
    pub(crate) fn query(&mut self, event: u64) -> Result<bool> {
        self.event(event)?;
        self.queries += 1;
        if self.config.schedule == Schedule::Random || self.queries > PATIENCE {
            self.step()?;
        }
        let version = self.event(event)?.recorded;
        Ok(self.has_passed(event, version))
    }

    pub(crate) fn sync_event(&mut self, event: u64) -> Result<()> {
        let version = self.event(event)?.recorded;
        if matches!(self.config.schedule, Schedule::Lazy | Schedule::CopiesFirst) {
            while !self.has_passed(event, version) {
                if !self.step_towards(event, version)? {
                    return self.deadlock();
                }
            }
            return Ok(());
        }
        self.settle(&|sim: &Self| sim.has_passed(event, version))
    }

    pub(crate) fn sync_stream(&mut self, stream: u64) -> Result<()> {
        self.stream(stream)?;
        self.settle(&|sim: &Self| sim.streams.get(&stream).is_none_or(|s| s.queue.is_empty()))
    }

    /// Runs everything that is queued.
    pub(crate) fn drain(&mut self) -> Result<()> {
        self.settle(&|sim: &Self| sim.is_idle())
    }

    fn is_idle(&self) -> bool {
        self.streams.values().all(|stream| stream.queue.is_empty())
    }

    fn has_passed(&self, event: u64, version: u64) -> bool {
        // A wait for an event that was never recorded waits for nothing.
        let passed = |event: &Event| version == 0 || event.passed.contains(&version);
        self.events.get(&event).is_none_or(passed)
    }

    fn settle(&mut self, until: &dyn Fn(&Self) -> bool) -> Result<()> {
        while !until(self) {
            if !self.step()? {
                return self.deadlock();
            }
        }
        Ok(())
    }

    fn deadlock(&mut self) -> Result<()> {
        self.violation("the streams wait for each other");
        self.sticky = Some(status::LAUNCH_TIMEOUT);
        Err(status::LAUNCH_TIMEOUT)
    }

    fn is_runnable(&self, stream: &Stream) -> bool {
        match stream.queue.front() {
            None => false,
            Some(Op::Wait { event, version }) => self.has_passed(*event, *version),
            Some(_) => true,
        }
    }

    /// Runs the first op of a stream that the seed chooses. `false` if there is none.
    fn step(&mut self) -> Result<bool> {
        let runnable = self.streams.iter().filter(|(_, stream)| self.is_runnable(stream));
        let runnable: Vec<u64> = runnable.map(|(&handle, _)| handle).collect();
        if runnable.is_empty() {
            return Ok(false);
        }
        let chosen = usize::try_from(self.random(runnable.len() as u64)).unwrap_or(0);
        let chosen = runnable[chosen];
        self.run_front(chosen)?;
        Ok(true)
    }

    /// Runs one op that the passing of an event waits for, and nothing else.
    fn step_towards(&mut self, event: u64, version: u64) -> Result<bool> {
        let records = |op: &Op| matches!(op, Op::Record { event: e, version: v } if *e == event && *v == version);
        let holder = self.streams.iter().find(|(_, stream)| stream.queue.iter().any(records));
        let Some((&stream, queue)) = holder else { return Ok(false) };
        match queue.queue.front() {
            Some(&Op::Wait { event, version }) if !self.has_passed(event, version) => {
                self.step_towards(event, version)
            }
            _ => self.run_front(stream).map(|()| true),
        }
    }

    /// Runs everything that does not come after a kernel.
    fn run_copies(&mut self) -> Result<()> {
        let ready = |sim: &Self, stream: &Stream| {
            sim.is_runnable(stream)
                && !matches!(stream.queue.front(), Some(Op::Launch(_) | Op::Gemm(_)))
        };
        loop {
            let found = self.streams.iter().find(|(_, stream)| ready(self, stream));
            let Some((&stream, _)) = found else { return Ok(()) };
            self.run_front(stream)?;
        }
    }

    fn run_front(&mut self, stream: u64) -> Result<()> {
        let Some(op) = self.streams.get_mut(&stream).and_then(|s| s.queue.pop_front()) else {
            return Ok(());
        };
        let result = self.run(op);
        if let Err(code) = result {
            // A failed command breaks the context, and the device forgets what is queued.
            self.sticky = Some(code);
            self.streams.values_mut().for_each(|stream| stream.queue.clear());
        }
        result
    }

    /// Time from one event to another, both of which the device must have passed.
    pub(crate) fn elapsed_ms(&mut self, start: u64, end: u64) -> Result<f32> {
        let mut at = [0; 2];
        for (at, handle) in at.iter_mut().zip([start, end]) {
            let event = self.event(handle)?;
            let (timed, version, passed_ns) = (event.timed, event.recorded, event.passed_ns);
            if !timed || version == 0 {
                self.violation("the time of an event was asked that has none");
                return Err(status::INVALID_HANDLE);
            }
            if !self.has_passed(handle, version) {
                return Err(status::NOT_READY);
            }
            *at = passed_ns;
        }
        let ns = at[1].cast_signed() - at[0].cast_signed();
        // The driver's own type; the loss is what it has, too.
        #[expect(clippy::cast_possible_truncation, reason = "see above")]
        #[expect(clippy::cast_precision_loss, reason = "see above")]
        Ok((ns as f64 / 1e6) as f32)
    }

    /// What an op costs in simulated time: a microsecond, and another for each 16 KiB that move.
    fn tick(&mut self, op: &Op) {
        self.clock_ns += match op {
            Op::Upload { from: range, .. } | Op::Download { to: range, .. } => {
                1000 + (range.len() as u64).div_ceil(16 << 10) * 1000
            }
            Op::Launch(_) | Op::Gemm(_) => 1000,
            Op::Record { .. } | Op::Wait { .. } => 0,
        };
    }

    fn run(&mut self, op: Op) -> Result<()> {
        self.tick(&op);
        let now_ns = self.clock_ns;
        match op {
            Op::Wait { .. } => Ok(()),
            Op::Record { event, version } => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.passed.insert(version);
                    if version == event.recorded {
                        event.passed_ns = now_ns;
                    }
                }
                Ok(())
            }
            Op::Upload { to, from } => {
                self.report.uploads += 1;
                self.report.uploaded_bytes += from.len() as u64;
                let bytes = self.host.read(&from).map_err(|what| self.broken(what))?;
                let heap = self.heap();
                heap.upload(to, &bytes).map_err(|e| self.broken(format!("upload: {e}")))
            }
            Op::Download { to, from } => {
                self.report.downloads += 1;
                self.report.downloaded_bytes += to.len() as u64;
                let mut bytes = vec![0; to.len()];
                let heap = self.heap();
                let read = heap.download(from, &mut bytes);
                read.map_err(|error| self.broken(format!("download: {error}")))?;
                self.host.write(&to, &bytes).map_err(|what| self.broken(what))
            }
            Op::Launch(launch) => self.run_kernel(&launch),
            Op::Gemm(gemm) => {
                self.report.products += 1;
                self.count_launch()?;
                gemm.run(&self.heap()).map_err(|fault| self.broken(fault))
            }
        }
    }

    fn broken(&mut self, what: impl Into<String>) -> Status {
        self.violation(what);
        status::ILLEGAL_ADDRESS
    }

    /// Counts what the compute units do, and lets it fail where that is wanted.
    fn count_launch(&mut self) -> Result<()> {
        let number = self.launches;
        self.launches += 1;
        self.report.launches += 1;
        if number == self.config.fault_at { Err(status::LAUNCH_FAILED) } else { Ok(()) }
    }

    fn run_kernel(&mut self, launch: &Launch) -> Result<()> {
        self.count_launch()?;
        let Some(function) = self.functions.get(&launch.function).cloned() else {
            return Err(self.broken("a kernel was launched whose module is gone"));
        };
        let Some(module) = self.modules.get(&function.module).cloned() else {
            return Err(self.broken("a kernel was launched whose module is gone"));
        };
        let heap = self.heap();
        let seed = self.random(u64::MAX);
        let ran = module.run(&function.name, launch, &heap, seed);
        ran.map_err(|fault| self.broken(fault))
    }
}
