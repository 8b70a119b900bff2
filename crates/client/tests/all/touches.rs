//! Who learns of what a client has read.

use crate::asynchronous::block_on;
use crate::real::Real;
use std::time::{Duration, Instant};
use trefoil_cell::Mode;
use trefoil_client::{Cell, Client, Lookup, Options, OwnedLookup, SetOptions};

const KEYS: usize = 100;
const PATIENCE: Duration = Duration::from_secs(60);

fn key(number: usize) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

/// Touches that each backend has counted.
fn touches(cell: &Cell) -> Vec<u64> {
    let backends = cell.stats().into_iter().map(|backend| {
        let stats = backend.stats.unwrap();
        let mut members = stats.members.iter();
        let member = members.find(|member| member.backend == backend.number);
        member.unwrap().touches
    });
    backends.collect()
}

fn wait_for(cell: &Cell, expected: &[u64]) {
    let begin = Instant::now();
    while touches(cell) != expected {
        assert!(
            begin.elapsed() < PATIENCE,
            "{:?} instead of {expected:?}",
            touches(cell)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn filled(cell: &Cell, options: Options) -> Client {
    let mut client = cell.client(options);
    for number in 0..KEYS {
        let stored = client.set(&key(number), b"value", SetOptions::default());
        stored.unwrap();
    }
    client.finish(PATIENCE);
    client
}

#[test]
fn every_replica_learns_of_every_hit_whichever_two_were_asked() {
    let real = Real::start(Mode::R32);
    let cell = Cell::connect(&real.address).unwrap();
    let mut expected = 0;
    for preferred in [Some(0), Some(1), Some(2), None] {
        let options = Options {
            preferred,
            ..Options::default()
        };
        let mut client = filled(&cell, options);
        for number in 0..KEYS {
            let found = client.get(&key(number));
            assert!(matches!(found, Ok(Lookup::Hit(_))));
        }
        assert!(matches!(client.get(b"nothing"), Ok(Lookup::Miss(_))));
        client.flush_touches();
        expected += KEYS as u64;
        wait_for(&cell, &[expected; 3]);
    }
    let mut client = filled(&cell, Options::default());
    let keys: Vec<_> = (0..KEYS).map(key).collect();
    client.get_many(&keys, |_, found| {
        assert!(matches!(found, Ok(Lookup::Hit(_))));
    });
    client.flush_touches();
    expected += KEYS as u64;
    wait_for(&cell, &[expected; 3]);
}

#[test]
fn every_replica_learns_of_the_hits_of_tasks() {
    let real = Real::start(Mode::R32);
    let cell = Cell::connect(&real.address).unwrap();
    drop(filled(&cell, Options::default()));
    let client = cell.async_client(Options::default());
    block_on(async {
        for number in 0..KEYS {
            let found = client.get(&key(number)).await;
            assert!(matches!(found, Ok(OwnedLookup::Hit(_))));
        }
    });
    drop(client);
    wait_for(&cell, &[KEYS as u64; 3]);
}

#[test]
fn the_only_copy_learns_of_every_hit_once() {
    let real = Real::start(Mode::R1);
    let cell = Cell::connect(&real.address).unwrap();
    let mut client = filled(&cell, Options::default());
    for number in 0..KEYS {
        assert!(matches!(client.get(&key(number)), Ok(Lookup::Hit(_))));
    }
    client.flush_touches();
    wait_for(&cell, &[KEYS as u64]);
}
