//! Each rule is broken once, and the simulator must notice, by a promise that the rule
//! protects.

use crate::sim;
use crate::sim::history::Property;
use trefoil_ordered::mutants::{self, Mutant};

/// Seeds within which a broken rule must show.
const SEEDS: u64 = 5_000;

#[track_caller]
fn shows(mutant: Mutant, properties: &[Property]) {
    shows_within(SEEDS, mutant, properties);
}

#[track_caller]
fn shows_within(seeds: u64, mutant: Mutant, properties: &[Property]) {
    mutants::set(Some(mutant));
    let found = (0..seeds).find_map(|seed| {
        let (_, violations) = sim::run(seed);
        let is_of_rule = |property| properties.contains(&property);
        let found = violations.into_iter().find(|v| is_of_rule(v.property))?;
        Some((seed, found))
    });
    mutants::set(None);
    let Some((seed, violation)) = found else {
        panic!("{mutant:?} was not noticed in {seeds} seeds");
    };
    let sim::history::Violation { property, detail } = violation;
    println!("{mutant:?}: {property:?} by seed {seed}: {detail}");
}

#[test]
fn rule_1_a_claim_precedes_its_ticket() {
    shows(Mutant::ClaimedLate, &[Property::Order]);
}

#[test]
fn rule_2_a_client_learns_that_it_was_skipped() {
    shows(Mutant::PublishedBlindly, &[Property::Committed]);
}

#[test]
fn rule_2_a_server_does_not_skip_what_is_committed() {
    shows(Mutant::SkippedBlindly, &[Property::Committed]);
}

#[test]
fn rule_2_a_mark_follows_the_commit() {
    shows(
        Mutant::MarkedEarly,
        &[Property::Refused, Property::Nonsense],
    );
}

#[test]
fn rule_3_a_gap_is_looked_into() {
    shows(Mutant::GapIgnored, &[Property::Order]);
}

#[test]
fn rule_3_lanes_are_cleared_for_each_target() {
    shows(Mutant::ClearedForGood, &[Property::Order]);
}

#[test]
fn rule_3_what_a_lane_has_begun_behind_its_head_is_looked_into() {
    shows_within(20_000, Mutant::HeadClears, &[Property::Order]);
}

#[test]
fn rule_3_the_dead_are_not_waited_for() {
    shows(Mutant::Patient, &[Property::Patience]);
}

#[test]
fn rule_3_who_claims_anew_is_not_waited_for() {
    shows(Mutant::ClearedAnew, &[Property::Patience]);
}

#[test]
fn every_rule_has_its_test() {
    let text = concat!(
        include_str!("mutants.rs"),
        include_str!("delegates.rs"),
        include_str!("marks.rs"),
        include_str!("cuts.rs")
    );
    for mutant in Mutant::ALL {
        assert!(text.contains(&format!("Mutant::{mutant:?},")), "{mutant:?}");
    }
}

#[test]
fn rule_4_what_was_skipped_is_not_executed() {
    shows(
        Mutant::SkipForgotten,
        &[Property::Refused, Property::Nonsense],
    );
}

#[test]
fn rule_5_a_full_lane_withholds() {
    shows(
        Mutant::FullIgnored,
        &[Property::Committed, Property::Nonsense],
    );
}

#[test]
fn rule_5_a_slot_is_copied_before_it_is_free() {
    shows(
        Mutant::FreedEarly,
        &[Property::Nonsense, Property::Whole, Property::Refused],
    );
}

#[test]
fn rule_6_nonsense_is_not_executed() {
    shows(Mutant::SumIgnored, &[Property::Nonsense]);
}

#[test]
fn rule_6_nonsense_breaks_one_lane() {
    shows(Mutant::AllBroken, &[Property::Nonsense]);
}

#[test]
fn rule_7_an_end_takes_what_was_published() {
    shows(Mutant::ClosedBlindly, &[Property::Committed]);
}

#[test]
fn rule_8_what_is_taken_is_held() {
    shows(Mutant::FreedWhenTaken, &[Property::Answer]);
}

#[test]
fn rule_8_a_skip_frees_nothing_that_is_taken() {
    shows_within(20_000, Mutant::SkipFreesTaken, &[Property::Answer]);
}
