//! What every provider has to show, as one call from its tests.
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use fucina_accel::{conformance, reference};
//! let make = || Arc::new(reference::ReferenceProvider::new(Default::default())) as _;
//! conformance::run(&make).assert_passed();
//! ```
//!
//! The suite compares every op that the provider offers with an f64 oracle, and then uses one op
//! to test the protocol: chains, fences, ranges, reuse, threads, teardown. What a provider
//! declines as unsupported is skipped and listed in the report. Gates have to be open.

mod activations;
mod data;
mod grouped;
mod ops;
mod oracle;
mod protocol;
mod threads;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::call::Call;
use crate::pool::{Pool, PoolConfig};
use crate::provider::{Decline, Provider, submit};
use crate::storage::Storage;

/// How exact a provider is, beyond f32.
#[derive(Debug, Clone, Copy, Default)]
pub struct Config {
    /// Largest relative error that the provider makes when it rounds an operand of a product:
    /// 0 for f32, 2^-11 for f16 and TF32, 2^-8 for bf16. It widens the bounds of products, grouped
    /// ones included, and of attention, and nothing else.
    pub operand_rounding: f64,
}

/// Result of one check.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Verdict {
    /// The provider did what it should.
    Passed,
    /// The provider does not offer what the check needs; here is its reason.
    Skipped(Decline),
    /// The provider did something else.
    Failed(String),
}

/// Results of all checks.
#[derive(Debug, Clone, Default)]
pub struct Report {
    /// Name and result of each check, in the order of the run.
    pub checks: Vec<(String, Verdict)>,
}

impl Report {
    /// Names of the checks that failed, and why.
    pub fn failures(&self) -> impl Iterator<Item = (&str, &str)> {
        self.checks.iter().filter_map(|(name, verdict)| match verdict {
            Verdict::Failed(why) => Some((name.as_str(), why.as_str())),
            _ => None,
        })
    }

    /// Number of checks that passed.
    pub fn passed(&self) -> usize {
        self.checks.iter().filter(|(_, verdict)| *verdict == Verdict::Passed).count()
    }

    /// Names of the checks that were skipped, and why.
    pub fn skipped(&self) -> impl Iterator<Item = (&str, Decline)> {
        self.checks.iter().filter_map(|(name, verdict)| match verdict {
            Verdict::Skipped(why) => Some((name.as_str(), *why)),
            _ => None,
        })
    }

    /// Fails the test unless every check passed or was skipped, and some passed.
    ///
    /// # Panics
    ///
    /// Panics with the report if a check failed, or if none passed.
    pub fn assert_passed(&self) {
        assert!(self.failures().next().is_none() && self.passed() > 0, "{self}");
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let skipped = self.skipped().count();
        writeln!(f, "{} passed, {skipped} skipped", self.passed())?;
        for (name, why) in self.failures() {
            writeln!(f, "failed: {name}: {why}")?;
        }
        for (name, why) in self.skipped() {
            writeln!(f, "skipped: {name}: {why}")?;
        }
        Ok(())
    }
}

/// Runs every check on providers that `make` creates.
pub fn run(make: &dyn Fn() -> Arc<dyn Provider>) -> Report {
    run_with(make, Config::default())
}

/// Runs every check on providers that `make` creates, with bounds for their exactness.
pub fn run_with(make: &dyn Fn() -> Arc<dyn Provider>, config: Config) -> Report {
    let mut report = Report::default();
    ops::check(make, config, &mut report);
    activations::check(make, &mut report);
    grouped::check(make, config, &mut report);
    protocol::check(make, &mut report);
    report
}

/// Why a check ends early.
#[derive(Debug)]
enum Stop {
    Skip(Decline),
    Fail(String),
}

type Check = Result<(), Stop>;

impl From<crate::error::DeviceError> for Stop {
    fn from(error: crate::error::DeviceError) -> Self {
        Self::Fail(error.to_string())
    }
}

impl From<crate::error::StorageError> for Stop {
    fn from(error: crate::error::StorageError) -> Self {
        Self::Fail(error.to_string())
    }
}

impl From<crate::error::AllocError> for Stop {
    fn from(error: crate::error::AllocError) -> Self {
        Self::Fail(error.to_string())
    }
}

impl From<crate::error::CallError> for Stop {
    fn from(error: crate::error::CallError) -> Self {
        Self::Fail(error.to_string())
    }
}

fn ensure(good: bool, why: impl FnOnce() -> String) -> Check {
    if good { Ok(()) } else { Err(Stop::Fail(why())) }
}

impl Report {
    fn record(&mut self, name: impl Into<String>, check: Check) {
        let verdict = match check {
            Ok(()) => Verdict::Passed,
            Err(Stop::Skip(why)) => Verdict::Skipped(why),
            Err(Stop::Fail(why)) => Verdict::Failed(why),
        };
        self.checks.push((name.into(), verdict));
    }
}

/// How long a busy provider may stay busy.
const PATIENCE: Duration = Duration::from_secs(20);

/// Memory that shows who reads what nobody wrote.
fn pool() -> Pool {
    Pool::new(PoolConfig { poison: true, ..PoolConfig::default() })
}

/// Submits `call`, and tries again while the provider is at its bound.
fn offload(provider: &dyn Provider, pool: &Pool, call: &Call<'_>) -> Result<Storage, Stop> {
    let mut out = pool.take(call.out_bytes()?)?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        match submit(provider, call, out) {
            Ok(out) => return Ok(out),
            Err((Decline::Busy | Decline::OutOfDeviceMemory, back))
                if Instant::now() < deadline =>
            {
                out = back;
                std::thread::yield_now();
            }
            Err((why, _)) if why.is_unsupported() => return Err(Stop::Skip(why)),
            Err((why, _)) => return Err(Stop::Fail(format!("declined: {why}"))),
        }
    }
}
