//! The two sides that are compared.

use std::sync::Arc;

use fucina::accel::{DeviceInfo, Outcome, Provider};
use fucina::{Config, Offload, Runtime};

use super::first_device;

pub(super) struct Site {
    /// Without providers.
    pub(super) cpu: Runtime,
    /// With one that every call is offered to.
    pub(super) gpu: Runtime,
    pub(super) provider: Arc<dyn Provider>,
    pub(super) device: DeviceInfo,
    pub(super) simulated: bool,
}

impl Site {
    pub(super) fn open(threads: Option<usize>) -> anyhow::Result<Self> {
        let config = Config::from_env()?;
        let found = first_device(&config)?;
        let provider = found.provider.map_err(anyhow::Error::msg)?;
        let with = |offload| {
            let mut config = config.clone();
            config.offload = offload;
            Runtime::builder().config(config)
        };
        let mut cpu = with(Offload::Off);
        if let Some(threads) = threads {
            cpu = cpu.threads(threads);
        }
        // This side computes nothing, so it needs no workers.
        let gpu = with(Offload::Force).threads(1).provider(Arc::clone(&provider));
        let device = provider.device();
        let simulated = device.name.to_lowercase().contains("simulated");
        Ok(Self { cpu: cpu.build()?, gpu: gpu.build()?, provider, device, simulated })
    }

    /// Why calls ran on the CPU that the device was to run, since the last time.
    pub(super) fn declined(&self, seen: &mut u64) -> Option<String> {
        let counters = self.gpu.trace().counters();
        let others = counters.decisions.iter().filter_map(|((_, outcome), calls)| match outcome {
            Outcome::Offloaded { .. } => None,
            Outcome::Declined { reason, .. } => Some((reason.to_string(), *calls)),
            Outcome::Cpu { reason } => Some((reason.to_string(), *calls)),
            _ => Some((String::new(), *calls)),
        });
        let others: Vec<_> = others.collect();
        let total: u64 = others.iter().map(|(_, calls)| calls).sum();
        if total == std::mem::replace(seen, total) {
            return None;
        }
        let reasons: Vec<_> = others.into_iter().map(|(reason, _)| reason).collect();
        Some(format!("declined: {}", reasons.join(", ")))
    }
}
