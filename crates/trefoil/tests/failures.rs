//! What happens when a machine is killed, under load.

mod support;

use std::process::{Command, Stdio};
use std::time::Duration;
use support::{Cell, PROGRAM, parse, text};

/// A `trefoil bench mix` running beside the test.
fn load(cell: &Cell, more: &[&str]) -> std::process::Child {
    Command::new(PROGRAM)
        .args([
            "bench",
            "mix",
            "--cell",
            &cell.address,
            "--keys",
            "20000",
            "--value-size",
            "256",
        ])
        .args(["--rate", "10000", "--json"])
        .args(more)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

#[test]
fn one_of_three_killed_costs_no_operation() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "128MiB"]);
    let bench = load(&cell, &["--seconds", "5"]);
    std::thread::sleep(Duration::from_millis(2500));
    cell.kill(1);
    let result = parse(&bench.wait_with_output().unwrap());
    assert_eq!(result["failed"], 0, "{result:#}");
    assert_eq!(result["stale"], 0, "{result:#}");
    assert_eq!(result["misses"], 0, "{result:#}");
    assert!(result["ops"].as_u64().unwrap() > 20_000, "{result:#}");
}

#[test]
fn the_only_one_killed_gives_clean_errors_and_its_memory_is_dead() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--mode", "R=1", "--memory", "128MiB"]);
    assert!(cell.run(&["set", "k", "old"]).status.success());
    // A client that keeps the dead backend's memory mapped.
    let bench = load(&cell, &["--seconds", "6"]);
    std::thread::sleep(Duration::from_millis(2000));
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
        std::thread::sleep(Duration::from_millis(150 + 70 * round));
        bench.kill().unwrap();
        bench.wait().unwrap();
    }
    // Readers verify every value's bytes; a wrong one would be counted as failed.
    let result = cell.json(&[
        "bench",
        "get",
        "--keys",
        "50",
        "--value-size",
        "60000",
        "--seconds",
        "1",
        "--json",
    ]);
    assert_eq!(result["failed"], 0, "{result:#}");
}
