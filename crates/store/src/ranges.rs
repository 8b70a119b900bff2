//! Free ranges of offsets in a sparse region.
//!
//! Offsets cost nothing, resident bytes do; so the space is made many times
//! larger than what may be resident, and allocation goes to the lowest free
//! range that fits. For address-ordered first fit Robson's bound says that
//! `M * log2(largest / smallest)` of space suffice for `M` live bytes: the
//! regions are made that large, so fragmentation cannot make an allocation fail.
//!
//! To find that range without walking, free ranges are also kept by the power
//! of two of their length. Within the bin that holds both fitting and too
//! short ranges only the lowest few are looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

const BIN_COUNT: usize = 48;
/// Ranges looked at in the bin where not every one fits.
const BIN_PROBES: usize = 8;

/// Free ranges of one space.
#[derive(Debug)]
pub(crate) struct RangeAllocator {
    /// Length by start.
    free: BTreeMap<u64, u64>,
    /// Starts by the power of two below the length.
    bins: [BTreeSet<u64>; BIN_COUNT],
    /// Where the last allocation of [`RangeAllocator::allocate_onward`] ended.
    onward: u64,
}

fn bin(len: u64) -> usize {
    (len.ilog2() as usize).min(BIN_COUNT - 1)
}

impl RangeAllocator {
    /// All of `space` is free.
    pub(crate) fn new(space: Range<u64>) -> Self {
        let mut ranges = RangeAllocator {
            free: BTreeMap::new(),
            bins: std::array::from_fn(|_| BTreeSet::new()),
            onward: space.start,
        };
        if !space.is_empty() {
            ranges.insert(space.start, space.end - space.start);
        }
        ranges
    }

    fn insert(&mut self, start: u64, len: u64) {
        self.free.insert(start, len);
        self.bins[bin(len)].insert(start);
    }

    fn remove(&mut self, start: u64) -> u64 {
        let len = self.free.remove(&start).expect("a free range");
        self.bins[bin(len)].remove(&start);
        len
    }

    /// Takes `len` bytes at the lowest place where they fit.
    pub(crate) fn allocate(&mut self, len: u64) -> Option<u64> {
        let own = bin(len);
        let probed = self.bins[own]
            .iter()
            .take(BIN_PROBES)
            .copied()
            .find(|start| self.free[start] >= len);
        let larger = self.bins[own + 1..]
            .iter()
            .filter_map(|starts| starts.first().copied())
            .min();
        let start = match (probed, larger) {
            (Some(a), Some(b)) => a.min(b),
            (a, b) => a.or(b).or_else(|| {
                self.bins[own]
                    .iter()
                    .copied()
                    .find(|start| self.free[start] >= len)
            })?,
        };
        self.cut(start, start, len);
        Some(start)
    }

    /// Takes `len` bytes behind the previous allocation, wrapping at the end:
    /// what was given back stays untouched for as long as possible.
    pub(crate) fn allocate_onward(&mut self, len: u64) -> Option<u64> {
        let fits = |(start, free_len): (&u64, &u64)| (*free_len >= len).then_some(*start);
        // The range that `onward` lies within, then those behind it.
        if let Some((&start, &free_len)) = self.free.range(..=self.onward).next_back()
            && start + free_len >= self.onward + len
        {
            let at = self.onward;
            self.cut(start, at, len);
            self.onward = at + len;
            return Some(at);
        }
        let start = self
            .free
            .range(self.onward..)
            .find_map(fits)
            .or_else(|| self.free.iter().find_map(fits))?;
        self.cut(start, start, len);
        self.onward = start + len;
        Some(start)
    }

    /// Takes `at..at + len` out of the free range that begins at `start`.
    fn cut(&mut self, start: u64, at: u64, len: u64) {
        let free_len = self.remove(start);
        if at > start {
            self.insert(start, at - start);
        }
        let rest = start + free_len - (at + len);
        if rest > 0 {
            self.insert(at + len, rest);
        }
    }

    /// Gives `len` bytes at `start` back, joining free neighbours.
    pub(crate) fn release(&mut self, start: u64, len: u64) {
        let (mut start, mut len) = (start, len);
        if let Some((&before, &before_len)) = self.free.range(..start).next_back() {
            debug_assert!(before + before_len <= start, "released twice");
            if before + before_len == start {
                self.remove(before);
                start = before;
                len += before_len;
            }
        }
        if self.free.contains_key(&(start + len)) {
            len += self.remove(start + len);
        }
        self.insert(start, len);
    }

    /// The free ranges, lowest first.
    pub(crate) fn free_ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.free.iter().map(|(&start, &len)| start..start + len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lowest_fit_and_joined_neighbours() {
        let mut ranges = RangeAllocator::new(100..1100);
        let a = ranges.allocate(100).unwrap();
        let b = ranges.allocate(200).unwrap();
        let c = ranges.allocate(50).unwrap();
        assert_eq!((a, b, c), (100, 200, 400));
        ranges.release(a, 100);
        assert_eq!(ranges.allocate(150), Some(450), "the hole is too short");
        assert_eq!(ranges.allocate(60), Some(100));
        ranges.release(100, 60);
        ranges.release(b, 200);
        ranges.release(c, 50);
        ranges.release(450, 150);
        assert!(ranges.free_ranges().eq(std::iter::once(100..1100)));
        assert_eq!(ranges.allocate(1001), None);
    }

    #[test]
    fn onward_reuses_as_late_as_possible() {
        let mut ranges = RangeAllocator::new(0..400);
        let a = ranges.allocate_onward(100).unwrap();
        ranges.release(a, 100);
        assert_eq!(ranges.allocate_onward(100), Some(100));
        assert_eq!(ranges.allocate_onward(100), Some(200));
        ranges.release(100, 100);
        assert_eq!(ranges.allocate_onward(100), Some(300));
        assert_eq!(ranges.allocate_onward(150), Some(0), "wrapped");
    }

    /// Many sizes over a small multiple of what lives: never refused.
    #[test]
    fn fragmentation_does_not_refuse() {
        const LIVE_MAX: u64 = 1 << 20;
        let mut ranges = RangeAllocator::new(0..16 * LIVE_MAX);
        let mut live = Vec::new();
        let (mut bytes, mut seed) = (0, 7u64);
        for _ in 0..50_000 {
            seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
            let len = (4 << (seed >> 60)) | (seed >> 40 & 3);
            while bytes + len > LIVE_MAX {
                let (start, len) = live.swap_remove((seed >> 20) as usize % live.len());
                ranges.release(start, len);
                bytes -= len;
            }
            live.push((ranges.allocate(len).expect("room"), len));
            bytes += len;
        }
        live.sort_unstable();
        assert!(live.windows(2).all(|w| w[0].0 + w[0].1 <= w[1].0));
    }
}
