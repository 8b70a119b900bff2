//! Each rule is broken once, and the simulator must notice, by a promise that the rule
//! protects.

use crate::sim::{self, Dice, Property, QUEUE, SALT, SimDisk};
use trefoil_journal::disk::{Blocks, Disk};
use trefoil_journal::mutants::{self, Mutant};
use trefoil_journal::{JournalError, Log};

/// Seeds within which a broken rule must show.
const SEEDS: u64 = 5_000;

#[track_caller]
fn shows(mutant: Mutant, properties: &[Property]) {
    mutants::set(Some(mutant));
    let found = (0..SEEDS).find_map(|seed| {
        let (property, detail) = sim::run(seed).1?;
        properties
            .contains(&property)
            .then_some((seed, property, detail))
    });
    mutants::set(None);
    let Some((seed, property, detail)) = found else {
        panic!("{mutant:?} was not noticed in {SEEDS} seeds");
    };
    println!("{mutant:?}: {property:?} by seed {seed}: {detail}");
}

#[test]
fn every_rule_has_its_test() {
    let text = include_str!("mutants.rs");
    for mutant in Mutant::ALL {
        assert!(text.contains(&format!("Mutant::{mutant:?}")), "{mutant:?}");
    }
}

#[test]
fn rule_1_what_is_acknowledged_was_flushed() {
    shows(Mutant::NotFlushed, &[Property::Acknowledged]);
}

#[test]
fn rule_1_nobody_learns_of_an_effect_before() {
    shows(Mutant::ExecutedEarly, &[Property::Told]);
}

#[test]
fn rule_2_a_torn_frame_is_none() {
    shows(Mutant::SumIgnored, &[Property::Whole]);
}

#[test]
fn rule_2_a_frame_of_an_earlier_lap_is_none() {
    shows(
        Mutant::NumberIgnored,
        &[Property::Once, Property::Order, Property::Whole],
    );
}

#[test]
fn rule_3_recovery_goes_on_from_the_state() {
    shows(Mutant::ReplayedFromTail, &[Property::Once]);
}

#[test]
fn rule_3_the_position_changes_with_the_effects() {
    shows(Mutant::PositionApart, &[Property::Once]);
}

#[test]
fn rule_4_room_is_given_back_after_the_state_is_persistent() {
    shows(
        Mutant::ReleasedEarly,
        &[Property::Acknowledged, Property::Opens],
    );
}

#[test]
fn rule_4_room_is_used_after_the_superblock_is_persistent() {
    shows(
        Mutant::SuperblockNotFlushed,
        &[Property::Acknowledged, Property::Opens],
    );
}

#[test]
fn rule_5_a_torn_superblock_leaves_another() {
    shows(Mutant::SuperblockInPlace, &[Property::Opens]);
}

#[test]
fn rule_6_what_is_in_a_cache_alone_is_written_again() {
    shows(
        Mutant::NotRewritten,
        &[Property::Told, Property::Acknowledged, Property::Opens],
    );
}

#[test]
fn rule_7_nothing_is_acknowledged_after_a_failure() {
    shows(
        Mutant::FailureForgotten,
        &[Property::Acknowledged, Property::Opens],
    );
}

/// The superblocks of an earlier life, put back under the frames of a later one.
fn put_back() -> Result<(), JournalError> {
    let mut disk = SimDisk::new(132, Dice::new(1));
    Log::format(&mut disk, QUEUE, SALT)?;
    let life = |number: u64| -> Result<(), JournalError> {
        let mut log = Log::open(disk.clone(), QUEUE, 0, |_| {})?;
        assert_eq!(log.epoch(), number);
        log.push(1, number, true, b"request");
        log.commit()
    };
    life(1)?;
    let mut copies = Blocks::new(2);
    disk.clone().read(0, copies.bytes_mut()).expect("calm");
    life(2)?;
    disk.clone().write(0, copies.bytes()).expect("calm");
    let mut count = 0;
    Log::open(disk.clone(), QUEUE, 0, |_| count += 1)?;
    assert_eq!(count, 2);
    Ok(())
}

#[test]
fn rule_8_a_frame_of_a_later_life_is_refused() {
    assert!(matches!(put_back(), Err(JournalError::Damaged { .. })));
    mutants::set(Some(Mutant::EpochIgnored));
    let taken = put_back();
    mutants::set(None);
    assert!(taken.is_ok(), "{taken:?}");
}
