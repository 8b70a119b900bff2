//! Room for data: allocation, eviction, compaction.
//!
//! A slot comes, in this order, from a page of its class, a free page, a page
//! that compaction empties, a larger class, a victim of the policy. Victims are chosen among
//! all items whatever their size; their freed slots add up until compaction
//! can gather a page of them for the class that needs it. So the work of one
//! mutation is bounded by what frees one page (or the bytes of a large entry),
//! and the pages follow the sizes of what is written. One hold of the lock does a
//! part of that work, [`ROOM_WORK_MAX`]; then others get the lock, and the
//! mutation is decided anew.
//!
//! Of a full store's pages each partition has its [`Shared::page_quota`]. A
//! partition that has fewer takes one from a partition that has more, before it
//! evicts anything itself. Which partition is the first to ask for the last free
//! pages is chance, and differs between replicas: without quotas, each replica's
//! partitions would be full at other sizes, and hold other items.

use super::{Cause, Partition};
use crate::budget::{Cap, Kind};
use crate::policy::{Policy, Recency};
use crate::runs::run_len;
use crate::shared::{Shared, lock};
use std::sync::atomic::Ordering;
use trefoil_layout::Pointer;
use trefoil_region::PAGE_LEN;

/// Items that one hold of a partition's lock evicts or moves for room, and memory
/// pages that it gives back, whatever for. The last page that it empties may add
/// its items.
pub(crate) const ROOM_WORK_MAX: u64 = 512;

/// Bytes of free pages that are given back at a time.
const SHRINK_LEN: u64 = 1 << 20;
/// What a part of a replaced index counts, beside the items: about as much time.
const LEAVING_WORK: u64 = 64;

/// A partition could not make room; others may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoRoom {
    /// Bytes wanted.
    pub(crate) bytes: u64,
    /// Who should give first.
    pub(crate) from: Giver,
}

/// Who should give room to a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Giver {
    /// Any other: this one has nothing left to evict.
    Any,
    /// One that holds more, or huge pages should be emptied by moving; else this
    /// one evicts.
    Richer,
    /// One that has more pages than its quota; else this one evicts.
    AboveQuota,
    /// This one, under the next hold of its lock: it has done what it may under one.
    Itself,
    /// Nobody: what wants it is a copy that would be the first to leave.
    Nobody,
}

/// What came of making room under one hold of the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    /// There is enough.
    Made,
    /// More can be made under the next hold.
    Again,
    /// There is not enough, and nothing more that could go.
    Lacking,
}

/// What a mutation may do for room.
#[derive(Debug)]
pub(crate) struct Effort {
    /// Evict everything if need be, even if the partition holds much less than
    /// the others.
    pub(crate) own: bool,
    /// What the account may come to.
    pub(crate) cap: Cap,
    /// Bytes for a run that are on the account already, as [`Kind::Promised`].
    pub(crate) paid: u64,
    /// Of a copy that may be left out ([`Partition::is_dispensable`]): how it was used.
    pub(crate) dispensable: Option<Recency>,
}

impl Partition {
    /// Bytes for an entry of `len`, at the returned offset.
    pub(super) fn allocate(
        &mut self,
        shared: &Shared,
        len: usize,
        effort: &mut Effort,
    ) -> Result<u64, NoRoom> {
        match shared.classes.of(len) {
            Some(class) => self.allocate_slot(shared, class, effort),
            None => self.allocate_run(shared, len, effort),
        }
    }

    #[inline]
    pub(super) fn take_slot(&mut self, shared: &Shared, class: usize) -> Option<u64> {
        self.slab.take(&shared.classes, class, shared.page_len())
    }

    #[inline]
    fn allocate_slot(
        &mut self,
        shared: &Shared,
        class: usize,
        effort: &Effort,
    ) -> Result<u64, NoRoom> {
        if let Some(offset) = self.take_slot(shared, class) {
            return Ok(offset);
        }
        self.allocate_slot_slowly(shared, class, effort)
    }

    #[cold]
    fn allocate_slot_slowly(
        &mut self,
        shared: &Shared,
        class: usize,
        effort: &Effort,
    ) -> Result<u64, NoRoom> {
        loop {
            if let Some(offset) = self.take_slot(shared, class) {
                return Ok(offset);
            }
            if let Some(page) = self
                .take_page(shared, effort.cap)
                .or_else(|| self.empty_some_page(shared))
            {
                self.slab
                    .add_page(&shared.classes, &shared.page_table, class, page);
                continue;
            }
            if let Some(offset) = self.slab.borrow(&shared.classes, class, shared.page_len()) {
                return Ok(offset);
            }
            if !effort.own && self.should_be_given_a_page(shared) {
                let from = Giver::AboveQuota;
                return Err(NoRoom {
                    bytes: shared.page_len(),
                    from,
                });
            }
            self.give_way(shared, shared.unit_len(), effort)?;
        }
    }

    /// Whether this partition has fewer pages than it should, and another one more.
    fn should_be_given_a_page(&self, shared: &Shared) -> bool {
        self.advertised
            && self.page_count(shared) < shared.page_quota(self.number)
            && shared.page_giver(self.number).is_some()
    }

    fn page_count(&self, shared: &Shared) -> u64 {
        shared.holds[self.number].pages.load(Ordering::Relaxed)
    }

    /// Frees a page for others, or memory for one, evicting at most `evictions_max`
    /// items. `false` if there is nothing to free.
    pub(crate) fn free_page(&mut self, shared: &Shared, evictions_max: usize) -> bool {
        let before = self.slab.page_count();
        for _ in 0..evictions_max {
            if let Some(page) = self.empty_some_page(shared) {
                self.give_page(shared, page);
            }
            // Large entries that were evicted leave no pages.
            lock(&shared.runs).drop_spare(&shared.regions.data, &shared.budget);
            let has_room = shared.budget.available() >= shared.unit_len();
            if self.slab.page_count() < before || has_room {
                return true;
            }
            if !self.evict(shared) {
                return false;
            }
        }
        true
    }

    /// A page from the common pool.
    pub(super) fn take_page(&mut self, shared: &Shared, cap: Cap) -> Option<u32> {
        let mut pool = lock(&shared.pool);
        let page = pool.take().or_else(|| {
            let chunk = shared.inline_chunk_len();
            if pool.grow(&shared.regions.data, &shared.budget, cap, chunk) {
                pool.take()
            } else {
                None
            }
        })?;
        drop(pool);
        self.set_data_len(shared, self.data_len + shared.page_len());
        self.count_pages(shared, 1);
        Some(page)
    }

    pub(super) fn give_page(&mut self, shared: &Shared, page: u32) {
        lock(&shared.pool).give(page);
        self.set_data_len(shared, self.data_len - shared.page_len());
        self.count_pages(shared, -1);
    }

    fn allocate_run(
        &mut self,
        shared: &Shared,
        len: usize,
        effort: &mut Effort,
    ) -> Result<u64, NoRoom> {
        loop {
            let (data, budget, cap) = (&shared.regions.data, &shared.budget, effort.cap);
            let allocated = lock(&shared.runs).allocate(data, budget, cap, len, &mut effort.paid);
            let wanted = match allocated {
                Ok(offset) => {
                    self.set_data_len(shared, self.data_len + run_len(len));
                    return Ok(offset);
                }
                Err(wanted) => wanted,
            };
            // Nothing is evicted for what cannot fit anyway.
            if wanted + effort.paid > shared.budget.evictable() {
                return Err(NoRoom {
                    bytes: wanted,
                    from: Giver::Any,
                });
            }
            if self.has_worked_enough() || !self.release_free(shared, wanted) {
                self.give_way(shared, wanted, effort)?;
            }
        }
    }

    /// Gives back what is resident but holds nothing: a part of a replaced index,
    /// free pages, spare runs, a page that compaction can empty. `false` if there
    /// is nothing.
    fn release_free(&mut self, shared: &Shared, bytes: u64) -> bool {
        if self.release_leaving(shared) {
            return true;
        }
        let data = &shared.regions.data;
        let bytes = bytes.min(SHRINK_LEN);
        let gone = lock(&shared.pool).shrink(data, &shared.budget, bytes);
        self.room_work += gone / PAGE_LEN;
        if gone > 0 || lock(&shared.runs).drop_spare(data, &shared.budget) > 0 {
            return true;
        }
        let Some(page) = self.empty_some_page(shared) else {
            return false;
        };
        self.give_page(shared, page);
        true
    }

    /// Gives back a part of an index that was replaced; `false` if there is none.
    fn release_leaving(&mut self, shared: &Shared) -> bool {
        let gone = shared.leaving.release_step(shared);
        if gone {
            self.room_work += LEAVING_WORK;
        }
        gone
    }

    /// Evicts one item, if this is the partition that should.
    fn give_way(&mut self, shared: &Shared, bytes: u64, effort: &Effort) -> Result<(), NoRoom> {
        let poor = !effort.own
            && shared.holds.len() > 1
            && self.data_len + bytes + effort.paid < shared.fair_len() / 2;
        // Pages enough are free, but no huge page: moving helps, evicting would not.
        let fragmented = !effort.own && lock(&shared.pool).is_fragmented();
        let from = if poor || fragmented {
            Giver::Richer
        } else if self.has_worked_enough() {
            Giver::Itself
        } else if self.release_leaving(shared) {
            return Ok(());
        } else if effort
            .dispensable
            .is_some_and(|recency| self.policy.would_leave_first(recency))
        {
            Giver::Nobody
        } else if self.evict(shared) {
            self.evicts_for_copies |= effort.dispensable.is_some();
            return Ok(());
        } else {
            Giver::Any
        };
        Err(NoRoom { bytes, from })
    }

    /// Whether this hold of the lock has done its part for room.
    fn has_worked_enough(&self) -> bool {
        self.room_work >= ROOM_WORK_MAX
    }

    /// Evicts the policy's choice. `false` if there is nothing left. Nothing goes of an
    /// immutable corpus to make room for what is loaded: it is whole, or there is none.
    pub(super) fn evict(&mut self, shared: &Shared) -> bool {
        !shared.config.immutable && self.evict_any(shared)
    }

    /// The same to keep a limit that was lowered.
    fn evict_for_limit(&mut self, shared: &Shared) -> bool {
        !shared.reloading.load(Ordering::Relaxed) && self.evict_any(shared)
    }

    fn evict_any(&mut self, shared: &Shared) -> bool {
        let (table, moving, space) = (&self.table, &self.moving, &shared.regions.index);
        let victim = self
            .policy
            .victim(&mut |number| super::reshape::entry_of(table, moving, space, number).tag);
        let Some(slot) = victim else { return false };
        self.room_work += 1;
        self.discard(shared, slot, Cause::Capacity);
        true
    }

    /// Frees what an entry pointed at; it may be overwritten at once.
    pub(super) fn free_data(&mut self, shared: &Shared, pointer: Pointer) {
        let offset = pointer.offset();
        if offset < shared.regions.pages_len() {
            let page = self.slab.free(
                &shared.classes,
                &shared.page_table,
                shared.page_len(),
                offset,
                pointer.len(),
            );
            if let Some(page) = page {
                self.give_page(shared, page);
            }
            return;
        }
        let data = &shared.regions.data;
        lock(&shared.runs).free(data, &shared.budget, offset, pointer.len());
        self.set_data_len(shared, self.data_len - run_len(pointer.len()));
    }

    /// Makes `bytes` available below `cap` by giving back free memory,
    /// compacting, and evicting at most `evictions_max` items.
    pub(crate) fn make_room(
        &mut self,
        shared: &Shared,
        bytes: u64,
        cap: Cap,
        evictions_max: u64,
    ) -> Room {
        let mut evictions = 0;
        loop {
            let budget = &shared.budget;
            let missing = (budget.used() + bytes).saturating_sub(budget.bytes_of(cap));
            if missing == 0 {
                return Room::Made;
            }
            if self.has_worked_enough() {
                return Room::Again;
            }
            if self.release_free(shared, missing) {
                continue;
            }
            if lock(&shared.pool).is_fragmented() {
                return Room::Lacking;
            }
            if evictions == evictions_max {
                return Room::Again;
            }
            if !self.evict(shared) {
                return Room::Lacking;
            }
            evictions += 1;
        }
    }

    /// Gives back up to `bytes` of what is beyond the limit, evicting at most
    /// `evictions_max` items, if this partition holds more than its share.
    pub(crate) fn shed(&mut self, shared: &Shared, bytes: u64, evictions_max: u64) {
        let bytes = bytes.min(self.data_len.saturating_sub(shared.kept_len()));
        let target = shared
            .budget
            .goal()
            .max(shared.budget.used().saturating_sub(bytes));
        let mut evictions = 0;
        loop {
            let missing = shared.budget.used().saturating_sub(target);
            if missing == 0 || self.has_worked_enough() {
                return;
            }
            if self.release_free(shared, missing) {
                continue;
            }
            let fragmented = lock(&shared.pool).is_fragmented();
            if fragmented || evictions == evictions_max || !self.evict_for_limit(shared) {
                return;
            }
            evictions += 1;
        }
    }

    /// Charges `bytes`, making room for them first. See [`Partition::make_room`].
    pub(super) fn charge_with_room(
        &mut self,
        shared: &Shared,
        kind: Kind,
        bytes: u64,
        evictions_max: u64,
    ) -> bool {
        shared.budget.try_charge(kind, bytes)
            || (self.make_room(shared, bytes, Cap::Goal, evictions_max) == Room::Made
                && shared.budget.try_charge(kind, bytes))
    }

    /// Gives every page and run back, for a partition that ends.
    pub(crate) fn release_all(&mut self, shared: &Shared) {
        self.end_reshape(shared);
        let mut runs = Vec::new();
        self.for_each_entry(shared, |_, entry| {
            if entry.pointer.offset() >= shared.regions.pages_len() {
                runs.push(entry.pointer);
            }
        });
        for pointer in runs {
            self.free_data(shared, pointer);
        }
        for page in self.slab.drain() {
            self.give_page(shared, page);
        }
        shared.budget.release(Kind::Private, self.private_charged);
        self.private_charged = 0;
        shared.leaving.add_index(shared, &self.table.index);
    }
}
