//! An index is replaced in bounded steps: what is between two of them misleads
//! nobody, and no hold of the lock is long.

use crate::common::*;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use trefoil_layout::bucket;
use trefoil_layout::control::{self, IndexWindow};
use trefoil_layout::data::{DataEntry, DataError};
use trefoil_layout::op::{Outcome, Rejection};
use trefoil_layout::{KeyHasher, Version};
use trefoil_region::{SharedWords, WordBuffer};
use trefoil_store::{PolicyKind, Regions, Store, StoreConfig};

/// Slots or headers that one hold of a partition's lock goes over at most: what
/// the module says of a step.
const WORK_MAX: u64 = 1024;

fn key(n: u64) -> [u8; 8] {
    n.to_le_bytes()
}

#[test]
fn no_hold_of_the_lock_goes_over_a_whole_index() {
    for maintained in [false, true] {
        let store = memfd(96 * MIB, 96 * MIB, 1);
        for n in 1..=400_000 {
            assert_eq!(set(&store, &key(n), &n.to_le_bytes(), n), Outcome::Applied);
            if maintained && n % 256 == 0 {
                store.maintain(START);
            }
        }
        store.raise_epoch(0, 7);
        store.set_config_id(9);
        for n in 1..=390_000 {
            assert_eq!(erase(&store, &key(n), 500_000 + n), Outcome::Applied);
        }
        while store.maintain(START).more {}
        let stats = store.stats();
        assert!(stats.counts.index_reshapes > 8, "{stats:?}");
        assert!(
            stats.index_buckets < 10_000,
            "it was shrunk, too: {stats:?}"
        );
        assert_eq!(stats.counts.evicted_associativity, 0);
        let work = store.reshape_work_max();
        assert!(work > 0 && work <= WORK_MAX, "{work}");
        store.check().unwrap();
    }
}

/// The thread that maintains a store may share its core with those who serve: it can
/// leave it after every part, and holds no lock then.
#[test]
fn maintenance_can_be_interrupted_after_every_part() {
    /// Slots that one part copies.
    const PART_SLOTS: u64 = 128;
    /// Parts of one call that have nothing to do with indexes, at most.
    const OTHER_PARTS: u64 = 12;
    let store = memfd(96 * MIB, 96 * MIB, 2);
    for n in 1..=100_000 {
        assert_eq!(set(&store, &key(n), &n.to_le_bytes(), n), Outcome::Applied);
    }
    while store.maintain(START).more {}
    let (mut n, mut parts, mut calls, mut copied) = (100_000, 0, 0, 0);
    let before = store.stats().counts.index_reshapes;
    for _ in 0..40 {
        for _ in 0..5_000 {
            n += 1;
            assert_eq!(set(&store, &key(n), &n.to_le_bytes(), n), Outcome::Applied);
        }
        let index_slots = store.stats().index_buckets * bucket::SLOT_COUNT as u64;
        let mut more = true;
        while more {
            let mut others = 0;
            let done = store.maintain_in_parts(START, &mut || {
                parts += 1;
                // Whoever comes now gets every lock.
                others += 1;
                if others <= 4 || others % 16 == 0 {
                    n += 1;
                    assert_eq!(set(&store, &key(n), &n.to_le_bytes(), n), Outcome::Applied);
                }
            });
            calls += 1;
            // The smaller one of two has a third of their slots at least.
            copied += done.reshaped * index_slots / 3;
            more = done.more;
        }
    }
    assert!(store.stats().counts.index_reshapes >= before + 4);
    assert!(
        parts > calls * OTHER_PARTS + copied / PART_SLOTS / 2,
        "{parts} parts of {calls} calls, {copied} slots"
    );
    assert!((1..=n).all(|n| get(&store, &key(n)).is_some()));
    store.check().unwrap();
}

/// A window that a reader learnt some time ago.
fn window(store: &Store) -> IndexWindow {
    control::index_window(&store.regions().control.words(), 0).unwrap()
}

/// [`one_sided`] by a reader that has not looked at the control region lately.
fn read_in(store: &Store, window: IndexWindow, key: &[u8]) -> OneSided {
    let hash = KeyHasher::default().hash(key);
    let index = store.regions().index.words();
    let home = hash.bucket(window.bucket_count);
    let bucket_at = |number: u64| -> SharedWords<'_> {
        let at = window.offset + number * bucket::BUCKET_LEN as u64;
        index.slice(at, bucket::BUCKET_LEN).unwrap()
    };
    let mut scan = bucket::scan(&bucket_at(home), hash.tag, hash.home_slot());
    let header = scan.header;
    if header.config_id != 1 {
        return OneSided::Retry;
    }
    for far in 1..=u64::from(header.spill) {
        if scan.found.is_some() {
            break;
        }
        scan = bucket::scan(&bucket_at(home + far), hash.tag, hash.home_slot());
        if scan.header.config_id != 1 {
            return OneSided::Retry;
        }
    }
    let Some((_, entry)) = scan.found else {
        return match header.overflowed {
            true => OneSided::Overflow,
            false => OneSided::Miss,
        };
    };
    let data = store.regions().data.words();
    let Some(words) = data.slice(entry.pointer.offset(), entry.pointer.len()) else {
        return OneSided::Retry;
    };
    let mut buffer = WordBuffer::default();
    buffer.fill_from(words);
    match DataEntry::validate(buffer.bytes(), hash.tag, entry.version, key) {
        Ok(found) => OneSided::Hit(entry.version, found.value.to_vec()),
        Err(DataError::Torn) => OneSided::Retry,
        Err(DataError::OtherKey) => OneSided::Miss,
    }
}

/// What stands, as far as the store says by message.
fn held(store: &Store, n: u64) -> Option<(Version, Vec<u8>)> {
    get(store, &key(n))
}

/// Random mutations between single steps: every reader, however old its window,
/// finds what a message would find, or learns that it has to look again.
#[test]
fn readers_of_either_index_are_never_misled_between_two_steps() {
    for (seed, policy) in (1..=6).zip(PolicyKind::ALL.into_iter().cycle()) {
        let config = StoreConfig {
            policy,
            ..config(512 * KIB, 1)
        };
        let store = Store::new(config, Regions::heap(512 * KIB)).unwrap();
        let mut random = Random(seed);
        let mut windows = vec![window(&store)];
        let mut versions: HashMap<u64, u64> = HashMap::new();
        let (mut retries, mut hits, mut misses, mut between) = (0, 0, 0, 0);
        // More keys, then fewer, so that the index grows and shrinks.
        for n in 1..=12_000u64 {
            let (keys, erases) = match n / 3_000 % 2 {
                0 => (4_000, 1),
                _ => (4_000, 6),
            };
            let number = random.below(keys);
            if random.below(8) < erases {
                assert_eq!(erase(&store, &key(number), n), Outcome::Applied);
            } else {
                let value = vec![n as u8; random.below(64) as usize];
                assert_eq!(set(&store, &key(number), &value, n), Outcome::Applied);
            }
            versions.insert(number, n);
            for _ in 0..random.below(3) {
                between += u64::from(store.reshape_one_step(0));
            }
            let now = window(&store);
            if windows.last() != Some(&now) {
                windows.push(now);
            }
            if n % 500 == 0 {
                store.check().unwrap();
            }
            // The key that has just changed, and any other.
            for number in [number, random.below(keys)] {
                let held = held(&store, number);
                let from = windows.len().saturating_sub(2);
                for window in &windows[from..] {
                    match read_in(&store, *window, &key(number)) {
                        OneSided::Hit(version, value) => {
                            hits += 1;
                            assert_eq!(held, Some((version, value)), "{n}: {number}");
                        }
                        OneSided::Miss => {
                            misses += 1;
                            assert_eq!(held, None, "{n}: {number}");
                        }
                        OneSided::Overflow | OneSided::Retry => retries += 1,
                    }
                }
            }
        }
        let reshapes = store.stats().counts.index_reshapes;
        assert!(windows.len() > 4 && reshapes > 4, "{reshapes}");
        assert!(between > 100 && retries > 100, "{between} {retries}");
        assert!(hits > 2_000 && misses > 2_000, "{hits} {misses}");
        while store.reshape_one_step(0) {}
        store.check().unwrap();
    }
}

/// Touches that name slots of the index that is being replaced are not lost.
#[test]
fn an_item_that_was_read_during_a_reshape_stays() {
    let store = memfd(16 * MIB, 16 * MIB, 1);
    let mut n = 0;
    while !store.reshape_one_step(0) {
        n += 1;
        set(&store, &key(n), b"v", n);
    }
    let mut steps = 0;
    while store.stats().counts.index_reshapes == 0 {
        let before = window(&store);
        let slots: Vec<u32> = (0..before.bucket_count as u32 * 15).collect();
        store.touch(0, before.window_id, &slots);
        assert!(store.reshape_one_step(0), "it goes on to its end");
        steps += 1;
    }
    assert!(steps > 5, "{steps}");
    for number in 1..=n {
        assert!(get(&store, &key(number)).is_some());
        let used = store.read(START, &key(number), trefoil_store::Access::Peek, |item| {
            item.unwrap().hit_before
        });
        assert_eq!(used, Ok(true), "{number}");
    }
    while store.reshape_one_step(0) {}
    store.check().unwrap();
}

#[test]
fn a_window_that_the_system_keeps_is_not_used_again() {
    let store = memfd(16 * MIB, 16 * MIB, 1);
    store.regions().index.fail_punches(true);
    for n in 1..=3_000 {
        set(&store, &key(n), b"v", n);
        store.maintain(START);
    }
    let stats = store.stats();
    assert!(stats.counts.index_reshapes > 1, "{stats:?}");
    // What is resident stays on the account.
    store.check().unwrap();
    let object = store.regions().index.object().unwrap();
    assert!(stats.resident.index >= object.resident_len().unwrap());
    store.regions().index.fail_punches(false);
    store.maintain(START);
    store.check().unwrap();
    let stats = store.stats();
    assert_eq!(stats.resident.index, object.resident_len().unwrap());
    for n in 1..=3_000 {
        assert_eq!(get(&store, &key(n)), Some((version(n), b"v".to_vec())));
    }
}

#[test]
fn runs_that_the_system_keeps_stay_on_the_account() {
    let store = memfd(16 * MIB, 16 * MIB, 1);
    store.regions().data.fail_punches(true);
    let value = vec![7; 2 << 20];
    let mut refused = 0;
    for n in 1..=60 {
        // Of a length of its own, so that none takes the place of another.
        let outcome = set(&store, &key(n), &value[n as usize * 8192..], n);
        let fits = outcome == Outcome::Applied;
        assert!(
            fits || outcome == Outcome::Rejected(Rejection::NoMemory),
            "{outcome:?}"
        );
        assert!(fits || n > 5, "the first few fit: {n}");
        refused += u32::from(!fits);
        let object = store.regions().data.object().unwrap();
        let stats = store.stats().resident;
        assert!(stats.runs + stats.pages >= object.resident_len().unwrap());
        assert!(object.resident_len().unwrap() <= 16 * MIB);
    }
    // What cannot be given back is held, so sooner or later nothing more fits.
    assert!(refused > 0);
    store.regions().data.fail_punches(false);
    store.maintain(START);
    for n in 100..=160 {
        assert_eq!(set(&store, &key(n), &value, n), Outcome::Applied);
    }
    store.check().unwrap();
}

/// A store in the moment after its index was replaced, with so many headers of
/// the old one still to be poisoned, which takes many steps; the old window; and
/// how many keys there are.
fn just_replaced() -> (Store, IndexWindow, u64) {
    let store = memfd(64 * MIB, 64 * MIB, 1);
    let mut n = 0;
    loop {
        n += 1;
        assert_eq!(set(&store, &key(n), b"old", n), Outcome::Applied);
        let before = window(&store);
        store.reshape_one_step(0);
        if window(&store) != before && before.bucket_count > 12 * WORK_MAX {
            return (store, before, n);
        }
    }
}

#[test]
fn an_index_that_was_replaced_says_nothing_of_what_has_changed_since() {
    for erases in [false, true] {
        let (store, before, keys) = just_replaced();
        let (mut old, mut told) = (0, 0);
        // Each of these mutations poisons some headers: those of the first keys
        // are poisoned because they change, before the walk comes to them.
        for n in 1..=8 {
            let outcome = match erases {
                false => set(&store, &key(n), b"new", keys + n),
                true => erase(&store, &key(n), keys + n),
            };
            assert_eq!(outcome, Outcome::Applied);
            assert_eq!(read_in(&store, before, &key(n)), OneSided::Retry, "{n}");
            told += 1;
            // Others are still found there.
            let other = (100..200)
                .filter(|n| matches!(read_in(&store, before, &key(*n)), OneSided::Hit(..)));
            old += other.count();
        }
        assert!(told == 8 && old > 100, "the old index is still read: {old}");
    }
}

#[test]
fn no_index_has_the_old_epoch_once_another_is_in_force() {
    let (store, before, keys) = just_replaced();
    store.raise_epoch(0, 9);
    for n in 1..=keys {
        assert_eq!(read_in(&store, before, &key(n)), OneSided::Retry, "{n}");
    }
    while store.reshape_one_step(0) {}
    store.check().unwrap();
}

/// The system may take its time for the memory of a larger index: others get the lock
/// meanwhile, and whatever they do, the account stays right.
#[test]
fn the_system_is_asked_for_an_index_with_no_lock_held() {
    let store = memfd(64 * MIB, 64 * MIB, 1);
    let (mut n, mut asked) = (0, 0);
    while store.stats().counts.index_reshapes < 16 {
        n += 1;
        assert_eq!(set(&store, &key(n), b"before", n), Outcome::Applied);
        store.reshape_one_step_while(0, || {
            (n, asked) = (n + 1, asked + 1);
            assert_eq!(set(&store, &key(n), b"meanwhile", n), Outcome::Applied);
            assert!(!store.reshape_one_step(0), "one at a time");
            store.check().unwrap();
        });
    }
    assert!(asked > 16, "some of them have several parts: {asked}");
    let mut abandon = |meanwhile: &dyn Fn()| {
        let mut is_asked = false;
        while !is_asked {
            n += 1;
            assert_eq!(set(&store, &key(n), b"before", n), Outcome::Applied);
            store.reshape_one_step_while(0, || {
                is_asked = true;
                meanwhile();
                store.check().unwrap();
            });
        }
        while store.reshape_one_step(0) {}
        store.check().unwrap();
    };
    abandon(&|| assert_eq!(store.set_memory_limit(2 * MIB), 2 * MIB));
    store.set_memory_limit(64 * MIB);
    abandon(&|| {
        store.begin_reload().unwrap();
        store.finish_reload().unwrap();
    });
    assert_eq!(store.stats().items, 0, "another corpus");
}

/// Pages go on being populated ahead of need while a large index is replaced: else
/// each writer would wait for the system.
#[test]
fn pages_are_populated_ahead_while_an_index_is_replaced() {
    let store = memfd(512 * MIB, 512 * MIB, 1);
    for n in 1..=200_000 {
        assert_eq!(set(&store, &key(n), b"", n), Outcome::Applied);
    }
    let mut done = store.maintain(START);
    let (mut n, mut most) = (200_000, done.populated);
    while done.reshaped == 0 {
        // Nothing is free and the index is due.
        n += 1;
        assert_eq!(set(&store, &key(n), b"", n), Outcome::Applied);
        while store.stats().resident.pages_free >= MIB {
            n += 1;
            assert_eq!(set(&store, &key(n), &[1; 900], n), Outcome::Applied);
        }
        done = store.maintain(START);
        most = most.max(done.populated);
    }
    // By one call, in the middle of it: each populates a megabyte at its end.
    assert!(most > 3 * MIB, "{most}");
    store.check().unwrap();
}

/// The room of a large value is that of many small ones: one hold of the lock
/// evicts or moves a bounded number of them, and others get the lock between.
#[test]
fn no_hold_of_the_lock_makes_room_without_bound() {
    for partitions in [1, 4] {
        let store = memfd(24 * MIB, 24 * MIB, partitions);
        for n in 1..=250_000 {
            assert_eq!(set(&store, &key(n), &[1; 100], n), Outcome::Applied);
        }
        // Pages that are half empty: they are emptied by moving what is left.
        for n in (1..=250_000).step_by(3) {
            erase(&store, &key(n), 400_000 + n);
        }
        let items = store.stats().items;
        let value = vec![7; 8 << 20];
        assert_eq!(store.missing_for(value.len() + 64), 0);
        assert_eq!(set(&store, b"large", &value, 900_000), Outcome::Applied);
        assert_eq!(get(&store, b"large"), Some((version(900_000), value)));
        let gone = items - store.stats().items;
        let (most, bound) = store.room_work_max();
        assert!(gone > 10 * bound, "{gone}");
        // Entries of 128 bytes in a page of 64 KiB.
        assert!(most <= bound + 512, "{most}");
        store.check().unwrap();
    }
}

/// Whoever sets a value after an index was replaced gives a part of it back, not
/// the whole.
#[test]
fn a_replaced_index_goes_back_a_part_at_a_time() {
    const PART_LEN: u64 = 256 * KIB;
    let store = memfd(64 * MIB, 64 * MIB, 1);
    let (mut before, mut parts) = (store.stats().resident.index, 0);
    for n in 1..=400_000 {
        assert_eq!(set(&store, &key(n), b"", n), Outcome::Applied);
        let now = store.stats().resident.index;
        assert!(now + PART_LEN >= before, "{before} to {now}");
        parts += u64::from(now < before);
        before = now;
    }
    let reshapes = store.stats().counts.index_reshapes;
    assert!(parts > 4 * reshapes, "{parts} parts of {reshapes} indexes");
    store.check().unwrap();
}

/// Each of several writers needs most of the memory at once, and others fill what
/// was made free for it.
#[test]
fn nobody_is_refused_while_another_makes_room() {
    for partitions in [1, 4] {
        let store = memfd(24 * MIB, 24 * MIB, partitions);
        let clock = AtomicU64::new(0);
        let tick = || clock.fetch_add(1, Ordering::Relaxed) + 1;
        let set_now = |key: &[u8], value: &[u8]| loop {
            // What others evict meanwhile raises the bound.
            match set(&store, key, value, tick()) {
                Outcome::Superseded { .. } => {}
                outcome => break assert_eq!(outcome, Outcome::Applied, "{} B", value.len()),
            }
        };
        (0..50_000).for_each(|n| set_now(&key(n), b"filling"));
        std::thread::scope(|scope| {
            for writer in 0..3u8 {
                let set_now = &set_now;
                scope.spawn(move || {
                    for n in 0..12u8 {
                        let len = [12, 9, 1][usize::from(n + writer) % 3] << 20;
                        set_now(&[b'l', writer, n], &vec![n; len]);
                    }
                });
            }
            let set_now = &set_now;
            scope.spawn(move || (0..40_000).for_each(|n| set_now(&key(n), b"small")));
        });
        store.check().unwrap();
    }
}
