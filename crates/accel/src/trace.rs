//! Who ran what, and why: counters that are always on, and a log for those who ask for it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fucina_dtype::DType;

use crate::call::Call;
use crate::error::DeviceError;
use crate::provider::Decline;
use crate::shape::Shapes;
use crate::timeline::Timeline;

/// Why the runtime ran a call on the CPU without asking a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CpuReason {
    /// There is no provider.
    NoProvider,
    /// Offloading is switched off.
    Disabled,
    /// No provider offers the op, the format or the shape.
    NotOffered,
    /// The call is too small to pay for the trip.
    BelowGate {
        /// Name of the threshold.
        threshold: &'static str,
    },
    /// The call has too few rows or columns for any gate.
    TooNarrow,
    /// The bytes are on the host, and moving them costs more than computing there.
    NotResident,
    /// Every provider that offers the call has lost its device.
    DeviceLost,
    /// A reason of the caller's own.
    Other(&'static str),
}

impl fmt::Display for CpuReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::BelowGate { threshold } => return write!(f, "below {threshold}"),
            Self::NoProvider => "no provider",
            Self::Disabled => "offloading is off",
            Self::NotOffered => "not offered",
            Self::TooNarrow => "too narrow for a gate",
            Self::NotResident => "not resident",
            Self::DeviceLost => "device lost",
            Self::Other(reason) => reason,
        })
    }
}

/// Why the runtime offered a call to a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum OffloadReason {
    /// Every call is to be offered.
    Forced,
    /// There is enough work to pay for the trip.
    AboveGate {
        /// Name of the threshold; the last one, if there are several.
        threshold: &'static str,
    },
    /// An operand's bytes are on the device, and not on the host.
    FollowsOperand,
}

impl fmt::Display for OffloadReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Forced => f.write_str("offloading is forced"),
            Self::AboveGate { threshold } => write!(f, "above {threshold}"),
            Self::FollowsOperand => f.write_str("follows an operand on the device"),
        }
    }
}

/// Where a call ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Outcome {
    /// A provider took it.
    Offloaded {
        /// Name of the provider.
        provider: &'static str,
    },
    /// A provider was asked and declined; the CPU ran it.
    Declined {
        /// Name of the provider.
        provider: &'static str,
        /// The provider's reason.
        reason: Decline,
    },
    /// The CPU ran it.
    Cpu {
        /// The runtime's reason.
        reason: CpuReason,
    },
}

/// One decision.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decision {
    /// Name of the op.
    pub op: &'static str,
    /// Shapes of its operands.
    pub shapes: Shapes,
    /// Format of the weights, or of the first operand.
    pub format: DType,
    /// Where it ran.
    pub outcome: Outcome,
    /// What the CPU computed it with and why, where that was a choice.
    pub kernel: Option<&'static str>,
}

impl Decision {
    /// Describes `call`.
    pub fn new(call: &Call<'_>, outcome: Outcome) -> Self {
        let (op, shapes, format) = (call.op_name(), call.shapes(), call.format());
        Self { op, shapes, format, outcome, kernel: None }
    }

    /// The same with the kernel that ran on the CPU.
    #[must_use]
    pub const fn with_kernel(self, kernel: Option<&'static str>) -> Self {
        Self { kernel, ..self }
    }
}

/// One entry of the log.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event {
    /// Where a call ran.
    Decision(Decision),
    /// A device failed after submission.
    Fault {
        /// What failed.
        error: DeviceError,
        /// Nobody had asked for the result when the failure was found.
        discarded: bool,
    },
}

/// Totals of a [`Trace`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counters {
    /// Calls by op and outcome.
    pub decisions: BTreeMap<(&'static str, Outcome), u64>,
    /// Calls by op and kernel of the CPU, of those that had a choice of kernels.
    pub kernels: BTreeMap<(&'static str, &'static str), u64>,
    /// Faults that a host boundary returned as an error, once for each storage.
    pub delivered_faults: u64,
    /// Faults of results that were dropped unread.
    pub discarded_faults: u64,
    /// Log entries that did not fit.
    pub dropped_events: u64,
    /// Results that came to the host, by the op on the CPU that needed them; `None` for a read
    /// that was no op.
    pub downloads: BTreeMap<Option<&'static str>, Moved>,
}

/// Copies between host and device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Moved {
    /// How many.
    pub copies: u64,
    /// Their size.
    pub bytes: u64,
}

impl Moved {
    /// Adds a copy.
    pub fn add(&mut self, len_bytes: usize) {
        self.copies += 1;
        self.bytes += len_bytes as u64;
    }
}

impl Counters {
    /// Calls that providers took.
    pub fn offloaded(&self) -> u64 {
        let taken = |((_, outcome), count): (&(&str, Outcome), &u64)| {
            if matches!(outcome, Outcome::Offloaded { .. }) { *count } else { 0 }
        };
        self.decisions.iter().map(taken).sum()
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Trace {
    log_capacity: usize,
    book: Mutex<Book>,
    timeline: Option<Arc<Timeline>>,
}

#[derive(Debug, Default)]
struct Book {
    counters: Counters,
    log: VecDeque<Event>,
}

impl Trace {
    /// Counts, and keeps the last `capacity` events.
    pub fn with_log(capacity: usize) -> Self {
        Self { log_capacity: capacity, ..Self::default() }
    }

    /// Also keeps what happened when.
    #[must_use]
    pub fn and_timeline(mut self, timeline: Option<Arc<Timeline>>) -> Self {
        self.timeline = timeline;
        self
    }

    /// What happened when, if somebody wants to know.
    pub fn timeline(&self) -> Option<&Arc<Timeline>> {
        self.timeline.as_ref()
    }

    /// Counts a decision.
    pub fn record(&self, decision: Decision) {
        let mut book = self.book();
        *book.counters.decisions.entry((decision.op, decision.outcome)).or_default() += 1;
        if let Some(kernel) = decision.kernel {
            *book.counters.kernels.entry((decision.op, kernel)).or_default() += 1;
        }
        self.log(&mut book, || Event::Decision(decision));
    }

    /// Returns the totals.
    pub fn counters(&self) -> Counters {
        self.book().counters.clone()
    }

    /// Empties the log.
    pub fn take_log(&self) -> Vec<Event> {
        mem::take(&mut self.book().log).into()
    }

    /// Counts a result that came to the host.
    pub(crate) fn downloaded(&self, reader: Option<&'static str>, len_bytes: usize) {
        self.book().counters.downloads.entry(reader).or_default().add(len_bytes);
    }

    /// Counts a fault that a host boundary reports.
    pub(crate) fn delivered_fault(&self, error: &DeviceError) {
        let mut book = self.book();
        book.counters.delivered_faults += 1;
        self.log(&mut book, || Event::Fault { error: error.clone(), discarded: false });
    }

    /// Counts a fault of a result that nobody read.
    pub(crate) fn discarded_fault(&self, error: &DeviceError) {
        let mut book = self.book();
        book.counters.discarded_faults += 1;
        self.log(&mut book, || Event::Fault { error: error.clone(), discarded: true });
    }

    fn log(&self, book: &mut Book, event: impl FnOnce() -> Event) {
        if self.log_capacity == 0 {
            return;
        }
        if book.log.len() == self.log_capacity {
            book.log.pop_front();
            book.counters.dropped_events += 1;
        }
        book.log.push_back(event());
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
