//! Shards: which keys they hold, their epochs, their recovery.

use crate::common::*;
use std::cell::Cell;
use std::collections::HashMap;
use trefoil_layout::bucket::{self, BUCKET_LEN};
use trefoil_layout::control;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Expected, Found, Mutation, Outcome, Rejection};
use trefoil_layout::{KeyHash, KeyHasher, Placement, ShardMap, Version, epoch};
use trefoil_region::WordBuffer;
use trefoil_store::{Exported, PLACES, Position, Recency, Regions, Store, StoreConfig, StoreError};

const BACKENDS: u32 = 5;
const SUB_COUNT: usize = 2;

fn store(backend: u32) -> Store {
    store_with(backend, 1024)
}

fn store_with(backend: u32, tombstone_count_max: usize) -> Store {
    let config = StoreConfig {
        shards: ShardMap::new(Placement::new(3, BACKENDS), backend),
        tombstone_count_max,
        ..config(1024 * KIB, 3 * SUB_COUNT)
    };
    Store::new(config, Regions::heap(1024 * KIB)).unwrap()
}

fn key(number: u32) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

fn hash(number: u32) -> KeyHash {
    KeyHasher::default().hash(&key(number))
}

/// The number of a shard at backend 2 that this key belongs to.
fn local(number: u32) -> Option<usize> {
    ShardMap::new(Placement::new(3, BACKENDS), 2).local(hash(number))
}

fn keys_of(shard: usize) -> impl Iterator<Item = u32> {
    (0..).filter(move |number| local(*number) == Some(shard))
}

fn mutation<'a>(action: Action, key: &'a [u8], value: &'a [u8], n: u64) -> Mutation<'a> {
    Mutation {
        action,
        version: version(n),
        entry: entry(key, value),
    }
}

fn ask(store: &Store, number: u32) -> (u32, Result<bool, Rejection>) {
    let mut buffer = WordBuffer::default();
    let answer = store.lookup(START, &key(number), &mut buffer);
    let found = match answer.found {
        Found::Present { .. } => Ok(true),
        Found::Absent => Ok(false),
        Found::Rejected(rejection) => Err(rejection),
    };
    (answer.epoch, found)
}

#[test]
fn a_key_of_another_backend_is_refused() {
    let store = store(2);
    let mut refused = 0;
    for number in 0..200 {
        let outcome = set(&store, &key(number), b"v", 5);
        if local(number).is_some() {
            assert_eq!(outcome, Outcome::Applied);
            assert_eq!(ask(&store, number).1, Ok(true));
        } else {
            let wrong = Rejection::WrongShard;
            assert_eq!(outcome, Outcome::Rejected(wrong));
            assert_eq!(ask(&store, number), (epoch::NONE, Err(wrong)));
            assert_eq!(store.floor(&key(number)), None);
            refused += 1;
        }
    }
    // Two of five backends do not hold a key.
    assert!((50..110).contains(&refused), "{refused}");
    assert_eq!(store.check(), Ok(()));
}

#[test]
fn partitions_are_the_same_number_for_each_shard() {
    let config = StoreConfig {
        shards: ShardMap::new(Placement::new(3, 3), 0),
        ..config(1024 * KIB, 8)
    };
    let error = Store::new(config, Regions::heap(1024 * KIB)).unwrap_err();
    assert!(
        matches!(error, StoreError::PartitionsOfShards { .. }),
        "{error}"
    );
}

#[test]
fn a_partition_holds_keys_of_one_shard_at_the_place_that_clients_compute() {
    let store = store(2);
    for number in 0..300 {
        if let Some(place) = local(number) {
            let expected = hash(number).partition(place, SUB_COUNT);
            assert_eq!(store.floor(&key(number)).unwrap().0, expected);
        }
    }
    let shape = control::shape(&store.regions().control.words()).unwrap();
    assert_eq!((shape.shard_count, shape.sub_count()), (3, SUB_COUNT));
}

/// Epoch and recovering flag of every bucket, and epoch of every window.
fn stamps(store: &Store, shard: usize) -> Vec<(u32, bool)> {
    let mut stamps = Vec::new();
    let words = store.regions().control.words();
    for partition in shard * SUB_COUNT..(shard + 1) * SUB_COUNT {
        let window = control::index_window(&words, partition).unwrap();
        let index = store.regions().index.words();
        for bucket in 0..window.bucket_count {
            let at = window.offset + bucket * BUCKET_LEN as u64;
            let header = bucket::header(&index.slice(at, BUCKET_LEN).unwrap());
            assert_eq!(header.epoch, window.epoch);
            stamps.push((header.epoch, header.recovering));
        }
    }
    stamps.dedup();
    stamps
}

#[test]
fn epochs_are_of_one_shard_and_only_grow() {
    let store = store(2);
    let numbers: Vec<u32> = (0..3).map(|shard| keys_of(shard).next().unwrap()).collect();
    store.raise_epoch(1, 40);
    store.raise_epoch(1, 7);
    store.raise_epoch(3, 50);
    for (shard, number) in numbers.into_iter().enumerate() {
        let expected = if shard == 1 { 40 } else { epoch::FIRST };
        assert_eq!(store.epoch(shard), expected);
        assert_eq!(stamps(&store, shard), [(expected, false)]);
        assert_eq!(ask(&store, number).0, expected);
        let ack = store.mutate(START, &mutation(Action::Set, &key(number), b"v", 5));
        assert_eq!(ack.epoch, expected);
    }
    assert_eq!(store.check(), Ok(()));
}

#[test]
fn a_recovering_shard_gives_no_vote_and_refuses_mutations() {
    let store = store(2);
    let (filled, other) = (keys_of(1).next().unwrap(), keys_of(2).next().unwrap());
    set(&store, &key(filled), b"before", 3);
    store.set_recovering(1, true);
    assert!(store.is_recovering(1) && !store.is_recovering(2));
    assert_eq!(stamps(&store, 1), [(epoch::FIRST, true)]);
    let recovering = Rejection::Recovering;
    assert_eq!(ask(&store, filled).1, Err(recovering));
    let refused = Outcome::Rejected(recovering);
    assert_eq!(
        cas(&store, &key(filled), b"v", Expected::Version(version(3)), 4),
        refused
    );
    let read = store.read(START, &key(filled), trefoil_store::Access::Peek, |item| {
        item.is_some()
    });
    assert_eq!(read, Err(recovering));
    // Recovery itself gets in.
    let ack = store.import(
        START,
        &mutation(Action::Set, &key(filled), b"copied", 4),
        Recency::default(),
    );
    assert_eq!(ack.outcome, Outcome::Applied);
    assert_eq!(set(&store, &key(other), b"v", 5), Outcome::Applied);
    store.set_recovering(1, false);
    assert_eq!(
        get(&store, &key(filled)),
        Some((version(4), b"copied".to_vec()))
    );
    assert_eq!(store.check(), Ok(()));
}

#[test]
fn what_is_written_while_a_shard_recovers_is_kept_and_not_acknowledged() {
    let store = store(2);
    let refused = Outcome::Rejected(Rejection::Recovering);
    let numbers: Vec<u32> = keys_of(1).take(5).collect();
    let keys = [0, 1, 2, 3, 4].map(|at| key(numbers[at]));
    let [written, late, erased, old, early] = &keys;
    store.set_recovering(1, true);
    // What it must not undo is not known yet.
    assert_eq!(set(&store, early, b"early", 99), refused);
    store.keep_writes(1, version(8));
    // In any order with what recovery brings, which may be older than the floor.
    assert_eq!(set(&store, written, b"new", 9), refused);
    let import = |key: &[u8], n| {
        let mutation = mutation(Action::Set, key, b"copied", n);
        store.import(START, &mutation, Recency::default()).outcome
    };
    let bound = version(9);
    assert_eq!(import(written, 5), Outcome::Superseded { bound });
    assert_eq!(import(late, 5), Outcome::Applied);
    assert_eq!(set(&store, late, b"older", 3), refused);
    assert_eq!(import(erased, 5), Outcome::Applied);
    assert_eq!(erase(&store, erased, 9), refused);
    assert_eq!(set(&store, old, b"below the floor", 7), refused);
    store.set_recovering(1, false);
    let value = |key: &[u8]| get(&store, key).map(|(_, value)| value);
    assert_eq!(value(written), Some(b"new".to_vec()));
    assert_eq!(value(late), Some(b"copied".to_vec()));
    assert_eq!(
        [erased, old, early].map(|key| value(key)),
        [None, None, None]
    );
    assert_eq!(store.check(), Ok(()));
}

#[test]
fn a_floor_is_raised_for_one_shard() {
    let store = store(2);
    store.raise_floor(0, version(50));
    store.raise_floor(0, version(20));
    for shard in 0..3 {
        let key = key(keys_of(shard).next().unwrap());
        let outcome = set(&store, &key, b"v", 49);
        let bound = version(50);
        match shard {
            0 => assert_eq!(outcome, Outcome::Superseded { bound }),
            _ => assert_eq!(outcome, Outcome::Applied),
        }
    }
}

#[test]
fn what_a_recovering_shard_evicts_keeps_nothing_else_out() {
    // Small: most of it is evicted, and raises the floor.
    let store = store(2);
    store.set_recovering(1, true);
    let value = [7; 1500];
    let numbers: Vec<u32> = keys_of(1).take(2000).collect();
    let mut outcomes = HashMap::new();
    for (at, number) in numbers.iter().enumerate() {
        // The newest ones first.
        let n = 10_000 - at as u64;
        let key = key(*number);
        let ack = store.import(
            START,
            &mutation(Action::Set, &key, &value, n),
            Recency::default(),
        );
        *outcomes.entry(format!("{:?}", ack.outcome)).or_insert(0) += 1;
    }
    assert_eq!(outcomes, HashMap::from([("Applied".to_owned(), 2000)]));
    let stats = store.stats();
    assert!(stats.counts.evicted_capacity > 500, "{:?}", stats.counts);
    store.set_recovering(1, false);
    // From now on it holds: what was evicted is not stored again in an older form.
    let newest = version(10_000);
    let evicted = numbers.iter().filter(|n| get(&store, &key(**n)).is_none());
    for number in evicted {
        let outcome = set(&store, &key(*number), b"older", 1);
        assert!(matches!(outcome, Outcome::Superseded { bound } if bound <= newest));
    }
    assert_eq!(store.check(), Ok(()));
}

/// What an export in pages of `count` tells, by key.
fn export(store: &Store, shard: usize, count: usize) -> HashMap<Vec<u8>, (Version, Vec<u8>)> {
    let mut values = HashMap::new();
    let mut from = PLACES.start;
    while from < PLACES.end {
        let places = from..PLACES.end;
        let mut page = Vec::new();
        from = store
            .export(LATER, shard, places, count, &mut |exported| {
                let Exported { hash, item, .. } = exported;
                let mut entry = Vec::new();
                item.append_entry(&mut entry);
                let entry = DataEntry::decode(&entry).expect("an entry as it was written");
                let mut key = Vec::new();
                item.append_key(&mut key);
                assert_eq!(key, entry.key);
                page.push((hash, key, (item.version, entry.value.to_vec())));
                1
            })
            .expect("nobody revokes it");
        // What lies behind comes again.
        page.retain(|(hash, ..)| Position::place_of(*hash) < from);
        for (_, key, value) in page {
            assert_eq!(values.insert(key, value), None, "told twice");
        }
    }
    values
}

const LATER: trefoil_store::Now = trefoil_store::Now::at(START.unix_ns + 60_000_000_000);

#[test]
fn an_export_tells_every_value_of_one_shard_and_can_be_imported() {
    let from = store_with(2, 4);
    let numbers: Vec<u32> = keys_of(1).take(300).collect();
    for number in (0..3).flat_map(|shard| keys_of(shard).take(300)) {
        let value = format!("value {number}");
        set(&from, &key(number), value.as_bytes(), 10);
    }
    for number in &numbers[..20] {
        erase(&from, &key(*number), 20);
    }
    // One that is expired by the time of the export.
    let expired = key(numbers[30]);
    let action = Action::Set;
    let mutation = Mutation {
        action,
        version: version(11),
        entry: DataEntry {
            key: &expired,
            value: b"short",
            expiry_ms: START.unix_ms() + 1,
            ..DataEntry::default()
        },
    };
    assert_eq!(from.mutate(START, &mutation).outcome, Outcome::Applied);
    let known = export(&from, 1, 7);
    assert_eq!(known, export(&from, 1, usize::MAX));
    assert_eq!(known.len(), 279);

    // Backend 1 holds the same shard, under another number of its own.
    let into = store(1);
    let shard = ShardMap::new(Placement::new(3, BACKENDS), 1)
        .local(hash(numbers[0]))
        .unwrap();
    assert_ne!(shard, 1);
    into.set_recovering(shard, true);
    into.keep_writes(shard, from.newest());
    into.reserve(shard, from.bucket_count(1));
    for (key, (version, value)) in &known {
        let mutation = Mutation {
            action,
            version: *version,
            entry: entry(key, value),
        };
        assert_eq!(
            into.import(LATER, &mutation, Recency::default()).outcome,
            Outcome::Applied
        );
    }
    into.set_recovering(shard, false);
    assert_eq!(export(&into, shard, 50), known);
    assert_eq!(into.floor(&key(numbers[0])).unwrap().1, from.newest());
    assert_eq!(into.check(), Ok(()));
}

/// Whoever took an export of nothing for all there is would remove what it holds.
#[test]
fn a_store_that_was_revoked_tells_nothing_and_not_that_there_is_nothing() {
    let store = store_with(2, 4);
    for number in keys_of(0).take(50) {
        assert_eq!(set(&store, &key(number), b"v", 5), Outcome::Applied);
    }
    let told = Cell::new(0);
    let mut each = |_: Exported<'_>| {
        told.set(told.get() + 1);
        1
    };
    let whole = store.export(LATER, 0, PLACES, usize::MAX, &mut each);
    assert_eq!((whole, told.get()), (Some(PLACES.end), 50));
    // In the midst of it: what has been told does not count either.
    let cut = std::thread::scope(|scope| {
        let mut revoker = None;
        store.export(LATER, 0, PLACES, usize::MAX, &mut |_| {
            revoker.get_or_insert_with(|| scope.spawn(|| store.revoke()));
            while !store.is_revoked() {
                std::thread::yield_now();
            }
            1
        })
    });
    assert_eq!(cut, None);
    for places in [PLACES, 0..0, PLACES.end..PLACES.end] {
        assert_eq!(store.export(LATER, 0, places, 1, &mut each), None);
    }
    assert_eq!(told.get(), 50);
    let hash = store.config().hasher.hash(&key(keys_of(0).next().unwrap()));
    let state = store.key_state(LATER, hash).unwrap();
    assert_eq!(state.epoch, trefoil_layout::epoch::NONE);
}

/// All that an export in four parts tells, by key.
fn in_parts(store: &Store, shard: usize) -> usize {
    let mut told = std::collections::HashSet::new();
    let part = PLACES.end / 4;
    for number in 0..4 {
        let (mut from, until) = (number * part, (number + 1) * part);
        while from < until {
            let next = store.export(START, shard, from..until, 512 << 10, &mut |exported| {
                told.insert((exported.hash.place, exported.hash.tag));
                exported.item.entry_len
            });
            from = next.expect("nobody revokes it");
        }
    }
    told.len()
}

#[test]
fn an_export_misses_nothing_while_an_index_is_replaced() {
    let store = store_with(2, 1024);
    let mut count = [0usize; 3];
    let mut looks = 0;
    for number in 0..6_000u32 {
        let Some(shard) = local(number) else { continue };
        assert_eq!(set(&store, &key(number), b"v", 5), Outcome::Applied);
        count[shard] += 1;
        if number % 97 != 0 {
            continue;
        }
        store.maintain_in_parts(START, &mut || {
            looks += 1;
            for (shard, count) in count.iter().enumerate() {
                assert_eq!(
                    in_parts(&store, shard),
                    *count,
                    "after {number}, look {looks}"
                );
            }
        });
    }
    assert!(looks > 100);
    assert!(
        store.stats().counts.index_reshapes > 3,
        "{:?}",
        store.stats().counts
    );
}
