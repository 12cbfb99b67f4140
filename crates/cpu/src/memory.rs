//! How much memory is free.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

/// Bytes that this process may still take: of the machine's memory and of the limits that are set for it, pages that only cache
/// files counting as free. `None` where the system does not say.
pub fn free() -> Option<u64> {
    let text = read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let available = line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024;
    let limits = read_to_string("/proc/self/cgroup").unwrap_or_default();
    let left = |(root, path, names): (&Path, &str, Names)| left_in_groups(root, path, names);
    Some(groups(&limits).filter_map(left).fold(available, u64::min))
}

/// What a group of processes calls its limit, what it uses, and the caches in that.
type Names = (&'static str, &'static str, [&'static str; 2]);

/// The groups of a process: where they are found, and their path there. Linux has two kinds.
fn groups(text: &str) -> impl Iterator<Item = (&'static Path, &str, Names)> {
    text.lines().filter_map(|line| {
        let (kinds, path) = line.split_once(':')?.1.split_once(':')?;
        match kinds {
            "" => Some((
                Path::new("/sys/fs/cgroup"),
                path,
                ("memory.max", "memory.current", ["inactive_file", "active_file"]),
            )),
            _ if kinds.split(',').any(|kind| kind == "memory") => Some((
                Path::new("/sys/fs/cgroup/memory"),
                path,
                (
                    "memory.limit_in_bytes",
                    "memory.usage_in_bytes",
                    ["total_inactive_file", "total_active_file"],
                ),
            )),
            _ => None,
        }
    })
}

/// What a group and those it is part of leave.
fn left_in_groups(root: &Path, path: &str, names: Names) -> Option<u64> {
    let inside = PathBuf::from(path.trim_start_matches('/'));
    inside.ancestors().filter_map(|group| left_in(&root.join(group), names)).min()
}

fn left_in(group: &Path, (limit, usage, caches): Names) -> Option<u64> {
    let number = |file: &str| read_to_string(group.join(file)).ok()?.trim().parse::<u64>().ok();
    // "max" is no number: no limit.
    let (limit, used) = (number(limit)?, number(usage)?);
    let stat = read_to_string(group.join("memory.stat")).unwrap_or_default();
    let cached: u64 = stat
        .lines()
        .filter_map(|line| line.split_once(' '))
        .filter(|(name, _)| caches.contains(name))
        .filter_map(|(_, bytes)| bytes.parse::<u64>().ok())
        .sum();
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_group_counts() {
        let root = std::env::temp_dir().join(format!("pleiad-groups-{}", std::process::id()));
        let inner = root.join("a/b");
        std::fs::create_dir_all(&inner).unwrap();
        let write = |group: &Path, max: &str, current: u64, cache: u64| {
            std::fs::write(group.join("memory.max"), max).unwrap();
            std::fs::write(group.join("memory.current"), format!("{current}\n")).unwrap();
            let stat = format!("anon 5\ninactive_file {cache}\nactive_file 1\n");
            std::fs::write(group.join("memory.stat"), stat).unwrap();
        };
        write(&inner, "max\n", 100, 50);
        write(&root.join("a"), "1000\n", 900, 99);
        let (_, path, names) = groups("1:cpu:/x\n0::/a/b\n").next().unwrap();
        assert_eq!(left_in_groups(&root, path, names), Some(200));
        assert_eq!(left_in_groups(&root, "/elsewhere", names), None);
        assert_eq!(groups("9:cpu,memory:/x\n").next().map(|(_, path, _)| path), Some("/x"));
        std::fs::remove_dir_all(&root).unwrap();
    }
}
