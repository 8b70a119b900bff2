//! How fast a scan may go: so many bytes between backends a second, and so many keys
//! looked at, because each of three replicas reads them all.

use std::time::{Duration, Instant};

/// Keys a second: some percent of a core at each replica.
const KEYS_PER_S: u64 = 200_000;
/// Bytes a second at least.
pub const REPAIR_RATE_MIN: u64 = 64 << 10;
/// What may be owed before anybody waits: waits are not to be shorter than the system's
/// clock is fine.
const SLACK: Duration = Duration::from_millis(2);

/// See the module.
#[derive(Debug)]
pub(super) struct Pace {
    rate: u64,
    /// When what was done so far is paid for.
    paid_at: Instant,
}

impl Pace {
    pub(super) fn new(rate: u64) -> Self {
        Pace {
            rate: rate.max(REPAIR_RATE_MIN),
            paid_at: Instant::now(),
        }
    }

    /// So many bytes were sent and received.
    pub(super) fn moved(&mut self, bytes: u64) {
        self.takes(bytes, self.rate);
    }

    /// So many keys are looked at.
    pub(super) fn looks_at(&mut self, keys: u64) {
        self.takes(keys, KEYS_PER_S);
    }

    fn takes(&mut self, count: u64, per_s: u64) {
        let takes = Duration::from_secs_f64(count as f64 / per_s as f64);
        // What was not used before is not saved up.
        self.paid_at = self.paid_at.max(Instant::now()) + takes;
    }

    /// How long to wait now.
    pub(super) fn owes(&self) -> Duration {
        let owed = self.paid_at.saturating_duration_since(Instant::now());
        match owed > SLACK {
            true => owed,
            false => Duration::ZERO,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_moved_and_looked_at_is_waited_for() {
        let mut pace = Pace::new(1 << 20);
        assert_eq!(pace.owes(), Duration::ZERO);
        pace.moved(1 << 20);
        pace.looks_at(KEYS_PER_S);
        let owed = pace.owes();
        assert!(owed > Duration::from_millis(1900) && owed <= Duration::from_secs(2));
        let mut slow = Pace::new(0);
        slow.moved(REPAIR_RATE_MIN);
        assert!(slow.owes() <= Duration::from_secs(1));
    }
}
