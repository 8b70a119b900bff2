//! Shared words that are also changed by read-modify-write operations.

use std::sync::atomic::Ordering;
use trefoil_layout::words::{Words, WordsMut};
use trefoil_region::Mapping;

/// Words on which several sides decide by one operation. The same code runs over
/// a mapping, over the simulator's memory and over loom's atomics.
pub trait Atomics: WordsMut {
    /// Adds and returns what was there before; acquires and releases.
    fn fetch_add(&self, index: usize, by: u64) -> u64;
    /// Stores `to` iff `from` is there; acquires and releases. The error is what
    /// is there instead.
    fn compare_exchange(&self, index: usize, from: u64, to: u64) -> Result<(), u64>;
}

/// A mapped object as words.
#[derive(Clone, Debug)]
pub struct Mapped(pub Mapping);

impl Words for Mapped {
    #[inline(always)]
    fn load(&self, index: usize) -> u64 {
        self.0.words().load(index)
    }
    #[inline(always)]
    fn load_acquire(&self, index: usize) -> u64 {
        self.0.words().load_acquire(index)
    }
    #[inline(always)]
    fn fence_acquire(&self) {
        self.0.words().fence_acquire();
    }
    #[inline]
    fn load_run(&self, index: usize, out: &mut [u64]) {
        self.0.words().load_run(index, out);
    }
}

impl WordsMut for Mapped {
    #[inline(always)]
    fn store(&self, index: usize, value: u64) {
        self.0.words().store(index, value);
    }
    #[inline(always)]
    fn store_release(&self, index: usize, value: u64) {
        self.0.words().store_release(index, value);
    }
    #[inline(always)]
    fn fence_release(&self) {
        self.0.words().fence_release();
    }
    #[inline]
    fn store_run(&self, index: usize, words: &[u64]) {
        self.0.words().store_run(index, words);
    }
}

impl Atomics for Mapped {
    #[inline(always)]
    fn fetch_add(&self, index: usize, by: u64) -> u64 {
        self.0.words().atomic(index).fetch_add(by, Ordering::AcqRel)
    }
    #[inline(always)]
    fn compare_exchange(&self, index: usize, from: u64, to: u64) -> Result<(), u64> {
        self.0
            .words()
            .atomic(index)
            .compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire)
            .map(drop)
    }
}
