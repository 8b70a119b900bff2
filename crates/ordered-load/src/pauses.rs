//! Pauses of the host. A virtual machine is stopped as a whole when its host has given it
//! its share of time; what is due meanwhile waits, whatever system is measured. On the
//! machine that this was written on, that is 3 to 23 ms in each tenth of a second in which
//! both cores are busy, against medians of microseconds.
//!
//! The load's own loop sees them: two looks at the clock, with no more than one attempt at a
//! request in between and no system call, are [`PAUSE_MIN`] apart, and the system has not
//! given the core to another thread meanwhile (the thread's count of involuntary switches is
//! what it was). A core that was given away is not the host's doing, and counts as what it is.

use std::time::{Duration, Instant};

/// Longer than any attempt at a request, by far.
pub(crate) const PAUSE_MIN: Duration = Duration::from_micros(100);

/// A clock that notices when the machine has stood still.
#[derive(Debug)]
pub(crate) struct Pauses {
    last: Instant,
    switches: Option<u64>,
    /// How often it has.
    pub(crate) count: usize,
    /// The longest time.
    pub(crate) longest: Duration,
}

impl Pauses {
    /// From now on.
    pub(crate) fn new() -> Self {
        let switches = involuntary_switches();
        Pauses {
            last: Instant::now(),
            switches,
            count: 0,
            longest: Duration::ZERO,
        }
    }

    /// The time.
    #[inline]
    pub(crate) fn now(&mut self) -> Instant {
        let now = Instant::now();
        if now.duration_since(self.last) > PAUSE_MIN {
            self.gap(now);
        }
        self.last = now;
        now
    }

    #[cold]
    fn gap(&mut self, now: Instant) {
        let switches = involuntary_switches();
        if switches.is_some() && switches == self.switches {
            self.count += 1;
            self.longest = self.longest.max(now - self.last);
        }
        self.switches = switches;
    }
}

/// How often the system has given this thread's core to another one. `None`: it does not say.
fn involuntary_switches() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/thread-self/status").ok()?;
    let mut lines = status.lines();
    let count = lines.find_map(|line| line.strip_prefix("nonvoluntary_ctxt_switches:"))?;
    count.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_unless_the_core_was_given_away() {
        let mut pauses = Pauses::new();
        let now = Instant::now();
        pauses.last = now - Duration::from_millis(5);
        pauses.switches = involuntary_switches();
        assert!(pauses.switches.is_some(), "the system counts switches");
        pauses.switches = pauses.switches.map(|count| count + 1_000_000);
        pauses.gap(now);
        assert_eq!(pauses.count, 0, "a switch explains it");
        // What a switch of this very test would hide.
        for _ in 0..1000 {
            pauses.gap(now);
        }
        assert!(pauses.count > 0);
        assert_eq!(pauses.longest, Duration::from_millis(5));
    }
}
