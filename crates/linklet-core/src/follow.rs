//! The owner's side of its copies: who may have which, and what each of them
//! was told.
//!
//! `held` is what a server may have a copy of: from before it is told to take
//! one until after it has confirmed that it was dropped, or is dead. A strong
//! commit waits for everybody who may hold its key, which is why any of their
//! copies will do when the owner dies. Who holds what goes along when the
//! authority moves.

use crate::Replication;
use crate::core::Core;
use crate::effect::Effect;
use crate::link::{Haste, Link};
use crate::message::{CopyOrder, Message, Operation};
use crate::mutants::{self, Mutant};
use crate::part::Part;
use crate::pause::{Pause, a_few_behind};
use crate::ranges::{RangeSet, joined, overlapping};
use crate::table::{Stale, points_of};
use crate::values::{Limit, Values};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use trefoil_sharder::{Assignment, AssignmentVersion, KeyPoint, ServerId, Slice};

/// Refusals remembered of one server: one for each slice is enough.
const REFUSING_MAX: usize = 10_000;

/// A server with copies.
#[derive(Debug, Default)]
pub(crate) struct Follower {
    /// What it may have copies of.
    pub(crate) held: RangeSet,
    /// What it is known to have complete copies of.
    synced: RangeSet,
    /// Copies made by a former owner, which has to be told of the new one.
    attach: RangeSet,
    excluding: RangeSet,
    /// Not wanted there by this owner; not offered again for now.
    refused: RangeSet,
    /// To be there, and could not be stored when it was sent; neither held nor
    /// confirmed. Sent again at `retry_at`, or with the next commit.
    failed: RangeSet,
    /// Of these, what is to be sent again when it is its turn.
    again: RangeSet,
    /// Up to here it was sent again last; all have their turn.
    last_again: Option<KeyPoint>,
    pause: Pause,
    pub(crate) retry_at: Option<Duration>,
    /// Copies of these it refused, and has not stored since: from when on.
    refusing: BTreeMap<KeyPoint, Duration>,
    /// Of these, those that it had no room for.
    no_room: BTreeSet<KeyPoint>,
    /// Of these it was sent no value, for it could not be marshalled here: nobody
    /// could store that.
    unmarshalled: RangeSet,
    /// Keys committed that it is to be told of when there is room on the way to
    /// it: with what they are by then.
    untold: BTreeSet<(KeyPoint, Bytes)>,
    /// The last order.
    last: u64,
    /// Not confirmed.
    orders: VecDeque<(u64, Order)>,
    /// Orders whose commits are not settled, by their numbers.
    applies: BTreeMap<u64, u64>,
    last_apply: u64,
    settled: u64,
}

/// What an order was about.
#[derive(Debug)]
pub(crate) enum Order {
    Fill(RangeSet),
    Attach(RangeSet),
    Exclude(RangeSet),
    Apply {
        point: KeyPoint,
        key: Bytes,
        proposal: Option<u64>,
    },
}

impl Follower {
    /// Whether what is committed now will be in its copy.
    pub(crate) fn keeps(&self, point: KeyPoint) -> bool {
        self.held.has(point) && !self.excluding.has(point) && !self.failed.has(point)
    }

    /// Whether it will be given a copy with the next commit, if it is to have
    /// one: it has none, and has not just shown that it cannot store it.
    pub(crate) fn takes(&self, point: KeyPoint) -> bool {
        !self.held.has(point) && !self.failed.has(point)
    }

    /// Whether it could not store this.
    pub(crate) fn fails(&self, point: KeyPoint) -> bool {
        self.failed.has(point)
    }

    /// Whether it has no room for what is new in a slice: it has refused some of it.
    pub(crate) fn is_full(&self, slice: Slice) -> bool {
        let mut points = self.no_room.range(slice.start()..=slice.last());
        points.next().is_some()
    }

    /// Keys of a range that it may not have been told of.
    pub(crate) fn unconfirmed(&self, ranges: &RangeSet) -> Vec<(KeyPoint, Bytes)> {
        let keys = self.orders.iter().filter_map(|(_, order)| match order {
            Order::Apply { point, key, .. } if ranges.has(*point) => Some((*point, key.clone())),
            _ => None,
        });
        keys.collect()
    }

    /// Takes out keys of a range that it has not been told of.
    pub(crate) fn take_untold(&mut self, ranges: &RangeSet) -> Vec<(KeyPoint, Bytes)> {
        self.untold
            .extract_if(.., |(point, _)| ranges.has(*point))
            .collect()
    }

    /// The parts of a range of which it has, or may soon have, no complete copy:
    /// one that is being dropped counts for nothing, wanted again or not.
    fn incomplete(&self, slice: Slice) -> Vec<Slice> {
        let mut parts = self.synced.gaps(slice);
        parts.extend(self.excluding.common(slice));
        parts
    }

    /// The parts of these ranges that copies on their way to it are of.
    fn filled_within(&self, ranges: &RangeSet) -> Vec<Slice> {
        let mut filled = Vec::new();
        for (_, order) in &self.orders {
            if let Order::Fill(set) = order {
                filled.extend(set.iter().flat_map(|(slice, ())| ranges.common(slice)));
            }
        }
        filled
    }

    /// It has a copy of this, or is not to have one any more: it refuses nothing of it.
    fn stored(&mut self, slice: Slice) {
        let within = self.refusing.range(slice.start()..=slice.last());
        for point in within.map(|(&point, _)| point).collect::<Vec<_>>() {
            self.refusing.remove(&point);
            self.no_room.remove(&point);
        }
    }

    /// It has stored this. If it could not before, there is room now: it is sent the rest.
    fn stored_now(&mut self, now: Duration, slice: Slice) {
        let before = self.refusing.len();
        self.stored(slice);
        if self.refusing.len() < before {
            self.pause = Pause::default();
            self.retry_at = (!self.failed.is_empty()).then_some(now);
        }
    }

    /// It has a copy of this that could not store something. It is told anew what is
    /// under way, or nothing is any more.
    fn expect_again(&mut self, part: Slice) {
        self.failed.remove(part);
        self.again.remove(part);
        self.synced.add(part);
    }

    /// Where it has a copy that could not store a commit, and is not being dropped.
    fn kept_as_it_was(&self) -> RangeSet {
        let mut kept = RangeSet::default();
        for (slice, ()) in self.failed.iter() {
            self.held.common(slice).for_each(|part| kept.add(part));
            kept.remove_all(self.excluding.common(slice));
        }
        kept
    }

    /// Somebody else is the owner of these now.
    pub(crate) fn let_go(&mut self, ranges: &[Slice]) {
        for &slice in ranges {
            self.held.remove(slice);
            self.synced.remove(slice);
            self.attach.remove(slice);
            self.excluding.remove(slice);
            self.refused.remove(slice);
            self.failed.remove(slice);
            self.again.remove(slice);
            self.unmarshalled.remove(slice);
            self.stored(slice);
            for (_, order) in &mut self.orders {
                match order {
                    Order::Fill(set) | Order::Attach(set) | Order::Exclude(set) => {
                        set.remove(slice);
                    }
                    Order::Apply { .. } => {}
                }
            }
        }
    }

    /// These commits are settled; returns the order up to which all are, if
    /// that is news.
    pub(crate) fn settled(&mut self, numbers: &[u64]) -> Option<u64> {
        if self.applies.is_empty() && self.last_apply <= self.settled {
            return None;
        }
        self.applies.retain(|_, number| !numbers.contains(number));
        let first = self.applies.keys().next();
        let upto = first.map_or(self.last_apply, |&first| first - 1);
        (upto > self.settled).then(|| {
            self.settled = upto;
            upto
        })
    }
}

impl Core {
    /// A server has, or may have, copies of this.
    pub(crate) fn adopt_holder(&mut self, server: ServerId, slice: Slice) {
        if server == self.me || self.gone.contains(&server) {
            return;
        }
        let follower = self.followers.entry(server).or_default();
        follower.held.add(slice);
        follower.attach.add(slice);
        self.follow_stale.range(slice);
        self.stale.range(slice);
    }

    /// As before it was sent away.
    pub(crate) fn hold_again(&mut self, server: ServerId, slice: Slice) {
        self.adopt_holder(server, slice);
    }

    pub(crate) fn forget_follower(&mut self, server: ServerId) {
        if self.followers.remove(&server).is_some() {
            self.proposals.forget_server(server);
            self.follow_stale.all();
            self.stale.all();
        }
    }

    /// Gives an order that somebody waits for, and notes it.
    pub(crate) fn order(
        &mut self,
        now: Duration,
        server: ServerId,
        token: AssignmentVersion,
        order: CopyOrder,
        note: Order,
    ) {
        self.order_with(now, server, token, Haste::Urgent, order, note);
    }

    fn order_with(
        &mut self,
        now: Duration,
        server: ServerId,
        token: AssignmentVersion,
        haste: Haste,
        order: CopyOrder,
        note: Order,
    ) {
        let follower = self.followers.entry(server).or_default();
        follower.last += 1;
        let id = follower.last;
        if let Order::Apply {
            proposal: Some(number),
            ..
        } = note
        {
            // Told once more, it is settled with the last order of it.
            follower.applies.retain(|_, told| *told != number);
            follower.applies.insert(id, number);
        }
        if matches!(note, Order::Apply { .. }) {
            follower.last_apply = id;
            self.settled_stale |= self.config.replication == Replication::Strong;
        }
        follower.orders.push_back((id, note));
        self.say_with(now, server, haste, Message::Copy { id, token, order });
    }

    /// The slices of the map that are this server's, in these ranges.
    fn mine<'a>(&'a self, scope: &'a [Slice]) -> impl Iterator<Item = (Slice, &'a [ServerId])> {
        let map = self.map.current().map_or(&[][..], Assignment::slices);
        let parts = scope.iter().flat_map(move |&within| {
            let assigned = overlapping(map, within).iter();
            assigned.filter_map(move |a| Some((a.slice.intersection(within)?, &a.servers[..])))
        });
        parts.filter(|(_, servers)| servers.first() == Some(&self.me))
    }

    /// What each server is to have copies of, in these ranges: by the assignment, of what
    /// is owned here and stays here.
    fn desired(&self, scope: &[Slice]) -> BTreeMap<ServerId, RangeSet> {
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

    /// Brings the copies to what they should be, where something has changed. Copies that
    /// nobody waits for are only noted: they take turns ([`bulk`](crate::bulk)). Everything
    /// here concerns each point by itself.
    pub(crate) fn follow(&mut self, now: Duration, values: &mut dyn Values) {
        if self.config.replication == Replication::None {
            return;
        }
        self.flush_touched(now, values);
        let mut again: BTreeSet<ServerId> = BTreeSet::new();
        for (&server, follower) in &mut self.followers {
            if follower.retry_at.is_some_and(|at| now >= at) {
                follower.pause.lengthen(&self.config);
                follower.retry_at = Some(follower.pause.end(now, &self.config));
                again.insert(server);
                let last = follower.last_again.unwrap_or(KeyPoint(u64::MAX));
                let few = a_few_behind(&follower.failed, last);
                follower.last_again = few.last().map(|slice| slice.last());
                few.iter().for_each(|&slice| self.follow_stale.range(slice));
                follower.again = RangeSet::of(few);
            }
        }
        let stale = std::mem::take(&mut self.follow_stale);
        self.segments_looked_at += stale.segments().count() as u64;
        let scope = stale.slices();
        if !scope.is_empty() {
            self.follow_within(now, values, &scope, &again);
        }
    }

    fn follow_within(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        scope: &[Slice],
        again: &BTreeSet<ServerId>,
    ) {
        let attach: Vec<ServerId> = self
            .followers
            .iter()
            .filter(|(_, follower)| !follower.attach.is_empty())
            .map(|(&server, _)| server)
            .collect();
        for server in attach {
            self.attach_server(now, server);
        }
        let desired = self.desired(scope);
        self.release_failed(scope, &desired);
        self.take_back_failed(now, values);
        for &server in again {
            self.tell_failed(now, server);
        }
        for (&server, ranges) in &desired {
            self.fill_server(now, values, server, ranges);
        }
        let extra = self.extra(scope, &desired);
        for (server, extra) in extra {
            self.drop_copies(now, server, &extra);
        }
    }

    /// Sends one chunk of the copies that a server is to have; `false` if there are none.
    pub(crate) fn fill_next(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        server: ServerId,
    ) -> bool {
        let mut parts: BTreeMap<AssignmentVersion, Part> = BTreeMap::new();
        let mut rest = Limit {
            bytes: self.config.chunk_bytes,
            entries: self.config.chunk_entries,
        };
        while rest.bytes > 0
            && rest.entries > 0
            && let Some(segment) = self.fill_waiting.get_mut(&server).and_then(Stale::pop)
        {
            self.segments_looked_at += 1;
            let points = points_of(segment);
            let desired = self.desired(&[points]);
            let Some(ranges) = desired.get(&server) else {
                continue;
            };
            let missing = self.fill_under_way(now, values, server, ranges);
            if !self.scan_missing(values, &missing, &mut parts, &mut rest) {
                // Its rest in the next turn.
                let waiting = self.fill_waiting.entry(server).or_default();
                waiting.range(points);
            }
        }
        if !self.fill_waiting.get(&server).is_some_and(Stale::is_any) {
            self.fill_waiting.remove(&server);
        }
        let any = !parts.is_empty();
        for (token, part) in parts {
            self.spend(now, part.bytes);
            self.fill_with(now, server, token, part, Haste::Bulk);
        }
        any
    }

    /// Reads missing parts for copies, up to a limit, of which it leaves the rest; whether
    /// all of them.
    fn scan_missing(
        &self,
        values: &mut dyn Values,
        missing: &RangeSet,
        parts: &mut BTreeMap<AssignmentVersion, Part>,
        rest: &mut Limit,
    ) -> bool {
        for (token, ranges) in self.by_token(missing) {
            for slice in ranges {
                if rest.bytes == 0 || rest.entries == 0 {
                    return false;
                }
                let part = parts.entry(token).or_default();
                let (bytes, entries) = (part.bytes, part.entries.len());
                part.scan(values, slice, *rest);
                rest.bytes = rest.bytes.saturating_sub(part.bytes - bytes);
                rest.entries = rest.entries.saturating_sub(part.entries.len() - entries);
                if !part.has(slice.last()) {
                    return false;
                }
            }
        }
        true
    }

    /// Cuts ranges by the tokens that they are owned with.
    fn by_token(&self, ranges: &RangeSet) -> BTreeMap<AssignmentVersion, Vec<Slice>> {
        let mut groups: BTreeMap<AssignmentVersion, Vec<Slice>> = BTreeMap::new();
        for (slice, ()) in ranges.iter() {
            for (slice, &token) in self.owned.within(slice) {
                groups.entry(token).or_default().push(slice);
            }
        }
        groups
    }

    pub(crate) fn attach_server(&mut self, now: Duration, server: ServerId) {
        let Some(follower) = self.followers.get_mut(&server) else {
            return;
        };
        let ranges = std::mem::take(&mut follower.attach);
        for (token, ranges) in self.by_token(&ranges) {
            let note = Order::Attach(RangeSet::of(ranges.iter().copied()));
            let order = CopyOrder::Attach {
                ranges: ranges.clone(),
            };
            self.order(now, server, token, order, note);
            for slice in ranges {
                self.tell_pending(now, server, slice, token);
            }
        }
    }

    /// Commits under way are told to a copy that is new to this owner.
    fn tell_pending(
        &mut self,
        now: Duration,
        server: ServerId,
        slice: Slice,
        token: AssignmentVersion,
    ) {
        if mutants::is(Mutant::PendingNotCopied) {
            return;
        }
        for (number, point, key, operation) in self.proposals.within(slice) {
            self.apply_at(now, server, number, point, &key, &operation, token);
        }
    }

    /// The parts of what a server is to have that were not sent. What it could not store is
    /// among them only when it is time to try again.
    fn missing(&self, server: ServerId, desired: &RangeSet) -> Vec<Slice> {
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

    /// Sends copies of what is missing there and somebody waits for, and notes the rest.
    fn fill_server(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        server: ServerId,
        desired: &RangeSet,
    ) {
        let rest = self.fill_under_way(now, values, server, desired);
        if !rest.is_empty() {
            let waiting = self.fill_waiting.entry(server).or_default();
            rest.iter().for_each(|(slice, ())| waiting.range(slice));
        }
    }

    /// Sends what is missing there and has commits under way: they wait for everybody who
    /// is to have a copy by now, so they wait for no turn. Returns what else is missing.
    fn fill_under_way(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        server: ServerId,
        desired: &RangeSet,
    ) -> RangeSet {
        let missing = self.missing(server, desired);
        let under_way = missing
            .iter()
            .flat_map(|&slice| self.proposals.apart(slice).1);
        let under_way: Vec<Slice> = under_way.collect();
        let mut rest = RangeSet::of(missing);
        let to_it = |core: &Core| core.links.get(&server).map_or(0, Link::unconfirmed_bytes);
        let before = to_it(self);
        for point in under_way {
            let follower = self.followers.get(&server);
            let again = follower.is_some_and(|follower| follower.again.has(point.start()));
            if again && to_it(self) - before >= self.config.bulk_bytes {
                // It could not store it before: that waits for its turn.
                continue;
            }
            rest.remove(point);
            if let Some(&token) = self.owned.get(point.start()) {
                self.fill_at(now, values, server, point.start(), token);
            }
        }
        rest
    }

    /// Tells a server again of commits that it could not store, where it has a
    /// copy and it is their turn: as many bytes as a share of bulk, and one at least. Where
    /// none is under way any more, as far as the window allows.
    fn tell_failed(&mut self, now: Duration, server: ServerId) {
        let Some(follower) = self.followers.get(&server) else {
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
            if under_way.is_empty() && !self.is_open(server) {
                // When it is time again.
                continue;
            }
            let Some(follower) = self.followers.get_mut(&server) else {
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
            for (token, ranges) in self.by_token(&RangeSet::of([part])) {
                for slice in ranges {
                    self.tell_pending(now, server, slice, token);
                }
            }
        }
    }

    /// Sends a copy of one point, that somebody waits for.
    fn fill_at(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        server: ServerId,
        point: KeyPoint,
        token: AssignmentVersion,
    ) {
        let mut part = Part::default();
        let limit = Limit {
            bytes: self.config.chunk_bytes,
            entries: self.config.chunk_entries,
        };
        part.scan(values, Slice::of_point(point), limit);
        self.fill_with(now, server, token, part, Haste::Urgent);
    }

    /// Sends copies of ranges that were read.
    fn fill_with(
        &mut self,
        now: Duration,
        server: ServerId,
        token: AssignmentVersion,
        part: Part,
        haste: Haste,
    ) {
        let ranges = joined(part.sent);
        let follower = self.followers.entry(server).or_default();
        for &slice in &ranges {
            follower.held.add(slice);
            follower.failed.remove(slice);
            follower.again.remove(slice);
            follower.unmarshalled.remove(slice);
            self.stale.range(slice);
        }
        for entry in part.entries.iter().filter(|entry| entry.value.is_none()) {
            follower.unmarshalled.add(Slice::of_point(entry.point));
        }
        if follower.failed.is_empty() {
            follower.retry_at = None;
        }
        let order = CopyOrder::Fill {
            ranges: ranges.clone(),
            entries: part.entries,
        };
        let note = Order::Fill(RangeSet::of(ranges.iter().copied()));
        self.order_with(now, server, token, haste, order, note);
        for slice in ranges {
            self.tell_pending(now, server, slice, token);
        }
    }

    /// One key point to every server that is to have a copy and has none.
    pub(crate) fn fill_point(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        point: KeyPoint,
        token: AssignmentVersion,
    ) {
        let Some(map) = self.map.current() else {
            return;
        };
        let servers = &map.slice_of(point).servers;
        if servers.first() != Some(&self.me) {
            return;
        }
        let held = |server: &ServerId| {
            let follower = self.followers.get(server);
            follower.is_some_and(|follower| follower.held.has(point))
        };
        let missing: Vec<ServerId> = servers[1..]
            .iter()
            .copied()
            .filter(|server| self.alive.contains(server) && !held(server))
            .collect();
        for server in missing {
            self.fill_at(now, values, server, point, token);
        }
    }

    /// Copies that are not to be there any more, in these ranges: they are dropped once
    /// those that are to be there are complete.
    fn extra(
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

    fn drop_copies(&mut self, now: Duration, server: ServerId, copies: &RangeSet) {
        for (token, ranges) in self.by_token(copies) {
            let set = RangeSet::of(ranges.iter().copied());
            if let Some(follower) = self.followers.get_mut(&server) {
                for &slice in &ranges {
                    follower.excluding.add(slice);
                }
            }
            // From now on nobody counts on what it has confirmed.
            self.proposals.dropped(server, &set);
            let order = CopyOrder::Exclude { ranges };
            self.order(now, server, token, order, Order::Exclude(set));
        }
    }

    /// Eventual: tells the copies of what was committed, newest values only, as
    /// far as the window allows.
    fn flush_touched(&mut self, now: Duration, values: &mut dyn Values) {
        for (point, key) in std::mem::take(&mut self.touched) {
            let mut rest = self.followers.values_mut();
            // A copy that is being dropped hears nothing more; if it is to be there
            // again, it is filled with what is the newest then.
            let follows = |f: &&mut Follower| f.held.has(point) && !f.excluding.has(point);
            while let Some(follower) = rest.find(follows) {
                follower.untold.insert((point, key.clone()));
            }
        }
        let untold = self.followers.iter().filter(|(_, f)| !f.untold.is_empty());
        for server in untold.map(|(&server, _)| server).collect::<Vec<_>>() {
            while self.is_open(server) {
                let follower = self.followers.get_mut(&server);
                let Some((point, key)) = follower.and_then(|f| f.untold.pop_first()) else {
                    break;
                };
                self.tell_touched(now, values, server, point, key);
            }
        }
    }

    fn tell_touched(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        server: ServerId,
        point: KeyPoint,
        key: Bytes,
    ) {
        let follows = |f: &Follower| f.held.has(point) && !f.excluding.has(point);
        if !self.followers.get(&server).is_some_and(follows) {
            return;
        }
        let Some(&token) = self.owned.get(point) else {
            return;
        };
        let operation = match values.get(point, &key) {
            None => Some(Operation::Remove),
            Some(entry) => entry.value.map(|value| Operation::Put {
                version: entry.version,
                value,
            }),
        };
        // An order waits for its turn behind the attachment.
        self.attach_server(now, server);
        match operation {
            Some(operation) => {
                let note = Order::Apply {
                    point,
                    key: key.clone(),
                    proposal: None,
                };
                let order = CopyOrder::Apply {
                    point,
                    key,
                    operation,
                };
                self.order(now, server, token, order, note);
            }
            None => {
                // It cannot be marshalled: better no copy than an old one.
                let slice = Slice::of_point(point);
                if let Some(follower) = self.followers.get_mut(&server) {
                    follower.excluding.add(slice);
                }
                let order = CopyOrder::Exclude {
                    ranges: vec![slice],
                };
                let note = Order::Exclude(RangeSet::of([slice]));
                self.order(now, server, token, order, note);
            }
        }
    }

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
                            follower.failed.remove(part);
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
    fn confirm_within(&mut self, server: ServerId, ranges: &[Slice]) {
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
                }
                follower.synced.remove(slice);
                follower.failed.add(slice);
                follower.again.remove(slice);
                let retry_at = follower.pause.end(now, &self.config);
                follower.retry_at.get_or_insert(retry_at);
                if follower.unmarshalled.has(point) {
                    continue;
                }
                if follower.refusing.len() < REFUSING_MAX {
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

    /// What could not be stored, and is not to be there (any more), is waited for
    /// no longer once there is no copy that could differ.
    fn release_failed(&mut self, scope: &[Slice], desired: &BTreeMap<ServerId, RangeSet>) {
        let mut released = Vec::new();
        for (&server, follower) in &mut self.followers {
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
                        follower.failed.remove(gap);
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
        for (server, part) in released {
            self.confirm_within(server, &[part]);
        }
    }

    /// What is to be given away waits for the commits under way. One that a copy
    /// could not store would never end: it is taken back. To drop that copy would
    /// end it, too, but nobody else may have what was acknowledged before. So a
    /// copy is dropped only where there is nothing to go back to: it refuses what a
    /// dead owner was about to commit, or what it had before.
    fn take_back_failed(&mut self, now: Duration, values: &mut dyn Values) {
        if self.leaving.is_empty() {
            return;
        }
        let mut back: BTreeSet<KeyPoint> = BTreeSet::new();
        let mut dropped: Vec<(ServerId, RangeSet)> = Vec::new();
        for (&server, follower) in &self.followers {
            for (slice, ()) in follower.kept_as_it_was().iter() {
                for (part, _) in self.leaving.within(slice) {
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
            for (&server, follower) in &self.followers {
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
            let slice = Slice::of_point(point);
            for follower in self.followers.values_mut() {
                if follower.kept_as_it_was().has(point) {
                    self.follow_stale.range(slice);
                    follower.expect_again(slice);
                    follower.stored(slice);
                }
            }
            self.take_back(now, values, point);
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
    fn agree(
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
        let operation = match values.get(point, &key).and_then(|entry| {
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

    /// Whether a server was told to drop its copy of this, and has not confirmed
    /// that: for tests. A commit that began before it is to have one again does not
    /// wait for it.
    pub fn is_dropping(&self, server: ServerId, point: KeyPoint) -> bool {
        let follower = self.followers.get(&server);
        follower.is_some_and(|follower| follower.excluding.has(point))
    }

    /// Copies that servers have been refusing for that long, though they were sent again,
    /// and what they are to own and could not store: who, and one point for each slice of
    /// the map. What cannot be marshalled here is not among them.
    pub fn refusals(&self, now: Duration, lasting: Duration) -> Vec<(ServerId, KeyPoint)> {
        let Some(map) = self.map.current() else {
            return Vec::new();
        };
        let mut refusals = Vec::new();
        let copies = self.followers.iter();
        let copies = copies.map(|(&server, follower)| (server, &follower.refusing));
        for (server, refused) in copies.chain(self.unmoved()) {
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
