//! The data entry: key, value and what belongs to them, validated by whoever
//! reads it.
//!
//! | offset | bytes | field | why |
//! |---|---|---|---|
//! | 0 | 8 | checksum | over everything below up to the value's end, bound to the index entry's tag and version |
//! | 8 | 16 bits | key length - 1 | keys have 1 to 65,536 bytes |
//! | | 25 bits | value length | |
//! | | 7 bits | item flags | 1 *stale*, 2 *win given*, 4 a caller's CAS unique follows, 8 an expiry word follows; others zero |
//! | | 16 bits | client flags, low half | opaque to the cell (memcached's 32-bit flags); nearly always all of them |
//! | 16 | 8, if flag 8 | 48 bits expiry | absolute milliseconds since the Unix epoch, 0 never; nominated once by the writer, equal on all replicas |
//! | | | 16 bits client flags, high half | |
//! | 16 or 24 | 8, if flag 4 | CAS unique | a number that the caller supplied |
//! | 16 to 32 | key length | key | |
//! | then | value length | value | |
//!
//! The expiry word stands there if the entry has an expiry or client flags of
//! more than 16 bits. An entry begins on a granule; the bytes between its end and the next
//! granule belong to nobody and are not checksummed. A published entry is
//! immutable: a new expiry is a new version.

use crate::checksum::{Checksum, checksum};
use crate::copied;
use crate::limits::{GRANULE, KEY_LEN_MAX, VALUE_LEN_LIMIT};
use crate::version::Version;

/// Bytes before the optional words.
pub const DATA_HEADER_LEN: usize = 16;
/// Bytes before the key, with all optional words.
pub const DATA_HEADER_LEN_MAX: usize = DATA_HEADER_LEN + 2 * WORD_LEN;
const WORD_LEN: usize = 8;
const KEY_LEN_BITS: u32 = 16;
const VALUE_LEN_BITS: u32 = 25;
const ITEM_FLAGS_BITS: u32 = 7;
const EXPIRY_BITS: u32 = 48;
/// Where item flags and client flags begin in the first word.
const ITEM_FLAGS_AT: u32 = KEY_LEN_BITS + VALUE_LEN_BITS;
const CLIENT_FLAGS_AT: u32 = ITEM_FLAGS_AT + ITEM_FLAGS_BITS;
/// Bits of client flags in either half.
const CLIENT_FLAGS_BITS: u32 = 16;

/// The item was marked stale by its owner (memcached's meta commands).
pub const ITEM_STALE: u8 = 1;
/// A client was told to recompute the stale item.
pub const ITEM_WIN_GIVEN: u8 = 2;
const ITEM_HAS_UNIQUE: u8 = 4;
const ITEM_HAS_EXPIRY: u8 = 8;
/// Item flags that a caller may set.
pub const ITEM_FLAGS_ALLOWED: u8 = ITEM_STALE | ITEM_WIN_GIVEN;

/// Expiry of an item that stands for nothing, long ago: the least that is not
/// *never*. A CAS to such an item is a conditional erase.
pub const EXPIRED_MS: u64 = 1;

/// Latest expiry that can be written, in milliseconds since the Unix epoch.
pub const EXPIRY_MS_MAX: u64 = (1 << EXPIRY_BITS) - 1;

const _: () = {
    assert!(VALUE_LEN_LIMIT < 1 << VALUE_LEN_BITS);
    assert!(KEY_LEN_MAX == 1 << KEY_LEN_BITS);
    assert!(CLIENT_FLAGS_AT + CLIENT_FLAGS_BITS == u64::BITS);
    assert!(EXPIRY_BITS + CLIENT_FLAGS_BITS == u64::BITS);
    assert!(ITEM_FLAGS_ALLOWED & (ITEM_HAS_UNIQUE | ITEM_HAS_EXPIRY) == 0);
    assert!(ITEM_HAS_UNIQUE & ITEM_HAS_EXPIRY == 0);
    assert!((ITEM_FLAGS_ALLOWED | ITEM_HAS_UNIQUE | ITEM_HAS_EXPIRY) >> ITEM_FLAGS_BITS == 0);
    // An owner may read both words behind the checksum of any entry.
    assert!((DATA_HEADER_LEN + 1).next_multiple_of(GRANULE) >= DATA_HEADER_LEN + WORD_LEN);
};

/// Bytes that an entry with these lengths takes, with `words` optional words.
#[inline]
const fn len_with(key_len: usize, value_len: usize, words: usize) -> usize {
    DATA_HEADER_LEN + words * WORD_LEN + key_len + value_len
}

/// Bytes that an entry with these lengths takes, without any optional word.
#[inline]
pub const fn encoded_len(key_len: usize, value_len: usize) -> usize {
    len_with(key_len, value_len, 0)
}

/// The most that an entry with these lengths takes.
#[inline]
pub const fn encoded_len_max(key_len: usize, value_len: usize) -> usize {
    len_with(key_len, value_len, 2)
}

/// What the first word behind the checksum says.
#[derive(Clone, Copy)]
struct First(u64);

impl First {
    #[inline(always)]
    const fn key_len(self) -> usize {
        (self.0 & ((1 << KEY_LEN_BITS) - 1)) as usize + 1
    }

    #[inline(always)]
    const fn value_len(self) -> usize {
        (self.0 >> KEY_LEN_BITS & ((1 << VALUE_LEN_BITS) - 1)) as usize
    }

    #[inline(always)]
    const fn has(self, flag: u8) -> bool {
        self.0 & (flag as u64) << ITEM_FLAGS_AT != 0
    }

    #[inline(always)]
    const fn item_flags(self) -> u8 {
        (self.0 >> ITEM_FLAGS_AT) as u8 & ITEM_FLAGS_ALLOWED
    }

    /// With the optional word that holds the other half, or 0.
    #[inline(always)]
    const fn client_flags(self, expiry: u64) -> u32 {
        (self.0 >> CLIENT_FLAGS_AT) as u32 | ((expiry >> EXPIRY_BITS) as u32) << CLIENT_FLAGS_BITS
    }

    /// Where the CAS unique stands, if there is one.
    #[inline(always)]
    const fn unique_at(self) -> usize {
        DATA_HEADER_LEN + self.has(ITEM_HAS_EXPIRY) as usize * WORD_LEN
    }

    #[inline(always)]
    const fn key_at(self) -> usize {
        self.unique_at() + self.has(ITEM_HAS_UNIQUE) as usize * WORD_LEN
    }
}

/// A data entry's fields. `key` and `value` borrow the bytes they were read
/// from, or are written from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DataEntry<'a> {
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
    /// Opaque to the cell.
    pub client_flags: u32,
    /// [`ITEM_STALE`], [`ITEM_WIN_GIVEN`].
    pub item_flags: u8,
    /// CAS unique that the caller supplied.
    pub unique: Option<u64>,
    /// The full key.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl<'a> DataEntry<'a> {
    /// Bytes that this entry takes.
    #[inline]
    pub const fn encoded_len(&self) -> usize {
        let words = self.unique.is_some() as usize + self.has_expiry_word() as usize;
        len_with(self.key.len(), self.value.len(), words)
    }

    #[inline]
    const fn has_expiry_word(&self) -> bool {
        self.expiry_ms != 0 || self.client_flags >> CLIENT_FLAGS_BITS != 0
    }

    /// Whether it has expired at `now_ms`.
    #[inline]
    pub const fn is_expired(&self, now_ms: u64) -> bool {
        self.expiry_ms != 0 && self.expiry_ms <= now_ms
    }

    /// Writes the entry, checksum included, to the front of `out`.
    ///
    /// # Panics
    /// If a length is beyond its limit or `out` is too short: the callers
    /// check what came from outside.
    pub fn encode(&self, out: &mut [u8], tag: u64, version: Version) {
        let len = self.encoded_len();
        let out = &mut out[..len];
        let at = self.encode_head(out);
        out[at..at + self.key.len()].copy_from_slice(self.key);
        copied::fill(&mut out[at + self.key.len()..], self.value);
        let sum = checksum(&out[8..], tag, version);
        out[..8].copy_from_slice(&sum.to_le_bytes());
    }

    /// Encodes an entry that is too long for one buffer: `write` is called with
    /// consecutive parts and where they begin, each but the last as long as
    /// `buffer`; at last with the checksum, which stands at the front.
    ///
    /// # Panics
    /// As [`DataEntry::encode`], or if `buffer` is shorter than a head or is not
    /// whole words.
    pub fn encode_in_parts(
        &self,
        buffer: &mut [u8],
        tag: u64,
        version: Version,
        write: &mut dyn FnMut(usize, &[u8]),
    ) {
        assert!(buffer.len() >= DATA_HEADER_LEN_MAX && buffer.len().is_multiple_of(8));
        let mut sum = Checksum::default();
        let mut head = [0; DATA_HEADER_LEN_MAX];
        let head_len = self.encode_head(&mut head);
        let (mut done, mut len) = (0, 0);
        for mut part in [&head[..head_len], self.key, self.value] {
            while !part.is_empty() {
                let count = part.len().min(buffer.len() - len);
                let (now, rest) = part.split_at(count);
                buffer[len..len + count].copy_from_slice(now);
                (part, len) = (rest, len + count);
                if len == buffer.len() {
                    // The checksum does not cover itself.
                    sum.write(&buffer[if done == 0 { 8 } else { 0 }..]);
                    write(done, buffer);
                    (done, len) = (done + len, 0);
                }
            }
        }
        if len > 0 {
            sum.write(&buffer[if done == 0 { 8 } else { 0 }..len]);
            write(done, &buffer[..len]);
        }
        write(0, &sum.finish(tag, version).to_le_bytes());
    }

    /// Writes everything before the key but the checksum; its length.
    fn encode_head(&self, out: &mut [u8]) -> usize {
        assert!(!self.key.is_empty() && self.key.len() <= KEY_LEN_MAX);
        assert!(self.value.len() <= VALUE_LEN_LIMIT && self.expiry_ms <= EXPIRY_MS_MAX);
        let mut flags = self.item_flags & ITEM_FLAGS_ALLOWED;
        let mut at = DATA_HEADER_LEN;
        let mut push = |flag, word: u64| {
            flags |= flag;
            out[at..at + WORD_LEN].copy_from_slice(&word.to_le_bytes());
            at += WORD_LEN;
        };
        let client_flags = u64::from(self.client_flags);
        if self.has_expiry_word() {
            let high = client_flags >> CLIENT_FLAGS_BITS << EXPIRY_BITS;
            push(ITEM_HAS_EXPIRY, self.expiry_ms | high);
        }
        if let Some(unique) = self.unique {
            push(ITEM_HAS_UNIQUE, unique);
        }
        let first = (self.key.len() as u64 - 1)
            | (self.value.len() as u64) << KEY_LEN_BITS
            | u64::from(flags) << ITEM_FLAGS_AT
            | client_flags << CLIENT_FLAGS_AT;
        out[8..16].copy_from_slice(&first.to_le_bytes());
        at
    }

    /// Decodes an entry at the front of `bytes` without checking its checksum:
    /// for the owner, whose own bytes cannot be torn. `None` if the lengths do
    /// not fit `bytes`.
    #[inline]
    pub fn decode(bytes: &'a [u8]) -> Option<Self> {
        let word = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
        };
        let first = First(word(8)?);
        let expiry = match first.has(ITEM_HAS_EXPIRY) {
            true => word(DATA_HEADER_LEN)?,
            false => 0,
        };
        let unique = match first.has(ITEM_HAS_UNIQUE) {
            true => Some(word(first.unique_at())?),
            false => None,
        };
        let (at, key_len) = (first.key_at(), first.key_len());
        let body = bytes.get(at..at + key_len + first.value_len())?;
        let (key, value) = body.split_at(key_len);
        Some(DataEntry {
            expiry_ms: expiry & EXPIRY_MS_MAX,
            client_flags: first.client_flags(expiry),
            item_flags: first.item_flags(),
            unique,
            key,
            value,
        })
    }

    /// Validates a private copy of what `tag` and `version` pointed at: the
    /// one check that turns racy bytes into a value.
    #[inline(always)]
    pub fn validate(
        bytes: &'a [u8],
        tag: u64,
        version: Version,
        key: &[u8],
    ) -> Result<Self, DataError> {
        let entry = Self::decode(bytes).ok_or(DataError::Torn)?;
        let sum = u64::from_le_bytes(bytes[..8].try_into().map_err(|_| DataError::Torn)?);
        if sum != checksum(&bytes[8..entry.encoded_len()], tag, version) {
            return Err(DataError::Torn);
        }
        if entry.key != key {
            return Err(DataError::OtherKey);
        }
        Ok(entry)
    }
}

/// The fixed part of an entry, read from its words: for the owner, who looks at
/// single fields of entries that stay in the region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataHead {
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
    /// Where the CAS unique stands, in bytes from the entry's start; 0 if there
    /// is none.
    unique_at: usize,
    /// Where the key begins, in bytes from the entry's start: a multiple of 8.
    pub key_at: usize,
    /// Bytes of the key.
    pub key_len: usize,
    /// Bytes of the value.
    pub value_len: usize,
    /// Opaque to the cell.
    pub client_flags: u32,
    /// [`ITEM_STALE`], [`ITEM_WIN_GIVEN`].
    pub item_flags: u8,
}

impl DataHead {
    /// Decodes words 1 and 2 of an entry.
    #[inline]
    pub const fn decode(first: u64, second: u64) -> Self {
        let first = First(first);
        let expiry = if first.has(ITEM_HAS_EXPIRY) {
            second
        } else {
            0
        };
        DataHead {
            expiry_ms: expiry & EXPIRY_MS_MAX,
            unique_at: if first.has(ITEM_HAS_UNIQUE) {
                first.unique_at()
            } else {
                0
            },
            key_at: first.key_at(),
            key_len: first.key_len(),
            value_len: first.value_len(),
            client_flags: first.client_flags(expiry),
            item_flags: first.item_flags(),
        }
    }

    /// The word of the entry where its CAS unique stands, if it has one.
    #[inline]
    pub const fn unique_word(&self) -> Option<usize> {
        if self.unique_at > 0 {
            Some(self.unique_at / WORD_LEN)
        } else {
            None
        }
    }

    /// Whether the entry has expired at `now_ms`.
    #[inline]
    pub const fn is_expired(&self, now_ms: u64) -> bool {
        self.expiry_ms != 0 && self.expiry_ms <= now_ms
    }
}

/// Why bytes are not the wanted entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataError {
    /// The checksum fails: a concurrent mutation; read again.
    Torn,
    /// A sound entry of another key with the same tag: the wanted one is absent.
    OtherKey,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample<'a>() -> DataEntry<'a> {
        DataEntry {
            expiry_ms: 1_700_000_000_123,
            client_flags: 0xdead_beef,
            item_flags: ITEM_STALE,
            unique: Some(77),
            key: b"the key",
            value: b"the value",
        }
    }

    #[test]
    fn parts_are_the_same_entry() {
        let version = Version::new(5, 6, 7);
        let value: Vec<u8> = (0..3_000u32).map(|n| (n * 13) as u8).collect();
        for len in [0, 1, 31, 64, 1_000, 2_999, 3_000] {
            for unique in [None, Some(77)] {
                let entry = DataEntry {
                    unique,
                    value: &value[..len],
                    ..sample()
                };
                let mut whole = vec![0; entry.encoded_len()];
                entry.encode(&mut whole, 9, version);
                let mut parts = vec![0; entry.encoded_len()];
                let mut buffer = [0xaa; 128];
                entry.encode_in_parts(&mut buffer, 9, version, &mut |at, part| {
                    parts[at..at + part.len()].copy_from_slice(part);
                });
                assert_eq!(parts, whole, "{len}");
            }
        }
    }

    /// Entries with every set of optional words.
    fn samples<'a>() -> Vec<DataEntry<'a>> {
        let mut all = Vec::new();
        for expiry_ms in [0, EXPIRED_MS, EXPIRY_MS_MAX] {
            for client_flags in [0, 0xffff, 0x1_0000, u32::MAX] {
                for unique in [None, Some(0), Some(u64::MAX)] {
                    all.push(DataEntry {
                        expiry_ms,
                        client_flags,
                        unique,
                        ..sample()
                    });
                }
            }
        }
        all
    }

    #[test]
    fn round_trip_with_and_without_options() {
        let version = Version::new(5, 6, 7);
        for entry in samples() {
            let mut bytes = vec![0xaa; entry.encoded_len() + 9];
            entry.encode(&mut bytes, 3, version);
            assert_eq!(
                DataEntry::validate(&bytes, 3, version, b"the key"),
                Ok(entry)
            );
        }
    }

    #[test]
    fn what_nobody_asked_for_takes_no_bytes() {
        let plain = DataEntry {
            client_flags: 0xffff,
            key: b"k",
            value: b"v",
            ..DataEntry::default()
        };
        assert_eq!(plain.encoded_len(), 18);
        let expires = DataEntry {
            expiry_ms: 1,
            client_flags: u32::MAX,
            ..plain
        };
        assert_eq!(expires.encoded_len(), 26);
        let all = DataEntry {
            unique: Some(1),
            ..expires
        };
        assert_eq!(all.encoded_len(), encoded_len_max(1, 1));
    }

    #[test]
    fn head_tells_the_same_as_the_whole() {
        for entry in samples() {
            let mut bytes = vec![0; entry.encoded_len()];
            entry.encode(&mut bytes, 3, Version::ZERO);
            let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
            let head = DataHead::decode(word(8), word(16));
            assert_eq!(head.expiry_ms, entry.expiry_ms);
            assert_eq!(&bytes[head.key_at..head.key_at + head.key_len], entry.key);
            assert_eq!(head.value_len, entry.value.len());
            assert_eq!(head.client_flags, entry.client_flags);
            assert_eq!(head.item_flags, entry.item_flags);
            let read = head.unique_word().map(|at| word(at * 8));
            assert_eq!(read, entry.unique);
        }
    }

    #[test]
    fn longest_key_round_trips() {
        let key = vec![b'k'; KEY_LEN_MAX];
        let entry = DataEntry {
            key: &key,
            value: b"v",
            ..DataEntry::default()
        };
        let mut bytes = vec![0; entry.encoded_len()];
        entry.encode(&mut bytes, 3, Version::ZERO);
        assert_eq!(
            DataEntry::validate(&bytes, 3, Version::ZERO, &key),
            Ok(entry)
        );
    }

    #[test]
    fn every_flipped_bit_is_torn() {
        let version = Version::new(5, 6, 7);
        let entry = sample();
        let mut bytes = vec![0; entry.encoded_len()];
        entry.encode(&mut bytes, 3, version);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(
                DataEntry::validate(&bytes, 3, version, entry.key),
                Err(DataError::Torn)
            );
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn other_tag_version_or_key_is_told_apart() {
        let version = Version::new(5, 6, 7);
        let entry = sample();
        let mut bytes = vec![0; entry.encoded_len()];
        entry.encode(&mut bytes, 3, version);
        let check = |tag, version, key| DataEntry::validate(&bytes, tag, version, key);
        assert_eq!(check(4, version, entry.key), Err(DataError::Torn));
        assert_eq!(check(3, Version::ZERO, entry.key), Err(DataError::Torn));
        assert_eq!(check(3, version, b"another"), Err(DataError::OtherKey));
    }

    #[test]
    fn any_prefix_is_torn_and_never_panics() {
        let entry = sample();
        let mut bytes = vec![0; entry.encoded_len()];
        entry.encode(&mut bytes, 3, Version::ZERO);
        for len in 0..bytes.len() {
            assert_eq!(
                DataEntry::validate(&bytes[..len], 3, Version::ZERO, entry.key),
                Err(DataError::Torn)
            );
        }
    }
}
