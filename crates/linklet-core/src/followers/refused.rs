//! What a server that is to have a copy could not store.

use super::Followers;
use crate::core::Core;
use crate::message::Operation;
use crate::mutants::{self, Mutant};
use crate::pause::Pause;
use crate::ranges::RangeSet;
use crate::values::Values;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use trefoil_sharder::{KeyPoint, ServerId, Slice};

impl Followers {
    /// What could not be stored, and is not to be there (any more), is waited for
    /// no longer once there is no copy that could differ: returns what and where.
    pub(super) fn release_failed(
        &mut self,
        scope: &[Slice],
        desired: &BTreeMap<ServerId, RangeSet>,
    ) -> Vec<(ServerId, Slice)> {
        let mut released = Vec::new();
        for (&server, follower) in &mut self.by_server {
            let failed = scope
                .iter()
                .flat_map(|&within| follower.failed.common(within));
            for slice in failed.collect::<Vec<_>>() {
                let parts = match desired.get(&server) {
                    Some(desired) => desired.gaps(slice),
                    None => vec![slice],
                };
                for part in parts {
                    for gap in follower.held.gaps(part) {
                        follower.forget_failed(gap);
                        follower.stored(gap);
                        released.push((server, gap));
                    }
                }
            }
            if follower.failed.is_empty() {
                follower.retry_at = None;
                if follower.refusing.is_empty() {
                    follower.pause = Pause::default();
                }
            }
        }
        released
    }

    /// The commits of a point were taken back: whoever could not store one has what he had.
    fn take_back(&mut self, point: KeyPoint) {
        let slice = Slice::of_point(point);
        for follower in self.by_server.values_mut() {
            if follower.kept_as_it_was().has(point) {
                self.stale.range(slice);
                follower.expect_again(slice);
                follower.stored(slice);
            }
        }
    }
}

impl Core {
    /// Tells a server again of commits that it could not store, where it has a
    /// copy and it is their turn: as many bytes as a share of bulk, and one at least. Where
    /// none is under way any more, as far as the window allows.
    pub(super) fn tell_failed(&mut self, now: Duration, server: ServerId) {
        let Some(follower) = self.followers.get(server) else {
            return;
        };
        let parts = follower
            .again
            .iter()
            .flat_map(|(slice, ())| follower.held.common(slice).collect::<Vec<_>>())
            .filter(|part| follower.excluding.gaps(*part) == [*part]);
        let parts: Vec<Slice> = parts.collect();
        let mut told = 0;
        for part in parts {
            let under_way = self.proposals.within(part);
            if under_way.is_empty() && !self.peers.is_open(server) {
                // When it is time again.
                continue;
            }
            let Some(follower) = self.followers.by_server.get_mut(&server) else {
                return;
            };
            if told > 0 && told >= self.config.bulk_bytes {
                // The rest is next.
                follower.last_again = part.start().0.checked_sub(1).map(KeyPoint);
                return;
            }
            let bytes = under_way.iter().map(|(.., operation)| match operation {
                Operation::Put { value, .. } => value.len(),
                Operation::Remove => 0,
            });
            told += bytes.sum::<usize>();
            follower.expect_again(part);
            for (token, ranges) in self.authority.by_token(&RangeSet::of([part])) {
                for slice in ranges {
                    self.tell_pending(now, server, slice, token);
                }
            }
        }
    }

    /// What is to be given away waits for the commits under way. One that a copy
    /// could not store would never end: it is taken back. To drop that copy would
    /// end it, too, but nobody else may have what was acknowledged before. So a
    /// copy is dropped only where there is nothing to go back to: it refuses what a
    /// dead owner was about to commit, or what it had before.
    pub(super) fn take_back_failed(&mut self, now: Duration, values: &mut dyn Values) {
        let leaving = self.giver.leaving();
        if leaving.is_empty() {
            return;
        }
        let mut back: BTreeSet<KeyPoint> = BTreeSet::new();
        let mut dropped: Vec<(ServerId, RangeSet)> = Vec::new();
        for (server, follower) in self.followers.iter() {
            for (slice, ()) in follower.kept_as_it_was().iter() {
                for (part, _) in leaving.within(slice) {
                    let stuck = self.proposals.refused_within(part, server);
                    let (asked, nobodys): (Vec<_>, Vec<_>) =
                        stuck.into_iter().partition(|&(_, asked)| asked);
                    back.extend(asked.into_iter().map(|(point, _)| point));
                    let nobodys = nobodys.into_iter().map(|(point, _)| Slice::of_point(point));
                    dropped.push((server, RangeSet::of(nobodys)));
                }
            }
        }
        if mutants::is(Mutant::DroppedToGive) {
            let points: Vec<Slice> = back.iter().map(|&point| Slice::of_point(point)).collect();
            for (server, follower) in self.followers.iter() {
                let kept = follower.kept_as_it_was();
                let points = points.iter().filter(|point| kept.covers(**point));
                dropped.push((server, RangeSet::of(points.copied())));
            }
            back.clear();
        }
        for (server, points) in dropped {
            self.drop_copies(now, server, &points);
        }
        for point in back {
            self.followers.take_back(point);
            self.take_back(now, values, point);
        }
    }

    /// Copies that servers have been refusing for that long, though they were sent again,
    /// and what they are to own and could not store: who, and one point for each slice of
    /// the map. What cannot be marshalled here is not among them.
    pub fn refusals(&self, now: Duration, lasting: Duration) -> Vec<(ServerId, KeyPoint)> {
        let Some(map) = self.known.map() else {
            return Vec::new();
        };
        let mut refusals = Vec::new();
        let copies = self.followers.iter();
        let copies = copies.map(|(server, follower)| (server, &follower.refusing));
        let unstored = [(self.me, self.receiver.lacking())];
        let all = copies.chain(self.giver.unmoved()).chain(unstored);
        for (server, refused) in all {
            let mut end = None;
            for (&point, &since) in refused {
                // The points come in order, and with them their slices.
                if end.is_some_and(|end| point <= end) || now.saturating_sub(since) < lasting {
                    continue;
                }
                end = Some(map.slice_of(point).slice.last());
                refusals.push((server, point));
            }
        }
        refusals
    }
}
