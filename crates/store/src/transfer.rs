//! A shard's values out of a replica, and into one that recovers.
//!
//! An export is a walk while everything goes on: what stands in the index at the moment
//! at which its place is passed. So it tells nothing of keys that have no value, and a
//! tombstone may become a value behind it; whoever needs a bound for what was not told
//! takes [`Store::bound_max`] of before the walk.

use crate::changed::Changed;
use crate::config::Now;
use crate::list::Position;
use crate::partition::StoredItem;
use crate::policy::Recency;
use crate::stats::MutationKind;
use crate::store::{Cell, Store};
use std::ops::Range;
use std::sync::atomic::Ordering;
use trefoil_layout::op::{Ack, Mutation};
use trefoil_layout::{KeyHash, Pointer, Version};

/// Every place of a key: [`Position::PLACE_BITS`] bits of its hash. A place is the same
/// at all replicas, however many partitions and buckets they have.
pub const PLACES: Range<u64> = 0..1 << Position::PLACE_BITS;

/// A value that a replica holds.
#[derive(Debug)]
pub struct Exported<'a> {
    /// Of the key.
    pub hash: KeyHash,
    /// Key, value and metadata.
    pub item: StoredItem<'a>,
    /// How it was used.
    pub recency: Recency,
    /// Where its data entry stands at this moment: for those who read the data region.
    pub pointer: Pointer,
}

impl Store {
    /// Exports the values that stand in the index of shard `shard` at `places`: as far as about
    /// `room` goes, of which each entry takes what `cost` says (its bytes, or one).
    /// Returns the place before which everything was exported; what lies at or behind
    /// it may have been told, too, and comes again. No partition is kept locked for
    /// longer than its part of the room takes.
    ///
    /// `None`: the store was [revoked](Store::revoke) meanwhile. What was told is of no use
    /// then, and what was not may have stood there all the same.
    pub fn export(
        &self,
        now: Now,
        shard: usize,
        places: Range<u64>,
        room: usize,
        each: &mut dyn FnMut(Exported<'_>) -> usize,
    ) -> Option<u64> {
        self.export_in_parts(now, shard, (places, room), each, &|| {})
    }

    /// The same of `places` and room. Between two partitions no lock is held and `between` is
    /// called: the place to let others have the core.
    pub fn export_in_parts(
        &self,
        now: Now,
        shard: usize,
        (places, room): (Range<u64>, usize),
        each: &mut dyn FnMut(Exported<'_>) -> usize,
        between: &dyn Fn(),
    ) -> Option<u64> {
        let cells = self.cells(shard);
        let room = room.div_ceil(cells.len().max(1)).max(1);
        let mut end = places.end.min(PLACES.end);
        let mut key = Vec::new();
        for cell in cells {
            let places = places.start..end;
            if places.is_empty() {
                break;
            }
            let mut slot = cell.enter();
            // It is emptied under this lock, after it was marked.
            if self.is_revoked() {
                return None;
            }
            let next = slot
                .live
                .export(&self.shared, now, places, room, &mut key, each);
            drop(slot);
            between();
            end = next.unwrap_or(end);
        }
        (!self.is_revoked()).then_some(end)
    }

    /// No bound of any key of the shard is higher: the highest version that was applied
    /// here, or that something else was refused for.
    pub fn bound_max(&self, shard: usize) -> Version {
        let highest = |cell: &Cell| cell.enter().live.bound_max();
        let cells = self.cells(shard).iter();
        cells.map(highest).max().unwrap_or_default()
    }

    /// Buckets of all indexes of a shard.
    pub fn bucket_count(&self, shard: usize) -> u64 {
        let count = |cell: &Cell| cell.enter().live.bucket_count();
        self.cells(shard).iter().map(count).sum()
    }

    /// Has maintenance give the indexes of a shard at least so many buckets together,
    /// if there is memory for them, and no fewer: an import comes in the order of their
    /// buckets, and what was made for a part of it would have too few in that part. 0
    /// ends it.
    pub fn reserve(&self, shard: usize, bucket_count: u64) {
        let cells = self.cells(shard);
        let each = bucket_count.div_ceil(cells.len().max(1) as u64);
        cells
            .iter()
            .for_each(|cell| cell.enter().live.expect_buckets(each));
    }

    /// From now on a recovering shard stores nothing older than `floor` of what is not
    /// imported, and keeps what is written meanwhile, without acknowledging it.
    pub fn keep_writes(&self, shard: usize, floor: Version) {
        for cell in self.cells(shard) {
            cell.enter().live.keep_writes(&self.shared, floor);
        }
    }

    /// From now on it is noted which places of the shard are changed; or no longer.
    /// Evictions and expiry change nothing: whoever has copied such an item holds what was
    /// stored last.
    pub fn watch_changes(&self, shard: usize, watches: bool) {
        for cell in self.cells(shard) {
            cell.enter().live.watch_changes(watches);
        }
    }

    /// The places of the shard that mutations have gone to since the last call, in order.
    /// What is exported after it is no older than they are.
    pub fn take_changes(&self, shard: usize) -> Vec<Range<u64>> {
        let mut all = Changed::new();
        for cell in self.cells(shard) {
            if let Some(changed) = cell.enter().live.take_changed() {
                all.merge(&changed);
            }
        }
        all.ranges()
    }

    /// Until it is thawed the shard takes no mutation: each is told to come again, and
    /// has left no trace. Reads go on. When this returns, none is under way.
    pub fn freeze(&self, shard: usize, frozen: bool) {
        for cell in self.cells(shard) {
            cell.enter().live.freeze(frozen);
        }
    }

    /// Takes away what stands in the index of a shard at `places` and is not `kept`, expired
    /// and flushed or not, as if it had never been: from then on its bound is the floor. For a
    /// shard that is being copied, and whose floor is raised to all that was known where it is
    /// copied from before it answers anybody. What stood there instead, an erased key's bound,
    /// is not known: a tombstone of the version that is removed would be lower, and so would
    /// be the bound of what stayed.
    pub fn forget_unless(
        &self,
        shard: usize,
        places: Range<u64>,
        is_kept: &dyn Fn(KeyHash, Version) -> bool,
    ) {
        let end = places.end.min(PLACES.end);
        let mut key = Vec::new();
        for cell in self.cells(shard) {
            let mut from = places.start;
            while from < end && !self.is_revoked() {
                let mut slot = cell.enter();
                let places = from..end;
                let live = &mut slot.live;
                let next = live.forget_unless(&self.shared, places, &mut key, is_kept);
                from = next.map_or(end, |next| next.max(from + 1));
            }
        }
    }

    /// Stores what the shard's peers hold, or removes what they no longer do: while it recovers,
    /// unless something newer of the key itself is known; afterwards by the rules of any other mutation. How far
    /// its version lies ahead of the clock is not asked: those it comes from have taken
    /// it.
    ///
    /// A recovering shard that is full leaves out what would be the first to leave, as if it
    /// had come and gone.
    pub fn import(&self, now: Now, mutation: &Mutation<'_>, recency: Recency) -> Ack {
        self.execute(now, mutation, MutationKind::Load, recency, Ok(()))
    }

    /// Whether the import of such a value would leave it out: then it need not even be
    /// fetched, and is counted as left out. Until an import has had to make room, none is.
    pub fn skips_copy(&self, hash: KeyHash, version: Version, recency: Recency) -> bool {
        // As a rule all that is copied has room, and nobody takes a lock for this.
        if !self.shared.copies_evict.load(Ordering::Relaxed) {
            return false;
        }
        let Some(shard) = self.shared.config.shards.local(hash) else {
            return false;
        };
        let number = hash.partition(shard, self.sub_count());
        let mut slot = self.partitions[number].enter();
        slot.live.skips_copy(&self.shared, hash, version, recency)
    }
}
