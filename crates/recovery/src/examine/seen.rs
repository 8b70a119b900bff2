//! Items of a page as copies: who reads a value verifies it.

use super::verdict::Copy;
use crate::machine::Nonsense;
use crate::page::{Data, Item};
use std::collections::BTreeMap;
use trefoil_layout::checksum::checksum;
use trefoil_layout::data::DataEntry;
use trefoil_layout::{KeyHash, KeyHasher, Version};
use trefoil_store::{PLACES, Position};

/// Bytes of a data entry's checksum, which covers what follows and its version.
const CHECKSUM_LEN: usize = 8;

/// A key's hash in the order of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Name {
    place: u64,
    tag: u64,
}

impl Name {
    pub(super) const fn of(hash: KeyHash) -> Self {
        Name {
            place: hash.place,
            tag: hash.tag,
        }
    }

    /// The first name at a place of a walk; `None` behind the last.
    pub(super) fn first_at(place: u64) -> Option<Self> {
        (place < PLACES.end).then_some(Name {
            place: place << (u64::BITS - Position::PLACE_BITS),
            tag: 0,
        })
    }

    pub(super) const fn hash(self) -> KeyHash {
        KeyHash {
            place: self.place,
            tag: self.tag,
        }
    }

    /// Its place in a walk.
    pub(super) const fn place(self) -> u64 {
        Position::place_of(self.hash())
    }
}

/// What a replica has told of a key.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    pub(super) copy: Copy,
    /// Milliseconds since the Unix epoch; 0 if it does not expire, or is not known to.
    pub(super) expiry_ms: u64,
    /// If values were read.
    pub(super) key: Option<Box<[u8]>>,
}

/// A value that is too long for a page, to be looked up.
#[derive(Clone, Debug)]
pub(super) struct Long {
    pub(super) name: Name,
    pub(super) key: Vec<u8>,
    pub(super) version: Version,
}

pub(super) type SeenKeys = BTreeMap<Name, Seen>;

impl Seen {
    /// Of a key of which only the index entry is known.
    pub(super) const fn entry(version: Version) -> Self {
        Seen {
            copy: Copy::Present {
                version,
                digest: None,
            },
            expiry_ms: 0,
            key: None,
        }
    }

    /// Of a data entry as it lies at a replica; `None` if it is too short to name a key.
    pub(super) fn of_data(
        hasher: &KeyHasher,
        version: Version,
        data: &[u8],
    ) -> Option<(Name, Self)> {
        let entry = DataEntry::decode(data)?;
        let hash = hasher.hash(entry.key);
        let copy = match DataEntry::validate(data, hash.tag, version, entry.key) {
            Ok(entry) => Copy::Present {
                version,
                digest: Some(digest(&data[..entry.encoded_len()])),
            },
            Err(_) => Copy::Corrupt { version },
        };
        // Of a damaged entry nothing else is believed.
        let expiry_ms = match copy {
            Copy::Corrupt { .. } => 0,
            _ => entry.expiry_ms,
        };
        let seen = Seen {
            copy,
            expiry_ms,
            key: Some(entry.key.into()),
        };
        Some((Name::of(hash), seen))
    }
}

/// Equal for equal keys, values and metadata, whatever their versions.
fn digest(entry: &[u8]) -> u64 {
    checksum(&entry[CHECKSUM_LEN..], 0, Version::ZERO)
}

/// The items of a page with values, and those of them that are to be looked up.
pub(super) fn of_items<D: AsRef<[u8]>>(
    hasher: &KeyHasher,
    items: Vec<Item<D>>,
) -> Result<(SeenKeys, Vec<Long>), Nonsense> {
    let (mut keys, mut long) = (SeenKeys::new(), Vec::new());
    for Item { version, data, .. } in items {
        match data {
            Data::Whole(data) => {
                let seen = Seen::of_data(hasher, version, data.as_ref());
                let (name, seen) = seen.ok_or(Nonsense("a data entry without a key"))?;
                keys.insert(name, seen);
            }
            Data::Long { key } => {
                let key = key.as_ref();
                let name = Name::of(hasher.hash(key));
                let mut seen = Seen::entry(version);
                seen.key = Some(key.into());
                keys.insert(name, seen);
                let key = key.to_vec();
                long.push(Long { name, key, version });
            }
        }
    }
    Ok((keys, long))
}
