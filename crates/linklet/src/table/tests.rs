use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use trefoil_layout::hash::KeyHasher;

fn hash(key: &[u8]) -> KeyHash {
    KeyHasher::default().hash(key)
}

fn entry(key: &[u8], value: u64, bytes: usize) -> Entry<u64> {
    Entry {
        hash: hash(key),
        key: key.into(),
        value: Arc::new(value),
        version: value,
        position: 0,
        weight: Table::<u64>::weight(key, bytes),
        used_at: 0,
        reused: false,
    }
}

fn key(bytes: &[u8]) -> Key<'_> {
    Key {
        bytes,
        hash: hash(bytes),
    }
}

fn name(n: u64) -> Vec<u8> {
    format!("key {n}").into_bytes()
}

#[test]
fn the_bound_holds_and_the_idle_go() {
    let each = Table::<u64>::weight(&name(10), 1000);
    let table = Table::new(each * 100);
    let mut evicted = Vec::new();
    for n in 10..99 {
        table
            .put(entry(&name(n), n, 1000), |gone| evicted.push(*gone.value))
            .unwrap();
    }
    assert_eq!(evicted, []);
    for n in 100..1000 {
        for warm in 10..20 {
            assert!(table.get(key(&name(warm))).is_some(), "{warm} is in use");
        }
        table
            .put(entry(&name(n), n, 999), |gone| evicted.push(*gone.value))
            .unwrap();
        assert!(table.bytes() <= table.bound());
    }
    assert_eq!(table.len() + evicted.len() as u64, 89 + 900);
    assert!(evicted.iter().all(|gone| *gone >= 20), "{evicted:?}");
    let huge = table.put(entry(b"huge", 1, 1 << 20), |_| {});
    assert!(matches!(huge, Err(TooLarge { bound, .. }) if bound == each * 100));
}

#[test]
fn a_few_large_values_fill_the_bound() {
    let table = Table::new(10 << 20);
    let mut evicted = 0;
    for n in 0..100 {
        table
            .put(entry(&name(n), n, 1 << 20), |_| evicted += 1)
            .unwrap();
        assert!(table.bytes() <= table.bound());
    }
    assert_eq!((table.len(), evicted), (9, 91));
}

#[test]
fn growth_in_place_is_trimmed() {
    let table = Table::new(100_000);
    for n in 0..10 {
        table.put(entry(&name(n), n, 1000), |_| {}).unwrap();
    }
    let grown = table.change(key(&name(3)), |_| (Then::Keep { weight: 95_000 }, ()));
    assert_eq!(grown, Some(()));
    assert!(table.bytes() > table.bound());
    let mut gone = 0;
    table.trim(|_| gone += 1);
    assert!(table.bytes() <= table.bound() && gone > 0);
    table.change(key(&name(3)), |_| (Then::Remove, ()));
    assert!(table.get(key(&name(3))).is_none());
}

#[test]
fn a_refused_entry_leaves_no_trace() {
    let table = Table::new(100_000);
    table.put(entry(b"k", 5, 10), |_| {}).unwrap();
    let before = table.bytes();
    let newer = |version| move |there: Option<&Entry<u64>>| there.is_none_or(|e| e.version < version);
    assert_eq!(table.put_if(entry(b"k", 4, 99), newer(4), |_| {}), Ok(false));
    assert_eq!((table.bytes(), table.len()), (before, 1));
    assert_eq!(table.put_if(entry(b"k", 6, 10), newer(6), |_| {}), Ok(true));
    assert_eq!((table.bytes(), table.len()), (before, 1));
    assert_eq!(table.get(key(b"k")).as_deref(), Some(&6));
}

#[test]
fn bytes_of_slices_add_up() {
    let table = Table::new(1 << 30);
    for n in 0..50_000 {
        table.put(entry(&name(n), n, 500), |_| {}).unwrap();
    }
    assert_eq!(table.bytes_in(Slice::ALL), table.bytes());
    let parts: u64 = Slice::tiles(77).into_iter().map(|s| table.bytes_in(s)).sum();
    assert_eq!(parts, table.bytes(), "small parts are counted out");
    let point = Slice::of_point(key(&name(7)).point());
    assert_eq!(table.bytes_in(point), Table::<u64>::weight(&name(7), 500));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Against a plain map: what a slice holds is handed out once, in order,
    /// in chunks of any size.
    #[test]
    fn a_scan_misses_nothing(
        count in 0u64..3_000,
        chunk in 1usize..300,
        a in any::<u64>(),
        b in any::<u64>(),
    ) {
        let table = Table::new(1 << 30);
        let mut model = BTreeMap::new();
        for n in 0..count {
            let at = hash(&name(n));
            table.put(entry(&name(n), n, 10), |_| {}).unwrap();
            model.insert((at.place, n), ());
        }
        let slice = Slice::spanning(KeyPoint(a), KeyPoint(b));
        let mut found = Vec::new();
        let mut rest = Some(slice);
        while let Some(left) = rest {
            let (more, last) = table.scan(left, chunk, |e| Some((e.hash.place, *e.value)));
            found.extend(more);
            rest = last.0.checked_add(1).and_then(|next| {
                (next <= slice.last().0).then(|| Slice::spanning(KeyPoint(next), slice.last()))
            });
        }
        let expected: Vec<(u64, u64)> = model
            .keys()
            .copied()
            .filter(|(point, _)| slice.contains(KeyPoint(*point)))
            .collect();
        prop_assert_eq!(found, expected);
        let taken = table.remove_slice(slice, |_| true);
        prop_assert_eq!(table.len() as usize, model.len() - taken.len());
        prop_assert_eq!(table.bytes_in(slice), 0);
    }
}
