//! The rules of DESIGN section 4 at one replica, an expectation a line.

use crate::common::*;
use trefoil_layout::Version;
use trefoil_layout::data::{DataEntry, EXPIRY_MS_MAX};
use trefoil_layout::op::{Action, Expected, Found, Mutation, Outcome, Rejection};
use trefoil_region::WordBuffer;
use trefoil_store::{MutationKind, Now, PolicyKind, Regions, Store, StoreConfig};

fn small() -> Store {
    heap(256 * KIB, 1)
}

fn superseded(n: u64) -> Outcome {
    Outcome::Superseded { bound: version(n) }
}

fn mismatch(present: Option<u64>, bound: u64) -> Outcome {
    Outcome::Mismatch {
        present: present.map(version),
        bound: version(bound),
    }
}

#[test]
fn set_applies_at_or_above_the_bound() {
    let store = small();
    assert_eq!(set(&store, b"k", b"two", 2), Outcome::Applied);
    assert_eq!(set(&store, b"k", b"one", 1), superseded(2));
    assert_eq!(set(&store, b"k", b"again", 2), Outcome::Applied);
    assert_eq!(get(&store, b"k"), Some((version(2), b"two".to_vec())));
    assert_eq!(set(&store, b"k", b"three", 3), Outcome::Applied);
    assert_eq!(get(&store, b"k"), Some((version(3), b"three".to_vec())));
    store.check().unwrap();
}

fn fill(store: &Store, key: &[u8], stamp: u64, n: u64) -> Outcome {
    let mutation = Mutation {
        action: Action::Fill { stamp },
        version: version(n),
        entry: entry(key, b"loaded"),
    };
    store.mutate(START, &mutation).outcome
}

#[test]
fn a_fill_applies_while_nothing_was_applied_since_its_stamp() {
    let store = small();
    let first = store.stamp(b"k");
    assert_eq!(fill(&store, b"k", first, 5), Outcome::Applied);
    // A copy of its message is not taken for another fill.
    assert_eq!(fill(&store, b"k", first, 5), Outcome::Applied);
    // One of an earlier miss is, whatever its version.
    assert_eq!(fill(&store, b"k", first, 9), mismatch(Some(5), 5));
    let second = store.stamp(b"k");
    assert_eq!(fill(&store, b"k", second, 4), superseded(5));
    // Superseded, it may go again above.
    assert_eq!(fill(&store, b"k", second, 6), Outcome::Applied);
    let third = store.stamp(b"k");
    assert_eq!(erase(&store, b"k", 7), Outcome::Applied);
    assert_eq!(fill(&store, b"k", third, 20), mismatch(None, 7));
    let fourth = store.stamp(b"k");
    assert_eq!(set(&store, b"k", b"late", 3), superseded(7));
    assert_eq!(fill(&store, b"k", fourth, 20), mismatch(None, 7));
    assert_eq!(get(&store, b"k"), None);
    store.check().unwrap();
}

#[test]
fn erase_leaves_its_version_as_the_bound() {
    let store = small();
    assert_eq!(set(&store, b"k", b"v", 5), Outcome::Applied);
    assert_eq!(erase(&store, b"k", 4), superseded(5));
    assert_eq!(erase(&store, b"k", 6), Outcome::Applied);
    assert_eq!(get(&store, b"k"), None);
    assert_eq!(erase(&store, b"k", 6), Outcome::Applied);
    assert_eq!(set(&store, b"k", b"late", 5), superseded(6));
    assert_eq!(erase(&store, b"never", 9), Outcome::Applied);
    assert_eq!(set(&store, b"never", b"late", 8), superseded(9));
    assert_eq!(set(&store, b"k", b"new", 7), Outcome::Applied);
    assert_eq!(set(&store, b"k", b"late", 6), superseded(7));
    store.check().unwrap();
}

#[test]
fn a_forgotten_tombstone_raises_the_floor() {
    let store = small();
    for n in 0..64 {
        assert_eq!(
            erase(&store, format!("{n}").as_bytes(), 100 + n),
            Outcome::Applied
        );
    }
    assert_eq!(set(&store, b"unknown", b"v", 1), Outcome::Applied);
    assert_eq!(erase(&store, b"one more", 200), Outcome::Applied);
    assert_eq!(store.floor(b"0").unwrap().1, version(100));
    assert_eq!(set(&store, b"0", b"late", 99), superseded(100));
    assert_eq!(set(&store, b"stranger", b"late", 99), superseded(100));
    assert_eq!(set(&store, b"1", b"late", 100), superseded(101));
    assert_eq!(set(&store, b"0", b"v", 100), Outcome::Applied);
}

#[test]
fn cas_applies_to_exactly_the_expected_version() {
    let store = small();
    let at = |n| Expected::Version(version(n));
    assert_eq!(cas(&store, b"k", b"v", at(1), 9), mismatch_absent());
    assert_eq!(
        cas(&store, b"k", b"v", Expected::Absent, 2),
        Outcome::Applied
    );
    assert_eq!(
        cas(&store, b"k", b"w", Expected::Absent, 3),
        mismatch(Some(2), 2)
    );
    assert_eq!(cas(&store, b"k", b"w", at(1), 3), mismatch(Some(2), 2));
    assert_eq!(cas(&store, b"k", b"w", at(2), 2), mismatch(Some(2), 2));
    assert_eq!(cas(&store, b"k", b"w", at(2), 1), mismatch(Some(2), 2));
    assert_eq!(cas(&store, b"k", b"w", at(2), 4), Outcome::Applied);
    assert_eq!(cas(&store, b"k", b"x", at(2), 5), mismatch(Some(4), 4));
    assert_eq!(erase(&store, b"k", 6), Outcome::Applied);
    assert_eq!(cas(&store, b"k", b"x", at(4), 7), mismatch(None, 6));
    assert_eq!(
        cas(&store, b"k", b"x", Expected::Absent, 5),
        mismatch(None, 6)
    );
    assert_eq!(
        cas(&store, b"k", b"x", Expected::Absent, 7),
        Outcome::Applied
    );
    store.check().unwrap();
}

fn mismatch_absent() -> Outcome {
    Outcome::Mismatch {
        present: None,
        bound: Version::ZERO,
    }
}

#[test]
fn eviction_raises_the_floor() {
    let config = StoreConfig {
        objects_max: Some(3),
        policy: PolicyKind::Lru,
        ..config(256 * KIB, 1)
    };
    let store = Store::new(config, Regions::heap(256 * KIB)).unwrap();
    for n in 1..=3 {
        assert_eq!(
            set(&store, format!("{n}").as_bytes(), b"v", n),
            Outcome::Applied
        );
    }
    assert!(get(&store, b"1").is_some());
    assert_eq!(set(&store, b"4", b"v", 4), Outcome::Applied);
    assert_eq!(get(&store, b"2"), None, "the least recently used");
    assert_eq!(store.floor(b"2").unwrap().1, version(2));
    assert_eq!(set(&store, b"2", b"late", 1), superseded(2));
    assert_eq!(set(&store, b"2", b"own value again", 2), Outcome::Applied);
    store.check().unwrap();
}

/// Stores an item that has expired from `due` on, in milliseconds.
fn set_due(store: &Store, now: Now, key: &[u8], n: u64, due: u64) {
    let mutation = Mutation {
        action: Action::Set,
        version: version(n),
        entry: DataEntry {
            expiry_ms: due,
            ..entry(key, b"v")
        },
    };
    assert_eq!(store.mutate(now, &mutation).outcome, Outcome::Applied);
}

/// Who writes an item computes its expiry from the host's clock.
#[test]
fn a_clock_that_was_set_back_expires_nothing_before_its_time() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let store = small();
    // The store's time began an hour ahead of what the host says now.
    let host = |host_ns: u64| Now {
        unix_ns: host_ns + HOUR_NS,
        set_back_ns: HOUR_NS,
    };
    let now = host(START.unix_ns);
    let in_ten_minutes = START.unix_ms() + 600_000;
    let keys: [&[u8]; 3] = [b"get", b"cas", b"crawl"];
    for (key, n) in keys.into_iter().zip(5..) {
        set_due(&store, now, key, n, in_ten_minutes);
    }
    store.maintain(now);
    assert_eq!(store.stats().counts.expired, 0, "the crawler's clock");
    assert!(get_at(&store, now, b"get").is_some());
    let exact = Mutation {
        action: Action::Cas(Expected::Version(version(6))),
        version: version(20),
        entry: DataEntry {
            expiry_ms: in_ten_minutes,
            ..entry(b"cas", b"w")
        },
    };
    assert_eq!(store.mutate(now, &exact).outcome, Outcome::Applied);
    // By the host's clock its time is over.
    let later = host(START.unix_ns + 600_000_000_000);
    assert_eq!(get_at(&store, later, b"get"), None);
    store.maintain(later);
    assert_eq!(store.stats().counts.expired, 3);
    store.check().unwrap();
}

/// The crawler's pause between two passes is not as long as the clock was set back.
#[test]
fn the_crawler_goes_on_where_the_clock_is_set_back() {
    const HOUR_NS: u64 = 3_600_000_000_000;
    let store = small();
    set_due(&store, START, b"first", 1, START.unix_ms());
    store.maintain(START);
    assert_eq!(store.stats().counts.expired, 1);
    let set_back = Now {
        unix_ns: START.unix_ns + 2_000_000_000,
        set_back_ns: HOUR_NS,
    };
    set_due(&store, set_back, b"second", 2, set_back.host_ms());
    store.maintain(set_back);
    assert_eq!(store.stats().counts.expired, 2);
}

#[test]
fn expired_entries_keep_their_bound_and_are_absent() {
    let store = small();
    let due = START.unix_ms() + 1000;
    let later = Now::at(START.unix_ns + 2_000_000_000);
    let at = |now, action, key, n| {
        let mutation = Mutation {
            action,
            version: version(n),
            entry: entry(key, b"w"),
        };
        store.mutate(now, &mutation).outcome
    };
    set_due(&store, START, b"set", 5, due);
    set_due(&store, START, b"cas", 6, due);
    set_due(&store, START, b"add", 7, due);
    set_due(&store, START, b"get", 8, due);
    set_due(&store, START, b"crawl", 9, due);
    assert!(get_at(&store, START, b"get").is_some());
    assert_eq!(at(later, Action::Set, b"set", 4), superseded(5));
    assert_eq!(at(later, Action::Set, b"set", 5), Outcome::Applied);
    let exact = Action::Cas(Expected::Version(version(6)));
    assert_eq!(at(later, exact, b"cas", 20), mismatch(None, 6));
    let add = Action::Cas(Expected::Absent);
    assert_eq!(at(later, add, b"add", 6), mismatch(None, 7));
    assert_eq!(at(later, add, b"add", 20), Outcome::Applied);
    assert_eq!(get_at(&store, later, b"get"), None);
    assert_eq!(store.floor(b"get").unwrap().1, version(8));
    assert_eq!(store.maintain(later).expired, 2, "\"set\" and \"crawl\"");
    assert_eq!(store.floor(b"get").unwrap().1, version(9));
    assert_eq!(store.stats().items, 1);
    assert_eq!(store.stats().counts.expired, 5);
    store.check().unwrap();
}

#[test]
fn what_the_formats_cannot_carry_is_refused_without_a_trace() {
    let config = StoreConfig {
        value_len_max: 1000,
        ..config(256 * KIB, 1)
    };
    let store = Store::new(config, Regions::heap(256 * KIB)).unwrap();
    let rejected = |entry, n| {
        let mutation = Mutation {
            action: Action::Set,
            version: version(n),
            entry,
        };
        match store.mutate(START, &mutation).outcome {
            Outcome::Rejected(rejection) => rejection,
            other => panic!("{other:?}"),
        }
    };
    let long_key = vec![b'k'; 65537];
    let long_value = vec![0; 1001];
    let good = entry(b"k", b"v");
    assert_eq!(rejected(entry(b"", b"v"), 1), Rejection::KeyEmpty);
    assert_eq!(rejected(entry(&long_key, b"v"), 1), Rejection::KeyTooLong);
    assert_eq!(
        rejected(entry(b"k", &long_value), 1),
        Rejection::ValueTooLong
    );
    let expiry_ms = EXPIRY_MS_MAX + 1;
    assert_eq!(
        rejected(DataEntry { expiry_ms, ..good }, 1),
        Rejection::BadItem
    );
    let item_flags = 4;
    assert_eq!(
        rejected(DataEntry { item_flags, ..good }, 1),
        Rejection::BadItem
    );
    assert_eq!(rejected(good, 10_000_000_001), Rejection::ClockAhead);
    assert_eq!(store.stats().items, 0);
    assert_eq!(store.floor(b"k").unwrap().1, Version::ZERO);
    let counts = store.stats().counts.of(MutationKind::Set);
    assert_eq!((counts.applied, counts.rejected), (0, 6));
    assert_eq!(set(&store, b"k", b"v", 10_000_000_000), Outcome::Applied);
    let mut buffer = WordBuffer::default();
    let found = store.lookup(START, &long_key, &mut buffer).found;
    assert_eq!(found, Found::Rejected(Rejection::KeyTooLong));
}

#[test]
fn immutable_refuses_mutations_but_loads() {
    let config = StoreConfig {
        immutable: true,
        ..config(256 * KIB, 1)
    };
    let store = Store::new(config, Regions::heap(256 * KIB)).unwrap();
    let refused = Outcome::Rejected(Rejection::Immutable);
    assert_eq!(set(&store, b"k", b"v", 1), refused);
    assert_eq!(erase(&store, b"k", 1), refused);
    let loaded = store.load(START, &entry(b"k", b"v"), version(1));
    assert_eq!(loaded.outcome, Outcome::Applied);
    assert_eq!(get(&store, b"k"), Some((version(1), b"v".to_vec())));
}

#[test]
fn optional_fields_come_back() {
    let store = small();
    let entry = DataEntry {
        expiry_ms: START.unix_ms() + 5,
        client_flags: 77,
        item_flags: 3,
        unique: Some(99),
        key: b"key",
        value: b"value",
    };
    let mutation = Mutation {
        action: Action::Set,
        version: version(1),
        entry,
    };
    assert_eq!(store.mutate(START, &mutation).outcome, Outcome::Applied);
    let mut buffer = WordBuffer::default();
    let Found::Present { data, .. } = store.lookup(START, b"key", &mut buffer).found else {
        panic!("absent");
    };
    assert_eq!(DataEntry::decode(data), Some(entry));
}
