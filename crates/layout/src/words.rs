//! Access to 8-byte words that another process may be writing.

/// A readable run of 8-byte words, indexed from 0.
///
/// Implementations over live shared memory load each word atomically; a torn
/// group of words is normal and is detected by the callers of this trait.
pub trait Words {
    /// Loads a word with no ordering against other loads.
    fn load(&self, index: usize) -> u64;
    /// Loads a word; later loads see at least what its writer had written before it.
    fn load_acquire(&self, index: usize) -> u64;
    /// Keeps the loads before it before the loads after it.
    fn fence_acquire(&self);
    /// Loads `out.len()` words from `index` on, in no order.
    #[inline]
    fn load_run(&self, index: usize, out: &mut [u64]) {
        for (at, slot) in out.iter_mut().enumerate() {
            *slot = self.load(index + at);
        }
    }
    /// Keeps everything before it before everything after it, stores before
    /// loads included: what two sides need who each announce something and
    /// then look at the other's announcement.
    #[inline(always)]
    fn fence_full(&self) {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

/// A run of 8-byte words that this side owns and others read.
pub trait WordsMut: Words {
    /// Stores a word with no ordering.
    fn store(&self, index: usize, value: u64);
    /// Stores a word after everything written before it.
    fn store_release(&self, index: usize, value: u64);
    /// Keeps the stores before it before the stores after it.
    fn fence_release(&self);
    /// Stores `words` from `index` on, in no order.
    #[inline]
    fn store_run(&self, index: usize, words: &[u64]) {
        for (at, word) in words.iter().enumerate() {
            self.store(index + at, *word);
        }
    }
}

/// A private copy, as a network read leaves it: nobody else writes it, so no
/// ordering is needed.
impl Words for [u64] {
    #[inline(always)]
    fn load(&self, index: usize) -> u64 {
        self[index]
    }
    #[inline(always)]
    fn load_acquire(&self, index: usize) -> u64 {
        self[index]
    }
    #[inline(always)]
    fn fence_acquire(&self) {}
}

/// Whatever can be read can be read through a reference.
impl<W: Words + ?Sized> Words for &W {
    #[inline(always)]
    fn load(&self, index: usize) -> u64 {
        (**self).load(index)
    }
    #[inline(always)]
    fn load_acquire(&self, index: usize) -> u64 {
        (**self).load_acquire(index)
    }
    #[inline(always)]
    fn fence_acquire(&self) {
        (**self).fence_acquire();
    }
}
