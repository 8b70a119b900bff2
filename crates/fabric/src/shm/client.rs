//! The rings of one client, as the target serves them.
//!
//! The client may write anything into the object at any time. So every
//! message is copied to private memory before it is looked at, cursors are
//! believed only as far as `layout::ring` checks them, and a turn does a
//! bounded amount of work. The object is the server's: made, sealed, charged
//! to the backend's budget and given back by it.

use super::socket;
use super::target::Counters;
use crate::target::{AnswerSink, ClientId, Service};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_layout::message::{ErrorCode, MESSAGE_LEN_MAX, Request, parse_request, request_id};
use trefoil_layout::ring::{self, Consumer, Geometry, Producer, RingBroken};
use trefoil_layout::words::Words;
use trefoil_region::{HugePages, Mapping, MappingError, MemoryObject, ObjectError, WordBuffer};

/// Messages of one client that are executed before others get their turn.
const TURN_MESSAGE_COUNT_MAX: usize = 32;
/// Bytes of one client's messages, likewise.
const TURN_LEN_MAX: usize = 128 * 1024;
/// Turns of a client that has left: enough for a ring full of the shortest messages,
/// and an end if somebody goes on writing.
const LAST_TURN_COUNT_MAX: usize = 256;

/// Why a client gets no rings. It uses RPC instead.
#[derive(Debug, thiserror::Error)]
pub(super) enum RingsError {
    #[error("the backend's memory limit has no room for the rings")]
    Budget,
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error(transparent)]
    Mapping(#[from] MappingError),
}

/// Memory that is charged to a service until it is dropped.
struct Charge {
    service: Arc<dyn Service>,
    bytes: u64,
}

impl Charge {
    fn new(service: &Arc<dyn Service>, bytes: u64) -> Result<Self, RingsError> {
        if !service.charge(bytes) {
            return Err(RingsError::Budget);
        }
        Ok(Charge {
            service: Arc::clone(service),
            bytes,
        })
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.service.release(self.bytes);
    }
}

/// The shared object of one client's rings.
pub(super) struct Rings {
    mapping: Mapping,
    object: MemoryObject,
    charge: Charge,
    geometry: Geometry,
    /// What the client may still read, for as long as it likes: its last answers, and that
    /// they are the last.
    left: Option<Left>,
}

#[derive(Clone, Copy)]
enum Left {
    Answers,
    Word,
}

impl Rings {
    pub(super) fn create(
        geometry: Geometry,
        service: &Arc<dyn Service>,
    ) -> Result<Self, RingsError> {
        let len = geometry.object_len();
        let charge = Charge::new(service, len)?;
        let object = MemoryObject::create("trefoil-rings", len, len, HugePages::Off)?;
        object.populate(0..len)?;
        let mapping = Mapping::owner(&object)?;
        ring::initialise(&mapping.words());
        Ok(Rings {
            mapping,
            object,
            charge,
            geometry,
            left: None,
        })
    }

    pub(super) fn descriptor(&self) -> BorrowedFd<'_> {
        self.object.as_fd()
    }
}

impl Drop for Rings {
    fn drop(&mut self) {
        // The client may keep its mapping for as long as it likes; the memory goes.
        let from = match self.left {
            None => 0,
            Some(Left::Word) => self.geometry.requests_offset(),
            Some(Left::Answers) => {
                let _ = self
                    .object
                    .punch(self.geometry.requests_offset()..self.geometry.answers_offset());
                return;
            }
        };
        let _ = self.object.punch(from..self.object.len());
    }
}

/// Private memory that one poller lends to whichever client has its turn.
pub(super) struct Buffers {
    request: WordBuffer,
    answer: WordBuffer,
    scratch: WordBuffer,
}

impl Buffers {
    pub(super) fn new() -> Self {
        let mut buffer = WordBuffer::default();
        buffer.prepare(MESSAGE_LEN_MAX);
        Buffers {
            request: buffer.clone(),
            answer: buffer.clone(),
            scratch: buffer,
        }
    }
}

/// What a turn did.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Turn {
    /// Messages that were answered.
    pub(super) answered: usize,
    /// Messages that want no answer.
    pub(super) silent: usize,
}

/// Counts a client as open. The last field of [`Client`]: when the count has
/// fallen, everything else is given back.
struct Open(Arc<Counters>);

impl Open {
    fn new(counters: Arc<Counters>) -> Self {
        counters.rings_open.fetch_add(1, Ordering::Relaxed);
        Open(counters)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.rings_open.fetch_sub(1, Ordering::Release);
    }
}

/// One client with rings.
pub(super) struct Client {
    id: ClientId,
    rings: Rings,
    socket: UnixStream,
    requests: Consumer,
    answers: Producer,
    /// The client's sleep that was ended by a bell.
    rung: u64,
    /// Since when it has its rings, until it first uses them.
    silent_since: Option<Instant>,
    counters: Arc<Counters>,
    _open: Open,
}

impl Client {
    pub(super) fn new(
        id: ClientId,
        rings: Rings,
        geometry: Geometry,
        socket: UnixStream,
        counters: Arc<Counters>,
    ) -> Self {
        Client {
            id,
            rings,
            socket,
            requests: Consumer::requests(geometry),
            answers: Producer::answers(geometry),
            rung: 0,
            silent_since: Some(Instant::now()),
            _open: Open::new(Arc::clone(&counters)),
            counters,
        }
    }

    pub(super) fn id(&self) -> ClientId {
        self.id
    }

    pub(super) fn socket(&self) -> &UnixStream {
        &self.socket
    }

    /// Executes some of the waiting requests. A request is taken only while
    /// the longest possible answer fits, so an answer always has a place and a
    /// client that does not read its answers waits, alone.
    #[inline]
    pub(super) fn turn(&mut self, buffers: &mut Buffers) -> Result<Turn, RingBroken> {
        if !self.requests.has_message(&self.rings.mapping.words()) {
            return Ok(Turn::default());
        }
        self.busy_turn(buffers)
    }

    /// How long it has had its rings, if it has never used them.
    pub(super) fn silence(&self) -> Option<Duration> {
        self.silent_since.map(|since| since.elapsed())
    }

    fn busy_turn(&mut self, buffers: &mut Buffers) -> Result<Turn, RingBroken> {
        self.silent_since = None;
        let words = self.rings.mapping.words();
        let mut turn = Turn::default();
        let mut bytes = 0;
        while turn.answered + turn.silent < TURN_MESSAGE_COUNT_MAX && bytes < TURN_LEN_MAX {
            if !self.answers.has_room(&words, MESSAGE_LEN_MAX)? {
                break;
            }
            let into = buffers.request.prepare(MESSAGE_LEN_MAX);
            let Some(len) = self.requests.pop(&words, into)? else {
                break;
            };
            bytes += len;
            let answered = {
                let service = &*self.rings.charge.service;
                execute(service, self.id, buffers, len, &self.counters)?
            };
            if answered {
                let message = &buffers.answer;
                let pushed = self
                    .answers
                    .push(&words, message.words(), message.bytes().len())?;
                assert!(pushed, "room for the longest answer was checked");
                turn.answered += 1;
            } else {
                turn.silent += 1;
            }
        }
        self.requests.release(&words);
        if turn.answered > 0 {
            self.wake();
        }
        Ok(turn)
    }

    /// Executes what a client has sent before it left: its last touches and copies.
    /// Nobody reads the answers.
    pub(super) fn finish(mut self, buffers: &mut Buffers) {
        for _ in 0..LAST_TURN_COUNT_MAX {
            match self.turn(buffers) {
                Ok(turn) if turn.answered + turn.silent > 0 => {}
                _ => return,
            }
        }
    }

    /// The server ends. Executes what was sent until now, and leaves the answers, with the
    /// word that there will be no more: so the client knows of each of its requests whether
    /// it was executed.
    pub(super) fn leave(mut self, buffers: &mut Buffers) {
        for _ in 0..LAST_TURN_COUNT_MAX {
            match self.turn(buffers) {
                Ok(turn) if turn.answered + turn.silent > 0 => {}
                Ok(_) => break,
                Err(_) => return,
            }
        }
        let words = self.rings.mapping.words();
        ring::set_left(&words);
        self.rings.left = Some(match self.answers.used(&words) {
            Ok(0) => Left::Word,
            _ => Left::Answers,
        });
    }

    /// Rings the bell of a client that sleeps, once for each sleep.
    fn wake(&mut self) {
        let words = self.rings.mapping.words();
        words.fence_full();
        let number = ring::waiting(&words);
        if number % 2 == 1 && number != self.rung {
            self.rung = number;
            self.counters.bells_rung.fetch_add(1, Ordering::Relaxed);
            socket::ring(&self.socket);
        }
    }

    /// Whether a turn would do something (closing a broken ring included).
    pub(super) fn is_ready(&mut self) -> bool {
        let words = self.rings.mapping.words();
        self.requests.has_message(&words)
            && self
                .answers
                .has_room(&words, MESSAGE_LEN_MAX)
                .unwrap_or(true)
    }

    /// Announces that the poller sleeps (odd number) or no longer does.
    pub(super) fn announce_sleep(&mut self, number: u64) {
        let ready = self.is_ready();
        let words = self.rings.mapping.words();
        let blocked = !ready && self.requests.has_message(&words);
        ring::set_sleeping(&words, number, blocked);
    }
}

/// Executes the request in `buffers.request`; whether `buffers.answer` holds
/// an answer to send.
fn execute(
    service: &dyn Service,
    client: ClientId,
    buffers: &mut Buffers,
    len: usize,
    counters: &Counters,
) -> Result<bool, RingBroken> {
    let bytes = &buffers.request.bytes()[..len];
    // Without an id there is nobody to answer.
    let id = request_id(bytes).ok_or(RingBroken)?;
    let mut sink = AnswerSink::new(id, &mut buffers.answer, &mut buffers.scratch);
    counters.count_message();
    match parse_request(bytes) {
        Err(_) => {
            counters.malformed.fetch_add(1, Ordering::Relaxed);
            sink.error(ErrorCode::Malformed);
        }
        Ok((_, Request::Ping)) => sink.pong(),
        Ok((head, request)) => {
            let wants_answer = !matches!(request, Request::Touch { .. });
            // What the service was changing may be half done now, and whoever
            // goes on with that may acknowledge and vote for what it does not
            // hold. A backend that is gone is what the cell is made for.
            let ended = catch_unwind(AssertUnwindSafe(|| {
                service.execute(client, head.config_id, request, &mut sink);
            }));
            if ended.is_err() {
                eprintln!(
                    "trefoil: a request panicked inside the backend, whose memory may be half \
                     changed now; the process ends. The panic's message stands above: please \
                     report it."
                );
                std::process::abort();
            }
            if !wants_answer {
                return Ok(false);
            }
            if !sink.is_answered() {
                sink.error(ErrorCode::Internal);
            }
        }
    }
    Ok(true)
}
