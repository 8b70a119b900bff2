//! The client's side of one session: requests under way by id, the window of solicited
//! bytes, and what is asked again.
//!
//! # Calling order
//!
//! ```text
//! new(options)                      HELLO is in output()
//! open(id, …)                       may follow at once
//! scan, vote, read, touch           are kept until flush(now): one frame for all of them
//! message                           is in messages() until put_messages, or take_messages
//! output(), sent(count)             what is to be written, and was
//! handle(input, now, |event| …)     what came; returns the bytes that are done with
//! is_silent(now)                    the engine owes something and says nothing: give it up
//! ```
//!
//! Reliability is the initiator's: an engine keeps nothing about a request once it is
//! answered. Over TCP nothing is lost but the whole session; whoever gives a session up
//! may ask the same of another one, because scans and reads change nothing.

use crate::choice::Situation;
use crate::limits::{
    ANSWERS_LEN_MAX, ASK_COUNT_MAX, DATA_LEN_MAX, MESSAGE_COUNT_MAX, MESSAGE_WINDOW_LEN,
    SESSION_PATIENCE_NS, WINDOW_LEN, WINDOW_LEN_MIN,
};
use crate::target::ReadRange;
use crate::way::Way;
use crate::wire::{
    self, ANSWER_LEN, ASK_LEN, Answer, Ask, Claim, ClaimStatus, Claimed, CounterValues, Frame,
    HEAD_LEN, Head, Hello, Kind, Malformed, Message, MessageStatus, Messaged, Open, OpenStatus,
    Opened, Refusal, Request, Status, Welcome,
};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::message::{LOOKUP_ANSWER_HEAD_LEN, MESSAGE_LEN_MAX, RequestHead};
use trefoil_layout::{KeyHash, Version};

/// What a scan solicits at first; then what answers teach.
const SOLICITED_FIRST: u32 = 4096;
const SOLICITED_MIN: u32 = 512;
/// Values of 64 KiB, with key and head.
const SOLICITED_USUAL_MAX: u32 = (64 << 10) + 1024;
/// How fast that follows shorter answers: by this part of the difference.
const SOLICITED_FALL: u32 = 64;
/// How fast what most items have follows longer ones: by this part of itself. Beside how it falls
/// that makes it what 15 of 16 have.
const MOST_RISE: u32 = 4;
/// A part of the window that is given to what the longest lately have, and to one scan in any case;
/// beyond it a scan solicits what most have. Little: a batch that follows one long item would spend
/// half of its window on a few scans.
const ROOMY_PART: u32 = 4;
/// How long answers take is smoothed over so many frames of them.
const ANSWERS_SMOOTHED: u64 = 4;
/// And how fast they follow one another, over so many times that some have come.
const GAPS_SMOOTHED: u64 = 8;
/// What took so many times as long as answers usually take was no gap between two of them.
const GAP_FACTOR_MAX: u64 = 8;
/// What is found is averaged over so many lookups.
const LENS_SMOOTHED: u32 = 16;
/// How often a scan whose data turn out longer is asked again.
const LONGER_COUNT_MAX: u8 = 3;
/// Touches that wait to be sent; further ones are lost.
const TOUCH_COUNT_MAX: usize = 4096;

/// How an initiator behaves.
#[derive(Clone, Copy)]
pub struct InitiatorOptions<'a> {
    /// Most solicited bytes under way.
    pub window: u32,
    /// How long an engine that owes answers may say nothing, in nanoseconds.
    pub patience_ns: u64,
    /// What shows who the client is; may be empty.
    pub token: &'a [u8],
}

impl Default for InitiatorOptions<'_> {
    fn default() -> Self {
        InitiatorOptions {
            window: WINDOW_LEN,
            patience_ns: SESSION_PATIENCE_NS,
            token: &[],
        }
    }
}

/// The session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// The engine does not let this client in.
    #[error("the engine refuses this client: {}", .0.code)]
    Refused(Refusal),
    /// The engine does not keep to the protocol.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// Why a request has brought nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The backend is not mapped under this handle any more: open it anew.
    Gone,
    /// The backend's lease has ended.
    Lapsed,
    /// The data are longer than an engine carries, or grew while they were asked for.
    TooLong {
        /// Bytes.
        len: u32,
    },
    /// The range is not advertised.
    OutOfWindow,
    /// What was read was being changed.
    Unstable,
}

/// What has come. Bytes are lent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event<'a> {
    /// Of [`Initiator::open`].
    Opened {
        /// Its id.
        id: u64,
        /// What came of it.
        result: Result<Opened, OpenStatus>,
    },
    /// Of [`Initiator::scan`].
    Scanned {
        /// Its id.
        id: u64,
        /// The backend's.
        handle: u32,
        /// What the index says.
        vote: IndexVote,
        /// What it points at, unjudged; empty unless the vote is `Present`.
        data: &'a [u8],
        /// Items at or below it are misses.
        flush_floor: Version,
        /// That the backend serves.
        config_id: u32,
        /// What a fill must find again; read before the bucket.
        stamp: u64,
    },
    /// Of [`Initiator::vote`].
    Voted {
        /// Its id.
        id: u64,
        /// The backend's.
        handle: u32,
        /// What the index says.
        vote: IndexVote,
        /// That the backend serves.
        config_id: u32,
        /// What a fill must find again; read before the bucket.
        stamp: u64,
    },
    /// Of [`Initiator::read`].
    Read {
        /// Its id.
        id: u64,
        /// The backend's.
        handle: u32,
        /// The bytes, unjudged.
        data: &'a [u8],
        /// Items at or below it are misses; read after the bytes.
        flush_floor: Version,
    },
    /// Of either: it was in vain.
    Unanswered {
        /// Its id.
        id: u64,
        /// The backend's.
        handle: u32,
        /// Why.
        why: Unanswered,
        /// Whether it was a scan.
        is_scan: bool,
    },
    /// Of [`Initiator::message`].
    Messaged {
        /// Its id.
        id: u64,
        /// The backend's.
        handle: u32,
        /// The answer with its head, unjudged; or why there is none.
        result: Result<&'a [u8], MessageStatus>,
    },
    /// Of [`Initiator::ask_counters`].
    Counters(&'a CounterValues),
    /// Of [`Initiator::claim`]: from now on the session is a [`crate::placing::Sender`]'s.
    Claimed(Result<Claimed, ClaimStatus>),
}

/// Hashes the ids of requests under way. These are the client's own: what an engine sends
/// is looked up, and never put in.
#[derive(Clone, Copy, Debug, Default)]
struct IdHash;

impl BuildHasher for IdHash {
    type Hasher = IdHasher;

    fn build_hasher(&self) -> IdHasher {
        IdHasher(0)
    }
}

struct IdHasher(u64);

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u64(&mut self, number: u64) {
        // The golden ratio's digits; the table looks at both ends of the result.
        let product = u128::from(self.0 ^ number) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = product as u64 ^ (product >> 64) as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// What a scan is for.
#[derive(Clone, Copy)]
struct Wanted {
    is_use: bool,
    is_vote: bool,
}

const WITH_DATA: Wanted = Wanted {
    is_use: false,
    is_vote: false,
};

#[derive(Clone, Copy, Debug)]
struct Pending {
    ask: Ask,
    /// Times that it was asked again with more room.
    longer_count: u8,
    asked_ns: u64,
}

/// A message that was not answered.
#[derive(Clone, Copy, Debug)]
struct Outstanding {
    handle: u32,
    /// Of the window for messages.
    cost: u32,
}

/// A frame of requests that was sent.
#[derive(Clone, Copy, Debug)]
struct Sent {
    at_ns: u64,
    /// Its last one's place among all requests.
    up_to: u64,
    /// Nothing else was under way.
    is_alone: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Initiator {
    welcome: Option<Welcome>,
    /// Most solicited bytes under way: ours, then the engine's.
    window: u32,
    /// The window of what carries the requests: this one, unless that has one of its own.
    carrier_window: u32,
    used: u32,
    patience_ns: u64,
    pending: HashMap<u64, Pending, IdHash>,
    /// Asked and not sent yet, in order; also in `pending` if they are answered.
    waiting: VecDeque<Ask>,
    touch_count: usize,
    opening_count: usize,
    /// Times that counters were asked for and have not come.
    counting_count: usize,
    /// A lane was asked for, and there is no answer yet.
    is_claiming: bool,
    /// Messages that were not answered, by their ids, and what they take of their window.
    outstanding: HashMap<u64, Outstanding, IdHash>,
    outstanding_len: u32,
    /// Frames that only the stream carries, and whole.
    messages: Vec<u8>,
    /// When the engine was heard last, or began to owe something.
    heard_ns: u64,
    /// How long answers take lately, from when they were asked for; 0 before the first.
    answer_ns: u64,
    /// How fast answers follow one another while more are owed; 0 before that was seen.
    gap_ns: u64,
    /// When the last ones came, while more are owed; 0 if none are.
    answered_ns: u64,
    /// What scans solicit: as much as the longest items lately have, while there is plenty of room.
    solicited: u32,
    /// Where there is less: what most have. The few that are longer are asked for again, which
    /// takes them a round trip; to reserve as much for all would take the others many.
    solicited_most: u32,
    /// How long what is found is, on average, times [`LENS_SMOOTHED`].
    usual_len: u32,
    /// Solicited bytes of what waits to be sent.
    waiting_len: u32,
    /// Frames that were sent and whose last answer has not come.
    sent: VecDeque<Sent>,
    /// Requests sent, and answered.
    sent_count: u64,
    answered_count: u64,
    /// How long the last frame of answers took from when it was sent for, and what of that is
    /// the way itself.
    round_trip_ns: u64,
    way: Way,
    out: Vec<u8>,
    out_begin: usize,
}

impl Initiator {
    /// A session that begins; its first words are in [`Initiator::output`].
    pub fn new(options: InitiatorOptions<'_>) -> Self {
        let mut out = Vec::new();
        let window = options.window.clamp(WINDOW_LEN_MIN, WINDOW_LEN);
        Hello::new(window, options.token).encode(&mut out);
        Initiator {
            welcome: None,
            window,
            carrier_window: window,
            used: 0,
            patience_ns: options.patience_ns,
            pending: HashMap::default(),
            waiting: VecDeque::new(),
            touch_count: 0,
            opening_count: 0,
            counting_count: 0,
            is_claiming: false,
            outstanding: HashMap::default(),
            outstanding_len: 0,
            messages: Vec::new(),
            heard_ns: 0,
            answer_ns: 0,
            gap_ns: 0,
            answered_ns: 0,
            solicited: SOLICITED_FIRST,
            solicited_most: SOLICITED_FIRST,
            usual_len: SOLICITED_FIRST * LENS_SMOOTHED,
            waiting_len: 0,
            sent: VecDeque::new(),
            sent_count: 0,
            answered_count: 0,
            round_trip_ns: 0,
            way: Way::UNKNOWN,
            out,
            out_begin: 0,
        }
    }

    /// The engine's first words, once they have come.
    pub fn welcome(&self) -> Option<Welcome> {
        self.welcome
    }

    /// Asks for a backend's handle.
    pub fn open(&mut self, id: u64, backend: u32, life: u64, now_ns: u64) {
        self.begin_to_owe(now_ns);
        self.opening_count += 1;
        Open { id, life, backend }.encode(&mut self.out);
    }

    /// Asks for a lane of an ordered queue. Nothing else is asked by this session.
    pub fn claim(&mut self, claim: &Claim, now_ns: u64) {
        self.begin_to_owe(now_ns);
        self.is_claiming = true;
        claim.encode(&mut self.out);
    }

    /// Asks for what the engine has counted.
    pub fn ask_counters(&mut self, now_ns: u64) {
        self.begin_to_owe(now_ns);
        self.counting_count += 1;
        wire::counters::encode_question(&mut self.out);
    }

    /// Asks for a key's bucket and what it points at. `id` is nobody else's until the
    /// answer has come. What is found is not used by that.
    pub fn scan(
        &mut self,
        id: u64,
        handle: u32,
        place: u8,
        hash: KeyHash,
        config_id: u32,
        now_ns: u64,
    ) {
        self.scan_for(WITH_DATA, (id, handle), (place, hash), config_id, now_ns);
    }

    /// The same, and what is found should not be evicted next: no touch has to say so.
    pub fn scan_as_use(
        &mut self,
        id: u64,
        handle: u32,
        place: u8,
        hash: KeyHash,
        config_id: u32,
        now_ns: u64,
    ) {
        let wanted = Wanted {
            is_use: true,
            ..WITH_DATA
        };
        self.scan_for(wanted, (id, handle), (place, hash), config_id, now_ns);
    }

    /// Asks what a key's bucket says, and not for what it points at: [`Event::Voted`].
    pub fn vote(
        &mut self,
        is_use: bool,
        (id, handle): (u64, u32),
        (place, hash): (u8, KeyHash),
        config_id: u32,
        now_ns: u64,
    ) {
        let wanted = Wanted {
            is_use,
            is_vote: true,
        };
        self.scan_for(wanted, (id, handle), (place, hash), config_id, now_ns);
    }

    fn scan_for(
        &mut self,
        Wanted { is_use, is_vote }: Wanted,
        (id, handle): (u64, u32),
        (place, hash): (u8, KeyHash),
        config_id: u32,
        now_ns: u64,
    ) {
        let request = Request::Scan {
            place,
            hash,
            config_id,
            solicited: match is_vote {
                true => 0,
                false => self.would_solicit(),
            },
            is_use,
            is_vote,
        };
        self.ask(
            Ask {
                id,
                handle,
                request,
            },
            now_ns,
        );
    }

    /// Asks for bytes. `false` if nobody carries so many, or not from there: nothing is
    /// asked then.
    pub fn read(&mut self, id: u64, handle: u32, range: &ReadRange, now_ns: u64) -> bool {
        let is_possible = range.len as usize <= DATA_LEN_MAX
            && range.len.is_multiple_of(8)
            && range.offset.is_multiple_of(8);
        if !is_possible {
            return false;
        }
        let request = Request::Read {
            region: range.region,
            partition: range.partition,
            window_id: range.window_id,
            offset: range.offset,
            len: range.len,
        };
        self.ask(
            Ask {
                id,
                handle,
                request,
            },
            now_ns,
        );
        true
    }

    /// Says that a hit has read an item; lost if too many wait.
    pub fn touch(&mut self, handle: u32, place: u8, hash: KeyHash) {
        if self.touch_count < TOUCH_COUNT_MAX {
            self.touch_count += 1;
            self.waiting.push_back(Ask {
                id: 0,
                handle,
                request: Request::Touch { place, hash },
            });
        }
    }

    /// Hands a message for a backend to the engine, by the stream. `false` if as much as may be is
    /// under way, or no message is so long: it is not sent then.
    pub fn message(
        &mut self,
        handle: u32,
        head: RequestHead,
        request: &trefoil_layout::message::Request<'_>,
        now_ns: u64,
    ) -> bool {
        let solicited = match request {
            // Most of what is found is no longer; what is, a call brings.
            trefoil_layout::message::Request::Lookup { .. } => {
                (self.solicited + LOOKUP_ANSWER_HEAD_LEN as u32).min(MESSAGE_LEN_MAX as u32)
            }
            _ => wire::message::MESSAGE_SOLICITED_MIN,
        };
        let len = request.encoded_len();
        if len > MESSAGE_LEN_MAX || self.outstanding.len() >= MESSAGE_COUNT_MAX {
            return false;
        }
        let cost = wire::message::cost(len, solicited);
        if self.outstanding_len + cost > MESSAGE_WINDOW_LEN {
            return false;
        }
        if self.outstanding.is_empty() && !self.owes() {
            self.heard_ns = now_ns;
        }
        let outstanding = Outstanding { handle, cost };
        let before = self.outstanding.insert(head.id, outstanding);
        assert!(before.is_none(), "two messages under way have one id");
        self.outstanding_len += cost;
        Message::encode((handle, solicited), head, request, &mut self.messages);
        true
    }

    /// Whether messages were not answered.
    pub fn owes_messages(&self) -> bool {
        !self.outstanding.is_empty()
    }

    /// Frames that wait to be sent, which no other carrier takes.
    pub fn messages(&self) -> &[u8] {
        &self.messages
    }

    /// Moves them to the end of what is sent by the stream, which another carrier leaves to it.
    pub fn take_messages(&mut self, into: &mut Vec<u8>) {
        into.append(&mut self.messages);
    }

    /// The same where there is no other carrier: they are in [`Initiator::output`] then.
    pub fn put_messages(&mut self) {
        self.out.append(&mut self.messages);
    }

    /// A backend may take as long as it likes for a message, which says nothing of the engine:
    /// one that owes nothing else and has been silent for a while is asked something that it
    /// answers at once.
    pub fn ask_whether_it_lives(&mut self, now_ns: u64) {
        let silent_ns = now_ns.saturating_sub(self.heard_ns);
        if self.outstanding.is_empty() || self.owes() || silent_ns < self.patience_ns / 2 {
            return;
        }
        self.begin_to_owe(now_ns);
        self.counting_count += 1;
        wire::counters::encode_question(&mut self.messages);
    }

    fn take_messaged(
        &mut self,
        body: &[u8],
        on: &mut impl FnMut(Event<'_>),
    ) -> Result<(), Malformed> {
        let Messaged { id, result } = Messaged::decode(body)?;
        let nobody = Malformed("an answer that nobody has asked for");
        let Outstanding { handle, cost } = self.outstanding.remove(&id).ok_or(nobody)?;
        self.outstanding_len -= cost;
        on(Event::Messaged { id, handle, result });
        Ok(())
    }

    fn ask(&mut self, ask: Ask, now_ns: u64) {
        self.begin_to_owe(now_ns);
        let pending = Pending {
            ask,
            longer_count: 0,
            asked_ns: now_ns,
        };
        self.pending.insert(ask.id, pending);
        self.waiting.push_back(ask);
        self.waiting_len += cost(&ask);
    }

    /// What is known for whoever is about to look a key up: of the stream, if nothing else
    /// carries requests.
    pub fn situation(&self) -> Situation {
        Situation {
            window: self.window as usize,
            used: (self.used + self.waiting_len) as usize,
            solicited: self.would_solicit() as usize,
            usual_len: (self.usual_len / LENS_SMOOTHED) as usize,
            round_trip_ns: self.round_trip_ns,
            way_ns: self.way.ns(),
        }
    }

    /// Another carrier takes over what is asked, with so long a window by now.
    pub fn set_carrier_window(&mut self, len: usize) {
        self.carrier_window = self.window.min(u32::try_from(len).unwrap_or(u32::MAX));
    }

    /// What a scan solicits now.
    fn would_solicit(&self) -> u32 {
        let longest = ANSWER_LEN as u32 + self.solicited;
        let under_way = self.used + self.waiting_len;
        let is_roomy = under_way.saturating_add(longest) <= self.carrier_window / ROOMY_PART;
        match under_way == 0 || is_roomy {
            true => self.solicited,
            false => self.solicited_most,
        }
    }

    fn begin_to_owe(&mut self, now_ns: u64) {
        if !self.owes() {
            self.heard_ns = now_ns;
        }
    }

    /// What another carrier did not get through is asked by the stream from now on: the engine
    /// has not heard it.
    pub fn asked_anew(&mut self, now_ns: u64) {
        self.heard_ns = self.heard_ns.max(now_ns);
    }

    /// Whether the engine owes something.
    pub fn owes(&self) -> bool {
        self.opening_count + self.counting_count > 0 || self.is_claiming || !self.pending.is_empty()
    }

    /// Whether it owes something, or will, besides `count` requests that were handed to another
    /// carrier.
    pub fn owes_beside(&self, count: usize) -> bool {
        self.opening_count + self.counting_count > 0
            || self.is_claiming
            || !self.outstanding.is_empty()
            || self.pending.len() > count + self.waiting_count()
    }

    /// Solicited bytes of the requests that wait to be sent.
    pub fn waiting_len(&self) -> u32 {
        self.waiting_len
    }

    /// Requests that wait to be sent and will be answered.
    pub fn waiting_count(&self) -> usize {
        self.waiting.len() - self.touch_count
    }

    /// Touches that wait to be sent.
    pub fn touch_count(&self) -> usize {
        self.touch_count
    }

    /// How long answers take lately, in nanoseconds; 0 before the first one.
    pub fn answer_ns(&self) -> u64 {
        self.answer_ns
    }

    /// Whether it is known how fast answers follow one another.
    pub fn has_gaps(&self) -> bool {
        self.gap_ns > 0
    }

    /// How long it takes until all that is asked for has come, in nanoseconds: what is asked
    /// next comes behind it.
    pub fn backlog_ns(&self) -> u64 {
        self.gap_ns.saturating_mul(self.pending.len() as u64)
    }

    /// Solicited bytes under way.
    pub fn solicited_under_way(&self) -> u32 {
        self.used
    }

    /// Whether the engine owes something and has said nothing for too long. To be asked
    /// when nothing more can be received: a pause of this process is not its silence.
    pub fn is_silent(&self, now_ns: u64) -> bool {
        self.owes() && now_ns.saturating_sub(self.heard_ns) >= self.patience_ns
    }

    /// When that would be; `u64::MAX` if it owes nothing.
    pub fn silent_at_ns(&self) -> u64 {
        match self.owes() {
            true => self.heard_ns.saturating_add(self.patience_ns),
            false => u64::MAX,
        }
    }

    /// Puts what waits into frames, as far as the window goes. Nothing is put before the
    /// engine has said how large that is.
    pub fn flush(&mut self, now_ns: u64) {
        let owes_nothing = self.used == 0 && self.opening_count + self.counting_count == 0;
        if owes_nothing && !self.is_claiming && !self.waiting.is_empty() {
            // However long these have waited here.
            self.heard_ns = self.heard_ns.max(now_ns);
        }
        while self.welcome.is_some() && !self.waiting.is_empty() {
            let begin = self.out.len();
            self.out.resize(begin + HEAD_LEN, 0);
            let (mut count, known_count) = (0, self.sent_count);
            let is_alone = self.sent.is_empty();
            while count < ASK_COUNT_MAX
                && let Some(ask) = self.waiting.front()
            {
                let cost = cost(ask);
                // One alone always goes: it fits any window.
                if self.used > 0 && self.used + cost > self.window {
                    break;
                }
                if !ask.is_answered() {
                    self.touch_count -= 1;
                }
                self.used += cost;
                self.waiting_len -= cost;
                self.sent_count += u64::from(ask.is_answered());
                self.out.extend_from_slice(&ask.encode());
                self.waiting.pop_front();
                count += 1;
            }
            if count == 0 {
                self.out.truncate(begin);
                return;
            }
            // Nothing tells how long touches were under way.
            if self.sent_count > known_count {
                self.sent.push_back(Sent {
                    at_ns: now_ns,
                    up_to: self.sent_count,
                    is_alone,
                });
            }
            let head = Head {
                len: count * ASK_LEN,
                kind: Kind::Asks,
                // At most `ASK_COUNT_MAX`.
                count: count as u16,
            };
            self.out[begin..begin + HEAD_LEN].copy_from_slice(&head.encode());
        }
    }

    /// What is to be written.
    pub fn output(&self) -> &[u8] {
        &self.out[self.out_begin..]
    }

    /// So many bytes of it were.
    pub fn sent(&mut self, count: usize) {
        self.out_begin += count;
        assert!(self.out_begin <= self.out.len());
        if self.out_begin == self.out.len() {
            self.out.clear();
            self.out_begin = 0;
        }
    }

    /// Whether `input` begins with a whole frame, or with something that is none:
    /// whether [`Initiator::handle`] would do something.
    pub fn has_frame(input: &[u8]) -> bool {
        !matches!(Frame::first(input, ANSWERS_LEN_MAX), Ok(None))
    }

    /// Takes in the whole frames at the beginning of `input`; returns how many bytes of
    /// it are done with. After an error the session is given up.
    pub fn handle(
        &mut self,
        input: &[u8],
        now_ns: u64,
        mut on: impl FnMut(Event<'_>),
    ) -> Result<usize, SessionError> {
        let mut done = 0;
        let (mut answers_count, usual_ns) = (0, self.answer_ns);
        while let Some(frame) = Frame::first(&input[done..], ANSWERS_LEN_MAX)? {
            let Frame { head, body } = frame;
            self.heard_ns = now_ns;
            match (head.kind, self.welcome) {
                (Kind::Refused, None) => {
                    return Err(SessionError::Refused(Refusal::decode(body)?));
                }
                (Kind::Welcome, None) => {
                    let welcome = Welcome::decode(body)?;
                    if welcome.window < WINDOW_LEN_MIN {
                        return Err(Malformed("a window that holds no answer").into());
                    }
                    self.window = self.window.min(welcome.window);
                    self.welcome = Some(welcome);
                }
                (Kind::Opened, Some(_)) if self.opening_count > 0 => {
                    let (id, result) = Opened::decode(body)?;
                    self.opening_count -= 1;
                    on(Event::Opened { id, result });
                }
                (Kind::Counters, Some(_)) if self.counting_count > 0 => {
                    let values = wire::counters::decode(head, body)?;
                    self.counting_count -= 1;
                    on(Event::Counters(&values));
                }
                (Kind::Claimed, Some(_)) if self.is_claiming => {
                    self.is_claiming = false;
                    on(Event::Claimed(Claimed::decode(body)?));
                }
                (Kind::Messaged, Some(_)) => self.take_messaged(body, &mut on)?,
                (Kind::Answers, Some(_)) => {
                    self.take_answers(head, body, now_ns, &mut on)?;
                    answers_count += u64::from(head.count);
                }
                _ => return Err(Malformed("a frame that nobody has asked for").into()),
            }
            done += frame.total_len();
        }
        if answers_count > 0 {
            self.learn_round_trip(answers_count, now_ns);
            self.learn_gap(answers_count, usual_ns, now_ns);
        }
        Ok(done)
    }

    fn take_answers(
        &mut self,
        head: Head,
        body: &[u8],
        now_ns: u64,
        on: &mut impl FnMut(Event<'_>),
    ) -> Result<(), Malformed> {
        let mut rest = body;
        for number in 0..head.count {
            let mut pending = None;
            let (_, answer, data, len) = Answer::decode(rest, |id| {
                pending = self.pending.remove(&id);
                match pending.map(|pending| pending.ask.request) {
                    Some(Request::Scan { hash, .. }) => hash.tag,
                    _ => 0,
                }
            })?;
            rest = &rest[len..];
            let pending = pending.ok_or(Malformed("an answer that nobody has asked for"))?;
            // Of those that were asked together, the first knows when that was.
            if number == 0 && pending.longer_count == 0 && pending.asked_ns > 0 {
                self.learn_answer(now_ns.saturating_sub(pending.asked_ns));
            }
            self.take_answer(pending, &answer, data, on)?;
        }
        match rest.is_empty() {
            true => Ok(()),
            false => Err(Malformed("bytes behind the last answer")),
        }
    }

    fn take_answer(
        &mut self,
        pending: Pending,
        answer: &Answer,
        data: &[u8],
        on: &mut impl FnMut(Event<'_>),
    ) -> Result<(), Malformed> {
        let nobody = Malformed("an answer that nobody has asked for");
        let ask = pending.ask;
        let (id, handle) = (ask.id, ask.handle);
        if data.len() > ask.solicited() as usize {
            return Err(Malformed("an answer that is longer than was solicited"));
        }
        // One that was not sent yet cannot have been answered: its cost is not in it.
        self.used = self.used.checked_sub(cost(&ask)).ok_or(nobody)?;
        let is_scan = matches!(ask.request, Request::Scan { .. });
        let is_vote = matches!(ask.request, Request::Scan { is_vote: true, .. });
        let unanswered = |why| Event::Unanswered {
            id,
            handle,
            why,
            is_scan,
        };
        match (answer.status, answer.vote) {
            (Status::Done, Some(vote)) if is_vote => {
                // Whether or not its data are asked for, that is how long they are.
                if let IndexVote::Present { entry, .. } = vote {
                    self.learn_len(entry.pointer.len());
                }
                self.learn_usual(&vote);
                on(Event::Voted {
                    id,
                    handle,
                    vote,
                    config_id: answer.config_id,
                    stamp: answer.stamp,
                });
            }
            (Status::Done, Some(vote)) if is_scan => {
                // Of one that was asked for again it is known already.
                if let (IndexVote::Present { .. }, 0) = (vote, pending.longer_count) {
                    self.learn_len(data.len());
                }
                self.learn_usual(&vote);
                on(Event::Scanned {
                    id,
                    handle,
                    vote,
                    data,
                    flush_floor: answer.flush_floor,
                    config_id: answer.config_id,
                    stamp: answer.stamp,
                });
            }
            (Status::Done, None) if !is_scan && data.len() == ask.solicited() as usize => {
                on(Event::Read {
                    id,
                    handle,
                    data,
                    flush_floor: answer.flush_floor,
                });
            }
            (Status::TooLong, _) if is_scan && !is_vote => {
                let len = answer.data_len;
                if !self.ask_for_longer(pending, len) {
                    on(unanswered(Unanswered::TooLong { len }));
                }
            }
            (Status::Gone, _) => on(unanswered(Unanswered::Gone)),
            (Status::Lapsed, _) => on(unanswered(Unanswered::Lapsed)),
            (Status::OutOfWindow, _) => on(unanswered(Unanswered::OutOfWindow)),
            (Status::Unstable, _) => on(unanswered(Unanswered::Unstable)),
            _ => return Err(Malformed("an answer that does not belong to its request")),
        }
        Ok(())
    }

    /// Asks the same with more room; `false` if that is in vain.
    fn ask_for_longer(&mut self, mut pending: Pending, len: u32) -> bool {
        let Request::Scan { solicited, .. } = &mut pending.ask.request else {
            return false;
        };
        let is_carried = len as usize <= DATA_LEN_MAX && len.is_multiple_of(8);
        if !is_carried || len <= *solicited || pending.longer_count >= LONGER_COUNT_MAX {
            return false;
        }
        pending.longer_count += 1;
        *solicited = len;
        self.waiting.push_back(pending.ask);
        self.waiting_len += cost(&pending.ask);
        self.pending.insert(pending.ask.id, pending);
        self.learn_len(len as usize);
        true
    }

    /// One answer of a frame has taken so long.
    fn learn_answer(&mut self, took_ns: u64) {
        self.answer_ns = match self.answer_ns {
            0 => took_ns,
            known_ns => known_ns - known_ns / ANSWERS_SMOOTHED + took_ns / ANSWERS_SMOOTHED,
        };
    }

    /// So many answers have come at once, where they usually took so long.
    fn learn_gap(&mut self, count: u64, usual_ns: u64, now_ns: u64) {
        if self.answered_ns > 0 {
            // A pause of this side is not between two answers.
            let between_ns = now_ns.saturating_sub(self.answered_ns);
            let gap_ns = between_ns.min(usual_ns.saturating_mul(GAP_FACTOR_MAX)) / count;
            self.gap_ns = match self.gap_ns {
                0 => gap_ns,
                known_ns => known_ns - known_ns / GAPS_SMOOTHED + gap_ns / GAPS_SMOOTHED,
            };
        }
        self.answered_ns = match self.pending.is_empty() {
            true => 0,
            false => now_ns,
        };
    }

    /// So many more answers have come. Of a frame of requests the last one says how long it
    /// was under way: answers come about in the order of the requests.
    fn learn_round_trip(&mut self, count: u64, now_ns: u64) {
        self.answered_count += count;
        while let Some(&sent) = self.sent.front()
            && sent.up_to <= self.answered_count
        {
            self.sent.pop_front();
            self.round_trip_ns = now_ns.saturating_sub(sent.at_ns).max(1);
            self.way.took(self.round_trip_ns, sent.is_alone, now_ns);
        }
    }

    /// So long is what one lookup has found.
    fn learn_usual(&mut self, vote: &IndexVote) {
        let len = match vote {
            IndexVote::Present { entry, .. } => entry.pointer.len().min(DATA_LEN_MAX) as u32,
            _ => 0,
        };
        self.usual_len = self.usual_len - self.usual_len / LENS_SMOOTHED + len;
    }

    /// The next scan solicits what items have been long lately.
    fn learn_len(&mut self, len: usize) {
        // Bounded by `DATA_LEN_MAX`.
        let len = (len as u32).clamp(SOLICITED_MIN, SOLICITED_USUAL_MAX);
        let len = len.next_multiple_of(8);
        self.solicited = match len > self.solicited {
            true => len,
            false => fallen(self.solicited, len),
        };
        let most = self.solicited_most;
        self.solicited_most = match len > most {
            true => len.min((most + most / MOST_RISE).next_multiple_of(8)),
            false => fallen(most, len),
        };
    }
}

/// What is solicited after an item that is not longer.
fn fallen(solicited: u32, len: u32) -> u32 {
    // By a multiple of 8 that is 0 only where nothing is left to fall: it would stop far above
    // what items have.
    let more = solicited - len;
    let fall = (more / SOLICITED_FALL).max(1).next_multiple_of(8);
    solicited - fall.min(more)
}

/// What an answer takes of the window.
fn cost(ask: &Ask) -> u32 {
    match ask.is_answered() {
        true => ANSWER_LEN as u32 + ask.solicited(),
        false => 0,
    }
}

#[cfg(test)]
mod tests;
