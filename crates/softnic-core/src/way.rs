//! The way itself: the shortest time that an answer takes, without any queue.
//!
//! The shortest time that was ever seen is right until the way becomes another one, so it has to
//! be looked at anew now and then. It must not be taken from what answers take while this client
//! has more under way: the queue that it has made itself would become part of the way, what may
//! stand in the queue is a multiple of the way, and so on until nothing bounds it. So only those
//! answers are looked at that were *alone*: asked for while nothing else was under way. Whoever
//! always has something under way makes room for them (BBR's probe of the round trip, Cardwell
//! et al., 2016).
//!
//! Others' queues remain in it. What these leave is shorter than twice the way, if they count
//! as we do; so a way that seems to have become longer by no more than that is believed a little
//! at a time. One that has become longer still is another way: it is believed at the second
//! look, which comes soon.

/// It is looked at anew after so long.
const PERIOD_NS: u64 = 10_000_000_000;
/// Or after so long, where it seems to be another one.
const SOON_NS: u64 = 1_000_000_000;
/// A look takes so many answers at least, …
const LOOK_COUNT: u32 = 2;
/// … and so long: on a short way wake-ups are longer than the way.
const LOOK_NS: u64 = 1_000_000;
/// What may be another client's queue lengthens the way by this part of it, for each look.
const AGEING: u64 = 16;
/// It is the way that is longer, and no queue, if it takes so many times as long …
const OTHER_FACTOR: u64 = 2;
/// … and so much more: wake-ups, other processes.
const SLACK_NS: u64 = 100_000;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Way {
    /// The longest before the first answer.
    ns: u64,
    /// Since when that is believed, or nearly; earlier, if it is to be looked at sooner.
    since_ns: u64,
    /// The shortest of the look that is under way, how many there were, and since when.
    alone_ns: u64,
    alone_count: u32,
    alone_since_ns: u64,
    /// The shortest of all since it is to be looked at.
    least_ns: u64,
    /// The last look has found a much longer one.
    is_doubted: bool,
}

impl Way {
    pub(crate) const UNKNOWN: Way = Way {
        ns: u64::MAX,
        since_ns: 0,
        alone_ns: u64::MAX,
        alone_count: 0,
        alone_since_ns: 0,
        least_ns: u64::MAX,
        is_doubted: false,
    };

    /// In nanoseconds; `u64::MAX` before the first answer.
    pub(crate) fn ns(&self) -> u64 {
        self.ns
    }

    /// Whether answers are wanted that were alone.
    pub(crate) fn is_due(&self, now_ns: u64) -> bool {
        self.ns < u64::MAX && now_ns.saturating_sub(self.since_ns) > PERIOD_NS
    }

    /// An answer took so long. `is_alone` if nothing else was under way when it was asked for.
    pub(crate) fn took(&mut self, took_ns: u64, is_alone: bool, now_ns: u64) {
        if took_ns <= self.ns {
            return self.believe(took_ns, now_ns);
        }
        if !self.is_due(now_ns) {
            return;
        }
        self.least_ns = self.least_ns.min(took_ns);
        if is_alone {
            if self.alone_count == 0 {
                self.alone_since_ns = now_ns;
            }
            self.alone_count += 1;
            self.alone_ns = self.alone_ns.min(took_ns);
            let is_long = now_ns.saturating_sub(self.alone_since_ns) >= LOOK_NS;
            if self.alone_count >= LOOK_COUNT && (is_long || took_ns >= LOOK_NS) {
                self.conclude(now_ns);
            }
        } else if now_ns.saturating_sub(self.since_ns) > 2 * PERIOD_NS {
            // Nobody makes room for any that is alone.
            self.believe(self.aged().min(self.least_ns), now_ns);
        }
    }

    fn conclude(&mut self, now_ns: u64) {
        let found_ns = self.alone_ns;
        let is_other = found_ns
            > self
                .ns
                .saturating_mul(OTHER_FACTOR)
                .saturating_add(SLACK_NS);
        if is_other && !self.is_doubted {
            self.believe(self.ns, (now_ns + SOON_NS).saturating_sub(PERIOD_NS));
            self.is_doubted = true;
            return;
        }
        self.believe(
            match is_other {
                true => found_ns,
                false => self.aged().min(found_ns),
            },
            now_ns,
        );
    }

    fn aged(&self) -> u64 {
        self.ns + self.ns / AGEING + 1
    }

    fn believe(&mut self, ns: u64, since_ns: u64) {
        *self = Way {
            ns,
            since_ns,
            ..Way::UNKNOWN
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: u64 = 1_000;
    const S: u64 = 1_000_000_000;

    /// Answers of so long a way each millisecond, from one second to another; the way then.
    fn after(way: &mut Way, took_ns: u64, is_alone: bool, seconds: std::ops::Range<u64>) -> u64 {
        for ms in seconds.start * 1000..seconds.end * 1000 {
            way.took(took_ns, is_alone, ms * US * 1000);
        }
        way.ns()
    }

    #[test]
    fn what_stands_in_a_queue_of_ones_own_is_not_the_way() {
        let mut way = Way::UNKNOWN;
        assert_eq!(after(&mut way, 200 * US, true, 0..1), 200 * US);
        // For ten minutes; who has no room for one that is alone believes a little of it.
        let aged = after(&mut way, 5000 * US, false, 1..600);
        assert!((200 * US..1300 * US).contains(&aged), "{aged}");
        // And none of it where there is room.
        let mut way = Way::UNKNOWN;
        after(&mut way, 200 * US, true, 0..1);
        for second in 1..600 {
            after(&mut way, 5000 * US, false, second..second + 1);
            way.took(200 * US, true, (second + 1) * S);
        }
        assert_eq!(way.ns(), 200 * US);
    }

    #[test]
    fn a_way_that_has_become_another_one_is_believed_at_the_second_look() {
        let mut way = Way::UNKNOWN;
        after(&mut way, 200 * US, true, 0..1);
        assert_eq!(after(&mut way, 5000 * US, true, 1..11), 200 * US);
        assert_eq!(after(&mut way, 5000 * US, true, 11..13), 5000 * US);
        // A shorter one at once.
        assert_eq!(after(&mut way, 300 * US, true, 13..14), 300 * US);
    }

    #[test]
    fn what_may_be_the_queue_of_others_is_believed_slowly() {
        let mut way = Way::UNKNOWN;
        after(&mut way, 1000 * US, true, 0..1);
        let later = after(&mut way, 1800 * US, true, 1..32);
        assert!((1100 * US..1300 * US).contains(&later), "{later}");
        // In the end it is what it is.
        assert_eq!(after(&mut way, 1800 * US, true, 32..200), 1800 * US);
    }
}
