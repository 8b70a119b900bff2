//! The giver's side of a move: answering claims, and sending away values and
//! with them the authority.
//!
//! The authority over a range is sent in the one message that has all of its
//! values. So a receiver serves whatever it has got, the rest is still wholly
//! here, and who claims after him asks both. Until a chunk is confirmed, this
//! server keeps the values but neither serves them nor gives them to others;
//! where there are copies, the values become one of them.

use crate::Replication;
use crate::copies::CopyState;
use crate::core::Core;
use crate::effect::Effect;
use crate::link::Haste;
use crate::message::{Chunk, ChunkKind, Claim, ClaimAnswer, Message};
use crate::mutants::{self, Mutant};
use crate::part::Part;
use crate::ranges::{RangeMap, RangeSet, common, in_order, joined, overlapping, parts_within};
use crate::values::{Limit, Values};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// A chunk that is not confirmed yet.
#[derive(Debug)]
pub(crate) struct Transit {
    pub(crate) to: ServerId,
    /// What was owned, with its tokens.
    pub(crate) owned: RangeMap<AssignmentVersion>,
    /// Who had copies of it.
    held: Vec<(ServerId, Vec<Slice>)>,
    unsettled: Vec<(KeyPoint, Bytes)>,
}

impl Core {
    pub(crate) fn hear_claim(&mut self, now: Duration, from: ServerId, mut claim: Claim) {
        if !in_order(&claim.ranges) {
            return;
        }
        let version = claim.version;
        self.hear_version(now, version);
        let heard = self.heard.entry(from).or_insert(version);
        *heard = version.max(*heard);
        self.note_lived(from, version);
        let mut accepted = RangeSet::of(claim.ranges.iter().copied());
        let mut refused = RangeSet::default();
        for &slice in &claim.ranges {
            // Somebody has claimed it by a newer assignment, or has it by one.
            let fences = self.fence.within(slice).filter(|&(_, &f)| f > version);
            let tokens = self.owned.within(slice).filter(|&(_, &t)| t >= version);
            for (slice, _) in fences.chain(tokens) {
                refused.add(slice);
            }
            // This server knows a newer map, by which it is somebody else's.
            if let Some(map) = self.map.current().filter(|map| map.version() > version) {
                for assigned in overlapping(map.slices(), slice) {
                    if assigned.servers.first() != Some(&from)
                        && let Some(part) = assigned.slice.intersection(slice)
                    {
                        refused.add(part);
                    }
                }
            }
        }
        for slice in refused.slices() {
            accepted.remove(slice);
        }
        // The promise: nothing of this is accepted by an older assignment.
        for slice in accepted.slices() {
            self.fence.insert(slice, version);
            if !mutants::is(Mutant::PromiseForgotten) {
                self.wanted.remove(slice);
                self.unstored.forget(slice);
            }
        }
        self.wake_unwanted();
        let ranges = accepted.slices();
        let mut answer = ClaimAnswer {
            claim: claim.id,
            refused: refused.slices(),
            newest: self.newest_heard().max(self.fence_max(&claim.ranges)),
            ..ClaimAnswer::default()
        };
        let mut in_transit = RangeSet::default();
        for &slice in &ranges {
            let held = self.owned.within(slice).map(|(slice, _)| slice);
            answer.held.extend(joined(held));
            for (slice, _) in self.transit_at.within(slice) {
                in_transit.add(slice);
            }
            for (slice, copy) in self.copies.within(slice) {
                answer.copies.push((slice, copy.token));
            }
        }
        answer.in_transit = in_transit.slices();
        self.told_newest.insert(from, answer.newest);
        self.call_roll(version, &claim.alive);
        claim.ranges = ranges;
        let mut looked_at = claim.ranges.clone();
        if let Some(before) = self.claims.insert(from, claim) {
            looked_at.extend(before.ranges);
            looked_at.sort_unstable();
            looked_at = RangeSet::of(looked_at).slices();
        }
        self.urgent.remove(&from);
        // What a former claim of it asked for it does not expect any more.
        self.recoveries.remove(&from);
        self.say(now, from, Message::ClaimAnswer(answer));
        self.redirect_claims(&looked_at);
    }

    /// Notes who is alive by an assignment.
    fn call_roll(&mut self, version: AssignmentVersion, alive: &[ServerId]) {
        match &mut self.roll {
            Some((called, _)) if *called > version => {}
            // Two lists of one assignment differ in who has died since, and in
            // who has joined since: he has no token as old as that.
            Some((called, roll)) if *called == version => {
                roll.retain(|server| alive.contains(server));
            }
            roll => *roll = Some((version, alive.iter().copied().collect())),
        }
    }

    fn fence_max(&self, ranges: &[Slice]) -> Option<AssignmentVersion> {
        let fences = ranges.iter().flat_map(|&slice| self.fence.within(slice));
        fences.map(|(_, &fence)| fence).max()
    }

    /// Works out anew which parts of what is owned go to whom, in these ranges: disjoint,
    /// ascending.
    pub(crate) fn redirect_claims(&mut self, ranges: &[Slice]) {
        for &within in ranges {
            let leaving = self.to_leave(within);
            let changed = [
                self.leaving.unlike(&leaving, within),
                leaving.unlike(&self.leaving, within),
            ];
            for slice in changed.iter().flatten() {
                self.stale.range(*slice);
                self.follow_stale.range(*slice);
            }
            // Who waits for what was about to be sent again: it is somebody else's now, or stays.
            let parts: Vec<Slice> = changed.iter().flatten().copied().collect();
            self.wake(&parts);
            if !changed.iter().all(Vec::is_empty) {
                self.leaving.remove(within);
                for (slice, &to) in leaving.iter() {
                    self.leaving.insert(slice, to);
                    self.giving.insert(to);
                }
            }
        }
    }

    /// What is owned in a range goes to who has claimed it by the newest assignment,
    /// unless this server knows of a newer one that says otherwise.
    pub(crate) fn to_leave(&self, within: Slice) -> RangeMap<ServerId> {
        let mut leaving: RangeMap<ServerId> = RangeMap::default();
        let mut claims: Vec<(&ServerId, &Claim)> = self.claims.iter().collect();
        claims.sort_by_key(|(_, claim)| claim.version);
        for (&to, claim) in claims {
            for slice in parts_within(&claim.ranges, within) {
                for (slice, _) in self.owned.within(slice) {
                    leaving.insert(slice, to);
                }
            }
        }
        if let Some(map) = self.map.current().filter(|_| !leaving.is_empty()) {
            for assigned in overlapping(map.slices(), within) {
                let stays: Vec<Slice> = leaving
                    .within(assigned.slice)
                    .filter(|&(_, to)| {
                        let older = |claim: &Claim| claim.version < map.version();
                        assigned.servers.first() != Some(to)
                            && self.claims.get(to).is_some_and(older)
                    })
                    .map(|(slice, _)| slice)
                    .collect();
                for slice in stays {
                    leaving.remove(slice);
                }
            }
        }
        self.hold_back(&mut leaving, within);
        leaving
    }

    pub(crate) fn hear_pull(&mut self, from: ServerId, claim: u64, points: Vec<KeyPoint>) {
        if self.claims.get(&from).is_some_and(|c| c.id == claim) {
            self.urgent.entry(from).or_default().extend(&points);
            self.send_again(from, points);
        }
    }

    /// Sends what has been claimed and somebody waits for. The table that withdraws it is
    /// published before. The rest takes turns with copies ([`bulk`](crate::bulk)).
    pub(crate) fn give(&mut self, now: Duration, values: &mut dyn Values) {
        for to in self.urgent.keys().copied().collect::<Vec<_>>() {
            if let Some(points) = self.urgent.remove(&to) {
                let rest = self.give_urgent(now, values, to, points);
                if !rest.is_empty() {
                    // Those with commits under way have to wait for them, and those in
                    // transit until they are here again or gone.
                    self.urgent.insert(to, rest);
                }
            }
        }
    }

    /// Sends these points, with what lies behind each, in one chunk, or in more if they are
    /// large: a frame has its bound. Returns those of commits under way, and those in
    /// transit, which were left out.
    fn give_urgent(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        to: ServerId,
        points: BTreeSet<KeyPoint>,
    ) -> BTreeSet<KeyPoint> {
        let mut part = Part::default();
        let mut blocked = BTreeSet::new();
        for point in points {
            if part.has(point) {
                continue;
            }
            if part.bytes >= self.config.chunk_bytes {
                self.send_part(now, values, to, std::mem::take(&mut part), Haste::Urgent);
            }
            let Some((range, _)) = self.leaving.find(point).filter(|(_, at)| **at == to) else {
                if self.transit_at.has(point) {
                    blocked.insert(point);
                }
                continue;
            };
            let last = match self
                .proposals
                .first_point_within(Slice::spanning(point, range.last()))
            {
                Some(first) if first == point => {
                    blocked.insert(point);
                    continue;
                }
                Some(first) => KeyPoint(first.0 - 1),
                None => range.last(),
            };
            let beside = self.config.chunk_bytes.saturating_sub(part.bytes);
            let limit = Limit {
                bytes: self.config.pull_bytes.min(beside),
                entries: self.config.chunk_entries,
            };
            part.scan(values, Slice::spanning(point, last), limit);
        }
        self.send_part(now, values, to, part, Haste::Urgent);
        blocked
    }

    /// Sends one chunk of the beginning of what goes there and has no commit under way;
    /// `false` if it is empty.
    pub(crate) fn give_next(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        to: ServerId,
    ) -> bool {
        let mut part = Part::default();
        let mut here = self.leaving.iter().filter(|&(_, at)| *at == to).peekable();
        if here.peek().is_none() {
            self.giving.remove(&to);
            return false;
        }
        for slice in here.flat_map(|(slice, _)| self.proposals.apart(slice).0) {
            let limit = Limit {
                bytes: self.config.chunk_bytes.saturating_sub(part.bytes),
                entries: self.config.chunk_entries.saturating_sub(part.entries.len()),
            };
            if limit.bytes == 0 || limit.entries == 0 {
                break;
            }
            part.scan(values, slice, limit);
        }
        self.send_part(now, values, to, part, Haste::Bulk)
    }

    /// Who hears of copies with a chunk has to know before that they may be newer than all
    /// that it knows: else it would take their holders for dead, and they would serve old
    /// values. Copies are made by newer maps after its claim was answered: of what stays here,
    /// and of what a newer map gave back to this server and one after that to the claimant.
    fn tell_newest(&mut self, now: Duration, to: ServerId) {
        let newest = self.newest_heard();
        let told = self.told_newest.get(&to).copied().flatten();
        if told >= newest || mutants::is(Mutant::NewestNotTold) {
            return;
        }
        self.told_newest.insert(to, newest);
        // Of no claim: it says nothing else.
        let answer = ClaimAnswer {
            newest,
            ..ClaimAnswer::default()
        };
        self.say(now, to, Message::ClaimAnswer(answer));
    }

    /// Sends a chunk, and with it the authority; `false` if it is empty.
    pub(crate) fn send_part(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        to: ServerId,
        part: Part,
        haste: Haste,
    ) -> bool {
        let Part {
            sent,
            entries,
            bytes,
        } = part;
        if sent.is_empty() {
            return false;
        }
        self.spend(now, bytes);
        let ranges = joined(sent);
        let set = RangeSet::of(ranges.iter().copied());
        let mut owned = RangeMap::default();
        for &slice in &ranges {
            for (slice, &token) in self.owned.within(slice) {
                owned.insert(slice, token);
            }
        }
        let mut holders = Vec::new();
        let mut unsettled = Vec::new();
        for (&server, follower) in &mut self.followers {
            let held = common(&ranges, &follower.held);
            if !held.is_empty() {
                unsettled.extend(follower.unconfirmed(&set));
                unsettled.extend(follower.take_untold(&set));
                follower.let_go(&held);
                holders.push((server, held));
            }
        }
        self.touched.retain(|(point, key)| {
            let stays = !set.has(*point);
            if !stays {
                unsettled.push((*point, key.clone()));
            }
            stays
        });
        unsettled.sort_unstable();
        unsettled.dedup();
        if self.config.replication != Replication::Eventual {
            unsettled.clear();
        }
        if self.config.replication != Replication::None {
            // What is sent stays here as a copy until the new owner drops it,
            // which it does when its other copies are complete. It may be all
            // that is left if the new owner dies.
            holders.push((self.me, ranges.clone()));
            for (slice, &token) in owned.iter() {
                self.copies.insert(slice, CopyState { owner: to, token });
            }
        }
        for &slice in &ranges {
            self.owned.remove(slice);
            self.leaving.remove(slice);
            self.transit_at.insert(slice, self.chunks + 1);
            self.stale.range(slice);
            self.follow_stale.range(slice);
            if mutants::is(Mutant::ForgottenWhenSent) {
                values.forget(slice);
            }
        }
        self.chunks += 1;
        let transit = Transit {
            to,
            owned,
            held: holders.clone(),
            unsettled: unsettled.clone(),
        };
        self.transit.insert(self.chunks, transit);
        let chunk = Chunk {
            id: self.chunks,
            kind: ChunkKind::Authority,
            ranges,
            entries,
            holders,
            unsettled,
        };
        if chunk.holders.iter().any(|(holder, _)| *holder != self.me) {
            self.tell_newest(now, to);
        }
        self.say_with(now, to, haste, Message::Chunk(chunk));
        true
    }

    pub(crate) fn hear_taken(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        chunk: u64,
    ) {
        let Some(transit) = self.take_transit(from, chunk) else {
            return;
        };
        let ranges = transit.owned.slices();
        self.end_transit(now, values, from, ranges);
    }

    /// These were taken over.
    pub(crate) fn end_transit(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        ranges: Vec<Slice>,
    ) {
        self.note_moved(from, &ranges);
        if self.config.replication == Replication::None {
            for &slice in &ranges {
                values.forget(slice);
            }
        }
        self.tell_claimants(now, from, &ranges);
        if !ranges.is_empty() {
            self.tell(Effect::Gave(ranges));
        }
    }

    pub(crate) fn hear_not_taken(&mut self, from: ServerId, chunk: u64) {
        let Some(transit) = self.take_transit(from, chunk) else {
            return;
        };
        self.have_again(transit);
    }

    /// Takes back what was sent, and not taken over; which ranges that is.
    pub(crate) fn restore(&mut self, transit: Transit) -> Vec<Slice> {
        for (slice, &token) in transit.owned.iter() {
            self.owned.insert(slice, token);
            self.wanted.remove(slice);
            self.unstored.forget(slice);
            self.copies.remove(slice);
            self.stale.range(slice);
            self.follow_stale.range(slice);
        }
        for (server, ranges) in transit.held {
            for slice in common(&ranges, &RangeSet::of(transit.owned.slices())) {
                self.hold_again(server, slice);
            }
        }
        let set = RangeSet::of(transit.owned.slices());
        let unsettled = transit.unsettled.into_iter();
        self.touched
            .extend(unsettled.filter(|(point, _)| set.has(*point)));
        transit.owned.slices()
    }

    pub(crate) fn take_transit(&mut self, to: ServerId, chunk: u64) -> Option<Transit> {
        // Only whom it was sent to answers.
        self.transit.get(&chunk).filter(|sent| sent.to == to)?;
        let transit = self.transit.remove(&chunk)?;
        for (slice, _) in transit.owned.iter() {
            let here = self.transit_at.within(slice);
            let its: Vec<Slice> = here
                .filter(|(_, at)| **at == chunk)
                .map(|(slice, _)| slice)
                .collect();
            self.transit_at.remove_all(its.into_iter());
        }
        Some(transit)
    }

    /// Somebody else has got this, or this server has it again: what was sent
    /// was taken, though the confirmation is not here yet.
    pub(crate) fn resolve_transit(&mut self, slice: Slice) {
        if mutants::is(Mutant::ForgottenWhenBack) {
            return;
        }
        for (part, chunk) in self.transit_at.within(slice) {
            if let Some(transit) = self.transit.get_mut(chunk) {
                transit.owned.remove(part);
            }
        }
        self.transit_at.remove(slice);
    }

    /// What was held or in transit has come to its end. What went to somebody by a
    /// newer assignment than a claim's has an owner who may have answered that
    /// claim with "nothing" before: who made it hears of that assignment instead. Who has
    /// taken it knows.
    fn tell_claimants(&mut self, now: Duration, taken_by: ServerId, ranges: &[Slice]) {
        let mut news: Vec<(ServerId, u64, Vec<Slice>)> = Vec::new();
        for (&server, claim) in self
            .claims
            .iter()
            .filter(|(server, _)| **server != taken_by)
        {
            let mut gone = Vec::new();
            for slice in ranges
                .iter()
                .flat_map(|&ended| parts_within(&claim.ranges, ended))
            {
                let fences = self.fence.within(slice);
                let newest = fences.filter(|&(_, fence)| *fence <= claim.version);
                gone.extend(newest.map(|(slice, _)| slice));
            }
            if !gone.is_empty() {
                news.push((server, claim.id, gone));
            }
        }
        for (server, claim, ranges) in news {
            self.say(now, server, Message::Gone { claim, ranges });
        }
    }

    /// Somebody who claimed is dead. What it had not confirmed is lost with
    /// it, but for copies: it may have served it.
    pub(crate) fn forget_claimant(
        &mut self,
        now: Duration,
        server: ServerId,
        values: &mut dyn Values,
    ) {
        let claimed = self.claims.remove(&server);
        self.urgent.remove(&server);
        self.unmoved.remove(&server);
        self.recoveries.remove(&server);
        let sent = self
            .transit
            .iter()
            .filter(|(_, transit)| transit.to == server);
        let sent: Vec<u64> = sent.map(|(&chunk, _)| chunk).collect();
        for chunk in sent {
            self.hear_taken(now, values, server, chunk);
        }
        self.redirect_claims(&claimed.map_or(Vec::new(), |claim| claim.ranges));
    }
}
