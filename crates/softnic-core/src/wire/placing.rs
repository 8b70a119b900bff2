//! Requests that an engine places into an ordered queue for its client.
//!
//! | offset | bytes | CLAIM (48) | why |
//! |---|---|---|---|
//! | 0 | 2 | version of these frames | an engine refuses any other, and says which it speaks |
//! | 2 | 1 | 1: the producer returns | a queue that does not know it any more refuses |
//! | 3 | 1 | reserved, zero | |
//! | 4 | 4 | queue number | of those beside the engine |
//! | 8 | 16 | producer | drawn by the client; requests are numbered for each of them |
//! | 24 | 8 | epoch | of a producer that returns: the life of the queue that it knows; else 0 |
//! | 32 | 8 | attempt | of a producer that returns: above that of each of its earlier claims; else 0. One that is late closes no later one's lane |
//! | 40 | 8 | reserved, zero | |
//!
//! | offset | bytes | CLAIMED (48) | why |
//! |---|---|---|---|
//! | 0 | 2 | version of these frames | the engine's |
//! | 2 | 1 | status | see [`ClaimStatus`]; what follows is zero unless it is 0 |
//! | 3 | 1 | 1: the server commits, not the place in the queue | a durable queue's does |
//! | 4 | 4 | slot count | requests that may be in the queue and not executed |
//! | 8 | 8 | epoch | which life of the queue |
//! | 16 | 8 | placed | number of the producer's last request that is executed; the next is one more |
//! | 24 | 8 | what serves the queue | for the layer above |
//! | 32 | 16 | reserved, zero | |
//!
//! | offset | bytes | PLACE (16 and the request) | why |
//! |---|---|---|---|
//! | 0 | 8 | number | the producer's last one and one |
//! | 8 | 4 | length of the request | |
//! | 12 | 4 | flags; 1: nilext | its client wants no answer |
//! | 16 | | the request | padded with zeros to a multiple of 8 |
//!
//! | offset | bytes | ANSWERED (16 and the answer) | why |
//! |---|---|---|---|
//! | 0 | 8 | number | of the request |
//! | 8 | 4 | length of the answer | |
//! | 12 | 4 | reserved, zero | |
//! | 16 | | the answer | padded with zeros to a multiple of 8 |
//!
//! | offset | bytes | PLACED (24) | why |
//! |---|---|---|---|
//! | 0 | 8 | committed | all requests up to this number are |
//! | 8 | 8 | executed | all up to this number are, and their answers stand before this frame |
//! | 16 | 1 | end | see [`LaneEnd`]; 0: it goes on |
//! | 17 | 7 | reserved, zero | |

use super::greeting::append;
use super::{HEAD_LEN, Head, Kind, Malformed, is_zero, put, u16_at, u32_at, u64_at};
use crate::limits::REQUEST_LEN_MAX;

/// Number of these frames' version.
pub const PLACING_VERSION: u16 = 1;

const AT_RETURNS: usize = 2;
const AT_CLAIM_GAP: usize = 3;
const AT_QUEUE: usize = 4;
const AT_PRODUCER: usize = 8;
const AT_CLAIM_EPOCH: usize = 24;
const AT_ATTEMPT: usize = 32;
const AT_CLAIM_RESERVED: usize = 40;
const AT_STATUS: usize = 2;
const AT_COMMIT: usize = 3;
const AT_SLOTS: usize = 4;
const AT_EPOCH: usize = 8;
const AT_PLACED: usize = 16;
const AT_ABOUT: usize = 24;
const AT_CLAIMED_RESERVED: usize = 32;
const AT_LEN: usize = 8;
const AT_FLAGS: usize = 12;
const AT_BYTES: usize = 16;
const AT_EXECUTED: usize = 8;
const AT_END: usize = 16;

/// Bytes of a CLAIM behind its head.
pub const CLAIM_LEN: usize = 48;
/// Bytes of a CLAIMED behind its head.
pub const CLAIMED_LEN: usize = 48;
/// Bytes of a PLACED behind its head.
pub const PLACED_LEN: usize = 24;
/// Longest PLACE, or ANSWERED, with its head.
pub const PLACE_LEN_MAX: usize = HEAD_LEN + AT_BYTES + REQUEST_LEN_MAX;

const FLAG_NILEXT: u32 = 1;

const _: () = {
    assert!(AT_RETURNS == 2 && AT_CLAIM_GAP == AT_RETURNS + 1 && AT_QUEUE == AT_CLAIM_GAP + 1);
    assert!(AT_PRODUCER == AT_QUEUE + 4 && AT_CLAIM_EPOCH == AT_PRODUCER + 16);
    assert!(AT_ATTEMPT == AT_CLAIM_EPOCH + 8 && AT_CLAIM_RESERVED == AT_ATTEMPT + 8);
    assert!(AT_CLAIM_RESERVED + 8 == CLAIM_LEN);
    assert!(AT_STATUS == 2 && AT_COMMIT == AT_STATUS + 1 && AT_SLOTS == AT_COMMIT + 1);
    assert!(AT_EPOCH == AT_SLOTS + 4 && AT_PLACED == AT_EPOCH + 8 && AT_ABOUT == AT_PLACED + 8);
    assert!(AT_CLAIMED_RESERVED == AT_ABOUT + 8 && AT_CLAIMED_RESERVED + 16 == CLAIMED_LEN);
    assert!(AT_LEN == 8 && AT_FLAGS == AT_LEN + 4 && AT_BYTES == AT_FLAGS + 4);
    assert!(AT_EXECUTED == 8 && AT_END == AT_EXECUTED + 8 && AT_END + 8 == PLACED_LEN);
    assert!(REQUEST_LEN_MAX.is_multiple_of(8));
};

/// A client wants to place requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claim {
    /// Of these frames.
    pub version: u16,
    /// Which queue beside the engine.
    pub queue: u32,
    /// Who numbers the requests.
    pub producer: [u64; 2],
    /// Of a producer that returns.
    pub returns: Option<Return>,
}

/// A producer comes back over another connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Return {
    /// The life of the queue that it knows.
    pub epoch: u64,
    /// Above 0, and above that of each of its earlier claims.
    pub attempt: u64,
}

impl Claim {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = [0; CLAIM_LEN];
        put(&mut body, 0, self.version.to_le_bytes());
        put(&mut body, AT_QUEUE, self.queue.to_le_bytes());
        put(&mut body, AT_PRODUCER, self.producer[0].to_le_bytes());
        put(&mut body, AT_PRODUCER + 8, self.producer[1].to_le_bytes());
        if let Some(Return { epoch, attempt }) = self.returns {
            body[AT_RETURNS] = 1;
            put(&mut body, AT_CLAIM_EPOCH, epoch.to_le_bytes());
            put(&mut body, AT_ATTEMPT, attempt.to_le_bytes());
        }
        append(out, Kind::Claim, &body);
    }

    /// Judges one. Of another version, only that is known.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        if body.len() != CLAIM_LEN {
            return Err(Malformed("not a CLAIM"));
        }
        let version = u16_at(body, 0);
        let (epoch, attempt) = (u64_at(body, AT_CLAIM_EPOCH), u64_at(body, AT_ATTEMPT));
        let is_sound = body[AT_CLAIM_GAP] == 0
            && body[AT_RETURNS] <= 1
            && (body[AT_RETURNS] == 1 || epoch == 0)
            && (body[AT_RETURNS] == 1) == (attempt > 0)
            && is_zero(&body[AT_CLAIM_RESERVED..]);
        if version == PLACING_VERSION && !is_sound {
            return Err(Malformed("not a CLAIM"));
        }
        Ok(Claim {
            version,
            queue: u32_at(body, AT_QUEUE),
            producer: [u64_at(body, AT_PRODUCER), u64_at(body, AT_PRODUCER + 8)],
            returns: (body[AT_RETURNS] == 1).then_some(Return { epoch, attempt }),
        })
    }
}

/// Why a client has no lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum ClaimStatus {
    /// Other frames.
    #[error("the engine speaks another version of these frames: run the same release")]
    Version = 1,
    /// Not beside this engine.
    #[error("the engine has no such queue")]
    NoSuchQueue = 2,
    /// This client may read only.
    #[error("this client may not write: it needs a certificate of the role client")]
    NotAllowed = 3,
    /// Its server has as many lanes as it takes.
    #[error(
        "the queue has as many clients as it takes: end some, or start its server with more --clients"
    )]
    Full = 4,
    /// Its server does not run, or does not answer now.
    #[error("the server of the queue cannot be reached by the engine")]
    Unreachable = 5,
    /// It is another life of the queue, or has forgotten this producer.
    #[error("the queue does not know what this client has sent before")]
    Forgotten = 6,
    /// What was sent over an earlier connection is still being executed.
    #[error("requests of an earlier connection are still being executed")]
    Draining = 7,
    /// Its server ends.
    #[error("the server of the queue is about to end")]
    Ending = 8,
    /// Its server has no memory for another lane.
    #[error("the server of the queue has no memory for another client")]
    NoMemory = 9,
    /// A later claim of this client has been heard.
    #[error("a later connection of this client has taken the place of this one")]
    Superseded = 10,
    /// Other clients of the same identity hold as many lanes as it may have.
    #[error(
        "other clients with this one's certificate or token have as many places in the queue as \
         one identity may: end some, give this one a certificate of another name, or start the \
         engine with more --lanes"
    )]
    Share = 11,
}

impl ClaimStatus {
    const ALL: [ClaimStatus; 11] = [
        ClaimStatus::Version,
        ClaimStatus::NoSuchQueue,
        ClaimStatus::NotAllowed,
        ClaimStatus::Full,
        ClaimStatus::Unreachable,
        ClaimStatus::Forgotten,
        ClaimStatus::Draining,
        ClaimStatus::Ending,
        ClaimStatus::NoMemory,
        ClaimStatus::Superseded,
        ClaimStatus::Share,
    ];

    /// Whether a later attempt may come to something else.
    pub fn may_pass(self) -> bool {
        matches!(
            self,
            ClaimStatus::Full
                | ClaimStatus::Unreachable
                | ClaimStatus::Draining
                | ClaimStatus::NoMemory
                | ClaimStatus::Share
        )
    }
}

/// The lane that a client has by way of an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Whether a request is committed when the server says so, and not when it is placed.
    pub server_commits: bool,
    /// Requests that may be in the queue and not executed.
    pub slot_count: u32,
    /// Which life of the queue.
    pub epoch: u64,
    /// The producer's last request that was placed before, and is executed.
    pub placed: u64,
    /// What serves the queue, for the layer above.
    pub about: u64,
}

impl Claimed {
    /// Appends the answer to a CLAIM.
    pub fn encode(result: &Result<Claimed, ClaimStatus>, out: &mut Vec<u8>) {
        let mut body = [0; CLAIMED_LEN];
        put(&mut body, 0, PLACING_VERSION.to_le_bytes());
        match result {
            Err(status) => body[AT_STATUS] = *status as u8,
            Ok(claimed) => {
                body[AT_COMMIT] = claimed.server_commits.into();
                put(&mut body, AT_SLOTS, claimed.slot_count.to_le_bytes());
                put(&mut body, AT_EPOCH, claimed.epoch.to_le_bytes());
                put(&mut body, AT_PLACED, claimed.placed.to_le_bytes());
                put(&mut body, AT_ABOUT, claimed.about.to_le_bytes());
            }
        }
        append(out, Kind::Claimed, &body);
    }

    /// Judges one.
    pub fn decode(body: &[u8]) -> Result<Result<Claimed, ClaimStatus>, Malformed> {
        let wrong = Malformed("not a CLAIMED");
        if body.len() != CLAIMED_LEN {
            return Err(wrong);
        }
        if u16_at(body, 0) != PLACING_VERSION {
            return Ok(Err(ClaimStatus::Version));
        }
        if body[AT_STATUS] != 0 {
            let number = body[AT_STATUS];
            let status = ClaimStatus::ALL.into_iter().find(|of| *of as u8 == number);
            return match is_zero(&body[AT_COMMIT..]) {
                true => Ok(Err(status.ok_or(wrong)?)),
                false => Err(wrong),
            };
        }
        let claimed = Claimed {
            server_commits: body[AT_COMMIT] == 1,
            slot_count: u32_at(body, AT_SLOTS),
            epoch: u64_at(body, AT_EPOCH),
            placed: u64_at(body, AT_PLACED),
            about: u64_at(body, AT_ABOUT),
        };
        let is_sound =
            body[AT_COMMIT] <= 1 && claimed.slot_count > 0 && is_zero(&body[AT_CLAIMED_RESERVED..]);
        match is_sound {
            true => Ok(Ok(claimed)),
            false => Err(wrong),
        }
    }
}

/// One request to be placed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place<'a> {
    /// The producer's number for it.
    pub number: u64,
    /// Whether its client wants no answer.
    pub nilext: bool,
    /// Its bytes.
    pub request: &'a [u8],
}

impl<'a> Place<'a> {
    /// Appends the frame; its length.
    pub fn encode(&self, out: &mut Vec<u8>) -> usize {
        let flags = if self.nilext { FLAG_NILEXT } else { 0 };
        append_bytes(out, Kind::Place, self.number, flags, self.request)
    }

    /// Judges one. `None`: it is longer than a slot, and otherwise sound.
    pub fn decode(body: &'a [u8]) -> Result<Option<Self>, Malformed> {
        let (number, flags, len) = front(body).ok_or(Malformed("not a PLACE"))?;
        if flags & !FLAG_NILEXT != 0 {
            return Err(Malformed("not a PLACE"));
        }
        if len > REQUEST_LEN_MAX {
            return Ok(None);
        }
        let request = bytes(body, len).ok_or(Malformed("not a PLACE"))?;
        Ok(Some(Place {
            number,
            nilext: flags == FLAG_NILEXT,
            request,
        }))
    }
}

/// The answer to one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answered<'a> {
    /// The producer's number for it.
    pub number: u64,
    /// What was answered.
    pub answer: &'a [u8],
}

impl<'a> Answered<'a> {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        append_bytes(out, Kind::Answered, self.number, 0, self.answer);
    }

    /// Judges one.
    pub fn decode(body: &'a [u8]) -> Result<Self, Malformed> {
        let wrong = Malformed("not an ANSWERED");
        match front(body).ok_or(wrong)? {
            (number, 0, len) => Ok(Answered {
                number,
                answer: bytes(body, len).ok_or(wrong)?,
            }),
            _ => Err(wrong),
        }
    }
}

/// Why nothing more is placed by this session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum LaneEnd {
    /// The server takes nothing more of this lane: it ends, or the producer has another one.
    #[error("the queue is closed")]
    Closed = 1,
    /// The server is gone, or has parted from this lane.
    #[error("the server of the queue is gone")]
    ServerGone = 2,
    /// A request is longer than a slot. It and what was sent behind it is not placed.
    #[error("a request is longer than a slot of the queue")]
    TooLong = 3,
    /// Another client writes nonsense into the order of the queue.
    #[error("the order of the queue is broken")]
    OrderBroken = 4,
}

impl LaneEnd {
    const ALL: [LaneEnd; 4] = [
        LaneEnd::Closed,
        LaneEnd::ServerGone,
        LaneEnd::TooLong,
        LaneEnd::OrderBroken,
    ];
}

/// What has become of requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Placed {
    /// All up to this number are committed.
    pub committed: u64,
    /// All up to this number are executed.
    pub executed: u64,
    /// Why nothing more is placed.
    pub end: Option<LaneEnd>,
}

impl Placed {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = [0; PLACED_LEN];
        put(&mut body, 0, self.committed.to_le_bytes());
        put(&mut body, AT_EXECUTED, self.executed.to_le_bytes());
        body[AT_END] = self.end.map_or(0, |end| end as u8);
        append(out, Kind::Placed, &body);
    }

    /// Judges one.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        let wrong = Malformed("not a PLACED");
        if body.len() != PLACED_LEN || !is_zero(&body[AT_END + 1..]) {
            return Err(wrong);
        }
        let end = match body[AT_END] {
            0 => None,
            number => {
                let end = LaneEnd::ALL.into_iter().find(|of| *of as u8 == number);
                Some(end.ok_or(wrong)?)
            }
        };
        Ok(Placed {
            committed: u64_at(body, 0),
            executed: u64_at(body, AT_EXECUTED),
            end,
        })
    }
}

/// Appends a frame of one numbered text; its length.
fn append_bytes(out: &mut Vec<u8>, kind: Kind, number: u64, flags: u32, bytes: &[u8]) -> usize {
    let begin = out.len();
    let padded = bytes.len().next_multiple_of(8);
    let head = Head {
        len: AT_BYTES + padded,
        kind,
        count: 1,
    };
    out.extend_from_slice(&head.encode());
    out.extend_from_slice(&number.to_le_bytes());
    // No longer than a slot.
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(&flags.to_le_bytes());
    out.extend_from_slice(bytes);
    out.resize(begin + HEAD_LEN + AT_BYTES + padded, 0);
    out.len() - begin
}

/// Number, flags and length of such a frame.
fn front(body: &[u8]) -> Option<(u64, u32, usize)> {
    (body.len() >= AT_BYTES).then(|| {
        let len = u32_at(body, AT_LEN) as usize;
        (u64_at(body, 0), u32_at(body, AT_FLAGS), len)
    })
}

/// Its text, if the frame is as long as that says.
fn bytes(body: &[u8], len: usize) -> Option<&[u8]> {
    let padded = &body[AT_BYTES..];
    let is_sound = padded.len() == len.next_multiple_of(8) && is_zero(padded.get(len..)?);
    is_sound.then(|| &padded[..len])
}
