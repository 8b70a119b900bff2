//! Claiming what the assignment gives to this server, and finding out that nobody has it
//! any more.

use crate::Replication;
use crate::core::Core;
use crate::effect::Effect;
use crate::loss::Extent;
use crate::message::{Claim, ClaimAnswer, Message};
use crate::mutants::{self, Mutant};
use crate::ranges::{RangeMap, RangeSet, differing, joined};
use crate::values::Values;
use std::collections::BTreeMap;
use std::time::Duration;
use trefoil_sharder::{AssignedSlice, Assignment, AssignmentVersion, KeyPoint, ServerId, Slice};

impl Core {
    /// Whether what was claimed by the map before stands under this one: the same points
    /// are this server's, no map came between the two, and nobody who was asked has died.
    /// Then nobody else can have claimed any of it, and who has joined since has nothing of
    /// it: to claim it anew would tell nobody anything, and would cost everybody a look at
    /// all of its ranges.
    pub(crate) fn claim_stays(&self, before: Option<&Assignment>) -> bool {
        let (Some(before), Some(map)) = (before, self.known.map()) else {
            return false;
        };
        let mine = |assigned: &AssignedSlice| assigned.servers.first() == Some(&self.me);
        let same = |a: &AssignedSlice, b: &AssignedSlice| mine(a) == mine(b);
        before.version().next() == map.version()
            && self.receiver.all_live(&self.peers)
            && differing(before.slices(), map.slices(), same).is_empty()
    }

    /// What this server is to have by its assignment, and has not, is claimed
    /// from everybody: who had it before need not be who the former map says.
    pub(crate) fn claim_anew(&mut self, now: Duration, before: Option<&Assignment>) {
        // What was not taken may be somebody else's now.
        self.answer_late(now, Duration::MAX);
        let Some(map) = self.known.map() else {
            return;
        };
        let version = map.version();
        let mut wanted = RangeSet::default();
        for assigned in map.slices() {
            if assigned.servers.first() == Some(&self.me) {
                for gap in self.authority.owned().gaps(assigned.slice) {
                    wanted.add(gap);
                }
            }
        }
        // Somebody goes by a newer assignment, which this server will learn of.
        let newer = self.authority.promised_after(version);
        wanted.remove_all(newer.into_iter());
        let ranges = wanted.slices();
        for &slice in &ranges {
            self.authority.promise(slice, version);
        }
        let before = before.map_or(&[][..], Assignment::slices);
        let asked = self.peers.alive().clone();
        let claimed = self
            .receiver
            .claim(self.me, version, wanted, before, asked.clone());
        let Some(id) = claimed else {
            return;
        };
        let claim = Claim {
            id,
            version,
            ranges,
            alive: self.peers.with_me(),
        };
        for to in asked {
            self.say(now, to, Message::Claim(claim.clone()));
        }
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
        self.known.note_answer(from, answer.newest);
        let claim = answer.claim;
        self.drain.hear_answer(from, claim);
        let Some(points) = self.receiver.hear_answer(from, answer, &self.waiting) else {
            return;
        };
        if !points.is_empty() {
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
        if self.receiver.hear_gone(from, claim, ranges) {
            self.conclude(now, values);
        }
    }

    /// Asks whoever has the key to send it first.
    pub(crate) fn pull(&mut self, now: Duration, point: KeyPoint) {
        for (from, claim) in self.receiver.pull(point) {
            let points = vec![point];
            self.say(now, from, Message::Pull { claim, points });
        }
    }

    /// Once everybody alive has answered: what nobody has, and nobody will
    /// accept any more, has no owner. This server takes it, with what copies
    /// there are.
    pub(crate) fn conclude(&mut self, now: Duration, values: &mut dyn Values) {
        // Without a lease this server may itself be taken for dead, and somebody
        // else find the same and report it.
        if self.lease.has_lapsed(now) {
            return;
        }
        let Some((version, open)) = self.receiver.take_ownerless(&self.peers) else {
            return;
        };
        let best = self.best_copies(&open);
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
            if let Some(claim) = self.receiver.recover_from(server, &ranges) {
                self.say(now, server, Message::Recover { claim, ranges });
            }
        }
    }

    /// The best copy of every part of these, and who has it: by preference this server.
    fn best_copies(&self, open: &RangeSet) -> RangeMap<(AssignmentVersion, ServerId)> {
        let mut best = RangeMap::default();
        if self.config.replication == Replication::None {
            return best;
        }
        for (slice, ()) in open.iter() {
            for (slice, copy) in self.copies.here().within(slice) {
                best.insert(slice, (copy.token, self.me));
            }
        }
        self.receiver.best_copies(open, best)
    }

    /// Whoever reported a copy of these has one.
    pub(super) fn adopt_holders(&mut self, gained: &[Slice]) {
        for (server, slice) in self.receiver.holders_of(gained) {
            self.adopt_holder(server, slice);
        }
    }

    /// Reports a wanted range as lost, with the reason that is known.
    pub(super) fn lose_range(&mut self, slice: Slice, extent: Extent) {
        if mutants::is(Mutant::LossUnreported) {
            return;
        }
        for (part, reason) in self.receiver.why_lost(slice, extent, &self.peers) {
            self.lose(reason, extent, vec![part], Vec::new());
        }
    }

    /// The authority over these wanted ranges is here now, with the values.
    pub(super) fn take(&mut self, version: AssignmentVersion, ranges: &[Slice]) {
        if ranges.is_empty() {
            return;
        }
        for &slice in ranges {
            debug_assert!(
                !self.authority.owned().touches(slice),
                "owned twice: {slice}"
            );
            self.authority.gain(slice, version);
            self.receiver.take(slice);
            self.copies.remove(slice);
            self.giver.resolve_transit(slice);
            self.copies.clean(slice);
            self.look_at(slice);
        }
        self.receiver.end_claim();
        self.tell(Effect::Gained(joined(ranges.iter().copied())));
        self.wake(ranges);
    }
}
