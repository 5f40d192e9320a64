//! When the device does what, for those who watch. Without a [`Timeline`] nothing here runs.
//!
//! Events that tell the time stand around copies and kernels. Their times are read once the command
//! is known to have run, so watching waits for nothing.

use std::sync::{Arc, Mutex};

use fucina_accel::{CommandId, Input, Record, Span, Timeline};

use crate::driver::{CuError, Entered, Event, Events, Stream, held};

/// After this time a younger event becomes the origin: the driver tells times as f32 milliseconds,
/// whose steps grow.
const ORIGIN_MS: f64 = 500.0;

/// Rounds that align the clocks. The quickest one counts.
const ROUNDS: usize = 4;

/// Where times go.
pub(crate) struct Timing {
    timeline: Arc<Timeline>,
    events: Arc<Events>,
    origin: Mutex<Origin>,
}

/// An event whose time on the timeline is known.
struct Origin {
    event: Event,
    at_ns: f64,
}

/// A copy or a kernel, between two events.
pub(crate) struct Mark {
    start: Event,
    end: Event,
}

/// What a command will tell once it has run.
pub(crate) struct Marks {
    timing: Arc<Timing>,
    command: CommandId,
    /// With the size and the number of the operand.
    uploads: Vec<(Mark, usize, Option<usize>)>,
    start: Event,
}

impl Timing {
    /// Aligns the clocks of device and host.
    pub(crate) fn new(
        entered: &Entered<'_>,
        lane: &Stream,
        events: Arc<Events>,
        timeline: &Arc<Timeline>,
    ) -> Result<Self, CuError> {
        let first = events.take(entered)?;
        entered.record(&first, lane)?;
        entered.await_event(&first)?;
        // The host learns of an event after it was passed: the smallest difference is the best.
        let mut at_ns = to_f64(timeline.now_ns());
        for _ in 1..ROUNDS {
            let event = events.take(entered)?;
            entered.record(&event, lane)?;
            entered.await_event(&event)?;
            let now = to_f64(timeline.now_ns());
            at_ns = at_ns.min(now - entered.elapsed_ms(&first, &event)? * 1e6);
        }
        let origin = Mutex::new(Origin { event: first, at_ns });
        Ok(Self { timeline: Arc::clone(timeline), events, origin })
    }

    /// An event that tells the time.
    pub(crate) fn event(&self, entered: &Entered<'_>) -> Result<Event, CuError> {
        self.events.take(entered)
    }

    /// Puts an event into a lane.
    pub(crate) fn stamp(&self, entered: &Entered<'_>, lane: &Stream) -> Result<Event, CuError> {
        let event = self.events.take(entered)?;
        entered.record(&event, lane)?;
        Ok(event)
    }

    pub(crate) fn inputs(&self, command: CommandId, inputs: [Option<Input>; 3]) {
        self.timeline.record(Record::Inputs { command, inputs });
    }

    /// A copy that has passed.
    pub(crate) fn downloaded(
        &self,
        entered: &Entered<'_>,
        command: CommandId,
        mark: &Mark,
        len_bytes: usize,
    ) {
        if let Ok(span) = self.span(entered, &mark.start, &mark.end) {
            self.timeline.record(Record::Download { command, span, len_bytes });
        }
    }

    fn span(&self, entered: &Entered<'_>, start: &Event, end: &Event) -> Result<Span, CuError> {
        let origin = held(&self.origin);
        let start_ns = origin.at_ns + entered.elapsed_ms(&origin.event, start)? * 1e6;
        let end_ns = start_ns + entered.elapsed_ms(start, end)? * 1e6;
        Ok(Span { start_ns: to_u64(start_ns), end_ns: to_u64(end_ns) })
    }

    /// Moves the origin on, once it is far away.
    fn move_origin(&self, entered: &Entered<'_>, event: Event) {
        let mut origin = held(&self.origin);
        if let Ok(elapsed) = entered.elapsed_ms(&origin.event, &event)
            && elapsed > ORIGIN_MS
        {
            *origin = Origin { event, at_ns: origin.at_ns + elapsed * 1e6 };
        }
    }
}

impl Mark {
    pub(crate) const fn new(start: Event, end: Event) -> Self {
        Self { start, end }
    }
}

impl Marks {
    pub(crate) const fn new(
        timing: Arc<Timing>,
        command: CommandId,
        uploads: Vec<(Mark, usize, Option<usize>)>,
        start: Event,
    ) -> Self {
        Self { timing, command, uploads, start }
    }

    /// Tells the times of a command that has run, whose last event is `end`.
    pub(crate) fn tell(self, entered: &Entered<'_>, end: &Event) {
        let Self { timing, command, uploads, start } = self;
        for (mark, len_bytes, operand) in &uploads {
            if let Ok(span) = timing.span(entered, &mark.start, &mark.end) {
                let (len_bytes, operand) = (*len_bytes, *operand);
                timing.timeline.record(Record::Upload { command, span, len_bytes, operand });
            }
        }
        if let Ok(span) = timing.span(entered, &start, end) {
            timing.timeline.record(Record::Device { command, span });
        }
        timing.move_origin(entered, start);
    }
}

#[expect(clippy::cast_precision_loss, reason = "exact up to 104 days")]
const fn to_f64(ns: u64) -> f64 {
    ns as f64
}

/// Nothing happens before the timeline was made, as far as anybody can tell.
#[expect(clippy::cast_possible_truncation, reason = "saturates")]
#[expect(clippy::cast_sign_loss, reason = "saturates")]
const fn to_u64(ns: f64) -> u64 {
    ns as u64
}
