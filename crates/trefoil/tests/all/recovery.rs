//! A backend that is killed comes back, learns what it knew, and votes again.

use crate::support::{Cell, kill};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{Client, Lookup, Mutated, Options, SetOptions};

/// How long a restart and a recovery of little may take here.
const PATIENCE: Duration = Duration::from_secs(30);

fn client(cell: &Cell) -> Client {
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    connected.client(Options::default())
}

fn set(client: &mut Client, key: &str, value: &str) {
    let stored = client.set(key.as_bytes(), value.as_bytes(), SetOptions::default());
    assert!(
        matches!(stored, Ok(Mutated::Stored { .. })),
        "{key}: {stored:?}"
    );
}

fn get(client: &mut Client, key: &str) -> Option<String> {
    match client.get(key.as_bytes()).unwrap() {
        Lookup::Hit(hit) => Some(String::from_utf8(hit.value.to_vec()).unwrap()),
        Lookup::Miss(_) => None,
    }
}

/// Waits until every backend is up; its process and what came of its recovery.
fn await_recovery(cell: &Cell, number: usize, before: u32) -> (u32, serde_json::Value) {
    let begin = Instant::now();
    loop {
        let status = cell.json(&["cell", "status", "--json"]);
        let backends = status["backends"].as_array().unwrap();
        let pid = backends[number]["pid"].as_u64().unwrap_or(0) as u32;
        let up = backends.iter().all(|backend| backend["state"] == "up");
        if up && pid != before {
            return (pid, backends[number]["recovery"].clone());
        }
        assert!(begin.elapsed() < PATIENCE, "{status:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Says so when it is dropped, by a failed assertion, too: a scope waits for its threads.
struct SaysStop<'a>(&'a AtomicBool);

impl Drop for SaysStop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn each_backend_is_killed_in_turn_and_nothing_is_lost() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB", "--restart", "always"]);
    let mut reader = client(&cell);
    const KEYS: usize = 30_000;
    let mut expected = HashMap::new();
    for number in 0..KEYS {
        let (key, value) = (format!("key-{number}"), format!("value {number}"));
        set(&mut reader, &key, &value);
        expected.insert(key, Some(value));
    }
    let long = "long ".repeat(100_000);
    set(&mut reader, "long", &long);
    expected.insert("long".to_owned(), Some(long));
    for number in 0..100 {
        let key = format!("key-{number}");
        assert!(matches!(
            reader.erase(key.as_bytes()),
            Ok(Mutated::Stored { .. })
        ));
        expected.insert(key, None);
    }
    let stop = AtomicBool::new(false);
    let mut pids = cell.pids.clone();
    std::thread::scope(|scope| {
        // Somebody who goes on writing all the time, keys of his own.
        let writing = scope.spawn(|| {
            let mut writer = client(&cell);
            let mut written = HashMap::new();
            let mut round = 0;
            while !stop.load(Ordering::Relaxed) {
                let key = format!("moving-{}", round % 500);
                let value = format!("round {round}");
                set(&mut writer, &key, &value);
                assert_eq!(get(&mut writer, &key).as_ref(), Some(&value));
                written.insert(key, Some(value));
                round += 1;
            }
            written
        });
        let stopping = SaysStop(&stop);
        for number in [0, 1, 2, 0] {
            kill(pids[number], "KILL");
            let (pid, recovery) = await_recovery(&cell, number, pids[number]);
            // It votes. The next one may die when it has what was written meanwhile, too.
            await_done(&cell, number, pids[number]);
            pids[number] = pid;
            assert!(recovery["items"].as_u64().unwrap() > 29_000, "{recovery}");
            assert_eq!(recovery["shards_lost"], 0, "{recovery}");
            for (key, value) in &expected {
                assert_eq!(&get(&mut reader, key), value, "{key}");
            }
        }
        drop(stopping);
        expected.extend(writing.join().unwrap());
    });
    // Right after the last one: no value stands on one replica's word. Whoever was connected
    // before may still read the dead one's memory, as long as its lease lasts.
    kill(pids[1], "KILL");
    await_gone(pids[1]);
    let mut reader = client(&cell);
    for (key, value) in &expected {
        assert_eq!(&get(&mut reader, key), value, "{key}");
    }
    assert_eq!(cell.stop(), 0);
}

/// Waits until a process that was killed serves nobody any more.
fn await_gone(pid: u32) {
    let begin = Instant::now();
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let (_, rest) = stat.rsplit_once(')')?;
        rest.trim().chars().next()
    };
    while !matches!(state(), None | Some('Z' | 'X')) {
        assert!(begin.elapsed() < PATIENCE, "process {pid} does not end");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Waits until a backend says, in another process than `before`, that it has recovered
/// and holds what was written meanwhile.
fn await_done(cell: &Cell, number: usize, before: u32) -> u32 {
    let begin = Instant::now();
    loop {
        let status = cell.json(&["cell", "status", "--json"]);
        let backend = &status["backends"][number];
        let pid = backend["pid"].as_u64().unwrap_or(0) as u32;
        if pid != before && backend["recovery"]["done"] == true {
            return pid;
        }
        assert!(begin.elapsed() < PATIENCE, "{status:#}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A client that has found a backend down looks for it again in ever longer pauses. What
/// it writes until it has found it again reaches two replicas.
#[test]
fn one_that_has_recovered_holds_what_was_written_before_clients_found_it_again() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB", "--restart", "always"]);
    let stop = AtomicBool::new(false);
    let written = std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            let mut writer = client(&cell);
            let mut written = 0;
            while !stop.load(Ordering::Relaxed) {
                set(&mut writer, &format!("key-{written}"), "value");
                written += 1;
                std::thread::sleep(Duration::from_micros(500));
            }
            written
        });
        let stopping = SaysStop(&stop);
        kill(cell.pids[0], "KILL");
        await_done(&cell, 0, cell.pids[0]);
        kill(cell.pids[1], "KILL");
        drop(stopping);
        writing.join().unwrap()
    });
    let mut reader = client(&cell);
    let mut found = |number: &i32| get(&mut reader, &format!("key-{number}")).is_some();
    let missing: Vec<i32> = (0..written).filter(|number| !found(number)).collect();
    assert_eq!(missing, [0; 0], "of {written}");
    assert_eq!(cell.stop(), 0);
}

#[test]
fn a_shard_that_two_of_three_have_lost_comes_back_empty_and_takes_writes() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB", "--restart", "always"]);
    let mut client = client(&cell);
    for number in 0..200 {
        set(&mut client, &format!("key-{number}"), "before");
    }
    // The first one to die is back a second later at the earliest.
    for pid in &cell.pids[..2] {
        kill(*pid, "STOP");
    }
    kill(cell.pids[0], "KILL");
    kill(cell.pids[1], "KILL");
    let (_, first) = await_recovery(&cell, 0, cell.pids[0]);
    let (_, second) = await_recovery(&cell, 1, cell.pids[1]);
    let lost = |recovery: &serde_json::Value| recovery["shards_lost"].as_u64().unwrap();
    assert!(lost(&first) + lost(&second) > 0, "{first} {second}");
    for number in 0..200 {
        let key = format!("key-{number}");
        let found = get(&mut client, &key);
        assert!(
            found.is_none() || found.as_deref() == Some("before"),
            "{key}"
        );
        set(&mut client, &key, "after");
        assert_eq!(get(&mut client, &key).as_deref(), Some("after"), "{key}");
    }
    assert_eq!(cell.stop(), 0);
}

#[test]
fn a_backend_stays_dead_if_it_is_to() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB", "--restart", "never"]);
    kill(cell.pids[2], "KILL");
    std::thread::sleep(Duration::from_secs(2));
    let status = cell.json(&["cell", "status", "--json"]);
    assert_eq!(status["backends"][2]["state"], "down", "{status:#}");
    assert_eq!(cell.stop(), 0);
}

/// A limit that the operator has set holds, and nothing is lost by it.
#[test]
fn a_recovery_takes_as_long_as_its_limit_says() {
    const RATE: u64 = 512 << 10;
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(
        dir.path(),
        &[
            "--memory",
            "64MiB",
            "--restart",
            "always",
            "--recovery-rate",
            "512KiB",
        ],
    );
    let mut writer = client(&cell);
    let value = "v".repeat(1000);
    for number in 0..1500 {
        set(&mut writer, &format!("key-{number}"), &value);
    }
    kill(cell.pids[1], "KILL");
    let (_, recovery) = await_recovery(&cell, 1, cell.pids[1]);
    let (bytes, ms) = (&recovery["bytes"], &recovery["took_ms"]);
    let bytes = bytes.as_u64().unwrap();
    assert!(bytes > 1400 * 1000, "{recovery}");
    // What the last page has cost is not waited for.
    let least_ms = bytes * 1000 / RATE / 2;
    assert!(ms.as_u64().unwrap() >= least_ms, "{recovery}");
    for number in 0..1500 {
        let key = format!("key-{number}");
        assert_eq!(get(&mut writer, &key).as_ref(), Some(&value), "{key}");
    }
    assert_eq!(cell.stop(), 0);
}
