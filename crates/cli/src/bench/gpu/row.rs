//! One row: what was measured of one shape.

use serde::Serialize;

/// One shape's result. The fields are those of `--json`; `docs/cli.md` describes them.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) version: &'static str,
    pub(super) bench: &'static str,
    pub(super) provider: &'static str,
    pub(super) device: String,
    pub(super) simulated: bool,
    pub(super) isa: &'static str,
    pub(super) threads: usize,
    pub(super) shape: String,
    pub(super) format: &'static str,
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) iters: usize,
    pub(super) queue: usize,
    /// The weights are on the device before the call.
    pub(super) resident: bool,
    /// Where the gates in force run the shape: `device` or `cpu`.
    pub(super) gate: &'static str,
    #[serde(flatten)]
    pub(super) times: Times,
    #[serde(flatten)]
    pub(super) moved: Moved,
    /// Largest difference from the CPU's result, and how large it may be.
    pub(super) max_abs: f64,
    pub(super) tolerance: f64,
    /// Error of some elements against f64: root mean square, relative.
    pub(super) cpu_error: f64,
    pub(super) device_error: f64,
    /// The device's largest error over the bound of what it may be.
    pub(super) device_error_of_bound: f64,
    pub(super) ok: bool,
    /// What is wrong.
    pub(super) note: String,
    pub(super) samples: Samples,
}

/// Medians. Absent on a simulated device, and where there is no such test.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(super) struct Times {
    pub(super) cpu_us: Option<f64>,
    pub(super) sync_us: Option<f64>,
    pub(super) async_us: Option<f64>,
    pub(super) submit_us: Option<f64>,
    pub(super) queue_gflops: Option<f64>,
    /// For each call of the chain.
    pub(super) chain_us: Option<f64>,
}

/// Bytes that crossed between host and device.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub(super) struct Moved {
    pub(super) uploaded_bytes: u64,
    pub(super) downloaded_bytes: u64,
    /// By a chain as a whole. Absent if there is none.
    pub(super) chain_uploaded_bytes: Option<u64>,
    pub(super) chain_downloaded_bytes: Option<u64>,
}

/// Nanoseconds, in the order of the rounds. CPU and async took turns.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub(super) struct Samples {
    pub(super) cpu: Vec<u64>,
    pub(super) sync: Vec<u64>,
    #[serde(rename = "async")]
    pub(super) host_visible: Vec<u64>,
    pub(super) submit: Vec<u64>,
    pub(super) queue: Vec<u64>,
    pub(super) chain: Vec<u64>,
}

impl Samples {
    /// Microseconds, and the rate of a queue of calls with `flops` each.
    pub(super) fn times(&self, flops: f64, queue: usize) -> Times {
        let us = |samples: &[u64]| quantile(&micros(samples), 0.5);
        #[expect(clippy::cast_precision_loss, reason = "up to eight calls")]
        let calls = queue as f64;
        Times {
            cpu_us: us(&self.cpu),
            sync_us: us(&self.sync),
            async_us: us(&self.host_visible),
            submit_us: us(&self.submit),
            queue_gflops: us(&self.queue).map(|us| flops * calls / us / 1e3),
            chain_us: us(&self.chain).map(|us| us / calls),
        }
    }

    /// CPU time over device time, pair by pair.
    pub(super) fn ratios(&self) -> Vec<f64> {
        let pairs = micros(&self.cpu).into_iter().zip(micros(&self.host_visible));
        pairs.map(|(cpu, device)| cpu / device).collect()
    }
}

#[expect(clippy::cast_precision_loss, reason = "nanoseconds of a call are far below 2^53")]
pub(super) fn micros(samples: &[u64]) -> Vec<f64> {
    samples.iter().map(|&ns| ns as f64 / 1e3).collect()
}

/// The element at a part of the sorted values; that of one half is the median with the upper of
/// two middle ones.
#[expect(
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "an index below 64"
)]
pub(in crate::bench) fn quantile(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = (sorted.len() as f64 * part) as usize;
    sorted.get(at.min(sorted.len().saturating_sub(1))).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_medians_of_the_samples() {
        let samples = Samples {
            cpu: vec![9_000, 1_000, 4_000],
            host_visible: vec![2_000, 1_000],
            queue: vec![8_000],
            chain: vec![8_000],
            ..Samples::default()
        };
        let times = samples.times(1e6, 4);
        assert_eq!((times.cpu_us, times.async_us), (Some(4.0), Some(2.0)));
        // Four million operations in eight microseconds.
        assert_eq!((times.queue_gflops, times.chain_us), (Some(500.0), Some(2.0)));
        assert_eq!((times.sync_us, times.submit_us), (None, None));
        assert_eq!(samples.ratios(), [4.5, 1.0]);
    }

    #[test]
    fn quantiles_are_elements() {
        let values: Vec<f64> = (0..10).map(f64::from).collect();
        assert_eq!([0.1, 0.5, 0.9].map(|part| quantile(&values, part)), [1.0, 5.0, 9.0].map(Some));
        assert_eq!(quantile(&values, 1.0), Some(9.0));
        assert_eq!(quantile(&[], 0.5), None);
    }
}
