//! What a process has used, as the kernel counts it. For peers and for our own
//! backends alike.

use std::io;
use std::time::Duration;

use super::PeerError;

/// The kernel issues no larger number on 64-bit systems.
const PID_MAX: u32 = 1 << 22;

/// Resident memory of a process, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize)]
pub struct Memory {
    /// All resident pages, shared ones included.
    pub rss: u64,
    /// The same, but each shared page divided by the number of its users.
    pub pss: u64,
}

/// CPU time of all threads that the process has and has had, by its own CPU clock:
/// `/proc/PID/stat` has the same in ticks of 10 ms, `schedstat` forgets threads
/// that have ended.
pub fn cpu_time(pid: u32) -> Result<Duration, PeerError> {
    let fail = |source| proc_error(&format!("CPU clock of process {pid}"), source);
    // 0 would be ourselves, and a clock's id has too few bits for numbers that no
    // process can have.
    if !(1..=PID_MAX).contains(&pid) {
        return Err(fail(io::ErrorKind::NotFound.into()));
    }
    let mut clock = 0;
    // SAFETY: writes the clock's id to where it is told.
    let errno = unsafe { libc::clock_getcpuclockid(pid as i32, &mut clock) };
    if errno != 0 {
        return Err(fail(io::Error::from_raw_os_error(errno)));
    }
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writes the time to where it is told.
    if unsafe { libc::clock_gettime(clock, &mut time) } != 0 {
        return Err(fail(io::Error::last_os_error()));
    }
    Ok(Duration::new(time.tv_sec as u64, time.tv_nsec as u32))
}

/// CPU time of one thread of this process.
pub(crate) fn thread_cpu_time(thread: i32) -> io::Result<Duration> {
    let text = std::fs::read_to_string(format!("/proc/self/task/{thread}/schedstat"))?;
    let first = text.split_whitespace().next();
    let nanoseconds = first.and_then(|first| first.parse().ok());
    match nanoseconds {
        Some(nanoseconds) => Ok(Duration::from_nanos(nanoseconds)),
        None => Err(io::ErrorKind::InvalidData.into()),
    }
}

/// The processes that a process has started and not reaped; none if it is gone.
pub fn children(pid: u32) -> Vec<u32> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task"));
    let tasks = tasks.into_iter().flatten().flatten();
    // Each thread's own; a thread may end while we look.
    let lists = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("children")).ok());
    let parse = |list: String| -> Vec<u32> {
        let pids = list.split_ascii_whitespace();
        pids.filter_map(|pid| pid.parse().ok()).collect()
    };
    lists.flat_map(parse).collect()
}

/// What all cores of the machine have done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MachineTime {
    /// Time of processes and of the kernel.
    pub busy: Duration,
    /// Time that the host gave to others.
    pub stolen: Duration,
}

/// As the kernel counts it, in ticks of 10 ms.
pub fn machine_time() -> Result<MachineTime, PeerError> {
    const PATH: &str = "/proc/stat";
    let text = std::fs::read_to_string(PATH).map_err(|e| proc_error(PATH, e))?;
    parse_machine_time(&text).ok_or_else(|| proc_error(PATH, io::ErrorKind::InvalidData.into()))
}

fn parse_machine_time(text: &str) -> Option<MachineTime> {
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Vec<u64> = line
        .split_ascii_whitespace()
        .map_while(|ticks| ticks.parse().ok())
        .collect();
    let &[user, nice, system, _idle, _waits, irq, softirq, stolen, ..] = &ticks[..] else {
        return None;
    };
    let time = |ticks: u64| Duration::from_millis(10 * ticks);
    Some(MachineTime {
        busy: time(user + nice + system + irq + softirq),
        stolen: time(stolen),
    })
}

/// Resident memory now.
pub fn memory(pid: u32) -> Result<Memory, PeerError> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).map_err(|e| proc_error(&path, e))?;
    let field = |name: &str| {
        parse_kib(&text, name).ok_or_else(|| proc_error(&path, io::ErrorKind::InvalidData.into()))
    };
    // The kernel leaves reserved huge pages out of both.
    let huge = ["Shared_Hugetlb:", "Private_Hugetlb:"];
    let huge: u64 = huge.iter().filter_map(|name| parse_kib(&text, name)).sum();
    Ok(Memory {
        rss: field("Rss:")? + huge,
        pss: field("Pss:")? + huge,
    })
}

/// Bytes mapped by huge pages now, reserved or gathered.
pub fn huge_pages(pid: u32) -> Result<u64, PeerError> {
    let read = |name: &str| {
        let path = format!("/proc/{pid}/{name}");
        std::fs::read_to_string(&path).map_err(|e| proc_error(&path, e))
    };
    let reserved = parse_kib(&read("status")?, "HugetlbPages:").unwrap_or(0);
    let gathered = parse_kib(&read("smaps_rollup")?, "ShmemPmdMapped:").unwrap_or(0);
    Ok(reserved + gathered)
}

/// Bytes that the kernel holds for the process's anonymous shared files, mapped
/// or not: memory that was given back is gone from here.
pub fn shared_files(pid: u32) -> Result<u64, PeerError> {
    use std::os::unix::fs::MetadataExt as _;
    let path = format!("/proc/{pid}/fd");
    let fds = std::fs::read_dir(&path).map_err(|e| proc_error(&path, e))?;
    // A descriptor may be closed while we look; several may be of one file.
    let mut lens = std::collections::BTreeMap::new();
    for fd in fds.flatten() {
        let is_memfd = std::fs::read_link(fd.path())
            .is_ok_and(|name| name.to_string_lossy().starts_with("/memfd:"));
        if let (true, Ok(metadata)) = (is_memfd, std::fs::metadata(fd.path())) {
            lens.insert(metadata.ino(), metadata.blocks() * 512);
        }
    }
    Ok(lens.values().sum())
}

/// Bytes that a server holds: its own pages and those of its anonymous shared
/// files, mapped by it or not.
pub fn resident(pid: u32) -> Result<u64, PeerError> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(|e| proc_error(&path, e))?;
    let own = parse_kib(&text, "RssAnon:")
        .ok_or_else(|| proc_error(&path, io::ErrorKind::InvalidData.into()))?;
    Ok(own + shared_files(pid)?)
}

/// The same and the program's own pages, whether the process has touched its files
/// in memory or not.
pub fn resident_with_program(pid: u32) -> Result<u64, PeerError> {
    let path = format!("/proc/{pid}/status");
    let text = std::fs::read_to_string(&path).map_err(|e| proc_error(&path, e))?;
    let field = |name: &str| parse_kib(&text, name).unwrap_or(0);
    let shared = field("RssShmem:") + field("HugetlbPages:");
    Ok(field("RssAnon:") + field("RssFile:") + shared.max(shared_files(pid)?))
}

fn parse_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

fn proc_error(path: &str, source: io::Error) -> PeerError {
    PeerError::Proc {
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_child_is_known_until_it_is_reaped() {
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .spawn()
            .unwrap();
        let own = std::process::id();
        assert!(children(own).contains(&child.id()));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!children(own).contains(&child.id()));
        assert!(children(0).is_empty());
    }

    #[test]
    fn work_and_memory_show() {
        let pid = std::process::id();
        let cpu = cpu_time(pid).unwrap();
        let start = Instant::now();
        let mut kept = vec![0u8; 64 << 20];
        let mut spent = Duration::ZERO;
        // A busy machine may give this test little time at first.
        while spent < Duration::from_millis(15) && start.elapsed() < Duration::from_secs(10) {
            for byte in kept.iter_mut().step_by(4096) {
                *byte = byte.wrapping_add(1);
            }
            spent = cpu_time(pid).unwrap() - cpu;
        }
        assert!(spent >= Duration::from_millis(15), "{spent:?}");
        // Tests beside this one take and give back memory, too: only what is
        // certainly there can be expected.
        assert!(super::resident(pid).unwrap() >= 64 << 20);
        let resident = memory(pid).unwrap().rss;
        assert!(resident >= 64 << 20, "{resident}");
        drop(kept);
    }

    #[test]
    fn files_in_memory_count_by_what_they_hold() {
        use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
        let pid = std::process::id();
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, 1 << 40).unwrap();
        rustix::io::pwrite(&file, &vec![1; 64 << 20], 1 << 30).unwrap();
        // Tests beside this one have files, too; holes count for nothing.
        let held = shared_files(pid).unwrap();
        assert!((64 << 20..1 << 38).contains(&held), "{held}");
        assert!(huge_pages(pid).is_ok());
    }

    #[test]
    fn the_machine_s_time_is_read_by_its_columns() {
        let text = "cpu  7 1 20 300 4000 50000 600000 8000000 9 9\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let time = parse_machine_time(text).unwrap();
        assert_eq!(time.busy, Duration::from_millis(6_500_280));
        assert_eq!(time.stolen, Duration::from_secs(80_000));
        assert_eq!(parse_machine_time("cpu  7 1 20\n"), None);
        assert_eq!(parse_machine_time("intr 5\n"), None);
        assert!(machine_time().unwrap().busy > Duration::ZERO);
    }

    #[test]
    fn no_process_no_figures() {
        assert!(cpu_time(u32::MAX).is_err());
        assert!(cpu_time(0).is_err());
        assert!(cpu_time(i32::MAX as u32).is_err());
        assert!(memory(u32::MAX).is_err());
        assert!(huge_pages(u32::MAX).is_err());
        assert!(shared_files(u32::MAX).is_err());
        assert_eq!(parse_kib("Rss:      12 kB\n", "Rss:"), Some(12 << 10));
        assert_eq!(parse_kib("Rss: x kB\n", "Rss:"), None);
    }
}
