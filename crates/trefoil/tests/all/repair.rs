//! A backend that has missed some writes is repaired: in the background, or because a
//! reader has seen it.

use crate::support::{Cell, reaches_all};
use serde_json::Value;
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use trefoil_client::{Client, Lookup, Mutated, Options, SetOptions};
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome};

/// How long repair may take here; with nothing else to do it takes seconds.
const PATIENCE: Duration = Duration::from_secs(60);
const KEYS: usize = 2_000;
/// Of these, written again where one of the backends does not hear of it.
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
    for number in 0..10 {
        let dir = dir.join(number.to_string());
        if let Some(dirty) = dirty_unless_disturbed(&dir, interval) {
            return dirty;
        }
    }
    panic!("each time a repair came between");
}

/// Nothing if a repair came upon keys that the first backend had heard of and the second had
/// not yet: it has given the others' values a fresh version.
fn dirty_unless_disturbed(dir: &std::path::Path, interval: &str) -> Option<(Cell, Client)> {
    let options = ["--memory", "64MiB", "--repair-interval", interval];
    let cell = Cell::up(dir, &options);
    let mut client = client(&cell);
    // Again, if one of three was passed over.
    for _ in 0..10 {
        reaches_all(&mut client);
        for number in 0..KEYS {
            set(&mut client, number, "before");
        }
        client.settle(Duration::from_secs(10));
        let status = cell.status();
        let mut backends = status["backends"].as_array().unwrap().iter();
        if backends.all(|backend| backend["items"] == KEYS) {
            break;
        }
    }
    set_at(&cell, &[0, 2], 0..MISSED, "missed").then_some((cell, client))
}

/// Stores keys at some of the backends only, as if the message to the others were lost; whether
/// all were stored.
fn set_at(cell: &Cell, backends: &[u32], keys: Range<usize>, value: &str) -> bool {
    let config = trefoil_client::Cell::connect(&cell.address)
        .unwrap()
        .config();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mut versions = Vec::new();
    for number in keys.clone() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        versions.push(Version::new(now.as_nanos() as u64, 77, number as u32));
    }
    for backend in backends {
        let address = &config.backend(*backend).unwrap().addresses[0];
        let endpoint = trefoil_cell::endpoint(address).unwrap();
        let channel = runtime.block_on(endpoint.connect()).unwrap();
        let mut client = trefoil_rpc::client(channel, trefoil_rpc::Credentials::none());
        for (number, version) in keys.clone().zip(&versions) {
            let key = format!("key-{number}");
            let mutation = Mutation {
                action: Action::Set,
                version: *version,
                entry: DataEntry {
                    key: key.as_bytes(),
                    value: value.as_bytes(),
                    ..DataEntry::default()
                },
            };
            let request = trefoil_rpc::encode_mutation(*backend, config.topology_id(), &mutation);
            let answer = runtime.block_on(client.mutate(request)).unwrap();
            let ack = trefoil_rpc::decode_ack(answer.get_ref()).unwrap();
            match ack.outcome {
                Outcome::Applied => {}
                Outcome::Superseded { .. } => return false,
                other => panic!("{key}: {other:?}"),
            }
        }
    }
    true
}

#[test]
fn what_a_backend_has_missed_is_repaired() {
    let dir = tempfile::tempdir().unwrap();
    let (cell, mut client) = dirty(dir.path(), "4s");
    until("all is repaired", || {
        repairs(&cell, "installed") >= MISSED as u64 && repairs(&cell, "backlog") == 0
    });
    assert_eq!(repairs(&cell, "installed"), MISSED as u64);
    assert!(repairs(&cell, "bytes") > 0);
    // Now another one may die: the others agree on every key.
    cell.kill(2);
    for number in 0..KEYS {
        let value = if number < MISSED { "missed" } else { "before" };
        assert_eq!(get(&mut client, number).as_deref(), Some(value), "{number}");
    }
}

#[test]
fn what_a_reader_has_seen_to_differ_is_repaired_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let (cell, mut client) = dirty(dir.path(), "1h");
    until("a key that was read is repaired", || {
        for number in 0..MISSED {
            assert_eq!(get(&mut client, number).as_deref(), Some("missed"));
        }
        repairs(&cell, "installed") > 0
    });
    assert!(repairs(&cell, "named") > 0);
    assert_eq!(repairs(&cell, "scans"), 0);
}
