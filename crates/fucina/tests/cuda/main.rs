//! Whole models and blocks of experts on the simulated CUDA driver, with the shipped kernels.

#![cfg(not(target_os = "macos"))]
#![allow(
    clippy::unwrap_used,
    clippy::cast_precision_loss,
    clippy::cast_possible_truncation,
    reason = "a test: small numbers, and a panic is a failure"
)]

mod cache;
mod model;
mod models;
mod moe;

use std::sync::Arc;

use fucina::accel::{Pool, Provider, ProviderCounters, Timeline};
use fucina::{Config as Knobs, Runtime};
use fucina_cuda::{CudaConfig, CudaProvider};
use fucina_cuda_driver::control::{Config, Driver, Report};

/// A runtime whose only provider is a simulated device.
struct Rig {
    rt: Runtime,
    driver: Driver,
    provider: Arc<CudaProvider>,
}

impl Rig {
    fn new(device: Config, knobs: Knobs, timeline: Option<Arc<Timeline>>) -> Self {
        let test = std::env::current_exe().unwrap();
        let library = test.parent().unwrap().join("libfucina_cuda_driver.so");
        let driver = Driver::start(&library, device).unwrap();
        let mut cuda = CudaConfig::default();
        cuda.library = Some(driver.path().to_owned());
        // So that a whole pass is in flight, and nothing is declined for want of room.
        cuda.in_flight = 64;
        let provider = Arc::new(CudaProvider::open(&cuda).unwrap());
        let builder = Runtime::builder().config(knobs);
        let builder = builder.provider(Arc::clone(&provider) as Arc<dyn Provider>);
        let builder = timeline.into_iter().fold(builder, |builder, t| builder.timeline(t));
        Self { rt: builder.build().unwrap(), driver, provider }
    }

    fn counters(&self) -> ProviderCounters {
        self.provider.counters()
    }

    /// Nothing may be left, and no rule of the driver may have been broken.
    fn finish(self) -> Report {
        let Self { rt, driver, provider } = self;
        drop((rt, provider));
        // Weights belong to nobody's pool: they go once nothing reads them any more.
        Pool::default().trim();
        let report = driver.report();
        assert_eq!(report.violations, 0, "{}", driver.violations());
        assert_eq!(report.leaks(), 0, "{report:?}");
        report
    }
}
