//! The client's side: numbers requests, keeps them until they are known to be committed, and
//! sends them again over another connection.
//!
//! # Calling order
//!
//! ```text
//! new(claimed)                      once the engine has given a lane
//! submit(request, nilext)           numbered, and in output()
//! output(), sent(count)             what is to be written, and was
//! handle(input)                     what came; returns the bytes that are done with
//! resume(claimed)                   over another connection: output() begins anew
//! ```

use crate::limits::REQUEST_LEN_MAX;
use crate::wire::placing::{Answered, Claimed, LaneEnd, PLACE_LEN_MAX, Place, Placed};
use crate::wire::{Frame, Kind, Malformed};
use std::collections::VecDeque;

/// Why a request was not sent: it is never executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSent {
    /// As many are under way as the lane has slots.
    Full,
    /// Longer than a slot.
    TooLong,
    /// The lane has ended.
    Over(LaneEnd),
}

/// What a look for an answer has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// It was put into the buffer.
    Answer,
    /// The request is not known to be executed.
    NotYet,
    /// It is executed, and its answer was lost with a connection.
    Lost,
    /// None is owed, or it was taken before.
    NotOwed,
}

/// A request that was not nilext.
#[derive(Debug)]
struct Owed {
    number: u64,
    answer: Option<Box<[u8]>>,
}

/// See the module.
#[derive(Debug)]
pub struct Sender {
    slot_count: u64,
    /// The last number given.
    last: u64,
    committed: u64,
    executed: u64,
    end: Option<LaneEnd>,
    owed: VecDeque<Owed>,
    /// Frames of the requests that are not known to be committed, in order.
    kept: Vec<u8>,
    /// Where they begin in it.
    begin: usize,
    /// Where those begin that the connection has not taken.
    unsent: usize,
    /// The length of each.
    lens: VecDeque<u32>,
}

impl Sender {
    /// Of a producer that has sent nothing.
    pub fn new(claimed: &Claimed) -> Self {
        Sender {
            slot_count: claimed.slot_count.into(),
            last: claimed.placed,
            committed: claimed.placed,
            executed: claimed.placed,
            end: None,
            owed: VecDeque::new(),
            kept: Vec::new(),
            begin: 0,
            unsent: 0,
            lens: VecDeque::new(),
        }
    }

    /// Numbers a request and puts it behind the others.
    pub fn submit(&mut self, request: &[u8], nilext: bool) -> Result<u64, NotSent> {
        if request.len() > REQUEST_LEN_MAX {
            return Err(NotSent::TooLong);
        }
        if let Some(end) = self.end {
            return Err(NotSent::Over(end));
        }
        if !self.has_room() {
            return Err(NotSent::Full);
        }
        self.last += 1;
        let number = self.last;
        let place = Place {
            number,
            nilext,
            request,
        };
        // No longer than a slot.
        self.lens.push_back(place.encode(&mut self.kept) as u32);
        if !nilext {
            self.owed.push_back(Owed {
                number,
                answer: None,
            });
        }
        Ok(number)
    }

    /// Whether another request may be sent.
    pub fn has_room(&self) -> bool {
        // What was answered and not taken holds its slot.
        let oldest = self.owed.front().map_or(u64::MAX, |owed| owed.number - 1);
        self.last - self.executed.min(oldest) < self.slot_count
    }

    /// The last request that is known to be committed; all before it are.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// The last request that is known to be executed; all before it are.
    pub fn executed(&self) -> u64 {
        self.executed
    }

    /// Why nothing more is placed, once the engine has said so.
    pub fn end(&self) -> Option<LaneEnd> {
        self.end
    }

    /// Takes the answer to a request.
    pub fn take_answer(&mut self, number: u64, into: &mut Vec<u8>) -> Taken {
        let Ok(at) = self.owed.binary_search_by_key(&number, |owed| owed.number) else {
            return Taken::NotOwed;
        };
        if self.executed < number {
            return Taken::NotYet;
        }
        match self.owed.remove(at).and_then(|owed| owed.answer) {
            Some(answer) => {
                into.clear();
                into.extend_from_slice(&answer);
                Taken::Answer
            }
            None => Taken::Lost,
        }
    }

    /// Does without the answer to a request.
    pub fn forget_answer(&mut self, number: u64) {
        if let Ok(at) = self.owed.binary_search_by_key(&number, |owed| owed.number) {
            self.owed.remove(at);
        }
    }

    /// What is to be written.
    pub fn output(&self) -> &[u8] {
        &self.kept[self.unsent..]
    }

    /// So many bytes of it were.
    pub fn sent(&mut self, count: usize) {
        self.unsent += count;
        assert!(self.unsent <= self.kept.len());
    }

    /// Takes in the whole frames at the beginning of `input`; returns how many bytes of it
    /// are done with. After an error the connection is given up.
    pub fn handle(&mut self, input: &[u8]) -> Result<usize, Malformed> {
        let mut done = 0;
        while let Some(frame) = Frame::first(&input[done..], PLACE_LEN_MAX)? {
            match frame.head.kind {
                Kind::Placed if frame.head.count == 1 => {
                    self.placed(&Placed::decode(frame.body)?)?
                }
                Kind::Answered if frame.head.count == 1 => {
                    self.answered(&Answered::decode(frame.body)?)?
                }
                _ => return Err(Malformed("a frame that nobody has asked for")),
            }
            done += frame.total_len();
        }
        Ok(done)
    }

    fn placed(&mut self, placed: &Placed) -> Result<(), Malformed> {
        let is_sound = placed.executed <= placed.committed
            && placed.committed <= self.last
            && placed.committed >= self.committed
            && placed.executed >= self.executed;
        if !is_sound {
            return Err(Malformed("acknowledgements that cannot be"));
        }
        self.commit(placed.committed);
        self.executed = placed.executed;
        self.end = placed.end;
        Ok(())
    }

    /// They need not be kept any more.
    fn commit(&mut self, committed: u64) {
        for _ in self.committed..committed {
            self.begin += self.lens.pop_front().map_or(0, |len| len as usize);
        }
        self.committed = committed;
        self.unsent = self.unsent.max(self.begin);
        if self.begin == self.kept.len() {
            self.kept.clear();
            (self.begin, self.unsent) = (0, 0);
        } else if self.begin > self.kept.len() / 2 {
            self.kept.drain(..self.begin);
            self.unsent -= self.begin;
            self.begin = 0;
        }
    }

    fn answered(&mut self, answered: &Answered<'_>) -> Result<(), Malformed> {
        let number = answered.number;
        if number <= self.executed || number > self.last {
            return Err(Malformed("an answer that nobody has asked for"));
        }
        // One that was forgotten is not kept.
        if let Ok(at) = self.owed.binary_search_by_key(&number, |owed| owed.number) {
            self.owed[at].answer = Some(answered.answer.into());
        }
        Ok(())
    }

    /// Another connection, at which the server has said what was placed before. `false`: that
    /// cannot be; nothing more can be known of this producer.
    pub fn resume(&mut self, claimed: &Claimed) -> bool {
        let placed = claimed.placed;
        let is_possible = placed >= self.committed
            && placed <= self.last
            && u64::from(claimed.slot_count) == self.slot_count;
        if !is_possible || self.end.is_some() {
            return false;
        }
        self.commit(placed);
        self.executed = placed;
        self.unsent = self.begin;
        // An answer that has come and is not covered is one to a request that is sent again.
        for owed in self.owed.iter_mut().filter(|owed| owed.number > placed) {
            owed.answer = None;
        }
        true
    }
}
