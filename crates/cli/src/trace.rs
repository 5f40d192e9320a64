//! `FUCINA_GPU_TRACE=1`: where every call of an op ran, and why.

use fucina::Runtime;
use fucina::accel::{Counters, Outcome};

use crate::output;

/// Writes the totals to standard error, if the trace is on.
pub(crate) fn report(rt: &Runtime) {
    if rt.config().trace {
        output::line(&table(&rt.trace().counters()));
    }
}

fn table(counters: &Counters) -> String {
    let mut rows = vec![["op", "ran on", "why", "calls"].map(str::to_owned).to_vec()];
    for (&(op, outcome), calls) in &counters.decisions {
        let (place, why) = match outcome {
            Outcome::Offloaded { provider } => (provider, "the gate says that it pays".to_owned()),
            Outcome::Declined { provider, reason } => ("cpu", format!("{provider}: {reason}")),
            Outcome::Cpu { reason } => ("cpu", reason.to_string()),
            _ => ("unknown", String::new()),
        };
        rows.push(vec![op.to_owned(), place.to_owned(), why, calls.to_string()]);
    }
    let mut text = output::columns(&rows, &[false, false, false, true]);
    if counters.delivered_faults + counters.discarded_faults > 0 {
        let (read, unread) = (counters.delivered_faults, counters.discarded_faults);
        text += &format!("device faults: {read} reported, {unread} of results that nobody read\n");
    }
    text.truncate(text.trim_end().len());
    text
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
        let text = table(&counters);
        for words in ["FUCINA_GPU_MIN_WORK", "toy: ", "pays", "2 reported"] {
            assert!(text.contains(words), "{text} lacks {words}");
        }
        assert_eq!(text.lines().count(), 5);
    }
}
