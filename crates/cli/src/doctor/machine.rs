//! The machine as the system describes it. What cannot be found out is said to be unknown.

use std::fs;

use fucina::{cpu_quota, free_memory_bytes};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Machine {
    pub(super) os: &'static str,
    pub(super) arch: &'static str,
    pub(super) cpu: String,
    /// Features of the CPU that kernels use or could use.
    pub(super) features: Vec<String>,
    /// CPUs that the system runs.
    pub(super) online: String,
    /// CPUs that this process may use.
    pub(super) affinity: String,
    /// CPU time that the control group grants, in CPUs. `None` without a limit.
    pub(super) quota_cpus: Option<f64>,
    /// Memory that models can take. `None` where it is not known.
    pub(super) free_memory_bytes: Option<u64>,
}

const UNKNOWN: &str = "unknown";

/// Names of `/proc/cpuinfo`.
const FEATURES: &[&str] = &[
    "sse4_2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "avx_vnni",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "asimd",
    "asimddp",
    "i8mm",
    "bf16",
    "sve",
];

impl Machine {
    pub(super) fn look() -> Self {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let online = fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
        let known = |text: &str| if text.is_empty() { UNKNOWN } else { text }.to_owned();
        Self {
            os: std::env::consts::OS,
            arch: std::env::consts::ARCH,
            cpu: known(field(&cpuinfo, "model name").unwrap_or_default()),
            features: features(&cpuinfo),
            online: known(online.trim()),
            affinity: known(field(&status, "Cpus_allowed_list").unwrap_or_default()),
            quota_cpus: cpu_quota(),
            free_memory_bytes: free_memory_bytes(),
        }
    }
}

/// The value of the first line `name : value`.
fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| {
        let (key, value) = line.split_once(':')?;
        (key.trim() == name).then(|| value.trim())
    })
}

fn features(cpuinfo: &str) -> Vec<String> {
    let flags = field(cpuinfo, "flags").or_else(|| field(cpuinfo, "Features")).unwrap_or_default();
    let has = |feature: &&&str| flags.split_whitespace().any(|flag| flag == **feature);
    FEATURES.iter().filter(has).map(|&feature| feature.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_and_features_come_from_the_first_cpu() {
        let text = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx avx2 avx512f\n";
        assert_eq!(field(text, "model name"), Some("Some CPU"));
        assert_eq!(field(text, "model"), None);
        assert_eq!(features(text), ["avx", "avx2", "avx512f"]);
    }
}
