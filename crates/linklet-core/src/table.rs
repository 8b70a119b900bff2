//! Which keys are served here: a snapshot for many threads.
//!
//! It is in segments of the key space, and a lookup is a binary search over the ranges
//! of one: one or two as a rule, some dozens amid a move. A change makes the segments
//! anew that it touches, and shares the others with the table before.

use crate::ranges::joined;
use std::sync::Arc;
use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, Slice};

/// Of the key space, by the first byte of a point.
pub(crate) const SEGMENTS: usize = 256;
const SEGMENT_BITS: u32 = SEGMENTS.ilog2();

/// What a server may do with the keys of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Serve it: the authority and all values are here.
    Owned {
        /// The fencing token.
        token: AssignmentVersion,
        /// Commits are to be told to [`Core::touched`](crate::Core::touched),
        /// because copies follow or because there is no lease.
        note: bool,
        /// Commits go through [`Core::propose`](crate::Core::propose).
        propose: bool,
    },
    /// A copy: only for who is content with one that may be a little old.
    Copy,
    /// [`Core::request`](crate::Core::request) decides.
    Ask,
}

/// See the page of this module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Table {
    segments: [Arc<Segment>; SEGMENTS],
    /// Until when `Owned` may be served, on this server's clock; `None` if
    /// no lease is needed.
    serve_until: Option<Duration>,
    version: Option<AssignmentVersion>,
}

/// One part of the key space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    /// First points, ascending; the first is the segment's.
    starts: Box<[u64]>,
    /// As long as `starts`.
    statuses: Box<[Status]>,
    /// What is owned and served, but for keys that replicas have to agree about first.
    owned: Box<[Slice]>,
}

/// Which segments are not as they should be, or something else is not.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Stale {
    segments: [u64; SEGMENTS / 64],
    is_any: bool,
}

impl Stale {
    /// Something that concerns no range.
    pub(crate) fn touch(&mut self) {
        self.is_any = true;
    }

    /// Everything.
    pub(crate) fn all(&mut self) {
        self.segments = [u64::MAX; SEGMENTS / 64];
        self.is_any = true;
    }

    pub(crate) fn range(&mut self, slice: Slice) {
        for index in segment_of(slice.start())..=segment_of(slice.last()) {
            self.segments[index / 64] |= 1 << (index % 64);
        }
        self.is_any = true;
    }

    /// Whether all of this is stale.
    pub(crate) fn covers(&self, slice: Slice) -> bool {
        (segment_of(slice.start())..=segment_of(slice.last()))
            .all(|index| self.segments[index / 64] >> (index % 64) & 1 == 1)
    }

    pub(crate) fn is_any(&self) -> bool {
        self.is_any
    }

    /// Takes the first segment out.
    pub(crate) fn pop(&mut self) -> Option<usize> {
        let first = self.segments().next()?;
        self.segments[first / 64] &= !(1 << (first % 64));
        self.is_any = self.segments != [0; SEGMENTS / 64];
        Some(first)
    }

    /// The segments as slices, neighbours joined.
    pub(crate) fn slices(&self) -> Vec<Slice> {
        joined(self.segments().map(points_of))
    }

    /// The segments, by number.
    pub(crate) fn segments(&self) -> impl Iterator<Item = usize> {
        (0..SEGMENTS).filter(|index| self.segments[index / 64] >> (index % 64) & 1 == 1)
    }
}

fn segment_of(point: KeyPoint) -> usize {
    (point.0 >> (u64::BITS - SEGMENT_BITS)) as usize
}

/// The points of a segment.
pub(crate) fn points_of(segment: usize) -> Slice {
    let width = u64::BITS - SEGMENT_BITS;
    let first = (segment as u64) << width;
    Slice::spanning(
        KeyPoint(first),
        KeyPoint(first | (u64::MAX >> SEGMENT_BITS)),
    )
}

impl Segment {
    /// From ascending disjoint ranges within it; what is between them is `Ask`. `owned`
    /// is what is told to the application.
    pub(crate) fn new(
        segment: usize,
        ranges: impl Iterator<Item = (Slice, Status)>,
        owned: Vec<Slice>,
    ) -> Self {
        let (mut starts, mut statuses): (Vec<u64>, Vec<Status>) = Default::default();
        let mut push = |start: u64, status: Status| {
            if statuses.last() != Some(&status) {
                starts.push(start);
                statuses.push(status);
            }
        };
        let whole = points_of(segment);
        let mut next = u128::from(whole.start().0);
        for (slice, status) in ranges {
            debug_assert!(next <= u128::from(slice.start().0), "ascending, disjoint");
            if next < u128::from(slice.start().0) {
                push(next as u64, Status::Ask);
            }
            push(slice.start().0, status);
            next = slice.end();
        }
        if next < whole.end() {
            push(next as u64, Status::Ask);
        }
        Segment {
            starts: starts.into(),
            statuses: statuses.into(),
            owned: owned.into(),
        }
    }

    #[inline]
    fn status(&self, point: KeyPoint) -> Status {
        let after = self.starts.partition_point(|&start| start <= point.0);
        self.statuses[after.saturating_sub(1)]
    }

    /// See [`Table::owned_anew`].
    fn owned_anew(&self, before: &Segment, last: KeyPoint, anew: &mut Vec<Slice>) {
        let (mut here, mut there) = (0, 0);
        let mut start = self.starts[0];
        loop {
            let next = |starts: &[u64], at: usize| starts.get(at + 1).copied();
            let (mine, theirs) = (next(&self.starts, here), next(&before.starts, there));
            let end = mine.into_iter().chain(theirs).min();
            let last = end.map_or(last, |end| KeyPoint(end - 1));
            if let Status::Owned { token, .. } = self.statuses[here] {
                let same = |status: &Status| matches!(status, Status::Owned { token: before, .. } if *before == token);
                if !same(&before.statuses[there]) {
                    anew.push(Slice::spanning(KeyPoint(start), last));
                }
            }
            let Some(end) = end else { return };
            here += usize::from(mine == Some(end));
            there += usize::from(theirs == Some(end));
            start = end;
        }
    }
}

impl Table {
    /// Serves nothing.
    pub fn nothing() -> Self {
        let nothing = |segment| Arc::new(Segment::new(segment, std::iter::empty(), Vec::new()));
        Table {
            segments: std::array::from_fn(nothing),
            serve_until: None,
            version: None,
        }
    }

    /// This one with other segments, by number.
    pub(crate) fn with(
        &self,
        segments: impl Iterator<Item = (usize, Segment)>,
        serve_until: Option<Duration>,
        version: Option<AssignmentVersion>,
    ) -> Self {
        let mut table = Table {
            segments: self.segments.clone(),
            serve_until,
            version,
        };
        for (index, segment) in segments {
            if *table.segments[index] != segment {
                table.segments[index] = Arc::new(segment);
            }
        }
        table
    }

    /// Whether they are the same, and not only alike: two of which one was made from the
    /// other.
    pub(crate) fn is(&self, other: &Table) -> bool {
        let mut segments = self.segments.iter().zip(&other.segments);
        (self.serve_until, self.version) == (other.serve_until, other.version)
            && segments.all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// What may be done with a key.
    #[inline]
    pub fn status(&self, point: KeyPoint) -> Status {
        self.segments[segment_of(point)].status(point)
    }

    /// Until when [`Status::Owned`] may be served, on the clock that the core
    /// is given; `None` without a limit.
    #[inline]
    pub fn serve_until(&self) -> Option<Duration> {
        self.serve_until
    }

    /// What is owned by this table and was not by that one, or under another
    /// token: whoever had it in between may have let others use it.
    pub fn owned_anew(&self, before: &Table) -> Vec<Slice> {
        let mut anew = Vec::new();
        for (index, segment) in self.segments.iter().enumerate() {
            if !Arc::ptr_eq(segment, &before.segments[index]) {
                let last = points_of(index).last();
                segment.owned_anew(&before.segments[index], last, &mut anew);
            }
        }
        joined(anew)
    }

    /// What is owned and served, ascending; keys that replicas have to agree about
    /// first among it.
    pub fn owned(&self) -> Vec<Slice> {
        let all = self
            .segments
            .iter()
            .flat_map(|segment| segment.owned.iter());
        joined(all.copied())
    }

    /// The assignment that it follows.
    pub fn version(&self) -> Option<AssignmentVersion> {
        self.version
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(generation: u64) -> Status {
        Status::Owned {
            token: AssignmentVersion {
                incarnation: 1,
                generation,
            },
            note: generation.is_multiple_of(2),
            propose: false,
        }
    }

    fn span(first: u64, last: u64) -> Slice {
        Slice::spanning(KeyPoint(first), KeyPoint(last))
    }

    #[test]
    fn what_has_come_or_was_away_is_owned_anew() {
        let table = |ranges: &[(Slice, Status)]| {
            let segment = |index| {
                let cut = |&(slice, status): &(Slice, Status)| {
                    Some((slice.intersection(points_of(index))?, status))
                };
                Segment::new(index, ranges.iter().filter_map(cut), Vec::new())
            };
            let segments = (0..SEGMENTS).map(|index| (index, segment(index)));
            Table::nothing().with(segments, None, None)
        };
        let before = table(&[
            (span(10, 19), owned(1)),
            (span(20, 29), Status::Copy),
            (span(30, 39), owned(1)),
            (span(40, u64::MAX), owned(3)),
        ]);
        let after = table(&[
            (span(5, 34), owned(1)),
            (span(35, 36), Status::Copy),
            (span(37, 39), owned(2)),
            (span(40, u64::MAX), owned(3)),
        ]);
        let anew = [span(5, 9), span(20, 29), span(37, 39)];
        assert_eq!(after.owned_anew(&before), anew);
        assert_eq!(after.owned_anew(&after), []);
        assert_eq!(Table::nothing().owned_anew(&after), []);
        let everything = table(&[(Slice::ALL, owned(1))]);
        assert_eq!(everything.owned_anew(&Table::nothing()), [Slice::ALL]);
    }

    #[test]
    fn segments_that_are_not_stale_are_shared() {
        let ranges = |index| (index, [(points_of(index), owned(1))]);
        let segment = |index| {
            let (index, ranges) = ranges(index);
            (
                index,
                Segment::new(index, ranges.into_iter(), vec![points_of(index)]),
            )
        };
        let before = Table::nothing().with([7, 8].into_iter().map(segment), None, None);
        let both = Slice::spanning(points_of(7).start(), points_of(8).last());
        assert_eq!(before.owned(), [both], "neighbours are joined");
        // One that is made anew and comes out the same is no news.
        assert!(
            before
                .with([8].into_iter().map(segment), None, None)
                .is(&before)
        );
        let nothing = Segment::new(8, std::iter::empty(), Vec::new());
        let after = before.with(std::iter::once((8, nothing)), None, None);
        assert!(!after.is(&before));
        assert_eq!(after.owned(), [points_of(7)]);
        assert_eq!(after.status(points_of(7).last()), owned(1));
        assert_eq!(after.status(points_of(8).start()), Status::Ask);
        let mut stale = Stale::default();
        stale.range(Slice::spanning(points_of(63).last(), points_of(65).start()));
        assert_eq!(stale.segments().collect::<Vec<_>>(), [63, 64, 65]);
        stale.all();
        assert_eq!(stale.segments().count(), SEGMENTS);
    }
}
