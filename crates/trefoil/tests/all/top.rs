//! `top` without a terminal: snapshots as text and as objects.

use crate::support::{Cell, run, text};
use serde_json::Value;

#[test]
fn a_snapshot_of_a_whole_cell_in_one_process() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::serve(dir.path(), &["--memory", "64MiB"]);
    for _ in 0..3 {
        assert!(cell.run(&["set", "greeting", "hello"]).status.success());
    }
    let report = cell.json(&["top", "--once", "--json", "--interval", "200ms"]);
    assert_eq!(report["mode"], "R=1");
    assert_eq!(report["backends"][0]["state"], "up");
    assert_eq!(report["memory"]["items"], 1);
    assert_eq!(report["memory"]["limit_bytes"], 64 << 20);
    let lease = report["backends"][0]["lease_age_ms"].as_u64().unwrap();
    // It is renewed ten times a second; a busy machine may stand still for a while.
    assert!(lease < 5_000, "{lease}");
    let key = &report["keys"][0];
    assert_eq!(
        (&key["key"], &key["key_len"]),
        (&"greeting".into(), &8.into())
    );
    assert!(key["ops_per_s"].as_f64().unwrap() > 0.0, "{report}");

    let output = cell.run(&["top", "--once", "--interval", "200ms"]);
    assert!(output.status.success());
    let lines = text(&output.stdout);
    for expected in [
        "R=1",
        "1 of 1 backends up",
        "items 1 ",
        "greeting",
        "lease ms",
    ] {
        assert!(lines.contains(expected), "no {expected:?} in {lines}");
    }
}

#[test]
fn a_dead_backend_is_shown_as_down() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB"]);
    assert!(cell.run(&["set", "k", "v"]).status.success());
    cell.kill(1);
    let report = cell.json(&["top", "--once", "--json", "--interval", "200ms"]);
    let states: Vec<&str> = report["backends"]
        .as_array()
        .unwrap()
        .iter()
        .map(|backend| backend["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["up", "down", "up"]);
    assert!(report["backends"][1]["error"].is_string());
    // Two processes are left, each with its own bound.
    assert_eq!(report["memory"]["limit_bytes"], 128 << 20);
    assert_eq!(report["keys"][0]["key"], Value::from("k"));
    for backend in [0, 2] {
        cell.kill(backend);
    }
    let output = cell.run(&["top", "--once", "--interval", "200ms"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("0 of 3 backends up"));
}

#[test]
fn without_a_terminal_it_asks_for_a_choice() {
    let output = run(&["top", "--cell", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--once"));
}
