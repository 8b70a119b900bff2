//! Which keys are served here: a snapshot for many threads.
//!
//! It is in segments of the key space. Of most of them one thing holds; of the others a
//! lookup is a binary search over the ranges of one, some dozens amid a move. A change makes
//! the segments anew that it touches, and shares the others with the table before, in groups.

use crate::ranges::joined;
use std::sync::Arc;
use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, Slice};

/// Of the key space, by the first byte of a point.
pub(crate) const SEGMENTS: usize = 256;
const SEGMENT_BITS: u32 = SEGMENTS.ilog2();
/// Segments that tables share together: as many as there are groups.
const GROUP: usize = 16;
const _: () = assert!(GROUP * GROUP == SEGMENTS);

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
    groups: [Arc<[Segment; GROUP]>; SEGMENTS / GROUP],
    /// Until when `Owned` may be served, on this server's clock; `None` if
    /// no lease is needed.
    serve_until: Option<Duration>,
    version: Option<AssignmentVersion>,
}

/// One part of the key space.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Segment {
    /// Of all of it the same holds.
    Whole(Status),
    Parts(Arc<Parts>),
}

/// A segment of which not everything is the same.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// First points of all ranges but the first, ascending.
    starts: Box<[u64]>,
    /// One more than `starts`.
    statuses: Box<[Status]>,
    /// What is owned and served, but for keys that replicas have to agree about first.
    owned: Box<[Slice]>,
}

/// What holds from one point up to another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) status: Status,
    /// It is owned and served, whatever its keys wait for.
    pub(crate) is_owned: bool,
    pub(crate) last: KeyPoint,
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
        let mut runs: Vec<(usize, usize)> = Vec::new();
        for index in self.segments() {
            match runs.last_mut() {
                Some((_, last)) if *last + 1 == index => *last = index,
                _ => runs.push((index, index)),
            }
        }
        let slice =
            |(first, last)| Slice::spanning(points_of(first).start(), points_of(last).last());
        runs.into_iter().map(slice).collect()
    }

    /// The segments, by number.
    pub(crate) fn segments(&self) -> impl Iterator<Item = usize> {
        let words = self.segments.iter().enumerate();
        words.flat_map(|(word, &bits)| {
            let rest = |bits: &u64| Some(bits & (bits - 1)).filter(|&rest| rest != 0);
            let rests = std::iter::successors(Some(bits).filter(|&bits| bits != 0), rest);
            rests.map(move |bits| word * 64 + bits.trailing_zeros() as usize)
        })
    }

    /// How many.
    pub(crate) fn count(&self) -> u64 {
        self.segments
            .iter()
            .map(|bits| u64::from(bits.count_ones()))
            .sum()
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
    /// From what holds at a point and behind it. `run` is what was found last, for a segment
    /// before this one: it may hold of this one, too.
    pub(crate) fn new(segment: usize, run: &mut Option<Run>, at: impl Fn(KeyPoint) -> Run) -> Self {
        let whole = points_of(segment);
        let found = match *run {
            Some(run) if run.last >= whole.start() => run,
            _ => at(whole.start()),
        };
        if found.last < whole.last() || found.is_owned != found.status.is_owned() {
            return Segment::in_parts(whole, run, found, at);
        }
        *run = Some(found);
        Segment::Whole(found.status)
    }

    fn in_parts(
        whole: Slice,
        run: &mut Option<Run>,
        mut found: Run,
        at: impl Fn(KeyPoint) -> Run,
    ) -> Self {
        let mut starts: Vec<u64> = Vec::new();
        let mut statuses = vec![found.status];
        let mut owned: Vec<Slice> = Vec::new();
        let mut start = whole.start();
        loop {
            if statuses.last() != Some(&found.status) {
                starts.push(start.0);
                statuses.push(found.status);
            }
            let last = found.last.min(whole.last());
            if found.is_owned {
                match owned.last_mut() {
                    Some(slice) if slice.end() == u128::from(start.0) => {
                        *slice = Slice::spanning(slice.start(), last);
                    }
                    _ => owned.push(Slice::spanning(start, last)),
                }
            }
            if last == whole.last() {
                break;
            }
            start = KeyPoint(last.0 + 1);
            found = at(start);
        }
        *run = Some(found);
        let own: &[Slice] = match statuses[0].is_owned() {
            true => &[whole],
            false => &[],
        };
        if starts.is_empty() && owned == own {
            return Segment::Whole(statuses[0]);
        }
        Segment::Parts(Arc::new(Parts {
            starts: starts.into(),
            statuses: statuses.into(),
            owned: owned.into(),
        }))
    }

    #[inline]
    fn status(&self, point: KeyPoint) -> Status {
        match self {
            Segment::Whole(status) => *status,
            Segment::Parts(parts) => {
                let at = parts.starts.partition_point(|&start| start <= point.0);
                parts.statuses[at]
            }
        }
    }

    /// First points of all ranges but the first, and what holds of each range.
    fn ranges(&self) -> (&[u64], &[Status]) {
        match self {
            Segment::Whole(status) => (&[], std::slice::from_ref(status)),
            Segment::Parts(parts) => (&parts.starts, &parts.statuses),
        }
    }

    /// See [`Table::owned`]; its points are these.
    fn owned(&self, whole: Slice) -> impl Iterator<Item = Slice> {
        let (whole, parts) = match self {
            Segment::Whole(status) => (status.is_owned().then_some(whole), &[][..]),
            Segment::Parts(parts) => (None, &parts.owned[..]),
        };
        whole.into_iter().chain(parts.iter().copied())
    }

    /// See [`Table::owned_anew`]; its points are these.
    fn owned_anew(&self, before: &Segment, whole: Slice, anew: &mut Vec<Slice>) {
        let ((starts, statuses), (starts_before, before)) = (self.ranges(), before.ranges());
        let (mut here, mut there) = (0, 0);
        let mut start = whole.start();
        loop {
            let (mine, theirs) = (starts.get(here), starts_before.get(there));
            let end = mine.into_iter().chain(theirs).min().copied();
            let last = end.map_or(whole.last(), |end| KeyPoint(end - 1));
            if let Status::Owned { token, .. } = statuses[here] {
                let same = |status: &Status| matches!(status, Status::Owned { token: before, .. } if *before == token);
                if !same(&before[there]) {
                    anew.push(Slice::spanning(start, last));
                }
            }
            let Some(end) = end else { return };
            here += usize::from(mine == Some(&end));
            there += usize::from(theirs == Some(&end));
            start = KeyPoint(end);
        }
    }
}

impl Status {
    fn is_owned(&self) -> bool {
        matches!(self, Status::Owned { .. })
    }
}

impl Table {
    /// Serves nothing.
    pub fn nothing() -> Self {
        let nothing = Arc::new([const { Segment::Whole(Status::Ask) }; GROUP]);
        Table {
            groups: std::array::from_fn(|_| Arc::clone(&nothing)),
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
            groups: self.groups.clone(),
            serve_until,
            version,
        };
        for (index, segment) in segments {
            let group = &mut table.groups[index / GROUP];
            if group[index % GROUP] != segment {
                Arc::make_mut(group)[index % GROUP] = segment;
            }
        }
        table
    }

    /// Whether they are the same, and not only alike: two of which one was made from the
    /// other.
    pub(crate) fn is(&self, other: &Table) -> bool {
        let mut groups = self.groups.iter().zip(&other.groups);
        (self.serve_until, self.version) == (other.serve_until, other.version)
            && groups.all(|(a, b)| Arc::ptr_eq(a, b))
    }

    /// What may be done with a key.
    #[inline]
    pub fn status(&self, point: KeyPoint) -> Status {
        let index = segment_of(point);
        self.groups[index / GROUP][index % GROUP].status(point)
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
        for (number, (group, before)) in self.groups.iter().zip(&before.groups).enumerate() {
            if Arc::ptr_eq(group, before) {
                continue;
            }
            for (at, (segment, before)) in group.iter().zip(&**before).enumerate() {
                if segment != before {
                    segment.owned_anew(before, points_of(number * GROUP + at), &mut anew);
                }
            }
        }
        joined(anew)
    }

    /// What is owned and served, ascending; keys that replicas have to agree about
    /// first among it.
    pub fn owned(&self) -> Vec<Slice> {
        let segments = self.groups.iter().flat_map(|group| group.iter());
        let owned = segments
            .enumerate()
            .flat_map(|(index, segment)| segment.owned(points_of(index)));
        joined(owned)
    }

    /// Whether a point is among [`Table::owned`].
    pub fn is_owned(&self, point: KeyPoint) -> bool {
        let index = segment_of(point);
        let mut owned = self.groups[index / GROUP][index % GROUP].owned(points_of(index));
        owned.any(|slice| slice.contains(point))
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

    /// What holds of a point by ascending disjoint ranges; between them, `Ask`.
    fn at(ranges: &[(Slice, Status)], point: KeyPoint) -> Run {
        let behind = ranges.iter().find(|(slice, _)| slice.last() >= point);
        let (status, last) = match behind {
            Some((slice, status)) if slice.contains(point) => (*status, slice.last()),
            Some((slice, _)) => (Status::Ask, KeyPoint(slice.start().0 - 1)),
            None => (Status::Ask, KeyPoint(u64::MAX)),
        };
        Run {
            status,
            is_owned: status.is_owned(),
            last,
        }
    }

    fn segment(index: usize, ranges: &[(Slice, Status)]) -> (usize, Segment) {
        (
            index,
            Segment::new(index, &mut None, |point| at(ranges, point)),
        )
    }

    /// A lookup by table is a lookup by ranges, and what holds of all of a segment is said
    /// so, wherever ranges begin and end.
    #[test]
    fn a_table_is_a_map_of_points() {
        let (one, two) = (points_of(1), points_of(2));
        let (within, behind) = (KeyPoint(one.start().0 + 7), KeyPoint(one.last().0 - 7));
        let ends = [
            one.start(),
            within,
            behind,
            one.last(),
            two.start(),
            two.last(),
        ];
        let kinds = [Status::Ask, Status::Copy, owned(1), owned(2)];
        let mut seen_whole = 0;
        for (from, first) in ends.iter().enumerate() {
            for last in &ends[from..] {
                for status in kinds {
                    let mut ranges = vec![(Slice::spanning(*first, *last), status)];
                    if last.0 < u64::MAX {
                        let rest = Slice::spanning(KeyPoint(last.0 + 1), KeyPoint(u64::MAX));
                        ranges.push((rest, owned(1)));
                    }
                    let mut run = None;
                    let segments = (0..SEGMENTS).map(|index| {
                        (
                            index,
                            Segment::new(index, &mut run, |point| at(&ranges, point)),
                        )
                    });
                    let table = Table::nothing().with(segments, None, None);
                    // One at a time they come out the same.
                    let alone = (0..SEGMENTS).map(|index| segment(index, &ranges));
                    assert!(table.with(alone, None, None).is(&table), "{ranges:?}");
                    let near = |point: &KeyPoint| [point.0 - 1, point.0, point.0 + 1];
                    for point in ends.iter().flat_map(near).map(KeyPoint) {
                        assert_eq!(table.status(point), at(&ranges, point).status, "{ranges:?}");
                        let slices = table.owned();
                        let is_owned = slices.iter().any(|slice| slice.contains(point));
                        assert_eq!(is_owned, table.status(point).is_owned(), "{ranges:?}");
                        assert_eq!(is_owned, table.is_owned(point), "{ranges:?}");
                    }
                    let group = table.groups[0].iter();
                    seen_whole += group.filter(|s| matches!(s, Segment::Whole(_))).count();
                }
            }
        }
        assert!(seen_whole > 14 * kinds.len() * 21, "{seen_whole}");
    }

    /// A key that waits for its replicas is not served, and counts as owned.
    #[test]
    fn what_waits_is_owned_and_not_served() {
        let whole = points_of(9);
        let waits = KeyPoint(whole.start().0 + 5);
        let run = |point: KeyPoint| match point {
            _ if point < waits => Run {
                status: owned(1),
                is_owned: true,
                last: KeyPoint(waits.0 - 1),
            },
            _ if point == waits => Run {
                status: Status::Ask,
                is_owned: true,
                last: waits,
            },
            _ => Run {
                status: owned(1),
                is_owned: true,
                last: KeyPoint(u64::MAX),
            },
        };
        let segment = Segment::new(9, &mut None, run);
        let table = Table::nothing().with(std::iter::once((9, segment)), None, None);
        assert_eq!(table.owned(), [whole]);
        assert!(table.is_owned(waits));
        assert_eq!(table.status(waits), Status::Ask);
        assert_eq!(table.status(KeyPoint(waits.0 + 1)), owned(1));
    }

    #[test]
    fn what_has_come_or_was_away_is_owned_anew() {
        let table = |ranges: &[(Slice, Status)]| {
            let segments = (0..SEGMENTS).map(|index| segment(index, ranges));
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
        let segment = |index| segment(index, &[(points_of(index), owned(1))]);
        let before = Table::nothing().with([7, 8].into_iter().map(segment), None, None);
        let both = Slice::spanning(points_of(7).start(), points_of(8).last());
        assert_eq!(before.owned(), [both], "neighbours are joined");
        // One that is made anew and comes out the same is no news.
        assert!(
            before
                .with([8].into_iter().map(segment), None, None)
                .is(&before)
        );
        let nothing = std::iter::once((8, Segment::Whole(Status::Ask)));
        let after = before.with(nothing, None, None);
        assert!(!after.is(&before));
        let shared = after.groups.iter().zip(&before.groups);
        let shared = shared.filter(|(a, b)| Arc::ptr_eq(a, b)).count();
        assert_eq!(shared, SEGMENTS / GROUP - 1, "all but one group");
        assert_eq!(after.owned(), [points_of(7)]);
        assert_eq!(after.status(points_of(7).last()), owned(1));
        assert_eq!(after.status(points_of(8).start()), Status::Ask);
        let mut stale = Stale::default();
        stale.range(Slice::spanning(points_of(63).last(), points_of(65).start()));
        assert_eq!(stale.segments().collect::<Vec<_>>(), [63, 64, 65]);
        stale.range(points_of(67));
        stale.range(points_of(255));
        let behind = [67, 255].map(points_of);
        let slices = [
            Slice::spanning(points_of(63).start(), points_of(65).last()),
            behind[0],
            behind[1],
        ];
        assert_eq!((stale.slices(), stale.count()), (slices.to_vec(), 5));
        stale.all();
        assert_eq!(stale.segments().count(), SEGMENTS);
        assert_eq!(stale.slices(), [Slice::ALL]);
        assert_eq!(Stale::default().segments().count(), 0);
    }
}
