//! What the worker knows of a client that is in, and of those that have parted.

use crate::memory::{self, MemoryError};
use crate::setup::Side;
use crate::wire::{Hello, encode_answer};
use std::collections::VecDeque;
use std::net::TcpStream;
use std::time::{Duration, Instant};
use trefoil_ordered::ProducerId;
use trefoil_verbs::{Connection, Region, SendFlags, VerbsError};

/// Clients that have parted and may come again; whoever parted first is forgotten first.
const PARTED_MAX: usize = 4096;

/// How long after the end of a connection the card may report what it took before.
pub(crate) const GRACE: Duration = Duration::from_millis(20);

/// Whether a look at what the card reports has shown all that a connection has received which
/// was closed at that time. What counts is when the look *began*: execution may take long.
pub(crate) fn is_drained(closed: Instant, looked: Instant) -> bool {
    looked.saturating_duration_since(closed) >= GRACE
}

/// One client's connection.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) producer: ProducerId,
    pub(crate) client_id: u64,
    /// Earlier attempts to come again are out of date.
    pub(crate) attempt_min: u64,
    pub(crate) connection: Connection,
    /// Its end is the connection's.
    pub(crate) control: TcpStream,
    /// The number of its last request that was taken.
    pub(crate) last: u64,
    /// Requests that the card has reported and that are not taken.
    pub(crate) pending: u64,
    /// It has sent nonsense: nothing more of it is taken.
    pub(crate) is_broken: bool,
    /// Since when nothing more is received of it.
    pub(crate) closed_since: Option<Instant>,
    window: usize,
    answers: Region,
    /// Answer buffers that the card does not use.
    free: Vec<u32>,
    /// Answers that wait for one.
    backlog: VecDeque<(u64, Vec<u8>)>,
}

impl Client {
    pub(crate) fn new(
        hello: &Hello,
        (client_id, last): (u64, u64),
        (side, control): (Side, TcpStream),
        window: u32,
    ) -> Self {
        let Side {
            connection,
            answers,
        } = side;
        Client {
            producer: hello.producer,
            client_id,
            attempt_min: hello.attempt.saturating_add(1),
            connection,
            control,
            last,
            pending: 0,
            is_broken: false,
            closed_since: None,
            window: window as usize,
            answers,
            free: (0..answer_count(window)).collect(),
            backlog: VecDeque::new(),
        }
    }

    /// Sends an answer, or keeps it until a buffer is free. `false`: more are under way than a
    /// client may be owed; it is to be parted from.
    pub(crate) fn answer(&mut self, number: u64, answer: &[u8], message: &mut Vec<u8>) -> bool {
        if self.closed_since.is_some() {
            return true;
        }
        if let (Some(buffer), true) = (self.free.last().copied(), self.backlog.is_empty()) {
            self.free.pop();
            return self.send(buffer, number, answer, message).is_ok();
        }
        self.backlog.push_back((number, answer.to_vec()));
        self.backlog.len() <= self.window
    }

    fn send(
        &self,
        buffer: u32,
        number: u64,
        answer: &[u8],
        message: &mut Vec<u8>,
    ) -> Result<(), VerbsError> {
        encode_answer(number, answer, message);
        memory::write(self.answers.words(), buffer, message);
        let how = SendFlags {
            wakes: true,
            is_signaled: true,
            immediate: None,
        };
        let part = memory::part(buffer, message.len());
        self.connection
            .send(buffer.into(), &self.answers, part, how)
    }

    /// The card has done with an answer buffer. `false` as of [`Client::answer`].
    pub(crate) fn sent(&mut self, buffer: u32, message: &mut Vec<u8>) -> bool {
        self.free.push(buffer);
        if self.closed_since.is_some() {
            return true;
        }
        while let Some(buffer) = self.free.last().copied()
            && let Some((number, answer)) = self.backlog.pop_front()
        {
            self.free.pop();
            if self.send(buffer, number, &answer, message).is_err() {
                return false;
            }
        }
        true
    }

    /// Whether the card has done with all answers.
    pub(crate) fn is_answered(&self) -> bool {
        self.closed_since.is_some()
            || self.backlog.is_empty()
                && self.free.len() == answer_count(self.window as u32) as usize
    }

    /// Whether it is closed, and all that the card has taken of it was executed, as a look
    /// shows that began then.
    pub(crate) fn is_over(&self, looked: Instant) -> bool {
        self.pending == 0
            && self
                .closed_since
                .is_some_and(|closed| is_drained(closed, looked))
    }

    /// Nothing more is received of it.
    pub(crate) fn close(&mut self) {
        if self.closed_since.is_none() {
            // A connection that cannot even be closed has broken by itself.
            let _ = self.connection.close();
            self.closed_since = Some(Instant::now());
        }
    }
}

/// Answer buffers of a client: as many as it may be owed, and as many again whose
/// acknowledgement the card has not reported yet.
pub(crate) fn answer_count(window: u32) -> u32 {
    2 * window
}

/// Memory for them.
pub(crate) fn answer_region(
    device: &trefoil_verbs::Device,
    window: u32,
) -> Result<Region, MemoryError> {
    Ok(memory::region(
        device,
        &memory::mapping(answer_count(window))?,
    )?)
}

/// A client that has parted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Former {
    pub(crate) producer: ProducerId,
    pub(crate) client_id: u64,
    pub(crate) attempt_min: u64,
    pub(crate) last: u64,
}

/// Those that may come again.
#[derive(Debug, Default)]
pub(crate) struct Parted(VecDeque<Former>);

impl Parted {
    pub(crate) fn push(&mut self, of: &Client) {
        if self.0.len() >= PARTED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(Former {
            producer: of.producer,
            client_id: of.client_id,
            attempt_min: of.attempt_min,
            last: of.last,
        });
    }

    pub(crate) fn find(&self, producer: ProducerId) -> Option<Former> {
        self.0.iter().find(|of| of.producer == producer).copied()
    }

    pub(crate) fn remove(&mut self, producer: ProducerId) {
        self.0.retain(|of| of.producer != producer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_before_the_end_of_the_grace_shows_nothing_however_late_it_is_asked() {
        let closed = Instant::now();
        assert!(!is_drained(closed, closed - GRACE));
        assert!(!is_drained(closed, closed + GRACE / 2));
        assert!(is_drained(closed, closed + GRACE));
    }
}
