//! Requests that are told to wait.

use crate::effect::{Effect, Ticket};
use crate::outbox::Outbox;
use std::collections::{BTreeMap, BTreeSet};
use trefoil_sharder::{AssignmentVersion, KeyPoint, Slice};

/// Who waits for what. It tells the [`Outbox`] who is to try again, and touches no other part.
///
/// * Those of one point are woken in the order in which they came, points in their order.
/// * `places` has a place for each of `at` and of `for_map`, and no other: so a request is
///   forgotten without a look at any other one, however many wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    at: BTreeMap<(KeyPoint, Turn), Ticket>,
    /// Wait for this server to learn of an assignment.
    for_map: BTreeMap<Turn, (Option<AssignmentVersion>, Ticket)>,
    /// Where each waits: at a point, or for the map.
    places: BTreeSet<(Ticket, Option<KeyPoint>, Turn)>,
    turns: u64,
}

/// Who came first has the lower one.
type Turn = u64;

impl Waiting {
    /// It waits until something is known of its point.
    pub(crate) fn wait_at(&mut self, point: KeyPoint, ticket: Ticket) {
        let turn = self.take_place(Some(point), ticket);
        self.at.insert((point, turn), ticket);
    }

    /// It waits for this assignment or a newer one.
    pub(crate) fn wait_for(&mut self, wanted: Option<AssignmentVersion>, ticket: Ticket) {
        let turn = self.take_place(None, ticket);
        self.for_map.insert(turn, (wanted, ticket));
    }

    fn take_place(&mut self, point: Option<KeyPoint>, ticket: Ticket) -> Turn {
        self.turns += 1;
        self.places.insert((ticket, point, self.turns));
        self.turns
    }

    /// Points that somebody waits for, each once.
    pub(crate) fn points(&self) -> impl Iterator<Item = KeyPoint> {
        let mut last = None;
        let points = self.at.keys().map(|&(point, _)| point);
        points.filter(move |&point| last.replace(point) != Some(point))
    }

    /// Nobody waits for this request any more.
    pub(crate) fn forget(&mut self, ticket: Ticket) {
        let first = (ticket, None, Turn::MIN);
        let places = self.places.range(first..).copied();
        let its: Vec<_> = places.take_while(|(its, ..)| *its == ticket).collect();
        for place in its {
            self.places.remove(&place);
            match place {
                (_, Some(point), turn) => self.at.remove(&(point, turn)).is_some(),
                (_, None, turn) => self.for_map.remove(&turn).is_some(),
            };
        }
    }

    /// Requests for these ranges are decided anew.
    pub(crate) fn wake(&mut self, ranges: &[Slice], outbox: &mut Outbox) {
        for slice in ranges {
            let within = (slice.start(), Turn::MIN)..=(slice.last(), Turn::MAX);
            for ((point, turn), ticket) in self.at.extract_if(within, |_, _| true) {
                self.places.remove(&(ticket, Some(point), turn));
                outbox.tell(Effect::Wake(ticket));
            }
        }
    }

    /// The same, for points of which this is true.
    pub(crate) fn wake_if(&mut self, is: impl Fn(KeyPoint) -> bool, outbox: &mut Outbox) {
        for ((point, turn), ticket) in self.at.extract_if(.., |&(point, _), _| is(point)) {
            self.places.remove(&(ticket, Some(point), turn));
            outbox.tell(Effect::Wake(ticket));
        }
    }

    /// Requests whose callers knew more than this server.
    pub(crate) fn wake_informed(&mut self, version: AssignmentVersion, outbox: &mut Outbox) {
        let informed = self
            .for_map
            .extract_if(.., |_, (wanted, _)| *wanted <= Some(version));
        for (turn, (_, ticket)) in informed {
            self.places.remove(&(ticket, None, turn));
            outbox.tell(Effect::Wake(ticket));
        }
    }

    /// All requests are decided anew.
    pub(crate) fn wake_all(&mut self, outbox: &mut Outbox) {
        let all = std::mem::take(self);
        let for_map = all.for_map.into_values().map(|(_, ticket)| ticket);
        for ticket in all.at.into_values().chain(for_map) {
            outbox.tell(Effect::Wake(ticket));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// What it is to do, with a look at everything each time.
    #[derive(Default)]
    struct Plain {
        at: Vec<(KeyPoint, Ticket)>,
        for_map: Vec<(AssignmentVersion, Ticket)>,
    }

    impl Plain {
        fn wake_if(&mut self, is: impl Fn(KeyPoint) -> bool) -> Vec<Ticket> {
            let mut woken: Vec<_> = self.at.extract_if(.., |(point, _)| is(*point)).collect();
            woken.sort_by_key(|(point, _)| *point);
            woken.into_iter().map(|(_, ticket)| ticket).collect()
        }
    }

    fn woken(outbox: &mut Outbox) -> Vec<Ticket> {
        let effects = std::iter::from_fn(|| outbox.poll());
        let tickets = effects.map(|effect| match effect {
            Effect::Wake(ticket) => ticket,
            other => panic!("{other:?}"),
        });
        tickets.collect()
    }

    fn version(generation: u64) -> AssignmentVersion {
        (0..generation).fold(AssignmentVersion::first_of(1), |version, _| version.next())
    }

    proptest! {
        /// Whoever waits, is woken and forgotten, in whatever order, also with one ticket in
        /// several places: the same are woken in the same order, and nothing is left behind.
        #[test]
        fn who_is_woken(steps in prop::collection::vec((0u8..6, 0u64..6, 0u64..8), 0..80)) {
            let (mut waiting, mut plain) = (Waiting::default(), Plain::default());
            let mut outbox = Outbox::default();
            for (step, at, ticket) in steps {
                let (point, ticket) = (KeyPoint(at), Ticket(ticket));
                let mut expected = Vec::new();
                match step {
                    0 | 1 => {
                        waiting.wait_at(point, ticket);
                        plain.at.push((point, ticket));
                    }
                    2 => {
                        waiting.wait_for(Some(version(at)), ticket);
                        plain.for_map.push((version(at), ticket));
                    }
                    3 => {
                        waiting.forget(ticket);
                        plain.at.retain(|(_, its)| *its != ticket);
                        plain.for_map.retain(|(_, its)| *its != ticket);
                    }
                    4 => {
                        let slice = Slice::spanning(KeyPoint(at.saturating_sub(1)), point);
                        waiting.wake(&[slice], &mut outbox);
                        expected = plain.wake_if(|point| slice.contains(point));
                    }
                    _ => {
                        waiting.wake_if(|point| point.0 % 3 == at % 3, &mut outbox);
                        waiting.wake_informed(version(at), &mut outbox);
                        expected = plain.wake_if(|point| point.0 % 3 == at % 3);
                        let informed = |(wanted, _): &mut (_, _)| *wanted <= version(at);
                        let informed = plain.for_map.extract_if(.., informed);
                        expected.extend(informed.map(|(_, ticket)| ticket));
                    }
                }
                prop_assert_eq!(woken(&mut outbox), expected);
                let places = plain.at.len() + plain.for_map.len();
                prop_assert_eq!(waiting.places.len(), places);
                prop_assert_eq!(waiting.at.len() + waiting.for_map.len(), places);
            }
        }
    }
}
