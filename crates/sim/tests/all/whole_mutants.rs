//! What keeps the driver, its readers and the store's indexes right is broken once,
//! and the runs of the whole client must notice: within a bounded number of seeds,
//! by a property that it protects.

use trefoil_client_core::mutants::Mutant as Core;
use trefoil_sim::Property;
use trefoil_sim::mutants::{Rule, hunt_whole};
use trefoil_store::mutants::Mutant as Stored;

#[track_caller]
fn shows(first: u64, count: u64, rule: Rule, properties: &[Property]) {
    let report = hunt_whole(rule, first, count, 2);
    let found = report
        .violations
        .iter()
        .find(|violation| properties.contains(&violation.property));
    let Some(found) = found else {
        panic!("{rule:?} was not noticed: {:?}", report.violations);
    };
    println!("{rule:?}: \"{}\" by seed {}", found.property, found.seed);
    assert!(!found.history.is_empty());
}

#[test]
fn readers_look_in_the_shard_of_their_place() {
    let rule = Rule::Client(Core::PlaceIgnored);
    shows(0, 200, rule, &[Property::Kept]);
}

#[test]
fn an_answer_counts_for_the_attempt_that_asked() {
    let rule = Rule::Client(Core::FormerAnswerCounts);
    shows(0, 500, rule, &[Property::Fresh, Property::Ghost]);
}

#[test]
fn clients_follow_a_cell_that_was_started_anew() {
    let rule = Rule::Client(Core::LifeIgnored);
    shows(0, 500, rule, &[Property::Healed]);
}

#[test]
fn what_was_abandoned_keeps_no_place() {
    let rule = Rule::Client(Core::AbandonedKept);
    shows(0, 500, rule, &[Property::Leak]);
}

#[test]
fn a_poisoned_bucket_is_not_believed() {
    let rule = Rule::Client(Core::ConfigIgnored);
    shows(1_700, 1_000, rule, &[Property::Fresh, Property::Monotone]);
}

#[test]
fn readers_are_told_of_what_stands_beside_the_index() {
    let rule = Rule::Store(Stored::OverflowUnflagged);
    shows(0, 2_000, rule, &[Property::Kept]);
}

#[test]
fn one_vote_and_one_acknowledgement_are_no_quorum() {
    let stale = [Property::Fresh, Property::Monotone];
    shows(0, 500, Rule::Client(Core::VoteOfOne), &stale);
    shows(0, 500, Rule::Client(Core::AckOfOne), &stale);
}

#[test]
fn with_every_rule_in_force_the_same_seeds_are_clean() {
    let report = trefoil_sim::whole::run_many(0, 500, 2, &|_| {});
    assert!(report.is_clean(), "{:?}", report.violations);
}
