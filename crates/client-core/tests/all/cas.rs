//! CAS, step by step: an expectation per line.

use trefoil_client_core::cas::{AT_REST_NS, Cas, CasStep, Looked};
use trefoil_client_core::mode::Mode;
use trefoil_client_core::outcome::{MutationOutcome, SendFailure};
use trefoil_client_core::retry::{GiveUp, Limits, RetryCause};
use trefoil_layout::Version;
use trefoil_layout::op::{Ack, Expected, Outcome, Rejection};

/// What most of them expect.
const EXPECTED: Expected = Expected::Version(Version::new(3, 1, 0));

fn v(time_ns: u64) -> Version {
    Version::new(time_ns, 1, 0)
}

/// A CAS at version 5 whose deadline is at 1,000 ns.
struct Script(Cas);

impl Script {
    fn new(mode: Mode, expected: Expected) -> Self {
        Script(Cas::new(mode, expected, v(5), Limits::until(1_000)))
    }

    fn over_3() -> Self {
        Self::new(Mode::R32, EXPECTED)
    }

    fn over_nothing() -> Self {
        Self::new(Mode::R32, Expected::Absent)
    }

    #[track_caller]
    fn step(&mut self, expected: CasStep) {
        assert_eq!(self.0.poll(0), expected);
    }

    #[track_caller]
    fn sends(&mut self, replica: usize, time_ns: u64) {
        let version = v(time_ns);
        self.step(CasStep::Send { replica, version });
    }

    #[track_caller]
    fn installs(&mut self, replica: usize, time_ns: u64) {
        let version = v(time_ns);
        self.step(CasStep::Install { replica, version });
    }

    /// Evicts this entry, and is told that it did.
    #[track_caller]
    fn evicts(&mut self, replica: usize, time_ns: u64) {
        self.begins_to_evict(replica, time_ns);
        self.answer(replica, time_ns, Outcome::Applied);
    }

    #[track_caller]
    fn begins_to_evict(&mut self, replica: usize, time_ns: u64) {
        let version = v(time_ns);
        self.step(CasStep::Evict { replica, version });
    }

    #[track_caller]
    fn nominates(&mut self, above: u64, time_ns: u64) {
        self.step(CasStep::Nominate { above: v(above) });
        self.waits();
        self.0.handle_version(v(time_ns));
    }

    #[track_caller]
    fn pauses(&mut self) {
        assert!(matches!(self.0.poll(0), CasStep::Pause { .. }));
    }

    #[track_caller]
    fn looks(&mut self, looked: Looked) {
        self.step(CasStep::Look);
        self.waits();
        self.0.handle_look(looked);
    }

    #[track_caller]
    fn waits(&mut self) {
        assert!(matches!(self.0.poll(0), CasStep::Wait { .. }));
    }

    #[track_caller]
    fn ends(&mut self, outcome: MutationOutcome) {
        self.step(CasStep::Done(outcome));
    }

    #[track_caller]
    fn ends_stored(&mut self, time_ns: u64) {
        let version = v(time_ns);
        self.ends(MutationOutcome::Stored { version });
    }

    #[track_caller]
    fn ends_beside(&mut self, present: Option<u64>) {
        let present = present.map(v);
        self.ends(MutationOutcome::Exists { present });
    }

    fn answer(&mut self, replica: usize, time_ns: u64, outcome: Outcome) {
        self.0
            .handle_ack(replica, v(time_ns), Ack { epoch: 1, outcome });
    }

    #[track_caller]
    fn applied_by(&mut self, replica: usize, time_ns: u64) {
        self.sends(replica, time_ns);
        self.answer(replica, time_ns, Outcome::Applied);
    }

    #[track_caller]
    fn refused_by(&mut self, replica: usize, time_ns: u64, present: Option<u64>) {
        self.sends(replica, time_ns);
        let outcome = Outcome::Mismatch {
            present: present.map(v),
            bound: v(present.unwrap_or(0)),
        };
        self.answer(replica, time_ns, outcome);
    }

    /// It is asked again when it has been waited for long enough, and looks then.
    #[track_caller]
    fn has_missed_it(&mut self, down: usize, replica: usize, time_ns: u64, present: u64) {
        let version = v(time_ns);
        self.0.extend(10 * AT_REST_NS);
        // Whoever is down is asked with it.
        let mut asked = [down, replica];
        asked.sort_unstable();
        for asked in asked {
            let replica = asked;
            let step = CasStep::Send { replica, version };
            assert_eq!(self.0.poll(AT_REST_NS), step);
            if asked == down {
                let failure = SendFailure::NotSent;
                self.0.handle_failure(down, version, failure);
            }
        }
        let (present, bound) = (Some(v(present)), v(present));
        self.answer(replica, time_ns, Outcome::Mismatch { present, bound });
        assert_eq!(self.0.poll(AT_REST_NS), CasStep::Look);
    }

    #[track_caller]
    fn rejected_by(&mut self, replica: usize, rejection: Rejection) {
        self.sends(replica, 5);
        self.answer(replica, 5, Outcome::Rejected(rejection));
    }

    #[track_caller]
    fn fails_at(&mut self, replica: usize, time_ns: u64, failure: SendFailure) {
        self.sends(replica, time_ns);
        self.0.handle_failure(replica, v(time_ns), failure);
    }
}

fn agreed(time_ns: u64) -> Looked {
    Looked::Agreed(Expected::Version(v(time_ns)))
}

fn disagree(present: [Option<u64>; 3]) -> Looked {
    Looked::Disagree {
        present: present.map(|time_ns| time_ns.map(v)),
    }
}

#[test]
fn asks_one_after_the_other_and_tells_the_third() {
    let mut cas = Script::over_3();
    cas.sends(0, 5);
    cas.waits();
    cas.answer(0, 5, Outcome::Applied);
    cas.applied_by(1, 5);
    cas.installs(2, 5);
    cas.ends_stored(5);
}

#[test]
fn takes_the_place_of_what_a_contender_left() {
    for present in [None, Some(2)] {
        let mut cas = Script::over_3();
        cas.applied_by(0, 5);
        // The odd one out: to end here would leave three replicas with three versions.
        cas.refused_by(1, 5, present);
        cas.applied_by(2, 5);
        cas.installs(1, 5);
        cas.ends_stored(5);
    }
}

/// Two that expect the same and hold one replica each: whoever holds the second in the
/// order of asking goes on, whatever becomes of the first one.
#[test]
fn held_by_one_it_gives_way_to_what_is_newer_at_the_next() {
    let held = || {
        let mut cas = Script::over_3();
        cas.applied_by(0, 5);
        cas.refused_by(1, 5, Some(4));
        cas.pauses();
        cas
    };
    let mut cas = held();
    cas.looks(Looked::Unknown);
    cas.refused_by(1, 5, Some(4));
    cas.pauses();
    cas.looks(agreed(4));
    cas.evicts(0, 5);
    cas.ends_beside(Some(4));
    // It is given up: a quorum holds what was expected.
    let mut cas = held();
    cas.looks(agreed(3));
    cas.evicts(0, 5);
    cas.pauses();
    cas.nominates(5, 6);
    cas.applied_by(0, 6);
    cas.applied_by(1, 6);
    cas.installs(2, 6);
    cas.ends_stored(6);
    // It goes no further: its client has died.
    for looked in [
        Looked::Unknown,
        disagree([Some(5), Some(4), Some(3)]),
        // What it holds has expired already, and the contender's copy is gone.
        Looked::Agreed(Expected::Absent),
    ] {
        let mut cas = Script(Cas::new(
            Mode::R32,
            EXPECTED,
            v(5),
            Limits::until(10 * AT_REST_NS),
        ));
        cas.applied_by(0, 5);
        let patience = AT_REST_NS / 2;
        for now in [0, patience - 1] {
            cas.refused_by(1, 5, Some(4));
            assert!(matches!(cas.0.poll(now), CasStep::Pause { .. }));
            assert_eq!(cas.0.poll(now), CasStep::Look);
            cas.0.handle_look(looked);
        }
        cas.refused_by(1, 5, Some(4));
        assert!(matches!(cas.0.poll(patience), CasStep::Pause { .. }));
        assert_eq!(cas.0.poll(patience), CasStep::Look);
        cas.0.handle_look(looked);
        cas.applied_by(2, 5);
        cas.installs(1, 5);
        cas.ends_stored(5);
    }
}

/// A value that was erased a moment ago, at one that has not got round to that.
#[test]
fn held_by_one_it_asks_again_where_it_has_given_way() {
    let mut cas = Script::over_nothing();
    cas.applied_by(0, 5);
    cas.refused_by(1, 5, Some(2));
    cas.pauses();
    cas.looks(Looked::Agreed(Expected::Absent));
    cas.applied_by(1, 5);
    cas.installs(2, 5);
    cas.ends_stored(5);
}

#[test]
fn held_by_one_at_its_deadline_it_is_taken_back() {
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.refused_by(1, 5, Some(4));
    let (replica, version) = (0, v(5));
    assert_eq!(cas.0.poll(1_000), CasStep::Evict { replica, version });
    let cause = GiveUp::Deadline { last: None };
    let failed = MutationOutcome::Failed { cause };
    assert_eq!(cas.0.poll(1_000), CasStep::Done(failed));
}

#[test]
fn refused_first_it_ends_if_a_quorum_holds_something_else_or_nothing() {
    for (looked, present) in [
        (agreed(4), Some(4)),
        (Looked::Agreed(Expected::Absent), None),
        // No quorum: what one replica has may have been given up.
        (disagree([Some(9), Some(3), None]), None),
    ] {
        let mut cas = Script::over_3();
        cas.refused_by(0, 5, Some(9));
        cas.pauses();
        cas.looks(looked);
        // It has left nothing, so it takes nothing away.
        cas.ends_beside(present);
    }
}

#[test]
fn refused_first_it_begins_anew_if_a_quorum_holds_what_it_expects() {
    // The odd one out lags behind, or has evicted it.
    for present in [None, Some(2)] {
        let mut cas = Script::over_3();
        cas.refused_by(0, 5, present);
        cas.pauses();
        cas.looks(agreed(3));
        cas.nominates(5, 10);
        cas.refused_by(0, 10, present);
        // It has looked: the odd one out does not stop it again.
        cas.applied_by(1, 10);
        cas.applied_by(2, 10);
        cas.installs(0, 10);
        cas.ends_stored(10);
    }
}

/// To go on at once would take away the copy that it needs next.
#[test]
fn refused_first_by_something_newer_it_gives_way() {
    let mut cas = Script::over_3();
    cas.refused_by(0, 5, Some(9));
    assert_eq!(cas.0.bound(), v(9));
    for version in [10, 12] {
        cas.pauses();
        cas.looks(agreed(3));
        cas.pauses();
        cas.nominates(version - 1, version);
        cas.refused_by(0, version, Some(version + 1));
    }
    cas.pauses();
    cas.looks(agreed(13));
    cas.ends_beside(Some(13));

    // What a client that has died has left is at rest.
    let mut cas = Script::over_3();
    cas.refused_by(0, 5, Some(9));
    cas.pauses();
    cas.looks(agreed(3));
    cas.pauses();
    let later = AT_REST_NS + 9;
    cas.nominates(9, later);
    cas.refused_by(0, later, Some(9));
    cas.pauses();
    cas.looks(agreed(3));
    cas.nominates(later, later + 1);
    cas.refused_by(0, later + 1, Some(9));
    cas.applied_by(1, later + 1);
    cas.applied_by(2, later + 1);
    cas.installs(0, later + 1);
    cas.ends_stored(later + 1);
}

#[test]
fn it_looks_again_as_long_as_something_is_on_its_way() {
    let mut cas = Script::over_3();
    cas.refused_by(0, 5, Some(9));
    for _ in 0..5 {
        cas.pauses();
        cas.looks(Looked::Unknown);
    }
    cas.pauses();
    cas.looks(agreed(9));
    cas.ends_beside(Some(9));
}

#[test]
fn a_look_that_nobody_answers_ends_with_the_deadline() {
    let mut cas = Script::over_3();
    cas.refused_by(0, 5, Some(9));
    cas.pauses();
    cas.step(CasStep::Look);
    let cause = GiveUp::Deadline { last: None };
    let failed = MutationOutcome::Failed { cause };
    assert_eq!(cas.0.poll(1_000), CasStep::Done(failed));
    cas.0.handle_look(agreed(3));
    cas.ends(failed);
}

#[test]
fn a_dead_replica_is_no_reason_to_look() {
    let mut cas = Script::over_3();
    cas.fails_at(0, 5, SendFailure::NotSent);
    cas.applied_by(1, 5);
    cas.applied_by(2, 5);
    cas.ends_stored(5);
}

/// Lets two refuse it, the first of them twice. It has to look what they hold.
#[track_caller]
fn refused_by_two() -> Script {
    let mut cas = Script::over_3();
    cas.refused_by(0, 5, Some(2));
    cas.pauses();
    cas.looks(agreed(3));
    cas.nominates(5, 10);
    cas.refused_by(0, 10, Some(2));
    cas.refused_by(1, 10, None);
    cas
}

#[test]
fn fails_by_two_refusals() {
    let mut cas = refused_by_two();
    cas.looks(agreed(7));
    cas.ends_beside(Some(7));
}

/// Lets one replica apply it and the others refuse it.
#[track_caller]
fn fails_after_it_was_applied(present: Option<u64>) -> Script {
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.refused_by(1, 5, present);
    cas.refused_by(2, 5, present);
    cas
}

#[test]
fn failed_it_takes_back_its_own_copy_and_no_other() {
    let superseded = Outcome::Superseded { bound: v(9) };
    for answer in [Outcome::Applied, superseded] {
        let mut cas = fails_after_it_was_applied(Some(2));
        cas.looks(agreed(4));
        cas.begins_to_evict(0, 5);
        cas.waits();
        cas.answer(0, 5, answer);
        cas.ends_beside(Some(4));
    }
    let mut cas = fails_after_it_was_applied(Some(2));
    cas.looks(agreed(4));
    cas.begins_to_evict(0, 5);
    cas.0.handle_failure(0, v(5), SendFailure::Lost);
    cas.ends_beside(Some(4));
}

#[test]
fn failed_among_survivors_it_leaves_them_agreeing_on_nothing() {
    // One of two good copies was at replica 0; replica 1, with the other, has
    // died, and replica 2 was away when they were written.
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.fails_at(1, 5, SendFailure::NotSent);
    cas.refused_by(2, 5, Some(1));
    cas.pauses();
    cas.has_missed_it(1, 2, 5, 1);
    cas.0.handle_look(disagree([Some(5), None, Some(1)]));
    cas.begins_to_evict(0, 5);
    cas.begins_to_evict(2, 1);
    cas.answer(2, 1, Outcome::Applied);
    cas.waits();
    cas.answer(0, 5, Outcome::Applied);
    cas.ends_beside(None);
}

#[test]
fn failed_while_something_is_on_its_way_it_waits_for_that() {
    let mut cas = fails_after_it_was_applied(Some(2));
    cas.looks(Looked::Unknown);
    cas.pauses();
    cas.looks(agreed(8));
    cas.evicts(0, 5);
    cas.ends_beside(Some(8));
}

#[test]
fn failed_it_does_not_wait_for_ever() {
    let exists = MutationOutcome::Exists { present: None };
    let mut cas = fails_after_it_was_applied(Some(2));
    cas.looks(Looked::Agreed(Expected::Absent));
    cas.begins_to_evict(0, 5);
    assert_eq!(cas.0.poll(1_000), CasStep::Done(exists));
    cas.answer(0, 5, Outcome::Applied);
    cas.ends(exists);
    // With the deadline behind it, it takes it back all the same.
    let mut late = fails_after_it_was_applied(Some(2));
    let (replica, version) = (0, v(5));
    let evict = CasStep::Evict { replica, version };
    assert_eq!(late.0.poll(1_000), evict);
    assert_eq!(late.0.poll(1_000), CasStep::Done(exists));
}

#[test]
fn refused_for_good_it_takes_back_its_own_copy() {
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.rejected_by(1, Rejection::NoMemory);
    cas.rejected_by(2, Rejection::NoMemory);
    cas.evicts(0, 5);
    cas.ends(MutationOutcome::Rejected(Rejection::NoMemory));
}

#[test]
fn passes_over_a_dead_replica_and_never_repeats_a_lost_one() {
    let mut cas = Script::over_3();
    cas.fails_at(0, 5, SendFailure::NotSent);
    cas.fails_at(1, 5, SendFailure::Lost);
    // Only the lost one may hold it, and one copy is never seen.
    let last = RetryCause::Connection;
    let cause = GiveUp::Budget { last };
    cas.ends(MutationOutcome::Failed { cause });
}

#[test]
fn lost_and_refused_it_does_not_split_the_cohort() {
    let mut cas = Script::over_3();
    cas.fails_at(0, 5, SendFailure::Lost);
    cas.looks(agreed(3));
    cas.nominates(5, 6);
    cas.refused_by(1, 6, Some(4));
    cas.looks(agreed(7));
    cas.ends_beside(Some(7));
}

#[test]
fn failed_beside_a_quorum_that_holds_what_it_expects_it_begins_anew() {
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.fails_at(1, 5, SendFailure::NotSent);
    cas.fails_at(2, 5, SendFailure::NotSent);
    // They are back.
    let last = RetryCause::Connection;
    let cause = GiveUp::Budget { last };
    cas.evicts(0, 5);
    cas.ends(MutationOutcome::Failed { cause });

    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.fails_at(1, 5, SendFailure::NotSent);
    // It has evicted it.
    cas.sends(2, 5);
    let (present, bound) = (None, v(3));
    cas.answer(2, 5, Outcome::Mismatch { present, bound });
    cas.looks(agreed(3));
    cas.evicts(0, 5);
    cas.nominates(5, 6);
    cas.refused_by(0, 6, None);
    cas.applied_by(1, 6);
    cas.applied_by(2, 6);
    cas.installs(0, 6);
    cas.ends_stored(6);
}

#[test]
fn lost_once_and_applied_twice_it_is_stored() {
    let mut cas = Script::over_3();
    cas.fails_at(0, 5, SendFailure::Lost);
    // What a survivor has not got round to would refuse it, and the other one's copy
    // were gone by then.
    cas.looks(Looked::Unknown);
    cas.pauses();
    cas.looks(agreed(3));
    // A young version: what it leaves at one replica is not at rest.
    cas.nominates(5, 6);
    cas.applied_by(1, 6);
    cas.applied_by(2, 6);
    cas.installs(0, 6);
    cas.ends_stored(6);
}

/// Who is left says too little for a look.
#[test]
fn lost_it_goes_on_without_a_look_that_finds_nobody() {
    let mut cas = Script::over_3();
    cas.fails_at(0, 5, SendFailure::Lost);
    cas.looks(Looked::Unknown);
    cas.pauses();
    assert_eq!(cas.0.poll(500), CasStep::Look);
    cas.0.handle_look(Looked::Unknown);
    assert_eq!(cas.0.poll(500), CasStep::Nominate { above: v(5) });
    cas.0.handle_version(v(6));
    let (replica, version) = (1, v(6));
    assert_eq!(cas.0.poll(500), CasStep::Send { replica, version });
    cas.0.handle_failure(1, v(6), SendFailure::NotSent);
    let last = RetryCause::Connection;
    let cause = GiveUp::Budget { last };
    let failed = MutationOutcome::Failed { cause };
    assert_eq!(cas.0.poll(500), CasStep::Done(failed));
}

#[test]
fn across_epochs_it_needs_the_third() {
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    for replica in [1, 2] {
        cas.sends(replica, 5);
        let outcome = Outcome::Applied;
        cas.0.handle_ack(replica, v(5), Ack { epoch: 2, outcome });
    }
    cas.ends_stored(5);
}

#[test]
fn a_deadline_after_it_was_sent_is_indeterminate() {
    let mut sent = Script::over_3();
    sent.sends(0, 5);
    let done = CasStep::Done(MutationOutcome::Indeterminate);
    assert_eq!(sent.0.poll(1_000), done);
    let cause = GiveUp::Deadline { last: None };
    let failed = MutationOutcome::Failed { cause };
    assert_eq!(Script::over_3().0.poll(1_000), CasStep::Done(failed));
}

#[test]
fn with_one_copy_one_answer_decides() {
    let mut cas = Script::new(Mode::R1, EXPECTED);
    cas.applied_by(0, 5);
    cas.ends_stored(5);
    let mut cas = Script::new(Mode::R1, EXPECTED);
    cas.refused_by(0, 5, None);
    cas.ends_beside(None);
    let mut cas = Script::new(Mode::R1, EXPECTED);
    cas.rejected_by(0, Rejection::NoMemory);
    cas.ends(MutationOutcome::Rejected(Rejection::NoMemory));
}

#[test]
fn an_answer_to_anything_but_what_is_open_is_ignored() {
    let mut cas = Script::over_3();
    cas.sends(0, 5);
    cas.answer(0, 4, Outcome::Applied);
    cas.answer(1, 5, Outcome::Applied);
    cas.waits();
    cas.answer(0, 5, Outcome::Applied);
    // A second answer to the same message.
    let refused = Outcome::Mismatch {
        present: None,
        bound: v(5),
    };
    cas.answer(0, 5, refused);
    cas.applied_by(1, 5);
    cas.installs(2, 5);
    cas.ends_stored(5);
}

#[test]
fn among_survivors_that_disagree_a_key_is_a_missing_key_at_the_first_attempt() {
    let mut cas = Script::over_nothing();
    cas.0.look_first();
    // Replica 1 is down; 2 has evicted what 0 holds still.
    cas.looks(disagree([Some(2), None, None]));
    cas.evicts(0, 2);
    cas.nominates(5, 6);
    cas.applied_by(0, 6);
    cas.fails_at(1, 6, SendFailure::NotSent);
    cas.applied_by(2, 6);
    cas.ends_stored(6);
    assert_eq!(cas.0.retries().get(RetryCause::Inquorate), 1);
}

#[test]
fn the_same_where_it_is_found_out_on_the_way() {
    let now = AT_REST_NS + 2;
    let mut cas = Script(Cas::new(
        Mode::R32,
        Expected::Absent,
        v(now),
        Limits::until(1_000),
    ));
    cas.applied_by(0, now);
    cas.refused_by(1, now, Some(2));
    cas.fails_at(2, now, SendFailure::NotSent);
    cas.looks(disagree([Some(now), Some(2), None]));
    cas.evicts(0, now);
    cas.evicts(1, 2);
    cas.nominates(now, now + 1);
    cas.applied_by(0, now + 1);
    cas.applied_by(1, now + 1);
    cas.installs(2, now + 1);
    cas.ends_stored(now + 1);
}

#[test]
fn one_that_may_have_been_seen_does_not_begin_anew() {
    let mut cas = Script::over_nothing();
    cas.applied_by(0, 5);
    cas.fails_at(1, 5, SendFailure::Lost);
    cas.refused_by(2, 5, Some(2));
    cas.ends(MutationOutcome::Indeterminate);
}

#[test]
fn a_mutation_beside_it_is_not_taken_for_a_survivor() {
    let mut cas = Script::over_nothing();
    cas.0.look_first();
    cas.looks(disagree([Some(2), None, None]));
    cas.begins_to_evict(0, 2);
    // A SET was faster: the eviction finds it and leaves it.
    let superseded = Outcome::Superseded { bound: v(8) };
    cas.answer(0, 2, superseded);
    cas.nominates(8, 9);
    cas.refused_by(0, 9, Some(8));
    cas.pauses();
    cas.looks(agreed(8));
    cas.ends_beside(Some(8));
}

#[test]
fn with_a_replica_down_it_replaces_nothing_before_it_has_looked() {
    let mut cas = Script::over_3();
    cas.0.look_first();
    cas.looks(disagree([Some(3), None, Some(1)]));
    cas.ends_beside(None);
    let mut cas = Script::over_3();
    cas.0.look_first();
    cas.looks(agreed(3));
    cas.applied_by(0, 5);
    cas.fails_at(1, 5, SendFailure::NotSent);
    cas.applied_by(2, 5);
    cas.ends_stored(5);
}

#[test]
fn survivors_that_go_on_disagreeing_end_it() {
    let mut cas = Script::over_nothing();
    cas.0.look_first();
    for time_ns in 6..10 {
        cas.looks(disagree([Some(2), None, None]));
        cas.evicts(0, 2);
        cas.nominates(time_ns - 1, time_ns);
        cas.refused_by(0, time_ns, Some(2));
        cas.pauses();
    }
    cas.looks(disagree([Some(2), None, None]));
    cas.evicts(0, 2);
    cas.ends_beside(None);
}

#[test]
fn under_a_new_topology_it_begins_anew_unless_it_may_have_been_seen() {
    let mut cas = Script::over_3();
    cas.fails_at(0, 5, SendFailure::NotSent);
    cas.0.restart(Mode::R1);
    cas.applied_by(0, 5);
    cas.ends_stored(5);

    let mut cas = Script::over_3();
    cas.sends(0, 5);
    cas.0.restart(Mode::R32);
    cas.ends(MutationOutcome::Indeterminate);

    // Refused, and not looked yet at what is there.
    for looks in [false, true] {
        let mut cas = refused_by_two();
        if looks {
            cas.step(CasStep::Look);
        }
        cas.0.restart(Mode::R32);
        cas.applied_by(0, 10);
        cas.applied_by(1, 10);
        let (replica, version) = (2, v(10));
        cas.step(CasStep::Install { replica, version });
        cas.answer(2, 10, Outcome::Applied);
        cas.ends_stored(10);
    }

    // Failed already: what it would take back is not looked for elsewhere.
    let mut cas = fails_after_it_was_applied(Some(2));
    cas.0.restart(Mode::R32);
    cas.ends_beside(None);
}

/// Replicas freeze one after the other while a cell is resized.
#[test]
fn held_by_one_it_waits_for_those_that_put_it_off() {
    for (rejection, other) in [
        (Rejection::UnknownConfig, Rejection::StaleConfig),
        (Rejection::WrongShard, Rejection::UnknownConfig),
    ] {
        let mut cas = Script::over_3();
        cas.applied_by(0, 5);
        cas.rejected_by(1, rejection);
        cas.rejected_by(2, other);
        // What it holds is not taken back: it took the place of one of three copies.
        cas.step(CasStep::Later);
        cas.rejected_by(1, Rejection::UnknownConfig);
        cas.fails_at(2, 5, SendFailure::Moving);
        cas.step(CasStep::Later);
        cas.applied_by(1, 5);
        cas.installs(2, 5);
        cas.ends_stored(5);
    }
}

/// What it expects was at the one that has died and at the one that holds it now.
#[test]
fn held_by_one_it_waits_for_a_survivor_that_lags_behind() {
    let lags = || {
        let mut cas = Script::over_3();
        cas.fails_at(0, 5, SendFailure::NotSent);
        cas.applied_by(1, 5);
        cas.refused_by(2, 5, Some(1));
        cas.pauses();
        cas
    };
    let mut cas = lags();
    // Or the dead one comes back meanwhile.
    cas.fails_at(0, 5, SendFailure::NotSent);
    cas.refused_by(2, 5, None);
    cas.pauses();
    cas.fails_at(0, 5, SendFailure::NotSent);
    cas.applied_by(2, 5);
    cas.ends_stored(5);
    let mut cas = lags();
    cas.applied_by(0, 5);
    cas.installs(2, 5);
    cas.ends_stored(5);
    // It has begun again, and has forgotten.
    let mut cas = Script::over_3();
    cas.rejected_by(0, Rejection::Recovering);
    cas.applied_by(1, 5);
    cas.refused_by(2, 5, Some(1));
    cas.pauses();
    cas.applied_by(2, 5);
    cas.installs(0, 5);
    cas.ends_stored(5);
    // It is found dead last.
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.refused_by(1, 5, Some(1));
    cas.fails_at(2, 5, SendFailure::NotSent);
    cas.pauses();
    cas.applied_by(1, 5);
    // It may be there again.
    cas.installs(2, 5);
    cas.ends_stored(5);
    // It has missed it for good.
    let mut cas = lags();
    cas.has_missed_it(0, 2, 5, 1);
    // With all three alive the other two have it.
    let mut cas = fails_after_it_was_applied(Some(1));
    cas.step(CasStep::Look);
}

#[test]
fn put_off_by_all_it_is_nowhere() {
    let mut cas = Script::over_3();
    cas.rejected_by(0, Rejection::UnknownConfig);
    cas.fails_at(1, 5, SendFailure::Moving);
    assert!(cas.0.was_put_off());
    cas.ends(MutationOutcome::Rejected(Rejection::UnknownConfig));
}

#[test]
fn put_off_until_its_deadline_it_is_taken_back() {
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.rejected_by(1, Rejection::UnknownConfig);
    cas.rejected_by(2, Rejection::UnknownConfig);
    cas.step(CasStep::Later);
    let (replica, version) = (0, v(5));
    assert_eq!(cas.0.poll(1_000), CasStep::Evict { replica, version });
    let last = Some(RetryCause::ConfigChanged);
    let cause = GiveUp::Deadline { last };
    let failed = MutationOutcome::Failed { cause };
    assert_eq!(cas.0.poll(1_000), CasStep::Done(failed));
}

#[test]
fn an_eviction_that_was_put_off_comes_again() {
    let mut cas = fails_after_it_was_applied(Some(2));
    cas.looks(agreed(4));
    cas.begins_to_evict(0, 5);
    cas.answer(0, 5, Outcome::Rejected(Rejection::UnknownConfig));
    cas.step(CasStep::Later);
    cas.evicts(0, 5);
    cas.ends_beside(Some(4));
}

#[test]
fn it_follows_its_replicas_to_other_processes() {
    // One has taken it, one has not answered, and took nothing.
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.sends(1, 5);
    cas.0.follow();
    cas.applied_by(1, 5);
    cas.installs(2, 5);
    cas.ends_stored(5);

    // Or had taken it: its own version is what stands in its way there.
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.sends(1, 5);
    cas.0.follow();
    cas.refused_by(1, 5, Some(5));
    cas.installs(2, 5);
    cas.ends_stored(5);

    // Nothing was sent: it begins.
    let mut cas = Script::over_3();
    cas.0.follow();
    cas.applied_by(0, 5);
    cas.applied_by(1, 5);
    cas.installs(2, 5);
    cas.ends_stored(5);

    // What may hold its lost copy is asked there, too, and does not hold it up.
    let mut cas = Script::over_3();
    cas.fails_at(0, 5, SendFailure::Lost);
    cas.looks(agreed(3));
    cas.nominates(5, 6);
    cas.0.follow();
    cas.refused_by(0, 6, Some(5));
    cas.applied_by(1, 6);
    cas.applied_by(2, 6);
    cas.installs(0, 6);
    cas.ends_stored(6);

    // Two refusals stay two refusals.
    let mut cas = fails_after_it_was_applied(Some(2));
    cas.0.follow();
    cas.looks(agreed(4));
    cas.evicts(0, 5);
    cas.ends_beside(Some(4));

    // Its copy is taken back where it is now.
    let mut cas = fails_after_it_was_applied(Some(2));
    cas.looks(agreed(4));
    cas.begins_to_evict(0, 5);
    cas.0.follow();
    cas.evicts(0, 5);
    cas.ends_beside(Some(4));
}

/// Replicas freeze one after the other: the last one has refused what the others took then,
/// and nobody sends it that again. The two others are all that holds it.
#[test]
fn what_two_of_three_hold_outlasts_a_message_that_the_move_has_cost() {
    let mut cas = Script::over_3();
    cas.fails_at(0, 5, SendFailure::Moving);
    cas.sends(1, 5);
    cas.0.follow();
    cas.applied_by(0, 5);
    cas.applied_by(1, 5);
    cas.installs(2, 5);
    cas.ends_stored(5);

    // The same where the answer was lost before the change was heard of, had it been taken or
    // not.
    for was_taken in [false, true] {
        let mut cas = Script::over_3();
        cas.fails_at(0, 5, SendFailure::Lost);
        cas.step(CasStep::Look);
        cas.0.follow();
        match was_taken {
            false => cas.applied_by(0, 5),
            true => cas.refused_by(0, 5, Some(5)),
        }
        cas.applied_by(1, 5);
        cas.installs(2, 5);
        cas.ends_stored(5);
    }
}

/// What stands in its way there is no contender's, to be given way to.
#[test]
fn it_does_not_wait_for_its_own_lost_copy() {
    let mut cas = Script::over_3();
    cas.fails_at(0, 5, SendFailure::Lost);
    cas.looks(agreed(3));
    cas.nominates(5, 6);
    cas.0.follow();
    cas.refused_by(0, 6, Some(5));
    cas.fails_at(1, 6, SendFailure::NotSent);
    cas.looks(agreed(3));
    cas.nominates(6, 7);
    cas.applied_by(1, 7);
    cas.applied_by(2, 7);
    cas.installs(0, 7);
    cas.ends_stored(7);
}

/// Those that have taken a replica's place are connected to first: what is sent before that is
/// put off, and is no refusal of who may hold it.
#[test]
fn who_may_hold_it_is_waited_for_where_it_is_now() {
    for rejection in [
        None,
        Some(Rejection::UnknownConfig),
        Some(Rejection::StaleConfig),
    ] {
        let put_off = |cas: &mut Script, replica| match rejection {
            None => cas.fails_at(replica, 5, SendFailure::Moving),
            Some(rejection) => cas.rejected_by(replica, rejection),
        };
        // One copy.
        let mut cas = Script::new(Mode::R1, EXPECTED);
        cas.sends(0, 5);
        cas.0.follow();
        put_off(&mut cas, 0);
        cas.step(CasStep::Later);
        cas.refused_by(0, 5, Some(5));
        cas.ends_stored(5);

        // Three, of which nobody is known to hold it.
        let mut cas = Script::over_3();
        cas.sends(0, 5);
        cas.0.follow();
        put_off(&mut cas, 0);
        put_off(&mut cas, 1);
        cas.step(CasStep::Later);
        cas.refused_by(0, 5, Some(5));
        cas.applied_by(1, 5);
        cas.installs(2, 5);
        cas.ends_stored(5);

        // Two hold it, and the third has something newer.
        let mut cas = Script::over_3();
        cas.applied_by(0, 5);
        cas.sends(1, 5);
        cas.0.follow();
        put_off(&mut cas, 1);
        cas.refused_by(2, 5, Some(4));
        cas.step(CasStep::Later);
        cas.refused_by(1, 5, Some(5));
        cas.installs(2, 5);
        cas.ends_stored(5);
    }
    // Nobody is asked in time.
    let mut cas = Script::new(Mode::R1, EXPECTED);
    cas.sends(0, 5);
    cas.0.follow();
    cas.fails_at(0, 5, SendFailure::Moving);
    cas.step(CasStep::Later);
    let unknown = CasStep::Done(MutationOutcome::Indeterminate);
    assert_eq!(cas.0.poll(1_000), unknown);
}

/// It has crashed since.
#[test]
fn who_may_have_held_it_and_has_forgotten_is_unknown() {
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.sends(1, 5);
    cas.0.follow();
    cas.rejected_by(1, Rejection::Recovering);
    cas.sends(2, 5);
    cas.answer(2, 5, evicted_at(4));
    cas.ends(MutationOutcome::Indeterminate);
}

#[test]
fn nobody_looks_for_a_contender_before_those_are_asked_that_may_hold_it() {
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.fails_at(1, 5, SendFailure::NotSent);
    cas.sends(2, 5);
    cas.0.follow();
    cas.refused_by(1, 5, Some(4));
    cas.refused_by(2, 5, Some(5));
    cas.installs(1, 5);
    cas.ends_stored(5);
}

#[test]
fn its_own_version_at_a_quorum_is_what_it_stored() {
    let mut cas = fails_after_it_was_applied(Some(2));
    cas.looks(agreed(5));
    cas.installs(1, 5);
    cas.installs(2, 5);
    cas.ends_stored(5);
}

/// A refusal of one that is asked again may be its own work.
#[test]
fn who_is_asked_again_may_have_taken_it_and_lost_it_since() {
    for (outcome, end) in [
        // Evicted since: it may have been seen.
        (
            Outcome::Mismatch {
                present: None,
                bound: v(5),
            },
            MutationOutcome::Indeterminate,
        ),
        // Overwritten since.
        (
            Outcome::Mismatch {
                present: Some(v(6)),
                bound: v(6),
            },
            MutationOutcome::Indeterminate,
        ),
        (
            Outcome::Superseded { bound: v(6) },
            MutationOutcome::Indeterminate,
        ),
    ] {
        let mut cas = Script::over_3();
        cas.applied_by(0, 5);
        cas.sends(1, 5);
        cas.0.follow();
        cas.sends(1, 5);
        cas.answer(1, 5, outcome);
        cas.sends(2, 5);
        cas.answer(2, 5, evicted_at(4));
        cas.ends(end);
    }
    // Nor is one that cannot be asked known to lack it.
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.sends(1, 5);
    cas.0.follow();
    cas.fails_at(1, 5, SendFailure::NotSent);
    cas.sends(2, 5);
    cas.answer(2, 5, evicted_at(4));
    cas.ends(MutationOutcome::Indeterminate);
}

/// Nothing is there any more, and nothing lags behind.
fn evicted_at(time_ns: u64) -> Outcome {
    Outcome::Mismatch {
        present: None,
        bound: v(time_ns),
    }
}

/// One replica was not reached for a moment, another one lags behind: what is acknowledged is
/// where this was not sent.
#[test]
fn who_holds_what_is_expected_and_was_left_out_is_asked_before_anything_is_evicted() {
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.fails_at(1, 5, SendFailure::NotSent);
    cas.refused_by(2, 5, Some(2));
    cas.pauses();
    // It is there again.
    cas.applied_by(1, 5);
    cas.installs(2, 5);
    cas.ends_stored(5);

    // It comes back when nobody is waited for any more.
    let mut cas = Script::over_3();
    cas.applied_by(0, 5);
    cas.fails_at(1, 5, SendFailure::NotSent);
    cas.sends(2, 5);
    cas.answer(2, 5, evicted_at(4));
    cas.looks(disagree([Some(5), Some(3), None]));
    cas.applied_by(1, 5);
    cas.installs(2, 5);
    cas.ends_stored(5);
}

/// An eviction that was put off does not bring the attempt back that it was for.
#[test]
fn an_attempt_that_gives_way_to_the_next_one_sends_nothing_while_an_eviction_is_late() {
    let mut cas = Script::over_nothing();
    cas.refused_by(0, 5, Some(2));
    cas.pauses();
    cas.looks(disagree([Some(2), None, Some(3)]));
    cas.begins_to_evict(0, 2);
    cas.begins_to_evict(2, 3);
    cas.answer(0, 2, Outcome::Rejected(Rejection::UnknownConfig));
    cas.answer(2, 3, Outcome::Applied);
    cas.step(CasStep::Later);
    cas.evicts(0, 2);
    cas.nominates(5, 8);
    cas.applied_by(0, 8);
    cas.applied_by(1, 8);
    cas.installs(2, 8);
    cas.ends_stored(8);
}

#[test]
fn what_was_refused_beside_one_that_put_it_off_stays_so_in_other_processes() {
    let mut cas = Script::over_3();
    cas.rejected_by(0, Rejection::UnknownConfig);
    cas.refused_by(1, 5, Some(4));
    cas.0.follow();
    cas.looks(Looked::Unknown);
    cas.ends_beside(None);
    assert!(cas.0.was_put_off());
}
