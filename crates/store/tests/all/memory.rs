//! The memory bound, and that nothing is refused while something can go.

use crate::common::*;
use trefoil_layout::op::{Outcome, Rejection};
use trefoil_store::{MutationKind, PolicyKind, Regions, Store, StoreConfig};

fn applied(store: &Store, key: &[u8], value: &[u8], n: u64) {
    assert_eq!(set(store, key, value, n), Outcome::Applied, "mutation {n}");
}

fn maintain_until_quiet(store: &Store) {
    for _ in 0..10_000 {
        if !store.maintain(START).more {
            return;
        }
    }
    panic!("maintenance never ends");
}

#[test]
fn resident_bytes_stay_below_the_limit() {
    let limit = 16 * MIB;
    let store = memfd(limit, limit, 4);
    let value = vec![7; 40_000];
    let mut random = Random(1);
    for n in 1..=60_000 {
        let key = random.below(50_000).to_le_bytes();
        let len = match random.below(100) {
            0 => 20_000 + random.below(20_000),
            1..10 => random.below(10_000),
            _ => random.below(300),
        };
        applied(&store, &key, &value[..len as usize], n);
        if n % 256 == 0 {
            store.maintain(START);
        }
        if n % 1024 == 0 {
            let resident = resident_len(&store);
            let stats = store.stats();
            assert!(resident + stats.resident.private <= limit, "{resident}");
            assert!(stats.resident.total() <= limit, "{stats:?}");
        }
    }
    store.check().unwrap();
    let stats = store.stats();
    assert!(stats.counts.evicted_capacity > 0);
    assert_eq!(stats.counts.of(MutationKind::Set).rejected, 0);
    let shared = stats.resident.pages + stats.resident.index;
    assert!(resident_len(&store) >= shared, "{stats:?}");
    assert!(stats.resident.total() > limit * 9 / 10, "{stats:?}");
}

#[test]
fn evictions_are_told_to_those_who_watch() {
    let limit = 8 * MIB;
    let store = memfd(limit, limit, 2);
    let key_of = |n: u64| format!("key-{n}-{}", "k".repeat(300)).into_bytes();
    let fill = |from: u64| {
        for n in from..from + 3000 {
            applied(&store, &key_of(n), &vec![1; 3000 + (n % 7) as usize], n);
        }
    };
    fill(1);
    let before = store.stats().counts.evicted_capacity;
    assert!(before > 0);
    assert_eq!(store.take_evicted(), (Vec::new(), 0), "nobody watches");
    store.watch_evictions(true);
    fill(3001);
    let (told, lost) = store.take_evicted();
    let evicted = store.stats().counts.evicted_capacity - before;
    assert_eq!((told.len() as u64, lost), (evicted, 0));
    for item in &told {
        // Versions count nanoseconds from a whole second.
        let n = item.version.time_ns % 1_000_000_000;
        assert_eq!(item.key[..], key_of(n)[..250], "{n}");
        assert_eq!(item.key_len, key_of(n).len());
        assert_eq!(item.value_len, 3000 + (n % 7) as usize);
        assert!(get(&store, &key_of(n)).is_none());
    }
    store.watch_evictions(false);
    fill(6001);
    assert_eq!(store.take_evicted(), (Vec::new(), 0));
    // Memory for what nobody takes is bounded.
    store.watch_evictions(true);
    fill(9001);
    fill(12_001);
    let (told, lost) = store.take_evicted();
    assert_eq!(told.len(), 4096);
    assert!(lost > 500, "{lost}");
    store.check().unwrap();
}

/// Fills with values of one size until full, then replays a cyclic-free random
/// key choice and returns the share of hits (a miss is filled).
fn hit_ratio(store: &Store, len: usize, keys: u64, rounds: u64, n: &mut u64, salt: u64) -> f64 {
    let value = vec![1; len];
    let mut random = Random(salt);
    let mut hits = 0;
    for _ in 0..rounds {
        // Skewed: the square of a uniform choice.
        let choice = random.below(keys) * random.below(keys) / keys;
        let key = (choice, salt);
        let key = [key.0.to_le_bytes(), key.1.to_le_bytes()].concat();
        if get(store, &key).is_some() {
            hits += 1;
        } else {
            *n += 1;
            applied(store, &key, &value, *n);
        }
        if random.below(512) == 0 {
            store.maintain(START);
        }
    }
    hits as f64 / rounds as f64
}

#[test]
fn sizes_may_shift_at_full_memory() {
    let limit = 12 * MIB;
    // SLRU and S3-FIFO hold on to what was popular for longer than a phase lasts.
    for (policy, loss_max) in [
        (PolicyKind::Slru, 0.07),
        (PolicyKind::Lru, 0.02),
        (PolicyKind::S3Fifo, 0.03),
    ] {
        let make = || {
            let config = StoreConfig {
                policy,
                ..config(limit, 4)
            };
            let regions = Regions::memfd("test", limit, Default::default()).unwrap();
            Store::new(config, regions).unwrap()
        };
        let mut n = 0u64;
        let measured = |store: &Store, len: usize, salt: u64, n: &mut u64| {
            // As many items as fit more than twice over, warmed up first.
            let keys = 3 * limit / (len as u64 + 100);
            hit_ratio(store, len, keys, 3 * keys, n, salt);
            hit_ratio(store, len, keys, 2 * keys, n, salt)
        };
        let fresh_small = measured(&make(), 100, 3, &mut n);
        let fresh_large = measured(&make(), 4096, 2, &mut n);
        let store = make();
        measured(&store, 100, 1, &mut n);
        let large = measured(&store, 4096, 2, &mut n);
        store.check().unwrap();
        let small = measured(&store, 100, 3, &mut n);
        store.check().unwrap();
        eprintln!(
            "{policy}: 4096 B fresh {fresh_large:.4} shifted {large:.4}, 100 B fresh {fresh_small:.4} shifted {small:.4}"
        );
        assert!(fresh_large - large < loss_max, "{large} {fresh_large}");
        assert!(fresh_small - small < loss_max, "{small} {fresh_small}");
        assert!(store.stats().counts.slab_moves > 0);
        assert_eq!(store.stats().counts.of(MutationKind::Set).rejected, 0);
    }
}

#[test]
fn the_limit_can_move_at_run_time() {
    let (low, high) = (4 * MIB, 64 * MIB);
    let store = memfd(low, high, 4);
    let value = [3; 1000];
    let mut n = 0u64;
    let mut fill = |store: &Store, count: u64| {
        for _ in 0..count {
            n += 1;
            applied(store, &n.to_le_bytes(), &value, n);
            if n.is_multiple_of(128) {
                store.maintain(START);
            }
        }
    };
    fill(&store, 10_000);
    assert!(resident_len(&store) <= low);
    assert_eq!(store.set_memory_limit(high), high);
    fill(&store, 100_000);
    let full = resident_len(&store);
    assert!(full > high * 9 / 10 && full <= high, "{full}");
    store.set_memory_limit(low);
    fill(&store, 1000);
    assert!(
        resident_len(&store) <= full,
        "writers keep to the limit at once"
    );
    maintain_until_quiet(&store);
    let shrunk = resident_len(&store);
    assert!(shrunk <= low, "{shrunk}");
    assert!(store.stats().items > 1000, "{:?}", store.stats());
    store.check().unwrap();
    fill(&store, 10_000);
    assert!(resident_len(&store) <= low);
    assert_eq!(
        store.set_memory_limit(u64::MAX),
        store.regions().memory_max()
    );
    store.check().unwrap();
}

#[test]
fn large_values_take_room_from_every_partition() {
    let limit = 64 * MIB;
    let store = memfd(limit, limit, 8);
    let mut n = 0u64;
    for _ in 0..200_000 {
        n += 1;
        applied(&store, &n.to_le_bytes(), &[1; 200], n);
    }
    let value = vec![9; 16 * MIB as usize];
    for _ in 0..12 {
        n += 1;
        let key = n.to_le_bytes();
        applied(&store, &key, &value, n);
        assert!(get(&store, &key).is_some());
        assert!(resident_len(&store) <= limit);
    }
    assert!(store.stats().runs >= 2, "{:?}", store.stats());
    store.check().unwrap();
    for _ in 0..200_000 {
        n += 1;
        applied(&store, &n.to_le_bytes(), &[1; 200], n);
    }
    assert!(resident_len(&store) <= limit);
    store.check().unwrap();
}

#[test]
fn what_can_never_fit_is_refused() {
    let store = memfd(2 * MIB, 2 * MIB, 2);
    applied(&store, b"k", b"v", 1);
    let refused = Outcome::Rejected(Rejection::NoMemory);
    for len in [2 * MIB, 2 * MIB - 60 * KIB] {
        let value = vec![0; len as usize];
        assert_eq!(set(&store, b"k", &value, 2), refused);
    }
    assert_eq!(
        get(&store, b"k"),
        Some((version(1), b"v".to_vec())),
        "no trace"
    );
    assert_eq!(store.stats().counts.of(MutationKind::Set).no_memory, 2);
    store.check().unwrap();
}

#[test]
fn one_partition_can_fill_the_store_and_the_others_still_write() {
    let limit = MIB;
    let store = heap(limit, 4);
    let mut n = 0u64;
    let mut keys: Vec<Vec<Vec<u8>>> = vec![Vec::new(); 4];
    for number in 0..40_000u32 {
        let key = number.to_le_bytes().to_vec();
        keys[store.floor(&key).unwrap().0].push(key);
    }
    for key in &keys[0] {
        n += 1;
        applied(&store, key, &[1; 300], n);
    }
    for keys in &keys[1..] {
        for len in [10, 500, 4000, 60_000] {
            for key in keys.iter().take(300) {
                n += 1;
                applied(&store, key, &vec![2; len], n);
            }
        }
    }
    store.check().unwrap();
    assert!(store.stats().resident.total() <= limit);
}

#[test]
fn extras_are_on_the_same_account() {
    let limit = 4 * MIB;
    let store = memfd(limit, limit, 2);
    let mut n = 0u64;
    for _ in 0..20_000 {
        n += 1;
        applied(&store, &n.to_le_bytes(), &[1; 300], n);
    }
    assert!(store.charge(MIB), "items make way");
    assert!(resident_len(&store) <= limit - MIB);
    assert!(!store.charge(limit));
    store.release(MIB);
    assert_eq!(store.stats().resident.extra, 0);
    store.check().unwrap();
}

#[test]
fn a_stale_readers_pages_are_found_and_given_back() {
    let limit = 8 * MIB;
    let store = memfd(limit, limit, 1);
    for n in 1..=5000 {
        applied(&store, &(n % 2000u64).to_le_bytes(), &[1; 1000], n);
    }
    let before = resident_len(&store);
    store.set_memory_limit(MIB);
    maintain_until_quiet(&store);
    let low = resident_len(&store);
    assert!(low <= MIB && low < before);
    // Readers that follow old pointers into holes make the system fill them.
    let data = store.regions().data.words();
    for page in 0..(before / 4096) {
        data.atomic((page * 512) as usize)
            .load(std::sync::atomic::Ordering::Relaxed);
    }
    let index = store.regions().index.words();
    for page in 0..64 {
        index
            .atomic(page * 512)
            .load(std::sync::atomic::Ordering::Relaxed);
    }
    assert!(resident_len(&store) > low);
    store.maintain(START);
    assert_eq!(resident_len(&store), low);
    store.check().unwrap();
}

#[test]
fn huge_frames_are_emptied_by_moving() {
    let (limit, frame) = (16 * MIB, 256 * KIB);
    let config = StoreConfig {
        value_len_max: 4 << 20,
        ..config(limit, 3)
    };
    let store = Store::new(config, Regions::heap_in_frames(limit, frame)).unwrap();
    let mut random = Random(3);
    let mut n = 0u64;
    let mut fill = |store: &Store, count: u64, len: u64| {
        for _ in 0..count {
            n += 1;
            applied(
                store,
                &n.to_le_bytes(),
                &vec![1; random.below(len) as usize],
                n,
            );
            let resident = store.stats().resident;
            assert!(
                resident.total() <= store.memory_limit().max(limit),
                "{resident:?}"
            );
            if n.is_multiple_of(512) {
                store.maintain(START);
            }
        }
    };
    fill(&store, 40_000, 1500);
    store.check().unwrap();
    let items = store.stats().items;
    fill(&store, 4, 3 << 20);
    store.check().unwrap();
    assert!(
        store.stats().items > items / 3,
        "large values took their share only"
    );
    fill(&store, 200, 100_000);
    fill(&store, 20_000, 1500);
    store.check().unwrap();
    store.set_memory_limit(limit / 2);
    maintain_until_quiet(&store);
    let stats = store.stats();
    assert!(stats.resident.total() <= limit / 2, "{stats:?}");
    assert!(stats.items > 1000, "{stats:?}");
    assert_eq!(stats.counts.of(MutationKind::Set).rejected, 0);
    store.check().unwrap();
}

#[test]
fn frames_may_be_coarse() {
    // Five frames hold anything at all; the indexes have the others.
    let limit = 12 * MIB;
    let regions = Regions::heap_in_frames(limit, 2 * MIB);
    let store = Store::new(config(limit, 3), regions).unwrap();
    let mut n = 0u64;
    for (count, len) in [(20_000, 100), (5000, 4096), (2000, 40_000), (20_000, 100)] {
        for _ in 0..count {
            n += 1;
            applied(&store, &n.to_le_bytes(), &vec![1; len], n);
            if n.is_multiple_of(64) {
                store.maintain(START);
            }
        }
        store.check().unwrap();
        assert!(store.stats().resident.total() <= limit);
    }
}

/// A limit that is lowered while large values come and go: who takes much pays
/// what is beyond the limit first. Otherwise each takes what others give back for
/// it, and the store stays where it was.
#[test]
fn who_takes_much_pays_what_is_beyond_the_limit_first() {
    for partitions in [1, 4] {
        let store = memfd(64 * MIB, 64 * MIB, partitions);
        let value = vec![1; 3 << 20];
        let mut n = 0u64;
        let mut set_next = |value: &[u8]| {
            n += 1;
            applied(&store, &n.to_le_bytes(), value, n);
        };
        (0..30).for_each(|_| set_next(&value));
        for lowered in [56, 48] {
            assert!(store.stats().resident.total() > lowered * MIB);
            store.set_memory_limit(lowered * MIB);
            set_next(&value);
            let held = store.stats().resident.total();
            assert!(held <= lowered * MIB, "{} KiB of {lowered} MiB", held >> 10);
            store.check().unwrap();
        }
        store.set_memory_limit(40 * MIB);
        assert!(store.charge(2 * MIB));
        assert!(store.stats().resident.total() <= 40 * MIB);
        // A small one does not pay for all.
        store.set_memory_limit(20 * MIB);
        set_next(b"small");
        assert!(store.stats().resident.total() > 30 * MIB);
        store.release(2 * MIB);
        store.check().unwrap();
    }
}
