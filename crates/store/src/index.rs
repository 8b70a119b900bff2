//! One index window: the buckets of one partition, as `layout::bucket`
//! describes them, in a range of the index region.
//!
//! A slot number is `bucket * SLOT_COUNT + slot`; it names an item for touches
//! and for eviction metadata. Numbers from [`Index::slot_count`] up name places
//! of the side table. Inside the store the bit [`SPACE`] tells the numbers of two
//! indexes apart, of which one replaces the other.

use crate::policy::SPACE;
use crate::space::Space;
use std::cmp::Reverse;
use std::ops::Range;
use trefoil_layout::bucket::{self, BUCKET_LEN, BucketHeader, SLOT_COUNT};
use trefoil_layout::control::IndexWindow;
use trefoil_layout::hash::name_tag_bits;
use trefoil_layout::limits::SPILL_MAX;
use trefoil_layout::words::Words;
use trefoil_layout::{IndexEntry, KeyHash};
use trefoil_region::SharedWords;

/// Empty slots of a bucket that are left to others, as long as one within reach has
/// more. Simulated at a load of 0.80, with none, one, two and three kept: 0.16, 0.07,
/// 0.03 and 0.02 % of the entries end in the side table, 4, 6, 9 and 13 % beside
/// their home.
const SLOTS_KEPT: usize = 2;

/// Bucket and slot of a slot number.
#[inline(always)]
pub(crate) fn bucket_and_slot(number: u32) -> (u64, usize) {
    let number = (number & !SPACE) as usize;
    ((number / SLOT_COUNT) as u64, number % SLOT_COUNT)
}

/// One index window. Its memory is charged and resident.
#[derive(Debug)]
pub(crate) struct Index {
    pub(crate) window: IndexWindow,
    /// What every header says, or is about to say.
    pub(crate) stamp: Stamp,
    /// 0 or [`SPACE`]: a bit of all its slot numbers.
    pub(crate) space: u32,
}

/// What all bucket headers of a partition have in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) config_id: u32,
    pub(crate) epoch: u32,
    pub(crate) recovering: bool,
}

/// Where a new entry can go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Vacancy {
    pub(crate) number: u32,
    /// Buckets between it and the home bucket.
    pub(crate) displacement: u8,
}

impl Index {
    /// Writes empty, valid buckets over zeroed memory.
    pub(crate) fn initialise(space: &Space, buckets: Range<u64>, index: &Index) {
        let stamp = index.stamp;
        let header = BucketHeader {
            recovering: stamp.recovering,
            ..BucketHeader::new(stamp.config_id, stamp.epoch)
        };
        for number in buckets {
            bucket::set_header(&index.bucket(space, number), header);
        }
    }

    /// The slot number of a slot in a bucket.
    #[inline(always)]
    pub(crate) fn number(&self, bucket: u64, slot: usize) -> u32 {
        self.space | ((bucket * SLOT_COUNT as u64) as u32 + slot as u32)
    }

    /// The slot number of a place of the side table.
    #[inline(always)]
    pub(crate) fn side_number(&self, place: u32) -> u32 {
        self.space | (self.slot_count() + place)
    }

    /// The place of the side table that a slot number names; `None` for a slot of
    /// a bucket.
    #[inline(always)]
    pub(crate) fn side_place(&self, number: u32) -> Option<u32> {
        (number & !SPACE).checked_sub(self.slot_count())
    }

    /// Home buckets.
    #[inline(always)]
    pub(crate) fn bucket_count(&self) -> u64 {
        self.window.bucket_count
    }

    /// Home buckets and the spill buckets behind the last one.
    pub(crate) fn buckets_in_all(&self) -> u64 {
        self.window.bucket_count + SPILL_MAX as u64
    }

    /// Slots of all buckets.
    #[inline(always)]
    pub(crate) fn slot_count(&self) -> u32 {
        self.buckets_in_all() as u32 * SLOT_COUNT as u32
    }

    /// Slots that count as capacity.
    pub(crate) fn home_slot_count(&self) -> u64 {
        self.bucket_count() * SLOT_COUNT as u64
    }

    #[inline(always)]
    pub(crate) fn home(&self, hash: KeyHash) -> u64 {
        hash.bucket(self.bucket_count())
    }

    #[inline(always)]
    pub(crate) fn bucket<'a>(&self, space: &'a Space, number: u64) -> SharedWords<'a> {
        let offset = self.window.offset + number * BUCKET_LEN as u64;
        space
            .words()
            .slice(offset, BUCKET_LEN)
            .expect("a bucket inside the index region")
    }

    /// The entry with `hash`'s tag in the buckets that the home's header names.
    #[inline]
    pub(crate) fn find(&self, space: &Space, hash: KeyHash) -> Option<(u32, IndexEntry)> {
        let home = self.home(hash);
        let scan = bucket::scan(&self.bucket(space, home), hash.tag, hash.home_slot());
        if let Some((slot, entry)) = scan.found {
            return Some((self.number(home, slot), entry));
        }
        for number in home + 1..=home + u64::from(scan.header.spill) {
            let scan = bucket::scan(&self.bucket(space, number), hash.tag, hash.home_slot());
            if let Some((slot, entry)) = scan.found {
                return Some((self.number(number, slot), entry));
            }
        }
        None
    }

    /// Home bucket and upper bits of the tag of a name, and how far a tag is shifted
    /// to be compared with them; `None` if the name is of another index.
    pub(crate) fn named_home(&self, name: u32) -> Option<(u64, u64, u32)> {
        let (home, wanted, _) = self.named(name)?;
        let shift = u64::BITS - name_tag_bits(self.bucket_count());
        Some((home, wanted, shift))
    }

    /// Bucket, tag bits and home slot of a name; `None` if it is of another index.
    fn named(&self, name: u32) -> Option<(u64, u64, usize)> {
        let bits = name_tag_bits(self.bucket_count());
        let home = u64::from(name) >> bits;
        let tag = u64::from(name) << (u64::BITS - bits);
        let home_slot = KeyHash { place: 0, tag }.home_slot();
        (home < self.bucket_count()).then_some((home, tag >> (u64::BITS - bits), home_slot))
    }

    /// Fetches the lines where a named entry most likely stands.
    pub(crate) fn prefetch_named(&self, space: &Space, name: u32) {
        if let Some((home, _, home_slot)) = self.named(name) {
            let bucket = self.bucket(space, home);
            bucket.prefetch_word(0);
            bucket.prefetch_word(bucket::slot_word(home_slot));
        }
    }

    /// The slot, without the bit of its space, of an entry that a client has named
    /// ([`KeyHash::name`]).
    pub(crate) fn find_named(&self, space: &Space, name: u32) -> Option<u32> {
        let (home, wanted, home_slot) = self.named(name)?;
        let shift = u64::BITS - name_tag_bits(self.bucket_count());
        let spill = bucket::header(&self.bucket(space, home)).spill;
        for number in home..=home + u64::from(spill) {
            let words = self.bucket(space, number);
            let is_it = |slot: &usize| {
                let tag = words.load(bucket::slot_word(*slot));
                tag != 0 && tag >> shift == wanted
            };
            let mut probes = (0..SLOT_COUNT).map(|probe| bucket::probe_slot(home_slot, probe));
            if let Some(slot) = probes.find(is_it) {
                return Some(self.number(number, slot) & !SPACE);
            }
        }
        None
    }

    /// An empty slot for `hash`: in the nearest bucket that is not all but full, or in
    /// the emptiest within reach. The nearest with any room would leave five times as
    /// many entries to the side table, and for these every reader has to ask by
    /// message.
    #[inline]
    pub(crate) fn vacancy(&self, space: &Space, hash: KeyHash) -> Option<Vacancy> {
        let home = self.home(hash);
        let empty_at = |displacement: u64| {
            let words = self.bucket(space, home + displacement);
            let is_empty = |slot: &usize| words.load(bucket::slot_word(*slot)) == 0;
            (0..SLOT_COUNT).filter(is_empty).count()
        };
        let reach = 0..=SPILL_MAX as u64;
        let displacement = reach
            .clone()
            .find(|far| empty_at(*far) > SLOTS_KEPT)
            .or_else(|| reach.max_by_key(|far| (empty_at(*far), Reverse(*far))))?;
        let words = self.bucket(space, home + displacement);
        let slot = (0..SLOT_COUNT)
            .map(|probe| bucket::probe_slot(hash.home_slot(), probe))
            .find(|slot| words.load(bucket::slot_word(*slot)) == 0)?;
        Some(Vacancy {
            number: self.number(home + displacement, slot),
            displacement: displacement as u8,
        })
    }

    /// Publishes an entry in an empty slot, after the home's header says that
    /// readers must look as far as there.
    #[inline]
    pub(crate) fn insert(&self, space: &Space, vacancy: Vacancy, entry: IndexEntry) {
        let (number, slot) = bucket_and_slot(vacancy.number);
        if vacancy.displacement > 0 {
            let home = self.bucket(space, number - u64::from(vacancy.displacement));
            let header = bucket::header(&home);
            if header.spill < vacancy.displacement {
                bucket::set_header(
                    &home,
                    BucketHeader {
                        spill: vacancy.displacement,
                        ..header
                    },
                );
            }
        }
        bucket::insert(&self.bucket(space, number), slot, entry);
    }

    /// The entry in a slot; tag 0 if it is empty.
    #[inline]
    pub(crate) fn entry(&self, space: &Space, number: u32) -> IndexEntry {
        let (number, slot) = bucket_and_slot(number);
        bucket::entry(&self.bucket(space, number), slot)
    }

    /// Empties a slot.
    #[inline]
    pub(crate) fn remove(&self, space: &Space, number: u32) {
        let (number, slot) = bucket_and_slot(number);
        bucket::remove(&self.bucket(space, number), slot);
    }

    pub(crate) fn set_overflowed(&self, space: &Space, home: u64, overflowed: bool) {
        let words = self.bucket(space, home);
        let header = bucket::header(&words);
        if header.overflowed != overflowed {
            bucket::set_header(
                &words,
                BucketHeader {
                    overflowed,
                    ..header
                },
            );
        }
    }

    /// Rewrites the headers of some buckets as the stamp says.
    pub(crate) fn restamp(&self, space: &Space, buckets: Range<u64>) {
        let stamp = self.stamp;
        for number in buckets {
            let words = self.bucket(space, number);
            let header = BucketHeader {
                config_id: stamp.config_id,
                epoch: stamp.epoch,
                recovering: stamp.recovering,
                ..bucket::header(&words)
            };
            bucket::set_header(&words, header);
        }
    }

    /// Makes buckets invalid: readers look for the present window.
    pub(crate) fn poison(&self, space: &Space, buckets: Range<u64>) {
        for number in buckets {
            bucket::set_header(&self.bucket(space, number), BucketHeader::default());
        }
    }
}
