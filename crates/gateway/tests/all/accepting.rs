//! Many that come at once are all taken in before the event loop rests.

use crate::support::{self, Client};
use std::collections::BTreeSet;
use std::net::TcpStream;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use trefoil_gateway::server::{DoorAddress, Doors, Gateway, LoopObserver, Protocol};
use trefoil_gateway_core::keyspace::{
    Access, Decide, Halt, Item, Keyspace, ListedItem, NewItem, Totals, Updated,
};
use trefoil_gateway_core::memory::MemoryKeyspace;
use trefoil_gateway_core::world::{Done, Observer};
use trefoil_layout::Version;

/// Several times as many as are accepted at a time.
const CLIENTS: usize = 320;

/// How many connections were open when the loop was about to rest.
#[derive(Default)]
struct Rests {
    opened: AtomicUsize,
    at: Mutex<BTreeSet<usize>>,
}

struct Counting(Arc<Rests>);

impl Observer for Counting {
    fn done(&mut self, _done: &Done<'_>) {}
}

impl LoopObserver for Counting {
    fn connection_opened(&mut self, _protocol: Protocol) {
        self.0.opened.fetch_add(1, Ordering::SeqCst);
    }
}

struct Resting {
    memory: MemoryKeyspace,
    rests: Arc<Rests>,
}

impl Keyspace for Resting {
    fn get(
        &mut self,
        key: &[u8],
        access: Access,
        with: &mut dyn FnMut(Option<&Item<'_>>),
    ) -> Result<(), Halt> {
        self.memory.get(key, access, with)
    }

    fn set(&mut self, key: &[u8], item: &NewItem<'_>) -> Result<Version, Halt> {
        self.memory.set(key, item)
    }

    fn update(&mut self, key: &[u8], decide: &mut Decide<'_>) -> Result<Updated, Halt> {
        self.memory.update(key, decide)
    }

    fn flush(&mut self, at_ms: u64) -> Result<(), Halt> {
        self.memory.flush(at_ms)
    }

    fn list(
        &mut self,
        cursor: u64,
        count: usize,
        each: &mut dyn FnMut(&ListedItem<'_>),
    ) -> Result<u64, Halt> {
        self.memory.list(cursor, count, each)
    }

    fn totals(&mut self) -> Result<Totals, Halt> {
        self.memory.totals()
    }

    fn set_memory_limit(&mut self, bytes: u64) -> Result<(), Halt> {
        self.memory.set_memory_limit(bytes)
    }

    fn value_len_max(&self) -> usize {
        self.memory.value_len_max()
    }

    fn tend(&mut self) {
        let opened = self.rests.opened.load(Ordering::SeqCst);
        self.rests.at.lock().unwrap().insert(opened);
    }
}

#[test]
fn those_who_come_at_once_are_taken_in_without_a_rest() {
    let options = support::options();
    let doors = Doors::open(&options).unwrap();
    let DoorAddress::Tcp(address) = doors.addresses()[0].1 else {
        panic!("a TCP door was expected");
    };
    // All are there, and have asked, before the loop runs.
    let mut clients: Vec<_> = (0..CLIENTS)
        .map(|_| {
            let stream = TcpStream::connect(address).unwrap();
            let timeout = Some(Duration::from_secs(20));
            stream.set_read_timeout(timeout).unwrap();
            let mut client = Client::new(stream);
            client.send("mn\r\n");
            client
        })
        .collect();
    let rests = Arc::new(Rests::default());
    let keyspace = |_| Resting {
        memory: MemoryKeyspace::new(0),
        rests: Arc::clone(&rests),
    };
    let observer = |_| Counting(Arc::clone(&rests));
    let _gateway = Gateway::start(options, doors, keyspace, observer).unwrap();
    for client in &mut clients {
        assert_eq!(client.line(), "MN\r");
    }
    // Its keyspace is tended when it is about to rest, and once in a second.
    let at = rests.at.lock().unwrap().clone();
    let early = at.range(1..CLIENTS).count();
    assert!(early <= 2, "{at:?}");
}
