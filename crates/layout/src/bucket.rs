//! The bucket: a fixed-size set of index entries, the unit that a client reads
//! first.
//!
//! | offset | bytes | field | why |
//! |---|---|---|---|
//! | 0 | 4 | config id | of the cell configuration; 0 is never issued, so a zeroed or poisoned bucket is invalid, not empty |
//! | 4 | 1 | layout version | a reader refuses bytes it does not understand |
//! | 5 | 1 | spill | how many buckets behind this one may hold entries whose home it is |
//! | 6 | 2 | flags | 1 *overflowed*: the side table holds entries of this home, ask by message; 2 *recovering*: gives no vote |
//! | 8 | 4 | epoch | of the shard; a vote counts only with votes of the same epoch |
//! | 12 | 20 | reserved, zero | a floor per bucket may stand here |
//! | 32 | 15 x 32 | index entries | |
//!
//! 512 bytes, aligned to 512, so that no bucket straddles a page.
//!
//! # Thread safety
//!
//! One writer (the partition's lock holder), any number of readers without a lock:
//!
//! 1. An entry's version and pointer are written before its tag (release); its
//!    tag is cleared before they are reused. So a reader that sees a tag sees
//!    the words of that entry or of a later one.
//! 2. An entry never moves to another slot of a live bucket.
//! 3. The header is read before the entries and again after them; a scan whose
//!    header moved proves nothing and is repeated. So a vote's epoch is of the
//!    same moment as its entry, and "absent" never misses an entry that was on
//!    its way between bucket, neighbour and side table.
//! 4. An overwritten entry may be read torn. Its words match no version ever
//!    issued, and its data fails the checksum.

use crate::entry::{ENTRY_LEN, ENTRY_WORDS, IndexEntry, ORIGIN, POINTER, Pointer, TAG, TIME};
use crate::limits::{LAYOUT_VERSION, SPILL_MAX};
use crate::version::Version;
use crate::words::{Words, WordsMut};

/// Bytes of a bucket.
pub const BUCKET_LEN: usize = 512;
/// Words of a bucket.
pub const BUCKET_WORDS: usize = BUCKET_LEN / 8;
/// Bytes of its header.
pub const HEADER_LEN: usize = 32;
/// Entries of a bucket.
pub const SLOT_COUNT: usize = (BUCKET_LEN - HEADER_LEN) / ENTRY_LEN;

/// Words of a bucket's header.
pub const HEADER_WORDS: usize = HEADER_LEN / 8;
/// Places (header or entry) in a pair of cache lines.
const PAIR_PLACES: usize = 2 * 64 / ENTRY_LEN;
const FLAG_OVERFLOWED: u16 = 1;
const FLAG_RECOVERING: u16 = 2;

const _: () = {
    assert!(SLOT_COUNT == 15);
    // Header and entry have one size and their number is a power of two: what
    // `probe_slot` rests on.
    assert!(HEADER_LEN == ENTRY_LEN && (SLOT_COUNT + 1).is_power_of_two());
    assert!(
        HEADER_LEN.is_multiple_of(ENTRY_LEN),
        "entries stay inside cache lines"
    );
    assert!(HEADER_LEN + SLOT_COUNT * ENTRY_LEN == BUCKET_LEN);
    assert!(BUCKET_LEN.is_power_of_two());
    assert!(SPILL_MAX <= u8::MAX as usize);
};

/// First word of the other line of a slot's pair of lines, within its bucket.
#[inline(always)]
pub const fn beside_word(slot: usize) -> usize {
    slot_word(slot) ^ (PAIR_PLACES / 2 * ENTRY_WORDS)
}

/// First word of a slot, within its bucket.
#[inline(always)]
pub const fn slot_word(slot: usize) -> usize {
    HEADER_WORDS + slot * ENTRY_WORDS
}

/// The slot probed at step `probe` (below [`SLOT_COUNT`]) from `home`: first the
/// other slot of the same cache line, then those of its pair of lines (which many
/// processors fetch together), then further away. With the header as place 0
/// and slot `n` as place `n + 1`, places that differ in low bits only are near.
#[inline(always)]
pub const fn probe_slot(home: usize, probe: usize) -> usize {
    let place = home + 1;
    // Step `place` would lead to the header: it is left out.
    let step = probe + (probe >= place) as usize;
    (place ^ step) - 1
}

/// A bucket's header, decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct BucketHeader {
    /// Cell configuration that this bucket serves; 0 is invalid.
    pub config_id: u32,
    /// See [`LAYOUT_VERSION`].
    pub layout_version: u8,
    /// Buckets behind this one that may hold its entries.
    pub spill: u8,
    /// The side table holds entries whose home this is.
    pub overflowed: bool,
    /// The backend is filling this shard and gives no vote.
    pub recovering: bool,
    /// The shard's epoch.
    pub epoch: u32,
}

impl BucketHeader {
    /// A header that serves `config_id` in `epoch`.
    pub const fn new(config_id: u32, epoch: u32) -> Self {
        BucketHeader {
            config_id,
            layout_version: LAYOUT_VERSION,
            spill: 0,
            overflowed: false,
            recovering: false,
            epoch,
        }
    }

    /// The two words that carry it.
    #[inline]
    pub const fn encode(self) -> [u64; 2] {
        let mut flags = 0;
        if self.overflowed {
            flags |= FLAG_OVERFLOWED;
        }
        if self.recovering {
            flags |= FLAG_RECOVERING;
        }
        [
            self.config_id as u64
                | (self.layout_version as u64) << 32
                | (self.spill as u64) << 40
                | (flags as u64) << 48,
            self.epoch as u64,
        ]
    }

    /// Decodes whatever a reader found there.
    #[inline]
    pub const fn decode(words: [u64; 2]) -> Self {
        let flags = (words[0] >> 48) as u16;
        BucketHeader {
            config_id: words[0] as u32,
            layout_version: (words[0] >> 32) as u8,
            spill: (words[0] >> 40) as u8,
            overflowed: flags & FLAG_OVERFLOWED != 0,
            recovering: flags & FLAG_RECOVERING != 0,
            epoch: words[1] as u32,
        }
    }
}

/// What one pass over a bucket found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BucketScan {
    /// The header, as it stood before the entries were read.
    pub header: BucketHeader,
    /// The entry with the wanted tag, and its slot.
    pub found: Option<(usize, IndexEntry)>,
    /// Whether the header still stood after the entries were read. If not,
    /// nothing here may be used.
    pub stable: bool,
}

/// Looks for `tag` in a bucket, beginning at slot `home`.
#[inline(always)]
pub fn scan<W: Words + ?Sized>(bucket: &W, tag: u64, home: usize) -> BucketScan {
    scan_slots(bucket, |bucket| {
        (0..SLOT_COUNT)
            .map(|probe| probe_slot(home, probe))
            .find(|slot| holds(bucket, *slot, tag))
            .map(|slot| (slot, read_entry(bucket, slot, tag)))
    })
}

/// Looks for `tag` only in the pair of cache lines around slot `home`, and so
/// touches these two and the header's. Having found nothing says nothing.
#[inline(always)]
pub fn glance<W: Words + ?Sized>(bucket: &W, tag: u64, home: usize) -> BucketScan {
    scan_slots(bucket, |bucket| {
        // In places, of which the header is number 0 (see `probe_slot`).
        let first = (home + 1) & !(PAIR_PLACES - 1);
        let mut found = 0;
        // All four are looked at, whatever the first hold: which of them it is
        // cannot be predicted.
        for place in first..first + PAIR_PLACES {
            let holds = bucket.load_acquire(place * ENTRY_WORDS + TAG) == tag;
            found = if holds { place } else { found };
        }
        // Words of a header that look like the tag end as place 0, too.
        let slot = found.checked_sub(1)?;
        Some((slot, read_entry(bucket, slot, tag)))
    })
}

/// Keeps a look at slots between two looks at the header.
#[inline(always)]
fn scan_slots<W: Words + ?Sized>(
    bucket: &W,
    look: impl FnOnce(&W) -> Option<(usize, IndexEntry)>,
) -> BucketScan {
    let before = [bucket.load_acquire(0), bucket.load_acquire(1)];
    let found = look(bucket);
    bucket.fence_acquire();
    let after = [bucket.load(0), bucket.load(1)];
    BucketScan {
        header: BucketHeader::decode(before),
        found,
        stable: before == after,
    }
}

#[inline(always)]
fn holds<W: Words + ?Sized>(bucket: &W, slot: usize, tag: u64) -> bool {
    bucket.load_acquire(slot_word(slot) + TAG) == tag
}

#[inline(always)]
fn read_entry<W: Words + ?Sized>(bucket: &W, slot: usize, tag: u64) -> IndexEntry {
    let word = slot_word(slot);
    IndexEntry {
        tag,
        version: Version {
            time_ns: bucket.load(word + TIME),
            origin: bucket.load(word + ORIGIN),
        },
        pointer: Pointer(bucket.load(word + POINTER)),
    }
}

/// The entry in `slot`, for the owner, who alone writes; tag 0 if empty.
#[inline]
pub fn entry<W: Words + ?Sized>(bucket: &W, slot: usize) -> IndexEntry {
    let tag = bucket.load(slot_word(slot) + TAG);
    read_entry(bucket, slot, tag)
}

/// The header, for the owner.
#[inline]
pub fn header<W: Words + ?Sized>(bucket: &W) -> BucketHeader {
    BucketHeader::decode([bucket.load(0), bucket.load(1)])
}

/// Replaces the header. What it announces (a spilled entry, a side-table
/// entry) is announced before that entry can be missed anywhere else.
#[inline]
pub fn set_header<W: WordsMut + ?Sized>(bucket: &W, header: BucketHeader) {
    let [first, second] = header.encode();
    bucket.store_release(1, second);
    bucket.store_release(0, first);
    bucket.fence_release();
}

/// Puts an entry into an empty slot: the tag last.
#[inline]
pub fn insert<W: WordsMut + ?Sized>(bucket: &W, slot: usize, entry: IndexEntry) {
    let word = slot_word(slot);
    bucket.store(word + TIME, entry.version.time_ns);
    bucket.store(word + ORIGIN, entry.version.origin);
    bucket.store(word + POINTER, entry.pointer.0);
    bucket.store_release(word + TAG, entry.tag);
}

/// Gives the key in `slot` a new version and data. Readers may see a mix of
/// both; they find out.
#[inline]
pub fn overwrite<W: WordsMut + ?Sized>(
    bucket: &W,
    slot: usize,
    version: Version,
    pointer: Pointer,
) {
    let word = slot_word(slot);
    bucket.fence_release();
    bucket.store(word + TIME, version.time_ns);
    bucket.store(word + ORIGIN, version.origin);
    bucket.store_release(word + POINTER, pointer.0);
}

/// Points the entry in `slot` at a copy of its data that is already complete.
#[inline]
pub fn repoint<W: WordsMut + ?Sized>(bucket: &W, slot: usize, pointer: Pointer) {
    bucket.store_release(slot_word(slot) + POINTER, pointer.0);
}

/// Empties a slot: the tag first.
#[inline]
pub fn remove<W: WordsMut + ?Sized>(bucket: &W, slot: usize) {
    bucket.store_release(slot_word(slot) + TAG, 0);
    bucket.fence_release();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_reach_every_slot_once_and_the_near_ones_first() {
        for home in 0..SLOT_COUNT {
            let order: Vec<usize> = (0..SLOT_COUNT)
                .map(|probe| probe_slot(home, probe))
                .collect();
            assert_eq!(order[0], home);
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(
                sorted.iter().copied().eq(0..SLOT_COUNT),
                "{home}: {order:?}"
            );
            let line = |slot: usize| slot_word(slot) * 8 / 64;
            let in_line = (0..SLOT_COUNT)
                .filter(|slot| line(*slot) == line(home))
                .count();
            assert!(
                order[..in_line]
                    .iter()
                    .all(|slot| line(*slot) == line(home))
            );
        }
    }
}
