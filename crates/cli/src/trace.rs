//! Where every call of an op ran, and why: a table of totals under `FUCINA_GPU_TRACE=1`, and a file
//! with every call under `--trace`.

mod chrome;

use std::fs::File;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use fucina::Runtime;
use fucina::accel::{Counters, Moved, Outcome, ProviderCounters, Timeline, Uploads};

use crate::exit::{Exit, Failure};
use crate::output;

/// Records that a trace holds, of at most 272 bytes each. Those that come later are counted.
const RECORDS: usize = 1 << 18;

/// Where a trace goes.
#[derive(Args, Debug, Default)]
pub(crate) struct TraceArgs {
    /// Write what ran where, when and why to FILE, for Perfetto or Chrome's page for traces
    #[arg(long = "trace", value_name = "FILE")]
    file: Option<PathBuf>,
}

/// A trace that is being made.
pub(crate) struct Tracing(Option<Open>);

struct Open {
    timeline: Arc<Timeline>,
    file: File,
    path: PathBuf,
}

impl TraceArgs {
    /// Runs `work` with a trace, if one was asked for, and writes it whatever becomes of the work.
    pub(crate) fn around<T>(
        &self,
        work: impl FnOnce(&Tracing) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let tracing = Tracing::open(self.file.as_deref())?;
        let result = work(&tracing);
        let written = tracing.write();
        // What went wrong first is what is told.
        let value = result?;
        written?;
        Ok(value)
    }
}

impl Tracing {
    /// Makes the file at once: a path that cannot be written is told before the work is done.
    fn open(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path else { return Ok(Self(None)) };
        let file = File::create(path).map_err(|error| cannot_write(path, &error))?;
        let timeline = Arc::new(Timeline::new(RECORDS));
        Ok(Self(Some(Open { timeline, file, path: path.to_owned() })))
    }

    /// Where a runtime notes what it does.
    pub(crate) fn timeline(&self) -> Option<&Arc<Timeline>> {
        self.0.as_ref().map(|open| &open.timeline)
    }

    fn write(self) -> Result<(), Failure> {
        let Some(Open { timeline, file, path }) = self.0 else { return Ok(()) };
        chrome::write(&timeline, &mut BufWriter::new(file))
            .map_err(|error| cannot_write(&path, &error))
    }
}

fn cannot_write(path: &Path, error: &std::io::Error) -> Failure {
    let path = path.display();
    Failure::new(Exit::Usage, format!("--trace `{path}` cannot be written: {error}"))
}

/// Writes the totals to standard error, if the trace is on.
pub(crate) fn report(rt: &Runtime) {
    if rt.config().trace {
        output::line(&table(&rt.trace().counters()));
        for provider in rt.providers() {
            output::line(&copies(provider.name(), &provider.counters()));
        }
    }
}

/// Where a call ran, and why.
pub(crate) fn place_and_why(outcome: Outcome) -> (&'static str, String) {
    match outcome {
        Outcome::Offloaded { provider } => (provider, "the gate says that it pays".to_owned()),
        Outcome::Declined { provider, reason } => ("cpu", format!("{provider}: {reason}")),
        Outcome::Cpu { reason } => ("cpu", reason.to_string()),
        _ => ("unknown", String::new()),
    }
}

fn table(counters: &Counters) -> String {
    let mut rows = vec![["op", "ran on", "why", "calls"].map(str::to_owned).to_vec()];
    for (&(op, outcome), calls) in &counters.decisions {
        let (place, why) = place_and_why(outcome);
        rows.push(vec![op.to_owned(), place.to_owned(), why, calls.to_string()]);
    }
    let mut text = output::columns(&rows, &[false, false, false, true]);
    for ((op, kernel), calls) in &counters.kernels {
        text += &format!("{op} on the CPU by {kernel}: {calls}\n");
    }
    if counters.delivered_faults + counters.discarded_faults > 0 {
        let (read, unread) = (counters.delivered_faults, counters.discarded_faults);
        text += &format!("device faults: {read} reported, {unread} of results that nobody read\n");
    }
    for (reader, moved) in &counters.downloads {
        let reader = reader.map_or("reads of the host".to_owned(), |op| format!("{op} on the CPU"));
        text += &format!("to the host for {reader}: {}\n", amount(moved));
    }
    text.truncate(text.trim_end().len());
    text
}

/// What went to a device, by cause.
fn copies(name: &str, counters: &ProviderCounters) -> String {
    let kind = |what: &str, uploads: &Uploads| {
        let Uploads { first, again, grown, found, .. } = uploads;
        format!(
            "{name}, {what}: uploaded {}; streamed again {}; again with additions {}; found there {}\n",
            amount(first),
            amount(again),
            amount(grown),
            amount(found)
        )
    };
    let mut text = kind("weights", &counters.weights);
    text += &kind("activations", &counters.activations);
    let (copies, bytes) = (counters.downloads, counters.downloaded_bytes);
    text += &format!("{name}, tables: {}; ", amount(&counters.tables));
    text + &format!("downloads: {}", amount_of(copies, bytes))
}

fn amount(moved: &Moved) -> String {
    amount_of(moved.copies, moved.bytes)
}

fn amount_of(copies: u64, bytes: u64) -> String {
    format!("{copies} ({})", output::bytes(bytes))
}

#[cfg(test)]
mod tests {
    use fucina::accel::{CpuReason, Decline};

    use super::*;

    #[test]
    fn every_outcome_has_a_row_with_its_reason() {
        let mut counters = Counters::default();
        let reason = CpuReason::BelowGate { threshold: "FUCINA_GPU_MIN_WORK" };
        let rows = [
            Outcome::Offloaded { provider: "toy" },
            Outcome::Declined { provider: "toy", reason: Decline::Busy },
            Outcome::Cpu { reason },
        ];
        for (count, outcome) in rows.into_iter().enumerate() {
            counters.decisions.insert(("matmul", outcome), count as u64 + 1);
        }
        counters.delivered_faults = 2;
        counters.kernels.insert(("matmul", "openblas"), 5);
        counters.downloads.insert(Some("rope"), Moved { copies: 3, bytes: 4096 });
        let text = table(&counters);
        for words in [
            "FUCINA_GPU_MIN_WORK",
            "toy: ",
            "pays",
            "2 reported",
            "rope on the CPU: 3 (4.00 KiB)",
            "matmul on the CPU by openblas: 5",
        ] {
            assert!(text.contains(words), "{text} lacks {words}");
        }
        assert_eq!(text.lines().count(), 7);
    }
}
