//! Atomic updates of a replicated cell whose backends die.

use crate::support::{Cell, Hanging};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trefoil_client::{CarrierInUse, Client, Lookup, Mutated, Options, SetOptions};
use trefoil_gateway::keyspace::{CellKeyspace, CellOptions, Patient, cell_keyspace};
use trefoil_gateway_core::keyspace::{
    Access, Decision, Fault, Halt, Keyspace, NewItem, Ready as _, Updated,
};

const THREADS: u64 = 20;
const UPDATES: u64 = 1000;
const KEY: &[u8] = b"counter";

fn increment(keyspace: &mut Patient<CellKeyspace>) -> Result<Updated, Fault> {
    let updated = keyspace.update(KEY, &mut |item, scratch| {
        let mut digits = Vec::new();
        if let Some(item) = item {
            item.value.append_to(&mut digits);
        }
        let before: u64 = String::from_utf8(digits).unwrap().parse().unwrap_or(0);
        scratch.extend_from_slice((before + 1).to_string().as_bytes());
        Decision::Store(NewItem {
            value: scratch,
            ..NewItem::default()
        })
    });
    updated.ready().expect("it waits")
}

fn value(keyspace: &mut Patient<CellKeyspace>) -> u64 {
    let mut value = Vec::new();
    keyspace
        .get(KEY, Access::Use, &mut |item| {
            item.expect("it was stored").value.append_to(&mut value);
        })
        .unwrap();
    String::from_utf8(value).unwrap().parse().unwrap()
}

/// How the updates of all threads ended.
#[derive(Default, Debug)]
struct Endings {
    acknowledged: AtomicU64,
    indeterminate: AtomicU64,
    refused: AtomicU64,
}

/// Counts up a thousand times from twenty clients; the first backend of the
/// key's cohort, where contenders meet, is killed in the middle.
#[test]
fn a_thousand_increments_count_once_each_while_a_backend_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "128MiB"]);
    let client = trefoil_client::Cell::connect(&cell.address).unwrap();
    let config = client.config();
    let cohort = config.placement().cohort(config.hash.hash(KEY));
    let first = cohort.as_slice()[0];
    let endings = Endings::default();
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            let keyspace = cell_keyspace(client.clone(), CellOptions::default());
            let endings = &endings;
            scope.spawn(move || {
                let mut keyspace = Patient::new(keyspace);
                for _ in 0..UPDATES / THREADS {
                    // Refused means that nothing was changed: once more.
                    let ending = loop {
                        match increment(&mut keyspace) {
                            Ok(updated) => {
                                assert!(matches!(updated, Updated::Stored(_)));
                                break &endings.acknowledged;
                            }
                            Err(Fault::Indeterminate) => break &endings.indeterminate,
                            Err(fault) => {
                                let refused = endings.refused.fetch_add(1, Ordering::Relaxed);
                                assert!(refused < 10 * UPDATES, "{fault}: {endings:?}");
                            }
                        };
                    };
                    ending.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let begin = Instant::now();
        while endings.acknowledged.load(Ordering::Relaxed) < UPDATES / 3 {
            assert!(begin.elapsed() < Duration::from_secs(60), "{endings:?}");
            std::thread::sleep(Duration::from_micros(100));
        }
        cell.kill(first as usize);
        let done = endings.acknowledged.load(Ordering::Relaxed);
        assert!(done < UPDATES, "the backend died too late to matter");
        println!("killed after {done}");
    });
    let value = value(&mut Patient::new(cell_keyspace(
        client,
        CellOptions::default(),
    )));
    let acknowledged = endings.acknowledged.into_inner();
    let indeterminate = endings.indeterminate.into_inner();
    let refused = endings.refused.into_inner();
    println!(
        "value {value}: {acknowledged} acknowledged, {indeterminate} indeterminate, {refused} refused"
    );
    assert_eq!(acknowledged + indeterminate, UPDATES);
    assert!(
        (acknowledged..=acknowledged + indeterminate).contains(&value),
        "value {value}: {acknowledged} acknowledged, {indeterminate} indeterminate"
    );
    // A death costs each client at most the update that it was at.
    assert!(indeterminate <= THREADS, "{indeterminate} indeterminate");
}

/// How far the clock of the client is ahead that writes what must not look at rest:
/// nearly as far as backends let it be.
const AHEAD_MS: i64 = 9_000;

fn set(client: &mut Client, key: &[u8], value: &[u8]) {
    let set = client.set(key, value, SetOptions::default());
    assert!(matches!(set, Ok(Mutated::Stored { .. })), "{set:?}");
}

/// Reads until a backend is reached in this way.
fn until(client: &mut Client, backend: usize, carrier: CarrierInUse) {
    let begin = Instant::now();
    while client.carriers()[backend].carrier != carrier {
        let patience = Duration::from_secs(60);
        assert!(begin.elapsed() < patience, "{:?}", client.carriers());
        let _ = client.get(KEY);
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// A key that a look has found the survivors to disagree on, and that somebody else
/// writes before it is cleared: what was written stays.
#[test]
fn clearing_what_survivors_disagree_on_takes_nothing_else_away() {
    const AHEAD: &[u8] = b"written by who is ahead";
    let dir = tempfile::tempdir().unwrap();
    let cell = Cell::up(dir.path(), &["--memory", "128MiB"]);
    let connected = trefoil_client::Cell::connect(&cell.address).unwrap();
    let mut client = connected.client(Options::default());
    let mut ahead = connected.client(Options {
        clock_offset_ms: AHEAD_MS,
        ..Options::default()
    });
    set(&mut client, KEY, b"1");
    set(&mut client, AHEAD, b"1");
    client.settle(Duration::from_secs(60));
    // The third misses a write, and the first ends.
    let hanging = Hanging::new(cell.pids[2]);
    until(&mut client, 2, CarrierInUse::Down);
    until(&mut ahead, 2, CarrierInUse::Down);
    set(&mut client, KEY, b"2");
    let written = Instant::now();
    set(&mut ahead, AHEAD, b"2");
    drop(hanging);
    until(&mut client, 2, CarrierInUse::Shared);
    cell.kill(0);
    until(&mut client, 0, CarrierInUse::Down);
    // What was written last is at rest.
    std::thread::sleep(Duration::from_secs(1).saturating_sub(written.elapsed()));

    let begun = Instant::now();
    let now_ns = || begun.elapsed().as_nanos() as u64;
    let mut keyspace = cell_keyspace(
        connected.clone(),
        CellOptions {
            spin: Duration::ZERO,
            ..CellOptions::default()
        },
    );
    keyspace.enter(1, now_ns());
    let look = keyspace.get(KEY, Access::Peek, &mut |_| {});
    assert_eq!(look, Err(Halt::Pending));
    keyspace.leave();
    keyspace.poll(now_ns(), &mut |_| {});
    // The survivors have said what they hold; now somebody writes.
    std::thread::sleep(Duration::from_millis(100));
    set(&mut client, KEY, b"3");
    loop {
        assert!(begun.elapsed() < Duration::from_secs(60));
        keyspace.poll(now_ns(), &mut |_| {});
        keyspace.enter(1, now_ns());
        let look = keyspace.get(KEY, Access::Peek, &mut |_| {});
        match look {
            Ok(()) => break keyspace.conclude(),
            Err(Halt::Pending) => {}
            Err(fault) => panic!("{fault:?}"),
        }
        keyspace.leave();
        std::thread::sleep(Duration::from_micros(100));
    }
    keyspace.leave();
    let get = client.get(KEY);
    assert!(
        matches!(&get, Ok(Lookup::Hit(hit)) if hit.value == b"3"),
        "{get:?}"
    );

    // What may be on its way is neither gone nor there.
    let mut patient = Patient::new(keyspace);
    let look = patient.get(AHEAD, Access::Peek, &mut |item| assert!(item.is_none()));
    if written.elapsed() < Duration::from_millis(AHEAD_MS as u64) {
        assert_eq!(look, Err(Fault::Inquorate.into()));
    }
}
