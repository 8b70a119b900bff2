//! The only source of randomness: SplitMix64, so that a seed replays the same
//! run with any compiler and any release of any library.

use std::cell::Cell;

/// A generator that can be drawn from through a shared reference: the reader's
/// hook draws while a read is under way.
#[derive(Debug)]
pub(crate) struct Rng(Cell<u64>);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(Cell::new(seed))
    }

    /// Another one, from which as much as may be is drawn without a change to this one: what
    /// is new in a run goes by it, so that seeds that were looked at stay what they were.
    pub(crate) fn beside(&self) -> Rng {
        Rng::new(mix(self.0.get() ^ 0x5bd1_e995_0f1b_bcdc))
    }

    pub(crate) fn next(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        mix(state)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// An index into something of this length, which is not 0.
    pub(crate) fn index(&self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// `true` in `chance` of 1,024 cases.
    pub(crate) fn chance(&self, chance: u32) -> bool {
        self.next() >> 54 < u64::from(chance)
    }

    /// One of these.
    pub(crate) fn pick<T: Copy>(&self, from: &[T]) -> T {
        from[self.index(from.len())]
    }
}

/// SplitMix64's output function.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
