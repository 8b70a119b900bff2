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

/// Resident memory now.
pub fn memory(pid: u32) -> Result<Memory, PeerError> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).map_err(|e| proc_error(&path, e))?;
    let field = |name: &str| {
        parse_kib(&text, name).ok_or_else(|| proc_error(&path, io::ErrorKind::InvalidData.into()))
    };
    Ok(Memory {
        rss: field("Rss:")?,
        pss: field("Pss:")?,
    })
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
    fn work_and_memory_show() {
        let pid = std::process::id();
        let (cpu, memory_before) = (cpu_time(pid).unwrap(), memory(pid).unwrap());
        let start = Instant::now();
        let mut kept = vec![0u8; 64 << 20];
        while start.elapsed() < Duration::from_millis(50) {
            for byte in kept.iter_mut().step_by(4096) {
                *byte = byte.wrapping_add(1);
            }
        }
        let spent = cpu_time(pid).unwrap() - cpu;
        let grown = memory(pid).unwrap().rss - memory_before.rss;
        assert!(spent > Duration::from_millis(15), "{spent:?}");
        assert!(grown > 48 << 20, "{grown}");
        drop(kept);
    }

    #[test]
    fn no_process_no_figures() {
        assert!(cpu_time(u32::MAX).is_err());
        assert!(cpu_time(0).is_err());
        assert!(cpu_time(i32::MAX as u32).is_err());
        assert!(memory(u32::MAX).is_err());
        assert_eq!(parse_kib("Rss:      12 kB\n", "Rss:"), Some(12 << 10));
        assert_eq!(parse_kib("Rss: x kB\n", "Rss:"), None);
    }
}
