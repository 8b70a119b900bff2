//! Sessions that go from loop to loop, in one thread: each loop has a round when it is told to.

use super::EngineOptions;
use super::Who;
use super::event_loop::EventLoop;
use super::lane::QueueLane;
use super::meter::LOOKS_MAX;
use super::orders::Orders;
use super::seats::Seats;
use super::session::Session;
use super::session::tests::{asks, both, claim};
use super::shared::{LOAD_MAX, LoopShare, Shared};
use super::shares::Shares;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_ordered::{Options as QueueOptions, Queue, Worker};
use trefoil_softnic_core::scaling::Move;
use trefoil_softnic_core::wire::{Claimed, HEAD_LEN, Head};

/// How long anything may take here.
const PATIENCE: Duration = Duration::from_secs(30);

/// An engine that maps nothing: every request is answered that its handle is no good.
struct Bench {
    shared: Arc<Shared>,
    loops: Vec<EventLoop>,
}

impl Bench {
    fn new(engines: usize, engines_max: usize) -> Self {
        Bench::with(engines, engines_max, None)
    }

    /// With queues, for whose claims the test answers.
    fn with(engines: usize, engines_max: usize, orders: Option<Orders>) -> Self {
        let options = EngineOptions {
            engines,
            engines_max,
            ..EngineOptions::default()
        };
        let seats = Seats::new(100, 100);
        let shared = Shared::new(
            options,
            (Arc::new(|_| true), Arc::new(|_| true)),
            (seats, orders),
        );
        let shared = Arc::new(shared.unwrap());
        let event_loop = |at| EventLoop::new(Arc::clone(&shared), at).unwrap();
        let loops = (0..shared.loops.len()).map(event_loop).collect();
        Bench { shared, loops }
    }

    /// A client that is let in.
    fn client(&self) -> TcpStream {
        let (client, session) = both(&asks(0));
        client.set_nonblocking(true).unwrap();
        self.shared.hand_over(session);
        client
    }

    /// Rounds of all, until it is so: what is sent on this host may come a little later.
    fn until(&mut self, mut is_so: impl FnMut(&Bench) -> bool) {
        let begin = Instant::now();
        loop {
            for event_loop in &mut self.loops {
                event_loop.round(Some(Duration::ZERO));
            }
            if is_so(self) {
                return;
            }
            assert!(begin.elapsed() < PATIENCE, "{:?}", self.counts());
            std::thread::yield_now();
        }
    }

    /// Requests that all loops have carried out, or one of them.
    fn gone(&self, loops: std::ops::Range<usize>) -> u64 {
        let loops = self.shared.loops[loops].iter();
        loops.map(|of| of.counters.read().get("gone")).sum()
    }

    /// Bytes that all have received.
    fn received(&self) -> u64 {
        let loops = self.shared.loops.iter();
        loops.map(|of| of.counters.read().get("bytes_in")).sum()
    }

    /// Asks for so much, and waits until it is carried out.
    fn ask(&mut self, client: &mut TcpStream, count: u64) {
        let before = self.gone(0..self.loops.len());
        client.write_all(&frames(count)).unwrap();
        self.until(|bench| bench.gone(0..bench.loops.len()) == before + count);
    }

    /// How many sessions each loop has.
    fn counts(&self) -> Vec<usize> {
        self.loops
            .iter()
            .map(|one| one.sessions().count())
            .collect()
    }

    fn order_move(&self, (from, to): (usize, usize), permille: u32) {
        let what = Move { from, to, permille };
        self.shared.order_move(&what);
    }

    /// Bytes under way, and those that may be, as all loops tell; nobody else is counted than
    /// those who are there.
    fn streams(&self) -> (u64, u64) {
        let mut all = (0, 0);
        for (share, of) in self.shared.loops.iter().zip(&self.loops) {
            let told = |name| share.counters.read().get(name);
            let seen = of.sessions().map(|session| session.stream);
            let seen = seen.fold((0, 0), |(in_flight, window), one| {
                (in_flight + one.in_flight_bytes, window + one.window_bytes)
            });
            assert_eq!((told("in_flight_bytes"), told("window_bytes")), seen);
            all = (all.0 + seen.0, all.1 + seen.1);
        }
        all
    }

    fn moved(&self) -> u64 {
        let counted = self.shared.loops.iter().map(|of| of.counters.read());
        counted.map(|of| of.get("sessions_moved")).sum()
    }
}

/// Frames that ask for something each, without a greeting.
fn frames(count: u64) -> Vec<u8> {
    asks(count)[asks(0).len()..].to_vec()
}

/// Takes whole frames out of what has come; what is left is not whole.
fn take_frames(bytes: &mut Vec<u8>) -> usize {
    let mut count = 0;
    while let Some(head) = Head::decode(bytes, 1 << 20).unwrap() {
        let len = HEAD_LEN + head.len;
        if bytes.len() < len {
            break;
        }
        bytes.drain(..len);
        count += 1;
    }
    count
}

/// Receives what is there.
fn receive(client: &mut TcpStream, bytes: &mut Vec<u8>) {
    let mut buffer = [0; 4096];
    loop {
        match client.read(&mut buffer) {
            Ok(count) => {
                assert!(count > 0, "the session has ended");
                bytes.extend_from_slice(&buffer[..count]);
            }
            Err(error) => return assert_eq!(error.kind(), ErrorKind::WouldBlock),
        }
    }
}

#[test]
fn a_parked_loop_gives_its_sessions_away_amid_a_frame() {
    let mut bench = Bench::new(2, 2);
    let mut clients: Vec<TcpStream> = (0..4).map(|_| bench.client()).collect();
    bench.until(|bench| bench.counts() == [2, 2]);
    let mut received = vec![Vec::new(); 4];
    let mut take = |clients: &mut [TcpStream], bench: &mut Bench, count: usize| {
        for (client, received) in clients.iter_mut().zip(&mut received) {
            let mut taken = 0;
            bench.until(|_| {
                receive(client, received);
                taken += take_frames(received);
                taken >= count
            });
            assert_eq!((taken, received.len()), (count, 0));
        }
    };
    // WELCOME.
    take(&mut clients, &mut bench, 1);
    // A part of a frame is there when it happens, and what follows comes afterwards.
    let sent = frames(3);
    for cut in [1, HEAD_LEN, sent.len() / 2, sent.len() - 1] {
        for active in [1, 2] {
            let before = bench.received();
            for client in &mut clients {
                client.write_all(&sent[..cut]).unwrap();
            }
            bench.until(|bench| bench.received() == before + 4 * cut as u64);
            bench.shared.set_active(active);
            match active {
                1 => bench.until(|bench| bench.counts() == [4, 0]),
                _ => {
                    bench.order_move((0, 1), 500);
                    bench.until(|bench| bench.counts()[1] >= 1);
                }
            }
            for client in &mut clients {
                client.write_all(&sent[cut..]).unwrap();
            }
            take(&mut clients, &mut bench, 3);
            assert_eq!(bench.counts().iter().sum::<usize>(), 4);
        }
    }
    assert!(bench.moved() >= 8, "{}", bench.moved());
    // The seats went along.
    drop(clients);
    bench.until(|bench| bench.counts() == [0, 0]);
    for share in &bench.shared.loops {
        assert_eq!(share.session_count(), 0);
    }
}

/// One that does not take its answers is blocked there as it was here, and goes on.
#[test]
fn one_that_is_blocked_goes_on_elsewhere() {
    let mut bench = Bench::new(2, 2);
    let (mut client, session) = both(&asks(0));
    bench.shared.hand_to(1, session);
    bench.until(|bench| bench.counts() == [0, 1]);
    client.set_nonblocking(true).unwrap();
    let is_blocked = |bench: &Bench| {
        let mut loops = bench.loops.iter();
        loops.any(|of| of.sessions().any(Session::is_blocked))
    };
    let (mut sent, mut left, mut received, mut taken) = (0, Vec::new(), Vec::new(), 0);
    for _ in 0..20 {
        bench.until(|bench| {
            if left.is_empty() {
                left = frames(500);
                sent += 500;
            }
            match client.write(&left) {
                Ok(count) => drop(left.drain(..count)),
                Err(error) => assert_eq!(error.kind(), ErrorKind::WouldBlock),
            }
            is_blocked(bench)
        });
        let (from, to) = match bench.counts()[..] {
            [1, 0] => (0, 1),
            _ => (1, 0),
        };
        bench.order_move((from, to), 1000);
        bench.until(|bench| bench.counts()[to] == 1);
        receive(&mut client, &mut received);
        taken += take_frames(&mut received);
    }
    assert_eq!(bench.moved(), 20);
    bench.until(|_| {
        if !left.is_empty()
            && let Ok(count) = client.write(&left)
        {
            left.drain(..count);
        }
        receive(&mut client, &mut received);
        taken += take_frames(&mut received);
        // WELCOME came before the answers.
        taken > sent
    });
    assert_eq!((taken, received.len(), left.len()), (sent + 1, 0, 0));
}

/// One that was handed over while its loop was parked is passed on.
#[test]
fn one_that_comes_to_a_parked_loop_goes_on_to_another() {
    let mut bench = Bench::new(1, 3);
    let (_client, session) = both(&asks(0));
    bench.shared.hand_to(2, session);
    bench.until(|bench| bench.counts() == [1, 0, 0]);
}

/// What waits for a lane is known by its name in its loop, and so is what has one.
#[test]
fn one_that_claims_a_lane_stays_where_it_is() {
    let orders = Orders::new(Arc::new(|_| true), 1, 8);
    let mut bench = Bench::with(2, 2, Some(orders));
    let (mut client, session) = both(&[&asks(0)[..], &claim(0)].concat());
    client.set_nonblocking(true).unwrap();
    bench.shared.hand_to(1, session);
    let mut waiting = Vec::new();
    bench.until(|bench| {
        waiting.extend(bench.shared.await_orders(0, Some(Duration::ZERO)));
        !waiting.is_empty()
    });
    // All that can be moved leaves with another one of that loop.
    let park = |bench: &mut Bench| {
        let (other, session) = both(&asks(0));
        bench.shared.set_active(2);
        bench.shared.hand_to(1, session);
        bench.until(|bench| bench.counts() == [0, 2]);
        let before = bench.moved();
        bench.shared.set_active(1);
        bench.until(|bench| bench.counts() == [1, 1]);
        assert_eq!(bench.moved(), before + 1);
        drop(other);
        bench.until(|bench| bench.counts() == [0, 1]);
    };
    park(&mut bench);
    // Its lane is brought to where it has asked for it.
    let order = waiting.pop().unwrap();
    let mut server = Worker::new(1, QueueOptions::default()).unwrap();
    let invitation = server.admit().unwrap();
    let claimed = Claimed {
        server_commits: false,
        slot_count: invitation.terms.slot_count,
        epoch: invitation.terms.epoch,
        placed: 0,
        about: 0,
    };
    let who = Who::Token(b"t"[..].into());
    let place = Shares::new(None).take(&who, order.claim.producer, 8);
    let lane = QueueLane::new(Queue::join(invitation).unwrap(), 0, place);
    let given = Ok((lane, claimed));
    bench.shared.give_lane(order.at, order.session, given);
    let (mut received, mut taken) = (Vec::new(), 0);
    // WELCOME and CLAIMED.
    bench.until(|_| {
        receive(&mut client, &mut received);
        taken += take_frames(&mut received);
        taken == 2
    });
    park(&mut bench);
}

/// One whose work is more than what is to go stays: it would be as much elsewhere.
#[test]
fn a_loop_gives_no_more_than_it_is_told_to() {
    let mut bench = Bench::new(1, 2);
    let mut clients: Vec<TcpStream> = (0..5).map(|_| bench.client()).collect();
    // 40, 10, 10 and 10 turns, and one that asks for nothing.
    for turn in 0..40 {
        let asking = match turn % 4 {
            0 => 4,
            _ => 1,
        };
        for client in &mut clients[..asking] {
            bench.ask(client, 1);
        }
    }
    bench.shared.set_active(2);
    bench.order_move((0, 1), 400);
    bench.until(|bench| bench.counts()[1] >= 1);
    let counts = bench.counts();
    assert!(counts[0] >= 2, "{counts:?}");
    // The one that asks most is where it was.
    let before = bench.gone(0..1);
    bench.ask(&mut clients[0], 7);
    assert_eq!(bench.gone(0..1), before + 7);
}

/// The streams of a loop are not looked at all at once: whoever asks would wait for that.
#[test]
fn a_round_looks_at_a_few_streams_and_the_sums_are_of_those_who_are_there() {
    let count = 3 * LOOKS_MAX + 5;
    let mut bench = Bench::new(1, 2);
    let mut clients: Vec<TcpStream> = (0..count).map(|_| bench.client()).collect();
    bench.until(|bench| bench.counts() == [count, 0]);
    for client in &mut clients {
        bench.ask(client, 1);
    }
    let seen = |bench: &Bench| {
        let sessions = bench.loops[0].sessions();
        sessions.filter(|of| of.stream.window_bytes > 0).count()
    };
    let (begin, mut before) = (Instant::now(), seen(&bench));
    assert!(before <= LOOKS_MAX);
    while before < count {
        bench.loops[0].round(Some(Duration::from_millis(1)));
        let now = seen(&bench);
        assert!(now - before <= LOOKS_MAX, "{before}, then {now}");
        before = now;
        bench.streams();
        assert!(begin.elapsed() < PATIENCE, "{before} of {count}");
    }
    // One asks on and takes no answers: it is looked at again.
    let mut left = Vec::new();
    while bench.streams().0 == 0 {
        if left.is_empty() {
            left = frames(500);
        }
        if let Ok(count) = clients[0].write(&left) {
            left.drain(..count);
        }
        bench.loops[0].round(Some(Duration::from_millis(1)));
        assert!(begin.elapsed() < PATIENCE);
    }
    // What was seen of one goes with it, and ends with it.
    bench.shared.set_active(2);
    bench.order_move((0, 1), 1000);
    bench.until(|bench| bench.counts()[1] > 0);
    let (in_flight, window) = bench.streams();
    assert!(in_flight > 0 && window > 0);
    drop(clients.split_off(count / 2));
    bench.until(|bench| bench.counts().iter().sum::<usize>() == count / 2);
    assert!(bench.streams().1 > 0);
    drop(clients);
    bench.until(|bench| bench.counts() == [0, 0]);
    assert_eq!(bench.streams(), (0, 0));
}

/// Sessions that come and go within a moment leave nothing behind.
#[test]
fn loads_stay_within_bounds_whoever_comes_and_goes() {
    let mut bench = Bench::new(2, 2);
    let loads = |bench: &Bench| -> Vec<u32> {
        let loops = bench.shared.loops.iter();
        loops.map(LoopShare::load).collect()
    };
    bench.shared.tell_loads(&[0.5, 0.5]);
    for _ in 0..40 {
        let client = bench.client();
        bench.until(|bench| bench.counts().iter().sum::<usize>() == 1);
        assert!(loads(&bench).iter().all(|load| *load <= LOAD_MAX));
        drop(client);
        bench.until(|bench| bench.counts() == [0, 0]);
    }
    for _ in 0..60 {
        bench.shared.tell_loads(&[0.0, 0.0]);
    }
    assert_eq!(loads(&bench), [0, 0]);
}
