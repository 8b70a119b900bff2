//! The slowest SET while a corpus is loaded, and while the same keys are
//! overwritten, when no index grows: what growing costs those who wait.
//!
//! ```sh
//! cargo run --release -p trefoil-store --example load_slowest -- 10000000
//! ```
//!
//! Three stores, as of a cell of three backends with three copies, in one
//! process: a SET goes to all three, one after the other, as one thread that
//! polls for messages carries them; another thread tends the stores.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome};
use trefoil_layout::{Placement, ShardMap, Version};
use trefoil_region::HugePages;
use trefoil_store::{Now, Regions, Store, StoreConfig};

const BACKENDS: u32 = 3;
const MEMORY_OF_ITEM: u64 = 200;

fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Now::at(since.unwrap_or_default().as_nanos() as u64)
}

fn store(backend: u32, items: u64) -> Store {
    let memory = (64 << 20) + items * MEMORY_OF_ITEM;
    let config = StoreConfig {
        partition_count: 9,
        shards: ShardMap::new(Placement::new(3, BACKENDS), backend),
        memory_limit: memory,
        ..StoreConfig::default()
    };
    let regions = Regions::memfd("load", memory, HugePages::Off).expect("memory");
    Store::new(config, regions).expect("a store")
}

/// Sets every key once; the slowest SETs, the slowest first.
fn pass(stores: &[Store], items: u64, round: u64) -> (Duration, [Duration; 5]) {
    let mut slowest = [Duration::ZERO; 5];
    let begun = Instant::now();
    for n in 0..items {
        let key = n.to_le_bytes();
        let value = [round as u8; 32];
        let before = Instant::now();
        for store in stores {
            let now = now();
            let mutation = Mutation {
                action: Action::Set,
                version: Version::new(now.unix_ns, 7 + round, 0),
                entry: DataEntry {
                    key: &key,
                    value: &value,
                    ..DataEntry::default()
                },
            };
            let outcome = store.mutate(now, &mutation).outcome;
            assert_eq!(outcome, Outcome::Applied, "item {n}");
        }
        let took = before.elapsed();
        if took > slowest[4] {
            slowest[4] = took;
            slowest.sort_unstable_by(|a, b| b.cmp(a));
        }
    }
    (begun.elapsed(), slowest)
}

fn main() {
    let items: u64 = match std::env::args().nth(1).map(|text| text.parse()) {
        None => 1_000_000,
        Some(Ok(items)) => items,
        Some(Err(_)) => {
            eprintln!("usage: load_slowest [ITEMS]");
            std::process::exit(2);
        }
    };
    let stores: Arc<[Store]> = (0..BACKENDS).map(|n| store(n, items)).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let tended = (Arc::clone(&stores), Arc::clone(&stop));
    let tending = std::thread::spawn(move || {
        let (stores, stop) = tended;
        while !stop.load(Ordering::Relaxed) {
            let more = stores
                .iter()
                .fold(false, |more, store| store.maintain(now()).more | more);
            if !more {
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    });
    for (round, what) in [(0, "growing indexes"), (1, "fixed-size indexes")] {
        let (took, slowest) = pass(&stores, items, round);
        let per_set = took.as_nanos() as u64 / items.max(1);
        println!("{what:20} {items} SETs to three stores, {per_set} ns each, slowest {slowest:?}");
    }
    stop.store(true, Ordering::Relaxed);
    let _ = tending.join();
    for store in stores.iter() {
        let stats = store.stats();
        println!(
            "{} items, {} buckets, {} reshapes, {} beside the index, {} evicted",
            stats.items,
            stats.index_buckets,
            stats.counts.index_reshapes,
            stats.side_table_items,
            stats.counts.evicted_capacity + stats.counts.evicted_associativity,
        );
    }
}
