//! Measures the store by itself: nanoseconds per mutation and per touch, bytes
//! per item, and how much of a small memory mixed sizes can use.
//!
//! `cargo run --release -p trefoil-store --example measure_store [mutations|items|sizes]`

#[path = "../tests/all/common/random.rs"]
mod random;

use random::Random;
use std::time::{Duration, Instant};
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome};
use trefoil_layout::{KeyHasher, Version, bucket, control};
use trefoil_region::HugePages;
use trefoil_store::{Now, PolicyKind, Regions, Store, StoreConfig};

const MIB: u64 = 1 << 20;
const NOW: Now = Now::at(1_700_000_000_000_000_000);

fn store(limit: u64, policy: PolicyKind) -> Store {
    let config = StoreConfig {
        memory_limit: limit,
        policy,
        ..StoreConfig::default()
    };
    let regions = Regions::memfd("measure", limit, HugePages::Off).expect("shared memory");
    Store::new(config, regions).expect("a store")
}

struct Writer {
    issued: u64,
    /// Nanoseconds of every mutation.
    spent: Vec<u32>,
    slowest_maintenance: Duration,
}

impl Writer {
    fn set(&mut self, store: &Store, number: u64, key_len: usize, value: &[u8]) {
        self.issued += 1;
        let mut key = [b'k'; 64];
        key[..8].copy_from_slice(&number.to_le_bytes());
        let mutation = Mutation {
            action: Action::Set,
            version: Version::new(NOW.unix_ns + self.issued, 1, 0),
            entry: DataEntry {
                key: &key[..key_len],
                value,
                ..DataEntry::default()
            },
        };
        let start = Instant::now();
        let outcome = store.mutate(NOW, &mutation).outcome;
        self.spent.push(start.elapsed().as_nanos() as u32);
        assert_eq!(outcome, Outcome::Applied);
        if self.issued.is_multiple_of(4096) {
            let start = Instant::now();
            while store.maintain(NOW).more {}
            self.slowest_maintenance = self.slowest_maintenance.max(start.elapsed());
        }
    }

    /// Median, 99th and 99.9th percentile of `count` mutations, in nanoseconds.
    fn timed(&mut self, count: u64, mut one: impl FnMut(&mut Self)) -> [u32; 3] {
        self.spent.clear();
        for _ in 0..count {
            one(self);
        }
        self.spent.sort_unstable();
        [50.0, 99.0, 99.9].map(|p| self.spent[(self.spent.len() as f64 * p / 100.0) as usize])
    }
}

fn mutations(policy: PolicyKind) {
    let store = store(1024 * MIB, policy);
    let mut writer = Writer {
        issued: 0,
        spent: Vec::new(),
        slowest_maintenance: Duration::ZERO,
    };
    let mut random = Random(1);
    let value = vec![7; 1024];
    let mut next = 0;
    let fill = writer.timed(700_000, |writer| {
        next += 1;
        writer.set(&store, next, 16, &value);
    });
    let over = writer.timed(1_000_000, |writer| {
        writer.set(&store, 1 + random.below(700_000), 16, &value);
    });
    let again = writer.timed(1_000_000, |writer| {
        writer.set(&store, 1 + random.below(100), 16, &value);
    });
    while store.stats().counts.evicted_capacity == 0 {
        next += 1;
        writer.set(&store, next, 16, &value);
    }
    let evict = writer.timed(500_000, |writer| {
        next += 1;
        writer.set(&store, next, 16, &value);
    });
    println!(
        "{policy}: SET 1 KiB p50/p99/p99.9 ns: new {fill:?}, overwrite {over:?}, overwrite of 100 keys {again:?}, new with eviction {evict:?}"
    );
    touches(&store, next);
    let shift = writer.timed(500_000, |writer| {
        next += 1;
        writer.set(&store, next, 16, &value[..100]);
    });
    println!("  shifting to 100 B {shift:?}");
}

fn touches(store: &Store, newest: u64) {
    let hasher = KeyHasher::default();
    let control = store.regions().control.words();
    let index = store.regions().index.words();
    let count = store.partition_count();
    let mut slots = vec![Vec::new(); count];
    for number in newest - 500_000..newest {
        let mut key = [b'k'; 16];
        key[..8].copy_from_slice(&number.to_le_bytes());
        let hash = hasher.hash(&key);
        let partition = hash.partition(0, count);
        let window = control::index_window(&control, partition).expect("a window");
        let home = hash.bucket(window.bucket_count);
        for bucket_number in home..home + 4 {
            let at = window.offset + bucket_number * bucket::BUCKET_LEN as u64;
            let words = index.slice(at, bucket::BUCKET_LEN).expect("a bucket");
            if let Some((slot, _)) = bucket::scan(&words, hash.tag, hash.home_slot()).found {
                slots[partition].push((bucket_number * 15) as u32 + slot as u32);
                break;
            }
        }
    }
    let start = Instant::now();
    let mut total = 0;
    for (partition, slots) in slots.iter().enumerate() {
        let window = control::index_window(&control, partition).expect("a window");
        for batch in slots.chunks(64) {
            store.touch(partition, window.window_id, batch);
            total += batch.len();
        }
    }
    let spent = start.elapsed().as_nanos() as usize;
    println!("  touch: {} ns", spent / total.max(1));
}

fn bytes_per_item() {
    let store = store(2048 * MIB, PolicyKind::Lru);
    let mut writer = Writer {
        issued: 0,
        spent: Vec::new(),
        slowest_maintenance: Duration::ZERO,
    };
    let spent = writer.timed(5_000_000, {
        let mut next = 0;
        let store = &store;
        move |writer| {
            next += 1;
            writer.set(store, next, 36, &[1; 224]);
        }
    });
    println!(
        "slowest maintenance while growing to 5 million: {:?}",
        writer.slowest_maintenance
    );
    let stats = store.stats();
    let per_item = |bytes: u64| bytes as f64 / stats.items as f64;
    println!(
        "5 million items of 36 + 224 B ({spent:?} ns p50/p99/p99.9): pages {:.1}, index {:.1}, private {:.1}, overhead {:.1} B per item; {} side-table items",
        per_item(stats.resident.pages - stats.resident.pages_free),
        per_item(stats.resident.index),
        per_item(stats.resident.private),
        per_item(stats.resident.total()) - 260.0,
        stats.side_table_items,
    );
}

fn mixed_sizes() {
    for limit in [16, 64, 256] {
        let store = store(limit * MIB, PolicyKind::Lru);
        let mut writer = Writer {
            issued: 0,
            spent: Vec::new(),
            slowest_maintenance: Duration::ZERO,
        };
        let mut random = Random(5);
        let value = vec![1; 8000];
        let mut next = 0;
        let spent = writer.timed(limit * 3000, |writer| {
            next += 1;
            let len = random.below(8000) as usize;
            writer.set(&store, next, 16, &value[..len]);
        });
        let stats = store.stats();
        println!(
            "sizes 0..8000 in {limit} MiB: {:.1} % of the limit holds entries, {spent:?} ns p50/p99/p99.9, {} pages moved",
            stats.entry_bytes as f64 * 100.0 / stats.memory_limit as f64,
            stats.counts.slab_moves,
        );
    }
}

fn main() {
    let only = std::env::args().nth(1);
    let wanted = |what: &str| only.as_deref().is_none_or(|only| only == what);
    for policy in PolicyKind::ALL {
        if wanted("mutations") {
            mutations(policy);
        }
    }
    if wanted("items") {
        bytes_per_item();
    }
    if wanted("sizes") {
        mixed_sizes();
    }
}
