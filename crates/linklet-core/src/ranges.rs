//! Facts about ranges of the key space: disjoint, in order, neighbours with
//! the same fact joined.

use trefoil_sharder::{AssignedSlice, KeyPoint, Slice};

/// From points to facts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RangeMap<T> {
    /// Ascending and disjoint; no two that touch are equal.
    ranges: Vec<(Slice, T)>,
}

/// A set of points.
pub(crate) type RangeSet = RangeMap<()>;

impl<T> Default for RangeMap<T> {
    fn default() -> Self {
        RangeMap { ranges: Vec::new() }
    }
}

impl<T: Clone + PartialEq> RangeMap<T> {
    pub(crate) fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// Index of the first range that does not end before the point.
    fn from(&self, point: KeyPoint) -> usize {
        self.ranges
            .partition_point(|(slice, _)| slice.last() < point)
    }

    pub(crate) fn get(&self, point: KeyPoint) -> Option<&T> {
        self.find(point).map(|(_, fact)| fact)
    }

    /// The range that the point lies in.
    pub(crate) fn find(&self, point: KeyPoint) -> Option<(Slice, &T)> {
        let (slice, fact) = self.ranges.get(self.from(point))?;
        slice.contains(point).then_some((*slice, fact))
    }

    pub(crate) fn has(&self, point: KeyPoint) -> bool {
        self.find(point).is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slice, &T)> {
        self.ranges.iter().map(|(slice, fact)| (*slice, fact))
    }

    /// What lies in a range, cut to it.
    pub(crate) fn within(&self, slice: Slice) -> impl Iterator<Item = (Slice, &T)> {
        self.ranges[self.from(slice.start())..]
            .iter()
            .map_while(move |(range, fact)| Some((range.intersection(slice)?, fact)))
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
        match self.ranges.last_mut() {
            Some((last, _)) if slice.start() <= last.last() => self.replace(slice, Some(fact)),
            // What is built in order is only appended to.
            Some((last, had)) if *had == fact && last.join(slice).is_some() => {
                *last = Slice::spanning(last.start(), slice.last());
            }
            _ => self.ranges.push((slice, fact)),
        }
    }

    pub(crate) fn remove(&mut self, slice: Slice) {
        if self.touches(slice) {
            self.replace(slice, None);
        }
    }

    /// Removes ascending disjoint ranges in one pass: one after the other, each
    /// would move all that lie behind it.
    pub(crate) fn remove_all(&mut self, gone: impl Iterator<Item = Slice>) {
        let mut gone = gone.peekable();
        if gone.peek().is_none() {
            return;
        }
        let mut kept = Vec::with_capacity(self.ranges.len());
        for (slice, fact) in self.ranges.drain(..) {
            let mut rest = Some(slice);
            while let (Some(part), Some(&hole)) = (rest, gone.peek()) {
                if hole.start() > part.last() {
                    break;
                }
                if hole.last() >= part.start() {
                    if hole.start() > part.start() {
                        let before = KeyPoint(hole.start().0 - 1);
                        kept.push((Slice::spanning(part.start(), before), fact.clone()));
                    }
                    rest = (hole.last() < part.last())
                        .then(|| Slice::spanning(KeyPoint(hole.last().0 + 1), part.last()));
                }
                // One that goes on behind this range stays for the next.
                if rest.is_some() {
                    gone.next();
                }
            }
            kept.extend(rest.map(|rest| (rest, fact)));
        }
        self.ranges = kept;
    }

    fn replace(&mut self, slice: Slice, fact: Option<T>) {
        let first = self.from(slice.start());
        let mut after = first;
        while self
            .ranges
            .get(after)
            .is_some_and(|(range, _)| range.start() <= slice.last())
        {
            after += 1;
        }
        let mut new: [Option<(Slice, T)>; 3] = [None, None, None];
        if let Some((range, kept)) = self.ranges[first..after].first()
            && let Some((left, _)) = range.split_before(slice.start())
        {
            new[0] = Some((left, kept.clone()));
        }
        new[1] = fact.map(|fact| (slice, fact));
        if let Some((range, kept)) = self.ranges[first..after].last()
            && slice.last() < range.last()
        {
            let right = Slice::spanning(KeyPoint(slice.last().0 + 1), range.last());
            new[2] = Some((right, kept.clone()));
        }
        let count = new.iter().flatten().count();
        self.ranges.splice(first..after, new.into_iter().flatten());
        // Join with the neighbours, from the right so that indices stay.
        let low = first.saturating_sub(1);
        let high = (first + count).min(self.ranges.len().saturating_sub(1));
        for at in (low..high).rev() {
            let (a, b) = (&self.ranges[at], &self.ranges[at + 1]);
            if a.1 == b.1
                && let Some(joined) = a.0.join(b.0)
            {
                self.ranges[at].0 = joined;
                self.ranges.remove(at + 1);
            }
        }
    }

    /// The ranges alone; neighbours with different facts are joined.
    pub(crate) fn slices(&self) -> Vec<Slice> {
        joined(self.ranges.iter().map(|(slice, _)| *slice))
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

/// The assigned slices that have points of a slice.
pub(crate) fn overlapping(map: &[AssignedSlice], slice: Slice) -> &[AssignedSlice] {
    let from = map.partition_point(|assigned| assigned.slice.last() < slice.start());
    let rest = &map[from..];
    let count = rest.partition_point(|assigned| assigned.slice.start() <= slice.last());
    &rest[..count]
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
                }
                for pair in map.ranges.windows(2) {
                    prop_assert!(pair[0].0.last() < pair[1].0.start());
                    prop_assert!(pair[0].1 != pair[1].1 || pair[0].0.join(pair[1].0).is_none());
                }
            }
            let holes = RangeSet::of(holes);
            let mut one_pass = map.clone();
            one_pass.remove_all(holes.iter().map(|(slice, ())| slice));
            let mut one_by_one = map.clone();
            holes.iter().for_each(|(slice, ())| one_by_one.remove(slice));
            prop_assert_eq!(&one_pass, &one_by_one);
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
