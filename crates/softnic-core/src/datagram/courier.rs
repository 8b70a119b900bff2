//! The client's side: sends requests, asks again for what does not come, puts answers
//! together.
//!
//! # Calling order
//!
//! ```text
//! ask(ask)                           queued
//! next_payload(now, &mut payload)    until false: each one is a datagram
//! handle(payload, now, |answer| …)   what came, opened; whole answers, as in a stream
//! due_ns()                           when next_payload may have something again
//! ```

use super::Window;
use super::piece::{PIECE_COUNT_MAX, PIECE_LEN, Piece, REQUEST_COUNT_MAX, encode_request};
use crate::wire::{ANSWER_LEN, Ask, Malformed};
use std::collections::{HashMap, VecDeque};

/// Patience grows with attempts, up to so many times what it was.
const BACKOFF_MAX: u32 = 64;
/// Attempts of which it is known when they were made: an answer says which one it belongs to.
/// So many that the first one is still known on a way that has become many times as long.
const ATTEMPTS_KNOWN: u32 = 16;
/// Where no more than so many requests are under way or wait, and of so few bytes each, one that has
/// to be asked again is asked twice at once: somebody waits for nothing else, and the next
/// patience would be longer. Among many, what is lost is a sign of a queue, and that would
/// feed it.
const TWICE_COUNT_MAX: usize = 4;
const TWICE_LEN_MAX: usize = 4096;
const PIECE_WORDS: usize = PIECE_COUNT_MAX.div_ceil(64);

/// A request under way.
#[derive(Debug)]
struct Pending {
    ask: Ask,
    /// The last one; counts from 1.
    attempt: u32,
    /// Times that it was asked; two attempts at once are one.
    times: u32,
    /// When the last attempts were made, by their number.
    sent_ns: [u64; ATTEMPTS_KNOWN as usize],
    /// When it was sent last, or something of it came, if later.
    moved_ns: u64,
    /// What has come of one attempt.
    coming: Option<Box<Coming>>,
}

impl Pending {
    fn new(ask: Ask, now_ns: u64) -> Self {
        let mut pending = Pending {
            ask,
            attempt: 0,
            times: 1,
            sent_ns: [0; ATTEMPTS_KNOWN as usize],
            moved_ns: now_ns,
            coming: None,
        };
        pending.send(now_ns);
        pending
    }

    fn send(&mut self, now_ns: u64) {
        self.attempt += 1;
        self.sent_ns[(self.attempt % ATTEMPTS_KNOWN) as usize] = now_ns;
        self.moved_ns = now_ns;
    }

    /// When an attempt was made that is not after the last one, if that is still known.
    fn sent_ns(&self, attempt: u32) -> Option<u64> {
        let is_known = attempt + ATTEMPTS_KNOWN > self.attempt;
        is_known.then(|| self.sent_ns[(attempt % ATTEMPTS_KNOWN) as usize])
    }
}

#[derive(Debug)]
struct Coming {
    attempt: u32,
    bytes: Vec<u8>,
    seen: [u64; PIECE_WORDS],
    left: usize,
}

/// What a courier has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CourierCounts {
    /// Requests sent, those included that were sent again.
    pub sent: u64,
    /// Requests sent again.
    pub resent: u64,
    /// Pieces that nobody waited for.
    pub useless: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Courier {
    window: Window,
    /// Solicited bytes under way.
    used: usize,
    waiting: VecDeque<Ask>,
    pending: HashMap<u64, Pending>,
    /// Ids in the order in which they are looked at; some are answered already.
    order: VecDeque<u64>,
    /// Second attempts, for the next datagram: two are seldom lost together.
    twice: Vec<(u32, Ask)>,
    counts: CourierCounts,
    /// Requests that were answered.
    answered: u64,
}

impl Courier {
    /// With this window of solicited bytes.
    pub fn new(window: Window) -> Self {
        Courier {
            window,
            used: 0,
            waiting: VecDeque::new(),
            pending: HashMap::new(),
            order: VecDeque::new(),
            twice: Vec::new(),
            counts: CourierCounts::default(),
            answered: 0,
        }
    }

    /// What it has counted.
    pub fn counts(&self) -> CourierCounts {
        self.counts
    }

    /// The window, by now.
    pub fn window(&self) -> &Window {
        &self.window
    }

    /// Whether one request was asked so often, and nothing was ever answered.
    pub fn is_unheard(&self, attempts: u32) -> bool {
        let is_given_up = |of: &Pending| of.times > attempts;
        self.answered == 0 && self.pending.values().any(is_given_up)
    }

    /// What is not answered, in no order.
    pub fn into_asks(self) -> impl Iterator<Item = Ask> {
        let pending = self.pending.into_values().map(|pending| pending.ask);
        pending.chain(self.waiting)
    }

    /// Takes a request; touches are sent once and forgotten.
    pub fn ask(&mut self, ask: Ask) {
        self.waiting.push_back(ask);
    }

    /// Whether nothing is under way, or waits.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.waiting.is_empty()
    }

    /// Writes what goes into one more datagram; `false` if there is nothing to say now.
    pub fn next_payload(&mut self, now_ns: u64, payload: &mut Vec<u8>) -> bool {
        payload.clear();
        let mut count = self.twice.len();
        for (attempt, ask) in self.twice.drain(..) {
            encode_request(attempt, &ask, payload);
            self.counts.sent += 1;
            self.counts.resent += 1;
        }
        let is_little = self.pending.len() + self.waiting.len() <= TWICE_COUNT_MAX;
        // Those that are late go first: somebody waits for them longest.
        for _ in 0..self.order.len() {
            if count == REQUEST_COUNT_MAX {
                return true;
            }
            let Some(id) = self.order.pop_front() else {
                break;
            };
            let Some(pending) = self.pending.get_mut(&id) else {
                continue;
            };
            self.order.push_back(id);
            if now_ns < due_ns(pending, &self.window) {
                continue;
            }
            self.window.lost(now_ns);
            pending.times += 1;
            pending.send(now_ns);
            encode_request(pending.attempt, &pending.ask, payload);
            if is_little && cost(&pending.ask) <= TWICE_LEN_MAX {
                // An attempt of its own: the engine looks again for it.
                pending.send(now_ns);
                self.twice.push((pending.attempt, pending.ask));
            }
            self.counts.sent += 1;
            self.counts.resent += 1;
            count += 1;
        }
        while count < REQUEST_COUNT_MAX
            && let Some(ask) = self.waiting.front()
        {
            let cost = cost(ask);
            if self.used > 0 && self.used + cost > self.window.len() {
                break;
            }
            let ask = *ask;
            self.waiting.pop_front();
            encode_request(1, &ask, payload);
            self.counts.sent += 1;
            count += 1;
            if ask.is_answered() {
                self.used += cost;
                self.order.push_back(ask.id);
                self.pending.insert(ask.id, Pending::new(ask, now_ns));
            }
        }
        self.window.sent(self.used, now_ns);
        count > 0
    }

    /// When something is asked again; `u64::MAX` if nothing is under way.
    pub fn due_ns(&self) -> u64 {
        let due = self.pending.values().map(|of| due_ns(of, &self.window));
        due.min().unwrap_or(u64::MAX)
    }

    /// Takes a payload in. Whole answers are told as they would stand in a stream.
    pub fn handle(
        &mut self,
        payload: &[u8],
        now_ns: u64,
        mut on: impl FnMut(&[u8]),
    ) -> Result<(), Malformed> {
        let mut rest = payload;
        while !rest.is_empty() {
            let (piece, more) = Piece::decode(rest)?;
            rest = more;
            self.take(&piece, now_ns, &mut on)?;
        }
        Ok(())
    }

    fn take(
        &mut self,
        piece: &Piece<'_>,
        now_ns: u64,
        on: &mut impl FnMut(&[u8]),
    ) -> Result<(), Malformed> {
        let Some(pending) = self.pending.get_mut(&piece.id) else {
            // Of an attempt that another one was faster than.
            self.counts.useless += 1;
            return Ok(());
        };
        let wrong = Malformed("an answer that does not belong to its request");
        let is_ours = (1..=pending.attempt).contains(&piece.attempt)
            && piece.total_len <= ANSWER_LEN + pending.ask.solicited() as usize;
        if !is_ours {
            return Err(wrong);
        }
        pending.moved_ns = now_ns;
        if pending.coming.is_none()
            && let Some(sent_ns) = pending.sent_ns(piece.attempt)
        {
            if pending.sent_ns(pending.attempt) > Some(sent_ns) {
                self.window.was_not_lost();
            }
            let rtt_ns = now_ns.saturating_sub(sent_ns);
            self.window.answered(rtt_ns, cost(&pending.ask), now_ns);
        }
        // The usual case: all of it.
        if piece.bytes.len() == piece.total_len {
            on(piece.bytes);
            self.end(piece.id);
            return Ok(());
        }
        let newest = pending.coming.as_ref().map_or(0, |coming| coming.attempt);
        if piece.attempt < newest {
            self.counts.useless += 1;
            return Ok(());
        }
        let mut coming = match pending.coming.take() {
            Some(coming) if coming.attempt == piece.attempt => coming,
            _ => Box::new(Coming {
                attempt: piece.attempt,
                bytes: vec![0; piece.total_len],
                seen: [0; PIECE_WORDS],
                left: piece.total_len.div_ceil(PIECE_LEN),
            }),
        };
        if coming.bytes.len() != piece.total_len {
            return Err(wrong);
        }
        let number = piece.offset / PIECE_LEN;
        let (word, bit) = (number / 64, 1 << (number % 64));
        if coming.seen[word] & bit == 0 {
            coming.seen[word] |= bit;
            coming.left -= 1;
            coming.bytes[piece.offset..piece.offset + piece.bytes.len()]
                .copy_from_slice(piece.bytes);
        }
        match coming.left {
            0 => {
                on(&coming.bytes);
                self.end(piece.id);
            }
            _ => pending.coming = Some(coming),
        }
        Ok(())
    }

    fn end(&mut self, id: u64) {
        if let Some(pending) = self.pending.remove(&id) {
            self.answered += 1;
            self.used -= cost(&pending.ask);
        }
    }
}

fn due_ns(pending: &Pending, window: &Window) -> u64 {
    let times = 1 << (pending.times - 1).min(BACKOFF_MAX.trailing_zeros());
    let since_ns = pending.moved_ns;
    since_ns.saturating_add(window.patience_ns().saturating_mul(times))
}

/// What an answer takes of the window.
fn cost(ask: &Ask) -> usize {
    match ask.is_answered() {
        true => ANSWER_LEN + ask.solicited() as usize,
        false => 0,
    }
}
