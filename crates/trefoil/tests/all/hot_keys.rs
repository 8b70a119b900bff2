//! The keys that are asked for most, under load.

use crate::support::{Cell, free_port};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

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
