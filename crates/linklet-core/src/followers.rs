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
use crate::config::Config;
use crate::core::Core;
use crate::link::Haste;
use crate::message::{CopyOrder, Message};
use crate::mutants::{self, Mutant};
use crate::part::Part;
use crate::pause::a_few_behind;
use crate::ranges::{RangeSet, common, joined, keys_of};
use crate::table::{Stale, points_of};
use crate::values::{Limit, Values};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// Who has, or may have, copies of what is owned here, and what
/// they are to be sent. Answers also settle commits ([`Proposals`]) and change what is served;
/// it touches no other part.
///
/// * Whoever may have a copy holds it, from before he is told to take it.
/// * Whatever changes who is to have copies of a range marks it as stale here; it is worked out
///   anew at the end of the step ([`Core::follow`]), and what nobody waits for takes its turn.
/// * Nothing is kept of the dead.
#[derive(Debug, Default)]
pub(crate) struct Followers {
    by_server: BTreeMap<ServerId, Follower>,
    /// Where copies may not be what they should be.
    pub(crate) stale: Stale,
    /// Where copies are to be sent when it is a server's turn.
    fill_waiting: BTreeMap<ServerId, Stale>,
    /// Committed, and not sent to the copies yet.
    touched: BTreeSet<(KeyPoint, Bytes)>,
    /// Copies are to be told what is settled.
    settled_stale: bool,
    looked_at: u64,
}

/// Who may have copies of which ranges, and keys that these may not have been told of.
pub(crate) type LetGo = (Vec<(ServerId, Vec<Slice>)>, Vec<(KeyPoint, Bytes)>);

impl Followers {
    pub(crate) fn iter(&self) -> impl Iterator<Item = (ServerId, &Follower)> {
        let followers = self.by_server.iter();
        followers.map(|(&server, follower)| (server, follower))
    }

    pub(crate) fn get(&self, server: ServerId) -> Option<&Follower> {
        self.by_server.get(&server)
    }

    /// Whether a server may have a copy of a point.
    pub(crate) fn holds(&self, server: ServerId, point: KeyPoint) -> bool {
        self.get(server).is_some_and(|f| f.held.has(point))
    }

    /// Who may have a copy of a point.
    pub(crate) fn holders(&self, point: KeyPoint) -> Vec<ServerId> {
        let holders = self.iter().filter(|(_, f)| f.held.has(point));
        holders.map(|(server, _)| server).collect()
    }

    /// Whether anybody could not store his copy of a point.
    pub(crate) fn any_fails(&self, point: KeyPoint) -> bool {
        self.by_server.values().any(|f| f.fails(point))
    }

    /// Segments for which copies were worked out so far.
    pub(crate) fn looked_at(&self) -> u64 {
        self.looked_at
    }

    /// A server has, or may have, copies of this.
    fn adopt(&mut self, server: ServerId, slice: Slice) {
        let follower = self.by_server.entry(server).or_default();
        follower.held.add(slice);
        follower.attach.add(slice);
        self.stale.range(slice);
    }

    /// A server is dead for ever; whether it may have had copies.
    fn forget(&mut self, server: ServerId) -> bool {
        self.fill_waiting.remove(&server);
        let had = self.by_server.remove(&server).is_some();
        if had {
            self.stale.all();
        }
        had
    }

    /// Somebody else is the owner of these now. Returns who may have copies of them, and keys
    /// that these may not have been told of.
    pub(crate) fn let_go(&mut self, ranges: &[Slice]) -> LetGo {
        let set = RangeSet::of(ranges.iter().copied());
        let mut holders = Vec::new();
        let mut unsettled = Vec::new();
        for (&server, follower) in &mut self.by_server {
            let held = common(ranges, &follower.held);
            if !held.is_empty() {
                unsettled.extend(follower.unconfirmed(&set));
                unsettled.extend(follower.take_untold(&set));
                follower.let_go(&held);
                holders.push((server, held));
            }
        }
        for (slice, ()) in set.iter() {
            unsettled.extend(self.touched.extract_if(keys_of(slice), |_| true));
        }
        (holders, unsettled)
    }

    /// A key was committed; nobody has to hear of it if there is no copy.
    pub(crate) fn touch(&mut self, point: KeyPoint, key: Bytes) {
        if self.by_server.values().any(|f| f.held.has(point)) {
            self.touched.insert((point, key));
        }
    }

    /// Copies of these keys may not have been told of all commits.
    pub(crate) fn note_touched(&mut self, keys: impl IntoIterator<Item = (KeyPoint, Bytes)>) {
        self.touched.extend(keys);
    }

    /// Notes an order; its number.
    fn note(&mut self, server: ServerId, strong: bool, note: Order) -> u64 {
        let follower = self.by_server.entry(server).or_default();
        self.settled_stale |= strong && matches!(note, Order::Apply { .. });
        follower.note(note)
    }

    /// Whether somebody is to be sent copies in turns.
    pub(crate) fn fills(&self) -> bool {
        !self.fill_waiting.is_empty()
    }

    /// Who is to be sent copies in turns.
    pub(crate) fn filling(&self) -> impl Iterator<Item = ServerId> {
        self.fill_waiting.keys().copied()
    }

    /// Nobody is to be sent anything any more.
    pub(crate) fn fill_nobody(&mut self) {
        self.fill_waiting.clear();
    }

    /// A server is to be sent copies of these when it is its turn.
    fn fill_later(&mut self, server: ServerId, ranges: &RangeSet) {
        if !ranges.is_empty() {
            let waiting = self.fill_waiting.entry(server).or_default();
            ranges.iter().for_each(|(slice, ())| waiting.range(slice));
        }
    }

    /// The next segment that a server is to be sent copies of.
    fn next_fill(&mut self, server: ServerId) -> Option<Slice> {
        let segment = self.fill_waiting.get_mut(&server)?.pop()?;
        self.looked_at += 1;
        Some(points_of(segment))
    }

    /// A turn is over.
    fn end_fill(&mut self, server: ServerId) {
        if !self.fill_waiting.get(&server).is_some_and(Stale::is_any) {
            self.fill_waiting.remove(&server);
        }
    }

    /// Copies of ranges are on their way to a server; of `unmarshalled` points without values.
    fn filled(&mut self, server: ServerId, ranges: &[Slice], unmarshalled: &[KeyPoint]) {
        let follower = self.by_server.entry(server).or_default();
        for &slice in ranges {
            follower.held.add(slice);
            follower.forget_failed(slice);
            follower.unmarshalled.remove(slice);
        }
        for &point in unmarshalled {
            follower.unmarshalled.add(Slice::of_point(point));
        }
        if follower.failed.is_empty() {
            follower.retry_at = None;
        }
    }

    /// A server is told to drop its copies of these.
    fn exclude(&mut self, server: ServerId, ranges: &[Slice]) {
        if let Some(follower) = self.by_server.get_mut(&server) {
            ranges
                .iter()
                .for_each(|&slice| follower.excluding.add(slice));
        }
    }

    /// Who is to be told again by now of a little that he could not store.
    fn end_pauses(&mut self, now: Duration, config: &Config) -> BTreeSet<ServerId> {
        let mut again: BTreeSet<ServerId> = BTreeSet::new();
        for (&server, follower) in &mut self.by_server {
            if follower.retry_at.is_some_and(|at| now >= at) {
                follower.pause.lengthen(config);
                follower.retry_at = Some(follower.pause.end(now, config));
                again.insert(server);
                let last = follower.last_again.unwrap_or(KeyPoint(u64::MAX));
                let few = a_few_behind(&follower.failed, last);
                follower.last_again = few.last().map(|slice| slice.last());
                few.iter().for_each(|&slice| self.stale.range(slice));
                follower.again = RangeSet::of(few);
            }
        }
        again
    }

    /// Who has to be told of a new owner.
    fn attaching(&self) -> Vec<ServerId> {
        let attach = self.iter().filter(|(_, f)| !f.attach.is_empty());
        attach.map(|(server, _)| server).collect()
    }

    /// When somebody is to be sent again what he could not store.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        let followers = self.by_server.values();
        let ticks = followers.flat_map(|f| f.retry_at.into_iter().chain(f.declined.again_at()));
        ticks.min()
    }

    /// Whether copies may have to be told what is settled.
    pub(crate) fn is_settled_stale(&self) -> bool {
        self.settled_stale
    }

    /// These commits are settled. Who is to be told up to which order all are.
    pub(crate) fn settle(&mut self, numbers: &[u64]) -> Vec<(ServerId, u64)> {
        self.settled_stale = false;
        let mut news = Vec::new();
        for (&server, follower) in &mut self.by_server {
            news.extend(follower.settled(numbers).map(|id| (server, id)));
        }
        news
    }
}

impl Core {
    /// A server has, or may have, copies of this.
    pub(crate) fn adopt_holder(&mut self, server: ServerId, slice: Slice) {
        if self.peers.may_live(server) {
            self.followers.adopt(server, slice);
            self.published.stale.range(slice);
        }
    }

    pub(crate) fn forget_follower(&mut self, server: ServerId) {
        if self.followers.forget(server) {
            self.proposals.forget_server(server);
            self.published.stale.all();
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
        let strong = self.config.replication == Replication::Strong;
        let id = self.followers.note(server, strong, note);
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
        let again = self.followers.end_pauses(now, &self.config);
        self.offer_declined(now);
        let stale = std::mem::take(&mut self.followers.stale);
        self.followers.looked_at += stale.count();
        let scope = stale.slices();
        if !scope.is_empty() {
            self.follow_within(now, values, &scope, &again);
        }
    }

    /// Offers servers a little of what stays and they could not store before.
    fn offer_declined(&mut self, now: Duration) {
        let is_due = |follower: &Follower| follower.declined.again_at().is_some_and(|at| now >= at);
        let due = self.followers.iter().filter(|(_, f)| is_due(f));
        for server in due.map(|(server, _)| server).collect::<Vec<_>>() {
            let staying = self.staying(Slice::ALL);
            let Some(follower) = self.followers.by_server.get_mut(&server) else {
                continue;
            };
            let stays = |point| staying.contains(&point);
            for point in follower.declined.due(now, &self.config, stays) {
                self.followers.stale.range(Slice::of_point(point));
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
        for server in self.followers.attaching() {
            self.attach_server(now, server);
        }
        let desired = self.desired(scope);
        let released = self.followers.release_failed(scope, &desired);
        for (server, part) in released {
            self.proposals.confirm_within(server, &[part]);
        }
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
            && let Some(points) = self.followers.next_fill(server)
        {
            let desired = self.desired(&[points]);
            let Some(ranges) = desired.get(&server) else {
                continue;
            };
            let missing = self.fill_under_way(now, values, server, ranges);
            if !self.scan_missing(values, &missing, &mut parts, &mut rest) {
                // Its rest in the next turn.
                self.followers.fill_later(server, &RangeSet::of([points]));
            }
        }
        self.followers.end_fill(server);
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
        for (token, ranges) in self.authority.by_token(missing) {
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

    pub(crate) fn attach_server(&mut self, now: Duration, server: ServerId) {
        let Some(follower) = self.followers.by_server.get_mut(&server) else {
            return;
        };
        let ranges = std::mem::take(&mut follower.attach);
        for (token, ranges) in self.authority.by_token(&ranges) {
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
        self.followers.fill_later(server, &rest);
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
        let missing = self.followers.missing(server, desired);
        let under_way = missing
            .iter()
            .flat_map(|&slice| self.proposals.apart(slice).1);
        let under_way: Vec<Slice> = under_way.collect();
        let mut rest = RangeSet::of(missing);
        let before = self.peers.unconfirmed_bytes_to(server);
        for point in under_way {
            let follower = self.followers.get(server);
            let again = follower.is_some_and(|follower| follower.again.has(point.start()));
            let sent = self.peers.unconfirmed_bytes_to(server) - before;
            if again && sent >= self.config.bulk_bytes {
                // It could not store it before: that waits for its turn.
                continue;
            }
            rest.remove(point);
            if let Some(token) = self.authority.token(point.start()) {
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
        for &slice in &ranges {
            self.published.stale.range(slice);
        }
        let unmarshalled = part.entries.iter().filter(|entry| entry.value.is_none());
        let unmarshalled: Vec<KeyPoint> = unmarshalled.map(|entry| entry.point).collect();
        self.followers.filled(server, &ranges, &unmarshalled);
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
        let Some(map) = self.known.map() else {
            return;
        };
        let servers = &map.slice_of(point).servers;
        if servers.first() != Some(&self.me) {
            return;
        }
        let is_missing = |&server: &ServerId| {
            self.peers.is_alive(server) && !self.followers.holds(server, point)
        };
        let missing: Vec<ServerId> = servers[1..].iter().copied().filter(is_missing).collect();
        for server in missing {
            self.fill_at(now, values, server, point, token);
        }
    }

    fn drop_copies(&mut self, now: Duration, server: ServerId, copies: &RangeSet) {
        for (token, ranges) in self.authority.by_token(copies) {
            let set = RangeSet::of(ranges.iter().copied());
            self.followers.exclude(server, &ranges);
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
        let follower = self.followers.get(server);
        follower.is_some_and(|follower| follower.excluding.has(point))
    }
}
