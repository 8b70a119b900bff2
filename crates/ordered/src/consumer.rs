//! The server's end of one lane: what is next in it, and what is decided of its claims.

use crate::lane::{self, Terms, Turn};
use crate::mutants::{self, Mutant};
use crate::slot::{self, Head};
use crate::words::Atomics;
use trefoil_region::WordBuffer;

/// Each skip in a row halves a lane's patience, so many times at most.
const PATIENCE_HALVINGS_MAX: u32 = 10;
/// A client changes its turn twice for each request, and nothing frees a slot while its lane
/// is being closed: then the lane is full. Twice as much is for claims that are withdrawn; one
/// that still goes on is no client. Fewer attempts would throw away what was acknowledged.
const CLOSE_ATTEMPTS_OF_SLOT: u32 = 4;

/// A lane's oldest request that is not executed, copied and validated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Next {
    pub(crate) position: u64,
    pub(crate) head: Head,
}

/// One lane, as the server knows it: private memory but for `words`.
#[derive(Debug)]
pub(crate) struct Consumer<W> {
    pub(crate) words: W,
    pub(crate) terms: Terms,
    /// The sequence that is executed next.
    pub(crate) cursor: u64,
    /// After the close: what is below is published, nothing else is taken.
    pub(crate) end: Option<u64>,
    pub(crate) next: Option<Next>,
    pub(crate) image: WordBuffer,
    /// The claim that others were first seen to wait for, and when.
    pub(crate) claimed: Option<(u64, u64)>,
    pub(crate) skips_in_row: u32,
    /// The sequence behind all that it had begun when it was looked at for the target: what
    /// has a lower ticket than that is among these. `None`: it was not looked at yet.
    pub(crate) begun: Option<u64>,
    pub(crate) is_broken: bool,
    /// Slots were freed, or answers written, that the client has not been told of.
    pub(crate) is_news: bool,
    /// Requests that were taken and are not completed.
    pub(crate) taken: u64,
    /// The position of its last head: an honest client's only rise.
    last_position: u64,
    /// The client's name for the request of its last head; 0 before the first.
    pub(crate) last_request_id: u64,
}

/// What a look at a lane without a head has found.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    Published,
    Claimed,
    Nothing,
    Broken,
}

/// How much of a lane is looked at.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The slot's mark alone.
    Marks,
    /// And what the turn says.
    Turns,
}

impl<W: Atomics> Consumer<W> {
    /// The end of a fresh lane.
    pub(crate) fn new(words: W, terms: Terms) -> Self {
        Consumer {
            words,
            terms,
            cursor: 1,
            end: None,
            next: None,
            image: WordBuffer::default(),
            claimed: None,
            skips_in_row: 0,
            begun: None,
            is_broken: false,
            is_news: false,
            taken: 0,
            last_position: 0,
            last_request_id: 0,
        }
    }

    pub(crate) fn look(&mut self, depth: Depth) -> Look {
        let found = self.find(depth);
        if found != Look::Published {
            return found;
        }
        if mutants::is(Mutant::FreedEarly) {
            lane::set_executed(&self.words, self.cursor);
        }
        match slot::read(&self.words, self.terms, self.cursor, &mut self.image) {
            Ok((position, _)) if position <= self.last_position => Look::Broken,
            Ok((position, head)) => {
                self.last_position = position;
                self.last_request_id = head.request_id;
                self.next = Some(Next { position, head });
                Look::Published
            }
            Err(_) => Look::Broken,
        }
    }

    #[inline]
    pub(crate) fn find(&self, depth: Depth) -> Look {
        if let Some(end) = self.end {
            return if self.cursor < end {
                Look::Published
            } else {
                Look::Nothing
            };
        }
        if slot::is_marked(&self.words, self.terms, self.cursor) {
            return Look::Published;
        }
        if depth == Depth::Marks {
            return Look::Nothing;
        }
        let Some(turn) = lane::turn(&self.words) else {
            return Look::Broken;
        };
        let cursor = self.cursor;
        match turn {
            Turn::Published(n) if n == cursor => Look::Published,
            Turn::Claimed(n) if n == cursor => Look::Claimed,
            Turn::Open(n) | Turn::Closed(n) if n == cursor => Look::Nothing,
            Turn::Published(n) | Turn::Skipped(n) if n + 1 == cursor => Look::Nothing,
            // Later ones have been claimed since: this one is decided, and not by a skip,
            // which would have moved the cursor.
            other => match other.sequence().checked_sub(cursor) {
                Some(1..) if other.sequence() - cursor <= u64::from(self.terms.slot_count) => {
                    Look::Published
                }
                _ => Look::Broken,
            },
        }
    }

    /// Whether nothing below the target can come of it any more.
    #[inline(always)]
    pub(crate) fn is_cleared(&self) -> bool {
        self.begun.is_some_and(|begun| self.cursor >= begun)
    }

    /// Nothing below the target can come of it.
    #[inline(always)]
    pub(crate) fn clear(&mut self) {
        self.begun = Some(0);
    }

    /// Sees what it has begun by now; returns the sequence that it claims.
    pub(crate) fn see_begun(&mut self) -> Option<u64> {
        let turn = match self.end {
            Some(end) => Some(Turn::Closed(end)),
            None => lane::turn(&self.words),
        };
        let (begun, claimed) = match turn {
            Some(Turn::Open(n) | Turn::Closed(n)) => (n, None),
            Some(Turn::Published(n) | Turn::Skipped(n)) => (n + 1, None),
            Some(Turn::Claimed(n)) => (n + 1, Some(n)),
            // Nonsense, which breaks the lane when its head is looked for.
            None => (u64::MAX, None),
        };
        self.begun = Some(begun);
        claimed
    }

    pub(crate) fn patience_ns(&self, patience_ns: u64) -> u64 {
        (patience_ns >> self.skips_in_row.min(PATIENCE_HALVINGS_MAX)).max(1)
    }

    /// Decides against an open claim; `false` if it is decided already.
    pub(crate) fn skip(&mut self) -> bool {
        let claimed = Turn::Claimed(self.cursor).encode();
        let skipped = Turn::Skipped(self.cursor).encode();
        if mutants::is(Mutant::SkippedBlindly) {
            self.words.store_release(lane::WORD_TURN, skipped);
        } else if self
            .words
            .compare_exchange(lane::WORD_TURN, claimed, skipped)
            .is_err()
        {
            return false;
        }
        self.skips_in_row += 1;
        self.free();
        true
    }

    /// The sequence at the cursor is done with. Its slot is free, unless an earlier one
    /// is still needed: it follows that one then.
    pub(crate) fn free(&mut self) {
        if self.taken == 0 || mutants::is(Mutant::SkipFreesTaken) {
            lane::set_executed(&self.words, self.cursor);
            self.is_news = true;
        }
        self.cursor += 1;
    }

    /// The sequence at the cursor was taken; its slot is held until it is completed.
    pub(crate) fn take(&mut self) {
        if mutants::is(Mutant::FreedWhenTaken) {
            lane::set_executed(&self.words, self.cursor);
        }
        self.taken += 1;
        self.cursor += 1;
    }

    /// A sequence that was taken is executed. They are completed in order.
    pub(crate) fn complete(&mut self, sequence: u64) {
        self.taken = self.taken.saturating_sub(1);
        let executed = match self.taken {
            // What was skipped behind it is free, too.
            0 => self.cursor - 1,
            _ => sequence,
        };
        lane::set_executed(&self.words, executed);
        self.is_news = true;
    }

    /// Takes nothing more than what is published by now. From then on the turn word is
    /// not looked at, whatever becomes of it.
    pub(crate) fn close(&mut self) {
        if self.end.is_some() {
            return;
        }
        if mutants::is(Mutant::ClosedBlindly) {
            let closed = Turn::Closed(self.cursor);
            self.words.store_release(lane::WORD_TURN, closed.encode());
            self.end = Some(self.cursor);
            return;
        }
        for _ in 0..CLOSE_ATTEMPTS_OF_SLOT * self.terms.slot_count {
            let Some(turn) = lane::turn(&self.words) else {
                break;
            };
            let (from, to) = (turn.encode(), turn.closed());
            if self
                .words
                .compare_exchange(lane::WORD_TURN, from, to.encode())
                .is_err()
            {
                continue;
            }
            let ahead = to.sequence().checked_sub(self.cursor);
            self.is_broken |= ahead.is_none_or(|n| n > u64::from(self.terms.slot_count));
            self.end = Some(to.sequence());
            return;
        }
        self.is_broken = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use trefoil_layout::words::{Words, WordsMut};

    /// A turn that a client changes before each attempt at it, as long as it has slots.
    struct Busy {
        turn: Cell<u64>,
        last: u64,
    }

    impl Busy {
        fn go_on(&self) {
            let next = match Turn::decode(self.turn.get()).unwrap() {
                Turn::Claimed(n) => Turn::Published(n),
                Turn::Open(n) if n <= self.last => Turn::Claimed(n),
                Turn::Published(n) if n < self.last => Turn::Claimed(n + 1),
                other => other,
            };
            self.turn.set(next.encode());
        }
    }

    impl Words for Busy {
        fn load(&self, index: usize) -> u64 {
            assert_eq!(index, lane::WORD_TURN);
            self.turn.get()
        }
        fn load_acquire(&self, index: usize) -> u64 {
            self.load(index)
        }
        fn fence_acquire(&self) {}
    }

    impl WordsMut for Busy {
        fn store(&self, _index: usize, value: u64) {
            self.turn.set(value);
        }
        fn store_release(&self, index: usize, value: u64) {
            self.store(index, value);
        }
        fn fence_release(&self) {}
    }

    impl Atomics for Busy {
        fn fetch_add(&self, _index: usize, _by: u64) -> u64 {
            unreachable!("nobody takes tickets here")
        }
        fn compare_exchange(&self, _index: usize, from: u64, to: u64) -> Result<(), u64> {
            self.go_on();
            let found = self.turn.get();
            if found != from {
                return Err(found);
            }
            self.turn.set(to);
            Ok(())
        }
    }

    #[test]
    fn a_busy_lane_is_closed_behind_all_that_it_has_acknowledged() {
        for slot_count in [2, 64, 256, 65_536] {
            let busy = Busy {
                turn: Cell::new(Turn::Open(1).encode()),
                last: slot_count,
            };
            let terms = Terms {
                epoch: 1,
                client_id: 1,
                slot_count: slot_count as u32,
            };
            let mut consumer = Consumer::new(busy, terms);
            consumer.close();
            assert_eq!(consumer.end, Some(slot_count + 1));
            assert!(!consumer.is_broken);
        }
    }
}
