//! SET, ERASE and fill, step by step.

use trefoil_client_core::cas::{Cas, CasStep};
use trefoil_client_core::mode::Mode;
use trefoil_client_core::mutate::{Mutate, MutateStep};
use trefoil_client_core::outcome::{MutationOutcome, SendFailure};
use trefoil_client_core::retry::{GiveUp, Limits, RetryCause};
use trefoil_layout::Version;
use trefoil_layout::op::{Ack, Expected, Outcome, Rejection};

fn v(time_ns: u64) -> Version {
    Version::new(time_ns, 1, 0)
}

fn ack(epoch: u32, outcome: Outcome) -> Ack {
    Ack { epoch, outcome }
}

fn applied(epoch: u32) -> Ack {
    ack(epoch, Outcome::Applied)
}

fn superseded(time_ns: u64) -> Ack {
    let bound = v(time_ns);
    ack(1, Outcome::Superseded { bound })
}

fn rejected(rejection: Rejection) -> Ack {
    ack(1, Outcome::Rejected(rejection))
}

fn set() -> Mutate {
    set_until(1_000)
}

fn set_until(deadline_ns: u64) -> Mutate {
    Mutate::new(Mode::R32, v(5), Limits::until(deadline_ns))
}

#[track_caller]
fn sends(mutate: &mut Mutate, replicas: &[usize], time_ns: u64) {
    for &replica in replicas {
        let version = v(time_ns);
        let MutateStep::Send {
            replica: to,
            version: at,
            ..
        } = mutate.poll(0)
        else {
            panic!("nothing for {replica}");
        };
        assert_eq!((to, at), (replica, version));
    }
}

#[track_caller]
fn ends(mutate: &mut Mutate, outcome: MutationOutcome) {
    assert_eq!(mutate.poll(0), MutateStep::Done(outcome));
}

#[test]
fn two_acknowledgements_store_and_the_third_message_still_goes_out() {
    let mut mutate = set();
    sends(&mut mutate, &[0, 1], 5);
    mutate.handle_ack(0, v(5), applied(1));
    mutate.handle_ack(1, v(5), applied(1));
    sends(&mut mutate, &[2], 5);
    ends(&mut mutate, MutationOutcome::Stored { version: v(5) });
    mutate.handle_ack(2, v(5), superseded(9));
    ends(&mut mutate, MutationOutcome::Stored { version: v(5) });
    assert_eq!(mutate.retries().total(), 0);
}

#[test]
fn a_key_is_left_dirty_by_a_third_that_has_refused_it() {
    let third = |answer: Option<Ack>, failure: Option<SendFailure>| {
        let mut mutate = set();
        sends(&mut mutate, &[0, 1, 2], 5);
        if let Some(answer) = answer {
            mutate.handle_ack(2, v(5), answer);
        }
        if let Some(failure) = failure {
            mutate.handle_failure(2, v(5), failure);
        }
        mutate.handle_ack(0, v(5), applied(1));
        mutate.handle_ack(1, v(5), applied(1));
        ends(&mut mutate, MutationOutcome::Stored { version: v(5) });
        mutate.lacks(2)
    };
    assert!(third(Some(superseded(7)), None));
    assert!(third(Some(rejected(Rejection::NoMemory)), None));
    assert!(third(Some(rejected(Rejection::StaleConfig)), None));
    assert!(third(None, Some(SendFailure::Lost)));
    assert!(third(None, Some(SendFailure::NotSent)));
    // It stands still, and goes on without it.
    assert!(third(Some(rejected(Rejection::UnknownConfig)), None));
    // One that recovers learns of it from the others; one that may yet answer is not known
    // to lack it.
    assert!(!third(Some(rejected(Rejection::Recovering)), None));
    assert!(!third(None, None));
}

/// What replicas may have under this version already does not go again above it.
#[test]
fn what_was_published_before_is_sent_at_its_own_version_alone() {
    let again = || Mutate::again(Mode::R32, v(5), Limits::until(1_000));
    let mut mutate = again();
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), superseded(7));
    mutate.handle_ack(1, v(5), applied(1));
    mutate.handle_ack(2, v(5), applied(1));
    ends(&mut mutate, MutationOutcome::Stored { version: v(5) });

    let mut mutate = again();
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), superseded(7));
    mutate.handle_ack(1, v(5), superseded(8));
    ends(&mut mutate, MutationOutcome::Indeterminate);
}

#[test]
fn one_copy_needs_one_acknowledgement() {
    let mut mutate = Mutate::new(Mode::R1, v(5), Limits::until(1_000));
    sends(&mut mutate, &[0], 5);
    assert_eq!(mutate.poll(0), MutateStep::Wait { until_ns: 1_000 });
    mutate.handle_ack(0, v(5), applied(1));
    ends(&mut mutate, MutationOutcome::Stored { version: v(5) });
}

#[test]
fn acknowledgements_of_different_epochs_are_collected_again() {
    let mut mutate = set();
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), applied(1));
    mutate.handle_ack(1, v(5), applied(2));
    mutate.handle_failure(2, v(5), SendFailure::Lost);
    sends(&mut mutate, &[0], 5);
    mutate.handle_ack(0, v(5), applied(2));
    ends(&mut mutate, MutationOutcome::Stored { version: v(5) });
    assert_eq!(mutate.retries().get(RetryCause::Epoch), 1);
}

#[test]
fn superseded_goes_again_above_the_highest_bound() {
    let mut mutate = set();
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), superseded(8));
    mutate.handle_ack(1, v(5), superseded(7));
    assert_eq!(mutate.poll(0), MutateStep::Nominate { above: v(8) });
    assert!(matches!(mutate.poll(0), MutateStep::Wait { .. }));
    mutate.handle_version(v(8));
    assert!(
        matches!(mutate.poll(0), MutateStep::Wait { .. }),
        "not above it"
    );
    mutate.handle_version(v(9));
    sends(&mut mutate, &[0, 1, 2], 9);
    // An answer to the first attempt says nothing about the second.
    mutate.handle_ack(2, v(5), applied(1));
    mutate.handle_ack(0, v(9), applied(1));
    assert!(matches!(mutate.poll(0), MutateStep::Wait { .. }));
    mutate.handle_ack(2, v(9), applied(1));
    ends(&mut mutate, MutationOutcome::Stored { version: v(9) });
}

/// Two may have held it, and somebody may have seen it before what came after it.
#[test]
fn what_may_have_been_seen_does_not_take_effect_a_second_time() {
    let begin = || {
        let mut mutate = set();
        sends(&mut mutate, &[0, 1, 2], 5);
        mutate.handle_failure(0, v(5), SendFailure::Lost);
        mutate
    };
    let mut mutate = begin();
    mutate.handle_ack(1, v(5), applied(1));
    mutate.handle_ack(2, v(5), superseded(8));
    ends(&mut mutate, MutationOutcome::Indeterminate);

    // Asked again, one says no more than that it has something newer by now.
    let mut mutate = begin();
    mutate.handle_failure(1, v(5), SendFailure::Lost);
    for replica in [0, 1] {
        assert_eq!(mutate.poll(0), MutateStep::Reconnect { replica });
        mutate.handle_reconnected(replica);
        sends(&mut mutate, &[replica], 5);
    }
    mutate.handle_ack(0, v(5), superseded(8));
    mutate.handle_ack(1, v(5), superseded(8));
    ends(&mut mutate, MutationOutcome::Indeterminate);

    // The same of another cohort, to which the replicas have moved.
    let mut mutate = set();
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), applied(1));
    mutate.restart(Mode::R32);
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), superseded(8));
    mutate.handle_ack(1, v(5), superseded(8));
    ends(&mut mutate, MutationOutcome::Indeterminate);

    // They had it in different epochs, of which one was raised since.
    let mut mutate = set();
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), applied(1));
    mutate.handle_ack(1, v(5), applied(2));
    mutate.handle_failure(2, v(5), SendFailure::NotSent);
    sends(&mut mutate, &[0], 5);
    mutate.handle_ack(0, v(5), superseded(8));
    ends(&mut mutate, MutationOutcome::Indeterminate);

    // What waits for room has been taken by nobody.
    let mut mutate = set();
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_failure(0, v(5), SendFailure::Waits);
    mutate.handle_ack(1, v(5), applied(1));
    mutate.handle_ack(2, v(5), superseded(8));
    assert_eq!(mutate.poll(0), MutateStep::Nominate { above: v(8) });

    // One copy is no quorum.
    let mut mutate = begin();
    mutate.handle_ack(1, v(5), superseded(7));
    assert!(
        matches!(mutate.poll(0), MutateStep::Wait { .. }),
        "it may be a second"
    );
    mutate.handle_ack(2, v(5), superseded(8));
    assert_eq!(mutate.poll(0), MutateStep::Nominate { above: v(8) });
}

#[test]
fn superseded_is_the_outcome_only_if_the_others_are_no_quorum() {
    let limits = Limits {
        deadline_ns: 1_000,
        retries_max: 0,
    };
    let mut mutate = Mutate::new(Mode::R32, v(5), limits);
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), superseded(8));
    let mut lost = mutate.clone();
    mutate.handle_ack(1, v(5), superseded(7));
    ends(&mut mutate, MutationOutcome::Superseded { bound: v(8) });
    // One holds it, one may: together a quorum.
    lost.handle_ack(1, v(5), applied(1));
    lost.handle_failure(2, v(5), SendFailure::Lost);
    ends(&mut lost, MutationOutcome::Indeterminate);
}

#[test]
fn a_deadline_after_superseded_is_indeterminate() {
    // The answer may be to a copy of the message, whose original was applied,
    // seen, and then superseded.
    let mut mutate = Mutate::new(Mode::R1, v(5), Limits::until(1_000));
    sends(&mut mutate, &[0], 5);
    mutate.handle_ack(0, v(5), superseded(8));
    let done = MutateStep::Done(MutationOutcome::Indeterminate);
    assert_eq!(mutate.poll(1_000), done);
}

/// Stamps of replicas 0 and 1 are known.
fn fill() -> Mutate {
    fill_of([Some(1), Some(2), None])
}

fn fill_of(stamps: [Option<u64>; 3]) -> Mutate {
    Mutate::fill(Mode::R32, v(5), stamps, Limits::until(1_000))
}

/// The next step is a message with this stamp; without one, a SET.
#[track_caller]
fn sends_stamp(fill: &mut Mutate, replica: usize, stamp: Option<u64>) {
    let version = fill.version();
    let step = MutateStep::Send {
        replica,
        version,
        stamp,
    };
    assert_eq!(fill.poll(0), step);
}

fn written_since() -> Ack {
    let (present, bound) = (None, v(3));
    ack(1, Outcome::Mismatch { present, bound })
}

#[test]
fn a_fill_goes_to_where_its_stamps_are_known_and_then_to_the_others() {
    let mut fill = fill();
    sends_stamp(&mut fill, 0, Some(1));
    sends_stamp(&mut fill, 1, Some(2));
    assert!(matches!(fill.poll(0), MutateStep::Wait { .. }));
    fill.handle_ack(0, v(5), applied(1));
    fill.handle_ack(1, v(5), applied(1));
    sends_stamp(&mut fill, 2, None);
    ends(&mut fill, MutationOutcome::Stored { version: v(5) });
}

#[test]
fn a_fill_gives_way_to_what_was_written_since_its_miss() {
    let mut fill = fill();
    sends(&mut fill, &[0, 1], 5);
    fill.handle_ack(0, v(5), applied(1));
    fill.handle_ack(1, v(5), written_since());
    // What it has left is taken back before it ends.
    let (replica, version) = (0, v(5));
    assert_eq!(fill.poll(0), MutateStep::Evict { replica, version });
    assert!(matches!(fill.poll(0), MutateStep::Wait { .. }));
    fill.handle_ack(0, v(5), applied(1));
    ends(&mut fill, MutationOutcome::Superseded { bound: v(3) });
    // With all three stamps, one that was written may be the odd one out. Stored, it
    // goes there as a SET.
    let mut fill = fill_of([Some(1), Some(2), Some(3)]);
    sends(&mut fill, &[0, 1, 2], 5);
    fill.handle_ack(0, v(5), written_since());
    fill.handle_ack(1, v(5), applied(1));
    fill.handle_ack(2, v(5), applied(1));
    sends_stamp(&mut fill, 0, None);
    ends(&mut fill, MutationOutcome::Stored { version: v(5) });
}

#[test]
fn a_fill_that_gives_way_waits_for_what_it_has_sent_to_take_it_back() {
    let mut fill = fill_of([Some(1), Some(2), Some(3)]);
    sends(&mut fill, &[0, 1, 2], 5);
    fill.handle_ack(1, v(5), written_since());
    fill.handle_ack(2, v(5), written_since());
    assert!(matches!(fill.poll(0), MutateStep::Wait { .. }));
    fill.handle_ack(0, v(5), applied(1));
    let (replica, version) = (0, v(5));
    assert_eq!(fill.poll(0), MutateStep::Evict { replica, version });
    fill.handle_failure(0, v(5), SendFailure::Lost);
    ends(&mut fill, MutationOutcome::Superseded { bound: v(3) });
    // Not for ever.
    let mut fill = fill_of([Some(1), Some(2), Some(3)]);
    sends(&mut fill, &[0, 1, 2], 5);
    fill.handle_ack(1, v(5), written_since());
    fill.handle_ack(2, v(5), written_since());
    let bound = v(3);
    let done = MutateStep::Done(MutationOutcome::Superseded { bound });
    assert_eq!(fill.poll(1_000), done);
}

/// It goes again only when all that it has sent was answered: what a replica took has to be
/// known, to be taken back.
#[test]
fn a_fill_waits_for_what_it_has_sent_before_it_goes_again() {
    let mut fill = fill_of([Some(1), Some(2), Some(3)]);
    sends(&mut fill, &[0, 1, 2], 5);
    fill.handle_ack(0, v(5), superseded(8));
    fill.handle_ack(1, v(5), superseded(8));
    assert!(matches!(fill.poll(0), MutateStep::Wait { .. }));
    fill.handle_ack(2, v(5), applied(1));
    assert_eq!(fill.poll(0), MutateStep::Nominate { above: v(8) });
    fill.handle_version(v(9));
    // Its stamp at the third is another one now, by its own doing.
    sends(&mut fill, &[0, 1], 9);
    fill.handle_ack(0, v(9), applied(1));
    fill.handle_ack(1, v(9), written_since());
    for (replica, version) in [(0, v(9)), (2, v(5))] {
        assert_eq!(fill.poll(0), MutateStep::Evict { replica, version });
        fill.handle_ack(replica, version, applied(1));
    }
    ends(&mut fill, MutationOutcome::Superseded { bound: v(3) });
}

/// An answer to a copy of its message comes while another version is sought: nobody is left
/// to send it to, nor to wait for.
#[test]
fn a_fill_that_too_few_would_take_ends_before_it_goes_again() {
    let mut fill = fill();
    sends(&mut fill, &[0, 1], 5);
    fill.handle_ack(0, v(5), superseded(8));
    fill.handle_ack(1, v(5), superseded(8));
    assert_eq!(fill.poll(0), MutateStep::Nominate { above: v(8) });
    fill.handle_ack(1, v(5), written_since());
    fill.handle_version(v(9));
    ends(&mut fill, MutationOutcome::Superseded { bound: v(8) });
}

/// The replica that it is not sent to has refused nothing.
#[test]
fn a_fill_with_two_stamps_is_told_what_the_two_say() {
    let mut fill = fill();
    sends(&mut fill, &[0, 1], 5);
    for replica in [0, 1] {
        fill.handle_failure(replica, v(5), SendFailure::NotSent);
    }
    for replica in [0, 1] {
        assert_eq!(fill.poll(0), MutateStep::Reconnect { replica });
    }
    // Nothing was ever sent.
    let failed = MutationOutcome::Failed {
        cause: GiveUp::Deadline {
            last: Some(RetryCause::Connection),
        },
    };
    assert_eq!(fill.poll(1_000), MutateStep::Done(failed));
    let mut fill = self::fill();
    sends(&mut fill, &[0, 1], 5);
    for replica in [0, 1] {
        fill.handle_ack(replica, v(5), rejected(Rejection::ClockAhead));
    }
    ends(&mut fill, MutationOutcome::Rejected(Rejection::ClockAhead));
}

#[test]
fn a_fill_gives_way_to_a_configuration_that_others_have_learned() {
    // All of it is under way.
    let mut fill = fill_of([Some(1), Some(2), Some(3)]);
    sends(&mut fill, &[0, 1, 2], 5);
    fill.handle_ack(0, v(5), applied(1));
    fill.configuration_changed();
    assert!(matches!(fill.poll(0), MutateStep::Wait { .. }));
    fill.handle_ack(1, v(5), superseded(8));
    fill.handle_ack(2, v(5), superseded(8));
    let (replica, version) = (0, v(5));
    assert_eq!(fill.poll(0), MutateStep::Evict { replica, version });
    fill.handle_ack(0, v(5), applied(1));
    ends(&mut fill, MutationOutcome::Superseded { bound: v(5) });
    // It is about to go again, above what the flush has left.
    let mut fill = self::fill();
    sends(&mut fill, &[0, 1], 5);
    fill.handle_ack(0, v(5), superseded(8));
    fill.handle_ack(1, v(5), superseded(8));
    assert_eq!(fill.poll(0), MutateStep::Nominate { above: v(8) });
    fill.configuration_changed();
    fill.handle_version(v(9));
    ends(&mut fill, MutationOutcome::Superseded { bound: v(5) });
    // What is no fill goes on.
    let mut set = set();
    set.configuration_changed();
    sends(&mut set, &[0, 1, 2], 5);
}

#[test]
fn a_fill_whose_retries_end_takes_back_what_it_has_left() {
    let limits = Limits {
        retries_max: 0,
        ..Limits::until(1_000)
    };
    let stamps = [Some(1), Some(2), Some(3)];
    let mut fill = Mutate::fill(Mode::R32, v(5), stamps, limits);
    sends(&mut fill, &[0, 1, 2], 5);
    fill.handle_ack(2, v(5), applied(1));
    fill.handle_ack(0, v(5), superseded(8));
    fill.handle_ack(1, v(5), superseded(7));
    let (replica, version) = (2, v(5));
    assert_eq!(fill.poll(0), MutateStep::Evict { replica, version });
}

/// What it refuses it may learn of from the others, while it is told under another
/// configuration.
#[test]
fn what_one_that_recovers_was_sent_may_be_there_after_a_refresh_too() {
    let mut mutate = set();
    sends(&mut mutate, &[0, 1, 2], 5);
    for replica in [1, 2] {
        mutate.handle_ack(replica, v(5), rejected(Rejection::StaleConfig));
    }
    for replica in [1, 2] {
        assert_eq!(mutate.poll(0), MutateStep::Refresh { replica });
    }
    mutate.handle_ack(0, v(5), rejected(Rejection::Recovering));
    for replica in [1, 2] {
        mutate.handle_refreshed(replica);
    }
    sends(&mut mutate, &[0, 1, 2], 5);
    for replica in 0..3 {
        mutate.handle_failure(replica, v(5), SendFailure::NotSent);
    }
    let done = MutateStep::Done(MutationOutcome::Indeterminate);
    assert_eq!(mutate.poll(1_000), done);
}

/// Whoever was being reached for it when it gave way is not sent it afterwards.
#[test]
fn a_fill_that_gave_way_is_sent_to_nobody_any_more() {
    let gave_way = MutationOutcome::Superseded { bound: v(3) };
    for refreshes in [false, true] {
        let mut fill = fill_of([Some(1), Some(2), Some(3)]);
        sends(&mut fill, &[0, 1, 2], 5);
        fill.handle_failure(0, v(5), SendFailure::NotSent);
        let step = match refreshes {
            true => {
                fill.handle_ack(1, v(5), rejected(Rejection::WrongShard));
                MutateStep::Refresh { replica: 1 }
            }
            false => {
                fill.handle_failure(1, v(5), SendFailure::NotSent);
                MutateStep::Reconnect { replica: 1 }
            }
        };
        assert_eq!(fill.poll(0), MutateStep::Reconnect { replica: 0 });
        assert_eq!(fill.poll(0), step);
        fill.handle_ack(2, v(5), written_since());
        fill.handle_reconnected(0);
        sends_stamp(&mut fill, 0, Some(1));
        fill.handle_ack(0, v(5), written_since());
        match refreshes {
            true => fill.handle_refreshed(1),
            false => fill.handle_reconnected(1),
        }
        ends(&mut fill, gave_way);
    }
}

/// A flush may have been what changed the configuration.
#[test]
fn a_fill_gives_way_to_another_configuration() {
    let mut fill = fill_of([Some(1), Some(2), Some(3)]);
    sends(&mut fill, &[0, 1, 2], 5);
    fill.handle_ack(0, v(5), applied(1));
    for replica in [1, 2] {
        fill.handle_ack(replica, v(5), rejected(Rejection::StaleConfig));
    }
    for replica in [1, 2] {
        assert_eq!(fill.poll(0), MutateStep::Refresh { replica });
    }
    fill.handle_refreshed(1);
    fill.handle_refreshed(2);
    let (replica, version) = (0, v(5));
    assert_eq!(fill.poll(0), MutateStep::Evict { replica, version });
    fill.handle_ack(0, v(5), applied(1));
    ends(&mut fill, MutationOutcome::Superseded { bound: v(5) });
}

/// An answer to an earlier copy of the message is the later one.
#[test]
fn a_refusal_takes_back_nothing_that_was_applied() {
    let mut mutate = set();
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), applied(1));
    mutate.handle_ack(0, v(5), rejected(Rejection::StaleConfig));
    mutate.handle_ack(1, v(5), applied(1));
    ends(&mut mutate, MutationOutcome::Stored { version: v(5) });
}

#[test]
fn a_fill_goes_above_a_floor_under_the_same_stamps() {
    let mut fill = fill();
    sends(&mut fill, &[0, 1], 5);
    for replica in [0, 1] {
        fill.handle_ack(replica, v(5), superseded(8));
    }
    assert_eq!(fill.poll(0), MutateStep::Nominate { above: v(8) });
    fill.handle_version(v(9));
    sends(&mut fill, &[0, 1], 9);
    fill.handle_ack(0, v(9), applied(1));
    fill.handle_ack(1, v(9), applied(1));
    sends(&mut fill, &[2], 9);
    ends(&mut fill, MutationOutcome::Stored { version: v(9) });
}

#[test]
fn a_fill_without_a_quorum_of_stamps_gives_way_at_once() {
    let mut fill = fill_of([Some(1), None, None]);
    let bound = Version::ZERO;
    ends(&mut fill, MutationOutcome::Superseded { bound });
}

#[test]
fn a_deadline_after_something_was_sent_is_indeterminate() {
    let mut mutate = set();
    let failed = MutationOutcome::Failed {
        cause: GiveUp::Deadline { last: None },
    };
    assert_eq!(mutate.clone().poll(1_000), MutateStep::Done(failed));
    sends(&mut mutate, &[0], 5);
    assert_eq!(
        mutate.poll(1_000),
        MutateStep::Done(MutationOutcome::Indeterminate)
    );
}

#[test]
fn a_silent_replica_is_sent_the_same_version_again() {
    let mut mutate = set();
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), applied(1));
    mutate.handle_failure(1, v(5), SendFailure::Lost);
    mutate.handle_failure(2, v(5), SendFailure::NotSent);
    assert_eq!(mutate.poll(0), MutateStep::Reconnect { replica: 1 });
    assert_eq!(mutate.poll(0), MutateStep::Reconnect { replica: 2 });
    mutate.handle_reconnected(2);
    sends(&mut mutate, &[2], 5);
    mutate.handle_ack(2, v(5), applied(1));
    ends(&mut mutate, MutationOutcome::Stored { version: v(5) });
}

#[test]
fn nothing_received_is_a_failure_and_nothing_worse() {
    let limits = Limits {
        deadline_ns: 1_000,
        retries_max: 0,
    };
    let mut mutate = Mutate::new(Mode::R32, v(5), limits);
    for replica in 0..2 {
        sends(&mut mutate, &[replica], 5);
        mutate.handle_failure(replica, v(5), SendFailure::NotSent);
    }
    // The third alone would be no quorum: it is not even sent to.
    let last = RetryCause::Connection;
    let cause = GiveUp::Budget { last };
    ends(&mut mutate, MutationOutcome::Failed { cause });
}

#[test]
fn two_refusals_are_a_refusal_whatever_the_third_does() {
    let mut mutate = set();
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), rejected(Rejection::ValueTooLong));
    let mut other = mutate.clone();
    mutate.handle_ack(1, v(5), rejected(Rejection::ValueTooLong));
    // The third is still on its way, and may apply it: alone it is never seen.
    let refused = MutationOutcome::Rejected(Rejection::ValueTooLong);
    ends(&mut mutate, refused);
    mutate.handle_ack(2, v(5), applied(1));
    ends(&mut mutate, refused);
    other.handle_failure(2, v(5), SendFailure::NotSent);
    other.handle_ack(1, v(5), rejected(Rejection::ValueTooLong));
    ends(
        &mut other,
        MutationOutcome::Rejected(Rejection::ValueTooLong),
    );
}

#[test]
fn recovering_and_wrong_shard_are_tried_again() {
    let mut mutate = set();
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), rejected(Rejection::Recovering));
    mutate.handle_ack(1, v(5), rejected(Rejection::WrongShard));
    sends(&mut mutate, &[0], 5);
    assert_eq!(mutate.poll(0), MutateStep::Refresh { replica: 1 });
    mutate.handle_refreshed(1);
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(1, v(5), applied(1));
    mutate.handle_ack(2, v(5), applied(1));
    ends(&mut mutate, MutationOutcome::Stored { version: v(5) });
}

/// The third copy is not forgotten because the other two were enough under a configuration
/// that all three had to be told of: one of those two may be killed next.
#[test]
fn a_configuration_that_has_changed_is_no_reason_to_leave_out_the_third() {
    let stale = || rejected(Rejection::StaleConfig);
    // Whether the third refuses before the configuration is learned, after that, or never.
    for order in 0..3 {
        let mut mutate = set();
        sends(&mut mutate, &[0, 1, 2], 5);
        mutate.handle_ack(0, v(5), stale());
        mutate.handle_ack(1, v(5), stale());
        assert_eq!(mutate.poll(0), MutateStep::Refresh { replica: 0 });
        assert_eq!(mutate.poll(0), MutateStep::Refresh { replica: 1 });
        if order == 0 {
            mutate.handle_ack(2, v(5), stale());
        }
        mutate.handle_refreshed(0);
        mutate.handle_refreshed(1);
        if order == 1 {
            mutate.handle_ack(2, v(5), stale());
        }
        sends(&mut mutate, &[0, 1, 2], 5);
        mutate.handle_ack(0, v(5), applied(1));
        mutate.handle_ack(1, v(5), applied(1));
        ends(&mut mutate, MutationOutcome::Stored { version: v(5) });
    }
}

#[test]
fn an_immutable_corpus_refuses_without_a_message() {
    let refused = MutationOutcome::Rejected(Rejection::Immutable);
    let limits = Limits::until(1_000);
    let mut mutate = Mutate::new(Mode::R2Immutable, v(5), limits);
    ends(&mut mutate, refused);
    let mut cas = Cas::new(Mode::R2Immutable, Expected::Absent, v(5), limits);
    assert_eq!(cas.poll(0), CasStep::Done(refused));
}

/// Sends all that is due, and says to whom.
fn sends_on(mutate: &mut Mutate) -> Vec<usize> {
    let mut sent = Vec::new();
    loop {
        match mutate.poll(0) {
            MutateStep::Send { replica, .. } => sent.push(replica),
            MutateStep::Pause { .. } => {}
            _ => return sent,
        }
    }
}

/// Whoever says that it did not execute a message has nothing of it.
#[test]
fn what_nobody_has_executed_has_failed() {
    use SendFailure::{Lost, Moving, NotSent};
    // All three have said so, and some are sent it again. What becomes of it at the deadline.
    let at_the_deadline = |tell: &dyn Fn(&mut Mutate)| {
        let mut mutate = set();
        sends(&mut mutate, &[0, 1, 2], 5);
        for replica in 0..3 {
            mutate.handle_failure(replica, v(5), Moving);
        }
        tell(&mut mutate);
        mutate.poll(1_000)
    };
    let fail = |mutate: &mut Mutate, first: SendFailure| {
        let sent = sends_on(mutate);
        for (at, replica) in sent.into_iter().enumerate() {
            let failure = if at == 0 { first } else { Moving };
            mutate.handle_failure(replica, v(5), failure);
        }
    };
    let cause = GiveUp::Deadline {
        last: Some(RetryCause::Recovering),
    };
    let failed = MutateStep::Done(MutationOutcome::Failed { cause });
    assert_eq!(at_the_deadline(&|_| {}), failed);
    for first in [Moving, NotSent] {
        let step = at_the_deadline(&|mutate| fail(mutate, first));
        let MutateStep::Done(MutationOutcome::Failed { .. }) = step else {
            panic!("{first:?} {step:?}");
        };
    }
    // One of the next copies is lost; is on its way; was taken.
    let indeterminate = MutateStep::Done(MutationOutcome::Indeterminate);
    assert_eq!(at_the_deadline(&|mutate| fail(mutate, Lost)), indeterminate);
    let on_its_way = at_the_deadline(&|mutate| drop(sends_on(mutate)));
    assert_eq!(on_its_way, indeterminate);
    let taken = at_the_deadline(&|mutate| {
        let first = sends_on(mutate)[0];
        mutate.handle_ack(first, v(5), applied(1));
    });
    assert_eq!(taken, indeterminate);
}

/// One that recovers stores what it refuses, whatever it says to the next copy.
#[test]
fn what_one_that_recovers_was_sent_may_be_there() {
    let mut mutate = set();
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), rejected(Rejection::Recovering));
    for replica in [1, 2] {
        mutate.handle_failure(replica, v(5), SendFailure::Moving);
    }
    for replica in sends_on(&mut mutate) {
        mutate.handle_failure(replica, v(5), SendFailure::Moving);
    }
    let outcome = MutateStep::Done(MutationOutcome::Indeterminate);
    assert_eq!(mutate.poll(1_000), outcome);
}

/// What becomes of a SET in a thousand steps, and its shortest pause, with replica 2 having it,
/// `gone` gone and the third one answering like this.
fn beside_one_that_is_gone(
    mutate: &mut Mutate,
    gone: usize,
    answer: &dyn Fn(&mut Mutate, usize),
) -> (Option<MutationOutcome>, u64) {
    let mut pause_ns_min = u64::MAX;
    for _ in 0..1_000 {
        match mutate.poll(0) {
            MutateStep::Send { replica: 2, .. } => mutate.handle_ack(2, v(5), applied(1)),
            MutateStep::Send { replica, .. } if replica == gone => {
                mutate.handle_failure(gone, v(5), SendFailure::NotSent);
            }
            MutateStep::Send { replica, .. } => answer(mutate, replica),
            MutateStep::Reconnect { replica } => mutate.handle_reconnected(replica),
            MutateStep::Pause { ns } => pause_ns_min = pause_ns_min.min(ns),
            MutateStep::Done(outcome) => return (Some(outcome), pause_ns_min),
            step => panic!("{step:?}"),
        }
    }
    (None, pause_ns_min)
}

/// Whichever of the two comes first in the cohort.
#[test]
fn who_moves_is_waited_for_beside_one_that_is_gone() {
    let moves = |mutate: &mut Mutate, replica| {
        mutate.handle_failure(replica, v(5), SendFailure::Moving);
    };
    let stands_still = |mutate: &mut Mutate, replica| {
        mutate.handle_ack(replica, v(5), rejected(Rejection::UnknownConfig));
    };
    let takes = |mutate: &mut Mutate, replica| mutate.handle_ack(replica, v(5), applied(1));
    for gone in [0, 1] {
        for fail in [&moves as &dyn Fn(&mut Mutate, usize), &stands_still] {
            let mut mutate = set_until(1_000_000_000);
            let (outcome, pause_ns_min) = beside_one_that_is_gone(&mut mutate, gone, fail);
            assert_eq!(outcome, None, "{gone}");
            // It needs its cores for what it copies.
            assert!(pause_ns_min >= 100_000, "{pause_ns_min}");
            let (outcome, _) = beside_one_that_is_gone(&mut mutate, gone, &takes);
            assert_eq!(outcome, Some(MutationOutcome::Stored { version: v(5) }));
        }
        // One that recovers needs the one that is gone.
        let recovers = |mutate: &mut Mutate, replica| {
            mutate.handle_ack(replica, v(5), rejected(Rejection::Recovering));
        };
        let (outcome, _) = beside_one_that_is_gone(&mut set(), gone, &recovers);
        assert_eq!(outcome, Some(MutationOutcome::Indeterminate), "{gone}");
    }
}

/// Each message wakes a thread on a core that who moves needs for what is left to copy: one
/// that takes 30 ms is not asked 40 times, and one that takes a moment is asked a moment later.
#[test]
fn who_moves_is_asked_less_and_less_often() {
    let asked_ns = asked_while_all_move(1_000_000_000, 30_000_000);
    assert!((8..=14).contains(&asked_ns.len()), "{asked_ns:?}");
    assert!(asked_ns[1] <= 200_000, "{asked_ns:?}");
    let waits = asked_ns.windows(2).map(|pair| pair[1] - pair[0]);
    assert!(waits.clone().is_sorted(), "{asked_ns:?}");
    assert!(waits.max() <= Some(4_000_000), "{asked_ns:?}");
}

/// It may take writes again in the meantime.
#[test]
fn who_moves_is_asked_once_more_just_before_the_deadline() {
    let asked_ns = asked_while_all_move(10_000_000, u64::MAX);
    let last = *asked_ns.last().unwrap();
    assert!((9_500_000..10_000_000).contains(&last), "{asked_ns:?}");
    assert!(asked_ns.len() <= 14, "{asked_ns:?}");
}

/// When the first replica is asked to take a SET, until `end_ns` or until it gives up at its
/// deadline, which it does on time.
fn asked_while_all_move(deadline_ns: u64, end_ns: u64) -> Vec<u64> {
    let mut mutate = set_until(deadline_ns);
    let (mut at_ns, mut asked_ns) = (0, Vec::new());
    while at_ns < end_ns {
        match mutate.poll(at_ns) {
            MutateStep::Send { replica, .. } => {
                if replica == 0 {
                    asked_ns.push(at_ns);
                }
                mutate.handle_ack(replica, v(5), rejected(Rejection::UnknownConfig));
            }
            MutateStep::Pause { ns } => at_ns += ns,
            MutateStep::Done(_) => {
                assert_eq!(at_ns, deadline_ns);
                break;
            }
            step => panic!("{step:?}"),
        }
    }
    asked_ns
}

/// A replica that is still being reconnected to has been sent nothing: with all of
/// them down the mutation has failed, whichever connection ends first.
#[test]
fn a_mutation_that_reached_nobody_has_failed() {
    for first in 0..3 {
        let limits = Limits {
            deadline_ns: 1_000,
            retries_max: 1,
        };
        let mut mutate = Mutate::new(Mode::R32, v(5), limits);
        sends(&mut mutate, &[0, 1, 2], 5);
        for replica in [first, (first + 1) % 3, (first + 2) % 3] {
            mutate.handle_failure(replica, v(5), SendFailure::NotSent);
        }
        for _ in 0..2 {
            assert!(matches!(mutate.poll(0), MutateStep::Reconnect { .. }));
        }
        mutate.handle_reconnected(first);
        sends(&mut mutate, &[first], 5);
        mutate.handle_failure(first, v(5), SendFailure::NotSent);
        let last = RetryCause::Connection;
        let cause = GiveUp::Budget { last };
        ends(&mut mutate, MutationOutcome::Failed { cause });
    }
}
