//! A queue whose acknowledgement means persistent, and whose requests have their effect
//! once, also when they are not idempotent and the server dies.
//!
//! ```text
//!  lanes ─► take, as many as are there ─► journal: one write, one flush
//!             ─► acknowledge ─► execute ─► answer, slots free ─► now and then: checkpoint
//! ```
//!
//! While a group is flushed, the next one gathers in the lanes. The positions that the
//! service sees are those of the journal: they go on over all lives of the queue.

use crate::merge::{Step, Taken};
use crate::mutants::{self, Mutant};
use crate::service::{Answer, Request, Service};
use crate::slot::PAYLOAD_LEN_MAX;
use crate::worker::{Invitation, Options, ProducerClaim, SetUpError, Turn, Worker};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use trefoil_journal::disk::Disk;
use trefoil_journal::{JournalError, Log, Record};

/// Most requests of a group commit.
const GROUP_MAX: usize = 4096;

/// A service with a persistent state.
pub trait DurableService: Service {
    /// Why a checkpoint failed.
    type Error: std::error::Error;

    /// The last position whose effect is in the persistent state; 0 is none.
    fn persistent_position(&self) -> u64;

    /// Makes persistent the effects of everything that was executed, the last of which was
    /// at `position`, together with that position: after a crash both are there, or neither.
    fn checkpoint(&mut self, position: u64) -> Result<(), Self::Error>;

    /// The same, and may leave it at a beginning: whatever is persistent afterwards, and up
    /// to where, [`DurableService::persistent_position`] says. It is called once in each turn
    /// while more than half of the journal is taken; a service that makes its state
    /// persistent beside its work lets no request wait for that.
    fn advance(&mut self, position: u64) -> Result<(), Self::Error> {
        self.checkpoint(position)
    }

    /// Whether a request that wants an answer has no effect, and need not be in the journal.
    fn is_read(&self, payload: &[u8]) -> bool {
        let _ = payload;
        false
    }
}

/// Why a durable queue cannot be opened, or cannot go on. What was not acknowledged may be
/// executed in its next life, or not; its clients are refused from then on, and told by
/// [`crate::NoAnswer::ServerGone`]. It is to be dropped, and the service behind it, too, which
/// is loaded anew from its persistent state before the queue is opened again: it may have
/// executed requests that the journal gives it again.
#[derive(Debug, thiserror::Error)]
pub enum DurableError<E: std::error::Error> {
    /// The journal.
    #[error(transparent)]
    Journal(#[from] JournalError),
    /// The state.
    #[error("the state behind the queue cannot be made persistent: {0}")]
    Checkpoint(E),
    /// The shared memory.
    #[error(transparent)]
    SetUp(#[from] SetUpError),
    /// It has told why before.
    #[error(
        "the durable queue has failed before and takes nothing any more; load its state anew \
         and open it again"
    )]
    Failed,
}

#[derive(Debug)]
struct Pending {
    taken: Taken,
    /// Its place in the journal, or that of the last request before it.
    position: u64,
    payload: Range<usize>,
}

/// The server of a durable queue. One thread drives it.
#[derive(Debug)]
pub struct DurableWorker<D> {
    worker: Worker,
    log: Log<D>,
    /// The last position executed.
    executed: u64,
    group: Vec<Pending>,
    bytes: Vec<u8>,
    answer: Answer,
    is_failed: bool,
}

impl<D: Disk> DurableWorker<D> {
    /// Opens the journal, executes what the state is without, and begins the queue's next
    /// life. The service's state is to be loaded when no other process serves the queue any
    /// more: one that serves it meanwhile makes a newer state persistent, which is told by
    /// [`JournalError::StateBehind`]. `open` is given the state's position and what is to be called with each
    /// request: as of [`trefoil_journal::file::open`] or [`Log::open`].
    ///
    /// After an error the service may have executed some of what the journal has: load it
    /// anew before another attempt. Impossible options are told before anything is opened.
    pub fn open<S: DurableService>(
        options: Options,
        service: &mut S,
        open: impl FnOnce(u64, &mut dyn FnMut(Record<'_>)) -> Result<Log<D>, JournalError>,
    ) -> Result<Self, DurableError<S::Error>> {
        options.check()?;
        let mut executed = service.persistent_position();
        let mut answer = Answer::default();
        let log = open(executed, &mut |record| {
            answer.clear();
            executed = record.position;
            let request = Request {
                position: record.position,
                client_id: record.client_id,
                request_id: record.request_id,
                nilext: record.nilext,
                payload: record.payload,
            };
            // Nobody waits for its answer any more.
            service.execute(request, &mut answer);
        })?;
        let options = Options {
            commit_by: crate::lane::CommitBy::Acknowledgement,
            ..options
        };
        Ok(DurableWorker {
            worker: Worker::new(log.epoch(), options)?,
            log,
            executed,
            group: Vec::new(),
            bytes: Vec::new(),
            answer,
            is_failed: false,
        })
    }

    /// Makes a lane for another client.
    pub fn admit(&mut self) -> Result<Invitation, SetUpError> {
        match self.is_failed {
            true => Err(SetUpError::Ended),
            false => self.worker.admit(),
        }
    }

    /// Makes a lane for a producer; see [`Worker::admit_producer`]. It is known for this life
    /// of the queue only.
    pub fn admit_producer(
        &mut self,
        claim: ProducerClaim,
    ) -> Result<(Invitation, u64), SetUpError> {
        match self.is_failed {
            true => Err(SetUpError::Ended),
            false => self.worker.admit_producer(claim),
        }
    }

    /// The shared memory, its clients and counts.
    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// The journal.
    pub fn log(&self) -> &Log<D> {
        &self.log
    }

    /// Takes what is there, makes it persistent, acknowledges and executes it.
    ///
    /// After an error of the journal nothing that was taken is acknowledged or executed
    /// that was not before; one of a checkpoint comes after the group was acknowledged and
    /// executed. After any error the queue takes nothing more, and its clients know it: drop
    /// the worker and the service, as [`DurableError`] says.
    pub fn run_once<S: DurableService>(
        &mut self,
        service: &mut S,
    ) -> Result<Turn, DurableError<S::Error>> {
        self.unless_failed(|worker| worker.try_once(service))
    }

    /// The first error is the queue's end.
    fn unless_failed<T, E: std::error::Error>(
        &mut self,
        attempt: impl FnOnce(&mut Self) -> Result<T, DurableError<E>>,
    ) -> Result<T, DurableError<E>> {
        if self.is_failed {
            return Err(DurableError::Failed);
        }
        let result = attempt(self);
        if result.is_err() {
            self.is_failed = true;
            self.worker.hang_up();
        }
        result
    }

    fn try_once<S: DurableService>(
        &mut self,
        service: &mut S,
    ) -> Result<Turn, DurableError<S::Error>> {
        let last = self.gather(service);
        if mutants::is(Mutant::DurableAnswersEarly) {
            self.execute(service);
        }
        if mutants::is(Mutant::DurableAcknowledgesEarly) {
            self.acknowledge();
        }
        self.log.commit()?;
        self.acknowledge();
        self.worker.tell();
        self.execute(service);
        self.worker.tell();
        self.worker.look_around();
        if !self.log.has_room(PAYLOAD_LEN_MAX) {
            self.try_checkpoint(service)?;
        } else if self.log.is_tight() {
            self.advance(service)?;
        }
        Ok(last)
    }

    fn acknowledge(&mut self) {
        for pending in &self.group {
            self.worker.acknowledge(&pending.taken);
        }
    }

    /// The group.
    fn execute<S: DurableService>(&mut self, service: &mut S) {
        for pending in self.group.drain(..) {
            self.answer.clear();
            self.executed = pending.position;
            let request = Request {
                position: pending.position,
                client_id: pending.taken.client_id,
                request_id: pending.taken.request_id,
                nilext: pending.taken.nilext,
                payload: &self.bytes[pending.payload],
            };
            service.execute(request, &mut self.answer);
            self.worker.complete(pending.taken, &self.answer);
        }
    }

    /// One group, out of the lanes.
    fn gather<S: DurableService>(&mut self, service: &S) -> Turn {
        let DurableWorker {
            worker,
            log,
            group,
            bytes,
            executed,
            ..
        } = self;
        bytes.clear();
        let mut position = *executed;
        let mut last = Step::Idle;
        while group.len() < GROUP_MAX && log.has_room(PAYLOAD_LEN_MAX) {
            last = worker.take(|taken, payload| {
                if taken.nilext || !service.is_read(payload) {
                    let Taken {
                        client_id,
                        request_id,
                        nilext,
                        ..
                    } = taken;
                    position = log.push(client_id, request_id, nilext, payload);
                }
                let first = bytes.len();
                bytes.extend_from_slice(payload);
                group.push(Pending {
                    taken,
                    position,
                    payload: first..bytes.len(),
                });
            });
            if last != Step::Executed {
                break;
            }
        }
        let executed = group.len();
        Turn { executed, last }
    }

    /// Makes the state persistent, and the journal's room free. An error is the queue's end,
    /// as of [`DurableWorker::run_once`].
    pub fn checkpoint<S: DurableService>(
        &mut self,
        service: &mut S,
    ) -> Result<(), DurableError<S::Error>> {
        self.unless_failed(|worker| worker.try_checkpoint(service))
    }

    fn advance<S: DurableService>(
        &mut self,
        service: &mut S,
    ) -> Result<(), DurableError<S::Error>> {
        self.persist(service, S::advance)?;
        Ok(self.log.release(service.persistent_position())?)
    }

    fn try_checkpoint<S: DurableService>(
        &mut self,
        service: &mut S,
    ) -> Result<(), DurableError<S::Error>> {
        let position = self.persist(service, S::checkpoint)?;
        Ok(self.log.release(position)?)
    }

    /// Has `make` bring what is persistent up to what was executed, unless it is; that position.
    fn persist<S: DurableService>(
        &mut self,
        service: &mut S,
        make: fn(&mut S, u64) -> Result<(), S::Error>,
    ) -> Result<u64, DurableError<S::Error>> {
        let position = self.executed;
        if mutants::is(Mutant::DurableReleasesEarly) {
            self.log.release(position)?;
        }
        if position > service.persistent_position() {
            make(service, position).map_err(DurableError::Checkpoint)?;
        }
        Ok(position)
    }

    /// Sleeps as the last turn suggests; see [`Worker::rest`].
    pub fn rest(&mut self, turn: Turn, idle_since: &mut Option<Instant>) {
        let last = match turn.executed {
            0 => turn.last,
            _ => Step::Executed,
        };
        self.worker.rest(last, idle_since);
    }

    /// Serves until it is told to stop: a flag, which is looked at after each nap. A server
    /// that admits clients meanwhile calls [`DurableWorker::run_once`] and
    /// [`DurableWorker::rest`] itself.
    pub fn serve<S: DurableService>(
        &mut self,
        service: &mut S,
        stop: &AtomicBool,
    ) -> Result<(), DurableError<S::Error>> {
        let mut idle_since: Option<Instant> = None;
        while !stop.load(Ordering::Relaxed) {
            let turn = self.run_once(service)?;
            self.rest(turn, &mut idle_since);
        }
        Ok(())
    }

    /// An orderly end: takes nothing more, executes all that was published, and makes the
    /// state persistent.
    pub fn finish<S: DurableService>(
        mut self,
        service: &mut S,
    ) -> Result<(), DurableError<S::Error>> {
        self.worker.close();
        while self.run_once(service)?.executed > 0 || !self.worker.is_drained() {}
        self.checkpoint(service)
    }
}
