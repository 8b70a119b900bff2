//! Facts about ranges of the key space: disjoint, in order, neighbours with
//! the same fact joined.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Bound::{self, Excluded, Included, Unbounded};
use trefoil_sharder::{AssignedSlice, KeyPoint, Slice};

/// From points to facts. Amid a move there are tens of thousands of ranges, and each
/// chunk changes one of them: so a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeMap<T> {
    /// By first point: last point and fact. Disjoint; no two that touch are equal.
    ranges: BTreeMap<KeyPoint, (KeyPoint, T)>,
}

/// A set of points.
pub(crate) type RangeSet = RangeMap<()>;

impl<T> Default for RangeMap<T> {
    fn default() -> Self {
        RangeMap {
            ranges: BTreeMap::new(),
        }
    }
}

impl<T: Clone + PartialEq> RangeMap<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    pub(crate) fn get(&self, point: KeyPoint) -> Option<&T> {
        self.find(point).map(|(_, fact)| fact)
    }

    /// The range that the point lies in.
    pub(crate) fn find(&self, point: KeyPoint) -> Option<(Slice, &T)> {
        let (&first, (last, fact)) = self.ranges.range(..=point).next_back()?;
        (point <= *last).then(|| (Slice::spanning(first, *last), fact))
    }

    /// What is known of a point, and up to where that is so.
    pub(crate) fn run(&self, point: KeyPoint) -> (Option<&T>, KeyPoint) {
        if let Some((range, fact)) = self.find(point) {
            return (Some(fact), range.last());
        }
        let next = self.ranges.range(point..).next();
        // The point lies before it.
        let last = next.map_or(KeyPoint(u64::MAX), |(next, _)| KeyPoint(next.0 - 1));
        (None, last)
    }

    pub(crate) fn has(&self, point: KeyPoint) -> bool {
        self.find(point).is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slice, &T)> {
        let ranges = self.ranges.iter();
        ranges.map(|(&first, (last, fact))| (Slice::spanning(first, *last), fact))
    }

    /// What lies in a range, cut to it.
    pub(crate) fn within(&self, slice: Slice) -> impl Iterator<Item = (Slice, &T)> {
        let across = self.find(slice.start());
        let first = across.map_or(slice.start(), |(range, _)| range.start());
        let ranges = self.ranges.range(first..=slice.last());
        ranges.map_while(move |(&first, (last, fact))| {
            let part = Slice::spanning(first, *last).intersection(slice)?;
            Some((part, fact))
        })
    }

    pub(crate) fn touches(&self, slice: Slice) -> bool {
        self.within(slice).next().is_some()
    }

    /// The parts of a range of which nothing is known.
    pub(crate) fn gaps(&self, slice: Slice) -> Vec<Slice> {
        let mut gaps = Vec::new();
        let mut next = u128::from(slice.start().0);
        for (range, _) in self.within(slice) {
            gaps.extend(Slice::new(KeyPoint(next as u64), range.start().0.into()));
            next = range.end();
        }
        if next < slice.end() {
            gaps.extend(Slice::new(KeyPoint(next as u64), slice.end()));
        }
        gaps
    }

    pub(crate) fn covers(&self, slice: Slice) -> bool {
        let mut next = u128::from(slice.start().0);
        for (range, _) in self.within(slice) {
            if u128::from(range.start().0) != next {
                return false;
            }
            next = range.end();
        }
        next == slice.end()
    }

    pub(crate) fn insert(&mut self, slice: Slice, fact: T) {
        self.remove(slice);
        let (mut first, mut last) = (slice.start(), slice.last());
        if let Some((&before, (its_last, had))) = self.ranges.range(..first).next_back()
            && *had == fact
            && its_last.0.checked_add(1) == Some(first.0)
        {
            first = before;
        }
        if let Some(after) = last.0.checked_add(1).map(KeyPoint)
            && let Some((its_last, had)) = self.ranges.get(&after)
            && *had == fact
        {
            last = *its_last;
            self.ranges.remove(&after);
        }
        self.ranges.insert(first, (last, fact));
    }

    pub(crate) fn remove(&mut self, slice: Slice) {
        // One that begins before it keeps what lies on either side.
        if let Some((_, (its_last, fact))) = self.ranges.range_mut(..slice.start()).next_back()
            && *its_last >= slice.start()
        {
            let (had, fact) = (*its_last, fact.clone());
            *its_last = KeyPoint(slice.start().0 - 1);
            if had > slice.last() {
                let rest = KeyPoint(slice.last().0 + 1);
                self.ranges.insert(rest, (had, fact));
                return;
            }
        }
        while let Some((&first, (last, _))) = self.ranges.range(slice.start()..=slice.last()).next()
        {
            let beyond = *last > slice.last();
            let Some((last, fact)) = self.ranges.remove(&first) else {
                return;
            };
            if beyond {
                let rest = KeyPoint(slice.last().0 + 1);
                self.ranges.insert(rest, (last, fact));
            }
        }
    }

    pub(crate) fn remove_all(&mut self, gone: impl Iterator<Item = Slice>) {
        gone.for_each(|slice| self.remove(slice));
    }

    /// Ranges that are here and not there as they are here, cut to a slice.
    pub(crate) fn unlike(&self, other: &Self, within: Slice) -> Vec<Slice> {
        let is_there = |slice: Slice, fact: &T| {
            let same = other.find(slice.start());
            same.is_some_and(|(range, of)| of == fact && range.last() >= slice.last())
        };
        self.within(within)
            .filter(|&(slice, fact)| !is_there(slice, fact))
            .map(|(slice, _)| slice)
            .collect()
    }

    /// The ranges alone; neighbours with different facts are joined.
    pub(crate) fn slices(&self) -> Vec<Slice> {
        joined(self.iter().map(|(slice, _)| slice))
    }
}

impl RangeSet {
    pub(crate) fn of(slices: impl IntoIterator<Item = Slice>) -> Self {
        let mut set = RangeSet::default();
        for slice in slices {
            set.add(slice);
        }
        set
    }

    pub(crate) fn add(&mut self, slice: Slice) {
        if !self.covers(slice) {
            self.insert(slice, ());
        }
    }

    pub(crate) fn common(&self, slice: Slice) -> impl Iterator<Item = Slice> {
        self.within(slice).map(|(slice, ())| slice)
    }
}

/// A key in the key space: keys are ordered by their points.
pub(crate) type Key = (KeyPoint, Bytes);

/// The keys whose points are in a slice.
pub(crate) fn keys_of(slice: Slice) -> (Bound<Key>, Bound<Key>) {
    let next = slice.last().0.checked_add(1);
    let end = next.map(|next| Excluded((KeyPoint(next), Bytes::new())));
    let start = Included((slice.start(), Bytes::new()));
    (start, end.unwrap_or(Unbounded))
}

/// The assigned slices that have points of a slice.
pub(crate) fn overlapping(map: &[AssignedSlice], slice: Slice) -> &[AssignedSlice] {
    let from = map.partition_point(|assigned| assigned.slice.last() < slice.start());
    let rest = &map[from..];
    let count = rest.partition_point(|assigned| assigned.slice.start() <= slice.last());
    &rest[..count]
}

/// The parts of the key space whose servers differ between two maps, by what is the same;
/// ascending.
pub(crate) fn differing(
    before: &[AssignedSlice],
    after: &[AssignedSlice],
    same: impl Fn(&AssignedSlice, &AssignedSlice) -> bool,
) -> Vec<Slice> {
    let (mut here, mut there) = (before.iter().peekable(), after.iter().peekable());
    let mut parts = Vec::new();
    while let (Some(a), Some(b)) = (here.peek(), there.peek()) {
        if let Some(part) = a.slice.intersection(b.slice)
            && !same(a, b)
        {
            parts.push(part);
        }
        let (a_last, b_last) = (a.slice.last(), b.slice.last());
        if a_last <= b_last {
            here.next();
        }
        if b_last <= a_last {
            there.next();
        }
    }
    joined(parts)
}

/// The parts of ascending disjoint slices that lie in a slice.
pub(crate) fn parts_within(slices: &[Slice], within: Slice) -> impl Iterator<Item = Slice> {
    let from = slices.partition_point(|slice| slice.last() < within.start());
    slices[from..]
        .iter()
        .map_while(move |slice| slice.intersection(within))
}

/// Ascending disjoint slices with those that touch joined.
pub(crate) fn joined(slices: impl IntoIterator<Item = Slice>) -> Vec<Slice> {
    let mut result: Vec<Slice> = Vec::new();
    for slice in slices {
        match result.last_mut() {
            Some(last) if last.join(slice).is_some() => {
                *last = Slice::spanning(last.start(), slice.last());
            }
            _ => result.push(slice),
        }
    }
    result
}

/// Whether slices from outside are ascending and disjoint, as all messages
/// have to have them.
pub(crate) fn in_order(slices: &[Slice]) -> bool {
    slices
        .windows(2)
        .all(|pair| pair[0].last() < pair[1].start())
}

/// The parts of `a` that are in `b`; both ascending and disjoint.
pub(crate) fn common(a: &[Slice], b: &RangeSet) -> Vec<Slice> {
    a.iter().flat_map(|&slice| b.common(slice)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn slice() -> impl Strategy<Value = Slice> {
        (0u64..24, 0u64..24).prop_map(|(a, b)| {
            // The top of the key space, so that its end is met too.
            let top = |x: u64| KeyPoint(if x > 11 { u64::MAX - 23 + x } else { x });
            Slice::spanning(top(a), top(b))
        })
    }

    proptest! {
        #[test]
        fn is_a_map_of_points(
            steps in prop::collection::vec((slice(), prop::option::of(0u8..3)), 0..30),
            holes in prop::collection::vec(slice(), 0..6),
            probe in slice(),
        ) {
            let points: Vec<u64> = (0..12).chain(u64::MAX - 11..=u64::MAX).collect();
            let mut model = std::collections::BTreeMap::new();
            let mut map = RangeMap::default();
            for (slice, fact) in steps {
                for &point in points.iter().filter(|&&p| slice.contains(KeyPoint(p))) {
                    match fact {
                        Some(fact) => model.insert(point, fact),
                        None => model.remove(&point),
                    };
                }
                match fact {
                    Some(fact) => map.insert(slice, fact),
                    None => map.remove(slice),
                }
                for &point in &points {
                    prop_assert_eq!(map.get(KeyPoint(point)), model.get(&point));
                    let (fact, last) = map.run(KeyPoint(point));
                    prop_assert_eq!(fact, model.get(&point));
                    for &other in points.iter().filter(|&&other| other >= point && other <= last.0) {
                        prop_assert_eq!(model.get(&other), fact);
                    }
                    // It goes as far as it can.
                    let next = last.0.checked_add(1).filter(|next| points.contains(next));
                    prop_assert!(next.is_none_or(|next| model.get(&next) != fact));
                }
                let ranges: Vec<_> = map.iter().collect();
                for pair in ranges.windows(2) {
                    prop_assert!(pair[0].0.last() < pair[1].0.start());
                    prop_assert!(pair[0].1 != pair[1].1 || pair[0].0.join(pair[1].0).is_none());
                }
            }
            let mut holed = map.clone();
            holed.remove_all(holes.iter().copied());
            for &point in &points {
                let is_gone = holes.iter().any(|hole| hole.contains(KeyPoint(point)));
                let expected = model.get(&point).filter(|_| !is_gone);
                prop_assert_eq!(holed.get(KeyPoint(point)), expected);
            }
            let inside = RangeSet::of(map.within(probe).map(|(slice, _)| slice));
            let gaps = RangeSet::of(map.gaps(probe));
            for &point in points.iter().filter(|&&p| probe.contains(KeyPoint(p))) {
                let point = KeyPoint(point);
                prop_assert_eq!(inside.has(point), map.has(point));
                prop_assert_eq!(gaps.has(point), !map.has(point));
            }
            prop_assert_eq!(map.covers(probe), map.gaps(probe).is_empty());
        }
    }
}
