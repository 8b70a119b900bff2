//! How long what could not be stored waits until it is sent again.
//!
//! Each time it costs both servers its bytes, and the key is withdrawn for a round trip.
//! So the pauses get longer while nothing can be stored, and only a little is sent at a
//! time; once something was stored, the rest follows at once.

use crate::config::Config;
use crate::ranges::RangeSet;
use std::time::Duration;
use trefoil_sharder::{KeyPoint, Slice};

/// The first pause is so many times the time after which messages are sent again.
const FIRST: u32 = 4;
/// So many points at a time, until one of them is stored.
pub(crate) const RETRY_POINTS: usize = 16;

/// So many refusals of one server are remembered for the assigner, which is told one for
/// each slice of the map.
pub(crate) const REFUSALS_MAX: usize = 10_000;

/// A pause that gets longer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pause(Option<Duration>);

impl Pause {
    /// Whether it has not become longer.
    pub(crate) fn is_first(self) -> bool {
        self.0.is_none()
    }

    /// When it ends, if it begins now.
    pub(crate) fn end(self, now: Duration, config: &Config) -> Duration {
        now + self.0.unwrap_or(FIRST * config.resend_after)
    }

    /// The next one takes twice as long.
    pub(crate) fn lengthen(&mut self, config: &Config) {
        let first = FIRST * config.resend_after;
        let doubled = 2 * self.0.unwrap_or(first);
        self.0 = Some(doubled.min(config.retry_max.max(first)));
    }
}

/// A few of the ranges behind this point, or the first ones if there are none.
pub(crate) fn a_few_behind(ranges: &RangeSet, last: KeyPoint) -> Vec<Slice> {
    let few = |within| ranges.common(within).take(RETRY_POINTS).collect::<Vec<_>>();
    let next = last.0.checked_add(1);
    let behind = next.map(|next| few(Slice::spanning(KeyPoint(next), KeyPoint(u64::MAX))));
    let behind = behind.filter(|behind| !behind.is_empty());
    behind.unwrap_or_else(|| few(Slice::ALL))
}
