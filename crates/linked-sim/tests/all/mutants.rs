//! Every safety rule is broken once, and the simulator must notice: within a
//! bounded number of seeds, by a property that the rule protects. Seven are broken
//! in scenarios of trefoil-linklet-core instead: `SCRIPTED`.
//!
//! Faults of early versions, by their letters in docs/testing.md, and what breaks the rule
//! that mends each. What is no matter of servers, assigners and callers, the simulator
//! cannot see: that is broken in the test that is named.
//!
//! | | what was wrong | mutants | or, where the simulator cannot see it |
//! |---|---|---|---|
//! | A | a load could keep a stale value | | loads are the runtime's: `every_rule_is_needed` (`freshness`), rules of a model |
//! | B | positions had no history | | positions are the runtime's: `a_failover_to_lower_positions_is_followed` (`linklet`) |
//! | C | a change overwrote another one | `TurnEndsWithItsCaller` | |
//! | D | acknowledged what a replica could not store | `FailedCopyConfirmed` | |
//! | E | strong was one copy | `ThinAcknowledged`, `AcknowledgedEarly` | |
//! | F | a commit that hung held up other keys | `TurnsShared` | deadlines, and who is named: `who_has_not_confirmed_is_named_and_other_keys_go_on` (`linklet`) |
//! | G | links collapsed and grew | `WindowIgnored` | |
//! | H | a wrong flag of one assigner wiped the fleet | `UnknownIsFinal` | |
//! | I | a restarted assigner stopped strong mode | `DealtAtOnce`, `StruckOffReturns` | |
//! | J | the length of leases was not stored | `LeaseLengthForgotten` | |
//! | K | work under the protocol's lock | `WindowIgnored` | locks are the runtime's: `a_closure_may_ask_what_the_server_has` (`linklet`) |
//! | L | clocks that stand still while suspended | `ClockStopsAsleep` | |
//! | M | publications, gates, queues of listeners, records that cannot be read | | there is neither a database nor etcd nor a listener: `publications_that_change_while_they_are_followed`, `a_load_in_between_is_not_kept` (`freshness`), `slow_listeners_hear_that_they_have_missed_something` (`linklet`), `what_cannot_be_read_in_etcd_is_told_until_it_is_gone` (`coordination`) |

use trefoil_linked_sim::{Ends, Property, Runs, run_seed};
use trefoil_linklet_core::mutants::{self as servers, Mutant as Server};
use trefoil_sharder::mutants::{self as assigners, Mutant as Assigner};

/// The simulator was not seen to meet the cases of these within `SEEDS`, rushing or not.
/// What is kept in memory, and how often something is sent in vain, is no matter of the
/// simulator's.
const SCRIPTED: [Server; 7] = [
    Server::DroppedToGive,
    Server::TakenBackByHalf,
    Server::ForgottenWhenBack,
    Server::UnsettledServed,
    Server::WindowIgnored,
    Server::DeclinedOfferedAnew,
    Server::NewestNotTold,
];

/// Seeds within which a broken rule must show.
const SEEDS: u64 = 20_000;

#[derive(Clone, Copy, Debug)]
enum Rule {
    Server(Server),
    Assigner(Assigner),
}

impl Rule {
    /// Which runs are about it.
    fn runs(self) -> Runs {
        match self {
            Rule::Assigner(_) | Rule::Server(Server::UnknownIsFinal | Server::NewcomerAsksAnew) => {
                Runs::Elections
            }
            Rule::Server(mutant) => match mutant {
                Server::ClockStopsAsleep => Runs::Pauses,
                Server::TurnEndsWithItsCaller | Server::QuestionsDropped => Runs::Updates,
                Server::TurnsShared => Runs::Hangs,
                Server::StayedNotCopied => Runs::Stays,
                Server::NoWayRound => Runs::Cuts,
                Server::LeaseLengthForgotten | Server::DealtAtOnce | Server::StruckOffReturns => {
                    Runs::Assigners
                }
                _ => Runs::Any,
            },
        }
    }

    fn set(broken: Option<Rule>) {
        let (server, assigner) = match broken {
            None => (None, None),
            Some(Rule::Server(mutant)) => (Some(mutant), None),
            Some(Rule::Assigner(mutant)) => (None, Some(mutant)),
        };
        servers::set(server);
        assigners::set(assigner);
    }
}

#[track_caller]
fn shows(rule: Rule, properties: &[Property]) {
    let runs = rule.runs();
    let found = (0..SEEDS).find_map(|seed| {
        Rule::set(Some(rule));
        let violation = run_seed(runs, seed, Ends::of_many(seed), None).err();
        Rule::set(None);
        let violation = violation?;
        let protected = properties.contains(&violation.property);
        // What goes wrong with the rule as well says nothing about it.
        let clean = || run_seed(runs, seed, Ends::of_many(seed), None).is_ok();
        (protected && clean()).then_some(violation)
    });
    match found {
        Some(violation) => println!("{rule:?}: {violation}"),
        None => panic!("{rule:?} was not noticed in {SEEDS} seeds"),
    }
}

macro_rules! each {
    ($($name:ident: $of:ident::$mutant:ident => $($property:ident)|+;)*) => {
        $(#[test]
        fn $name() {
            shows(Rule::$of($of::$mutant), &[$(Property::$property),+]);
        })*

        #[test]
        fn every_rule_is_broken_once() {
            let broken = [$(Rule::$of($of::$mutant)),*];
            let server = |mutant| {
                let is = |rule: &Rule| matches!(rule, Rule::Server(of) if of == mutant);
                broken.iter().any(is) != SCRIPTED.contains(mutant)
            };
            let assigner = |mutant| {
                let is = |rule: &Rule| matches!(rule, Rule::Assigner(of) if of == mutant);
                broken.iter().any(is)
            };
            assert!(Server::ALL.iter().all(server));
            assert!(Assigner::ALL.iter().all(assigner));
        }
    };
}

each! {
    everybody_is_asked: Server::NotEverybodyAsked => OneOwner | Token | Moved | Reported | Fresh;
    a_promise_is_kept: Server::PromiseForgotten => OneOwner | Token | Fresh | Reported | Panic;
    what_was_sent_is_not_served: Server::ServedInTransit => OneOwner | Fresh | Reported;
    a_lease_is_needed: Server::LeaseIgnored => OneOwner | Fresh;
    copies_confirm_first: Server::AcknowledgedEarly => Copied | Undone | Reported | Fresh;
    enough_copies_confirm: Server::ThinAcknowledged => Copied | Undone | Reported;
    a_dirty_copy_is_not_read: Server::DirtyCopyRead => Fresh;
    losses_are_reported: Server::LossUnreported => Reported;
    values_are_kept_until_taken: Server::ForgottenWhenSent => Reported | Fresh | Moved;
    new_copies_hear_of_pending_commits: Server::PendingNotCopied => Fresh | Reported | Undone;
    a_copy_is_kept_until_replaced: Server::ExcludedEarly => Undone;
    what_cannot_be_copied_is_not_confirmed: Server::FailedCopyConfirmed => Copied | Undone | Fresh;
    longer_leases_are_waited_for: Server::LeaseLengthForgotten => OneOwner | Token | Fresh | Reported;
    nothing_is_dealt_before_leases_end: Server::DealtAtOnce => OneOwner | Token | Fresh | Reported;
    who_was_struck_off_stays_so: Server::StruckOffReturns => OneOwner | Token | Fresh | Reported;
    leases_end_while_a_machine_is_suspended: Server::ClockStopsAsleep => OneOwner | Token | Fresh;
    a_turn_goes_along_with_its_proposal: Server::TurnEndsWithItsCaller => Lost;
    a_key_has_a_turn_of_its_own: Server::TurnsShared => Held;
    what_cannot_be_stored_stays: Server::UnstoredLost => Moved | Undone;
    who_cannot_store_keeps_its_copy: Server::UnstoredCopyForgotten => Copied | Undone | Fresh | Reported;
    what_stays_has_its_copies_seen_to: Server::StayedNotCopied => Undone;
    who_cannot_be_reached_is_reached_by_another_way: Server::NoWayRound => Held;
    who_passes_on_drops_no_question: Server::QuestionsDropped => OwnedAgain;
    new_owners_hear_of_copies: Server::HoldersForgotten => Fresh | Reported | Undone | Drained;
    an_assigner_without_the_corpus_ends_nothing: Server::UnknownIsFinal => Struck;
    who_may_be_written_down_says_so: Server::NewcomerAsksAnew => Drained | OwnedAgain;
    who_has_lost_its_lead_publishes_nothing: Assigner::FormerLeaderPublishes => Leader;
    who_has_lost_its_lead_stands_for_election: Assigner::CampaignHeldUp => Drained | OwnedAgain;
    what_a_former_leader_publishes_is_refused: Assigner::FormerTermTaken => Leader;
}
