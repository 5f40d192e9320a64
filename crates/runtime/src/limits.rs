//! What the system grants this process: processor time and memory, as far as Linux tells.
//!
//! Control groups of both versions count, and all groups above the process's own: the tightest
//! limit holds.

use std::path::{Path, PathBuf};

const ROOT: &str = "/sys/fs/cgroup";

/// Processor time that the control groups grant, in CPUs. `None` without a limit.
pub fn cpu_quota() -> Option<f64> {
    groups_of(&own_groups()?, Path::new(ROOT), "cpu")
        .filter_map(|group| quota_in(&group))
        .reduce(f64::min)
}

/// Bytes of memory that this process can still take without pushing others out: what the system has
/// available, within the limits of the control groups. Pages of files count as free.
pub fn free_memory_bytes() -> Option<u64> {
    let system = std::fs::read_to_string("/proc/meminfo").ok().and_then(|text| available(&text));
    let groups = own_groups().unwrap_or_default();
    let granted =
        groups_of(&groups, Path::new(ROOT), "memory").filter_map(|group| memory_in(&group));
    system.into_iter().chain(granted).min()
}

fn own_groups() -> Option<String> {
    std::fs::read_to_string("/proc/self/cgroup").ok()
}

/// The folders of the groups that limit `resource`, by the lines of `/proc/self/cgroup`.
fn groups_of(lines: &str, root: &Path, resource: &str) -> impl Iterator<Item = PathBuf> {
    let folders = |line: &str| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, group) = (fields.next()?, fields.next()?);
        if !controllers.is_empty() && controllers.split(',').all(|name| name != resource) {
            return None;
        }
        // A controller that shares its folder with others has links to it, or none.
        let joint = root.join(controllers);
        let top = if joint.exists() { joint } else { root.join(resource) };
        // A container may see its own group as the root although the path names the host's.
        let group = Path::new(group.trim_start_matches('/'));
        Some(group.ancestors().map(|part| top.join(part)).collect::<Vec<_>>())
    };
    lines.lines().filter_map(folders).flatten().collect::<Vec<_>>().into_iter()
}

fn read(group: &Path, name: &str) -> Option<String> {
    std::fs::read_to_string(group.join(name)).ok()
}

/// The limit that the files of one group set. `max` and -1 are none.
fn quota_in(group: &Path) -> Option<f64> {
    let number = |text: &str| text.trim().parse::<u32>().ok().map(f64::from);
    let (quota, period) = match read(group, "cpu.max") {
        Some(line) => line.split_once(' ').and_then(|(q, p)| Some((number(q)?, number(p)?)))?,
        None => {
            let quota = number(&read(group, "cpu.cfs_quota_us")?)?;
            (quota, number(&read(group, "cpu.cfs_period_us")?)?)
        }
    };
    (quota > 0.0 && period > 0.0).then_some(quota / period)
}

/// What the files of one group leave, its pages of files included.
fn memory_in(group: &Path) -> Option<u64> {
    let number = |name: &str| read(group, name)?.trim().parse::<u64>().ok();
    let limit = number("memory.max").or_else(|| number("memory.limit_in_bytes"))?;
    let used = number("memory.current").or_else(|| number("memory.usage_in_bytes"))?;
    let stat = read(group, "memory.stat").unwrap_or_default();
    let of_files = stat.lines().find_map(|line| match line.split_once(' ')? {
        ("file" | "total_cache", bytes) => bytes.trim().parse::<u64>().ok(),
        _ => None,
    });
    Some(limit.saturating_sub(used.saturating_sub(of_files.unwrap_or(0))))
}

/// `MemAvailable` of `/proc/meminfo`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree of files that is gone at the end.
    struct Tree(PathBuf);

    impl Tree {
        fn new(name: &str) -> Self {
            Self(std::env::temp_dir().join(format!("fucina-{name}-{}", std::process::id())))
        }

        fn write(&self, name: &str, text: &str) {
            let path = self.0.join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }

        fn quota(&self, lines: &str) -> Option<f64> {
            groups_of(lines, &self.0, "cpu").filter_map(|group| quota_in(&group)).reduce(f64::min)
        }

        fn memory(&self, lines: &str) -> Option<u64> {
            groups_of(lines, &self.0, "memory").filter_map(|group| memory_in(&group)).min()
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            // It lies where temporary files lie.
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_least_quota_of_all_groups_counts_in_both_versions() {
        let tree = Tree::new("quota");
        assert_eq!(tree.quota("0::/a/b\n"), None, "no files");
        tree.write("a/b/cpu.max", "max 100000\n");
        assert_eq!(tree.quota("0::/a/b\n"), None, "no limit");
        tree.write("a/cpu.max", "150000 100000\n");
        assert_eq!(tree.quota("0::/a/b\n"), Some(1.5));
        tree.write("a/b/cpu.max", "50000 100000\n");
        assert_eq!(tree.quota("0::/a/b\n"), Some(0.5));
        assert_eq!(tree.quota("0::/elsewhere\n"), None);
        tree.write("cpu.max", "25000 100000\n");
        assert_eq!(tree.quota("0::/elsewhere\n"), Some(0.25), "the container's own root");
        let first = "5:cpu,cpuacct:/x\n4:cpuset:/y\n";
        tree.write("cpu,cpuacct/x/cpu.cfs_quota_us", "-1\n");
        tree.write("cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
        assert_eq!(tree.quota(first), None);
        tree.write("cpu,cpuacct/x/cpu.cfs_quota_us", "275000\n");
        assert_eq!(tree.quota(first), Some(2.75));
        tree.write("cpu/z/cpu.cfs_quota_us", "75000\n");
        tree.write("cpu/z/cpu.cfs_period_us", "100000\n");
        assert_eq!(tree.quota("5:cpuacct,cpu:/z\n"), Some(0.75), "the controller's own folder");
        for damaged in ["", "x", "1 0", "-5 100", "1e9 5", "99999999999999 1", "0::"] {
            tree.write("d/cpu.max", damaged);
            assert_eq!(quota_in(&tree.0.join("d")), None, "{damaged:?}");
            assert_eq!(
                groups_of(damaged, Path::new("/nowhere"), "cpu").count(),
                usize::from(damaged == "0::")
            );
        }
    }

    #[test]
    fn the_least_memory_of_all_groups_counts_and_pages_of_files_are_free() {
        let tree = Tree::new("limits");
        assert_eq!(tree.memory("0::/a\n"), None, "no files");
        tree.write("a/memory.max", "max\n");
        tree.write("a/memory.current", "500\n");
        assert_eq!(tree.memory("0::/a\n"), None, "no limit");
        tree.write("a/memory.max", "1000\n");
        assert_eq!(tree.memory("0::/a\n"), Some(500));
        tree.write("a/memory.stat", "anon 200\nfile 300\n");
        assert_eq!(tree.memory("0::/a\n"), Some(800));
        tree.write("a/memory.current", "1500\n");
        tree.write("a/memory.stat", "anon 1500\nfile 0\n");
        assert_eq!(tree.memory("0::/a\n"), Some(0), "more than the limit");
        tree.write("memory/g/memory.limit_in_bytes", "700\n");
        tree.write("memory/g/memory.usage_in_bytes", "600\n");
        tree.write("memory/g/memory.stat", "cache 1\ntotal_cache 50\n");
        assert_eq!(tree.memory("4:memory:/g\n3:cpu:/h\n"), Some(150));
        assert_eq!(available("MemFree: 5 kB\nMemAvailable:   12 kB\n"), Some(12 << 10));
        for damaged in
            ["", "MemAvailable: x kB", "MemAvailable: 5", "MemAvailable: 99999999999999999999 kB"]
        {
            assert_eq!(available(damaged), None, "{damaged:?}");
        }
    }
}
