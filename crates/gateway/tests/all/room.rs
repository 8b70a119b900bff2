//! What connections keep together is bounded: whoever keeps most makes room, and nobody
//! else; who has gone leaves nothing half done.

use crate::support::{self, Client, connect};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use trefoil_gateway::server::{Doors, Gateway, Protocol};
use trefoil_gateway_core::deferred::{
    Change, Changed, DeferredKeyspace, Executor, Operation, Outcome, OwnedItem, Ticket,
};
use trefoil_gateway_core::keyspace::{
    Access, Fault, Item, Keyspace as _, NewItem, Ready as _, Wake,
};
use trefoil_gateway_core::memory::MemoryKeyspace;

const LEN: usize = 1 << 20;

/// What a test and its executor share.
#[derive(Default)]
struct Gate {
    is_open: AtomicBool,
    /// Operations that have come.
    submitted: AtomicUsize,
    wake: Mutex<Option<Wake>>,
}

impl Gate {
    fn open(&self) {
        self.is_open.store(true, Ordering::SeqCst);
        self.wake.lock().unwrap().as_ref().unwrap()();
    }
}

/// Reads at once, and stores under `slow…` when it is told to.
struct Gated {
    memory: MemoryKeyspace,
    waiting: Vec<(Ticket, Operation)>,
    gate: Arc<Gate>,
}

fn key_of(operation: &Operation) -> &[u8] {
    match operation {
        Operation::Get { key, .. } | Operation::Set { key, .. } | Operation::Change { key, .. } => {
            key
        }
        _ => b"",
    }
}

impl Gated {
    fn execute(&mut self, operation: Operation) -> Outcome {
        match operation {
            Operation::Set { key, item, .. } => {
                Outcome::Stored(self.memory.set(&key, &item.item()).ready().unwrap())
            }
            Operation::Change { key, change, .. } => match change {
                Change::Store(item) => {
                    let stored = self.memory.set(&key, &item.item()).ready().unwrap();
                    Outcome::Changed(stored.map(Changed::Stored))
                }
                Change::Erase => Outcome::Changed(Ok(Changed::Lost)),
            },
            Operation::Get { key, access, .. } => {
                let mut found = None;
                let read = self.memory.get(&key, access, &mut |item| {
                    found = item.map(OwnedItem::of);
                });
                Outcome::Item(read.ready().unwrap().map(|()| found))
            }
            other => panic!("{other:?}"),
        }
    }
}

impl Executor for Gated {
    fn try_get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Option<Result<(), Fault>> {
        Some(self.memory.get(key, access, with).ready().unwrap())
    }

    fn submit(&mut self, ticket: Ticket, operation: Operation) -> Option<Outcome> {
        self.gate.submitted.fetch_add(1, Ordering::SeqCst);
        if !key_of(&operation).starts_with(b"slow") || self.gate.is_open.load(Ordering::SeqCst) {
            return Some(self.execute(operation));
        }
        self.waiting.push((ticket, operation));
        None
    }

    fn poll(&mut self, each: &mut dyn FnMut(Ticket, Outcome)) {
        if self.gate.is_open.load(Ordering::SeqCst) {
            for (ticket, operation) in std::mem::take(&mut self.waiting) {
                let outcome = self.execute(operation);
                each(ticket, outcome);
            }
        }
    }

    fn value_len_max(&self) -> usize {
        4 * LEN
    }

    fn attach(&mut self, wake: Wake) {
        *self.gate.wake.lock().unwrap() = Some(wake);
    }
}

/// A door over items of a megabyte under `slow0` and so on.
fn start(protocol: Protocol, buffers: usize, items: usize) -> (Gateway, Arc<Gate>) {
    let gate = Arc::new(Gate::default());
    let mut options = support::options();
    options.doors[0].protocol = protocol;
    options.item_len_max = 4 * LEN;
    options.limits.buffer_bytes_max = buffers;
    let doors = Doors::open(&options).unwrap();
    let keyspace = |_| {
        let mut memory = MemoryKeyspace::new(0);
        let value = vec![b'v'; LEN];
        for number in 0..items {
            let item = NewItem {
                value: &value,
                ..NewItem::default()
            };
            memory
                .set(format!("slow{number}").as_bytes(), &item)
                .unwrap();
        }
        let gated = Gated {
            memory,
            waiting: Vec::new(),
            gate: Arc::clone(&gate),
        };
        DeferredKeyspace::new(gated, Duration::from_secs(60), 1)
    };
    let gateway = Gateway::start(options, doors, keyspace, |_| support::Nobody).unwrap();
    (gateway, gate)
}

fn wait_until(mut condition: impl FnMut() -> bool) {
    let mut looks = 0;
    while !condition() {
        looks += 1;
        assert!(looks < 4000, "it does not come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Ten set the expiry of something long: each copy waits for room, and nobody is closed.
#[test]
fn copies_for_operations_close_nobody() {
    let (gateway, gate) = start(Protocol::Memcached, 8 * LEN, 10);
    let mut idle = connect(&gateway);
    assert_eq!(idle.ask("mn\r"), "MN\r");
    let mut half = connect(&gateway);
    half.send("set k 0 0 3\r\na");
    let mut all: Vec<_> = (0..10).map(|_| connect(&gateway)).collect();
    for (number, client) in all.iter_mut().enumerate() {
        client.send(format!("touch slow{number} 100\r\n"));
    }
    // Two copies each, within half of the room.
    wait_until(|| gate.submitted.load(Ordering::SeqCst) >= 1);
    assert_eq!(idle.ask("mn\r"), "MN\r");
    assert_eq!(gateway.connection_count(), 12);
    assert!(gate.submitted.load(Ordering::SeqCst) <= 2);
    gate.open();
    for client in &mut all {
        assert_eq!(client.line(), "TOUCHED\r");
    }
    assert_eq!(half.ask("bc\r"), "STORED\r");
    assert_eq!(gateway.connection_count(), 12);
}

/// A transaction that has begun is not cut in the middle because its client goes.
#[test]
fn a_transaction_whose_client_goes_is_executed_to_its_end() {
    let (gateway, gate) = start(Protocol::Redis, 8 * LEN, 1);
    let mut client = connect(&gateway);
    client.send("MULTI\r\nSET first 1\r\nAPPEND slow0 x\r\nSET last 1\r\nEXEC\r\n");
    let lines: Vec<String> = (0..4).map(|_| client.line()).collect();
    assert_eq!(lines, ["+OK\r", "+QUEUED\r", "+QUEUED\r", "+QUEUED\r"]);
    wait_until(|| gate.submitted.load(Ordering::SeqCst) >= 2);
    let socket = client.stream.into_inner();
    rustix::net::sockopt::set_socket_linger(&socket, Some(Duration::ZERO)).unwrap();
    drop(socket);
    // It goes on without it, and is there as long as it does.
    let mut other = connect(&gateway);
    for _ in 0..20 {
        assert_eq!(other.ask("GET last\r"), "$-1\r");
        std::thread::sleep(Duration::from_millis(5));
    }
    gate.open();
    wait_until(|| other.ask("EXISTS last\r") == ":1\r");
    wait_until(|| gateway.connection_count() == 1);
}

fn half(client: &mut Client<TcpStream>, head: &str, len: usize) {
    client.send(head);
    client.send(vec![b'x'; len]);
}

/// Until everything is read that others have sent: each turn of the event loop reads some of
/// it. Who stands still would else be whoever was read first.
fn settle(gateway: &Gateway, ask: &str, answer: &str) {
    let mut other = connect(gateway);
    for _ in 0..500 {
        assert_eq!(other.ask(ask), answer);
    }
}

/// Of half-sent values the one that has stood still for longest makes room, and its
/// client is told so and lives on.
#[test]
fn who_stands_still_in_a_value_makes_room_and_lives_on() {
    let (gateway, _) = start(Protocol::Memcached, 6 * LEN, 0);
    let mut stands = connect(&gateway);
    half(&mut stands, "set a 0 0 3400000\r\n", 3_300_000);
    settle(&gateway, "mn\r", "MN\r");
    let mut goes_on = connect(&gateway);
    half(&mut goes_on, "set b 0 0 3400000\r\n", 3_200_000);
    assert_eq!(stands.line(), "SERVER_ERROR out of memory storing object\r");
    goes_on.send(vec![b'x'; 200_000]);
    assert_eq!(goes_on.ask("\r"), "STORED\r");
    // What it sends of it is skipped.
    stands.send(vec![b'x'; 100_000]);
    assert_eq!(stands.ask("\r\nmn\r"), "MN\r");
    assert_eq!(stands.ask("get a\r"), "END\r");

    let (gateway, _) = start(Protocol::Redis, 6 * LEN, 0);
    let mut stands = connect(&gateway);
    let head = "*3\r\n$3\r\nSET\r\n$1\r\na\r\n$3400000\r\n";
    half(&mut stands, head, 3_300_000);
    settle(&gateway, "PING\r", "+PONG\r");
    let mut goes_on = connect(&gateway);
    let head = "*3\r\n$3\r\nSET\r\n$1\r\nb\r\n$3400000\r\n";
    half(&mut goes_on, head, 3_200_000);
    assert!(stands.line().starts_with("-OOM"));
    goes_on.send(vec![b'x'; 200_000]);
    assert_eq!(goes_on.ask("\r"), "+OK\r");
    stands.send(vec![b'x'; 100_000]);
    assert_eq!(stands.ask("\r\nPING\r"), "+PONG\r");
}
