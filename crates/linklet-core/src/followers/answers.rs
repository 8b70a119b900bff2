//! What servers with copies answer.

use super::declined::Declined;
use super::{Followers, Order};
use crate::config::Config;
use crate::core::Core;
use crate::effect::Effect;
use crate::message::{CopyOrder, Operation};
use crate::mutants::{self, Mutant};
use crate::pause::REFUSALS_MAX;
use crate::proposals::Proposals;
use crate::table::Stale;
use crate::values::{self, Values};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

impl Followers {
    /// A server has done all orders up to this one.
    pub(crate) fn hear_done(
        &mut self,
        now: Duration,
        from: ServerId,
        id: u64,
        proposals: &mut Proposals,
        served: &mut Stale,
    ) {
        let Some(follower) = self.by_server.get_mut(&from) else {
            return;
        };
        let mut dropped = Vec::new();
        while let Some((told, order)) = follower.orders.pop_front_if(|(order, _)| *order <= id) {
            match order {
                Order::Fill(ranges) => {
                    for (slice, ()) in ranges.iter() {
                        follower.synced.add(slice);
                        follower.stored_now(now, slice);
                        self.stale.range(slice);
                    }
                }
                Order::Exclude(mut ranges) => {
                    for (slice, ()) in ranges.iter() {
                        self.stale.range(slice);
                        served.range(slice);
                    }
                    // What it was sent since, it gets after having dropped this.
                    for refilled in follower.filled_within(&ranges) {
                        ranges.remove(refilled);
                        follower.excluding.remove(refilled);
                    }
                    for (slice, ()) in ranges.iter() {
                        for part in follower.failed.common(slice).collect::<Vec<_>>() {
                            follower.forget_failed(part);
                            dropped.push(part);
                        }
                        follower.held.remove(slice);
                        follower.synced.remove(slice);
                        follower.excluding.remove(slice);
                        follower.stored(slice);
                    }
                }
                Order::Apply {
                    point,
                    proposal: Some(number),
                    ..
                } => {
                    if follower.applies.commit(told) != Some(number) {
                        // It was told once more, behind another copy of the key that is
                        // without it: the last word counts.
                        continue;
                    }
                    let kept = follower.keeps(point);
                    if kept {
                        follower.stored_now(now, Slice::of_point(point));
                    }
                    proposals.confirm(number, from, kept);
                }
                Order::Attach(_) | Order::Apply { .. } => {}
            }
        }
        // What it could not store is not there now, nor what was before.
        proposals.confirm_within(from, &dropped);
    }

    /// Some copies of an order could not be stored; what became of the commit, if it was one,
    /// and which of them are news.
    fn hear_failed(
        &mut self,
        now: Duration,
        config: &Config,
        from: ServerId,
        failure: &Failure<'_>,
        served: &mut Stale,
    ) -> Option<Failed> {
        let Failure {
            id,
            points,
            staying,
            kept,
            no_room,
        } = *failure;
        let follower = self.by_server.get_mut(&from)?;
        let at = follower.order_at(id)?;
        let mut failed = Failed::default();
        for &point in points {
            let slice = Slice::of_point(point);
            self.stale.range(slice);
            served.range(slice);
            match &mut follower.orders[at].1 {
                Order::Fill(set) if set.has(point) => set.remove(slice),
                Order::Apply {
                    point: of,
                    proposal,
                    ..
                } if *of == point => {
                    if !follower.held.has(point) && !follower.failed.has(point) {
                        // Its copy was dropped before, as it was told: that is no
                        // refusal. If it is to have one again, it gets all of it now.
                        failed.dropped = *proposal;
                        continue;
                    }
                    failed.refused = *proposal;
                }
                _ => continue,
            }
            let sent_again = follower
                .orders
                .iter()
                .skip(at + 1)
                .any(|(_, order)| matches!(order, Order::Fill(set) if set.has(point)));
            if !sent_again {
                if !kept {
                    follower.held.remove(slice);
                    if staying.contains(&point) {
                        follower.declined.add(now, config, point);
                    }
                }
                follower.synced.remove(slice);
                follower.failed.add(slice);
                follower.again.remove(slice);
                let retry_at = follower.pause.end(now, config);
                follower.retry_at.get_or_insert(retry_at);
                if follower.unmarshalled.has(point) {
                    continue;
                }
                if follower.refusing.len() < REFUSALS_MAX {
                    follower.refusing.entry(point).or_insert(now);
                    if no_room {
                        follower.no_room.insert(point);
                    }
                }
                failed.points.push(point);
            }
        }
        // Told once more, the last word counts.
        let last = follower.applies.commit(id);
        failed.refused = failed
            .refused
            .filter(|number| kept && last == Some(*number));
        if matches!(&follower.orders[at].1, Order::Apply { point, .. } if points.contains(point)) {
            // It confirms nothing.
            follower.orders.remove(at);
        }
        Some(failed)
    }

    /// Parts of an order were refused.
    fn hear_refused(&mut self, from: ServerId, id: u64, ranges: &[Slice], served: &mut Stale) {
        let Some(follower) = self.by_server.get_mut(&from) else {
            return;
        };
        let at = follower.order_at(id);
        let mut forget = false;
        if let Some(at) = at {
            match &mut follower.orders[at].1 {
                Order::Fill(set) => {
                    for &slice in ranges {
                        for slice in set.common(slice).collect::<Vec<_>>() {
                            set.remove(slice);
                            follower.held.remove(slice);
                            follower.refused.add(slice);
                            served.range(slice);
                            self.stale.range(slice);
                        }
                    }
                }
                Order::Exclude(set) => {
                    for &slice in ranges {
                        set.remove(slice);
                    }
                }
                Order::Attach(_) => {
                    for &slice in ranges {
                        self.stale.range(slice);
                        follower.synced.remove(slice);
                    }
                }
                Order::Apply { .. } => forget = true,
            }
            if forget {
                follower.orders.remove(at);
            }
        }
    }

    /// By a newer map, what was refused may be right.
    pub(crate) fn try_refused_again(&mut self) {
        for follower in self.by_server.values_mut() {
            for (slice, ()) in std::mem::take(&mut follower.refused).iter() {
                self.stale.range(slice);
            }
            if mutants::is(Mutant::DeclinedOfferedAnew) {
                follower.declined = Declined::default();
            }
        }
    }

    /// A server follows this one, but for what is `missing` there; whether it was told to.
    fn hear_attached(
        &mut self,
        from: ServerId,
        id: u64,
        missing: &[Slice],
        served: &mut Stale,
    ) -> bool {
        let Some(follower) = self.by_server.get_mut(&from) else {
            return false;
        };
        let order = follower.order_at(id).map(|at| &follower.orders[at].1);
        let Some(Order::Attach(ranges)) = order else {
            return false;
        };
        for (slice, ()) in ranges.clone().iter() {
            follower.synced.add(slice);
            self.stale.range(slice);
            for &gap in missing {
                if let Some(gap) = gap.intersection(slice) {
                    follower.held.remove(gap);
                    follower.synced.remove(gap);
                    served.range(gap);
                }
            }
        }
        true
    }
}

/// An order that could not be carried out for some points.
#[derive(Clone, Copy)]
struct Failure<'a> {
    id: u64,
    points: &'a [KeyPoint],
    /// Of these, what stays here beyond the map: it does not have that server keep copies of
    /// them, others are to.
    staying: &'a BTreeSet<KeyPoint>,
    /// What was there before is there.
    kept: bool,
    no_room: bool,
}

/// What comes of that.
#[derive(Default)]
struct Failed {
    points: Vec<KeyPoint>,
    /// The commit of which there is no copy there.
    dropped: Option<u64>,
    /// The commit that was not stored there.
    refused: Option<u64>,
}

impl Core {
    pub(crate) fn hear_done(&mut self, from: ServerId, id: u64) {
        let (proposals, served) = (&mut self.proposals, &mut self.published.stale);
        self.followers
            .hear_done(self.ran_at, from, id, proposals, served);
    }

    /// Some copies could not be stored there. Commits go on waiting for them: a
    /// server that is alive and to have a copy has one before anything is
    /// acknowledged. The map decides whether it is to have one.
    pub(crate) fn hear_failed(
        &mut self,
        now: Duration,
        from: ServerId,
        id: u64,
        points: &[KeyPoint],
        kept: bool,
        no_room: bool,
    ) {
        let staying = points.iter().copied();
        let staying = staying.filter(|&point| self.is_staying(point)).collect();
        let failure = Failure {
            id,
            points,
            staying: &staying,
            kept,
            no_room,
        };
        let served = &mut self.published.stale;
        let failed = self
            .followers
            .hear_failed(now, &self.config, from, &failure, served);
        let Some(failed) = failed else {
            return;
        };
        if let Some(number) = failed.dropped {
            self.proposals.confirm(number, from, false);
        }
        if let Some(number) = failed.refused {
            self.proposals.refuse(number, from);
        }
        self.hear_done(from, id);
        if !failed.points.is_empty() {
            self.tell(Effect::NotCopied {
                to: from,
                points: failed.points,
            });
        }
    }

    /// Parts of an order were refused: whoever has copies there follows a newer
    /// owner. That confirms nothing, so commits that wait for it are never
    /// settled; copies are not offered again before there is a newer map.
    pub(crate) fn hear_refused(
        &mut self,
        now: Duration,
        from: ServerId,
        id: u64,
        newest: AssignmentVersion,
        ranges: &[Slice],
    ) {
        self.hear_version(now, newest);
        let served = &mut self.published.stale;
        self.followers.hear_refused(from, id, ranges, served);
        self.hear_done(from, id);
    }

    pub(crate) fn hear_attached(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        id: u64,
        missing: &[Slice],
        unsettled: Vec<(KeyPoint, Bytes)>,
    ) {
        let served = &mut self.published.stale;
        if !self.followers.hear_attached(from, id, missing, served) {
            return;
        }
        // The owner's value is the one that counts, whatever the former owner
        // was about to commit.
        for (point, key) in unsettled {
            if self.followers.holds(from, point) {
                self.agree(now, values, from, point, key);
            }
        }
    }

    /// Makes one copy of a key what it is here, behind all commits under way.
    pub(super) fn agree(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        server: ServerId,
        point: KeyPoint,
        key: Bytes,
    ) {
        let Some(token) = self.authority.token(point) else {
            return;
        };
        // Commits under way were told after the attachment, and decide.
        if !self.proposals.apart(Slice::of_point(point)).1.is_empty() {
            return;
        }
        let operation = match values::get(values, point, &key).and_then(|entry| {
            entry.value.map(|value| Operation::Put {
                version: entry.version,
                value,
            })
        }) {
            Some(put) => put,
            None => Operation::Remove,
        };
        let order = CopyOrder::Apply {
            point,
            key: key.clone(),
            operation,
        };
        let note = Order::Apply {
            point,
            key,
            proposal: None,
        };
        self.order(now, server, token, order, note);
    }
}
