//! Messages that wait for room on the way to a backend.

use crate::world::{Client, Connects};
use trefoil_cell::Mode;
use trefoil_client_core::outcome::MutationOutcome;
use trefoil_driver::{CarrierInUse, Outcome};

fn is_stored(client: &Client) -> bool {
    matches!(
        client.outcome(),
        Some(Outcome::Mutated(MutationOutcome::Stored { .. }))
    )
}

/// A client all of whose calls find others' under way, to a backend reached by calls.
fn refused(connects: Connects) -> Client {
    let mut client = Client::new(Mode::R1, &[Connects::Far]);
    let backend = &client.world.backends[0];
    backend.is_full.set(true);
    backend.connects.set(connects);
    client.begin_set();
    client
}

/// Though it owes nothing to this client.
#[test]
fn a_backend_that_answers_nobody_is_left() {
    let mut client = refused(Connects::Silent);
    client.pass(5_000);
    assert_eq!(client.carrier(0), CarrierInUse::Down);
    assert!(client.world.backends[0].is_given_up.get());
    assert!(client.world.learned.get() > 0);
    let outcome = client.outcome();
    assert!(
        matches!(
            outcome,
            Some(Outcome::Mutated(MutationOutcome::Failed { .. }))
        ),
        "{outcome:?}"
    );
}

/// Long values of others, none of which is there yet.
#[test]
fn what_is_on_the_way_to_a_backend_has_its_time() {
    let mut client = refused(Connects::Silent);
    let backend = std::rc::Rc::clone(&client.world.backends[0]);
    backend.len_under_way.set(64 << 20);
    client.pass(4_000);
    assert_eq!(client.carrier(0), CarrierInUse::Rpc);
    assert!(!backend.is_given_up.get());
    client.pass(4_000);
    assert_eq!(client.carrier(0), CarrierInUse::Down);
}

#[test]
fn a_backend_that_answers_others_or_greetings_is_waited_for() {
    for (answers_others, connects) in [(true, Connects::Silent), (false, Connects::Far)] {
        let mut client = refused(connects);
        let backend = std::rc::Rc::clone(&client.world.backends[0]);
        backend.answers_others.set(answers_others);
        client.pass(5_000);
        assert_eq!(client.carrier(0), CarrierInUse::Rpc);
        assert!(client.outcome().is_none());
        backend.is_full.set(false);
        client.pass(5_000);
        assert!(is_stored(&client), "{:?}", client.outcome());
    }
}

/// One replica has it, the way to another does not move, and the third was down at
/// first: it is asked again while the other one's message waits.
#[test]
fn a_replica_that_is_back_is_asked_while_another_does_not_keep_up() {
    let connects = [Connects::Near, Connects::Down, Connects::Near];
    let mut client = Client::new(Mode::R32, &connects);
    client.world.backends[2].is_full.set(true);
    client.begin_set();
    client.pass(100);
    assert!(client.outcome().is_none(), "{:?}", client.outcome());
    client.world.backends[1].connects.set(Connects::Near);
    client.pass(1_000);
    assert!(is_stored(&client), "{:?}", client.outcome());
}

/// And where it does not come back, there are retries left when the way moves.
#[test]
fn a_way_that_moves_late_is_waited_for() {
    let connects = [Connects::Near, Connects::Down, Connects::Near];
    let mut client = Client::new(Mode::R32, &connects);
    client.world.backends[2].is_full.set(true);
    client.begin_set();
    client.pass(5_000);
    assert!(client.outcome().is_none(), "{:?}", client.outcome());
    client.world.backends[2].is_full.set(false);
    client.pass(100);
    assert!(is_stored(&client), "{:?}", client.outcome());
}

/// Two are asked by message, and one of them has stopped: the third one is idle.
#[test]
fn a_third_replica_is_asked_where_one_of_two_is_slow() {
    for slow in 0..3 {
        let mut client = Client::new(Mode::R32, &[Connects::Near; 3]);
        for backend in &client.world.backends {
            backend.holds.set(Some(5));
        }
        client.world.backends[slow].is_quiet.set(true);
        client.begin_get();
        client.pass(10);
        let outcome = client.outcome();
        assert!(
            matches!(outcome, Some(Outcome::Hit { .. })),
            "{slow}: {outcome:?}"
        );
    }
}

/// A value that is too long for rings goes by call. That its backend has stopped is told by the
/// lease on its memory all the same.
#[test]
fn a_backend_that_stops_is_left_when_its_lease_is_over_also_where_it_was_called() {
    for stopped in 0..3 {
        let mut client = Client::new(Mode::R32, &[Connects::Mapped; 3]);
        for backend in &client.world.backends {
            backend.has_short_rings.set(true);
        }
        client.pass(10);
        client.world.backends[stopped].stops();
        client.begin_cas();
        assert!(client.next_work_ms() <= 50, "{}", client.next_work_ms());
        client.pass(650);
        client.is_stored();
    }
}

/// One that has moved to another process is not lost: what it was called for it answers.
#[test]
fn what_was_called_for_before_a_move_is_answered_after_it() {
    let mut client = Client::new(Mode::R1, &[Connects::Mapped]);
    let backend = std::rc::Rc::clone(&client.world.backends[0]);
    backend.has_short_rings.set(true);
    client.pass(10);
    backend.is_quiet.set(true);
    client.begin_cas();
    backend.moves();
    client.pass(300);
    assert!(client.outcome().is_none(), "{:?}", client.outcome());
    backend.is_quiet.set(false);
    client.pass(10);
    client.is_stored();
}

/// As many as leave no memory behind, and an operation after them.
#[test]
fn lookups_that_are_abandoned_are_over() {
    let mut client = Client::new(Mode::R32, &[Connects::Near; 3]);
    client.begin_and_abandon(3_000);
    client.pass(10);
    client.set(b"key");
}

/// A machine may stand still for longer than an operation may take. Who was to answer
/// has stood still, too, and is waited for a little longer.
#[test]
fn a_pause_of_the_process_is_nobodys_lateness() {
    let begun = || {
        let mut client = Client::new(Mode::R32, &[Connects::Near; 3]);
        for backend in &client.world.backends {
            backend.takes_ms.set(61_100);
        }
        client.begin_set();
        client
    };
    let mut paused = begun();
    paused.pass(10);
    paused.pauses(61_000);
    assert!(paused.outcome().is_none(), "{:?}", paused.outcome());
    paused.pass(200);
    paused.is_stored();

    // They go on a little later, and their leases ended in the pause.
    let mut first = Client::new(Mode::R32, &[Connects::Mapped; 3]);
    for backend in &first.world.backends {
        backend.takes_ms.set(30_500);
        backend.has_stopped.set(true);
    }
    first.begin_set();
    first.pauses(30_000);
    first.pass(300);
    assert!(first.outcome().is_none(), "{:?}", first.outcome());
    for backend in &first.world.backends {
        backend.has_stopped.set(false);
    }
    first.pass(300);
    first.is_stored();

    let mut ran = begun();
    ran.pass(61_000);
    let outcome = ran.outcome();
    assert!(
        outcome.is_some() && !is_stored(&ran),
        "it has its deadline: {outcome:?}"
    );
}
