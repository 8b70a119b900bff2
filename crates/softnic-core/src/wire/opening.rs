//! Which backend a client reads, and under which handle.
//!
//! | offset | bytes | OPEN (24) | why |
//! |---|---|---|---|
//! | 0 | 8 | id | repeated by the answer |
//! | 8 | 8 | life | of the cell: memory of another life is never read |
//! | 16 | 4 | backend number | |
//! | 20 | 4 | reserved, zero | |
//!
//! | offset | bytes | OPENED (72) | why |
//! |---|---|---|---|
//! | 0 | 8 | id | |
//! | 8 | 1 | status | see [`OpenStatus`]; what follows is zero unless it is 0 |
//! | 9 | 1 | layout version | of the backend's memory |
//! | 10 | 1 | hash kind | every client must hash alike |
//! | 11 | 1 | reserved, zero | |
//! | 12 | 4 | handle | names this backend in this incarnation; another one has another |
//! | 16 | 4 | backend number | |
//! | 20 | 2 | partition count | |
//! | 22 | 2 | partitions of a shard | |
//! | 24 | 4 | config id | that the backend serves now |
//! | 28 | 4 | reserved, zero | |
//! | 32 | 8 | incarnation | |
//! | 40 | 8 | life | |
//! | 48 | 16 | hash seed | |
//! | 64 | 8 | reserved, zero | |

use super::greeting::append;
use super::{Kind, Malformed, is_zero, put, u16_at, u32_at, u64_at};
use trefoil_layout::{HashKind, KeyHasher, TopologyId};

const AT_LIFE: usize = 8;
const AT_BACKEND: usize = 16;
const AT_OPEN_RESERVED: usize = 20;
const AT_STATUS: usize = 8;
const AT_LAYOUT: usize = 9;
const AT_HASH: usize = 10;
const AT_HANDLE: usize = 12;
const AT_OPENED_BACKEND: usize = 16;
const AT_PARTITIONS: usize = 20;
const AT_SUB: usize = 22;
const AT_CONFIG_ID: usize = 24;
const AT_GAP: usize = 28;
const AT_INCARNATION: usize = 32;
const AT_OPENED_LIFE: usize = 40;
const AT_SEED: usize = 48;
const AT_RESERVED: usize = 64;

/// Bytes of an OPEN behind its head.
pub const OPEN_LEN: usize = 24;
/// Bytes of an OPENED behind its head.
pub const OPENED_LEN: usize = 72;

const _: () = {
    assert!(AT_LIFE == 8 && AT_BACKEND == AT_LIFE + 8 && AT_OPEN_RESERVED == AT_BACKEND + 4);
    assert!(AT_OPEN_RESERVED + 4 == OPEN_LEN);
    assert!(AT_STATUS == 8 && AT_LAYOUT == AT_STATUS + 1 && AT_HASH == AT_LAYOUT + 1);
    assert!(AT_HANDLE == AT_HASH + 2 && AT_OPENED_BACKEND == AT_HANDLE + 4);
    assert!(AT_PARTITIONS == AT_OPENED_BACKEND + 4 && AT_SUB == AT_PARTITIONS + 2);
    assert!(AT_CONFIG_ID == AT_SUB + 2 && AT_GAP == AT_CONFIG_ID + 4);
    assert!(AT_INCARNATION == AT_GAP + 4 && AT_OPENED_LIFE == AT_INCARNATION + 8);
    assert!(AT_SEED == AT_OPENED_LIFE + 8 && AT_RESERVED == AT_SEED + 16);
    assert!(AT_RESERVED + 8 == OPENED_LEN);
};

/// A client wants to read a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The client's choice.
    pub id: u64,
    /// The cell's.
    pub life: u64,
    /// Number in the cell.
    pub backend: u32,
}

impl Open {
    /// Appends the frame.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut body = [0; OPEN_LEN];
        put(&mut body, 0, self.id.to_le_bytes());
        put(&mut body, AT_LIFE, self.life.to_le_bytes());
        put(&mut body, AT_BACKEND, self.backend.to_le_bytes());
        append(out, Kind::Open, &body);
    }

    /// Judges one.
    pub fn decode(body: &[u8]) -> Result<Self, Malformed> {
        if body.len() != OPEN_LEN || !is_zero(&body[AT_OPEN_RESERVED..]) {
            return Err(Malformed("not an OPEN"));
        }
        Ok(Open {
            id: u64_at(body, 0),
            life: u64_at(body, AT_LIFE),
            backend: u32_at(body, AT_BACKEND),
        })
    }
}

/// Why a backend cannot be read by way of this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[repr(u8)]
pub enum OpenStatus {
    /// Not one of this host's, or not of this cell.
    #[error("the engine knows no such backend on its host")]
    NoSuchBackend = 1,
    /// Its process does not run, or has not been found yet.
    #[error(
        "the backend's memory is not mapped by the engine: it is down, or was started just now"
    )]
    NotMapped = 2,
    /// It serves another life of the cell.
    #[error("the backend serves another life of the cell")]
    OtherLife = 3,
}

impl OpenStatus {
    fn from_number(number: u8) -> Option<Self> {
        Some(match number {
            1 => OpenStatus::NoSuchBackend,
            2 => OpenStatus::NotMapped,
            3 => OpenStatus::OtherLife,
            _ => return None,
        })
    }
}

/// A backend as an engine's clients know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    /// Names it in requests.
    pub handle: u32,
    /// Number in the cell.
    pub backend: u32,
    /// Layout version of its memory.
    pub layout: u8,
    /// The cell's hash function.
    pub hasher: KeyHasher,
    /// Partitions of the backend, those of all shards.
    pub partition_count: u16,
    /// Partitions of each of its shards.
    pub sub_count: u16,
    /// One life of the backend's process.
    pub incarnation: u64,
    /// What it serves now.
    pub topology: TopologyId,
}

impl Opened {
    /// Appends the answer to the OPEN with this id.
    pub fn encode(id: u64, result: &Result<Opened, OpenStatus>, out: &mut Vec<u8>) {
        let mut body = [0; OPENED_LEN];
        put(&mut body, 0, id.to_le_bytes());
        match result {
            Err(status) => body[AT_STATUS] = *status as u8,
            Ok(opened) => {
                body[AT_LAYOUT] = opened.layout;
                body[AT_HASH] = opened.hasher.kind as u8;
                put(&mut body, AT_HANDLE, opened.handle.to_le_bytes());
                put(&mut body, AT_OPENED_BACKEND, opened.backend.to_le_bytes());
                put(
                    &mut body,
                    AT_PARTITIONS,
                    opened.partition_count.to_le_bytes(),
                );
                put(&mut body, AT_SUB, opened.sub_count.to_le_bytes());
                put(
                    &mut body,
                    AT_CONFIG_ID,
                    opened.topology.config_id.to_le_bytes(),
                );
                put(&mut body, AT_INCARNATION, opened.incarnation.to_le_bytes());
                put(
                    &mut body,
                    AT_OPENED_LIFE,
                    opened.topology.life.to_le_bytes(),
                );
                put(&mut body, AT_SEED, opened.hasher.seed[0].to_le_bytes());
                put(&mut body, AT_SEED + 8, opened.hasher.seed[1].to_le_bytes());
            }
        }
        append(out, Kind::Opened, &body);
    }

    /// Judges one: the id, and what came of it.
    pub fn decode(body: &[u8]) -> Result<(u64, Result<Opened, OpenStatus>), Malformed> {
        let wrong = Malformed("not an OPENED");
        if body.len() != OPENED_LEN {
            return Err(wrong);
        }
        let id = u64_at(body, 0);
        if body[AT_STATUS] != 0 {
            let status = OpenStatus::from_number(body[AT_STATUS]).ok_or(wrong)?;
            return match is_zero(&body[AT_LAYOUT..]) {
                true => Ok((id, Err(status))),
                false => Err(wrong),
            };
        }
        let opened = Opened {
            handle: u32_at(body, AT_HANDLE),
            backend: u32_at(body, AT_OPENED_BACKEND),
            layout: body[AT_LAYOUT],
            hasher: KeyHasher {
                kind: HashKind::from_number(body[AT_HASH]).ok_or(wrong)?,
                seed: [u64_at(body, AT_SEED), u64_at(body, AT_SEED + 8)],
            },
            partition_count: u16_at(body, AT_PARTITIONS),
            sub_count: u16_at(body, AT_SUB),
            incarnation: u64_at(body, AT_INCARNATION),
            topology: TopologyId {
                life: u64_at(body, AT_OPENED_LIFE),
                config_id: u32_at(body, AT_CONFIG_ID),
            },
        };
        let is_sound = is_zero(&body[AT_HASH + 1..AT_HANDLE])
            && is_zero(&body[AT_GAP..AT_INCARNATION])
            && is_zero(&body[AT_RESERVED..])
            && opened.sub_count > 0
            && opened.sub_count <= opened.partition_count;
        match is_sound {
            true => Ok((id, Ok(opened))),
            false => Err(wrong),
        }
    }
}
