//! The side table: entries that found no slot in their four buckets. Private;
//! readers reach them by message, sent there by the *overflowed* flag of the
//! home bucket. About one entry in a thousand at the load where the index grows.

use std::collections::BTreeSet;
use trefoil_layout::{IndexEntry, KeyHash};

/// Places added at a time, at least.
const STEP_MIN: usize = 16;

/// One entry that stands beside the index.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SideEntry {
    /// Of its key: an index entry keeps only the tag.
    pub(crate) hash: KeyHash,
    /// Its home bucket in the present index.
    pub(crate) home: u64,
    pub(crate) entry: IndexEntry,
}

/// The entries without a slot of one index.
#[derive(Debug, Default)]
pub(crate) struct SideTable {
    places: Vec<Option<SideEntry>>,
    vacant: Vec<u32>,
    by_home: BTreeSet<(u64, u32)>,
}

impl SideTable {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.by_home.is_empty()
    }

    pub(crate) fn count(&self) -> usize {
        self.by_home.len()
    }

    /// Places, used or not: how many slot numbers the table takes.
    pub(crate) fn place_count(&self) -> usize {
        self.places.len()
    }

    /// Whether the next entry needs [`SideTable::enlarge`] first.
    pub(crate) fn is_full(&self) -> bool {
        self.vacant.is_empty()
    }

    /// More places.
    pub(crate) fn enlarge(&mut self) {
        let old = self.places.len();
        let new = old + STEP_MIN.max(old / 2);
        self.places.resize(new, None);
        self.vacant.extend((old as u32..new as u32).rev());
    }

    /// Adds an entry; its place.
    pub(crate) fn insert(&mut self, new: SideEntry) -> u32 {
        if self.is_full() {
            self.enlarge();
        }
        let place = self.vacant.pop().expect("enlarged");
        self.by_home.insert((new.home, place));
        self.places[place as usize] = Some(new);
        place
    }

    pub(crate) fn remove(&mut self, place: u32) -> Option<SideEntry> {
        let old = self.places.get_mut(place as usize)?.take()?;
        self.by_home.remove(&(old.home, place));
        self.vacant.push(place);
        Some(old)
    }

    pub(crate) fn get(&self, place: u32) -> Option<&SideEntry> {
        self.places.get(place as usize)?.as_ref()
    }

    pub(crate) fn entry_mut(&mut self, place: u32) -> Option<&mut IndexEntry> {
        let side = self.places.get_mut(place as usize)?.as_mut()?;
        Some(&mut side.entry)
    }

    /// Places of the entries whose home is `home`.
    pub(crate) fn of_home(&self, home: u64) -> impl Iterator<Item = u32> + '_ {
        let range = (home, 0)..=(home, u32::MAX);
        self.by_home.range(range).map(|(_, place)| *place)
    }

    /// The place of the entry of `home` with this tag.
    pub(crate) fn find(&self, home: u64, tag: u64) -> Option<u32> {
        self.of_home(home)
            .find(|place| self.get(*place).is_some_and(|side| side.entry.tag == tag))
    }

    /// The place of an entry of `home` whose tag is `wanted` when shifted so far.
    pub(crate) fn find_named(&self, home: u64, wanted: u64, shift: u32) -> Option<u32> {
        let is_it = |side: &SideEntry| side.entry.tag >> shift == wanted;
        self.of_home(home)
            .find(|place| self.get(*place).is_some_and(is_it))
    }

    /// Everything in it, with its place.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &SideEntry)> {
        let with_place = |(place, side): (usize, &'_ Option<SideEntry>)| -> Option<u32> {
            side.as_ref().map(|_| place as u32)
        };
        self.places
            .iter()
            .enumerate()
            .filter_map(with_place)
            .filter_map(|place| Some((place, self.get(place)?)))
    }

    /// Private bytes that this takes.
    pub(crate) fn private_len(&self) -> u64 {
        (self.places.capacity() * size_of::<Option<SideEntry>>()
            + self.vacant.capacity() * 4
            + self.by_home.len() * 24) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn side(home: u64, tag: u64) -> SideEntry {
        SideEntry {
            hash: KeyHash { place: 0, tag },
            home,
            entry: IndexEntry {
                tag,
                ..IndexEntry::default()
            },
        }
    }

    #[test]
    fn entries_are_found_by_home_and_tag() {
        let mut table = SideTable::default();
        let places: Vec<_> = (0..40).map(|n| table.insert(side(n % 4, n + 1))).collect();
        assert_eq!(table.find(3, 8), Some(places[7]));
        assert_eq!(table.find(2, 8), None);
        assert_eq!(table.of_home(1).count(), 10);
        assert!(table.remove(places[7]).is_some());
        assert!(table.remove(places[7]).is_none());
        assert!(table.remove(10_000).is_none());
        assert_eq!(table.find(3, 8), None);
        assert_eq!(table.count(), 39);
        assert_eq!(table.insert(side(9, 1)), places[7], "places are reused");
        assert_eq!(table.iter().count(), 40);
    }
}
