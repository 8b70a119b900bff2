//! What keeps the driver, its readers and the store's indexes right is broken once,
//! and the runs of the whole client must notice: within a bounded number of seeds,
//! by a property that it protects.

use trefoil_client_core::mutants::Mutant as Core;
use trefoil_sim::Property;
use trefoil_sim::mutants::{Rule, hunt_whole};
use trefoil_sim::whole::{Scene, run_many, run_scene};
use trefoil_store::mutants::Mutant as Stored;

#[track_caller]
fn shows(first: u64, count: u64, rule: Rule, properties: &[Property]) {
    shows_in(None, first, count, rule, properties);
}

#[track_caller]
fn shows_in(scene: Option<Scene>, first: u64, count: u64, rule: Rule, properties: &[Property]) {
    let report = hunt_whole(rule, scene, first, count, 2);
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
    // About one seed in a thousand shows it.
    let rule = Rule::Client(Core::ConfigIgnored);
    shows(1_500, 20_000, rule, &[Property::Fresh, Property::Monotone]);
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
fn what_waits_for_room_is_sent_to_its_own_backend_only() {
    let rule = Rule::Client(Core::StaleBlocked);
    let stale = [Property::Fresh, Property::Monotone];
    shows_in(Some(Scene::FullRings), 0, 1_000, rule, &stale);
}

#[test]
fn the_old_index_is_not_believed_for_a_key_that_changes() {
    let rule = Rule::Store(Stored::OldHomeBelieved);
    let stale = [Property::Fresh, Property::Monotone];
    shows_in(Some(Scene::GrowingIndexes), 100, 200, rule, &stale);
}

#[test]
fn with_every_rule_in_force_the_same_seeds_are_clean() {
    let report = run_many(0, 500, 2, &|_| {});
    assert!(report.is_clean(), "{:?}", report.violations);
    for (scene, count) in [(Scene::FullRings, 200), (Scene::GrowingIndexes, 20)] {
        let report = run_scene(scene, 0, count, 2);
        assert!(report.is_clean(), "{:?}", report.violations);
    }
}
