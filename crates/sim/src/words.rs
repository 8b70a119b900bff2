//! Words of memory that changes while it is read.

use trefoil_layout::words::Words;
use trefoil_region::SharedWords;

/// Live memory, and what may happen between two of its loads: `before_load` is called
/// before each of them.
pub struct Interrupted<'a, F> {
    /// What is read.
    pub words: SharedWords<'a>,
    /// May change it.
    pub before_load: F,
}

impl<F: Fn()> Words for Interrupted<'_, F> {
    #[inline(always)]
    fn load(&self, index: usize) -> u64 {
        (self.before_load)();
        self.words.load(index)
    }
    #[inline(always)]
    fn load_acquire(&self, index: usize) -> u64 {
        (self.before_load)();
        self.words.load_acquire(index)
    }
    #[inline(always)]
    fn fence_acquire(&self) {
        self.words.fence_acquire();
    }
}
