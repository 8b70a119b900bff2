//! Values remembered for ranges of the key space; what is newer covers what is
//! older.

use crate::key::{KeyPoint, Slice};
use std::collections::BTreeMap;

/// Disjoint ranges, each with a value.
#[derive(Clone, Debug)]
pub(crate) struct RangeMap<T> {
    /// By start; the value's range ends at the point beside it.
    ranges: BTreeMap<KeyPoint, (KeyPoint, T)>,
}

impl<T> Default for RangeMap<T> {
    fn default() -> Self {
        RangeMap {
            ranges: BTreeMap::new(),
        }
    }
}

impl<T: Copy> RangeMap<T> {
    /// Sets the value of every point of `slice`.
    pub(crate) fn insert(&mut self, slice: Slice, value: T) {
        let covered: Vec<Slice> = self.overlapping(slice).map(|(old, _)| old).collect();
        for old in covered {
            let Some((_, kept)) = self.ranges.remove(&old.start()) else {
                continue;
            };
            if old.start() < slice.start() {
                self.ranges
                    .insert(old.start(), (KeyPoint(slice.start().0 - 1), kept));
            }
            if old.last() > slice.last() {
                self.ranges
                    .insert(KeyPoint(slice.last().0 + 1), (old.last(), kept));
            }
        }
        self.ranges.insert(slice.start(), (slice.last(), value));
    }

    /// Every range that has a point in common with `slice`, from the highest
    /// to the lowest.
    pub(crate) fn overlapping(&self, slice: Slice) -> impl Iterator<Item = (Slice, T)> + '_ {
        self.ranges
            .range(..=slice.last())
            .rev()
            .map(|(&start, &(last, value))| (Slice::spanning(start, last), value))
            .take_while(move |(range, _)| range.last() >= slice.start())
    }

    /// Forgets the ranges whose value does not pass.
    pub(crate) fn retain(&mut self, keep: impl Fn(T) -> bool) {
        self.ranges.retain(|_, (_, value)| keep(*value));
    }

    /// Changes every value.
    pub(crate) fn update(&mut self, change: impl Fn(T) -> T) {
        for (_, value) in self.ranges.values_mut() {
            *value = change(*value);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.ranges.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against one value for each of 64 points.
        #[test]
        fn like_an_array(
            writes in prop::collection::vec((0u64..64, 0u64..64), 0..40),
            (a, b) in (0u64..64, 0u64..64),
        ) {
            let mut model = [None; 64];
            let mut map = RangeMap::default();
            for (i, &(a, b)) in writes.iter().enumerate() {
                let slice = Slice::spanning(KeyPoint(a), KeyPoint(b));
                map.insert(slice, i);
                for point in slice.start().0..=slice.last().0 {
                    model[point as usize] = Some(i);
                }
            }
            let asked = Slice::spanning(KeyPoint(a), KeyPoint(b));
            let mut found = [None; 64];
            for (range, value) in map.overlapping(asked) {
                let range = range.intersection(asked).expect("it overlaps");
                for point in range.start().0..=range.last().0 {
                    prop_assert_eq!(found[point as usize].replace(value), None);
                }
            }
            let lo = asked.start().0 as usize;
            let hi = asked.last().0 as usize;
            prop_assert_eq!(&found[lo..=hi], &model[lo..=hi]);
        }
    }
}
