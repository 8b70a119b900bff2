//! One partition's part of an export.

use super::Partition;
use crate::changed::Changed;
use crate::config::Now;
use crate::digest::KeyState;
use crate::shared::Shared;
use crate::transfer::Exported;
use std::ops::Range;
use trefoil_layout::{KeyHash, Version, epoch};

/// What an entry takes of an export's room that is not told of, because its time is over.
const DEAD_ROOM: usize = 16;

impl Partition {
    /// Exports the values that stand in the index at `places`, as far as `room` goes;
    /// where to go on, `None` at the end. `each` says what one takes of the room.
    pub(crate) fn export(
        &mut self,
        shared: &Shared,
        now: Now,
        places: Range<u64>,
        room: usize,
        key: &mut Vec<u8>,
        each: &mut dyn FnMut(Exported<'_>) -> usize,
    ) -> Option<u64> {
        let mut left = room;
        self.walk(shared, places, &mut left, key, &mut |partition, walked| {
            let (entry, hash) = (walked.entry, walked.hash);
            let item = partition.stored_item(shared, walked.number, entry.version, entry.pointer);
            let is_dead = partition.is_flushed(item.version) || item.is_expired(now);
            match is_dead {
                // It was looked at all the same, under the lock.
                true => DEAD_ROOM,
                false => each(Exported {
                    hash,
                    item,
                    recency: partition.policy.recency(walked.number),
                    pointer: entry.pointer,
                }),
            }
        })
    }

    /// This partition's part of [`crate::Store::forget_unless`]: a stretch of the places, and
    /// where to go on.
    pub(crate) fn forget_unless(
        &mut self,
        shared: &Shared,
        places: Range<u64>,
        key: &mut Vec<u8>,
        is_kept: &dyn Fn(KeyHash, Version) -> bool,
    ) -> Option<u64> {
        let mut gone = Vec::new();
        let mut left = usize::MAX;
        let next = self.walk(shared, places, &mut left, key, &mut |_, walked| {
            let version = walked.entry.version;
            if !is_kept(walked.hash, version) {
                gone.push((walked.hash, version));
            }
            1
        });
        for (hash, version) in gone {
            self.forget(shared, hash, version);
        }
        next
    }

    /// See [`crate::Store::bound_max`].
    pub(crate) fn bound_max(&self) -> Version {
        self.newest().max(self.floor()).max(self.flush_floor)
    }

    /// See [`crate::Store::watch_changes`].
    pub(crate) fn watch_changes(&mut self, watches: bool) {
        self.changed = watches.then(Changed::new);
    }

    /// What was changed since the last call.
    pub(crate) fn take_changed(&mut self) -> Option<Changed> {
        let changed = self.changed.as_mut()?;
        Some(std::mem::replace(changed, Changed::new()))
    }

    /// See [`crate::Store::freeze`].
    pub(crate) fn freeze(&mut self, frozen: bool) {
        self.frozen = frozen;
    }

    #[inline]
    pub(crate) fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// See [`crate::Store::key_state`].
    pub(crate) fn key_state(&self, shared: &Shared, now: Now, hash: KeyHash) -> KeyState {
        let found = self.find(shared, hash);
        let held = found.filter(|(_, entry)| {
            let head = Self::head_at(shared, entry.pointer.offset());
            !self.is_flushed(entry.version) && !head.is_expired(now.host_ms())
        });
        KeyState {
            held: held.map(|(_, entry)| entry.version),
            bound: self.bound(hash, found),
            is_erased: found.is_none() && self.tombstones.version(hash).is_some(),
            flushed: self.flush_floor,
            epoch: match self.is_recovering() {
                true => epoch::NONE,
                false => self.epoch(),
            },
        }
    }

    /// Items that stand here.
    pub(crate) fn item_count(&self) -> u64 {
        self.item_count
    }

    /// Whether it has as many items as it may.
    pub(crate) fn has_all_objects(&self) -> bool {
        self.objects_max.is_some_and(|max| self.item_count >= max)
    }

    /// See [`crate::Store::keep_writes`].
    pub(crate) fn keep_writes(&mut self, shared: &Shared, floor: Version) {
        self.raise_floor_to(shared, floor);
        self.keeps_writes = true;
    }
}
