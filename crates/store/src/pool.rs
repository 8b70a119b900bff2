//! The pages that all partitions share.
//!
//! A page is *absent* (a hole), *free* (resident, nobody's) or *taken* (a
//! partition's). Memory becomes resident and goes away in units: a page, or a
//! huge page's worth of them. Ahead of need, whole chunks of units are
//! populated off the critical path. The lowest free page is taken first, so
//! that whole units become free at the upper end.
//!
//! One leaf lock protects it; nothing else is locked under it.

use crate::budget::{Budget, Cap, Kind};
use crate::space::Space;
use std::ops::Range;

/// A unit that is a hole.
const ABSENT: u16 = u16::MAX;
/// A unit that somebody is populating outside the lock.
const PENDING: u16 = u16::MAX - 1;

/// Pages of the data region.
#[derive(Debug)]
pub(crate) struct PagePool {
    page_len: u64,
    /// Pages of a unit.
    unit_pages: u32,
    /// Units of the whole space.
    unit_count_max: u32,
    /// Free pages of each unit, [`ABSENT`] or [`PENDING`]; up to the highest unit ever used.
    units: Vec<u16>,
    /// One bit a page, set if free; as long as `units`.
    free: Vec<u64>,
    free_count: u32,
    /// No word of `free` below this one has a bit set.
    free_hint: usize,
    /// No unit below this one is absent.
    absent_hint: usize,
    /// A unit whose pages are moving out, so that it can go as a whole.
    draining: Option<u32>,
}

impl PagePool {
    /// An empty pool over `pages_len` bytes from the beginning of a space with
    /// frames of `frame_len`.
    pub(crate) fn new(page_len: u64, pages_len: u64, frame_len: u64) -> Self {
        let unit_len = page_len.max(frame_len);
        PagePool {
            page_len,
            unit_pages: (unit_len / page_len) as u32,
            unit_count_max: (pages_len / unit_len) as u32,
            units: Vec::new(),
            free: Vec::new(),
            free_count: 0,
            free_hint: 0,
            absent_hint: 0,
            draining: None,
        }
    }

    fn unit_len(&self) -> u64 {
        u64::from(self.unit_pages) * self.page_len
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        u64::from(self.free_count) * self.page_len
    }

    /// Takes a resident page.
    pub(crate) fn take(&mut self) -> Option<u32> {
        if self.free_count == 0 {
            return None;
        }
        let takeable = |at: usize| self.free[at] & !self.draining_bits(at);
        let word = (self.free_hint..self.free.len()).find(|at| takeable(*at) != 0)?;
        let bit = takeable(word).trailing_zeros();
        if self.draining.is_none() {
            self.free_hint = word;
        }
        let page = word as u32 * 64 + bit;
        self.free[word] &= !(1 << bit);
        self.free_count -= 1;
        self.units[(page / self.unit_pages) as usize] -= 1;
        Some(page)
    }

    /// Which bits of a word of `free` belong to the draining unit.
    fn draining_bits(&self, word: usize) -> u64 {
        let Some(unit) = self.draining else { return 0 };
        let first = word as u32 * 64;
        let (start, end) = (unit * self.unit_pages, (unit + 1) * self.unit_pages);
        let start = start.clamp(first, first + 64) - first;
        let end = end.clamp(first, first + 64) - first;
        if start == end {
            return 0;
        }
        (u64::MAX >> (64 - (end - start))) << start
    }

    /// Whether enough pages are free for a unit, though no unit is wholly free.
    pub(crate) fn is_fragmented(&self) -> bool {
        self.unit_pages > 1
            && self.free_count >= self.unit_pages
            && !self.units.contains(&(self.unit_pages as u16))
    }

    /// Chooses the unit with the most free pages for its other pages to move
    /// out; none of it is taken until [`PagePool::end_drain`]. Returns its pages.
    pub(crate) fn begin_drain(&mut self) -> Option<Range<u32>> {
        if self.draining.is_some() || !self.is_fragmented() {
            return None;
        }
        let present = |unit: &(usize, &u16)| u32::from(*unit.1) <= self.unit_pages;
        let (unit, _) = self
            .units
            .iter()
            .enumerate()
            .filter(present)
            .max_by_key(|unit| *unit.1)?;
        let unit = unit as u32;
        self.draining = Some(unit);
        Some(unit * self.unit_pages..(unit + 1) * self.unit_pages)
    }

    /// Ends a drain; whether the unit is wholly free now.
    pub(crate) fn end_drain(&mut self) -> bool {
        let unit = self.draining.take();
        unit.is_some_and(|unit| u32::from(self.units[unit as usize]) == self.unit_pages)
    }

    /// Gives a page back; it stays resident.
    pub(crate) fn give(&mut self, page: u32) {
        let word = page as usize / 64;
        debug_assert!(self.free[word] & 1 << (page % 64) == 0, "given twice");
        self.free[word] |= 1 << (page % 64);
        self.free_hint = self.free_hint.min(word);
        self.free_count += 1;
        self.units[(page / self.unit_pages) as usize] += 1;
    }

    /// Charges and populates up to `bytes`, at least one unit. `false` if the
    /// budget has no room below `cap`, or the system none.
    pub(crate) fn grow(&mut self, space: &Space, budget: &Budget, cap: Cap, bytes: u64) -> bool {
        let wanted = self.units_of(bytes);
        for count in [wanted, 1] {
            if let Some(units) = self.reserve(budget, cap, count) {
                // It is written at once: a fault for each of its pages would cost more.
                let populated = space.populate_ahead(self.bytes_of(&units)).is_ok();
                self.settle(budget, units, populated);
                return populated;
            }
        }
        false
    }

    /// Charges a run of up to `count` absent units and marks them as being
    /// populated by the caller, who then calls [`PagePool::settle`].
    pub(crate) fn reserve(&mut self, budget: &Budget, cap: Cap, count: u32) -> Option<Range<u32>> {
        let known = self.units.len();
        let first = (self.absent_hint..known)
            .find(|at| self.units[*at] == ABSENT)
            .unwrap_or(known);
        self.absent_hint = first;
        let mut end = first;
        while end < self.unit_count_max as usize
            && end - first < count as usize
            && self.units.get(end).is_none_or(|unit| *unit == ABSENT)
        {
            end += 1;
        }
        if end == first
            || !budget.try_charge_within(Kind::Pages, (end - first) as u64 * self.unit_len(), cap)
        {
            return None;
        }
        if end > known {
            self.units.resize(end, ABSENT);
            let words = (end * self.unit_pages as usize).div_ceil(64);
            self.free.resize(words.max(self.free.len()), 0);
        }
        self.units[first..end].fill(PENDING);
        Some(first as u32..end as u32)
    }

    /// Units for `bytes`, at least one.
    pub(crate) fn units_of(&self, bytes: u64) -> u32 {
        (bytes / self.unit_len()).max(1) as u32
    }

    /// Byte range of units.
    pub(crate) fn bytes_of(&self, units: &Range<u32>) -> Range<u64> {
        u64::from(units.start) * self.unit_len()..u64::from(units.end) * self.unit_len()
    }

    /// Ends a [`PagePool::reserve`]: the pages are free, or holes again if the
    /// system had no memory.
    pub(crate) fn settle(&mut self, budget: &Budget, units: Range<u32>, populated: bool) {
        if !populated {
            budget.release(Kind::Pages, u64::from(units.len() as u32) * self.unit_len());
            self.absent_hint = self.absent_hint.min(units.start as usize);
            self.units[units.start as usize..units.end as usize].fill(ABSENT);
            return;
        }
        for unit in units {
            self.units[unit as usize] = 0;
            for page in unit * self.unit_pages..(unit + 1) * self.unit_pages {
                self.give(page);
            }
        }
    }

    /// Gives up to `bytes` of wholly free units back to the system, the
    /// highest first; returns how many went.
    pub(crate) fn shrink(&mut self, space: &Space, budget: &Budget, bytes: u64) -> u64 {
        let mut gone = 0;
        let mut end = self.units.len();
        while gone < bytes && self.free_count >= self.unit_pages && end > 0 {
            // A run of wholly free units, so that one system call frees many.
            if u32::from(self.units[end - 1]) != self.unit_pages {
                end -= 1;
                continue;
            }
            let mut first = end - 1;
            while first > 0
                && u32::from(self.units[first - 1]) == self.unit_pages
                && gone + ((end - first) as u64) * self.unit_len() < bytes
            {
                first -= 1;
            }
            let units = first as u32..end as u32;
            if space.punch(self.bytes_of(&units)).is_err() {
                return gone;
            }
            for page in units.start * self.unit_pages..units.end * self.unit_pages {
                self.free[page as usize / 64] &= !(1 << (page % 64));
            }
            self.free_count -= units.len() as u32 * self.unit_pages;
            self.units[first..end].fill(ABSENT);
            self.absent_hint = self.absent_hint.min(first);
            let len = units.len() as u64 * self.unit_len();
            budget.release(Kind::Pages, len);
            gone += len;
            end = first;
        }
        gone
    }

    /// Bytes that are resident for pages by this pool's own books.
    pub(crate) fn resident_len(&self) -> u64 {
        let present = self.units.iter().filter(|unit| **unit != ABSENT).count();
        present as u64 * self.unit_len()
    }

    /// Punches every hole once more: a reader that followed a stale pointer
    /// into a hole has made the system put a page there.
    pub(crate) fn punch_holes(&self, space: &Space) {
        let mut at = 0;
        while at < self.units.len() {
            let end = (at..self.units.len())
                .find(|unit| self.units[*unit] != ABSENT)
                .unwrap_or(self.units.len());
            if end > at {
                let _ = space.punch(self.bytes_of(&(at as u32..end as u32)));
            }
            at = end.max(at) + 1;
        }
        let known = self.units.len() as u32;
        let _ = space.punch(self.bytes_of(&(known..self.unit_count_max)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_come_and_go_within_the_budget() {
        let space = Space::heap(64 << 10);
        let budget = Budget::new(40 << 10);
        let mut pool = PagePool::new(4096, 64 << 10, 4096);
        assert_eq!(pool.take(), None);
        assert!(pool.grow(&space, &budget, Cap::At(budget.limit()), 32 << 10));
        assert_eq!(budget.used(), 32 << 10);
        assert!(
            pool.grow(&space, &budget, Cap::At(budget.limit()), 32 << 10),
            "a single unit still fits"
        );
        assert!(pool.grow(&space, &budget, Cap::At(budget.limit()), 4096));
        assert!(!pool.grow(&space, &budget, Cap::At(budget.limit()), 4096));
        let pages: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        assert_eq!(pages, (0..10).collect::<Vec<_>>());
        for page in [3, 9, 8] {
            pool.give(page);
        }
        assert_eq!(pool.shrink(&space, &budget, 8192), 8192, "the two highest");
        assert_eq!(pool.take(), Some(3));
        assert_eq!(budget.used(), 32 << 10);
        assert!(pool.grow(&space, &budget, Cap::At(budget.limit()), 4096));
        assert_eq!(pool.take(), Some(8));
        assert_eq!(pool.resident_len(), budget.used());
    }

    #[test]
    fn huge_units_go_only_whole() {
        let space = Space::heap(64 << 10);
        let budget = Budget::new(64 << 10);
        let mut pool = PagePool::new(4096, 64 << 10, 16384);
        assert!(pool.grow(&space, &budget, Cap::At(budget.limit()), 32 << 10));
        let pages: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
        for page in &pages[1..] {
            pool.give(*page);
        }
        assert_eq!(pool.shrink(&space, &budget, u64::MAX), 16384);
        pool.give(pages[0]);
        assert_eq!(pool.shrink(&space, &budget, u64::MAX), 16384);
        assert_eq!((budget.used(), pool.free_bytes()), (0, 0));
    }
}
