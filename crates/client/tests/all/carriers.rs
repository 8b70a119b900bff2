//! Clients that do not get the fastest carrier: what they do, say and try.

use crate::real::Real;
use std::io::Write as _;
use std::os::unix::net::UnixListener;
use std::time::{Duration, Instant};
use trefoil_cell::Mode;
use trefoil_client::{CarrierInUse, Cell, Client, Lookup, Options, SetOptions};
use trefoil_fabric::shm::{ConnectOptions, Connection};
use trefoil_layout::hello::REPLY_LEN;

fn wait_until(mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn read(client: &mut Client, keys: usize, rounds: usize) {
    for _ in 0..rounds {
        for number in 0..keys {
            let key = format!("key-{number}");
            assert!(matches!(client.get(key.as_bytes()), Ok(Lookup::Hit(_))));
        }
    }
}

#[test]
fn readers_without_rings_report_touches_by_rpc() {
    let real = Real::start(Mode::R1);
    let cell = Cell::connect(&real.address).unwrap();
    let mut others = Vec::new();
    loop {
        let other = Connection::connect(&real.fabric, 0, &ConnectOptions::default()).unwrap();
        if other.channel().is_none() {
            break;
        }
        others.push(other);
    }
    let mut client = cell.client(Options::default());
    let status = &client.carriers()[0];
    assert_eq!(status.carrier, CarrierInUse::SharedReads);
    assert!(status.why.as_ref().unwrap().contains("no message rings"));
    for number in 0..100 {
        let key = format!("key-{number}");
        client
            .set(key.as_bytes(), b"value", SetOptions::default())
            .unwrap();
    }
    read(&mut client, 100, 20);
    client.flush_touches();
    wait_until(|| {
        let stats = cell.stats().remove(0).stats.unwrap();
        // While one report is under way others are lost.
        stats.members[0].touches >= 512
    });
    drop(others);
}

#[test]
fn a_link_that_fell_back_to_rpc_tries_shared_memory_again() {
    let home = tempfile::tempdir().unwrap();
    let named = home.path().join("named");
    let garbler = UnixListener::bind(&named).unwrap();
    let garble = std::thread::spawn(move || {
        let (mut socket, _) = garbler.accept().unwrap();
        let _ = socket.write_all(&[7; REPLY_LEN]);
    });
    let real = Real::start_in(home, Mode::R1, named.clone());
    let mut client = Cell::connect(&real.address)
        .unwrap()
        .client(Options::default());
    let status = client.carriers().remove(0);
    assert_eq!(status.carrier, CarrierInUse::Rpc, "{status:?}");
    assert!(status.why.is_some());
    client
        .set(b"key-0", b"value", SetOptions::default())
        .unwrap();
    garble.join().unwrap();
    std::fs::remove_file(&named).unwrap();
    std::os::unix::fs::symlink(&real.fabric, &named).unwrap();
    wait_until(|| {
        read(&mut client, 1, 1);
        client.carriers()[0].carrier == CarrierInUse::Shared
    });
    assert_eq!(client.carriers()[0].why, None);
}

#[test]
fn who_found_no_rings_left_gets_some_when_another_client_has_gone() {
    let real = Real::start_for(Mode::R1, 1);
    let cell = Cell::connect(&real.address).unwrap();
    let mut first = cell.client(Options::default());
    let mut second = cell.client(Options::default());
    let set = |client: &mut Client| {
        let set = client.set(b"key-0", b"value", SetOptions::default());
        set.unwrap();
        client.carriers()[0].carrier
    };
    assert_eq!(set(&mut first), CarrierInUse::Shared);
    assert_eq!(set(&mut second), CarrierInUse::SharedReads);
    drop(first);
    wait_until(|| {
        read(&mut second, 1, 1);
        set(&mut second) == CarrierInUse::Shared
    });
    assert_eq!(second.carriers()[0].why, None);
}
