//! Flushing a cell of processes: nobody finds anything afterwards, whatever
//! they had mapped and however they read.

use crate::support::{Cell, kill, reaches_all, text};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::time::{Duration, Instant};
use trefoil_client::{Carrier, Client, Lookup, MissReason, Options, SetOptions};

const KEYS: usize = 60;

fn key(number: usize) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

fn clients(address: &str) -> Vec<Client> {
    let cell = trefoil_client::Cell::connect(address).unwrap();
    [Carrier::Auto, Carrier::Message, Carrier::Rpc]
        .map(|carrier| {
            cell.client(Options {
                carrier,
                ..Options::default()
            })
        })
        .into()
}

fn fill(client: &mut Client) {
    for number in 0..KEYS {
        client
            .set(&key(number), b"value", SetOptions::default())
            .unwrap();
    }
}

/// How many of the keys this client finds, one by one and together.
fn found(client: &mut Client) -> (usize, usize) {
    let keys: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    // One replica may have removed it already and another not: a miss like any.
    let is_hit = |found: Lookup<'_>| match found {
        Lookup::Hit(_) => true,
        Lookup::Miss(miss) => {
            assert_ne!(miss.reason, MissReason::Inquorate);
            false
        }
    };
    let single = keys
        .iter()
        .filter(|key| is_hit(client.get(key).unwrap()))
        .count();
    let mut together = 0;
    client.get_many(&keys, |_, found| {
        together += usize::from(is_hit(found.unwrap()));
    });
    (single, together)
}

#[test]
fn nobody_finds_what_was_flushed() {
    for mode in ["R=3.2", "R=1"] {
        let dir = tempfile::tempdir().unwrap();
        let cell = Cell::up(dir.path(), &["--mode", mode, "--memory", "128MiB"]);
        let mut clients = clients(&cell.address);
        fill(&mut clients[0]);
        for client in &mut clients {
            assert_eq!(found(client), (KEYS, KEYS));
        }
        let before = cell.json(&["cell", "status", "--json"]);
        let report = cell.json(&["cell", "flush", "--json"]);
        assert_eq!(report["backends_down"], 0);
        assert_eq!(
            report["config_id"].as_u64().unwrap(),
            before["config_id"].as_u64().unwrap() + 1
        );
        clients.extend(self::clients(&cell.address));
        for client in &mut clients {
            assert_eq!(found(client), (0, 0), "{mode}");
        }
        // Their memory follows.
        let begin = Instant::now();
        loop {
            let status = cell.status();
            let items = |backend: &serde_json::Value| backend["items"].as_u64().unwrap();
            let backends = status["backends"].as_array().unwrap();
            if backends.iter().map(items).sum::<u64>() == 0 {
                break;
            }
            assert!(begin.elapsed() < Duration::from_secs(60), "{status:#}");
            std::thread::sleep(Duration::from_millis(50));
        }
        // And it is a cell as before.
        for writer in 0..clients.len() {
            fill(&mut clients[writer]);
            for client in &mut clients {
                assert_eq!(found(client), (KEYS, KEYS), "{mode}");
            }
            assert!(cell.run(&["cell", "flush"]).status.success());
        }
    }
}

#[test]
fn a_dead_backend_is_passed_over_and_a_silent_one_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "128MiB"]);
    let mut clients = clients(&cell.address);
    fill(&mut clients[0]);
    kill(cell.pids[1], "STOP");
    let silent = cell.run(&["cell", "flush"]);
    kill(cell.pids[1], "CONT");
    assert_eq!(silent.status.code(), Some(1));
    let message = text(&silent.stderr);
    assert!(
        message.contains("backend 1 does not answer, nothing was flushed"),
        "{message}"
    );
    assert_eq!(found(&mut clients[0]), (KEYS, KEYS));

    cell.kill(1);
    let report = cell.json(&["cell", "flush", "--json"]);
    assert_eq!(report["backends_down"], 1);
    assert_eq!(report["backends_flushed"], 2);
    for client in &mut clients {
        assert_eq!(found(client), (0, 0));
    }
    fill(&mut clients[1]);
    for client in &mut clients {
        assert_eq!(found(client), (KEYS, KEYS));
    }
}

/// What was acknowledged after a flush began is there or gone; what was
/// acknowledged before it began is gone when it has ended.
#[test]
fn a_flush_among_writers_loses_nothing_that_came_after_it() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "256MiB"]);
    let handle = trefoil_client::Cell::connect(&cell.address).unwrap();
    let stop = AtomicBool::new(false);
    let operations = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let load = scope.spawn(|| {
            let mut client = handle.client(Options::default());
            let mut failed = Vec::new();
            while !stop.load(Relaxed) {
                let name = key(operations.fetch_add(1, Relaxed) % 5000);
                let set = client.set(&name, &[7; 300], SetOptions::default());
                let get = client.get(&name).map(|_| ());
                failed.extend(set.map(|_| ()).err().into_iter().chain(get.err()));
            }
            failed
        });
        let mut client = handle.client(Options::default());
        // Ten flushes or more, among a thousand operations or more.
        let mut round = 0;
        while round < 10 || operations.load(Relaxed) < 1000 {
            round += 1;
            std::thread::sleep(Duration::from_millis(50));
            client.set(b"before", b"x", SetOptions::default()).unwrap();
            assert!(cell.run(&["cell", "flush"]).status.success());
            assert!(
                matches!(client.get(b"before").unwrap(), Lookup::Miss(_)),
                "round {round}"
            );
            client.set(b"after", b"y", SetOptions::default()).unwrap();
            assert!(
                matches!(client.get(b"after").unwrap(), Lookup::Hit(_)),
                "round {round}"
            );
        }
        stop.store(true, Relaxed);
        let failed = load.join().unwrap();
        let operations = operations.load(Relaxed);
        assert!(
            failed.is_empty(),
            "{} of {operations}: {:?}",
            failed.len(),
            failed[0]
        );
    });
}

/// A client that has not heard of the flush is told with its first write, by each replica.
/// Two copies are enough to acknowledge it, and one of these may be killed next.
#[test]
fn the_first_write_after_a_flush_is_held_by_every_replica() {
    let dir = tempfile::tempdir().unwrap();
    let arguments = ["--memory", "128MiB", "--repair-interval", "0s"];
    let cell = Cell::up(dir.path(), &arguments);
    let mut clients = clients(&cell.address);
    for round in 0..12 {
        assert!(cell.run(&["cell", "flush"]).status.success());
        let count = clients.len();
        let client = &mut clients[round % count];
        reaches_all(client);
        let key = key(round);
        client.set(&key, b"value", SetOptions::default()).unwrap();
        let begin = Instant::now();
        loop {
            let status = cell.json(&["cell", "status", "--json"]);
            let items = |backend: &serde_json::Value| backend["items"].as_u64().unwrap();
            let held: Vec<u64> = status["backends"]
                .as_array()
                .unwrap()
                .iter()
                .map(items)
                .collect();
            if held == [1, 1, 1] {
                break;
            }
            assert!(
                begin.elapsed() < Duration::from_secs(30),
                "round {round}: {held:?}"
            );
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}
