//! Everything that is done with one key, under the lock of its part.

use super::part::{Entry, Part};
use super::{Key, Room, Table};
use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard};
use trefoil_freshness_core::table::Stamp;
use trefoil_linklet_core::{Status, Table as Rules};

/// The inside of a part, for one key. Nobody else changes the key or the rules
/// for it meanwhile.
pub(crate) struct Visit<'a, V> {
    table: &'a Table<V>,
    part: MutexGuard<'a, Part<V>>,
    key: Key<'a>,
}

impl<'a, V> Visit<'a, V> {
    pub(super) fn new(table: &'a Table<V>, part: MutexGuard<'a, Part<V>>, key: Key<'a>) -> Self {
        Visit { table, part, key }
    }

    /// What may be done with the key.
    #[inline]
    pub(crate) fn status(&self) -> Status {
        self.part.rules.status(self.key.point())
    }

    /// The rules.
    #[inline]
    pub(crate) fn rules(&self) -> &Rules {
        &self.part.rules
    }

    /// The entry, to be used; one that is known to be out of date is none.
    #[inline]
    pub(crate) fn get(&mut self) -> Option<&Entry<V>> {
        let now = self.table.tick.load(Ordering::Relaxed);
        let entry = self.part.find_mut(self.key)?;
        entry.used_at = now;
        entry.reused = true;
        (!entry.stale).then_some(entry)
    }

    /// The entry whatever is noted of it.
    pub(crate) fn peek(&mut self) -> Option<&mut Entry<V>> {
        self.part.find_mut(self.key)
    }

    /// Puts a value in, in the place of the one that is there.
    pub(crate) fn put(
        &mut self,
        value: Arc<V>,
        stamp: Stamp,
        room: Room<'a, V>,
    ) -> Option<Entry<V>> {
        let weight = room.weight;
        std::mem::forget(room);
        let version = self.part.next_version();
        let old = self.part.put(Entry {
            hash: self.key.hash,
            key: self.key.bytes.into(),
            value,
            version,
            stamp,
            weight,
            used_at: self.table.next_tick(),
            reused: false,
            stale: false,
        });
        match &old {
            Some(old) => {
                self.table.reserved.fetch_sub(old.weight, Ordering::Relaxed);
            }
            None => {
                self.table.entries.fetch_add(1, Ordering::Relaxed);
            }
        }
        old
    }

    /// Takes the entry out.
    pub(crate) fn remove(&mut self) -> Option<Entry<V>> {
        let entry = self.part.take(self.key)?;
        self.table.gone(&entry);
        Some(entry)
    }

    /// Changes the value where it is, and what it weighs with it. `change`
    /// does not panic.
    pub(crate) fn change<R>(&mut self, change: impl FnOnce(&mut Entry<V>) -> R) -> Option<R> {
        let version = self.part.next_version();
        let now = self.table.tick.load(Ordering::Relaxed);
        let entry = self.part.find_mut(self.key).filter(|entry| !entry.stale)?;
        entry.used_at = now;
        entry.reused = true;
        let before = entry.weight;
        let result = change(entry);
        entry.version = version;
        let after = entry.weight;
        self.part.bytes = self.part.bytes + after - before;
        if after >= before {
            self.table
                .reserved
                .fetch_add(after - before, Ordering::Relaxed);
        } else {
            self.table
                .reserved
                .fetch_sub(before - after, Ordering::Relaxed);
        }
        Some(result)
    }
}
