//! One row: what was measured of one call.

use serde::Serialize;

use crate::bench::gpu::row::quantile;

/// One call's result. The fields are those of `--json`; `docs/cli.md` describes them.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Row {
    pub(super) version: &'static str,
    pub(super) section: &'static str,
    pub(super) case: String,
    pub(super) format: Option<&'static str>,
    pub(super) m: Option<usize>,
    pub(super) n: Option<usize>,
    pub(super) k: Option<usize>,
    pub(super) threads: usize,
    pub(super) isa: &'static str,
    pub(super) kernel: String,
    pub(super) weights: &'static str,
    pub(super) iters: usize,
    /// Median.
    pub(super) ms: f64,
    pub(super) ms_p10: f64,
    pub(super) ms_p90: f64,
    pub(super) ms_min: f64,
    pub(super) gflops: Option<f64>,
    pub(super) gb_s: Option<f64>,
    /// The shortest time that the measured ceilings allow.
    pub(super) floor_ms: f64,
    /// Which of them does.
    pub(super) limit: Limit,
    /// That time over the median.
    pub(super) share: f64,
    /// Against f64: root mean square, relative.
    pub(super) error: f64,
    pub(super) samples_ns: Vec<u64>,
}

/// A ceiling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Limit {
    Memory,
    Cache,
    F32,
    Int8,
}

impl Limit {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Cache => "cache",
            Self::F32 => "f32",
            Self::Int8 => "int8",
        }
    }
}

/// Nanoseconds of each call, in the order of the calls. Never empty.
pub(super) struct Samples(Vec<u64>);

impl Samples {
    /// # Panics
    ///
    /// Panics without samples.
    pub(super) fn new(nanoseconds: Vec<u64>) -> Self {
        assert!(!nanoseconds.is_empty(), "a call is sampled at least once");
        Self(nanoseconds)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Milliseconds.
    pub(super) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    /// Milliseconds.
    #[expect(clippy::cast_precision_loss, reason = "nanoseconds of a call are far below 2^53")]
    pub(super) fn quantile(&self, part: f64) -> f64 {
        let ms: Vec<f64> = self.0.iter().map(|&ns| ns as f64 / 1e6).collect();
        quantile(&ms, part).unwrap_or_default()
    }

    pub(super) fn into_nanoseconds(self) -> Vec<u64> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_milliseconds() {
        let samples = Samples::new(vec![3_000_000, 1_000_000, 2_000_000]);
        assert_eq!((samples.median(), samples.quantile(0.0), samples.len()), (2.0, 1.0, 3));
        assert_eq!(samples.into_nanoseconds(), [3_000_000, 1_000_000, 2_000_000]);
    }

    #[test]
    fn limits_have_one_name_everywhere() {
        for limit in [Limit::Memory, Limit::Cache, Limit::F32, Limit::Int8] {
            assert_eq!(serde_json::to_value(limit).unwrap(), limit.name());
        }
    }
}
