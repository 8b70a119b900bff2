//! What all partitions of a store share.
//!
//! # Lock order
//! `room_turn`, a partition's lock, then `pool`, `runs` or `windows`, in this order
//! if ever more than one. Nothing ever holds two partitions.

use crate::budget::Budget;
use crate::classes::Classes;
use crate::config::StoreConfig;
use crate::evictions::Evictions;
use crate::leaving::Leaving;
use crate::pool::PagePool;
use crate::ranges::RangeAllocator;
use crate::runs::RunPool;
use crate::space::Regions;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};
use trefoil_region::{Mapping, SharedWords};

/// Locks. If an earlier holder has panicked, what is behind the lock may be half
/// done: an entry freed that an index still points at, a floor not raised. A
/// replica that goes on with that may acknowledge and vote for what it does not
/// hold, and nobody could tell. One that dies is a case that the cell is made
/// for. So the process ends.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    match mutex.lock() {
        Ok(guard) => guard,
        Err(_) => half_done(),
    }
}

#[cold]
fn half_done() -> ! {
    eprintln!(
        "trefoil: a thread panicked while it was changing the store, which may be half done \
         now; the process ends, for a backend that is gone does less harm than one that is \
         wrong. The panic's message stands above: please report it."
    );
    std::process::abort();
}

/// Which of its owner's pages each page of the region is. Only the owner of a
/// page reads or writes its word. Asked for zeroed, so that it becomes resident
/// only as far as pages are used.
#[derive(Debug)]
pub(crate) struct PageTable(Mapping);

impl PageTable {
    pub(crate) fn new(page_count: u64) -> Self {
        PageTable(Mapping::heap(page_count * 8))
    }

    #[inline(always)]
    pub(crate) fn get(&self, page: u64) -> u32 {
        self.0.words().atomic(page as usize).load(Ordering::Relaxed) as u32
    }

    pub(crate) fn set(&self, page: u32, at: u32) {
        self.0
            .words()
            .atomic(page as usize)
            .store(u64::from(at), Ordering::Relaxed);
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) config: StoreConfig,
    pub(crate) regions: Regions,
    pub(crate) classes: Classes,
    pub(crate) evictions: Evictions,
    pub(crate) budget: Budget,
    pub(crate) page_table: PageTable,
    pub(crate) pool: Mutex<PagePool>,
    pub(crate) runs: Mutex<RunPool>,
    pub(crate) windows: Mutex<RangeAllocator>,
    pub(crate) leaving: Leaving,
    /// Held by the one who waits for more room than one hold of a partition's lock
    /// makes, or asks for room the last time before it is refused. Before every
    /// other lock.
    pub(crate) room_turn: Mutex<()>,
    /// What each partition holds, so that a poor one can find a rich one without
    /// its lock.
    pub(crate) holds: Box<[Hold]>,
    /// A second corpus is loaded beside the one that is served: nothing of that goes to
    /// make room for it.
    pub(crate) reloading: AtomicBool,
    /// A recovering shard has had to make room for what it imports: not all has room.
    pub(crate) copies_evict: AtomicBool,
}

/// What a partition holds.
#[derive(Debug, Default)]
pub(crate) struct Hold {
    /// Bytes of pages and runs.
    pub(crate) data_len: AtomicU64,
    /// Pages.
    pub(crate) pages: AtomicU64,
}

impl Shared {
    #[inline(always)]
    pub(crate) fn page_len(&self) -> u64 {
        self.regions.page_len()
    }

    /// Bytes in which memory for pages comes and goes.
    pub(crate) fn unit_len(&self) -> u64 {
        self.page_len().max(self.regions.data.frame_len())
    }

    #[inline(always)]
    pub(crate) fn data(&self) -> SharedWords<'_> {
        self.regions.data.words()
    }

    /// Pages that are populated at once when somebody waits for one.
    pub(crate) fn inline_chunk_len(&self) -> u64 {
        (self.budget.limit() / 1024).clamp(self.page_len(), 256 << 10)
    }

    /// Pages that maintenance keeps populated ahead of need.
    pub(crate) fn ahead_len(&self) -> u64 {
        (self.budget.limit() / 64).clamp(self.page_len(), 8 << 20)
    }

    /// What a partition keeps of its data while the store has to shrink: those
    /// that hold more than this give, and what they hold more is enough.
    pub(crate) fn kept_len(&self) -> u64 {
        let sum: u64 = self
            .holds
            .iter()
            .map(|hold| hold.data_len.load(Ordering::Relaxed))
            .sum();
        sum.saturating_sub(self.budget.excess()) / self.holds.len() as u64
    }

    /// Pages that a partition should have: an equal part of what there is for
    /// pages, and of what remains one for each of the partitions of lowest rank.
    pub(crate) fn page_quota(&self, number: usize) -> u64 {
        let pages = self.budget.for_pages() / self.page_len();
        let count = self.holds.len() as u64;
        let rank = self.config.partition_rank(number) as u64;
        pages / count + u64::from(rank < pages % count)
    }

    /// The partition that is farthest above its quota, other than `number`.
    pub(crate) fn page_giver(&self, number: usize) -> Option<usize> {
        let above = |at: usize| {
            let pages = self.holds[at].pages.load(Ordering::Relaxed);
            pages.saturating_sub(self.page_quota(at))
        };
        let others = (0..self.holds.len()).filter(|at| *at != number);
        let (above, giver) = others.map(|at| (above(at), at)).max()?;
        (above > 0).then_some(giver)
    }

    /// What a partition would hold if all held the same.
    pub(crate) fn fair_len(&self) -> u64 {
        self.budget.limit() / self.holds.len() as u64
    }
}
