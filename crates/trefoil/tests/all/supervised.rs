//! `serve --restart always`: a parent that starts the server again when it has died.

use crate::support::{Cell, PROGRAM, kill, run};
use std::process::Command;
use std::time::{Duration, Instant};
use trefoil_client::{Client, Lookup, Mutated, Options, SetOptions};

/// How long a restart may take here, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Whether a process is there, and has not ended.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit(')').next().unwrap_or_default().trim_start();
    !state.is_empty() && !state.starts_with(['Z', 'X'])
}

fn serve(dir: &std::path::Path) -> Cell {
    let cell = Cell::serve(dir, &["--restart", "always", "--memory", "64MiB"]);
    assert_ne!(cell.pids, [cell.pid()], "the parent serves nobody");
    cell
}

fn stores(client: &mut Client, key: &str) -> bool {
    let stored = client.set(key.as_bytes(), b"v", SetOptions::default());
    matches!(stored, Ok(Mutated::Stored { .. }))
}

fn holds(client: &mut Client, key: &str) -> bool {
    matches!(client.get(key.as_bytes()), Ok(Lookup::Hit(_)))
}

/// The process that serves.
fn server(cell: &Cell) -> Option<u32> {
    let output = cell.run(&["cell", "status", "--json"]);
    // Nobody may be there to ask.
    let status: serde_json::Value = serde_json::from_slice(&output.stdout).ok()?;
    let backend = &status["backends"][0];
    let is_up = backend["state"] == "up";
    is_up.then(|| backend["pid"].as_u64().unwrap() as u32)
}

#[test]
fn a_server_that_is_killed_is_started_again_and_its_clients_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let cell = serve(dir.path());
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    let mut client = connected.client(Options::default());
    assert!(stores(&mut client, "before") && holds(&mut client, "before"));
    let mut pid = cell.pids[0];
    for round in 0..2 {
        kill(pid, "KILL");
        let before = pid;
        wait_until("the server does not come back", || match server(&cell) {
            Some(now) => {
                pid = now;
                now != before
            }
            None => false,
        });
        // The same client, with what the new life of the data has: nothing of the old one.
        let key = format!("after {round}");
        wait_until("the client does not go on", || {
            stores(&mut client, &key) && holds(&mut client, &key)
        });
        assert!(!holds(&mut client, "before"), "it is of another life");
    }
    assert_eq!(cell.log().count(&["the server has died", "signal: 9"]), 2);
    let parent = cell.pid();
    assert_eq!(cell.stop(), 0);
    wait_until("the server outlives its parent", || !lives(pid));
    assert!(!lives(parent));
}

#[test]
fn a_server_does_not_outlive_the_parent_that_watches_it() {
    let dir = tempfile::tempdir().unwrap();
    let cell = serve(dir.path());
    let pid = cell.pids[0];
    kill(cell.pid(), "KILL");
    wait_until("the server goes on alone", || !lives(pid));
}

#[test]
fn what_cannot_be_run_is_not_run_again_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let cell = serve(dir.path());
    let port = cell.address.rsplit(':').next().unwrap().to_owned();
    let listen = format!("127.0.0.1:{port}");
    let socket = dir.path().join("other.sock").display().to_string();
    let more = [
        "--socket",
        &socket,
        "--metrics",
        "off",
        "--memcached",
        "off",
    ];
    let again = ["serve", "--restart", "always", "--listen", &listen];
    let begin = Instant::now();
    let output = run(&[&again[..], &more].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains(&listen) && !said.contains("has died"),
        "{said}"
    );
    let output = run(&["serve", "--restart", "always", "--memory", "1KiB"]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(begin.elapsed() < PATIENCE);
    assert_eq!(cell.stop(), 0);
}

#[test]
fn the_end_that_a_signal_asks_for_comes_in_a_pause_too() {
    let dir = tempfile::tempdir().unwrap();
    let cell = serve(dir.path());
    kill(cell.pids[0], "KILL");
    wait_until("its death is not noticed", || {
        cell.log().count(&["the server has died"]) == 1
    });
    assert_eq!(cell.stop(), 0);
}

#[test]
fn settings_are_read_again_by_the_server_that_runs() {
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("serve.toml");
    let write = |memory: &str| {
        let settings = format!("restart = \"always\"\nmemory = \"{memory}\"\n");
        std::fs::write(&config, settings).unwrap();
    };
    write("64MiB");
    let cell = Cell::serve(dir.path(), &["--config", config.to_str().unwrap()]);
    assert_ne!(cell.pids, [cell.pid()]);
    let limit = |cell: &Cell| cell.status()["backends"][0]["memory_limit_bytes"].clone();
    assert_eq!(limit(&cell), 64 << 20);
    write("96MiB");
    kill(cell.pid(), "HUP");
    wait_until("the limit stays", || limit(&cell) == 96 << 20);
    assert_eq!(cell.stop(), 0);
}

/// Without the option `serve` is one process, as it was.
#[test]
fn a_server_that_nobody_watches_stays_dead() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::serve(dir.path(), &["--memory", "64MiB"]);
    assert_eq!(cell.pids, [cell.pid()]);
    kill(cell.pid(), "KILL");
    // Whoever pretends to be watched by somebody is told so.
    let output = Command::new(PROGRAM)
        .args(["serve", "--supervised-by", "1", "--metrics", "off"])
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
}
