//! Entries into and out of the index and its side table, with the announcements
//! that keep readers' misses one-sided.
//!
//! While the index is replaced ([`super::reshape`]) an entry may stand in two
//! tables. Everything here changes both, the one that readers see first. An
//! entry's number is that of the newer one it stands in: its *number* for
//! everybody else, the eviction metadata included.

use super::reshape::Moving;
use super::table::Pulled;
use super::{Cause, Partition};
use crate::evictions::Evicted;
use crate::mutants::Mutant;
use crate::policy::{Policy, Recency};
use crate::shared::Shared;
use trefoil_layout::bucket::SLOT_COUNT;
use trefoil_layout::limits::SPILL_MAX;
use trefoil_layout::{IndexEntry, KeyHash, Pointer, Version};

/// Side-table entries that are kept when the index cannot grow: this many, or
/// this share of the items, whichever is more.
const SIDE_COUNT_MIN: u64 = 64;
const SIDE_SHARE: u64 = 50;

impl Partition {
    /// Where the key with this hash stands: slot number and index entry.
    #[inline]
    pub(super) fn find(&self, shared: &Shared, hash: KeyHash) -> Option<(u32, IndexEntry)> {
        let (number, entry) = self.table.find(&shared.regions.index, hash)?;
        Some((self.newest_number(number), entry))
    }

    /// Where the entry of this hash that points at `offset` stands.
    pub(super) fn find_pointer(
        &self,
        shared: &Shared,
        hash: KeyHash,
        offset: u64,
    ) -> Option<(u32, IndexEntry)> {
        let found = self.table.find_pointer(&shared.regions.index, hash, offset);
        found.map(|(number, entry)| (self.newest_number(number), entry))
    }

    /// The number of the entry that stands at `number` of the index that readers
    /// see.
    #[inline]
    pub(super) fn newest_number(&self, number: u32) -> u32 {
        match &self.moving {
            None => number,
            Some(moving) => moving.number_of(number),
        }
    }

    /// The entry that a slot number names; tag 0 if nothing stands there.
    pub(super) fn entry_at(&self, shared: &Shared, number: u32) -> IndexEntry {
        let space = &shared.regions.index;
        match self.filling() {
            Some(filling) if filling.next.has(number) => filling.next.entry(space, number),
            _ => self.table.entry(space, number),
        }
    }

    /// Publishes an entry of a key that has none: a copy of one that was used like that, or a
    /// new one.
    pub(super) fn insert(
        &mut self,
        shared: &Shared,
        hash: KeyHash,
        entry: IndexEntry,
        copied: Option<Recency>,
    ) {
        let space = &shared.regions.index;
        self.disown(shared, hash);
        let number = loop {
            if let Some(number) = self.table.insert(space, &mut self.policy, hash, entry) {
                break number;
            }
            let side_max = SIDE_COUNT_MIN.max(self.item_count / SIDE_SHARE);
            if (self.table.side.count() as u64) < side_max
                // Nothing in the four buckets can go: they hold other homes'
                // entries that the policy does not know, which cannot be.
                || !self.evict_near(shared, self.table.index.home(hash))
            {
                break self
                    .table
                    .insert_beside(space, &mut self.policy, hash, entry);
            }
        };
        self.last_use.forget(number);
        match copied {
            Some(recency) => self.policy.insert_copy(number, hash.tag, recency),
            None => self.policy.insert(number, hash.tag),
        }
        self.add_twin(shared, number, hash, entry);
        self.item_count += 1;
        self.entry_len += entry.pointer.len() as u64;
        self.classes.came(entry.pointer.len());
    }

    /// Evicts one entry of the four buckets from `home`.
    fn evict_near(&mut self, shared: &Shared, home: u64) -> bool {
        if shared.config.immutable {
            return false;
        }
        let first = self.table.index.number(home, 0);
        let slots: [u32; SLOT_COUNT * (SPILL_MAX + 1)] =
            std::array::from_fn(|at| self.newest_number(first + at as u32));
        let (table, moving, space) = (&self.table, &self.moving, &shared.regions.index);
        let victim = self.policy.victim_among(&slots, &mut |number| {
            super::reshape::entry_of(table, moving, space, number).tag
        });
        let Some(slot) = victim else { return false };
        self.discard(shared, slot, Cause::Associativity);
        true
    }

    /// Gives the key at `number` a new version and complete data.
    pub(super) fn overwrite(
        &mut self,
        shared: &Shared,
        (number, hash): (u32, KeyHash),
        version: Version,
        pointer: Pointer,
    ) {
        let space = &shared.regions.index;
        self.disown(shared, hash);
        let seen = self.number_seen(shared, number, hash);
        self.table.overwrite(space, seen, version, pointer);
        if let Some(filling) = self.filling_mut().filter(|_| seen != number) {
            filling.next.overwrite(space, number, version, pointer);
        }
    }

    /// Points the entry at `number` at a complete copy of its data.
    pub(super) fn repoint(
        &mut self,
        shared: &Shared,
        (number, hash): (u32, KeyHash),
        pointer: Pointer,
    ) {
        let space = &shared.regions.index;
        self.disown(shared, hash);
        let seen = self.number_seen(shared, number, hash);
        self.table.repoint(space, seen, pointer);
        if let Some(filling) = self.filling_mut().filter(|_| seen != number) {
            filling.next.repoint(space, number, pointer);
        }
    }

    /// The number that the entry `number` has in the index that readers see.
    fn number_seen(&self, shared: &Shared, number: u32, hash: KeyHash) -> u32 {
        let Some(filling) = self.filling().filter(|filling| filling.next.has(number)) else {
            return number;
        };
        let space = &shared.regions.index;
        let offset = filling.next.entry(space, number).pointer.offset();
        let seen = self.table.find_pointer(space, hash, offset);
        seen.expect("what stands in the next index stands in the present one")
            .0
    }

    /// Takes the entry at `number` out of the index or the side table. Its
    /// data and the policy are the caller's. `None` if nothing stands there.
    pub(super) fn detach(&mut self, shared: &Shared, number: u32) -> Option<IndexEntry> {
        let space = &shared.regions.index;
        let entry = self.entry_at(shared, number);
        if entry.tag == 0 {
            return None;
        }
        let mut seen = number;
        if self.moving.is_some() {
            let mut hash = self.hash_at(shared, entry.pointer.offset());
            hash.tag = entry.tag;
            self.disown(shared, hash);
            seen = self.number_seen(shared, number, hash);
        }
        let (_, pulled) = self.table.take_out(space, &mut self.policy, seen)?;
        if let Some(filling) = self.filling_mut() {
            filling.forget(seen);
        }
        if let Some(pulled) = pulled {
            self.pulled(shared, pulled);
        }
        if seen != number
            && let Some(Moving::Filling(filling)) = self.moving.as_deref_mut()
            && let Some((_, Some(pulled))) = filling.next.take_out(space, &mut self.policy, number)
        {
            self.pulled_next(shared, pulled);
        }
        self.item_count -= 1;
        self.uncount_flushed(entry.version);
        self.entry_len -= entry.pointer.len() as u64;
        self.classes.went(entry.pointer.len());
        self.changes += 1;
        Some(entry)
    }

    /// An entry has moved out of the side table of the index that readers see.
    fn pulled(&mut self, shared: &Shared, pulled: Pulled) {
        self.crawl.moved_in();
        if let Some(filling) = self.filling_mut()
            && let Some(number) = filling.twin(pulled.from)
        {
            filling.forget(pulled.from);
            filling.note(pulled.to, number);
            return;
        }
        self.relocate(pulled.from, pulled.to);
        self.add_twin(shared, pulled.to, pulled.hash, pulled.entry);
    }

    /// The same in the next index.
    fn pulled_next(&mut self, shared: &Shared, pulled: Pulled) {
        self.relocate(pulled.from, pulled.to);
        let offset = pulled.entry.pointer.offset();
        let space = &shared.regions.index;
        let seen = self.table.find_pointer(space, pulled.hash, offset);
        if let (Some((seen, _)), Some(filling)) = (seen, self.filling_mut()) {
            filling.note(seen, pulled.to);
        }
    }

    /// The item in `from` has the number `to` now.
    pub(super) fn relocate(&mut self, from: u32, to: u32) {
        self.policy.relocate(from, to);
        let slot_count = match self.filling() {
            Some(filling) if filling.next.has(to) => filling.next.index.slot_count(),
            _ => self.table.index.slot_count(),
        };
        self.last_use.relocate(from, to, slot_count);
    }

    /// Removes an entry that the policy has already let go, for a cause that
    /// raises the floor.
    pub(super) fn discard(&mut self, shared: &Shared, number: u32, cause: Cause) {
        let Some(entry) = self.detach(shared, number) else {
            debug_assert!(false, "the policy named an empty slot");
            return;
        };
        let unless = match cause {
            Cause::Expired => Mutant::ExpiryForgotten,
            _ => Mutant::EvictionForgotten,
        };
        self.raise_floor(entry.version, unless);
        if shared.evictions.is_watched() && matches!(cause, Cause::Capacity | Cause::Associativity)
        {
            self.tell_evicted(shared, number, entry);
        }
        self.free_data(shared, entry.pointer);
        self.removed(cause, entry.pointer.len());
    }

    /// Tells those who watch of the policy's latest victim, which stood at
    /// `number`.
    #[cold]
    fn tell_evicted(&mut self, shared: &Shared, number: u32, entry: IndexEntry) {
        let head = Self::head_at(shared, entry.pointer.offset());
        let key_at = entry.pointer.offset() + head.key_at as u64;
        let Some(key) = shared
            .data()
            .slice(key_at, head.key_len.next_multiple_of(8))
        else {
            return;
        };
        self.scratch.fill_from(key);
        let evicted = Evicted {
            key: Box::default(),
            key_len: head.key_len,
            value_len: head.value_len,
            version: entry.version,
            expiry_ms: head.expiry_ms,
            hit_before: self.policy.victim_was_accessed(),
            last_use_s: self.last_use.get(number),
        };
        shared
            .evictions
            .tell(&self.scratch.bytes()[..head.key_len], evicted);
        self.trim_scratch(shared);
    }

    /// Every entry that stands, with its slot number in the index that readers
    /// see.
    pub(super) fn for_each_entry(&self, shared: &Shared, f: impl FnMut(u32, IndexEntry)) {
        self.table.for_each_entry(&shared.regions.index, f);
    }
}
