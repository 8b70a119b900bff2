//! Flushing without walking the items: a floor below which entries are absent.
//!
//! The floor is a version. Entries at or below it are invisible from the moment
//! that it is raised; the crawler gives their memory back afterwards. It is a
//! lower limit of every bound, too: a mutation with a version at or below it is
//! superseded, not stored invisibly, and its client nominates a higher one.

use super::{Cause, Partition};
use crate::config::Now;
use crate::policy::Policy;
use crate::shared::Shared;
use trefoil_layout::{IndexEntry, Version};

impl Partition {
    /// Makes everything at or below `floor` invisible.
    pub(crate) fn flush(&mut self, shared: &Shared, floor: Version) {
        if floor <= self.flush_floor {
            return;
        }
        self.tell_newest(shared, floor);
        self.flush_floor = floor;
        self.floor = self.floor.max(floor);
        if self.newest <= floor {
            self.flushed_count = self.item_count;
        }
        if self.item_count > 0 {
            self.crawl.flush();
        }
    }

    /// An entry of this version is gone.
    #[inline]
    pub(super) fn uncount_flushed(&mut self, version: Version) {
        if self.is_flushed(version) {
            self.flushed_count = self.flushed_count.saturating_sub(1);
        }
    }

    /// Items that are not flushed.
    pub(super) fn visible_count(&self) -> u64 {
        self.item_count.saturating_sub(self.flushed_count)
    }

    /// Whether an entry of this version was flushed.
    #[inline]
    pub(super) fn is_flushed(&self, version: Version) -> bool {
        version <= self.flush_floor
    }

    /// Whether the memory of flushed entries is still being given back.
    pub(crate) fn is_flushing(&self) -> bool {
        self.crawl.flushing
    }

    /// The highest version that was ever applied here.
    pub(crate) fn newest(&self) -> Version {
        self.newest
    }

    /// What was found, unless its time is over or it was flushed: then it is
    /// removed.
    #[inline]
    pub(super) fn without_dead(
        &mut self,
        shared: &Shared,
        now: Now,
        found: Option<(u32, IndexEntry)>,
    ) -> Option<(u32, IndexEntry)> {
        let (number, entry) = found?;
        if self.is_flushed(entry.version) {
            self.policy.remove(number);
            self.discard(shared, number, Cause::Flushed);
            return None;
        }
        if Self::head_at(shared, entry.pointer.offset()).is_expired(now.host_ms()) {
            self.expire(shared, number);
            return None;
        }
        found
    }
}
