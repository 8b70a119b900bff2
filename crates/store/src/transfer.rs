//! What a shard's replicas know, for whoever recovers one from the others, or
//! moves a shard: everything out, and bounds and values in.
//!
//! An export is a walk while everything goes on. What was known of a key when
//! the walk began, or anything newer, is exported by whoever asks for what stands
//! in the index, at all places, and only then for the other bounds: tombstones,
//! then the floor, which is the order in which a key's bound moves between them.
//! A key that gets a value after its place was passed may be missing: that value
//! was acknowledged in the epoch that the caller has raised the shard to before
//! (rule 6).

use crate::config::Now;
use crate::list::Position;
use crate::partition::StoredItem;
use crate::stats::MutationKind;
use crate::store::Store;
use std::ops::Range;
use trefoil_layout::op::{Ack, Mutation, Rejection};
use trefoil_layout::{KeyHash, Version};

/// Every place of a key: [`Position::PLACE_BITS`] bits of its hash. A place is the same
/// at all replicas, however many partitions and buckets they have.
pub const PLACES: Range<u64> = 0..1 << Position::PLACE_BITS;

/// How far an export of bounds has come: a partition of the shard, and a tombstone in
/// it. The default is the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BoundsCursor {
    /// Partitions of the shard before this one are done.
    pub partition: u32,
    /// Tombstones of this partition before this one are done.
    pub tombstone: u32,
}

/// One thing that a replica knows.
#[derive(Debug)]
pub enum Exported<'a> {
    /// The key has this value; its version is the bound.
    Value {
        /// Of the key.
        hash: KeyHash,
        /// Key, value and metadata.
        item: StoredItem<'a>,
    },
    /// The key has no value: erased, expired or flushed, and nothing older than
    /// this is to be stored.
    Bound {
        /// Of the key.
        hash: KeyHash,
        /// Its bound.
        version: Version,
    },
    /// The bound of the keys of which nothing else is known, in a partition.
    Floor(Version),
}

impl Store {
    /// Exports what stands in the index of shard `shard` at `places`: as far as about
    /// `room` goes, of which each entry takes what `cost` says (its bytes, or one).
    /// Returns the place before which everything was exported; what lies at or behind
    /// it may have been told, too, and comes again. No partition is kept locked for
    /// longer than its part of the room takes.
    pub fn export(
        &self,
        now: Now,
        shard: usize,
        places: Range<u64>,
        room: usize,
        each: &mut dyn FnMut(Exported<'_>) -> usize,
    ) -> u64 {
        let cells = self.cells(shard);
        let room = room.div_ceil(cells.len().max(1)).max(1);
        let mut end = places.end.min(PLACES.end);
        let mut key = Vec::new();
        for cell in cells {
            let places = places.start..end;
            if self.is_revoked() || places.is_empty() {
                break;
            }
            let mut slot = cell.enter();
            let next = slot
                .live
                .export(&self.shared, now, places, room, &mut key, each);
            end = next.unwrap_or(end);
        }
        end
    }

    /// Exports about `count` of the bounds of shard `shard` that do not stand in the
    /// index: tombstones, then the floor, partition by partition. Where to go on, `None`
    /// at the end.
    pub fn export_bounds(
        &self,
        shard: usize,
        cursor: BoundsCursor,
        count: usize,
        each: &mut dyn FnMut(Exported<'_>),
    ) -> Option<BoundsCursor> {
        let cells = self.cells(shard);
        let mut cursor = cursor;
        let mut left = count.max(1);
        while left > 0 {
            let cell = cells.get(cursor.partition as usize)?;
            let next = cell
                .enter()
                .live
                .export_bounds(cursor.tombstone, &mut left, each);
            cursor = match next {
                Some(tombstone) => BoundsCursor {
                    tombstone,
                    ..cursor
                },
                None => BoundsCursor {
                    partition: cursor.partition + 1,
                    tombstone: 0,
                },
            };
        }
        ((cursor.partition as usize) < cells.len()).then_some(cursor)
    }

    /// Stores nothing of the key with this hash below `version` any more, and
    /// removes what stands below it. For a key of another backend nothing
    /// changes.
    pub fn import_bound(&self, hash: KeyHash, version: Version) -> Result<(), Rejection> {
        let shard = self.shared.config.shards.local(hash);
        let number = hash.partition(shard.ok_or(Rejection::WrongShard)?, self.sub_count());
        let mut slot = self.partitions[number].enter();
        slot.live.import_bound(&self.shared, hash, version);
        slot.live.settle_private(&self.shared);
        Ok(())
    }

    /// Stores what the shard's peers hold: while it recovers, unless something newer of
    /// the key itself is known; afterwards by the rules of any other mutation. How far
    /// its version lies ahead of the clock is not asked: those it comes from have taken
    /// it.
    pub fn import(&self, now: Now, mutation: &Mutation<'_>) -> Ack {
        self.execute(now, mutation, MutationKind::Load, Ok(()))
    }
}
