//! Runs: large entries, each in bytes of its own.
//!
//! Populated when allocated and punched when freed, in frames (4 KiB, or a
//! huge page, which several runs then share). A few freed runs are kept for
//! the next entry of exactly that length, because overwriting a large value
//! would otherwise be two system calls and a fault for every page.
//!
//! One leaf lock protects it; nothing else is locked under it.

use crate::budget::{Budget, Cap, Kind};
use crate::ranges::RangeAllocator;
use crate::space::Space;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use trefoil_region::PAGE_LEN;

/// Freed runs that are kept.
const SPARE_COUNT_MAX: usize = 16;
/// Share of the memory limit that they may hold.
const SPARE_SHARE: u64 = 64;
/// Runs from this length on are counted by length, and pay what is beyond the goal.
pub(crate) const LONG_LEN: u64 = 512 << 10;
/// Private bytes of bookkeeping that one run costs.
const RUN_PRIVATE_LEN: u64 = 64;

/// The runs of all partitions.
#[derive(Debug)]
pub(crate) struct RunPool {
    ranges: RangeAllocator,
    frame_len: u64,
    /// Bytes in use of each frame that several runs may share.
    shared_frames: HashMap<u64, u64>,
    /// Freed runs that are still resident: offset and length.
    spare: Vec<(u64, u64)>,
    spare_bytes: u64,
    /// Freed runs that the system did not take back: offset and length. They
    /// stay on the account until it does.
    stuck: Vec<(u64, u64)>,
    count: u64,
    /// How many there are of each length, among the long ones.
    long: BTreeMap<u64, u32>,
    resident_len: u64,
}

/// Bytes that a run for an entry of `len` bytes takes.
#[inline]
pub(crate) fn run_len(len: usize) -> u64 {
    (len as u64).next_multiple_of(PAGE_LEN)
}

impl RunPool {
    pub(crate) fn new(space: Range<u64>, frame_len: u64) -> Self {
        let start = space.start.next_multiple_of(frame_len);
        RunPool {
            ranges: RangeAllocator::new(start..space.end.max(start)),
            frame_len,
            shared_frames: HashMap::new(),
            spare: Vec::new(),
            spare_bytes: 0,
            stuck: Vec::new(),
            count: 0,
            long: BTreeMap::new(),
            resident_len: 0,
        }
    }

    /// A resident run for `len` bytes, of which `paid` are on the account already, as
    /// [`Kind::Promised`]; what is needed of them is the run's now. If there is no
    /// room below `cap`, the bytes that are missing on the account.
    pub(crate) fn allocate(
        &mut self,
        space: &Space,
        budget: &Budget,
        cap: Cap,
        len: usize,
        paid: &mut u64,
    ) -> Result<u64, u64> {
        let len = run_len(len);
        let allocated = self.allocate_len(space, budget, cap, len, paid);
        if allocated.is_ok() {
            self.count += 1;
            if len >= LONG_LEN {
                *self.long.entry(len).or_default() += 1;
            }
        }
        allocated
    }

    fn allocate_len(
        &mut self,
        space: &Space,
        budget: &Budget,
        cap: Cap,
        len: u64,
        paid: &mut u64,
    ) -> Result<u64, u64> {
        if let Some(at) = self.spare.iter().position(|spare| spare.1 == len) {
            let (offset, _) = self.spare.swap_remove(at);
            self.spare_bytes -= len;
            return Ok(offset);
        }
        if let Some(at) = self.stuck.iter().position(|stuck| stuck.1 == len) {
            return Ok(self.stuck.swap_remove(at).0);
        }
        let offset = self.ranges.allocate(len).ok_or(len + RUN_PRIVATE_LEN)?;
        let made = self.make_resident(space, budget, cap, offset, len, paid);
        if made.is_err() {
            self.ranges.release(offset, len);
        }
        made.map(|()| offset)
    }

    fn make_resident(
        &mut self,
        space: &Space,
        budget: &Budget,
        cap: Cap,
        offset: u64,
        len: u64,
        paid: &mut u64,
    ) -> Result<(), u64> {
        let shares = self.frame_len != PAGE_LEN;
        let (range, fresh) = if shares {
            let absent = |(frame, _): &(u64, u64)| !self.shared_frames.contains_key(frame);
            let count = self.frames(offset, len).filter(absent).count() as u64;
            let start = offset / self.frame_len * self.frame_len;
            let end = (offset + len).next_multiple_of(self.frame_len);
            (start..end, count * self.frame_len)
        } else {
            (offset..offset + len, len)
        };
        let cost = fresh + RUN_PRIVATE_LEN;
        let missing = cost.saturating_sub(*paid);
        if missing > 0 && !budget.try_charge_within(Kind::Runs, missing, cap) {
            return Err(missing);
        }
        if fresh > 0 && space.populate(range).is_err() {
            budget.release(Kind::Runs, missing);
            // The system has less than the account says.
            return Err(missing.max(self.frame_len));
        }
        budget.convert(Kind::Promised, Kind::Runs, cost - missing);
        *paid -= cost - missing;
        self.resident_len += fresh;
        if shares {
            for (frame, bytes) in self.frames(offset, len) {
                *self.shared_frames.entry(frame).or_default() += bytes;
            }
        }
        Ok(())
    }

    /// The frames that a run touches and how many of its bytes lie in each.
    fn frames(&self, offset: u64, len: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let (frame_len, end) = (self.frame_len, offset + len);
        (offset / frame_len..end.div_ceil(frame_len)).map(move |frame| {
            let from = offset.max(frame * frame_len);
            (frame, end.min((frame + 1) * frame_len) - from)
        })
    }

    /// Frees the run at `offset` that was allocated for `len` bytes.
    pub(crate) fn free(&mut self, space: &Space, budget: &Budget, offset: u64, len: usize) {
        let len = run_len(len);
        self.count -= 1;
        if let Some(count) = self.long.get_mut(&len) {
            *count -= 1;
            if *count == 0 {
                self.long.remove(&len);
            }
        }
        let spare_max = budget.limit() / SPARE_SHARE;
        if self.spare.len() < SPARE_COUNT_MAX
            && self.spare_bytes + len <= spare_max
            && budget.excess() == 0
        {
            self.spare.push((offset, len));
            self.spare_bytes += len;
            return;
        }
        self.give_back(space, budget, offset, len);
    }

    fn give_back(&mut self, space: &Space, budget: &Budget, offset: u64, len: u64) {
        if self.frame_len == PAGE_LEN {
            if space.punch(offset..offset + len).is_err() {
                self.stuck.push((offset, len));
                return;
            }
            self.resident_len -= len;
            budget.release(Kind::Runs, len + RUN_PRIVATE_LEN);
        } else {
            for (frame, bytes) in self.frames(offset, len) {
                let Some(used) = self.shared_frames.get_mut(&frame) else {
                    continue;
                };
                *used -= bytes;
                if *used == 0 {
                    self.give_frame_back(space, budget, frame);
                }
            }
            budget.release(Kind::Runs, RUN_PRIVATE_LEN);
        }
        self.ranges.release(offset, len);
    }

    /// Gives a frame that no run uses back. One that the system does not take
    /// stays known, with no bytes in use.
    fn give_frame_back(&mut self, space: &Space, budget: &Budget, frame: u64) {
        let range = frame * self.frame_len..(frame + 1) * self.frame_len;
        if space.punch(range).is_ok() {
            self.shared_frames.remove(&frame);
            self.resident_len -= self.frame_len;
            budget.release(Kind::Runs, self.frame_len);
        }
    }

    /// Asks the system again to take back what it did not.
    pub(crate) fn retry_stuck(&mut self, space: &Space, budget: &Budget) {
        for (offset, len) in std::mem::take(&mut self.stuck) {
            self.give_back(space, budget, offset, len);
        }
        if self.frame_len != PAGE_LEN {
            let unused = |(frame, used): (&u64, &u64)| (*used == 0).then_some(*frame);
            let unused: Vec<u64> = self.shared_frames.iter().filter_map(unused).collect();
            for frame in unused {
                self.give_frame_back(space, budget, frame);
            }
        }
    }

    /// Gives the spare runs back to the system; returns their bytes.
    pub(crate) fn drop_spare(&mut self, space: &Space, budget: &Budget) -> u64 {
        let bytes = std::mem::take(&mut self.spare_bytes);
        while let Some((offset, len)) = self.spare.pop() {
            self.give_back(space, budget, offset, len);
        }
        bytes
    }

    /// Bytes that are resident for runs by these books.
    pub(crate) fn resident_len(&self) -> u64 {
        self.resident_len
    }

    /// Length of the longest run in use, if there is a long one.
    pub(crate) fn longest(&self) -> Option<u64> {
        self.long.last_key_value().map(|(len, _)| *len)
    }

    /// Runs in use.
    pub(crate) fn count(&self) -> u64 {
        self.count
    }

    /// Punches every hole once more; see [`crate::pool::PagePool::punch_holes`].
    pub(crate) fn punch_holes(&self, space: &Space) {
        for range in self.ranges.free_ranges() {
            let start = range.start.next_multiple_of(self.frame_len);
            let end = range.end / self.frame_len * self.frame_len;
            if start < end {
                let _ = space.punch(start..end);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_charged_reused_and_given_back() {
        let space = Space::heap(1 << 20);
        let budget = Budget::new(1 << 20);
        let mut runs = RunPool::new(65536..1 << 20, PAGE_LEN);
        let a = runs
            .allocate(&space, &budget, Cap::At(budget.limit()), 16385, &mut 0)
            .unwrap();
        assert_eq!(budget.used(), 20480 + RUN_PRIVATE_LEN);
        let b = runs
            .allocate(&space, &budget, Cap::At(budget.limit()), 30000, &mut 0)
            .unwrap();
        assert!(a >= 65536 && b >= a + 20480);
        runs.free(&space, &budget, a, 16385);
        runs.free(&space, &budget, b, 30000);
        assert_eq!(budget.used(), 0, "too long to be kept");
        budget.set_limit(64 << 20);
        let a = runs
            .allocate(&space, &budget, Cap::At(budget.limit()), 16385, &mut 0)
            .unwrap();
        runs.free(&space, &budget, a, 16385);
        assert_eq!(runs.resident_len(), 20480);
        assert_eq!(
            runs.allocate(&space, &budget, Cap::At(budget.limit()), 17000, &mut 0),
            Ok(a),
            "kept"
        );
        runs.free(&space, &budget, a, 17000);
        runs.drop_spare(&space, &budget);
        assert_eq!((budget.used(), runs.count()), (0, 0));
    }

    #[test]
    fn the_longest_run_is_known() {
        let space = Space::heap(8 << 20);
        let budget = Budget::new(8 << 20);
        let mut runs = RunPool::new(0..8 << 20, PAGE_LEN);
        let cap = Cap::At(budget.limit());
        let allocate =
            |runs: &mut RunPool, len| runs.allocate(&space, &budget, cap, len, &mut 0).unwrap();
        allocate(&mut runs, 20_000);
        assert_eq!(runs.longest(), None, "there is no long one");
        let long = [1 << 20, 2 << 20, 2 << 20].map(|len| (allocate(&mut runs, len), len));
        assert_eq!(runs.longest(), Some(2 << 20));
        runs.free(&space, &budget, long[1].0, long[1].1);
        assert_eq!(runs.longest(), Some(2 << 20));
        runs.free(&space, &budget, long[2].0, long[2].1);
        assert_eq!(runs.longest(), Some(1 << 20));
    }

    #[test]
    fn runs_share_huge_frames() {
        let space = Space::heap(1 << 20);
        let budget = Budget::new((256 << 10) + 10 * RUN_PRIVATE_LEN);
        let mut runs = RunPool::new(0..1 << 20, 256 << 10);
        let all: Vec<_> = std::iter::from_fn(|| {
            runs.allocate(&space, &budget, Cap::At(budget.limit()), 60_000, &mut 0)
                .ok()
        })
        .collect();
        assert_eq!(all.len(), 4);
        for offset in &all[1..] {
            runs.free(&space, &budget, *offset, 60_000);
        }
        runs.drop_spare(&space, &budget);
        assert_eq!(budget.used(), (256 << 10) + RUN_PRIVATE_LEN);
        runs.free(&space, &budget, all[0], 60_000);
        runs.drop_spare(&space, &budget);
        assert_eq!(budget.used(), 0);
    }
}
