//! Clients that are greeted by a process before it takes another one's place.

use crate::support::{BACKEND, CONFIG, Server, must_get, must_set};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use trefoil_fabric::clock::monotonic_ns;
use trefoil_fabric::shm::{ConnectError, ConnectOptions, Connection, Early, successor_path};
use trefoil_layout::control;

const LEASE_NS: u64 = 60_000_000_000;

/// A server beside the place that it is to take, and that place.
fn successor(is_successor: bool) -> (Server, PathBuf) {
    let mut place = PathBuf::new();
    let server = Server::with(|options| {
        place = options.path.clone();
        options.path = successor_path(&place);
        options.is_successor = is_successor;
    });
    server.backend.is_changing.store(true, Ordering::Relaxed);
    (server, place)
}

fn greet(place: &Path) -> Result<Option<Early>, ConnectError> {
    Early::greet(place, BACKEND, &ConnectOptions::default())
}

#[test]
fn who_comes_before_it_serves_goes_on_with_the_connection_once_it_does() {
    let (mut server, place) = successor(true);
    let early = greet(&place).unwrap().unwrap();
    assert!(!early.serves());
    server.backend.is_changing.store(false, Ordering::Relaxed);
    assert!(!early.serves(), "no lease runs yet");
    control::set_lease_end_ns(&server.control.words(), monotonic_ns() + LEASE_NS);
    assert!(early.serves());
    let mut early = early.begin();
    assert_eq!(early.agreement().topology.config_id, CONFIG);
    assert!(early.lease_alive(monotonic_ns()));
    must_set(&mut early, b"key", b"value");
    // Those who come later find it in its place, and those who came early stay.
    server.target.as_mut().unwrap().take_place(&place).unwrap();
    assert!(!successor_path(&place).exists());
    let mut late = Connection::connect(&place, BACKEND, &ConnectOptions::default()).unwrap();
    assert_eq!(must_get(&mut late, b"key").unwrap(), b"value");
    assert_eq!(must_get(&mut early, b"key").unwrap(), b"value");
    // One that leaves its place is no successor any more.
    server.backend.is_changing.store(true, Ordering::Relaxed);
    let leaving = Connection::connect(&place, BACKEND, &ConnectOptions::default());
    assert!(
        matches!(leaving, Err(ConnectError::HungUp { .. })),
        "{leaving:?}"
    );
}

#[test]
fn where_nobody_is_to_come_there_is_nobody() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("shm.sock");
    assert!(greet(&place).unwrap().is_none());
    // Who is leaving greets nobody, wherever it listens.
    let (_server, place) = successor(false);
    let leaving = greet(&place);
    assert!(
        matches!(leaving, Err(ConnectError::HungUp { .. })),
        "{leaving:?}"
    );
}
