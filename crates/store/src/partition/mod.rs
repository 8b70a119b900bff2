//! A partition: the unit of mutual exclusion. The code inside is
//! single-threaded, entered under one lock by whatever thread carries the
//! request; one-sided readers never take it.
//!
//! | module | what it does |
//! |---|---|
//! | [`mutate`] | the rules of SET, ERASE and CAS; lookup by message |
//! | [`read`] | reads by this process itself |
//! | [`flush`] | what a flush floor means |
//! | [`list`] | a page of a listing |
//! | [`place`] | entries into and out of buckets and side table |
//! | [`room`] | allocation and eviction |
//! | [`compact`] | moving entries, so that whole pages become free |
//! | [`table`] | one index and its side table |
//! | [`wants`] | when an index should have another size |
//! | [`reshape`] | larger and smaller indexes, headers, poison |
//! | [`expire`] | the crawler that removes what has expired |
//! | [`transfer`] | what recovery takes out and puts in |
//! | [`sample`] | the keys behind slot numbers |
//! | [`check`] | the invariants, for tests |
//!
//! # Invariants
//! 1. What an index entry points at is complete before the entry does
//!    (writer's rule 1), and is freed only after no entry points at it.
//! 2. `floor` never falls, and is at least the version of everything that was
//!    evicted, expired, or forgotten (rules 2 and 3).
//! 3. A home bucket's `spill` reaches its farthest entry, and `overflowed` is
//!    set while the side table holds one of its entries: both are set before
//!    such an entry can be missed elsewhere and withdrawn after it is gone.
//! 4. Within one home, a tag stands for one key. A key whose tag another key of
//!    the same home already has replaces it, and the replaced version raises
//!    the floor: a bound may be higher than the key's own, never lower.

mod check;
mod compact;
mod expire;
mod flush;
mod list;
mod mutate;
mod place;
mod read;
mod reshape;
mod room;
mod sample;
mod table;
mod transfer;
mod wants;

use crate::changed::Changed;
pub(crate) use crate::index::Stamp;
use crate::mutants::{self, Mutant};
use crate::policy::{Noted, Policy, SPACE};
use crate::shared::Shared;
use crate::slab::Slab;
use crate::stats::{Counts, MutationKind};
use crate::tombstones::Tombstones;
use crate::uses::LastUse;
use crate::{budget::Kind, config::StoreError};
use reshape::{Moving, Retired};
use std::sync::atomic::Ordering;
use table::Table;
use trefoil_layout::data::DataHead;
use trefoil_layout::op::{Action, Outcome};
use trefoil_layout::size_class::ClassCounts;
use trefoil_layout::words::Words;
use trefoil_layout::{KeyHash, Pointer, Version, control};
use trefoil_region::WordBuffer;

pub use check::CheckError;
pub(crate) use mutate::Found;
pub use read::StoredItem;
pub(crate) use reshape::Stepped;
pub(crate) use room::{Effort, Giver, NoRoom, ROOM_WORK_MAX, Room};

/// Longest scratch buffer that is kept between mutations, in bytes, and the
/// same as a share of a partition's memory.
const SCRATCH_LEN_MAX: u64 = 64 << 10;
const SCRATCH_SHARE: u64 = 64;

/// What a mutation that finds the store beyond its limit gives back, in bytes.
const SHED_LEN: u64 = 128 << 10;
/// Items that it evicts for that at most.
const SHED_EVICTIONS: u64 = 256;

/// Why an entry was removed without its key's owner having asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// Memory, or the capacity in objects, was needed.
    Capacity,
    /// Its four buckets and the side table were full.
    Associativity,
    /// Its time was over.
    Expired,
    /// It was stored before the last flush.
    Flushed,
    /// Another key of the same home has the same tag.
    SameTag,
}

/// See the module.
pub(crate) struct Partition {
    number: usize,
    /// Whether the control region names this partition's index (not yet, while
    /// it is a corpus being loaded).
    advertised: bool,
    /// What readers see.
    table: Table,
    /// The index that is to replace it, or that it has replaced.
    moving: Option<Box<Moving>>,
    /// Headers that a new stamp has reached, while it has not reached all.
    stamping: Option<u64>,
    /// Poisoned for good: nothing is rewritten any more.
    closed: bool,
    /// Slots, headers and their like that were gone over since the lock was
    /// taken, and the most that ever were.
    work: u64,
    work_max: u64,
    /// What was done for room since the lock was taken ([`ROOM_WORK_MAX`]), and the
    /// most that ever was.
    room_work: u64,
    room_work_max: u64,
    slab: Slab,
    policy: Noted,
    tombstones: Tombstones,
    floor: Version,
    /// Entries at or below it are absent, whatever stands in the index.
    flush_floor: Version,
    /// Highest version that was ever applied.
    newest: Version,
    item_count: u64,
    /// Of these, entries that a flush made invisible and whose memory has yet to
    /// be given back.
    flushed_count: u64,
    /// Bytes of all entries, in whole granules.
    entry_len: u64,
    /// Bytes of pages and runs held.
    data_len: u64,
    /// Pages that it holds.
    pages: u64,
    objects_max: Option<u64>,
    /// Grows whenever an entry may have moved or gone: what was found before
    /// an allocation is looked up again if this moved.
    changes: u64,
    crawl: expire::Crawl,
    last_use: LastUse,
    /// The time of the last maintenance, in seconds since the Unix epoch: what
    /// is reported without a time happened about then.
    now_s: u32,
    counts: Counts,
    /// Evictions for room when the index was replaced last.
    evicted_at_reshape: u64,
    /// While it recovers, SETs and ERASEs are kept: what they must not undo is known.
    keeps_writes: bool,
    /// What is imported had to make room for itself the last time.
    evicts_for_copies: bool,
    /// It moves to another process: nothing is changed any more.
    frozen: bool,
    /// What was changed, while somebody copies it.
    changed: Option<Changed>,
    /// Buckets that are asked for beforehand: what fills the index comes in the order
    /// of its buckets. 0 if nothing is.
    bucket_count_min: u64,
    classes: ClassCounts,
    scratch: WordBuffer,
    /// Bytes that it holds.
    scratch_len: usize,
    /// Scratch of compaction.
    in_use: Vec<u64>,
    moves: Vec<(u64, KeyHash)>,
    /// Charged for private metadata so far.
    private_charged: u64,
    #[cfg(feature = "mutants")]
    unwritten: Option<(u64, Vec<u64>)>,
}

impl Partition {
    /// An empty partition with a small index.
    pub(crate) fn new(
        shared: &Shared,
        number: usize,
        stamp: Stamp,
        objects_max: Option<u64>,
    ) -> Result<Self, StoreError> {
        let bucket_count = wants::bucket_count_first(shared);
        let too_small = || StoreError::LimitTooSmall {
            limit: shared.budget.limit(),
            needed: shared.config.partition_count as u64
                * (reshape::window_len(shared, bucket_count) + 2 * shared.page_len()),
            partition_count: shared.config.partition_count,
        };
        let index = reshape::first_index(shared, bucket_count, stamp).ok_or_else(too_small)?;
        let policy = Noted::new(shared.config.policy, index.slot_count());
        let mut partition = Partition {
            number,
            advertised: false,
            table: Table::new(index),
            moving: None,
            stamping: None,
            closed: false,
            work: 0,
            work_max: 0,
            room_work: 0,
            room_work_max: 0,
            slab: Slab::new(&shared.classes),
            policy,
            tombstones: Tombstones::new(shared.config.tombstone_count_max),
            floor: shared.config.flush_floor,
            flush_floor: shared.config.flush_floor,
            newest: Version::ZERO,
            item_count: 0,
            flushed_count: 0,
            entry_len: 0,
            data_len: 0,
            pages: 0,
            objects_max,
            changes: 0,
            crawl: expire::Crawl::default(),
            last_use: LastUse::default(),
            now_s: 0,
            counts: Counts::default(),
            evicted_at_reshape: 0,
            keeps_writes: false,
            evicts_for_copies: false,
            frozen: false,
            changed: None,
            bucket_count_min: 0,
            classes: ClassCounts::default(),
            scratch: WordBuffer::default(),
            scratch_len: 0,
            in_use: Vec::new(),
            moves: Vec::new(),
            private_charged: 0,
            #[cfg(feature = "mutants")]
            unwritten: None,
        };
        partition.settle_private(shared);
        Ok(partition)
    }

    /// Names this partition's index in the control region, under an id above
    /// every earlier one.
    pub(crate) fn advertise(&mut self, shared: &Shared, window_id_before: u64) {
        self.advertised = true;
        self.table.index.window.window_id = window_id_before + 2;
        control::set_index_window(
            &shared.regions.control.words(),
            self.number,
            self.table.index.window,
        );
    }

    /// The id of the advertised window.
    pub(crate) fn window_id(&self) -> u64 {
        self.table.index.window.window_id
    }

    pub(crate) fn epoch(&self) -> u32 {
        self.table.index.stamp.epoch
    }

    /// What every bucket says of the whole partition.
    pub(crate) fn stamp(&self) -> Stamp {
        self.table.index.stamp
    }

    /// Whether its shard is being filled: it gives no vote and refuses mutations.
    #[inline]
    /// Items that found no place in the index.
    pub(crate) fn beside_count(&self) -> u64 {
        self.table.side.count() as u64
    }

    pub(crate) fn is_recovering(&self) -> bool {
        self.table.index.stamp.recovering
    }

    /// Whether what it must not acknowledge is kept.
    pub(crate) fn keeps(&self, action: Action) -> bool {
        self.keeps_writes && matches!(action, Action::Set | Action::Erase)
    }

    /// Buckets of its index.
    pub(crate) fn bucket_count(&self) -> u64 {
        self.table.index.bucket_count()
    }

    /// Asks for an index of at least so many buckets, which what is being copied fills; 0
    /// no longer does.
    pub(crate) fn expect_buckets(&mut self, bucket_count: u64) {
        self.bucket_count_min = bucket_count;
        self.policy.expect(wants::items_of_full(bucket_count));
    }

    pub(crate) fn floor(&self) -> Version {
        self.floor
    }

    /// Feeds accesses that clients report; everything unknown is ignored.
    pub(crate) fn touch(&mut self, window_id: u64, slots: &[u32]) {
        if window_id == self.table.index.window.window_id {
            let slot_count = self.table.index.slot_count();
            let end = self.table.end() & !SPACE;
            for slot in slots.iter().filter(|slot| **slot < end) {
                let number = self.newest_number(self.table.index.space | *slot);
                self.policy.note(number);
                self.last_use.note(number, self.now_s, slot_count);
            }
            self.counts.touches += slots.len() as u64;
        }
    }

    /// One access, at the moment it happens.
    pub(crate) fn access(&mut self, window_id: u64, slot: u32) {
        if window_id == self.table.index.window.window_id {
            let is_slot = slot < self.table.index.slot_count();
            if is_slot {
                self.policy
                    .access(self.newest_number(self.table.index.space | slot));
            }
            self.counts.touches += 1;
        }
    }

    /// Adds what this partition knows to `stats`.
    pub(crate) fn add_stats(&self, shared: &Shared, stats: &mut crate::StoreStats) {
        stats.items += self.visible_count();
        stats.entry_bytes += self.entry_len;
        stats.side_table_items += self.table.side.count() as u64;
        stats.tombstones += self.tombstones.count() as u64;
        stats.index_buckets += self.table.index.bucket_count();
        stats.free_slot_bytes += self.slab.free_len(&shared.classes);
        stats.data_pages += self.slab.page_count() as u64;
        stats.counts.add(&self.counts);
        stats.classes.add(&self.classes);
    }

    /// Counts an entry of `len` bytes that was refused for lack of memory.
    pub(crate) fn count_no_memory(&mut self, len: usize) {
        self.classes.of_entry_mut(len).no_memory += 1;
    }

    /// Counts a lookup by message.
    pub(crate) fn count_lookup(&mut self, found: Found) {
        match found {
            Found::Present(_) => self.counts.lookup_hits += 1,
            Found::Absent => self.counts.lookup_misses += 1,
        }
    }

    /// Counts a mutation and does what must not wait for maintenance.
    #[inline]
    pub(crate) fn after_mutation(
        &mut self,
        shared: &Shared,
        kind: MutationKind,
        outcome: &Outcome,
    ) -> Option<Retired> {
        self.counts.mutated(kind, outcome);
        let mut retired = None;
        if self.wants_step()
            && let Stepped::Done(gone) | Stepped::Aborted(gone) = self.step_at_once(shared)
        {
            retired = Some(gone);
        }
        self.settle_private(shared);
        let excess = shared.budget.excess();
        if excess > 0 {
            self.shed(shared, excess.min(SHED_LEN), SHED_EVICTIONS);
        }
        retired
    }

    /// The lock has been taken.
    #[inline]
    pub(crate) fn begin_hold(&mut self) {
        self.work_max = self.work_max.max(self.work);
        self.work = 0;
        self.room_work_max = self.room_work_max.max(self.room_work);
        self.room_work = 0;
    }

    /// The most that was done for room under one hold of the lock.
    pub(crate) fn room_work_max(&self) -> u64 {
        self.room_work_max.max(self.room_work)
    }

    /// The most slots and headers that were gone over for the index's sake under
    /// one hold of the lock.
    pub(crate) fn work_max(&self) -> u64 {
        self.work_max.max(self.work)
    }

    /// Counts an entry of `len` bytes that is gone, or has been replaced, without
    /// its owner's having asked.
    fn removed(&mut self, cause: Cause, len: usize) {
        self.counts.removed(cause);
        let class = self.classes.of_entry_mut(len);
        match cause {
            Cause::Capacity | Cause::Associativity => class.evicted += 1,
            Cause::Expired => class.expired += 1,
            Cause::Flushed | Cause::SameTag => {}
        }
    }

    /// Raises the floor because others know more (rule 9).
    pub(crate) fn raise_floor_to(&mut self, shared: &Shared, version: Version) {
        self.tell_newest(shared, version);
        self.floor = self.floor.max(version);
    }

    fn raise_floor(&mut self, version: Version, unless: Mutant) {
        if !mutants::is(unless) {
            self.floor = self.floor.max(version);
        }
    }

    /// The fixed part of the data entry at `offset`.
    #[inline]
    fn head_at(shared: &Shared, offset: u64) -> DataHead {
        let first = (offset / 8) as usize;
        let data = shared.data();
        DataHead::decode(data.load(first + 1), data.load(first + 2))
    }

    /// The hash of the key of the data entry at `offset`.
    fn hash_at(&mut self, shared: &Shared, offset: u64) -> KeyHash {
        let head = Self::head_at(shared, offset);
        let key = shared
            .data()
            .slice(
                offset + head.key_at as u64,
                head.key_len.next_multiple_of(8),
            )
            .expect("a key inside the data region");
        self.scratch.fill_from(key);
        let hash = shared
            .config
            .hasher
            .hash(&self.scratch.bytes()[..head.key_len]);
        self.trim_scratch(shared);
        hash
    }

    /// Whether the data entry at `pointer` is `key`'s.
    #[inline]
    fn is_key(shared: &Shared, pointer: Pointer, key: &[u8]) -> bool {
        let head = Self::head_at(shared, pointer.offset());
        if head.key_len != key.len() {
            return false;
        }
        let first = (pointer.offset() / 8) as usize + head.key_at / 8;
        let data = shared.data();
        let (whole, rest) = key.as_chunks::<8>();
        let mut equal = whole
            .iter()
            .enumerate()
            .all(|(at, word)| data.load(first + at) == u64::from_le_bytes(*word));
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            let stored = data.load(first + whole.len());
            let mask = u64::MAX >> (64 - 8 * rest.len());
            equal &= stored & mask == u64::from_le_bytes(last);
        }
        equal
    }

    /// Keeps account of the scratch buffer and drops it if a large entry made
    /// it long.
    fn trim_scratch(&mut self, shared: &Shared) {
        let len_max = SCRATCH_LEN_MAX.min(shared.fair_len() / SCRATCH_SHARE);
        let len = (self.scratch.words().len() * 8).next_power_of_two();
        self.scratch_len = self.scratch_len.max(len);
        if self.scratch_len as u64 > len_max {
            self.scratch = WordBuffer::default();
            self.scratch_len = 0;
        }
    }

    /// Charges what private metadata takes now.
    pub(crate) fn settle_private(&mut self, shared: &Shared) {
        let now = self.policy.resident_bytes()
            + self.slab.private_len()
            + self.table.side.private_len()
            + self.tombstones.private_len()
            + self.last_use.private_len()
            + (self.scratch_len + self.in_use.capacity() * 8 + self.moves.capacity() * 24) as u64
            + size_of::<Self>() as u64;
        if now > self.private_charged {
            shared
                .budget
                .charge(Kind::Private, now - self.private_charged);
        } else if now < self.private_charged {
            shared
                .budget
                .release(Kind::Private, self.private_charged - now);
        }
        self.private_charged = now;
    }

    fn set_data_len(&mut self, shared: &Shared, len: u64) {
        self.data_len = len;
        if self.advertised {
            shared.holds[self.number]
                .data_len
                .store(len, Ordering::Relaxed);
        }
    }

    fn count_pages(&mut self, shared: &Shared, more: i64) {
        self.pages = self.pages.wrapping_add_signed(more);
        if self.advertised {
            shared.holds[self.number]
                .pages
                .store(self.pages, Ordering::Relaxed);
        }
    }
}

impl std::fmt::Debug for Partition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Partition")
            .field("number", &self.number)
            .field("items", &self.item_count)
            .field("window", &self.table.index.window)
            .field("floor", &self.floor)
            .finish_non_exhaustive()
    }
}
