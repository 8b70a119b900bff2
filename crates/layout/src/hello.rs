//! The greeting on a backend's Unix socket: one hello, one reply with the
//! descriptors, then the socket serves as the doorbell of the rings.
//!
//! | offset | bytes | hello (32) | why |
//! |---|---|---|---|
//! | 0 | 8 | magic | |
//! | 8 | 2 | protocol version | of these two messages and of what follows |
//! | 10 | 2 | wishes | 1: message rings; 2: it looks at pending marks; 4: a lane of the queue |
//! | 12 | 4 | backend number | one process may serve several backends on one socket |
//! | 16 | 16 | reserved, zero | |
//!
//! | offset | bytes | reply (96) | why |
//! |---|---|---|---|
//! | 0 | 8 | magic | |
//! | 8 | 2 | protocol version | the server's, also when it refuses the client's |
//! | 10 | 2 | status | see [`Status`]; what follows counts only if it is 0 |
//! | 12 | 1 | layout version | of the regions |
//! | 13 | 1 | hash kind | every client must hash alike |
//! | 14 | 2 | partition count | |
//! | 16 | 4 | backend number | |
//! | 20 | 4 | marks length | bytes of the object behind the next descriptor, 0 if there is none |
//! | 24 | 8 | incarnation | also in the control region: both must agree |
//! | 32 | 16 | hash seed | |
//! | 48 | 8 | control length | bytes of the object behind the first descriptor |
//! | 56 | 8 | index length | second descriptor |
//! | 64 | 8 | data length | third descriptor |
//! | 72 | 4 | request ring length | 0 if no rings were given |
//! | 76 | 4 | answer ring length | next descriptor, both rings |
//! | 80 | 8 | life | of the cell; rings belong to it, so their messages need not name it |
//! | 88 | 4 | config id | in force when the reply was made; the control region has the latest |
//! | 92 | 4 | place | of a lane in the marks, plus 1; 0 if no lane was given. Its descriptors are the last three: order, lane, bell |
//!
//! A backend with a queue (`docs/ordered.md`, *In a cell*) has acknowledged mutations that its
//! memory does not show yet. Who does not say that it looks at the marks gets none of its
//! memory ([`Status::MarksNeeded`]), and asks by RPC. A client says so when it was asked to: an
//! older server takes a wish that it does not know for no greeting at all.

use crate::hash::{HashKind, KeyHasher};
use crate::limits::LAYOUT_VERSION;
use crate::ring::Geometry;
use crate::topology::TopologyId;

/// Number of this protocol. Either side refuses any other.
pub const PROTOCOL_VERSION: u16 = 2;
/// Bytes of a hello.
pub const HELLO_LEN: usize = 32;
/// Bytes of a reply.
pub const REPLY_LEN: usize = 96;
/// Descriptors of a reply: control, index, data, marks, and rings or the three of a lane.
pub const DESCRIPTOR_COUNT_MAX: usize = 7;

const MAGIC: [u8; 8] = *b"TREFHELO";
const WISH_RINGS: u16 = 1;
const WISH_MARKS: u16 = 2;
const WISH_LANE: u16 = 4;
const WISHES: u16 = WISH_RINGS | WISH_MARKS | WISH_LANE;

const AT_VERSION: usize = 8;
const AT_WISHES: usize = 10;
const AT_WANTED: usize = 12;
const AT_WANTED_END: usize = 16;

const AT_STATUS: usize = 10;
const AT_LAYOUT: usize = 12;
const AT_HASH_KIND: usize = 13;
const AT_PARTITIONS: usize = 14;
const AT_BACKEND: usize = 16;
const AT_MARKS_LEN: usize = 20;
const AT_INCARNATION: usize = 24;
const AT_SEED: usize = 32;
const AT_CONTROL_LEN: usize = 48;
const AT_INDEX_LEN: usize = 56;
const AT_DATA_LEN: usize = 64;
const AT_REQUEST_RING: usize = 72;
const AT_ANSWER_RING: usize = 76;
const AT_LIFE: usize = 80;
const AT_CONFIG_ID: usize = 88;
const AT_PLACE: usize = 92;

const _: () = {
    assert!(AT_VERSION == MAGIC.len() && AT_WISHES == AT_VERSION + 2);
    assert!(AT_WANTED == AT_WISHES + 2 && AT_WANTED_END == AT_WANTED + 4);
    assert!(AT_WANTED_END + 16 == HELLO_LEN);
    assert!(AT_LAYOUT == AT_STATUS + 2 && AT_HASH_KIND == AT_LAYOUT + 1);
    assert!(AT_PARTITIONS == AT_HASH_KIND + 1 && AT_BACKEND == AT_PARTITIONS + 2);
    assert!(AT_MARKS_LEN == AT_BACKEND + 4 && AT_INCARNATION == AT_MARKS_LEN + 4);
    assert!(AT_SEED == AT_INCARNATION + 8);
    assert!(AT_CONTROL_LEN == AT_SEED + 16 && AT_INDEX_LEN == AT_CONTROL_LEN + 8);
    assert!(AT_DATA_LEN == AT_INDEX_LEN + 8 && AT_REQUEST_RING == AT_DATA_LEN + 8);
    assert!(AT_ANSWER_RING == AT_REQUEST_RING + 4 && AT_LIFE == AT_ANSWER_RING + 4);
    assert!(AT_CONFIG_ID == AT_LIFE + 8 && AT_PLACE == AT_CONFIG_ID + 4);
    assert!(AT_PLACE + 4 == REPLY_LEN);
};

/// What a client asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// Which backend of that process.
    pub backend: u32,
    /// Whether it wants message rings beside the regions.
    pub wants_rings: bool,
    /// Whether it looks at the marks of mutations that are not executed yet.
    pub knows_marks: bool,
    /// Whether it wants a lane of the backend's queue, and the right to mark.
    pub wants_lane: bool,
}

/// Why a hello is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// Not this protocol at all, or reserved bytes in use.
    #[error("not the greeting of Trefoil's shared memory protocol")]
    Malformed,
    /// Another release.
    #[error(
        "the other side speaks version {found} of the shared memory protocol, this one version {PROTOCOL_VERSION}: run the same release on both sides"
    )]
    Protocol {
        /// The other side's version.
        found: u16,
    },
}

/// The server's decision, in numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Status {
    /// The descriptors follow.
    Accepted = 0,
    /// Not a hello.
    Malformed = 1,
    /// Another protocol version.
    Protocol = 2,
    /// This process does not serve that backend.
    NoSuchBackend = 3,
    /// The client's user is not allowed here.
    NotAllowed = 4,
    /// The server could not prepare what was asked for, or its queue takes nobody now: it ends,
    /// say.
    Unavailable = 5,
    /// The backend has a queue: its memory is for those who look at the marks.
    MarksNeeded = 6,
    /// The backend has no queue.
    NoQueue = 7,
    /// The queue has as many clients as it takes.
    NoLane = 8,
}

impl Status {
    fn from_number(number: u16) -> Option<Self> {
        [
            Status::Accepted,
            Status::Malformed,
            Status::Protocol,
            Status::NoSuchBackend,
            Status::NotAllowed,
            Status::Unavailable,
            Status::MarksNeeded,
            Status::NoQueue,
            Status::NoLane,
        ]
        .into_iter()
        .find(|status| *status as u16 == number)
    }
}

impl Hello {
    /// The bytes to send.
    pub fn encode(&self) -> [u8; HELLO_LEN] {
        let mut out = [0; HELLO_LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[AT_VERSION..AT_WISHES].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        let wishes = [
            (self.wants_rings, WISH_RINGS),
            (self.knows_marks, WISH_MARKS),
            (self.wants_lane, WISH_LANE),
        ];
        let wishes = wishes.map(|(has, wish)| if has { wish } else { 0 });
        let wishes = wishes.iter().sum::<u16>();
        out[AT_WISHES..AT_WANTED].copy_from_slice(&wishes.to_le_bytes());
        out[AT_WANTED..AT_WANTED_END].copy_from_slice(&self.backend.to_le_bytes());
        out
    }

    /// Judges what came.
    pub fn parse(bytes: &[u8; HELLO_LEN]) -> Result<Self, HelloError> {
        check_front(bytes)?;
        let wishes = u16_at(bytes, AT_WISHES);
        if wishes & !WISHES != 0 || bytes[AT_WANTED_END..].iter().any(|b| *b != 0) {
            return Err(HelloError::Malformed);
        }
        Ok(Hello {
            backend: u32_at(bytes, AT_WANTED),
            wants_rings: wishes & WISH_RINGS != 0,
            knows_marks: wishes & WISH_MARKS != 0,
            wants_lane: wishes & WISH_LANE != 0,
        })
    }
}

/// What the server hands over, described.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// Layout version of the regions, as the server wrote it.
    pub layout_version: u8,
    /// The cell's hash function.
    pub hasher: KeyHasher,
    /// Partitions of this backend.
    pub partition_count: u16,
    /// Which backend.
    pub backend: u32,
    /// One life of the backend's process.
    pub incarnation: u64,
    /// Bytes of the control region.
    pub control_len: u64,
    /// Bytes of the index region.
    pub index_len: u64,
    /// Bytes of the data region.
    pub data_len: u64,
    /// The rings, if any were given.
    pub rings: Option<Geometry>,
    /// Bytes of the marks object of a backend with a queue; 0 for none.
    pub marks_len: u32,
    /// The place of a lane in the marks, if one was given.
    pub place: Option<u32>,
    /// What the backend serves now.
    pub topology: TopologyId,
}

/// A reply, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Descriptors come with it.
    Granted(Granted),
    /// None do.
    Refused(Status),
    /// The server's regions are of another layout; nothing else was understood.
    OtherLayout(u8),
}

impl Reply {
    /// The bytes to send.
    pub fn encode(&self) -> [u8; REPLY_LEN] {
        let mut out = [0; REPLY_LEN];
        out[..8].copy_from_slice(&MAGIC);
        out[AT_VERSION..AT_WISHES].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
        match self {
            Reply::Refused(status) => {
                out[AT_STATUS..AT_LAYOUT].copy_from_slice(&(*status as u16).to_le_bytes());
                out[AT_LAYOUT] = LAYOUT_VERSION;
            }
            Reply::OtherLayout(version) => out[AT_LAYOUT] = *version,
            Reply::Granted(granted) => granted.encode(&mut out),
        }
        out
    }

    /// Judges what came.
    pub fn parse(bytes: &[u8; REPLY_LEN]) -> Result<Self, HelloError> {
        check_front(bytes)?;
        match Status::from_number(u16_at(bytes, AT_STATUS)) {
            Some(Status::Accepted) => {}
            Some(status) => return Ok(Reply::Refused(status)),
            None => return Err(HelloError::Malformed),
        }
        if bytes[AT_LAYOUT] != LAYOUT_VERSION {
            return Ok(Reply::OtherLayout(bytes[AT_LAYOUT]));
        }
        Granted::parse(bytes)
            .map(Reply::Granted)
            .ok_or(HelloError::Malformed)
    }
}

impl Granted {
    fn encode(&self, out: &mut [u8; REPLY_LEN]) {
        out[AT_LAYOUT] = self.layout_version;
        out[AT_HASH_KIND] = self.hasher.kind as u8;
        out[AT_PARTITIONS..AT_BACKEND].copy_from_slice(&self.partition_count.to_le_bytes());
        out[AT_BACKEND..AT_BACKEND + 4].copy_from_slice(&self.backend.to_le_bytes());
        let long = [
            self.incarnation,
            self.hasher.seed[0],
            self.hasher.seed[1],
            self.control_len,
            self.index_len,
            self.data_len,
        ];
        for (to, from) in out[AT_INCARNATION..AT_REQUEST_RING]
            .chunks_exact_mut(8)
            .zip(long)
        {
            to.copy_from_slice(&from.to_le_bytes());
        }
        out[AT_LIFE..AT_CONFIG_ID].copy_from_slice(&self.topology.life.to_le_bytes());
        out[AT_CONFIG_ID..AT_PLACE].copy_from_slice(&self.topology.config_id.to_le_bytes());
        out[AT_MARKS_LEN..AT_INCARNATION].copy_from_slice(&self.marks_len.to_le_bytes());
        let place = self.place.map_or(0, |place| place + 1);
        out[AT_PLACE..].copy_from_slice(&place.to_le_bytes());
        if let Some(rings) = self.rings {
            out[AT_REQUEST_RING..AT_ANSWER_RING]
                .copy_from_slice(&rings.request_len().to_le_bytes());
            out[AT_ANSWER_RING..AT_ANSWER_RING + 4]
                .copy_from_slice(&rings.answer_len().to_le_bytes());
        }
    }

    fn parse(bytes: &[u8; REPLY_LEN]) -> Option<Self> {
        let rings = match (
            u32_at(bytes, AT_REQUEST_RING),
            u32_at(bytes, AT_ANSWER_RING),
        ) {
            (0, 0) => None,
            (request_len, answer_len) => Some(Geometry::new(request_len, answer_len)?),
        };
        let topology = TopologyId {
            life: u64_at(bytes, AT_LIFE),
            config_id: u32_at(bytes, AT_CONFIG_ID),
        };
        if topology.life == 0 {
            return None;
        }
        Some(Granted {
            layout_version: bytes[AT_LAYOUT],
            hasher: KeyHasher {
                kind: HashKind::from_number(bytes[AT_HASH_KIND])?,
                seed: [u64_at(bytes, AT_SEED), u64_at(bytes, AT_SEED + 8)],
            },
            partition_count: u16_at(bytes, AT_PARTITIONS),
            backend: u32_at(bytes, AT_BACKEND),
            incarnation: u64_at(bytes, AT_INCARNATION),
            control_len: u64_at(bytes, AT_CONTROL_LEN),
            index_len: u64_at(bytes, AT_INDEX_LEN),
            data_len: u64_at(bytes, AT_DATA_LEN),
            rings,
            marks_len: u32_at(bytes, AT_MARKS_LEN),
            place: u32_at(bytes, AT_PLACE).checked_sub(1),
            topology,
        })
    }
}

fn check_front(bytes: &[u8]) -> Result<(), HelloError> {
    if bytes[..8] != MAGIC {
        return Err(HelloError::Malformed);
    }
    match u16_at(bytes, AT_VERSION) {
        PROTOCOL_VERSION => Ok(()),
        found => Err(HelloError::Protocol { found }),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from(u16_at(bytes, at)) | u32::from(u16_at(bytes, at + 2)) << 16
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted() -> Granted {
        Granted {
            layout_version: LAYOUT_VERSION,
            hasher: KeyHasher {
                kind: HashKind::Sip13,
                seed: [u64::MAX - 5, 6],
            },
            partition_count: 8,
            backend: 2,
            incarnation: 0x1234_5678_9abc_def0,
            control_len: 8192,
            index_len: 1 << 40,
            data_len: 1 << 43,
            rings: Geometry::new(1 << 18, 1 << 17),
            marks_len: 8192,
            place: Some(0),
            topology: TopologyId {
                life: u64::MAX - 7,
                config_id: 9,
            },
        }
    }

    #[test]
    fn hello_and_reply_come_back() {
        for wishes in 0..8 {
            let hello = Hello {
                backend: 7,
                wants_rings: wishes & 1 != 0,
                knows_marks: wishes & 2 != 0,
                wants_lane: wishes & 4 != 0,
            };
            assert_eq!(Hello::parse(&hello.encode()), Ok(hello));
        }
        let replies = [
            Reply::Granted(granted()),
            Reply::Granted(Granted {
                rings: None,
                marks_len: 0,
                place: None,
                ..granted()
            }),
            Reply::Refused(Status::NotAllowed),
            Reply::Refused(Status::MarksNeeded),
            Reply::OtherLayout(LAYOUT_VERSION + 1),
        ];
        for reply in replies {
            assert_eq!(Reply::parse(&reply.encode()), Ok(reply));
        }
    }

    #[test]
    fn other_versions_and_strangers_are_told_apart() {
        let mut bytes = Hello {
            backend: 0,
            wants_rings: true,
            knows_marks: false,
            wants_lane: false,
        }
        .encode();
        bytes[8] = 9;
        assert_eq!(Hello::parse(&bytes), Err(HelloError::Protocol { found: 9 }));
        assert_eq!(Hello::parse(&[b'G'; 32]), Err(HelloError::Malformed));
        let mut bytes = Reply::Granted(granted()).encode();
        bytes[72] = 1;
        assert_eq!(Reply::parse(&bytes), Err(HelloError::Malformed));
        let mut lifeless = granted();
        lifeless.topology.life = 0;
        let bytes = Reply::Granted(lifeless).encode();
        assert_eq!(Reply::parse(&bytes), Err(HelloError::Malformed));
    }
}
