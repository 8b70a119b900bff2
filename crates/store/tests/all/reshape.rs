//! Indexes that grow and shrink, headers that are rewritten, corpora that are
//! replaced: nothing is lost and nobody is misled.

use crate::common::*;
use trefoil_layout::bucket;
use trefoil_layout::control;
use trefoil_layout::op::{Outcome, Rejection};
use trefoil_region::WordBuffer;
use trefoil_store::{PolicyKind, Regions, ReloadError, Store, StoreConfig};

fn key(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

fn fill(store: &Store, count: u64) {
    for n in 1..=count {
        assert_eq!(set(store, &key(n), &n.to_le_bytes(), n), Outcome::Applied);
    }
}

fn assert_all(store: &Store, count: u64) {
    for n in 1..=count {
        let found = get(store, &key(n));
        assert_eq!(found, Some((version(n), n.to_le_bytes().to_vec())));
    }
}

#[test]
fn an_index_grows_with_and_without_maintenance() {
    for maintained in [false, true] {
        let store = memfd(64 * MIB, 64 * MIB, 2);
        for n in 1..=100_000 {
            assert_eq!(set(&store, &key(n), &n.to_le_bytes(), n), Outcome::Applied);
            if maintained && n % 64 == 0 {
                store.maintain(START);
            }
        }
        let stats = store.stats();
        assert_eq!(stats.items, 100_000);
        assert!(stats.counts.index_reshapes > 4, "{stats:?}");
        assert_eq!(stats.counts.evicted_associativity, 0);
        if maintained {
            assert!(stats.side_table_items <= 200, "{stats:?}");
        }
        store.check().unwrap();
        assert_all(&store, 100_000);
    }
}

/// A reader asks by message for what stands in the side table, so it must stay
/// the exception also just before an index grows.
#[test]
fn hardly_anything_ends_in_the_side_table() {
    let store = memfd(128 * MIB, 128 * MIB, 1);
    let mut worst = 0.0f64;
    for n in 1..=300_000 {
        assert_eq!(set(&store, &key(n), &n.to_le_bytes(), n), Outcome::Applied);
        if n % 64 == 0 {
            store.maintain(START);
        }
        if n > 50_000 && n % 1_000 == 0 {
            let share = store.stats().side_table_items as f64 / n as f64;
            worst = worst.max(share);
        }
    }
    assert!(worst < 0.0005, "{:.4} %", worst * 100.0);
}

#[test]
fn order_of_eviction_survives_growth() {
    for policy in [PolicyKind::Slru, PolicyKind::Lru] {
        let config = StoreConfig {
            objects_max: Some(5000),
            policy,
            ..config(16 * MIB, 1)
        };
        let store = Store::new(config, Regions::heap(16 * MIB)).unwrap();
        fill(&store, 5000);
        assert!(store.stats().counts.index_reshapes > 0);
        for n in 5001..=7000 {
            assert_eq!(set(&store, &key(n), b"", n), Outcome::Applied);
        }
        // Those that came first went first, the side table's few included.
        let held = (1..=2000).filter(|n| get(&store, &key(*n)).is_some());
        // Whose ages are nearly the same leave in the order of their hashes.
        let held_max = if policy == PolicyKind::Slru { 20 } else { 0 };
        assert!(held.count() <= held_max, "{policy}");
        assert_eq!(store.stats().items, 5000);
    }
}

#[test]
fn an_index_that_is_far_too_large_shrinks() {
    let store = memfd(32 * MIB, 32 * MIB, 1);
    fill(&store, 50_000);
    let before = store.stats();
    for n in 1..=49_000 {
        assert_eq!(erase(&store, &key(n), 100_000 + n), Outcome::Applied);
    }
    while store.maintain(START).more {}
    let after = store.stats();
    assert!(
        after.index_buckets * 4 < before.index_buckets,
        "{before:?} {after:?}"
    );
    assert!(after.resident.index < before.resident.index);
    store.check().unwrap();
    for n in 49_001..=50_000 {
        assert!(get(&store, &key(n)).is_some());
    }
}

#[test]
fn a_crowded_index_spills_overflows_and_recovers() {
    // No maintenance and hardly any buckets: every path of the index is taken.
    for policy in PolicyKind::ALL {
        let config = StoreConfig {
            policy,
            ..config(512 * KIB, 1)
        };
        let store = Store::new(config, Regions::heap(512 * KIB)).unwrap();
        let mut random = Random(11);
        let mut beside = 0;
        for n in 1..=30_000 {
            let key = key(random.below(3000));
            if random.below(3) == 0 {
                assert_eq!(erase(&store, &key, n), Outcome::Applied);
            } else {
                assert_eq!(set(&store, &key, b"v", n), Outcome::Applied);
            }
            beside = beside.max(store.stats().side_table_items);
            if n % 1000 == 0 {
                store.check().unwrap();
            }
        }
        assert!(beside > 0, "the side table was never used");
    }
}

#[test]
fn raising_the_epoch_rewrites_headers_and_windows() {
    let store = heap(MIB, 2);
    fill(&store, 500);
    let control = store.regions().control.words();
    let before = control::index_window(&control, 1).unwrap();
    store.raise_epoch(0, 9);
    store.raise_epoch(0, 3);
    let after = control::index_window(&control, 1).unwrap();
    assert_eq!((after.epoch, after.offset), (9, before.offset));
    assert!(after.window_id > before.window_id);
    let mut buffer = WordBuffer::default();
    assert_eq!(store.lookup(START, &key(1), &mut buffer).epoch, 9);
    store.check().unwrap();
    store.set_config_id(77);
    store.set_config_id(0);
    assert_eq!(control::config_id(&control), 77);
    store.check().unwrap();
    assert_all(&store, 500);
}

#[test]
fn a_revoked_store_is_invalid_to_whoever_maps_it() {
    let store = heap(MIB, 2);
    fill(&store, 100);
    let control = store.regions().control.words();
    control::set_lease_end_ns(&control, 1 << 60);
    store.revoke();
    assert_eq!(control::lease_end_ns(&control), 0);
    let refused = Outcome::Rejected(Rejection::WrongShard);
    assert_eq!(set(&store, b"k", b"v", 1000), refused);
    store.maintain(START);
    store.raise_epoch(0, 50);
    store.set_config_id(5);
    let index = store.regions().index.words();
    for partition in 0..2 {
        let window = control::index_window(&control, partition).unwrap();
        for number in 0..window.bucket_count {
            let words = index.slice(window.offset + number * 512, 512).unwrap();
            assert_eq!(bucket::header(&words).config_id, 0);
        }
    }
}

#[test]
fn a_corpus_is_replaced_as_a_whole() {
    let config = StoreConfig {
        immutable: true,
        ..config(16 * MIB, 2)
    };
    let regions = Regions::memfd("test", 16 * MIB, Default::default()).unwrap();
    let store = Store::new(config, regions).unwrap();
    let load = |n: u64, value: &[u8], generation: u64| {
        let loaded = store.load(START, &entry(&key(n), value), version(generation));
        assert_eq!(loaded.outcome, Outcome::Applied);
    };
    for n in 0..3000 {
        load(n, b"first", 1);
    }
    assert!(matches!(
        store.finish_reload(),
        Err(ReloadError::NotUnderWay)
    ));
    store.begin_reload().unwrap();
    assert!(matches!(store.begin_reload(), Err(ReloadError::UnderWay)));
    for n in 1000..5000 {
        load(n, b"second", 2);
    }
    assert_eq!(get(&store, &key(0)).unwrap().1, b"first");
    assert_eq!(get(&store, &key(1000)).unwrap().1, b"first");
    assert_eq!(get(&store, &key(4000)), None);
    store.check().unwrap();
    store.finish_reload().unwrap();
    assert_eq!(get(&store, &key(0)), None);
    assert_eq!(get(&store, &key(1000)).unwrap().1, b"second");
    assert_eq!(get(&store, &key(4999)).unwrap().1, b"second");
    assert_eq!(store.stats().items, 4000);
    store.check().unwrap();
    store.begin_reload().unwrap();
    load(0, b"third", 3);
    store.abort_reload();
    assert_eq!(get(&store, &key(0)), None);
    store.check().unwrap();
    let shared = store.stats().resident;
    assert!(resident_len(&store) <= shared.pages + shared.runs + shared.index);
}

/// A second corpus that does not fit beside the first is refused, and the first stays
/// whole; so it does while its limit is lowered in the midst of loading.
#[test]
fn nothing_is_evicted_for_a_second_corpus() {
    let config = StoreConfig {
        immutable: true,
        ..config(16 * MIB, 2)
    };
    let regions = Regions::memfd("test", 16 * MIB, Default::default()).unwrap();
    let store = Store::new(config, regions).unwrap();
    let load = |n: u64, generation: u64| {
        let value = [generation as u8; 1000];
        let loaded = store.load(START, &entry(&key(n), &value), version(generation));
        loaded.outcome
    };
    for n in 0..8000 {
        assert_eq!(load(n, 1), Outcome::Applied);
    }
    let is_whole = || {
        let stats = store.stats();
        assert_eq!(stats.items, 8000);
        assert_eq!(
            stats.counts.evicted_capacity + stats.counts.evicted_associativity,
            0
        );
        for n in 0..8000 {
            assert_eq!(get(&store, &key(n)).unwrap().1, [1; 1000], "{n}");
        }
        store.check().unwrap();
    };
    store.begin_reload().unwrap();
    let refused = Outcome::Rejected(Rejection::NoMemory);
    let taken = (0..12_000)
        .take_while(|n| load(*n, 2) == Outcome::Applied)
        .count();
    assert!((1000..9000).contains(&taken), "{taken}");
    assert_eq!(load(taken as u64, 2), refused);
    is_whole();
    store.abort_reload();
    // What is held of both is more than a lower limit allows: that is for the loader to
    // notice.
    store.begin_reload().unwrap();
    for n in 0..1000 {
        assert_eq!(load(n, 2), Outcome::Applied);
    }
    assert!(!store.is_over_limit());
    store.set_memory_limit(9 * MIB);
    for _ in 0..100 {
        store.maintain(START);
    }
    assert!(store.is_over_limit());
    is_whole();
    store.abort_reload();
    for _ in 0..100 {
        store.maintain(START);
    }
    is_whole();
    // Alone a corpus may have all of it.
    store.set_memory_limit(16 * MIB);
    store.begin_reload().unwrap();
    for n in 0..2000 {
        assert_eq!(load(n, 3), Outcome::Applied);
    }
    store.finish_reload().unwrap();
    assert_eq!(store.stats().items, 2000);
    store.check().unwrap();
}

#[test]
fn touches_keep_items_and_nonsense_is_ignored() {
    let config = StoreConfig {
        objects_max: Some(100),
        ..config(MIB, 1)
    };
    let store = Store::new(config, Regions::heap(MIB)).unwrap();
    fill(&store, 100);
    let control = store.regions().control.words();
    let window = control::index_window(&control, 0).unwrap();
    let index = store.regions().index.words();
    let hasher = trefoil_layout::KeyHasher::default();
    let slot_of = |n: u64| {
        let hash = hasher.hash(&key(n));
        let home = hash.bucket(window.bucket_count);
        (home..home + 4).find_map(|number| {
            let words = index.slice(window.offset + number * 512, 512)?;
            let (slot, _) = bucket::scan(&words, hash.tag, hash.home_slot()).found?;
            Some((number * 15) as u32 + slot as u32)
        })
    };
    let kept: Vec<u32> = (1..=10).filter_map(slot_of).collect();
    assert_eq!(kept.len(), 10);
    store.touch(0, window.window_id, &kept);
    let all: Vec<u32> = (11..=100).filter_map(slot_of).collect();
    store.touch(0, window.window_id - 2, &all);
    store.touch(7, window.window_id, &all);
    store.touch(0, window.window_id, &[u32::MAX, 1 << 28, 99_999]);
    for n in 101..=190 {
        assert_eq!(set(&store, &key(n), b"v", n), Outcome::Applied);
    }
    for n in 1..=10 {
        assert!(get(&store, &key(n)).is_some(), "{n} was touched");
    }
    assert_eq!(get(&store, &key(11)), None);
    store.check().unwrap();
}

/// With items as small as their index entries the memory of two indexes is more than all
/// that a partition has to evict.
#[test]
fn in_a_full_store_an_index_does_not_grow_at_any_price() {
    let store = memfd(12 * MIB, 12 * MIB, 2);
    let mut most = 0;
    let mut least_after = u64::MAX;
    for n in 1..=600_000 {
        assert_eq!(set(&store, &key(n), b"", n), Outcome::Applied);
        if n % 64 == 0 {
            store.maintain(START);
            let stats = store.stats();
            most = most.max(stats.items);
            if stats.counts.evicted_capacity > 0 {
                least_after = least_after.min(stats.items);
            }
        }
    }
    assert!(least_after * 4 > most * 3, "{least_after} of {most}");
    store.check().unwrap();
}
