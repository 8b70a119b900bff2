//! One suite that every carrier of the queue passes, over the trait that they share.

use crate::recorder::Recorder;
use std::net::TcpListener;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trefoil_journal::{Flush, file};
use trefoil_layout::words::WordsMut;
use trefoil_ordered::producer::Producer;
use trefoil_ordered::slot::PAYLOAD_LEN_MAX;
use trefoil_ordered::words::Mapped;
use trefoil_ordered::{
    Carrier, Committed, Delegate, DurableWorker, Invitation, NoAnswer, Options, ProducerClaim,
    Queue, Refused, SetUpError, Shared, Step, Worker, lane, order,
};
use trefoil_ordered_verbs::{QueueAddress, VerbsOptions, VerbsQueue, VerbsWorker};
use trefoil_region::Mapping;
use trefoil_softnic::engine::{Admits, Asker};
use trefoil_softnic::{
    DatagramUse, Engine, EngineAddress, EngineOptions, GivenLane, Queues, RemoteQueue, Who,
};
use trefoil_softnic_core::wire::{Claim, ClaimStatus};
use trefoil_verbs::Device;

const PATIENCE: Duration = Duration::from_secs(120);
const SLOTS: u32 = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A lane for each client.
    Shm,
    /// One lane for all clients, which are threads.
    SharedShm,
    /// A lane for each client; acknowledged when it is in a file.
    Durable,
    /// A lane for each client at a delegate, which has one at the server.
    Delegated,
    /// The same before a durable queue.
    DelegatedDurable,
    /// A connection for each client to an engine, which has a lane for each at the server.
    Softnic,
    /// The same; acknowledged when it is in a file.
    SoftnicDurable,
    /// A connection for each client to a card, which has one receive queue for all.
    Verbs,
}

impl Kind {
    fn is_durable(self) -> bool {
        use Kind::{DelegatedDurable, Durable, SoftnicDurable};
        matches!(self, Durable | DelegatedDurable | SoftnicDurable)
    }

    fn is_softnic(self) -> bool {
        matches!(self, Kind::Softnic | Kind::SoftnicDurable)
    }
}

type Client = Box<dyn Carrier + Send>;

/// A server in threads of its own, and its clients.
struct Running {
    clients: Vec<Client>,
    /// Lanes that nobody has joined.
    raw: Vec<Invitation>,
    /// What was executed, in order.
    log: Arc<Mutex<Vec<Vec<u8>>>>,
    /// While it is set, the service executes nothing.
    pause: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    _engine: Option<Beside>,
    _folder: tempfile::TempDir,
}

impl Running {
    fn executed(&self) -> Vec<Vec<u8>> {
        self.log.lock().expect("no panic").clone()
    }

    fn end(&mut self) {
        self.pause.store(false, Ordering::SeqCst);
        self.stop.store(true, Ordering::SeqCst);
        for thread in self.threads.drain(..) {
            thread.join().expect("no panic in a server");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.end();
        }
    }
}

fn options() -> Options {
    Options {
        slot_count: SLOTS,
        client_count_max: 256,
        spin: Duration::from_micros(20),
        nap: Duration::from_millis(1),
        ..Options::default()
    }
}

/// A server and its clients, and so many lanes that are left to the test.
fn start(kind: Kind, client_count: usize, raw_count: usize) -> Running {
    if kind == Kind::Verbs {
        assert_eq!(raw_count, 0, "there are no lanes");
        return start_verbs(client_count);
    }
    let folder = tempfile::tempdir().expect("a folder");
    let log = Arc::new(Mutex::new(Vec::new()));
    let pause = Arc::new(AtomicBool::new(false));
    let stop = Arc::new(AtomicBool::new(false));
    let mut service = Recorder {
        log: Arc::clone(&log),
        pause: Arc::clone(&pause),
        persistent: 0,
    };
    let lanes = client_count + raw_count;
    let is_delegated = matches!(kind, Kind::Delegated | Kind::DelegatedDurable);
    let at_server = match kind {
        Kind::SharedShm => 1 + raw_count,
        _ if kind.is_softnic() => raw_count,
        _ if is_delegated => 1,
        _ => lanes,
    };
    let mut threads = Vec::new();
    let mut invitations = Vec::new();
    let stopped = Arc::clone(&stop);
    let (wanted, lanes_wanted) = mpsc::channel();
    if kind.is_durable() {
        let path = folder.path().join("journal");
        let opened = DurableWorker::open(options(), &mut service, |executed, replay| {
            file::open(&path, (1, 2), (1, Flush::Cached), executed, replay)
        });
        let mut worker = opened.expect("a journal");
        invitations.extend((0..at_server).map(|_| worker.admit().expect("memory")));
        threads.push(std::thread::spawn(move || {
            let mut idle_since = None;
            while !stopped.load(Ordering::SeqCst) {
                let turn = worker.run_once(&mut service).expect("a disk");
                give(&lanes_wanted, |claim| worker.admit_producer(claim));
                worker.rest(turn, &mut idle_since);
            }
            worker.finish(&mut service).expect("a disk");
        }));
    } else {
        let mut worker = Worker::new(1, options()).expect("memory");
        invitations.extend((0..at_server).map(|_| worker.admit().expect("memory")));
        threads.push(std::thread::spawn(move || {
            let mut idle_since = None;
            while !stopped.load(Ordering::SeqCst) {
                let turn = worker.run_once(&mut service);
                give(&lanes_wanted, |claim| worker.admit_producer(claim));
                let last = match turn.executed {
                    0 => turn.last,
                    _ => Step::Executed,
                };
                worker.rest(last, &mut idle_since);
            }
            worker.finish(&mut service);
        }));
    }
    if is_delegated {
        let behind = Queue::join(invitations.pop().expect("a lane")).expect("a queue");
        let mut delegate = Delegate::new(2, options(), behind).expect("memory");
        invitations.extend((0..lanes).map(|_| delegate.admit().expect("memory")));
        let stopped = Arc::clone(&stop);
        threads.push(std::thread::spawn(move || {
            let mut idle_since = None;
            while !stopped.load(Ordering::SeqCst) {
                match delegate.run_once() {
                    Ok(last) => delegate.rest(last, &mut idle_since),
                    Err(_) => break,
                }
            }
        }));
    }
    let raw = invitations.split_off(invitations.len() - raw_count);
    let queues = invitations
        .into_iter()
        .map(|invitation| Queue::join(invitation).expect("a queue"));
    let engine = kind.is_softnic().then(|| Beside::start(wanted));
    let clients: Vec<Client> = match kind {
        Kind::Softnic | Kind::SoftnicDurable => {
            let engine = engine.as_ref().expect("an engine");
            (0..client_count)
                .map(|_| Box::new(engine.connect()) as Client)
                .collect()
        }
        Kind::SharedShm => {
            let shared = Shared::new(queues.into_iter().next().expect("one lane"));
            (0..client_count)
                .map(|_| Box::new(shared.clone()) as Client)
                .collect()
        }
        _ => queues.map(|queue| Box::new(queue) as Client).collect(),
    };
    Running {
        clients,
        raw,
        log,
        pause,
        stop,
        threads,
        _engine: engine,
        _folder: folder,
    }
}

/// The same by a card: the server at the first device, the clients at all of them.
fn start_verbs(client_count: usize) -> Running {
    let devices = Device::addresses().expect("RDMA devices");
    let listener = TcpListener::bind((devices[0], 0)).expect("a port");
    let address = listener.local_addr().expect("an address");
    let log = Arc::new(Mutex::new(Vec::new()));
    let pause = Arc::new(AtomicBool::new(false));
    let stop = Arc::new(AtomicBool::new(false));
    let mut service = Recorder {
        log: Arc::clone(&log),
        pause: Arc::clone(&pause),
        persistent: 0,
    };
    let options = VerbsOptions {
        slots: SLOTS,
        window: SLOTS,
        spin: Duration::from_micros(20),
        nap: Duration::from_millis(1),
        ..VerbsOptions::default()
    };
    let mut worker =
        VerbsWorker::start(1, devices[0], listener, TOKEN, options).expect("a card's queue");
    let stopped = Arc::clone(&stop);
    let thread = std::thread::spawn(move || {
        let mut idle_since = None;
        while !stopped.load(Ordering::SeqCst) {
            let executed = worker.run_once(&mut service).expect("a card");
            worker.rest(executed, &mut idle_since).expect("a card");
        }
        worker.finish(&mut service).expect("a card");
    });
    let clients = (0..client_count).map(|at| {
        let address = QueueAddress {
            address,
            token: TOKEN.into(),
            device: Some(devices[at % devices.len()]),
        };
        Box::new(VerbsQueue::connect(address, PATIENCE).expect("a place")) as Client
    });
    Running {
        clients: clients.collect(),
        raw: Vec::new(),
        log,
        pause,
        stop,
        threads: vec![thread],
        _engine: None,
        _folder: tempfile::tempdir().expect("a folder"),
    }
}

/// A lane is wanted for a producer, who may have been there before.
type Wanted = (
    ProducerClaim,
    mpsc::Sender<Result<(Invitation, u64), SetUpError>>,
);

/// Gives lanes to those who want some.
fn give(
    wanted: &mpsc::Receiver<Wanted>,
    mut admit: impl FnMut(ProducerClaim) -> Result<(Invitation, u64), SetUpError>,
) {
    for (claim, to) in wanted.try_iter() {
        // Who has gone meanwhile has no lane.
        let _ = to.send(admit(claim));
    }
}

/// An engine beside the server.
struct Beside {
    engine: Engine,
}

const TOKEN: &[u8] = b"a token";

impl Beside {
    fn start(wanted: mpsc::Sender<Wanted>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let admits: Admits = Arc::new(|who| *who == Who::Token(TOKEN.into()));
        let claim = move |claim: &Claim, asker: &Asker| {
            let (to, given) = mpsc::channel();
            let claim = ProducerClaim {
                producer: claim.producer,
                attempt: claim.returns.map_or(0, |back| back.attempt),
                owner: asker.owner(),
            };
            let asked = wanted.send((claim, to));
            asked.map_err(|_| ClaimStatus::Unreachable)?;
            let given = given.recv().map_err(|_| ClaimStatus::Unreachable)?;
            let (invitation, placed) = given.map_err(|error| match error {
                SetUpError::Draining => ClaimStatus::Draining,
                _ => ClaimStatus::Full,
            })?;
            let terms = invitation.terms;
            Ok(GivenLane {
                queue: Queue::join(invitation).map_err(|_| ClaimStatus::NoMemory)?,
                placed,
                epoch: terms.epoch,
                slot_count: terms.slot_count,
                about: 0,
                places: 64,
            })
        };
        let queues = Queues {
            admits: Arc::clone(&admits),
            claims: vec![Box::new(claim)],
            lanes_max: None,
        };
        let options = EngineOptions::default();
        let engine = Engine::start_for_queues(listener, (None, admits), queues, options);
        Beside {
            engine: engine.expect("an engine"),
        }
    }

    fn connect(&self) -> RemoteQueue {
        let address = EngineAddress {
            address: self.engine.address(),
            host: "localhost".into(),
            tls: None,
            datagrams: DatagramUse::No,
            token: TOKEN.into(),
        };
        RemoteQueue::connect(address, 0, PATIENCE).expect("a lane")
    }
}

/// Puts a request into its place, waiting for room where there is none.
fn submit(client: &mut Client, request: &[u8], nilext: bool) -> Committed {
    loop {
        match client.submit(request, nilext) {
            Ok(committed) => return committed,
            Err(Refused::Full) => client.wait_for_room(PATIENCE).expect("a server"),
            Err(Refused::Skipped) => {}
            Err(refused) => panic!("{refused}"),
        }
    }
}

fn request(client: usize, number: u64) -> Vec<u8> {
    let mut bytes = (client as u64).to_le_bytes().to_vec();
    bytes.extend(number.to_le_bytes());
    bytes.resize(16 + (number * 37 % 300) as usize, client as u8);
    bytes
}

/// Each request once, with its bytes, a client's in its order, and answers that say so.
fn once_and_in_the_order_of_each_client(kind: Kind) {
    const CLIENTS: usize = 5;
    const REQUESTS: u64 = 400;
    let mut running = start(kind, CLIENTS, 0);
    let clients = std::mem::take(&mut running.clients);
    std::thread::scope(|scope| {
        for (at, mut client) in clients.into_iter().enumerate() {
            scope.spawn(move || {
                let mut answer = Vec::new();
                let mut seen = None;
                for number in 0..REQUESTS {
                    let nilext = number % 5 != 0;
                    let sent = submit(&mut client, &request(at, number), nilext);
                    if number % 3 == 0 {
                        client.committed(sent, PATIENCE).expect("a server");
                    }
                    if !nilext {
                        client
                            .answer(sent, &mut answer, PATIENCE)
                            .expect("a server");
                        let place = u64::from_le_bytes(answer[..].try_into().expect("eight"));
                        assert!(Some(place) > seen, "places in the order grow");
                        seen = Some(place);
                        let again = client.answer(sent, &mut answer, PATIENCE);
                        assert_eq!(again, Err(NoAnswer::NotOwed));
                    }
                    if number == REQUESTS - 1 {
                        client.committed(sent, PATIENCE).expect("a server");
                    }
                }
            });
        }
    });
    running.end();
    let executed = running.executed();
    assert_eq!(executed.len() as u64, CLIENTS as u64 * REQUESTS);
    for at in 0..CLIENTS {
        let of_client: Vec<_> = executed
            .iter()
            .filter(|bytes| bytes[0] == at as u8)
            .cloned()
            .collect();
        let expected: Vec<_> = (0..REQUESTS).map(|number| request(at, number)).collect();
        assert_eq!(of_client, expected);
    }
}

/// What was committed before another request was begun is executed before it.
fn real_time_is_the_order(kind: Kind) {
    const CLIENTS: usize = 4;
    const ROUNDS: u64 = 300;
    let mut running = start(kind, CLIENTS, 0);
    let mut clients = std::mem::take(&mut running.clients);
    let mut last = 0;
    let mut answer = Vec::new();
    for number in 0..ROUNDS {
        let at = (number * 7 + number / 5) as usize % CLIENTS;
        let nilext = number % 10 != 9;
        let sent = submit(&mut clients[at], &request(0, number), nilext);
        clients[at].committed(sent, PATIENCE).expect("a server");
        if !nilext {
            // A read sees every mutation that was committed before.
            clients[at]
                .answer(sent, &mut answer, PATIENCE)
                .expect("a server");
            last = u64::from_le_bytes(answer[..].try_into().expect("eight"));
            assert_eq!(last, number);
        }
    }
    assert_eq!(last, ROUNDS - 1);
    drop(clients);
    running.end();
    let expected: Vec<_> = (0..ROUNDS).map(|number| request(0, number)).collect();
    assert_eq!(running.executed(), expected);
}

/// A worker that stands still: a full queue withholds, and drops nothing. What is refused
/// is never executed.
fn full_is_withheld_and_nothing_is_dropped(kind: Kind) {
    let mut running = start(kind, 2, 0);
    running.pause.store(true, Ordering::SeqCst);
    let mut clients = std::mem::take(&mut running.clients);
    // The worker is amid this one from now on.
    let first = submit(&mut clients[0], &request(0, 0), true);
    clients[0].committed(first, PATIENCE).expect("a server");
    let mut accepted = vec![request(0, 0)];
    let mut last = None;
    let mut refusals = 0;
    let mut number = 0;
    while refusals < 200 {
        number += 1;
        match clients[0].submit(&request(0, number), true) {
            Ok(sent) => {
                accepted.push(request(0, number));
                last = Some(sent);
                refusals = 0;
            }
            Err(Refused::Full) => {
                refusals += 1;
                std::thread::sleep(Duration::from_micros(200));
            }
            Err(Refused::Skipped) => {}
            Err(refused) => panic!("{refused}"),
        }
    }
    assert!(accepted.len() >= SLOTS as usize, "{}", accepted.len());
    assert!(accepted.len() <= 5 * SLOTS as usize, "{}", accepted.len());
    let last = last.expect("room at the beginning");
    let timed_out = Err(NoAnswer::TimedOut(Duration::from_millis(20)));
    assert_eq!(
        clients[0].wait_for_room(Duration::from_millis(20)),
        timed_out
    );
    if kind.is_durable() || kind == Kind::Verbs {
        let acknowledged = clients[0].committed(last, Duration::from_millis(20));
        assert_eq!(acknowledged, timed_out, "it is in no file, or in no buffer");
    }
    // Another client has room of its own, where it has a lane.
    let of_other = clients[1].submit(&request(1, 0), true);
    assert_eq!(of_other.is_ok(), kind != Kind::SharedShm);
    running.pause.store(false, Ordering::SeqCst);
    clients[0].committed(last, PATIENCE).expect("a server");
    clients[0].wait_for_room(PATIENCE).expect("a server");
    if let Ok(sent) = of_other {
        clients[1].committed(sent, PATIENCE).expect("a server");
    }
    drop(clients);
    running.end();
    let mut executed = running.executed();
    executed.retain(|bytes| bytes[0] == 0);
    assert_eq!(executed, accepted);
}

fn lengths_have_their_bounds(kind: Kind) {
    let mut running = start(kind, 1, 0);
    let mut clients = std::mem::take(&mut running.clients);
    let len = PAYLOAD_LEN_MAX + 1;
    let refused = clients[0].submit(&vec![1; len], true);
    assert_eq!(refused, Err(Refused::TooLong { len }));
    for len in [0, 1, 7, 8, PAYLOAD_LEN_MAX] {
        let sent = submit(&mut clients[0], &vec![1; len], true);
        clients[0].committed(sent, PATIENCE).expect("a server");
    }
    drop(clients);
    running.end();
    let lens: Vec<_> = running.executed().iter().map(Vec::len).collect();
    assert_eq!(lens, [0, 1, 7, 8, PAYLOAD_LEN_MAX]);
}

/// After the server's end requests are refused or unknown, and what was committed was
/// executed.
fn an_end_is_told(kind: Kind) {
    let mut running = start(kind, 1, 0);
    let mut clients = std::mem::take(&mut running.clients);
    let mut sent = 0u64;
    for _ in 0..50 {
        let request = submit(&mut clients[0], &request(0, sent), true);
        clients[0].committed(request, PATIENCE).expect("a server");
        sent += 1;
    }
    running.end();
    let expected: Vec<_> = (0..sent).map(|number| request(0, number)).collect();
    assert_eq!(running.executed(), expected);
    let late = clients[0].submit(&request(0, sent), false);
    match kind {
        Kind::Shm | Kind::SharedShm | Kind::Durable | Kind::Delegated | Kind::DelegatedDurable => {
            assert_eq!(late, Err(Refused::Closed));
        }
        // The word of it may be under way.
        Kind::Softnic | Kind::SoftnicDurable | Kind::Verbs => match late {
            Ok(late) => {
                let answer = clients[0].answer(late, &mut Vec::new(), PATIENCE);
                assert_eq!(answer, Err(NoAnswer::ServerGone));
                let later = clients[0].submit(&request(0, sent), false);
                assert_eq!(later, Err(Refused::Closed));
            }
            late => assert_eq!(late, Err(Refused::Closed)),
        },
    }
    assert_eq!(running.executed(), expected);
}

/// The words that a client of a lane could write.
fn words(invitation: &Invitation) -> (Mapped, Mapped) {
    let order = Mapping::reader_writer(&invitation.order, order::OBJECT_LEN).expect("an order");
    let len = invitation.terms.object_len();
    let lane = Mapping::reader_writer(&invitation.lane, len).expect("a lane");
    (Mapped(order), Mapped(lane))
}

/// A client that dies amid a slot, its bell still open elsewhere: nobody is told of its
/// death, and others wait for it no longer than its patience. The server's own clock counts
/// that: the simulator bounds it (`promise`), here it has to come to an end at all, with
/// nothing of the dead client executed.
fn a_client_dead_amid_a_slot_stalls_nobody(kind: Kind) {
    let mut running = start(kind, 1, 1);
    let mut clients = std::mem::take(&mut running.clients);
    let dead = running.raw.pop().expect("a lane");
    let (order, lane) = words(&dead);
    let mut producer = Producer::new(lane, dead.terms);
    let mut waits_us = Vec::new();
    let mut unpublished = None;
    for round in 0..20 {
        // Back from the dead, it finds its last one skipped, and dies amid another one.
        if let Some((written, position)) = unpublished.take() {
            let published = producer.publish(written, position);
            assert_eq!(published, Err(Refused::Skipped));
        }
        let written = producer.write(1, b"never", true).expect("room");
        producer.claim().expect("open");
        let position = producer.ticket(&order).expect("in order");
        unpublished = Some((written, position));
        let start = Instant::now();
        let sent = submit(&mut clients[0], &request(0, round), false);
        let answered = clients[0].answer(sent, &mut Vec::new(), PATIENCE);
        answered.expect("a server");
        waits_us.push(start.elapsed().as_micros());
    }
    println!("{kind:?}: others waited, in microseconds: {waits_us:?}");
    drop(clients);
    running.end();
    let expected: Vec<_> = (0..20).map(|number| request(0, number)).collect();
    assert_eq!(running.executed(), expected);
}

/// A client writes nonsense all over its lane, as if it were a request, again and again.
fn hostile_slots_break_their_own_lane(kind: Kind) {
    let mut running = start(kind, 2, 3);
    let mut clients = std::mem::take(&mut running.clients);
    let raw = std::mem::take(&mut running.raw);
    let mut dice = 0x1234_5678_9abc_def1_u64;
    let mut next = move || {
        dice ^= dice << 13;
        dice ^= dice >> 7;
        dice ^= dice << 17;
        dice
    };
    let hostile: Vec<_> = raw.iter().map(|invitation| words(invitation).1).collect();
    let lane_words = raw[0].terms.object_len() as usize / 8;
    let first = order::POSITION_FIRST;
    for round in 0..300u64 {
        for (at, lane) in hostile.iter().enumerate() {
            match (at, next() % 3) {
                // A turn of any kind.
                (0, _) => lane.store_release(lane::WORD_TURN, next() % 64),
                // Marks and heads of slots.
                (1, _) => {
                    let slot = raw[1].terms.slot(1 + next() % 8);
                    lane.store_release(slot + (next() % 7) as usize, first + next() % 4);
                }
                // Anything anywhere but what the server has put there for itself.
                _ => lane.store_release((next() as usize) % lane_words, next()),
            }
        }
        let at = round as usize % 2;
        let sent = submit(&mut clients[at], &request(at, round / 2), true);
        clients[at].committed(sent, PATIENCE).expect("a server");
    }
    drop(clients);
    running.end();
    let executed = running.executed();
    for at in 0..2 {
        let of_client: Vec<_> = executed
            .iter()
            .filter(|bytes| bytes[0] == at as u8)
            .cloned()
            .collect();
        let expected: Vec<_> = (0..150).map(|number| request(at, number)).collect();
        assert_eq!(of_client, expected);
    }
    assert_eq!(executed.len(), 300, "nothing of the hostile ones");
}

macro_rules! suite {
    ($name:ident, $kind:expr, [$($test:ident),*]) => {
        mod $name {
            $(#[test]
            fn $test() {
                super::$test($kind);
            })*
        }
    };
}

/// What needs no lane of the test's own.
macro_rules! carrier {
    ($name:ident, $kind:expr) => {
        suite!(
            $name,
            $kind,
            [
                once_and_in_the_order_of_each_client,
                real_time_is_the_order,
                full_is_withheld_and_nothing_is_dropped,
                lengths_have_their_bounds,
                an_end_is_told,
                a_client_dead_amid_a_slot_stalls_nobody,
                hostile_slots_break_their_own_lane
            ]
        );
    };
}

carrier!(shm, super::Kind::Shm);
carrier!(shared_shm, super::Kind::SharedShm);
carrier!(durable, super::Kind::Durable);
carrier!(delegated, super::Kind::Delegated);
carrier!(delegated_durable, super::Kind::DelegatedDurable);
carrier!(softnic, super::Kind::Softnic);
carrier!(softnic_durable, super::Kind::SoftnicDurable);

/// What has no lanes: its own crate's tests have what corresponds to the two that need one.
mod verbs {
    macro_rules! suite {
        ($($test:ident),*) => {
            $(#[test]
            #[ignore = "needs RDMA devices: scripts/rdma-vm.sh"]
            fn $test() {
                super::$test(super::Kind::Verbs);
            })*
        };
    }
    suite!(
        once_and_in_the_order_of_each_client,
        real_time_is_the_order,
        full_is_withheld_and_nothing_is_dropped,
        lengths_have_their_bounds,
        an_end_is_told
    );
}

/// Threads by the hundred over four connections.
#[test]
fn two_hundred_threads_share_four_connections() {
    const CLIENTS: usize = 200;
    const REQUESTS: u64 = 40;
    let mut worker = Worker::new(1, options()).expect("memory");
    let shared: Vec<Shared> = (0..4)
        .map(|_| Shared::new(Queue::join(worker.admit().expect("memory")).expect("a queue")))
        .collect();
    assert_eq!(worker.client_count(), 4);
    let clients: Vec<Client> = (0..CLIENTS)
        .map(|at| Box::new(shared[at % 4].clone()) as Client)
        .collect();
    drop(shared);
    let stop = AtomicBool::new(false);
    let log = std::thread::scope(|scope| {
        let stop = &stop;
        let log = Arc::new(Mutex::new(Vec::new()));
        let mut recorder = Recorder {
            log: Arc::clone(&log),
            pause: Arc::default(),
            persistent: 0,
        };
        let server = scope.spawn(move || {
            worker.serve(&mut recorder, stop);
            worker.finish(&mut recorder);
        });
        let threads: Vec<_> = clients
            .into_iter()
            .enumerate()
            .map(|(at, mut client)| {
                scope.spawn(move || {
                    for number in 0..REQUESTS {
                        let nilext = number % 8 != 7;
                        let sent = submit(&mut client, &request(at, number), nilext);
                        if !nilext {
                            let answered = client.answer(sent, &mut Vec::new(), PATIENCE);
                            answered.expect("a server");
                        }
                    }
                })
            })
            .collect();
        for thread in threads {
            thread.join().expect("no panic");
        }
        stop.store(true, Ordering::SeqCst);
        server.join().expect("no panic");
        let log = log.lock().expect("no panic");
        log.clone()
    });
    assert_eq!(log.len() as u64, CLIENTS as u64 * REQUESTS);
    for at in 0..CLIENTS {
        let of_client = log.iter().filter(|bytes| bytes[0] == at as u8);
        let expected: Vec<_> = (0..REQUESTS).map(|number| request(at, number)).collect();
        assert!(of_client.eq(expected.iter()), "client {at}");
    }
}

/// A delegate's clients by the hundred are one client of the server.
#[test]
fn two_hundred_lanes_of_a_delegate_are_one_at_the_server() {
    const CLIENTS: usize = 200;
    let mut running = start(Kind::Delegated, CLIENTS, 0);
    let mut clients = std::mem::take(&mut running.clients);
    for number in 0..3 {
        let sent: Vec<_> = clients
            .iter_mut()
            .enumerate()
            .map(|(at, client)| submit(client, &request(at, number), true))
            .collect();
        for (client, sent) in clients.iter_mut().zip(sent) {
            client.committed(sent, PATIENCE).expect("a server");
        }
    }
    drop(clients);
    running.end();
    let executed = running.executed();
    assert_eq!(executed.len(), 3 * CLIENTS);
    for at in 0..CLIENTS {
        let of_client = executed.iter().filter(|bytes| bytes[0] == at as u8);
        let expected: Vec<_> = (0..3).map(|number| request(at, number)).collect();
        assert!(of_client.eq(expected.iter()), "client {at}");
    }
}
