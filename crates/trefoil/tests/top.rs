//! `top` without a terminal: snapshots as text and as objects.

mod support;

use serde_json::Value;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use support::{Cell, free_port, run, text};

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
    assert!(lease < 500, "{lease}");
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
fn keys_that_clients_read_by_themselves_are_hot() {
    let dir = tempfile::tempdir().unwrap();
    let metrics = format!("127.0.0.1:{}", free_ports(3));
    let cell = Cell::up(dir.path(), &["--memory", "64MiB", "--metrics", &metrics]);
    let load = [
        "bench",
        "get",
        "--keys",
        "100",
        "--zipf",
        "1.5",
        "--seconds",
        "1",
        "--json",
    ];
    let load = cell.json(&load);
    assert!(load.is_object());
    let report = cell.json(&["top", "--once", "--json", "--interval", "200ms"]);
    let keys = report["keys"].as_array().unwrap();
    let rate = |place: usize| keys[place]["ops_per_s"].as_f64().unwrap();
    // A hundred writes filled the cell; all the rest were one-sided reads.
    assert!(rate(0) > 1000.0 && rate(0) > 1.5 * rate(1), "{keys:?}");
    assert!(keys[0]["bytes_per_s"].as_f64().unwrap() > 500.0 * rate(0));

    // Each backend has metrics of its own.
    let first: u16 = metrics.rsplit(':').next().unwrap().parse().unwrap();
    for backend in 0..3 {
        let mut stream = TcpStream::connect(("127.0.0.1", first + backend)).unwrap();
        stream
            .write_all(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let own = format!("trefoil_items{{cell=\"cell\",backend=\"{backend}\"}} 100");
        assert!(answer.contains(&own), "no {own} in {answer}");
    }
}

/// The first of some ports in a row that were free a moment ago.
fn free_ports(count: u16) -> u16 {
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let mut candidates = std::iter::repeat_with(free_port).take(1000);
    candidates
        .find(|first| {
            first
                .checked_add(count)
                .is_some_and(|end| (*first..end).all(is_free))
        })
        .expect("ports in a row are free")
}

#[test]
fn without_a_terminal_it_asks_for_a_choice() {
    let output = run(&["top", "--cell", "127.0.0.1:1"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--once"));
}
