//! Every knob of the runtime, read once from the environment. `docs/env.md` lists them.

use std::collections::BTreeMap;
use std::path::PathBuf;

use fucina_blas::Kind;

use crate::gates::MIN_FILL;

/// A variable holds a value that it does not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the variable {name} is {value:?}; it takes {expected}")]
pub struct ConfigError {
    /// The variable.
    pub name: &'static str,
    /// Its value.
    pub value: String,
    /// What it takes.
    pub expected: &'static str,
}

/// Whether and when calls are offered to providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Offload {
    /// Where the gates say that it pays.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always, whatever the gates say. For tests of providers.
    Force,
}

/// Which BLAS library computes large f32 products on the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlasChoice {
    /// None: what is installed on a machine changes nothing, unless somebody asks for it.
    #[default]
    Off,
    /// The first that is found, of those that the program was built for. What the environment says
    /// if it says nothing.
    Auto,
    /// One of this kind.
    Kind(Kind),
}

/// Rows from which a product uses the f32 copy of 16-bit weights, unless configured.
pub const F32_SHADOW_MIN_M: usize = 32;

/// Thresholds, most of them of work in multiply-adds, `m * n * k`. See `gates.rs` for what each one guards.
pub type GateOverrides = BTreeMap<&'static str, u64>;

/// The knobs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Config {
    /// `FUCINA_THREADS`. `None`: one for each core that affinity and quota leave.
    pub threads: Option<usize>,
    /// `FUCINA_CPU_ISA`. `None`: the best that the CPU has.
    pub isa: Option<String>,
    /// `FUCINA_GPU`.
    pub offload: Offload,
    /// `FUCINA_GPU_TRACE`: keep a log of every decision, besides the counters.
    pub trace: bool,
    /// `FUCINA_CPU_BLAS`.
    pub blas: BlasChoice,
    /// `FUCINA_BLAS_LIBRARY`: the file of the library, instead of a search.
    pub blas_library: Option<PathBuf>,
    /// `FUCINA_CPU_F32_SHADOW`: keep an f32 copy of 16-bit weights for products of many rows.
    pub f32_shadow: bool,
    /// `FUCINA_CPU_F32_SHADOW_MIN_M`. `None`: [`F32_SHADOW_MIN_M`].
    pub f32_shadow_min_m: Option<usize>,
    /// `FUCINA_POOL_MB`. `None`: the pool's default.
    pub pool_retention_mb: Option<usize>,
    /// The thresholds of [`THRESHOLDS`](crate::THRESHOLDS) that are set.
    pub gates: GateOverrides,
}

impl Config {
    /// Reads the environment of the process.
    ///
    /// # Errors
    ///
    /// Returns the first variable whose value it does not take. Nothing is defaulted silently.
    pub fn from_env() -> Result<Self, ConfigError> {
        // Bytes that are not UTF-8 become U+FFFD, which no knob takes: an error, not a default.
        let config = Self::from_lookup(|name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })?;
        // A path is any bytes.
        let library = std::env::var_os("FUCINA_BLAS_LIBRARY").filter(|path| !path.is_empty());
        Ok(Self { blas_library: library.map(PathBuf::from), ..config })
    }

    /// Reads knobs from any source.
    ///
    /// # Errors
    ///
    /// As [`from_env`](Self::from_env).
    pub fn from_lookup(look: impl Fn(&str) -> Option<String>) -> Result<Self, ConfigError> {
        let number = |name: &'static str, expected: &'static str| match look(name) {
            None => Ok(None),
            Some(value) => value.trim().parse::<u64>().map(Some).map_err(|_| ConfigError {
                name,
                value,
                expected,
            }),
        };
        let size = |name, expected| {
            number(name, expected)?
                .map(|value| {
                    usize::try_from(value).map_err(|_| ConfigError {
                        name,
                        value: value.to_string(),
                        expected,
                    })
                })
                .transpose()
        };
        let threads = size("FUCINA_THREADS", "a number of threads from 1 to 1024")?;
        if let Some(value) = threads.filter(|threads| !(1..=1024).contains(threads)) {
            let expected = "a number of threads from 1 to 1024";
            return Err(ConfigError { name: "FUCINA_THREADS", value: value.to_string(), expected });
        }
        let offload = match look("FUCINA_GPU").as_deref() {
            None | Some("" | "1" | "auto") => Offload::Auto,
            Some("0" | "off") => Offload::Off,
            Some("force") => Offload::Force,
            Some(value) => {
                let (name, expected) = ("FUCINA_GPU", "0, 1 or force");
                return Err(ConfigError { name, value: value.to_owned(), expected });
            }
        };
        let trace = switch(&look, "FUCINA_GPU_TRACE")?;
        let mut gates = GateOverrides::new();
        for &(name, _) in crate::gates::THRESHOLDS {
            let (limit, expected) = match name {
                MIN_FILL => (100, "percent, from 0 to 100"),
                _ => (u64::MAX, "a number of multiply-adds, in decimal digits"),
            };
            let Some(value) = number(name, expected)? else { continue };
            if value > limit {
                return Err(ConfigError { name, value: value.to_string(), expected });
            }
            gates.insert(name, value);
        }
        Ok(Self {
            threads,
            isa: look("FUCINA_CPU_ISA").filter(|name| !name.is_empty()),
            offload,
            trace,
            blas: blas(&look)?,
            blas_library: look("FUCINA_BLAS_LIBRARY")
                .filter(|path| !path.is_empty())
                .map(Into::into),
            f32_shadow: switch(&look, "FUCINA_CPU_F32_SHADOW")?,
            f32_shadow_min_m: size("FUCINA_CPU_F32_SHADOW_MIN_M", "a number of rows")?,
            pool_retention_mb: size("FUCINA_POOL_MB", "a number of MiB")?,
            gates,
        })
    }
}

fn switch(look: &impl Fn(&str) -> Option<String>, name: &'static str) -> Result<bool, ConfigError> {
    match look(name).as_deref() {
        None | Some("" | "0") => Ok(false),
        Some("1") => Ok(true),
        Some(value) => Err(ConfigError { name, value: value.to_owned(), expected: "0 or 1" }),
    }
}

fn blas(look: &impl Fn(&str) -> Option<String>) -> Result<BlasChoice, ConfigError> {
    let name = "FUCINA_CPU_BLAS";
    match look(name).as_deref() {
        None | Some("" | "auto") => Ok(BlasChoice::Auto),
        Some("off" | "0") => Ok(BlasChoice::Off),
        Some(value) => Kind::from_name(value).map(BlasChoice::Kind).ok_or_else(|| ConfigError {
            name,
            value: value.to_owned(),
            expected: "auto, off, accelerate, mkl or openblas",
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Result<Config, ConfigError> {
        Config::from_lookup(|name| {
            pairs.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn an_empty_environment_is_the_default_and_looks_for_a_library() {
        let looks = Config { blas: BlasChoice::Auto, ..Config::default() };
        assert_eq!(config(&[]), Ok(looks));
    }

    #[test]
    fn a_bad_value_is_named_and_not_defaulted() {
        let bad = [
            ("FUCINA_THREADS", "0"),
            ("FUCINA_THREADS", "two"),
            ("FUCINA_GPU", "maybe"),
            ("FUCINA_GPU_TRACE", "yes"),
            ("FUCINA_POOL_MB", "-1"),
            ("FUCINA_CPU_BLAS", "OpenBLAS"),
            ("FUCINA_CPU_BLAS", "/usr/lib/libopenblas.so"),
            ("FUCINA_CPU_F32_SHADOW", "on"),
            ("FUCINA_CPU_F32_SHADOW_MIN_M", "-1"),
            ("FUCINA_CPU_F32_SHADOW_MIN_M", "32 rows"),
            ("FUCINA_GPU_MIN_WORK", "1e9"),
            ("FUCINA_GPU_QMOE_MIN_FILL", "101"),
            ("FUCINA_GPU_QMOE_MIN_FILL", "50%"),
        ];
        for (name, value) in bad {
            let error = config(&[(name, value)]).unwrap_err();
            assert_eq!((error.name, error.value.as_str()), (name, value));
        }
    }

    #[test]
    fn thresholds_are_read_by_name() {
        let config = config(&[("FUCINA_GPU_MIN_WORK_GEMV", "7"), ("FUCINA_GPU", "force")]).unwrap();
        assert_eq!(config.gates.get("FUCINA_GPU_MIN_WORK_GEMV"), Some(&7));
        assert_eq!(config.offload, Offload::Force);
    }

    #[test]
    fn a_library_and_a_shadow_are_chosen() {
        let of = |name, value| config(&[(name, value)]).unwrap();
        assert_eq!(of("FUCINA_CPU_BLAS", "off").blas, BlasChoice::Off);
        assert_eq!(of("FUCINA_CPU_BLAS", "auto"), config(&[]).unwrap());
        assert_eq!(of("FUCINA_CPU_BLAS", "off"), Config::default());
        for kind in Kind::ALL {
            assert_eq!(of("FUCINA_CPU_BLAS", kind.name()).blas, BlasChoice::Kind(kind));
        }
        let path = Some(PathBuf::from("/opt/blas.so"));
        assert_eq!(of("FUCINA_BLAS_LIBRARY", "/opt/blas.so").blas_library, path);
        assert_eq!(of("FUCINA_BLAS_LIBRARY", "").blas_library, None);
        assert!(of("FUCINA_CPU_F32_SHADOW", "1").f32_shadow);
        assert_eq!(of("FUCINA_CPU_F32_SHADOW_MIN_M", "1").f32_shadow_min_m, Some(1));
    }
}
