//! Which keys are served here: a snapshot for many threads.
//!
//! A lookup is a binary search over the bounds of a few hundred ranges at
//! most. What is being moved is not listed range by range: such keys are
//! `Ask`, and [`Core::request`](crate::Core::request) decides.

use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, Slice};

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
    /// First points, ascending; the first is 0.
    starts: Box<[u64]>,
    /// As long as `starts`.
    statuses: Box<[Status]>,
    /// Until when `Owned` may be served, on this server's clock; `None` if
    /// no lease is needed.
    serve_until: Option<Duration>,
    version: Option<AssignmentVersion>,
}

impl Table {
    /// Serves nothing.
    pub fn nothing() -> Self {
        Table::new(Vec::new(), None, None)
    }

    /// From ascending disjoint ranges; what is between them is `Ask`.
    pub(crate) fn new(
        ranges: Vec<(Slice, Status)>,
        serve_until: Option<Duration>,
        version: Option<AssignmentVersion>,
    ) -> Self {
        let mut starts = Vec::with_capacity(ranges.len() + 1);
        let mut statuses: Vec<Status> = Vec::with_capacity(ranges.len() + 1);
        let mut push = |start: u64, status: Status| {
            if statuses.last() != Some(&status) {
                starts.push(start);
                statuses.push(status);
            }
        };
        let mut next: u128 = 0;
        for (slice, status) in ranges {
            debug_assert!(next <= u128::from(slice.start().0), "ascending, disjoint");
            if next < u128::from(slice.start().0) {
                push(next as u64, Status::Ask);
            }
            push(slice.start().0, status);
            next = slice.end();
        }
        if let Ok(next) = u64::try_from(next) {
            push(next, Status::Ask);
        }
        Table {
            starts: starts.into(),
            statuses: statuses.into(),
            serve_until,
            version,
        }
    }

    /// What may be done with a key.
    #[inline]
    pub fn status(&self, point: KeyPoint) -> Status {
        let after = self.starts.partition_point(|&start| start <= point.0);
        // The first range starts at 0.
        self.statuses[after.saturating_sub(1)]
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
        let mut anew: Vec<Slice> = Vec::new();
        let (mut here, mut there) = (0, 0);
        let mut start = 0;
        loop {
            let next = |starts: &[u64], at: usize| starts.get(at + 1).copied();
            let (mine, theirs) = (next(&self.starts, here), next(&before.starts, there));
            let end = mine.into_iter().chain(theirs).min();
            let last = end.map_or(u64::MAX, |end| end - 1);
            if let Status::Owned { token, .. } = self.statuses[here] {
                let same = |status: &Status| matches!(status, Status::Owned { token: before, .. } if *before == token);
                if !same(&before.statuses[there]) {
                    anew.push(Slice::spanning(KeyPoint(start), KeyPoint(last)));
                }
            }
            let Some(end) = end else { return anew };
            here += usize::from(mine == Some(end));
            there += usize::from(theirs == Some(end));
            start = end;
        }
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
        let table = |ranges: &[(Slice, Status)]| Table::new(ranges.to_vec(), None, None);
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
}
