//! The server of one queue: makes the objects, lets clients in, executes, and sleeps.
//!
//! # Sleeping
//! Who sleeps announces it in each lane, fences, and looks at all lanes again; who
//! published something that needs the server fences and looks at the announcement: one of
//! them sees the other. A nilext commit does neither, so the server's sleep is a nap: it
//! ends by itself after [`Options::nap`].

use crate::bell::{self, Peer};
use crate::lane::{self, CommitBy, SLOT_COUNT_DEFAULT, Terms};
use crate::merge::{Counts, LaneId, Merge, PATIENCE_NS, Step, Taken};
use crate::order;
use crate::parted::{Former, Parted};
use crate::service::{Answer, Service};
use crate::words::Mapped;
use rustix::fs::fstat;
use rustix::time::{ClockId, clock_gettime};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering, fence};
use std::time::{Duration, Instant};
use trefoil_region::{ForkMark, HugePages, Mapping, MappingError, MemoryObject, ObjectError};

/// Requests executed before bells are looked after.
const BATCH_MAX: usize = 64;
/// Batches between two looks at the sockets while the server does not sleep.
const SOCKET_ROUNDS: u32 = 8192;
/// Sleep between two looks at a claim that others wait for.
const CLAIM_NAP: Duration = Duration::from_micros(50);

/// What an operator may choose.
#[derive(Clone, Debug)]
pub struct Options {
    /// Slots of each lane: a power of two.
    pub slot_count: u32,
    /// Clients at a time.
    pub client_count_max: usize,
    /// How long to look for requests before sleeping.
    pub spin: Duration,
    /// Longest sleep while there are clients: how late a nilext request may be executed
    /// that nobody waits for.
    pub nap: Duration,
    /// What commits requests. Where it is the server's acknowledgement, who drives the
    /// worker takes requests and acknowledges them ([`Worker::take`]). What is executed is
    /// acknowledged with that: [`Worker::run_once`] and its like acknowledge nothing before.
    pub commit_by: CommitBy,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            slot_count: SLOT_COUNT_DEFAULT,
            client_count_max: 64,
            spin: Duration::from_micros(50),
            nap: Duration::from_millis(5),
            commit_by: CommitBy::Publication,
        }
    }
}

/// Why a queue could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum SetUpError {
    /// Shared memory could not be made.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// Shared memory could not be mapped.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// A socket or a descriptor could not be made, or not be looked at.
    #[error("cannot set up the descriptors of a lane: {0}")]
    System(#[from] std::io::Error),
    /// Not a power of two in its bounds.
    #[error("{0} is no possible number of slots")]
    SlotCount(u32),
    /// As many clients as the server was configured for are there.
    #[error("the queue has {0} clients, which is as many as it takes")]
    TooManyClients(usize),
    /// The server of the queue has failed.
    #[error("the queue has ended and takes no clients")]
    Ended,
    /// A lane is wanted for a producer whose former one is not empty yet.
    #[error("what this producer has sent before is still being executed")]
    Draining,
    /// A producer returns of which nothing is known, or one comes by another's name.
    #[error("nothing is known of what this producer has sent before")]
    Forgotten,
    /// A lane is wanted by a claim that a later one of the same producer has overtaken.
    #[error("a later claim of this producer has been heard")]
    Superseded,
    /// What was handed over is no lane, or not that of its order.
    #[error("the shared memory handed over is not that of a queue of this version")]
    Foreign,
}

/// What a client needs; descriptors may be handed to another process. Whoever hands
/// them over decides who may be a client.
#[derive(Debug)]
pub struct Invitation {
    /// The order object; every client's is the same.
    pub order: OwnedFd,
    /// The client's lane; nobody else gets it.
    pub lane: OwnedFd,
    /// The client's end of the bell.
    pub bell: UnixStream,
    /// What both sides know.
    pub terms: Terms,
}

/// Names who numbers requests, over all lanes that they have one after another: drawn at
/// random.
pub type ProducerId = [u64; 2];

/// Names whose a producer is, for who has to share: an identity, and a host of it.
pub type OwnerId = [u64; 2];

/// Why a lane is wanted for a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerClaim {
    /// Which.
    pub producer: ProducerId,
    /// 0 when it comes for the first time. It returns by higher numbers, another one each
    /// time.
    pub attempt: u64,
    /// Whose it is.
    pub owner: OwnerId,
}

/// A producer, as a queue knows it.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: ProducerId,
    owner: OwnerId,
    /// Earlier attempts than this are out of date.
    attempt_min: u64,
}

struct Client {
    /// As it is told.
    id: u64,
    lane: LaneId,
    bell: UnixStream,
    /// For whom its requests are placed, if that is somebody else.
    producer: Option<Known>,
    /// Number of the client's sleep that was ended by this bell.
    rung: u64,
    is_gone: bool,
}

impl AsFd for Client {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// What a turn came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Requests executed.
    pub executed: usize,
    /// What the last step found.
    pub last: Step,
}

/// The server of one queue. One thread drives it.
pub struct Worker {
    epoch: u64,
    options: Options,
    order: MemoryObject,
    merge: Merge<Mapped>,
    clients: Vec<Client>,
    next_client_id: u64,
    sleep_number: u64,
    rounds: u32,
    bells_heard: u64,
    /// Broken lanes whose clients were looked for.
    broken: u64,
    /// Some of them have left requests that were taken and are not completed.
    is_parting: bool,
    parted: Parted,
    process: ForkMark,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("epoch", &self.epoch)
            .field("clients", &self.clients.len())
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

impl Options {
    /// Whether a queue can have these.
    pub fn check(&self) -> Result<(), SetUpError> {
        let terms = Terms {
            epoch: 0,
            client_id: 0,
            slot_count: self.slot_count,
        };
        match terms.are_valid() {
            true => Ok(()),
            false => Err(SetUpError::SlotCount(self.slot_count)),
        }
    }
}

impl Worker {
    /// A queue without clients. No two lives of a queue may have the same epoch.
    pub fn new(epoch: u64, options: Options) -> Result<Self, SetUpError> {
        options.check()?;
        let order = object("trefoil-order", order::OBJECT_LEN)?;
        order::initialise(&Mapped(Mapping::owner(&order)?));
        Ok(Worker {
            epoch,
            options,
            order,
            merge: Merge::new(PATIENCE_NS),
            clients: Vec::new(),
            next_client_id: 1,
            sleep_number: 0,
            rounds: 0,
            bells_heard: 0,
            broken: 0,
            is_parting: false,
            parted: Parted::default(),
            process: ForkMark::new(),
        })
    }

    /// Makes a lane for another client.
    pub fn admit(&mut self) -> Result<Invitation, SetUpError> {
        self.admit_for(None)
    }

    /// Makes a lane for a producer, whose requests somebody else places: an engine. They are
    /// numbered by their request ids, without a gap and over all lanes that the producer has
    /// one after another. Returns the number of the last one too, which is executed: what is
    /// above it is in no lane of this queue, then or later.
    ///
    /// A former lane is closed by that, and there is no new one before everything in it is
    /// executed ([`SetUpError::Draining`]). [`PARTED_MAX`](crate::parted::PARTED_MAX) producers
    /// without a lane are known, and no owner's make another one's forgotten; one that is not
    /// known and returns is refused.
    ///
    /// A claim that was on its way for long closes no lane that a later one has got, nor keeps
    /// that one from getting it ([`SetUpError::Superseded`]).
    pub fn admit_producer(
        &mut self,
        claim: ProducerClaim,
    ) -> Result<(Invitation, u64), SetUpError> {
        let ProducerClaim {
            producer,
            attempt,
            owner,
        } = claim;
        let is_its = |client: &Client| client.producer.is_some_and(|of| of.id == producer);
        if let Some(client) = self.clients.iter_mut().find(|client| is_its(client))
            && let Some(known) = &mut client.producer
        {
            if attempt == 0 {
                return Err(SetUpError::Forgotten);
            }
            if attempt < known.attempt_min {
                return Err(SetUpError::Superseded);
            }
            known.attempt_min = attempt;
            client.is_gone = true;
            self.merge.close(client.lane);
            self.part();
        }
        if self.clients.iter().any(is_its) {
            return Err(SetUpError::Draining);
        }
        let placed = match (self.parted.find(producer), attempt) {
            (None, 0) => 0,
            (Some(_), 0) | (None, _) => return Err(SetUpError::Forgotten),
            (Some(of), _) if attempt < of.attempt_min => return Err(SetUpError::Superseded),
            (Some(of), _) => of.placed,
        };
        let invitation = self.admit_for(Some(Known {
            id: producer,
            owner,
            attempt_min: attempt.saturating_add(1),
        }))?;
        if let Some(last) = self.clients.last() {
            // A lane in which nothing comes is left with this number, too.
            self.merge.set_last_request_id(last.lane, placed);
        }
        self.parted.remove(producer);
        Ok((invitation, placed))
    }

    fn admit_for(&mut self, producer: Option<Known>) -> Result<Invitation, SetUpError> {
        if self.clients.len() >= self.options.client_count_max {
            // A busy server has not heard yet of those who have died.
            self.look_at_bells(Duration::ZERO);
        }
        if self.clients.len() >= self.options.client_count_max {
            return Err(SetUpError::TooManyClients(self.clients.len()));
        }
        let terms = Terms {
            epoch: self.epoch,
            client_id: self.next_client_id,
            slot_count: self.options.slot_count,
        };
        let object = object("trefoil-lane", terms.object_len())?;
        let mapping = Mapping::owner(&object)?;
        mapping.prefault(0..mapping.len());
        let words = Mapped(mapping);
        lane::initialise(&words, terms);
        lane::set_commit_by(&words, self.options.commit_by);
        let order = fstat(self.order.as_fd()).map_err(std::io::Error::from)?;
        lane::set_order(&words, order.st_ino);
        let (own, bell) = UnixStream::pair()?;
        let invitation = Invitation {
            order: self.order.as_fd().try_clone_to_owned()?,
            lane: object.as_fd().try_clone_to_owned()?,
            bell,
            terms,
        };
        self.next_client_id += 1;
        let lane = self.merge.admit(words, terms);
        self.clients.push(Client {
            id: terms.client_id,
            lane,
            bell: own,
            producer,
            rung: 0,
            is_gone: false,
        });
        Ok(invitation)
    }

    /// What has happened so far.
    pub fn counts(&self) -> Counts {
        self.merge.counts()
    }

    /// Clients that are there, or have left requests to be executed.
    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// Whether this client is there, or has left requests to be executed.
    pub fn has_client(&self, id: u64) -> bool {
        self.clients.iter().any(|client| client.id == id)
    }

    /// Bells that clients have rung.
    pub fn bells_heard(&self) -> u64 {
        self.bells_heard
    }

    /// Executes what is there, a batch at most, and tells who waits for it.
    pub fn run_once(&mut self, service: &mut impl Service) -> Turn {
        let mut executed = 0;
        let mut last = Step::Idle;
        while executed < BATCH_MAX {
            last = self.merge.step(monotonic_ns, service);
            if last != Step::Executed {
                break;
            }
            executed += 1;
        }
        self.tell();
        self.look_around();
        Turn { executed, last }
    }

    /// Parts from clients whose lanes are broken and, now and then, learns of deaths while the
    /// server does not sleep. A server that takes requests calls this between its batches.
    pub fn look_around(&mut self) {
        self.rounds = self.rounds.wrapping_add(1);
        let broken = self.merge.counts().broken;
        if self.is_parting || broken != self.broken {
            self.broken = broken;
            self.part();
        }
        if self.rounds.is_multiple_of(SOCKET_ROUNDS) {
            self.look_at_bells(Duration::ZERO);
        }
    }

    /// The lanes, and the clock by which they are looked at.
    pub(crate) fn merge_and_clock(&mut self) -> (&mut Merge<Mapped>, fn() -> u64) {
        (&mut self.merge, monotonic_ns)
    }

    /// Takes the next request of the order; see [`Merge::take`].
    #[inline]
    pub fn take(&mut self, into: impl FnOnce(Taken, &[u8])) -> Step {
        self.merge.take(monotonic_ns, into)
    }

    /// Whether more than half of a client's lane was taken and is not completed, or some of
    /// it while the client waits. For who has it executed by somebody that may sleep.
    pub(crate) fn is_pressed(&self) -> bool {
        let half = u64::from(self.options.slot_count) / 2;
        self.clients.iter().any(|client| {
            let taken = self.merge.taken(client.lane);
            let waits = || {
                let words = self.merge.words(client.lane);
                words.is_some_and(|words| lane::waiting(words) % 2 == 1)
            };
            taken > half || taken > 0 && waits()
        })
    }

    /// Acknowledges what was taken, up to this one of its lane; see [`Merge::acknowledge`].
    #[inline]
    pub fn acknowledge(&mut self, taken: &Taken) {
        self.merge.acknowledge(taken.lane, taken.sequence);
    }

    /// Completes what was taken; see [`Merge::complete`].
    #[inline]
    pub fn complete(&mut self, taken: Taken, answer: &Answer) {
        self.merge.complete(taken, answer);
    }

    /// Takes nothing more of any client than what is published by now.
    pub fn close(&mut self) {
        self.merge.close_all();
    }

    /// Parts from all clients at once, whatever of theirs is not executed: they are refused
    /// from now on, and learn of it as their bells are closed.
    pub(crate) fn hang_up(&mut self) {
        self.merge.close_all();
        self.clients.clear();
    }

    /// Whether everything is executed, after [`Worker::close`].
    pub fn is_drained(&self) -> bool {
        let mut clients = self.clients.iter();
        clients.all(|client| self.merge.is_drained(client.lane))
    }

    /// Sleeps as the last step suggests: a nap, or shortly while others' claims are open.
    /// `idle_since` is when the server last had something to do; it spins before that.
    pub fn rest(&mut self, last: Step, idle_since: &mut Option<Instant>) {
        if last == Step::Executed {
            *idle_since = None;
            return;
        }
        std::hint::spin_loop();
        let now = Instant::now();
        if now - *idle_since.get_or_insert(now) < self.options.spin {
            return;
        }
        match last {
            // Its client may need this very core.
            Step::Waiting { .. } => std::thread::sleep(CLAIM_NAP),
            Step::Executed | Step::Idle => self.nap(),
        }
    }

    /// Rings for clients that wait, if something has happened to their lanes.
    pub fn tell(&mut self) {
        let mut is_fenced = false;
        for client in &mut self.clients {
            if !self.merge.take_news(client.lane) {
                continue;
            }
            if !is_fenced {
                fence(Ordering::SeqCst);
                is_fenced = true;
            }
            let Some(words) = self.merge.words(client.lane) else {
                continue;
            };
            let number = lane::waiting(words);
            if number % 2 == 1 && number != client.rung {
                client.rung = number;
                bell::ring(&client.bell);
            }
        }
    }

    /// Sleeps until a client rings, until the nap is over, or not at all if something is
    /// published.
    pub fn nap(&mut self) {
        self.announce();
        if !self.merge.has_work() {
            self.look_around();
            self.look_at_bells(self.options.nap);
        }
        self.announce();
    }

    /// The next sleep, or its end.
    pub(crate) fn announce(&mut self) {
        self.sleep_number += 1;
        for client in &self.clients {
            if let Some(words) = self.merge.words(client.lane) {
                lane::set_sleeping(words, self.sleep_number);
            }
        }
        fence(Ordering::SeqCst);
    }

    /// Learns of deaths, without waiting: for who needs a place of a server that never sleeps.
    /// Whether some of the dead have left requests, which are to be executed before their places
    /// are free: a call after that finds them so.
    pub fn hear_of_the_dead(&mut self) -> bool {
        self.look_at_bells(Duration::ZERO);
        self.clients.iter().any(|client| client.is_gone)
    }

    /// Hears bells and learns of deaths. What the dead have committed is executed.
    pub(crate) fn look_at_bells(&mut self, timeout: Duration) {
        let mut ringing = Vec::new();
        bell::wait(&self.clients, timeout, |at| ringing.push(at));
        for at in ringing {
            let client = &mut self.clients[at];
            match bell::silence(&client.bell) {
                Peer::Alive => self.bells_heard += 1,
                Peer::Gone => {
                    client.is_gone = true;
                    self.merge.close(client.lane);
                }
            }
        }
        self.part();
    }

    /// Forgets clients of whom nothing will come any more: the dead, and those whose lanes
    /// are broken, who learn of it as their bells are closed.
    fn part(&mut self) {
        let (merge, parted) = (&mut self.merge, &mut self.parted);
        let mut is_parting = false;
        self.clients.retain(|client| {
            let is_broken = merge.is_broken(client.lane);
            let is_over = (client.is_gone || is_broken) && merge.is_drained(client.lane);
            if is_over {
                let placed = merge.last_request_id(client.lane);
                if let (Some(of), Some(placed), false) = (client.producer, placed, is_broken) {
                    let former = Former {
                        id: of.id,
                        attempt_min: of.attempt_min,
                        placed,
                    };
                    parted.push(of.owner, former);
                }
                merge.remove(client.lane);
            }
            is_parting |= is_broken && !is_over;
            !is_over
        });
        self.is_parting = is_parting;
    }

    /// Serves until it is told to stop: a flag, which is looked at after each nap. A server
    /// that admits clients meanwhile calls [`Worker::run_once`] and [`Worker::rest`] itself.
    pub fn serve(&mut self, service: &mut impl Service, stop: &AtomicBool) {
        let mut idle_since: Option<Instant> = None;
        while !stop.load(Ordering::Relaxed) {
            let turn = self.run_once(service);
            let last = match turn.executed {
                0 => turn.last,
                _ => Step::Executed,
            };
            self.rest(last, &mut idle_since);
        }
    }

    /// An orderly end: takes nothing more, and executes all that was committed.
    pub fn finish(mut self, service: &mut impl Service) -> Counts {
        self.merge.close_all();
        loop {
            let step = self.merge.step(monotonic_ns, service);
            if step != Step::Executed && self.is_drained() {
                break;
            }
        }
        self.tell();
        self.counts()
    }
}

/// Whatever ends it, an error or a panic: what clients publish from then on would be committed
/// into nothing. They are refused. What a fork's child drops is its copy.
impl Drop for Worker {
    fn drop(&mut self) {
        if !self.process.is_child() {
            self.merge.close_all();
        }
    }
}

/// An object of so many bytes, all of them there.
fn object(name: &str, len: u64) -> Result<MemoryObject, ObjectError> {
    let object = MemoryObject::create(name, len, len, HugePages::Off)?;
    object.populate(0..len)?;
    Ok(object)
}

/// The host's monotonic clock, in nanoseconds.
fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests;
