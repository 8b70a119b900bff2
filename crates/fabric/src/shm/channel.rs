//! Requests and answers through the rings of one client.
//!
//! Everything that is sent or received passes through private memory; no
//! system call but for ringing the bell of a server that sleeps.

use super::socket;
use crate::port::{Closed, SendError, Token};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;
use trefoil_client_core::touch::TouchBatch;
use trefoil_layout::message::{Answer, MESSAGE_LEN_MAX, Request, RequestHead, Slots, parse_answer};
use trefoil_layout::ring::{self, Consumer, Geometry, Producer};
use trefoil_layout::words::Words;
use trefoil_region::{Mapping, WordBuffer};

/// The message path to one backend.
#[derive(Debug)]
pub struct Channel {
    pub(super) rings: Mapping,
    pub(super) socket: UnixStream,
    requests: Producer,
    pub(super) answers: Consumer,
    outgoing: WordBuffer,
    incoming: WordBuffer,
    next_token: u64,
    /// Requests that are answered, and their answers so far.
    awaited: u64,
    answered: u64,
    /// Number of the server's sleep that was ended by this client's bell.
    rung: u64,
    /// Unread bytes of requests at which even a touch wakes the server.
    wake_above: u64,
    /// How long to spin before sleeping.
    pub(super) spin: Duration,
    /// What was last announced as *waiting*.
    pub(super) waiting: AtomicU64,
    pub(super) closed: AtomicBool,
    /// An answer could not be understood: nothing is known of what was executed.
    broken: AtomicBool,
}

/// Whether a request is worth waking a server that sleeps.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wake {
    Now,
    WhenHalfFull,
}

impl Channel {
    pub(super) fn new(
        rings: Mapping,
        geometry: Geometry,
        socket: UnixStream,
        spin: Duration,
    ) -> Self {
        let mut buffer = WordBuffer::default();
        buffer.prepare(MESSAGE_LEN_MAX);
        Channel {
            rings,
            socket,
            requests: Producer::requests(geometry),
            answers: Consumer::answers(geometry),
            outgoing: buffer.clone(),
            incoming: buffer,
            next_token: 1,
            awaited: 0,
            answered: 0,
            rung: 0,
            wake_above: u64::from(geometry.request_len()) / 2,
            spin,
            waiting: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            broken: AtomicBool::new(false),
        }
    }

    /// Sends a request to the backend that was chosen by this configuration, and
    /// wakes the server if it sleeps. The answer repeats `token`.
    #[inline]
    pub fn send(
        &mut self,
        token: Token,
        config_id: u32,
        request: &Request<'_>,
    ) -> Result<(), SendError> {
        self.push(token, config_id, request, Wake::Now)?;
        self.awaited += 1;
        Ok(())
    }

    /// The same with a token of the channel's: for those who send nothing else.
    pub fn send_next(&mut self, config_id: u32, request: &Request<'_>) -> Result<Token, SendError> {
        let token = Token(self.next_token);
        self.send(token, config_id, request)?;
        self.next_token += 1;
        Ok(token)
    }

    /// Whether every request has been answered, and so executed.
    pub fn is_settled(&self) -> bool {
        self.answered >= self.awaited || self.is_closed()
    }

    /// Reports items that were read. What does not fit is dropped. A server that sleeps
    /// is left asleep until the ring is half full; it looks by itself ten times a
    /// second.
    pub fn touch(&mut self, partition: usize, batch: TouchBatch<'_>) {
        let Ok(partition) = u16::try_from(partition) else {
            return;
        };
        let request = Request::Touch {
            partition,
            window_id: batch.window_id,
            slots: Slots::from(batch.slots),
            names: Slots::from(batch.names),
        };
        // The window id says all about them, and nobody answers.
        let _ = self.push(Token(0), 0, &request, Wake::WhenHalfFull);
    }

    #[inline]
    fn push(
        &mut self,
        token: Token,
        config_id: u32,
        request: &Request<'_>,
        wake: Wake,
    ) -> Result<(), SendError> {
        let len = request.encoded_len();
        if len > MESSAGE_LEN_MAX {
            return Err(SendError::TooLarge);
        }
        if self.is_closed() {
            return Err(SendError::Closed);
        }
        let message = self.outgoing.prepare(len);
        // The padding of the last word is sent along: keep it clean.
        if let Some(last) = message.last_mut() {
            *last = 0;
        }
        let head = RequestHead {
            id: token.0,
            config_id,
        };
        request.encode(head, self.outgoing.bytes_mut());
        let words = self.rings.words();
        let Ok(pushed) = self.requests.push(&words, self.outgoing.words(), len) else {
            return Err(self.breaks().into());
        };
        let wake = match wake {
            Wake::WhenHalfFull if pushed => self.is_half_full()?,
            Wake::Now | Wake::WhenHalfFull => true,
        };
        if wake {
            self.wake_server(|_| true);
        }
        if !pushed {
            return Err(SendError::Full);
        }
        Ok(())
    }

    #[inline]
    fn is_half_full(&mut self) -> Result<bool, Closed> {
        if self.requests.used_max() <= self.wake_above {
            return Ok(false);
        }
        match self.requests.used(&self.rings.words()) {
            Ok(used) => Ok(used > self.wake_above),
            Err(_) => Err(self.breaks()),
        }
    }

    /// Rings the bell of a server that sleeps, once for each sleep, if `when`
    /// says so; it is told whether the server waits for room in the answer ring.
    #[inline]
    fn wake_server(&mut self, when: impl FnOnce(bool) -> bool) {
        let words = self.rings.words();
        words.fence_full();
        let (number, blocked) = ring::sleeping(&words);
        if number % 2 == 1 && number != self.rung && when(blocked) {
            self.rung = number;
            socket::ring(&self.socket);
        }
    }

    /// Hands every answer that has arrived to `on` and returns how many.
    #[inline]
    pub fn poll(&mut self, mut on: impl FnMut(Token, Answer<'_>)) -> Result<usize, Closed> {
        let words = self.rings.words();
        // Before the answers: then they are all there are.
        let has_left = ring::has_left(&words);
        let mut count = 0;
        loop {
            let len = match self
                .answers
                .pop(&words, self.incoming.prepare(MESSAGE_LEN_MAX))
            {
                Ok(Some(len)) => len,
                Ok(None) => break,
                Err(_) => return Err(self.breaks()),
            };
            let Ok((id, answer)) = parse_answer(&self.incoming.bytes()[..len]) else {
                return Err(self.breaks());
            };
            count += 1;
            self.answered += 1;
            on(Token(id), answer);
        }
        if self.answers.release(&words) {
            self.wake_server(|blocked| blocked);
        } else if self.is_closed() || has_left {
            self.close();
            let is_settled = has_left && !self.broken.load(Ordering::Relaxed);
            return Err(Closed { is_settled });
        }
        Ok(count)
    }

    /// Whether a poll would deliver something.
    #[inline(always)]
    pub fn has_answer(&self) -> bool {
        self.answers.has_message(&self.rings.words())
    }

    /// Whether the server is known to be gone. Found out by who waits.
    #[inline(always)]
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Whether the server has left in order. Seen without a system call.
    #[inline(always)]
    pub fn has_left(&self) -> bool {
        ring::has_left(&self.rings.words())
    }

    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    #[cold]
    fn breaks(&self) -> Closed {
        self.broken.store(true, Ordering::Relaxed);
        self.close();
        Closed::LOST
    }
}
