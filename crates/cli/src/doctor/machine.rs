//! The machine as the system describes it. What cannot be found out is said to be unknown.

use std::fs;
use std::path::Path;

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
            quota_cpus: quota(),
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

/// The tightest quota of this process's control groups, version 2 or 1.
fn quota() -> Option<f64> {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let quotas = groups.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let path = path.trim_start_matches('/');
        if controllers.is_empty() {
            return tightest(Path::new("/sys/fs/cgroup"), path, quota_v2);
        }
        let cpu = controllers.split(',').any(|name| name == "cpu");
        if !cpu {
            return None;
        }
        let combined = Path::new("/sys/fs/cgroup").join(controllers);
        let root = if combined.exists() { combined } else { "/sys/fs/cgroup/cpu".into() };
        tightest(&root, path, quota_v1)
    });
    quotas.reduce(f64::min)
}

/// A group and all groups around it limit a process.
fn tightest(root: &Path, path: &str, read: fn(&Path) -> Option<f64>) -> Option<f64> {
    let inner = root.join(path);
    let groups = inner.ancestors().take_while(|group| group.starts_with(root));
    groups.filter_map(read).reduce(f64::min)
}

fn quota_v2(group: &Path) -> Option<f64> {
    parse_quota_v2(&fs::read_to_string(group.join("cpu.max")).ok()?)
}

/// `max 100000` or `150000 100000`.
fn parse_quota_v2(text: &str) -> Option<f64> {
    let (quota, period) = text.trim().split_once(' ')?;
    ratio(quota, period)
}

fn quota_v1(group: &Path) -> Option<f64> {
    let read = |name| fs::read_to_string(group.join(name)).ok();
    ratio(read("cpu.cfs_quota_us")?.trim(), read("cpu.cfs_period_us")?.trim())
}

/// `None` for `max` and for -1, which mean no limit.
fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_read_and_no_limit_is_none() {
        assert_eq!(parse_quota_v2("150000 100000\n"), Some(1.5));
        assert_eq!(parse_quota_v2("max 100000\n"), None);
        assert_eq!(parse_quota_v2("garbage"), None);
        assert_eq!(ratio("-1", "100000"), None);
        assert_eq!(ratio("50000", "100000"), Some(0.5));
        assert_eq!(ratio("50000", "0"), None);
    }

    #[test]
    fn fields_and_features_come_from_the_first_cpu() {
        let text = "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu avx avx2 avx512f\n";
        assert_eq!(field(text, "model name"), Some("Some CPU"));
        assert_eq!(field(text, "model"), None);
        assert_eq!(features(text), ["avx", "avx2", "avx512f"]);
    }
}
