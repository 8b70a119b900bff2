//! A backend's control region: what a client on the same host must know to
//! read the other regions, and until when it may believe them.
//!
//! | word | field | why |
//! |---|---|---|
//! | 0 | magic | this is Trefoil's, and in this byte order |
//! | 1 | layout version (8) · partition count (16, from bit 16) · shard count (8, from bit 32) | a reader refuses what it does not know |
//! | 2 | incarnation | one life of the process; a restart is a new one |
//! | 3 | lease end | host's monotonic clock, ns; dead memory stays readable, so readers reject an expired lease (0: revoked) |
//! | 4 | config id | of the cell configuration in force |
//! | 5 | data window | bytes of the data region that are advertised, from its beginning |
//! | 6, 7 | flush floor | version; entries at or below it are misses |
//! | 8 | successor | what the process calls itself that is about to take this one's place; 0: nobody is. Clients connect to it in advance |
//! | 9.. | reserved, zero | |
//! | 32 + 8 p | index window of partition p | see below |
//! | 1024.. | stamps | counts of mutations by key hash, see [`stamp`] |
//!
//! The partitions of local shard 0 come first, then as many of shard 1, and so on.
//!
//! Index window, 64 bytes:
//!
//! | word | field | why |
//! |---|---|---|
//! | 0 | window id | grows with every new index of this partition; odd while words 1 and 2 change |
//! | 1 | offset | bytes, in the index region |
//! | 2 | bucket count | home buckets; [`crate::limits::SPILL_MAX`] more stand behind them |
//! | 3 | epoch | the shard's, as in every bucket header; here for whoever maps the window |
//! | 4 | newest | ns: no version that is known in this partition has a later time, see [`newest_ns`]. Not of the window: it stays when that changes |
//!
//! # Thread safety
//! The backend alone writes. A reader takes an index window by a sequence
//! lock on its window id; everything else is a single word.

use crate::hash::KeyHash;
use crate::limits::{LAYOUT_VERSION, PARTITION_COUNT_MAX};
use crate::placement::COPY_COUNT_MAX;
use crate::version::Version;
use crate::words::{Words, WordsMut};

/// "TREFOIL" and a digit, little endian.
pub const MAGIC: u64 = u64::from_le_bytes(*b"TREFOIL1");

const WORD_MAGIC: usize = 0;
const WORD_SHAPE: usize = 1;
const WORD_INCARNATION: usize = 2;
const WORD_LEASE_END: usize = 3;
const WORD_CONFIG_ID: usize = 4;
const WORD_DATA_WINDOW: usize = 5;
const WORD_FLUSH_FLOOR: usize = 6;
const WORD_SUCCESSOR: usize = 8;
const WORD_WINDOWS: usize = 32;
const WINDOW_WORDS: usize = 8;
const AT_NEWEST: usize = 4;
const WORD_STAMPS: usize = 1024;

/// Stamps of a backend. Keys that share one refuse each other's fills: of 10,000
/// mutations a second and fills that take 10 ms, 2.4 % are refused.
pub const STAMP_COUNT: usize = 4096;

/// Bytes of a control region.
pub const CONTROL_LEN: usize = (WORD_STAMPS + STAMP_COUNT) * 8;

const _: () = {
    assert!(WORD_WINDOWS + PARTITION_COUNT_MAX * WINDOW_WORDS <= WORD_STAMPS);
    assert!(PARTITION_COUNT_MAX <= STAMP_COUNT);
    assert!(CONTROL_LEN.is_multiple_of(4096), "whole pages");
    assert!(WORD_FLUSH_FLOOR + 2 <= WORD_SUCCESSOR && WORD_SUCCESSOR < WORD_WINDOWS);
    assert!(WINDOW_WORDS * 8 == 64, "one cache line a partition");
};

/// Where a partition's index stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct IndexWindow {
    /// Even; grows with every new index.
    pub window_id: u64,
    /// Bytes into the index region.
    pub offset: u64,
    /// Home buckets.
    pub bucket_count: u64,
    /// The shard's epoch when the window was advertised.
    pub epoch: u32,
}

impl IndexWindow {
    /// Bytes that an index with `bucket_count` home buckets takes, the spill
    /// buckets behind the last one included.
    pub const fn bytes(bucket_count: u64) -> u64 {
        (bucket_count + crate::limits::SPILL_MAX as u64) * crate::bucket::BUCKET_LEN as u64
    }
}

/// Why a control region cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ControlError {
    /// Not a control region at all.
    #[error("the shared memory is not a Trefoil control region")]
    Magic,
    /// A backend of another layout version.
    #[error(
        "the backend uses layout version {found}, this client understands {LAYOUT_VERSION}: run the same release on both sides"
    )]
    Layout {
        /// What the backend wrote.
        found: u8,
    },
    /// A partition count that no backend writes.
    #[error("the control region names {0} partitions, the most possible is {PARTITION_COUNT_MAX}")]
    Partitions(usize),
    /// A shard count that no backend writes.
    #[error("the control region names {shards} shards with {partitions} partitions together")]
    Shards {
        /// What it names.
        shards: usize,
        /// The same.
        partitions: usize,
    },
}

/// What never changes during one incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlShape {
    /// Partitions of this backend, those of all shards.
    pub partition_count: usize,
    /// Shards of this backend, each with as many partitions.
    pub shard_count: usize,
    /// One life of the process.
    pub incarnation: u64,
}

impl ControlShape {
    /// Partitions of each shard.
    pub const fn sub_count(&self) -> usize {
        self.partition_count / self.shard_count
    }
}

/// Writes a fresh control region; readers get it only afterwards.
pub fn initialise<W: WordsMut + ?Sized>(words: &W, shape: ControlShape, config_id: u32) {
    words.store(
        WORD_SHAPE,
        u64::from(LAYOUT_VERSION)
            | (shape.partition_count as u64) << 16
            | (shape.shard_count as u64) << 32,
    );
    words.store(WORD_INCARNATION, shape.incarnation);
    words.store(WORD_CONFIG_ID, u64::from(config_id));
    words.store_release(WORD_MAGIC, MAGIC);
}

/// Checks magic and layout version and returns what is fixed.
pub fn shape<W: Words + ?Sized>(words: &W) -> Result<ControlShape, ControlError> {
    if words.load_acquire(WORD_MAGIC) != MAGIC {
        return Err(ControlError::Magic);
    }
    let word = words.load(WORD_SHAPE);
    if word as u8 != LAYOUT_VERSION {
        return Err(ControlError::Layout { found: word as u8 });
    }
    let partition_count = usize::from((word >> 16) as u16);
    if partition_count == 0 || partition_count > PARTITION_COUNT_MAX {
        return Err(ControlError::Partitions(partition_count));
    }
    let shard_count = usize::from((word >> 32) as u8);
    let fits =
        (1..=COPY_COUNT_MAX).contains(&shard_count) && partition_count.is_multiple_of(shard_count);
    if !fits {
        return Err(ControlError::Shards {
            shards: shard_count,
            partitions: partition_count,
        });
    }
    Ok(ControlShape {
        partition_count,
        shard_count,
        incarnation: words.load(WORD_INCARNATION),
    })
}

/// End of the lease, in nanoseconds of the host's monotonic clock.
#[inline(always)]
pub fn lease_end_ns<W: Words + ?Sized>(words: &W) -> u64 {
    words.load(WORD_LEASE_END)
}

/// The end of a lease in the past that says more: the backend has moved to another process,
/// which is found where this one was, now or in a moment.
pub const LEASE_MOVED_NS: u64 = 1;

/// Extends the lease, or revokes it with 0 or [`LEASE_MOVED_NS`].
pub fn set_lease_end_ns<W: WordsMut + ?Sized>(words: &W, end_ns: u64) {
    words.store_release(WORD_LEASE_END, end_ns);
}

/// Who is about to take this process's place; 0: nobody. A hint, which may be late or wrong.
#[inline(always)]
pub fn successor<W: Words + ?Sized>(words: &W) -> u64 {
    words.load(WORD_SUCCESSOR)
}

/// Announces who is about to take this process's place, or with 0 that nobody is any more.
pub fn set_successor<W: WordsMut + ?Sized>(words: &W, token: u64) {
    words.store_release(WORD_SUCCESSOR, token);
}

/// Id of a partition's present index window, or an odd number while that
/// changes: whoever found nothing in a window with another id has looked at
/// memory that may be another index's by now.
#[inline]
pub fn window_id<W: Words + ?Sized>(words: &W, partition: usize) -> u64 {
    words.load_acquire(WORD_WINDOWS + partition * WINDOW_WORDS)
}

/// Configuration in force.
pub fn config_id<W: Words + ?Sized>(words: &W) -> u32 {
    words.load_acquire(WORD_CONFIG_ID) as u32
}

/// Announces another configuration.
pub fn set_config_id<W: WordsMut + ?Sized>(words: &W, id: u32) {
    words.store_release(WORD_CONFIG_ID, u64::from(id));
}

/// Bytes of the data region that pointers may reach.
pub fn data_window<W: Words + ?Sized>(words: &W) -> u64 {
    words.load_acquire(WORD_DATA_WINDOW)
}

/// Advertises a larger (or smaller) data window.
pub fn set_data_window<W: WordsMut + ?Sized>(words: &W, len: u64) {
    words.store_release(WORD_DATA_WINDOW, len);
}

/// Entries at or below this version are misses.
pub fn flush_floor<W: Words + ?Sized>(words: &W) -> Version {
    Version {
        time_ns: words.load(WORD_FLUSH_FLOOR),
        origin: words.load(WORD_FLUSH_FLOOR + 1),
    }
}

/// Raises the flush floor. The origin first: a reader in between sees a floor
/// that lies between the old one and the new.
pub fn set_flush_floor<W: WordsMut + ?Sized>(words: &W, floor: Version) {
    words.store(WORD_FLUSH_FLOOR + 1, floor.origin);
    words.store_release(WORD_FLUSH_FLOOR, floor.time_ns);
}

/// The word that counts the mutations of a partition's keys that share a part of
/// their hash. Only the partition's lock holder writes it.
#[inline(always)]
pub const fn stamp_word(partition: usize, partition_count: usize, hash: KeyHash) -> usize {
    // Narrow, and scaled instead of divided: every miss asks three replicas.
    let share = STAMP_COUNT as u32 / partition_count as u32;
    let within = (hash.tag as u32 as u64 * share as u64) >> u32::BITS;
    WORD_STAMPS + partition * share as usize + within as usize
}

/// The stamp of a key at this backend: as long as it is the same, no SET, ERASE,
/// CAS or fill of this key was applied here. No clock is in it, and no eviction. One
/// incarnation's stamps are never another's.
pub fn stamp<W: Words + ?Sized>(
    words: &W,
    partition: usize,
    partition_count: usize,
    hash: KeyHash,
) -> u64 {
    let count = words.load_acquire(stamp_word(partition, partition_count, hash));
    // Any odd number with well spread bits will do.
    let base = words
        .load(WORD_INCARNATION)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    base.wrapping_add(count)
}

/// A mutation of this key is applied.
pub fn raise_stamp<W: WordsMut + ?Sized>(
    words: &W,
    partition: usize,
    partition_count: usize,
    hash: KeyHash,
) {
    let at = stamp_word(partition, partition_count, hash);
    words.store_release(at, words.load(at).wrapping_add(1));
}

/// No version that this partition knows has a later time than this: none that it holds or
/// remembers, nor a floor. Raised before what has that version can be seen.
#[inline(always)]
pub fn newest_ns<W: Words + ?Sized>(words: &W, partition: usize) -> u64 {
    words.load_acquire(WORD_WINDOWS + partition * WINDOW_WORDS + AT_NEWEST)
}

/// A version of this time is about to be known. Only the partition's lock holder writes it.
#[inline]
pub fn raise_newest_ns<W: WordsMut + ?Sized>(words: &W, partition: usize, time_ns: u64) {
    let at = WORD_WINDOWS + partition * WINDOW_WORDS + AT_NEWEST;
    if words.load(at) < time_ns {
        words.store_release(at, time_ns);
    }
}

/// Takes the index window of `partition`; `None` while it is being changed.
pub fn index_window<W: Words + ?Sized>(words: &W, partition: usize) -> Option<IndexWindow> {
    assert!(partition < PARTITION_COUNT_MAX);
    let at = WORD_WINDOWS + partition * WINDOW_WORDS;
    let window_id = words.load_acquire(at);
    let window = IndexWindow {
        window_id,
        offset: words.load(at + 1),
        bucket_count: words.load(at + 2),
        epoch: words.load(at + 3) as u32,
    };
    words.fence_acquire();
    (window_id.is_multiple_of(2) && window_id != 0 && words.load(at) == window_id).then_some(window)
}

/// Advertises a new index of `partition`; `window.window_id` is even and
/// higher than any before it.
pub fn set_index_window<W: WordsMut + ?Sized>(words: &W, partition: usize, window: IndexWindow) {
    assert!(partition < PARTITION_COUNT_MAX && window.window_id.is_multiple_of(2));
    let at = WORD_WINDOWS + partition * WINDOW_WORDS;
    assert!(words.load(at) < window.window_id);
    words.store(at, window.window_id - 1);
    words.fence_release();
    words.store(at + 1, window.offset);
    words.store(at + 2, window.bucket_count);
    words.store(at + 3, u64::from(window.epoch));
    words.store_release(at, window.window_id);
}
