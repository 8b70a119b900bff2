//! Flushing, listing, and what else the process that owns a store does with it.

use crate::common::*;
use std::collections::BTreeSet;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Expected, Mutation, Outcome};
use trefoil_layout::{Version, control};
use trefoil_store::{Access, Now, Position, Store};

fn key(number: u64) -> Vec<u8> {
    format!("key-{number}").into_bytes()
}

fn fill(store: &Store, count: u64) {
    for number in 0..count {
        assert_eq!(
            set(store, &key(number), b"value", number + 1),
            Outcome::Applied
        );
    }
}

/// A read by this process.
fn read(store: &Store, key: &[u8]) -> Option<Vec<u8>> {
    let read = store.read(START, key, Access::Use, |item| {
        item.map(|item| {
            let mut value = Vec::new();
            item.append_value(&mut value);
            value
        })
    });
    read.unwrap()
}

fn floor(n: u64) -> Version {
    Version {
        origin: u64::MAX,
        ..version(n)
    }
}

#[test]
fn what_was_flushed_is_absent_by_every_way() {
    let store = heap(16 * MIB, 2);
    fill(&store, 100);
    store.raise_flush_floor(floor(50));
    let words = store.regions().control.words();
    assert_eq!(control::flush_floor(&words), floor(50));
    for number in 0..100 {
        let is_there = number >= 50;
        // Which is asked first makes no difference: the others find no trace.
        let looked_up = |store: &Store| get(store, &key(number)).is_some();
        if number % 2 == 0 {
            assert_eq!(looked_up(&store), is_there, "{number}");
            assert_eq!(read(&store, &key(number)).is_some(), is_there, "{number}");
        } else {
            assert_eq!(read(&store, &key(number)).is_some(), is_there, "{number}");
            assert_eq!(looked_up(&store), is_there, "{number}");
        }
    }
    store.check().unwrap();
}

#[test]
fn nothing_is_stored_at_or_below_the_floor() {
    let store = heap(16 * MIB, 1);
    set(&store, b"flushed", b"old", 5);
    store.raise_flush_floor(floor(50));
    let bound = floor(50);
    for name in [b"flushed".as_slice(), b"never there"] {
        let superseded = Outcome::Superseded { bound };
        assert_eq!(set(&store, name, b"late", 50), superseded);
        assert_eq!(set(&store, name, b"late", 5), superseded, "not even again");
        assert_eq!(erase(&store, name, 49), superseded);
        let mismatch = Outcome::Mismatch {
            present: None,
            bound,
        };
        assert_eq!(cas(&store, name, b"late", Expected::Absent, 50), mismatch);
        let expected = Expected::Version(version(5));
        assert_eq!(cas(&store, name, b"late", expected, 60), mismatch);
        assert_eq!(get(&store, name), None);
        assert_eq!(
            cas(&store, name, b"new", Expected::Absent, 61),
            Outcome::Applied
        );
        assert_eq!(get(&store, name).unwrap().1, b"new");
    }
    // Only upwards.
    store.raise_flush_floor(floor(20));
    assert_eq!(
        set(&store, b"another", b"late", 30),
        Outcome::Superseded { bound }
    );
    store.check().unwrap();
}

#[test]
fn flushed_memory_is_given_back_without_being_asked_for() {
    let store = heap(16 * MIB, 2);
    fill(&store, 20_000);
    let flushed = store.newest();
    assert_eq!(flushed, version(20_000));
    store.raise_flush_floor(floor(20_000));
    assert_eq!(store.stats().items, 0, "what nobody can see is not counted");
    set(&store, b"new", b"value", 20_001);
    set(&store, &key(7), b"value", 20_002);
    assert_eq!(store.stats().items, 2);
    for step in 0.. {
        if !store.maintain(START).more {
            break;
        }
        assert!(step < 1000);
    }
    let stats = store.stats();
    assert_eq!((stats.items, stats.counts.flushed), (2, 19_999));
    assert_eq!(read(&store, b"new").unwrap(), b"value");
    store.check().unwrap();
}

/// The same for items whose time is over at once: what the crawler has not come
/// to yet stands close together, and must not have the index replaced over and
/// over.
#[test]
fn items_that_expire_together_are_removed() {
    let store = heap(16 * MIB, 2);
    let later = Now::at(START.unix_ns + 2_000_000_000);
    for number in 0..20_000 {
        let name = key(number);
        let mutation = Mutation {
            action: Action::Set,
            version: version(number + 1),
            entry: DataEntry {
                expiry_ms: START.unix_ms() + 1,
                ..entry(&name, b"value")
            },
        };
        assert_eq!(store.mutate(START, &mutation).outcome, Outcome::Applied);
    }
    // A few that moved while the crawler went by are left to its next pass.
    let mut now = later;
    for step in 0.. {
        now.unix_ns += 50_000_000;
        store.maintain(now);
        if store.stats().items == 0 {
            break;
        }
        assert!(step < 1000, "{:?}", store.stats());
    }
    store.check().unwrap();
}

#[test]
fn an_erase_applies_to_exactly_the_expected_version() {
    let store = heap(16 * MIB, 1);
    set(&store, b"key", b"value", 5);
    let erase_if = |expected, n| {
        store
            .erase_if(START, b"key", version(expected), version(n))
            .outcome
    };
    let present = Some(version(5));
    let bound = version(5);
    assert_eq!(erase_if(4, 9), Outcome::Mismatch { present, bound });
    assert_eq!(erase_if(5, 5), Outcome::Mismatch { present, bound });
    assert_eq!(erase_if(5, 9), Outcome::Applied);
    assert_eq!(get(&store, b"key"), None);
    // It has left its version.
    let bound = version(9);
    assert_eq!(
        set(&store, b"key", b"late", 8),
        Outcome::Superseded { bound }
    );
    let present = None;
    assert_eq!(erase_if(5, 10), Outcome::Mismatch { present, bound });
}

#[test]
fn values_are_read_whole_whatever_their_place() {
    let store = heap(16 * MIB, 1);
    let mut n = 0;
    for key_len in 1..20 {
        for value_len in 0..40 {
            n += 1;
            let name = vec![b'a' + key_len as u8; key_len];
            let value: Vec<u8> = (0..value_len).map(|at| at as u8 + 1).collect();
            set(&store, &name, &value, n);
            assert_eq!(read(&store, &name).unwrap(), value, "{key_len} {value_len}");
        }
    }
}

#[test]
fn many_reads_come_in_order_and_end_early() {
    let store = heap(16 * MIB, 4);
    fill(&store, 50);
    let names: Vec<Vec<u8>> = (0..100).map(key).collect();
    let mut names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    names[7] = b"";
    for count in [0, 1, 5, 11, 12, 13, 100] {
        let mut seen = 0;
        store.read_many(START, &names[..count], Access::Peek, &mut |index, item| {
            assert_eq!(index, seen);
            seen += 1;
            match item {
                Ok(item) => assert_eq!(item.is_some(), index < 50, "{index}"),
                Err(_) => assert_eq!(index, 7),
            }
            seen < 60
        });
        assert_eq!(seen, count.min(60));
    }
}

fn page(store: &Store, now: Now, from: Position, into: &mut Vec<Vec<u8>>) -> Option<Position> {
    store.list(now, 0, (from, None), 100, &mut |listed| {
        into.push(listed.key.to_vec());
    })
}

#[test]
fn a_listing_names_everything_once() {
    let store = heap(16 * MIB, 3);
    fill(&store, 5_000);
    let (mut listed, mut position, mut pages) = (Vec::new(), Position::default(), 0);
    while let Some(next) = page(&store, START, position, &mut listed) {
        assert!(next > position);
        position = Position::from_number(next.to_number());
        assert_eq!(position, next);
        pages += 1;
    }
    assert!(pages >= 40, "{pages}");
    assert_eq!(listed.len(), 5_000);
    assert_eq!(listed.into_iter().collect::<BTreeSet<_>>().len(), 5_000);
}

#[test]
fn a_listing_survives_growing_and_shrinking_indexes() {
    let store = heap(64 * MIB, 2);
    fill(&store, 2_000);
    let (mut listed, mut position, mut n) = (Vec::new(), Position::default(), 10_000);
    let buckets = store.stats().index_buckets;
    let mut grown = 0;
    while let Some(next) = page(&store, START, position, &mut listed) {
        position = next;
        // Others come, many more than there are, and go.
        for number in 0..2_000 {
            n += 1;
            set(&store, format!("other-{n}-{number}").as_bytes(), b"v", n);
        }
        while store.maintain(START).more {}
        grown = grown.max(store.stats().index_buckets);
        if listed.len() > 12_000 {
            break;
        }
    }
    assert!(grown > 2 * buckets, "{buckets} buckets, then {grown}");
    let rest = |listed: &mut Vec<Vec<u8>>| {
        let mut position = position;
        while let Some(next) = page(&store, START, position, listed) {
            position = next;
        }
    };
    rest(&mut listed);
    let listed: BTreeSet<_> = listed.into_iter().collect();
    for number in 0..2_000 {
        assert!(listed.contains(&key(number)), "{number}");
    }
}
