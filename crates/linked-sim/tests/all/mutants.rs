//! Every safety rule is broken once, and the simulator must notice: within a
//! bounded number of seeds, by a property that the rule protects. Seven are broken
//! in scenarios of trefoil-linklet-core instead: `SCRIPTED`.

use trefoil_linked_sim::{Property, Runs, run_seed};
use trefoil_linklet_core::mutants::{self, Mutant};

/// The simulator was not seen to meet the cases of these within `SEEDS`, rushing or not.
/// What is kept in memory, and how often something is sent in vain, is no matter of the
/// simulator's.
const SCRIPTED: [Mutant; 7] = [
    Mutant::DroppedToGive,
    Mutant::TakenBackByHalf,
    Mutant::ForgottenWhenBack,
    Mutant::UnsettledServed,
    Mutant::WindowIgnored,
    Mutant::DeclinedOfferedAnew,
    Mutant::NewestNotTold,
];

/// Seeds within which a broken rule must show.
const SEEDS: u64 = 20_000;

/// These are the assigners'.
const ASSIGNERS: [Mutant; 3] = [
    Mutant::LeaseLengthForgotten,
    Mutant::DealtAtOnce,
    Mutant::StruckOffReturns,
];

#[track_caller]
fn shows(mutant: Mutant, properties: &[Property]) {
    let runs = match mutant {
        Mutant::ClockStopsAsleep => Runs::Pauses,
        Mutant::TurnEndsWithItsCaller | Mutant::QuestionsDropped => Runs::Updates,
        Mutant::StayedNotCopied => Runs::Stays,
        Mutant::NoWayRound => Runs::Cuts,
        _ if ASSIGNERS.contains(&mutant) => Runs::Assigners,
        _ => Runs::Any,
    };
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
    ($($name:ident: $mutant:ident => $($property:ident)|+;)*) => {
        $(#[test]
        fn $name() {
            shows(Mutant::$mutant, &[$(Property::$property),+]);
        })*

        #[test]
        fn every_rule_is_broken_once() {
            let broken = [$(Mutant::$mutant),*];
            let broken = |mutant| broken.contains(mutant) != SCRIPTED.contains(mutant);
            assert!(Mutant::ALL.iter().all(broken));
        }
    };
}

each! {
    everybody_is_asked: NotEverybodyAsked => OneOwner | Token | Moved | Reported | Fresh;
    a_promise_is_kept: PromiseForgotten => OneOwner | Token | Fresh | Reported | Panic;
    what_was_sent_is_not_served: ServedInTransit => OneOwner | Fresh | Reported;
    a_lease_is_needed: LeaseIgnored => OneOwner | Fresh;
    copies_confirm_first: AcknowledgedEarly => Copied | Undone | Reported | Fresh;
    enough_copies_confirm: ThinAcknowledged => Copied | Undone | Reported;
    a_dirty_copy_is_not_read: DirtyCopyRead => Fresh;
    losses_are_reported: LossUnreported => Reported;
    values_are_kept_until_taken: ForgottenWhenSent => Reported | Fresh | Moved;
    new_copies_hear_of_pending_commits: PendingNotCopied => Fresh | Reported | Undone;
    a_copy_is_kept_until_replaced: ExcludedEarly => Undone;
    what_cannot_be_copied_is_not_confirmed: FailedCopyConfirmed => Copied | Undone | Fresh;
    longer_leases_are_waited_for: LeaseLengthForgotten => OneOwner | Token | Fresh | Reported;
    nothing_is_dealt_before_leases_end: DealtAtOnce => OneOwner | Token | Fresh | Reported;
    who_was_struck_off_stays_so: StruckOffReturns => OneOwner | Token | Fresh | Reported;
    leases_end_while_a_machine_is_suspended: ClockStopsAsleep => OneOwner | Token | Fresh;
    a_turn_goes_along_with_its_proposal: TurnEndsWithItsCaller => Lost;
    what_cannot_be_stored_stays: UnstoredLost => Moved | Undone;
    who_cannot_store_keeps_its_copy: UnstoredCopyForgotten => Copied | Undone | Fresh | Reported;
    what_stays_has_its_copies_seen_to: StayedNotCopied => Undone;
    who_cannot_be_reached_is_reached_by_another_way: NoWayRound => Held;
    who_passes_on_drops_no_question: QuestionsDropped => OwnedAgain;
    new_owners_hear_of_copies: HoldersForgotten => Fresh | Reported | Undone | Drained;
}
