//! Whether a process is on its way out.

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};

/// `PF_EXITING` in the kernel's flags of a process.
const FLAG_EXITING: u64 = 4;
/// SIGKILL in a set of signals.
const SIGKILL_BIT: u64 = 1 << 8;

/// Whether `pid` has ended, is ending, or has been sent a SIGKILL.
pub fn is_ending(pid: u32) -> bool {
    let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
    match (read("stat"), read("status")) {
        (Ok(stat), Ok(status)) => has_left(&stat).unwrap_or(false) || is_killed(&status),
        // It has ended, or /proc does not show other users' processes.
        _ => !exists(pid),
    }
}

fn exists(pid: u32) -> bool {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| test_kill_process(pid) != Err(Errno::SRCH))
}

/// Judges `/proc/PID/stat`: the state and the flags stand behind the program's
/// name, which may contain anything.
fn has_left(stat: &str) -> Option<bool> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    let state = fields.next()?;
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    Some(matches!(state, "Z" | "X") || flags & FLAG_EXITING != 0)
}

/// Judges `/proc/PID/status`: signals that are pending for a thread or for all.
fn is_killed(status: &str) -> bool {
    status.lines().any(|line| {
        let set = line
            .strip_prefix("SigPnd:")
            .or_else(|| line.strip_prefix("ShdPnd:"));
        set.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
            .is_some_and(|signals| signals & SIGKILL_BIT != 0)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn the_living_the_killed_and_the_gone_are_told_apart() {
        assert!(!is_ending(std::process::id()));
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        assert!(!is_ending(child.id()));
        child.kill().unwrap();
        // From here on it is killed, ending or a zombie; a moment between these
        // is overlooked at most now and then.
        let noticed = (0..100).filter(|_| is_ending(child.id())).count();
        assert!(noticed > 50, "{noticed}");
        child.wait().unwrap();
        assert!(is_ending(child.id()));
        assert!(exists(1), "whoever it belongs to");
        assert!(!exists(0) && !exists(u32::MAX));
    }

    #[test]
    fn names_of_programs_do_not_mislead() {
        let stat = |name: &str, state: &str, flags: u32| {
            format!("7 ({name}) {state} 1 7 7 0 -1 {flags} 0 0 0")
        };
        assert_eq!(has_left(&stat("a) Z 1 (b", "R", 0x40_0000)), Some(false));
        assert_eq!(has_left(&stat("a", "Z", 0)), Some(true));
        assert_eq!(has_left(&stat("a", "R", 0x40_0004)), Some(true));
        assert_eq!(has_left("nonsense"), None);
        assert!(is_killed(
            "SigPnd:\t0000000000000100\nShdPnd:\t0000000000000000\n"
        ));
        assert!(!is_killed("SigPnd:\t0000000000000200\nShdPnd:\tx\n"));
    }
}
