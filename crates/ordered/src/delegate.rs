//! One connection for many processes of a host: a delegate has a lane for each of them, and
//! one connection to the queue behind it, whatever carries that.
//!
//! ```text
//!  process A ─ lane ─┐
//!  process B ─ lane ─┴─► Delegate ─ one connection ─► the queue
//!        acknowledged ◄──── when it is committed there
//!        answered     ◄──── when it is executed there
//! ```
//!
//! A request is committed when the queue behind has it: a delegate that dies loses nothing
//! that was acknowledged. Requests of one client are forwarded in its order.
//!
//! [`Forwarder`] is all that decides, without I/O; [`Delegate`] drives it over shared memory.

use crate::lane::CommitBy;
use crate::merge::{Merge, Step, Taken};
use crate::mutants::{self, Mutant};
use crate::producer::{Committed, Refused};
use crate::queue::Queue;
use crate::service::Answer;
use crate::words::Atomics;
use crate::worker::{Invitation, Options, SetUpError, Worker};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Requests taken in a turn.
const BATCH_MAX: usize = 64;
/// Turns between two looks at whether the server behind is there.
const LOOK_TURNS: u32 = 1024;

/// The queue behind a delegate. What it has committed it commits and executes in the order
/// in which it was submitted.
pub trait Behind {
    /// Whether there is room for another request.
    fn has_room(&mut self) -> bool;
    /// Puts a request into its place.
    fn submit(&mut self, request: &[u8], nilext: bool) -> Result<Committed, Refused>;
    /// Whether a request is committed.
    fn is_committed(&mut self, request: Committed) -> bool;
    /// Whether a request is executed.
    fn is_executed(&mut self, request: Committed) -> bool;
    /// The answer to a request that was not nilext and is executed.
    fn take_answer(&mut self, request: Committed, into: &mut Answer);
    /// Whether its server is gone: what it has not committed or executed it never will. May
    /// cost a system call.
    fn is_gone(&mut self) -> bool;
}

impl Behind for Queue {
    fn has_room(&mut self) -> bool {
        Queue::has_room(self)
    }

    fn submit(&mut self, request: &[u8], nilext: bool) -> Result<Committed, Refused> {
        Queue::submit(self, request, nilext)
    }

    fn is_committed(&mut self, request: Committed) -> bool {
        Queue::is_committed(self, request)
    }

    fn is_executed(&mut self, request: Committed) -> bool {
        Queue::is_executed(self, request)
    }

    fn take_answer(&mut self, request: Committed, into: &mut Answer) {
        if let Ok(answer) = self.answer(request, Duration::ZERO) {
            // It came in a slot of the same length.
            let _ = into.put(answer);
        }
    }

    fn is_gone(&mut self) -> bool {
        self.is_server_gone()
    }
}

#[derive(Debug)]
struct Forwarded {
    taken: Taken,
    committed: Committed,
    is_acknowledged: bool,
}

/// What a delegate knows of the requests between its lanes and the queue behind. Its rules:
///
/// 1. A request is acknowledged when the queue behind has committed it.
/// 2. Its slot is free, and its answer there, when the queue behind has executed it.
/// 3. What the queue behind refuses for now is offered again, before anything else.
/// 4. What is completed is acknowledged, too: the queue behind may have committed and
///    executed it between two looks.
/// 5. What the queue behind did before its end is passed on before that end is told.
#[derive(Debug, Default)]
pub struct Forwarder {
    forwarded: VecDeque<Forwarded>,
    /// Taken, and not accepted behind.
    held: Option<Taken>,
    bytes: Vec<u8>,
    answer: Answer,
}

/// What a turn of a delegate came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turned {
    /// What the last step at the lanes found.
    pub last: Step,
    /// Clients were told of something.
    pub is_news: bool,
}

impl Forwarder {
    /// One turn: forwards what is there, looks behind, and finds out whether the queue
    /// behind has ended: if `is_look_due`, or if it refuses. A queue that refuses may still
    /// execute what it has: that is waited for.
    pub fn turn<W: Atomics>(
        &mut self,
        merge: &mut Merge<W>,
        clock: impl Fn() -> u64,
        behind: &mut impl Behind,
        is_look_due: bool,
    ) -> Result<Turned, DelegateError> {
        let forwarded = self.forward(merge, clock, behind);
        // What the server did last is seen after its end.
        let is_gone = (is_look_due || forwarded.is_err()) && behind.is_gone();
        let is_ended = is_gone || forwarded.is_err();
        let is_news = match is_ended && mutants::is(Mutant::DelegateEndsEarly) {
            true => false,
            false => self.look_behind(merge, behind),
        };
        if is_gone {
            return Err(DelegateError::ServerGone);
        }
        match forwarded {
            Ok(last) => Ok(Turned { last, is_news }),
            Err(refused) if self.forwarded.is_empty() => Err(DelegateError::Refused(refused)),
            Err(_) => Ok(Turned {
                last: Step::Idle,
                is_news,
            }),
        }
    }

    /// Forwards what is there, a batch at most. An error stays: the queue behind takes
    /// nothing more.
    pub fn forward<W: Atomics>(
        &mut self,
        merge: &mut Merge<W>,
        clock: impl Fn() -> u64,
        behind: &mut impl Behind,
    ) -> Result<Step, Refused> {
        let mut last = Step::Idle;
        for _ in 0..BATCH_MAX {
            if self.held.is_none() {
                if !behind.has_room() {
                    break;
                }
                let (held, bytes) = (&mut self.held, &mut self.bytes);
                last = merge.take(&clock, |taken, payload| {
                    *held = Some(taken);
                    bytes.clear();
                    bytes.extend_from_slice(payload);
                });
            }
            let Some(taken) = self.held else { break };
            match behind.submit(&self.bytes, taken.nilext) {
                Ok(committed) => self.forwarded.push_back(Forwarded {
                    taken,
                    committed,
                    is_acknowledged: false,
                }),
                Err(Refused::Full | Refused::Skipped) => {
                    if mutants::is(Mutant::DelegateForgets) {
                        self.held = None;
                    }
                    break;
                }
                Err(refused) => return Err(refused),
            }
            self.held = None;
        }
        Ok(last)
    }

    /// Tells clients what is committed and executed behind. `false`: nothing is new.
    pub fn look_behind<W: Atomics>(
        &mut self,
        merge: &mut Merge<W>,
        behind: &mut impl Behind,
    ) -> bool {
        let mut is_news = false;
        for forwarded in &mut self.forwarded {
            if forwarded.is_acknowledged {
                continue;
            }
            let is_committed = behind.is_committed(forwarded.committed);
            if !is_committed && !mutants::is(Mutant::DelegateAcknowledgesEarly) {
                break;
            }
            merge.acknowledge(forwarded.taken.lane, forwarded.taken.sequence);
            forwarded.is_acknowledged = true;
            is_news = true;
        }
        while let Some(first) = self.forwarded.front() {
            let is_executed = behind.is_executed(first.committed);
            if !is_executed && !mutants::is(Mutant::DelegateCompletesEarly) {
                break;
            }
            self.answer.clear();
            if !first.taken.nilext {
                behind.take_answer(first.committed, &mut self.answer);
            }
            if !first.is_acknowledged && !mutants::is(Mutant::DelegateCompletesUntold) {
                merge.acknowledge(first.taken.lane, first.taken.sequence);
            }
            merge.complete(first.taken, &self.answer);
            self.forwarded.pop_front();
            is_news = true;
        }
        is_news
    }

    /// Whether nothing is between the lanes and the end of its execution.
    pub fn is_empty(&self) -> bool {
        self.forwarded.is_empty() && self.held.is_none()
    }
}

/// Why a delegate cannot go on. Its clients notice when it is dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DelegateError {
    /// The queue behind takes nothing more.
    #[error("the queue behind the delegate refuses: {0}")]
    Refused(Refused),
    /// The server of the queue behind is gone.
    #[error("the server of the queue behind the delegate is gone")]
    ServerGone,
}

/// The delegate of one connection. One thread drives it.
#[derive(Debug)]
pub struct Delegate {
    worker: Worker,
    behind: Queue,
    forwarder: Forwarder,
    turns: u32,
}

impl Delegate {
    /// A delegate without clients. `epoch`: as of [`Worker::new`].
    pub fn new(epoch: u64, options: Options, behind: Queue) -> Result<Self, SetUpError> {
        let options = Options {
            commit_by: CommitBy::Acknowledgement,
            ..options
        };
        Ok(Delegate {
            worker: Worker::new(epoch, options)?,
            behind,
            forwarder: Forwarder::default(),
            turns: 0,
        })
    }

    /// Makes a lane for another client.
    pub fn admit(&mut self) -> Result<Invitation, SetUpError> {
        self.worker.admit()
    }

    /// Clients that are there, or have left requests.
    pub fn client_count(&self) -> usize {
        self.worker.client_count()
    }

    /// Forwards what is there, and tells its clients what became of what was forwarded.
    /// After an error they know all that will ever be known: the delegate is to be dropped.
    pub fn run_once(&mut self) -> Result<Step, DelegateError> {
        self.turns = self.turns.wrapping_add(1);
        let is_look_due = self.turns.is_multiple_of(LOOK_TURNS);
        let (merge, clock) = self.worker.merge_and_clock();
        let turned = self
            .forwarder
            .turn(merge, clock, &mut self.behind, is_look_due);
        self.worker.tell();
        self.worker.look_around();
        let Turned { last, is_news } = turned?;
        if !is_news && !self.forwarder.is_empty() && self.worker.is_pressed() {
            // The server behind naps as long as its own lane is not half full.
            self.behind.wake_server();
        }
        let is_busy = is_news || !self.forwarder.is_empty();
        Ok(if is_busy { Step::Executed } else { last })
    }

    /// Sleeps after a turn without anything to do.
    pub fn rest(&mut self, last: Step, idle_since: &mut Option<Instant>) {
        if last == Step::Executed {
            std::thread::yield_now();
        }
        self.worker.rest(last, idle_since);
    }
}

#[cfg(test)]
mod tests;
