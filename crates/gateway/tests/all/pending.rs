//! A front door over a cell in part of which nobody answers: operations that wait,
//! many at a time, on one event loop.

use crate::cell::TestCell;
use crate::support::{self, Client, connect};
use std::io::Read as _;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};
use trefoil_client::{Cell, Options};
use trefoil_gateway::keyspace::{CellOptions, cell_keyspace};
use trefoil_gateway::server::{Doors, Gateway};
use trefoil_gateway_core::memcache::MemcacheSession;

/// Longer than anything here takes.
const DEADLINE: Duration = Duration::from_secs(30);

fn gateway(cell: &Cell, deadline: Duration) -> Gateway {
    let options = support::options();
    let doors = Doors::open(&options).unwrap();
    let cell_options = CellOptions {
        client: Options {
            deadline,
            ..CellOptions::default().client
        },
        ..CellOptions::default()
    };
    Gateway::start_with(
        options,
        doors,
        |_| cell_keyspace(cell.clone(), cell_options.clone()),
        |_| support::Nobody,
        |_, _| MemcacheSession::new(),
    )
    .unwrap()
}

/// Keys of the backend with this number.
fn keys(cell: &Cell, number: u32, count: usize) -> Vec<String> {
    let config = cell.config();
    (0..)
        .map(|number| format!("key{number}"))
        .filter(|key| {
            let cohort = config.placement().cohort(config.hash.hash(key.as_bytes()));
            cohort.as_slice() == [number]
        })
        .take(count)
        .collect()
}

fn set(client: &mut Client<TcpStream>, key: &str) -> String {
    client.ask(&format!("set {key} 0 0 5\r\nvalue\r"))
}

/// Whether operations on keys of the backend that answers were answered while 32
/// on keys of the other one waited.
fn others_were_answered_first(cell: &Cell) -> bool {
    // A client that has not found out yet that the backend is silent.
    let gateway = gateway(cell, DEADLINE);
    // Of every kind that waits for a key.
    let mut slow: Vec<_> = keys(cell, 1, 32)
        .iter()
        .enumerate()
        .map(|(index, key)| {
            let mut client = connect(&gateway);
            client.send(match index % 4 {
                0 => format!("set {key} 0 0 5\r\nvalue\r\n"),
                1 => format!("get {key}\r\n"),
                2 => format!("incr {key} 1\r\n"),
                _ => format!("add {key} 0 0 5\r\nvalue\r\n"),
            });
            client
        })
        .collect();
    let mut quick = connect(&gateway);
    for key in keys(cell, 0, 10) {
        assert_eq!(set(&mut quick, &key), "STORED\r");
        let appended = quick.ask(&format!("append {key} 0 0 1\r\n!\r"));
        assert_eq!(appended, "STORED\r");
        quick.send(format!("get {key}\r\n"));
        assert_eq!(quick.line(), format!("VALUE {key} 0 6\r"));
        assert_eq!([quick.line(), quick.line()], ["value!\r", "END\r"]);
    }
    // All of that has come: has any of the others?
    let all_wait = slow.iter_mut().all(|client| {
        let stream = client.stream.get_mut();
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    });
    // Clients that leave while they wait take nothing with them.
    drop(slow);
    assert_eq!(set(&mut quick, &keys(cell, 0, 1)[0]), "STORED\r");
    all_wait
}

#[test]
fn many_slow_operations_on_one_loop_hold_nobody_else_up() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let running = TestCell::start_half_silent(silent.local_addr().unwrap());
    let cell = running.client();
    // A backend that is silent for half a second counts as down, and whoever waits
    // for it has an answer: a machine may stand still for so long, but not always.
    // One that waits for a thread that others have would never be first.
    assert!((0..10).any(|_| others_were_answered_first(&cell)));
}

/// Whether operations on keys of the backend that answers were answered while more than
/// all places were asked for by operations on keys of the other one.
fn others_had_places(cell: &Cell) -> bool {
    let gateway = gateway(cell, DEADLINE);
    let mut slow: Vec<_> = keys(cell, 1, 400)
        .iter()
        .map(|key| {
            let mut client = connect(&gateway);
            client.send(format!("set {key} 0 0 5\r\nvalue\r\n"));
            client
        })
        .collect();
    let mut quick = connect(&gateway);
    for key in keys(cell, 0, 10) {
        assert_eq!(set(&mut quick, &key), "STORED\r");
    }
    slow.iter_mut().all(|client| {
        let stream = client.stream.get_mut();
        stream.set_nonblocking(true).unwrap();
        let read = stream.read(&mut [0]);
        read.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock)
    })
}

#[test]
fn a_silent_backend_does_not_take_all_places() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let running = TestCell::start_half_silent(silent.local_addr().unwrap());
    let cell = running.client();
    // As above: whoever waits for the silent one has an answer after half a second.
    assert!((0..10).any(|_| others_had_places(&cell)));
}

/// Whether what a silent backend is asked ends at its deadline, and not because the
/// backend counts as down: that is after half a second.
fn ends_at_the_deadline(cell: &Cell) -> bool {
    // A client that has not found out yet that the backend is silent.
    let gateway = gateway(cell, Duration::from_millis(100));
    let mut client = connect(&gateway);
    let begin = Instant::now();
    let answer = set(&mut client, &keys(cell, 1, 1)[0]);
    let took = begin.elapsed();
    assert!(answer.starts_with("SERVER_ERROR"), "{answer}");
    assert!(took >= Duration::from_millis(80), "{took:?}");
    took < Duration::from_millis(450)
}

#[test]
fn what_nobody_answers_ends_at_the_deadline() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let running = TestCell::start_half_silent(silent.local_addr().unwrap());
    let cell = running.client();
    let gateway = gateway(&cell, Duration::from_millis(300));
    let begin = Instant::now();
    let keys = keys(&cell, 1, 300);
    // More than are under way at a time: the others have their turn after them.
    let mut clients: Vec<_> = keys
        .iter()
        .map(|key| {
            let mut client = connect(&gateway);
            client.send(format!("set {key} 0 0 5\r\nvalue\r\n"));
            client
        })
        .collect();
    for client in &mut clients {
        let line = client.line();
        assert!(line.starts_with("SERVER_ERROR"), "{line}");
    }
    assert!(begin.elapsed() >= Duration::from_millis(250));
    // A busy machine may stand still for so long, but not always.
    assert!((0..20).any(|_| ends_at_the_deadline(&cell)));
}
