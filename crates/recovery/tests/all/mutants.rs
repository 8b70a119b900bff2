//! Rules of a scan that a table or a run over three stores shows to be needed; the
//! simulator shows the others (`crates/sim/tests/all/mutants.rs`).

use crate::scan::{Trio, is_held_after_it_was_put_off};
use crate::verdicts::deviations;
use trefoil_layout::op::Rejection;
use trefoil_recovery::mutants::{self, Mutant};

/// A rule that is broken while this lives, on this thread.
struct Broken;

impl Broken {
    fn rule(mutant: Mutant) -> Self {
        mutants::set(Some(mutant));
        Broken
    }
}

impl Drop for Broken {
    fn drop(&mut self) {
        mutants::set(None);
    }
}

#[test]
fn each_rule_of_a_verdict_is_in_the_table() {
    for mutant in [
        Mutant::LoneValueSpread,
        Mutant::RepairAcrossEpochs,
        Mutant::FlushedRenewed,
        Mutant::TombstonesIgnored,
        Mutant::YoungEvicted,
    ] {
        let _broken = Broken::rule(mutant);
        assert_ne!(deviations(), [""; 0], "{mutant:?}");
    }
}

#[test]
fn what_is_seen_once_is_not_acted_upon() {
    let is_taken = || {
        let mut trio = Trio::new(400);
        trio.set_at(&[0, 1, 2], 0..400, 10);
        // On its way to the third while the keys are looked at.
        trio.set_at(&[0, 1], 7..8, 20);
        trio.meanwhile = Some(|trio| trio.set_at(&[2], 7..8, 20));
        let counts = trio.scan();
        assert_eq!(counts.suspects, 1);
        (counts.changed, counts.dirty)
    };
    assert_eq!(is_taken(), (1, 0));
    let _broken = Broken::rule(Mutant::OneLook);
    assert_eq!(is_taken(), (0, 1));
}

#[test]
fn a_cas_that_is_put_off_is_not_taken_back_at_once() {
    assert!(is_held_after_it_was_put_off(Rejection::UnknownConfig));
    let _broken = Broken::rule(Mutant::TakenBackAtOnce);
    assert!(!is_held_after_it_was_put_off(Rejection::UnknownConfig));
}
