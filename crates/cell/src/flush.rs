//! Flushing a cell: a floor version in its configuration.
//!
//! Everything at or below the floor is invisible. The floor's origin is the
//! highest there is, so that it is no version that anybody issues, and only its
//! time has to be chosen.

use trefoil_layout::Version;

/// A flush at a time that lies back no longer than this is one of everything
/// that is there: the caller's time was taken a little earlier.
pub const FLUSH_NOW_MS: u64 = 1000;

/// The floor that makes everything stored before `at_ms` invisible. All times
/// are in milliseconds since the Unix epoch; `newest` is the highest version
/// that any live backend has applied.
///
/// A flush of this moment covers `newest` whatever the clocks say: writers'
/// clocks may be ahead of the caller's. One of an earlier time goes by the
/// versions' times alone.
pub fn flush_floor(at_ms: u64, now_ms: u64, newest: Version) -> Version {
    let last_ns = at_ms.saturating_mul(1_000_000).saturating_add(999_999);
    let is_now = at_ms.saturating_add(FLUSH_NOW_MS) >= now_ms;
    let time_ns = if is_now {
        last_ns.max(newest.time_ns)
    } else {
        last_ns
    };
    Version::of_flush(time_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_of_now_covers_whatever_was_applied() {
        let ahead = Version::new(9_000_000_000, 5, 7);
        let floor = flush_floor(2_000, 2_900, ahead);
        assert!(floor > ahead);
        assert!(floor < Version::new(9_000_000_001, 0, 0));
        let quiet = flush_floor(2_000, 2_900, Version::ZERO);
        assert!(quiet >= Version::new(2_000_999_999, 1, 0));
        assert!(quiet < Version::new(2_001_000_000, 0, 0));
    }

    #[test]
    fn a_flush_of_the_past_leaves_what_came_later() {
        let later = Version::new(2_500_000_000, 5, 7);
        assert!(flush_floor(2_000, 3_001, later) < later);
    }
}
