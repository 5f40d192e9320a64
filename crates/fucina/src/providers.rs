//! The registry of providers: one line each.

use std::sync::Arc;

use fucina_accel::Provider;
use fucina_runtime::{Config, ConfigError, Offload};

/// One provider that this build knows.
pub struct Found {
    /// Short lower-case name.
    pub name: &'static str,
    /// The provider, or one sentence on why this machine has none.
    pub provider: Result<Arc<dyn Provider>, String>,
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Found").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A device that the driver of a provider shows, in use or not.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct FoundDevice {
    /// Short lower-case name of the provider.
    pub provider: &'static str,
    /// Its number, by which a variable chooses it.
    pub index: u32,
    /// The product's name.
    pub name: String,
    /// Memory in bytes.
    pub memory_bytes: u64,
    /// What it can do, in words.
    pub detail: String,
    /// The environment chooses this one.
    pub chosen: bool,
}

/// Every device that a driver shows. None with `FUCINA_GPU=0`, and none of a provider whose driver
/// is missing: [`default_providers`] says why.
///
/// # Errors
///
/// Fails if a variable holds a value that it does not take.
pub fn default_devices(config: &Config) -> Result<Vec<FoundDevice>, ConfigError> {
    if config.offload == Offload::Off {
        return Ok(Vec::new());
    }
    #[cfg(not(target_os = "macos"))]
    return cuda_devices();
    #[cfg(target_os = "macos")]
    Ok(Vec::new())
}

/// Every provider that this build knows, usable or not, best first. With `FUCINA_GPU=0` none is
/// looked for.
///
/// # Errors
///
/// Fails if a variable holds a value that it does not take.
pub fn default_providers(config: &Config) -> Result<Vec<Found>, ConfigError> {
    if config.offload == Offload::Off {
        return Ok(Vec::new());
    }
    Ok(vec![
        #[cfg(not(target_os = "macos"))]
        cuda()?,
    ])
}

#[cfg(not(target_os = "macos"))]
fn cuda() -> Result<Found, ConfigError> {
    use fucina_cuda::CudaProvider;

    let config = cuda_config()?;
    let provider = CudaProvider::open(&config)
        .map(|provider| Arc::new(provider) as Arc<dyn Provider>)
        .map_err(|why| why.to_string());
    Ok(Found { name: "cuda", provider })
}

#[cfg(not(target_os = "macos"))]
fn cuda_config() -> Result<fucina_cuda::CudaConfig, ConfigError> {
    use fucina_cuda::{CudaConfig, WrongVariable};

    CudaConfig::from_env().map_err(|WrongVariable { name, value, expected, .. }| ConfigError {
        name,
        value,
        expected,
    })
}

#[cfg(not(target_os = "macos"))]
fn cuda_devices() -> Result<Vec<FoundDevice>, ConfigError> {
    let config = cuda_config()?;
    let devices = fucina_cuda::devices(&config).unwrap_or_default().into_iter().map(|device| {
        let ((major, minor), count) = (device.capability, device.multiprocessors);
        FoundDevice {
            provider: "cuda",
            index: device.index,
            name: device.name,
            memory_bytes: device.memory_bytes,
            detail: format!("compute capability {major}.{minor}, {count} multiprocessors"),
            chosen: device.index == config.device,
        }
    });
    Ok(devices.collect())
}
