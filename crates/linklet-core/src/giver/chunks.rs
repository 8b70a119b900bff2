//! Sending what was claimed, with the authority, and what comes of it.

use super::Transit;
use crate::Replication;
use crate::copies::CopyState;
use crate::core::Core;
use crate::effect::Effect;
use crate::link::Haste;
use crate::message::{Chunk, ChunkKind, ClaimAnswer, Message};
use crate::mutants::{self, Mutant};
use crate::part::Part;
use crate::ranges::{RangeMap, RangeSet, common, joined};
use crate::values::{Limit, Values};
use std::collections::BTreeSet;
use std::time::Duration;
use trefoil_sharder::{KeyPoint, ServerId, Slice};

impl Core {
    /// Sends what has been claimed and somebody waits for. The table that withdraws it is
    /// published before. The rest takes turns with copies ([`bulk`](crate::bulk)).
    pub(crate) fn give(&mut self, now: Duration, values: &mut dyn Values) {
        for to in self.giver.urgent.keys().copied().collect::<Vec<_>>() {
            if let Some(points) = self.giver.urgent.remove(&to) {
                let rest = self.give_urgent(now, values, to, points);
                if !rest.is_empty() {
                    // Those with commits under way have to wait for them, and those in
                    // transit until they are here again or gone.
                    self.giver.urgent.insert(to, rest);
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
            let leaving = self.giver.leaving.find(point);
            let Some((range, _)) = leaving.filter(|(_, at)| **at == to) else {
                if self.giver.transit_at.has(point) {
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
        let leaving = self.giver.leaving.iter();
        let mut here = leaving.filter(|&(_, at)| *at == to).peekable();
        if here.peek().is_none() {
            self.giver.giving.remove(&to);
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
        let newest = self.known.newest_heard();
        if self.known.told(to) >= newest || mutants::is(Mutant::NewestNotTold) {
            return;
        }
        self.known.note_told(to, newest);
        // Of no claim: it says nothing else.
        let answer = ClaimAnswer {
            newest,
            ..ClaimAnswer::default()
        };
        self.say(now, to, Message::ClaimAnswer(answer));
    }

    /// Sends a chunk, and with it the authority; `false` if it is empty.
    pub(super) fn send_part(
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
        let mut owned = RangeMap::default();
        for &slice in &ranges {
            for (slice, &token) in self.authority.owned().within(slice) {
                owned.insert(slice, token);
            }
        }
        let (mut holders, mut unsettled) = self.followers.let_go(&ranges);
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
                self.copies
                    .become_copy(slice, CopyState { owner: to, token });
            }
        }
        for &slice in &ranges {
            self.authority.cede(slice);
            self.look_at(slice);
            if mutants::is(Mutant::ForgottenWhenSent) {
                values.forget(slice);
            }
        }
        let transit = Transit {
            to,
            owned,
            held: holders.clone(),
            unsettled: unsettled.clone(),
        };
        let chunk = Chunk {
            id: self.giver.send(&ranges, transit),
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
        let Some(transit) = self.giver.take_transit(from, chunk) else {
            return;
        };
        let ranges = transit.owned.slices();
        self.end_transit(now, values, from, ranges);
    }

    /// These were taken over.
    pub(super) fn end_transit(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        ranges: Vec<Slice>,
    ) {
        if self.giver.note_moved(from, &ranges) {
            // Those who waited for what was sent once more.
            self.wake_unwanted();
        }
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
        let Some(transit) = self.giver.take_transit(from, chunk) else {
            return;
        };
        self.have_again(transit);
    }

    /// Takes back what was sent, and not taken over; which ranges that is.
    pub(super) fn restore(&mut self, transit: Transit) -> Vec<Slice> {
        for (slice, &token) in transit.owned.iter() {
            self.authority.gain(slice, token);
            self.receiver.forget(slice);
            self.copies.remove(slice);
            self.look_at(slice);
        }
        for (server, ranges) in transit.held {
            for slice in common(&ranges, &RangeSet::of(transit.owned.slices())) {
                self.adopt_holder(server, slice);
            }
        }
        let unsettled = transit.unsettled.into_iter();
        let back = unsettled.filter(|(point, _)| transit.owned.has(*point));
        self.followers.note_touched(back);
        transit.owned.slices()
    }

    /// What was held or in transit has come to its end: who has claimed it hears of it.
    fn tell_claimants(&mut self, now: Duration, taken_by: ServerId, ranges: &[Slice]) {
        let news = self.giver.claimants_of(&self.authority, taken_by, ranges);
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
        let (claimed, sent) = self.giver.forget_claimant(server);
        for chunk in sent {
            self.hear_taken(now, values, server, chunk);
        }
        self.redirect_claims(&claimed);
    }
}
