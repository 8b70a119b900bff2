//! What a run has to have shown before it counts. A check that finds nothing says something
//! only if there was something to find: faults that were done, carriers that worked, GETs
//! that could have missed.
//!
//! Asked of the run, not of each round: rounds may be short. A run too short for a demand is
//! not asked; how long that is, the constants say.

use super::figures::{CarrierFigures, FaultFigures};
use super::plan::{CarrierKind, Fault};
use std::collections::BTreeMap;

/// A fault that was begun so often, and never done, is never done.
pub(super) const BEGUN_MIN: u64 = 5;
/// So is one that was drawn so often: it can never be begun.
pub(super) const DRAWN_MIN: u64 = 50;
/// Fewer operations than these need not show what clients and checks can show.
pub(super) const OPERATIONS_MIN: u64 = 10_000;

/// How many rounds promise what, by their plans.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Due {
    /// The doctor is asked.
    pub doctor: usize,
    /// Nothing may be lost.
    pub kept: usize,
    /// Good histories were broken on purpose.
    pub damage: usize,
    /// Memory is full.
    pub full: usize,
    /// Backends that were killed and had to recover.
    pub kills: u64,
}

/// What the run has seen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen<'a> {
    pub operations: u64,
    pub comparisons: u64,
    pub faults: &'a BTreeMap<Fault, FaultFigures>,
    pub carriers: &'a BTreeMap<CarrierKind, CarrierFigures>,
    pub recoveries: u64,
    pub healthy: usize,
    pub healthy_keys: u64,
    pub evictions: u64,
    pub owed: u64,
    pub damages: usize,
    /// Of these, GETs that had to find something and were made to find nothing.
    pub damages_lost: usize,
}

/// What was due and is not there, for people.
pub(super) fn unmet(due: &Due, seen: &Seen<'_>) -> Vec<String> {
    let mut unmet = Vec::new();
    let mut demand = |is_met: bool, what: &str| {
        if !is_met {
            unmet.push(what.to_owned());
        }
    };
    demand(seen.operations > 0, "no operation was done");
    for (fault, figures) in seen.faults {
        let FaultFigures {
            drawn,
            begun,
            refused,
            ..
        } = *figures;
        let is_due = begun >= BEGUN_MIN || drawn >= DRAWN_MIN;
        let what = format!(
            "{fault} was never done: drawn {drawn} times, begun {begun} times, refused {refused} \
             times"
        );
        demand(figures.done > 0 || !is_due, &what);
    }
    demand(
        seen.recoveries > 0 || due.kills < BEGUN_MIN,
        "backends were killed, and none was seen to recover",
    );
    demand(
        seen.healthy >= due.doctor && (due.doctor == 0 || seen.healthy_keys > 0),
        "the doctor was not asked after every round that says so, or read no key",
    );
    if seen.operations < OPERATIONS_MIN {
        return unmet;
    }
    for (carrier, figures) in seen.carriers {
        let no_hit = format!("no GET by {carrier} found a value");
        demand(figures.hits > 0, &no_hit);
        let none_stored = format!("no mutation by {carrier} was acknowledged");
        demand(figures.stored > 0, &none_stored);
        demand(
            figures.unversioned > 0 || *carrier != CarrierKind::Queue,
            "no mutation was committed before it was executed",
        );
    }
    demand(
        seen.comparisons > 0,
        "no hit was held against anything older",
    );
    demand(
        seen.damages > 0 || due.damage == 0,
        "no history was broken on purpose",
    );
    demand(
        seen.owed > 0 || due.kept == 0,
        "nothing may be lost, and no GET was held against that",
    );
    demand(
        seen.damages_lost > 0 || due.kept == 0 || due.damage == 0,
        "nothing may be lost, and no loss was made up to see that it is noticed",
    );
    demand(
        seen.evictions > 0 || due.full == 0,
        "memory was to be full, and no value had to leave",
    );
    unmet
}

#[cfg(test)]
mod tests {
    use super::*;

    const DUE: Due = Due {
        doctor: 2,
        kept: 1,
        damage: 1,
        full: 1,
        kills: BEGUN_MIN,
    };

    fn good() -> (
        BTreeMap<Fault, FaultFigures>,
        BTreeMap<CarrierKind, CarrierFigures>,
    ) {
        let figures = FaultFigures {
            drawn: 8,
            begun: 7,
            done: 1,
            refused: 6,
        };
        let carrier = CarrierFigures {
            operations: 9,
            hits: 1,
            failed: 0,
            stored: 1,
            unversioned: 0,
            unknown: 0,
        };
        (
            [(Fault::Move, figures)].into(),
            [(CarrierKind::Rings, carrier)].into(),
        )
    }

    fn seen<'a>(
        faults: &'a BTreeMap<Fault, FaultFigures>,
        carriers: &'a BTreeMap<CarrierKind, CarrierFigures>,
    ) -> Seen<'a> {
        Seen {
            operations: OPERATIONS_MIN,
            comparisons: 1,
            faults,
            carriers,
            recoveries: 1,
            healthy: 2,
            healthy_keys: 1,
            evictions: 1,
            owed: 1,
            damages: 1,
            damages_lost: 1,
        }
    }

    #[test]
    fn each_demand_is_noticed_when_it_is_not_met() {
        let (faults, carriers) = good();
        let all = seen(&faults, &carriers);
        assert_eq!(unmet(&DUE, &all), [""; 0]);
        let less: [(Seen<'_>, &str); 8] = [
            (
                Seen {
                    comparisons: 0,
                    ..all
                },
                "held against anything older",
            ),
            (
                Seen {
                    recoveries: 0,
                    ..all
                },
                "none was seen to recover",
            ),
            (Seen { healthy: 1, ..all }, "the doctor"),
            (
                Seen {
                    healthy_keys: 0,
                    ..all
                },
                "the doctor",
            ),
            (
                Seen {
                    evictions: 0,
                    ..all
                },
                "had to leave",
            ),
            (Seen { owed: 0, ..all }, "held against that"),
            (Seen { damages: 0, ..all }, "broken on purpose"),
            (
                Seen {
                    damages_lost: 0,
                    ..all
                },
                "no loss was made up",
            ),
        ];
        for (seen, what) in less {
            let said = unmet(&DUE, &seen);
            assert_eq!(said.len(), 1, "{said:?}");
            assert!(said[0].contains(what), "{said:?}");
            // Of what is not due nothing is asked but that.
            assert_eq!(
                unmet(&Due::default(), &seen).len(),
                usize::from(seen.comparisons == 0)
            );
        }
    }

    #[test]
    fn carriers_have_to_work_unless_the_run_is_short() {
        let (faults, mut carriers) = good();
        carriers.insert(CarrierKind::Gateway, CarrierFigures::default());
        let all = seen(&faults, &carriers);
        let said = unmet(&DUE, &all).join("; ");
        assert!(said.contains("by gateway found"), "{said}");
        assert!(said.contains("by gateway was acknowledged"), "{said}");
        let short = Seen {
            operations: OPERATIONS_MIN - 1,
            ..all
        };
        assert_eq!(unmet(&DUE, &short), [""; 0]);
        let none = Seen {
            operations: 0,
            ..all
        };
        assert_eq!(unmet(&DUE, &none), ["no operation was done"]);
    }

    #[test]
    fn a_fault_that_is_never_done_is_noticed_once_it_was_tried_often() {
        let (_, carriers) = good();
        for (drawn, begun, done, is_noticed) in [
            (BEGUN_MIN, BEGUN_MIN - 1, 0, false),
            (BEGUN_MIN, BEGUN_MIN, 0, true),
            (BEGUN_MIN, BEGUN_MIN, 1, false),
            (DRAWN_MIN, 0, 0, true),
            (DRAWN_MIN - 1, 0, 0, false),
        ] {
            let refused = begun - done;
            let figures = FaultFigures {
                drawn,
                begun,
                done,
                refused,
            };
            let faults = [(Fault::Upgrade, figures)].into();
            let said = unmet(&DUE, &seen(&faults, &carriers));
            assert_eq!(!said.is_empty(), is_noticed, "{figures:?}: {said:?}");
        }
    }
}
