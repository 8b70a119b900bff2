//! What happens when a machine is killed, under load.

use crate::support;
use crate::support::{Cell, Hanging, PROGRAM, parse, text};
use std::collections::BTreeSet;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use trefoil_client::{
    CarrierInUse, Client, Expected, ListedAt, Lookup, Mutated, Options, SetOptions,
};

/// Keys that a load fills in before it measures.
const KEYS: &str = "20000";

/// A `trefoil bench mix` running beside the test, past its filling.
fn load(cell: &Cell, more: &[&str]) -> std::process::Child {
    let child = Command::new(PROGRAM)
        .args([
            "bench",
            "mix",
            "--cell",
            &cell.address,
            "--keys",
            KEYS,
            "--value-size",
            "256",
        ])
        .args(["--rate", "10000", "--json"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let filled: u64 = KEYS.parse().unwrap();
    let begin = Instant::now();
    while sets(cell) < filled + 100 {
        assert!(begin.elapsed() < Duration::from_secs(60), "no load");
        std::thread::sleep(Duration::from_millis(50));
    }
    child
}

/// SETs that the first backend has applied.
fn sets(cell: &Cell) -> u64 {
    let status = cell.status();
    let mutations = status["backends"][0]["mutations"].as_array().unwrap();
    let applied = mutations
        .iter()
        .find(|m| m["kind"] == "set" && m["outcome"] == "applied");
    applied.unwrap()["count"].as_u64().unwrap()
}

#[test]
fn one_of_three_killed_costs_no_operation() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "128MiB"]);
    let bench = load(&cell, &["--seconds", "5"]);
    cell.kill(1);
    let result = parse(&bench.wait_with_output().unwrap());
    assert_eq!(result["failed"], 0, "{result:#}");
    assert_eq!(result["stale"], 0, "{result:#}");
    // A SET whose third copy is under way when one of the two that have it is killed
    // is a miss until it has arrived, and a miss for no other reason.
    let count = |result: &serde_json::Value| result.as_u64().unwrap();
    let inquorate = count(&result["retries"]["inquorate"]);
    assert!(count(&result["misses"]) <= inquorate, "{result:#}");
    assert!(count(&result["ops"]) > 1_000, "{result:#}");
    assert_eq!(keys_that_are_missed(&cell), Vec::<String>::new());
}

/// Some times what a ring holds, with values of 4,000 bytes, and half of what may wait
/// for room in it.
const KEYS_WAITING: usize = 2_000;

/// A replica that gets no turn for a moment, as on a busy machine, misses nothing:
/// what its ring has no room for waits.
#[test]
fn a_replica_that_pauses_has_every_copy_afterwards() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "128MiB"]);
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    let mut client = connected.client(Options::default());
    let mut missing = Vec::new();
    // A machine that is busy enough makes the pause longer than the backend's lease:
    // then it counts as gone, and does miss something.
    for round in 0..5 {
        client.set(b"first", b"", SetOptions::default()).unwrap();
        let hanging = Hanging::new(cell.pids[2]);
        let begin = Instant::now();
        let mut count = 0;
        while begin.elapsed() < Duration::from_millis(100) && count < KEYS_WAITING {
            let key = format!("{round}-{count}");
            let set = client.set(key.as_bytes(), &[7; 4000], SetOptions::default());
            assert!(matches!(set, Ok(Mutated::Stored { .. })), "{set:?}");
            count += 1;
        }
        drop(hanging);
        assert!(client.finish(Duration::from_secs(10)));
        let prefix = format!("{round}-");
        let mut copies = 0;
        each_copy(&connected, |key| {
            copies += usize::from(key.starts_with(prefix.as_bytes()));
        });
        missing.push(count * 3 - copies);
        if copies == count * 3 {
            return;
        }
    }
    panic!("copies that are missing after each round: {missing:?}");
}

/// A backend that dies while a page of its items is awaited takes nothing from the list:
/// the others hold the same.
#[test]
fn a_listing_is_whole_though_a_backend_is_killed_amid_a_page() {
    const COUNT: usize = 600;
    // It is the second that is asked of the first shard's three, and the first one of
    // the second shard's.
    for shards_before in [0, 1] {
        let dir = tempfile::tempdir().unwrap();
        let cell = Cell::up(dir.path(), &["--memory", "64MiB"]);
        let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
        let mut client = connected.client(Options::default());
        for number in 0..COUNT {
            let key = format!("key-{number}");
            let set = client.set(key.as_bytes(), b"v", SetOptions::default());
            assert!(matches!(set, Ok(Mutated::Stored { .. })), "{set:?}");
        }
        assert!(client.finish(Duration::from_secs(60)));
        let (mut cursor, mut keys) = (0, Vec::new());
        let mut killer = None;
        loop {
            // The upper bits of a cursor are the shard, the lower ones a place in it.
            let is_amid = cursor & ((1 << 48) - 1) != 0;
            if killer.is_none() && cursor >> 48 == shards_before && is_amid {
                let pid = cell.pids[1];
                support::kill(pid, "STOP");
                // The call is under way by then; if not, nothing is tested.
                killer = Some(std::thread::spawn(move || {
                    std::thread::sleep(Duration::from_millis(300));
                    support::kill(pid, "KILL");
                }));
            }
            let mut add = |listed: ListedAt<'_>| keys.push(listed.item.key.to_vec());
            cursor = connected.list(cursor, 20, &mut add).unwrap();
            if cursor == 0 {
                break;
            }
        }
        killer.expect("it was amid").join().unwrap();
        let count = keys.len();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!((keys.len(), count), (COUNT, COUNT));
    }
}

/// Tells of the key of every copy that any backend holds.
fn each_copy(cell: &trefoil_client::Cell, mut each: impl FnMut(&[u8])) {
    let mut cursor = 0;
    loop {
        let next = cell.list_copies(cursor, 1000, &mut |_, item| each(item.key));
        cursor = next.unwrap();
        if cursor == 0 {
            return;
        }
    }
}

/// The keys that any backend holds, and that a client does not find in a minute.
fn keys_that_are_missed(cell: &Cell) -> Vec<String> {
    let cell = trefoil_client::Cell::connect(&cell.address).unwrap();
    let mut keys = BTreeSet::new();
    each_copy(&cell, |key| {
        keys.insert(key.to_vec());
    });
    let filled: usize = KEYS.parse().unwrap();
    assert!(keys.len() >= filled, "{} keys", keys.len());
    let mut client = cell.client(Options::default());
    let begin = Instant::now();
    while !keys.is_empty() && begin.elapsed() < Duration::from_secs(60) {
        keys.retain(|key| !matches!(client.get(key), Ok(Lookup::Hit(_))));
    }
    keys.iter()
        .map(|key| String::from_utf8_lossy(key).into())
        .collect()
}

#[test]
fn one_of_three_that_hangs_costs_no_operation_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "128MiB"]);
    let mut client = trefoil_client::Cell::connect(&cell.address)
        .unwrap()
        .client(Options {
            deadline: Duration::from_secs(30),
            ..Options::default()
        });
    // Each backend is the first of some cohorts: a CAS waits for it.
    let keys: Vec<_> = (0..30).map(|number| format!("key-{number}")).collect();
    let mut versions = Vec::new();
    for key in &keys {
        let Ok(Mutated::Stored { version }) =
            client.set(key.as_bytes(), b"a", SetOptions::default())
        else {
            panic!("not stored: {key}");
        };
        versions.push(version);
    }
    let hanging = Hanging::new(cell.pids[1]);
    for (key, version) in keys.iter().zip(versions) {
        let key = key.as_bytes();
        let expected = Expected::Version(version);
        let cas = client.cas(key, expected, b"b", SetOptions::default());
        assert!(matches!(cas, Ok(Mutated::Stored { .. })), "{cas:?}");
        let set = client.set(key, b"c", SetOptions::default());
        assert!(matches!(set, Ok(Mutated::Stored { .. })), "{set:?}");
        let get = client.get(key);
        assert!(matches!(get, Ok(Lookup::Hit(hit)) if hit.value == b"c"));
    }
    drop(hanging);
    // Whoever reads there one-sidedly what is written again tells it so.
    let touches = || {
        let status = cell.json(&["cell", "status", "--json"]);
        status["backends"][1]["touches"].as_u64().unwrap()
    };
    let (before, begin) = (touches(), Instant::now());
    while touches() == before {
        assert!(begin.elapsed() < Duration::from_secs(60), "it is not read");
        for key in &keys {
            let set = client.set(key.as_bytes(), b"d", SetOptions::default());
            assert!(matches!(set, Ok(Mutated::Stored { .. })), "{set:?}");
            let get = client.get(key.as_bytes());
            assert!(matches!(get, Ok(Lookup::Hit(hit)) if hit.value == b"d"));
        }
        client.flush_touches();
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Reads that end in place wait for nothing, so no turn of theirs takes what the
/// thread that connects has brought.
#[test]
fn who_only_reads_finds_a_backend_that_came_back() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "128MiB"]);
    let mut client = trefoil_client::Cell::connect(&cell.address)
        .unwrap()
        .client(Options::default());
    let keys: Vec<_> = (0..30).map(|number| format!("key-{number}")).collect();
    for key in &keys {
        let set = client.set(key.as_bytes(), b"a", SetOptions::default());
        assert!(matches!(set, Ok(Mutated::Stored { .. })), "{set:?}");
    }
    client.settle(Duration::from_secs(60));
    let one_by_one = |client: &mut Client| {
        for key in &keys {
            let get = client.get(key.as_bytes());
            assert!(matches!(get, Ok(Lookup::Hit(_))), "{get:?}");
        }
    };
    let together = |client: &mut Client| {
        client.get_many(&keys, |_, get| {
            assert!(matches!(get, Ok(Lookup::Hit(_))), "{get:?}");
        });
    };
    for read in [&one_by_one as &dyn Fn(&mut Client), &together] {
        let until = |client: &mut Client, carrier: CarrierInUse| {
            let begin = Instant::now();
            while client.carriers()[1].carrier != carrier {
                let patience = Duration::from_secs(60);
                assert!(begin.elapsed() < patience, "{:?}", client.carriers());
                read(client);
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        let hanging = Hanging::new(cell.pids[1]);
        until(&mut client, CarrierInUse::Down);
        drop(hanging);
        until(&mut client, CarrierInUse::Shared);
    }
}

#[test]
fn the_only_one_killed_gives_clean_errors_and_its_memory_is_dead() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--mode", "R=1", "--memory", "128MiB"]);
    assert!(cell.run(&["set", "k", "old"]).status.success());
    // A client that keeps the dead backend's memory mapped.
    let bench = load(&cell, &["--seconds", "6"]);
    let address = cell.address.clone();
    cell.crash();
    let output = support::run(&["get", "k", "--cell", &address]);
    assert_eq!(output.status.code(), Some(1));
    let message = text(&output.stderr);
    assert!(
        message.contains("reach") || message.contains("connect"),
        "{message}"
    );

    let successor = Cell::up(dir.path(), &["--mode", "R=1", "--memory", "128MiB"]);
    let gone = successor.run(&["get", "k"]);
    assert_eq!(
        gone.status.code(),
        Some(1),
        "a new process holds nothing of the dead one"
    );
    assert!(successor.run(&["set", "k", "new"]).status.success());
    assert_eq!(successor.run(&["get", "k"]).stdout, b"new");
    let output = bench.wait_with_output().unwrap();
    let result: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(result["stale"], 0, "{result:#}");
}

#[test]
fn a_writer_killed_in_the_middle_leaves_no_partial_value() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::serve(dir.path(), &["--mode", "R=3.2", "--memory", "128MiB"]);
    for round in 0..4 {
        let mut bench = Command::new(PROGRAM)
            .args([
                "bench",
                "set",
                "--cell",
                &cell.address,
                "--keys",
                "50",
                "--value-size",
                "60000",
            ])
            .args(["--seconds", "20", "--json"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It may take a while to begin, on a busy machine.
        let begin = Instant::now();
        while cell.json(&["cell", "status", "--json"])["backends"][0]["items"] == 0 {
            let patience = Duration::from_secs(60);
            assert!(begin.elapsed() < patience, "nothing is written");
            std::thread::sleep(Duration::from_millis(20));
        }
        std::thread::sleep(Duration::from_millis(150 + 70 * round));
        bench.kill().unwrap();
        bench.wait().unwrap();
    }
    // Readers of what the writers left verify whose and how long every value is.
    let result = cell.json(&[
        "bench",
        "get",
        "--keys",
        "50",
        "--value-size",
        "60000",
        "--no-fill",
        "--seconds",
        "1",
        "--json",
    ]);
    assert_eq!(result["failed"], 0, "{result:#}");
    assert_eq!(result["wrong"], 0, "{result:#}");
    assert!(result["hits"].as_u64().unwrap() > 0, "{result:#}");
}

/// One that hangs is there, one that was killed is not; and neither keeps a command
/// from its answer.
#[test]
fn the_hanging_and_the_dead_are_told_apart() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB"]);
    assert!(cell.run(&["set", "k", "v"]).status.success());
    let hanging = Hanging::new(cell.pids[1]);
    let first = |command: &[&str]| {
        let report = cell.json(command);
        (
            report["backends"][1]["state"].clone(),
            report["backends"][1]["pid"].clone(),
        )
    };
    let top = ["top", "--once", "--json", "--interval", "100ms"];
    for command in [&["cell", "status", "--json"][..], &top] {
        assert_eq!(first(command), ("silent".into(), cell.pids[1].into()));
    }
    assert_eq!(cell.run(&["get", "k"]).stdout, b"v");
    assert!(cell.run(&["set", "k", "w"]).status.success());
    assert_eq!(cell.run(&["get", "k"]).stdout, b"w");
    drop(hanging);
    cell.kill(1);
    for command in [&["cell", "status", "--json"][..], &top] {
        assert_eq!(first(command), ("down".into(), serde_json::Value::Null));
    }
}
