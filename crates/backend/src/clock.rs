//! The clocks, which the store does not have.

use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use trefoil_store::Now;

/// Both clocks when somebody first asked.
static START: OnceLock<(Instant, Duration)> = OnceLock::new();

/// The time of day, as this process has known it: it goes on where the host's
/// clock is set back. Otherwise every version that was given before would lie in
/// the future, and writes be refused until the clock has caught up. By how much it
/// was set back is told, too: expiries are the host's.
#[inline]
pub(crate) fn now() -> Now {
    let (start, start_wall) = *START.get_or_init(|| (Instant::now(), wall()));
    later(start_wall + start.elapsed(), wall())
}

/// The time of day as the host says it now.
pub(crate) fn host() -> Now {
    later(Duration::ZERO, wall())
}

fn wall() -> Duration {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap_or_default()
}

/// The later of what has passed since the start and what the host says.
fn later(passed: Duration, wall: Duration) -> Now {
    Now {
        unix_ns: passed.max(wall).as_nanos() as u64,
        set_back_ns: passed.saturating_sub(wall).as_nanos() as u64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_set_back_does_not_turn_time_back() {
        let at = |seconds| Duration::from_secs(seconds);
        assert_eq!(later(at(1000), at(1000)).unix_ns, 1_000_000_000_000);
        // Set back by half an hour, and set forward.
        let set_back = later(at(3000), at(1200));
        assert_eq!(set_back.unix_ns, 3_000_000_000_000);
        let set_forward = later(at(3000), at(4000));
        assert_eq!(set_forward.unix_ns, 4_000_000_000_000);
        // Expiries are judged by what the host says.
        assert_eq!(set_back.host_ms(), 1_200_000);
        assert_eq!(set_forward.host_ms(), 4_000_000);
        let first = now();
        assert!(now().unix_ns >= first.unix_ns);
        assert!(now().unix_ns.abs_diff(wall().as_nanos() as u64) < 1_000_000_000);
    }
}
