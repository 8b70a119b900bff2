//! The receiver's side of a move: claiming what the assignment gives to this
//! server, taking it over, and finding out that nobody has it any more.

use crate::Replication;
use crate::core::Core;
use crate::effect::Effect;
use crate::loss::{Extent, LossReason};
use crate::message::{Chunk, ChunkKind, Claim, ClaimAnswer, Entry, Message};
use crate::mutants::{self, Mutant};
use crate::ranges::{RangeMap, RangeSet, common, differing, in_order, joined, overlapping};
use crate::values::{NotStored, Values};
use crate::wire::Wire;
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use trefoil_sharder::{AssignedSlice, Assignment, AssignmentVersion, KeyPoint, ServerId, Slice};

/// What this server has claimed by its present assignment.
#[derive(Debug)]
pub(crate) struct MyClaim {
    pub(crate) id: u64,
    version: AssignmentVersion,
    /// Who was alive then. Who came later has nothing that he did not claim
    /// from this server, too.
    asked: BTreeSet<ServerId>,
    answers: BTreeMap<ServerId, Answer>,
    /// Keys asked for first, and whom.
    pub(crate) pulled: BTreeSet<(ServerId, KeyPoint)>,
    /// Copies asked for because nobody has the authority, and from whom.
    recovering: RangeMap<ServerId>,
}

/// What became of the entries of a chunk that could not be stored.
struct Stored {
    /// They are not taken.
    refused: BTreeMap<KeyPoint, NotStored>,
    /// They are lost if their points are taken.
    lost: Vec<(LossReason, KeyPoint, Bytes)>,
}

#[derive(Debug)]
struct Answer {
    held: RangeSet,
    /// Sent to somebody else who may refuse it: then it is held again.
    in_transit: RangeSet,
    /// Not to be taken for ownerless on this server's word.
    busy: RangeSet,
    copies: RangeMap<AssignmentVersion>,
}

impl Answer {
    fn may_send(&self, point: KeyPoint) -> bool {
        self.held.has(point) || self.in_transit.has(point)
    }
}

impl MyClaim {
    pub(crate) fn has_asked(&self, server: ServerId) -> bool {
        self.asked.contains(&server)
    }

    /// Who has said that it has this key, or may have it back.
    pub(crate) fn holders(&self, point: KeyPoint) -> impl Iterator<Item = ServerId> {
        let answers = self.answers.iter();
        answers
            .filter(move |(_, answer)| answer.may_send(point))
            .map(|(&server, _)| server)
    }
}

impl Core {
    /// Whether what was claimed by the map before stands under this one: the same points
    /// are this server's, no map came between the two, and nobody who was asked has died.
    /// Then nobody else can have claimed any of it, and who has joined since has nothing of
    /// it: to claim it anew would tell nobody anything, and would cost everybody a look at
    /// all of its ranges.
    pub(crate) fn claim_stays(&self, before: Option<&Assignment>) -> bool {
        let (Some(before), Some(map)) = (before, self.map.current()) else {
            return false;
        };
        let mut asked = self.claim.iter().flat_map(|claim| &claim.asked);
        let mine = |assigned: &AssignedSlice| assigned.servers.first() == Some(&self.me);
        let same = |a: &AssignedSlice, b: &AssignedSlice| mine(a) == mine(b);
        before.version().next() == map.version()
            && asked.all(|server| self.alive.contains(server))
            && differing(before.slices(), map.slices(), same).is_empty()
    }

    /// What this server is to have by its assignment, and has not, is claimed
    /// from everybody: who had it before need not be who the former map says.
    pub(crate) fn claim_anew(&mut self, now: Duration, before: Option<&Assignment>) {
        // What was not taken may be somebody else's now.
        self.answer_late(now, Duration::MAX);
        let Some(map) = self.map.current() else {
            return;
        };
        let version = map.version();
        let mut wanted = RangeSet::default();
        for assigned in map.slices() {
            if assigned.servers.first() == Some(&self.me) {
                for gap in self.owned.gaps(assigned.slice) {
                    wanted.add(gap);
                }
            }
        }
        // Somebody goes by a newer assignment, which this server will learn of.
        let newer = self.fence.iter().filter(|&(_, &fence)| fence > version);
        let newer: Vec<Slice> = newer.map(|(slice, _)| slice).collect();
        for slice in newer {
            wanted.remove(slice);
        }
        for slice in wanted.slices() {
            self.fence.insert(slice, version);
        }
        let stale: Vec<Slice> = self
            .promised
            .iter()
            .flat_map(|(slice, _)| wanted.gaps(slice))
            .collect();
        for slice in stale {
            self.promised.remove(slice);
        }
        let mut former = RangeMap::default();
        for slice in wanted.slices() {
            for (slice, &owner) in self.former.within(slice) {
                former.insert(slice, owner);
            }
            for slice in self.wanted_first(&wanted, slice) {
                for assigned in overlapping(before.map_or(&[], Assignment::slices), slice) {
                    let owner = assigned.servers.first().filter(|owner| **owner != self.me);
                    if let (Some(&owner), Some(part)) = (owner, assigned.slice.intersection(slice))
                    {
                        former.insert(part, owner);
                    }
                }
            }
        }
        self.former = former;
        self.unstored.keep(&wanted);
        self.wanted = wanted;
        if self.wanted.is_empty() {
            self.claim = None;
            return;
        }
        self.claim_ids += 1;
        self.claim = Some(MyClaim {
            id: self.claim_ids,
            version,
            asked: self.alive.clone(),
            answers: BTreeMap::new(),
            pulled: BTreeSet::new(),
            recovering: RangeMap::default(),
        });
        self.conclude_stale = RangeSet::of([Slice::ALL]);
        let claim = Claim {
            id: self.claim_ids,
            version,
            ranges: self.wanted.slices(),
            alive: self.alive.iter().copied().chain([self.me]).collect(),
        };
        for to in self.alive.clone() {
            self.say(now, to, Message::Claim(claim.clone()));
        }
    }

    /// The parts of a wanted range that were not wanted before.
    fn wanted_first(&self, wanted: &RangeSet, slice: Slice) -> Vec<Slice> {
        let parts = wanted.common(slice);
        parts.flat_map(|slice| self.wanted.gaps(slice)).collect()
    }

    pub(crate) fn hear_answer(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        answer: ClaimAnswer,
    ) {
        if let Some(newest) = answer.newest {
            self.hear_version(now, newest);
        }
        self.answered.insert(from, answer.newest);
        if let Some((farewell, awaited)) = &mut self.farewell
            && *farewell == answer.claim
        {
            awaited.remove(&from);
        }
        let Some(claim) = self.claim.as_mut().filter(|claim| claim.id == answer.claim) else {
            return;
        };
        let busy = [&answer.held, &answer.in_transit, &answer.refused];
        let mut copies = RangeMap::default();
        for (slice, token) in answer.copies {
            copies.insert(slice, token);
        }
        let kept = Answer {
            busy: RangeSet::of(busy.into_iter().flatten().copied()),
            held: RangeSet::of(answer.held),
            in_transit: RangeSet::of(answer.in_transit),
            copies,
        };
        let awaited = self.parked.keys().copied();
        let points: Vec<KeyPoint> = awaited
            .filter(|&point| kept.may_send(point) && claim.pulled.insert((from, point)))
            .collect();
        for (slice, ()) in kept.held.iter() {
            for slice in self.wanted.common(slice) {
                self.promised.insert(slice, from);
            }
        }
        claim.answers.insert(from, kept);
        self.conclude_stale = RangeSet::of([Slice::ALL]);
        if !points.is_empty() {
            let claim = answer.claim;
            self.say(now, from, Message::Pull { claim, points });
        }
        self.conclude(now, values);
    }

    pub(crate) fn hear_gone(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        claim: u64,
        ranges: &[Slice],
    ) {
        let Some(mine) = self.claim.as_mut().filter(|mine| mine.id == claim) else {
            return;
        };
        if let Some(answer) = mine.answers.get_mut(&from) {
            for &slice in ranges {
                self.conclude_stale.add(slice);
                answer.busy.remove(slice);
                answer.held.remove(slice);
                answer.in_transit.remove(slice);
                // What it was to recover: it has no copy of it after all.
                let asked = mine.recovering.within(slice);
                let of_it: Vec<Slice> = asked
                    .filter(|&(_, server)| *server == from)
                    .map(|(slice, _)| slice)
                    .collect();
                for slice in of_it {
                    mine.recovering.remove(slice);
                    answer.copies.remove(slice);
                }
            }
        }
        self.conclude(now, values);
    }

    /// A server that was to send something is dead.
    pub(crate) fn forget_source(&mut self, server: ServerId) {
        self.unstored.forget_server(server);
        if let Some(claim) = &mut self.claim {
            claim.answers.remove(&server);
            self.conclude_stale = RangeSet::of([Slice::ALL]);
            let from_it = claim.recovering.iter().filter(|&(_, from)| *from == server);
            for slice in from_it.map(|(slice, _)| slice).collect::<Vec<_>>() {
                claim.recovering.remove(slice);
            }
        }
    }

    /// Once everybody alive has answered: what nobody has, and nobody will
    /// accept any more, has no owner. This server takes it, with what copies
    /// there are.
    pub(crate) fn conclude(&mut self, now: Duration, values: &mut dyn Values) {
        // Without a lease this server may itself be taken for dead, and somebody
        // else find the same and report it.
        if self.lease_lapsed(now) {
            return;
        }
        let Some(claim) = &self.claim else {
            return;
        };
        let everybody = claim
            .asked
            .iter()
            .all(|server| claim.answers.contains_key(server) || self.gone.contains(server));
        if !everybody && !mutants::is(Mutant::NotEverybodyAsked) {
            return;
        }
        // Only where something has come to its end since: of ranges there may be
        // thousands, and each chunk that somebody else gets ends one.
        let mut open = RangeSet::default();
        for (stale, ()) in std::mem::take(&mut self.conclude_stale).iter() {
            let wanted: Vec<Slice> = self.wanted.common(stale).collect();
            for &slice in &wanted {
                open.add(slice);
                for answer in claim.answers.values() {
                    open.remove_all(answer.busy.common(slice));
                }
                open.remove_all(claim.recovering.within(slice).map(|(slice, _)| slice));
            }
        }
        if open.is_empty() {
            return;
        }
        let version = claim.version;
        // The best copy of every part: the newest owner's, by preference here.
        let mut best: RangeMap<(AssignmentVersion, ServerId)> = RangeMap::default();
        if self.config.replication != Replication::None {
            for (slice, ()) in open.iter() {
                for (slice, copy) in self.copies.within(slice) {
                    best.insert(slice, (copy.token, self.me));
                }
            }
            for (&server, answer) in &claim.answers {
                for (slice, &token) in answer.copies.iter() {
                    for slice in open.common(slice) {
                        let mut better = best.gaps(slice);
                        let worse = best.within(slice).filter(|(_, (had, _))| *had < token);
                        better.extend(worse.map(|(slice, _)| slice));
                        for slice in better {
                            best.insert(slice, (token, server));
                        }
                    }
                }
            }
        }
        let mut ask: BTreeMap<ServerId, Vec<Slice>> = BTreeMap::new();
        let mut gained = Vec::new();
        for slice in open.slices() {
            for lost in best.gaps(slice) {
                values.forget(lost);
                // The first assignment of all finds nothing, and loses nothing.
                if !version.is_deal() {
                    self.lose_range(lost, Extent::All);
                }
                gained.push(lost);
            }
            for (slice, &(_, server)) in best.within(slice) {
                if server == self.me {
                    self.unsettle_copy(slice);
                    if self.config.replication == Replication::Eventual {
                        self.lose_range(slice, Extent::LastCommits);
                    }
                    gained.push(slice);
                } else {
                    ask.entry(server).or_default().push(slice);
                }
            }
        }
        self.adopt_holders(&gained);
        self.take(version, &gained);
        self.repropose(now, values);
        for (server, ranges) in ask {
            if let Some(claim) = &mut self.claim {
                for &slice in &ranges {
                    claim.recovering.insert(slice, server);
                }
                let claim = claim.id;
                self.say(now, server, Message::Recover { claim, ranges });
            }
        }
    }

    /// Whoever reported a copy of these has one.
    fn adopt_holders(&mut self, gained: &[Slice]) {
        let Some(claim) = &self.claim else {
            return;
        };
        let mut holders = Vec::new();
        for (&server, answer) in &claim.answers {
            for &slice in gained {
                holders.extend(
                    answer
                        .copies
                        .within(slice)
                        .map(|(slice, _)| (server, slice)),
                );
            }
        }
        for (server, slice) in holders {
            self.adopt_holder(server, slice);
        }
    }

    /// Reports a wanted range as lost, with the reason that is known.
    fn lose_range(&mut self, slice: Slice, extent: Extent) {
        if mutants::is(Mutant::LossUnreported) {
            return;
        }
        let mut parts: Vec<(Slice, LossReason)> = Vec::new();
        let mut unexplained = vec![slice];
        if extent == Extent::All {
            unexplained = self.promised.gaps(slice);
            for (part, &from) in self.promised.within(slice) {
                parts.push((part, LossReason::HandoverBroken(from)));
            }
        }
        for slice in unexplained {
            for part in self.former.gaps(slice) {
                parts.push((part, LossReason::OwnerDied(None)));
            }
            for (part, &owner) in self.former.within(slice) {
                let owner = Some(owner).filter(|owner| self.gone.contains(owner));
                parts.push((part, LossReason::OwnerDied(owner)));
            }
        }
        for (part, reason) in parts {
            self.lose(reason, extent, vec![part], Vec::new());
        }
    }

    /// The authority over these wanted ranges is here now, with the values.
    fn take(&mut self, version: AssignmentVersion, ranges: &[Slice]) {
        if ranges.is_empty() {
            return;
        }
        for &slice in ranges {
            debug_assert!(!self.owned.touches(slice), "owned twice: {slice}");
            debug_assert!(self.wanted.covers(slice), "not wanted: {slice}");
            self.owned.insert(slice, version);
            self.wanted.remove(slice);
            self.promised.remove(slice);
            self.unstored.forget(slice);
            self.copies.remove(slice);
            self.resolve_transit(slice);
            self.clean(slice);
            self.stale.range(slice);
            self.follow_stale.range(slice);
        }
        if self.wanted.is_empty() {
            self.claim = None;
        }
        self.tell(Effect::Gained(joined(ranges.iter().copied())));
        self.wake(ranges);
    }

    pub(crate) fn hear_chunk(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        chunk: Chunk,
    ) {
        let inside = |point: KeyPoint| {
            let at = chunk.ranges.partition_point(|slice| slice.last() < point);
            chunk
                .ranges
                .get(at)
                .is_some_and(|slice| slice.contains(point))
        };
        let sound =
            in_order(&chunk.ranges) && chunk.entries.iter().all(|entry| inside(entry.point));
        let expected = sound
            && match chunk.kind {
                ChunkKind::Authority => {
                    chunk.ranges.iter().all(|&slice| self.wanted.covers(slice))
                        || (mutants::is(Mutant::PromiseForgotten)
                            && !chunk.ranges.iter().any(|&slice| self.owned.touches(slice)))
                }
                ChunkKind::Recovered => self.expects(from, &chunk.ranges),
            };
        let id = chunk.id;
        let Some(version) = self.map.version().filter(|_| expected) else {
            if chunk.kind == ChunkKind::Authority {
                self.say(now, from, Message::NotTaken { chunk: id });
            }
            return;
        };
        if mutants::is(Mutant::PromiseForgotten) {
            chunk
                .ranges
                .iter()
                .for_each(|&slice| self.wanted.add(slice));
        }
        let mut intact = RangeSet::of(chunk.ranges.iter().copied());
        let Stored { refused, lost } = self.store_chunk(values, chunk.entries, &mut intact);
        let in_part = chunk.kind == ChunkKind::Authority && !refused.is_empty();
        if in_part && !self.knows(from, Wire::IN_PART) {
            self.leave_whole(now, values, from, id, &chunk.ranges, &refused);
            return;
        }
        for (reason, point, key) in lost {
            // What stays is not lost, nor is what lies at the same point.
            if !refused.contains_key(&point) {
                values.remove(point, &key);
                self.lose(reason, Extent::All, Vec::new(), vec![(point, key)]);
            }
        }
        let mut taken = RangeSet::of(chunk.ranges.iter().copied());
        taken.remove_all(refused.keys().map(|&point| Slice::of_point(point)));
        let ranges = taken.slices();
        let version = self.claim.as_ref().map_or(version, |claim| claim.version);
        match chunk.kind {
            ChunkKind::Authority => {
                if !mutants::is(Mutant::HoldersForgotten) {
                    for (server, held) in chunk.holders {
                        if self.died_before(from, server) {
                            continue;
                        }
                        if let Some(&Some(newest)) = self.answered.get(&from) {
                            self.note_lived(server, newest);
                        }
                        for slice in common(&held, &taken) {
                            self.adopt_holder(server, slice);
                        }
                    }
                }
                self.take(version, &ranges);
                // Eventual: what the former owner had not told all copies.
                self.touched.extend(chunk.unsettled);
                if refused.is_empty() {
                    self.note_taken(from);
                    self.say(now, from, Message::Taken { chunk: id });
                    return;
                }
                let [(_, unreadable), (_, no_room)] = self.leave_unstored(from, &refused);
                let message = Message::TakenInPart {
                    chunk: id,
                    unreadable,
                    no_room,
                };
                self.say(now, from, message);
            }
            ChunkKind::Recovered => {
                if self.config.replication == Replication::Eventual {
                    for slice in intact.slices() {
                        self.lose_range(slice, Extent::LastCommits);
                    }
                }
                self.adopt_holders(&ranges);
                for &slice in &ranges {
                    self.clean(slice);
                }
                self.unstored.stored(now, &ranges);
                self.take(version, &ranges);
                self.leave_unrecovered(now, from, &refused);
                let mut unsettled = chunk.unsettled;
                let left = unsettled.extract_if(.., |(point, _)| refused.contains_key(point));
                for key in left.filter(|(point, _)| self.copies.has(*point)) {
                    // Of what was stored all the same: a copy that is not to be read.
                    self.dirty.insert(key, (from, u64::MAX));
                }
                self.proposals.unsettle(unsettled);
                self.repropose(now, values);
            }
        }
    }

    /// Stores what has come, instead of what is there. Strong: of what cannot be stored the
    /// copies stay if there are any. Else it is lost by name, and taken out of `intact`.
    fn store_chunk(
        &mut self,
        values: &mut dyn Values,
        entries: Vec<Entry>,
        intact: &mut RangeSet,
    ) -> Stored {
        let refuses =
            self.config.replication == Replication::Strong && !mutants::is(Mutant::UnstoredLost);
        let mut names: BTreeMap<KeyPoint, Vec<Bytes>> = BTreeMap::new();
        for entry in entries.iter().filter(|_| refuses) {
            names
                .entry(entry.point)
                .or_default()
                .push(entry.key.clone());
        }
        for slice in intact.slices() {
            values.forget_but(slice, &|point, key| {
                let named = names.get(&point);
                named.is_some_and(|names| names.iter().any(|name| name[..] == *key))
                    && !mutants::is(Mutant::UnstoredCopyForgotten)
            });
        }
        let mut refused = BTreeMap::new();
        let mut lost = Vec::new();
        for entry in entries {
            let (point, key) = (entry.point, entry.key.clone());
            let reason = if entry.value.is_none() {
                LossReason::MarshalFailed
            } else {
                match entry.storable().and_then(|entry| values.store(entry)) {
                    Ok(()) => continue,
                    Err(why) if refuses => {
                        refused.insert(point, why);
                        continue;
                    }
                    Err(NotStored::Unreadable) => LossReason::Unreadable,
                    Err(NotStored::NoRoom) => LossReason::NoRoom,
                }
            };
            // Reported once: by name, not with its range.
            intact.remove(Slice::of_point(point));
            lost.push((reason, point, key));
        }
        for &point in refused.keys().filter(|point| !self.copies.has(**point)) {
            values.forget(Slice::of_point(point));
        }
        Stored { refused, lost }
    }

    /// Whether a server that has copies according to a giver was dead before this
    /// server could know it: it would be waited for until the next list of the
    /// living. Copies are made at servers that a map names, so it was alive by an
    /// assignment that the giver knew of when it gave: the giver has said which is the
    /// newest of these, with its answer to a claim or just before the chunk.
    fn died_before(&self, giver: ServerId, holder: ServerId) -> bool {
        let answer = self.answered.get(&giver);
        holder != self.me
            && !self.alive.contains(&holder)
            && answer.is_some_and(|newest| *newest <= self.map.version())
    }

    /// Whether these copies were asked of this server, and are still wanted.
    fn expects(&mut self, from: ServerId, ranges: &[Slice]) -> bool {
        let wanted = ranges.iter().all(|&slice| self.wanted.covers(slice));
        let Some(claim) = &mut self.claim else {
            return false;
        };
        let asked = ranges.iter().all(|&slice| {
            let from_it = claim.recovering.within(slice);
            let parts = from_it.filter(|(_, server)| **server == from);
            RangeSet::of(parts.map(|(slice, _)| slice)).covers(slice)
        });
        if wanted && asked {
            for &slice in ranges {
                claim.recovering.remove(slice);
            }
        }
        wanted && asked
    }
}
