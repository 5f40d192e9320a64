//! What goes wrong, and when, by a seed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::ReferenceConfig;
use crate::provider::Decline;

/// Decides about each call.
#[derive(Debug)]
pub(super) struct Chaos {
    config: ReferenceConfig,
    calls: AtomicU64,
}

/// What the device does to one command.
#[derive(Debug, Clone, Copy)]
pub(super) struct Plan {
    random: u64,
    max_delay_us: u64,
    fault_percent: u8,
    fault_at: Option<u64>,
    lose_at: Option<u64>,
}

/// How a command ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Runs,
    Faults,
    LosesDevice,
}

impl Chaos {
    pub(super) fn new(config: &ReferenceConfig) -> Self {
        Self { config: config.clone(), calls: AtomicU64::new(0) }
    }

    /// The plan for the next call, or a random decline.
    pub(super) fn next(&self) -> Result<Plan, Decline> {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let random = mix(self.config.seed ^ mix(call));
        if mix(random) % 100 < u64::from(self.config.decline_percent) {
            let reasons = [Decline::Busy, Decline::OutOfDeviceMemory, Decline::Refused];
            return Err(reasons[(random % 3) as usize]);
        }
        let ReferenceConfig { max_delay_us, fault_percent, fault_at, lose_at, .. } = self.config;
        Ok(Plan { random, max_delay_us, fault_percent, fault_at, lose_at })
    }
}

impl Plan {
    pub(super) fn lane(&self, lanes: u32) -> u32 {
        #[expect(clippy::cast_possible_truncation, reason = "less than `lanes`")]
        let lane = (mix(self.random.wrapping_add(1)) % u64::from(lanes)) as u32;
        lane
    }

    /// Delay before step `step` of the command.
    pub(super) fn delay(&self, step: u64) -> Duration {
        if self.max_delay_us == 0 {
            return Duration::ZERO;
        }
        Duration::from_micros(mix(self.random.wrapping_add(2 + step)) % self.max_delay_us)
    }

    /// How the command with this number ends.
    pub(super) fn fate(&self, number: u64) -> Fate {
        if self.lose_at == Some(number) {
            Fate::LosesDevice
        } else if self.fault_at == Some(number)
            || mix(self.random.wrapping_add(9)) % 100 < u64::from(self.fault_percent)
        {
            Fate::Faults
        } else {
            Fate::Runs
        }
    }
}

/// A good mix of the bits of `x` (the finalizer of `SplitMix64`).
fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
