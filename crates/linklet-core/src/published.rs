//! The table that threads look at: keeping it what the other parts say.

use crate::Replication;
use crate::core::Core;
use crate::ranges::RangeMap;
use crate::table::{Run, SEGMENTS, Segment, Stale, Status, Table};
use crate::values::Values;
use std::sync::Arc;
use trefoil_sharder::{KeyPoint, ServerId, Slice};

/// The table published last, and where it is old. Whoever changes what is served of a range
/// says so here; [`Core::publish`] works it out anew from all parts.
#[derive(Debug)]
pub(crate) struct Published {
    table: Arc<Table>,
    pub(crate) stale: Stale,
    looked_at: u64,
}

impl Published {
    pub(crate) fn nothing() -> Self {
        Published {
            table: Arc::new(Table::nothing()),
            stale: Stale::default(),
            looked_at: 0,
        }
    }

    /// The table published last.
    pub(crate) fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// Segments worked out anew so far.
    pub(crate) fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// Publishes a table, if it is another one.
    fn publish(&mut self, values: &mut dyn Values, table: Table) {
        if !self.table.is(&table) {
            self.table = Arc::new(table);
            values.publish(Arc::clone(&self.table));
        }
    }

    /// Nothing is served any more.
    pub(crate) fn withdraw(&mut self, values: &mut dyn Values) {
        self.table = Arc::new(Table::nothing());
        values.publish(Arc::clone(&self.table));
    }
}

impl Core {
    /// Publishes the table if something in it has changed.
    pub(crate) fn publish(&mut self, values: &mut dyn Values) {
        for point in self.proposals.take_changed() {
            self.published.stale.range(Slice::of_point(point));
        }
        let stale = std::mem::take(&mut self.published.stale);
        if !stale.is_any() {
            return;
        }
        let until = self.lease.until().unwrap_or_default();
        let until = self.config.needs_lease().then_some(until);
        self.published.looked_at += stale.count();
        let table =
            self.published
                .table
                .with(self.anew(stale.segments()), until, self.known.version());
        self.published.publish(values, table);
    }

    /// What is not as it would be if all of it were worked out anew, and not only where
    /// something has changed: for tests.
    #[doc(hidden)]
    pub fn overlooked(&self) -> Option<&'static str> {
        let all = self.anew(0..SEGMENTS);
        let table = self.published.table();
        let whole = table.with(all, table.serve_until(), table.version());
        let rules = [
            (table.is(&whole), "a part of the table is old"),
            (
                *self.giver.leaving() == self.to_leave(Slice::ALL),
                "who is to have what was claimed",
            ),
            (
                self.are_copies_whole(),
                "copies that are to be made or dropped",
            ),
        ];
        let broken = rules.iter().find(|(holds, _)| !holds && !self.replaced);
        broken.map(|(_, what)| *what)
    }

    fn to_leave(&self, within: Slice) -> RangeMap<ServerId> {
        self.giver
            .to_leave(self.authority.owned(), self.known.map(), within)
    }

    /// 256ths of the key space that were looked at so far, for the table and for copies:
    /// for tests.
    #[doc(hidden)]
    pub fn segments_looked_at(&self) -> u64 {
        self.published.looked_at() + self.followers.looked_at()
    }

    /// What is served of segments of the key space: ascending numbers.
    fn anew(
        &self,
        segments: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = (usize, Segment)> {
        let mut run = None;
        segments.map(move |index| (index, Segment::new(index, &mut run, |at| self.served(at))))
    }

    /// What holds of a point and of those behind it: as far as is easily seen, for it may hold
    /// further on, too.
    fn served(&self, point: KeyPoint) -> Run {
        let run = |status, is_owned, last| Run {
            status,
            is_owned,
            last,
        };
        let (leaves, mut last) = self.giver.leaving().run(point);
        if leaves.is_some() {
            return run(Status::Ask, false, last);
        }
        let (token, end) = self.authority.owned().run(point);
        last = last.min(end);
        let eventual = self.config.replication == Replication::Eventual;
        let status = match token {
            Some(&token) => {
                let mut note = self.lease.is_out();
                if eventual && !note {
                    let noted = self.noted(point);
                    (note, last) = (noted.0, last.min(noted.1));
                }
                Status::Owned {
                    token,
                    note,
                    propose: self.config.replication == Replication::Strong,
                }
            }
            None if eventual => {
                let (copy, end) = self.copies.here().run(point);
                last = last.min(end);
                copy.map_or(Status::Ask, |_| Status::Copy)
            }
            None => Status::Ask,
        };
        let is_owned = token.is_some();
        match self
            .proposals
            .unsettled_points(Slice::spanning(point, last))
            .next()
        {
            Some(first) if first == point => run(Status::Ask, is_owned, point),
            Some(first) => run(status, is_owned, KeyPoint(first.0 - 1)),
            None => run(status, is_owned, last),
        }
    }

    /// Whether commits of a point that is owned are noted for its copies, from before one is
    /// made, and up to where.
    fn noted(&self, point: KeyPoint) -> (bool, KeyPoint) {
        let mut last = KeyPoint(u64::MAX);
        if let Some(map) = self.known.map() {
            let assigned = map.slice_of(point);
            if assigned.servers.len() > 1 {
                return (true, assigned.slice.last());
            }
            last = assigned.slice.last();
        }
        for (_, follower) in self.followers.iter() {
            let (held, end) = follower.held.run(point);
            if held.is_some() {
                return (true, end);
            }
            last = last.min(end);
        }
        (false, last)
    }
}
