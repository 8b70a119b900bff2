//! What is found by way of an engine, and by whom.

use super::{
    Engine, PATIENCE, await_engine, client, get, metric, round_of, said_by_metrics, set, up, value,
};
use crate::support::{Cell, free_port, text};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{
    CarrierInUse, Client, Lookup, LookupStrategy, MissReason, Mutated, Options, SetOptions,
};

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
        // Many at once: more than are under way at a time, of all kinds.
        let keys: Vec<String> = (0..300).map(|number| format!("key {number}")).collect();
        let value_of = |number: usize| match number % 7 {
            0 => keys[number].repeat(3000),
            _ => keys[number].clone(),
        };
        for (number, key) in keys.iter().enumerate() {
            set(&mut client, key, value_of(number).as_bytes());
        }
        let too_long = "k".repeat(100_000);
        let names: Vec<&str> = (0..2000)
            .map(|at| match at {
                700 => &too_long,
                at if at % 10 == 9 => "nowhere",
                at => &keys[at % keys.len()],
            })
            .collect();
        let mut next = 0;
        client.get_many(&names, |at, found| {
            assert_eq!(at, next, "in order");
            next += 1;
            match found {
                Ok(Lookup::Hit(hit)) => {
                    assert_eq!(hit.value, value_of(at % keys.len()).as_bytes(), "{at}");
                }
                Ok(Lookup::Miss(_)) => assert_eq!(at % 10, 9),
                Err(error) => assert_eq!(at, 700, "{error}"),
            }
        });
        assert_eq!(next, names.len());
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
