//! Reads that are to be reported to the backends: to every replica, whoever was
//! asked.
//!
//! A lookup of three copies reads two. If only these two learned of it, each
//! replica would know two reads in three, and not the same ones: each would evict
//! other items, and a key that two of three have evicted is a miss. The slot at the
//! third is not known; it is looked up for a few reads at a time, with their cache
//! misses overlapped, behind the lookups that they were for.

use trefoil_cell::Cohort;
use trefoil_client_core::mode::REPLICAS_MAX;
use trefoil_layout::KeyHash;

/// Reads that are collected: as many cache misses as a core has under way at once.
const READ_COUNT_MAX: usize = 8;

/// An item that a lookup has found.
#[derive(Clone, Copy, Debug)]
pub struct ItemRead {
    /// Of its key.
    pub hash: KeyHash,
    /// Who holds it.
    pub cohort: Cohort,
    /// Where it stands, by place in the cohort; `None` where nobody looked.
    pub slots: [Option<u32>; REPLICAS_MAX],
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Reads {
    reads: [Option<ItemRead>; READ_COUNT_MAX],
    count: usize,
    /// The views that the slots were seen through ([`crate::Driver::view_count`]).
    view_count: u64,
}

impl Reads {
    pub(crate) const fn new() -> Self {
        Reads {
            reads: [None; READ_COUNT_MAX],
            count: 0,
            view_count: 0,
        }
    }

    /// Adds a read; `true` if they should be reported now.
    #[inline(always)]
    pub(crate) fn add(&mut self, read: ItemRead, view_count: u64) -> bool {
        if self.view_count != view_count {
            self.outdate(view_count);
        }
        self.reads[self.count] = Some(read);
        self.count += 1;
        self.count == READ_COUNT_MAX
    }

    /// Forgets where items stand: a slot number means something in one window only.
    #[cold]
    fn outdate(&mut self, view_count: u64) {
        self.view_count = view_count;
        for read in self.reads[..self.count].iter_mut().flatten() {
            read.slots = [None; REPLICAS_MAX];
        }
    }

    #[inline(always)]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// What was collected, in order.
    #[inline]
    pub(crate) fn take(&mut self, view_count: u64) -> ([Option<ItemRead>; READ_COUNT_MAX], usize) {
        if self.view_count != view_count {
            self.outdate(view_count);
        }
        (self.reads, std::mem::take(&mut self.count))
    }

    /// Their backends are not what they were.
    pub(crate) fn clear(&mut self) {
        self.count = 0;
    }
}
