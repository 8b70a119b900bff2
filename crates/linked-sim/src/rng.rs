//! The only source of randomness: SplitMix64, so that a seed replays the same
//! run with any compiler and any release of any library.

use std::time::Duration;

/// A generator.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        ((u128::from(self.next()) * bound as u128) >> 64) as usize
    }

    /// `true` in `chance` of 1,024 cases.
    pub(crate) fn chance(&mut self, chance: u32) -> bool {
        self.next() >> 54 < u64::from(chance)
    }

    /// One of these, which are not none.
    pub(crate) fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    /// A time between the two, in microseconds.
    pub(crate) fn micros(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_micros(from + self.below((to - from) as usize + 1) as u64)
    }
}
