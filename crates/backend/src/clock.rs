//! The clocks, which the store does not have.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use trefoil_store::Now;

/// When somebody first asked.
static START: OnceLock<Instant> = OnceLock::new();
/// Clocks that differ by less are not followed: messages take their time, too.
const FOLLOWED_NS_MIN: u64 = 1_000_000_000;
/// By how much the host's clock was ahead of what has passed since then, at most.
static LEAD: Lead = Lead(AtomicU64::new(0));

/// The time of day, as this process has known it: it goes on where the host's
/// clock is set back, whatever it was set to before. Otherwise every version that was
/// given before would lie in the future, and writes be refused until the clock has
/// caught up. By how much it was set back is told, too: expiries are the host's.
#[inline]
pub(crate) fn now() -> Now {
    let start = START.get_or_init(Instant::now);
    // In this order: a thread that has to wait for a core in between takes the host's
    // clock for earlier than it is, which another look makes good, and never for later.
    let wall = wall();
    LEAD.now(start.elapsed(), wall)
}

/// From now on the time is at least `theirs`, which a process of this host has said whose place
/// this one is to take: by its time it took what it holds. 0: a release that does not say.
pub(crate) fn follow_predecessor(theirs_unix_ns: u64) {
    follow(theirs_unix_ns.saturating_sub(host().unix_ns));
}

/// From now on the time is at least that of others, who are ahead of the host's clock by
/// `ahead_ns`: it was ahead once, and was set back since. What they have written meanwhile is
/// of their time, and could not be replaced in an earlier one.
pub(crate) fn follow(ahead_ns: u64) {
    let missing_ns = ahead_ns.saturating_sub(now().set_back_ns);
    if missing_ns > FOLLOWED_NS_MIN {
        let lead_ns = LEAD.0.load(Ordering::Relaxed);
        LEAD.0
            .fetch_max(lead_ns.saturating_add(missing_ns), Ordering::Relaxed);
        tracing::warn!(
            seconds = missing_ns / 1_000_000_000,
            "the time of backends that began before is ahead of this host's clock, which was set back since: theirs is gone on with"
        );
    }
}

/// The time of day as the host says it now.
pub(crate) fn host() -> Now {
    Now::at(wall().as_nanos() as u64)
}

fn wall() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// The host's clock less what has passed, in nanoseconds: the most that was ever seen.
struct Lead(AtomicU64);

impl Lead {
    #[inline]
    fn now(&self, passed: Duration, wall: Duration) -> Now {
        let (passed, wall) = (passed.as_nanos() as u64, wall.as_nanos() as u64);
        let seen = wall.saturating_sub(passed);
        let mut most = self.0.load(Ordering::Relaxed);
        if seen > most {
            most = self.0.fetch_max(seen, Ordering::Relaxed).max(seen);
        }
        let unix_ns = most.saturating_add(passed);
        Now {
            unix_ns,
            set_back_ns: unix_ns.saturating_sub(wall),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_does_not_turn_time_back() {
        let lead = Lead(AtomicU64::new(0));
        let now_at = |passed, wall| {
            let now = lead.now(Duration::from_secs(passed), Duration::from_secs(wall));
            // Expiries are judged by what the host says.
            assert_eq!(now.host_ms(), wall * 1000);
            now.unix_ns / 1_000_000_000
        };
        assert_eq!(now_at(0, 10_000), 10_000);
        // Set back by half an hour.
        assert_eq!(now_at(2000, 10_200), 12_000);
        // An hour ahead, for a while: what was written then lies an hour ahead for ever.
        assert_eq!(now_at(3000, 16_600), 16_600);
        assert_eq!(now_at(3060, 16_660), 16_660);
        assert_eq!(now_at(3061, 13_061), 16_661);
        assert_eq!(now_at(9000, 19_000), 22_600);
        let first = super::now();
        assert!(super::now().unix_ns >= first.unix_ns);
        assert!(first.unix_ns.abs_diff(wall().as_nanos() as u64) < 60_000_000_000);
    }
}
