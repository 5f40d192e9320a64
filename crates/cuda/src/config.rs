//! What the environment says about CUDA devices. Read once, when the provider is opened.

use std::path::PathBuf;

/// Where a library comes from that is used if it is there.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OptionalLibrary {
    /// The system's, under its usual names.
    #[default]
    System,
    /// Nowhere: do without it.
    Off,
    /// This file.
    Path(PathBuf),
}

impl OptionalLibrary {
    fn from_env(name: &str) -> Self {
        match std::env::var_os(name) {
            None => Self::System,
            Some(value) if value.is_empty() => Self::System,
            Some(value) if value == "0" || value == "off" => Self::Off,
            Some(path) => Self::Path(path.into()),
        }
    }
}

/// Which form of the kernels the device gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Kernels {
    /// The compiled ones; their sources only if the driver refuses those.
    #[default]
    Compiled,
    /// The sources, compiled at run time by NVRTC.
    Sources,
}

/// How a CUDA device is found and used.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaConfig {
    /// Number of the device, as the driver counts.
    pub device: u32,
    /// Path of the driver library, instead of the system's.
    pub library: Option<PathBuf>,
    /// cuBLAS, for large f32 products.
    pub cublas: OptionalLibrary,
    /// Let cuBLAS round the operands of f32 products to TF32, for tensor cores.
    pub tf32: bool,
    /// The run-time compiler.
    pub nvrtc: OptionalLibrary,
    /// Which form of the kernels to use.
    pub kernels: Kernels,
    /// Device memory to use, in bytes; four fifths of what is free if `None`.
    pub memory_bytes: Option<usize>,
    /// Most commands in flight.
    pub in_flight: usize,
    /// Use tensor cores for quantized products.
    pub quant_mma: bool,
    /// Split the contracted size of quantized products over more blocks where that fills the
    /// device.
    pub quant_split_k: bool,
    /// Round activations of quantized products to 8 bits, as the CPU does.
    pub quant_int8: bool,
}

impl Default for CudaConfig {
    fn default() -> Self {
        Self {
            device: 0,
            library: None,
            cublas: OptionalLibrary::System,
            tf32: false,
            nvrtc: OptionalLibrary::System,
            kernels: Kernels::Compiled,
            memory_bytes: None,
            in_flight: 8,
            quant_mma: true,
            quant_split_k: true,
            quant_int8: false,
        }
    }
}

/// A variable holds a value that it does not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the variable {name} is {value:?}; it takes {expected}")]
pub struct WrongVariable {
    /// The variable.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// What it takes.
    pub expected: &'static str,
}

impl CudaConfig {
    /// Reads the variables that `docs/env.md` lists for CUDA.
    ///
    /// # Errors
    ///
    /// Returns the first variable whose value it does not take. Nothing is defaulted silently.
    pub fn from_env() -> Result<Self, WrongVariable> {
        // Bytes that are not UTF-8 become U+FFFD, which no knob takes: an error, not a default.
        let look =
            |name: &str| std::env::var_os(name).map(|value| value.to_string_lossy().into_owned());
        let library = std::env::var_os("FUCINA_CUDA_LIBRARY").filter(|path| !path.is_empty());
        Ok(Self {
            library: library.map(PathBuf::from),
            cublas: OptionalLibrary::from_env("FUCINA_CUBLAS_LIBRARY"),
            nvrtc: OptionalLibrary::from_env("FUCINA_NVRTC_LIBRARY"),
            ..Self::from_lookup(look)?
        })
    }

    /// Reads all but the paths of libraries from any source.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env).
    pub fn from_lookup(look: impl Fn(&str) -> Option<String>) -> Result<Self, WrongVariable> {
        let look = |name: &str| look(name).filter(|value| !value.is_empty());
        let default = Self::default();
        let number = |name, (least, most): (usize, usize), expected| {
            let Some(value) = look(name) else { return Ok(None) };
            let number = value.trim().parse().ok().filter(|n| (least..=most).contains(n));
            number.map(Some).ok_or(WrongVariable { name, value, expected })
        };
        let switch = |name, default| match look(name).as_deref() {
            None => Ok(default),
            Some("0") => Ok(false),
            Some("1") => Ok(true),
            Some(value) => Err(WrongVariable { name, value: value.to_owned(), expected: "0 or 1" }),
        };
        let device = number("FUCINA_GPU_DEVICE", (0, 1023), "a number of a device, from 0 on")?;
        let in_flight = number("FUCINA_GPU_IN_FLIGHT", (1, 64), "a number from 1 to 64")?;
        let kernels = match look("FUCINA_GPU_KERNELS").as_deref() {
            None | Some("ptx") => Kernels::Compiled,
            Some("src") => Kernels::Sources,
            Some(value) => {
                let (name, value) = ("FUCINA_GPU_KERNELS", value.to_owned());
                return Err(WrongVariable { name, value, expected: "ptx or src" });
            }
        };
        Ok(Self {
            device: device.and_then(|device| u32::try_from(device).ok()).unwrap_or(0),
            tf32: switch("FUCINA_GPU_TF32", default.tf32)?,
            kernels,
            memory_bytes: number("FUCINA_GPU_VRAM_BUDGET", (0, usize::MAX), "a number of bytes")?,
            in_flight: in_flight.unwrap_or(default.in_flight),
            quant_mma: switch("FUCINA_GPU_QUANT_MMA", default.quant_mma)?,
            quant_split_k: switch("FUCINA_GPU_QUANT_SPLIT_K", default.quant_split_k)?,
            quant_int8: switch("FUCINA_GPU_QUANT_INT8", default.quant_int8)?,
            ..default
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Result<CudaConfig, WrongVariable> {
        CudaConfig::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn an_empty_environment_is_the_default() {
        assert_eq!(config(&[]), Ok(CudaConfig::default()));
        assert_eq!(config(&[("FUCINA_GPU_DEVICE", "")]), Ok(CudaConfig::default()));
    }

    #[test]
    fn a_bad_value_is_named_and_not_defaulted() {
        for (name, value) in [
            ("FUCINA_GPU_DEVICE", "first"),
            ("FUCINA_GPU_DEVICE", "-1"),
            ("FUCINA_GPU_IN_FLIGHT", "0"),
            ("FUCINA_GPU_IN_FLIGHT", "65"),
            ("FUCINA_GPU_VRAM_BUDGET", "1e9"),
            ("FUCINA_GPU_QUANT_MMA", "no"),
            ("FUCINA_GPU_QUANT_SPLIT_K", "2"),
            ("FUCINA_GPU_QUANT_INT8", "yes"),
            ("FUCINA_GPU_TF32", "yes"),
            ("FUCINA_GPU_KERNELS", "cubin"),
        ] {
            let error = config(&[(name, value)]).unwrap_err();
            assert_eq!((error.name, error.value.as_str()), (name, value));
        }
    }

    #[test]
    fn variables_are_read_by_name() {
        let config = config(&[
            ("FUCINA_GPU_DEVICE", "3"),
            ("FUCINA_GPU_IN_FLIGHT", "2"),
            ("FUCINA_GPU_VRAM_BUDGET", "1000000"),
            ("FUCINA_GPU_QUANT_MMA", "0"),
            ("FUCINA_GPU_QUANT_SPLIT_K", "0"),
            ("FUCINA_GPU_QUANT_INT8", "1"),
            ("FUCINA_GPU_TF32", "1"),
            ("FUCINA_GPU_KERNELS", "src"),
        ]);
        let want = CudaConfig {
            device: 3,
            tf32: true,
            kernels: Kernels::Sources,
            memory_bytes: Some(1_000_000),
            in_flight: 2,
            quant_mma: false,
            quant_split_k: false,
            quant_int8: true,
            ..CudaConfig::default()
        };
        assert_eq!(config, Ok(want));
    }
}
