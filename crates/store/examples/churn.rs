//! Where every byte of a full and churning store is: fills it with two and a
//! half times what it can hold, by skewed look-aside requests with deletes, and
//! prints bytes per item by what they are for.
//!
//! `cargo run --release -p trefoil-store --example churn [MIB [POLICY [VALUES [PARTITIONS]]]]`
//!
//! *data* is what entries take beyond keys and values, *slots* what free
//! slots take, *slack* what their pages have beyond both.
//!
//! With `shift` for VALUES: the hit ratio where lengths shift from 100 B to 4 KiB
//! and back, beside that of a fresh store.

#[path = "../tests/all/common/random.rs"]
mod random;

use random::Random;
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Found, Mutation, Outcome, Rejection};
use trefoil_region::{HugePages, WordBuffer};
use trefoil_store::{Now, PolicyKind, Regions, Store, StoreConfig};

const KEY_LEN: usize = 16;
/// Keys, as a multiple of the items that fit.
const CORPUS_FACTOR: f64 = 2.5;
/// Requests, as a multiple of the keys.
const TURNS: u64 = 3;
const START_NS: u64 = 1_700_000_000_000_000_000;

/// Lengths of values, always the same one for a key.
#[derive(Clone, Copy)]
enum Lens {
    Fixed(usize),
    /// Uniform in the logarithm.
    Spread(usize, usize),
    /// Normal in the logarithm around a mean, as in `trefoil bench churn`: with a
    /// deviation of one half, and up to eight means.
    Around(usize),
}

impl Lens {
    fn of(self, key: u64) -> usize {
        match self {
            Lens::Fixed(len) => len,
            Lens::Spread(from, to) => {
                let mut random = Random(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
                random.next();
                let ratio = (to as f64 / from as f64).powf(random.unit());
                (from as f64 * ratio) as usize
            }
            Lens::Around(mean) => {
                let mut random = Random(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
                random.next();
                let normal = (0..12).map(|_| random.unit()).sum::<f64>() - 6.0;
                let len = mean as f64 * (0.5 * normal - 0.125).exp();
                (len as usize).clamp(1, 8 * mean)
            }
        }
    }

    fn name(self) -> String {
        match self {
            Lens::Fixed(len) => format!("{len}"),
            Lens::Spread(from, to) => format!("{from}-{to}"),
            Lens::Around(mean) => format!("~{mean}"),
        }
    }

    fn mean(self) -> f64 {
        let sum: usize = (1..=10_000).map(|key| self.of(key)).sum();
        sum as f64 / 10_000.0
    }
}

fn main() {
    let mut args = std::env::args().skip(1);
    let mib: u64 = args.next().map_or(64, |mib| mib.parse().expect("MiB"));
    let policy: PolicyKind = args.next().map_or(PolicyKind::default(), |name| {
        name.parse().expect("a policy")
    });
    let only = args.next();
    let partitions = args.next().map(|count| count.parse().expect("partitions"));
    let partitions = partitions.unwrap_or(StoreConfig::default().partition_count);
    if only.as_deref() == Some("shift") {
        return shift(mib << 20, policy);
    }
    println!(
        "{:>14} {:>8} | {:>7} {:>7} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} {:>6} | {:>6} {:>6} {:>6} {:>5} {:>6} {:>7} {:>8}",
        "values",
        "items",
        "B/item",
        "beyond",
        "data",
        "slots",
        "slack",
        "index",
        "priv",
        "free",
        "unused",
        "load",
        "hit",
        "assoc",
        "side",
        "refuse",
        "reshape",
        "moves"
    );
    let cases = [
        Lens::Fixed(100),
        Lens::Fixed(300),
        Lens::Fixed(1000),
        Lens::Fixed(2000),
        Lens::Fixed(5000),
        Lens::Around(130),
        Lens::Around(1000),
        Lens::Spread(50, 1000),
        Lens::Spread(50, 8000),
        Lens::Spread(20_000, 2_000_000),
    ];
    for lens in cases {
        if only.as_ref().is_none_or(|only| *only == lens.name()) {
            run(mib << 20, lens, policy, partitions);
        }
    }
}

fn run(limit: u64, lens: Lens, policy: PolicyKind, partition_count: usize) {
    let config = StoreConfig {
        partition_count,
        memory_limit: limit,
        policy,
        ..StoreConfig::default()
    };
    let regions = Regions::memfd("churn", limit, HugePages::Off).expect("shared memory");
    let store = Store::new(config, regions).expect("a store");
    let keys = (limit as f64 * CORPUS_FACTOR / (lens.mean() + 100.0)) as u64;
    let mut random = Random(88_172_645_463_325_252);
    let mut into = WordBuffer::default();
    let value = vec![7u8; 4 << 20];
    let (mut hits, mut lookups, mut refused, mut payload) = (0u64, 0u64, 0u64, 0u64);
    let mut now = Now::at(START_NS);
    let requests = keys * TURNS;
    for at in 0..requests {
        now.unix_ns += 1000;
        if at % 256 == 0 {
            let _ = (0..16).find(|_| !store.maintain(now).more);
        }
        // Zipf's law with an exponent of 1; every key once at first.
        let rank = ((keys as f64).powf(random.unit()) as u64).min(keys);
        let number = if at < keys { at + 1 } else { rank };
        let mut key = [b'k'; KEY_LEN];
        key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        let mutation = |action, value| Mutation {
            action,
            version: Version::new(now.unix_ns, 1, 0),
            entry: DataEntry {
                key: &key,
                value,
                ..DataEntry::default()
            },
        };
        let value = &value[..lens.of(number)];
        let mut set = || {
            let outcome = store.mutate(now, &mutation(Action::Set, value)).outcome;
            refused += u64::from(outcome == Outcome::Rejected(Rejection::NoMemory));
        };
        let dice = random.next() % 100;
        if at < keys || dice < 10 {
            set();
        } else if dice < 15 {
            store.mutate(now, &mutation(Action::Erase, &[]));
        } else {
            let found = store.lookup(now, &key, &mut into).found;
            let hit = matches!(found, Found::Present { .. });
            if !hit {
                set();
            }
            if at > requests / 2 {
                lookups += 1;
                hits += u64::from(hit);
            }
        }
    }
    for number in 1..=keys {
        let mut key = [b'k'; KEY_LEN];
        key[..8].copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        if matches!(
            store.lookup(now, &key, &mut into).found,
            Found::Present { .. }
        ) {
            payload += (KEY_LEN + lens.of(number)) as u64;
        }
    }
    let stats = store.stats();
    let items = stats.items as f64;
    let per = |bytes: u64| bytes as f64 / items;
    let resident = stats.resident;
    let total = resident.pages + resident.runs + resident.index + resident.private + resident.extra;
    println!(
        "{:>14} {:>8} | {:>7.1} {:>7.1} {:>6.1} {:>6.1} {:>6.1} {:>6.1} {:>6.1} {:>6.2} {:>6.2} | {:>6.3} {:>6.2} {:>6} {:>5} {:>6} {:>7} {:>8}",
        lens.name(),
        stats.items,
        per(total),
        per(total) - per(payload),
        per(stats.entry_bytes) - per(payload),
        per(stats.free_slot_bytes),
        per(resident.pages + resident.runs - resident.pages_free)
            - per(stats.entry_bytes + stats.free_slot_bytes),
        per(resident.index),
        per(resident.private),
        per(resident.pages_free),
        per(store.memory_limit().saturating_sub(total)),
        items / (stats.index_buckets * 15) as f64,
        hits as f64 * 100.0 / lookups as f64,
        stats.counts.evicted_associativity,
        stats.side_table_items,
        refused,
        stats.counts.index_reshapes,
        stats.counts.entries_moved,
    );
}

/// Keys of a phase of [`shift`], its requests, and the exponent of Zipf's law.
const SHIFT_KEYS: u64 = 240_000;
const SHIFT_REQUESTS: u64 = 2_000_000;
const SHIFT_THETA: f64 = 0.9;

fn shift(limit: u64, policy: PolicyKind) {
    let new = || {
        let config = StoreConfig {
            memory_limit: limit,
            policy,
            ..StoreConfig::default()
        };
        let regions = Regions::memfd("shift", limit, HugePages::Off).expect("shared memory");
        Store::new(config, regions).expect("a store")
    };
    let store = new();
    for (phase, len) in (0u64..).zip([100, 4096, 100]) {
        let shifted = shift_phase(&store, phase, len);
        let fresh = shift_phase(&new(), phase, len);
        println!(
            "{policy:>7} {len:>5} B: hit {shifted:.2} %, fresh {fresh:.2} %, loss {:+.2}",
            fresh - shifted
        );
    }
}

/// Hits per lookup of the second half, in percent.
fn shift_phase(store: &Store, phase: u64, len: usize) -> f64 {
    let mut random = Random(88_172_645_463_325_252 + phase);
    let mut into = WordBuffer::default();
    let value = vec![7u8; len];
    let mut hits = 0;
    let most = (SHIFT_KEYS as f64).powf(1.0 - SHIFT_THETA) - 1.0;
    for at in 0..SHIFT_REQUESTS {
        let now = Now::at(START_NS + (phase * SHIFT_REQUESTS + at) * 1000);
        if at % 256 == 0 {
            let _ = (0..16).find(|_| !store.maintain(now).more);
        }
        let rank = (1.0 + random.unit() * most).powf(1.0 / (1.0 - SHIFT_THETA)) as u64;
        let mut key = [b'k' + phase as u8; KEY_LEN];
        key[..8].copy_from_slice(&rank.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        let found = store.lookup(now, &key, &mut into).found;
        if matches!(found, Found::Present { .. }) {
            hits += u64::from(at >= SHIFT_REQUESTS / 2);
            continue;
        }
        let mutation = Mutation {
            action: Action::Set,
            version: Version::new(now.unix_ns, 1, 0),
            entry: DataEntry {
                key: &key,
                value: &value,
                ..DataEntry::default()
            },
        };
        store.mutate(now, &mutation);
    }
    hits as f64 * 100.0 / (SHIFT_REQUESTS / 2) as f64
}
