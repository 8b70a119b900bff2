//! What came, and could not be stored here, in strong mode: the other side of
//! [`giver::unmoved`](crate::giver).

use crate::config::Config;
use crate::core::Core;
use crate::message::Message;
use crate::pause::{Pause, REFUSALS_MAX, a_few_behind};
use crate::ranges::{RangeMap, RangeSet};
use crate::values::{NotStored, Values};
use std::collections::BTreeMap;
use std::time::Duration;
use trefoil_sharder::{KeyPoint, ServerId, Slice};

/// What this server is to own, was sent, and could not store.
#[derive(Debug, Default)]
pub(super) struct Unstored {
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
    pub(super) fn holder(&self, point: KeyPoint) -> Option<ServerId> {
        self.at.get(point).copied()
    }

    /// These copies have come, and were stored: there is room now.
    pub(super) fn stored(&mut self, now: Duration, ranges: &[Slice]) {
        if ranges.iter().any(|&slice| self.tried.touches(slice)) {
            self.pause = Pause::default();
            self.recover_at = (!self.recovered.is_empty()).then_some(now);
        }
    }

    /// Not wanted any more, or here.
    pub(super) fn forget(&mut self, slice: Slice) {
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

    pub(super) fn forget_server(&mut self, server: ServerId) {
        self.late.retain(|(_, from, _)| *from != server);
        self.late_pauses.remove(&server);
        let its = self.at.iter().filter(|&(_, at)| *at == server);
        let its: Vec<Slice> = its.map(|(slice, _)| slice).collect();
        self.at.remove_all(its.into_iter());
    }

    /// A chunk was taken: there may be room for the next one, too.
    pub(super) fn note_taken(&mut self, from: ServerId) {
        self.late_pauses.remove(&from);
    }

    /// A chunk was not taken: its sender is to hear so later each time.
    fn leave(&mut self, now: Duration, config: &Config, from: ServerId, chunk: u64) {
        let pause = self.late_pauses.entry(from).or_default();
        let at = pause.end(now, config);
        pause.lengthen(config);
        self.late.push((at, from, chunk));
    }

    /// What is to be asked for again, if it is time.
    fn due(&mut self, now: Duration, config: &Config) -> Option<Vec<Slice>> {
        self.recover_at.filter(|at| now >= *at)?;
        let last = self.last.unwrap_or(KeyPoint(u64::MAX));
        let again = a_few_behind(&self.recovered, last);
        self.last = again.last().map(|slice| slice.last());
        self.recovered.remove_all(again.iter().copied());
        self.tried = RangeSet::of(again.iter().copied());
        self.pause.lengthen(config);
        let next = self.pause.end(now, config);
        self.recover_at = (!self.recovered.is_empty()).then_some(next);
        Some(again)
    }

    /// Points that could not be stored here, and from when on, where nobody else says so.
    pub(super) fn lacking(&self) -> &BTreeMap<KeyPoint, Duration> {
        &self.lacking
    }

    /// When something is to be tried again, or said.
    pub(super) fn next_tick(&self) -> Option<Duration> {
        let late = self.late.iter().map(|(at, ..)| *at);
        late.chain(self.recover_at).min()
    }

    /// Keeps what is within these ranges.
    pub(super) fn keep(&mut self, wanted: &RangeSet) {
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
    /// What somebody sent could not be stored here, and is his.
    pub(super) fn leave_unstored(
        &mut self,
        from: ServerId,
        refused: &BTreeMap<KeyPoint, NotStored>,
    ) -> [(NotStored, Vec<KeyPoint>); 2] {
        for &point in refused.keys() {
            let slice = Slice::of_point(point);
            self.receiver.unstored.at.insert(slice, from);
            if let Some(claim) = &mut self.receiver.claim {
                claim.pulled.remove(&(from, point));
            }
            self.wake(&[slice]);
        }
        self.tell_unstored(from, refused)
    }

    /// Copies that were asked for could not be stored here: they are asked for again.
    pub(super) fn leave_unrecovered(
        &mut self,
        now: Duration,
        from: ServerId,
        refused: &BTreeMap<KeyPoint, NotStored>,
    ) {
        if refused.is_empty() {
            return;
        }
        let unstored = &mut self.receiver.unstored;
        let again = unstored.pause.end(now, &self.config);
        unstored.recover_at.get_or_insert(again);
        for &point in refused.keys() {
            unstored.recovered.add(Slice::of_point(point));
            unstored.lack(now, point);
        }
        self.tell_unstored(from, refused);
    }

    /// Some of a chunk could not be stored, and its sender does not know that a chunk can be
    /// taken in part: it is not taken at all. It would be sent again at once, so the answer
    /// waits; the longer the more often that happens. Nobody serves the keys meanwhile.
    pub(super) fn leave_whole(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        chunk: u64,
        ranges: &[Slice],
        refused: &BTreeMap<KeyPoint, NotStored>,
    ) {
        for gap in ranges
            .iter()
            .flat_map(|&slice| self.copies.here().gaps(slice))
        {
            values.forget(gap);
        }
        let unstored = &mut self.receiver.unstored;
        for &point in refused.keys() {
            unstored.lack(now, point);
        }
        unstored.leave(now, &self.config, from, chunk);
        self.tell_unstored(from, refused);
    }

    /// Tells senders of chunks that they were not taken, if it is time by then.
    pub(crate) fn answer_late(&mut self, now: Duration, due: Duration) {
        let due = self
            .receiver
            .unstored
            .late
            .extract_if(.., |(at, ..)| *at <= due);
        for (_, from, chunk) in due.collect::<Vec<_>>() {
            self.say(now, from, Message::NotTaken { chunk });
        }
    }

    /// Tries again what this server could not store.
    pub(crate) fn try_unstored_again(&mut self, now: Duration, values: &mut dyn Values) {
        self.answer_late(now, now);
        let receiver = &mut self.receiver;
        if let Some(again) = receiver.unstored.due(now, &self.config) {
            for slice in again {
                receiver.conclude_stale.add(slice);
            }
            self.conclude(now, values);
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
