//! A backend that hung lacks what was written meanwhile, until it is repaired: in the
//! background, or because a reader has seen it.

use crate::support::{Cell, Hanging};
use serde_json::Value;
use std::time::{Duration, Instant};
use trefoil_client::{Client, Lookup, Mutated, Options, SetOptions};

/// How long repair may take here; with nothing else to do it takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);
const KEYS: usize = 2_000;
/// Written while one of the backends hangs.
const MISSED: usize = 300;

fn client(cell: &Cell) -> Client {
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    connected.client(Options::default())
}

fn set(client: &mut Client, number: usize, value: &str) {
    let key = format!("key-{number}");
    let stored = client.set(key.as_bytes(), value.as_bytes(), SetOptions::default());
    let is_stored = matches!(stored, Ok(Mutated::Stored { .. }));
    assert!(is_stored, "{key}: {stored:?}");
}

fn get(client: &mut Client, number: usize) -> Option<String> {
    match client.get(format!("key-{number}").as_bytes()).unwrap() {
        Lookup::Hit(hit) => Some(String::from_utf8(hit.value.to_vec()).unwrap()),
        Lookup::Miss(_) => None,
    }
}

/// What `cell status` says of the repair of all shards, added up.
fn repairs(cell: &Cell, field: &str) -> u64 {
    let status = cell.json(&["cell", "status", "--json"]);
    let backends = status["backends"].as_array().unwrap().iter();
    let of = |backend: &Value| backend["repair"][field].as_u64().unwrap_or(0);
    backends.map(of).sum()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !holds() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A cell, one of whose backends has missed some writes.
fn dirty(dir: &std::path::Path, interval: &str) -> (Cell, Client) {
    let options = ["--memory", "64MiB", "--repair-interval", interval];
    let cell = Cell::up(dir, &options);
    let mut client = client(&cell);
    for number in 0..KEYS {
        set(&mut client, number, "before");
    }
    let hanging = Hanging::new(cell.pids[1]);
    // What one that is connected sends is in its ring, and executed later. One that
    // comes now has no way to it.
    let mut newcomer = self::client(&cell);
    for number in 0..MISSED {
        set(&mut newcomer, number, "while it hung");
    }
    drop(newcomer);
    drop(hanging);
    (cell, client)
}

#[test]
fn what_a_backend_has_missed_while_it_hung_is_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let (cell, mut client) = dirty(dir.path(), "1s");
    let mut scans = 0;
    until("all is repaired", || {
        if repairs(&cell, "installed") < 1 || repairs(&cell, "scan_unrepaired") > 0 {
            scans = repairs(&cell, "scans");
        }
        // Each shard was scanned again since, and nothing was found.
        repairs(&cell, "scans") >= scans + 6 && repairs(&cell, "backlog") == 0
    });
    assert!(repairs(&cell, "installed") <= MISSED as u64);
    assert!(repairs(&cell, "bytes") > 0);
    // Now another one may die: the others agree on every key.
    cell.kill(2);
    for number in 0..KEYS {
        let value = if number < MISSED {
            "while it hung"
        } else {
            "before"
        };
        assert_eq!(get(&mut client, number).as_deref(), Some(value), "{number}");
    }
}

#[test]
fn what_a_reader_has_seen_to_differ_is_repaired_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (cell, mut client) = dirty(dir.path(), "1h");
    until("a key that was read is repaired", || {
        for number in 0..MISSED {
            assert_eq!(get(&mut client, number).as_deref(), Some("while it hung"));
        }
        repairs(&cell, "installed") > 0
    });
    assert!(repairs(&cell, "named") > 0);
    assert_eq!(repairs(&cell, "scans"), 0);
}
