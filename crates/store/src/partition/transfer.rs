//! One partition's part of an export, and bounds from elsewhere.

use super::Partition;
use crate::config::Now;
use crate::mutants::Mutant;
use crate::policy::Policy;
use crate::shared::Shared;
use crate::transfer::Exported;
use std::ops::Range;
use trefoil_layout::{KeyHash, Version};

impl Partition {
    /// Exports what stands in the index at `places`, as far as `room` goes; where to
    /// go on, `None` at the end. `each` says what an entry takes of the room.
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
            let version = item.version;
            match partition.is_flushed(version) || item.is_expired(now) {
                true => each(Exported::Bound { hash, version }),
                false => each(Exported::Value { hash, item }),
            }
        })
    }

    /// Exports tombstones from number `first` on, until `left` is used up, and then the
    /// floor; where to go on, `None` at the end of the partition.
    pub(crate) fn export_bounds(
        &self,
        first: u32,
        left: &mut usize,
        each: &mut dyn FnMut(Exported<'_>),
    ) -> Option<u32> {
        let mut next = first;
        for tombstone in self.tombstones.iter_from(first as usize) {
            next += 1;
            let Some((hash, version)) = tombstone else {
                continue;
            };
            each(Exported::Bound { hash, version });
            *left = left.saturating_sub(1);
            if *left == 0 {
                return Some(next);
            }
        }
        each(Exported::Floor(self.floor));
        None
    }

    /// See [`crate::Store::import_bound`].
    pub(crate) fn import_bound(&mut self, shared: &Shared, hash: KeyHash, version: Version) {
        self.write_what_is_unwritten(shared);
        let found = self.find(shared, hash);
        if version <= self.bound(hash, found) {
            return;
        }
        self.newest = self.newest.max(version);
        if let Some((number, entry)) = found {
            // It may be another key's with the same tag, which nobody can tell
            // without the key: then its bound is the floor from now on.
            self.raise_floor(entry.version, Mutant::EvictionForgotten);
            self.policy.remove(number);
            self.detach(shared, number);
            self.free_data(shared, entry.pointer);
        }
        if let Some(forgotten) = self.tombstones.remember(hash, version) {
            self.raise_floor(forgotten, Mutant::TombstoneForgottenSilently);
        }
    }
}
