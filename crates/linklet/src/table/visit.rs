//! Everything that is done with one key, under the lock of its part.

use super::part::{Entry, Part};
use super::value::RECORD_BYTES;
use super::{Brought, Key, Room, Table, Value};
use crate::lifetime::Over;
use crate::spill::Record;
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

/// What a change in place has come to.
#[derive(Debug)]
pub(crate) enum Changed<R> {
    Done(R),
    /// There is nothing to be changed.
    Absent,
    /// The value has to be read from disk first: nothing was changed.
    Away(Arc<Record>),
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
            value: Value::new(value),
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
            stays: false,
        });
        match &old {
            Some(old) => {
                self.table.reserved.fetch_sub(old.weight, Ordering::Relaxed);
                self.table.count_away(old, -1);
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

    /// Changes the value where it is, and what it weighs with it; one that was brought from
    /// disk, if the entry is still that one. `change` does not panic.
    pub(crate) fn change<R>(
        &mut self,
        brought: Option<Brought<V>>,
        change: impl FnOnce(&mut Entry<V>) -> R,
    ) -> Changed<R> {
        let now = self.table.tick.load(Ordering::Relaxed);
        let lifetimes = &self.table.lifetimes;
        let version = self.part.next_version();
        let Some(entry) = self.part.find_mut(self.key) else {
            return Changed::Absent;
        };
        entry.ended = entry.has_ended();
        if entry.is_hidden() {
            return Changed::Absent;
        }
        let away_bytes = entry.away_bytes();
        if away_bytes > 0 {
            match (entry.value.look(brought.as_ref()).map(Arc::clone), brought) {
                (Ok(value), _) => entry.value = Value::new(value),
                (Err(record), _) => return Changed::Away(record),
            }
            self.table.away.fetch_sub(1, Ordering::Relaxed);
        }
        entry.used_at = now;
        entry.used_ms = lifetimes.use_ms();
        entry.reused = true;
        entry.stays = false;
        let before = entry.weight;
        let result = change(entry);
        entry.version = version;
        if let Some(value) = entry.value.here() {
            entry.end_ms = lifetimes.end_ms(&entry.key, value);
        }
        let after = entry.weight;
        self.part.away -= away_bytes;
        self.reweigh(before, after);
        Changed::Done(result)
    }

    /// What the entry weighs has changed.
    pub(super) fn reweigh(&mut self, before: u64, after: u64) {
        self.part.bytes = self.part.bytes + after - before;
        let reserved = &self.table.reserved;
        if after >= before {
            reserved.fetch_add(after - before, Ordering::Relaxed);
        } else {
            reserved.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Sends the value away that is on disk by now, if it is still this one and nothing holds
    /// it here; what was in memory.
    pub(crate) fn send_away(&mut self, value: &Arc<V>, record: Arc<Record>) -> Option<Arc<V>> {
        let entry = self.part.find_mut(self.key)?;
        let here = entry.value.here()?;
        if !Arc::ptr_eq(here, value) || entry.pinned {
            return None;
        }
        let before = entry.weight;
        entry.weight = Table::<V>::weight_away(&entry.key);
        let after = entry.weight;
        let bytes = record.len();
        let old = entry.value.send_away(record);
        self.part.away += bytes;
        self.table.away.fetch_add(1, Ordering::Relaxed);
        self.reweigh(before, after);
        old
    }

    /// Keeps a value in memory that was read from disk, if the entry is still that one.
    pub(crate) fn bring_back(&mut self, brought: &Brought<V>, room: Room<'_, V>) -> bool {
        let entry = self.part.find_mut(self.key);
        let same = |entry: &&mut Entry<V>| {
            let away = entry.value.away();
            away.is_some_and(|record| Arc::ptr_eq(record, &brought.record))
        };
        let Some(entry) = entry.filter(same) else {
            return false;
        };
        let (before, after) = (entry.weight, room.weight);
        std::mem::forget(room);
        entry.weight = after;
        entry.value.bring_back(Arc::clone(&brought.value));
        self.part.away -= brought.record.len();
        self.part.bytes = self.part.bytes + after - before;
        self.table.away.fetch_sub(1, Ordering::Relaxed);
        self.table.reserved.fetch_sub(before, Ordering::Relaxed);
        true
    }

    /// Where the value is on disk has changed, if it is still there.
    pub(crate) fn relocate(&mut self, from: &Arc<Record>, to: Arc<Record>) -> bool {
        let Some(entry) = self.part.find_mut(self.key) else {
            return false;
        };
        let record = entry.value.record();
        let same = record.is_some_and(|record| Arc::ptr_eq(record, from));
        if same {
            // As long as before: the same key and bytes.
            debug_assert_eq!(from.len(), to.len(), "a record is copied as it is");
            entry.value.relocate(to);
        }
        same
    }

    /// Gives up what is on disk of a value that is in memory, too.
    pub(crate) fn strip(&mut self) -> Option<Arc<Record>> {
        let entry = self.part.find_mut(self.key)?;
        let record = entry.value.strip()?;
        let before = entry.weight;
        entry.weight = before.saturating_sub(RECORD_BYTES);
        let after = entry.weight;
        self.reweigh(before, after);
        Some(record)
    }
}
