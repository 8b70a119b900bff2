//! Every safety rule is broken once, and the simulator must notice: within a
//! bounded number of seeds, by a property that the rule protects.
#![cfg(feature = "mutants")]

use trefoil_linked_sim::{Property, Runs, run_seed};
use trefoil_linklet_core::mutants::{self, Mutant};

/// Seeds within which a broken rule must show.
const SEEDS: u64 = 50_000;

#[track_caller]
fn shows(mutant: Mutant, runs: Runs, properties: &[Property]) {
    let found = (0..SEEDS).find_map(|seed| {
        mutants::set(Some(mutant));
        let violation = run_seed(runs, seed, None).err()?;
        mutants::set(None);
        let protected = properties.contains(&violation.property);
        // What goes wrong with the rule as well says nothing about it.
        let clean = || run_seed(runs, seed, None).is_ok();
        (protected && clean()).then_some(violation)
    });
    mutants::set(None);
    match found {
        Some(violation) => println!("{mutant:?}: {violation}"),
        None => panic!("{mutant:?} was not noticed in {SEEDS} seeds"),
    }
}

macro_rules! each {
    ($($name:ident: $mutant:ident in $runs:ident => $($property:ident)|+;)*) => {
        $(#[test]
        fn $name() {
            shows(Mutant::$mutant, Runs::$runs, &[$(Property::$property),+]);
        })*

        #[test]
        fn every_rule_is_broken_once() {
            let broken = [$(Mutant::$mutant),*];
            assert!(Mutant::ALL.iter().all(|mutant| broken.contains(mutant)));
        }
    };
}

each! {
    everybody_is_asked: NotEverybodyAsked in Any => OneOwner | Token | Moved | Reported | Fresh;
    a_promise_is_kept: PromiseForgotten in Any => OneOwner | Token | Fresh | Reported | Panic;
    what_was_sent_is_not_served: ServedInTransit in Any => OneOwner | Fresh | Reported;
    a_lease_is_needed: LeaseIgnored in Any => OneOwner | Fresh;
    copies_confirm_first: AcknowledgedEarly in Any => Undone | Reported | Fresh;
    a_dirty_copy_is_not_read: DirtyCopyRead in Any => Fresh;
    losses_are_reported: LossUnreported in Any => Reported;
    values_are_kept_until_taken: ForgottenWhenSent in Any => Reported | Fresh | Moved;
    what_came_back_is_kept: ForgottenWhenBack in Rush => Reported | Fresh | Moved;
    new_copies_hear_of_pending_commits: PendingNotCopied in Any => Fresh | Reported | Undone;
    unsettled_commits_are_not_served: UnsettledServed in Rush => Fresh | Reported | Undone;
    a_copy_is_kept_until_replaced: ExcludedEarly in Any => Undone;
    new_owners_hear_of_copies: HoldersForgotten in Any => Fresh | Reported | Undone | Drained;
}
