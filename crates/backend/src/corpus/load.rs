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
/// Steps of it at the end: what is left to do for the index of what was loaded.
const MAINTAIN_MAX: usize = 1000;
/// Index bytes that an item takes at least.
const INDEX_LEN_MIN: u64 = 32;
/// Where more than one item in so many found no place in the index, there was no room for
/// it to grow: such items are found by message alone.
const SIDE_SHARE: u64 = 16;
/// A small store may have as many beside its index in any case.
const SIDE_COUNT_MIN: u64 = 1024;

/// What was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Loaded {
    /// Items of the file.
    pub(crate) lines: u64,
    /// Of these, items that belong to this backend.
    pub(crate) items: u64,
    /// Bytes of their data entries, at least.
    pub(crate) len_least: u64,
}

impl Loaded {
    /// One more item that belongs here; `limit` is exceeded by what it takes at least.
    fn add(&mut self, entry: &DataEntry<'_>, limit: u64) -> bool {
        self.items += 1;
        self.len_least += entry.encoded_len().next_multiple_of(GRANULE) as u64 + INDEX_LEN_MIN;
        self.len_least > limit
    }
}

/// Loads every item that belongs to `member`. Items get versions from `first`
/// on in the order of the file, so that all replicas give an item the same one.
pub(crate) fn load<R: Read>(
    member: &Member,
    reader: &mut CorpusReader<R>,
    first: Version,
) -> Result<Loaded, CorpusError> {
    let mut loaded = Loaded::default();
    let mut item = Item::default();
    while reader.next(&mut item)? {
        let version = nth_version(first, loaded.lines);
        loaded.lines += 1;
        if member.holds(&item.key) {
            let entry = entry(&item);
            put(member, &entry, version, item.line, &mut loaded)?;
        }
    }
    finish(member, &loaded, item.line)?;
    Ok(loaded)
}

/// Stores one item; `line` is where it stands in the file, 0 where that is not known.
pub(super) fn put(
    member: &Member,
    entry: &DataEntry<'_>,
    version: Version,
    line: u64,
    loaded: &mut Loaded,
) -> Result<(), CorpusError> {
    let store = &member.store;
    let limit = store.memory_limit();
    let is_too_large = loaded.add(entry, limit);
    match store.load(clock::now(), entry, version).outcome {
        Outcome::Applied if !is_too_large => {}
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
    if loaded.items.is_multiple_of(MAINTAIN_EVERY) {
        store.maintain(clock::now());
        if store.is_over_limit() {
            return Err(CorpusError::TooLarge { line, limit });
        }
    }
    Ok(())
}

/// What is left to do when all items are there.
pub(super) fn finish(member: &Member, loaded: &Loaded, line: u64) -> Result<(), CorpusError> {
    let store = &member.store;
    for _ in 0..MAINTAIN_MAX {
        if !store.maintain(clock::now()).more {
            break;
        }
    }
    let beside = store.loaded_beside();
    let limit = store.memory_limit();
    match beside > SIDE_COUNT_MIN.max(loaded.items / SIDE_SHARE) || store.is_over_limit() {
        true => Err(CorpusError::TooLarge { line, limit }),
        false => Ok(()),
    }
}

/// Reads everything and stores nothing: whether all items are sound, and those that belong
/// to `member` could fit into it, were it empty.
pub(crate) fn check<R: Read>(
    member: &Member,
    reader: &mut CorpusReader<R>,
) -> Result<Loaded, CorpusError> {
    let mut loaded = Loaded::default();
    let mut item = Item::default();
    let limit = member.store.memory_limit();
    while reader.next(&mut item)? {
        loaded.lines += 1;
        if member.holds(&item.key) && loaded.add(&entry(&item), limit) {
            let line = item.line;
            return Err(CorpusError::TooLarge { line, limit });
        }
    }
    Ok(loaded)
}

fn entry(item: &Item) -> DataEntry<'_> {
    DataEntry {
        key: &item.key,
        value: &item.value,
        ..DataEntry::default()
    }
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
