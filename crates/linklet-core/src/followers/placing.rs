//! Who is to have copies of what: by the map, and of what stays here beyond it.

use super::Followers;
use crate::Replication;
use crate::core::Core;
use crate::mutants::{self, Mutant};
use crate::ranges::{RangeMap, RangeSet, overlapping};
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use trefoil_sharder::{Assignment, KeyPoint, ServerId, Slice};

/// Adds servers, each once, until there are as many as this.
fn choose<'a>(servers: &mut Vec<ServerId>, count: usize, from: impl Iterator<Item = &'a ServerId>) {
    for &server in from {
        if servers.len() < count && !servers.contains(&server) {
            servers.push(server);
        }
    }
}

impl Followers {
    /// The parts of what a server is to have that were not sent. What it could not store is
    /// among them only when it is time to try again.
    pub(super) fn missing(&self, server: ServerId, desired: &RangeSet) -> Vec<Slice> {
        let mut missing = Vec::new();
        for (slice, ()) in desired.iter() {
            match self.get(server) {
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

    /// Whether copies of this are known to be looked at, or to be sent, to a server.
    fn is_known_to_miss(&self, server: ServerId, slice: Slice) -> bool {
        let waiting = self.fill_waiting.get(&server);
        self.stale.covers(slice) || waiting.is_some_and(|waiting| waiting.covers(slice))
    }

    /// Copies that are not to be there any more, of these ranges and in this scope: they are
    /// dropped once those that are to be there are complete. What is `leaving` is left to its
    /// next owner.
    fn extra(
        &self,
        scope: &[Slice],
        placed: &[Slice],
        desired: &BTreeMap<ServerId, RangeSet>,
        leaving: &RangeMap<ServerId>,
    ) -> Vec<(ServerId, RangeSet)> {
        let mut orders: Vec<(ServerId, RangeSet)> = Vec::new();
        for (&server, follower) in &self.by_server {
            let mut extra = RangeSet::default();
            for &part in placed {
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
                extra.remove_all(leaving.within(within).map(|(slice, _)| slice));
            }
            if !mutants::is(Mutant::ExcludedEarly) {
                for (other, ranges) in desired.iter().filter(|(other, _)| **other != server) {
                    for (slice, ()) in ranges.iter() {
                        match self.get(*other) {
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
}

impl Core {
    /// The slices of the map that are this server's, in these ranges.
    pub(super) fn mine<'a>(
        &'a self,
        scope: &'a [Slice],
    ) -> impl Iterator<Item = (Slice, &'a [ServerId])> {
        let map = self.known.map().map_or(&[][..], Assignment::slices);
        let parts = scope.iter().flat_map(move |&within| {
            let assigned = overlapping(map, within).iter();
            assigned.filter_map(move |a| Some((a.slice.intersection(within)?, &a.servers[..])))
        });
        parts.filter(|(_, servers)| servers.first() == Some(&self.me))
    }

    /// Who is to have copies of what stays here though the map gives it to somebody else,
    /// point by point: as many servers as the map has for the slice, this one counted. By
    /// preference those that the map says; then who has one; then others that the map names
    /// at all, for these are not about to stop. Who could not store it is asked again when it
    /// is its turn ([`declined`](super::declined)).
    fn stays(&self, scope: &[Slice]) -> Vec<(KeyPoint, Vec<ServerId>)> {
        let Some(map) = self.known.map() else {
            return Vec::new();
        };
        let named = OnceCell::new();
        let mut stays = Vec::new();
        for point in scope.iter().flat_map(|&within| self.staying(within)) {
            let by_map = &map.slice_of(point).servers;
            let count = by_map.len().max(self.config.copies_min) - 1;
            let held = |server: &ServerId| self.followers.holds(*server, point);
            let takes = |server: &ServerId| {
                let follower = self.followers.get(*server);
                let refuses =
                    follower.is_some_and(|f| f.refused.has(point) || f.declined.holds(point));
                *server != self.me && self.peers.is_alive(*server) && (held(server) || !refuses)
            };
            let mut servers: Vec<ServerId> = Vec::new();
            choose(
                &mut servers,
                count,
                by_map.iter().skip(1).filter(|s| takes(s)),
            );
            if servers.len() < count {
                let named: &BTreeSet<ServerId> = named.get_or_init(|| {
                    let slices = map.slices().iter();
                    slices.flat_map(|slice| &slice.servers).copied().collect()
                });
                // Not all of it to one of them.
                let from = point.0 as usize % named.len().max(1);
                let others = named.iter().cycle().skip(from).take(named.len());
                let others = others.filter(|server| by_map.first() != Some(server));
                let named = named.iter().filter(|s| held(s)).chain(others);
                let rest = self.followers.by_server.keys().filter(|s| held(s));
                choose(&mut servers, count, named.chain(rest).filter(|s| takes(s)));
            }
            // With its copy it has room for the key, for as long as it does not grow.
            let next_owner = by_map.iter().take(1).filter(|s| held(s) && takes(s));
            choose(&mut servers, usize::MAX, next_owner);
            stays.push((point, servers));
        }
        stays
    }

    /// What each server is to have copies of, in these ranges: of what is owned here and
    /// stays here, by the assignment or beyond it.
    pub(super) fn desired(&self, scope: &[Slice]) -> BTreeMap<ServerId, RangeSet> {
        let mut desired: BTreeMap<ServerId, RangeSet> = BTreeMap::new();
        for (part, servers) in self.mine(scope) {
            for &server in &servers[1..] {
                if !self.peers.is_alive(server) {
                    continue;
                }
                let set = desired.entry(server).or_default();
                for (slice, _) in self.authority.owned().within(part) {
                    set.add(slice);
                    for (leaving, _) in self.giver.leaving().within(slice) {
                        set.remove(leaving);
                    }
                }
            }
        }
        for (point, servers) in self.stays(scope) {
            for server in servers {
                let set = desired.entry(server).or_default();
                set.add(Slice::of_point(point));
            }
        }
        desired
    }

    /// Whether nothing is to be sent or dropped but what is known to be, or waits for its
    /// turn.
    pub(crate) fn are_copies_whole(&self) -> bool {
        let desired = self.desired(&[Slice::ALL]);
        let sent = desired.iter().all(|(server, ranges)| {
            let mut missing = self.followers.missing(*server, ranges).into_iter();
            missing.all(|slice| self.followers.is_known_to_miss(*server, slice))
        });
        let extra = self.extra(&[Slice::ALL], &desired);
        let dropped = extra
            .iter()
            .flat_map(|(_, ranges)| ranges.iter())
            .all(|(slice, ())| self.followers.stale.covers(slice));
        self.config.replication == Replication::None || (sent && dropped)
    }

    /// Copies that are not to be there any more, in these ranges.
    pub(super) fn extra(
        &self,
        scope: &[Slice],
        desired: &BTreeMap<ServerId, RangeSet>,
    ) -> Vec<(ServerId, RangeSet)> {
        let mine = self.mine(scope).map(|(part, _)| part);
        let stays = scope.iter().flat_map(|&within| self.staying(within));
        let placed: Vec<Slice> = mine.chain(stays.map(Slice::of_point)).collect();
        let leaving = self.giver.leaving();
        self.followers.extra(scope, &placed, desired, leaving)
    }

    /// Who is known to have complete copies of everything that is owned here
    /// and assigned to him: for tests and status pages.
    pub fn synced(&self) -> BTreeSet<ServerId> {
        let desired = self.desired(&[Slice::ALL]);
        let complete = |server: &ServerId, ranges: &RangeSet| {
            let follower = self.followers.get(*server);
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
