//! A walk over the entries of one partition, in the order of their places; its
//! part of a listing.

use super::Partition;
use crate::config::Now;
use crate::list::{ListedItem, Position};
use crate::shared::Shared;
use std::ops::Range;
use trefoil_layout::bucket::{self, SLOT_COUNT};
use trefoil_layout::{IndexEntry, KeyHash};

/// Bits of a key hash's place that pick a bucket.
const BUCKET_BITS: u32 = 48;
/// Bits of them that a position does not keep.
const SPARE_BITS: u32 = BUCKET_BITS - Position::PLACE_BITS;
/// Homes that one page looks at most: an almost empty index is large, too.
const HOME_COUNT_MAX: u64 = 4096;
/// A key that is longer counts as several items.
const KEY_LEN_USUAL: usize = 256;

/// Bytes of an entry that a walk looks at: what stands before the key, and most keys.
const LOOKED_AT_LEN: usize = 128;

/// An entry that a walk has come to.
pub(super) struct Walked<'w> {
    pub(super) number: u32,
    pub(super) entry: IndexEntry,
    pub(super) key: &'w [u8],
    pub(super) hash: KeyHash,
}

impl Partition {
    /// Lists the items at `places`, home by home, until `left` is used up or
    /// the page has looked at enough; where to go on, `None` at the end.
    pub(crate) fn list(
        &mut self,
        shared: &Shared,
        now: Now,
        places: Range<u64>,
        left: &mut usize,
        key: &mut Vec<u8>,
        each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Option<u64> {
        self.walk(shared, places, left, key, &mut |partition, walked| {
            let item = partition.stored_item(
                shared,
                walked.number,
                walked.entry.version,
                walked.entry.pointer,
            );
            let visible = !partition.is_flushed(item.version) && !item.is_expired(now);
            if visible {
                let key = walked.key;
                each(&ListedItem { key, item });
            }
            // A long key makes a page shorter, so that its bytes are bounded.
            usize::from(visible) * (1 + walked.key.len() / KEY_LEN_USUAL)
        })
    }

    /// Walks over the entries at `places`, home by home, until `left` is used up
    /// or the walk has looked at enough; where to go on, `None` at the end.
    /// `each` says what an entry takes of it.
    pub(super) fn walk(
        &mut self,
        shared: &Shared,
        places: Range<u64>,
        left: &mut usize,
        key: &mut Vec<u8>,
        each: &mut dyn FnMut(&Self, Walked<'_>) -> usize,
    ) -> Option<u64> {
        self.write_what_is_unwritten(shared);
        let homes = self.table.index.bucket_count();
        let first = KeyHash {
            place: places.start << (64 - Position::PLACE_BITS),
            tag: 0,
        };
        let first = self.table.index.home(first);
        let mut home = first;
        let (mut found, mut ahead) = (Vec::new(), Vec::new());
        self.entries_of(shared, home, &mut ahead);
        loop {
            std::mem::swap(&mut found, &mut ahead);
            if home + 1 < homes {
                self.entries_of(shared, home + 1, &mut ahead);
                fetch(shared, &ahead);
            }
            for (number, entry) in found.drain(..) {
                let hash = self.read_key(shared, entry, key);
                if self.table.index.home(hash) != home
                    || !places.contains(&Position::place_of(hash))
                {
                    continue;
                }
                let walked = Walked {
                    number,
                    entry,
                    key,
                    hash,
                };
                *left = left.saturating_sub(each(self, walked));
            }
            home += 1;
            if home >= homes {
                return None;
            }
            // The least place whose home is `home`.
            let place = ((u128::from(home) << BUCKET_BITS).div_ceil(u128::from(homes))) as u64;
            let next = place >> SPARE_BITS;
            if next >= places.end {
                return None;
            }
            // A position is coarse: it has to lead on.
            if next > places.start && (*left == 0 || home - first >= HOME_COUNT_MAX) {
                *left = 0;
                return Some(next);
            }
        }
    }

    /// Everything that may have its home in `home`.
    fn entries_of(&self, shared: &Shared, home: u64, found: &mut Vec<(u32, IndexEntry)>) {
        let space = &shared.regions.index;
        let spill = bucket::header(&self.table.index.bucket(space, home)).spill;
        for number in home..=home + u64::from(spill) {
            let words = self.table.index.bucket(space, number);
            for slot in 0..SLOT_COUNT {
                let entry = bucket::entry(&words, slot);
                if entry.tag != 0 {
                    let number = self.table.index.number(number, slot);
                    found.push((self.newest_number(number), entry));
                }
            }
        }
        for place in self.table.side.of_home(home) {
            if let Some(side) = self.table.side.get(place) {
                let number = self.table.index.side_number(place);
                found.push((self.newest_number(number), side.entry));
            }
        }
    }

    /// Copies an entry's key into `key`; its hash.
    fn read_key(&self, shared: &Shared, entry: IndexEntry, key: &mut Vec<u8>) -> KeyHash {
        let head = Self::head_at(shared, entry.pointer.offset());
        key.clear();
        shared
            .data()
            .slice(entry.pointer.offset(), entry.pointer.len())
            .expect("pointers lie inside the data region")
            .append_to(head.key_at, head.key_len, key);
        shared.config.hasher.hash(key)
    }
}

/// Entries lie anywhere in the data region: without this a walk would wait for the memory
/// once for each, under the partition's lock.
fn fetch(shared: &Shared, entries: &[(u32, IndexEntry)]) {
    let data = shared.data();
    for (_, entry) in entries {
        if let Some(words) = data.slice(entry.pointer.offset(), entry.pointer.len()) {
            words.prefetch(LOOKED_AT_LEN);
        }
    }
}
