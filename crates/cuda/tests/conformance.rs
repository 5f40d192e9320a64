//! The suite of the seam, on the simulated driver with the shipped kernels.

mod common;

use std::sync::Arc;

use common::{Rig, library, use_cublas};
use fucina_accel::{Pool, Provider, conformance};
use fucina_cuda::{CudaConfig, CudaProvider};
use fucina_cuda_driver::control::{Config, Driver, Schedule};

/// Products round operands to f16.
fn exactness() -> conformance::Config {
    conformance::Config { operand_rounding: 2.0_f64.powi(-11) }
}

fn conforms(config: Config) {
    conforms_with(config, |_| ());
}

/// All providers of the suite use one driver, one after the other.
fn conforms_with(config: Config, adjust: fn(&mut CudaConfig)) {
    let driver = Driver::start(&library(), config).expect("the simulator starts");
    let report = conformance::run_with(
        &|| {
            let mut cuda = CudaConfig::default();
            cuda.library = Some(driver.path().to_owned());
            adjust(&mut cuda);
            let provider = CudaProvider::open(&cuda).expect("it has a device");
            Arc::new(provider) as Arc<dyn Provider>
        },
        exactness(),
    );
    // Constants of the suite belong to nobody's pool: they go once nothing reads them any more.
    Pool::default().trim();
    let left = driver.report();
    assert_eq!(left.violations, 0, "{}", driver.violations());
    assert_eq!(left.leaks(), 0, "{left:?}");
    report.assert_passed();
}

#[test]
fn conforms_on_an_eager_device() {
    conforms(Config::default());
}

#[test]
fn conforms_on_a_lazy_device() {
    conforms(Config { schedule: Schedule::Lazy, seed: 1, ..Config::default() });
}

#[test]
fn conforms_on_a_device_of_the_first_kind_with_tensor_cores() {
    conforms(Config { capability: 70, schedule: Schedule::Random, seed: 2, ..Config::default() });
}

#[test]
fn conforms_with_cublas() {
    let config = Config { schedule: Schedule::Random, seed: 3, ..Config::default() };
    conforms_with(config, use_cublas);
}

#[test]
fn conforms_with_cublas_in_tf32() {
    let config = Config { schedule: Schedule::Lazy, seed: 4, ..Config::default() };
    conforms_with(config, |cuda| {
        use_cublas(cuda);
        cuda.tf32 = true;
    });
}

#[test]
fn a_provider_leaves_nothing_behind() {
    Rig::new(Config::default()).finish();
}
