//! The memory of another process of this host, to be copied from: it says where values
//! stand, and they are read from there. So a copy costs the one that serves next to nothing,
//! and nothing is packed into messages and out of them.
//!
//! What was read is judged as any reader judges it: by its checksum, which covers the
//! version. A value is the same wherever it stands, so nothing else has to hold. What moved,
//! went or was replaced meanwhile is asked for by message.

use bytes::{Bytes, BytesMut};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use trefoil_cell::CellConfig;
use trefoil_fabric::shm::{ConnectOptions, Copier};
use trefoil_layout::data::DataEntry;
use trefoil_layout::{Pointer, epoch};
use trefoil_recovery::{Data, Item, Page, Placed};
use trefoil_region::WordBuffer;
use trefoil_rpc::ContractError;
use trefoil_store::{Position, Recency};

/// How long the greeting may take. Who is later than this is asked by message.
const CONNECT_PATIENCE: Duration = Duration::from_millis(500);
/// No entry is longer that is named instead of sent.
const LEN_MAX: usize = 128 << 10;
/// If more of a page is gone, all of it is asked for by message.
const MISSED_MAX: usize = 64;
/// Words of [`Placed`] in a message.
const WORDS: usize = 6;

/// The memory of one backend, once it has given it, if it does.
#[derive(Debug)]
pub(crate) struct Memory {
    is: Mutex<Is>,
}

#[derive(Debug)]
enum Is {
    Untried {
        backend: u32,
        config: Box<CellConfig>,
    },
    Refused,
    Open(Box<Open>),
}

#[derive(Debug)]
struct Open {
    copier: Copier,
    buffer: WordBuffer,
    /// Room for the values of pages, in turn: that of the page before the last is free.
    rooms: [BytesMut; 2],
}

/// What of a page could not be read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Missed {
    /// These places, to be asked for by message.
    Places(Vec<Range<u64>>),
    /// Too much of it.
    All,
}

impl Memory {
    /// Of a backend of this cell. Nothing is connected yet.
    pub(crate) fn new(config: &CellConfig, backend: u32) -> Self {
        let config = Box::new(config.clone());
        let is = Is::Untried { backend, config };
        Memory { is: Mutex::new(is) }
    }

    /// Whether values can be read; asks for the memory at first.
    pub(crate) fn is_open(&self) -> bool {
        let mut is = self.is.lock().unwrap_or_else(PoisonError::into_inner);
        if let Is::Untried { backend, config } = &*is {
            *is = match connect(config, *backend) {
                Some(open) => Is::Open(Box::new(open)),
                None => Is::Refused,
            };
        }
        matches!(&*is, Is::Open(_))
    }

    /// Reads what `placed` names into the page.
    pub(crate) fn read(&self, placed: &[Placed], page: &mut Page<Bytes>) -> Missed {
        let mut is = self.is.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *is {
            Is::Open(open) => open.read(placed, page),
            _ if placed.is_empty() => Missed::Places(Vec::new()),
            _ => Missed::All,
        }
    }
}

fn connect(config: &CellConfig, backend: u32) -> Option<Open> {
    let socket = config.backend(backend)?.fabric_socket.as_ref()?;
    let options = ConnectOptions {
        timeout: CONNECT_PATIENCE,
        ..ConnectOptions::default()
    };
    let copier = Copier::connect(socket, backend, &options);
    let copier = copier
        .inspect_err(|error| tracing::info!(backend, %error, "its values are copied by messages"));
    let copier = copier.ok()?;
    (copier.topology().life == config.life).then_some(Open {
        copier,
        buffer: WordBuffer::default(),
        rooms: [BytesMut::new(), BytesMut::new()],
    })
}

impl Open {
    fn read(&mut self, placed: &[Placed], page: &mut Page<Bytes>) -> Missed {
        self.rooms.swap(0, 1);
        let room = &mut self.rooms[0];
        let lens = placed.iter().map(|placed| placed.pointer.len());
        room.reserve(lens.filter(|len| *len <= LEN_MAX).sum());
        let mut missed = Vec::new();
        for one in placed {
            let is_there = one.pointer.len() <= LEN_MAX
                && self.copier.read(one.pointer, &mut self.buffer).is_ok()
                && is_sound(self.buffer.bytes(), one);
            if !is_there {
                if missed.len() == MISSED_MAX {
                    return Missed::All;
                }
                let place = Position::place_of(one.hash);
                missed.push(place..place + 1);
                continue;
            }
            room.extend_from_slice(self.buffer.bytes());
            page.items.push(Item {
                version: one.version,
                recency: one.recency,
                data: Data::Whole(room.split().freeze()),
            });
        }
        Missed::Places(missed)
    }
}

fn is_sound(bytes: &[u8], placed: &Placed) -> bool {
    let key = DataEntry::decode(bytes).map(|entry| entry.key);
    key.is_some_and(|key| DataEntry::validate(bytes, placed.hash.tag, placed.version, key).is_ok())
}

/// What was asked for by message belongs to the page; what is of another epoch makes it no
/// vote.
pub(crate) fn add(page: &mut Page<Bytes>, more: Page<Bytes>) {
    page.items.extend(more.items);
    if more.epoch != page.epoch {
        page.epoch = epoch::NONE;
    }
}

pub(crate) fn encode_placed(placed: &[Placed]) -> Vec<u64> {
    let words = |one: &Placed| -> [u64; WORDS] {
        let (hash, version) = (one.hash, one.version);
        let recency = one.recency.bits().into();
        [
            hash.place,
            hash.tag,
            version.time_ns,
            version.origin,
            one.pointer.0,
            recency,
        ]
    };
    placed.iter().flat_map(words).collect()
}

pub(crate) fn decode_placed(words: &[u64]) -> Result<Vec<Placed>, ContractError> {
    let nonsense = |why| ContractError::OutOfRange {
        field: "placed",
        found: words.len() as u64,
        why,
    };
    let (all, rest) = words.as_chunks::<WORDS>();
    if !rest.is_empty() {
        return Err(nonsense("not six words for each value"));
    }
    let one = |&[place, tag, time_ns, origin, pointer, recency]: &[u64; WORDS]| {
        let is_possible = tag != 0 && u16::try_from(recency).is_ok();
        is_possible.then_some(Placed {
            hash: trefoil_layout::KeyHash { place, tag },
            version: trefoil_layout::Version { time_ns, origin },
            recency: Recency::from_bits(recency as u16),
            pointer: Pointer(pointer),
        })
    };
    let placed: Option<Vec<_>> = all.iter().map(one).collect();
    placed.ok_or_else(|| nonsense("a tag of 0, or a recency that none has"))
}
