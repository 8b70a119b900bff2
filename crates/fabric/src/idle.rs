//! What a spinner does between two empty looks: a poller at its rings, a client at its
//! answers.
//!
//! Spinning is right while every spinner has a core for itself, and costs
//! milliseconds when it has not: the process that is waited for cannot run
//! before the spinner's time slice ends. So spinners yield after some empty looks, and
//! one that finds that a yield took a moment (another spinner ran meanwhile, and
//! yielded in its turn) yields at every empty look from then on, until yields are short
//! again.
//!
//! Two things make such yields dear. A stranger who is given the core keeps it for a
//! whole time slice; and whoever is waited for may run on another core and answer
//! within a microsecond. So a yield that took as long as a stranger's does not count;
//! and a wait begins with looks all the same unless these were in vain the last time,
//! which is tried again after ever more waits.
//!
//! One who can be woken need not yield to a stranger at all ([`Idle::rest`]): who yields
//! waits for the end of the stranger's time slice, while one who sleeps, and whose own
//! turns are short, takes the core from him when he is woken.

use std::time::{Duration, Instant};

/// Looks between two yields while the core is not shared, and before the first one of a
/// wait.
const LOOK_COUNT: u32 = 256;
/// Looks for each pause of the processor, which costs up to 50 ns and is
/// there for a sibling that shares the core's units.
const LOOKS_PER_PAUSE: u32 = 4;
/// A yield that takes longer gave the core to somebody.
const YIELD_SHORT: Duration = Duration::from_nanos(1500);
/// One that takes longer than this gave it to a stranger: some spinners in a row, each
/// of which carries out what it finds, are back sooner.
const YIELD_AMONG_SPINNERS: Duration = Duration::from_micros(100);
/// Short yields in a row until the core counts as not shared.
const CROWDED_ROUNDS: u32 = 64;
/// Waits without looks after looks were in vain: at first, and at most.
const BLIND_WAITS: u32 = 8;
const BLIND_WAITS_MAX: u32 = 256;
/// Waits that end asleep after one that a stranger has used: at first, and at most.
const STRANGER_WAITS: u32 = 16;
const STRANGER_WAITS_MAX: u32 = 1024;

/// What one who can be woken should do after an empty look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rest {
    /// Look again.
    Look,
    /// He has let others work; the time.
    Yielded(Instant),
    /// A stranger works, or would: sleep.
    Sleep,
}

/// The state of one spinner.
#[derive(Debug)]
pub struct Idle {
    looks: u32,
    /// While above 0 the core counts as shared with other spinners.
    crowded: u32,
    /// Whether this wait has yielded.
    has_yielded: bool,
    /// Waits, with this one, that begin without looks if the core is shared.
    blind: u32,
    /// How many these are after the next wait that looks in vain.
    blind_next: u32,
    /// Waits, with this one, that end asleep because a stranger has used the core.
    strangers: u32,
    /// How many these are after the next one that he uses.
    strangers_next: u32,
}

impl Default for Idle {
    fn default() -> Self {
        Idle {
            looks: 0,
            crowded: 0,
            has_yielded: false,
            blind: 0,
            blind_next: BLIND_WAITS,
            strangers: 0,
            strangers_next: STRANGER_WAITS,
        }
    }
}

impl Idle {
    /// Another wait begins: the last one has ended.
    #[inline]
    pub fn begin(&mut self) {
        if self.crowded > 0 {
            self.learn();
        }
        self.strangers = self.strangers.saturating_sub(1);
        self.looks = 0;
        self.has_yielded = false;
    }

    /// What the last wait says of the next ones, where the core is shared.
    fn learn(&mut self) {
        if self.blind > 0 {
            self.blind -= 1;
        } else if self.has_yielded {
            self.blind = self.blind_next;
            self.blind_next = (self.blind_next * 2).min(BLIND_WAITS_MAX);
        } else {
            self.blind_next = BLIND_WAITS;
        }
    }

    /// To be called after an empty look. Returns the time if it looked at the
    /// clock, which it does now and then.
    #[inline]
    pub fn pause(&mut self) -> Option<Instant> {
        match self.may_look() {
            true => None,
            false => Some(self.give_way().1),
        }
    }

    /// The same for one who can be woken.
    #[inline]
    pub fn rest(&mut self) -> Rest {
        if self.may_look() {
            return Rest::Look;
        }
        if self.strangers > 0 {
            return Rest::Sleep;
        }
        let (took, now) = self.give_way();
        self.met(took > YIELD_AMONG_SPINNERS, now)
    }

    /// Whether it is not yet time to yield.
    #[inline]
    fn may_look(&mut self) -> bool {
        let may = self.looks_left() > 0;
        if may {
            self.looks += 1;
            if self.looks.is_multiple_of(LOOKS_PER_PAUSE) {
                std::hint::spin_loop();
            }
        } else {
            self.looks = 0;
        }
        may
    }

    /// Yields; how long that took, and the time.
    fn give_way(&mut self) -> (Duration, Instant) {
        let before = Instant::now();
        rustix::thread::sched_yield();
        let after = Instant::now();
        self.yielded(after - before);
        (after - before, after)
    }

    /// What to do after a yield, by whether a stranger has used it.
    fn met(&mut self, stranger: bool, now: Instant) -> Rest {
        match stranger {
            true => {
                self.strangers = self.strangers_next;
                self.strangers_next = (self.strangers_next * 2).min(STRANGER_WAITS_MAX);
                Rest::Sleep
            }
            false => {
                self.strangers_next = STRANGER_WAITS;
                Rest::Yielded(now)
            }
        }
    }

    /// Empty looks before the next yield.
    #[inline]
    fn looks_left(&self) -> u32 {
        match self.crowded > 0 && (self.has_yielded || self.blind > 0) {
            true => 0,
            false => LOOK_COUNT - self.looks,
        }
    }

    fn yielded(&mut self, took: Duration) {
        self.has_yielded = true;
        self.crowded = if took <= YIELD_SHORT {
            self.crowded.saturating_sub(1)
        } else if took <= YIELD_AMONG_SPINNERS {
            CROWDED_ROUNDS
        } else {
            0
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMONG_SPINNERS: Duration = Duration::from_micros(10);

    #[test]
    fn among_spinners_every_empty_look_yields_until_none_takes_the_core() {
        let mut idle = Idle::default();
        assert_eq!(idle.looks_left(), LOOK_COUNT);
        idle.yielded(AMONG_SPINNERS);
        for _ in 0..CROWDED_ROUNDS {
            assert_eq!(idle.looks_left(), 0);
            idle.yielded(YIELD_SHORT);
        }
        assert_eq!(idle.looks_left(), LOOK_COUNT);
    }

    #[test]
    fn beside_a_stranger_looks_go_before_each_yield() {
        let mut idle = Idle::default();
        idle.yielded(AMONG_SPINNERS);
        assert_eq!(idle.looks_left(), 0);
        idle.yielded(Duration::from_millis(3));
        assert_eq!(idle.looks_left(), LOOK_COUNT);
    }

    #[test]
    fn a_wait_begins_with_looks_unless_they_are_in_vain() {
        let mut idle = Idle::default();
        idle.yielded(AMONG_SPINNERS);
        // The looks of that wait were in vain.
        for blind in [BLIND_WAITS, 2 * BLIND_WAITS] {
            for _ in 0..blind {
                idle.begin();
                assert_eq!(idle.looks_left(), 0);
                idle.yielded(AMONG_SPINNERS);
            }
            idle.begin();
            assert_eq!(idle.looks_left(), LOOK_COUNT, "after {blind}");
            idle.yielded(AMONG_SPINNERS);
        }
        for _ in 0..=4 * BLIND_WAITS {
            idle.begin();
        }
        // Now somebody answers while it looks: so do the next waits, too.
        for _ in 0..3 {
            assert_eq!(idle.looks_left(), LOOK_COUNT);
            idle.begin();
        }
        assert_eq!(idle.blind_next, BLIND_WAITS);
    }

    #[test]
    fn waits_without_looks_are_bounded() {
        let mut idle = Idle::default();
        for _ in 0..10_000 {
            idle.yielded(AMONG_SPINNERS);
            idle.begin();
            assert!(idle.blind <= BLIND_WAITS_MAX);
        }
    }

    #[test]
    fn beside_a_stranger_one_sleeps_and_now_and_then_looks_whether_he_has_gone() {
        let now = Instant::now();
        let mut idle = Idle::default();
        let sleeps = |idle: &mut Idle| {
            // Looks go before it, in each wait.
            let mut rests = (0..=LOOK_COUNT).map(|_| idle.rest());
            rests
                .by_ref()
                .take(LOOK_COUNT as usize)
                .all(|rest| rest == Rest::Look)
                && rests.next() == Some(Rest::Sleep)
        };
        for waits in [STRANGER_WAITS, 2 * STRANGER_WAITS, 4 * STRANGER_WAITS] {
            assert_eq!(idle.met(true, now), Rest::Sleep);
            for _ in 1..waits {
                idle.begin();
                assert!(sleeps(&mut idle));
            }
            idle.begin();
            assert_eq!(idle.strangers, 0, "it is tried again");
        }
        assert_eq!(idle.met(false, now), Rest::Yielded(now));
        assert_eq!(idle.strangers_next, STRANGER_WAITS);
        for _ in 0..20 {
            idle.met(true, now);
        }
        assert_eq!(idle.strangers, STRANGER_WAITS_MAX);
    }
}
