//! What a client asks for: items of an ASKS frame.
//!
//! | offset | bytes | request (48) | why |
//! |---|---|---|---|
//! | 0 | 8 | id | repeated by the answer; 0 for touches, which have none |
//! | 8 | 4 | handle | of the backend, from its OPENED |
//! | 12 | 1 | what | 1 scan, 2 read, 3 touch |
//! | 13 | 1 | place, or region | the backend's place in the key's cohort; or 0 control, 1 index, 2 data |
//! | 14 | 2 | partition, or flags | of a read from the index; of a scan the sum of 1, if what it finds is read by this, for eviction, and 2, if the vote is wanted without the data |
//! | 16 | 4 | config id | of a scan: that the client expects in the bucket |
//! | 20 | 4 | solicited | longest data of the answer; of a read its length |
//! | 24 | 8 | place of the key's hash, or offset | |
//! | 32 | 8 | tag of the key's hash, or window id | a read from the index names the window that it means |
//! | 40 | 8 | reserved, zero | |
//!
//! Fields that a request does not use are zero.

use super::{ANSWER_LEN, Malformed, is_zero, put, u16_at, u32_at, u64_at};
use crate::limits::DATA_LEN_MAX;
use crate::target::Expected;
use trefoil_layout::KeyHash;

const AT_HANDLE: usize = 8;
const AT_WHAT: usize = 12;
const AT_PLACE: usize = 13;
const AT_PARTITION: usize = 14;
const AT_CONFIG_ID: usize = 16;
const AT_SOLICITED: usize = 20;
const AT_A: usize = 24;
const AT_B: usize = 32;
const AT_RESERVED: usize = 40;

/// Bytes of a request.
pub const ASK_LEN: usize = 48;

const _: () = {
    assert!(AT_HANDLE == 8 && AT_WHAT == AT_HANDLE + 4 && AT_PLACE == AT_WHAT + 1);
    assert!(AT_PARTITION == AT_PLACE + 1 && AT_CONFIG_ID == AT_PARTITION + 2);
    assert!(AT_SOLICITED == AT_CONFIG_ID + 4 && AT_A == AT_SOLICITED + 4);
    assert!(AT_B == AT_A + 8 && AT_RESERVED == AT_B + 8 && AT_RESERVED + 8 == ASK_LEN);
};

const SCAN: u8 = 1;
const READ: u8 = 2;
const TOUCH: u8 = 3;

/// Flags of a scan.
const USE: u16 = 1;
const VOTE: u16 = 2;

/// One of a backend's memory objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Region {
    /// Lease, windows, floor.
    Control = 0,
    /// Buckets.
    Index = 1,
    /// Data entries.
    Data = 2,
}

/// What is asked of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Scan a key's bucket, and read the data entry that it points at.
    Scan {
        /// The backend's place in the key's cohort.
        place: u8,
        /// Of the key.
        hash: KeyHash,
        /// That the client expects.
        config_id: u32,
        /// Longest data that it takes.
        solicited: u32,
        /// Whether what it finds should not be evicted next: as a touch would say.
        is_use: bool,
        /// Whether the vote alone is wanted; then nothing is solicited.
        is_vote: bool,
    },
    /// Copy so many bytes.
    Read {
        /// Out of this region.
        region: Region,
        /// Of the index: whose window.
        partition: u16,
        /// Of the index: which window.
        window_id: u64,
        /// In the region, a multiple of 8.
        offset: u64,
        /// A multiple of 8.
        len: u32,
    },
    /// A hit has read this item: it should not be evicted next. Not answered.
    Touch {
        /// The backend's place in the key's cohort.
        place: u8,
        /// Of the key.
        hash: KeyHash,
    },
}

/// A request with its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Unique among those under way.
    pub id: u64,
    /// The backend's.
    pub handle: u32,
    /// What for.
    pub request: Request,
}

impl Ask {
    /// Longest data of its answer.
    pub fn solicited(&self) -> u32 {
        match self.request {
            Request::Scan { solicited, .. } => solicited,
            Request::Read { len, .. } => len,
            Request::Touch { .. } => 0,
        }
    }

    /// Whether it is answered.
    pub fn is_answered(&self) -> bool {
        !matches!(self.request, Request::Touch { .. })
    }

    /// The bytes to send.
    pub fn encode(&self) -> [u8; ASK_LEN] {
        let mut out = [0; ASK_LEN];
        put(&mut out, 0, self.id.to_le_bytes());
        put(&mut out, AT_HANDLE, self.handle.to_le_bytes());
        match self.request {
            Request::Scan {
                place,
                hash,
                config_id,
                solicited,
                is_use,
                is_vote,
            } => {
                (out[AT_WHAT], out[AT_PLACE]) = (SCAN, place);
                let flags = (u16::from(is_use) * USE) | (u16::from(is_vote) * VOTE);
                put(&mut out, AT_PARTITION, flags.to_le_bytes());
                put(&mut out, AT_CONFIG_ID, config_id.to_le_bytes());
                put(&mut out, AT_SOLICITED, solicited.to_le_bytes());
                put(&mut out, AT_A, hash.place.to_le_bytes());
                put(&mut out, AT_B, hash.tag.to_le_bytes());
            }
            Request::Read {
                region,
                partition,
                window_id,
                offset,
                len,
            } => {
                (out[AT_WHAT], out[AT_PLACE]) = (READ, region as u8);
                put(&mut out, AT_PARTITION, partition.to_le_bytes());
                put(&mut out, AT_SOLICITED, len.to_le_bytes());
                put(&mut out, AT_A, offset.to_le_bytes());
                put(&mut out, AT_B, window_id.to_le_bytes());
            }
            Request::Touch { place, hash } => {
                (out[AT_WHAT], out[AT_PLACE]) = (TOUCH, place);
                put(&mut out, AT_A, hash.place.to_le_bytes());
                put(&mut out, AT_B, hash.tag.to_le_bytes());
            }
        }
        out
    }

    /// What a scan will look at, unjudged. `None` of other requests.
    #[inline]
    pub(crate) fn expected(bytes: &[u8; ASK_LEN]) -> Option<Expected> {
        (bytes[AT_WHAT] == SCAN).then(|| Expected {
            handle: u32_at(bytes, AT_HANDLE),
            place: bytes[AT_PLACE],
            hash: KeyHash {
                place: u64_at(bytes, AT_A),
                tag: u64_at(bytes, AT_B),
            },
            has_data: u16_at(bytes, AT_PARTITION) & VOTE == 0,
        })
    }

    /// What a request's answer takes of the window, unjudged: 0 of those without one.
    #[inline]
    pub(crate) fn cost(bytes: &[u8; ASK_LEN]) -> usize {
        match bytes[AT_WHAT] {
            TOUCH => 0,
            _ => ANSWER_LEN + u32_at(bytes, AT_SOLICITED) as usize,
        }
    }

    /// Judges one.
    #[inline]
    pub fn decode(bytes: &[u8; ASK_LEN]) -> Result<Self, Malformed> {
        let (place, partition) = (bytes[AT_PLACE], u16_at(bytes, AT_PARTITION));
        let (config_id, solicited) = (u32_at(bytes, AT_CONFIG_ID), u32_at(bytes, AT_SOLICITED));
        let (a, b) = (u64_at(bytes, AT_A), u64_at(bytes, AT_B));
        let id = u64_at(bytes, 0);
        let wrong = |what| Err(Malformed(what));
        if !is_zero(&bytes[AT_RESERVED..]) {
            return wrong("reserved bytes of a request are in use");
        }
        if solicited as usize > DATA_LEN_MAX || !solicited.is_multiple_of(8) {
            return wrong("a request solicits more than there may be");
        }
        let hash = KeyHash { place: a, tag: b };
        let request = match bytes[AT_WHAT] {
            SCAN if partition <= USE | VOTE && (partition & VOTE == 0 || solicited == 0) => {
                Request::Scan {
                    place,
                    hash,
                    config_id,
                    solicited,
                    is_use: partition & USE != 0,
                    is_vote: partition & VOTE != 0,
                }
            }
            READ if config_id == 0 && a.is_multiple_of(8) => Request::Read {
                region: match place {
                    0 => Region::Control,
                    1 => Region::Index,
                    2 => Region::Data,
                    _ => return wrong("a read from no region"),
                },
                partition,
                window_id: b,
                offset: a,
                len: solicited,
            },
            TOUCH if partition == 0 && config_id == 0 && solicited == 0 && id == 0 => {
                Request::Touch { place, hash }
            }
            _ => return wrong("not a request"),
        };
        Ok(Ask {
            id,
            handle: u32_at(bytes, AT_HANDLE),
            request,
        })
    }
}
