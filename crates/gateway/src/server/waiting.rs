//! Adaptive polling: how an event loop waits for the next request.
//!
//! To be woken from sleep costs far more than a request (tens of microseconds
//! across cores on a virtual machine), so a loop goes on looking for a while.
//! To look in vain costs a core, so it does that only while it has paid lately:
//! each look that found something earns credit, each that did not costs some,
//! and a sleep that was over almost at once shows that looking would have paid.
//!
//! Between two looks it gives its core away. Where another process computes on that
//! core, it keeps it for a whole time slice, of milliseconds; a loop that sleeps, and
//! whose turns are short, takes the core back as soon as it is woken. So after a look
//! that took as long as a stranger's turn the loop sleeps in its next waits.

/// Credit that a busy loop has at most: so many vain waits until it sleeps at
/// once.
const CREDIT_MAX: u32 = 8;
/// Earned by a sleep that looking would have spared.
const CREDIT_OF_SHORT_SLEEP: u32 = 2;
/// Whoever keeps a core that was given away for longer than this is taken for one that
/// computes: another loop that looks is done sooner.
const STRANGER_NS: u64 = 100_000;
/// Waits asleep after a stranger has used one: at first, and at most. Then it is tried
/// whether he has gone.
const STRANGER_WAITS: u32 = 16;
const STRANGER_WAITS_MAX: u32 = 1024;

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
    /// Waits, with this one, that are sleep because a stranger has used the core.
    strangers: u32,
    /// How many these are after the next one that he uses.
    strangers_next: u32,
}

impl Waiting {
    /// Looks for up to `spin_ns` at a time; 0 always sleeps.
    pub(super) fn new(spin_ns: u64) -> Self {
        Waiting {
            spin_ns,
            credit: 0,
            idle_since_ns: None,
            asleep_since_ns: None,
            strangers: 0,
            strangers_next: STRANGER_WAITS,
        }
    }

    /// Whether somebody else computes on this core, for all that is known.
    pub(super) fn is_beside_stranger(&self) -> bool {
        self.strangers > 0
    }

    /// The core was given away, for so long.
    pub(super) fn gave_way(&mut self, took_ns: u64) {
        if took_ns > STRANGER_NS {
            self.strangers = self.strangers_next;
            self.strangers_next = (self.strangers_next * 2).min(STRANGER_WAITS_MAX);
        } else {
            self.strangers_next = STRANGER_WAITS;
        }
    }

    /// What to do until something happens.
    pub(super) fn next(&mut self, now_ns: u64) -> Wait {
        let idle_since = self.idle_since_ns.unwrap_or(now_ns);
        let has_spun = now_ns.saturating_sub(idle_since) >= self.spin_ns;
        if self.credit > 0 && !has_spun && !self.is_beside_stranger() {
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
        self.strangers = self.strangers.saturating_sub(1);
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
    fn beside_a_stranger_it_sleeps_and_now_and_then_looks_whether_he_has_gone() {
        let mut waiting = Waiting::new(SPIN);
        let mut now = 0;
        let mut wait = |waiting: &mut Waiting| {
            let wait = waiting.next(now);
            now += SPIN / 2;
            waiting.found(now);
            wait
        };
        wait(&mut waiting);
        assert_eq!(wait(&mut waiting), Wait::Poll);
        for waits in [STRANGER_WAITS, 2 * STRANGER_WAITS] {
            waiting.gave_way(STRANGER_NS + 1);
            for _ in 0..waits {
                assert_eq!(wait(&mut waiting), Wait::Sleep);
            }
            assert_eq!(wait(&mut waiting), Wait::Poll, "it is tried again");
        }
        waiting.gave_way(STRANGER_NS);
        assert_eq!(wait(&mut waiting), Wait::Poll, "another loop that looks");
        for _ in 0..20 {
            waiting.gave_way(STRANGER_NS + 1);
        }
        assert_eq!(waiting.strangers, STRANGER_WAITS_MAX);
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
