//! Engines, backends and machines that end, hang, move and come back.

use super::{
    Engine, PATIENCE, await_carriers, await_engine, engine_of, get, set, stored, under_load, up,
};
use crate::support::{Cell, Hanging, free_port, kill, text};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};
use trefoil_client::{CarrierInUse, Options};

#[test]
fn an_engine_that_is_killed_costs_nobody_anything() {
    for mode in ["R=1", "R=3.2"] {
        let (_dir, cell) = up(mode);
        let mut engine = Engine::beside(&cell);
        under_load(&cell, engine.options(), |goes_on| {
            for _ in 0..3 {
                engine.kill();
                goes_on(10);
                engine = Engine::start(&cell, engine.address);
                goes_on(10);
            }
        });
        // It is used again.
        engine.client(&cell);
    }
}

#[test]
fn an_engine_that_hangs_is_left_and_taken_again() {
    let (_dir, cell) = up("R=3.2");
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "k", b"v");
    let hanging = Hanging::new(engine.child.id());
    assert_eq!(get(&mut client, "k").as_deref(), Some(&b"v"[..]));
    await_carriers(&mut client, |carrier| carrier == CarrierInUse::Rpc);
    drop(hanging);
    await_engine(&mut client);
    assert_eq!(get(&mut client, "k").as_deref(), Some(&b"v"[..]));
}

#[test]
fn the_only_copy_moves_while_it_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["--memory", "64MiB", "--mode", "R=1", "--backends", "2"];
    let cell = Cell::up(dir.path(), &[&args[..], &["--restart", "always"]].concat());
    let engine = Engine::beside(&cell);
    under_load(&cell, engine.options(), |goes_on| {
        let restarted = cell.run(&["cell", "restart"]);
        assert!(restarted.status.success(), "{}", text(&restarted.stderr));
        goes_on(20);
    });
    engine.client(&cell);
}

#[test]
fn backends_that_move_or_die_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB", "--restart", "always"]);
    let engine = Engine::beside(&cell);
    under_load(&cell, engine.options(), |goes_on| {
        let restarted = cell.run(&["cell", "restart"]);
        assert!(restarted.status.success(), "{}", text(&restarted.stderr));
        goes_on(20);
    });
    let mut client = engine.client(&cell);
    set(&mut client, "before", b"the kill");
    let pids = |cell: &Cell| -> Vec<u64> {
        let status = cell.json(&["cell", "status", "--json"]);
        let backends = status["backends"].as_array().unwrap();
        backends
            .iter()
            .map(|of| of["pid"].as_u64().unwrap_or(0))
            .collect()
    };
    let before = pids(&cell);
    kill(before[1] as u32, "KILL");
    let begin = Instant::now();
    loop {
        assert_eq!(stored(&mut client, "before"), b"the kill");
        let now = pids(&cell);
        if now[1] != 0 && now[1] != before[1] {
            break;
        }
        assert!(begin.elapsed() < PATIENCE);
    }
    await_engine(&mut client);
    assert_eq!(
        get(&mut client, "before").as_deref(),
        Some(&b"the kill"[..])
    );
}

/// Memory objects that a process has mapped.
fn mapped(pid: u32) -> usize {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

#[test]
fn memory_of_the_dead_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "64MiB", "--restart", "never"]);
    let engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "key", b"value");
    let before = mapped(engine.child.id());
    assert!(before >= 3, "{before}");
    cell.kill(1);
    let begin = Instant::now();
    while mapped(engine.child.id()) > before / 3 * 2 {
        assert_eq!(stored(&mut client, "key"), b"value");
        assert!(begin.elapsed() < PATIENCE, "its memory is still mapped");
    }
    assert_eq!(stored(&mut client, "key"), b"value");
}

#[test]
fn a_cell_s_own_engine_is_started_again_and_told_of() {
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let args = [
        "--memory",
        "64MiB",
        "--engine",
        &listen,
        "--restart",
        "always",
    ];
    let cell = Cell::up(dir.path(), &args);
    let address: SocketAddr = listen.parse().unwrap();
    let options = Options {
        engine: Some(address),
        deadline: Duration::from_secs(5),
        ..Options::default()
    };
    let await_pid = |other: u64| {
        let begin = Instant::now();
        loop {
            let (pid, counters) = engine_of(&cell.status());
            if pid != 0 && pid != other && counters["backends_mapped"] == 3 {
                return pid;
            }
            assert!(begin.elapsed() < PATIENCE, "{counters:#}");
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    let mut pid = await_pid(0);
    under_load(&cell, options, |goes_on| {
        for _ in 0..2 {
            kill(pid as u32, "KILL");
            goes_on(10);
            pid = await_pid(pid);
            goes_on(10);
        }
    });
    let (_, counters) = engine_of(&cell.status());
    assert!(counters["scans"].as_u64() > Some(0), "{counters:#}");
    // It ends with its cell, and takes its word away.
    drop(cell);
    let begin = Instant::now();
    while TcpStream::connect(address).is_ok() {
        assert!(begin.elapsed() < PATIENCE, "the engine is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_cell_whose_engine_cannot_run_is_not_ready() {
    let holder = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = holder.local_addr().unwrap().to_string();
    let cases: [(&[&str], i32, &str); 2] = [
        (&["--engine", &taken], 1, &taken),
        (&["--engine", "0.0.0.0:0"], 2, "--certs"),
    ];
    for (more, code, why) in cases {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("cell").display().to_string();
        let up = ["cell", "up", "--dir", &path, "--memory", "64MiB"];
        let ended = crate::support::run(&[&up[..], more].concat());
        let (out, said) = (text(&ended.stdout), text(&ended.stderr));
        assert_eq!(ended.status.code(), Some(code), "{more:?}: {said}");
        assert!(!out.contains("ready"), "{more:?}: {out}");
        assert!(said.contains(why), "{more:?}: {said}");
        assert!(said.contains("engine"), "{more:?}: {said}");
    }
    // One that runs says where: any port was asked for.
    let dir = tempfile::tempdir().unwrap();
    let args = ["--memory", "64MiB", "--engine", "127.0.0.1:0"];
    let cell = Cell::up(dir.path(), &args);
    let engine = &cell.status()["engines"][0];
    assert_eq!(engine["counters"]["backends_mapped"], 3, "{engine:#}");
    let address: SocketAddr = engine["address"].as_str().unwrap().parse().unwrap();
    assert!(address.port() != 0);
}
