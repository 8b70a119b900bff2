//! Every safety rule is broken once, and the simulator must notice: within a
//! bounded number of seeds, by a property that the rule protects.
#![cfg(feature = "mutants")]

use trefoil_client_core::mutants::Mutant as Core;
use trefoil_sim::mutants::{Rule, hunt};
use trefoil_sim::{Property, run_many};
use trefoil_store::mutants::Mutant as Stored;

/// Seeds within which a broken rule must show.
const SEEDS: u64 = 60_000;

#[track_caller]
fn shows(rule: Rule, properties: &[Property]) {
    shows_from(0, rule, properties);
}

/// The same from this seed on.
#[track_caller]
fn shows_from(first: u64, rule: Rule, properties: &[Property]) {
    let report = hunt(rule, first, SEEDS, 2);
    let found = report
        .violations
        .iter()
        .find(|violation| properties.contains(&violation.property));
    let Some(found) = found else {
        panic!(
            "{rule:?} was not noticed in {} seeds: {:?}",
            report.stats.seeds, report.violations
        );
    };
    println!("{rule:?}: \"{}\" by seed {}", found.property, found.seed);
    assert!(!found.history.is_empty());
}

#[test]
fn rule_1_a_bound_is_respected() {
    shows(Rule::Store(Stored::BoundIgnored), &[Property::Fresh]);
}

#[test]
fn rule_2_a_forgotten_tombstone_raises_the_floor() {
    let rule = Rule::Store(Stored::TombstoneForgottenSilently);
    shows(rule, &[Property::Fresh, Property::Exact]);
}

#[test]
fn rule_3_an_eviction_raises_the_floor() {
    let rule = Rule::Store(Stored::EvictionForgotten);
    shows(rule, &[Property::Fresh, Property::Exact]);
}

#[test]
fn rule_3_an_expiry_raises_the_floor() {
    let rule = Rule::Store(Stored::ExpiryForgotten);
    shows(rule, &[Property::Fresh, Property::Exact]);
}

#[test]
fn rule_4_acknowledgements_are_of_one_epoch() {
    shows(Rule::Client(Core::AcksAcrossEpochs), &[Property::Fresh]);
}

#[test]
fn rule_5_votes_are_of_one_epoch() {
    let rule = Rule::Client(Core::VotesAcrossEpochs);
    // It takes a rare history, one in some ten thousand: the hunt begins shortly
    // before the first.
    shows_from(18_000, rule, &[Property::Monotone, Property::Fresh]);
}

#[test]
fn rule_13_a_cas_is_exact() {
    shows(Rule::Store(Stored::CasNotExact), &[Property::Exact]);
}

#[test]
fn rule_14_a_cas_is_sent_once() {
    shows(Rule::Client(Core::CasResent), &[Property::Failed]);
}

#[test]
fn rule_15_a_refused_cas_looks_before_it_goes_on() {
    shows(Rule::Client(Core::CasWithoutLook), &[Property::Quorum]);
}

#[test]
fn rule_15_one_refusal_is_no_failure() {
    shows(Rule::Client(Core::OneRefusalFails), &[Property::Failed]);
}

#[test]
fn rule_15_one_application_is_no_success() {
    let rule = Rule::Client(Core::OneApplicationStores);
    shows(rule, &[Property::Fresh, Property::Exact]);
}

#[test]
fn one_vote_is_no_quorum() {
    let rule = Rule::Client(Core::VoteOfOne);
    shows(rule, &[Property::Fresh, Property::Monotone]);
}

#[test]
fn one_acknowledgement_is_no_quorum() {
    shows(Rule::Client(Core::AckOfOne), &[Property::Fresh]);
}

#[test]
fn a_data_entry_is_believed_only_with_its_checksum() {
    shows(Rule::Client(Core::ChecksumIgnored), &[Property::Value]);
}

#[test]
fn with_every_rule_in_force_the_same_seeds_are_clean() {
    let report = run_many(0, 3_000, 2, &|_| {});
    assert!(report.is_clean(), "{:?}", report.violations);
}
