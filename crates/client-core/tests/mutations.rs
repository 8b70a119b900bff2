//! SET, ERASE, fill and CAS, step by step.

use trefoil_client_core::cas::{Cas, CasStep};
use trefoil_client_core::mode::Mode;
use trefoil_client_core::mutate::{Mutate, MutateKind, MutateStep};
use trefoil_client_core::outcome::{MutationOutcome, SendFailure};
use trefoil_client_core::retry::{GiveUp, Limits, RetryCause};
use trefoil_layout::Version;
use trefoil_layout::op::{Ack, Expected, Outcome, Rejection};

/// What the CASes expect.
const EXPECTED: Expected = Expected::Version(Version::new(3, 1, 0));

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

fn mismatch(present: Option<u64>) -> Ack {
    let outcome = Outcome::Mismatch {
        present: present.map(v),
        bound: v(present.unwrap_or(0)),
    };
    ack(1, outcome)
}

fn set() -> Mutate {
    Mutate::new(Mode::R32, MutateKind::Set, v(5), Limits::until(1_000))
}

#[track_caller]
fn sends(mutate: &mut Mutate, replicas: &[usize], time_ns: u64) {
    for &replica in replicas {
        let version = v(time_ns);
        assert_eq!(mutate.poll(0), MutateStep::Send { replica, version });
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
fn one_copy_needs_one_acknowledgement() {
    let mut mutate = Mutate::new(Mode::R1, MutateKind::Erase, v(5), Limits::until(1_000));
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

#[test]
fn superseded_is_the_outcome_only_if_the_others_are_no_quorum() {
    let limits = Limits {
        deadline_ns: 1_000,
        retries_max: 0,
    };
    let mut mutate = Mutate::new(Mode::R32, MutateKind::Set, v(5), limits);
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
    let mut mutate = Mutate::new(Mode::R1, MutateKind::Set, v(5), Limits::until(1_000));
    sends(&mut mutate, &[0], 5);
    mutate.handle_ack(0, v(5), superseded(8));
    let done = MutateStep::Done(MutationOutcome::Indeterminate);
    assert_eq!(mutate.poll(1_000), done);
}

#[test]
fn a_fill_is_never_retried() {
    let mut mutate = Mutate::new(Mode::R32, MutateKind::Fill, v(5), Limits::until(1_000));
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), applied(1));
    mutate.handle_ack(1, v(5), superseded(7));
    mutate.handle_ack(2, v(5), superseded(8));
    ends(&mut mutate, MutationOutcome::Superseded { bound: v(8) });
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
    let mut mutate = Mutate::new(Mode::R32, MutateKind::Set, v(5), limits);
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
fn rejected_only_if_nothing_was_left_anywhere() {
    let mut mutate = set();
    sends(&mut mutate, &[0, 1, 2], 5);
    mutate.handle_ack(0, v(5), rejected(Rejection::ValueTooLong));
    let mut other = mutate.clone();
    mutate.handle_ack(1, v(5), rejected(Rejection::ValueTooLong));
    // The third is still on its way, and might apply it.
    ends(&mut mutate, MutationOutcome::Indeterminate);
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
    sends(&mut mutate, &[1], 5);
    mutate.handle_ack(1, v(5), applied(1));
    mutate.handle_ack(2, v(5), applied(1));
    ends(&mut mutate, MutationOutcome::Stored { version: v(5) });
}

#[test]
fn an_immutable_corpus_refuses_without_a_message() {
    let refused = MutationOutcome::Rejected(Rejection::Immutable);
    let limits = Limits::until(1_000);
    let mut mutate = Mutate::new(Mode::R2Immutable, MutateKind::Set, v(5), limits);
    ends(&mut mutate, refused);
    let mut cas = Cas::new(Mode::R2Immutable, EXPECTED, v(5), limits);
    assert_eq!(cas.poll(0), CasStep::Done(refused));
}

fn cas() -> Cas {
    Cas::new(Mode::R32, EXPECTED, v(5), Limits::until(1_000))
}

#[track_caller]
fn sends_cas(cas: &mut Cas, replica: usize) {
    assert_eq!(cas.poll(0), CasStep::Send { replica });
}

#[track_caller]
fn installs_cas(cas: &mut Cas, replica: usize) {
    assert_eq!(cas.poll(0), CasStep::Install { replica });
}

#[track_caller]
fn waits_cas(cas: &mut Cas) {
    assert_eq!(cas.poll(0), CasStep::Wait { until_ns: 1_000 });
}

#[track_caller]
fn ends_cas(cas: &mut Cas, outcome: MutationOutcome) {
    assert_eq!(cas.poll(0), CasStep::Done(outcome));
}

#[test]
fn cas_asks_one_after_the_other_and_tells_the_third() {
    let mut cas = cas();
    sends_cas(&mut cas, 0);
    waits_cas(&mut cas);
    cas.handle_ack(0, applied(1));
    sends_cas(&mut cas, 1);
    waits_cas(&mut cas);
    cas.handle_ack(1, applied(1));
    installs_cas(&mut cas, 2);
    ends_cas(&mut cas, MutationOutcome::Stored { version: v(5) });
}

#[test]
fn cas_takes_the_place_of_what_a_contender_left() {
    let mut cas = cas();
    sends_cas(&mut cas, 0);
    cas.handle_ack(0, applied(1));
    sends_cas(&mut cas, 1);
    cas.handle_ack(1, mismatch(Some(4)));
    sends_cas(&mut cas, 2);
    cas.handle_ack(2, applied(1));
    installs_cas(&mut cas, 1);
    ends_cas(&mut cas, MutationOutcome::Stored { version: v(5) });
}

/// Lets it be refused by its first replica and look.
#[track_caller]
fn is_refused_and_looks(cas: &mut Cas, present: u64) {
    sends_cas(cas, 0);
    cas.handle_ack(0, mismatch(Some(present)));
    assert!(matches!(cas.poll(0), CasStep::Pause { .. }));
    assert_eq!(cas.poll(0), CasStep::Look);
    waits_cas(cas);
}

#[test]
fn a_refused_cas_ends_if_a_quorum_holds_something_else_or_nothing() {
    for (agreed, present) in [
        (Some(Expected::Version(v(4))), Some(v(4))),
        (Some(Expected::Absent), None),
        // No quorum: what one replica has may have been given up.
        (None, None),
    ] {
        let mut cas = cas();
        is_refused_and_looks(&mut cas, 9);
        cas.handle_agreed(agreed, v(10));
        ends_cas(&mut cas, MutationOutcome::Exists { present });
    }
}

#[test]
fn a_refused_cas_begins_anew_if_a_quorum_holds_what_it_expects() {
    let mut cas = cas();
    is_refused_and_looks(&mut cas, 9);
    assert_eq!(cas.bound(), v(9));
    cas.handle_agreed(Some(EXPECTED), v(10));
    sends_cas(&mut cas, 0);
    cas.handle_ack(0, mismatch(Some(9)));
    // It has looked: the odd one out does not stop it again.
    sends_cas(&mut cas, 1);
    cas.handle_ack(1, applied(1));
    sends_cas(&mut cas, 2);
    cas.handle_ack(2, applied(1));
    installs_cas(&mut cas, 0);
    ends_cas(&mut cas, MutationOutcome::Stored { version: v(10) });
}

#[test]
fn a_look_nobody_answers_ends_with_the_deadline() {
    let mut cas = cas();
    is_refused_and_looks(&mut cas, 9);
    let last = None;
    let cause = GiveUp::Deadline { last };
    let failed = MutationOutcome::Failed { cause };
    assert_eq!(cas.poll(1_000), CasStep::Done(failed));
    cas.handle_agreed(Some(EXPECTED), v(10));
    ends_cas(&mut cas, failed);
}

#[test]
fn a_cas_that_a_replica_holds_does_not_look() {
    let mut cas = cas();
    sends_cas(&mut cas, 0);
    cas.handle_ack(0, applied(1));
    sends_cas(&mut cas, 1);
    // The odd one out, with what another has left there: to end here would
    // leave three replicas with three versions.
    cas.handle_ack(1, mismatch(Some(9)));
    sends_cas(&mut cas, 2);
    cas.handle_ack(2, applied(1));
    installs_cas(&mut cas, 1);
    ends_cas(&mut cas, MutationOutcome::Stored { version: v(5) });
}

#[test]
fn a_dead_replica_is_no_reason_to_look() {
    let mut cas = cas();
    sends_cas(&mut cas, 0);
    cas.handle_failure(0, SendFailure::NotSent);
    sends_cas(&mut cas, 1);
    cas.handle_ack(1, applied(1));
    sends_cas(&mut cas, 2);
    cas.handle_ack(2, applied(1));
    ends_cas(&mut cas, MutationOutcome::Stored { version: v(5) });
}

#[test]
fn cas_fails_by_two_refusals() {
    let mut cas = cas();
    is_refused_and_looks(&mut cas, 4);
    cas.handle_agreed(Some(EXPECTED), v(10));
    sends_cas(&mut cas, 0);
    cas.handle_ack(0, mismatch(Some(4)));
    sends_cas(&mut cas, 1);
    cas.handle_ack(1, mismatch(None));
    says_what_is_there(&mut cas);
}

/// Lets it look what a quorum holds before it ends.
#[track_caller]
fn says_what_is_there(cas: &mut Cas) {
    assert_eq!(cas.poll(0), CasStep::Look);
    waits_cas(cas);
    cas.handle_agreed(Some(Expected::Version(v(7))), v(11));
    let present = Some(v(7));
    ends_cas(cas, MutationOutcome::Exists { present });
}

/// Lets one replica apply it and the others refuse it.
#[track_caller]
fn fails_after_it_was_applied(cas: &mut Cas) {
    sends_cas(cas, 0);
    cas.handle_ack(0, applied(1));
    sends_cas(cas, 1);
    cas.handle_ack(1, mismatch(Some(4)));
    sends_cas(cas, 2);
    cas.handle_ack(2, mismatch(Some(4)));
    assert_eq!(cas.poll(0), CasStep::Withdraw { replica: 0 });
    waits_cas(cas);
}

#[test]
fn a_failed_cas_takes_back_what_it_left() {
    for answer in [applied(1), superseded(9)] {
        let mut cas = cas();
        fails_after_it_was_applied(&mut cas);
        cas.handle_ack(0, answer);
        says_what_is_there(&mut cas);
    }
    let mut cas = cas();
    fails_after_it_was_applied(&mut cas);
    cas.handle_failure(0, SendFailure::Lost);
    says_what_is_there(&mut cas);
}

#[test]
fn a_failed_cas_does_not_wait_for_ever_for_what_it_left() {
    let mut cas = cas();
    fails_after_it_was_applied(&mut cas);
    let exists = MutationOutcome::Exists { present: None };
    assert_eq!(cas.poll(1_000), CasStep::Done(exists));
    cas.handle_ack(0, applied(1));
    ends_cas(&mut cas, exists);
    // With the deadline behind it, it takes it back all the same.
    let mut late = Cas::new(Mode::R32, EXPECTED, v(5), Limits::until(1_000));
    sends_cas(&mut late, 0);
    late.handle_ack(0, applied(1));
    for replica in [1, 2] {
        sends_cas(&mut late, replica);
        late.handle_ack(replica, mismatch(Some(4)));
    }
    assert_eq!(late.poll(1_000), CasStep::Withdraw { replica: 0 });
    assert_eq!(late.poll(1_000), CasStep::Done(exists));
}

#[test]
fn a_cas_that_is_refused_for_good_takes_back_what_it_left() {
    let mut cas = cas();
    sends_cas(&mut cas, 0);
    cas.handle_ack(0, applied(1));
    for replica in [1, 2] {
        sends_cas(&mut cas, replica);
        cas.handle_ack(replica, rejected(Rejection::NoMemory));
    }
    assert_eq!(cas.poll(0), CasStep::Withdraw { replica: 0 });
    cas.handle_ack(0, applied(1));
    ends_cas(&mut cas, MutationOutcome::Rejected(Rejection::NoMemory));
}

#[test]
fn cas_passes_over_a_dead_replica_and_never_repeats_a_lost_one() {
    let mut cas = cas();
    sends_cas(&mut cas, 0);
    cas.handle_failure(0, SendFailure::NotSent);
    sends_cas(&mut cas, 1);
    cas.handle_failure(1, SendFailure::Lost);
    // Only the lost one may hold it, and one copy is never seen.
    let failed = MutationOutcome::Failed {
        cause: GiveUp::Budget {
            last: RetryCause::Connection,
        },
    };
    ends_cas(&mut cas, failed);
}

#[test]
fn cas_that_was_lost_and_refused_does_not_split_the_cohort() {
    let mut cas = cas();
    sends_cas(&mut cas, 0);
    cas.handle_failure(0, SendFailure::Lost);
    sends_cas(&mut cas, 1);
    cas.handle_ack(1, mismatch(Some(4)));
    says_what_is_there(&mut cas);
}

#[test]
fn cas_that_was_lost_once_and_applied_twice_is_stored() {
    let mut cas = cas();
    sends_cas(&mut cas, 0);
    cas.handle_failure(0, SendFailure::Lost);
    sends_cas(&mut cas, 1);
    cas.handle_ack(1, applied(1));
    sends_cas(&mut cas, 2);
    cas.handle_ack(2, applied(1));
    installs_cas(&mut cas, 0);
    ends_cas(&mut cas, MutationOutcome::Stored { version: v(5) });
}

#[test]
fn cas_across_epochs_needs_the_third() {
    let mut cas = cas();
    sends_cas(&mut cas, 0);
    cas.handle_ack(0, applied(1));
    sends_cas(&mut cas, 1);
    cas.handle_ack(1, applied(2));
    sends_cas(&mut cas, 2);
    cas.handle_ack(2, applied(2));
    ends_cas(&mut cas, MutationOutcome::Stored { version: v(5) });
}

#[test]
fn cas_deadline() {
    let mut sent = cas();
    sends_cas(&mut sent, 0);
    let done = CasStep::Done(MutationOutcome::Indeterminate);
    assert_eq!(sent.poll(1_000), done);
    let last = None;
    let failed = MutationOutcome::Failed {
        cause: GiveUp::Deadline { last },
    };
    assert_eq!(cas().poll(1_000), CasStep::Done(failed));
}

#[test]
fn cas_with_one_copy_is_decided_by_one_answer() {
    for (answer, outcome) in [
        (applied(1), MutationOutcome::Stored { version: v(5) }),
        (mismatch(None), MutationOutcome::Exists { present: None }),
        (
            rejected(Rejection::NoMemory),
            MutationOutcome::Rejected(Rejection::NoMemory),
        ),
    ] {
        let mut cas = Cas::new(Mode::R1, EXPECTED, v(5), Limits::until(1_000));
        sends_cas(&mut cas, 0);
        cas.handle_ack(0, answer);
        ends_cas(&mut cas, outcome);
    }
}
