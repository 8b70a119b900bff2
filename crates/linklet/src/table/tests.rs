use super::*;
use crate::lifetime::Lifetimes;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;
use trefoil_freshness_core::table::Stamp;
use trefoil_layout::hash::KeyHasher;
use trefoil_linklet_core::{Core, Replication};
use trefoil_sharder::{Assignment, AssignmentVersion, ServerId};

/// A table whose rules own everything.
fn open_table(bound: u64) -> Table<u64> {
    struct Publish(Table<u64>);
    impl trefoil_linklet_core::Values for Publish {
        fn publish(&mut self, table: Arc<Rules>) {
            self.0.publish(&table);
        }
        fn scan(
            &mut self,
            slice: Slice,
            _: trefoil_linklet_core::Limit,
        ) -> trefoil_linklet_core::Scan {
            trefoil_linklet_core::Scan {
                entries: Vec::new(),
                last: slice.last(),
            }
        }
        fn get(&mut self, _: KeyPoint, _: &bytes::Bytes) -> Option<trefoil_linklet_core::Entry> {
            None
        }
        fn store(
            &mut self,
            _: trefoil_linklet_core::Entry,
        ) -> Result<(), trefoil_linklet_core::NotStored> {
            Ok(())
        }
        fn remove(&mut self, _: KeyPoint, _: &bytes::Bytes) {}
        fn forget(&mut self, _: Slice) {}
        fn forget_but(&mut self, _: Slice, _: &dyn Fn(KeyPoint, &[u8]) -> bool) {}
        fn settle(&mut self, _: trefoil_linklet_core::Ticket) {}
    }
    let me = ServerId(1);
    let mut values = Publish(Table::new(bound, Lifetimes::default()));
    let config = trefoil_linklet_core::Config::new(Replication::None);
    let mut core = Core::new(me, config).unwrap();
    let now = Duration::from_secs(1);
    let map = Assignment::even(AssignmentVersion::first_of(1), &[me], 1, 1);
    core.lease(now, &mut values, now * 100);
    core.learn(now, &mut values, &map, &[me].into());
    while core.poll().is_some() {}
    let everything = values.0.visit(key(b"k")).status();
    assert!(matches!(everything, Status::Owned { .. }), "{everything:?}");
    values.0
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key {
        bytes,
        hash: KeyHasher::default().hash(bytes),
    }
}

fn name(n: u64) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

fn put(
    table: &Table<u64>,
    n: u64,
    bytes: usize,
    evicted: impl FnMut(Entry<u64>),
) -> Result<(), NoRoom> {
    let name = name(n);
    let room = table.reserve(Table::<u64>::weight(&name, bytes), evicted)?;
    table
        .visit(key(&name))
        .put(Arc::new(n), Stamp::UNKNOWN, room);
    Ok(())
}

fn value_of(entry: &Entry<u64>) -> u64 {
    **entry.value.here().expect("nothing was spilled")
}

fn get(table: &Table<u64>, n: u64) -> Option<u64> {
    table.visit(key(&name(n))).get().map(value_of)
}

#[test]
fn the_bound_holds_and_the_idle_go() {
    let each = Table::<u64>::weight(&name(10), 1000);
    let table = open_table(each * 100);
    let mut evicted: Vec<u64> = Vec::new();
    for n in 10..99 {
        put(&table, n, 1000, |gone| evicted.push(value_of(&gone))).unwrap();
    }
    assert!(evicted.is_empty());
    for n in 100..1000 {
        for warm in 10..20 {
            assert_eq!(get(&table, warm), Some(warm), "{warm} is in use");
        }
        put(&table, n, 999, |gone| evicted.push(value_of(&gone))).unwrap();
        assert!(table.bytes() <= table.bound());
    }
    assert_eq!(table.len() + evicted.len() as u64, 89 + 900);
    assert!(evicted.iter().all(|gone| *gone >= 20), "{evicted:?}");
    let huge = put(&table, 1, 1 << 20, |_| {});
    assert!(matches!(huge, Err(NoRoom { bound, .. }) if bound == each * 100));
}

#[test]
fn what_is_not_evicted_leaves_room_for_what_takes_its_place() {
    let table = open_table(1_000);
    let held = table.reserve_free(900, 0).unwrap();
    assert!(table.fits(100, 0) && !table.fits(101, 0));
    assert!(matches!(
        table.reserve_free(101, 0),
        Err(NoRoom {
            weight: 101,
            bound: 1_000
        })
    ));
    // In the place of what is there: as large, or larger where that fits.
    drop(table.reserve_free(900, 900).unwrap());
    drop(table.reserve_free(1_000, 900).unwrap());
    assert!(table.reserve_free(1_001, 900).is_err());
    // Above the bound by what was promised: what is no larger still is.
    let promised = table.room_to_trim(500);
    assert!(table.fits(900, 900) && !table.fits(901, 900));
    drop((held, promised));
    assert_eq!(table.bytes(), 0);
}

#[test]
fn a_few_large_values_fill_the_bound() {
    let table = open_table(10 << 20);
    let mut evicted = 0;
    for n in 0..100 {
        put(&table, n, 1 << 20, |_| evicted += 1).unwrap();
        assert!(table.bytes() <= table.bound());
    }
    assert_eq!((table.len(), evicted), (9, 91));
}

#[test]
fn what_the_rules_withhold_is_not_evicted() {
    let table = open_table(100_000);
    put(&table, 1, 60_000, |_| {}).unwrap();
    table.publish(&Arc::new(Rules::nothing()));
    put(&table, 2, 60_000, |_| panic!("nothing may go")).unwrap();
    assert!(table.bytes() > table.bound(), "by one value");
    assert!(put(&table, 3, 60_000, |_| panic!("nothing may go")).is_err());
    assert!(put(&table, 3, 10, |_| panic!("nothing may go")).is_err());
}

#[test]
fn growth_in_place_is_trimmed() {
    let table = open_table(100_000);
    for n in 0..10 {
        put(&table, n, 1000, |_| {}).unwrap();
    }
    let grown = table
        .visit(key(&name(3)))
        .change(None, |entry| entry.weight = 95_000);
    assert!(matches!(grown, Changed::Done(())), "{grown:?}");
    assert!(table.bytes() > table.bound());
    let mut gone = 0;
    table.trim(|_| gone += 1);
    assert!(table.bytes() <= table.bound() && gone > 0);
    table.visit(key(&name(3))).remove();
    assert_eq!(get(&table, 3), None);
}

#[test]
fn room_that_is_not_used_is_given_back() {
    let table = open_table(100_000);
    put(&table, 1, 10, |_| {}).unwrap();
    let before = table.bytes();
    drop(table.reserve(5_000, |_| {}).unwrap());
    assert_eq!((table.bytes(), table.len()), (before, 1));
    let version = table.visit(key(&name(1))).peek().unwrap().version;
    put(&table, 1, 10, |_| {}).unwrap();
    assert_eq!((table.bytes(), table.len()), (before, 1));
    assert!(table.visit(key(&name(1))).peek().unwrap().version > version);
}

#[test]
fn what_is_out_of_date_counts_as_absent() {
    let table = open_table(100_000);
    put(&table, 1, 10, |_| {}).unwrap();
    table.visit(key(&name(1))).peek().unwrap().stale = true;
    assert_eq!(get(&table, 1), None);
    let changed = table.visit(key(&name(1))).change(None, |_| ());
    assert!(matches!(changed, Changed::Absent), "{changed:?}");
    put(&table, 1, 10, |_| {}).unwrap();
    assert_eq!(get(&table, 1), Some(1));
}

#[test]
fn bytes_of_slices_add_up() {
    let table = open_table(1 << 30);
    for n in 0..50_000 {
        put(&table, n, 500, |_| {}).unwrap();
    }
    assert_eq!(table.bytes_in(Slice::ALL), table.bytes());
    let tiles = Slice::tiles(77).into_iter();
    let parts: u64 = tiles.map(|slice| table.bytes_in(slice)).sum();
    assert_eq!(parts, table.bytes(), "small parts are counted out");
    let point = Slice::of_point(key(&name(7)).point());
    assert_eq!(table.bytes_in(point), Table::<u64>::weight(&name(7), 500));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// What a slice holds is handed out once and in order, in chunks of any
    /// size.
    #[test]
    fn a_scan_misses_nothing(
        count in 0u64..3_000,
        chunk in 1usize..300,
        a in any::<u64>(),
        b in any::<u64>(),
    ) {
        let table = open_table(1 << 30);
        let mut model = BTreeMap::new();
        for n in 0..count {
            put(&table, n, 10, |_| {}).unwrap();
            model.insert((key(&name(n)).point(), n), ());
        }
        let slice = Slice::spanning(KeyPoint(a), KeyPoint(b));
        let mut found = Vec::new();
        let mut rest = Some(slice);
        while let Some(left) = rest {
            let pick = |e: &Entry<u64>| (KeyPoint(e.hash.place), value_of(e));
            let (more, last) = table.scan(left, chunk, pick);
            found.extend(more);
            rest = last.0.checked_add(1).and_then(|next| {
                (next <= slice.last().0).then(|| Slice::spanning(KeyPoint(next), slice.last()))
            });
        }
        let expected: Vec<(KeyPoint, u64)> = model
            .keys()
            .copied()
            .filter(|(point, _)| slice.contains(*point))
            .collect();
        prop_assert_eq!(found, expected);
        let taken = table.remove_slice(slice, |_, _| true);
        prop_assert_eq!(table.len() as usize, model.len() - taken.len());
        prop_assert_eq!(table.bytes_in(slice), 0);
    }
}
