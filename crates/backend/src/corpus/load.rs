//! From a file into a member's store.

use super::{CorpusError, CorpusReader, Item};
use crate::clock;
use crate::member::Member;
use std::io::Read;
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;
use trefoil_layout::limits::GRANULE;
use trefoil_layout::op::{Outcome, Rejection};
use trefoil_layout::version::SEQUENCE_BITS;

/// Items between two steps of maintenance: indexes grow while they fill.
const MAINTAIN_EVERY: u64 = 4096;
/// Index bytes that an item takes at least.
const INDEX_LEN_MIN: u64 = 32;

/// What was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// Items of the file.
    pub(crate) lines: u64,
    /// Of these, items that belong to this backend.
    pub(crate) items: u64,
}

/// Loads every item that belongs to `member`. Items get versions from `first`
/// on in the order of the file, so that all replicas give an item the same one.
pub(crate) fn load<R: Read>(
    member: &Member,
    mut reader: CorpusReader<R>,
    first: Version,
) -> Result<Loaded, CorpusError> {
    let mut loaded = Loaded::default();
    let mut item = Item::default();
    let mut len_least = 0;
    while reader.next(&mut item)? {
        let version = nth_version(first, loaded.lines);
        loaded.lines += 1;
        if !member.holds(&item.key) {
            continue;
        }
        let entry = DataEntry {
            key: &item.key,
            value: &item.value,
            ..DataEntry::default()
        };
        let limit = member.store.memory_limit();
        len_least += entry.encoded_len().next_multiple_of(GRANULE) as u64 + INDEX_LEN_MIN;
        let line = item.line;
        match member.store.load(clock::now(), &entry, version).outcome {
            Outcome::Applied if len_least <= limit => {}
            Outcome::Applied | Outcome::Rejected(Rejection::NoMemory) => {
                return Err(CorpusError::TooLarge { line, limit });
            }
            other => {
                let reason = match other {
                    Outcome::Rejected(rejection) => rejection.to_string(),
                    other => format!("the store answered {other:?}"),
                };
                return Err(CorpusError::Line { line, reason });
            }
        }
        loaded.items += 1;
        if loaded.items.is_multiple_of(MAINTAIN_EVERY) {
            member.store.maintain(clock::now());
        }
    }
    Ok(loaded)
}

/// The version of item `index`: the sequence counts, and its carry moves the time.
fn nth_version(first: Version, index: u64) -> Version {
    let sequence = u64::from(first.sequence()) + index;
    let carry = sequence >> SEQUENCE_BITS;
    Version::new(first.time_ns + carry, first.client_id(), sequence as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_grow_through_the_end_of_the_sequence() {
        let first = Version::new(10, 7, (1 << SEQUENCE_BITS) - 2);
        let versions: Vec<Version> = (0..4).map(|i| nth_version(first, i)).collect();
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
        assert_eq!(versions[2], Version::new(11, 7, 0));
    }
}
