//! Whether a key is better looked up by one round trip or by two.
//!
//! A scan reserves as much of the window as items have been long lately, and takes as many
//! bytes of the wire as the item has. A vote reserves a head; the read behind it as much as the
//! item has. So two reads take a round trip more, and an answer's head more on the wire, and
//! they save *room*: where most items are much shorter than the longest, the window holds far
//! fewer scans than votes. That is worth it where scans would have to wait for room, and room
//! is all that they wait for: what an engine or a link has too much of does not become less by
//! asking twice.

use crate::wire::ANSWER_LEN;

/// What is known when a key is about to be looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Situation {
    /// Solicited bytes that may be under way.
    pub window: usize,
    /// Those under way, or waiting to be.
    pub used: usize,
    /// What a scan would solicit.
    pub solicited: usize,
    /// How long what is found is lately, on average, in bytes.
    pub usual_len: usize,
    /// How long answers take lately, from when they were sent for, in nanoseconds; 0 if that
    /// is not known.
    pub round_trip_ns: u64,
    /// The shortest time that they have taken.
    pub way_ns: u64,
}

/// Scans leave so much of the window to votes.
const SHARE_OF_SCANS: (usize, usize) = (3, 4);
/// A scan reserves so many times what the item usually takes, before asking twice is worth it.
const TIMES: usize = 3;
/// Answers that take so many times the way itself wait for something else than room.
const QUEUE_FACTOR: u64 = 2;

impl Situation {
    /// Whether votes, and reads behind them, are there sooner than a scan.
    pub fn prefers_votes(&self) -> bool {
        let scan_len = ANSWER_LEN + self.solicited;
        let (part, of) = SHARE_OF_SCANS;
        // One alone is always sent, however long.
        let fits = self.used == 0 || self.used + scan_len <= self.window / of * part;
        let is_wasteful = scan_len > TIMES * (2 * ANSWER_LEN + self.usual_len);
        // Without a second answer nothing is known of the way.
        let is_queued = self.round_trip_ns > self.way_ns.saturating_mul(QUEUE_FACTOR);
        !fits && is_wasteful && self.round_trip_ns > 0 && !is_queued
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIXED: Situation = Situation {
        window: 512 << 10,
        used: 0,
        solicited: 64 << 10,
        usual_len: 1000,
        round_trip_ns: 1_000_000,
        way_ns: 900_000,
    };

    fn with(change: impl FnOnce(&mut Situation)) -> bool {
        let mut situation = MIXED;
        change(&mut situation);
        situation.prefers_votes()
    }

    #[test]
    fn what_has_room_is_asked_for_once() {
        assert!(!MIXED.prefers_votes());
        assert!(!with(|of| of.used = 300 << 10));
        assert!(with(|of| of.used = 350 << 10));
        assert!(with(|of| of.used = 10 << 20));
    }

    #[test]
    fn one_alone_always_has_room() {
        let alone = |of: &mut Situation| {
            (of.window, of.solicited, of.usual_len) = (16 << 10, 14 << 10, 300);
        };
        assert!(!with(alone));
        // The next one waits for it.
        assert!(with(|of| {
            alone(of);
            of.used = 1;
        }));
    }

    #[test]
    fn items_of_one_length_are_asked_for_once() {
        assert!(!with(|of| (of.used, of.usual_len) = (1 << 20, 60_000)));
        assert!(!with(|of| (of.used, of.usual_len) = (1 << 20, 32 << 10)));
        assert!(with(|of| (of.used, of.usual_len) = (1 << 20, 20 << 10)));
        // Short ones, for which an answer's head is much.
        assert!(!with(
            |of| (of.used, of.solicited, of.usual_len) = (1 << 20, 512, 100)
        ));
    }

    #[test]
    fn where_it_is_not_room_that_is_missing_nobody_asks_twice() {
        assert!(!with(
            |of| (of.used, of.round_trip_ns) = (1 << 20, 2_000_000)
        ));
        assert!(!with(|of| (of.used, of.round_trip_ns) = (1 << 20, 0)));
    }
}
