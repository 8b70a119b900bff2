//! Every safety rule is broken once, and the simulator must notice: within a
//! bounded number of seeds, by a property that the rule protects.

use trefoil_client_core::mutants::Mutant as Core;
use trefoil_recovery::mutants::Mutant as Recovery;
use trefoil_sim::mutants::{Rule, hunt};
use trefoil_sim::{Property, run_many};
use trefoil_store::mutants::Mutant as Stored;

/// Seeds within which a broken rule must show.
const SEEDS: u64 = 20_000;

/// The same where the history that shows it is a rare one, one in some ten
/// thousand: the hunt begins shortly before the first.
const SEEDS_NEAR: u64 = 2_000;

#[track_caller]
fn shows(rule: Rule, properties: &[Property]) {
    shows_within(0, SEEDS, rule, properties);
}

#[track_caller]
fn shows_near(first: u64, rule: Rule, properties: &[Property]) {
    shows_within(first, SEEDS_NEAR, rule, properties);
}

#[track_caller]
fn shows_within(first: u64, count: u64, rule: Rule, properties: &[Property]) {
    let report = hunt(rule, first, count, 2);
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
    shows_near(61_000, rule, &[Property::Monotone, Property::Fresh]);
}

#[test]
fn rule_6_epochs_are_raised_before_anything_is_copied() {
    let rule = Rule::Recovery(Recovery::EpochRaisedLate);
    shows(
        rule,
        &[Property::Fresh, Property::Monotone, Property::Exact],
    );
}

#[test]
fn rules_7_and_8_a_recovering_shard_neither_votes_nor_acknowledges() {
    let rule = Rule::Recovery(Recovery::VotesAtOnce);
    shows(
        rule,
        &[Property::Fresh, Property::Monotone, Property::Exact],
    );
}

#[test]
fn rule_9_a_floor_stands_for_all_bounds() {
    let rule = Rule::Recovery(Recovery::FloorForgotten);
    shows(
        rule,
        &[Property::Fresh, Property::Monotone, Property::Exact],
    );
}

#[test]
fn rule_9_a_floor_is_inherited() {
    let rule = Rule::Recovery(Recovery::FloorNotInherited);
    shows_near(4_000, rule, &[Property::Fresh, Property::Monotone]);
}

#[test]
fn rule_10_recovery_copies_what_two_hold() {
    let rule = Rule::Recovery(Recovery::LoneValueCopied);
    shows(
        rule,
        &[Property::Failed, Property::Fresh, Property::Monotone],
    );
}

#[test]
fn rule_11_repair_installs_what_two_hold() {
    let rule = Rule::Recovery(Recovery::RepairedByOne);
    shows(
        rule,
        &[Property::Failed, Property::Fresh, Property::Monotone],
    );
}

#[test]
fn rule_11_a_scan_installs_what_two_hold() {
    let rule = Rule::Recovery(Recovery::LoneValueSpread);
    shows(
        rule,
        &[Property::Failed, Property::Fresh, Property::Monotone],
    );
}

#[test]
fn rule_12_a_scan_stores_anew_by_cas_alone() {
    let rule = Rule::Recovery(Recovery::RenewedBlindly);
    shows(rule, &[Property::Exact, Property::Fresh]);
}

#[test]
fn a_scan_evicts_only_what_is_at_rest() {
    let rule = Rule::Recovery(Recovery::YoungEvicted);
    shows(rule, &[Property::Kept, Property::Quorum]);
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
    // Both contenders take back their copies: what they were to replace is lost.
    let rule = Rule::Client(Core::CasWithoutLook);
    shows_near(21_500, rule, &[Property::Kept, Property::Quorum]);
}

#[test]
fn rule_15_a_cas_gives_way_to_a_contender_that_is_ahead() {
    // It takes away the copy that the contender needs next; a death, and nobody has it.
    let rule = Rule::Client(Core::CasOvertakes);
    shows_near(31_000, rule, &[Property::Quorum]);
}

#[test]
fn rule_15_a_cas_with_the_last_copy_waits_for_who_lags_behind() {
    let rule = Rule::Client(Core::LaggardGivenUp);
    shows_near(176_000, rule, &[Property::Quorum]);
}

#[test]
fn rule_15_a_failed_cas_leaves_nothing_behind() {
    let rule = Rule::Client(Core::FailedCasStays);
    shows(rule, &[Property::Healed, Property::Quorum]);
}

#[test]
fn rule_15_what_is_there_is_what_a_quorum_holds() {
    let rule = Rule::Client(Core::PresentByOne);
    shows(rule, &[Property::Healed, Property::Quorum]);
}

#[test]
fn survivors_that_disagree_are_made_to_agree() {
    let rule = Rule::Client(Core::DisagreementStays);
    shows(rule, &[Property::Healed]);
}

#[test]
fn what_survivors_hold_is_evicted_only_at_rest() {
    let rule = Rule::Client(Core::RestAssumed);
    shows(rule, &[Property::Kept, Property::Quorum]);
}

#[test]
fn what_has_come_since_is_not_evicted() {
    shows(Rule::Client(Core::EvictionUnbound), &[Property::Kept]);
}

#[test]
fn a_fill_gives_way_to_what_was_written_since_its_miss() {
    shows(Rule::Store(Stored::FillUnchecked), &[Property::StaleFill]);
}

#[test]
fn a_fill_gives_way_to_one_of_a_later_miss() {
    shows(Rule::Store(Stored::FillUncounted), &[Property::StaleFill]);
}

#[test]
fn a_fill_counts_only_where_its_miss_has_read_the_stamp() {
    let rule = Rule::Client(Core::UnstampedFilled);
    shows(rule, &[Property::StaleFill]);
}

#[test]
fn a_fill_takes_nobodys_place() {
    let rule = Rule::Client(Core::FillAnywhere);
    shows_near(83_000, rule, &[Property::Quorum, Property::Kept]);
}

#[test]
fn a_fill_that_gives_way_leaves_nothing_behind() {
    let rule = Rule::Client(Core::FillStays);
    shows_near(42_500, rule, &[Property::Quorum, Property::Kept]);
}

#[test]
fn rule_15_one_refusal_is_no_failure() {
    // It shows as a disagreement that stays, too, and a hunt ends with its first few finds.
    shows_near(
        150,
        Rule::Client(Core::OneRefusalFails),
        &[Property::Failed],
    );
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
