//! Judging a bucket: the one code path for every fabric that reads an index
//! one-sidedly, live over shared memory or from a network read's copy.

use crate::mutants::{self, Mutant};
use trefoil_layout::bucket::{self, BucketHeader, BucketScan, SLOT_COUNT};
use trefoil_layout::limits::{LAYOUT_VERSION, SPILL_MAX};
use trefoil_layout::words::Words;
use trefoil_layout::{IndexEntry, KeyHash};

/// What one replica's index says about a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IndexVote {
    /// The key's tag stands there.
    Present {
        /// `bucket * 15 + slot` within the index window; names the item in touches.
        slot_number: u32,
        /// Version and pointer. Possibly torn: then the version equals none
        /// ever issued, or the data fails its checksum.
        entry: IndexEntry,
        /// The shard's epoch at the moment of `entry`.
        epoch: u32,
    },
    /// The key is neither in its home bucket nor in a neighbour.
    Absent {
        /// The shard's epoch at that moment.
        epoch: u32,
    },
    /// Not found one-sidedly, but the replica keeps more entries of this home
    /// in a private side table: ask by message.
    AskByMessage {
        /// The shard's epoch at that moment.
        epoch: u32,
    },
    /// A header moved during the scan: read again.
    Unstable,
    /// The bucket serves another configuration or layout, or (0) a revoked or
    /// outgrown index: refresh the windows.
    ConfigChanged {
        /// The config id that was found.
        found: u32,
    },
    /// The replica is filling this shard and gives no vote.
    Recovering,
}

/// Scans the key's home bucket and, if the home's header says so, its
/// neighbours. `bucket_at` maps a bucket number below
/// `bucket_count + SPILL_MAX` to its 64 words; `bucket_count` is the window's,
/// already checked to lie inside the mapping.
///
/// Every header that was relied upon stood still during the scan, is of
/// `expected_config` and the known layout, and all are of one epoch. The home's
/// header is checked once more after the neighbours, so that an entry on its
/// way between bucket, neighbour and side table is never judged absent.
#[inline]
pub fn index_vote<W, F>(
    hash: KeyHash,
    expected_config: u32,
    bucket_count: u64,
    bucket_at: F,
) -> IndexVote
where
    W: Words,
    F: Fn(u64) -> W,
{
    if bucket_count == 0 {
        return IndexVote::ConfigChanged { found: 0 };
    }
    let index = hash.bucket(bucket_count);
    let home = bucket_at(index);
    let scan = bucket::scan(&home, hash.tag, hash.home_slot());
    if let Some(refusal) = refusal(&scan, expected_config) {
        return refusal;
    }
    let header = scan.header;
    if let Some((slot, entry)) = scan.found {
        return present(index, slot, entry, header.epoch);
    }
    if header.spill == 0 {
        return not_found(header);
    }
    scan_neighbours(hash, expected_config, index, &home, header, bucket_at)
}

/// The vote that most keys (nine in ten at a load of 0.65) get from the header and
/// the pair of cache lines around their home slot: where this says that the key
/// is present, [`index_vote`] would say the same. `None` means that more of the
/// index has to be looked at. `home` is the key's home bucket, number `index` of
/// the window.
#[inline(always)]
pub fn glance<W: Words>(
    hash: KeyHash,
    expected_config: u32,
    index: u64,
    home: &W,
) -> Option<IndexVote> {
    let scan = bucket::glance(home, hash.tag, hash.home_slot());
    let (slot, entry) = scan.found?;
    match refusal(&scan, expected_config) {
        None => Some(present(index, slot, entry, scan.header.epoch)),
        Some(_) => None,
    }
}

/// The rare second part: the home has spilled and does not hold the key itself.
#[cold]
fn scan_neighbours<W, F>(
    hash: KeyHash,
    expected_config: u32,
    index: u64,
    home: &W,
    header: BucketHeader,
    bucket_at: F,
) -> IndexVote
where
    W: Words,
    F: Fn(u64) -> W,
{
    // A header that promises more neighbours than exist was never written whole.
    if usize::from(header.spill) > SPILL_MAX {
        return IndexVote::Unstable;
    }
    for step in 1..=u64::from(header.spill) {
        let neighbour = bucket_at(index + step);
        let scan = bucket::scan(&neighbour, hash.tag, hash.home_slot());
        if let Some(refusal) = refusal(&scan, expected_config) {
            return refusal;
        }
        if scan.header.epoch != header.epoch {
            return IndexVote::Unstable;
        }
        if let Some((slot, entry)) = scan.found {
            return present(index + step, slot, entry, header.epoch);
        }
    }
    home.fence_acquire();
    if bucket::header(home) != header && !mutants::is_on(Mutant::StabilityIgnored) {
        return IndexVote::Unstable;
    }
    not_found(header)
}

/// Why this bucket's scan proves nothing, if so.
#[inline(always)]
fn refusal(scan: &BucketScan, expected_config: u32) -> Option<IndexVote> {
    let header = &scan.header;
    if !scan.stable && !mutants::is_on(Mutant::StabilityIgnored) {
        return Some(IndexVote::Unstable);
    }
    if (header.config_id != expected_config || header.layout_version != LAYOUT_VERSION)
        && !mutants::is_on(Mutant::ConfigIgnored)
    {
        return Some(IndexVote::ConfigChanged {
            found: header.config_id,
        });
    }
    if header.recovering {
        return Some(IndexVote::Recovering);
    }
    None
}

#[inline(always)]
fn present(bucket: u64, slot: usize, entry: IndexEntry, epoch: u32) -> IndexVote {
    IndexVote::Present {
        slot_number: (bucket * SLOT_COUNT as u64) as u32 + slot as u32,
        entry,
        epoch,
    }
}

#[inline(always)]
fn not_found(header: BucketHeader) -> IndexVote {
    let epoch = header.epoch;
    if header.overflowed {
        IndexVote::AskByMessage { epoch }
    } else {
        IndexVote::Absent { epoch }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use trefoil_layout::bucket::BUCKET_WORDS;
    use trefoil_layout::{Pointer, Version};

    const CONFIG: u32 = 7;
    const BUCKETS: u64 = 5;

    /// An index of private words; `edit` runs once, just before load number `at`.
    struct Index {
        words: Vec<Cell<u64>>,
        loads: Cell<usize>,
        edit: Cell<Option<Edit>>,
    }

    type Edit = (usize, fn(&Index));

    struct Bucket<'a>(&'a Index, usize);

    impl Words for Bucket<'_> {
        fn load(&self, index: usize) -> u64 {
            let Bucket(index_region, bucket) = self;
            index_region.loads.set(index_region.loads.get() + 1);
            if let Some((at, edit)) = index_region.edit.get()
                && index_region.loads.get() == at
            {
                index_region.edit.set(None);
                edit(index_region);
            }
            index_region.words[bucket * BUCKET_WORDS + index].get()
        }
        fn load_acquire(&self, index: usize) -> u64 {
            self.load(index)
        }
        fn fence_acquire(&self) {}
    }

    impl Index {
        fn new(header: BucketHeader) -> Self {
            let count = (BUCKETS as usize + SPILL_MAX) * BUCKET_WORDS;
            let index = Index {
                words: vec![Cell::new(0); count],
                loads: Cell::new(0),
                edit: Cell::new(None),
            };
            for bucket in 0..BUCKETS as usize + SPILL_MAX {
                index.set_header(bucket, header);
            }
            index
        }
        fn set_header(&self, bucket: usize, header: BucketHeader) {
            for (i, word) in header.encode().into_iter().enumerate() {
                self.words[bucket * BUCKET_WORDS + i].set(word);
            }
        }
        fn put(&self, bucket: usize, slot: usize, tag: u64, time_ns: u64) {
            let at = bucket * BUCKET_WORDS + bucket::slot_word(slot);
            let pointer = Pointer::new(64, 32).unwrap();
            for (i, word) in [tag, time_ns, 1, pointer.0].into_iter().enumerate() {
                self.words[at + i].set(word);
            }
        }
        fn vote(&self, hash: KeyHash) -> IndexVote {
            index_vote(hash, CONFIG, BUCKETS, |i| Bucket(self, i as usize))
        }
    }

    /// Home bucket 2, home slot 14.
    fn hash() -> KeyHash {
        let hash = KeyHash {
            place: u64::MAX / 2,
            tag: u64::MAX,
        };
        assert_eq!((hash.bucket(BUCKETS), hash.home_slot()), (2, 14));
        hash
    }

    fn header() -> BucketHeader {
        BucketHeader::new(CONFIG, 3)
    }

    #[test]
    fn finds_the_entry_at_home_and_names_its_slot() {
        let index = Index::new(header());
        index.put(2, 1, hash().tag, 99);
        assert_eq!(
            index.vote(hash()),
            IndexVote::Present {
                slot_number: 2 * 15 + 1,
                entry: IndexEntry {
                    tag: hash().tag,
                    version: Version {
                        time_ns: 99,
                        origin: 1
                    },
                    pointer: Pointer::new(64, 32).unwrap(),
                },
                epoch: 3
            }
        );
    }

    #[test]
    fn a_glance_finds_what_stands_near_the_home_slot_and_believes_no_other_header() {
        let glance = |index: &Index| super::glance(hash(), CONFIG, 2, &Bucket(index, 2));
        for (slot, near) in [(14, true), (13, true), (11, true), (10, false), (0, false)] {
            let index = Index::new(header());
            assert_eq!(glance(&index), None);
            index.put(2, slot, hash().tag, 99);
            assert_eq!(glance(&index), near.then(|| index.vote(hash())), "{slot}");
            for header in [
                BucketHeader::default(),
                BucketHeader::new(8, 3),
                BucketHeader {
                    recovering: true,
                    ..header()
                },
            ] {
                index.set_header(2, header);
                assert_eq!(glance(&index), None);
            }
        }
        // A header that looks like the tag, in the line of home slot 0.
        let index = Index::new(header());
        let tag = header().encode()[0];
        let at_header = KeyHash { tag, ..hash() };
        assert_eq!(at_header.home_slot(), 0);
        let bucket = Bucket(&index, 2);
        assert_eq!(super::glance(at_header, CONFIG, 2, &bucket), None);
        // An epoch raised between the first look at the header and the last.
        let index = Index::new(header());
        index.put(2, 14, hash().tag, 99);
        index.edit.set(Some((4, |index| {
            index.set_header(2, BucketHeader::new(CONFIG, 4));
        })));
        assert_eq!(glance(&index), None);
    }

    #[test]
    fn looks_as_far_as_the_home_says_and_no_further() {
        let index = Index::new(header());
        index.put(4, 0, hash().tag, 99);
        for (spill, found) in [(0, false), (1, false), (2, true), (3, true)] {
            index.set_header(2, BucketHeader { spill, ..header() });
            let vote = index.vote(hash());
            let expected = if found { "Present" } else { "Absent" };
            assert!(
                format!("{vote:?}").starts_with(expected),
                "{spill} {vote:?}"
            );
        }
    }

    #[test]
    fn an_overflowed_home_asks_only_if_nothing_was_found() {
        let index = Index::new(header());
        let overflowed = BucketHeader {
            spill: 1,
            overflowed: true,
            ..header()
        };
        index.set_header(2, overflowed);
        assert_eq!(index.vote(hash()), IndexVote::AskByMessage { epoch: 3 });
        index.put(3, 0, hash().tag, 9);
        assert!(matches!(index.vote(hash()), IndexVote::Present { .. }));
    }

    #[test]
    fn what_gives_no_vote() {
        let index = Index::new(header());
        let cases = [
            (
                BucketHeader::default(),
                IndexVote::ConfigChanged { found: 0 },
            ),
            (
                BucketHeader::new(8, 3),
                IndexVote::ConfigChanged { found: 8 },
            ),
            (
                BucketHeader {
                    layout_version: LAYOUT_VERSION + 1,
                    ..header()
                },
                IndexVote::ConfigChanged { found: CONFIG },
            ),
            (
                BucketHeader {
                    recovering: true,
                    ..header()
                },
                IndexVote::Recovering,
            ),
            (
                BucketHeader {
                    spill: SPILL_MAX as u8 + 1,
                    ..header()
                },
                IndexVote::Unstable,
            ),
        ];
        for (header, expected) in cases {
            index.set_header(2, header);
            assert_eq!(index.vote(hash()), expected);
        }
    }

    #[test]
    fn neighbours_must_be_of_the_same_epoch_and_configuration() {
        let index = Index::new(header());
        index.put(3, 0, hash().tag, 9);
        index.set_header(
            2,
            BucketHeader {
                spill: 1,
                ..header()
            },
        );
        index.set_header(3, BucketHeader::new(CONFIG, 4));
        assert_eq!(index.vote(hash()), IndexVote::Unstable);
        index.set_header(3, BucketHeader::default());
        assert_eq!(index.vote(hash()), IndexVote::ConfigChanged { found: 0 });
    }

    #[test]
    fn an_entry_that_moves_to_the_side_table_meanwhile_is_not_absent() {
        let index = Index::new(header());
        index.set_header(
            2,
            BucketHeader {
                spill: 1,
                ..header()
            },
        );
        // After the home was scanned: 2 + 15 + 2 loads.
        index.edit.set(Some((20, |index| {
            index.set_header(
                2,
                BucketHeader {
                    spill: 1,
                    overflowed: true,
                    ..header()
                },
            );
        })));
        assert_eq!(index.vote(hash()), IndexVote::Unstable);
    }

    #[test]
    fn an_epoch_raised_during_the_scan_is_unstable() {
        for at in 3..=18 {
            let index = Index::new(header());
            index.edit.set(Some((at, |index| {
                index.set_header(2, BucketHeader::new(CONFIG, 4));
            })));
            assert_eq!(index.vote(hash()), IndexVote::Unstable, "load {at}");
        }
    }

    #[test]
    fn an_empty_window_is_no_window() {
        let vote = index_vote(hash(), CONFIG, 0, |_| -> &[u64] { unreachable!() });
        assert_eq!(vote, IndexVote::ConfigChanged { found: 0 });
    }
}
