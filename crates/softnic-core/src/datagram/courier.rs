//! The client's side: sends requests, asks again for what does not come, puts answers
//! together.
//!
//! # Calling order
//!
//! ```text
//! ask(ask)                           queued
//! next_payload(now, &mut payload)    until false: each one is a datagram
//! take_left(|ask| …)                 what does not get through: the stream carries it
//! handle(payload, now, |answer| …)   what came, opened; whole answers, as in a stream
//! due_ns()                           when next_payload may have something again
//! ```
//!
//! Whoever waits looks at `due_ns` at the latest, and hands over what has come before it asks
//! for the next payload. Whoever does not wait may look much later: what lay in the socket until
//! then was no longer on its way, and what was lost meanwhile has not been asked again.

use super::coming::{Coming, Patch};
use super::piece::{
    Asked, PIECE_HEAD_LEN, Piece, REQUEST_LEN, decode_probe_answer, encode_probe, encode_request,
};
use super::silence::{Heard, Silence};
use super::{DATAGRAM_LEN_MIN, DATAGRAM_LEN_USUAL, Path, Window, datagram_len, payload_len};
use crate::limits::SESSION_PATIENCE_NS;
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
/// Where the end of an answer has come and something before it has not, that is asked for
/// after so much less patience: it is lost, or another way took longer.
const GAP_PATIENCE: u64 = 4;
/// What has not been answered for so many times the patience, and so long, does not get through:
/// by then it was asked three times, if anybody looked.
const GIVE_UP_PATIENCE: u64 = 4;
const GIVE_UP_TIMES: u32 = 3;
const GIVE_UP_MIN_NS: u64 = 100_000_000;
/// But before the session is given up for the same silence. Not much before: on ways of 75 ms the
/// answer to a second attempt takes 320 ms.
const GIVE_UP_MAX_NS: u64 = SESSION_PATIENCE_NS / 5 * 4;
/// The same before it is known how long answers take.
const GIVE_UP_FIRST_NS: u64 = 300_000_000;
/// Where others get through it has so many times as long.
const GIVE_UP_BESIDE: u64 = 4;
/// So many of those in a row, and no long datagram that has come: long ones do not get through.
const STRAYS_MAX: u32 = 3;
/// Ranges of one answer that are asked for by themselves; then all of it is.
const PATCH_COUNT_MAX: usize = 8;

/// A request under way.
#[derive(Debug)]
struct Pending {
    ask: Ask,
    asked_ns: u64,
    /// Its datagram as far as this request, or that of the answers as far as its own, may be
    /// longer than the shortest.
    may_be_long: bool,
    /// The last one; counts from 1.
    attempt: u32,
    /// Times that it was asked; two attempts at once are one.
    times: u32,
    /// When the last attempts were made, by their number.
    sent_ns: [u64; ATTEMPTS_KNOWN as usize],
    /// When it was sent last, or something of it came, if later.
    moved_ns: u64,
    /// The longest datagram that the last attempt is answered in.
    datagram_len: usize,
    /// What has come of one attempt.
    coming: Option<Box<Coming>>,
    /// Attempts at what was missing of it, or of one before.
    patches: Vec<Patch>,
    /// One of those has come to nothing: all is asked for anew, at once.
    is_unreadable: bool,
}

impl Pending {
    fn new(ask: Ask, now_ns: u64) -> Self {
        let mut pending = Pending {
            ask,
            asked_ns: now_ns,
            may_be_long: false,
            attempt: 0,
            times: 1,
            sent_ns: [0; ATTEMPTS_KNOWN as usize],
            moved_ns: now_ns,
            datagram_len: DATAGRAM_LEN_USUAL,
            coming: None,
            patches: Vec::new(),
            is_unreadable: false,
        };
        pending.send(now_ns);
        pending
    }

    /// What the attempt that was just made asks for: all, or what is missing. So long as one
    /// can tell them apart.
    fn asks(&mut self) -> Ask {
        let rest = match &self.coming {
            Some(coming) if self.patches.len() < PATCH_COUNT_MAX => coming
                .rest_of(&self.ask)
                .map(|(ask, range)| (ask, range, coming.attempt)),
            _ => None,
        };
        let Some((ask, range, of)) = rest else {
            return self.ask;
        };
        let attempt = self.attempt;
        self.patches.push(Patch { attempt, of, range });
        ask
    }

    fn send(&mut self, now_ns: u64) {
        self.attempt += 1;
        self.sent_ns[(self.attempt % ATTEMPTS_KNOWN) as usize] = now_ns;
        self.moved_ns = now_ns;
    }

    /// The next attempt.
    fn ask_again(&mut self, now_ns: u64) -> Asked {
        self.send(now_ns);
        Asked {
            attempt: self.attempt,
            datagram_len: self.datagram_len,
            ask: self.asks(),
        }
    }

    /// When an attempt was made that is not after the last one, if that is still known.
    fn sent_ns(&self, attempt: u32) -> Option<u64> {
        let is_known = attempt + ATTEMPTS_KNOWN > self.attempt;
        is_known.then(|| self.sent_ns[(attempt % ATTEMPTS_KNOWN) as usize])
    }
}

/// What a courier has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CourierCounts {
    /// Requests sent, those included that were sent again.
    pub sent: u64,
    /// Requests sent again.
    pub resent: u64,
    /// Of these, those for a part of an answer.
    pub patched: u64,
    /// Probes of the path sent.
    pub probes: u64,
    /// Pieces that nobody waited for.
    pub useless: u64,
    /// Requests that the stream carries instead.
    pub left: u64,
    /// Times that datagrams were found not to get through.
    pub silences: u64,
}

/// See the module.
#[derive(Debug)]
pub struct Courier {
    window: Window,
    path: Path,
    /// Solicited bytes under way.
    used: usize,
    waiting: VecDeque<Ask>,
    waiting_len: usize,
    /// Of those that wait, how many will be answered.
    waiting_count: usize,
    pending: HashMap<u64, Pending>,
    /// Ids in the order in which they are looked at; some are answered already.
    order: VecDeque<u64>,
    /// Second attempts, for the next datagram: two are seldom lost together.
    twice: Vec<Asked>,
    counts: CourierCounts,
    /// Requests for the stream.
    left: Vec<Ask>,
    silence: Silence,
    /// The last request that was asked in a silence: its copy is sent to try.
    sample: Option<Ask>,
    /// The probe that is to go with it.
    trial_probe: Option<u64>,
    /// When something was heard.
    heard_ns: u64,
    /// Before that nobody has to be given up.
    looks_at_ns: u64,
    /// Requests in a row that did not get through beside others that did.
    strays: u32,
    /// See [`Courier::take_unwatched`].
    is_unwatched: bool,
}

impl Courier {
    /// With this window of solicited bytes, and datagrams of the usual length.
    pub fn new(window: Window) -> Self {
        Courier::on(Path::usual(), window)
    }

    /// The same by a path whose length is tried out.
    pub fn on(path: Path, window: Window) -> Self {
        Courier {
            window,
            path,
            used: 0,
            waiting: VecDeque::new(),
            waiting_len: 0,
            waiting_count: 0,
            pending: HashMap::new(),
            order: VecDeque::new(),
            twice: Vec::new(),
            counts: CourierCounts::default(),
            left: Vec::new(),
            silence: Silence::default(),
            sample: None,
            trial_probe: None,
            heard_ns: 0,
            looks_at_ns: 0,
            strays: 0,
            is_unwatched: false,
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

    /// Solicited bytes under way, or waiting to be.
    pub fn used(&self) -> usize {
        self.used + self.waiting_len
    }

    /// The path, by now.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether datagrams do not get through, and it is not time to try: what is asked for goes by
    /// the stream as it is.
    pub fn leaves_all(&self, now_ns: u64) -> bool {
        self.silence.is_silent() && !self.silence.is_due(now_ns)
    }

    /// Whether datagrams do not get through: whatever is asked for goes by the stream.
    pub fn is_silent(&self) -> bool {
        self.silence.is_silent()
    }

    /// Tells what the stream is to carry; whether that is anything. Its answers come by the
    /// stream alone.
    pub fn take_left(&mut self, on: impl FnMut(Ask)) -> bool {
        let is_any = !self.left.is_empty();
        self.left.drain(..).for_each(on);
        is_any
    }

    /// Whether nobody has looked for so long that what would have been given up is asked again
    /// instead, since the last call: what the engine is thought to owe, it may not have heard.
    pub fn take_unwatched(&mut self) -> bool {
        std::mem::take(&mut self.is_unwatched)
    }

    /// Takes a request; touches are sent once and forgotten.
    pub fn ask(&mut self, ask: Ask) {
        if self.silence.is_silent() {
            let is_longer = |than: Ask| cost(&ask) >= cost(&than);
            let is_better = !self.silence.takes_long() || self.sample.is_none_or(is_longer);
            if ask.is_answered() && is_better {
                self.sample = Some(ask);
            }
            return self.leave(ask);
        }
        self.waiting_len += cost(&ask);
        self.waiting_count += usize::from(ask.is_answered());
        self.waiting.push_back(ask);
    }

    /// Requests that will be answered and are not yet.
    pub fn asked_count(&self) -> usize {
        self.pending.len() + self.waiting_count
    }

    /// Whether nothing is under way, or waits.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.waiting.is_empty()
    }

    /// Writes what goes into one more datagram; `false` if there is nothing to say now.
    pub fn next_payload(&mut self, now_ns: u64, payload: &mut Vec<u8>) -> bool {
        payload.clear();
        self.give_up_late(now_ns);
        if self.silence.is_silent() {
            return self.try_again(now_ns, payload);
        }
        let count_for = |path: &Path, times| payload_len(path.request_len_for(times)) / REQUEST_LEN;
        let mut count_max = count_for(&self.path, 1);
        let mut count = self.twice.len();
        // Those of this datagram fill so much of one together.
        let mut answers_len = 0;
        for asked in self.twice.drain(..) {
            encode_request(&asked, payload);
            self.counts.sent += 1;
            self.counts.resent += 1;
        }
        if self.used == 0 {
            self.window.begins(now_ns);
        }
        let is_little = self.pending.len() + self.waiting.len() <= TWICE_COUNT_MAX;
        // Those that are late go first: somebody waits for them longest.
        for _ in 0..self.order.len() {
            if count >= count_max {
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
            if !pending.is_unreadable {
                self.window.lost(now_ns);
                if pending.may_be_long {
                    self.path.lost(pending.datagram_len);
                }
                pending.times += 1;
            }
            count_max = count_max.min(count_for(&self.path, pending.times));
            pending.is_unreadable = false;
            pending.datagram_len = self.path.len_for(pending.times);
            let asked = pending.ask_again(now_ns);
            self.counts.patched += u64::from(asked.ask != pending.ask);
            encode_request(&asked, payload);
            if is_little && cost(&pending.ask) <= TWICE_LEN_MAX {
                // An attempt of its own: the engine looks again for it.
                let asked = pending.ask_again(now_ns);
                self.counts.patched += u64::from(asked.ask != pending.ask);
                self.twice.push(asked);
            }
            self.counts.sent += 1;
            self.counts.resent += 1;
            count += 1;
            answers_len += PIECE_HEAD_LEN + cost(&pending.ask);
            pending.may_be_long = payload.len().max(answers_len) > payload_len(DATAGRAM_LEN_MIN);
        }
        while count < count_max
            && let Some(ask) = self.waiting.front()
        {
            let cost = cost(ask);
            if self.used > 0 && self.used + cost > self.window.len() {
                break;
            }
            let ask = *ask;
            self.waiting.pop_front();
            self.waiting_len -= cost;
            self.waiting_count -= usize::from(ask.is_answered());
            let datagram_len = self.path.len();
            let attempt = 1;
            encode_request(
                &Asked {
                    attempt,
                    datagram_len,
                    ask,
                },
                payload,
            );
            self.counts.sent += 1;
            count += 1;
            if ask.is_answered() {
                self.used += cost;
                self.order.push_back(ask.id);
                let mut pending = Pending::new(ask, now_ns);
                pending.datagram_len = datagram_len;
                answers_len += PIECE_HEAD_LEN + cost;
                pending.may_be_long =
                    payload.len().max(answers_len) > payload_len(DATAGRAM_LEN_MIN);
                self.pending.insert(ask.id, pending);
            }
        }
        self.window.sent(self.used, now_ns);
        count > 0 || self.probe(now_ns, payload)
    }

    /// How long a request is asked by datagrams.
    fn give_up_ns(&self) -> u64 {
        let (round_trip_ns, _) = self.window.round_trips_ns();
        match round_trip_ns {
            0 => GIVE_UP_FIRST_NS,
            _ => {
                (GIVE_UP_PATIENCE * self.window.patience_ns()).clamp(GIVE_UP_MIN_NS, GIVE_UP_MAX_NS)
            }
        }
    }

    /// Leaves to the stream what does not get through.
    fn give_up_late(&mut self, now_ns: u64) {
        if now_ns < self.looks_at_ns {
            return;
        }
        // What is asked from now on has at least so long.
        let mut looks_at_ns = now_ns.saturating_add(GIVE_UP_MIN_NS);
        let (give_up_ns, heard_ns) = (self.give_up_ns(), self.heard_ns);
        let times_min = times_within(give_up_ns, self.window.patience_ns());
        let mut late = Vec::new();
        for (id, pending) in &mut self.pending {
            let at_ns = pending.asked_ns.saturating_add(give_up_ns);
            let at_ns = match heard_ns > pending.asked_ns {
                true => {
                    let beside_ns = GIVE_UP_BESIDE * give_up_ns;
                    // Unless the others have ceased, too.
                    let ceased_ns = heard_ns.saturating_add(GIVE_UP_MAX_NS);
                    let beside_ns = pending.asked_ns.saturating_add(beside_ns);
                    at_ns.max(beside_ns.min(ceased_ns))
                }
                false => at_ns,
            };
            if at_ns > now_ns {
                looks_at_ns = looks_at_ns.min(at_ns);
            } else if pending.times < times_min {
                // Nobody has looked when it was to be asked again: its time begins now.
                pending.asked_ns = now_ns;
                self.is_unwatched = true;
            } else {
                late.push((*id, pending.asked_ns));
            }
        }
        self.looks_at_ns = looks_at_ns;
        let Some(newest_ns) = late.iter().map(|(_, asked_ns)| *asked_ns).max() else {
            return;
        };
        // What was heard in the same moment was asked for before.
        if self.heard_ns <= newest_ns {
            return self.fall_silent(false, now_ns);
        }
        for (id, _) in late {
            if let Some(pending) = self.pending.remove(&id) {
                self.used -= cost(&pending.ask);
                self.leave(pending.ask);
                self.strays += 1;
            }
        }
        if self.strays >= STRAYS_MAX {
            self.fall_silent(true, now_ns);
        }
    }

    fn fall_silent(&mut self, takes_long: bool, now_ns: u64) {
        self.silence.begin(takes_long, now_ns);
        self.counts.silences += 1;
        // What it was says nothing of what it will be.
        self.window = self.window.renewed();
        self.strays = 0;
        self.sample = None;
        let pending = std::mem::take(&mut self.pending).into_values();
        let mut asks: Vec<Ask> = pending.map(|pending| pending.ask).collect();
        asks.sort_unstable_by_key(|ask| ask.id);
        asks.extend(self.waiting.drain(..));
        (self.used, self.waiting_len, self.waiting_count) = (0, 0, 0);
        self.order.clear();
        self.twice.clear();
        asks.into_iter().for_each(|ask| self.leave(ask));
    }

    fn leave(&mut self, ask: Ask) {
        self.counts.left += 1;
        self.left.push(ask);
    }

    /// In a silence: writes the copy of a request that nobody waits for, if one is due, then a
    /// probe.
    fn try_again(&mut self, now_ns: u64, payload: &mut Vec<u8>) -> bool {
        if let Some(number) = self.trial_probe.take() {
            encode_probe(number, payload_len(DATAGRAM_LEN_MIN), payload);
            self.counts.probes += 1;
            return true;
        }
        if !self.silence.is_due(now_ns) {
            return false;
        }
        let Some(ask) = self.sample.take() else {
            return false;
        };
        let asked = Asked {
            attempt: 1,
            datagram_len: self.path.len_for(u32::MAX),
            ask,
        };
        encode_request(&asked, payload);
        self.counts.sent += 1;
        let number = self.path.number_probe();
        self.trial_probe = Some(number);
        self.silence.tried(ask.id, number, now_ns);
        true
    }

    /// What was heard may end a silence.
    fn hear(&mut self, of: Heard, len: usize, now_ns: u64) {
        if !self.silence.is_silent() {
            return;
        }
        let is_long = len >= DATAGRAM_LEN_MIN;
        if self.silence.heard(of, is_long, now_ns) {
            (self.sample, self.trial_probe) = (None, None);
        }
    }

    /// Writes a probe, if one is due.
    fn probe(&mut self, now_ns: u64, payload: &mut Vec<u8>) -> bool {
        if self.pending.is_empty() {
            return false;
        }
        let patience_ns = self.window.patience_ns();
        let Some((number, len)) = self.path.next_probe(now_ns, patience_ns) else {
            return false;
        };
        encode_probe(number, payload_len(len), payload);
        self.counts.probes += 1;
        true
    }

    /// When something is asked again; `u64::MAX` if nothing is under way.
    pub fn due_ns(&self) -> u64 {
        let due = self.pending.values().map(|of| due_ns(of, &self.window));
        let due = due.min().map(|due| due.min(self.looks_at_ns));
        // Nobody waits for a probe alone.
        due.map_or(u64::MAX, |due| due.min(self.path.due_ns()))
    }

    /// Takes a payload in. Whole answers are told as they would stand in a stream.
    pub fn handle(
        &mut self,
        payload: &[u8],
        now_ns: u64,
        mut on: impl FnMut(&[u8]),
    ) -> Result<(), Malformed> {
        let len = datagram_len(payload.len());
        if let Some(number) = decode_probe_answer(payload) {
            self.hear(Heard::Probe(number), len, now_ns);
            self.path.answered(number, len);
            return Ok(());
        }
        self.path.arrived(len);
        self.heard_ns = self.heard_ns.max(now_ns);
        if len >= DATAGRAM_LEN_MIN {
            self.strays = 0;
        }
        let mut rest = payload;
        while !rest.is_empty() {
            let (piece, more) = Piece::decode(rest)?;
            rest = more;
            self.hear(Heard::Request(piece.id), len, now_ns);
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
        let is_watched = |sent_ns| is_watched(pending, &self.window, sent_ns, now_ns);
        let sent_ns = pending.sent_ns(piece.attempt);
        let took_ns = sent_ns.filter(|sent_ns| is_watched(*sent_ns));
        let took_ns = took_ns.map(|sent_ns| now_ns.saturating_sub(sent_ns));
        pending.moved_ns = now_ns;
        let mut patches = pending.patches.iter();
        if let Some(patch) = patches.find(|patch| patch.attempt == piece.attempt) {
            let coming = pending.coming.as_mut();
            let Some(coming) = coming.filter(|coming| coming.attempt == patch.of) else {
                // What it belongs to has been given up.
                self.counts.useless += 1;
                return Ok(());
            };
            if !patch.put(piece, coming) {
                pending.coming = None;
                pending.is_unreadable = true;
                return Ok(());
            }
            return self.conclude(piece.id, on);
        }
        if pending.coming.is_none() {
            if sent_ns.is_some() && pending.sent_ns(pending.attempt) > sent_ns {
                self.window.was_not_lost();
            }
            if let Some(rtt_ns) = took_ns {
                self.window.answered(rtt_ns, cost(&pending.ask), now_ns);
            }
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
        if piece.attempt > newest {
            let coming = Coming::new(piece.attempt, piece.total_len);
            pending.coming = Some(Box::new(coming));
        }
        let coming = pending.coming.as_mut().ok_or(wrong)?;
        if coming.total_len() != piece.total_len {
            return Err(wrong);
        }
        coming.take(piece.offset, piece.bytes);
        self.conclude(piece.id, on)
    }

    /// Tells an answer, if all of it is there.
    fn conclude(&mut self, id: u64, on: &mut impl FnMut(&[u8])) -> Result<(), Malformed> {
        let pending = self.pending.get(&id);
        let coming = pending.and_then(|pending| pending.coming.as_ref());
        if let Some(whole) = coming.and_then(|coming| coming.whole()) {
            on(whole);
            self.end(id);
        }
        Ok(())
    }

    fn end(&mut self, id: u64) {
        if let Some(pending) = self.pending.remove(&id) {
            self.used -= cost(&pending.ask);
        }
    }
}

fn due_ns(pending: &Pending, window: &Window) -> u64 {
    if pending.is_unreadable {
        return 0;
    }
    let times = 1 << (pending.times - 1).min(BACKOFF_MAX.trailing_zeros());
    let patience_ns = window.patience_ns().saturating_mul(times);
    let has_gaps = pending.coming.as_ref().is_some_and(|of| of.has_gaps());
    let since_ns = pending.moved_ns;
    since_ns.saturating_add(match has_gaps {
        true => patience_ns / GAP_PATIENCE,
        false => patience_ns,
    })
}

/// How often a request is asked within so long, two attempts at once counted as one, if somebody
/// looks whenever it is due; no more than [`GIVE_UP_TIMES`].
fn times_within(ns: u64, patience_ns: u64) -> u32 {
    let at_ns = |times: u32| patience_ns.saturating_mul((1 << (times - 1)) - 1);
    (2..=GIVE_UP_TIMES)
        .take_while(|times| at_ns(*times) < ns)
        .last()
        .unwrap_or(1)
}

/// Whether an answer that is seen now, to an attempt of that time, came about now. Who waits looks
/// when something is due, or a little later. Where nobody did it may have come at any time since
/// the last attempt was made: that says how long it took only where it was long before.
fn is_watched(pending: &Pending, window: &Window, sent_ns: u64, now_ns: u64) -> bool {
    let late_ns = window.patience_ns();
    let is_on_time = now_ns <= due_ns(pending, window).saturating_add(late_ns);
    let unwatched_ns = now_ns.saturating_sub(pending.moved_ns);
    is_on_time || unwatched_ns <= now_ns.saturating_sub(sent_ns) / 2
}

/// What an answer takes of the window.
fn cost(ask: &Ask) -> usize {
    match ask.is_answered() {
        true => ANSWER_LEN + ask.solicited() as usize,
        false => 0,
    }
}
