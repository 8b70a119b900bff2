//! Lookups by way of an engine: real processes, as two hosts would be but for the wire.

use crate::support::{Cell, Hanging, PROGRAM, free_port, kill, text};
use std::collections::HashMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use trefoil_client::{
    CarrierInUse, Client, Lookup, LookupStrategy, MissReason, Mutated, Options, SetOptions,
};
use trefoil_client_core::vote::{IndexVote, index_vote};
use trefoil_fabric::port::{Completion, Port as _, Progress, Token};
use trefoil_layout::KeyHash;
use trefoil_layout::bucket::BUCKET_LEN;
use trefoil_layout::control::{self, CONTROL_LEN};
use trefoil_layout::data::DataEntry;
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_softnic::{DatagramUse, EngineAddress, EnginePort};
use trefoil_softnic_core::wire::{PROTOCOL_VERSION, Region};
use trefoil_softnic_core::{Event, Initiator, InitiatorOptions, ReadRange, Unanswered};

/// How long anything may take here.
const PATIENCE: Duration = Duration::from_secs(30);
/// A backend's control region, all of it.
const CONTROL: ReadRange = ReadRange {
    region: Region::Control,
    partition: 0,
    window_id: 0,
    offset: 0,
    len: CONTROL_LEN as u32,
};

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
            deadline: Duration::from_secs(5),
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

#[test]
fn items_are_found_by_way_of_an_engine_whatever_their_length() {
    let strategies = LookupStrategy::ALL.into_iter();
    let ways = strategies.flat_map(|strategy| [("R=1", strategy), ("R=3.2", strategy)]);
    for (mode, strategy) in ways {
        let (_dir, cell) = up(mode);
        let engine = Engine::beside(&cell);
        let options = Options {
            strategy,
            ..engine.options()
        };
        let mut client = client(&cell, options);
        // Longer than one scan solicits, and than an engine carries: that comes by a call.
        for len in [0, 1, 100, 5000, 100_000, 300_000, 2_000_000] {
            let key = format!("of {len}");
            let value = value("k", 7, len);
            set(&mut client, &key, &value);
            assert_eq!(
                get(&mut client, &key).as_ref(),
                Some(&value),
                "{mode} {strategy:?} {len}"
            );
            assert_eq!(
                get(&mut client, &key).as_ref(),
                Some(&value),
                "{mode} {strategy:?} {len}"
            );
        }
        assert_eq!(get(&mut client, "absent"), None);
        let erased = client.erase(b"of 100");
        assert!(matches!(erased, Ok(Mutated::Stored { .. })), "{erased:?}");
        assert_eq!(get(&mut client, "of 100"), None);
        // One that expires does so for readers by way of an engine, too.
        let soon = SetOptions {
            ttl: Some(Duration::from_millis(50)),
            ..SetOptions::default()
        };
        client.set(b"soon", b"over", soon).unwrap();
        let begin = Instant::now();
        while get(&mut client, "soon").is_some() {
            assert!(begin.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(5));
        }
        // Many at once, in any order.
        let keys: Vec<String> = (0..500).map(|number| format!("key {number}")).collect();
        for key in &keys {
            set(&mut client, key, key.as_bytes());
        }
        let names: Vec<&[u8]> = keys.iter().map(|key| key.as_bytes()).collect();
        let mut hits = 0;
        client.get_many(&names, |at, found| {
            if let Ok(Lookup::Hit(hit)) = found {
                assert_eq!(hit.value, names[at]);
                hits += 1;
            }
        });
        assert_eq!(hits, keys.len());
        assert_eq!(cell.run(&["cell", "flush"]).status.code(), Some(0));
        let found = client.get(b"of 5000");
        let is_flushed = matches!(&found, Ok(Lookup::Miss(miss)) if miss.reason == MissReason::Flushed
            || miss.reason == MissReason::Absent);
        assert!(is_flushed, "{found:?}");
        set(&mut client, "after", b"the flush");
        assert_eq!(
            get(&mut client, "after").as_deref(),
            Some(&b"the flush"[..])
        );
        await_engine(&mut client);
    }
}

#[test]
fn a_command_reads_by_way_of_an_engine() {
    let (_dir, cell) = up("R=3.2");
    let dir = tempfile::tempdir().unwrap();
    // Reached by TCP alone, as from another host.
    let served = Cell::serve(dir.path(), &["--memory", "64MiB"]);
    for cell in [cell, served] {
        let mut engine = Engine::beside(&cell);
        assert_eq!(cell.run(&["set", "name", "value"]).status.code(), Some(0));
        let address = engine.address.to_string();
        let found = cell.run(&["get", "name", "--engine", &address]);
        assert_eq!(text(&found.stdout), "value", "{}", text(&found.stderr));
        engine.client(&cell);
        // Nobody is there: calls bring it.
        engine.kill();
        let found = cell.run(&["get", "name", "--engine", &address]);
        assert_eq!(text(&found.stdout), "value", "{}", text(&found.stderr));
    }
}

#[test]
fn an_engine_counts_what_it_does_and_backends_do_nothing() {
    let (_dir, cell) = up("R=3.2");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "k", b"v");
    const GETS: u64 = 1000;
    for _ in 0..GETS {
        assert!(get(&mut client, "k").is_some());
    }
    client.flush_touches();
    let counters = client.counters();
    assert_eq!(counters.hits, GETS);
    drop(client);
    let counts = engine.stop();
    // Two replicas each; some may have gone by calls, where this machine stood still.
    assert!(counts["scans"] > GETS, "{counts:?}");
    assert!(counts["bytes_in"] >= 48 * counts["scans"], "{counts:?}");
    assert!(counts["bytes_out"] >= 80 * counts["scans"], "{counts:?}");
    // A hit is reported to all three; what was asked again says so again.
    let touches = counts["touches"];
    let asked_again = counts["scans"].saturating_sub(2 * GETS);
    assert!(
        (GETS..=3 * GETS + asked_again).contains(&touches),
        "{counts:?}"
    );
    let faults = (counts["malformed"], counts["refused"], counts["stuck"]);
    assert_eq!(faults, (0, 0, 0));
    assert_eq!(counts["mapped_total"], 3, "{counts:?}");
}

#[test]
fn beside_writers_nothing_torn_and_nothing_old_is_read() {
    for mode in ["R=1", "R=3.2"] {
        let (_dir, cell) = up(mode);
        let engine = Engine::beside(&cell);
        let mut reader = engine.client(&cell);
        const KEYS: usize = 8;
        let keys: Vec<String> = (0..KEYS).map(|number| format!("k{number}")).collect();
        let rounds: Vec<_> = (0..KEYS)
            .map(|_| std::sync::atomic::AtomicU64::new(0))
            .collect();
        for key in &keys {
            set(&mut reader, key, &value(key, 0, 3000));
        }
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
                let mut writer = connected.client(Options::default());
                for round in 1..400 {
                    for (key, known) in keys.iter().zip(&rounds) {
                        let len = 2000 + round as usize % 5 * 1500;
                        set(&mut writer, key, &value(key, round, len));
                        known.store(round, Ordering::SeqCst);
                    }
                }
                is_done.store(true, Ordering::SeqCst);
            });
            let mut count = 0;
            while !is_done.load(Ordering::SeqCst) || count < 100 {
                for (key, known) in keys.iter().zip(&rounds) {
                    let acknowledged = known.load(Ordering::SeqCst);
                    match reader.get(key.as_bytes()) {
                        Ok(Lookup::Hit(hit)) => {
                            let round = round_of(key, hit.value);
                            assert!(round >= acknowledged, "{key}: {round} < {acknowledged}");
                        }
                        // While three copies differ there may be no quorum.
                        Ok(Lookup::Miss(miss)) => {
                            assert_eq!(miss.reason, MissReason::Inquorate);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
                count += 1;
            }
        });
        await_engine(&mut reader);
    }
}

/// One copy decides, and whoever has read the new corpus never reads the old one again.
#[test]
fn an_immutable_corpus_changes_at_once_for_readers_by_way_of_an_engine() {
    let dir = tempfile::tempdir().unwrap();
    let corpus = |version: &str| {
        let path = dir.path().join(format!("{version}.csv"));
        let lines: String = (0..500).map(|n| format!("k{n},{version}\n")).collect();
        std::fs::write(&path, format!("key,value\n{lines}")).unwrap();
        path.display().to_string()
    };
    let (old, new) = (corpus("old"), corpus("new"));
    let args = [
        "--mode",
        "R=2",
        "--backends",
        "2",
        "--memory",
        "128MiB",
        "--load",
        &old,
    ];
    let cell = Cell::up(&dir.path().join("cell"), &args);
    let engine = Engine::beside(&cell);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = engine.client(&cell);
            let (begin, mut has_seen_new) = (Instant::now(), false);
            while !has_seen_new || !is_done.load(Ordering::SeqCst) {
                for number in 0..500 {
                    let found = get(&mut client, &format!("k{number}")).expect("in both");
                    match &found[..] {
                        b"new" => has_seen_new = true,
                        old => assert!(!has_seen_new && old == b"old", "k{number}"),
                    }
                }
                assert!(begin.elapsed() < PATIENCE);
            }
        });
        let reload = cell.run(&["cell", "reload", "--load", &new]);
        is_done.store(true, Ordering::SeqCst);
        assert!(reload.status.success(), "{}", text(&reload.stderr));
    });
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

#[test]
fn an_engine_that_is_killed_costs_nobody_anything() {
    for mode in ["R=1", "R=3.2"] {
        let (_dir, cell) = up(mode);
        let mut engine = Engine::beside(&cell);
        under_load(&cell, engine.options(), |goes_on| {
            for _ in 0..3 {
                engine.kill();
                goes_on(10);
                engine = Engine::start(&cell, engine.address);
                goes_on(10);
            }
        });
        // It is used again.
        engine.client(&cell);
    }
}

#[test]
fn an_engine_that_hangs_is_left_and_taken_again() {
    let (_dir, cell) = up("R=3.2");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "k", b"v");
    let hanging = Hanging::new(engine.child.id());
    assert_eq!(get(&mut client, "k").as_deref(), Some(&b"v"[..]));
    await_carriers(&mut client, |carrier| carrier == CarrierInUse::Rpc);
    drop(hanging);
    await_engine(&mut client);
    assert_eq!(get(&mut client, "k").as_deref(), Some(&b"v"[..]));
}

#[test]
fn the_only_copy_moves_while_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--memory", "64MiB", "--mode", "R=1", "--backends", "2"];
    let cell = Cell::up(dir.path(), &[&args[..], &["--restart", "always"]].concat());
    let engine = Engine::beside(&cell);
    under_load(&cell, engine.options(), |goes_on| {
        let restarted = cell.run(&["cell", "restart"]);
        assert!(restarted.status.success(), "{}", text(&restarted.stderr));
        goes_on(20);
    });
    engine.client(&cell);
}

#[test]
fn backends_that_move_or_die_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB", "--restart", "always"]);
    let engine = Engine::beside(&cell);
    under_load(&cell, engine.options(), |goes_on| {
        let restarted = cell.run(&["cell", "restart"]);
        assert!(restarted.status.success(), "{}", text(&restarted.stderr));
        goes_on(20);
    });
    let mut client = engine.client(&cell);
    set(&mut client, "before", b"the kill");
    let pids = |cell: &Cell| -> Vec<u64> {
        let status = cell.json(&["cell", "status", "--json"]);
        let backends = status["backends"].as_array().unwrap();
        backends
            .iter()
            .map(|of| of["pid"].as_u64().unwrap_or(0))
            .collect()
    };
    let before = pids(&cell);
    kill(before[1] as u32, "KILL");
    let begin = Instant::now();
    loop {
        assert_eq!(stored(&mut client, "before"), b"the kill");
        let now = pids(&cell);
        if now[1] != 0 && now[1] != before[1] {
            break;
        }
        assert!(begin.elapsed() < PATIENCE);
    }
    await_engine(&mut client);
    assert_eq!(
        get(&mut client, "before").as_deref(),
        Some(&b"the kill"[..])
    );
}

/// Memory objects that a process has mapped.
fn mapped(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

#[test]
fn memory_of_the_dead_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB", "--restart", "never"]);
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "key", b"value");
    let before = mapped(engine.child.id());
    assert!(before >= 3, "{before}");
    cell.kill(1);
    let begin = Instant::now();
    while mapped(engine.child.id()) > before / 3 * 2 {
        assert_eq!(stored(&mut client, "key"), b"value");
        assert!(begin.elapsed() < PATIENCE, "its memory is still mapped");
    }
    assert_eq!(stored(&mut client, "key"), b"value");
}

#[test]
fn reads_are_reported_to_the_backends() {
    let (_dir, cell) = up("R=3.2");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "used", b"often");
    let begin = Instant::now();
    loop {
        for _ in 0..100 {
            assert!(get(&mut client, "used").is_some());
        }
        client.flush_touches();
        let status = cell.json(&["cell", "status", "--json"]);
        let hot = cell.json(&["top", "--once", "--json"]);
        if hot.to_string().contains("used") {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "{status:#} {hot:#}");
    }
}

/// The first bytes of a session, of any version and token.
fn hello(version: u16, token: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 8 + 288];
    bytes[..4].copy_from_slice(&288u32.to_le_bytes());
    (bytes[4], bytes[6]) = (1, 1);
    bytes[8..16].copy_from_slice(b"TREFSNIC");
    bytes[16..18].copy_from_slice(&version.to_le_bytes());
    bytes[18] = LAYOUT_VERSION;
    bytes[20..22].copy_from_slice(&(token.len() as u16).to_le_bytes());
    bytes[24..28].copy_from_slice(&u32::MAX.to_le_bytes());
    bytes[40..40 + token.len()].copy_from_slice(token);
    bytes
}

/// What the engine says to these bytes before it hangs up.
fn said_to(engine: &Engine, bytes: &[u8]) -> Vec<u8> {
    let mut socket = TcpStream::connect(engine.address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    // It may have hung up already.
    let _ = socket.write_all(bytes);
    let mut said = Vec::new();
    let mut piece = [0; 4096];
    loop {
        match socket.read(&mut piece) {
            Ok(0) | Err(_) => return said,
            Ok(count) => said.extend_from_slice(&piece[..count]),
        }
    }
}

#[test]
fn strangers_learn_nothing_and_disturb_nobody() {
    let (_dir, cell) = up("R=1");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "k", b"v");
    // Without the token, with a wrong one.
    for token in [&b""[..], &[b'x'; 64]] {
        let bytes = hello(PROTOCOL_VERSION, token);
        let said = said_to(&engine, &bytes);
        // REFUSED, for want of the token.
        assert_eq!((said.len(), said[4], said[8 + 11]), (24, 3, 3));
        assert!(said.len() < bytes.len());
    }
    // Another version is told which this one is.
    let said = said_to(&engine, &hello(9, b""));
    assert_eq!(
        (said.len(), said[4], said[8 + 8], said[8 + 11]),
        (24, 3, PROTOCOL_VERSION as u8, 1)
    );
    // No protocol, and a length that no frame has: nothing at all.
    assert!(said_to(&engine, b"GET / HTTP/1.1\r\nHost: here\r\n\r\n").is_empty());
    assert!(said_to(&engine, &[0xff; 4096]).is_empty());
    // Those that say half a greeting are left after a while.
    assert!(said_to(&engine, &hello(PROTOCOL_VERSION, b"")[..100]).is_empty());
    // Many that say nothing: the oldest make room, and whoever knows the way comes in.
    let silent: Vec<TcpStream> = (0..600)
        .filter_map(|_| TcpStream::connect(engine.address).ok())
        .collect();
    assert!(silent.len() > 300);
    let mut late = engine.client(&cell);
    assert_eq!(get(&mut late, "k").as_deref(), Some(&b"v"[..]));
    assert_eq!(get(&mut client, "k").as_deref(), Some(&b"v"[..]));
    await_engine(&mut client);
}

/// A server's and a client's certificates.
struct Certs {
    own: TempDir,
}

impl Certs {
    fn issue() -> Certs {
        let own = tempfile::tempdir().unwrap();
        let dir = own.path().join("ca").display().to_string();
        let run = |args: &[&str]| {
            let made = crate::support::run(&[&["cell", "certs"], args, &["--dir", &dir]].concat());
            assert!(made.status.success(), "{}", text(&made.stderr));
        };
        run(&["init"]);
        let server = ["issue", "--name", "server", "--role", "backend"];
        run(&[&server[..], &["--host", "127.0.0.1,127.0.0.2"]].concat());
        run(&["issue", "--name", "client", "--role", "client"]);
        Certs { own }
    }

    fn of_server(&self) -> String {
        self.own.path().join("ca/server").display().to_string()
    }

    fn listen(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], free_port()))
    }

    /// Another client's.
    fn issue_another(&self, name: &str) {
        let dir = self.own.path().join("ca").display().to_string();
        let issue = ["cell", "certs", "issue", "--name", name, "--role", "client"];
        let made = crate::support::run(&[&issue[..], &["--dir", &dir]].concat());
        assert!(made.status.success(), "{}", text(&made.stderr));
    }

    /// Whom the server believes no more.
    fn revoke(&self, serials: &[String]) {
        let next = self.own.path().join("next");
        std::fs::write(&next, serials.join("\n")).unwrap();
        std::fs::rename(&next, self.own.path().join("ca/server/revoked")).unwrap();
    }

    fn tls(&self, name: &str) -> trefoil_client::Tls {
        let files = trefoil_client::CertFiles::in_directory(&self.own.path().join("ca").join(name));
        trefoil_client::Tls::read(&files, trefoil_client::CertUse::Client).unwrap()
    }

    /// A client that shows its certificate, once it reaches all by way of the engine.
    fn client(&self, cell: &Cell, options: Options) -> Client {
        let tls = self.tls("client");
        let cell = trefoil_client::Cell::connect_with(&cell.address, Some(tls)).unwrap();
        let mut client = cell.client(options);
        await_engine(&mut client);
        client
    }
}

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
    let options = Options {
        engine: Some(relay.address),
        engine_datagrams: true,
        ..engine.options()
    };
    let mut client = certs.client(&cell, options);
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

/// A firewall that lets nothing through from now on, or a tunnel that lets short ones through.
#[test]
fn datagrams_that_stop_in_the_middle_of_a_session_are_done_without_until_they_pass_again() {
    const KEYS: u64 = 50;
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (at, of_server) = (metrics.to_string(), certs.of_server());
    let more = ["--certs", &of_server, "--metrics", &at];
    let engine = Engine::start_with(&cell, certs.listen(), &more);
    let relay = Relay::start(engine.address, 0);
    let options = Options {
        engine: Some(relay.address),
        engine_datagrams: true,
        ..engine.options()
    };
    let mut client = certs.client(&cell, options);
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
    // Nothing was called for, and the session has lasted.
    assert_eq!(sessions(), begun);
    drop(client);
    let counted = engine.stop();
    assert!(counted["scans"] >= lookups, "{counted:?}");
}

/// A part of a frame by the stream is nothing that a datagram's answer goes on with.
#[test]
fn long_answers_by_the_stream_come_whole_between_datagrams() {
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    let engine = Engine::start_with(&cell, certs.listen(), &["--certs", &certs.of_server()]);
    let relay = Relay::start_with(engine.address, 0, true);
    let options = Options {
        engine: Some(relay.address),
        engine_datagrams: true,
        strategy: LookupStrategy::TwoReads,
        ..engine.options()
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
    let options = Options {
        engine: Some(relay.address),
        engine_datagrams: true,
        ..engine.options()
    };
    let mut client = certs.client(&cell, options);
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

/// The most memory that a process has had, in KiB.
fn peak_kib(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let text = line.unwrap().trim().trim_end_matches(" kB");
    text.parse().unwrap()
}

#[test]
fn strangers_disturb_nobody_where_tls_is_spoken() {
    let (_dir, cell) = up("R=3.2");
    let own = tempfile::tempdir().unwrap();
    let folder = own.path().join("ca");
    let dir = folder.display().to_string();
    let certs = |args: &[&str]| {
        let made = crate::support::run(&[&["cell", "certs"], args, &["--dir", &dir]].concat());
        assert!(made.status.success(), "{}", text(&made.stderr));
    };
    certs(&["init"]);
    let host = ["--host", "127.0.0.1"];
    certs(
        &[
            &["issue", "--name", "server", "--role", "backend"],
            &host[..],
        ]
        .concat(),
    );
    certs(&["issue", "--name", "client", "--role", "client"]);
    let path = folder.join("server").display().to_string();
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let engine = Engine::start_with(&cell, listen, &["--certs", &path]);
    let connect = || {
        let files = trefoil_client::CertFiles::in_directory(&folder.join("client"));
        let tls = trefoil_client::Tls::read(&files, trefoil_client::CertUse::Client).unwrap();
        let cell = trefoil_client::Cell::connect_with(&cell.address, Some(tls)).unwrap();
        let mut client = cell.client(engine.options());
        await_engine(&mut client);
        client
    };
    let mut client = connect();
    for len in [0, 100, 5000, 100_000, 200_000] {
        let key = format!("of {len}");
        let value = value("k", 7, len);
        set(&mut client, &key, &value);
        assert_eq!(get(&mut client, &key).as_ref(), Some(&value), "{len}");
    }
    // Many keys at once, more than a record holds.
    let keys: Vec<String> = (0..300).map(|number| format!("many-{number}")).collect();
    for key in &keys {
        set(&mut client, key, &value(key, 1, 1000));
    }
    let named: Vec<&[u8]> = keys.iter().map(String::as_bytes).collect();
    let mut found = 0;
    client.get_many(&named, |at, result| match result {
        Ok(Lookup::Hit(hit)) => {
            assert_eq!(round_of(&keys[at], hit.value), 1);
            found += 1;
        }
        other => panic!("{}: {other:?}", keys[at]),
    });
    assert_eq!(found, keys.len());

    // Who speaks without TLS, says nonsense, or more than a record may hold.
    let record = |len: usize, content: u8| {
        let mut bytes = vec![0x16, 3, 1];
        bytes.extend_from_slice(&(len as u16).to_be_bytes());
        bytes.resize(5 + len, content);
        bytes
    };
    for bytes in [
        hello(PROTOCOL_VERSION, &[b'x'; 64]),
        record(60_000, 1),
        record(200, 0),
        vec![0x16; 4096],
    ] {
        let said = said_to(&engine, &bytes);
        // An alert at most.
        assert!(said.len() <= 7, "{said:?}");
    }
    // Half a greeting, by the thousand; as many at a time as a process may have open.
    let half_greeting = |_| {
        let mut socket = TcpStream::connect(engine.address).unwrap();
        // It may have been left already.
        let _ = socket.write_all(&record(500, 1)[..200]);
        socket
    };
    let mut half: Vec<TcpStream> = Vec::new();
    for _ in 0..4 {
        half.clear();
        half.extend((0..500).map(half_greeting));
        assert!(get(&mut client, "of 5000").is_some());
    }
    let mut late = connect();
    assert!(get(&mut late, "of 5000").is_some());
    assert!(get(&mut client, "of 5000").is_some());
    let peak = peak_kib(engine.child.id());
    assert!(peak < 200 << 10, "{peak} KiB");
    // Without a certificate of the cell's, nobody comes in by the token, either.
    let mut by_token = trefoil_client::Cell::connect(&cell.address)
        .unwrap()
        .client(engine.options());
    await_carriers(&mut by_token, |carrier| carrier == CarrierInUse::Rpc);
    assert!(get(&mut by_token, "of 5000").is_some());
    drop(half);
}

/// From another address of this host than everybody else.
fn connect_from(last: u8, to: SocketAddr) -> TcpStream {
    use rustix::net::{AddressFamily, SocketType, bind, connect, socket};
    let from = SocketAddr::from(([127, 0, 0, last], 0));
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &from).unwrap();
    connect(&socket, &to).unwrap();
    socket.into()
}

#[test]
fn strangers_of_one_address_take_no_place_of_others() {
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (at, of_server) = (metrics.to_string(), certs.of_server());
    let more = ["--certs", &of_server, "--metrics", &at];
    let engine = Engine::start_with(&cell, certs.listen(), &more);
    // One that has begun before all the others, and is slow.
    let slow = TcpStream::connect(engine.address).unwrap();
    let begin = Instant::now();
    let silent: Vec<TcpStream> = (0..300).map(|_| connect_from(9, engine.address)).collect();
    let said = said_by_metrics(metrics);
    let open = metric(&said, "sessions_open", "set-up");
    assert!((2..=65).contains(&open), "{open} of 301");
    // It is still there; if it is, its time is not over.
    slow.set_nonblocking(true).unwrap();
    let is_there = matches!(
        (&slow).read(&mut [0; 1]),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock
    );
    assert!(is_there || begin.elapsed() > Duration::from_millis(1500));
    // Handshakes that come to nothing, by the hundred: nobody who reads is disturbed.
    drop(silent);
    let mut client = certs.client(&cell, engine.options());
    set(&mut client, "k", b"v");
    let mut strange = vec![0x16, 3, 1, 0, 100];
    strange.resize(105, 1);
    for _ in 0..500 {
        let mut socket = connect_from(9, engine.address);
        let _ = socket.write_all(&strange);
    }
    assert_eq!(get(&mut client, "k").as_deref(), Some(&b"v"[..]));
    // Beyond some hundreds they are turned away, and others come in.
    let begin = Instant::now();
    while metric(&said_by_metrics(metrics), "turned_away_total", "set-up") == 0 {
        for _ in 0..100 {
            connect_from(9, engine.address);
        }
        assert!(begin.elapsed() < PATIENCE);
    }
    let mut late = certs.client(&cell, engine.options());
    assert_eq!(get(&mut late, "k").as_deref(), Some(&b"v"[..]));
    let said = said_by_metrics(metrics);
    assert_eq!(metric(&said, "malformed_total", "0"), 0, "{said}");
    assert_eq!(metric(&said, "refused_total", "0"), 0, "{said}");
}

#[test]
fn who_comes_when_there_is_no_place_is_told_so_and_comes_later() {
    let (_dir, cell) = up("R=1");
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let engine = Engine::start_with(&cell, listen, &["--engine-sessions", "2"]);
    let life = trefoil_client::Cell::connect(&cell.address)
        .unwrap()
        .config()
        .life;
    let mut sessions: Vec<Session> = (0..2).map(|_| Session::open(&engine, life)).collect();
    // Strangers take none of the places.
    let _silent: Vec<TcpStream> = (0..20)
        .map(|_| TcpStream::connect(engine.address).unwrap())
        .collect();
    let token = token_of(&engine);
    let greeting = hello(PROTOCOL_VERSION, token.as_bytes());
    let said = said_to(&engine, &greeting);
    // REFUSED: full.
    assert_eq!((said.len(), said[4], said[8 + 11]), (24, 3, 4));
    sessions.pop();
    let begin = Instant::now();
    let is_let_in = || {
        let mut socket = TcpStream::connect(engine.address).unwrap();
        socket.write_all(&greeting).unwrap();
        let mut head = [0; 8];
        socket.read_exact(&mut head).is_ok() && head[4] == 2
    };
    while !is_let_in() {
        assert!(begin.elapsed() < PATIENCE, "no place is free");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Half of the sessions are the most that clients of one certificate's name have: those
/// beyond call instead, and another name finds some left.
#[test]
fn clients_of_one_certificate_leave_sessions_to_others() {
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    certs.issue_another("other");
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (at, of_server) = (metrics.to_string(), certs.of_server());
    let more = ["--certs", &of_server, "--engine-sessions", "4"];
    let more = [&more[..], &["--metrics", &at]].concat();
    let engine = Engine::start_with(&cell, certs.listen(), &more);
    let mut own: Vec<Client> = (0..2)
        .map(|_| certs.client(&cell, engine.options()))
        .collect();
    set(&mut own[0], "k", b"v");
    let come = |name| {
        let known = trefoil_client::Cell::connect_with(&cell.address, Some(certs.tls(name)));
        known.unwrap().client(engine.options())
    };
    let mut third = come("client");
    let begin = Instant::now();
    while metric(&said_by_metrics(metrics), "refused_total", "set-up") == 0 {
        assert_eq!(get(&mut third, "k").as_deref(), Some(&b"v"[..]));
        assert!(begin.elapsed() < PATIENCE, "nobody was refused");
    }
    let mut other = come("other");
    await_engine(&mut other);
    assert_eq!(get(&mut other, "k").as_deref(), Some(&b"v"[..]));
}

#[test]
fn a_server_s_own_engine_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let cell = Cell::serve(dir.path(), &["--memory", "64MiB", "--engine", &listen]);
    let stored = cell.run(&["set", "k", "hello"]);
    assert!(stored.status.success(), "{}", text(&stored.stderr));
    let read = cell.run(&["get", "k", "--engine", &listen]);
    assert_eq!(text(&read.stdout), "hello");
    let (_, counters) = engine_of(&cell.status());
    assert_eq!(counters["backends_mapped"], 1);
    assert!(counters["scans"].as_u64() > Some(0), "{counters:#}");
    // In words, too.
    let said = text(&cell.run(&["cell", "status"]).stdout);
    assert!(
        said.contains(&format!("engine {listen}: 1 threads, 1 backends")),
        "{said}"
    );
}

#[test]
fn an_engine_s_counters_are_there_for_prometheus() {
    let (_dir, cell) = up("R=1");
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let at = metrics.to_string();
    let engine = Engine::start_with(&cell, listen, &["--metrics", &at]);
    let mut client = engine.client(&cell);
    set(&mut client, "k", b"v");
    assert!(get(&mut client, "k").is_some());
    let said = said_by_metrics(metrics);
    assert!(
        metric(&said, "scans_total", "0") > 0 && metric(&said, "sessions_total", "set-up") > 0,
        "{said}"
    );
    assert!(
        said.contains("# TYPE trefoil_engine_sessions_open gauge"),
        "{said}"
    );
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
    let begin = format!("trefoil_engine_{name}{{cell=\"cell\",engine=\"{engine}\"}} ");
    let value = said.lines().find_map(|line| line.strip_prefix(&begin));
    value
        .unwrap_or_else(|| panic!("no {begin}in {said}"))
        .parse()
        .unwrap()
}

#[test]
fn several_engines_share_the_clients_of_one_address() {
    let (_dir, cell) = up("R=1");
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let (at, engines) = (metrics.to_string(), ["0", "1", "2"]);
    let more = ["--metrics", &at, "--engines", "3"];
    let engine = Engine::start_with(&cell, listen, &more);
    // Each with one session; they come one after the other.
    let mut clients: Vec<Client> = (0..6).map(|_| engine.client(&cell)).collect();
    set(&mut clients[0], "k", b"v");
    for client in &mut clients {
        for _ in 0..50 {
            assert_eq!(get(client, "k").as_deref(), Some(&b"v"[..]));
        }
    }
    let said = said_by_metrics(metrics);
    for engine in engines {
        let count = |name| metric(&said, name, engine);
        assert_eq!(count("sessions_open"), 2, "{said}");
        assert!(count("scans_total") >= 100, "{said}");
        assert_eq!(count("backends_mapped"), 1, "{said}");
    }
    // Those that leave make room where they were.
    clients.truncate(1);
    let begin = Instant::now();
    let open = |said: &str| -> u64 {
        let counts = engines.map(|engine| metric(said, "sessions_open", engine));
        counts.iter().sum()
    };
    while open(&said_by_metrics(metrics)) > 1 {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
    clients.extend((0..2).map(|_| engine.client(&cell)));
    let said = said_by_metrics(metrics);
    for engine in engines {
        assert_eq!(metric(&said, "sessions_open", engine), 1, "{said}");
    }
    drop(clients);
    let counted = engine.stop();
    assert_eq!((counted["engines"], counted["backends_mapped"]), (3, 1));
    assert!(counted["scans"] >= 300, "{counted:?}");
}

/// What a lookup asks of three backends goes in one message.
#[test]
fn of_three_copies_one_comes_over_the_wire() {
    const LEN: usize = 32 << 10;
    const GETS: usize = 200;
    let (_dir, cell) = up("R=3.2");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    for key in &keys {
        set(&mut client, key, &value(key, 1, LEN));
    }
    for key in keys.iter().cycle().take(GETS) {
        let found = get(&mut client, key);
        assert!(found == Some(value(key, 1, LEN)), "{key}");
    }
    drop(client);
    let counted = engine.stop();
    let copies = counted["bytes_out"] as f64 / (GETS * LEN) as f64;
    // Some were late where this machine stood still, and the third was asked.
    assert!(
        (1.0..1.5).contains(&copies),
        "{copies} copies a GET: {counted:?}"
    );
    assert!(counted["scans"] >= 2 * GETS as u64, "{counted:?}");
}

/// What each strategy asks for, and what comes over the wire for it.
#[test]
fn each_strategy_asks_for_what_it_says() {
    const LEN: usize = 32 << 10;
    const GETS: u64 = 200;
    let (_dir, cell) = up("R=3.2");
    let keys: Vec<String> = (0..20).map(|number| format!("k{number}")).collect();
    // Copies of a value, and reads for a GET; the third was asked where this machine stood
    // still.
    for (strategy, copies, reads) in [
        (LookupStrategy::Scar, 1.0, 0),
        (LookupStrategy::ScarAll, 2.0, 0),
        (LookupStrategy::TwoReads, 1.0, 1),
        (LookupStrategy::Rpc, 0.0, 0),
    ] {
        let engine = Engine::beside(&cell);
        let options = Options {
            strategy,
            ..engine.options()
        };
        let mut client = client(&cell, options);
        for key in &keys {
            set(&mut client, key, &value(key, 1, LEN));
        }
        for key in keys.iter().cycle().take(GETS as usize) {
            let found = get(&mut client, key);
            assert!(found == Some(value(key, 1, LEN)), "{key}");
        }
        drop(client);
        let counted = engine.stop();
        let sent = counted["bytes_out"] as f64 / (GETS as usize * LEN) as f64;
        let is_close = (copies..copies + 0.5).contains(&sent);
        assert!(is_close, "{strategy:?}: {sent} copies: {counted:?}");
        let asked = counted["reads"];
        let is_close = (reads * GETS..=reads * GETS * 5 / 4).contains(&asked);
        assert!(is_close, "{strategy:?}: {counted:?}");
    }
}

/// One item in twenty is long: the window holds few scans that could bring one. Whether votes
/// are asked for then depends on how fast answers come.
#[test]
fn batches_of_very_different_lengths_are_found_whole() {
    let (_dir, cell) = up("R=1");
    let lens = |number: usize| {
        if number.is_multiple_of(20) {
            60_000
        } else {
            100
        }
    };
    let keys: Vec<String> = (0..600).map(|number| format!("k{number}")).collect();
    let certs = Certs::issue();
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let at = metrics.to_string();
    for by_datagrams in [false, true] {
        let more = ["--certs", &certs.of_server(), "--metrics", &at];
        let engine = Engine::start_with(&cell, certs.listen(), &more);
        let options = Options {
            engine_datagrams: by_datagrams,
            ..engine.options()
        };
        let mut client = certs.client(&cell, options);
        for (number, key) in keys.iter().enumerate() {
            set(&mut client, key, &value(key, 1, lens(number)));
        }
        let begin = Instant::now();
        let mut batches = 0;
        // Who asks for a vote asks for the data by a read. Votes are for times in which answers
        // come as fast as they can; on a busy machine that may take a while.
        while batches < 20 || metric(&said_by_metrics(metrics), "reads_total", "0") == 0 {
            assert!(begin.elapsed() < PATIENCE, "{by_datagrams}: only scans");
            get_all(&mut client, &keys, lens);
            batches += 1;
        }
        drop(client);
        let counted = engine.stop();
        assert!(counted["scans"] >= batches * 600, "{counted:?}");
    }
}

#[test]
fn a_client_reads_all_backends_of_an_engine_by_one_session() {
    let (_dir, cell) = up("R=3.2");
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let at = metrics.to_string();
    let engine = Engine::start_with(&cell, listen, &["--metrics", &at]);
    let mut client = engine.client(&cell);
    let keys: Vec<String> = (0..300).map(|number| format!("k{number}")).collect();
    for key in &keys {
        set(&mut client, key, key.as_bytes());
    }
    let begin = Instant::now();
    let is_one = || metric(&said_by_metrics(metrics), "sessions_open", "0") == 1;
    while !is_one() {
        assert!(begin.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(10));
    }
    for key in &keys {
        assert_eq!(get(&mut client, key).as_deref(), Some(key.as_bytes()));
    }
    let mut found = 0;
    client.get_many(&keys, |index, result| match result {
        Ok(Lookup::Hit(hit)) => {
            assert_eq!(hit.value, keys[index].as_bytes());
            found += 1;
        }
        other => panic!("{index}: {other:?}"),
    });
    assert_eq!(found, keys.len());
    assert!(is_one());
    for link in client.carriers() {
        assert_eq!(link.carrier, CarrierInUse::Engine, "{link:?}");
    }
    drop(client);
    let counted = engine.stop();
    // Two of three are asked, by each lookup.
    assert!(counted["scans"] >= 4 * keys.len() as u64, "{counted:?}");
    assert_eq!(counted["backends_mapped"], 3);
}

/// Which of the threads takes a client's datagrams is the system's choice.
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

/// One session by hand.
struct Session {
    socket: TcpStream,
    initiator: Initiator,
    handle: u32,
    config_id: u32,
    sub_count: usize,
    input: Vec<u8>,
}

impl Session {
    fn open(engine: &Engine, life: u64) -> Session {
        Session::open_with(engine, life, token_of(engine).as_bytes())
    }

    fn open_with(engine: &Engine, life: u64, token: &[u8]) -> Session {
        let options = InitiatorOptions {
            token,
            ..InitiatorOptions::default()
        };
        let mut session = Session {
            socket: TcpStream::connect(engine.address).unwrap(),
            initiator: Initiator::new(options),
            handle: 0,
            config_id: 0,
            sub_count: 0,
            input: Vec::new(),
        };
        session.socket.set_read_timeout(Some(PATIENCE)).unwrap();
        session.initiator.open(1, 0, life, 0);
        let opened = session.await_event(|event| match event {
            Event::Opened { result, .. } => result.unwrap(),
            other => panic!("{other:?}"),
        });
        (session.handle, session.sub_count) = (opened.handle, opened.sub_count.into());
        session.config_id = opened.topology.config_id;
        session
    }

    fn await_event<T>(&mut self, take: impl Fn(Event<'_>) -> T) -> T {
        loop {
            self.initiator.flush(0);
            self.socket.write_all(self.initiator.output()).unwrap();
            self.initiator.sent(self.initiator.output().len());
            let mut found = None;
            let done = self
                .initiator
                .handle(&self.input, 0, |event| found = Some(take(event)));
            self.input.drain(..done.unwrap());
            if let Some(found) = found {
                return found;
            }
            let mut piece = [0; 4096];
            let count = self.socket.read(&mut piece).unwrap();
            assert!(count > 0, "the engine has hung up");
            self.input.extend_from_slice(&piece[..count]);
        }
    }

    /// The bytes, as words.
    fn read(&mut self, range: ReadRange) -> Result<Vec<u64>, Unanswered> {
        assert!(self.initiator.read(2, self.handle, &range, 0));
        self.await_event(|event| match event {
            Event::Read { data, .. } => {
                let words = data.chunks_exact(8);
                Ok(words
                    .map(|word| u64::from_le_bytes(word.try_into().unwrap()))
                    .collect())
            }
            Event::Unanswered { why, .. } => Err(why),
            other => panic!("{other:?}"),
        })
    }
}

fn token_of(engine: &Engine) -> std::sync::Arc<str> {
    let server = trefoil_cell::RpcAddress::Tcp {
        host: engine.address.ip().to_string(),
        port: engine.address.port(),
    };
    trefoil_cell::credentials(&server)
        .token()
        .expect("it was left here")
}

/// What a client does that reads the memory itself: windows, bucket, data.
#[test]
fn an_item_is_found_by_reads_alone() {
    let (_dir, cell) = up("R=1");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "by hand", b"found");
    let (hash, life) = (client.config().hash.hash(b"by hand"), client.config().life);
    let mut session = Session::open(&engine, life);
    let words = session.read(CONTROL).unwrap();
    let partition = hash.partition(0, session.sub_count);
    let window = control::index_window(&words[..], partition).unwrap();
    let home = hash.bucket(window.bucket_count);
    let bucket = ReadRange {
        region: Region::Index,
        partition: partition as u16,
        window_id: window.window_id,
        offset: window.offset + home * BUCKET_LEN as u64,
        len: 4 * BUCKET_LEN as u32,
    };
    let buckets = session.read(bucket).unwrap();
    let config_id = control::config_id(&words[..]);
    let vote = index_vote(hash, config_id, window.bucket_count, |number| {
        &buckets[(number - home) as usize * BUCKET_LEN / 8..][..BUCKET_LEN / 8]
    });
    let IndexVote::Present { entry, .. } = vote else {
        panic!("{vote:?}");
    };
    let data = ReadRange {
        region: Region::Data,
        partition: 0,
        window_id: 0,
        offset: entry.pointer.offset(),
        len: entry.pointer.len() as u32,
    };
    let data_words = session.read(data).unwrap();
    let bytes: Vec<u8> = data_words
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    let found = DataEntry::validate(&bytes, hash.tag, entry.version, b"by hand").unwrap();
    assert_eq!(found.value, b"found");
    // Nothing but what is advertised.
    let data_window = control::data_window(&words[..]);
    let index_end = window.offset + control::IndexWindow::bytes(window.bucket_count);
    for beyond in [
        ReadRange {
            offset: CONTROL_LEN as u64 - 8,
            len: 16,
            ..CONTROL
        },
        ReadRange {
            offset: !7,
            ..CONTROL
        },
        ReadRange {
            window_id: window.window_id + 2,
            ..bucket
        },
        ReadRange {
            partition: u16::MAX,
            ..bucket
        },
        ReadRange {
            offset: bucket.offset + 8,
            ..bucket
        },
        ReadRange {
            offset: index_end - BUCKET_LEN as u64,
            ..bucket
        },
        ReadRange {
            offset: !7,
            ..bucket
        },
        ReadRange {
            offset: data_window - 8,
            len: 16,
            ..data
        },
        ReadRange { offset: !7, ..data },
    ] {
        assert_eq!(
            session.read(beyond),
            Err(Unanswered::OutOfWindow),
            "{beyond:?}"
        );
    }
    assert_eq!(
        session.read(CONTROL).map(|words| words.len()),
        Ok(CONTROL_LEN / 8)
    );
}

/// Asks for much and takes nothing: it is given up, and disturbs nobody meanwhile.
#[test]
fn a_client_that_does_not_take_its_answers_is_given_up() {
    let (_dir, cell) = up("R=1");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "k", b"v");
    let token = token_of(&engine);
    let mut socket = TcpStream::connect(engine.address).unwrap();
    socket
        .write_all(&hello(PROTOCOL_VERSION, token.as_bytes()))
        .unwrap();
    let life = client.config().life;
    let mut open = vec![24, 0, 0, 0, 4, 0, 1, 0];
    open.extend([&1u64.to_le_bytes()[..], &life.to_le_bytes(), &[0; 8]].concat());
    socket.write_all(&open).unwrap();
    let mut said = [0; 48 + 80];
    socket.read_exact(&mut said).unwrap();
    assert_eq!((said[4], said[48 + 4], said[48 + 8 + 8]), (2, 5, 0));
    let handle = &said[48 + 8 + 12..48 + 8 + 16];
    // 60 reads of 8 KiB of the control region.
    let mut asks = vec![0x40, 0x0b, 0, 0, 6, 0, 60, 0];
    for id in 0..60u64 {
        let mut ask = [0; 48];
        ask[..8].copy_from_slice(&id.to_le_bytes());
        ask[8..12].copy_from_slice(handle);
        ask[12] = 2;
        ask[20..24].copy_from_slice(&8192u32.to_le_bytes());
        asks.extend(ask);
    }
    socket.set_nonblocking(true).unwrap();
    let (begin, mut refusals) = (Instant::now(), 0);
    let mut at = 0;
    loop {
        match socket.write(&asks[at..]) {
            Ok(count) => at = (at + count) % asks.len(),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                refusals += 1;
                assert_eq!(get(&mut client, "k").as_deref(), Some(&b"v"[..]));
                std::thread::sleep(Duration::from_millis(20));
            }
            // It has hung up.
            Err(_) => break,
        }
        assert!(begin.elapsed() < PATIENCE, "it is kept");
    }
    assert!(refusals > 0, "everything was taken");
    let status = std::fs::read_to_string(format!("/proc/{}/status", engine.child.id())).unwrap();
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .unwrap();
    let peak_kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    assert!(peak_kib < 200 << 10, "{peak_kib} KiB");
}

#[test]
fn an_engine_does_not_leave_the_host_unasked() {
    let (_dir, cell) = up("R=1");
    let refused = cell.run(&["engine", "--listen", "0.0.0.0:0"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(
        text(&refused.stderr).contains("--token-file"),
        "{}",
        text(&refused.stderr)
    );
    let refused = cell.run(&["engine", "--listen", "0.0.0.0:0", "--plaintext"]);
    assert_eq!(refused.status.code(), Some(2));
}

fn engine_of(status: &serde_json::Value) -> (u64, serde_json::Value) {
    let counters = &status["engines"][0]["counters"];
    (counters["pid"].as_u64().unwrap_or(0), counters.clone())
}

#[test]
fn a_cell_s_own_engine_is_started_again_and_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let args = [
        "--memory",
        "64MiB",
        "--engine",
        &listen,
        "--restart",
        "always",
    ];
    let cell = Cell::up(dir.path(), &args);
    let address: SocketAddr = listen.parse().unwrap();
    let options = Options {
        engine: Some(address),
        deadline: Duration::from_secs(5),
        ..Options::default()
    };
    let await_pid = |other: u64| {
        let begin = Instant::now();
        loop {
            let (pid, counters) = engine_of(&cell.status());
            if pid != 0 && pid != other && counters["backends_mapped"] == 3 {
                return pid;
            }
            assert!(begin.elapsed() < PATIENCE, "{counters:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let mut pid = await_pid(0);
    under_load(&cell, options, |goes_on| {
        for _ in 0..2 {
            kill(pid as u32, "KILL");
            goes_on(10);
            pid = await_pid(pid);
            goes_on(10);
        }
    });
    let (_, counters) = engine_of(&cell.status());
    assert!(counters["scans"].as_u64() > Some(0), "{counters:#}");
    // It ends with its cell, and takes its word away.
    drop(cell);
    let begin = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(begin.elapsed() < PATIENCE, "the engine is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn top_and_doctor_show_engines() {
    let (_dir, cell) = up("R=3.2");
    let mut engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "k", b"v");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                let _ = client.get(b"k");
            }
        });
        let shown = cell.json(&["top", "--once", "--json", "--interval", "500ms"]);
        let written = cell.run(&["top", "--once", "--interval", "500ms"]);
        is_done.store(true, Ordering::SeqCst);
        let of = &shown["engines"][0];
        assert_eq!(of["address"], engine.address.to_string());
        assert!(of["operations_per_s"].as_f64() > Some(10.0), "{of:#}");
        assert!(of["out_bytes_per_s"].as_f64() > Some(100.0), "{of:#}");
        assert!(of["cpu_us_per_operation"].as_f64() > Some(0.0), "{of:#}");
        assert_eq!(of["threads"], 1);
        assert!(text(&written.stdout).contains("µs each"));
    });
    let doctor = || -> serde_json::Value {
        let looked = cell.run(&["doctor", "--json"]);
        serde_json::from_slice(&looked.stdout).unwrap()
    };
    let kinds = |report: &serde_json::Value| -> Vec<String> {
        let findings = report["findings"].as_array().unwrap().iter();
        let kinds = findings.map(|of| of["kind"].as_str().unwrap().to_owned());
        kinds.filter(|kind| kind.starts_with("engine")).collect()
    };
    let well = doctor();
    assert!(kinds(&well).is_empty(), "{well:#}");
    let counted = &well["engines"][0];
    assert!(
        counted["counters"]["scans"].as_u64() > Some(10),
        "{counted:#}"
    );
    assert!(counted["cpu_us_per_operation"].as_f64() > Some(0.0));
    // It leaves its word behind.
    engine.kill();
    let ill = doctor();
    assert_eq!(kinds(&ill), ["engine_down"], "{ill:#}");
}

#[test]
fn a_cell_whose_engine_cannot_run_is_not_ready() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    let cases: [(&[&str], i32, &str); 2] = [
        (&["--engine", &taken], 1, &taken),
        (&["--engine", "0.0.0.0:0"], 2, "--certs"),
    ];
    for (more, code, why) in cases {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cell").display().to_string();
        let up = ["cell", "up", "--dir", &path, "--memory", "64MiB"];
        let ended = crate::support::run(&[&up[..], more].concat());
        let (out, said) = (text(&ended.stdout), text(&ended.stderr));
        assert_eq!(ended.status.code(), Some(code), "{more:?}: {said}");
        assert!(!out.contains("ready"), "{more:?}: {out}");
        assert!(said.contains(why), "{more:?}: {said}");
        assert!(said.contains("engine"), "{more:?}: {said}");
    }
    // One that runs says where: any port was asked for.
    let dir = tempfile::tempdir().unwrap();
    let args = ["--memory", "64MiB", "--engine", "127.0.0.1:0"];
    let cell = Cell::up(dir.path(), &args);
    let engine = &cell.status()["engines"][0];
    assert_eq!(engine["counters"]["backends_mapped"], 3, "{engine:#}");
    let address: SocketAddr = engine["address"].as_str().unwrap().parse().unwrap();
    assert!(address.port() != 0);
}

#[test]
fn who_has_a_token_that_was_replaced_reads_no_more() {
    use std::os::unix::fs::OpenOptionsExt as _;
    let (_dir, cell) = up("R=1");
    let own = tempfile::tempdir().unwrap();
    let file = own.path().join("token");
    let write = |token: &str| {
        let next = own.path().join("next");
        let mut options = std::fs::OpenOptions::new();
        let written = options.write(true).create_new(true).mode(0o600);
        let mut written = written.open(&next).unwrap();
        written.write_all(token.as_bytes()).unwrap();
        std::fs::rename(&next, &file).unwrap();
    };
    let (first, second) = ("a".repeat(64), "b".repeat(64));
    write(&first);
    let path = file.display().to_string();
    let engine = Engine::start_with(
        &cell,
        SocketAddr::from(([127, 0, 0, 1], free_port())),
        &["--token-file", &path],
    );
    let life = trefoil_client::Cell::connect(&cell.address)
        .unwrap()
        .config()
        .life;
    let mut session = Session::open_with(&engine, life, first.as_bytes());
    assert!(session.read(CONTROL).is_ok());
    write(&second);
    // It is hung up on.
    assert!(matches!(session.socket.read(&mut [0; 64]), Ok(0) | Err(_)));
    let said = said_to(&engine, &hello(PROTOCOL_VERSION, first.as_bytes()));
    assert_eq!((said.len(), said[4], said[8 + 11]), (24, 3, 3));
    let mut session = Session::open_with(&engine, life, second.as_bytes());
    assert!(session.read(CONTROL).is_ok());
    // Without a file, nobody.
    std::fs::remove_file(&file).unwrap();
    assert!(matches!(session.socket.read(&mut [0; 64]), Ok(0) | Err(_)));
    assert_eq!(engine.stop()["revoked"], 2);
}

/// How long after its certificate was revoked a client that does nothing but read has
/// read last; nothing if it had not read for a while before, on a machine that is busy.
fn read_after_revocation(
    (engine, life, hash): (&Engine, u64, KeyHash),
    (tls, has_datagrams): (trefoil_client::Tls, bool),
    revoke: impl FnOnce(),
) -> Option<Duration> {
    let address = EngineAddress {
        address: engine.address,
        host: engine.address.ip().to_string(),
        tls: Some(tls),
        datagrams: match has_datagrams {
            true => DatagramUse::Yes,
            false => DatagramUse::No,
        },
        token: std::sync::Arc::from([]),
    };
    let mut port = EnginePort::connect(&address, 0, life, PATIENCE).unwrap();
    let (began, last_us) = (Instant::now(), std::sync::atomic::AtomicU64::new(0));
    let count = std::sync::atomic::AtomicU64::new(0);
    let now_us = || began.elapsed().as_micros() as u64;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            for number in 0.. {
                count.store(number, Ordering::SeqCst);
                let progress = port.submit_scan(Token(number), 0, hash, false);
                assert!(matches!(progress, Progress::Pending), "{progress:?}");
                let mut is_answered = false;
                while !is_answered {
                    let polled = port.poll(|completion| match completion {
                        Completion::Scan(_, vote, data, _) => {
                            assert!(matches!(vote, IndexVote::Present { .. }) && !data.is_empty());
                            is_answered = true;
                            last_us.store(now_us(), Ordering::SeqCst);
                        }
                        Completion::Stamp(..) => {}
                        other => panic!("{other:?}"),
                    });
                    if polled.is_err() {
                        return;
                    }
                    assert!(began.elapsed() < PATIENCE, "its session has not ended");
                }
            }
            unreachable!()
        });
        while count.load(Ordering::SeqCst) <= 100 {
            assert!(!reader.is_finished() && began.elapsed() < PATIENCE);
            std::thread::sleep(Duration::from_millis(1));
        }
        let revoked_us = now_us();
        revoke();
        reader.join().unwrap();
        let last_us = last_us.load(Ordering::SeqCst);
        // It has read until then.
        (last_us + 50_000 > revoked_us)
            .then(|| Duration::from_micros(last_us.saturating_sub(revoked_us)))
    })
}

#[test]
fn who_is_revoked_reads_no_more_within_a_tenth_of_a_second() {
    const MOST: Duration = Duration::from_millis(100);
    let (_dir, cell) = up("R=1");
    let certs = Certs::issue();
    let of_server = certs.of_server();
    let more = ["--certs", &of_server, "--engines", "2"];
    let engine = Engine::start_with(&cell, certs.listen(), &more);
    let mut client = certs.client(&cell, engine.options());
    set(&mut client, "secret", b"value");
    let (life, hash) = (client.config().life, client.config().hash.hash(b"secret"));
    let (mut revoked, mut names) = (Vec::new(), 0..);
    for has_datagrams in [false, true] {
        // Again, where this machine has stood still for a moment.
        let late = (0..5).find_map(|_| {
            let name = format!("reader-{}", names.next()?);
            certs.issue_another(&name);
            let tls = certs.tls(&name);
            revoked.push(tls.identity().certificate.serial.clone());
            let of = (&engine, life, hash);
            let revoke = || certs.revoke(&revoked);
            let late = read_after_revocation(of, (tls, has_datagrams), revoke);
            eprintln!("datagrams {has_datagrams}: read last after {late:?}");
            late.filter(|late| *late <= MOST)
        });
        assert!(late.is_some(), "datagrams: {has_datagrams}");
    }
    // Who is not revoked goes on.
    await_engine(&mut client);
    assert_eq!(get(&mut client, "secret").as_deref(), Some(&b"value"[..]));
    drop(client);
    let counted = engine.stop();
    assert_eq!(counted["revoked"], revoked.len() as u64);
    assert!(counted["datagrams_in"] > 100, "{counted:?}");
}

#[test]
fn a_window_that_was_taken_back_is_read_no_more() {
    let (_dir, cell) = up("R=1");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "first", b"value");
    let (hash, life) = (client.config().hash.hash(b"first"), client.config().life);
    let mut session = Session::open(&engine, life);
    let partition = hash.partition(0, session.sub_count);
    let window = |session: &mut Session| {
        let words = session.read(CONTROL).unwrap();
        control::index_window(&words[..], partition)
    };
    let first = window(&mut session).unwrap();
    let bucket = ReadRange {
        region: Region::Index,
        partition: partition as u16,
        window_id: first.window_id,
        offset: first.offset,
        len: BUCKET_LEN as u32,
    };
    assert!(session.read(bucket).is_ok());
    // Its index grows, and the one before is taken back.
    let (begin, mut number) = (Instant::now(), 0);
    loop {
        for _ in 0..200 {
            number += 1;
            set(&mut client, &format!("more {number}"), b"v");
        }
        let now = window(&mut session);
        if now.is_some_and(|now| now.window_id != first.window_id) {
            break;
        }
        assert!(begin.elapsed() < PATIENCE, "after {number} items");
    }
    assert_eq!(session.read(bucket), Err(Unanswered::OutOfWindow));
    assert_eq!(get(&mut client, "first").as_deref(), Some(&b"value"[..]));
}

#[test]
fn a_miss_by_way_of_an_engine_can_be_filled() {
    let (_dir, cell) = up("R=3.2");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    let ticket = match client.get(b"filled") {
        Ok(Lookup::Miss(miss)) => miss.fill,
        other => panic!("{other:?}"),
    };
    let filled = client.fill(ticket, b"filled", b"from below", SetOptions::default());
    assert!(filled.is_ok(), "{filled:?}");
    assert_eq!(
        get(&mut client, "filled").as_deref(),
        Some(&b"from below"[..])
    );
}

/// Nobody has read through the engine meanwhile, which would have made it look.
#[test]
fn who_opens_a_backend_is_told_of_the_configuration_that_it_serves_now() {
    let (_dir, cell) = up("R=1");
    let engine = Engine::beside(&cell);
    let client = engine.client(&cell);
    let life = client.config().life;
    let before = Session::open(&engine, life).config_id;
    cell.json(&["cell", "flush", "--json"]);
    assert_eq!(Session::open(&engine, life).config_id, before + 1);
}
