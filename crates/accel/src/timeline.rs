//! What happened when: the call, its submission, what the device did, and who waited.
//!
//! A [`Timeline`] is given to a runtime, which gives it to its providers. Without one nothing here
//! runs. With one, records go to memory that is reserved once; when it is full, further records are
//! counted and dropped, so the start of a run is complete.
//!
//! Not in it: a file format. Whoever shows a timeline reads [`Timeline::records`].

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::id::{DeviceId, LaneId};
use crate::provider::{Decline, DeviceInfo};
use crate::trace::{Decision, OffloadReason};

/// From one moment to another, in nanoseconds after the timeline was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Span {
    /// The earlier moment.
    pub start_ns: u64,
    /// The later one.
    pub end_ns: u64,
}

impl Span {
    /// Its length.
    pub fn len_ns(&self) -> u64 {
        self.end_ns.saturating_sub(self.start_ns)
    }
}

/// Names a submitted command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CommandId {
    /// Where it runs.
    pub lane: LaneId,
    /// Its place in the lane's order.
    pub place: u64,
}

/// How a command got an operand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Arrival {
    /// The device had the bytes.
    OnDevice,
    /// They were copied there.
    Uploaded,
    /// They were copied there again: the device had dropped them to make room.
    UploadedAgain,
    /// They were copied there, and a part of them is there already: a cache that has grown.
    UploadedGrown,
}

impl Arrival {
    /// A word for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnDevice => "on the device",
            Self::Uploaded => "uploaded",
            Self::UploadedAgain => "uploaded again",
            Self::UploadedGrown => "uploaded with what was added",
        }
    }
}

/// One operand of a submitted command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Input {
    /// Number of the operand within the call.
    pub operand: usize,
    /// Number of the bytes' contents: two operands with the same one have the same bytes of one
    /// storage, and nobody has written in between.
    pub content: u64,
    /// Where in the storage it starts.
    pub offset_bytes: usize,
    /// Its size.
    pub len_bytes: usize,
    /// Nobody can write the storage: it holds weights.
    pub is_weight: bool,
    /// How it got to the device.
    pub arrival: Arrival,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Record {
    /// A call, from its beginning to its return.
    Call {
        /// The calling thread.
        thread: u64,
        /// When.
        span: Span,
        /// What, and where it ran.
        decision: Decision,
        /// Why it was offered to a provider, if it was.
        offered: Option<OffloadReason>,
        /// The command, if a provider took it.
        command: Option<CommandId>,
    },
    /// A provider's work within a call.
    Submit {
        /// The calling thread.
        thread: u64,
        /// When.
        span: Span,
        /// The command, or why there is none.
        result: Result<CommandId, Decline>,
    },
    /// The host waited for a command.
    Wait {
        /// The waiting thread.
        thread: u64,
        /// When.
        span: Span,
        /// For which command.
        command: CommandId,
        /// Size of the result, if the wait also brought it to the host.
        len_bytes: Option<usize>,
        /// The op on the CPU that needed the bytes; `None` if it was no op.
        reader: Option<&'static str>,
    },
    /// What a command needs.
    Inputs {
        /// The command.
        command: CommandId,
        /// Its operands; one that is the same as an earlier one is left out.
        inputs: [Option<Input>; 3],
    },
    /// A copy to the device.
    Upload {
        /// The command that it is for.
        command: CommandId,
        /// When, by the device's clock.
        span: Span,
        /// Its size.
        len_bytes: usize,
        /// Number of the operand; `None` for a table that the provider made.
        operand: Option<usize>,
    },
    /// The device ran a command.
    Device {
        /// The command.
        command: CommandId,
        /// When, by the device's clock.
        span: Span,
    },
    /// A copy of a command's result to the host.
    Download {
        /// The command.
        command: CommandId,
        /// When, by the device's clock.
        span: Span,
        /// Its size.
        len_bytes: usize,
    },
}

/// See the module.
#[derive(Debug)]
pub struct Timeline {
    start: Instant,
    capacity: usize,
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    records: Vec<Record>,
    devices: Vec<(DeviceId, String)>,
    dropped: u64,
}

impl Timeline {
    /// Room for `capacity` records, which is reserved now.
    pub fn new(capacity: usize) -> Self {
        let records = Vec::with_capacity(capacity);
        let book = Mutex::new(Book { records, devices: Vec::new(), dropped: 0 });
        Self { start: Instant::now(), capacity, book }
    }

    /// Nanoseconds since the timeline was made.
    pub fn now_ns(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// From a moment to now.
    pub fn since(&self, start_ns: u64) -> Span {
        Span { start_ns, end_ns: self.now_ns() }
    }

    /// Keeps a record, or counts it if there is no room.
    pub fn record(&self, record: Record) {
        let mut book = self.book();
        if book.records.len() < self.capacity {
            book.records.push(record);
        } else {
            book.dropped += 1;
        }
    }

    /// Names a device.
    pub fn add_device(&self, provider: &str, device: &DeviceInfo) {
        let mut book = self.book();
        if book.devices.iter().all(|(id, _)| *id != device.id) {
            book.devices.push((device.id, format!("{provider}: {}", device.name)));
        }
    }

    /// The records, in the order in which they were made.
    pub fn records(&self) -> Vec<Record> {
        self.book().records.clone()
    }

    /// The devices with their names.
    pub fn devices(&self) -> Vec<(DeviceId, String)> {
        self.book().devices.clone()
    }

    /// Records that did not fit.
    pub fn dropped(&self) -> u64 {
        self.book().dropped
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A small number for the calling thread, the same as long as it lives.
pub fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: u64 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

thread_local! {
    static READER: Cell<Option<&'static str>> = const { Cell::new(None) };
}

/// Runs `f`, an op on the CPU: what it waits for is waited for by this op.
pub fn reading<R>(op: &'static str, f: impl FnOnce() -> R) -> R {
    /// Ends the op, also if `f` unwinds.
    struct Outer(Option<&'static str>);
    impl Drop for Outer {
        fn drop(&mut self) {
            READER.set(self.0);
        }
    }
    let _outer = Outer(READER.replace(Some(op)));
    f()
}

/// The op that runs on this thread's CPU.
pub(crate) fn reader() -> Option<&'static str> {
    READER.get()
}

#[cfg(test)]
#[cfg(not(loom))]
mod tests {
    use super::*;
    use crate::id::ProviderId;

    fn device(place: u64) -> Record {
        let command = CommandId { lane: ProviderId::fresh().device(0).lane(0), place };
        Record::Device { command, span: Span { start_ns: place, end_ns: place + 1 } }
    }

    #[test]
    fn memory_is_bounded_and_what_does_not_fit_is_counted() {
        let timeline = Timeline::new(3);
        let all: Vec<_> = (0..5).map(device).collect();
        all.iter().for_each(|record| timeline.record(*record));
        assert_eq!(timeline.records(), all[..3]);
        assert_eq!(timeline.dropped(), 2);
        assert_eq!(timeline.book().records.capacity(), 3, "nothing has grown");
    }

    #[test]
    fn a_record_is_small() {
        // The command line keeps 2^18 of them: 70 MiB at most.
        assert!(size_of::<Record>() <= 280, "{}", size_of::<Record>());
    }

    #[test]
    fn threads_record_side_by_side() {
        let timeline = Timeline::new(4000);
        std::thread::scope(|scope| {
            for thread in 0..8 {
                let timeline = &timeline;
                scope.spawn(move || {
                    (0..1000).for_each(|n| timeline.record(device(thread * 1000 + n)));
                });
            }
        });
        assert_eq!((timeline.records().len(), timeline.dropped()), (4000, 4000));
        // Each record is whole.
        for record in timeline.records() {
            let Record::Device { command, span } = record else { panic!("{record:?}") };
            assert_eq!((span.start_ns, span.len_ns()), (command.place, 1));
        }
    }

    #[test]
    fn threads_have_numbers_of_their_own() {
        let other = std::thread::spawn(thread_number).join().unwrap();
        assert_ne!(other, thread_number());
        assert_eq!(thread_number(), thread_number());
    }

    #[test]
    fn a_reader_ends_with_its_op_even_if_that_unwinds() {
        assert_eq!(reader(), None);
        reading("outer", || {
            reading("inner", || assert_eq!(reader(), Some("inner")));
            let caught = std::panic::catch_unwind(|| reading("broken", || panic!("expected")));
            assert!(caught.is_err());
            assert_eq!(reader(), Some("outer"));
        });
        assert_eq!(reader(), None);
    }
}
