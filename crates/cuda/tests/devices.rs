//! Which devices there are, and which one is opened.

mod common;

use common::library;
use fucina_accel::Provider as _;
use fucina_cuda::{CudaConfig, CudaProvider, devices};
use fucina_cuda_driver::control::{Config, Driver};

fn with(config: Config) -> (Driver, CudaConfig) {
    let driver = Driver::start(&library(), config).expect("the simulator starts");
    let mut cuda = CudaConfig::default();
    cuda.library = Some(driver.path().to_owned());
    (driver, cuda)
}

#[test]
fn every_device_is_listed_without_being_started() {
    let (driver, cuda) = with(Config { devices: 3, capability: 75, ..Config::default() });
    let list = devices(&cuda).expect("a driver");
    assert_eq!(list.iter().map(|device| device.index).collect::<Vec<_>>(), [0, 1, 2]);
    for device in list {
        assert_eq!(device.name, "Simulated CUDA device");
        assert_eq!((device.capability, device.multiprocessors), ((7, 5), 8));
        assert_eq!(device.memory_bytes, 1 << 30);
    }
    assert_eq!(driver.calls("cuDevicePrimaryCtxRetain"), 0);
}

#[test]
fn the_number_chooses_the_device() {
    let (driver, mut cuda) = with(Config { devices: 3, ..Config::default() });
    cuda.device = 2;
    let provider = CudaProvider::open(&cuda).expect("a device");
    assert_eq!(provider.about().index, 2);
    assert_eq!(provider.notes().len(), 2, "kernels, and products");
    drop(provider);
    assert_eq!(driver.report().leaks(), 0);
}

#[test]
fn a_number_without_a_device_is_one_line() {
    let (_driver, mut cuda) = with(Config { devices: 2, ..Config::default() });
    for device in [2, u32::MAX] {
        cuda.device = device;
        let error = CudaProvider::open(&cuda).expect_err("no such device").to_string();
        assert_eq!(error, format!("there is no CUDA device {device}: the driver shows 2"));
    }
}

#[test]
fn a_driver_without_devices_lists_none() {
    let (_driver, cuda) = with(Config { devices: 0, ..Config::default() });
    let error = devices(&cuda).expect_err("no device").to_string();
    assert_eq!(error, "the CUDA driver finds no device");
}
