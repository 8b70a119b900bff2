//! The operations under way, each in a place of its own, and their timers.

use crate::late::{Late, is_taken};
use crate::op::{Machine, Op, Owed, Owner};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use trefoil_cell::Cohort;
use trefoil_client_core::data::DataCheck;
use trefoil_client_core::mutants::{self, Mutant};
use trefoil_client_core::outcome::SendFailure;
use trefoil_fabric::Token;
use trefoil_fabric::port::Completion;
use trefoil_layout::copied;
use trefoil_layout::message::{Answer, ErrorCode};
use trefoil_layout::op::{Found, LookupAnswer};

/// Bits of a token that name the message; those above name the operation's place.
const MESSAGE_BITS: u32 = 40;
/// Free places that keep their operation's memory. Others give it back: a backend that hangs may
/// have had any number of operations wait at the same time.
const FREE_KEPT_MAX: usize = 1024;
/// Timers among which it is not worth looking for those of operations that have ended.
const TIMERS_SWEPT_MIN: usize = 1024;

/// What came of a third copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Came {
    Taken,
    Refused,
    /// Not by this way: it goes by a call.
    NotSent,
}

/// Of which message, of the operation at which place.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Last {
    pub(crate) token: Token,
    pub(crate) at: u32,
    pub(crate) came: Came,
}

/// See the module. A place is named by its number; places are used again.
#[derive(Debug, Default)]
pub(crate) struct Slab {
    ops: Vec<Option<Box<Op>>>,
    /// Free places that have kept their memory: these are used first.
    free: Vec<u32>,
    /// Those that have not.
    bare: Vec<u32>,
    /// To be stepped.
    ready: VecDeque<u32>,
    /// Ended, and to be handed out.
    pub(crate) done: VecDeque<u32>,
    /// Time, place, and the life of the place that it was set for.
    timers: BinaryHeap<Reverse<(u64, u32, u32)>>,
    /// How many there are when those of operations that have ended are dropped next. Each
    /// stays until its deadline else, behind one that waits so long.
    sweeps_at: usize,
    next_message: u64,
    /// Answers to operations that are over.
    pub(crate) late: Late,
    /// What has come of [`Owed::Last`].
    pub(crate) lasts: Vec<Last>,
    /// Places in use.
    pub(crate) used: usize,
}

impl Slab {
    /// A place for an operation, and the operation to be filled in.
    #[inline]
    pub(crate) fn admit(&mut self, cohort: Cohort) -> (u32, Box<Op>) {
        self.used += 1;
        if let Some(at) = self.free.pop().or_else(|| self.bare.pop()) {
            let mut op = match self.ops[at as usize].take() {
                Some(op) => op,
                None => Box::new(Op::new(cohort)),
            };
            op.cohort = cohort;
            return (at, op);
        }
        let at = self.ops.len() as u32;
        assert!(
            u64::from(at) < 1 << (u64::BITS - MESSAGE_BITS),
            "too many operations under way"
        );
        self.ops.push(None);
        (at, Box::new(Op::new(cohort)))
    }

    /// How many there are, used and free.
    pub(crate) fn places(&self) -> usize {
        self.ops.len()
    }

    /// Lends an operation.
    #[inline]
    pub(crate) fn take(&mut self, at: u32) -> Box<Op> {
        self.ops[at as usize]
            .take()
            .expect("an operation is lent once at a time")
    }

    /// Takes it back.
    #[inline]
    pub(crate) fn put(&mut self, at: u32, op: Box<Op>) {
        self.ops[at as usize] = Some(op);
    }

    #[inline]
    pub(crate) fn get(&self, at: u32) -> Option<&Op> {
        self.ops.get(at as usize)?.as_deref()
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, at: u32) -> Option<&mut Op> {
        self.ops.get_mut(at as usize)?.as_deref_mut()
    }

    /// Ends the use of a place.
    #[inline]
    pub(crate) fn release(&mut self, at: u32) {
        if let Some(op) = self.get_mut(at) {
            op.clear();
            if self.free.len() >= FREE_KEPT_MAX {
                self.ops[at as usize] = None;
                self.bare.push(at);
            } else {
                self.free.push(at);
            }
            self.used -= 1;
        }
    }

    /// Every operation under way.
    pub(crate) fn all(&mut self) -> impl Iterator<Item = (u32, &mut Op)> {
        (0..)
            .zip(&mut self.ops)
            .filter_map(|(at, op)| Some((at, op.as_deref_mut()?)))
            .filter(|(_, op)| !matches!(op.machine, Machine::Idle))
    }

    /// The place of a caller's operation.
    pub(crate) fn find(&self, owner: Owner) -> Option<u32> {
        let is_it = |op: &Option<Box<Op>>| op.as_ref().is_some_and(|op| op.owner == owner);
        self.ops.iter().position(is_it).map(|at| at as u32)
    }

    #[inline]
    pub(crate) fn make_ready(&mut self, at: u32) {
        if let Some(op) = self.ops[at as usize].as_deref_mut()
            && !op.is_queued
        {
            op.is_queued = true;
            self.ready.push_back(at);
        }
    }

    #[inline]
    pub(crate) fn next_ready(&mut self) -> Option<u32> {
        self.ready.pop_front()
    }

    #[inline]
    pub(crate) fn has_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    /// A token for the next message of the operation at `at`.
    #[inline]
    pub(crate) fn token(&mut self, at: u32) -> Token {
        self.next_message = (self.next_message + 1) & ((1 << MESSAGE_BITS) - 1);
        Token(u64::from(at) << MESSAGE_BITS | self.next_message)
    }

    /// Sees to it that `op`, at `at`, is stepped at its time.
    #[inline]
    pub(crate) fn set_timer(&mut self, at: u32, op: &Op) {
        // Whoever waits for an operation looks at its time anyway.
        if op.wake_ns != u64::MAX && op.owner != Owner::Waiter {
            if self.timers.len() >= self.sweeps_at.max(TIMERS_SWEPT_MIN) {
                self.sweep_timers();
            }
            self.timers.push(Reverse((op.wake_ns, at, op.life)));
        }
    }

    #[cold]
    fn sweep_timers(&mut self) {
        let ops = &self.ops;
        self.timers.retain(|Reverse((at_ns, at, life))| {
            let op = ops.get(*at as usize).and_then(Option::as_deref);
            op.is_some_and(|op| op.life == *life && op.wake_ns == *at_ns)
        });
        self.sweeps_at = 2 * self.timers.len();
    }

    /// Makes those ready whose time has come.
    #[inline]
    pub(crate) fn expire(&mut self, now_ns: u64) {
        while let Some(Reverse((at_ns, at, life))) = self.timers.peek().copied()
            && at_ns <= now_ns
        {
            self.timers.pop();
            if self
                .get(at)
                .is_some_and(|op| op.life == life && op.wake_ns == at_ns)
            {
                self.make_ready(at);
            }
        }
    }

    /// When a timer ends next. Timers of operations that have ended are dropped
    /// here.
    pub(crate) fn next_timer_ns(&mut self) -> u64 {
        while let Some(Reverse((at_ns, at, life))) = self.timers.peek().copied() {
            if self
                .get(at)
                .is_some_and(|op| op.life == life && op.wake_ns == at_ns)
            {
                return at_ns;
            }
            self.timers.pop();
        }
        u64::MAX
    }

    /// Feeds what a port has completed to the operation that asked. What belongs to
    /// an earlier attempt, or to an operation that is over, counts for nothing.
    #[inline]
    pub(crate) fn complete(&mut self, completion: Completion<'_>) {
        let token = completion.token();
        let at = (token.0 >> MESSAGE_BITS) as u32;
        let Some(op) = self.get_mut(at) else {
            return self.late.hear(&completion);
        };
        let mut place = op.place_of(token);
        if mutants::is_on(Mutant::FormerAnswerCounts) {
            place = place.or_else(|| op.place_of_any());
        }
        let Some(replica) = place else {
            return self.late.hear(&completion);
        };
        if let Completion::Stamp(_, stamp) = completion {
            op.stamps[replica] = Some(stamp);
            return;
        }
        if let Owed::Last(_) = op.owed[replica] {
            let came = match completion {
                Completion::Answer(_, Answer::Error(ErrorCode::TooLarge)) => Came::NotSent,
                _ if is_taken(&completion) => Came::Taken,
                _ => Came::Refused,
            };
            return self.lasts.push(Last { token, at, came });
        }
        op.owed[replica] = Owed::Nothing;
        op.feed(replica, completion);
        self.make_ready(at);
    }

    /// Ends the operation for its owner: it is handed out, or waited for, or over.
    #[inline]
    pub(crate) fn finish(&mut self, at: u32, op: &Op) {
        if let Owner::Token(_) = op.owner {
            self.done.push_back(at);
        }
    }
}

impl Op {
    fn feed(&mut self, replica: usize, completion: Completion<'_>) {
        let check = DataCheck {
            key: &self.key,
            now_ms: self.now_ms,
            flush_floor: self.flush_floor,
        };
        let lookup = match &mut self.machine {
            Machine::Get(get) => Some(get),
            Machine::Cas { look, .. } => look.as_mut(),
            _ => None,
        };
        match completion {
            Completion::Index(_, vote) => {
                if let Some(get) = lookup {
                    get.handle_index(replica, vote);
                }
            }
            Completion::Data(_, Ok(bytes), flush_floor) => {
                // What was flushed before the lookup began is known.
                let check = DataCheck {
                    flush_floor: check.flush_floor.max(flush_floor),
                    ..check
                };
                if let Some(get) = lookup {
                    keep(&mut self.buffers[replica], bytes);
                    get.handle_data(replica, bytes, &check);
                }
            }
            Completion::Data(_, Err(_), _) => {
                if let Some(get) = lookup {
                    get.handle_out_of_window(replica);
                }
            }
            Completion::Scan(_, vote, bytes, flush_floor) => {
                // What was flushed before the scan began is known.
                let check = DataCheck {
                    flush_floor: check.flush_floor.max(flush_floor),
                    ..check
                };
                if let Some(get) = lookup {
                    keep(&mut self.buffers[replica], bytes);
                    get.handle_scan(replica, vote, bytes, &check);
                }
            }
            Completion::Answer(_, Answer::Lookup(answer)) => {
                if let Some(get) = lookup {
                    if let Found::Present { data, .. } = answer.found {
                        keep(&mut self.buffers[replica], data);
                    }
                    get.handle_answer(replica, &LookupAnswer { ..answer }, &check);
                }
            }
            Completion::Answer(_, Answer::Ack(ack)) => {
                let version = match self.messages[replica] {
                    crate::op::Message::Mutation { version, .. } => version,
                    _ => return,
                };
                match &mut self.machine {
                    Machine::Mutate(machine) => machine.handle_ack(replica, version, ack),
                    Machine::Cas { machine, .. } => machine.handle_ack(replica, version, ack),
                    _ => {}
                }
            }
            Completion::Answer(_, Answer::Use(found)) => {
                if let Machine::Uses { found: all, .. } = &mut self.machine {
                    all[replica] = found;
                }
            }
            // Asked again by a call.
            Completion::Answer(_, Answer::Error(ErrorCode::TooLarge)) => {
                self.owed[replica] = Owed::Nothing;
                self.too_large |= 1 << replica;
            }
            Completion::Answer(_, Answer::Error(code)) => {
                let failure = match code {
                    ErrorCode::Malformed => SendFailure::NotSent,
                    _ => SendFailure::Lost,
                };
                self.no_answer(replica, failure, &code.to_string());
            }
            Completion::Answer(_, Answer::Pong) => {
                self.no_answer(
                    replica,
                    SendFailure::Lost,
                    "the backend answered something else",
                );
            }
            // Taken in already; its answer follows.
            Completion::Stamp(..) => {}
            // By call: no link learns when a successor has come, so it is asked again.
            Completion::NoAnswer(_, SendFailure::Moving, why) if lookup.is_some() => {
                self.reason = Some(why.to_owned());
                if let Some(get) = lookup {
                    get.handle_refused(replica);
                }
            }
            Completion::NoAnswer(_, failure, why) => self.no_answer(replica, failure, why),
            Completion::Expired(_) => {
                self.no_answer(replica, SendFailure::Lost, "no answer in its time");
            }
        }
    }
}

fn keep(buffer: &mut trefoil_region::WordBuffer, bytes: &[u8]) {
    buffer.prepare(bytes.len());
    copied::fill(buffer.bytes_mut(), bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_layout::Placement;

    /// One that waits till its deadline, and others that end at once.
    #[test]
    fn timers_of_what_has_ended_are_dropped() {
        let mut slab = Slab::default();
        let cohort = Placement::new(3, 3).cohort_of_shard(0);
        let begin = |slab: &mut Slab, wake_ns| {
            let (at, mut op) = slab.admit(cohort);
            (op.owner, op.wake_ns) = (Owner::Token(1), wake_ns);
            slab.set_timer(at, &op);
            slab.put(at, op);
            at
        };
        let waits = begin(&mut slab, 1_000);
        for wake_ns in 1_001..100_000 {
            let at = begin(&mut slab, wake_ns);
            slab.release(at);
            assert_eq!(slab.next_timer_ns(), 1_000);
        }
        assert!(slab.timers.len() <= 2 * TIMERS_SWEPT_MIN);
        slab.expire(1_000);
        assert_eq!(slab.next_ready(), Some(waits));
        assert_eq!(slab.next_timer_ns(), u64::MAX);
    }

    /// Many operations at once, and never again.
    #[test]
    fn a_burst_leaves_no_memory_behind() {
        const COUNT: usize = 4 * FREE_KEPT_MAX;
        let mut slab = Slab::default();
        let cohort = Placement::new(3, 3).cohort_of_shard(0);
        for _ in 0..2 {
            for _ in 0..COUNT {
                let (at, op) = slab.admit(cohort);
                slab.put(at, op);
            }
            assert_eq!((slab.used, slab.places()), (COUNT, COUNT));
            for at in 0..COUNT as u32 {
                slab.release(at);
            }
            let kept = slab.ops.iter().flatten().count();
            assert_eq!((slab.used, kept), (0, FREE_KEPT_MAX));
        }
        // And what is kept is used: these have had operations before.
        for _ in 0..FREE_KEPT_MAX {
            let (at, op) = slab.admit(cohort);
            assert!(op.life > 0);
            slab.put(at, op);
        }
    }
}
