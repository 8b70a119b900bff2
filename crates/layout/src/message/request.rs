//! Requests.
//!
//! | offset | bytes | mutate | why |
//! |---|---|---|---|
//! | 9 | 1 | action | 1 set, 2 erase, 3 CAS on a version, 4 CAS on absence, 5 fill |
//! | 10 | 1 | item flags | of the data entry |
//! | 11 | 1 | options | 1: a CAS unique is given |
//! | 16 | 16 | version | nominated by the client |
//! | 32 | 16 | expected version | action 3 only; of action 5 the first 8 bytes are the stamp, the others zero |
//! | 48 | 8 | expiry, ms | 0 never |
//! | 56 | 8 | CAS unique | option 1 only |
//! | 64 | 4 | client flags | |
//! | 68 | 4 | key length | |
//! | 72 | 4 | value length | |
//! | 76 | 4 | reserved, zero | |
//! | 80 | | key, value | |
//!
//! | offset | bytes | lookup, use | |
//! |---|---|---|---|
//! | 16 | 4 | key length | |
//! | 20 | 4 | reserved, zero | |
//! | 24 | | key | |
//!
//! | offset | bytes | touch | never answered |
//! |---|---|---|---|
//! | 10 | 2 | partition | |
//! | 16 | 8 | window id | slot numbers and names mean something within one index only |
//! | 24 | 2 | slot count | |
//! | 26 | 2 | name count | both together at most [`TOUCH_COUNT_MAX`] |
//! | 28 | 4 each | slots | |
//! | | 4 each | names | of keys whose slots the client has not seen: [`KeyHash::name`](crate::KeyHash::name) |
//!
//! Offset 12 of each is the head's config id.

use super::{
    AT_CONFIG_ID, AT_DETAIL, AT_ID, AT_KIND, Fields, HEAD_LEN, MESSAGE_LEN_MAX, MessageError,
    exact, kind, put_head, put_u32, put_u64, put_version,
};
use crate::copied;
use crate::data::DataEntry;
use crate::op::{Action, Expected, Mutation};
use crate::version::Version;

/// Bytes of a mutation before its key.
pub const MUTATE_HEAD_LEN: usize = 80;
/// Bytes of a lookup, or of a question for an item's use, before the key.
const KEY_HEAD_LEN: usize = 24;
/// Bytes of a touch before its slots and names.
pub const TOUCH_HEAD_LEN: usize = 28;
/// Items that one touch reports at most.
pub const TOUCH_COUNT_MAX: usize = 256;

const AT_MUTATE_ITEM_FLAGS: usize = 10;
const AT_MUTATE_OPTIONS: usize = 11;
const AT_MUTATE_VERSION: usize = 16;
const AT_MUTATE_EXPECTED: usize = 32;
const AT_MUTATE_EXPIRY: usize = 48;
const AT_MUTATE_UNIQUE: usize = 56;
const AT_MUTATE_CLIENT_FLAGS: usize = 64;
const AT_MUTATE_KEY_LEN: usize = 68;
const AT_MUTATE_VALUE_LEN: usize = 72;
const AT_MUTATE_RESERVED: usize = 76;
const AT_KEY_LEN: usize = 16;
const AT_KEY_RESERVED: usize = 20;
const AT_TOUCH_PARTITION: usize = 10;
const AT_TOUCH_WINDOW: usize = 16;
const AT_TOUCH_SLOTS: usize = 24;
const AT_TOUCH_NAMES: usize = 26;

const OPTION_UNIQUE: u8 = 1;

const _: () = {
    assert!(AT_MUTATE_ITEM_FLAGS == AT_DETAIL + 1);
    assert!(AT_MUTATE_OPTIONS == AT_MUTATE_ITEM_FLAGS + 1);
    assert!(AT_MUTATE_OPTIONS + 1 == AT_CONFIG_ID && AT_MUTATE_VERSION == HEAD_LEN);
    assert!(AT_MUTATE_EXPECTED == AT_MUTATE_VERSION + 16);
    assert!(AT_MUTATE_EXPIRY == AT_MUTATE_EXPECTED + 16);
    assert!(AT_MUTATE_UNIQUE == AT_MUTATE_EXPIRY + 8);
    assert!(AT_MUTATE_CLIENT_FLAGS == AT_MUTATE_UNIQUE + 8);
    assert!(AT_MUTATE_KEY_LEN == AT_MUTATE_CLIENT_FLAGS + 4);
    assert!(AT_MUTATE_VALUE_LEN == AT_MUTATE_KEY_LEN + 4);
    assert!(AT_MUTATE_RESERVED == AT_MUTATE_VALUE_LEN + 4);
    assert!(AT_MUTATE_RESERVED + 4 == MUTATE_HEAD_LEN);
    assert!(AT_KEY_LEN == HEAD_LEN && AT_KEY_RESERVED == AT_KEY_LEN + 4);
    assert!(AT_KEY_RESERVED + 4 == KEY_HEAD_LEN);
    assert!(AT_TOUCH_PARTITION + 2 == AT_CONFIG_ID && AT_TOUCH_WINDOW == HEAD_LEN);
    assert!(AT_TOUCH_SLOTS == AT_TOUCH_WINDOW + 8 && AT_TOUCH_NAMES == AT_TOUCH_SLOTS + 2);
    assert!(AT_TOUCH_NAMES + 2 == TOUCH_HEAD_LEN && TOUCH_COUNT_MAX <= u16::MAX as usize);
    // A value of 64 KiB and a key of 1 KiB fit; touches stay far below.
    assert!(MUTATE_HEAD_LEN + 64 * 1024 + 1024 < MESSAGE_LEN_MAX);
    assert!(TOUCH_HEAD_LEN + 4 * TOUCH_COUNT_MAX <= 2048);
};

/// What every request begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestHead {
    /// Chosen by the initiator, repeated by the answer.
    pub id: u64,
    /// The configuration that the client chose the backend by.
    pub config_id: u32,
}

/// Slot numbers or names of a touch: borrowed numbers to send, or borrowed bytes of a
/// message that was received.
#[derive(Clone, Copy, Debug)]
pub struct Slots<'a>(SlotsRepr<'a>);

#[derive(Clone, Copy, Debug)]
enum SlotsRepr<'a> {
    Numbers(&'a [u32]),
    Bytes(&'a [[u8; 4]]),
}

impl<'a> Slots<'a> {
    /// How many.
    pub fn count(&self) -> usize {
        match self.0 {
            SlotsRepr::Numbers(numbers) => numbers.len(),
            SlotsRepr::Bytes(bytes) => bytes.len(),
        }
    }

    /// One after the other.
    pub fn iter(&self) -> impl Iterator<Item = u32> + 'a {
        let (numbers, bytes) = match self.0 {
            SlotsRepr::Numbers(numbers) => (numbers, &[][..]),
            SlotsRepr::Bytes(bytes) => (&[][..], bytes),
        };
        let bytes = bytes.iter().map(|b| u32::from_le_bytes(*b));
        numbers.iter().copied().chain(bytes)
    }

    /// Copies them into `out` and returns the part that was filled.
    pub fn copy_to<'b>(&self, out: &'b mut [u32; TOUCH_COUNT_MAX]) -> &'b [u32] {
        let mut count = 0;
        for (to, from) in out.iter_mut().zip(self.iter()) {
            *to = from;
            count += 1;
        }
        &out[..count]
    }
}

impl<'a> From<&'a [u32]> for Slots<'a> {
    fn from(numbers: &'a [u32]) -> Self {
        Slots(SlotsRepr::Numbers(numbers))
    }
}

impl PartialEq for Slots<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

/// What an initiator asks.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    /// Answered by [`Answer::Ack`].
    Mutate(Mutation<'a>),
    /// Answered by [`Answer::Lookup`].
    Lookup {
        /// The full key.
        key: &'a [u8],
    },
    /// How the item of a key was used. Answered by [`Answer::Use`].
    Use {
        /// The full key.
        key: &'a [u8],
    },
    /// These items were read. Never answered.
    Touch {
        /// Partition of the backend.
        partition: u16,
        /// Index window that slot numbers and names belong to.
        window_id: u64,
        /// Where items stand. With the names at most [`TOUCH_COUNT_MAX`].
        slots: Slots<'a>,
        /// Of items of which that is not known ([`crate::KeyHash::name`]).
        names: Slots<'a>,
    },
    /// Answered by [`Answer::Pong`].
    Ping,
}

impl Request<'_> {
    /// Bytes of the encoded message.
    pub fn encoded_len(&self) -> usize {
        match self {
            Request::Mutate(m) => MUTATE_HEAD_LEN + m.entry.key.len() + m.entry.value.len(),
            Request::Lookup { key } | Request::Use { key } => KEY_HEAD_LEN + key.len(),
            Request::Touch { slots, names, .. } => {
                TOUCH_HEAD_LEN + 4 * (slots.count() + names.count())
            }
            Request::Ping => HEAD_LEN,
        }
    }

    /// Writes the message to the front of `out`.
    ///
    /// # Panics
    /// If `out` is shorter than [`Request::encoded_len`].
    pub fn encode(&self, head: RequestHead, out: &mut [u8]) {
        let out = &mut out[..self.encoded_len()];
        let id = head.id;
        match self {
            Request::Mutate(m) => encode_mutation(m, id, out),
            Request::Lookup { key } => encode_key(kind::LOOKUP, key, id, out),
            Request::Use { key } => encode_key(kind::USE, key, id, out),
            Request::Touch {
                partition,
                window_id,
                slots,
                names,
            } => {
                put_head(out, TOUCH_HEAD_LEN, id, kind::TOUCH);
                out[AT_TOUCH_PARTITION..][..2].copy_from_slice(&partition.to_le_bytes());
                out[AT_TOUCH_SLOTS..][..2].copy_from_slice(&(slots.count() as u16).to_le_bytes());
                out[AT_TOUCH_NAMES..][..2].copy_from_slice(&(names.count() as u16).to_le_bytes());
                put_u64(out, AT_TOUCH_WINDOW, *window_id);
                let (to_slots, to_names) = out[TOUCH_HEAD_LEN..].split_at_mut(4 * slots.count());
                put_numbers(to_slots, *slots);
                put_numbers(to_names, *names);
            }
            Request::Ping => put_head(out, HEAD_LEN, id, kind::PING),
        }
        put_u32(out, AT_CONFIG_ID, head.config_id);
    }
}

fn put_numbers(to: &mut [u8], numbers: Slots<'_>) {
    for (to, number) in to.chunks_exact_mut(4).zip(numbers.iter()) {
        to.copy_from_slice(&number.to_le_bytes());
    }
}

fn encode_key(kind: u8, key: &[u8], id: u64, out: &mut [u8]) {
    put_head(out, KEY_HEAD_LEN, id, kind);
    put_u32(out, AT_KEY_LEN, key.len() as u32);
    out[KEY_HEAD_LEN..].copy_from_slice(key);
}

fn encode_mutation(m: &Mutation<'_>, id: u64, out: &mut [u8]) {
    put_head(out, MUTATE_HEAD_LEN, id, kind::MUTATE);
    let entry = &m.entry;
    let (action, expected) = match m.action {
        Action::Set => (1, Version::ZERO),
        Action::Erase => (2, Version::ZERO),
        Action::Cas(Expected::Version(version)) => (3, version),
        Action::Cas(Expected::Absent) => (4, Version::ZERO),
        Action::Fill { stamp } => (
            5,
            Version {
                time_ns: stamp,
                origin: 0,
            },
        ),
    };
    out[AT_DETAIL] = action;
    out[AT_MUTATE_ITEM_FLAGS] = entry.item_flags;
    put_u32(out, AT_MUTATE_CLIENT_FLAGS, entry.client_flags);
    put_version(out, AT_MUTATE_VERSION, m.version);
    put_version(out, AT_MUTATE_EXPECTED, expected);
    put_u64(out, AT_MUTATE_EXPIRY, entry.expiry_ms);
    if let Some(unique) = entry.unique {
        out[AT_MUTATE_OPTIONS] = OPTION_UNIQUE;
        put_u64(out, AT_MUTATE_UNIQUE, unique);
    }
    put_u32(out, AT_MUTATE_KEY_LEN, entry.key.len() as u32);
    put_u32(out, AT_MUTATE_VALUE_LEN, entry.value.len() as u32);
    let (key, value) = out[MUTATE_HEAD_LEN..].split_at_mut(entry.key.len());
    key.copy_from_slice(entry.key);
    copied::fill(value, entry.value);
}

/// Parses a request out of private bytes. Total: any bytes give a request or
/// an error.
pub fn parse_request(bytes: &[u8]) -> Result<(RequestHead, Request<'_>), MessageError> {
    let fields = Fields::new(bytes, HEAD_LEN)?;
    let head = RequestHead {
        id: fields.u64(AT_ID),
        config_id: fields.u32(AT_CONFIG_ID),
    };
    let request = match bytes[AT_KIND] {
        kind::MUTATE => parse_mutation(bytes)?,
        kind @ (kind::LOOKUP | kind::USE) => {
            let fields = Fields::new(bytes, KEY_HEAD_LEN)?;
            fields.zero(AT_DETAIL, 3)?;
            fields.zero(AT_KEY_RESERVED, 4)?;
            let key = &bytes[KEY_HEAD_LEN..];
            exact(key.len(), fields.u32(AT_KEY_LEN))?;
            match kind {
                kind::LOOKUP => Request::Lookup { key },
                _ => Request::Use { key },
            }
        }
        kind::TOUCH => {
            let fields = Fields::new(bytes, TOUCH_HEAD_LEN)?;
            fields.zero(AT_DETAIL, 1)?;
            let (numbers, rest) = bytes[TOUCH_HEAD_LEN..].as_chunks::<4>();
            let slot_count = usize::from(fields.u16(AT_TOUCH_SLOTS));
            let name_count = fields.u16(AT_TOUCH_NAMES).into();
            let (slots, names) = numbers
                .split_at_checked(slot_count)
                .filter(|(_, names)| names.len() == name_count)
                .ok_or(MessageError::Length)?;
            if !rest.is_empty() || numbers.len() > TOUCH_COUNT_MAX {
                return Err(MessageError::Length);
            }
            Request::Touch {
                partition: fields.u16(AT_TOUCH_PARTITION),
                window_id: fields.u64(AT_TOUCH_WINDOW),
                slots: Slots(SlotsRepr::Bytes(slots)),
                names: Slots(SlotsRepr::Bytes(names)),
            }
        }
        kind::PING => {
            exact(bytes.len(), HEAD_LEN as u32)?;
            fields.zero(AT_DETAIL, 3)?;
            Request::Ping
        }
        _ => return Err(MessageError::Field { offset: AT_KIND }),
    };
    Ok((head, request))
}

fn parse_mutation(bytes: &[u8]) -> Result<Request<'_>, MessageError> {
    let head = Fields::new(bytes, MUTATE_HEAD_LEN)?;
    head.zero(AT_MUTATE_RESERVED, 4)?;
    let expected = head.version(AT_MUTATE_EXPECTED);
    let action = match bytes[AT_DETAIL] {
        1 => Action::Set,
        2 => Action::Erase,
        3 => Action::Cas(Expected::Version(expected)),
        4 => Action::Cas(Expected::Absent),
        5 => {
            head.zero(AT_MUTATE_EXPECTED + 8, 8)?;
            Action::Fill {
                stamp: expected.time_ns,
            }
        }
        _ => return Err(MessageError::Field { offset: AT_DETAIL }),
    };
    if !matches!(bytes[AT_DETAIL], 3 | 5) {
        head.zero(AT_MUTATE_EXPECTED, 16)?;
    }
    let unique = match bytes[AT_MUTATE_OPTIONS] {
        0 => {
            head.zero(AT_MUTATE_UNIQUE, 8)?;
            None
        }
        OPTION_UNIQUE => Some(head.u64(AT_MUTATE_UNIQUE)),
        _ => {
            return Err(MessageError::Field {
                offset: AT_MUTATE_OPTIONS,
            });
        }
    };
    let body = &bytes[MUTATE_HEAD_LEN..];
    let key_len = head.u32(AT_MUTATE_KEY_LEN) as usize;
    let (key, value) = body.split_at_checked(key_len).ok_or(MessageError::Length)?;
    exact(value.len(), head.u32(AT_MUTATE_VALUE_LEN))?;
    Ok(Request::Mutate(Mutation {
        action,
        version: head.version(AT_MUTATE_VERSION),
        entry: DataEntry {
            expiry_ms: head.u64(AT_MUTATE_EXPIRY),
            client_flags: head.u32(AT_MUTATE_CLIENT_FLAGS),
            item_flags: bytes[AT_MUTATE_ITEM_FLAGS],
            unique,
            key,
            value,
        },
    }))
}
