//! Since when this process has been running. A machine that pauses, or a process
//! that is stopped, knows nothing of it afterwards; but whoever was to wake up all
//! the while and did not can tell.

use crate::time;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// How often it is looked.
const BEAT: Duration = Duration::from_millis(100);

/// Looks so far apart had a pause between them. Shorter ones let no lease end.
const PAUSE_NS_MIN: u64 = 250_000_000;

/// One for all clients of the process.
static PULSE: Pulse = Pulse::new();

struct Pulse {
    /// The process that looks: threads do not come along into a fork's child.
    process: AtomicU32,
    /// The latest look; `u64::MAX` if there was none.
    latest_ns: AtomicU64,
    since_ns: AtomicU64,
}

impl Pulse {
    const fn new() -> Self {
        Pulse {
            process: AtomicU32::new(0),
            latest_ns: AtomicU64::new(u64::MAX),
            since_ns: AtomicU64::new(0),
        }
    }

    /// Whether `process` is to begin to look: it is the first to ask, or a child.
    fn begins(&self, process: u32) -> bool {
        let is_new = self.process.swap(process, Ordering::AcqRel) != process;
        if is_new {
            self.latest_ns.store(u64::MAX, Ordering::Release);
            self.since_ns.store(0, Ordering::Relaxed);
        }
        is_new
    }

    fn beat(&self, now_ns: u64) {
        let since_ns = self.since_ns(now_ns);
        self.since_ns.store(since_ns, Ordering::Relaxed);
        // Whoever sees this look sees what it has found.
        self.latest_ns.store(now_ns, Ordering::Release);
    }

    /// As of `now_ns`: the look that follows a pause may be yet to come.
    fn since_ns(&self, now_ns: u64) -> u64 {
        let latest_ns = self.latest_ns.load(Ordering::Acquire);
        if now_ns.saturating_sub(latest_ns) >= PAUSE_NS_MIN {
            return now_ns;
        }
        self.since_ns.load(Ordering::Relaxed)
    }
}

/// Begins to look, in a thread that ends with the process. Where there can be no
/// further thread, no pause is ever noticed.
pub(crate) fn begin() {
    if !PULSE.begins(std::process::id()) {
        return;
    }
    let look = || {
        loop {
            PULSE.beat(time::monotonic_ns());
            std::thread::sleep(BEAT);
        }
    };
    let _ = std::thread::Builder::new()
        .name("trefoil-pulse".to_owned())
        .spawn(look);
}

/// When the latest pause ended, on the monotonic clock; 0 if there was none.
pub(crate) fn running_since_ns() -> u64 {
    PULSE.since_ns(time::monotonic_ns())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_pause_is_noticed_by_whoever_asks_first() {
        let pulse = Pulse::new();
        assert_eq!(pulse.since_ns(9_000 * MS), 0, "nobody looks");
        pulse.beat(1_000 * MS);
        pulse.beat(1_100 * MS);
        pulse.beat(1_240 * MS);
        assert_eq!(pulse.since_ns(1_300 * MS), 0);
        assert_eq!(
            pulse.since_ns(1_900 * MS),
            1_900 * MS,
            "before its next look"
        );
        pulse.beat(1_910 * MS);
        assert_eq!(pulse.since_ns(1_950 * MS), 1_910 * MS);
        pulse.beat(2_010 * MS);
        assert_eq!(pulse.since_ns(2_020 * MS), 1_910 * MS);
    }
    #[test]
    fn a_child_looks_by_itself() {
        let pulse = Pulse::new();
        assert!(pulse.begins(7));
        assert!(!pulse.begins(7));
        pulse.beat(1_000 * MS);
        assert!(pulse.begins(8));
        assert_eq!(pulse.since_ns(9_000 * MS), 0);
        pulse.beat(9_000 * MS);
        assert_eq!(pulse.since_ns(9_100 * MS), 0);
    }
}
