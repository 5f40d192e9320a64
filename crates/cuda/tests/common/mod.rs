//! A provider on a simulated driver of its own.

#![allow(dead_code, reason = "each test file uses a part")]

pub(crate) mod scenario;

use std::path::PathBuf;
use std::sync::Arc;

use fucina_accel::Provider;
use fucina_cuda::{CudaConfig, CudaProvider, OptionalLibrary};
use fucina_cuda_driver::control::{Config, Driver, Report};

/// The simulator's library, which the build of this test has made.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows where it is");
    let folder = test.parent().expect("a test lies in a folder");
    let path = folder.join("libfucina_cuda_driver.so");
    assert!(path.exists(), "{} was not built", path.display());
    path
}

/// Lets cuBLAS be in the library that is the driver.
pub(crate) fn use_cublas(cuda: &mut CudaConfig) {
    cuda.cublas = OptionalLibrary::Path(cuda.library.clone().expect("the driver is named"));
}

/// A simulated driver with a provider that uses it.
pub(crate) struct Rig {
    pub(crate) driver: Driver,
    pub(crate) provider: Arc<CudaProvider>,
}

impl Rig {
    pub(crate) fn new(config: Config) -> Self {
        Self::with(config, |_| ())
    }

    /// With cuBLAS, for which the same library stands in.
    pub(crate) fn with_cublas(config: Config) -> Self {
        Self::with(config, use_cublas)
    }

    pub(crate) fn with(config: Config, adjust: impl FnOnce(&mut CudaConfig)) -> Self {
        let driver = Driver::start(&library(), config).expect("the simulator starts");
        let mut cuda = CudaConfig::default();
        cuda.library = Some(driver.path().to_owned());
        adjust(&mut cuda);
        let provider = CudaProvider::open(&cuda).expect("the provider opens the simulator");
        Self { driver, provider: Arc::new(provider) }
    }

    pub(crate) fn provider(&self) -> Arc<dyn Provider> {
        Arc::clone(&self.provider) as _
    }

    /// Drops the provider. Nothing may be left of it, and no rule may have been broken.
    pub(crate) fn finish(self) -> Report {
        let Self { driver, provider } = self;
        drop(provider);
        let report = driver.report();
        assert_eq!(report.violations, 0, "{}", driver.violations());
        assert_eq!(report.leaks(), 0, "{report:?}");
        report
    }
}
