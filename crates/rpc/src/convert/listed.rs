//! Items of a listing as bytes: a record for each, as the contract lays it out
//! (`ListResponse.packed`).

use super::ContractError;
use crate::v1;
use trefoil_layout::Version;

/// Bytes before a record's key.
const HEAD_LEN: usize = 50;

/// What a listing tells of an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed<'a> {
    /// Its key.
    pub key: &'a [u8],
    /// Its version.
    pub version: Version,
    /// Bytes of its value.
    pub value_len: u32,
    /// Bytes that its data entry takes in memory.
    pub entry_len: u32,
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
    /// Opaque to the cell.
    pub client_flags: u32,
    /// `layout::data::ITEM_STALE`, `ITEM_WIN_GIVEN`.
    pub item_flags: u8,
    /// CAS unique that its writer supplied.
    pub unique: Option<u64>,
}

/// Appends an item's record.
pub fn encode_listed(item: &Listed<'_>, out: &mut Vec<u8>) {
    let mut head = [0; HEAD_LEN];
    let (longs, rest) = head.split_at_mut(32);
    let (words, flags) = rest.split_at_mut(16);
    let version = item.version;
    let unique = item.unique.unwrap_or_default();
    let numbers = [version.time_ns, version.origin, item.expiry_ms, unique];
    for (bytes, number) in longs.as_chunks_mut::<8>().0.iter_mut().zip(numbers) {
        *bytes = number.to_le_bytes();
    }
    // The contract's keys and values are shorter than 4 GiB.
    let key_len = item.key.len() as u32;
    let numbers = [item.value_len, item.entry_len, item.client_flags, key_len];
    for (bytes, number) in words.as_chunks_mut::<4>().0.iter_mut().zip(numbers) {
        *bytes = number.to_le_bytes();
    }
    flags.copy_from_slice(&[item.item_flags, u8::from(item.unique.is_some())]);
    out.extend_from_slice(&head);
    out.extend_from_slice(item.key);
}

/// Takes a message's items, one after another; ends behind the first that is none.
pub fn decode_listed(packed: &[u8]) -> impl Iterator<Item = Result<Listed<'_>, ContractError>> {
    let mut rest = packed;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let record = split_record(rest);
        rest = record.map_or(&[][..], |(_, behind)| behind);
        let wrong = ContractError::OutOfRange {
            field: "packed",
            found: packed.len() as u64,
            why: "not the length of whole records",
        };
        Some(record.map(|(item, _)| item).ok_or(wrong))
    })
}

/// The first record, and what is behind it.
fn split_record(bytes: &[u8]) -> Option<(Listed<'_>, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_LEN>()?;
    let (longs, words) = head.split_at(32);
    let long = |at: usize| longs.as_chunks::<8>().0.get(at).copied();
    let word = |at: usize| words.as_chunks::<4>().0.get(at).copied();
    let long = |at: usize| long(at).map(u64::from_le_bytes);
    let word = |at: usize| word(at).map(u32::from_le_bytes);
    let (key, behind) = rest.split_at_checked(word(3)? as usize)?;
    let item = Listed {
        key,
        version: Version {
            time_ns: long(0)?,
            origin: long(1)?,
        },
        value_len: word(0)?,
        entry_len: word(1)?,
        expiry_ms: long(2)?,
        client_flags: word(2)?,
        item_flags: head[48],
        unique: (head[49] != 0).then_some(long(3)?),
    };
    Some((item, behind))
}

impl<'a> From<&'a v1::ListedItem> for Listed<'a> {
    /// The same from a message of its own, as earlier releases send it.
    fn from(item: &'a v1::ListedItem) -> Self {
        let version = item.version.unwrap_or_default();
        Listed {
            key: &item.key,
            version: Version {
                time_ns: version.time_ns,
                origin: version.origin,
            },
            value_len: item.value_len,
            entry_len: item.entry_len,
            expiry_ms: item.expiry_ms,
            client_flags: item.client_flags,
            item_flags: item.item_flags as u8,
            unique: item.unique,
        }
    }
}
