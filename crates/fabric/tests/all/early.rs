//! Clients that are greeted by a process before it takes another one's place.

use crate::support::{BACKEND, CONFIG, Server, must_get, must_set};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_fabric::clock::monotonic_ns;
use trefoil_fabric::shm::{ConnectError, ConnectOptions, Connection, successor_path};
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

fn connect_early(
    place: &std::path::Path,
    patience: Duration,
) -> Result<Option<Connection>, ConnectError> {
    let by = Instant::now() + patience;
    Connection::connect_early(place, BACKEND, &ConnectOptions::default(), by)
}

#[test]
fn who_comes_before_it_serves_waits_for_the_lease_and_goes_on_with_the_connection() {
    let (mut server, place) = successor(true);
    let nothing = connect_early(&place, Duration::from_millis(30)).unwrap();
    assert!(nothing.is_none(), "no lease runs yet");
    let waits = std::thread::spawn({
        let place = place.clone();
        move || connect_early(&place, Duration::from_secs(60))
    });
    while server.statistics().greeted < 2 {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!waits.is_finished());
    server.backend.is_changing.store(false, Ordering::Relaxed);
    control::set_lease_end_ns(&server.control.words(), monotonic_ns() + LEASE_NS);
    let mut early = waits.join().unwrap().unwrap().unwrap();
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
fn where_nobody_is_to_come_nobody_is_waited_for() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().join("shm.sock");
    let nobody = connect_early(&place, Duration::from_secs(60)).unwrap();
    assert!(nobody.is_none());
    // Who is leaving greets nobody, wherever it listens.
    let (_server, place) = successor(false);
    let leaving = connect_early(&place, Duration::from_secs(60));
    assert!(
        matches!(leaving, Err(ConnectError::HungUp { .. })),
        "{leaving:?}"
    );
}
