//! What people are told of engines.

use super::{Engine, PATIENCE, engine_of, get, metric, metric_of, said_by_metrics, set, up};
use crate::support::{Cell, free_port, kill, run, text};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

#[test]
fn a_server_s_own_engine_reads_it() {
    let dir = tempfile::tempdir().unwrap();
    let listen = format!("127.0.0.1:{}", free_port());
    let cell = Cell::serve(dir.path(), &["--memory", "64MiB", "--engine", &listen]);
    let stored = cell.run(&["set", "k", "hello"]);
    assert!(stored.status.success(), "{}", text(&stored.stderr));
    let read = cell.run(&["get", "k", "--engine", &listen]);
    assert_eq!(text(&read.stdout), "hello");
    let (_, counters) = engine_of(&cell.status());
    assert_eq!(counters["backends_mapped"], 1);
    assert!(counters["scans"].as_u64() > Some(0), "{counters:#}");
    // In words, too.
    let said = text(&cell.run(&["cell", "status"]).stdout);
    assert!(
        said.contains(&format!("engine {listen}: 1 threads, 1 backends")),
        "{said}"
    );
    assert!(
        said.contains(" under way of ") && said.contains(", lag "),
        "{said}"
    );
}

#[test]
fn an_engine_s_counters_are_there_for_prometheus() {
    let (_dir, cell) = up("R=1");
    let listen = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let metrics = SocketAddr::from(([127, 0, 0, 1], free_port()));
    let at = metrics.to_string();
    let engine = Engine::start_with(&cell, listen, &["--metrics", &at]);
    let mut client = engine.client(&cell);
    set(&mut client, "k", b"v");
    assert!(get(&mut client, "k").is_some());
    let said = said_by_metrics(metrics);
    assert!(
        metric(&said, "scans_total", "0") > 0 && metric(&said, "sessions_total", "set-up") > 0,
        "{said}"
    );
    assert!(
        said.contains("# TYPE trefoil_engine_sessions_open gauge"),
        "{said}"
    );
}

/// A GET by the engine raises a counter of its metrics, whichever process has it.
fn is_counted(cell: &Cell, engine: SocketAddr, metrics: SocketAddr, name: &str) {
    let scans = || metric_of(&said_by_metrics(metrics), "scans_total", name, "0");
    let stored = cell.run(&["set", "k", "hello"]);
    assert!(stored.status.success(), "{}", text(&stored.stderr));
    let before = scans();
    let read = cell.run(&["get", "k", "--engine", &engine.to_string()]);
    assert_eq!(text(&read.stdout), "hello");
    assert!(scans() > before);
    let said = said_by_metrics(metrics);
    for counted in ["busy_us_total", "rounds_total"] {
        assert!(metric_of(&said, counted, name, "0") > 0, "{said}");
    }
    for gauge in ["lag_us_max", "in_flight_bytes", "window_bytes"] {
        assert!(
            said.contains(&format!("# TYPE trefoil_engine_{gauge} gauge")),
            "{said}"
        );
    }
}

#[test]
fn the_metrics_of_serve_have_its_engine() {
    let dir = tempfile::tempdir().unwrap();
    let [engine, metrics] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let (engine_text, at) = (engine.to_string(), metrics.to_string());
    let listen = format!("127.0.0.1:{}", free_port());
    let socket = dir.path().join("serve.sock").display().to_string();
    let mut args = vec!["serve", "--listen", &listen, "--socket", &socket];
    args.extend(["--memory", "64MiB", "--memcached", "off"]);
    args.extend(["--engine", &engine_text, "--metrics", &at]);
    let cell = Cell::start(&args);
    is_counted(&cell, engine, metrics, "serve");
    // Beside what the backend has.
    assert!(said_by_metrics(metrics).contains("trefoil_items{"));
}

#[test]
fn the_engine_of_cell_up_has_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let [engine, metrics] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let (engine_text, at) = (engine.to_string(), metrics.to_string());
    let mut args = vec!["--memory", "64MiB", "--mode", "R=1", "--backends", "1"];
    args.extend(["--engine", &engine_text, "--engine-metrics", &at]);
    let cell = Cell::up(dir.path(), &args);
    is_counted(&cell, engine, metrics, "cell");
}

/// Somebody else has the port of its metrics when it comes back: it serves, and they come later.
#[test]
fn an_engine_that_comes_back_does_not_wait_for_its_metrics() {
    let dir = tempfile::tempdir().unwrap();
    let [engine, metrics] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let (engine_text, at) = (engine.to_string(), metrics.to_string());
    let mut args = vec!["--memory", "64MiB", "--mode", "R=1", "--backends", "1"];
    args.extend(["--engine", &engine_text, "--engine-metrics", &at]);
    let refused = || {
        let other = tempfile::tempdir().unwrap();
        let dir = other.path().to_str().unwrap();
        let output = run(&[&["cell", "up", "--dir", dir][..], &args].concat());
        assert!(!output.status.success());
        text(&output.stderr)
    };
    // At the first start it is refused.
    let holder = TcpListener::bind(metrics).unwrap();
    let said = refused();
    assert!(
        said.contains(&at) && said.contains("did not start"),
        "{said}"
    );
    drop(holder);
    args.extend(["--restart", "always"]);
    let cell = Cell::up(dir.path(), &args);
    is_counted(&cell, engine, metrics, "cell");
    let begin = Instant::now();
    let running = || loop {
        match engine_of(&cell.status()) {
            (0, _) => assert!(begin.elapsed() < 4 * PATIENCE),
            (pid, counters) => return (pid, counters),
        }
        std::thread::sleep(Duration::from_millis(20));
    };
    // Whoever comes first has the port.
    let (holder, killed) = loop {
        let (pid, _) = running();
        kill(pid as u32, "KILL");
        let killed_at = Instant::now();
        let found = std::iter::repeat_with(|| TcpListener::bind(metrics).ok())
            .take_while(|_| killed_at.elapsed() < Duration::from_secs(1))
            .flatten()
            .next();
        match found {
            Some(holder) => break (holder, pid),
            None => assert!(begin.elapsed() < 4 * PATIENCE),
        }
    };
    // A GET is read by the engine again.
    loop {
        let (pid, before) = running();
        let read = cell.run(&["get", "k", "--engine", &engine_text]);
        assert_eq!(text(&read.stdout), "hello");
        let (same, after) = running();
        if pid != killed && same == pid && after["scans"].as_u64() > before["scans"].as_u64() {
            break;
        }
        assert!(begin.elapsed() < 4 * PATIENCE, "no engine");
    }
    drop(holder);
    while TcpStream::connect(metrics).is_err() {
        assert!(begin.elapsed() < 4 * PATIENCE, "no metrics");
        std::thread::sleep(Duration::from_millis(20));
    }
    is_counted(&cell, engine, metrics, "cell");
}

#[test]
fn metrics_of_an_engine_are_refused_where_they_make_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path().to_str().unwrap();
    let up = |more: &[&str]| {
        let output = run(&[&["cell", "up", "--dir", dir][..], more].concat());
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    let alone = up(&["--engine-metrics", "127.0.0.1:0"]);
    assert!(alone.contains("there is no engine"), "{alone}");
    let engine = ["--engine", "127.0.0.1:0"];
    let open = up(&[&engine[..], &["--engine-metrics", "0.0.0.0:0"]].concat());
    assert!(open.contains("--plaintext metrics"), "{open}");
}

#[test]
fn top_and_doctor_show_engines() {
    let (_dir, cell) = up("R=3.2");
    let mut engine = Engine::beside(&cell);
    let mut client = engine.client(&cell);
    set(&mut client, "k", b"v");
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                let _ = client.get(b"k");
            }
        });
        let shown = cell.json(&["top", "--once", "--json", "--interval", "500ms"]);
        let written = cell.run(&["top", "--once", "--interval", "500ms"]);
        is_done.store(true, Ordering::SeqCst);
        let of = &shown["engines"][0];
        assert_eq!(of["address"], engine.address.to_string());
        assert!(of["operations_per_s"].as_f64() > Some(10.0), "{of:#}");
        assert!(of["out_bytes_per_s"].as_f64() > Some(100.0), "{of:#}");
        assert!(of["cpu_us_per_operation"].as_f64() > Some(0.0), "{of:#}");
        assert_eq!(of["threads"], 1);
        assert!(of["lag_us_max"].as_u64() > Some(0), "{of:#}");
        assert!(of["lag_us"].as_f64() > Some(0.0), "{of:#}");
        assert!(of["busy"].as_f64() > Some(0.0), "{of:#}");
        assert!(of["window_bytes"].as_u64() > Some(1000), "{of:#}");
        assert!(text(&written.stdout).contains("µs each"));
    });
    let doctor = || -> serde_json::Value {
        let looked = cell.run(&["doctor", "--json"]);
        serde_json::from_slice(&looked.stdout).unwrap()
    };
    let kinds = |report: &serde_json::Value| -> Vec<String> {
        let findings = report["findings"].as_array().unwrap().iter();
        let kinds = findings.map(|of| of["kind"].as_str().unwrap().to_owned());
        kinds.filter(|kind| kind.starts_with("engine")).collect()
    };
    let well = doctor();
    assert!(kinds(&well).is_empty(), "{well:#}");
    let counted = &well["engines"][0];
    assert!(
        counted["counters"]["scans"].as_u64() > Some(10),
        "{counted:#}"
    );
    assert!(counted["cpu_us_per_operation"].as_f64() > Some(0.0));
    assert!(counted["counters"]["busy_us"].as_u64() > Some(0));
    assert!(counted["counters"]["window_bytes"].as_u64() > Some(1000));
    // It leaves its word behind.
    engine.kill();
    let ill = doctor();
    assert_eq!(kinds(&ill), ["engine_down"], "{ill:#}");
}
