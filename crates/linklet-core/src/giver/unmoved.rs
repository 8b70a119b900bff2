//! What its next owner cannot store does not move, in strong mode.
//!
//! There is no room for it, or it is of another release's form: it would be lost with its
//! move, and nothing could bring it back. So its point stays where it is. Its owner serves
//! it and sends it again, a little at a time and after pauses that get longer
//! ([`pause`](crate::pause)); whoever is to have it sends callers there. What
//! nobody owns any more, and whoever takes over cannot store, stays a copy where it is: it
//! has no owner until it is stored.

use super::{Giver, Transit};
use crate::config::{CHUNK_BYTES_MAX, Config};
use crate::core::Core;
use crate::effect::Effect;
use crate::link::Haste;
use crate::mutants::{self, Mutant};
use crate::part::Part;
use crate::pause::{Pause, RETRY_POINTS};
use crate::ranges::{RangeMap, RangeSet, joined};
use crate::values::{Limit, NotStored, Values};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound::{Excluded, Unbounded};
use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// What one claimant could not store.
#[derive(Debug)]
pub(super) struct Unmoved {
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

impl Giver {
    /// Whether a point is about to be sent once more to who could not store it, or is on
    /// its way. Nobody knows where it will be then: so who asks waits.
    pub(crate) fn is_sent_again(&self, to: ServerId, point: KeyPoint) -> bool {
        let unmoved = self.unmoved.get(&to);
        unmoved.is_some_and(|unmoved| unmoved.points.contains_key(&point))
    }

    /// All points that claimants could not store, in a range.
    pub(crate) fn unmoved_within(&self, within: Slice) -> impl Iterator<Item = KeyPoint> {
        let unmoved = self.unmoved.values();
        let points = unmoved.flat_map(move |u| u.points.range(within.start()..=within.last()));
        points.map(|(&point, _)| point)
    }

    /// Points that claimants could not store, and from when on.
    pub(crate) fn unmoved(
        &self,
    ) -> impl Iterator<Item = (ServerId, &BTreeMap<KeyPoint, Duration>)> {
        let unmoved = self.unmoved.iter();
        unmoved.map(|(&server, unmoved)| (server, &unmoved.points))
    }

    /// Takes out of what leaves what is not sent for now, in a range.
    pub(super) fn hold_back(&self, leaving: &mut RangeMap<ServerId>, within: Slice) {
        for (server, unmoved) in &self.unmoved {
            for &point in unmoved.held_back.range(within.start()..=within.last()) {
                if leaving.get(point) == Some(server) {
                    leaving.remove(Slice::of_point(point));
                }
            }
        }
    }

    /// A claimant could not store these, which are held back from now on.
    fn refuse(&mut self, now: Duration, config: &Config, to: ServerId, points: &[KeyPoint]) {
        let unmoved = self.unmoved.entry(to).or_insert_with(|| Unmoved {
            points: BTreeMap::new(),
            held_back: BTreeSet::new(),
            last: KeyPoint(u64::MAX),
            pause: Pause::default(),
            retry_at: Some(Pause::default().end(now, config)),
        });
        for &point in points {
            unmoved.points.entry(point).or_insert(now);
            unmoved.held_back.insert(point);
        }
    }

    /// A claimant has taken these. If it could not before, there is room now; whether it
    /// could not store something.
    pub(super) fn note_moved(&mut self, to: ServerId, ranges: &[Slice]) -> bool {
        let Some(unmoved) = self.unmoved.get_mut(&to) else {
            return false;
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
        true
    }

    /// When something is to be tried again.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        self.unmoved.values().filter_map(|u| u.retry_at).min()
    }

    /// To whom something is to be sent again when it is its turn.
    pub(crate) fn unmoved_due(&self) -> impl Iterator<Item = ServerId> {
        let due = self.unmoved.iter().filter(|(_, u)| u.retry_at.is_none());
        due.map(|(&to, _)| to)
    }

    /// For whom it is time to try again: from now on it is done when it is its turn.
    fn end_pauses(&mut self, now: Duration) -> Vec<ServerId> {
        let mut due = Vec::new();
        for (&to, unmoved) in &mut self.unmoved {
            if unmoved.retry_at.is_some_and(|at| now >= at) {
                unmoved.retry_at = None;
                due.push(to);
            }
        }
        due
    }

    /// What is to be sent again to a claimant next. What somebody else got meanwhile is
    /// forgotten.
    fn next_again(&mut self, owned: &RangeMap<AssignmentVersion>, to: ServerId) -> Vec<KeyPoint> {
        let Some(unmoved) = self.unmoved.get_mut(&to) else {
            return Vec::new();
        };
        let is_here = |point| owned.has(point) || self.transit_at.has(point);
        unmoved.points.retain(|&point, _| is_here(point));
        unmoved.held_back.retain(|&point| is_here(point));
        if unmoved.points.is_empty() {
            self.unmoved.remove(&to);
            return Vec::new();
        }
        unmoved.next()
    }

    /// It is a claimant's turn: what it is sent again, if it has answered all that it was sent.
    fn begin_again(&mut self, now: Duration, config: &Config, to: ServerId) -> Vec<KeyPoint> {
        if self.transit.values().any(|transit| transit.to == to) {
            return Vec::new();
        }
        let Some(unmoved) = self.unmoved.get_mut(&to) else {
            return Vec::new();
        };
        unmoved.pause.lengthen(config);
        unmoved.retry_at = Some(unmoved.pause.end(now, config));
        let again = unmoved.next();
        unmoved.last = again.last().copied().unwrap_or(unmoved.last);
        again
    }

    /// Those of these points that go to a claimant; the others it does not claim any more.
    fn keep_claimed(&mut self, to: ServerId, points: Vec<KeyPoint>) -> Vec<KeyPoint> {
        let leaves = |point: &KeyPoint| self.leaving.get(*point) == Some(&to);
        let (claimed, not_claimed): (Vec<KeyPoint>, Vec<_>) = points.into_iter().partition(leaves);
        if let Some(unmoved) = self.unmoved.get_mut(&to) {
            not_claimed.iter().for_each(|point| {
                unmoved.points.remove(point);
            });
        }
        claimed
    }
}

/// The points as slices, joined.
fn slices(points: &[KeyPoint]) -> Vec<Slice> {
    joined(points.iter().map(|&point| Slice::of_point(point)))
}

impl Core {
    /// What stays here for now though the map gives it to somebody else, in a range: its
    /// owner is to see to its copies.
    pub(crate) fn staying(&self, within: Slice) -> BTreeSet<KeyPoint> {
        let Some(map) = self.known.map() else {
            return BTreeSet::new();
        };
        if mutants::is(Mutant::StayedNotCopied) {
            return BTreeSet::new();
        }
        let (owned, leaving) = (self.authority.owned(), &self.giver.leaving);
        let is_here = |point| owned.has(point) && !leaving.has(point);
        let stays = |&point: &KeyPoint| {
            is_here(point) && map.slice_of(point).servers.first() != Some(&self.me)
        };
        self.giver.unmoved_within(within).filter(stays).collect()
    }

    pub(crate) fn is_staying(&self, point: KeyPoint) -> bool {
        !self.staying(Slice::of_point(point)).is_empty()
    }

    /// All that stays here for now: for tests.
    #[doc(hidden)]
    pub fn what_stays(&self) -> BTreeSet<KeyPoint> {
        self.staying(Slice::ALL)
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
        let Some(mut transit) = self.giver.take_transit(from, chunk) else {
            return;
        };
        let mut owned = RangeMap::default();
        for (why, points) in refused {
            let is_back = |point: &KeyPoint| transit.owned.has(*point);
            let points: Vec<KeyPoint> = points.into_iter().filter(is_back).collect();
            self.giver.refuse(now, &self.config, from, &points);
            for &point in &points {
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

    pub(crate) fn tell_not_moved(
        &mut self,
        from: ServerId,
        to: ServerId,
        why: NotStored,
        at: Vec<KeyPoint>,
    ) {
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
    pub(super) fn have_again(&mut self, transit: Transit) {
        let back = self.restore(transit);
        self.redirect_claims(&back);
        self.wake(&back);
    }

    /// Tries again what claimants could not store.
    pub(crate) fn try_unmoved_again(&mut self, now: Duration) {
        for to in self.giver.end_pauses(now) {
            let next = self.giver.next_again(self.authority.owned(), to);
            // A commit that a copy cannot store would keep it here for ever: it is taken
            // back once the point is to be given.
            let stuck = |point: &KeyPoint| self.followers.any_fails(*point);
            let stuck: Vec<KeyPoint> = next.into_iter().filter(stuck).collect();
            self.release(to, &stuck);
        }
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
        let mut again = self.giver.begin_again(now, &self.config, to);
        if again.is_empty() {
            return false;
        }
        // Those with commits under way have to wait for them.
        again.retain(|&point| self.proposals.apart(Slice::of_point(point)).1.is_empty());
        self.release(to, &again);
        let again = self.giver.keep_claimed(to, again);
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
        if let Some(unmoved) = self.giver.unmoved.get_mut(&to) {
            points.iter().for_each(|point| {
                unmoved.held_back.remove(point);
            });
            self.redirect_claims(&slices(points));
        }
    }

    /// These are not, for now: the first of them is the next one to be tried.
    fn hold(&mut self, to: ServerId, points: &[KeyPoint]) {
        if let Some(unmoved) = self.giver.unmoved.get_mut(&to)
            && let Some(first) = points.first()
        {
            unmoved.held_back.extend(points);
            unmoved.last = KeyPoint(first.0.wrapping_sub(1));
            self.redirect_claims(&slices(points));
        }
    }

    /// Sends these to a server that could not store them, before all others: they are
    /// withdrawn meanwhile.
    pub(super) fn send_again(&mut self, to: ServerId, points: Vec<KeyPoint>) {
        let Some(unmoved) = self.giver.unmoved.get_mut(&to) else {
            return;
        };
        let mut again = points;
        again.retain(|point| unmoved.held_back.remove(point));
        if !again.is_empty() {
            again.sort_unstable();
            self.redirect_claims(&slices(&again));
            self.giver.urgent.entry(to).or_default().extend(again);
        }
    }
}
