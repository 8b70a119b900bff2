//! Whether a loop looks for the next request before it sleeps.
//!
//! Looking costs CPU, and so does a sleep: with the wake-up about as much as 25 us of
//! looking, of a virtual machine, and it costs whoever asks next as much time. So a loop
//! looks where the next request comes sooner than that as a rule, as from a client that
//! asks for one key after another. Where it comes later, the CPU would be spent for less
//! than it is worth: a client that takes in a batch of answers has enough to do to be
//! waited for asleep. Whether that has changed is tried now and then.

use std::time::Duration;

/// It comes soon within this part of the time that is looked at most.
const SOON: u32 = 2;
/// Of a wait that looks, this part goes into what is expected of the next one: a few that
/// are long by chance do not count.
const SMOOTHING: u32 = 16;
/// The same where most waits sleep, and those that look are tries.
const SMOOTHING_OF_TRIES: u32 = 4;
/// Where requests do not come soon, one wait in so many looks all the same.
const TRIED_EVERY: u32 = 32;

/// See the module.
#[derive(Debug)]
pub(super) struct Patience {
    /// Longest look.
    spin: Duration,
    /// Of the next request.
    expected: Duration,
    /// Waits since the last one that has looked.
    skipped: u32,
}

impl Patience {
    pub(super) fn new(spin: Duration) -> Self {
        Patience {
            spin,
            expected: Duration::ZERO,
            skipped: 0,
        }
    }

    fn expects_one_soon(&self) -> bool {
        self.expected <= self.spin / SOON
    }

    /// Another wait begins: whether it looks before it sleeps.
    pub(super) fn looks(&mut self) -> bool {
        self.skipped += 1;
        let looks = self.expects_one_soon() || self.skipped >= TRIED_EVERY;
        if looks {
            self.skipped = 0;
        }
        looks
    }

    /// Whether a wait that has looked for so long goes to sleep.
    pub(super) fn is_over(&self, looked: Duration) -> bool {
        looked >= self.spin
    }

    /// A wait that looked has ended after so long: a request came, or it was over.
    pub(super) fn ended(&mut self, looked: Duration) {
        // One that was in vain says how long a wait is at least.
        let sample = looked.min(self.spin);
        let smoothing = match self.expects_one_soon() {
            true => SMOOTHING,
            false => SMOOTHING_OF_TRIES,
        };
        self.expected = (self.expected * (smoothing - 1) + sample) / smoothing;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: Duration = Duration::from_micros(50);

    /// Waits out of `count` that look, if requests come after `gap`.
    fn looks(patience: &mut Patience, gap: Duration, count: u32) -> u32 {
        let mut looked = 0;
        for _ in 0..count {
            if patience.looks() {
                looked += 1;
                patience.ended(gap);
            }
        }
        looked
    }

    #[test]
    fn it_looks_where_requests_come_soon() {
        let mut patience = Patience::new(SPIN);
        assert_eq!(looks(&mut patience, SPIN / 8, 1000), 1000);
        // Some that are late change nothing.
        for _ in 0..5 {
            patience.ended(2 * SPIN);
        }
        assert_eq!(looks(&mut patience, SPIN / 8, 1000), 1000);
    }

    #[test]
    fn it_sleeps_where_they_come_late_and_learns_when_that_changes() {
        let mut patience = Patience::new(SPIN);
        looks(&mut patience, SPIN, 20);
        for gap in [SPIN, 10 * SPIN, SPIN * 3 / 4] {
            let looked = looks(&mut patience, gap, 320);
            assert!((9..=11).contains(&looked), "{looked} after {gap:?}");
        }
        // Eight tries are enough.
        looks(&mut patience, SPIN / 50, 8 * TRIED_EVERY);
        assert_eq!(looks(&mut patience, SPIN / 50, 1000), 1000);
    }

    #[test]
    fn one_that_never_sleeps_always_looks() {
        let mut patience = Patience::new(Duration::from_secs(10));
        assert_eq!(looks(&mut patience, Duration::from_millis(1), 1000), 1000);
        assert!(!patience.is_over(Duration::from_secs(1)));
    }
}
