//! A client's side of its lane, step by step and without I/O.
//!
//! The steps of one request, in this order; a client may die between any two:
//!
//! ```text
//! write    the request into its slot, which nobody else writes
//! claim    turn: Claimed(n)                       from now on the server may wait for it
//! ticket   fetch-and-add on the order word        the position
//! publish  position and checksum, turn: Published(n)          committed, or was skipped
//! mark     the slot's mark, for a server that looks at slots
//! ```

use crate::lane::{self, Terms, Turn};
use crate::mutants::{self, Mutant};
use crate::order;
use crate::slot::{self, Head, PAYLOAD_LEN_MAX};
use crate::words::Atomics;
use trefoil_region::WordBuffer;

/// Why a request was not committed: it is never executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// All slots of the lane hold requests that are not executed yet, or answers
    /// that were not taken.
    #[error("the queue is full")]
    Full,
    /// The server did not wait for this client any longer. It may try again.
    #[error("the request took too long between its ticket and its commit, and was skipped")]
    Skipped,
    /// The order word ran backwards: another client writes nonsense into it.
    #[error("the order of the queue is broken: position {position} came after {last}")]
    OrderBroken {
        /// What was taken.
        position: u64,
        /// What had been taken before.
        last: u64,
    },
    /// The request is longer than a slot holds.
    #[error("a request of {len} bytes is longer than a slot's {PAYLOAD_LEN_MAX}")]
    TooLong {
        /// Bytes of the request.
        len: usize,
    },
    /// The server takes nothing more.
    #[error("the queue is closed")]
    Closed,
    /// A fork's child has asked by its parent's client.
    #[error("this client belongs to the process that opened it; open one of your own")]
    OtherProcess,
}

/// A request that will be executed at its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Its place in the order of all requests of the queue.
    pub position: u64,
    /// Its place among those of this client's lane.
    pub sequence: u64,
}

/// A request that stands in its slot and has no position.
#[derive(Clone, Copy, Debug)]
pub struct Written {
    sum: u64,
    nilext: bool,
}

/// The client's end of a lane.
#[derive(Debug)]
pub struct Producer<W> {
    words: W,
    terms: Terms,
    /// What the turn word holds unless the server has closed it.
    turn: Turn,
    /// The sequence that is claimed next.
    sequence: u64,
    /// At least these are executed.
    executed: u64,
    /// The last position taken.
    position: u64,
    /// For each slot, the sequence whose answer is still to be taken; 0 is none.
    owed: Box<[u64]>,
    image: WordBuffer,
}

impl<W: Atomics> Producer<W> {
    /// The end of a fresh lane.
    pub fn new(words: W, terms: Terms) -> Self {
        Producer {
            words,
            terms,
            turn: Turn::Open(1),
            sequence: 1,
            executed: 0,
            position: 0,
            owed: vec![0; terms.slot_count as usize].into(),
            image: WordBuffer::default(),
        }
    }

    /// The lane.
    pub fn words(&self) -> &W {
        &self.words
    }

    /// What both sides know.
    pub fn terms(&self) -> Terms {
        self.terms
    }

    /// The sequence of the next claim.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Requests that are not known to be executed. Looks only if these are more than `below`.
    #[inline(always)]
    pub fn pending(&mut self, below: u64) -> u64 {
        let pending = self.sequence - 1 - self.executed;
        if pending <= below {
            return pending;
        }
        // The server's word, but a bound on it keeps arithmetic in its range.
        self.executed = lane::executed(&self.words).min(self.sequence - 1);
        self.sequence - 1 - self.executed
    }

    #[inline(always)]
    fn owed_index(&self, sequence: u64) -> usize {
        sequence as usize & (self.owed.len() - 1)
    }

    /// Whether the next slot is free.
    #[inline(always)]
    pub fn has_room(&mut self) -> bool {
        let most = u64::from(self.terms.slot_count) - 1;
        self.pending(most) <= most && self.owed[self.owed_index(self.sequence)] == 0
    }

    /// Writes a request into the next slot, if that is free.
    #[inline]
    pub fn write(
        &mut self,
        request_id: u64,
        payload: &[u8],
        nilext: bool,
    ) -> Result<Written, Refused> {
        if payload.len() > PAYLOAD_LEN_MAX {
            let len = payload.len();
            return Err(Refused::TooLong { len });
        }
        if !self.has_room() && !mutants::is(Mutant::FullIgnored) {
            let is_closed = matches!(lane::turn(&self.words), Some(Turn::Closed(_)) | None);
            return Err(if is_closed {
                Refused::Closed
            } else {
                Refused::Full
            });
        }
        let head = Head {
            sequence: self.sequence,
            client_id: self.terms.client_id,
            request_id,
            len: payload.len(),
            nilext,
        };
        let sum = slot::write(&self.words, self.terms, head, payload, &mut self.image);
        Ok(Written { sum, nilext })
    }

    /// Announces that a ticket may be taken.
    #[inline]
    pub fn claim(&mut self) -> Result<(), Refused> {
        let claimed = Turn::Claimed(self.sequence);
        let decided =
            self.words
                .compare_exchange(lane::WORD_TURN, self.turn.encode(), claimed.encode());
        if decided.is_err() {
            return Err(Refused::Closed);
        }
        self.turn = claimed;
        Ok(())
    }

    /// Takes the position of what was claimed. An order that runs backwards
    /// withdraws the claim.
    #[inline]
    pub fn ticket<O: Atomics>(&mut self, order: &O) -> Result<u64, Refused> {
        let position = order::take_ticket(order);
        let last = self.position;
        if position <= last {
            self.withdraw();
            return Err(Refused::OrderBroken { position, last });
        }
        self.position = position;
        Ok(position)
    }

    #[cold]
    fn withdraw(&mut self) {
        let open = Turn::Open(self.sequence);
        match self
            .words
            .compare_exchange(lane::WORD_TURN, self.turn.encode(), open.encode())
        {
            Ok(()) => self.turn = open,
            Err(found) => self.give_up(found),
        }
    }

    /// The server has decided against the claim.
    #[cold]
    fn give_up(&mut self, found: u64) {
        let skipped = Turn::Skipped(self.sequence);
        if found == skipped.encode() {
            self.turn = skipped;
            self.sequence += 1;
        }
    }

    /// Commits the request at this position, unless the server has skipped it.
    /// [`Producer::mark`] is to follow at once.
    #[inline]
    pub fn publish(&mut self, written: Written, position: u64) -> Result<Committed, Refused> {
        let sequence = self.sequence;
        slot::give_position(&self.words, self.terms, sequence, position, written.sum);
        let published = Turn::Published(sequence);
        let from = match mutants::is(Mutant::PublishedBlindly) {
            true => self.words.load(lane::WORD_TURN),
            false => self.turn.encode(),
        };
        if let Err(found) = self
            .words
            .compare_exchange(lane::WORD_TURN, from, published.encode())
        {
            self.give_up(found);
            return Err(match Turn::decode(found) {
                Some(Turn::Skipped(_)) => Refused::Skipped,
                _ => Refused::Closed,
            });
        }
        self.turn = published;
        self.sequence += 1;
        if !written.nilext {
            let index = self.owed_index(sequence);
            self.owed[index] = sequence;
        }
        Ok(Committed { position, sequence })
    }

    /// Shows what was published where the server looks.
    #[inline(always)]
    pub fn mark(&self, sequence: u64) {
        slot::mark(&self.words, self.terms, sequence);
    }

    /// All steps of one request.
    #[inline]
    pub fn submit<O: Atomics>(
        &mut self,
        order: &O,
        request_id: u64,
        payload: &[u8],
        nilext: bool,
    ) -> Result<Committed, Refused> {
        let written = self.write(request_id, payload, nilext)?;
        self.claim()?;
        let position = self.ticket(order)?;
        let committed = self.publish(written, position)?;
        self.mark(committed.sequence);
        Ok(committed)
    }

    /// Whether this sequence is executed.
    #[inline]
    pub fn is_executed(&mut self, sequence: u64) -> bool {
        self.executed >= sequence || {
            self.executed = lane::executed(&self.words).min(self.sequence - 1);
            self.executed >= sequence
        }
    }

    /// Whether the server has acknowledged this sequence, or executed it, which says more.
    #[inline]
    pub fn is_acknowledged(&mut self, sequence: u64) -> bool {
        lane::acknowledged(&self.words) >= sequence || self.is_executed(sequence)
    }

    /// Takes the answer to a request that was not nilext and is executed; `None` if it
    /// is not executed, or the answer was taken before. Frees the slot.
    pub fn take_answer(&mut self, sequence: u64, into: &mut WordBuffer) -> Option<()> {
        let index = self.owed_index(sequence);
        if sequence == 0 || self.owed[index] != sequence || !self.is_executed(sequence) {
            return None;
        }
        self.owed[index] = 0;
        slot::read_answer(&self.words, self.terms, sequence, into)
    }

    /// Does without the answer to this sequence.
    pub fn forget_answer(&mut self, sequence: u64) {
        let index = self.owed_index(sequence);
        if self.owed[index] == sequence {
            self.owed[index] = 0;
        }
    }
}
