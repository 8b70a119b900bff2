//! The owner's side of its copies: who may have which, and what each of them
//! was told.
//!
//! `held` is what a server may have a copy of: from before it is told to take
//! one until after it has confirmed that it was dropped, or is dead. A strong
//! commit waits for everybody who may hold its key, which is why any of their
//! copies will do when the owner dies. Who holds what goes along when the
//! authority moves.
//!
//! | module | what it does |
//! |---|---|
//! | `follower` | what is known of one server with copies |
//! | `placing` | who is to have copies of what |
//! | `declined` | what stays beyond the map, and one of them could not store |
//! | `answers` | what servers with copies answer |
//! | `refused` | what they could not store |
//! | `touched` | telling copies afterwards, in eventual mode |

mod answers;
mod declined;
mod follower;
mod placing;
mod refused;
mod touched;

pub(crate) use follower::{Follower, Order};

use crate::Replication;
use crate::core::Core;
use crate::link::{Haste, Link};
use crate::message::{CopyOrder, Message};
use crate::mutants::{self, Mutant};
use crate::part::Part;
use crate::pause::a_few_behind;
use crate::ranges::{RangeSet, joined};
use crate::table::{Stale, points_of};
use crate::values::{Limit, Values};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

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
        self.offer_declined(now);
        let stale = std::mem::take(&mut self.follow_stale);
        self.segments_looked_at += stale.count();
        let scope = stale.slices();
        if !scope.is_empty() {
            self.follow_within(now, values, &scope, &again);
        }
    }

    /// Offers servers a little of what stays and they could not store before.
    fn offer_declined(&mut self, now: Duration) {
        let is_due = |follower: &Follower| follower.declined.again_at().is_some_and(|at| now >= at);
        let due = self.followers.iter().filter(|(_, f)| is_due(f));
        for server in due.map(|(&server, _)| server).collect::<Vec<_>>() {
            let staying = self.staying(Slice::ALL);
            let Some(follower) = self.followers.get_mut(&server) else {
                continue;
            };
            let stays = |point| staying.contains(&point);
            for point in follower.declined.due(now, &self.config, stays) {
                self.follow_stale.range(Slice::of_point(point));
            }
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
            follower.forget_failed(slice);
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

    /// Whether a server was told to drop its copy of this, and has not confirmed
    /// that: for tests. A commit that began before it is to have one again does not
    /// wait for it.
    pub fn is_dropping(&self, server: ServerId, point: KeyPoint) -> bool {
        let follower = self.followers.get(&server);
        follower.is_some_and(|follower| follower.excluding.has(point))
    }
}
