//! Pauses of the host. A virtual machine is stopped as a whole when its host has given it
//! its share of time; what is due meanwhile waits, whatever system is measured. On the
//! machine that this was written on, that is 3 to 23 ms in each tenth of a second in which
//! both cores are busy, against medians of microseconds.
//!
//! The load's own loop sees them: two looks at the clock, with no more than one attempt at a
//! request in between and no system call, are [`PAUSE_MIN`] apart, and that by more than what
//! the thread has waited meanwhile while another one had the core ([`Waits`]). A core that was
//! given away is not the host's doing, and counts as what it is.

use crate::waits::Waits;
use std::time::{Duration, Instant};

/// Longer than any attempt at a request, by far.
pub(crate) const PAUSE_MIN: Duration = Duration::from_micros(100);

/// A clock that notices when the machine has stood still.
#[derive(Debug)]
pub(crate) struct Pauses {
    last: Instant,
    waits: Waits,
    waited: Option<Duration>,
    /// How often it has.
    pub(crate) count: usize,
    /// The longest time.
    pub(crate) longest: Duration,
}

impl Pauses {
    /// From now on.
    pub(crate) fn new() -> Self {
        let waits = Waits::of_this_thread();
        let waited = waits.look();
        Pauses {
            last: Instant::now(),
            waits,
            waited,
            count: 0,
            longest: Duration::ZERO,
        }
    }

    /// The time.
    #[inline]
    pub(crate) fn now(&mut self) -> Instant {
        let now = Instant::now();
        if now.duration_since(self.last) > PAUSE_MIN {
            let waited = self.waits.look();
            self.gap(now, waited);
        }
        self.last = now;
        now
    }

    #[cold]
    fn gap(&mut self, now: Instant, waited: Option<Duration>) {
        let then = std::mem::replace(&mut self.waited, waited);
        let Some((then, waited)) = then.zip(waited) else {
            return;
        };
        let stood = (now - self.last).saturating_sub(waited.saturating_sub(then));
        if stood > PAUSE_MIN {
            self.count += 1;
            self.longest = self.longest.max(stood);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_unless_the_core_was_given_away() {
        let mut pauses = Pauses::new();
        let now = Instant::now();
        pauses.last = now - Duration::from_millis(5);
        assert!(pauses.waited.is_some(), "the system counts what is waited");
        let ms = |ms| Some(Duration::from_millis(ms));
        pauses.waited = ms(10);
        pauses.gap(now, ms(15));
        assert_eq!(pauses.count, 0, "another thread explains it");
        pauses.gap(now, ms(15));
        assert!(pauses.count > 0);
        assert_eq!(pauses.longest, Duration::from_millis(5));
    }
}
