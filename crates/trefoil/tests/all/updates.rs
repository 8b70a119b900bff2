//! Atomic updates of a replicated cell whose backends die.

use crate::support::Cell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use trefoil_gateway::keyspace::{CellKeyspace, CellOptions, Patient, cell_keyspace};
use trefoil_gateway_core::keyspace::{
    Access, Decision, Fault, Keyspace, NewItem, Ready as _, Updated,
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
