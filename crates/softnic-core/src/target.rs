//! The engine's side of one session: frames in, memory looked at, frames out.

use crate::limits::{
    ANSWERS_LEN_FULL, ASK_COUNT_MAX, ASKS_LEN_MAX, MESSAGE_FRAME_LEN_MAX, WINDOW_LEN,
    WINDOW_LEN_MIN,
};
use crate::wire::greeting::{ANY_HELLO_LEN_MAX, REFUSED_LEN};
use crate::wire::{
    self, ANSWER_LEN, ASK_LEN, Answer, Ask, COUNTER_NAMES, Claim, CounterValues, Frame, HEAD_LEN,
    Head, Hello, Kind, Malformed, Message, MessageStatus, Messaged, Open, OpenStatus, Opened,
    PROTOCOL_VERSION, Refusal, RefusalCode, Region, Request, Status, Welcome,
};
use trefoil_layout::KeyHash;
use trefoil_layout::limits::LAYOUT_VERSION;

/// What a session reads: the backends of a host, and who may.
pub trait Memory {
    /// Whether a client with this token comes in, besides all that are in already. Nobody
    /// does where somebody else lets them in ([`Target::greet`]).
    fn admit(&mut self, _token: &[u8]) -> Result<Welcome, RefusalCode> {
        Err(RefusalCode::Token)
    }

    /// A backend under a handle.
    fn open(&mut self, open: &Open) -> Result<Opened, OpenStatus>;

    /// Reads the key's stamp, then scans its bucket under the configuration that the
    /// client expects, and appends what it points at to `data`: as many bytes as were
    /// solicited at most, none for a vote alone. If the scan is a use, the item that it finds is noted as read.
    /// The lease is looked at afterwards ([`Memory::end_reads`]).
    fn scan(&mut self, scan: &Scan, data: &mut Vec<u8>) -> Answer;

    /// These scans follow, in this order: what they look at may be fetched. Nobody has
    /// judged them.
    fn expect(&mut self, _scans: impl Iterator<Item = Expected> + Clone) {}

    /// Appends the `len` bytes at `offset` of a region to `data`; of the index, if that
    /// is still the window of that partition. The lease is looked at afterwards.
    fn read(&mut self, handle: u32, range: &ReadRange, data: &mut Vec<u8>) -> Answer;

    /// What was asked for so far was read: leases are looked at as of now, or later.
    fn end_reads(&mut self) {}

    /// What is left of a backend's lease as of the latest [`Memory::end_reads`], in
    /// microseconds; 0 if it has ended, or the handle is good no more: then nothing that was
    /// read under it before that leaves the host. `None` where answers are good as they are.
    fn lease_left_us(&mut self, _handle: u32) -> Option<u32> {
        None
    }

    /// An answer was thrown away for that.
    fn lapsed(&mut self, _handle: u32) {}

    /// A hit has read this item.
    fn touch(&mut self, handle: u32, place: u8, hash: KeyHash);

    /// Hands a message to its backend. What comes of it, the session's owner appends to what is
    /// sent later, unless it is known at once.
    fn message(&mut self, _message: &Message<'_>) -> Handed {
        Handed::Refused(MessageStatus::NoRing)
    }

    /// What has been counted.
    fn counters(&mut self) -> CounterValues {
        [0; COUNTER_NAMES.len()]
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handed {
    /// It is on its way.
    UnderWay,
    /// It was not handed on.
    Refused(MessageStatus),
    /// The client has more under way than it may have.
    TooMany,
}

/// What a scan asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scan {
    /// Of the backend.
    pub handle: u32,
    /// The backend's place in the key's cohort.
    pub place: u8,
    /// Of the key.
    pub hash: KeyHash,
    /// That the client expects.
    pub config_id: u32,
    /// Longest data that it takes.
    pub solicited: u32,
    /// Whether what is found should not be evicted next.
    pub is_use: bool,
    /// Whether the vote alone is wanted.
    pub is_vote: bool,
}

/// Where a scan will look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    /// Of the backend.
    pub handle: u32,
    /// The backend's place in the key's cohort.
    pub place: u8,
    /// Of the key.
    pub hash: KeyHash,
    /// Whether it reads what it finds.
    pub has_data: bool,
}

/// What a read copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRange {
    /// Out of this region.
    pub region: Region,
    /// Of the index: whose window.
    pub partition: u16,
    /// Of the index: which window.
    pub window_id: u64,
    /// A multiple of 8.
    pub offset: u64,
    /// A multiple of 8.
    pub len: u32,
}

/// The session ends, once what was written has gone out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// The client was told.
    #[error("refused: {0}")]
    Refused(RefusalCode),
    /// The client does not keep to the protocol; nothing was written for this.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

/// The session's state. Bytes are its owner's: it is handed what has come and not been
/// used, and says how much of it it has used.
#[derive(Clone, Copy, Debug, Default)]
pub struct Target {
    /// Solicited bytes that the client may have under way; `None` before it is let in.
    window: Option<u32>,
    /// What its client wants instead of reading, until that is taken.
    claim: Option<Claim>,
}

impl Target {
    /// A session of which nothing has come.
    pub fn new() -> Self {
        Target::default()
    }

    /// Whether its client was let in.
    pub fn is_admitted(&self) -> bool {
        self.window.is_some()
    }

    /// Longest input that it needs to see at once, in bytes.
    pub fn input_len_max(&self) -> usize {
        match self.window {
            None => ANY_HELLO_LEN_MAX,
            Some(_) => MESSAGE_FRAME_LEN_MAX,
        }
    }

    /// Carries out the whole frames at the beginning of `input` and appends the answers
    /// to `out`; returns how many bytes of `input` are done with. It stops before the
    /// next frame as soon as `out` holds a window: at most one window more is in it then.
    pub fn handle(
        &mut self,
        input: &[u8],
        memory: &mut impl Memory,
        out: &mut Vec<u8>,
    ) -> Result<usize, TargetError> {
        let mut done = 0;
        loop {
            let rest = &input[done..];
            let Some(window) = self.window else {
                match self.greet(rest, |token| memory.admit(token), out)? {
                    0 => return Ok(done),
                    used => done += used,
                }
                continue;
            };
            if out.len() >= window as usize {
                return Ok(done);
            }
            let Some(frame) = Frame::first(rest, len_max(rest))? else {
                return Ok(done);
            };
            let Frame { head, body } = frame;
            match head.kind {
                Kind::Open if head.count == 1 => {
                    let open = Open::decode(body)?;
                    Opened::encode(open.id, &memory.open(&open), out);
                }
                Kind::Stats if head.count == 1 && body.is_empty() => {
                    wire::counters::encode(&memory.counters(), out);
                }
                Kind::Asks => carry_out(head, body, window, memory, out)?,
                Kind::Message if head.count == 1 => {
                    let message = Message::decode(body)?;
                    match memory.message(&message) {
                        Handed::UnderWay => {}
                        Handed::Refused(status) => {
                            let (id, result) = (message.id, Err(status));
                            Messaged { id, result }.encode(out);
                        }
                        Handed::TooMany => {
                            return Err(Malformed("more messages than may be under way").into());
                        }
                    }
                }
                Kind::Claim if head.count == 1 => {
                    self.claim = Some(Claim::decode(body)?);
                    return Ok(done + frame.total_len());
                }
                _ => return Err(Malformed("a frame that clients do not send").into()),
            }
            done += frame.total_len();
        }
    }

    /// That the client wants to place requests instead, if it has just said so: nothing
    /// behind that is this target's ([`crate::placing::Placer`]).
    pub fn take_claim(&mut self) -> Option<Claim> {
        self.claim.take()
    }

    /// Carries out the greeting of a client that is not in yet, and nothing that stands
    /// behind it: what [`Target::handle`] begins with, for who greets elsewhere than they
    /// read. Returns the bytes of the HELLO, once it is whole and its client let in; 0 before.
    pub fn greet(
        &mut self,
        input: &[u8],
        admit: impl FnOnce(&[u8]) -> Result<Welcome, RefusalCode>,
        out: &mut Vec<u8>,
    ) -> Result<usize, TargetError> {
        let mut refuse = |code| {
            Refusal::new(code).encode(out);
            Err(TargetError::Refused(code))
        };
        match Hello::version(input)? {
            None => return Ok(0),
            // Another version's HELLO may be of another length: it is not waited for.
            // But for as many bytes as it is told.
            Some(version) if version != PROTOCOL_VERSION => {
                return match input.len() > HEAD_LEN + REFUSED_LEN {
                    true => refuse(RefusalCode::Protocol),
                    false => Ok(0),
                };
            }
            Some(_) => {}
        }
        let Some(frame) = Frame::first(input, ANY_HELLO_LEN_MAX)? else {
            return Ok(0);
        };
        let hello = Hello::decode(frame.body)?;
        // In a smaller window no answer would have room, and no request be looked at.
        if hello.window < WINDOW_LEN_MIN {
            return Err(Malformed("a window in which no answer has room").into());
        }
        if hello.layout != LAYOUT_VERSION {
            return refuse(RefusalCode::Layout);
        }
        let welcome = match admit(hello.token) {
            Ok(welcome) => welcome,
            Err(code) => return refuse(code),
        };
        let window = hello.window.min(welcome.window).min(WINDOW_LEN);
        Welcome { window, ..welcome }.encode(out);
        self.window = Some(window);
        Ok(frame.total_len())
    }
}

/// Longest of the frame that `input` begins with: nothing is as long as a message.
fn len_max(input: &[u8]) -> usize {
    match Head::begins(input, Kind::Message) {
        true => MESSAGE_FRAME_LEN_MAX,
        false => ASKS_LEN_MAX,
    }
}

fn carry_out(
    head: Head,
    body: &[u8],
    window: u32,
    memory: &mut impl Memory,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    let (items, rest) = body.as_chunks::<ASK_LEN>();
    let count = usize::from(head.count);
    if !rest.is_empty() || items.len() != count || !(1..=ASK_COUNT_MAX).contains(&count) {
        return Err(Malformed("a frame whose length and count differ"));
    }
    // Before any of it is carried out.
    let solicited: usize = items.iter().map(Ask::cost).sum();
    if solicited > window as usize {
        return Err(Malformed("more is solicited at once than the window holds"));
    }
    if let [item] = items {
        return carry_out_one(item, memory, out);
    }
    let begin = out.len();
    let mut places = [(0, 0); ASK_COUNT_MAX];
    let mut answered = 0;
    let mut frame = AnswersFrame::default();
    for group in items.chunks(GROUP_COUNT) {
        // What few look at they wait for here as long as there.
        if group.len() >= EXPECTED_COUNT_MIN {
            memory.expect(group.iter().filter_map(Ask::expected));
        }
        for item in group {
            let ask = match Ask::decode(item) {
                Ok(ask) => ask,
                Err(error) => {
                    out.truncate(begin);
                    return Err(error);
                }
            };
            if let Request::Touch { place, hash } = ask.request {
                memory.touch(ask.handle, place, hash);
                continue;
            }
            frame.begin_item(out);
            places[answered] = (out.len(), ask.handle);
            answered += 1;
            execute(&ask, memory, out);
            frame.end_item(out);
        }
    }
    frame.end(out);
    if !conclude(&places[..answered], memory, out) {
        out.truncate(begin);
        carry_out_again(items, memory, out)?;
    }
    Ok(())
}

/// A frame of one request, as most clients send that look up one key after another.
fn carry_out_one(
    item: &[u8; ASK_LEN],
    memory: &mut impl Memory,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    let ask = Ask::decode(item)?;
    if let Request::Touch { place, hash } = ask.request {
        memory.touch(ask.handle, place, hash);
        return Ok(());
    }
    let mut frame = AnswersFrame::default();
    frame.begin_item(out);
    execute_alone(&ask, memory, out);
    frame.end_item(out);
    frame.end(out);
    Ok(())
}

/// Looks at the leases of the backends that were read, once for all that stands at these
/// places of `out`, each under a handle. `false` if one has ended: then some of it may not
/// leave the host.
fn conclude(places: &[(usize, u32)], memory: &mut impl Memory, out: &mut [u8]) -> bool {
    memory.end_reads();
    let mut known: Option<(u32, Option<u32>)> = None;
    for &(at, handle) in places {
        let left_us = match known {
            Some((of, left_us)) if of == handle => left_us,
            _ => memory.lease_left_us(handle),
        };
        known = Some((handle, left_us));
        match left_us {
            Some(0) => return false,
            Some(left_us) => Answer::put_lease(&mut out[at..], left_us),
            None => {}
        }
    }
    true
}

/// The same frame, each request by itself.
#[cold]
fn carry_out_again(
    items: &[[u8; ASK_LEN]],
    memory: &mut impl Memory,
    out: &mut Vec<u8>,
) -> Result<(), Malformed> {
    let mut frame = AnswersFrame::default();
    for item in items {
        let ask = Ask::decode(item)?;
        if ask.is_answered() {
            frame.begin_item(out);
            execute_alone(&ask, memory, out);
            frame.end_item(out);
        }
    }
    frame.end(out);
    Ok(())
}

/// Carries one request out and looks at the lease: what is appended may leave the host.
pub(crate) fn execute_alone(ask: &Ask, memory: &mut impl Memory, out: &mut Vec<u8>) {
    let at = out.len();
    let status = execute(ask, memory, out);
    if status == Status::Gone || conclude(&[(at, ask.handle)], memory, out) {
        return;
    }
    memory.lapsed(ask.handle);
    out.truncate(at);
    out.extend_from_slice(&Answer::bare(Status::Lapsed).encode(ask.id));
}

/// Requests of which memory is fetched together, before the first of them is carried out:
/// enough for the memory's latencies to pass beside one another, few enough for what was
/// fetched to be there still.
const GROUP_COUNT: usize = 32;
/// Requests for which that is worth it.
const EXPECTED_COUNT_MIN: usize = 4;

/// Carries a request out that is answered, and appends the answer and its data, of which
/// nobody has looked yet whether they may leave the host.
fn execute(ask: &Ask, memory: &mut impl Memory, out: &mut Vec<u8>) -> Status {
    let at = out.len();
    out.extend_from_slice(&[0; ANSWER_LEN]);
    let handle = ask.handle;
    let answer = match ask.request {
        Request::Scan {
            place,
            hash,
            config_id,
            solicited,
            is_use,
            is_vote,
        } => {
            let scan = Scan {
                handle,
                place,
                hash,
                config_id,
                solicited,
                is_use,
                is_vote,
            };
            memory.scan(&scan, out)
        }
        Request::Read {
            region,
            partition,
            window_id,
            offset,
            len,
        } => {
            let range = ReadRange {
                region,
                partition,
                window_id,
                offset,
                len,
            };
            memory.read(handle, &range, out)
        }
        Request::Touch { .. } => unreachable!("touches are not answered"),
    };
    let data_len = out.len() - at - ANSWER_LEN;
    assert!(
        data_len == answer.data_follows() && data_len <= ask.solicited() as usize,
        "the memory has appended what it was not asked for"
    );
    if let Some(item) = out[at..].first_chunk_mut() {
        answer.encode_into(ask.id, item);
    }
    answer.status
}

/// The frame of answers that is being written at the end of a buffer.
#[derive(Default)]
struct AnswersFrame {
    begin: Option<usize>,
    count: u16,
}

impl AnswersFrame {
    /// An item follows.
    fn begin_item(&mut self, out: &mut Vec<u8>) {
        if self.begin.is_none() {
            self.begin = Some(out.len());
            self.count = 0;
            out.extend_from_slice(&[0; HEAD_LEN]);
        }
    }

    fn end_item(&mut self, out: &mut [u8]) {
        self.count += 1;
        if self
            .begin
            .is_some_and(|begin| out.len() - begin >= ANSWERS_LEN_FULL)
        {
            self.end(out);
        }
    }

    fn end(&mut self, out: &mut [u8]) {
        let Some(begin) = self.begin.take() else {
            return;
        };
        let head = Head {
            len: out.len() - begin - HEAD_LEN,
            kind: Kind::Answers,
            count: self.count,
        };
        out[begin..begin + HEAD_LEN].copy_from_slice(&head.encode());
    }
}
