//! The memory of the whole store: its limit, what callers charge, and room
//! that one partition gives to another.

use crate::budget::{Cap, Kind};
use crate::partition::{Giver, NoRoom, ROOM_WORK_MAX, Room};
use crate::shared::lock;
use crate::store::{ROOM_ATTEMPTS_MAX, Store};
use std::sync::atomic::Ordering;
use trefoil_layout::limits::PARTITION_COUNT_MAX;

/// Bytes that a store needs beyond an entry to take it in for certain.
const FIT_MARGIN: u64 = 256 << 10;
/// Items that a partition evicts at once so that another one gets a page of it.
const PAGE_EVICTIONS_MAX: usize = 512;
/// Bytes for items that a store keeps whatever others ask for.
const GIVE_KEEP: u64 = (1 << 20) + FIT_MARGIN;

impl Store {
    /// Changes the memory limit, at most to what the regions were made for;
    /// returns the limit now in force. Writers keep to it at once; what is
    /// beyond it goes over the next [`Store::maintain`] calls.
    pub fn set_memory_limit(&self, bytes: u64) -> u64 {
        let limit = bytes.min(self.shared.regions.memory_max());
        self.shared.budget.set_limit(limit);
        limit
    }

    /// The memory limit in force, in bytes.
    pub fn memory_limit(&self) -> u64 {
        self.shared.budget.limit()
    }

    /// Bytes that are missing before an entry of `entry_len` bytes can be stored,
    /// even if every item is evicted for it; 0 if it can be.
    pub fn missing_for(&self, entry_len: usize) -> u64 {
        let frame_len = self.shared.regions.data.frame_len();
        let wanted = (entry_len as u64).next_multiple_of(frame_len) + FIT_MARGIN;
        wanted.saturating_sub(self.shared.budget.evictable())
    }

    /// Bytes that callers can charge before anything is evicted.
    pub fn free_len(&self) -> u64 {
        self.shared.budget.available()
    }

    /// Bytes that callers can charge before the longest entry is in the way.
    pub fn spare_len(&self) -> u64 {
        let longest = lock(&self.shared.runs).longest().unwrap_or(0);
        let evictable = self.shared.budget.evictable();
        evictable.saturating_sub(longest + FIT_MARGIN)
    }

    /// The least limit at which the longest entry still fits; 0 without a long
    /// one.
    pub fn limit_for_longest(&self) -> u64 {
        let longest = lock(&self.shared.runs).longest();
        longest.map_or(0, |_| self.memory_limit().saturating_sub(self.spare_len()))
    }

    /// Lowers the limit by up to `bytes` and keeps to it before this returns,
    /// evicting for it; by how much. What cannot be evicted is not given, nor the
    /// last megabyte.
    pub fn give_limit(&self, bytes: u64) -> u64 {
        let budget = &self.shared.budget;
        let give = bytes.min(budget.evictable().saturating_sub(GIVE_KEEP));
        let limit = budget.limit();
        budget.set_limit(limit - give);
        let mut used = u64::MAX;
        while budget.excess() > 0 && budget.used() < used {
            used = budget.used();
            self.shrink_step(false, &mut || {});
        }
        let given = give - give.min(budget.excess());
        budget.set_limit(limit - given);
        given
    }

    /// Charges `bytes` that the caller is about to make resident, evicting for
    /// them if need be. `false` if they do not fit.
    pub fn charge(&self, bytes: u64) -> bool {
        let nobody = usize::MAX;
        let budget = &self.shared.budget;
        if budget.try_charge(Kind::Extra, bytes) {
            return true;
        }
        let _turn = lock(&self.shared.room_turn);
        let mut paid = 0;
        for _ in 0..ROOM_ATTEMPTS_MAX {
            paid += budget.charge_some(Kind::Promised, bytes - paid, Cap::Goal);
            if paid == bytes {
                budget.convert(Kind::Promised, Kind::Extra, bytes);
                return true;
            }
            let wanted = NoRoom {
                bytes: bytes - paid,
                from: Giver::Any,
            };
            if !self.take_room_elsewhere(nobody, wanted, Cap::Goal, Some(&mut paid)) {
                break;
            }
        }
        budget.release(Kind::Promised, paid);
        false
    }

    /// Gives back what [`Store::charge`] charged.
    pub fn release(&self, bytes: u64) {
        self.shared.budget.release(Kind::Extra, bytes);
    }

    /// Has other partitions make room, the richest first; one lock at a time. What
    /// they give is for `paid` at once, if given: nobody else takes it.
    pub(crate) fn take_room_elsewhere(
        &self,
        number: usize,
        wanted: NoRoom,
        cap: Cap,
        mut paid: Option<&mut u64>,
    ) -> bool {
        if wanted.from == Giver::AboveQuota {
            return self.free_page_elsewhere(number);
        }
        if self.give_back_unit() {
            return true;
        }
        let holds = &self.shared.holds;
        let mut others: [(u64, usize); PARTITION_COUNT_MAX] = [(0, 0); PARTITION_COUNT_MAX];
        let others = &mut others[..holds.len()];
        for (at, other) in others.iter_mut().enumerate() {
            *other = (holds[at].data_len.load(Ordering::Relaxed), at);
        }
        others.sort_unstable_by(|a, b| b.cmp(a));
        let mut missing = wanted.bytes;
        let own = holds
            .get(number)
            .map_or(0, |hold| hold.data_len.load(Ordering::Relaxed));
        for &(len, at) in others.iter() {
            // A poor partition that is as rich as the richest evicts itself.
            // One that waits for room looks into the empty ones, too: somebody may
            // be storing something there.
            let is_empty = len == 0 && paid.is_none();
            if at == number || is_empty || (wanted.from == Giver::Richer && len <= own) {
                continue;
            }
            if self.make_room_in(at, &mut missing, cap, paid.as_deref_mut())
                || self.give_back_unit()
            {
                return true;
            }
        }
        false
    }

    /// Has one partition make room, a bounded hold of its lock at a time. What
    /// `paid` gets is `missing` no more.
    fn make_room_in(
        &self,
        number: usize,
        missing: &mut u64,
        cap: Cap,
        mut paid: Option<&mut u64>,
    ) -> bool {
        let (cell, budget) = (&self.partitions[number], &self.shared.budget);
        loop {
            let mut slot = cell.enter();
            let live = &mut slot.live;
            let room = live.make_room(&self.shared, *missing, cap, ROOM_WORK_MAX);
            live.settle_private(&self.shared);
            if let Some(paid) = paid.as_deref_mut() {
                let more = budget.charge_some(Kind::Promised, *missing, cap);
                *paid += more;
                *missing -= more;
            }
            drop(slot);
            match room {
                _ if *missing == 0 => return true,
                Room::Made => return true,
                Room::Lacking => return false,
                Room::Again => cell.give_way(),
            }
        }
    }
}
impl Store {
    /// Has the partition that is farthest above its quota free a page for partition
    /// `number`.
    fn free_page_elsewhere(&self, number: usize) -> bool {
        let Some(giver) = self.shared.page_giver(number) else {
            return false;
        };
        let mut slot = self.partitions[giver].enter();
        let gave = slot.live.free_page(&self.shared, PAGE_EVICTIONS_MAX);
        slot.live.settle_private(&self.shared);
        gave
    }
}
