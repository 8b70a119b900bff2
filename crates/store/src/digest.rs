//! What a shard holds, in a few words: sums by which replicas find out where they differ
//! without telling one another of every key.
//!
//! A digest is the sum of a word for each value that stands at some places, made of the
//! key's hash and the value's version. Two replicas that hold the same there have the
//! same sum, whatever the order and however their indexes are made. Sums of 64 bits that
//! are equal by chance hide a difference until the next change at those places.

use crate::config::Now;
use crate::list::Position;
use crate::store::Store;
use std::ops::Range;
use trefoil_layout::{KeyHash, Version, epoch};

/// Entries that are looked at under one hold of a partition's lock, about: some tens of
/// microseconds.
const HOLD_COUNT: usize = 256;

/// What a replica knows of one key, at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyState {
    /// The version of its value, if it has one whose time is not over.
    pub held: Option<Version>,
    /// Nothing older is stored of it.
    pub bound: Version,
    /// The bound is the version of an erasure that is remembered.
    pub is_erased: bool,
    /// What is not above this was flushed.
    pub flushed: Version,
    /// The shard's epoch at that moment; [`trefoil_layout::epoch::NONE`] if it gives no
    /// vote.
    pub epoch: u32,
}

impl Store {
    /// Adds what stands in shard `shard` at `places` to `sums`, of which each stands for
    /// an equal part of the places. No partition is kept locked for longer than a few
    /// hundred entries take.
    ///
    /// `places` has a multiple of `sums.len()` places. The sums of a store that is
    /// [revoked](Store::is_revoked) mean nothing.
    pub fn digest(&self, now: Now, shard: usize, places: Range<u64>, sums: &mut [u64]) {
        let part_len = (places.end - places.start) / sums.len() as u64;
        debug_assert!(part_len > 0 && part_len * sums.len() as u64 == places.end - places.start);
        let mut key = Vec::new();
        let mut found: Vec<(u64, u64)> = Vec::new();
        for cell in self.cells(shard) {
            let mut from = places.start;
            while from < places.end && !self.is_revoked() {
                let next = {
                    let mut slot = cell.enter();
                    let each = &mut |exported: crate::Exported<'_>| {
                        let place = Position::place_of(exported.hash);
                        found.push((place, word(exported.hash, exported.item.version)));
                        1
                    };
                    let range = from..places.end;
                    let live = &mut slot.live;
                    live.export(&self.shared, now, range, HOLD_COUNT, &mut key, each)
                };
                cell.give_way();
                from = next.unwrap_or(places.end);
                // What lies behind is told again.
                for (place, word) in found.drain(..).filter(|(place, _)| *place < from) {
                    let sum = &mut sums[((place - places.start) / part_len) as usize];
                    *sum = sum.wrapping_add(word);
                }
            }
        }
    }

    /// What is known of the key with this hash. `None` for a key of another backend. One
    /// that was revoked gives no vote.
    pub fn key_state(&self, now: Now, hash: KeyHash) -> Option<KeyState> {
        let shard = self.shared.config.shards.local(hash)?;
        let number = hash.partition(shard, self.sub_count());
        let slot = self.partitions[number].enter();
        let mut state = slot.live.key_state(&self.shared, now, hash);
        // It is emptied under this lock, after it was marked.
        if self.is_revoked() {
            state.epoch = epoch::NONE;
        }
        Some(state)
    }

    /// Items of a shard.
    pub fn item_count(&self, shard: usize) -> u64 {
        let count = |cell: &crate::store::Cell| cell.enter().live.item_count();
        self.cells(shard).iter().map(count).sum()
    }

    /// Whether a new item makes another one leave: as good as all memory that there is
    /// for items is in use, or, with a capacity in objects, some partition has as many
    /// as it may.
    pub fn is_full(&self) -> bool {
        let budget = &self.shared.budget;
        if budget.available() < budget.limit() / FULL_SHARE {
            return true;
        }
        let is_full = |cell: &crate::store::Cell| cell.enter().live.has_all_objects();
        self.shared.config.objects_max.is_some() && self.partitions.iter().any(is_full)
    }
}

/// A store with less than this share of its limit left is full: what is left is kept
/// populated ahead of need, or is too little for a page of every partition.
const FULL_SHARE: u64 = 32;

/// What one value adds to a digest.
fn word(hash: KeyHash, version: Version) -> u64 {
    let words = [hash.tag, version.time_ns, version.origin];
    words.into_iter().fold(mix(hash.place), |word, next| {
        mix(word.rotate_left(23) ^ next.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    })
}

/// Every bit of the result depends on every bit.
const fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 33).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word = (word ^ word >> 33).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ word >> 33
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_depends_on_every_part() {
        let hash = KeyHash { place: 1, tag: 2 };
        let version = Version::new(3, 4, 5);
        let all = [
            word(hash, version),
            word(KeyHash { place: 2, tag: 1 }, version),
            word(KeyHash { place: 9, ..hash }, version),
            word(KeyHash { tag: 9, ..hash }, version),
            word(hash, Version::new(9, 4, 5)),
            word(hash, Version::new(3, 9, 5)),
            word(hash, Version::new(3, 4, 9)),
        ];
        for (at, one) in all.iter().enumerate() {
            assert!(!all[at + 1..].contains(one));
        }
    }
}
