//! Connections that break, and servers that end.

use crate::serving::{PATIENCE, Server, options, submit};
use std::time::Duration;
use trefoil_ordered::{Carrier, NoAnswer, Refused};

fn request(client: usize, number: u64) -> Vec<u8> {
    let mut bytes = vec![client as u8];
    bytes.extend(number.to_le_bytes());
    bytes.resize(9 + (number * 53 % 700) as usize, 7);
    bytes
}

/// Of each client.
fn requests() -> u64 {
    let chosen = std::env::var("TREFOIL_TEST_VERBS_REQUESTS");
    chosen.map_or(300, |count| count.parse().expect("a number"))
}

/// Each request once and in order, whenever connections break.
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn what_was_sent_is_executed_once_whatever_breaks() {
    const CLIENTS: usize = 3;
    let requests = requests();
    let mut server = Server::start(1, options());
    std::thread::scope(|scope| {
        for at in 0..CLIENTS {
            let mut client = server.client(at).expect("a place");
            scope.spawn(move || {
                let mut answer = Vec::new();
                let mut lost = 0;
                let mut sent = None;
                for number in 0..requests {
                    let nilext = number % 7 != 3;
                    let under_way = submit(&mut client, &request(at, number), nilext);
                    // At any fill of the window, each client at other times.
                    if (number + at as u64 * 5) % 23 == 22 {
                        client.disconnect();
                    }
                    if !nilext {
                        match client.answer(under_way, &mut answer, PATIENCE) {
                            Ok(()) => {}
                            Err(NoAnswer::Lost) => lost += 1,
                            Err(error) => panic!("{error}"),
                        }
                    }
                    sent = Some(under_way);
                }
                let last = sent.expect("some");
                client.committed(last, PATIENCE).expect("a server");
                println!(
                    "{} connections more, {lost} answers lost",
                    client.reconnected()
                );
                assert!(client.reconnected() > 5);
            });
        }
    });
    let counts = server.end();
    assert_eq!((counts.broken, counts.strays), (0, 0), "{counts:?}");
    let executed = server.executed();
    for at in 0..CLIENTS {
        let of_client = executed.iter().filter(|bytes| bytes[0] == at as u8);
        let expected: Vec<_> = (0..requests).map(|number| request(at, number)).collect();
        assert!(of_client.eq(expected.iter()), "client {at}");
    }
    assert_eq!(executed.len() as u64, CLIENTS as u64 * requests);
}

/// A client that goes with requests under way: what was acknowledged to it is executed, the
/// others go on.
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn a_client_that_dies_leaves_what_was_acknowledged() {
    let mut server = Server::start(1, options());
    let mut other = server.client(1).expect("a place");
    for round in 0..20 {
        let mut client = server.client(round).expect("a place");
        let mut last = None;
        for number in 0..=(round as u64 % 9) {
            last = Some(submit(
                &mut client,
                &request(0, round as u64 * 100 + number),
                true,
            ));
        }
        client
            .committed(last.expect("one"), PATIENCE)
            .expect("a server");
        // These may be executed or not.
        let _ = client.submit(b"\xffunknown", true);
        let _ = client.submit(b"\xffunknown", false);
        drop(client);
        let sent = submit(&mut other, &request(1, round as u64), false);
        let answered = other.answer(sent, &mut Vec::new(), PATIENCE);
        assert_eq!(answered, Ok(()));
    }
    server.end();
    let executed = server.executed();
    let of = |client: u8| {
        executed
            .iter()
            .filter(move |bytes| bytes[0] == client)
            .cloned()
    };
    let expected =
        (0..20).flat_map(|round| (0..=(round % 9)).map(move |n| request(0, round * 100 + n)));
    assert!(of(0).eq(expected));
    assert!(of(1).eq((0..20).map(|round| request(1, round))));
}

/// A server that is gone without a word, and one in its place that knows nothing.
#[test]
#[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
fn another_life_of_the_queue_is_told() {
    let mut server = Server::start(1, options());
    let mut client = server.client(1).expect("a place");
    let sent = submit(&mut client, b"one", true);
    client.committed(sent, PATIENCE).expect("a server");
    server.vanish();
    let mut sent = None;
    for _ in 0..3 {
        sent = client.submit(b"two", true).ok();
    }
    let short = Duration::from_millis(50);
    let sent = sent.expect("room");
    assert_eq!(
        client.committed(sent, short),
        Err(NoAnswer::TimedOut(short))
    );
    let after = Server::start_at(2, options(), server.address);
    assert_eq!(client.committed(sent, PATIENCE), Err(NoAnswer::ServerGone));
    assert_eq!(client.submit(b"three", true), Err(Refused::Closed));
    assert_eq!(after.executed(), Vec::<Vec<u8>>::new());
}
