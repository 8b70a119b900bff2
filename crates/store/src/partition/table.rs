//! An index and its side table: where the entries of a partition stand. While
//! one replaces another there are two of them.
//!
//! How far a slot's entry stands from its home is kept with the eviction
//! metadata, by slot number; so what moves entries takes the policy along.

use crate::index::{Index, Vacancy, bucket_and_slot};
use crate::mutants::{self, Mutant};
use crate::policy::{Noted, Policy, SPACE};
use crate::side::{SideEntry, SideTable};
use crate::space::Space;
use trefoil_layout::bucket::{self, BucketHeader, SLOT_COUNT};
use trefoil_layout::limits::SPILL_MAX;
use trefoil_layout::words::Words;
use trefoil_layout::{IndexEntry, KeyHash, Pointer, Version};

/// See the module.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) index: Index,
    pub(super) side: SideTable,
}

/// An entry that has moved from the side table into a slot that became free.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pulled {
    pub(super) from: u32,
    pub(super) to: u32,
    pub(super) hash: KeyHash,
    pub(super) entry: IndexEntry,
}

impl Table {
    pub(super) fn new(index: Index) -> Self {
        Table {
            index,
            side: SideTable::default(),
        }
    }

    /// Whether a slot number is one of this table's.
    #[inline]
    pub(super) fn has(&self, number: u32) -> bool {
        (number ^ self.index.space) & crate::policy::SPACE == 0
    }

    /// One above its highest slot number.
    pub(super) fn end(&self) -> u32 {
        self.index.side_number(self.side.place_count() as u32)
    }

    /// Where the key with this hash stands: slot number and index entry.
    #[inline]
    pub(super) fn find(&self, space: &Space, hash: KeyHash) -> Option<(u32, IndexEntry)> {
        let found = self.index.find(space, hash);
        if found.is_some() || self.side.is_empty() {
            return found;
        }
        let place = self.side.find(self.index.home(hash), hash.tag)?;
        let side = self.side.get(place)?;
        Some((self.index.side_number(place), side.entry))
    }

    /// The number, without the bit of its space, of an entry that a client has named
    /// ([`KeyHash::name`]).
    pub(super) fn find_named(&self, space: &Space, name: u32) -> Option<u32> {
        let found = self.index.find_named(space, name);
        if found.is_some() || self.side.is_empty() {
            return found;
        }
        let (home, wanted, shift) = self.index.named_home(name)?;
        let place = self.side.find_named(home, wanted, shift)?;
        Some(self.index.side_number(place) & !SPACE)
    }

    /// Where the entry of this hash that points at `offset` stands.
    pub(super) fn find_pointer(
        &self,
        space: &Space,
        hash: KeyHash,
        offset: u64,
    ) -> Option<(u32, IndexEntry)> {
        let home = self.index.home(hash);
        let wanted = |entry: &IndexEntry| entry.tag == hash.tag && entry.pointer.offset() == offset;
        for number in home..=home + SPILL_MAX as u64 {
            let words = self.index.bucket(space, number);
            for probe in 0..SLOT_COUNT {
                let slot = bucket::probe_slot(hash.home_slot(), probe);
                if words.load(bucket::slot_word(slot)) == hash.tag {
                    let entry = bucket::entry(&words, slot);
                    if wanted(&entry) {
                        return Some((self.index.number(number, slot), entry));
                    }
                }
            }
        }
        self.side.of_home(home).find_map(|place| {
            let entry = self.side.get(place)?.entry;
            wanted(&entry).then_some((self.index.side_number(place), entry))
        })
    }

    /// The entry that a slot number names; tag 0 if nothing stands there.
    #[inline]
    pub(super) fn entry(&self, space: &Space, number: u32) -> IndexEntry {
        match self.index.side_place(number) {
            None => self.index.entry(space, number),
            Some(place) => self
                .side
                .get(place)
                .map_or_else(IndexEntry::default, |side| side.entry),
        }
    }

    /// Gives the key at `number` a new version and complete data.
    pub(super) fn overwrite(
        &mut self,
        space: &Space,
        number: u32,
        version: Version,
        pointer: Pointer,
    ) {
        match self.index.side_place(number) {
            None => {
                let (at, slot) = bucket_and_slot(number);
                bucket::overwrite(&self.index.bucket(space, at), slot, version, pointer);
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
    pub(super) fn repoint(&mut self, space: &Space, number: u32, pointer: Pointer) {
        match self.index.side_place(number) {
            None => {
                let (at, slot) = bucket_and_slot(number);
                bucket::repoint(&self.index.bucket(space, at), slot, pointer);
            }
            Some(place) => {
                if let Some(entry) = self.side.entry_mut(place) {
                    entry.pointer = pointer;
                }
            }
        }
    }

    /// Publishes an entry in an empty slot within reach of its home; its number.
    /// `None` if there is none.
    pub(super) fn insert(
        &mut self,
        space: &Space,
        policy: &mut Noted,
        hash: KeyHash,
        entry: IndexEntry,
    ) -> Option<u32> {
        let vacancy = self.index.vacancy(space, hash)?;
        self.index.insert(space, vacancy, entry);
        policy.set_displacement(vacancy.number, vacancy.displacement);
        Some(vacancy.number)
    }

    /// Puts an entry into the side table, after its home's readers are told to
    /// ask by message; its number.
    pub(super) fn insert_beside(
        &mut self,
        space: &Space,
        policy: &mut Noted,
        hash: KeyHash,
        entry: IndexEntry,
    ) -> u32 {
        let home = self.index.home(hash);
        if !mutants::is(Mutant::OverflowUnflagged) {
            self.index.set_overflowed(space, home, true);
        }
        if self.side.is_full() {
            self.side.enlarge();
            policy.resize(self.end());
        }
        let place = self.side.insert(SideEntry { hash, home, entry });
        self.index.side_number(place)
    }

    /// Takes the entry at `number` out, and lets one of the side table move into
    /// its slot. `None` if nothing stands there.
    pub(super) fn take_out(
        &mut self,
        space: &Space,
        policy: &mut Noted,
        number: u32,
    ) -> Option<(IndexEntry, Option<Pulled>)> {
        let Some(place) = self.index.side_place(number) else {
            let entry = self.index.entry(space, number);
            if entry.tag == 0 {
                return None;
            }
            self.index.remove(space, number);
            let displacement = policy.displacement(number);
            if displacement > 0 {
                policy.set_displacement(number, 0);
                let home = bucket_and_slot(number).0 - u64::from(displacement);
                self.withdraw_spill(space, policy, home, displacement);
            }
            let pulled = match self.side.is_empty() {
                true => None,
                false => self.pull_back(space, policy, number),
            };
            return Some((entry, pulled));
        };
        let side = self.side.remove(place)?;
        self.withdraw_overflow(space, side.home);
        Some((side.entry, None))
    }

    /// An entry that stood `displacement` behind `home` is gone: readers may
    /// stop earlier if it was the last one that far.
    fn withdraw_spill(&self, space: &Space, policy: &Noted, home: u64, displacement: u8) {
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
                    && policy.displacement(self.index.number(number, slot)) == far
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

    fn withdraw_overflow(&self, space: &Space, home: u64) {
        if self.side.of_home(home).next().is_none() {
            self.index.set_overflowed(space, home, false);
        }
    }

    /// A slot became free: an entry of the side table that may stand there
    /// moves in. It is in the bucket before it leaves the side table.
    fn pull_back(&mut self, space: &Space, policy: &mut Noted, number: u32) -> Option<Pulled> {
        let (at, _) = bucket_and_slot(number);
        let last = self.index.bucket_count() - 1;
        for displacement in 0..=SPILL_MAX as u64 {
            let home = at.checked_sub(displacement)?;
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
            self.index.insert(space, vacancy, side.entry);
            policy.set_displacement(number, vacancy.displacement);
            self.side.remove(place);
            self.withdraw_overflow(space, home);
            return Some(Pulled {
                from: self.index.side_number(place),
                to: number,
                hash: side.hash,
                entry: side.entry,
            });
        }
        None
    }

    /// Every entry that stands, with its slot number.
    pub(super) fn for_each_entry(&self, space: &Space, mut f: impl FnMut(u32, IndexEntry)) {
        for number in 0..self.index.buckets_in_all() {
            let words = self.index.bucket(space, number);
            for slot in 0..SLOT_COUNT {
                let entry = bucket::entry(&words, slot);
                if entry.tag != 0 {
                    f(self.index.number(number, slot), entry);
                }
            }
        }
        for (place, side) in self.side.iter() {
            f(self.index.side_number(place), side.entry);
        }
    }
}
