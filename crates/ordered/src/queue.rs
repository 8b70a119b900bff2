//! A client of one queue, over memory that the server has made.

use crate::bell::{self, Peer};
use crate::lane::{self, CommitBy};
use crate::order;
use crate::producer::{Committed, Producer, Refused};
use crate::words::Mapped;
use crate::worker::{Invitation, SetUpError};
use rustix::fs::fstat;
use rustix::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};
use trefoil_layout::words::Words;
use trefoil_region::{ForkMark, Mapping, WordBuffer};

/// Attempts at a request that the server skipped because this process had no turn.
const ATTEMPTS_MAX: u32 = 8;
/// Looks between two at the clock.
const LOOKS: u32 = 64;

/// Why there is no answer, or no acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    /// Not yet; it may be asked for again.
    #[error("nothing from the server within {0:?}")]
    TimedOut(Duration),
    /// The server is gone, or has parted from this client, in whose lane it has found
    /// nonsense. Nobody knows whether the request was executed.
    #[error("the server of the queue is gone, or has closed this client's lane")]
    ServerGone,
    /// The request is executed, and its answer was lost with a connection.
    #[error("the request is executed, and its answer was lost with the connection")]
    Lost,
    /// The request was nilext, or its answer was taken before.
    #[error("no answer is owed to this request")]
    NotOwed,
    /// A fork's child has asked by its parent's client.
    #[error("this client belongs to the process that opened it; open one of your own")]
    OtherProcess,
}

/// One client's end of a queue. It belongs to the process that has joined: a fork's child has
/// the same lane mapped, and a cursor of its own in it, so that it would write over what its
/// parent has committed. It is refused.
#[derive(Debug)]
pub struct Queue {
    order: Mapped,
    producer: Producer<Mapped>,
    bell: UnixStream,
    next_request_id: u64,
    /// Pending requests above which the server is woken in any case.
    wake_above: u64,
    /// Number of the server's sleep that was ended by this client's bell.
    rung: u64,
    /// What was last announced as *waiting*.
    waiting: u64,
    spin: Duration,
    answer: WordBuffer,
    commit_by: CommitBy,
    process: ForkMark,
}

impl Queue {
    /// Maps what the server has made for this client.
    pub fn join(invitation: Invitation) -> Result<Self, SetUpError> {
        let terms = invitation.terms;
        if !terms.are_valid() {
            return Err(SetUpError::Foreign);
        }
        let order = Mapped(Mapping::reader_writer(
            &invitation.order,
            order::OBJECT_LEN,
        )?);
        let mapping = Mapping::reader_writer(&invitation.lane, terms.object_len())?;
        mapping.prefault(0..mapping.len());
        let words = Mapped(mapping);
        let inode = fstat(&invitation.order)
            .map_err(std::io::Error::from)?
            .st_ino;
        if lane::terms(&words) != Some(terms) || lane::order(&words) != inode {
            return Err(SetUpError::Foreign);
        }
        let commit_by = lane::commit_by(&words);
        Ok(Queue {
            order,
            producer: Producer::new(words, terms),
            bell: invitation.bell,
            next_request_id: 1,
            wake_above: u64::from(terms.slot_count) / 2,
            rung: 0,
            waiting: 0,
            spin: Duration::from_micros(20),
            answer: WordBuffer::default(),
            commit_by,
            process: ForkMark::new(),
        })
    }

    /// Maps a lane of which nothing is known but what stands in it.
    pub fn join_lane(order: OwnedFd, lane: OwnedFd, bell: UnixStream) -> Result<Self, SetUpError> {
        let len = fstat(&lane).map_err(std::io::Error::from)?.st_size;
        let mapping = Mapping::reader_writer(&lane, len.unsigned_abs())?;
        let is_long = mapping.len() >= trefoil_region::PAGE_LEN;
        let terms = is_long.then(|| lane::terms(&Mapped(mapping))).flatten();
        Queue::join(Invitation {
            order,
            lane,
            bell,
            terms: terms.ok_or(SetUpError::Foreign)?,
        })
    }

    /// How long to look for an answer before sleeping; no longer than its timeout. Whether
    /// the server is gone is found out after that.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
    }

    /// What commits requests of this queue.
    pub fn commit_by(&self) -> CommitBy {
        self.commit_by
    }

    /// What requests are called from now on: this, then one more each. For who places
    /// requests for somebody that numbers them.
    pub fn set_next_request_id(&mut self, id: u64) {
        self.next_request_id = id;
    }

    /// What can be waited for until the server rings, or is gone; see [`Queue::set_waits`].
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// Says that this client is about to sleep until the bell rings, or does not any more. It
    /// has to look once more between that and its sleep: the server rings for what comes
    /// later. `false`: the server is gone, or this is a fork's child.
    pub fn set_waits(&mut self, waits: bool) -> bool {
        if self.process.is_child() {
            return false;
        }
        if (self.waiting % 2 == 1) != waits {
            self.announce();
        }
        waits || bell::silence(&self.bell) == Peer::Alive
    }

    /// Whether the server takes nothing more of this client.
    pub fn is_closed(&self) -> bool {
        let turn = lane::turn(self.producer.words());
        matches!(turn, Some(lane::Turn::Closed(_)) | None)
    }

    /// Puts a request into its place. Where publication commits, a nilext one (whose answer
    /// does not depend on its execution) is done with that; nobody is woken for it unless
    /// the lane is half full. Where the server commits, [`Queue::committed`] waits for it.
    /// The answer to any other request is to be taken by [`Queue::answer`]; its slot is held
    /// until then.
    ///
    /// An error says that the request is not executed, now or later.
    #[inline]
    pub fn submit(&mut self, request: &[u8], nilext: bool) -> Result<Committed, Refused> {
        if self.process.is_child() {
            return Err(Refused::OtherProcess);
        }
        let id = self.next_request_id;
        let mut attempts = 0;
        let committed = loop {
            attempts += 1;
            match self.producer.submit(&self.order, id, request, nilext) {
                Ok(committed) => break committed,
                Err(Refused::Skipped) if attempts < ATTEMPTS_MAX => {}
                Err(refused) => {
                    if refused == Refused::Full {
                        self.wake_server();
                    }
                    return Err(refused);
                }
            }
        };
        self.next_request_id += 1;
        let is_awaited = !nilext || self.commit_by == CommitBy::Acknowledgement;
        if is_awaited || self.producer.pending(self.wake_above) > self.wake_above {
            self.wake_server();
        }
        Ok(committed)
    }

    /// Waits until a request is committed, and with it all earlier ones of this client.
    /// After an error, nobody knows whether it is executed, now or in a later life of a
    /// durable queue.
    pub fn committed(&mut self, request: Committed, timeout: Duration) -> Result<(), NoAnswer> {
        match self.commit_by {
            CommitBy::Publication => Ok(()),
            CommitBy::Acknowledgement => self.wait(timeout, |producer| {
                producer.is_acknowledged(request.sequence)
            }),
        }
    }

    /// Whether a request is committed, without waiting.
    #[inline]
    pub fn is_committed(&mut self, request: Committed) -> bool {
        self.commit_by == CommitBy::Publication || self.producer.is_acknowledged(request.sequence)
    }

    /// Whether a request is executed, without waiting.
    #[inline]
    pub fn is_executed(&mut self, request: Committed) -> bool {
        self.producer.is_executed(request.sequence)
    }

    /// Rings the bell of a server that sleeps, once for each sleep.
    pub(crate) fn wake_server(&mut self) {
        let words = self.producer.words();
        words.fence_full();
        let number = lane::sleeping(words);
        if number % 2 == 1 && number != self.rung {
            self.rung = number;
            bell::ring(&self.bell);
        }
    }

    /// Whether there is room for another request.
    #[inline]
    pub fn has_room(&mut self) -> bool {
        self.producer.has_room()
    }

    /// Whether the server has gone. A look at a socket: not for each request. For a fork's
    /// child it has: the bell rings for its parent.
    pub fn is_server_gone(&self) -> bool {
        self.process.is_child() || bell::silence(&self.bell) == Peer::Gone
    }

    /// Waits for the answer to a request that was not nilext.
    pub fn answer(&mut self, to: Committed, timeout: Duration) -> Result<&[u8], NoAnswer> {
        self.wait(timeout, |producer| producer.is_executed(to.sequence))?;
        match self.producer.take_answer(to.sequence, &mut self.answer) {
            Some(()) => Ok(self.answer.bytes()),
            None => Err(NoAnswer::NotOwed),
        }
    }

    /// Does without an answer: its slot is free when the request is executed.
    pub fn forget(&mut self, to: Committed) {
        self.producer.forget_answer(to.sequence);
    }

    /// Requests of this client that are committed and not executed.
    pub fn pending(&mut self) -> u64 {
        self.producer.pending(0)
    }

    /// Waits until everything that this client has committed is executed.
    pub fn settle(&mut self, timeout: Duration) -> Result<(), NoAnswer> {
        if !self.process.is_child() {
            self.wake_server();
        }
        self.wait(timeout, |producer| producer.pending(0) == 0)
    }

    /// Waits until the next slot is free, as after [`Refused::Full`]. An answer that was
    /// neither taken nor forgotten holds its slot: then this times out.
    pub fn wait_for_room(&mut self, timeout: Duration) -> Result<(), NoAnswer> {
        self.wait(timeout, Producer::has_room)
    }

    /// Spins, then sleeps until the server rings.
    fn wait(
        &mut self,
        timeout: Duration,
        is_done: impl Fn(&mut Producer<Mapped>) -> bool,
    ) -> Result<(), NoAnswer> {
        if self.process.is_child() {
            return Err(NoAnswer::OtherProcess);
        }
        let start = Instant::now();
        let spin = self.spin.min(timeout);
        let mut looks = 0u32;
        loop {
            if is_done(&mut self.producer) {
                return Ok(());
            }
            looks += 1;
            std::hint::spin_loop();
            if looks.is_multiple_of(LOOKS) && start.elapsed() >= spin {
                break;
            }
        }
        loop {
            self.announce();
            let mut is_done_now = is_done(&mut self.producer);
            let left = timeout.saturating_sub(start.elapsed());
            let mut peer = Peer::Alive;
            if !is_done_now {
                // Also who has no time left learns that nobody will answer.
                if !left.is_zero() {
                    bell::wait(&[&self.bell], left, |_| {});
                }
                peer = bell::silence(&self.bell);
                is_done_now = is_done(&mut self.producer);
            }
            self.announce();
            if is_done_now {
                return Ok(());
            }
            if peer == Peer::Gone {
                return Err(NoAnswer::ServerGone);
            }
            if left.is_zero() {
                return Err(NoAnswer::TimedOut(timeout));
            }
        }
    }

    /// The next sleep, or its end.
    fn announce(&mut self) {
        self.waiting += 1;
        let words = self.producer.words();
        lane::set_waiting(words, self.waiting);
        words.fence_full();
    }
}

/// A fork's child may hold the same bell for long: the server hears of the end all the same.
impl Drop for Queue {
    fn drop(&mut self) {
        if !self.process.is_child() {
            let _ = rustix::net::shutdown(&self.bell, Shutdown::Both);
        }
    }
}
