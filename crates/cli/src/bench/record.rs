//! One row: what was measured on what, and the samples.

use fucina::CacheType;
use fucina::accel::Outcome;
use fucina::llm::Model;
use serde::Serialize;

use super::Test;
use crate::cache::CacheArgs;
use crate::output;
use crate::source::Source;

/// One test's result. The fields are those of `--json`; `docs/cli.md` describes them.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    pub(super) version: &'static str,
    pub(super) model: String,
    pub(super) architecture: String,
    pub(super) main_type: &'static str,
    pub(super) size_bytes: u64,
    pub(super) parameters: u64,
    pub(super) backend: String,
    pub(super) isa: &'static str,
    pub(super) threads: usize,
    pub(super) test: String,
    pub(super) n_prompt: usize,
    pub(super) n_gen: usize,
    pub(super) depth: usize,
    pub(super) cache_type: &'static str,
    /// Mean of the rates of the samples.
    pub(super) tokens_per_second: f64,
    /// Standard deviation of the rates, with `n - 1` in the denominator.
    pub(super) stddev: f64,
    pub(super) median: f64,
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) samples_ns: Vec<u64>,
    pub(super) samples_tokens_per_second: Vec<f64>,
}

impl Row {
    pub(super) fn new(
        model: &Model,
        source: &Source,
        (test, depth): (Test, usize),
        cache: CacheArgs,
        samples_ns: Vec<u64>,
    ) -> Self {
        let (info, rt) = (model.info(), model.runtime());
        let rates: Vec<f64> = samples_ns.iter().map(|&ns| rate(test.tokens(), ns)).collect();
        let stats = Stats::of(&rates);
        Self {
            version: env!("CARGO_PKG_VERSION"),
            model: source.short_name(),
            architecture: info.architecture.clone(),
            main_type: info.main_type,
            size_bytes: info.file_bytes,
            parameters: info.parameters,
            backend: backend(model),
            isa: rt.isa().name(),
            threads: rt.threads(),
            test: test.name(depth),
            n_prompt: if let Test::Prompt(tokens) = test { tokens } else { 0 },
            n_gen: if let Test::Generate(tokens) = test { tokens } else { 0 },
            depth,
            cache_type: cache.cache_type.name(),
            tokens_per_second: stats.mean,
            stddev: stats.stddev,
            median: stats.median,
            min: stats.min,
            max: stats.max,
            samples_ns,
            samples_tokens_per_second: rates,
        }
    }

    /// The cells of the table.
    pub(super) fn cells(&self) -> [String; 7] {
        let (mean, stddev) = (self.tokens_per_second, self.stddev);
        // Unless it is the usual one.
        let cache = if self.cache_type == CacheType::default().name() {
            String::new()
        } else {
            format!(", {}", self.cache_type)
        };
        [
            format!("{} {}", self.architecture, self.main_type),
            output::bytes(self.size_bytes),
            output::count(self.parameters),
            self.backend.clone(),
            self.threads.to_string(),
            format!("{}{cache}", self.test),
            format!("{mean:.2} ± {stddev:.2}"),
        ]
    }
}

/// The CPU, and every provider that took a call.
fn backend(model: &Model) -> String {
    let mut names = vec!["CPU"];
    let counters = model.runtime().trace().counters();
    for (_, outcome) in counters.decisions.keys() {
        if let Outcome::Offloaded { provider } = outcome
            && !names.contains(provider)
        {
            names.push(provider);
        }
    }
    names.join("+")
}

#[expect(clippy::cast_precision_loss, reason = "counts and times are far below 2^52")]
fn rate(tokens: usize, ns: u64) -> f64 {
    tokens as f64 * 1e9 / ns as f64
}

#[derive(Debug, PartialEq)]
struct Stats {
    mean: f64,
    stddev: f64,
    median: f64,
    min: f64,
    max: f64,
}

impl Stats {
    #[expect(clippy::cast_precision_loss, reason = "a count of samples")]
    fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let n = sorted.len();
        let at = |index: usize| sorted.get(index).copied().unwrap_or_default();
        let mean = sorted.iter().sum::<f64>() / n.max(1) as f64;
        let squares: f64 = sorted.iter().map(|value| (value - mean).powi(2)).sum();
        Self {
            mean,
            stddev: if n > 1 { (squares / (n - 1) as f64).sqrt() } else { 0.0 },
            median: f64::midpoint(at(n.saturating_sub(1) / 2), at(n / 2)),
            min: at(0),
            max: at(n.saturating_sub(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_those_of_the_samples() {
        // By hand: mean 5, squares 9 + 1 + 1 + 9 = 20 over 3.
        let stats = Stats::of(&[8.0, 2.0, 6.0, 4.0]);
        let stddev = (20.0_f64 / 3.0).sqrt();
        assert_eq!(stats, Stats { mean: 5.0, stddev, median: 5.0, min: 2.0, max: 8.0 });
        let one = Stats { mean: 3.0, stddev: 0.0, median: 3.0, min: 3.0, max: 3.0 };
        assert_eq!(Stats::of(&[3.0]), one);
        assert_eq!(Stats::of(&[1.0, 9.0, 4.0]).median, 4.0);
    }

    #[test]
    fn a_rate_is_tokens_over_seconds() {
        assert_eq!(rate(512, 250_000_000), 2048.0);
    }
}
