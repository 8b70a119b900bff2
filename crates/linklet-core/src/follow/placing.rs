//! Who is to have copies of what: by the map, and of what stays here beyond it.

use crate::Replication;
use crate::core::Core;
use crate::mutants::{self, Mutant};
use crate::ranges::{RangeSet, overlapping};
use std::collections::{BTreeMap, BTreeSet};
use trefoil_sharder::{Assignment, ServerId, Slice};

impl Core {
    /// The slices of the map that are this server's, in these ranges.
    pub(super) fn mine<'a>(
        &'a self,
        scope: &'a [Slice],
    ) -> impl Iterator<Item = (Slice, &'a [ServerId])> {
        let map = self.map.current().map_or(&[][..], Assignment::slices);
        let parts = scope.iter().flat_map(move |&within| {
            let assigned = overlapping(map, within).iter();
            assigned.filter_map(move |a| Some((a.slice.intersection(within)?, &a.servers[..])))
        });
        parts.filter(|(_, servers)| servers.first() == Some(&self.me))
    }

    /// What each server is to have copies of, in these ranges: by the assignment, of what
    /// is owned here and stays here.
    pub(super) fn desired(&self, scope: &[Slice]) -> BTreeMap<ServerId, RangeSet> {
        let mut desired: BTreeMap<ServerId, RangeSet> = BTreeMap::new();
        for (part, servers) in self.mine(scope) {
            for &server in &servers[1..] {
                if !self.alive.contains(&server) {
                    continue;
                }
                let set = desired.entry(server).or_default();
                for (slice, _) in self.owned.within(part) {
                    set.add(slice);
                    for (leaving, _) in self.leaving.within(slice) {
                        set.remove(leaving);
                    }
                }
            }
        }
        desired
    }

    /// The parts of what a server is to have that were not sent. What it could not store is
    /// among them only when it is time to try again.
    pub(super) fn missing(&self, server: ServerId, desired: &RangeSet) -> Vec<Slice> {
        let mut missing = Vec::new();
        for (slice, ()) in desired.iter() {
            match self.followers.get(&server) {
                Some(follower) => {
                    for gap in follower.held.gaps(slice) {
                        let mut skipped = RangeSet::of(follower.failed.common(gap));
                        skipped.remove_all(follower.again.common(gap));
                        follower.refused.common(gap).for_each(|s| skipped.add(s));
                        missing.extend(skipped.gaps(gap));
                    }
                }
                None => missing.push(slice),
            }
        }
        missing
    }

    /// Whether nothing is to be sent or dropped but what is known to be, or waits for its
    /// turn.
    pub(crate) fn are_copies_whole(&self) -> bool {
        let desired = self.desired(&[Slice::ALL]);
        let sent = desired.iter().all(|(server, ranges)| {
            let waits = |slice| {
                let waiting = self.fill_waiting.get(server);
                waiting.is_some_and(|waiting| waiting.covers(slice))
            };
            let mut missing = self.missing(*server, ranges).into_iter();
            missing.all(|slice| self.follow_stale.covers(slice) || waits(slice))
        });
        let extra = self.extra(&[Slice::ALL], &desired);
        let dropped = extra
            .iter()
            .flat_map(|(_, ranges)| ranges.iter())
            .all(|(slice, ())| self.follow_stale.covers(slice));
        self.config.replication == Replication::None || (sent && dropped)
    }

    /// Copies that are not to be there any more, in these ranges: they are dropped once
    /// those that are to be there are complete.
    pub(super) fn extra(
        &self,
        scope: &[Slice],
        desired: &BTreeMap<ServerId, RangeSet>,
    ) -> Vec<(ServerId, RangeSet)> {
        let mut orders: Vec<(ServerId, RangeSet)> = Vec::new();
        for (&server, follower) in &self.followers {
            let mut extra = RangeSet::default();
            for (part, _) in self.mine(scope) {
                for slice in follower.held.common(part) {
                    extra.add(slice);
                }
            }
            if extra.is_empty() {
                continue;
            }
            let wanted = desired.get(&server).into_iter().flat_map(RangeSet::iter);
            extra.remove_all(wanted.map(|(slice, ())| slice));
            for &within in scope {
                extra.remove_all(follower.excluding.common(within));
                extra.remove_all(follower.attach.common(within));
                extra.remove_all(self.leaving.within(within).map(|(slice, _)| slice));
            }
            if !mutants::is(Mutant::ExcludedEarly) {
                for (other, ranges) in desired.iter().filter(|(other, _)| **other != server) {
                    for (slice, ()) in ranges.iter() {
                        match self.followers.get(other) {
                            Some(other) => other
                                .incomplete(slice)
                                .into_iter()
                                .for_each(|part| extra.remove(part)),
                            None => extra.remove(slice),
                        }
                    }
                }
            }
            if !extra.is_empty() {
                orders.push((server, extra));
            }
        }
        orders
    }

    /// Who is known to have complete copies of everything that is owned here
    /// and assigned to him: for tests and status pages.
    pub fn synced(&self) -> BTreeSet<ServerId> {
        let desired = self.desired(&[Slice::ALL]);
        let complete = |server: &ServerId, ranges: &RangeSet| {
            let follower = self.followers.get(server);
            follower.is_some_and(|f| {
                ranges
                    .iter()
                    .all(|(slice, ())| f.incomplete(slice).is_empty())
            })
        };
        desired
            .iter()
            .filter(|(server, ranges)| complete(server, ranges))
            .map(|(&server, _)| server)
            .collect()
    }
}
