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

use crate::lane::CommitBy;
use crate::merge::{Step, Taken};
use crate::producer::{Committed, Refused};
use crate::queue::Queue;
use crate::service::Answer;
use crate::worker::{Invitation, Options, SetUpError, Worker};
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Requests taken in a turn.
const BATCH_MAX: usize = 64;

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

#[derive(Debug)]
struct Forwarded {
    taken: Taken,
    committed: Committed,
    is_acknowledged: bool,
}

/// The delegate of one connection. One thread drives it.
#[derive(Debug)]
pub struct Delegate {
    worker: Worker,
    behind: Queue,
    forwarded: VecDeque<Forwarded>,
    /// Taken, and not accepted behind: others waited longer than this process had a turn.
    held: Option<Taken>,
    bytes: Vec<u8>,
    answer: Answer,
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
            forwarded: VecDeque::new(),
            held: None,
            bytes: Vec::new(),
            answer: Answer::default(),
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
    pub fn run_once(&mut self) -> Result<Step, DelegateError> {
        let mut last = Step::Idle;
        for _ in 0..BATCH_MAX {
            if self.held.is_none() {
                if !self.behind.has_room() {
                    break;
                }
                let (held, bytes) = (&mut self.held, &mut self.bytes);
                last = self.worker.take(|taken, payload| {
                    *held = Some(taken);
                    bytes.clear();
                    bytes.extend_from_slice(payload);
                });
            }
            let Some(taken) = self.held else { break };
            match self.behind.submit(&self.bytes, taken.nilext) {
                Ok(committed) => self.forwarded.push_back(Forwarded {
                    taken,
                    committed,
                    is_acknowledged: false,
                }),
                Err(Refused::Full | Refused::Skipped) => break,
                Err(refused) => return Err(DelegateError::Refused(refused)),
            }
            self.held = None;
        }
        let is_news = self.look_behind();
        self.worker.tell();
        self.worker.look_around();
        self.turns = self.turns.wrapping_add(1);
        if self.turns.is_multiple_of(1024) && self.behind.is_server_gone() {
            return Err(DelegateError::ServerGone);
        }
        let is_busy = is_news || !self.forwarded.is_empty();
        Ok(if is_busy { Step::Executed } else { last })
    }

    /// What was forwarded is committed, and executed, in the order of the connection.
    fn look_behind(&mut self) -> bool {
        let mut is_news = false;
        for forwarded in &mut self.forwarded {
            if forwarded.is_acknowledged {
                continue;
            }
            if !self.behind.is_committed(forwarded.committed) {
                break;
            }
            self.worker.acknowledge(&forwarded.taken);
            forwarded.is_acknowledged = true;
            is_news = true;
        }
        while let Some(first) = self.forwarded.front() {
            if !self.behind.is_executed(first.committed) {
                break;
            }
            self.answer.clear();
            if !first.taken.nilext
                && let Ok(answer) = self.behind.answer(first.committed, Duration::ZERO)
            {
                // It came in a slot of the same length.
                let _ = self.answer.put(answer);
            }
            self.worker.complete(first.taken, &self.answer);
            self.forwarded.pop_front();
            is_news = true;
        }
        is_news
    }

    /// Sleeps after a turn without anything to do.
    pub fn rest(&mut self, last: Step, idle_since: &mut Option<Instant>) {
        if last == Step::Executed {
            std::thread::yield_now();
        }
        self.worker.rest(last, idle_since);
    }
}
