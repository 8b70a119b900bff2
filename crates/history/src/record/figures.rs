//! What is counted of a round's faults and carriers.

use super::plan::CarrierKind;
use crate::event::{Event, Kind, NEVER, Outcome};
use serde::Serialize;
use std::collections::BTreeMap;
use trefoil_layout::Version;

/// How often one fault was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct FaultFigures {
    /// The dice said so, and nothing else was away in its place.
    pub drawn: u64,
    /// It was begun. Else it could not be at the moment.
    pub begun: u64,
    /// It was done, and what it took is back.
    pub done: u64,
    /// It was an order, and refused.
    pub refused: u64,
}

impl FaultFigures {
    pub(super) fn add(&mut self, other: FaultFigures) {
        self.drawn += other.drawn;
        self.begun += other.begun;
        self.done += other.done;
        self.refused += other.refused;
    }

    pub(super) fn text(self) -> String {
        match (self.done == self.begun, self.refused) {
            (true, _) => self.done.to_string(),
            (false, 0) => format!("{} of {}", self.done, self.begun),
            (false, refused) => format!("{} of {} ({refused} refused)", self.done, self.begun),
        }
    }
}

/// What clients did by one carrier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CarrierFigures {
    /// Operations.
    pub operations: u64,
    /// GETs that found a value.
    pub hits: u64,
    /// GETs that were answered with an error, or not at all.
    pub failed: u64,
    /// Mutations that were acknowledged.
    pub stored: u64,
    /// Of these, without a version: where native clients commit before it is executed, those
    /// that were.
    pub unversioned: u64,
    /// Mutations that were answered, and may have taken effect or not.
    pub unknown: u64,
}

impl CarrierFigures {
    fn note(&mut self, event: &Event) {
        self.operations += 1;
        match (event.kind, event.outcome) {
            (Kind::Get, Outcome::Hit) => self.hits += 1,
            (Kind::Get, Outcome::Failed) => self.failed += 1,
            (_, Outcome::Stored) => {
                self.stored += 1;
                self.unversioned += u64::from(event.version == Version::ZERO);
            }
            (_, Outcome::Unknown) if event.end_ns != NEVER => self.unknown += 1,
            _ => {}
        }
    }

    pub(super) fn text(self) -> String {
        let (hits, failed) = (self.hits, self.failed);
        let (operations, stored, unknown) = (self.operations, self.stored, self.unknown);
        format!(
            "{operations} ({hits} hits, {failed} GETs failed, {stored} stored, {unknown} unknown)"
        )
    }
}

/// Counts a round's events by how their clients reached the cell.
pub(super) fn count_by_carrier(
    all: &mut BTreeMap<CarrierKind, CarrierFigures>,
    events: &[Event],
    carriers: &BTreeMap<u32, CarrierKind>,
) {
    // One that does nothing at all is to stand there with 0.
    for carrier in carriers.values() {
        all.entry(*carrier).or_default();
    }
    for event in events {
        if let Some(carrier) = carriers.get(&event.client) {
            all.entry(*carrier).or_default().note(event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_carrier_that_does_nothing_is_counted_and_what_fails_is_no_hit() {
        let carriers = [(1, CarrierKind::Rings), (2, CarrierKind::Gateway)].into();
        let event = |kind, outcome| Event {
            outcome,
            ..Event::begun(1, 1, 1, kind, 5)
        };
        let events = [
            event(Kind::Get, Outcome::Hit),
            event(Kind::Get, Outcome::Failed),
            event(Kind::Get, Outcome::Inquorate),
            event(Kind::Set, Outcome::Stored),
            event(Kind::Set, Outcome::Unknown),
            Event {
                end_ns: 9,
                ..event(Kind::Cas, Outcome::Unknown)
            },
        ];
        let mut all = BTreeMap::new();
        count_by_carrier(&mut all, &events, &carriers);
        let rings = all[&CarrierKind::Rings];
        assert_eq!((rings.operations, rings.hits, rings.stored), (6, 1, 1));
        assert_eq!(rings.failed, 1);
        let text = "6 (1 hits, 1 GETs failed, 1 stored, 1 unknown)";
        assert_eq!(rings.text(), text);
        assert_eq!(rings.unknown, 1, "one was cut off, and one not");
        assert_eq!(all[&CarrierKind::Gateway], CarrierFigures::default());
    }
}
