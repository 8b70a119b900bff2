//! What goes into an examination, and what comes out.

use super::verdict::{Copy, Odd, Verdict};
use crate::page::Page;
use std::collections::BTreeMap;
use std::ops::Range;
use trefoil_layout::{KeyHash, KeyHasher, Version};

/// What is to be examined, and how.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Replicas of the shard, 1 to 3; they say the mode.
    pub copies: usize,
    /// The cell's hash.
    pub hasher: KeyHasher,
    /// Places to walk over, ascending and apart from each other.
    pub places: Vec<Range<u64>>,
    /// Read values and verify them, not only their versions.
    pub values: bool,
    /// Between two looks at a key that is not clean.
    pub pause_ms: u64,
    /// Examples that are kept of each kind of finding.
    pub example_count: usize,
}

/// The time, as whoever drives the examination has it.
#[derive(Clone, Copy, Debug)]
pub struct Moment {
    /// Since any moment; never goes back.
    pub monotonic_ms: u64,
    /// Since the Unix epoch.
    pub unix_ms: u64,
}

/// What to ask a replica. Of each one thing at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Question {
    /// A page of what stands in its index ([`crate::items`]).
    Page {
        /// The first place.
        from: u64,
        /// The place behind the last.
        until: u64,
        /// With values, or only what is held at which version.
        values: bool,
    },
    /// A long value's data entry, by message, and without a use of the item.
    Long {
        /// Its key.
        key: Vec<u8>,
        /// Of no use at any other version.
        version: Version,
    },
}

/// What a replica has answered.
#[derive(Clone, Debug)]
pub enum Reply<D> {
    /// To [`Question::Page`].
    Page(Page<D>),
    /// To [`Question::Long`]; `None` if it is no longer of that version, or cannot be
    /// had at the moment.
    Long(Option<D>),
}

/// What came of the keys so far: each that somebody holds is counted once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Keys {
    /// All replicas agree.
    pub clean: u64,
    /// Exactly two of three agree, or the two of R=2 do not, by the replica that differs
    /// (its place in the cohort) and how.
    pub dirty: BTreeMap<(usize, Odd), u64>,
    /// No two of three agree.
    pub inquorate: u64,
    /// A copy does not match its index entry.
    pub corrupt: u64,
    /// Corrupt copies, by the replica that holds them.
    pub corrupt_copies: [u64; 3],
    /// What could be read agrees, but not every replica could be read.
    pub short: u64,
    /// Different at each look, or about to expire: no verdict.
    pub unsettled: u64,
}

impl Keys {
    /// Dirty keys, whatever they lack.
    pub fn dirty_count(&self) -> u64 {
        self.dirty.values().sum()
    }
}

/// A key with a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// What is wrong.
    pub verdict: Verdict,
    /// Of the key.
    pub hash: KeyHash,
    /// The key, if it could be read.
    pub key: Option<Box<[u8]>>,
    /// What each replica holds, in the order of the cohort.
    pub copies: Vec<Copy>,
}
