//! Copies that other servers cannot store, for the assigner: those that go on failing.
//! The protocol sends them again every second or so.

use std::collections::BTreeMap;
use std::time::Duration;
use trefoil_sharder::{KeyPoint, ServerId, Unstored};

/// What fails for so long does not end by itself.
const LASTING: Duration = Duration::from_millis(1_500);
/// What was not seen to fail for so long has ended.
const OVER: Duration = Duration::from_secs(4);
/// Remembered at most: one for a slice is enough.
const COUNT_MAX: usize = 1_000;

/// See the page of this module. Times are those of one clock.
#[derive(Debug, Default)]
pub(crate) struct UnstoredCopies {
    /// By the first point of the slice and the server: a point, and when it failed
    /// first and last.
    seen: BTreeMap<(KeyPoint, ServerId), (KeyPoint, Duration, Duration)>,
}

impl UnstoredCopies {
    /// A copy of this point, in the slice that begins there, was refused.
    pub(crate) fn note(
        &mut self,
        now: Duration,
        slice: KeyPoint,
        point: KeyPoint,
        server: ServerId,
    ) {
        let at = (slice, server);
        if let Some((_, _, last)) = self.seen.get_mut(&at) {
            *last = now;
        } else if self.seen.len() < COUNT_MAX {
            self.seen.insert(at, (point, now, now));
        }
    }

    /// Those that go on failing.
    pub(crate) fn lasting(&mut self, now: Duration) -> Vec<Unstored> {
        self.seen
            .retain(|_, (_, _, last)| now.saturating_sub(*last) < OVER);
        let lasting = self.seen.iter();
        lasting
            .filter(|(_, (_, first, last))| last.saturating_sub(*first) >= LASTING)
            .map(|(&(_, server), &(point, ..))| Unstored { point, server })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_on_failing_is_told_until_it_does_not() {
        let ms = Duration::from_millis;
        let mut copies = UnstoredCopies::default();
        let (slice, point, server) = (KeyPoint(0), KeyPoint(7), ServerId(3));
        copies.note(ms(0), slice, point, server);
        assert_eq!(copies.lasting(ms(2_000)), [], "once is nothing");
        copies.note(ms(2_000), slice, KeyPoint(9), server);
        assert_eq!(copies.lasting(ms(2_000)), [Unstored { point, server }]);
        assert_eq!(copies.lasting(ms(6_000)), [], "it has ended");
        copies.note(ms(7_000), slice, point, server);
        assert_eq!(copies.lasting(ms(7_000)), [], "and begins anew");
    }
}
