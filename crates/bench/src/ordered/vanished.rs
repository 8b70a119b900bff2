//! Hosts of clients vanish without a word: their links are cut. Their lanes are free some
//! seconds later, and a client that is there and says nothing keeps its own.

use crate::hosts::{Host, Network, NetworkError};
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_ordered::{
    Answer, Carrier as _, Options, ProducerClaim, Queue, Request, Service, Worker,
};
use trefoil_softnic::engine::{Admits, Asker};
use trefoil_softnic::{
    DatagramUse, Engine, EngineAddress, EngineOptions, GivenLane, Queues, RemoteQueue, Who,
};
use trefoil_softnic_core::wire::{Claim, ClaimStatus};

const TOKEN: &[u8] = b"of the test";
const PATIENCE: Duration = Duration::from_secs(60);
/// Some 15 seconds, and what a busy machine adds.
const FOUND_WITHIN: Duration = Duration::from_secs(22);

struct Yes;

impl Service for Yes {
    fn execute(&mut self, _: Request<'_>, answer: &mut Answer) {
        answer.put(b"yes").expect("room");
    }
}

/// The only one of this producer.
fn claim(number: u64) -> ProducerClaim {
    ProducerClaim {
        producer: [number, 0],
        attempt: 0,
        owner: [0, 0],
    }
}

/// An engine on this host, with lanes that are made beforehand.
fn engine(host: &Host, mut lanes: Vec<GivenLane>) -> Engine {
    let admits: Admits = Arc::new(|who| *who == Who::Token(TOKEN.into()));
    let claim = move |_: &Claim, _: &Asker| lanes.pop().ok_or(ClaimStatus::Full);
    let queues = Queues {
        admits: Arc::clone(&admits),
        claims: vec![Box::new(claim)],
        lanes_max: None,
    };
    let listener = host.enter(|| TcpListener::bind((host.address, 0)));
    let listener = listener.expect("a host").expect("a port");
    let options = EngineOptions::default();
    Engine::start_for_queues(listener, (None, admits), queues, options).expect("an engine")
}

#[test]
fn lanes_of_hosts_that_vanish_are_free_soon() {
    let mut network = match Network::create() {
        Ok(network) => network,
        Err(NetworkError::NotRoot | NetworkError::Ip { .. }) => return,
        Err(error) => panic!("{error}"),
    };
    let server = network.host("server").expect("a host");
    let [idle, busy, still] = ["idle", "busy", "still"].map(|name| network.host(name));
    let [idle, busy, still] = [idle, busy, still].map(|host| host.expect("a host"));
    let mut worker = Worker::new(1, Options::default()).expect("memory");
    let lanes = (0..3).map(|number| {
        let (invitation, placed) = worker.admit_producer(claim(number)).expect("memory");
        let terms = invitation.terms;
        GivenLane {
            queue: Queue::join(invitation).expect("a lane"),
            placed,
            epoch: terms.epoch,
            slot_count: terms.slot_count,
            about: 0,
            places: 64,
        }
    });
    let engine = engine(&server, lanes.collect());
    let address = EngineAddress {
        address: engine.address(),
        host: "server".into(),
        tls: None,
        datagrams: DatagramUse::No,
        token: TOKEN.into(),
    };
    let connect = |host: &Host| {
        let client = host.enter(|| RemoteQueue::connect(address.clone(), 0, PATIENCE));
        client.expect("a host").expect("a lane")
    };
    let [_of_idle, mut of_busy, mut of_still] = [&idle, &busy, &still].map(connect);
    // Its answer comes when nobody is there to take it: it stays unacknowledged.
    let sent = of_busy.submit(b"a question", false).expect("room");
    of_busy.committed(sent, PATIENCE).expect("an engine");
    for host in [&idle, &busy] {
        network.link(host, false).expect("a link");
    }
    let begin = Instant::now();
    while worker.client_count() > 1 {
        worker.run_once(&mut Yes);
        worker.nap();
        let waited = begin.elapsed();
        assert!(
            waited < FOUND_WITHIN,
            "{} lanes are taken after {waited:?}",
            worker.client_count()
        );
    }
    println!("found out after {:?}", begin.elapsed());
    // For longer than that in all: its own system answers for it.
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(8) {
        worker.run_once(&mut Yes);
        worker.nap();
    }
    assert_eq!(worker.client_count(), 1);
    let sent = of_still.submit(b"a question", false).expect("room");
    of_still.committed(sent, PATIENCE).expect("an engine");
    assert_eq!(worker.run_once(&mut Yes).executed, 1);
    let mut answer = Vec::new();
    of_still
        .answer(sent, &mut answer, PATIENCE)
        .expect("an answer");
    assert_eq!(answer, b"yes");
    assert_eq!(of_still.reconnected(), 0);
}
