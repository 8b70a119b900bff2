//! Atomic updates of a replicated cell whose backends die.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use support::Cell;
use trefoil_gateway::keyspace::{CellKeyspace, CellOptions};
use trefoil_gateway_core::keyspace::{Access, Decision, Fault, Keyspace, NewItem, Updated};

const THREADS: u64 = 20;
const UPDATES: u64 = 1000;
const KEY: &[u8] = b"counter";

fn increment(keyspace: &mut CellKeyspace) -> Result<Updated, Fault> {
    keyspace.update(KEY, &mut |item, scratch| {
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
    })
}

fn value(keyspace: &mut CellKeyspace) -> u64 {
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
            let mut keyspace = CellKeyspace::new(client.clone(), CellOptions::default());
            let endings = &endings;
            scope.spawn(move || {
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
    let value = value(&mut CellKeyspace::new(client, CellOptions::default()));
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
