//! The bytes of a session. All numbers are little-endian; reserved bytes are zero
//! and refused otherwise; everything is a multiple of 8 bytes long.
//!
//! A session is a stream of frames each way:
//!
//! | offset | bytes | head of a frame (8) | why |
//! |---|---|---|---|
//! | 0 | 4 | length | bytes behind the head |
//! | 4 | 1 | kind | see [`Kind`] |
//! | 5 | 1 | reserved, zero | |
//! | 6 | 2 | count | items in it |
//!
//! The client begins with one HELLO ([`greeting`]); it may send OPEN frames
//! ([`opening`]) and ASKS ([`ask`]) behind it without waiting. Each OPEN is answered by
//! an OPENED, each request of ASKS by one item of some ANSWERS ([`answer`]), in any
//! order, but for touches, which are not answered. STATS ([`counters`]) is answered by
//! COUNTERS, and each MESSAGE ([`message`]) by a MESSAGED.
//!
//! A session whose client places requests into an ordered queue ([`placing`]) sends CLAIM
//! behind its HELLO, and from the CLAIMED on that answers it nothing but PLACE; PLACED and
//! ANSWERED come back.

pub mod answer;
pub mod ask;
pub mod counters;
pub mod greeting;
pub mod message;
pub mod opening;
pub mod placing;

pub use answer::{ANSWER_LEN, Answer, Status};
pub use ask::{ASK_LEN, Ask, Region, Request};
pub use counters::{COUNTER_NAMES, CounterValues, named as named_counters};
pub use greeting::{Hello, Refusal, RefusalCode, Welcome};
pub use message::{MESSAGE_FRAMES, Message, MessageStatus, Messaged};
pub use opening::{Open, OpenStatus, Opened};
pub use placing::{Answered, Claim, ClaimStatus, Claimed, LaneEnd, Place, Placed};

/// Number of this protocol. An engine refuses any other, and says which it speaks. 2: scans
/// say themselves that they are uses, and whether their votes are wanted alone.
pub const PROTOCOL_VERSION: u16 = 2;

/// Bytes of a frame's head.
pub const HEAD_LEN: usize = 8;

const AT_KIND: usize = 4;
const AT_RESERVED: usize = 5;
const AT_COUNT: usize = 6;

const _: () =
    assert!(AT_KIND == 4 && AT_RESERVED == 5 && AT_COUNT == 6 && AT_COUNT + 2 == HEAD_LEN);

/// What a frame holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Client: who it is.
    Hello = 1,
    /// Engine: come in.
    Welcome = 2,
    /// Engine: stay out; the session ends.
    Refused = 3,
    /// Client: which backend it is going to read.
    Open = 4,
    /// Engine: under which handle.
    Opened = 5,
    /// Client: requests.
    Asks = 6,
    /// Engine: answers.
    Answers = 7,
    /// Client: what has been counted?
    Stats = 8,
    /// Engine: this.
    Counters = 9,
    /// Client: it wants to place requests into a queue.
    Claim = 10,
    /// Engine: it may, or why not.
    Claimed = 11,
    /// Client: one request.
    Place = 12,
    /// Engine: what is committed and executed.
    Placed = 13,
    /// Engine: the answer to one request.
    Answered = 14,
    /// Client: a message for a backend.
    Message = 15,
    /// Engine: what came of it.
    Messaged = 16,
}

impl Kind {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => Kind::Hello,
            2 => Kind::Welcome,
            3 => Kind::Refused,
            4 => Kind::Open,
            5 => Kind::Opened,
            6 => Kind::Asks,
            7 => Kind::Answers,
            8 => Kind::Stats,
            9 => Kind::Counters,
            10 => Kind::Claim,
            11 => Kind::Claimed,
            12 => Kind::Place,
            13 => Kind::Placed,
            14 => Kind::Answered,
            15 => Kind::Message,
            16 => Kind::Messaged,
            _ => return None,
        })
    }
}

/// What came is not of this protocol: the session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a frame of the software NIC's protocol: {0}")]
pub struct Malformed(pub &'static str);

/// A frame's head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Bytes behind it.
    pub len: usize,
    /// What they are.
    pub kind: Kind,
    /// Items in them.
    pub count: u16,
}

impl Head {
    /// The head at the beginning of `bytes`; `None` while it is not whole. A frame with
    /// more than `len_max` bytes, head and all, is refused before any of it is kept.
    pub fn decode(bytes: &[u8], len_max: usize) -> Result<Option<Head>, Malformed> {
        let Some(bytes) = bytes.first_chunk::<HEAD_LEN>() else {
            return Ok(None);
        };
        let kind = Kind::from_number(bytes[AT_KIND]).ok_or(Malformed("unknown kind"))?;
        if bytes[AT_RESERVED] != 0 {
            return Err(Malformed("a reserved byte is in use"));
        }
        let len = u32_at(bytes, 0) as usize;
        if !len.is_multiple_of(8) || len > len_max.saturating_sub(HEAD_LEN) {
            return Err(Malformed("a frame of this length does not exist"));
        }
        Ok(Some(Head {
            len,
            kind,
            count: u16_at(bytes, AT_COUNT),
        }))
    }

    /// Whether a frame of that kind begins here, as far as is there.
    pub fn begins(bytes: &[u8], kind: Kind) -> bool {
        bytes.get(AT_KIND) == Some(&(kind as u8))
    }

    /// The bytes to send.
    pub fn encode(self) -> [u8; HEAD_LEN] {
        let mut out = [0; HEAD_LEN];
        // Frames are far shorter than the field can say.
        out[..AT_KIND].copy_from_slice(&(self.len as u32).to_le_bytes());
        out[AT_KIND] = self.kind as u8;
        out[AT_COUNT..].copy_from_slice(&self.count.to_le_bytes());
        out
    }
}

/// A whole frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// Its head.
    pub head: Head,
    /// What stands behind it.
    pub body: &'a [u8],
}

impl<'a> Frame<'a> {
    /// The first frame in `bytes`; `None` while it is not whole.
    pub fn first(bytes: &'a [u8], len_max: usize) -> Result<Option<Self>, Malformed> {
        let Some(head) = Head::decode(bytes, len_max)? else {
            return Ok(None);
        };
        let body = bytes.get(HEAD_LEN..HEAD_LEN + head.len);
        Ok(body.map(|body| Frame { head, body }))
    }

    /// Bytes that it takes.
    pub fn total_len(&self) -> usize {
        HEAD_LEN + self.body.len()
    }
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut out = [0; 4];
    out.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(out)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut out = [0; 8];
    out.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(out)
}

pub(crate) fn put<const LEN: usize>(out: &mut [u8], at: usize, bytes: [u8; LEN]) {
    out[at..at + LEN].copy_from_slice(&bytes);
}

pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
