//! What a store counts.

use crate::partition::Cause;
use trefoil_layout::op::{Action, Outcome, Rejection};
use trefoil_layout::size_class::ClassCounts;

/// Kinds of mutations, in the order of the tables here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MutationKind {
    /// SET and `fill`.
    Set,
    /// ERASE.
    Erase,
    /// CAS.
    Cas,
    /// Bulk load.
    Load,
}

impl MutationKind {
    /// All of them.
    pub const ALL: [MutationKind; 4] = [
        MutationKind::Set,
        MutationKind::Erase,
        MutationKind::Cas,
        MutationKind::Load,
    ];

    pub(crate) fn of(action: Action) -> Self {
        match action {
            Action::Set | Action::Fill { .. } => MutationKind::Set,
            Action::Erase => MutationKind::Erase,
            Action::Cas(_) => MutationKind::Cas,
        }
    }
}

/// Mutations of one kind by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutcomeCounts {
    /// Hold here.
    pub applied: u64,
    /// Were below the bound.
    pub superseded: u64,
    /// Did not find what they expected.
    pub mismatch: u64,
    /// Were refused, whatever for.
    pub rejected: u64,
    /// Were refused for lack of memory; counted in `rejected` too.
    pub no_memory: u64,
}

/// Events since the store was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// By [`MutationKind`].
    pub mutations: [OutcomeCounts; 4],
    /// Lookups by message that found a value.
    pub lookup_hits: u64,
    /// Lookups by message that did not.
    pub lookup_misses: u64,
    /// Touches received.
    pub touches: u64,
    /// Evictions for memory or capacity in objects.
    pub evicted_capacity: u64,
    /// Evictions because four buckets and the side table were full.
    pub evicted_associativity: u64,
    /// Items removed or replaced after their time.
    pub expired: u64,
    /// Items removed because a flush made them invisible.
    pub flushed: u64,
    /// Items replaced by another key with the same tag and home.
    pub replaced_same_tag: u64,
    /// Indexes replaced by larger or smaller ones.
    pub index_reshapes: u64,
    /// Pages emptied to serve elsewhere.
    pub slab_moves: u64,
    /// Entries that moved for it.
    pub entries_moved: u64,
    /// Values of peers that a full, recovering shard left out: they would have been the
    /// first to leave.
    pub copies_skipped: u64,
}

impl Counts {
    pub(crate) fn removed(&mut self, cause: Cause) {
        match cause {
            Cause::Capacity => self.evicted_capacity += 1,
            Cause::Associativity => self.evicted_associativity += 1,
            Cause::Expired => self.expired += 1,
            Cause::Flushed => self.flushed += 1,
            Cause::SameTag => self.replaced_same_tag += 1,
        }
    }

    pub(crate) fn mutated(&mut self, kind: MutationKind, outcome: &Outcome) {
        let counts = &mut self.mutations[kind as usize];
        match outcome {
            Outcome::Applied => counts.applied += 1,
            Outcome::Superseded { .. } => counts.superseded += 1,
            Outcome::Mismatch { .. } => counts.mismatch += 1,
            Outcome::Rejected(rejection) => {
                counts.rejected += 1;
                counts.no_memory += u64::from(*rejection == Rejection::NoMemory);
            }
        }
    }

    /// The counts of one kind.
    pub fn of(&self, kind: MutationKind) -> OutcomeCounts {
        self.mutations[kind as usize]
    }

    pub(crate) fn add(&mut self, other: &Counts) {
        for (sum, more) in self.mutations.iter_mut().zip(&other.mutations) {
            sum.applied += more.applied;
            sum.superseded += more.superseded;
            sum.mismatch += more.mismatch;
            sum.rejected += more.rejected;
            sum.no_memory += more.no_memory;
        }
        self.lookup_hits += other.lookup_hits;
        self.lookup_misses += other.lookup_misses;
        self.touches += other.touches;
        self.evicted_capacity += other.evicted_capacity;
        self.evicted_associativity += other.evicted_associativity;
        self.expired += other.expired;
        self.flushed += other.flushed;
        self.replaced_same_tag += other.replaced_same_tag;
        self.index_reshapes += other.index_reshapes;
        self.slab_moves += other.slab_moves;
        self.entries_moved += other.entries_moved;
        self.copies_skipped += other.copies_skipped;
    }
}

/// Resident bytes by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resident {
    /// Data pages, free ones included.
    pub pages: u64,
    /// Of these, free ones.
    pub pages_free: u64,
    /// Runs of large entries.
    pub runs: u64,
    /// Index windows.
    pub index: u64,
    /// Private metadata: eviction, bitmaps, side tables, tombstones.
    pub private: u64,
    /// Charged by callers.
    pub extra: u64,
}

impl Resident {
    /// The sum that the limit bounds.
    pub fn total(&self) -> u64 {
        self.pages + self.runs + self.index + self.private + self.extra
    }
}

/// A store's state and counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Values present, expired ones that nobody has noticed included.
    pub items: u64,
    /// Bytes of their data entries: keys, values, 24 or 32 bytes of head each,
    /// rounded to whole granules of 8.
    pub entry_bytes: u64,
    /// Bytes of free slots in pages that hold entries.
    pub free_slot_bytes: u64,
    /// Resident bytes.
    pub resident: Resident,
    /// Their bound.
    pub memory_limit: u64,
    /// Items that are reached by message only.
    pub side_table_items: u64,
    /// Erased keys remembered.
    pub tombstones: u64,
    /// Home buckets of all indexes.
    pub index_buckets: u64,
    /// Pages that hold entries.
    pub data_pages: u64,
    /// Large entries.
    pub runs: u64,
    /// Events.
    pub counts: Counts,
    /// Items and events by size.
    pub classes: ClassCounts,
}
