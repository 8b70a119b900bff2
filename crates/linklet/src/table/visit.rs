//! Everything that is done with one key, under the lock of its part.

use super::part::{Entry, Part};
use super::{Key, Room, Table};
use crate::lifetime::Over;
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

    /// The entry, to be used; one that has ended, or is known to be out of date,
    /// is none.
    #[inline]
    pub(crate) fn get(&mut self) -> Option<&Entry<V>> {
        let now = self.table.tick.load(Ordering::Relaxed);
        let used_ms = self.table.lifetimes.use_ms();
        let entry = self.part.find_mut(self.key)?;
        entry.used_at = now;
        entry.used_ms = used_ms;
        entry.reused = true;
        entry.ended = entry.has_ended();
        (!entry.is_hidden()).then_some(entry)
    }

    /// Whether a copy may be looked at here. If not the owner is asked, who knows
    /// whether it is idle, and by whose clock it ends.
    pub(crate) fn copy_answers(&self) -> bool {
        let lifetimes = &self.table.lifetimes;
        if !lifetimes.any() {
            return true;
        }
        let entry = self.part.find(self.key);
        lifetimes.idle.is_none() && entry.is_none_or(|entry| !entry.has_ended())
    }

    /// Whether the entry is idle, and about to be removed everywhere.
    #[inline]
    pub(crate) fn is_leaving(&self) -> bool {
        self.table.lifetimes.idle.is_some()
            && self.part.find(self.key).is_some_and(|entry| entry.leaving)
    }

    /// Whether the entry is over, of which this server is the owner.
    pub(crate) fn over(&self) -> Option<Over> {
        let lifetimes = &self.table.lifetimes;
        lifetimes.over(self.part.find(self.key)?, lifetimes.clocks())
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
        let lifetimes = &self.table.lifetimes;
        let end_ms = lifetimes.end_ms(self.key.bytes, &value);
        let old = self.part.put(Entry {
            hash: self.key.hash,
            key: self.key.bytes.into(),
            value,
            version,
            stamp,
            weight,
            used_at: self.table.next_tick(),
            end_ms,
            used_ms: lifetimes.use_ms(),
            reused: false,
            stale: false,
            ended: false,
            pinned: false,
            leaving: false,
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
        let lifetimes = &self.table.lifetimes;
        let entry = self.part.find_mut(self.key)?;
        entry.ended = entry.has_ended();
        if entry.is_hidden() {
            return None;
        }
        entry.used_at = now;
        entry.used_ms = lifetimes.use_ms();
        entry.reused = true;
        let before = entry.weight;
        let result = change(entry);
        entry.version = version;
        entry.end_ms = lifetimes.end_ms(&entry.key, &entry.value);
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
