//! Lookups of three copies of which one answers late.

use crate::world::{Client, Connects};
use trefoil_cell::Mode;
use trefoil_driver::Outcome;

const NEAR: [Connects; 3] = [Connects::Near; 3];

/// How many milliseconds a lookup takes.
#[track_caller]
fn get_ms(client: &mut Client) -> u64 {
    client.begin_get();
    for ms in 1..100 {
        client.pass(1);
        if let Some(outcome) = client.outcome() {
            assert!(matches!(outcome, Outcome::Hit { .. }), "{outcome:?}");
            client.release();
            return ms;
        }
    }
    panic!("it does not end");
}

fn client() -> Client {
    let client = Client::new(Mode::R32, &NEAR);
    for backend in &client.world.backends {
        backend.holds.set(Some(1));
        backend.takes_ms.set(2);
    }
    client
}

fn asked(client: &Client) -> [u64; 3] {
    std::array::from_fn(|number| client.world.backends[number].asked.take())
}

#[test]
fn one_that_is_slow_is_asked_last_and_taken_again() {
    let mut client = client();
    (0..300).for_each(|_| assert_eq!(get_ms(&mut client), 2));
    // In turn.
    assert!(asked(&client).iter().all(|count| *count > 100));
    client.world.backends[1].takes_ms.set(20);
    // Those that find it out.
    for _ in 0..4 {
        get_ms(&mut client);
    }
    asked(&client);
    (0..300).for_each(|_| assert_eq!(get_ms(&mut client), 2));
    let [one, slow, other] = asked(&client);
    assert_eq!((one, other), (300, 300));
    // Now and then it is asked all the same: in 600 ms.
    assert!((5..=30).contains(&slow), "{slow}");
    client.world.backends[1].takes_ms.set(2);
    // What it still has to answer comes first.
    client.pass(20);
    (0..500).for_each(|_| assert_eq!(get_ms(&mut client), 2));
    asked(&client);
    (0..300).for_each(|_| assert_eq!(get_ms(&mut client), 2));
    assert!(asked(&client).iter().all(|count| *count > 100));
}

#[test]
fn on_a_long_way_no_more_are_asked_than_needed() {
    let mut client = client();
    for backend in &client.world.backends {
        backend.takes_ms.set(50);
    }
    for _ in 0..3 {
        get_ms(&mut client);
    }
    asked(&client);
    (0..20).for_each(|_| assert_eq!(get_ms(&mut client), 50));
    assert_eq!(asked(&client).iter().sum::<u64>(), 40);
}
