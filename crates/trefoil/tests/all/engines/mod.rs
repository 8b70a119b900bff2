//! Lookups by way of an engine: real processes, as two hosts would be but for the wire.

mod by_hand;
mod certificates;
mod lives;
mod lookups;
mod messages;
mod relays;
mod scaling;
mod shown;
mod strangers;
mod strategies;

use crate::support::{Cell, PROGRAM, free_port, kill};
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use trefoil_client::{CarrierInUse, Client, Lookup, MissReason, Mutated, Options, SetOptions};

/// How long anything may take here.
const PATIENCE: Duration = Duration::from_secs(30);

/// An engine that ends with the test.
struct Engine {
    child: Child,
    address: SocketAddr,
}

impl Engine {
    fn start(cell: &Cell, listen: SocketAddr) -> Engine {
        Engine::start_with(cell, listen, &[])
    }

    fn start_with(cell: &Cell, listen: SocketAddr, more: &[&str]) -> Engine {
        let mut child = Command::new(PROGRAM)
            .args([
                "engine",
                "--cell",
                &cell.address,
                "--listen",
                &listen.to_string(),
            ])
            .args(more)
            .env("RUST_LOG", "info")
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = lines.next().expect("a ready line").unwrap();
        let json = line
            .strip_prefix("ready ")
            .expect("the line begins with ready");
        let json: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!(json["engine"], listen.to_string());
        Engine {
            child,
            address: listen,
        }
    }

    fn beside(cell: &Cell) -> Engine {
        Engine::start(cell, SocketAddr::from(([127, 0, 0, 1], free_port())))
    }

    fn options(&self) -> Options {
        Options {
            engine: Some(self.address),
            deadline: Duration::from_secs(20),
            ..Options::default()
        }
    }

    fn client(&self, cell: &Cell) -> Client {
        client(cell, self.options())
    }

    /// Ends it in peace; what it has counted.
    fn stop(mut self) -> HashMap<String, u64> {
        kill(self.child.id(), "TERM");
        let mut log = String::new();
        let stderr = self.child.stderr.as_mut().unwrap();
        stderr.read_to_string(&mut log).unwrap();
        assert!(self.child.wait().unwrap().success(), "{log}");
        let count = |line: &str| {
            let (rest, count) = line.rsplit_once(' ')?;
            let (_, name) = rest.rsplit_once(' ')?;
            Some((name.to_owned(), count.parse().ok()?))
        };
        log.lines().filter_map(count).collect()
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

/// A client that reaches every backend by way of its engine.
fn client(cell: &Cell, options: Options) -> Client {
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    let mut client = connected.client(options);
    await_engine(&mut client);
    client
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn up(mode: &str) -> (TempDir, Cell) {
    let dir = tempfile::tempdir().unwrap();
    let mut args = vec!["--memory", "64MiB", "--mode", mode];
    if mode == "R=1" {
        args.extend(["--backends", "1"]);
    }
    let cell = Cell::up(dir.path(), &args);
    (dir, cell)
}

/// Looks keys up until the client reaches all backends so.
fn await_carriers(client: &mut Client, wanted: impl Fn(CarrierInUse) -> bool) {
    let begin = Instant::now();
    while !client.carriers().iter().all(|link| wanted(link.carrier)) {
        for number in 0..20 {
            let _ = client.get(format!("nobody's {number}").as_bytes());
        }
        assert!(begin.elapsed() < PATIENCE, "{:?}", client.carriers());
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn await_engine(client: &mut Client) {
    await_carriers(client, |carrier| carrier == CarrierInUse::Engine);
}

fn set(client: &mut Client, key: &str, value: &[u8]) {
    let stored = client.set(key.as_bytes(), value, SetOptions::default());
    assert!(
        matches!(stored, Ok(Mutated::Stored { .. })),
        "{key}: {stored:?}"
    );
}

fn get(client: &mut Client, key: &str) -> Option<Vec<u8>> {
    match client.get(key.as_bytes()).unwrap() {
        Lookup::Hit(hit) => Some(hit.value.to_vec()),
        Lookup::Miss(_) => None,
    }
}

/// All keys in one batch: each has its first value, of the length that goes with its number.
fn get_all(client: &mut Client, keys: &[String], len: impl Fn(usize) -> usize) {
    let names: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let mut hits = 0;
    client.get_many(&names, |at, found| {
        let Ok(Lookup::Hit(hit)) = found else {
            panic!("{}: {found:?}", keys[at]);
        };
        assert!(hit.value == value(&keys[at], 1, len(at)), "{}", keys[at]);
        hits += 1;
    });
    assert_eq!(hits, keys.len());
}

fn value(key: &str, round: u64, len: usize) -> Vec<u8> {
    let mut value = format!("{key} {round} ").into_bytes();
    let filler = round as u8;
    value.resize(len.max(value.len()), filler);
    value
}

/// Whether the value is one that was stored for this key, and whole; and of which round.
fn round_of(key: &str, value: &[u8]) -> u64 {
    let text = value.splitn(3, |byte| *byte == b' ').collect::<Vec<_>>();
    assert_eq!(text[0], key.as_bytes());
    let round: u64 = std::str::from_utf8(text[1]).unwrap().parse().unwrap();
    assert!(
        text[2].iter().all(|byte| *byte == round as u8),
        "a torn value"
    );
    round
}

/// What was stored, and must be found. While a replica is away and the third copy is on
/// its way to another one there may be no quorum.
fn stored(client: &mut Client, key: &str) -> Vec<u8> {
    let begin = Instant::now();
    loop {
        match client.get(key.as_bytes()) {
            Ok(Lookup::Hit(hit)) => return hit.value.to_vec(),
            Ok(Lookup::Miss(miss)) => assert_eq!(miss.reason, MissReason::Inquorate, "{key}"),
            Err(error) => panic!("{key}: {error}"),
        }
        assert!(begin.elapsed() < PATIENCE, "{key} has no quorum");
    }
}

/// Reads and writes until told to stop; nothing fails, nothing is old.
fn under_load(cell: &Cell, options: Options, during: impl FnOnce(&dyn Fn(u64))) {
    let (is_done, count) = (AtomicBool::new(false), std::sync::atomic::AtomicU64::new(0));
    struct Done<'a>(&'a AtomicBool);
    impl Drop for Done<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let _done = Done(&is_done);
            let mut client = client(cell, options);
            let mut round = 0;
            while !is_done.load(Ordering::SeqCst) {
                round += 1;
                for number in 0..4 {
                    let key = format!("loaded{number}");
                    set(&mut client, &key, &value(&key, round, 500));
                    for _ in 0..4 {
                        let found = stored(&mut client, &key);
                        assert_eq!(round_of(&key, &found), round);
                    }
                }
                count.store(round, Ordering::SeqCst);
            }
        });
        let _done = Done(&is_done);
        // So many rounds more.
        let goes_on = |rounds: u64| {
            let (begin, from) = (Instant::now(), count.load(Ordering::SeqCst));
            while count.load(Ordering::SeqCst) < from + rounds {
                assert!(!is_done.load(Ordering::SeqCst), "the load has ended");
                assert!(begin.elapsed() < PATIENCE, "the load stands still");
                std::thread::sleep(Duration::from_millis(2));
            }
        };
        goes_on(5);
        during(&goes_on);
    });
}

fn said_by_metrics(address: SocketAddr) -> String {
    let mut socket = TcpStream::connect(address).unwrap();
    socket
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n")
        .unwrap();
    let mut said = String::new();
    socket.read_to_string(&mut said).unwrap();
    said
}

/// What one of an engine's threads has counted.
fn metric(said: &str, name: &str, engine: &str) -> u64 {
    metric_of(said, name, "cell", engine)
}

/// The same of a cell of this name.
fn metric_of(said: &str, name: &str, cell: &str, engine: &str) -> u64 {
    let begin = format!("trefoil_engine_{name}{{cell=\"{cell}\",engine=\"{engine}\"}} ");
    let value = said.lines().find_map(|line| line.strip_prefix(&begin));
    value
        .unwrap_or_else(|| panic!("no {begin}in {said}"))
        .parse()
        .unwrap()
}

fn engine_of(status: &serde_json::Value) -> (u64, serde_json::Value) {
    let counters = &status["engines"][0]["counters"];
    (counters["pid"].as_u64().unwrap_or(0), counters.clone())
}
