//! What keeps the driver, its readers and the store's indexes right is broken once,
//! and the runs of the whole client must notice: within a bounded number of seeds,
//! by a property that it protects.

use trefoil_client_core::mutants::Mutant as Core;
use trefoil_recovery::mutants::Mutant as Recovers;
use trefoil_sim::mutants::{Case, Rule, WHOLE};
use trefoil_sim::whole::{Scene, run_many, run_scene};
use trefoil_store::mutants::Mutant as Stored;

/// Far more than any of them needs, wherever it begins: see the example `mutants`.
const SEEDS: u64 = 20_000;

/// The same for what one seed in some three thousand shows.
const SEEDS_RARE: u64 = 100_000;

#[track_caller]
fn shows(rule: Rule) {
    shows_within(SEEDS, rule);
}

#[track_caller]
fn shows_within(count: u64, rule: Rule) {
    let case = WHOLE.iter().find(|case| case.rule == rule).expect("a case");
    notices(case, count);
}

#[track_caller]
fn shows_in(scene: Scene, mutant: Recovers) {
    let rule = Rule::Recovery(mutant);
    let is_it = |case: &&Case| case.rule == rule && case.scene == Some(scene);
    notices(WHOLE.iter().find(is_it).expect("a case"), SEEDS);
}

#[track_caller]
fn notices(case: &Case, count: u64) {
    let rule = case.rule;
    let Some((seeds, violation)) = case.seeds_until_noticed(0, count) else {
        panic!("{rule:?} was not noticed in {count} seeds");
    };
    println!("{rule:?}: \"{}\" after {seeds} seeds", violation.property);
    assert!(!violation.history.is_empty());
}

#[test]
fn readers_look_in_the_shard_of_their_place() {
    shows(Rule::Client(Core::PlaceIgnored));
}

#[test]
fn an_answer_counts_for_the_attempt_that_asked() {
    shows(Rule::Client(Core::FormerAnswerCounts));
}

#[test]
fn clients_follow_a_cell_that_was_started_anew() {
    shows(Rule::Client(Core::LifeIgnored));
}

#[test]
fn what_was_abandoned_keeps_no_place() {
    shows(Rule::Client(Core::AbandonedKept));
}

#[test]
fn a_poisoned_bucket_is_not_believed() {
    shows(Rule::Client(Core::ConfigIgnored));
}

#[test]
fn readers_are_told_of_what_stands_beside_the_index() {
    shows_within(SEEDS_RARE, Rule::Store(Stored::OverflowUnflagged));
}

#[test]
fn one_vote_and_one_acknowledgement_are_no_quorum() {
    shows(Rule::Client(Core::VoteOfOne));
    shows(Rule::Client(Core::AckOfOne));
}

#[test]
fn what_is_left_waiting_for_room_is_bounded() {
    shows(Rule::Client(Core::NeverHeld));
}

#[test]
fn what_waits_for_room_is_sent_to_its_own_backend_only() {
    shows(Rule::Client(Core::StaleBlocked));
}

#[test]
fn the_old_index_is_not_believed_for_a_key_that_changes() {
    shows(Rule::Store(Stored::OldHomeBelieved));
}

#[test]
fn a_successor_knows_all_and_begins_when_its_predecessor_has_gone() {
    for mutant in [
        Recovers::CompareSkipped,
        Recovers::LastSkipped,
        Recovers::FloorLeftBehind,
        Recovers::BegunEarly,
        Recovers::RaisedWhileFrozen,
    ] {
        shows(Rule::Recovery(mutant));
    }
}

#[test]
fn a_cell_of_another_size_knows_all_and_begins_when_the_former_one_has_gone() {
    for mutant in [
        Recovers::LastSkipped,
        Recovers::FloorLeftBehind,
        Recovers::ErasedStays,
        Recovers::ResizedEarly,
    ] {
        shows_in(Scene::Resizes, mutant);
    }
}

#[test]
fn what_is_swapped_is_of_one_epoch_and_of_nobody_who_has_gone_on() {
    shows_in(Scene::Resizes, Recovers::EpochsMixed);
    shows_in(Scene::Resizes, Recovers::BrokenOffUnsaid);
}

#[test]
fn a_spare_has_to_learn_everything_under_the_configuration_that_names_it() {
    for mutant in [Recovers::ConfigUnnamed, Recovers::SpareUncounted] {
        shows_in(Scene::Replaces, mutant);
    }
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
