//! Entries into and out of buckets and side table, with the announcements that
//! keep readers' misses one-sided.

use super::{Cause, Partition};
use crate::evictions::Evicted;
use crate::index::{Vacancy, bucket_and_slot, slot_number};
use crate::mutants::{self, Mutant};
use crate::policy::Policy;
use crate::shared::Shared;
use crate::side::{SideEntry, SideTable};
use trefoil_layout::bucket::{self, BucketHeader, SLOT_COUNT};
use trefoil_layout::limits::SPILL_MAX;
use trefoil_layout::words::Words;
use trefoil_layout::{IndexEntry, KeyHash, Pointer, Version};

/// Side-table entries that are kept when the index cannot grow: this many, or
/// this share of the items, whichever is more.
const SIDE_COUNT_MIN: u64 = 64;
const SIDE_SHARE: u64 = 50;

impl Partition {
    /// Where the key with this hash stands: slot number and index entry.
    #[inline]
    pub(super) fn find(&self, shared: &Shared, hash: KeyHash) -> Option<(u32, IndexEntry)> {
        let found = self.index.find(&shared.regions.index, hash);
        if found.is_some() || self.side.is_empty() {
            return found;
        }
        let place = self.side.find(self.index.home(hash), hash.tag)?;
        let side = self.side.get(place)?;
        Some((self.index.slot_count() + place, side.entry))
    }

    /// Where the entry of this hash that points at `offset` stands.
    pub(super) fn find_pointer(
        &self,
        shared: &Shared,
        hash: KeyHash,
        offset: u64,
    ) -> Option<(u32, IndexEntry)> {
        let home = self.index.home(hash);
        let wanted = |entry: &IndexEntry| entry.tag == hash.tag && entry.pointer.offset() == offset;
        for number in home..=home + SPILL_MAX as u64 {
            let words = self.index.bucket(&shared.regions.index, number);
            for probe in 0..SLOT_COUNT {
                let slot = bucket::probe_slot(hash.home_slot(), probe);
                if words.load(bucket::slot_word(slot)) == hash.tag {
                    let entry = bucket::entry(&words, slot);
                    if wanted(&entry) {
                        return Some((slot_number(number, slot), entry));
                    }
                }
            }
        }
        self.side.of_home(home).find_map(|place| {
            let entry = self.side.get(place)?.entry;
            wanted(&entry).then_some((self.index.slot_count() + place, entry))
        })
    }

    /// The entry that a slot number names; tag 0 if nothing stands there.
    pub(super) fn entry_at(&self, shared: &Shared, number: u32) -> IndexEntry {
        match number.checked_sub(self.index.slot_count()) {
            None => self.index.entry(&shared.regions.index, number),
            Some(place) => self
                .side
                .get(place)
                .map_or_else(IndexEntry::default, |side| side.entry),
        }
    }

    /// Publishes an entry of a key that has none.
    pub(super) fn insert(&mut self, shared: &Shared, hash: KeyHash, entry: IndexEntry) {
        let space = &shared.regions.index;
        loop {
            if let Some(vacancy) = self.index.vacancy(space, hash) {
                self.index.insert(space, vacancy, entry);
                self.last_use.forget(vacancy.number);
                self.policy.insert(vacancy.number, hash.tag);
                self.policy
                    .set_displacement(vacancy.number, vacancy.displacement);
                break;
            }
            let side_max = SIDE_COUNT_MIN.max(self.item_count / SIDE_SHARE);
            if (self.side.count() as u64) < side_max {
                self.insert_beside(shared, hash, entry);
                break;
            }
            if !self.evict_near(shared, self.index.home(hash)) {
                // Nothing in the four buckets can go: they hold other homes'
                // entries that the policy does not know, which cannot be.
                self.insert_beside(shared, hash, entry);
                break;
            }
        }
        self.item_count += 1;
        self.entry_len += entry.pointer.len() as u64;
        self.classes.came(entry.pointer.len());
    }

    fn insert_beside(&mut self, shared: &Shared, hash: KeyHash, entry: IndexEntry) {
        let home = self.index.home(hash);
        if !mutants::is(Mutant::OverflowUnflagged) {
            self.index.set_overflowed(&shared.regions.index, home, true);
        }
        if self.side.is_full() {
            self.side.enlarge();
            let slots = self.index.slot_count() + self.side.place_count() as u32;
            self.policy.resize(slots);
        }
        let place = self.side.insert(SideEntry { hash, home, entry });
        let number = self.index.slot_count() + place;
        self.last_use.forget(number);
        self.policy.insert(number, hash.tag);
    }

    /// Evicts one entry of the four buckets from `home`.
    fn evict_near(&mut self, shared: &Shared, home: u64) -> bool {
        let first = slot_number(home, 0);
        let slots: [u32; SLOT_COUNT * (SPILL_MAX + 1)] =
            std::array::from_fn(|at| first + at as u32);
        let (index, space) = (&self.index, &shared.regions.index);
        let victim = self
            .policy
            .victim_among(&slots, &mut |slot| index.entry(space, slot).tag);
        let Some(slot) = victim else { return false };
        self.discard(shared, slot, Cause::Associativity);
        true
    }

    /// Gives the key at `number` a new version and complete data.
    pub(super) fn overwrite(
        &mut self,
        shared: &Shared,
        number: u32,
        version: Version,
        pointer: Pointer,
    ) {
        match number.checked_sub(self.index.slot_count()) {
            None => {
                let (at, slot) = bucket_and_slot(number);
                let words = self.index.bucket(&shared.regions.index, at);
                bucket::overwrite(&words, slot, version, pointer);
            }
            Some(place) => {
                if let Some(entry) = self.side.entry_mut(place) {
                    entry.version = version;
                    entry.pointer = pointer;
                }
            }
        }
    }

    /// Points the entry at `number` at a complete copy of its data.
    pub(super) fn repoint(&mut self, shared: &Shared, number: u32, pointer: Pointer) {
        match number.checked_sub(self.index.slot_count()) {
            None => {
                let (at, slot) = bucket_and_slot(number);
                let words = self.index.bucket(&shared.regions.index, at);
                bucket::repoint(&words, slot, pointer);
            }
            Some(place) => {
                if let Some(entry) = self.side.entry_mut(place) {
                    entry.pointer = pointer;
                }
            }
        }
    }

    /// Takes the entry at `number` out of the index or the side table. Its
    /// data and the policy are the caller's. `None` if nothing stands there.
    pub(super) fn detach(&mut self, shared: &Shared, number: u32) -> Option<IndexEntry> {
        let space = &shared.regions.index;
        let entry = match number.checked_sub(self.index.slot_count()) {
            None => {
                let entry = self.index.entry(space, number);
                if entry.tag == 0 {
                    return None;
                }
                self.index.remove(space, number);
                let displacement = self.policy.displacement(number);
                if displacement > 0 {
                    self.policy.set_displacement(number, 0);
                    let home = bucket_and_slot(number).0 - u64::from(displacement);
                    self.withdraw_spill(shared, home, displacement);
                }
                if !self.side.is_empty() {
                    self.pull_back(shared, number);
                }
                entry
            }
            Some(place) => {
                let side = self.side.remove(place)?;
                self.withdraw_overflow(shared, side.home);
                side.entry
            }
        };
        self.item_count -= 1;
        self.uncount_flushed(entry.version);
        self.entry_len -= entry.pointer.len() as u64;
        self.classes.went(entry.pointer.len());
        self.changes += 1;
        Some(entry)
    }

    /// An entry that stood `displacement` behind `home` is gone: readers may
    /// stop earlier if it was the last one that far.
    fn withdraw_spill(&mut self, shared: &Shared, home: u64, displacement: u8) {
        let space = &shared.regions.index;
        let words = self.index.bucket(space, home);
        let header = bucket::header(&words);
        if header.spill != displacement {
            return;
        }
        let stands = |far: u8| {
            let number = home + u64::from(far);
            let bucket = self.index.bucket(space, number);
            (0..SLOT_COUNT).any(|slot| {
                bucket.load(bucket::slot_word(slot)) != 0
                    && self.policy.displacement(slot_number(number, slot)) == far
            })
        };
        let mut spill = displacement;
        while spill > 0 && !stands(spill) {
            spill -= 1;
        }
        if spill < displacement {
            bucket::set_header(&words, BucketHeader { spill, ..header });
        }
    }

    fn withdraw_overflow(&mut self, shared: &Shared, home: u64) {
        if self.side.of_home(home).next().is_none() {
            self.index
                .set_overflowed(&shared.regions.index, home, false);
        }
    }

    /// A slot became free: an entry of the side table that may stand there
    /// moves in. It is in the bucket before it leaves the side table.
    fn pull_back(&mut self, shared: &Shared, number: u32) {
        let (at, _) = bucket_and_slot(number);
        let last = self.index.bucket_count() - 1;
        for displacement in 0..=SPILL_MAX as u64 {
            let Some(home) = at.checked_sub(displacement) else {
                return;
            };
            if home > last {
                continue;
            }
            let Some(place) = self.side.of_home(home).next() else {
                continue;
            };
            let Some(side) = self.side.get(place).copied() else {
                continue;
            };
            let vacancy = Vacancy {
                number,
                displacement: displacement as u8,
            };
            self.index
                .insert(&shared.regions.index, vacancy, side.entry);
            let from = self.index.slot_count() + place;
            self.policy.relocate(from, number);
            self.last_use.relocate(from, number);
            self.crawl.moved_in();
            self.policy.set_displacement(number, vacancy.displacement);
            self.side.remove(place);
            self.withdraw_overflow(shared, home);
            return;
        }
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

    /// Every entry that stands, with its slot number.
    pub(super) fn for_each_entry(&self, shared: &Shared, mut f: impl FnMut(u32, IndexEntry)) {
        for number in 0..self.index.buckets_in_all() {
            let words = self.index.bucket(&shared.regions.index, number);
            for slot in 0..SLOT_COUNT {
                let entry = bucket::entry(&words, slot);
                if entry.tag != 0 {
                    f(slot_number(number, slot), entry);
                }
            }
        }
        for (place, side) in SideTable::iter(&self.side) {
            f(self.index.slot_count() + place, side.entry);
        }
    }
}
