//! Whether there is room for processes beside those that serve: by what the host says, and the
//! control groups that `cell up` and its backends are in, as far as they can be read.

use crate::cell::order_error::OrderError;
use bytesize::ByteSize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Bytes that backends hold, by number.
pub(super) type Held = BTreeMap<u32, u64>;

/// Less than this share of what is to be copied is plainly too little, in eighths: a new
/// process holds the same items with less waste.
const PLAINLY: u64 = 7;

/// What is left, and of what.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Left {
    bytes: u64,
    of: String,
}

/// Refuses to begin processes that would hold so many bytes together, where there is plainly
/// no room for them.
pub(super) fn check(needed: u64) -> Result<(), OrderError> {
    refuse(needed, left(Path::new("/")))
}

fn refuse(needed: u64, left: Option<Left>) -> Result<(), OrderError> {
    match left {
        Some(left) if left.bytes < needed / 8 * PLAINLY => Err(OrderError::NoRoom {
            needed: ByteSize::b(needed).to_string(),
            left: ByteSize::b(left.bytes).to_string(),
            of: left.of,
        }),
        _ => Ok(()),
    }
}

/// The least that is left; nothing if nobody says.
fn left(root: &Path) -> Option<Left> {
    let groups = groups(root);
    let groups = groups.iter().filter_map(Group::left);
    let host = host(root);
    // What stands in huge pages of the host is on no group's account.
    let is_apart = host.as_ref().is_some_and(|(_, huge_pages)| *huge_pages > 0);
    let host = host.map(|(left, _)| left);
    let all = host.into_iter().chain(groups.filter(|_| !is_apart));
    all.min_by_key(|of| of.bytes)
}

/// And how many huge pages it has set aside.
fn host(root: &Path) -> Option<(Left, u64)> {
    let text = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let field = |name: &str| {
        let line = text
            .lines()
            .find(|line| line.split(':').next() == Some(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    // Where the cell has huge pages, they are not in the rest.
    let huge = field("HugePages_Free").unwrap_or(0) * field("Hugepagesize").unwrap_or(0);
    let left = Left {
        bytes: (field("MemAvailable")? + huge) << 10,
        of: "the host".to_owned(),
    };
    Some((left, field("HugePages_Total").unwrap_or(0)))
}

/// A control group with a limit, perhaps.
#[derive(Debug)]
struct Group {
    folder: PathBuf,
    /// Files with its limit, with what it holds, and prefix of what can be taken from it.
    files: (&'static str, &'static str, &'static str),
}

const V2: (&str, &str, &str) = ("memory.max", "memory.current", "");
const V1: (&str, &str, &str) = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_");

/// Those that this process is in, each with those above it.
fn groups(root: &Path) -> Vec<Group> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(path)) = (parts.next(), parts.next()) else {
            continue;
        };
        let is_v1 = controllers.split(',').any(|name| name == "memory");
        let (mounts, files) = match (controllers, is_v1) {
            ("", _) => (["sys/fs/cgroup", "sys/fs/cgroup/unified"], V2),
            (_, true) => (["sys/fs/cgroup/memory", "sys/fs/cgroup/memory"], V1),
            _ => continue,
        };
        let path = Path::new(path.trim_start_matches('/'));
        for mount in mounts {
            let above = path.ancestors().map(|path| root.join(mount).join(path));
            groups.extend(above.map(|folder| Group { folder, files }));
        }
    }
    groups
}

impl Group {
    fn left(&self) -> Option<Left> {
        let read = |name: &str| std::fs::read_to_string(self.folder.join(name)).ok();
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let (limit, current, prefix) = self.files;
        let (limit, current) = (number(limit)?, number(current)?);
        // What of files it has read can be dropped.
        let stat = read("memory.stat").unwrap_or_default();
        let cached = |name: &str| {
            let name = format!("{prefix}{name}");
            let line = stat
                .lines()
                .find_map(|line| line.strip_prefix(&name)?.strip_prefix(' '));
            line.and_then(|line| line.trim().parse::<u64>().ok())
        };
        let cached = ["inactive_file", "active_file"]
            .into_iter()
            .filter_map(cached);
        let used = current.saturating_sub(cached.sum());
        Some(Left {
            bytes: limit.saturating_sub(used),
            of: format!("the control group {}", self.folder.display()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    fn write(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn the_least_that_is_left_counts() {
        let home = tempfile::tempdir().unwrap();
        let root = home.path();
        assert_eq!(left(root), None);
        assert_eq!(refuse(GIB, left(root)), Ok(()));
        let meminfo = "MemTotal: 16777216 kB\nMemAvailable: 4194304 kB\n\
            HugePages_Free: 512\nHugepagesize: 2048 kB\n";
        write(root, "proc/meminfo", meminfo);
        assert_eq!(left(root).unwrap().bytes, 5 * GIB);
        // A group without a limit, one above it with one.
        write(root, "proc/self/cgroup", "0::/cells/mail\n");
        write(root, "sys/fs/cgroup/cells/mail/memory.max", "max\n");
        write(root, "sys/fs/cgroup/cells/mail/memory.current", "1\n");
        write(
            root,
            "sys/fs/cgroup/cells/memory.max",
            &format!("{}\n", 3 * GIB),
        );
        write(
            root,
            "sys/fs/cgroup/cells/memory.current",
            &format!("{}\n", 2 * GIB),
        );
        let stat = format!("anon 5\ninactive_file {}\nactive_file 0\n", GIB / 2);
        write(root, "sys/fs/cgroup/cells/memory.stat", &stat);
        let found = left(root).unwrap();
        assert_eq!(found.bytes, GIB + GIB / 2);
        assert!(found.of.ends_with("cgroup/cells"), "{found:?}");
        assert_eq!(refuse(GIB, left(root)), Ok(()));
        let refused = refuse(2 * GIB, left(root)).unwrap_err();
        assert!(refused.to_string().contains("--without-room"), "{refused}");
        // The older kind.
        write(root, "proc/self/cgroup", "5:cpu:/\n4:memory:/mail\n0::/\n");
        let folder = "sys/fs/cgroup/memory/mail";
        write(
            root,
            &format!("{folder}/memory.limit_in_bytes"),
            &format!("{GIB}\n"),
        );
        write(
            root,
            &format!("{folder}/memory.usage_in_bytes"),
            &format!("{GIB}\n"),
        );
        write(
            root,
            &format!("{folder}/memory.stat"),
            "total_inactive_file 4096\n",
        );
        assert_eq!(left(root).unwrap().bytes, 4096);
    }

    #[test]
    fn this_host_says_how_much_it_has() {
        assert!(left(Path::new("/")).unwrap().bytes > 1 << 20);
    }
}
