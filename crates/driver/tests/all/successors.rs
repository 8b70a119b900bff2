//! Replicas that have moved to other processes, of which one is late.

use crate::world::{Client, Connects};
use trefoil_cell::Mode;
use trefoil_client_core::get::MissReason;
use trefoil_driver::Outcome;

/// Of a cell that was just resized: two replicas differ, and the third one decides.
fn two_differ(connects: Connects, prepare: impl Fn(&Client)) -> Client {
    let mut client = Client::new(Mode::R32, &[connects; 3]);
    for (backend, time_ns) in client.world.backends.iter().zip([5, 4, 5]) {
        backend.holds.set(Some(time_ns));
    }
    prepare(&client);
    client.is_resized();
    client.begin_get();
    client
}

fn is_hit(client: &Client) -> bool {
    matches!(client.outcome(), Some(Outcome::Hit { version }) if version.time_ns == 5)
}

/// The process before it still accepts a connection in the moment in which it leaves.
#[test]
fn who_is_greeted_by_one_that_is_leaving_waits_for_its_successor() {
    let mut client = two_differ(Connects::Near, |client| {
        client.world.backends[2].leaving_greetings.set(1);
    });
    client.pass(10);
    assert!(is_hit(&client), "{:?}", client.outcome());
    assert_eq!(
        client.world.learned.get(),
        0,
        "nothing newer is to be learned"
    );
}

/// It was looked for a moment ago, in vain.
#[test]
fn a_successor_that_was_not_there_a_moment_ago_is_looked_for_again() {
    let mut client = two_differ(Connects::Near, |client| {
        client.world.backends[2].connects.set(Connects::Down);
    });
    client.pass(1);
    client.world.backends[2].connects.set(Connects::Near);
    client.pass(10);
    assert!(is_hit(&client), "{:?}", client.outcome());
}

/// Calls say at once that they do not reach it.
#[test]
fn a_successor_that_is_reached_by_calls_is_waited_for() {
    let away = |client: &Client| client.world.backends[2].is_away.set(true);
    let mut client = two_differ(Connects::Far, away);
    client.pass(1_500);
    assert!(client.outcome().is_none(), "{:?}", client.outcome());
    client.world.backends[2].is_away.set(false);
    client.pass(50);
    assert!(is_hit(&client), "{:?}", client.outcome());
    // One that has not come by then is as good as gone.
    let mut client = two_differ(Connects::Far, away);
    client.pass(3_000);
    let reason = client.outcome();
    assert!(
        matches!(
            reason,
            Some(Outcome::Miss {
                reason: MissReason::Inquorate,
                ..
            })
        ),
        "{reason:?}"
    );
}

/// A server that ends says of a call that it was not executed. Whoever takes its place is
/// asked, and what is in force then is learned.
#[test]
fn who_is_refused_by_one_that_ends_asks_its_successor() {
    for (mode, ending) in [(Mode::R1, &[0][..]), (Mode::R32, &[0, 1])] {
        let mut client = Client::new(mode, &[Connects::Far; 3][..mode.copy_count()]);
        for backend in &client.world.backends {
            backend.holds.set(Some(5));
        }
        for number in ending {
            client.world.backends[*number].is_ending.set(true);
        }
        client.begin_get();
        client.pass(500);
        assert!(client.outcome().is_none(), "{:?}", client.outcome());
        assert!(client.world.learned.get() > 100, "{mode:?}");
        for backend in &client.world.backends {
            backend.is_ending.set(false);
        }
        client.pass(10);
        assert!(is_hit(&client), "{:?}", client.outcome());
    }
}

/// Where nobody takes its place, the lookup has failed in a moment, as ever.
#[test]
fn who_is_refused_by_one_that_ends_for_good_does_not_wait_for_it() {
    let mut client = Client::new(Mode::R1, &[Connects::Far]);
    client.world.backends[0].is_ending.set(true);
    client.begin_get();
    client.pass(100);
    assert!(client.outcome().is_none(), "{:?}", client.outcome());
    client.world.backends[0].is_away.set(true);
    client.pass(100);
    let outcome = client.outcome();
    assert!(
        matches!(outcome, Some(Outcome::Failed { .. })),
        "{outcome:?}"
    );
}
