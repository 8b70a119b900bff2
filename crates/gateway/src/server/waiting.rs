//! Adaptive polling: how an event loop waits for the next request.
//!
//! To be woken from sleep costs far more than a request (tens of microseconds
//! across cores on a virtual machine), so a loop goes on looking for a while.
//! To look in vain costs a core, so it does that only while it has paid lately:
//! each look that found something earns credit, each that did not costs some,
//! and a sleep that was over almost at once shows that looking would have paid.

/// Credit that a busy loop has at most: so many vain waits until it sleeps at
/// once.
const CREDIT_MAX: u32 = 8;
/// Earned by a sleep that looking would have spared.
const CREDIT_OF_SHORT_SLEEP: u32 = 2;

/// What to do until something happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    /// Look, and look again.
    Poll,
    /// Sleep until woken.
    Sleep,
}

/// See the module. Times are nanoseconds of a monotonic clock.
#[derive(Debug)]
pub(super) struct Waiting {
    spin_ns: u64,
    credit: u32,
    idle_since_ns: Option<u64>,
    asleep_since_ns: Option<u64>,
}

impl Waiting {
    /// Looks for up to `spin_ns` at a time; 0 always sleeps.
    pub(super) fn new(spin_ns: u64) -> Self {
        Waiting {
            spin_ns,
            credit: 0,
            idle_since_ns: None,
            asleep_since_ns: None,
        }
    }

    /// What to do until something happens.
    pub(super) fn next(&mut self, now_ns: u64) -> Wait {
        let idle_since = self.idle_since_ns.unwrap_or(now_ns);
        if self.credit > 0 && now_ns.saturating_sub(idle_since) < self.spin_ns {
            return Wait::Poll;
        }
        if self.asleep_since_ns.is_none() {
            self.credit = self.credit.saturating_sub(1);
            self.asleep_since_ns = Some(now_ns);
        }
        Wait::Sleep
    }

    /// Nothing has happened.
    pub(super) fn found_nothing(&mut self, now_ns: u64) {
        self.idle_since_ns.get_or_insert(now_ns);
    }

    /// Something has happened.
    pub(super) fn found(&mut self, now_ns: u64) {
        match self.asleep_since_ns.take() {
            // The sleeper's own wake-up is part of the time that it slept.
            Some(since) if now_ns.saturating_sub(since) < 2 * self.spin_ns => {
                self.credit = (self.credit + CREDIT_OF_SHORT_SLEEP).min(CREDIT_MAX);
            }
            Some(_) => {}
            None if self.idle_since_ns.is_some() => {
                self.credit = (self.credit + 1).min(CREDIT_MAX);
            }
            None => {}
        }
        self.idle_since_ns = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPIN: u64 = 50_000;

    #[test]
    fn an_idle_loop_sleeps_and_a_busy_one_looks() {
        let mut waiting = Waiting::new(SPIN);
        assert_eq!(waiting.next(0), Wait::Sleep);
        // Woken soon: looking would have paid.
        waiting.found(SPIN);
        assert_eq!(waiting.next(SPIN + 1), Wait::Poll);
        waiting.found_nothing(SPIN + 1);
        assert_eq!(waiting.next(2 * SPIN), Wait::Poll);
        assert_eq!(waiting.next(2 * SPIN + 1), Wait::Sleep);
    }

    #[test]
    fn looking_in_vain_ends() {
        let mut waiting = Waiting::new(SPIN);
        let mut now = 0;
        for _ in 0..100 {
            waiting.next(now);
            waiting.found_nothing(now);
            now += SPIN / 2;
            waiting.found(now);
        }
        let mut vain = 0;
        while waiting.next(now) == Wait::Poll {
            waiting.found_nothing(now);
            now += SPIN;
            assert_eq!(waiting.next(now), Wait::Sleep);
            now += 100 * SPIN;
            waiting.found(now);
            vain += 1;
        }
        assert_eq!(vain, CREDIT_MAX);
    }

    #[test]
    fn without_spinning_every_wait_is_sleep() {
        let mut waiting = Waiting::new(0);
        for now in 0..100 {
            assert_eq!(waiting.next(now), Wait::Sleep);
            waiting.found(now);
        }
    }
}
