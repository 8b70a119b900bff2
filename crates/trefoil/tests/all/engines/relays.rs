//! Networks that lose, double, damage and stop datagrams, in between as real sockets.

use super::certificates::Certs;
use super::{
    Engine, PATIENCE, await_engine, get, get_all, metric, round_of, said_by_metrics, set, stored,
    up, value,
};
use crate::support::{Cell, free_port, text};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{Client, Lookup, LookupStrategy, Options};

/// Between a client and an engine, at 127.0.0.2: passes the stream on, and datagrams as a
/// bad network does.
struct Relay {
    address: SocketAddr,
    is_over: std::sync::Arc<AtomicBool>,
    /// Longer datagrams do not pass.
    len_max: std::sync::Arc<AtomicU64>,
    /// Datagrams that the client has sent, whether they have passed or not.
    asked: std::sync::Arc<AtomicU64>,
}

impl Relay {
    /// Loses `lost` of a hundred datagrams; doubles, damages and holds back some others.
    fn start(engine: SocketAddr, lost: u64) -> Relay {
        Relay::start_with(engine, lost, false)
    }

    /// The same. If `is_halting`, what the stream brings the client comes in halves of long
    /// answers, each behind some datagram.
    fn start_with(engine: SocketAddr, lost: u64, is_halting: bool) -> Relay {
        let passed = std::sync::Arc::<AtomicU64>::default();
        let halts = passed.clone();
        let len_max = std::sync::Arc::new(AtomicU64::new(u64::MAX));
        let asked = std::sync::Arc::<AtomicU64>::default();
        use std::net::{TcpListener, UdpSocket};
        let address = SocketAddr::from(([127, 0, 0, 2], engine.port()));
        let listener = TcpListener::bind(address).unwrap();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(server) = TcpStream::connect(engine) else {
                    continue;
                };
                for (mut from, mut to, passed) in [
                    (
                        client.try_clone().unwrap(),
                        server.try_clone().unwrap(),
                        None,
                    ),
                    (server, client, is_halting.then(|| halts.clone())),
                ] {
                    std::thread::spawn(move || {
                        let _ = match passed {
                            Some(passed) => copy_behind(&mut from, &mut to, &passed),
                            None => std::io::copy(&mut from, &mut to),
                        };
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        let near = UdpSocket::bind(address).unwrap();
        let far = UdpSocket::bind(("127.0.0.1", 0)).unwrap();
        far.connect(engine).unwrap();
        let is_over = std::sync::Arc::<AtomicBool>::default();
        let client = std::sync::Arc::<std::sync::Mutex<Option<SocketAddr>>>::default();
        for to_engine in [true, false] {
            let (near, far) = (near.try_clone().unwrap(), far.try_clone().unwrap());
            let (is_over, client) = (is_over.clone(), client.clone());
            let (passed, len_max, asked) = (passed.clone(), len_max.clone(), asked.clone());
            std::thread::spawn(move || {
                let mut random = 0x9e37_79b9_7f4a_7c15u64 ^ u64::from(to_engine);
                let mut happens = move |percent: u64| {
                    random ^= random << 13;
                    random ^= random >> 7;
                    random ^= random << 17;
                    random % 100 < percent
                };
                let from = if to_engine { &near } else { &far };
                from.set_read_timeout(Some(Duration::from_millis(50)))
                    .unwrap();
                let (mut bytes, mut held) = ([0; 2048], None::<Vec<u8>>);
                while !is_over.load(Ordering::Relaxed) {
                    let Ok((len, whose)) = from.recv_from(&mut bytes) else {
                        continue;
                    };
                    if to_engine {
                        *client.lock().unwrap() = Some(whose);
                        asked.fetch_add(1, Ordering::Relaxed);
                    }
                    let pass = |bytes: &[u8]| {
                        let whose = *client.lock().unwrap();
                        let _ = match (to_engine, whose) {
                            (true, _) => far.send(bytes),
                            (false, Some(whose)) => {
                                passed.fetch_add(1, Ordering::Relaxed);
                                near.send_to(bytes, whose)
                            }
                            (false, None) => Ok(0),
                        };
                    };
                    if happens(lost) || len as u64 > len_max.load(Ordering::Relaxed) {
                        continue;
                    }
                    if happens(2) {
                        bytes[len / 2] ^= 4;
                    }
                    if happens(2) {
                        pass(&bytes[..len]);
                    }
                    // Two change places.
                    match held.take() {
                        None if happens(5) => held = Some(bytes[..len].to_vec()),
                        None => pass(&bytes[..len]),
                        Some(other) => {
                            pass(&bytes[..len]);
                            pass(&other);
                        }
                    }
                }
            });
        }
        Relay {
            address,
            is_over,
            len_max,
            asked,
        }
    }
}

/// Passes on 20 KB at a time: the next ones when two datagrams more have been passed, or none
/// has for long.
fn copy_behind(
    from: &mut TcpStream,
    to: &mut TcpStream,
    passed: &AtomicU64,
) -> std::io::Result<u64> {
    use std::io::{Read as _, Write as _};
    let (mut bytes, mut len) = (vec![0; 20_000], 0);
    loop {
        let count = from.read(&mut bytes)?;
        if count == 0 {
            return Ok(len);
        }
        to.write_all(&bytes[..count])?;
        len += count as u64;
        let (seen, begin) = (passed.load(Ordering::Relaxed), Instant::now());
        while count > 10_000
            && passed.load(Ordering::Relaxed) < seen + 2
            && begin.elapsed() < Duration::from_millis(20)
        {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
}

impl Relay {
    /// Of a client that reaches the engine by way of this, by datagrams.
    fn options(&self, engine: &Engine) -> Options {
        Options {
            engine: Some(self.address),
            engine_datagrams: true,
            ..engine.options()
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
    }
}

#[test]
fn lookups_over_a_bad_network_are_right_and_none_fails() {
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    let engine = Engine::start_with(&cell, certs.listen(), &["--certs", &certs.of_server()]);
    let relay = Relay::start(engine.address, 5);
    let mut client = certs.client(&cell, relay.options(&engine));
    // Of one datagram, and of several.
    let lens = [0, 100, 1000, 5000, 8000];
    let keys: Vec<String> = (0..100).map(|number| format!("k{number}")).collect();
    for round in 1..4 {
        for (number, key) in keys.iter().enumerate() {
            set(
                &mut client,
                key,
                &value(key, round, lens[number % lens.len()]),
            );
        }
        for _ in 0..3 {
            for key in &keys {
                let found = get(&mut client, key).expect("it was stored");
                assert_eq!(round_of(key, &found), round, "{key}");
            }
        }
        let named: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
        client.get_many(&named, |at, result| match result {
            Ok(Lookup::Hit(hit)) => assert_eq!(round_of(&keys[at], hit.value), round),
            other => panic!("{}: {other:?}", keys[at]),
        });
    }
    // Where the machine stood still for long, calls may have helped out.
    await_engine(&mut client);
    drop(client);
    let counted = engine.stop();
    assert!(counted["datagrams_in"] > 900, "{counted:?}");
    // What was damaged or doubled was noticed.
    assert!(counted["datagrams_dropped"] > 10, "{counted:?}");
    // All 1,200, but for those that went by calls while the machine stood still.
    assert!(counted["scans"] >= 600, "{counted:?}");
}

#[test]
fn datagrams_that_stop_in_the_middle_of_a_session_are_done_without_until_they_pass_again() {
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    // Again, where this machine has stood still: who hears nothing gives a session up.
    assert!((0..5).any(|_| a_session_lasts_while_datagrams_stop(&cell, &certs)));
}

/// A firewall that lets nothing through from some moment on, then a tunnel that lets short ones
/// through. Whether all is looked up by way of the engine, and in one session.
fn a_session_lasts_while_datagrams_stop(cell: &Cell, certs: &Certs) -> bool {
    const KEYS: u64 = 50;
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (at, of_server) = (metrics.to_string(), certs.of_server());
    let more = ["--certs", &of_server, "--metrics", &at];
    let engine = Engine::start_with(cell, certs.listen(), &more);
    let relay = Relay::start(engine.address, 0);
    let mut client = certs.client(cell, relay.options(&engine));
    let keys: Vec<String> = (0..KEYS).map(|number| format!("k{number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        let len = if number % 2 == 0 { 100 } else { 5000 };
        set(&mut client, key, &value(key, 1, len));
    }
    let sessions = || metric(&said_by_metrics(metrics), "sessions_total", "set-up");
    let (begun, mut lookups) = (sessions(), 0);
    // Until what the client sends while it looks each up once is so many datagrams. That
    // takes a few rounds: the first ones find out what passes.
    let mut look_up_by = |wanted: std::ops::RangeInclusive<u64>| {
        let begin = Instant::now();
        loop {
            let before = relay.asked.load(Ordering::Relaxed);
            for key in &keys {
                let found = get(&mut client, key).expect("it was stored");
                assert_eq!(round_of(key, &found), 1, "{key}");
                lookups += 1;
            }
            let asked = relay.asked.load(Ordering::Relaxed) - before;
            if wanted.contains(&asked) {
                return;
            }
            assert!(
                begin.elapsed() < 2 * PATIENCE,
                "{asked} datagrams, and not {wanted:?}"
            );
        }
    };
    for len_max in [0, 1000] {
        look_up_by(KEYS..=u64::MAX);
        relay.len_max.store(len_max, Ordering::Relaxed);
        // By the stream, but for some that find out whether datagrams pass.
        look_up_by(0..=KEYS / 5);
        relay.len_max.store(u64::MAX, Ordering::Relaxed);
    }
    look_up_by(KEYS..=u64::MAX);
    let has_lasted = sessions() == begun;
    drop(client);
    let counted = engine.stop();
    eprintln!("lasted: {has_lasted}; {lookups} lookups: {counted:?}");
    // Nothing was called for.
    has_lasted && counted["scans"] >= lookups
}

/// A part of a frame by the stream is nothing that a datagram's answer goes on with.
#[test]
fn long_answers_by_the_stream_come_whole_between_datagrams() {
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    let engine = Engine::start_with(&cell, certs.listen(), &["--certs", &certs.of_server()]);
    let relay = Relay::start_with(engine.address, 0, true);
    let options = Options {
        strategy: LookupStrategy::TwoReads,
        ..relay.options(&engine)
    };
    let mut client = certs.client(&cell, options);
    let lens = |number: usize| match number.is_multiple_of(20) {
        true => 200_000,
        false => 100,
    };
    let keys: Vec<String> = (0..200).map(|number| format!("k{number}")).collect();
    for (number, key) in keys.iter().enumerate() {
        set(&mut client, key, &value(key, 1, lens(number)));
    }
    for _ in 0..10 {
        get_all(&mut client, &keys, lens);
    }
    drop(client);
    let counted = engine.stop();
    assert_eq!(counted["sessions_total"], 1, "{counted:?}");
    assert!(counted["datagrams_out"] >= 100, "{counted:?}");
    assert!(counted["bytes_out"] >= 10 * 10 * 200_000, "{counted:?}");
}

/// A client takes nothing that comes from elsewhere than it has asked.
#[test]
fn an_engine_on_all_addresses_answers_from_the_one_that_was_asked() {
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    let listen = SocketAddr::from(([0, 0, 0, 0], free_port()));
    let of_server = certs.of_server();
    for engines in ["1", "2"] {
        let more = ["--certs", &of_server, "--engines", engines];
        let engine = Engine::start_with(&cell, listen, &more);
        for host in [[127, 0, 0, 2], [127, 0, 0, 1]] {
            let options = Options {
                engine: Some(SocketAddr::from((host, listen.port()))),
                engine_datagrams: true,
                ..engine.options()
            };
            let mut client = certs.client(&cell, options);
            set(&mut client, "k", b"v");
            for _ in 0..100 {
                assert_eq!(get(&mut client, "k").as_deref(), Some(&b"v"[..]));
            }
            await_engine(&mut client);
        }
        let counted = engine.stop();
        // Some are asked again where this machine stands still, but not all.
        assert!(counted["datagrams_in"] >= 200, "{counted:?}");
        assert!(counted["datagrams_out"] >= 200, "{counted:?}");
    }
}

#[test]
fn where_datagrams_do_not_get_through_the_stream_carries() {
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    let engine = Engine::start_with(&cell, certs.listen(), &["--certs", &certs.of_server()]);
    let relay = Relay::start(engine.address, 100);
    let mut client = certs.client(&cell, relay.options(&engine));
    set(&mut client, "k", b"v");
    for _ in 0..100 {
        assert_eq!(get(&mut client, "k").as_deref(), Some(&b"v"[..]));
    }
    await_engine(&mut client);
    drop(client);
    let counted = engine.stop();
    assert_eq!(counted["datagrams_in"], 0);
    assert!(counted["scans"] >= 100, "{counted:?}");
}

/// The name of its session decides which of the threads takes a client's datagrams.
#[test]
fn several_engines_answer_datagrams_and_follow_backends() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--memory", "64MiB", "--restart", "always"];
    let cell = Cell::up(dir.path(), &args);
    let certs = Certs::issue();
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (at, of_server) = (metrics.to_string(), certs.of_server());
    let more = ["--certs", &of_server, "--engines", "3", "--metrics", &at];
    let engine = Engine::start_with(&cell, certs.listen(), &more);
    let options = Options {
        engine_datagrams: true,
        ..engine.options()
    };
    let connect = |_| certs.client(&cell, options);
    let mut clients: Vec<Client> = (0..16).map(connect).collect();
    set(&mut clients[0], "k", b"v");
    let look = |clients: &mut Vec<Client>| {
        for client in clients {
            for _ in 0..15 {
                assert_eq!(stored(client, "k"), b"v");
            }
        }
    };
    look(&mut clients);
    // 16 sessions, of which each reads by datagrams: all to one of three once in millions.
    // What a lookup asks of two replicas is in one.
    let said = said_by_metrics(metrics);
    let counts = ["0", "1", "2"].map(|engine| metric(&said, "datagrams_in_total", engine));
    assert!(counts.iter().sum::<u64>() >= 240, "{counts:?}");
    assert!(counts.iter().filter(|count| **count > 0).count() >= 2);
    // Handles are new everywhere.
    let restarted = cell.run(&["cell", "restart"]);
    assert!(restarted.status.success(), "{}", text(&restarted.stderr));
    look(&mut clients);
    clients.iter_mut().for_each(await_engine);
    look(&mut clients);
    drop(clients);
    assert_eq!(engine.stop()["malformed"], 0);
}
