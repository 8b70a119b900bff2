//! Whether an event loop waits for an answer on the spot.
//!
//! A backend that is awake answers within microseconds: sooner than a connection
//! is parked and resumed. One that is not costs the wait, and others on the loop
//! wait, too. So a loop waits only while that has paid lately, tries again now and
//! then, and never waits longer than so much in one round.

use std::time::{Duration, Instant};

/// Most credit: failures in a row until a loop waits no more.
const CREDIT_MAX: u32 = 8;
/// What a wait in vain costs of it. One that paid earns 1.
const COST_IN_VAIN: u32 = 2;
/// Without credit one operation in so many is waited for.
const TRY_EVERY: u32 = 64;
/// All waits of one round of the loop, in waits.
const WAITS_PER_ROUND: u32 = 2;

/// See the module.
#[derive(Debug)]
pub(super) struct Spin {
    limit: Duration,
    credit: u32,
    passed: u32,
    /// What may be waited in this round.
    left: Duration,
}

impl Spin {
    /// Waits for up to `limit` at a time; zero never waits.
    pub(super) fn new(limit: Duration) -> Self {
        Spin {
            limit,
            credit: CREDIT_MAX,
            passed: 0,
            left: limit * WAITS_PER_ROUND,
        }
    }

    /// A round of the loop begins.
    pub(super) fn begin_round(&mut self) {
        self.left = self.limit * WAITS_PER_ROUND;
    }

    /// For how long to wait for the operation that has just begun; `None`: not at
    /// all.
    pub(super) fn wait(&mut self) -> Option<Duration> {
        if self.credit == 0 {
            self.passed += 1;
            if self.passed < TRY_EVERY {
                return None;
            }
            self.passed = 0;
        }
        Some(self.limit.min(self.left)).filter(|wait| !wait.is_zero())
    }

    /// The wait that began at `begun` is over.
    pub(super) fn waited(&mut self, begun: Instant, has_paid: bool) {
        self.left = self.left.saturating_sub(begun.elapsed());
        self.credit = match has_paid {
            true => (self.credit + 1).min(CREDIT_MAX),
            false => self.credit.saturating_sub(COST_IN_VAIN),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_in_vain_end_and_are_tried_again() {
        let mut spin = Spin::new(Duration::from_secs(1));
        let mut waits = 0;
        for _ in 0..1000 {
            spin.begin_round();
            if spin.wait().is_some() {
                waits += 1;
                spin.waited(Instant::now(), false);
            }
        }
        let tries = 1000 / TRY_EVERY;
        assert!((tries..=tries + CREDIT_MAX).contains(&waits), "{waits}");
        // Pays again.
        while spin.wait().is_none() {}
        spin.waited(Instant::now(), true);
        assert!(spin.wait().is_some());
    }

    #[test]
    fn a_round_waits_only_so_long() {
        let limit = Duration::from_millis(2);
        let mut spin = Spin::new(limit);
        let begun = Instant::now() - 3 * limit;
        assert_eq!(spin.wait(), Some(limit));
        spin.waited(begun, true);
        assert_eq!(spin.wait(), None);
        spin.begin_round();
        assert_eq!(spin.wait(), Some(limit));
        assert_eq!(Spin::new(Duration::ZERO).wait(), None);
    }
}
