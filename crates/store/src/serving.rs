//! What is served and whether: epoch, cell configuration, the end.

use crate::partition::Stamp;
use crate::store::{Cell, Store};
use std::sync::atomic::Ordering;
use trefoil_layout::{Version, control, epoch};

/// What [`Store::give_back`] gives back at a time: a huge page.
const GIVEN_BACK_LEN: u64 = 2 << 20;

impl Store {
    /// Raises a shard's epoch; a lower one than the present changes nothing.
    ///
    /// Bucket headers and window records are rewritten, one partition after the
    /// other, while everything goes on. Until it returns, answers and votes may
    /// be of either epoch, and each is of the epoch that its bucket was in at
    /// that moment. When it has returned, none is of the old one any more: so
    /// whoever is going to copy from here raises the epoch first (rule 6).
    pub fn raise_epoch(&self, shard: usize, epoch: u32) {
        self.restamp(shard, |stamp| Stamp {
            epoch: stamp.epoch.max(epoch),
            ..stamp
        });
    }

    /// While a shard is recovering it gives no vote (rule 7) and refuses
    /// mutations (rule 8). Begins like [`Store::raise_epoch`]: in force when
    /// this has returned.
    pub fn set_recovering(&self, shard: usize, recovering: bool) {
        self.restamp(shard, |stamp| Stamp {
            recovering,
            ..stamp
        });
    }

    /// Raises the floor of a shard: what is known of its keys of which nothing
    /// else is known. A lower one than the present changes nothing.
    pub fn raise_floor(&self, shard: usize, version: Version) {
        for cell in self.cells(shard) {
            cell.enter().live.raise_floor_to(&self.shared, version);
        }
    }

    /// A shard's epoch: what the answers of its last partition say, which is
    /// raised last.
    pub fn epoch(&self, shard: usize) -> u32 {
        let last = self.cells(shard).last();
        last.map_or(epoch::NONE, |cell| cell.enter().live.epoch())
    }

    /// Whether a shard is recovering.
    pub fn is_recovering(&self, shard: usize) -> bool {
        let mut cells = self.cells(shard).iter();
        cells.any(|cell| cell.enter().live.is_recovering())
    }

    /// The partitions of a shard; none if there is no such shard.
    pub(crate) fn cells(&self, shard: usize) -> &[Cell] {
        let count = self.sub_count();
        let first = shard.saturating_mul(count);
        self.partitions
            .get(first..first.saturating_add(count))
            .unwrap_or_default()
    }

    fn restamp(&self, shard: usize, change: impl Fn(Stamp) -> Stamp) {
        for cell in self.cells(shard) {
            self.restamp_one(cell, &change);
        }
    }

    /// Rewrites a partition's headers, a few at a time: requests go on between.
    fn restamp_one(&self, cell: &Cell, change: &dyn Fn(Stamp) -> Stamp) {
        let mut slot = cell.enter();
        let stamp = change(slot.live.stamp());
        slot.live.restamp(stamp);
        while !self.is_revoked() && slot.live.stamp_step(&self.shared) {
            drop(slot);
            cell.give_way();
            slot = cell.enter();
        }
    }

    /// Serves another cell configuration from now on. Id 0 is ignored: it is
    /// never issued.
    pub fn set_config_id(&self, id: u32) {
        if id == 0 || self.is_revoked() {
            return;
        }
        for cell in &self.partitions {
            self.restamp_one(cell, &|stamp| Stamp {
                config_id: id,
                ..stamp
            });
        }
        control::set_config_id(&self.shared.regions.control.words(), id);
    }

    /// A clean end: every bucket is poisoned and the lease revoked, so that
    /// clients who still map the memory stop at once. Everything is refused
    /// from now on.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
        let control = self.shared.regions.control.words();
        // Who has moved says so for as long as somebody maps this: clients that have been idle
        // look for its successor then.
        if control::lease_end_ns(&control) != control::LEASE_MOVED_NS {
            control::set_lease_end_ns(&control, 0);
        }
        control::set_config_id(&control, 0);
        for cell in &self.partitions {
            cell.enter().live.poison(&self.shared);
        }
    }

    /// After [`Store::revoke`], and once no request is under way any more: gives the
    /// memory of index and data back to the system. A client that is idle goes on
    /// mapping them, and they would take their room beside the next process's. What
    /// it reads there are zeros, which are no bucket and no entry.
    pub fn give_back(&self) {
        if !self.is_revoked() {
            return;
        }
        let regions = &self.shared.regions;
        for object in [regions.index.object(), regions.data.object()] {
            let Some(object) = object else { continue };
            // In parts: who touches what is just given back waits until that is done, and a
            // gigabyte takes a tenth of a second.
            let mut at = object.next_populated(0);
            while let Some(from) = at {
                let begin = from - from % GIVEN_BACK_LEN;
                let end = (begin + GIVEN_BACK_LEN).min(object.len());
                if object.punch(begin..end).is_err() || end == object.len() {
                    break;
                }
                at = object.next_populated(end);
            }
            // What is left, where the system does not tell; where it refuses, the memory goes
            // with its last mapping.
            let _ = object.punch(0..object.len());
        }
    }
}
