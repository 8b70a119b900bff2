//! Every safety rule is broken once, and the simulator must notice: within a
//! bounded number of seeds, by a property that the rule protects.
#![cfg(feature = "mutants")]

use trefoil_linked_sim::{Property, Runs, run_seed};
use trefoil_linklet_core::mutants::{self, Mutant};

/// Seeds within which a broken rule must show.
const SEEDS: u64 = 20_000;

#[track_caller]
fn shows(mutant: Mutant, properties: &[Property]) {
    mutants::set(Some(mutant));
    let found = (0..SEEDS).find_map(|seed| {
        let violation = run_seed(Runs::Any, seed, None).err()?;
        properties
            .contains(&violation.property)
            .then_some(violation)
    });
    mutants::set(None);
    match found {
        Some(violation) => println!("{mutant:?}: {violation}"),
        None => panic!("{mutant:?} was not noticed in {SEEDS} seeds"),
    }
}

macro_rules! each {
    ($($name:ident: $mutant:ident => $($property:ident)|+;)*) => {
        $(#[test]
        fn $name() {
            shows(Mutant::$mutant, &[$(Property::$property),+]);
        })*

        #[test]
        fn every_rule_is_broken_once() {
            let broken = [$(Mutant::$mutant),*];
            assert!(Mutant::ALL.iter().all(|mutant| broken.contains(mutant)));
        }
    };
}

each! {
    everybody_is_asked: NotEverybodyAsked => OneOwner | Token | Moved | Reported | Fresh;
    a_promise_is_kept: PromiseForgotten => OneOwner | Token | Fresh | Reported | Panic;
    what_was_sent_is_not_served: ServedInTransit => OneOwner | Fresh | Reported;
    a_lease_is_needed: LeaseIgnored => OneOwner | Fresh;
    copies_confirm_first: AcknowledgedEarly => Undone | Reported | Fresh;
    a_dirty_copy_is_not_read: DirtyCopyRead => Fresh;
    losses_are_reported: LossUnreported => Reported;
    values_are_kept_until_taken: ForgottenWhenSent => Reported | Fresh | Moved;
    what_came_back_is_kept: ForgottenWhenBack => Reported | Fresh | Moved;
    new_copies_hear_of_pending_commits: PendingNotCopied => Fresh | Reported | Undone;
    unsettled_commits_are_not_served: UnsettledServed => Fresh | Reported | Undone;
    a_copy_is_kept_until_replaced: ExcludedEarly => Undone;
    new_owners_hear_of_copies: HoldersForgotten => Fresh | Reported | Undone | Drained;
}
