//! What people are told of engines.

use super::{Engine, engine_of, get, metric, said_by_metrics, set, up};
use crate::support::{Cell, free_port, text};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

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
    // It leaves its word behind.
    engine.kill();
    let ill = doctor();
    assert_eq!(kinds(&ill), ["engine_down"], "{ill:#}");
}
