//! Random numbers of a seed (SplitMix64).

use std::cell::Cell;

#[derive(Clone, Debug)]
pub(crate) struct Dice(Cell<u64>);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Dice(Cell::new(
            seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d_4c95_7f2d,
        ))
    }

    pub(crate) fn word(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
        self.0.set(state);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&self, bound: u64) -> u64 {
        self.word() % bound
    }

    /// Once in so many times.
    pub(crate) fn once_in(&self, count: u64) -> bool {
        self.below(count) == 0
    }
}
