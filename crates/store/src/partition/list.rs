//! One partition's part of a listing.

use super::Partition;
use crate::config::Now;
use crate::index::slot_number;
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
/// A key that is longer counts as several items, so that a page's bytes are
/// bounded as well.
const KEY_LEN_USUAL: usize = 256;

/// A key hash's place, as positions count it.
fn place_of(hash: KeyHash) -> u64 {
    hash.place >> (64 - Position::PLACE_BITS)
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
        self.write_what_is_unwritten(shared);
        let homes = self.index.bucket_count();
        let first = KeyHash {
            place: places.start << (64 - Position::PLACE_BITS),
            tag: 0,
        };
        let first = self.index.home(first);
        let mut home = first;
        let mut found = Vec::new();
        loop {
            self.entries_of(shared, home, &mut found);
            for (number, entry) in found.drain(..) {
                self.list_one(
                    shared,
                    now,
                    (number, entry),
                    (home, &places),
                    left,
                    key,
                    each,
                );
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
        let spill = bucket::header(&self.index.bucket(space, home)).spill;
        for number in home..=home + u64::from(spill) {
            let words = self.index.bucket(space, number);
            for slot in 0..SLOT_COUNT {
                let entry = bucket::entry(&words, slot);
                if entry.tag != 0 {
                    found.push((slot_number(number, slot), entry));
                }
            }
        }
        for place in self.side.of_home(home) {
            if let Some(side) = self.side.get(place) {
                found.push((self.index.slot_count() + place, side.entry));
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the page's state, taken apart")]
    fn list_one(
        &mut self,
        shared: &Shared,
        now: Now,
        (number, entry): (u32, IndexEntry),
        (home, places): (u64, &Range<u64>),
        left: &mut usize,
        key: &mut Vec<u8>,
        each: &mut dyn FnMut(&ListedItem<'_>),
    ) {
        let head = Self::head_at(shared, entry.pointer.offset());
        if self.is_flushed(entry.version) || head.is_expired(now.unix_ms()) {
            return;
        }
        key.clear();
        shared
            .data()
            .slice(entry.pointer.offset(), entry.pointer.len())
            .expect("pointers lie inside the data region")
            .append_to(head.key_at, head.key_len, key);
        let hash = shared.config.hasher.hash(key);
        if self.index.home(hash) != home || !places.contains(&place_of(hash)) {
            return;
        }
        let item = self.stored_item(shared, number, entry.version, entry.pointer);
        each(&ListedItem { key, item });
        *left = left.saturating_sub(1 + key.len() / KEY_LEN_USUAL);
    }
}
