//! One locked part of the table: dense entries, and an index of them by tag.

use super::{Key, Value};
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Place;
use std::sync::Arc;
use trefoil_freshness_core::table::Stamp;
use trefoil_layout::hash::KeyHash;
use trefoil_linklet_core::Table as Rules;

/// A key with its value.
#[derive(Debug)]
pub(crate) struct Entry<V> {
    pub(crate) hash: KeyHash,
    pub(crate) key: Arc<[u8]>,
    pub(crate) value: Value<V>,
    /// Grows with every change, and when the value comes back from elsewhere.
    pub(crate) version: u64,
    /// What of the database's changes the value is known to contain.
    pub(crate) stamp: Stamp,
    /// Bytes of memory that it counts as.
    pub(crate) weight: u64,
    /// When it was last used, in insertions.
    pub(crate) used_at: u32,
    /// When it ends, in milliseconds since 1970.
    pub(crate) end_ms: u64,
    /// When it was last used here, on the clock of `lifetime`.
    pub(crate) used_ms: u64,
    /// Asked for since it came in.
    pub(crate) reused: bool,
    /// A change was announced while the value could not be removed, because it
    /// was being moved: it counts as absent.
    pub(crate) stale: bool,
    /// Somebody was told that it has ended, whatever the clock says by now.
    pub(crate) ended: bool,
    /// A change of it is on its way to the replicas, and began before its end: it
    /// is there until that is settled.
    pub(crate) pinned: bool,
    /// It is idle, and its removal is on its way to the replicas: nobody is told
    /// of it until that is settled.
    pub(crate) leaving: bool,
    /// Its value cannot be spilled: it cannot be marshalled, or is too long.
    pub(crate) stays: bool,
}

pub(crate) struct Part<V> {
    entries: Vec<Entry<V>>,
    index: HashTable<u32>,
    pub(super) bytes: u64,
    /// Bytes on disk of values that are nowhere else.
    pub(super) away: u64,
    pub(super) rules: Arc<Rules>,
    version: u64,
}

impl<V> Part<V> {
    pub(super) fn new(rules: Arc<Rules>) -> Self {
        Part {
            entries: Vec::new(),
            index: HashTable::new(),
            bytes: 0,
            away: 0,
            rules,
            version: 0,
        }
    }

    pub(super) fn next_version(&mut self) -> u64 {
        self.version += 1;
        self.version
    }

    pub(super) fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry<V>> {
        self.entries.iter_mut()
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = &Entry<V>> {
        self.entries.iter()
    }

    pub(super) fn at(&self, index: usize) -> &Entry<V> {
        &self.entries[index]
    }

    pub(super) fn find(&self, key: Key<'_>) -> Option<&Entry<V>> {
        let entries = &self.entries;
        let found = self
            .index
            .find(key.hash.tag, |&i| entries[i as usize].is(key))?;
        Some(&entries[*found as usize])
    }

    #[inline]
    pub(super) fn find_mut(&mut self, key: Key<'_>) -> Option<&mut Entry<V>> {
        let entries = &self.entries;
        let found = *self
            .index
            .find(key.hash.tag, |&i| entries[i as usize].is(key))?;
        Some(&mut self.entries[found as usize])
    }

    pub(super) fn put(&mut self, entry: Entry<V>) -> Option<Entry<V>> {
        let next = u32::try_from(self.entries.len()).expect("a part holds fewer than 2^32 entries");
        self.bytes += entry.weight;
        let entries = &self.entries;
        let key = Key {
            bytes: &entry.key,
            hash: entry.hash,
        };
        match self.index.entry(
            entry.hash.tag,
            |&i| entries[i as usize].is(key),
            |&i| entries[i as usize].hash.tag,
        ) {
            Place::Occupied(found) => {
                let old = std::mem::replace(&mut self.entries[*found.get() as usize], entry);
                self.bytes -= old.weight;
                self.away -= old.away_bytes();
                Some(old)
            }
            Place::Vacant(place) => {
                place.insert(next);
                self.entries.push(entry);
                None
            }
        }
    }

    pub(super) fn take(&mut self, key: Key<'_>) -> Option<Entry<V>> {
        let entries = &self.entries;
        let found = self
            .index
            .find_entry(key.hash.tag, |&i| entries[i as usize].is(key))
            .ok()?
            .remove()
            .0 as usize;
        Some(self.swap_out(found))
    }

    /// Takes the entry out that nothing points at any more, and lets the index
    /// follow the one that fills its place.
    fn swap_out(&mut self, gone: usize) -> Entry<V> {
        let moved = self.entries.len() - 1;
        let entry = self.entries.swap_remove(gone);
        if gone != moved {
            let tag = self.entries[gone].hash.tag;
            if let Some(slot) = self.index.find_mut(tag, |&i| i as usize == moved) {
                *slot = gone as u32;
            }
        }
        self.bytes -= entry.weight;
        self.away -= entry.away_bytes();
        entry
    }

    /// Takes out the entry at a place; the last one takes the place.
    pub(super) fn take_at(&mut self, at: usize) -> Entry<V> {
        let tag = self.entries[at].hash.tag;
        if let Ok(slot) = self.index.find_entry(tag, |&i| i as usize == at) {
            slot.remove();
        }
        self.swap_out(at)
    }

    pub(super) fn take_where(
        &mut self,
        mut condition: impl FnMut(&Entry<V>) -> bool,
    ) -> Vec<Entry<V>> {
        let mut taken = Vec::new();
        for i in (0..self.entries.len()).rev() {
            if condition(&self.entries[i]) {
                taken.push(self.take_at(i));
            }
        }
        taken
    }
}

impl<V> Entry<V> {
    /// Whether it counts as absent, whatever the clock says.
    pub(crate) fn is_hidden(&self) -> bool {
        self.stale || self.ended
    }

    /// Bytes on disk, if its value is nowhere else.
    pub(crate) fn away_bytes(&self) -> u64 {
        self.value.away().map_or(0, |record| record.len())
    }

    #[inline]
    fn is(&self, key: Key<'_>) -> bool {
        self.hash.tag == key.hash.tag && *self.key == *key.bytes
    }
}
