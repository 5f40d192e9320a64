//! What the environment says about CUDA devices. Read once, when the provider is opened.

use std::env::VarError;
use std::path::PathBuf;

/// How a CUDA device is found and used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaConfig {
    /// Number of the device, as the driver counts.
    pub device: u32,
    /// Path of the driver library, instead of the system's.
    pub library: Option<PathBuf>,
    /// Device memory to use, in bytes; four fifths of what is free if `None`.
    pub memory_bytes: Option<usize>,
    /// Most commands in flight.
    pub in_flight: usize,
    /// Use tensor cores for quantized products.
    pub quant_mma: bool,
    /// Split the contracted size of quantized products over more blocks where that fills the
    /// device.
    pub quant_split_k: bool,
}

impl Default for CudaConfig {
    fn default() -> Self {
        Self {
            device: 0,
            library: None,
            memory_bytes: None,
            in_flight: 8,
            quant_mma: true,
            quant_split_k: true,
        }
    }
}

impl CudaConfig {
    /// Reads the variables that `docs/env.md` lists for CUDA.
    ///
    /// # Errors
    ///
    /// Names a variable that holds a value which it does not take.
    pub fn from_env() -> Result<Self, String> {
        let default = Self::default();
        Ok(Self {
            device: number("FUCINA_GPU_DEVICE", 0, 63)?.unwrap_or(0),
            library: std::env::var_os("FUCINA_CUDA_LIBRARY")
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            memory_bytes: number("FUCINA_GPU_VRAM_BUDGET", 0, usize::MAX)?,
            in_flight: number("FUCINA_GPU_IN_FLIGHT", 1, 64)?.unwrap_or(default.in_flight),
            quant_mma: switch("FUCINA_GPU_QUANT_MMA", default.quant_mma)?,
            quant_split_k: switch("FUCINA_GPU_QUANT_SPLIT_K", default.quant_split_k)?,
        })
    }
}

fn text(name: &str) -> Result<Option<String>, String> {
    match std::env::var(name) {
        Ok(text) if text.is_empty() => Ok(None),
        Ok(text) => Ok(Some(text)),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(_)) => Err(format!("{name} is not valid UTF-8")),
    }
}

fn number<T>(name: &str, least: T, most: T) -> Result<Option<T>, String>
where
    T: std::str::FromStr + PartialOrd + std::fmt::Display,
{
    let Some(text) = text(name)? else { return Ok(None) };
    let value = text.parse().ok().filter(|value| least <= *value && *value <= most);
    let wrong = || format!("{name} is `{text}`; a whole number from {least} to {most} is expected");
    value.map(Some).ok_or_else(wrong)
}

fn switch(name: &str, default: bool) -> Result<bool, String> {
    match text(name)?.as_deref() {
        None => Ok(default),
        Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(other) => Err(format!("{name} is `{other}`; 0 or 1 is expected")),
    }
}
