//! How many threads heavy ops should use unless told otherwise.
//!
//! Two hardware threads of one core share its vector units and caches, so a second one adds little
//! to a product and costs a seat at every hand-shake. Hence: one thread for each core that this
//! process may run on, within its quota of processor time.

use std::collections::BTreeSet;
use std::path::Path;

use crate::limits;

/// Threads for heavy ops, at least one: a thread for each core, as far as the quota goes. Half a
/// CPU and more of a quota counts as one: see `docs/perf/0007-worker-team.md`.
#[cfg_attr(loom, expect(dead_code, reason = "the models choose their numbers"))]
pub(crate) fn default_threads() -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let cpus = allowed_cpus(&status);
    let cores = physical_cores(&cpus, Path::new("/sys/devices/system/cpu"));
    let allowed = if cpus.is_empty() { parallelism() } else { cpus.len() };
    let within_quota = limits::cpu_quota().map_or(allowed, nearest);
    cores.unwrap_or(allowed).min(within_quota).clamp(1, allowed)
}

/// Whether this process may run as many threads at the same time, all the time.
pub(crate) fn cpu_time_covers(threads: usize) -> bool {
    // It knows affinity, and rounds the quota down: what is left of it is no core's worth.
    threads <= parallelism()
}

fn parallelism() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small count")]
fn nearest(cpus: f64) -> usize {
    cpus.round().clamp(1.0, 1024.0) as usize
}

/// The CPUs of `Cpus_allowed_list`, such as `0-3,8`.
fn allowed_cpus(status: &str) -> Vec<usize> {
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let range = |part: &str| -> Option<std::ops::RangeInclusive<usize>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    // A machine has fewer CPUs than this; a damaged list must not make a long loop.
    let sane = |range: &std::ops::RangeInclusive<usize>| *range.end() < 1 << 16;
    list.unwrap_or("").split(',').filter_map(range).filter(sane).flatten().collect()
}

/// Number of different cores among `cpus`. `None` if the topology does not tell.
fn physical_cores(cpus: &[usize], root: &Path) -> Option<usize> {
    let siblings = |cpu: &usize| {
        let path = root.join(format!("cpu{cpu}/topology/thread_siblings_list"));
        std::fs::read_to_string(path).ok().map(|list| list.trim().to_owned())
    };
    let cores: BTreeSet<_> = cpus.iter().map(siblings).collect::<Option<_>>()?;
    (!cores.is_empty()).then_some(cores.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read_and_damaged_ones_ignored() {
        let status = "Name:\tx\nCpus_allowed_list:\t0-2,5,7-8\nMems_allowed:\t1\n";
        assert_eq!(allowed_cpus(status), [0, 1, 2, 5, 7, 8]);
        for bad in
            ["", "Cpus_allowed_list:", "Cpus_allowed_list:\tx-3", "Cpus_allowed_list: 0-99999999"]
        {
            assert_eq!(allowed_cpus(bad), [0; 0], "{bad:?}");
        }
    }

    #[test]
    fn hardware_threads_of_one_core_count_once() {
        let root = std::env::temp_dir().join(format!("fucina-cores-{}", std::process::id()));
        for (cpu, siblings) in ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5"].iter().enumerate() {
            let dir = root.join(format!("cpu{cpu}/topology"));
            std::fs::create_dir_all(&dir).unwrap();
            std::fs::write(dir.join("thread_siblings_list"), format!("{siblings}\n")).unwrap();
        }
        assert_eq!(physical_cores(&[0, 1, 2, 3, 4, 5], &root), Some(4));
        assert_eq!(physical_cores(&[0, 4], &root), Some(1));
        assert_eq!(physical_cores(&[0, 9], &root), None, "unknown topology");
        assert_eq!(physical_cores(&[], &root), None);
        std::fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn quotas_round_to_the_nearest_number_of_threads() {
        for (cpus, threads) in [(0.1, 1), (1.0, 1), (1.4, 1), (1.5, 2), (2.75, 3), (1e9, 1024)] {
            assert_eq!(nearest(cpus), threads, "{cpus}");
        }
    }

    #[test]
    fn there_is_always_a_thread() {
        assert!(default_threads() >= 1);
    }
}
