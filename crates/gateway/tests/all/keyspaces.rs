//! Every keyspace does what the model in a hash map does.

use crate::cell::TestCell;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use std::time::{SystemTime, UNIX_EPOCH};
use trefoil_cell::Mode;
use trefoil_gateway_core::keyspace::{
    self, Access, Decision, Fault, Halt, Item, Keyspace, NewItem, Updated,
};
use trefoil_gateway_core::memory::MemoryKeyspace;
use trefoil_layout::data::EXPIRED_MS;

/// Long enough ago for every clock, and far enough in the future for a test.
const PAST_MS: u64 = 1_000;
const FUTURE_MS: u64 = 1 << 45;

#[derive(Clone, Debug)]
enum Op {
    Get(u8),
    Peek(u8),
    GetMany(Vec<u8>),
    Set(u8, Stored),
    /// Stores if there is none.
    Add(u8, Stored),
    /// Appends if there is one.
    Append(u8, Vec<u8>),
    /// Erases if there is one with this flag bit.
    EraseIf(u8, u32),
    Flush,
    List,
}

#[derive(Clone, Debug)]
struct Stored {
    value: Vec<u8>,
    client_flags: u32,
    item_flags: u8,
    expiry_ms: u64,
    unique: Option<u64>,
}

impl Stored {
    fn as_new(&self) -> NewItem<'_> {
        NewItem {
            value: &self.value,
            client_flags: self.client_flags,
            item_flags: self.item_flags,
            expiry_ms: self.expiry_ms,
            unique: self.unique,
        }
    }
}

fn stored() -> impl Strategy<Value = Stored> {
    let value = prop_oneof![
        4 => prop::collection::vec(any::<u8>(), 0..40),
        1 => prop::collection::vec(any::<u8>(), 1000..5000),
    ];
    let expiry = prop_oneof![
        4 => Just(0),
        2 => Just(FUTURE_MS),
        1 => Just(PAST_MS),
        // What an erase stores, too.
        1 => Just(EXPIRED_MS),
    ];
    (value, any::<u32>(), 0u8..4, expiry, any::<Option<u64>>()).prop_map(
        |(value, client_flags, item_flags, expiry_ms, unique)| Stored {
            value,
            client_flags,
            item_flags,
            expiry_ms,
            unique,
        },
    )
}

fn op(flushes: bool) -> impl Strategy<Value = Op> {
    let key = 0u8..12;
    prop_oneof![
        6 => key.clone().prop_map(Op::Get),
        2 => key.clone().prop_map(Op::Peek),
        2 => prop::collection::vec(key.clone(), 0..40).prop_map(Op::GetMany),
        6 => (key.clone(), stored()).prop_map(|(key, stored)| Op::Set(key, stored)),
        4 => (key.clone(), stored()).prop_map(|(key, stored)| Op::Add(key, stored)),
        4 => (key.clone(), prop::collection::vec(any::<u8>(), 0..9))
            .prop_map(|(key, more)| Op::Append(key, more)),
        4 => (key, 0u32..4).prop_map(|(key, bit)| Op::EraseIf(key, bit)),
        u32::from(flushes) => Just(Op::Flush),
        1 => Just(Op::List),
    ]
}

/// What an item looks like from outside. Versions differ between keyspaces.
type Seen = Option<(Vec<u8>, u32, u8, u64, Option<u64>)>;

fn seen(item: Option<&Item<'_>>) -> Seen {
    item.map(|item| {
        let mut value = b"before".to_vec();
        item.value.append_to(&mut value);
        assert_eq!(value.len(), 6 + item.value.len());
        (
            value,
            item.client_flags,
            item.item_flags,
            item.expiry_ms,
            item.unique,
        )
    })
}

fn key_of(key: u8) -> Vec<u8> {
    // Lengths from 1 byte on, so that values begin at every offset of a word.
    format!("{}{key}", "k".repeat(usize::from(key))).into_bytes()
}

/// Key, length, flags, expiry, unique.
type Listed = (Vec<u8>, usize, u32, u64, Option<u64>);

/// Everything that an operation shows.
#[derive(Debug, PartialEq)]
enum Shown {
    Items(Vec<Result<Seen, Halt>>),
    Update(&'static str, Seen),
    Listed(Vec<Listed>),
    Nothing,
}

fn name(updated: Updated) -> &'static str {
    match updated {
        Updated::Kept => "kept",
        Updated::Stored(_) => "stored",
        Updated::Erased => "erased",
    }
}

fn apply<K: Keyspace>(keyspace: &mut K, op: &Op) -> Shown {
    let get = |keyspace: &mut K, key: u8, access| {
        let mut shown = Vec::new();
        let read = keyspace.get(&key_of(key), access, &mut |item| shown.push(Ok(seen(item))));
        if let Err(fault) = read {
            shown.push(Err(fault));
        }
        Shown::Items(shown)
    };
    match op {
        Op::Get(key) => get(keyspace, *key, Access::Use),
        Op::Peek(key) => get(keyspace, *key, Access::Peek),
        Op::GetMany(keys) => {
            let keys: Vec<Vec<u8>> = keys.iter().map(|key| key_of(*key)).collect();
            let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
            let mut shown = Vec::new();
            let read = keyspace.get_many(&keys, Access::Use, &mut |index, item| {
                assert_eq!(index, shown.len());
                shown.push(item.map(seen).map_err(Halt::from));
                // The answer is full after 30.
                shown.len() < 30
            });
            assert_eq!(read, Ok(()), "the test waits");
            Shown::Items(shown)
        }
        Op::Set(key, stored) => {
            keyspace.set(&key_of(*key), &stored.as_new()).unwrap();
            Shown::Nothing
        }
        Op::Add(key, stored) => {
            let mut before = None;
            let updated = keyspace.update(&key_of(*key), &mut |item, scratch| {
                before = seen(item);
                if item.is_some() {
                    return Decision::Keep;
                }
                scratch.extend_from_slice(&stored.value);
                Decision::Store(NewItem {
                    value: scratch,
                    ..stored.clone().as_new_without_value()
                })
            });
            Shown::Update(name(updated.unwrap()), before)
        }
        Op::Append(key, more) => {
            let mut before = None;
            let updated = keyspace.update(&key_of(*key), &mut |item, scratch| {
                before = seen(item);
                let Some(item) = item else {
                    return Decision::Keep;
                };
                item.value.append_to(scratch);
                scratch.extend_from_slice(more);
                Decision::Store(NewItem {
                    value: scratch,
                    client_flags: item.client_flags,
                    item_flags: item.item_flags,
                    expiry_ms: item.expiry_ms,
                    unique: item.unique,
                })
            });
            Shown::Update(name(updated.unwrap()), before)
        }
        Op::EraseIf(key, bit) => {
            let mut before = None;
            let updated = keyspace.update(&key_of(*key), &mut |item, _| {
                before = seen(item);
                match item {
                    Some(item) if item.client_flags >> bit & 1 == 1 => Decision::Erase,
                    _ => Decision::Keep,
                }
            });
            Shown::Update(name(updated.unwrap()), before)
        }
        Op::Flush => {
            keyspace.flush(now_ms()).unwrap();
            Shown::Nothing
        }
        Op::List => Shown::Listed(list(keyspace)),
    }
}

impl Stored {
    fn as_new_without_value(&self) -> NewItem<'static> {
        NewItem {
            value: b"",
            client_flags: self.client_flags,
            item_flags: self.item_flags,
            expiry_ms: self.expiry_ms,
            unique: self.unique,
        }
    }
}

/// Everything, in small pages, in the order of the keys.
fn list<K: Keyspace>(keyspace: &mut K) -> Vec<Listed> {
    let mut listed = Vec::new();
    let mut cursor = 0;
    loop {
        cursor = keyspace
            .list(cursor, 3, &mut |item| {
                listed.push((
                    item.key.to_vec(),
                    item.value_len,
                    item.client_flags,
                    item.expiry_ms,
                    item.unique,
                ));
            })
            .unwrap();
        if cursor == 0 {
            break;
        }
    }
    listed.retain(|item| ![PAST_MS, EXPIRED_MS].contains(&item.3));
    listed.sort();
    listed
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.unwrap().as_millis() as u64
}

/// Runs random operations on both, key by key the same.
fn equals_the_model<K: Keyspace>(cases: u32, make: impl Fn() -> K) {
    let mut runner = TestRunner::new(Config {
        cases,
        max_shrink_iters: 200,
        ..Config::default()
    });
    let ops = prop::collection::vec(op(true), 1..60);
    let result = runner.run(&ops, |ops| {
        let mut keyspace = make();
        keyspace.flush(now_ms()).unwrap();
        let mut model = MemoryKeyspace::new(now_ms());
        for (step, op) in ops.iter().enumerate() {
            model.now_ms = now_ms();
            let (shown, expected) = (apply(&mut keyspace, op), apply(&mut model, op));
            prop_assert_eq!(shown, expected, "step {} of {:?}", step, ops);
        }
        Ok(())
    });
    if let Err(error) = result {
        panic!("{error}");
    }
}

#[test]
fn the_local_store_does_what_the_model_does() {
    let cell = TestCell::start(Mode::R1);
    equals_the_model(300, || cell.local());
}

#[test]
fn a_replicated_cell_does_what_the_model_does() {
    let cell = TestCell::start(Mode::R32);
    equals_the_model(60, || cell.keyspace());
}

#[test]
fn a_cell_of_one_copy_does_what_the_model_does() {
    let cell = TestCell::start(Mode::R1);
    equals_the_model(60, || cell.keyspace());
}

/// Adds one; what it came to.
fn increment<K: Keyspace>(keyspace: &mut K, key: &[u8]) -> Result<Updated, Halt> {
    keyspace.update(key, &mut |item, scratch| {
        let mut digits = Vec::new();
        if let Some(item) = item {
            item.value.append_to(&mut digits);
        }
        let before: u64 = String::from_utf8(digits).unwrap().parse().unwrap_or(0);
        scratch.extend_from_slice((before + 1).to_string().as_bytes());
        Decision::Store(NewItem {
            value: scratch,
            ..NewItem::default()
        })
    })
}

fn value<K: Keyspace>(keyspace: &mut K, key: &[u8]) -> Vec<u8> {
    let mut value = Vec::new();
    keyspace
        .get(key, Access::Use, &mut |item| {
            item.expect("it was stored").value.append_to(&mut value);
        })
        .unwrap();
    value
}

#[test]
fn concurrent_updates_of_the_local_store_all_count() {
    let cell = TestCell::start(Mode::R1);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut keyspace = cell.local();
            scope.spawn(move || {
                for _ in 0..5_000 {
                    let updated = increment(&mut keyspace, b"counter").unwrap();
                    assert!(matches!(updated, Updated::Stored(_)));
                }
            });
        }
    });
    assert_eq!(value(&mut cell.local(), b"counter"), b"20000");
}

#[test]
fn local_clients_and_others_see_one_another() {
    let cell = TestCell::start(Mode::R1);
    let (mut local, mut other) = (cell.local(), cell.keyspace());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            let mut keyspace = cell.local();
            scope.spawn(move || {
                for _ in 0..500 {
                    increment(&mut keyspace, b"counter").unwrap();
                }
            });
        }
        for _ in 0..500 {
            increment(&mut other, b"counter").unwrap();
        }
    });
    assert_eq!(value(&mut local, b"counter"), b"1500");
    assert_eq!(value(&mut other, b"counter"), b"1500");
}

fn seen_before<K: Keyspace>(keyspace: &mut K, access: Access) -> keyspace::Seen {
    let mut seen = None;
    let get = keyspace.get_seen(b"key", access, &mut |item| {
        seen = item.map(|item| item.seen);
    });
    get.unwrap();
    seen.unwrap()
}

fn tells_uses<K: Keyspace>(keyspace: &mut K) {
    let hit_before = |keyspace: &mut K, access| seen_before(keyspace, access).hit_before;
    let item = NewItem {
        value: b"value",
        ..NewItem::default()
    };
    keyspace.set(b"key", &item).unwrap();
    assert!(!hit_before(keyspace, Access::Peek));
    assert!(!hit_before(keyspace, Access::Use), "a peek is no hit");
    for _ in 0..200 {
        assert!(hit_before(keyspace, Access::Peek));
    }
    keyspace.set(b"key", &item).unwrap();
    assert!(!hit_before(keyspace, Access::Peek), "a new value");
    // A plain read, whose report may still wait, and a write behind it.
    keyspace.get(b"key", Access::Use, &mut |_| {}).unwrap();
    assert!(hit_before(keyspace, Access::Peek), "a plain read");
    keyspace.get(b"key", Access::Use, &mut |_| {}).unwrap();
    keyspace.set(b"key", &item).unwrap();
    assert!(!hit_before(keyspace, Access::Peek), "a new value");

    keyspace.keep_last_use();
    std::thread::sleep(std::time::Duration::from_millis(2100));
    assert!(seen_before(keyspace, Access::Use).idle_s >= 2);
    assert!(seen_before(keyspace, Access::Peek).idle_s <= 1);
}

#[test]
fn uses_are_told_by_the_local_store() {
    tells_uses(&mut TestCell::start(Mode::R1).local());
}

#[test]
fn uses_are_told_by_a_cell_of_one_copy() {
    tells_uses(&mut TestCell::start(Mode::R1).keyspace());
}

#[test]
fn uses_are_told_by_a_replicated_cell() {
    tells_uses(&mut TestCell::start(Mode::R32).keyspace());
}

/// Keys that are looked up count as work, whatever their values are: whoever asks for
/// thousands of small ones, or of none, has to leave others their turn.
fn counts_lookups<K: Keyspace>(keyspace: &mut K) {
    const COUNT: usize = 20;
    let keys: Vec<Vec<u8>> = (0..COUNT as u8).map(key_of).collect();
    let keys: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let before = keyspace.work();
    let mut told = 0;
    let read = keyspace.get_many(&keys, Access::Peek, &mut |_, read| {
        assert!(matches!(read, Ok(None)));
        told += 1;
        true
    });
    assert_eq!((read, told), (Ok(()), COUNT));
    let of_many = keyspace.work() - before;
    assert!(of_many >= COUNT as u64 * keyspace::LOOKUP_WORK, "{of_many}");
    let before = keyspace.work();
    assert_eq!(keyspace.get(keys[0], Access::Use, &mut |_| {}), Ok(()));
    assert!(keyspace.work() - before >= keyspace::LOOKUP_WORK);
}

#[test]
fn lookups_count_as_work() {
    counts_lookups(&mut TestCell::start(Mode::R1).local());
    counts_lookups(&mut TestCell::start(Mode::R32).keyspace());
}

#[test]
fn the_memory_limit_is_that_of_all_processes() {
    // Three backends, one process.
    let cell = TestCell::start(Mode::R32);
    let mut keyspace = cell.keyspace();
    let before = keyspace.totals().unwrap().limit_bytes;
    for bytes in [before, before / 2, before] {
        keyspace.set_memory_limit(bytes).unwrap();
        assert_eq!(keyspace.totals().unwrap().limit_bytes, bytes);
    }
    let refused = keyspace.set_memory_limit(1 << 20);
    assert!(
        matches!(refused, Err(Halt::Fault(Fault::Unavailable(_)))),
        "{refused:?}"
    );
    assert_eq!(keyspace.totals().unwrap().limit_bytes, before);
}

#[test]
fn the_memory_limit_stays_while_a_backend_is_silent() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let cell = TestCell::start_with_silence(Mode::R32, silent.local_addr().unwrap());
    let mut keyspace = cell.keyspace();
    let before = keyspace.totals().unwrap().limit_bytes;
    let refused = keyspace.set_memory_limit(before / 2);
    assert!(
        matches!(refused, Err(Halt::Fault(Fault::Unavailable(_)))),
        "{refused:?}"
    );
    assert_eq!(keyspace.totals().unwrap().limit_bytes, before);
}

#[test]
fn totals_do_not_wait_for_a_backend_that_is_silent() {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let cell = TestCell::start_with_silence(Mode::R32, silent.local_addr().unwrap());
    let mut keyspace = cell.keyspace();
    let item = NewItem {
        value: b"value",
        ..NewItem::default()
    };
    for key in 0..10 {
        keyspace.set(&key_of(key), &item).unwrap();
    }
    // A busy machine may stand still for as long as the silent one would be waited for,
    // but not always.
    let is_quick = (0..10).any(|_| {
        let begin = std::time::Instant::now();
        let totals = keyspace.totals().unwrap();
        let took = begin.elapsed();
        // The two that answer hold all; the third is taken to hold as much.
        assert_eq!(totals.items, 10);
        took < std::time::Duration::from_millis(1000)
    });
    assert!(is_quick);
}

#[test]
fn what_the_cell_refuses_is_a_fault() {
    let mut cell = TestCell::start(Mode::R1);
    let mut local = cell.local();
    let mut other = cell.keyspace();
    let long = vec![0; (1 << 20) + 1];
    let item = NewItem {
        value: &long,
        ..NewItem::default()
    };
    use trefoil_layout::op::Rejection::{KeyEmpty, ValueTooLong};
    for fault in [local.set(b"key", &item), other.set(b"key", &item)] {
        assert_eq!(fault, Err(Fault::Rejected(ValueTooLong).into()));
    }
    let empty = NewItem::default();
    for fault in [local.set(b"", &empty), other.set(b"", &empty)] {
        assert_eq!(fault, Err(Fault::Rejected(KeyEmpty).into()));
    }
    local.set(b"key", &empty).unwrap();
    cell.stop();
    let gone = local.get(b"key", Access::Use, &mut |_| panic!("the server has ended"));
    assert!(
        matches!(gone, Err(Halt::Fault(Fault::Unavailable(_)))),
        "{gone:?}"
    );
    let gone = local.set(b"key", &empty);
    assert!(
        matches!(gone, Err(Halt::Fault(Fault::Unavailable(_)))),
        "{gone:?}"
    );
    let gone = other.get(b"key", Access::Use, &mut |_| panic!("the server has ended"));
    assert!(
        matches!(gone, Err(Halt::Fault(Fault::Unavailable(_)))),
        "{gone:?}"
    );
}
