//! What servers with copies answer.

use super::Order;
use super::declined::Declined;
use crate::core::Core;
use crate::effect::Effect;
use crate::message::{CopyOrder, Operation};
use crate::mutants::{self, Mutant};
use crate::pause::REFUSALS_MAX;
use crate::values::{self, Values};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

impl Core {
    pub(crate) fn hear_done(&mut self, from: ServerId, id: u64) {
        let Some(follower) = self.followers.get_mut(&from) else {
            return;
        };
        let mut dropped = Vec::new();
        while let Some((told, order)) = follower.orders.pop_front_if(|(order, _)| *order <= id) {
            match order {
                Order::Fill(ranges) => {
                    for (slice, ()) in ranges.iter() {
                        follower.synced.add(slice);
                        follower.stored_now(self.ran_at, slice);
                        self.follow_stale.range(slice);
                    }
                }
                Order::Exclude(mut ranges) => {
                    for (slice, ()) in ranges.iter() {
                        self.follow_stale.range(slice);
                        self.stale.range(slice);
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
                    if follower.applies.get(&told) != Some(&number) {
                        // It was told once more, behind another copy of the key that is
                        // without it: the last word counts.
                        continue;
                    }
                    let kept = follower.keeps(point);
                    if kept {
                        follower.stored_now(self.ran_at, Slice::of_point(point));
                    }
                    self.proposals.confirm(number, from, kept);
                }
                Order::Attach(_) | Order::Apply { .. } => {}
            }
        }
        // What it could not store is not there now, nor what was before.
        self.confirm_within(from, &dropped);
    }

    /// A server has no copy of these, and is not to have one: commits do not wait
    /// for it.
    pub(super) fn confirm_within(&mut self, server: ServerId, ranges: &[Slice]) {
        for &slice in ranges {
            for (number, ..) in self.proposals.within(slice) {
                self.proposals.confirm(number, server, false);
            }
        }
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
        // The map does not have it keep copies of these: others are to.
        let staying = points
            .iter()
            .copied()
            .filter(|&point| self.is_staying(point));
        let staying: BTreeSet<KeyPoint> = staying.collect();
        let Some(follower) = self.followers.get_mut(&from) else {
            return;
        };
        let Some(at) = follower.orders.iter().position(|(order, _)| *order == id) else {
            return;
        };
        let mut failed = Vec::new();
        let (mut dropped, mut refused) = (None, None);
        for &point in points {
            let slice = Slice::of_point(point);
            self.follow_stale.range(slice);
            self.stale.range(slice);
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
                        dropped = *proposal;
                        continue;
                    }
                    refused = *proposal;
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
                        follower.declined.add(now, &self.config, point);
                    }
                }
                follower.synced.remove(slice);
                follower.failed.add(slice);
                follower.again.remove(slice);
                let retry_at = follower.pause.end(now, &self.config);
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
                failed.push(point);
            }
        }
        // Told once more, the last word counts.
        let last = follower.applies.get(&id).copied();
        let refused = refused.filter(|number| kept && last == Some(*number));
        if matches!(&follower.orders[at].1, Order::Apply { point, .. } if points.contains(point)) {
            // It confirms nothing.
            follower.orders.remove(at);
        }
        if let Some(number) = dropped {
            self.proposals.confirm(number, from, false);
        }
        if let Some(number) = refused {
            self.proposals.refuse(number, from);
        }
        self.hear_done(from, id);
        if !failed.is_empty() {
            self.tell(Effect::NotCopied {
                to: from,
                points: failed,
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
        let Some(follower) = self.followers.get_mut(&from) else {
            return;
        };
        let at = follower.orders.iter().position(|(order, _)| *order == id);
        let mut forget = false;
        if let Some(at) = at {
            match &mut follower.orders[at].1 {
                Order::Fill(set) => {
                    for &slice in ranges {
                        for slice in set.common(slice).collect::<Vec<_>>() {
                            set.remove(slice);
                            follower.held.remove(slice);
                            follower.refused.add(slice);
                            self.stale.range(slice);
                            self.follow_stale.range(slice);
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
                        self.follow_stale.range(slice);
                        follower.synced.remove(slice);
                    }
                }
                Order::Apply { .. } => forget = true,
            }
            if forget {
                follower.orders.remove(at);
            }
        }
        self.hear_done(from, id);
    }

    /// By a newer map, what was refused may be right.
    pub(crate) fn try_refused_again(&mut self) {
        for follower in self.followers.values_mut() {
            for (slice, ()) in std::mem::take(&mut follower.refused).iter() {
                self.follow_stale.range(slice);
            }
            if mutants::is(Mutant::DeclinedOfferedAnew) {
                follower.declined = Declined::default();
            }
        }
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
        let Some(follower) = self.followers.get_mut(&from) else {
            return;
        };
        let order = follower.orders.iter().find(|(order, _)| *order == id);
        let Some((_, Order::Attach(ranges))) = order else {
            return;
        };
        for (slice, ()) in ranges.clone().iter() {
            follower.synced.add(slice);
            self.follow_stale.range(slice);
            for &gap in missing {
                if let Some(gap) = gap.intersection(slice) {
                    follower.held.remove(gap);
                    follower.synced.remove(gap);
                    self.stale.range(gap);
                }
            }
        }
        // The owner's value is the one that counts, whatever the former owner
        // was about to commit.
        for (point, key) in unsettled {
            let held = self.followers.get(&from);
            if !held.is_some_and(|follower| follower.held.has(point)) {
                continue;
            }
            self.agree(now, values, from, point, key);
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
        let Some(&token) = self.owned.get(point) else {
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
