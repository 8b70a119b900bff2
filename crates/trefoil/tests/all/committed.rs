//! SETs and ERASEs that are acknowledged before they are executed: of real cells of processes
//! of their own.

use crate::support::{Cell, Hanging, kill, reaches_all, run, text};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{Client, Commit, Lookup, Mutated, Options, SetOptions};

/// How long a restart and a recovery of little may take here.
const PATIENCE: Duration = Duration::from_secs(30);
const ACKNOWLEDGED: [&str; 2] = ["--commit", "acknowledged"];

/// Copies, and backends.
const ONE: [&str; 4] = ["--mode", "R=1", "--backends", "2"];
const THREE: [&str; 4] = ["--mode", "R=3.2", "--backends", "4"];

#[test]
fn a_cell_of_one_copy_takes_them_by_choice() {
    takes_them_by_choice(&ONE);
}

#[test]
fn a_cell_of_three_copies_takes_them_by_choice() {
    takes_them_by_choice(&THREE);
}

fn takes_them_by_choice(shape: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &[shape, &["--queue"]].concat());
    let said = |args: &[&str]| {
        let output = cell.run(args);
        (
            output.status.code(),
            text(&output.stdout),
            text(&output.stderr),
        )
    };
    for key in ["a", "b", "c", "d"] {
        let (code, out, err) = said(&[&["set", key, "value"], &ACKNOWLEDGED[..]].concat());
        // Its version is not known yet.
        assert_eq!((code, out.as_str()), (Some(0), ""), "{err}");
        let (code, out, err) = said(&["get", key]);
        assert_eq!((code, out.trim()), (Some(0), "value"), "{err}");
        let (code, out, err) = said(&[&["erase", key], &ACKNOWLEDGED[..]].concat());
        // Its version is not known yet.
        assert_eq!((code, out.as_str()), (Some(0), ""), "{err}");
        assert_eq!(said(&["get", key]).0, Some(1));
    }
    let (code, out, err) = said(&["set", "a", "value"]);
    assert_eq!((code, out.trim().len()), (Some(0), 32), "{out}{err}");
    let args = [&["set", "a", "value", "--json"], &ACKNOWLEDGED[..]].concat();
    let (code, out, err) = said(&args);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("\"committed\""), "{out}");
}

/// A successor has a queue of its own.
#[test]
fn they_are_taken_where_a_backend_has_moved_to() {
    moves(&ONE);
}

#[test]
fn they_are_taken_where_three_copies_have_moved_to() {
    moves(&THREE);
}

fn moves(shape: &[&str]) {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &[shape, &["--queue"]].concat());
    let set = |value: &str| {
        let output = cell.run(&[&["set", "key", value], &ACKNOWLEDGED[..]].concat());
        (output.status.code(), text(&output.stdout))
    };
    let committed = (Some(0), String::new());
    assert_eq!(set("before"), committed);
    let moved = cell.run(&["cell", "restart"]);
    assert!(moved.status.success(), "{}", text(&moved.stderr));
    let found = cell.run(&["get", "key"]);
    assert_eq!(text(&found.stdout).trim(), "before");
    assert_eq!(set("after"), committed);
    let found = cell.run(&["get", "key"]);
    assert_eq!(text(&found.stdout).trim(), "after");
}

/// What one of three has acknowledged and not executed when it is killed, the other two have;
/// and from them the one that comes back, before another one is killed.
#[test]
fn a_backend_of_three_that_dies_with_its_queue_takes_nothing_along() {
    const KEYS: usize = 100;
    let dir = tempfile::tempdir().unwrap();
    let more = ["--memory", "64MiB", "--restart", "always", "--queue"];
    let cell = Cell::up(dir.path(), &more);
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    let mut writer = connected.client(Options::default());
    let mut reader = connected.client(Options::default());
    reaches_all(&mut writer);
    reaches_all(&mut reader);
    let mut acknowledged = Vec::new();
    for victim in [1, 2, 0] {
        let pid = pid_of(&cell, victim);
        // A place at each queue.
        let begin = Instant::now();
        while !commits(&mut writer, "place") {
            assert!(begin.elapsed() < PATIENCE, "no place at all queues");
            std::thread::sleep(Duration::from_millis(10));
        }
        let hanging = Hanging::new(pid);
        let names = (0..KEYS).map(|number| format!("{victim}-{number}"));
        let committed: Vec<_> = names.filter(|name| commits(&mut writer, name)).collect();
        // It executes none of them.
        kill(pid, "KILL");
        drop(hanging);
        // Its lease has ended meanwhile where the machine has stood still.
        assert!(!committed.is_empty(), "nothing was committed");
        acknowledged.extend(committed);
        let is_there = |client: &mut Client, name: &String| {
            let found = client.get(name.as_bytes()).unwrap();
            matches!(found, Lookup::Hit(hit) if hit.value == name.as_bytes())
        };
        for name in &acknowledged {
            assert!(is_there(&mut reader, name), "{name} is lost with {victim}");
        }
        let begin = Instant::now();
        while pid_of(&cell, victim) == pid || !is_up(&cell) {
            assert!(begin.elapsed() < PATIENCE, "{:#}", cell.status());
            std::thread::sleep(Duration::from_millis(20));
        }
        reaches_all(&mut reader);
        reaches_all(&mut writer);
    }
}

/// While backends move nothing fails, and of nothing it is unknown whether it was done.
#[test]
fn who_commits_while_three_copies_move_is_always_told() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &[&THREE[..], &["--queue"]].concat());
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    let mut writer = connected.client(Options {
        deadline: Duration::from_secs(20),
        ..Options::default()
    });
    reaches_all(&mut writer);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let moves = scope.spawn(|| {
            let moved = cell.run(&["cell", "restart"]);
            is_over.store(true, Ordering::Relaxed);
            moved
        });
        let (mut committed, mut number) = (0, 0u64);
        while !is_over.load(Ordering::Relaxed) {
            number += 1;
            let (key, options) = ((number % 500).to_le_bytes(), SetOptions::default());
            match writer.set_by(&key, b"value", options, Commit::Acknowledged) {
                Ok(Mutated::Committed) => committed += 1,
                Ok(Mutated::Stored { .. }) => {}
                other => panic!("{number}: {other:?}"),
            }
            if number % 32 == 0 {
                std::thread::sleep(Duration::from_micros(200));
            }
        }
        let moved = moves.join().expect("no panic");
        assert!(moved.status.success(), "{}", text(&moved.stderr));
        assert!(committed > 100, "{committed} of {number}");
    });
}

fn commits(client: &mut Client, name: &str) -> bool {
    let (key, options) = (name.as_bytes(), SetOptions::default());
    let done = client.set_by(key, key, options, Commit::Acknowledged);
    done == Ok(Mutated::Committed)
}

fn backends(cell: &Cell) -> Vec<serde_json::Value> {
    let status = cell.json(&["cell", "status", "--json"]);
    status["backends"].as_array().unwrap().clone()
}

fn pid_of(cell: &Cell, number: usize) -> u32 {
    backends(cell)[number]["pid"].as_u64().unwrap_or(0) as u32
}

fn is_up(cell: &Cell) -> bool {
    let is_up = |backend: &serde_json::Value| backend["state"] == "up";
    backends(cell).iter().all(is_up)
}

#[test]
fn where_they_are_not_taken_it_is_said_with_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().display().to_string();
    let refused = run(&["cell", "up", "--dir", &path, "--queue", "--mode", "R=2"]);
    let said = text(&refused.stderr);
    assert_eq!(refused.status.code(), Some(2), "{said}");
    assert!(said.contains("nobody writes"), "{said}");

    for mode in ["R=1", "R=3.2"] {
        let dir = tempfile::tempdir().unwrap();
        let cell = Cell::up(dir.path(), &["--mode", mode]);
        let refused = cell.run(&[&["set", "key", "value"], &ACKNOWLEDGED[..]].concat());
        let said = text(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{said}");
        assert!(said.contains("`--queue`"), "{mode}: {said}");
        assert_eq!(cell.run(&["get", "key"]).status.code(), Some(1));
    }
}

#[cfg(feature = "bench")]
mod histories {
    use super::*;

    /// Histories of sixteen clients, half of which are acknowledged before it is executed,
    /// beside others that read past the queue, by messages and by calls.
    fn check(mode: &str, faults: &str, more: &[&str]) -> serde_json::Value {
        check_by(
            "queue,rings,queue,rpc,queue,message",
            500,
            (mode, faults),
            more,
        )
    }

    fn check_by(
        carriers: &str,
        committed_min: u64,
        (mode, faults): (&str, &str),
        more: &[&str],
    ) -> serde_json::Value {
        let mut args = vec![
            "histories",
            "--mode",
            mode,
            "--rounds",
            "1",
            "--clients",
            "16",
            "--carriers",
            carriers,
            "--faults",
            faults,
            "--json",
        ];
        args.extend_from_slice(more);
        let output = run(&args);
        let json: serde_json::Value = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{}{}", text(&output.stdout), text(&output.stderr)));
        assert!(output.status.success(), "{json:#}{}", text(&output.stderr));
        // On a busy machine there is time for few of them, and chance may leave one out.
        let done = |fault| json["faults"][fault]["done"].as_u64().unwrap_or(0);
        assert!(faults.split(',').map(done).sum::<u64>() >= 2, "{json:#}");
        // Else everything was executed, and nothing is shown.
        let committed = &json["carriers"]["queue"]["unversioned"];
        assert!(committed.as_u64() > Some(committed_min), "{json:#}");
        // Gateways tell no versions; their logs say whether one has committed anything.
        let said = text(&output.stderr);
        let is_said = said.contains("SETs are acknowledged before they are executed");
        assert_eq!(is_said, carriers.contains("gateway"), "{said}");
        json
    }

    const HOT: [&str; 6] = [
        "--keys",
        "6",
        "--value-len",
        "100..1000",
        "--memory",
        "64MiB",
    ];

    fn beside_what_stops(mode: &str) {
        let json = check(
            mode,
            "stop,client-kill,flush,skew",
            &[&HOT[..], &["--seconds", "12"]].concat(),
        );
        assert!(json["comparisons"].as_u64() > Some(1000), "{json:#}");
    }

    #[test]
    fn beside_stops_deaths_of_clients_flushes_and_wrong_clocks_none_is_missed() {
        beside_what_stops("R=1");
    }

    #[test]
    fn the_same_with_three_copies() {
        beside_what_stops("R=3.2");
    }

    /// Gateways acknowledge then, too, and are started again now and then.
    #[test]
    fn beside_gateways_that_acknowledge_none_is_missed() {
        for mode in ["R=1", "R=3.2"] {
            let json = check_by(
                "queue,gateway,rings,gateway",
                50,
                (mode, "stop,gateway-restart,flush"),
                &[&HOT[..], &["--seconds", "12"]].concat(),
            );
            assert!(json["comparisons"].as_u64() > Some(1000), "{json:#}");
            let by_gateway = &json["carriers"]["gateway"]["operations"];
            assert!(by_gateway.as_u64() > Some(500), "{json:#}");
        }
    }

    #[test]
    fn a_backend_that_is_killed_takes_everything_and_no_older_value_is_seen() {
        check(
            "R=1",
            "kill,restart",
            &[&HOT[..], &["--seconds", "12"]].concat(),
        );
    }

    const ROOMY: [&str; 8] = [
        "--keys",
        "2000",
        "--value-len",
        "100..1000",
        "--memory",
        "64MiB",
        "--seconds",
        "12",
    ];

    #[test]
    fn one_of_three_that_is_killed_or_hangs_makes_none_be_missed() {
        let json = check("R=3.2", "kill,restart,stop", &ROOMY);
        assert!(json["comparisons"].as_u64() > Some(1000), "{json:#}");
    }

    /// What was acknowledged goes along with the backend: nothing may be missing.
    #[test]
    fn backends_that_move_take_along_what_was_acknowledged() {
        let json = check("R=1", "move", &ROOMY);
        assert!(json["owed"].as_u64() > Some(1000), "{json:#}");
    }

    #[test]
    fn three_copies_that_move_take_along_what_was_acknowledged() {
        let json = check("R=3.2", "move", &ROOMY);
        assert!(json["owed"].as_u64() > Some(1000), "{json:#}");
    }
}
