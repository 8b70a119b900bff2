//! What one connection has the event loop do before others have their turn: bytes that come
//! or go, however long a value is.

use crate::support::{self, LineSession, connect};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use trefoil_gateway::keyspace::{Gates, LocalKeyspace};
use trefoil_gateway::server::{Doors, Gateway, GatewayOptions, LoopObserver, Protocol};
use trefoil_gateway_core::keyspace::Keyspace;
use trefoil_gateway_core::memory::MemoryKeyspace;
use trefoil_gateway_core::resp::RespSession;
use trefoil_gateway_core::session::Session;
use trefoil_gateway_core::world::{Done, Observer, Settings};

/// What a turn moves at most: its share, and what it ends behind.
const TURN_LEN_MAX: usize = (128 << 10) + (256 << 10);
const LONG_LEN: usize = 3 << 20;

/// Bytes that turns have moved.
#[derive(Clone, Default)]
struct Turns(Arc<Counts>);

#[derive(Default)]
struct Counts {
    of_turn: AtomicUsize,
    most: AtomicUsize,
}

impl Turns {
    fn most(&self) -> usize {
        self.0.most.load(Ordering::Relaxed)
    }
}

impl Observer for Turns {
    fn done(&mut self, _done: &Done<'_>) {}
}

impl LoopObserver for Turns {
    fn served(&mut self) {
        // While this one sleeps, a client writes what there is room for.
        std::thread::sleep(Duration::from_micros(500));
        self.0.of_turn.store(0, Ordering::Relaxed);
    }

    fn traffic(&mut self, read: usize, written: usize) {
        let of_turn = self.0.of_turn.fetch_add(read + written, Ordering::Relaxed);
        self.0
            .most
            .fetch_max(of_turn + read + written, Ordering::Relaxed);
    }
}

fn open<K: Keyspace + Send + 'static, S: Session + Send + 'static>(
    protocol: Protocol,
    keyspace: impl Fn() -> K,
    session: fn(Protocol, &Settings) -> S,
) -> (Gateway, Turns) {
    let turns = Turns::default();
    let mut options: GatewayOptions = support::options();
    options.doors[0].protocol = protocol;
    let doors = Doors::open(&options).unwrap();
    let observer = |_| turns.clone();
    let gateway = Gateway::start_with(options, doors, |_| keyspace(), observer, session).unwrap();
    (gateway, turns)
}

fn redis(_protocol: Protocol, _settings: &Settings) -> RespSession {
    RespSession::new()
}

#[test]
fn a_long_value_comes_and_goes_in_several_turns() {
    let (gateway, turns) = open(
        Protocol::Memcached,
        || MemoryKeyspace::new(0),
        LineSession::open,
    );
    let mut client = connect(&gateway);
    let value: Vec<u8> = (0..LONG_LEN).map(|byte| byte as u8).collect();
    assert_eq!(client.set("long", &value), "ok");
    let most = turns.most();
    assert!(most <= TURN_LEN_MAX, "{most} bytes came in one turn");
    assert!(client.get("long").as_deref() == Some(&value));
    let most = turns.most();
    assert!(most <= TURN_LEN_MAX, "{most} bytes left in one turn");
}

/// Whether they were executed by a thread, as those of one key are, or in pieces.
#[test]
fn answers_of_a_long_transaction_leave_in_several_turns() {
    let cell = crate::cell::TestCell::start(trefoil_cell::Mode::R1);
    let (local, gates) = (cell.local_store(), Gates::default());
    let (gateway, turns) = open(
        Protocol::Redis,
        || LocalKeyspace::beside(local.clone(), &gates),
        redis,
    );
    let mut client = connect(&gateway);
    let value = "v".repeat(200_000);
    for key in ["a", "b"] {
        let head = format!("*3\r\n$3\r\nSET\r\n$1\r\n{key}\r\n");
        client.send(format!("{head}${}\r\n{value}\r\n", value.len()));
    }
    assert_eq!([client.line(), client.line()], ["+OK\r", "+OK\r"]);
    for keys in [["a", "a"], ["a", "b"]] {
        let gets = keys.map(|key| format!("GET {key}\r\n")).concat();
        client.send(format!("MULTI\r\n{}EXEC\r\n", gets.repeat(20)));
        (0..41).for_each(|_| drop(client.line()));
        assert_eq!(client.line(), "*40\r");
        for _ in 0..40 {
            assert_eq!(client.line(), "$200000\r");
            assert!(client.line().trim_end() == value);
        }
        let most = turns.most();
        assert!(most <= TURN_LEN_MAX, "{keys:?}: {most} bytes in one turn");
    }
}
