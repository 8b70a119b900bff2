//! What a shard's replicas know, for whoever recovers one from the others, or
//! moves a shard: everything out, and bounds and values in.
//!
//! An export is a walk while everything goes on. What was known of a key when
//! the walk began, or anything newer, is exported: in a partition first what
//! stands in the index, then the tombstones, then the floor, which is the order
//! in which a key's bound moves between them. A key that gets a value after its
//! place was passed may be missing: that value was acknowledged in the epoch
//! that the caller has raised the shard to before (rule 6).

use crate::config::Now;
use crate::partition::StoredItem;
use crate::stats::MutationKind;
use crate::store::Store;
use trefoil_layout::op::{Ack, Mutation, Rejection};
use trefoil_layout::{KeyHash, Version};

/// How far an export has come. The default is the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct ExportCursor {
    /// Partitions of the shard before this one are done.
    pub(crate) partition: usize,
    pub(crate) part: ExportPart,
}

/// What is exported next of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExportPart {
    /// Entries from this place on; see [`crate::Position`].
    Entries(u64),
    /// Tombstones from this one on, then the floor.
    Tombstones(usize),
}

impl Default for ExportPart {
    fn default() -> Self {
        ExportPart::Entries(0)
    }
}

/// One thing that a replica knows.
#[derive(Debug)]
pub enum Exported<'a> {
    /// The key has this value; its version is the bound.
    Value {
        /// The key.
        key: &'a [u8],
        /// Value and metadata.
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
    /// The bound of the keys of which nothing else is known, in this partition.
    Floor(Version),
}

impl Store {
    /// Exports about `count` things that shard `shard` knows; where to go on,
    /// `None` at the end. No partition is kept locked for longer than a batch
    /// takes.
    pub fn export(
        &self,
        now: Now,
        shard: usize,
        cursor: ExportCursor,
        count: usize,
        each: &mut dyn FnMut(Exported<'_>),
    ) -> Option<ExportCursor> {
        let cells = self.cells(shard);
        let mut cursor = cursor;
        let mut left = count.max(1);
        let mut key = Vec::new();
        while left > 0 {
            let cell = cells.get(cursor.partition)?;
            let mut slot = cell.enter();
            let next = slot
                .live
                .export(&self.shared, now, cursor.part, &mut left, &mut key, each);
            drop(slot);
            cursor = match next {
                Some(part) => ExportCursor { part, ..cursor },
                None => ExportCursor {
                    partition: cursor.partition + 1,
                    part: ExportPart::default(),
                },
            };
        }
        (cursor.partition < cells.len()).then_some(cursor)
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

    /// A mutation that a recovering shard does not refuse: what recovery
    /// installs, by the same rules as any other.
    pub fn import(&self, now: Now, mutation: &Mutation<'_>) -> Ack {
        self.execute(now, mutation, MutationKind::Load, Ok(()))
    }
}
