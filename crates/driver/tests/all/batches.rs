//! Lookups side by side, of which one is waited for.

use crate::world::{Client, Connects};
use std::rc::Rc;
use trefoil_cell::Mode;
use trefoil_driver::{CarrierInUse, Outcome};

const COUNT: usize = 30;

/// Two are asked, and one of them has stopped: the third one is asked for all of them while
/// the first is waited for, which needs it itself or not.
#[test]
fn each_has_its_hedge_in_its_time() {
    for slow in 0..3 {
        let mut client = Client::new(Mode::R32, &[Connects::Near; 3]);
        for backend in &client.world.backends {
            backend.holds.set(Some(5));
        }
        client.world.backends[slow].is_quiet.set(true);
        let places = client.begin_batch(COUNT, 60_000);
        client.pass(10);
        for at in places {
            let outcome = client.outcome_of(at);
            assert!(
                matches!(outcome, Some(Outcome::Hit { .. })),
                "{slow}: {outcome:?}"
            );
        }
    }
}

/// Who waits for the first of them sleeps until the others have something to do.
#[test]
fn who_waits_for_one_wakes_for_the_others() {
    let mut client = Client::new(Mode::R1, &[Connects::Far]);
    client.world.backends[0].is_quiet.set(true);
    let places = client.begin_batch(COUNT, 100);
    client.begin_get();
    assert!(client.next_work_ms() <= 100);
    client.pass(101);
    for at in places {
        let outcome = client.outcome_of(at);
        let is_late = matches!(outcome, Some(Outcome::Failed { .. }));
        assert!(is_late, "{outcome:?}");
    }
    assert!(client.outcome().is_none(), "it has its own time");
}

/// Their calls end with them, and nobody is heard by that.
#[test]
fn who_has_little_patience_notices_a_silent_backend() {
    let mut client = Client::new(Mode::R1, &[Connects::Far]);
    let backend = Rc::clone(&client.world.backends[0]);
    backend.is_quiet.set(true);
    backend.connects.set(Connects::Silent);
    // Others' long values have their time.
    backend.len_under_way.set(64 << 20);
    for _ in 0..60 {
        client.begin_batch(1, 100);
        client.pass(100);
        assert!(matches!(client.outcome(), Some(Outcome::Failed { .. })));
        client.release();
        if client.carrier(0) == CarrierInUse::Down {
            assert!(backend.is_given_up.get());
            return;
        }
    }
    panic!("it is asked again and again");
}

/// One lookup that takes so long, and has a tenth of a second; a second later it is used again.
fn rested_after_one_that_takes(ms: u64) -> Client {
    let mut client = Client::new(Mode::R1, &[Connects::Far]);
    let backend = Rc::clone(&client.world.backends[0]);
    backend.takes_ms.set(ms);
    client.begin_batch(1, 100);
    client.pass(100);
    assert!(matches!(client.outcome(), Some(Outcome::Failed { .. })));
    client.release();
    backend.takes_ms.set(5);
    client.rests(900);
    client
}

/// Whether its answer came late or not at all, nobody has waited for it.
#[test]
fn a_lookup_that_took_too_long_makes_nobody_silent_who_is_asked_later() {
    for ms in [150, 590, 610, 5_000] {
        let mut client = rested_after_one_that_takes(ms);
        client.begin_set();
        client.pass(6);
        client.is_stored();
        let mut client = rested_after_one_that_takes(ms);
        client.begin_get();
        client.pass(6);
        let outcome = client.outcome();
        assert!(matches!(outcome, Some(Outcome::Miss { .. })), "{outcome:?}");
        assert_eq!(client.carrier(0), CarrierInUse::Rpc, "{ms}");
    }
}

/// One that has stopped since is found out about as soon as one that was heard before.
#[test]
fn one_that_nobody_has_looked_at_is_silent_in_its_time() {
    for is_set in [true, false] {
        let mut client = rested_after_one_that_takes(5_000);
        let backend = Rc::clone(&client.world.backends[0]);
        backend.is_quiet.set(true);
        backend.connects.set(Connects::Silent);
        match is_set {
            true => client.begin_set(),
            false => client.begin_get(),
        }
        client.pass(200);
        assert_eq!(client.carrier(0), CarrierInUse::Rpc);
        client.pass(100);
        assert_eq!(client.carrier(0), CarrierInUse::Down);
    }
}

/// There is room when nobody would wait for the answers any more.
#[test]
fn who_has_waited_for_room_until_its_deadline_is_not_sent() {
    let mut client = Client::new(Mode::R1, &[Connects::Far]);
    let backend = Rc::clone(&client.world.backends[0]);
    backend.is_full.set(true);
    let places = client.begin_batch(COUNT, 100);
    client.pass(99);
    backend.is_full.set(false);
    backend.is_quiet.set(true);
    client.pass(1);
    assert_eq!(backend.asked.get(), 0);
    for at in places {
        let outcome = client.outcome_of(at);
        assert!(
            matches!(outcome, Some(Outcome::Failed { .. })),
            "{outcome:?}"
        );
    }
}

/// Its process has paused: nobody was refused by that, and nothing is tried again.
#[test]
fn who_could_not_run_until_its_deadline_is_sent() {
    let mut client = Client::new(Mode::R1, &[Connects::Far]);
    let backend = Rc::clone(&client.world.backends[0]);
    backend.is_full.set(true);
    client.retries_max = 0;
    let places = client.begin_batch(COUNT, 100);
    client.pass(50);
    backend.is_full.set(false);
    client.pauses(1_000);
    assert_eq!(backend.asked.get(), COUNT as u64);
    client.pass(1);
    for at in places {
        let outcome = client.outcome_of(at);
        assert!(matches!(outcome, Some(Outcome::Miss { .. })), "{outcome:?}");
    }
}
