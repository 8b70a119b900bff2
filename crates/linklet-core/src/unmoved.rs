//! What its next owner cannot store does not move, in strong mode.
//!
//! There is no room for it, or it is of another release's form: it would be lost with its
//! move, and nothing could bring it back. So its point stays where it is. Its owner serves
//! it and sends it again, a little at a time and after pauses that get longer
//! ([`pause`](crate::pause)); whoever is to have it sends callers there. What
//! nobody owns any more, and whoever takes over cannot store, stays a copy where it is: it
//! has no owner until it is stored.

use crate::config::CHUNK_BYTES_MAX;
use crate::core::Core;
use crate::effect::Effect;
use crate::give::Transit;
use crate::link::Haste;
use crate::message::Message;
use crate::mutants::{self, Mutant};
use crate::part::Part;
use crate::pause::{Pause, REFUSALS_MAX, RETRY_POINTS, a_few_behind};
use crate::ranges::{RangeMap, RangeSet, joined};
use crate::values::{Limit, NotStored, Values};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;
use trefoil_sharder::{KeyPoint, ServerId, Slice};

/// What one claimant could not store.
#[derive(Debug)]
pub(crate) struct Unmoved {
    /// And has not stored since: from when on.
    points: BTreeMap<KeyPoint, Duration>,
    /// Of these, what is not sent for now.
    held_back: BTreeSet<KeyPoint>,
    /// The last one that was sent again; all have their turn.
    last: KeyPoint,
    pause: Pause,
    /// None: some of it is to be sent when it is its turn.
    retry_at: Option<Duration>,
}

impl Unmoved {
    /// What is to be sent again next.
    fn next(&self) -> Vec<KeyPoint> {
        let behind = self.held_back.range((Excluded(self.last), Unbounded));
        let behind: Vec<KeyPoint> = behind.take(RETRY_POINTS).copied().collect();
        if behind.is_empty() {
            return self.held_back.iter().take(RETRY_POINTS).copied().collect();
        }
        behind
    }
}

/// What this server is to own, was sent, and could not store.
#[derive(Debug, Default)]
pub(crate) struct Unstored {
    /// Who has it, and serves it.
    at: RangeMap<ServerId>,
    /// Nobody's: copies of it are to be asked for again, then.
    recovered: RangeSet,
    recover_at: Option<Duration>,
    /// Since when it could not be stored here, where nobody else says so: it is nobody's, or
    /// its owner does not know. [`REFUSALS_MAX`] at most. The other fields are bounded by the
    /// keys that others hold, and have sent.
    lacking: BTreeMap<KeyPoint, Duration>,
    /// Chunks that are not taken, and of which the sender hears then.
    late: Vec<(Duration, ServerId, u64)>,
    /// How long that takes with each sender that has got something back since it was taken
    /// from last.
    late_pauses: BTreeMap<ServerId, Pause>,
    /// Of these, what was asked for again last.
    tried: RangeSet,
    /// Up to here; all have their turn.
    last: Option<KeyPoint>,
    pause: Pause,
}

impl Unstored {
    /// Who serves what this server is to own.
    pub(crate) fn holder(&self, point: KeyPoint) -> Option<ServerId> {
        self.at.get(point).copied()
    }

    /// These copies have come, and were stored: there is room now.
    pub(crate) fn stored(&mut self, now: Duration, ranges: &[Slice]) {
        if ranges.iter().any(|&slice| self.tried.touches(slice)) {
            self.pause = Pause::default();
            self.recover_at = (!self.recovered.is_empty()).then_some(now);
        }
    }

    /// Not wanted any more, or here.
    pub(crate) fn forget(&mut self, slice: Slice) {
        self.at.remove(slice);
        self.recovered.remove(slice);
        let within = slice.start()..=slice.last();
        self.lacking.extract_if(within, |_, _| true).for_each(drop);
    }

    /// This could not be stored here, and nobody else says so.
    fn lack(&mut self, now: Duration, point: KeyPoint) {
        if self.lacking.len() < REFUSALS_MAX {
            self.lacking.entry(point).or_insert(now);
        }
    }

    pub(crate) fn forget_server(&mut self, server: ServerId) {
        self.late.retain(|(_, from, _)| *from != server);
        self.late_pauses.remove(&server);
        let its = self.at.iter().filter(|&(_, at)| *at == server);
        let its: Vec<Slice> = its.map(|(slice, _)| slice).collect();
        self.at.remove_all(its.into_iter());
    }

    /// Keeps what is within these ranges.
    pub(crate) fn keep(&mut self, wanted: &RangeSet) {
        let at: Vec<Slice> = self.at.slices();
        let recovered = self.recovered.slices();
        for gap in at.iter().flat_map(|&slice| wanted.gaps(slice)) {
            self.at.remove(gap);
        }
        for gap in recovered.iter().flat_map(|&slice| wanted.gaps(slice)) {
            self.recovered.remove(gap);
        }
        self.lacking.retain(|&point, _| wanted.has(point));
    }
}

impl Core {
    /// Whether a point is about to be sent once more to who could not store it, or is on
    /// its way. Nobody knows where it will be then: so who asks waits.
    pub(crate) fn is_sent_again(&self, to: ServerId, point: KeyPoint) -> bool {
        let unmoved = self.unmoved.get(&to);
        unmoved.is_some_and(|unmoved| unmoved.points.contains_key(&point))
    }

    /// What stays here for now though the map gives it to somebody else, in a range: its
    /// owner is to see to its copies.
    pub(crate) fn staying(&self, within: Slice) -> BTreeSet<KeyPoint> {
        let Some(map) = self.map.current() else {
            return BTreeSet::new();
        };
        if mutants::is(Mutant::StayedNotCopied) {
            return BTreeSet::new();
        }
        let unmoved = self.unmoved.values();
        let points = unmoved.flat_map(|u| u.points.range(within.start()..=within.last()));
        let is_here = |point| self.owned.has(point) && !self.leaving.has(point);
        let stays = |&point: &KeyPoint| {
            is_here(point) && map.slice_of(point).servers.first() != Some(&self.me)
        };
        points.map(|(&point, _)| point).filter(stays).collect()
    }

    /// All that stays here for now: for tests.
    #[doc(hidden)]
    pub fn what_stays(&self) -> BTreeSet<KeyPoint> {
        self.staying(Slice::ALL)
    }

    pub(crate) fn is_staying(&self, point: KeyPoint) -> bool {
        !self.staying(Slice::of_point(point)).is_empty()
    }

    /// Where copies of what stays are to be depends on all of the map, and on who is alive.
    pub(crate) fn look_at_staying(&mut self) {
        for point in self.unmoved.values().flat_map(|u| u.points.keys()) {
            self.follow_stale.range(Slice::of_point(*point));
        }
    }

    /// Takes out of what leaves what is not sent for now, in a range.
    pub(crate) fn hold_back(&self, leaving: &mut RangeMap<ServerId>, within: Slice) {
        for (server, unmoved) in &self.unmoved {
            for &point in unmoved.held_back.range(within.start()..=within.last()) {
                if leaving.get(point) == Some(server) {
                    leaving.remove(Slice::of_point(point));
                }
            }
        }
    }

    /// Its next owner could not store some of a chunk: that is here as before.
    pub(crate) fn hear_taken_in_part(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        chunk: u64,
        refused: [(NotStored, Vec<KeyPoint>); 2],
    ) {
        let Some(mut transit) = self.take_transit(from, chunk) else {
            return;
        };
        let retry_at = Pause::default().end(now, &self.config);
        let mut owned = RangeMap::default();
        for (why, points) in refused {
            let is_back = |point: &KeyPoint| transit.owned.has(*point);
            let points: Vec<KeyPoint> = points.into_iter().filter(is_back).collect();
            let unmoved = self.unmoved.entry(from).or_insert_with(|| Unmoved {
                points: BTreeMap::new(),
                held_back: BTreeSet::new(),
                last: KeyPoint(u64::MAX),
                pause: Pause::default(),
                retry_at: Some(retry_at),
            });
            for &point in &points {
                unmoved.points.entry(point).or_insert(now);
                unmoved.held_back.insert(point);
                if let Some(&token) = transit.owned.get(point) {
                    owned.insert(Slice::of_point(point), token);
                }
            }
            self.tell_not_moved(self.me, from, why, points);
        }
        let mut taken = RangeSet::of(transit.owned.slices());
        taken.remove_all(owned.iter().map(|(slice, _)| slice));
        transit.owned = owned;
        self.have_again(transit);
        self.end_transit(now, values, from, taken.slices());
    }

    fn tell_not_moved(&mut self, from: ServerId, to: ServerId, why: NotStored, at: Vec<KeyPoint>) {
        if !at.is_empty() {
            self.tell(Effect::NotMoved {
                from,
                to,
                why,
                points: at,
            });
        }
    }

    /// What was sent is here again, with what was known of it.
    pub(crate) fn have_again(&mut self, transit: Transit) {
        let back = self.restore(transit);
        self.redirect_claims(&back);
        self.wake(&back);
    }

    /// It has taken these. If it could not before, there is room now.
    pub(crate) fn note_moved(&mut self, to: ServerId, ranges: &[Slice]) {
        let Some(unmoved) = self.unmoved.get_mut(&to) else {
            return;
        };
        for slice in ranges {
            let within = unmoved.points.range(slice.start()..=slice.last());
            for point in within.map(|(&point, _)| point).collect::<Vec<_>>() {
                unmoved.points.remove(&point);
                unmoved.held_back.remove(&point);
                unmoved.pause = Pause::default();
                unmoved.retry_at = None;
            }
        }
        if unmoved.points.is_empty() {
            self.unmoved.remove(&to);
        }
        // Those who waited for what was sent once more.
        self.wake_unwanted();
    }

    /// When something is to be tried again.
    pub(crate) fn unmoved_at(&self) -> Option<Duration> {
        let given = self.unmoved.values().filter_map(|u| u.retry_at);
        let late = self.unstored.late.iter().map(|(at, ..)| *at);
        given.chain(self.unstored.recover_at).chain(late).min()
    }

    /// Tries again what its next owner, or this one, could not store.
    pub(crate) fn try_unmoved_again(&mut self, now: Duration, values: &mut dyn Values) {
        self.answer_late(now, now);
        if self.unstored.recover_at.is_some_and(|at| now >= at) {
            let unstored = &mut self.unstored;
            let last = unstored.last.unwrap_or(KeyPoint(u64::MAX));
            let again = a_few_behind(&unstored.recovered, last);
            unstored.last = again.last().map(|slice| slice.last());
            for &slice in &again {
                unstored.recovered.remove(slice);
                self.conclude_stale.add(slice);
            }
            unstored.tried = RangeSet::of(again);
            unstored.pause.lengthen(&self.config);
            let next = unstored.pause.end(now, &self.config);
            unstored.recover_at = (!unstored.recovered.is_empty()).then_some(next);
            self.conclude(now, values);
        }
        let is_due = |unmoved: &Unmoved| unmoved.retry_at.is_some_and(|at| now >= at);
        let due = self.unmoved.iter().filter(|(_, unmoved)| is_due(unmoved));
        for to in due.map(|(&to, _)| to).collect::<Vec<_>>() {
            let Some(unmoved) = self.unmoved.get_mut(&to) else {
                continue;
            };
            unmoved.retry_at = None;
            // What somebody else got meanwhile.
            let is_here = |point| self.owned.has(point) || self.transit_at.has(point);
            unmoved.points.retain(|&point, _| is_here(point));
            unmoved.held_back.retain(|&point| is_here(point));
            if unmoved.points.is_empty() {
                self.unmoved.remove(&to);
                continue;
            }
            // A commit that a copy cannot store would keep it here for ever: it is taken
            // back once the point is to be given.
            let next = unmoved.next().into_iter();
            let stuck = |point: &KeyPoint| self.followers.values().any(|f| f.fails(*point));
            let stuck: Vec<KeyPoint> = next.filter(stuck).collect();
            self.release(to, &stuck);
        }
    }

    /// To whom something is to be sent again when it is its turn.
    pub(crate) fn unmoved_due(&self) -> impl Iterator<Item = ServerId> {
        let due = self.unmoved.iter().filter(|(_, u)| u.retry_at.is_none());
        due.map(|(&to, _)| to)
    }

    /// Sends a few of the points again that a server could not store, as far as
    /// [`Config::bulk_bytes`](crate::Config::bulk_bytes) allows, and nothing before it has
    /// answered all that it was sent: one that hangs gets no more. They are withdrawn from
    /// here to its answer.
    pub(crate) fn retry_next(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        to: ServerId,
    ) -> bool {
        if self.transit.values().any(|transit| transit.to == to) {
            return false;
        }
        let Some(unmoved) = self.unmoved.get_mut(&to) else {
            return false;
        };
        unmoved.pause.lengthen(&self.config);
        unmoved.retry_at = Some(unmoved.pause.end(now, &self.config));
        let mut again = unmoved.next();
        unmoved.last = again.last().copied().unwrap_or(unmoved.last);
        // Those with commits under way have to wait for them.
        again.retain(|&point| self.proposals.apart(Slice::of_point(point)).1.is_empty());
        self.release(to, &again);
        let leaves = |point: &KeyPoint| self.leaving.get(*point) == Some(&to);
        let (again, not_claimed): (Vec<KeyPoint>, Vec<_>) = again.into_iter().partition(leaves);
        if let Some(unmoved) = self.unmoved.get_mut(&to) {
            not_claimed.iter().for_each(|point| {
                unmoved.points.remove(point);
            });
        }
        self.publish(values);
        let limit = Limit {
            bytes: self.config.chunk_bytes,
            entries: self.config.chunk_entries,
        };
        let mut part = Part::default();
        for (at, &point) in again.iter().enumerate() {
            let mut next = Part::default();
            next.scan(values, Slice::of_point(point), limit);
            let bytes_max = self.config.bulk_bytes.min(CHUNK_BYTES_MAX);
            if !part.sent.is_empty() && part.bytes + next.bytes > bytes_max {
                self.hold(to, &again[at..]);
                break;
            }
            part.sent.extend(next.sent);
            part.entries.extend(next.entries);
            part.bytes += next.bytes;
        }
        self.send_part(now, values, to, part, Haste::Bulk)
    }

    /// These are to be sent.
    fn release(&mut self, to: ServerId, points: &[KeyPoint]) {
        if let Some(unmoved) = self.unmoved.get_mut(&to) {
            points.iter().for_each(|point| {
                unmoved.held_back.remove(point);
            });
            self.redirect_claims(&joined(points.iter().map(|&point| Slice::of_point(point))));
        }
    }

    /// These are not, for now: the first of them is the next one to be tried.
    fn hold(&mut self, to: ServerId, points: &[KeyPoint]) {
        if let Some(unmoved) = self.unmoved.get_mut(&to)
            && let Some(first) = points.first()
        {
            unmoved.held_back.extend(points);
            unmoved.last = KeyPoint(first.0.wrapping_sub(1));
            self.redirect_claims(&joined(points.iter().map(|&point| Slice::of_point(point))));
        }
    }

    /// Sends these to a server that could not store them, before all others: they are
    /// withdrawn meanwhile.
    pub(crate) fn send_again(&mut self, to: ServerId, points: Vec<KeyPoint>) {
        let Some(unmoved) = self.unmoved.get_mut(&to) else {
            return;
        };
        let mut again = points;
        again.retain(|point| unmoved.held_back.remove(point));
        if !again.is_empty() {
            again.sort_unstable();
            self.redirect_claims(&joined(again.iter().map(|&point| Slice::of_point(point))));
            self.urgent.entry(to).or_default().extend(again);
        }
    }

    /// Points that servers which are to own them could not store, and from when on: this
    /// one, too, where nobody has them.
    pub(crate) fn unmoved(
        &self,
    ) -> impl Iterator<Item = (ServerId, &BTreeMap<KeyPoint, Duration>)> {
        let unmoved = self.unmoved.iter();
        let unmoved = unmoved.map(|(&server, unmoved)| (server, &unmoved.points));
        unmoved.chain([(self.me, &self.unstored.lacking)])
    }

    /// What somebody sent could not be stored here, and is his.
    pub(crate) fn leave_unstored(
        &mut self,
        from: ServerId,
        refused: &BTreeMap<KeyPoint, NotStored>,
    ) -> [(NotStored, Vec<KeyPoint>); 2] {
        for &point in refused.keys() {
            let slice = Slice::of_point(point);
            self.unstored.at.insert(slice, from);
            if let Some(claim) = &mut self.claim {
                claim.pulled.remove(&(from, point));
            }
            self.wake(&[slice]);
        }
        self.tell_unstored(from, refused)
    }

    /// Copies that were asked for could not be stored here: they are asked for again.
    pub(crate) fn leave_unrecovered(
        &mut self,
        now: Duration,
        from: ServerId,
        refused: &BTreeMap<KeyPoint, NotStored>,
    ) {
        if refused.is_empty() {
            return;
        }
        let again = self.unstored.pause.end(now, &self.config);
        self.unstored.recover_at.get_or_insert(again);
        for &point in refused.keys() {
            self.unstored.recovered.add(Slice::of_point(point));
            self.unstored.lack(now, point);
        }
        self.tell_unstored(from, refused);
    }

    /// A chunk was taken: there may be room for the next one, too.
    pub(crate) fn note_taken(&mut self, from: ServerId) {
        self.unstored.late_pauses.remove(&from);
    }

    /// Some of a chunk could not be stored, and its sender does not know that a chunk can be
    /// taken in part: it is not taken at all. It would be sent again at once, so the answer
    /// waits; the longer the more often that happens. Nobody serves the keys meanwhile.
    pub(crate) fn leave_whole(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        chunk: u64,
        ranges: &[Slice],
        refused: &BTreeMap<KeyPoint, NotStored>,
    ) {
        for gap in ranges.iter().flat_map(|&slice| self.copies.gaps(slice)) {
            values.forget(gap);
        }
        for &point in refused.keys() {
            self.unstored.lack(now, point);
        }
        let pause = self.unstored.late_pauses.entry(from).or_default();
        let at = pause.end(now, &self.config);
        pause.lengthen(&self.config);
        self.unstored.late.push((at, from, chunk));
        self.tell_unstored(from, refused);
    }

    /// Tells senders of chunks that they were not taken, if it is time by then.
    pub(crate) fn answer_late(&mut self, now: Duration, due: Duration) {
        let due = self.unstored.late.extract_if(.., |(at, ..)| *at <= due);
        for (_, from, chunk) in due.collect::<Vec<_>>() {
            self.say(now, from, Message::NotTaken { chunk });
        }
    }

    fn tell_unstored(
        &mut self,
        from: ServerId,
        refused: &BTreeMap<KeyPoint, NotStored>,
    ) -> [(NotStored, Vec<KeyPoint>); 2] {
        let by_reason = [NotStored::Unreadable, NotStored::NoRoom].map(|why| {
            let its = refused.iter().filter(|(_, of)| **of == why);
            (why, its.map(|(&point, _)| point).collect::<Vec<_>>())
        });
        for (why, points) in by_reason.clone() {
            self.tell_not_moved(from, self.me, why, points);
        }
        by_reason
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many are refused: what is remembered is bounded, and forgotten by range.
    #[test]
    fn what_is_lacking_is_bounded_and_forgotten_by_range() {
        let mut unstored = Unstored::default();
        let point = |at: usize| KeyPoint(at as u64 * 3);
        for at in 0..2 * REFUSALS_MAX {
            unstored.lack(Duration::ZERO, point(at));
        }
        assert_eq!(unstored.lacking.len(), REFUSALS_MAX);
        unstored.forget(Slice::spanning(point(10), point(12)));
        let left = |at| unstored.lacking.contains_key(&point(at));
        assert!(!(10..=12).any(left) && left(9) && left(13));
        // One at a time, as chunks of single keys do.
        (0..REFUSALS_MAX).for_each(|at| unstored.forget(Slice::of_point(point(at))));
        assert!(unstored.lacking.is_empty());
    }
}
