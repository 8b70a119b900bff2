//! The engine's side: requests in, one lane, acknowledgements and answers out.

use crate::limits::ASKS_LEN_MAX;
use crate::wire::placing::{Answered, LaneEnd, PLACE_LEN_MAX, Place, Placed};
use crate::wire::{Frame, HEAD_LEN, Head, Kind, Malformed};
use std::collections::VecDeque;

/// What became of an attempt to place a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Placing {
    /// It is in the queue.
    Placed,
    /// There is no room now.
    NoRoom,
    /// Nothing more is placed.
    Over(LaneEnd),
}

/// A lane of one producer, whose requests it numbers.
pub trait Lane {
    /// Puts the next request into the queue. It is called with numbers without a gap.
    fn place(&mut self, number: u64, request: &[u8], nilext: bool) -> Placing;
    /// All up to this number are committed.
    fn committed(&mut self) -> u64;
    /// All up to this number are executed.
    fn executed(&mut self) -> u64;
    /// Appends the answer to a request that is executed and was not nilext.
    fn take_answer(&mut self, number: u64, into: &mut Vec<u8>);
}

/// What was done with what came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Handled {
    /// Bytes that are done with.
    pub used: usize,
    /// A whole request is left, for which the lane has no room now.
    pub is_withheld: bool,
    /// The session ends when what was written has gone out.
    pub is_over: bool,
}

/// A session that places. Bytes are its owner's.
#[derive(Debug)]
pub struct Placer<L> {
    lane: L,
    slot_count: u64,
    placed: u64,
    told: Placed,
    /// Requests whose answers are to be passed on.
    owed: VecDeque<u64>,
    answer: Vec<u8>,
}

impl<L: Lane> Placer<L> {
    /// Of a fresh lane, whose producer has placed so many before.
    pub fn new(lane: L, slot_count: u32, placed: u64) -> Self {
        Placer {
            lane,
            slot_count: slot_count.into(),
            placed,
            told: Placed {
                committed: placed,
                executed: placed,
                end: None,
            },
            owed: VecDeque::new(),
            answer: Vec::new(),
        }
    }

    /// The lane.
    pub fn lane(&mut self) -> &mut L {
        &mut self.lane
    }

    /// Places what is whole at the beginning of `input`, as far as the lane has room, and
    /// appends what there is to say.
    pub fn handle(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<Handled, Malformed> {
        let mut handled = Handled {
            used: 0,
            is_withheld: false,
            is_over: false,
        };
        let end = loop {
            let rest = &input[handled.used..];
            let Some(head) = Head::decode(rest, ASKS_LEN_MAX)? else {
                break None;
            };
            if head.kind != Kind::Place || head.count != 1 {
                return Err(Malformed("a frame that clients of a queue do not send"));
            }
            // Its rest is not waited for.
            if HEAD_LEN + head.len > PLACE_LEN_MAX {
                break Some(LaneEnd::TooLong);
            }
            let Some(frame) = Frame::first(rest, PLACE_LEN_MAX)? else {
                break None;
            };
            let Some(place) = Place::decode(frame.body)? else {
                break Some(LaneEnd::TooLong);
            };
            if place.number != self.placed + 1 {
                return Err(Malformed("a request that is not the producer's next"));
            }
            match self.lane.place(place.number, place.request, place.nilext) {
                Placing::Placed => {}
                Placing::NoRoom => {
                    handled.is_withheld = true;
                    break None;
                }
                Placing::Over(end) => break Some(end),
            }
            self.placed = place.number;
            if !place.nilext {
                self.owed.push_back(place.number);
            }
            handled.used += frame.total_len();
        };
        match end {
            None => {
                self.look(out);
            }
            Some(end) => {
                handled.is_over = true;
                self.end(end, out);
            }
        }
        Ok(handled)
    }

    /// Appends what is new: commits, answers, and room where the client may need it. Whether
    /// there was anything.
    pub fn look(&mut self, out: &mut Vec<u8>) -> bool {
        let begin = out.len();
        // What is executed may be known before its acknowledgement, and says more.
        let committed = self.lane.committed().min(self.placed);
        let executed = self.lane.executed().min(self.placed);
        let committed = committed.max(executed);
        self.answers(executed, out);
        let is_news = committed > self.told.committed
            || out.len() > begin
            || executed > self.told.executed && self.is_room_wanted(executed);
        if is_news {
            self.told = Placed {
                committed,
                executed,
                end: None,
            };
            self.told.encode(out);
        }
        is_news
    }

    /// Whether the client should hear how much is executed: it is near its bound.
    fn is_room_wanted(&self, executed: u64) -> bool {
        let used = self.placed - self.told.executed;
        let step = (self.slot_count / 8).max(1);
        used >= self.slot_count
            || used >= self.slot_count - self.slot_count / 4
                && executed - self.told.executed >= step
    }

    /// Whether there will be something to say without a further request.
    pub fn is_waiting(&self) -> bool {
        let used = self.placed - self.told.executed;
        !self.owed.is_empty()
            || self.told.committed < self.placed
            || used >= self.slot_count - self.slot_count / 4
    }

    /// Says what is known to the end, and that it is the end.
    pub fn end(&mut self, end: LaneEnd, out: &mut Vec<u8>) {
        let committed = self.lane.committed().min(self.placed);
        let executed = self.lane.executed().min(self.placed);
        self.answers(executed, out);
        self.told = Placed {
            committed: committed.max(executed),
            executed,
            end: Some(end),
        };
        self.told.encode(out);
    }

    fn answers(&mut self, executed: u64, out: &mut Vec<u8>) {
        while let Some(&number) = self.owed.front()
            && number <= executed
        {
            self.owed.pop_front();
            self.answer.clear();
            self.lane.take_answer(number, &mut self.answer);
            let answer = &self.answer[..];
            Answered { number, answer }.encode(out);
        }
    }
}
