//! SETs from another host: nilext ones that an engine places, with the server asleep and
//! busy, beside executed ones, memcached's, and a bare echo of as many bytes over the same
//! kind of socket. Two network namespaces that a bridge joins, or loopback where there are
//! none; servers on one core, the client, which spins, on the other; one SET at a time.

use crate::hosts::{Host, Network, NetworkError};
use crate::load::pin_current_thread;
use crate::network::{Echo, EchoBy, EchoClient, EchoLens};
use crate::peer::{Memcached, PeerKind, PeerOptions, PeerProcess, Waiting};
use crate::target::Target as _;
use hdrhistogram::Histogram;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use trefoil_ordered::{
    Answer, Carrier, Options, ProducerClaim, Queue, Refused, Request, Service, SetUpError, Step,
    Worker,
};
use trefoil_ordered_load::{
    ECHO, Latency, LoadError, LoadOptions, MEMCACHED, NILEXT_ASLEEP, OrderedReport,
};
use trefoil_queue::cache::Cache;
use trefoil_softnic::engine::{Admits, Asker};
use trefoil_softnic::{
    DatagramUse, Engine, EngineAddress, EngineOptions, GivenLane, Queues, RemoteQueue, Who,
};
use trefoil_softnic_core::wire::{Claim, ClaimStatus};

/// Bytes of a PLACE around a request, and of a PLACED (`softnic-core/src/wire/placing.rs`).
const PLACE_LEN: usize = 8 + 16;
const PLACED_LEN: usize = 8 + 24;
/// Keys.
const KEYS: u64 = 10_000;
/// Of the store behind the queue.
const MEMORY: u64 = 64 << 20;
/// Of memcached.
const MEMORY_MIB: u64 = 256;
/// Requests of a lane: what a server executes at a time that is woken by a half of it.
const SLOTS: u32 = 4096;
/// Far from now.
const FOREVER: Duration = Duration::from_secs(1 << 30);
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// What a busy server does besides each request: with that its core is never free.
const BURN: Duration = Duration::from_micros(3);
/// Nanoseconds beyond which latencies are not told apart.
const MOST: u64 = 10_000_000_000;
const TOKEN: &[u8] = b"of the bench";

/// What the server does while it is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Server {
    /// Sleeps until the lane is half full, or somebody waits.
    Asleep,
    /// Never sleeps, and has its core to share with the engine.
    Busy,
    /// The same, and the engine goes first: it has a real-time priority, and sleeps between
    /// requests. A card has a processor of its own; here there is one core for both.
    BusyBehind,
}

impl Server {
    fn is_busy(self) -> bool {
        self != Server::Asleep
    }
}

/// Two hosts.
pub(super) struct Ground {
    pub(super) server: Host,
    pub(super) client: Host,
    /// How they are joined, for people.
    pub(super) by: &'static str,
    _network: Option<Network>,
}

impl Ground {
    pub(super) fn new() -> Result<Self, NetworkError> {
        match Network::create() {
            Ok(mut network) => Ok(Ground {
                server: network.host("server")?,
                client: network.host("client")?,
                by: "TCP between two network namespaces",
                _network: Some(network),
            }),
            Err(NetworkError::NotRoot | NetworkError::Ip { .. }) => Ok(Ground {
                server: Host::loopback(),
                client: Host::loopback(),
                by: "TCP over loopback (no network namespaces here)",
                _network: None,
            }),
            Err(error) => Err(error),
        }
    }
}

/// A store, and what is done besides.
struct Burning(Cache, Duration);

impl Service for Burning {
    fn execute(&mut self, request: Request<'_>, answer: &mut Answer) {
        self.0.execute(request, answer);
        let begin = Instant::now();
        while begin.elapsed() < self.1 {
            std::hint::spin_loop();
        }
    }
}

pub(super) fn failed(error: impl std::fmt::Display) -> LoadError {
    LoadError::Queue(error.to_string())
}

pub(super) fn measure(
    ground: &Ground,
    options: &LoadOptions,
    report: &mut OrderedReport,
) -> Result<(), LoadError> {
    for len in [100, 1024] {
        let mut add = |what: &str, latency| report.add_off_host(what, len, latency);
        add(ECHO, echo(ground, options, len)?);
        for (what, server, nilext) in [
            (NILEXT_ASLEEP, Server::Asleep, true),
            (
                "nilext SET, server busy on the engine's core",
                Server::Busy,
                true,
            ),
            (
                "nilext SET, server busy, engine goes first",
                Server::BusyBehind,
                true,
            ),
            ("executed SET, server asleep", Server::Asleep, false),
        ] {
            add(what, queue(ground, options, len, server, nilext)?);
        }
        let latency = memcached(ground, options, len)?;
        add(MEMCACHED, latency);
    }
    Ok(())
}

/// One SET after another for as long as it is measured.
fn timed(
    options: &LoadOptions,
    mut set: impl FnMut(u64) -> Result<(), LoadError>,
) -> Result<Latency, LoadError> {
    let mut took = Histogram::<u64>::new_with_max(MOST, 3).expect("valid bounds");
    let begin = Instant::now();
    let end = begin + Duration::from_secs_f64(options.seconds);
    let warm = begin + Duration::from_secs_f64(options.seconds / 10.0);
    let mut before = begin;
    let mut number = 0;
    while before < end {
        set(number % KEYS)?;
        number += 1;
        let after = Instant::now();
        if before > warm {
            took.saturating_record((after - before).as_nanos() as u64);
        }
        before = Instant::now();
    }
    Ok(Latency::of(&took))
}

fn key(number: u64) -> [u8; 20] {
    let mut key = *b"key-of-the-bench----";
    key[12..].copy_from_slice(&number.to_le_bytes());
    key
}

/// The request of a SET.
fn request(number: u64, value: &[u8], into: &mut Vec<u8>) -> Result<(), LoadError> {
    let key = key(number);
    trefoil_queue::Request::Set(&key, value)
        .encode(into)
        .map_err(failed)
}

fn echo(ground: &Ground, options: &LoadOptions, len: usize) -> Result<Latency, LoadError> {
    let mut bytes = Vec::new();
    request(0, &vec![7; len], &mut bytes)?;
    let lens = EchoLens {
        ask: PLACE_LEN + bytes.len().next_multiple_of(8),
        answer: PLACED_LEN,
    };
    let by = EchoBy::Tcp;
    let echo = Echo::start(&ground.server, options.server_core, lens, by).map_err(failed)?;
    let measured = ground.client.enter(|| {
        pin_current_thread(options.client_core).map_err(failed)?;
        let mut client = EchoClient::connect(echo.address, lens, by).map_err(failed)?;
        timed(options, |_| client.round().map_err(failed))
    });
    measured.map_err(failed)?
}

fn memcached(ground: &Ground, options: &LoadOptions, len: usize) -> Result<Latency, LoadError> {
    let peer = PeerOptions {
        core: Some(options.server_core),
        listen: ground.server.address,
        ..PeerOptions::new(PeerKind::Memcached, MEMORY_MIB)
    };
    let process = ground.server.enter(|| PeerProcess::start(peer));
    let process = process.map_err(failed)?.map_err(failed)?;
    let value = vec![7; len];
    let measured = ground.client.enter(|| {
        pin_current_thread(options.client_core).map_err(failed)?;
        let client = Memcached::connect(process.endpoint(), Waiting::Spinning);
        let mut client = client.map_err(failed)?;
        timed(options, |number| {
            // memcached's keys are words.
            let key = format!("key-of-the-bench-{number:08}");
            client
                .set(key.as_bytes(), &value, None)
                .map(drop)
                .map_err(failed)
        })
    });
    measured.map_err(failed)?
}

/// The calling thread, and those that it starts, before all others of its core.
fn go_first() -> std::io::Result<()> {
    let lowest = libc::sched_param { sched_priority: 1 };
    // SAFETY: the parameters are read during the call.
    match unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &raw const lowest) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// An engine beside a server, in threads of this program on the servers' core, and where it
/// is. It has the lane of one client.
pub(super) fn beside(
    ground: &Ground,
    core: usize,
    worker: &mut Worker,
    goes_first: bool,
) -> Result<(Engine, EngineAddress), LoadError> {
    // The only client's lane is there before the server sleeps.
    let lane = worker.admit_producer(ProducerClaim {
        producer: [0, 0],
        attempt: 0,
        owner: [0, 0],
    });
    let lane = lane.map(|(invitation, _)| (invitation.terms, Queue::join(invitation)))?;
    let mut lane = Some(lane);
    let claim = move |_: &Claim, _: &Asker| {
        let (terms, queue) = lane.take().ok_or(ClaimStatus::Full)?;
        Ok(GivenLane {
            queue: queue.map_err(|_: SetUpError| ClaimStatus::NoMemory)?,
            placed: 0,
            epoch: terms.epoch,
            slot_count: terms.slot_count,
            about: 0,
            places: 64,
        })
    };
    let admits: Admits = Arc::new(|who| *who == Who::Token(TOKEN.into()));
    let queues = Queues {
        admits: Arc::clone(&admits),
        claims: vec![Box::new(claim)],
        lanes_max: None,
    };
    let start = || {
        // Its threads stay on that core, and are what the one is that starts them.
        pin_current_thread(core).map_err(failed)?;
        let listener = TcpListener::bind((ground.server.address, 0)).map_err(failed)?;
        let mut options = EngineOptions::default();
        if goes_first {
            go_first().map_err(failed)?;
            options.spin = Duration::ZERO;
        }
        Engine::start_for_queues(listener, (None, admits), queues, options).map_err(failed)
    };
    let engine = std::thread::scope(|scope| {
        let started = scope.spawn(|| ground.server.enter(start));
        started.join().map_err(|_| failed("a thread panicked"))
    });
    let engine = engine?.map_err(failed)??;
    let address = address_of(engine.address());
    Ok((engine, address))
}

/// How a client finds what listens there.
pub(super) fn address_of(address: SocketAddr) -> EngineAddress {
    EngineAddress {
        address,
        host: "server".into(),
        tls: None,
        datagrams: DatagramUse::No,
        token: TOKEN.into(),
    }
}

/// A server and an engine beside it in threads of this program, on the servers' core.
fn queue(
    ground: &Ground,
    options: &LoadOptions,
    len: usize,
    server: Server,
    nilext: bool,
) -> Result<Latency, LoadError> {
    let mut worker = Worker::new(
        1,
        Options {
            slot_count: SLOTS,
            spin: match server.is_busy() {
                false => Duration::ZERO,
                true => FOREVER,
            },
            nap: Duration::from_secs(1),
            ..Options::default()
        },
    )?;
    let burn = match server.is_busy() {
        false => Duration::ZERO,
        true => BURN,
    };
    let mut service = Burning(Cache::new(MEMORY).map_err(failed)?, burn);
    let (_engine, address) = beside(
        ground,
        options.server_core,
        &mut worker,
        server == Server::BusyBehind,
    )?;
    let (stop, ready) = (AtomicBool::new(false), Barrier::new(2));
    std::thread::scope(|scope| {
        let (stop, ready) = (&stop, &ready);
        let serves = scope.spawn(move || {
            let pinned = pin_current_thread(options.server_core);
            ready.wait();
            let mut idle_since = None;
            while !stop.load(Ordering::Relaxed) {
                let turn = worker.run_once(&mut service);
                let last = match turn.executed {
                    0 => turn.last,
                    _ => Step::Executed,
                };
                worker.rest(last, &mut idle_since);
            }
            pinned
        });
        ready.wait();
        let measured = ground.client.enter(|| {
            pin_current_thread(options.client_core).map_err(failed)?;
            let client = RemoteQueue::connect(address, 0, PATIENCE);
            let mut client = client.map_err(failed)?;
            client.set_spin(FOREVER);
            let (value, mut bytes) = (vec![7; len], Vec::new());
            let mut answer = Vec::new();
            timed(options, |number| {
                request(number, &value, &mut bytes)?;
                let sent = loop {
                    match client.submit(&bytes, nilext) {
                        Err(Refused::Full) => client.wait_for_room(PATIENCE).map_err(failed)?,
                        other => break other.map_err(failed)?,
                    }
                };
                match nilext {
                    true => client.committed(sent, PATIENCE),
                    false => client.answer(sent, &mut answer, PATIENCE),
                }
                .map_err(failed)
            })
        });
        stop.store(true, Ordering::Relaxed);
        let served = serves.join();
        served
            .map_err(|_| failed("the server panicked"))?
            .map_err(failed)?;
        measured.map_err(failed)?
    })
}
