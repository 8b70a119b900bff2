//! One partition's part of an export, and bounds from elsewhere.

use super::Partition;
use crate::config::Now;
use crate::list::Position;
use crate::mutants::Mutant;
use crate::policy::Policy;
use crate::shared::Shared;
use crate::transfer::{ExportPart, Exported};
use trefoil_layout::{KeyHash, Version};

impl Partition {
    /// Exports from `part` on until `left` is used up; where to go on, `None` at
    /// the end of the partition.
    pub(crate) fn export(
        &mut self,
        shared: &Shared,
        now: Now,
        part: ExportPart,
        left: &mut usize,
        key: &mut Vec<u8>,
        each: &mut dyn FnMut(Exported<'_>),
    ) -> Option<ExportPart> {
        match part {
            ExportPart::Entries(place) => {
                let places = place..1 << Position::PLACE_BITS;
                let next = self.walk(shared, places, left, key, &mut |partition, walked| {
                    let (entry, hash) = (walked.entry, walked.hash);
                    let item =
                        partition.stored_item(shared, walked.number, entry.version, entry.pointer);
                    let dead = partition.is_flushed(item.version) || item.is_expired(now);
                    each(match dead {
                        true => Exported::Bound {
                            hash,
                            version: item.version,
                        },
                        false => Exported::Value {
                            key: walked.key,
                            item,
                        },
                    });
                    true
                });
                Some(next.map_or(ExportPart::Tombstones(0), ExportPart::Entries))
            }
            ExportPart::Tombstones(first) => {
                let mut next = first;
                for tombstone in self.tombstones.iter_from(first) {
                    next += 1;
                    let Some((hash, version)) = tombstone else {
                        continue;
                    };
                    each(Exported::Bound { hash, version });
                    *left = left.saturating_sub(1);
                    if *left == 0 {
                        return Some(ExportPart::Tombstones(next));
                    }
                }
                each(Exported::Floor(self.floor));
                None
            }
        }
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
