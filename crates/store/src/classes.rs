//! Size classes of data entries within pages.
//!
//! Up to 512 B there is a class every granule, up to 1 KiB every other one. Above,
//! there is a class for
//! every number of slots that a page can be cut into, down to a slot of 16 KiB
//! or half a (small) page. Larger entries get runs of their own. Many classes
//! waste little within slots; what they would waste in half-empty pages, a
//! class lends to its smaller neighbours ([`crate::slab`]).

use trefoil_layout::data::encoded_len;
use trefoil_layout::limits::GRANULE;

/// Slots up to this length are a granule apart.
const FINEST_LEN_MAX: usize = 512;
/// Slots up to this length are two granules apart.
const FINE_LEN_MAX: usize = 1024;
/// The least that an entry can take.
const LEN_MIN: usize = encoded_len(1, 0).next_multiple_of(GRANULE);
/// Longest slot.
const LEN_MAX: usize = 16 << 10;
/// Fewest slots of a page.
const SLOTS_MIN: usize = 2;

/// Longest slot in pages of `page_len`.
fn longest(page_len: usize) -> usize {
    LEN_MAX.min(page_len / SLOTS_MIN)
}

/// The classes of one page length.
#[derive(Debug)]
pub(crate) struct Classes {
    /// Slot length in bytes, by class.
    lens: Vec<u32>,
    /// Slots of a page, by class.
    counts: Vec<u16>,
    /// Class by length in granules.
    by_granules: Vec<u8>,
}

impl Classes {
    pub(crate) fn new(page_len: usize) -> Self {
        let largest = longest(page_len);
        let apart = |from: usize, to: usize, step| (from..=to.min(largest)).step_by(step);
        let mut lens: Vec<usize> = apart(LEN_MIN, FINEST_LEN_MAX, GRANULE).collect();
        lens.extend(apart(
            FINEST_LEN_MAX + 2 * GRANULE,
            FINE_LEN_MAX,
            2 * GRANULE,
        ));
        let mut coarse = Vec::new();
        let mut count = page_len / largest;
        while page_len / count > FINE_LEN_MAX {
            coarse.push(page_len / count / GRANULE * GRANULE);
            count += 1;
        }
        lens.extend(coarse.into_iter().rev().filter(|len| *len > FINE_LEN_MAX));
        let longest = lens.last().copied().unwrap_or(0) / GRANULE;
        let by_granules = (0..=longest)
            .map(|granules| lens.partition_point(|len| *len < granules * GRANULE) as u8)
            .collect();
        assert!(lens.len() < usize::from(u8::MAX));
        Classes {
            counts: lens.iter().map(|len| (page_len / len) as u16).collect(),
            lens: lens.into_iter().map(|len| len as u32).collect(),
            by_granules,
        }
    }

    /// The class for an entry of `len` bytes; `None` if it needs a run.
    #[inline]
    pub(crate) fn of(&self, len: usize) -> Option<usize> {
        self.by_granules
            .get(len.div_ceil(GRANULE))
            .map(|class| usize::from(*class))
    }

    pub(crate) fn count(&self) -> usize {
        self.lens.len()
    }

    #[inline]
    pub(crate) fn slot_len(&self, class: usize) -> u64 {
        u64::from(self.lens[class])
    }

    #[inline]
    pub(crate) fn slots(&self, class: usize) -> usize {
        usize::from(self.counts[class])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_length_gets_the_smallest_slot_that_holds_it() {
        for page_len in [4096, 16384, 65536] {
            let classes = Classes::new(page_len);
            let longest = longest(page_len);
            for len in 1..=longest {
                let class = classes.of(len).unwrap();
                assert!(classes.slot_len(class) >= len as u64);
                assert!(class == 0 || classes.slot_len(class - 1) < len as u64);
                assert!(classes.slots(class) * classes.slot_len(class) as usize <= page_len);
            }
            assert_eq!(classes.of(longest + 1), None);
        }
    }

    #[test]
    fn waste_is_bounded() {
        let classes = Classes::new(65536);
        for len in 200..16384usize {
            let class = classes.of(len).unwrap();
            let waste = 65536.0 / classes.slots(class) as f64 / len as f64;
            let bound = if len <= 1024 {
                1.10
            } else if len <= 2048 {
                1.04
            } else if len <= 8192 {
                1.13
            } else {
                1.26
            };
            assert!(waste < bound, "{len}: {waste}");
        }
    }
}
