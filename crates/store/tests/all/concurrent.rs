//! One-sided readers on threads while the store changes shape under them: what
//! they hit is always a value that was written for that key, never older than
//! what was acknowledged before they looked, and what stands is never missed.

use crate::common::*;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use trefoil_layout::KeyHasher;
use trefoil_layout::op::Outcome;
use trefoil_region::WordBuffer;
use trefoil_store::Store;

/// Keys that are always present; the writer overwrites them.
const STABLE: u64 = 400;

fn value(n: u64, len: usize) -> Vec<u8> {
    let mut value = n.to_le_bytes().to_vec();
    value.extend((8..len.max(8)).map(|at| (n as usize + at) as u8));
    value
}

fn is_value(value: &[u8], n: u64) -> bool {
    value[..8] == n.to_le_bytes()
        && value[8..]
            .iter()
            .enumerate()
            .all(|(at, byte)| *byte == (n as usize + at + 8) as u8)
}

struct Counts {
    hits: u64,
    retries: u64,
    overflows: u64,
}

fn read(
    store: &Store,
    partition_count: usize,
    acknowledged: &[AtomicU64],
    stop: &AtomicBool,
    seed: u64,
) -> Counts {
    let mut buffer = WordBuffer::default();
    let mut random = Random(seed);
    let hasher = KeyHasher::default();
    let mut counts = Counts {
        hits: 0,
        retries: 0,
        overflows: 0,
    };
    while !stop.load(Ordering::Relaxed) {
        let number = random.below(STABLE);
        let key = number.to_le_bytes();
        let hash = hasher.hash(&key);
        let before = acknowledged[number as usize].load(Ordering::Acquire);
        let mut tries = 0;
        let outcome = loop {
            match one_sided(store, partition_count, hash, &key, &mut buffer) {
                OneSided::Retry => counts.retries += 1,
                other => break other,
            }
            tries += 1;
            assert!(tries < 10_000_000, "a reader never got through");
            std::thread::yield_now();
        };
        match outcome {
            OneSided::Hit(found, bytes) => {
                let n = found.time_ns - START.unix_ns;
                assert!(n >= before, "{number}: {n} is older than {before}");
                assert!(is_value(&bytes, n), "{number}: a wrong value");
                counts.hits += 1;
            }
            OneSided::Overflow => {
                let (found, _) = get(store, &key).expect("the side table knows");
                assert!(found.time_ns - START.unix_ns >= before);
                counts.overflows += 1;
            }
            OneSided::Miss => panic!(
                "{number} was missed; by message: {:?}",
                get(store, &key).map(|found| found.0)
            ),
            OneSided::Retry => unreachable!(),
        }
    }
    counts
}

/// Runs `write` beside two readers.
fn beside_readers(
    store: &Store,
    partition_count: usize,
    write: impl FnOnce(&dyn Fn(u64, u64, usize)),
) {
    let acknowledged: Vec<AtomicU64> = (0..STABLE).map(|_| AtomicU64::new(0)).collect();
    let overwrite = |number: u64, n: u64, len: usize| {
        let stands = n <= STABLE || get(store, &number.to_le_bytes()).is_some();
        assert!(stands, "{number} was evicted before {n}");
        let outcome = set(store, &number.to_le_bytes(), &value(n, len), n);
        assert_eq!(outcome, Outcome::Applied);
        acknowledged[number as usize].store(n, Ordering::Release);
    };
    for number in 0..STABLE {
        overwrite(number, number + 1, 40);
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let readers: Vec<_> = (0..2)
            .map(|seed| {
                let (acknowledged, stop) = (&acknowledged[..], &stop);
                scope.spawn(move || read(store, partition_count, acknowledged, stop, seed + 1))
            })
            .collect();
        write(&overwrite);
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            let counts = reader.join().unwrap();
            assert!(counts.hits > 0);
            eprintln!(
                "{} hits, {} retries, {} overflows",
                counts.hits, counts.retries, counts.overflows
            );
        }
    });
    store.check().unwrap();
}

#[test]
fn readers_beside_overwriting_and_growth() {
    let store = memfd(64 * MIB, 64 * MIB, 2);
    beside_readers(&store, 2, |overwrite| {
        let mut random = Random(5);
        for n in 1000..120_000u64 {
            let len = 8 + random.below(600) as usize;
            overwrite(random.below(STABLE), n, len);
            let fresh = (1 << 32 | n).to_le_bytes();
            assert_eq!(set(&store, &fresh, b"filler", n), Outcome::Applied);
            if n % 16 == 0 {
                store.maintain(START);
            }
        }
        assert!(store.stats().counts.index_reshapes > 0);
    });
}

#[test]
fn readers_beside_compaction_and_shrinking() {
    let store = memfd(16 * MIB, 16 * MIB, 2);
    beside_readers(&store, 2, |overwrite| {
        let mut random = Random(9);
        let filler = vec![1; 8000];
        for n in 1000..60_000u64 {
            // The stable keys stay recently used, so eviction spares them.
            let number = n % STABLE;
            overwrite(number, n, 8 + random.below(300) as usize);
            let phase = n / 10_000 % 2;
            let len = if phase == 0 {
                random.below(200)
            } else {
                1000 + random.below(7000)
            };
            let fresh = (1 << 32 | n).to_le_bytes();
            let outcome = set(&store, &fresh, &filler[..len as usize], n);
            assert_eq!(outcome, Outcome::Applied);
            if n % 5000 == 0 {
                let low = n / 5000 % 2 == 0;
                store.set_memory_limit(if low { 8 * MIB } else { 16 * MIB });
            }
            if n % 64 == 0 {
                store.maintain(START);
            }
        }
        assert!(store.stats().counts.slab_moves > 0);
    });
}

#[test]
fn writers_of_all_partitions_at_once() {
    let limit = 8 * MIB;
    let store = memfd(limit, limit, 4);
    std::thread::scope(|scope| {
        for writer in 0..3u64 {
            let store = &store;
            scope.spawn(move || {
                let mut random = Random(writer + 1);
                let value = vec![1; 30_000];
                for n in 1..=20_000u64 {
                    let key = random.below(20_000).to_le_bytes();
                    let len = if random.below(50) == 0 {
                        25_000
                    } else {
                        random.below(900)
                    };
                    // Versions interleave: some are superseded, none refused.
                    let outcome = set(store, &key, &value[..len as usize], n);
                    assert!(!matches!(outcome, Outcome::Rejected(_)), "{outcome:?}");
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..2000 {
                store.maintain(START);
                std::thread::yield_now();
            }
        });
    });
    store.check().unwrap();
    assert!(resident_len(&store) <= limit);
}
