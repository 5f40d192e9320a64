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
    use fucina_cuda::{CudaConfig, CudaProvider, WrongVariable};

    let config =
        CudaConfig::from_env().map_err(|WrongVariable { name, value, expected, .. }| {
            ConfigError { name, value, expected }
        })?;
    let provider = CudaProvider::open(&config)
        .map(|provider| Arc::new(provider) as Arc<dyn Provider>)
        .map_err(|why| why.to_string());
    Ok(Found { name: "cuda", provider })
}
