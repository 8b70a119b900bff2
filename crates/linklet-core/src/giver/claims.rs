//! Answering claims, which is a promise, and what is to go to whom by them.

use crate::core::Core;
use crate::message::{Claim, ClaimAnswer, Message};
use crate::mutants::{self, Mutant};
use crate::ranges::{RangeSet, in_order, joined, overlapping};
use std::time::Duration;
use trefoil_sharder::{KeyPoint, ServerId, Slice};

impl Core {
    pub(crate) fn hear_claim(&mut self, now: Duration, from: ServerId, mut claim: Claim) {
        if !in_order(&claim.ranges) {
            return;
        }
        let version = claim.version;
        self.hear_version(now, version);
        self.known.note_claim(from, version);
        self.note_lived(from, version);
        let mut accepted = RangeSet::of(claim.ranges.iter().copied());
        let mut refused = RangeSet::default();
        for &slice in &claim.ranges {
            for slice in self.authority.refuses(slice, version) {
                refused.add(slice);
            }
            // This server knows a newer map, by which it is somebody else's.
            if let Some(map) = self.known.map().filter(|map| map.version() > version) {
                for assigned in overlapping(map.slices(), slice) {
                    if assigned.servers.first() != Some(&from)
                        && let Some(part) = assigned.slice.intersection(slice)
                    {
                        refused.add(part);
                    }
                }
            }
        }
        accepted.remove_all(refused.slices().into_iter());
        // The promise: nothing of this is accepted by an older assignment.
        for slice in accepted.slices() {
            self.authority.promise(slice, version);
            if !mutants::is(Mutant::PromiseForgotten) {
                self.receiver.forget(slice);
            }
        }
        self.wake_unwanted();
        let ranges = accepted.slices();
        let mut answer = ClaimAnswer {
            claim: claim.id,
            refused: refused.slices(),
            newest: self
                .known
                .newest_heard()
                .max(self.authority.newest_promise(&claim.ranges)),
            ..ClaimAnswer::default()
        };
        let mut in_transit = RangeSet::default();
        for &slice in &ranges {
            let held = self.authority.owned().within(slice).map(|(slice, _)| slice);
            answer.held.extend(joined(held));
            for (slice, _) in self.giver.transit_at.within(slice) {
                in_transit.add(slice);
            }
            for (slice, copy) in self.copies.here().within(slice) {
                answer.copies.push((slice, copy.token));
            }
        }
        answer.in_transit = in_transit.slices();
        self.known.note_told(from, answer.newest);
        self.copies.call_roll(version, &claim.alive);
        claim.ranges = ranges;
        let mut looked_at = claim.ranges.clone();
        if let Some(before) = self.giver.claims.insert(from, claim) {
            looked_at.extend(before.ranges);
            looked_at.sort_unstable();
            looked_at = RangeSet::of(looked_at).slices();
        }
        self.giver.urgent.remove(&from);
        // What a former claim of it asked for it does not expect any more.
        self.giver.recoveries.remove(&from);
        self.say(now, from, Message::ClaimAnswer(answer));
        self.redirect_claims(&looked_at);
    }

    /// Works out anew which parts of what is owned go to whom, in these ranges: disjoint,
    /// ascending.
    pub(crate) fn redirect_claims(&mut self, ranges: &[Slice]) {
        for &within in ranges {
            let (owned, map) = (self.authority.owned(), self.known.map());
            let changed = self.giver.redirect(owned, map, within);
            for &slice in &changed {
                self.look_at(slice);
            }
            // Who waits for what was about to be sent again: it is somebody else's now, or stays.
            self.wake(&changed);
        }
    }

    pub(crate) fn hear_pull(&mut self, from: ServerId, claim: u64, points: Vec<KeyPoint>) {
        let giver = &mut self.giver;
        if giver.claims.get(&from).is_some_and(|c| c.id == claim) {
            giver.urgent.entry(from).or_default().extend(&points);
            self.send_again(from, points);
        }
    }
}
