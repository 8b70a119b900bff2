//! A host's memory made up, and an engine and a client that exchange bytes piece by piece.

use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::{HashKind, IndexEntry, KeyHash, KeyHasher, Pointer, TopologyId, Version};
use trefoil_softnic_core::wire::{Answer, Open, OpenStatus, Opened, RefusalCode, Status, Welcome};
use trefoil_softnic_core::{Memory, ReadRange, Scan};

pub(crate) const LIFE: u64 = 77;
pub(crate) const CONFIG: u32 = 5;
pub(crate) const TOKEN: &[u8] = b"a token that is long enough to be one";

/// Keys whose tag is even are present, with `tag % 4096 * 8` bytes of data.
pub(crate) struct Fake {
    pub(crate) admitted: usize,
    pub(crate) scans: usize,
    pub(crate) touches: Vec<KeyHash>,
    /// Handles that are good.
    pub(crate) handle: u32,
    pub(crate) is_lapsed: bool,
}

impl Fake {
    pub(crate) fn new() -> Self {
        Fake {
            admitted: 0,
            scans: 0,
            touches: Vec::new(),
            handle: 9,
            is_lapsed: false,
        }
    }

    fn done(&self, vote: Option<IndexVote>, data_len: usize) -> Answer {
        Answer {
            vote,
            data_len: data_len as u32,
            config_id: CONFIG,
            lease_left_us: 400_000,
            flush_floor: Version::new(3, 2, 1),
            stamp: 0x5eed,
            ..Answer::bare(Status::Done)
        }
    }
}

pub(crate) fn data_len(hash: KeyHash) -> usize {
    (hash.tag % 4096) as usize * 8
}

pub(crate) fn entry(hash: KeyHash) -> IndexEntry {
    IndexEntry {
        tag: hash.tag,
        version: Version::new(hash.place | 1, 4, 5),
        pointer: Pointer(hash.tag << 20),
    }
}

pub(crate) fn vote(hash: KeyHash, place: u8) -> IndexVote {
    match hash.tag % 2 {
        0 => IndexVote::Present {
            slot_number: hash.place as u32,
            entry: entry(hash),
            epoch: u32::from(place),
        },
        _ => IndexVote::Absent {
            epoch: u32::from(place),
        },
    }
}

pub(crate) fn welcome() -> Welcome {
    Welcome {
        window: u32::MAX,
        engine: 11,
        session: 12,
    }
}

pub(crate) fn opened(open: &Open, handle: u32) -> Opened {
    Opened {
        handle,
        backend: open.backend,
        layout: 3,
        hasher: KeyHasher {
            kind: HashKind::Xxh3,
            seed: [1, 2],
        },
        partition_count: 12,
        sub_count: 4,
        incarnation: 99,
        topology: TopologyId {
            life: open.life,
            config_id: CONFIG,
        },
    }
}

impl Memory for Fake {
    fn admit(&mut self, token: &[u8]) -> Result<Welcome, RefusalCode> {
        if token != TOKEN {
            return Err(RefusalCode::Token);
        }
        self.admitted += 1;
        Ok(welcome())
    }

    fn open(&mut self, open: &Open) -> Result<Opened, OpenStatus> {
        match (open.life, open.backend) {
            (LIFE, 0..3) => Ok(opened(open, self.handle)),
            (LIFE, _) => Err(OpenStatus::NoSuchBackend),
            _ => Err(OpenStatus::OtherLife),
        }
    }

    fn scan(&mut self, scan: &Scan, data: &mut Vec<u8>) -> Answer {
        let Scan {
            handle,
            place,
            hash,
            config_id,
            solicited,
            is_use,
            is_vote,
        } = *scan;
        self.scans += 1;
        if handle != self.handle {
            return Answer::bare(Status::Gone);
        }
        if self.is_lapsed {
            return Answer::bare(Status::Lapsed);
        }
        if config_id != CONFIG {
            return self.done(Some(IndexVote::ConfigChanged { found: CONFIG }), 0);
        }
        let vote = vote(hash, place);
        let len = match vote {
            IndexVote::Present { .. } if !is_vote => data_len(hash),
            _ => 0,
        };
        if len > solicited as usize {
            return Answer {
                status: Status::TooLong,
                ..self.done(None, len)
            };
        }
        data.extend((0..len).map(|at| (at as u64 ^ hash.tag) as u8));
        if is_use && let IndexVote::Present { .. } = vote {
            self.touches.push(hash);
        }
        self.done(Some(vote), len)
    }

    fn read(&mut self, handle: u32, range: &ReadRange, data: &mut Vec<u8>) -> Answer {
        if handle != self.handle {
            return Answer::bare(Status::Gone);
        }
        let end = range.offset.checked_add(u64::from(range.len));
        if end.is_none_or(|end| end > 1 << 20) {
            return Answer::bare(Status::OutOfWindow);
        }
        data.extend((0..range.len).map(|at| (at as u64 + range.offset) as u8));
        self.done(None, range.len as usize)
    }

    fn touch(&mut self, _handle: u32, _place: u8, hash: KeyHash) {
        self.touches.push(hash);
    }
}

pub(crate) fn random(seed: u64) -> SmallRng {
    SmallRng::seed_from_u64(seed)
}

pub(crate) fn hash(random: &mut SmallRng) -> KeyHash {
    KeyHash {
        place: random.random(),
        tag: random.random(),
    }
}
