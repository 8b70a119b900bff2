//! A full replica's copy evicts what its source would: what was used lately stays.

use crate::common::{MIB, Random, config, set, version};
use std::collections::BTreeMap;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome, Rejection};
use trefoil_layout::{KeyHasher, Version};
use trefoil_region::HugePages;
use trefoil_store::{Access, MutationKind, Now, PLACES, Position, Recency, Regions, Store};

const MEMORY: u64 = 32 * MIB;
const PARTITIONS: usize = 9;
const KEYS: u64 = 90_000;
const VALUE_LEN: usize = 1000;
/// Bytes of data entries in a page of the copy.
const PAGE_LEN: usize = 512 << 10;
/// What was written lately must be there: one in so many of the items that fit.
const OWED_SHARE: u64 = 8;

const NOW: Now = crate::common::START;

fn store() -> Store {
    store_of(MEMORY)
}

fn store_of(memory: u64) -> Store {
    let regions = Regions::memfd("copied", memory, HugePages::Off).unwrap();
    Store::new(config(memory, PARTITIONS), regions).unwrap()
}

fn name(key: u64) -> [u8; 8] {
    key.to_le_bytes()
}

fn holds(store: &Store, key: u64) -> Option<Version> {
    store.held(KeyHasher::default().hash(&name(key)))
}

/// Few keys are asked for often, most of them seldom.
fn popular(dice: &mut Random) -> u64 {
    (KEYS as f64).powf(dice.unit()) as u64 - 1
}

/// What clients do, and when each key was written last.
struct Load {
    dice: Random,
    writes: u64,
    written: BTreeMap<u64, u64>,
}

impl Load {
    /// A key is asked for; what is not found is written, and now and then it is anyway.
    /// The source answers.
    fn step(&mut self, source: &Store, copy: Option<&Store>) {
        let key = popular(&mut self.dice);
        let found = source.read(NOW, &name(key), Access::Use, |item| item.is_some());
        if found.unwrap() && self.dice.below(20) > 0 {
            if let Some(copy) = copy {
                copy.read(NOW, &name(key), Access::Use, |_| ())
                    .unwrap_or(());
            }
            return;
        }
        self.writes += 1;
        self.written.insert(key, self.writes);
        let value = vec![key as u8; VALUE_LEN + (key % 64) as usize];
        assert_eq!(
            set(source, &name(key), &value, self.writes),
            Outcome::Applied
        );
        if let Some(copy) = copy {
            let outcome = set(copy, &name(key), &value, self.writes);
            let expected = match copy.is_recovering(0) {
                true => Outcome::Rejected(Rejection::Recovering),
                false => Outcome::Applied,
            };
            assert_eq!(outcome, expected);
        }
    }

    /// Keys that were written while no more than so many others were, of `stores` the last
    /// of which lacks them.
    fn lacking(&self, owed: u64, source: &Store, copy: &Store) -> Vec<u64> {
        let since = self.writes.saturating_sub(owed);
        let young = self.written.iter().filter(|(_, at)| **at > since);
        let lacks = |key: u64| {
            assert!(holds(source, key).is_some(), "the source has evicted {key}");
            holds(copy, key).is_none()
        };
        let mut ages: Vec<u64> = young
            .filter(|(key, _)| lacks(**key))
            .map(|(_, at)| self.writes - at)
            .collect();
        ages.sort_unstable();
        ages
    }
}

/// One page of the copy; where the next begins.
fn copy_page(source: &Store, copy: &Store, from: u64) -> u64 {
    let mut page = Vec::new();
    let next = source.export(NOW, 0, from..PLACES.end, PAGE_LEN, &mut |exported| {
        let mut bytes = Vec::new();
        exported.item.append_entry(&mut bytes);
        let len = bytes.len();
        page.push((exported.item.version, exported.recency, bytes));
        len
    });
    // What lies behind comes again.
    let next = next.unwrap();
    let hash = |entry: &DataEntry<'_>| KeyHasher::default().hash(entry.key);
    for (version, recency, bytes) in page {
        let entry = DataEntry::decode(&bytes).unwrap();
        if Position::place_of(hash(&entry)) >= next {
            continue;
        }
        let mutation = Mutation {
            action: Action::Set,
            version,
            entry,
        };
        let outcome = copy.import(NOW, &mutation, recency).outcome;
        let is_known = matches!(outcome, Outcome::Superseded { .. });
        assert!(is_known || outcome == Outcome::Applied, "{outcome:?}");
    }
    next
}

/// A copy of the source, while clients go on.
fn copy_of(source: &Store, load: &mut Load, steps_at: fn(u64) -> u64) -> Store {
    let copy = store();
    copy_into(&copy, source, load, steps_at);
    copy
}

fn copy_into(copy: &Store, source: &Store, load: &mut Load, steps_at: fn(u64) -> u64) {
    copy.set_recovering(0, true);
    copy.keep_writes(0, version(load.writes));
    copy.reserve(0, source.bucket_count(0));
    while copy.maintain(NOW).more {}
    let mut from = 0;
    for page in 0.. {
        if from == PLACES.end {
            break;
        }
        from = copy_page(source, copy, from);
        (0..steps_at(page)).for_each(|_| load.step(source, Some(copy)));
        copy.maintain(NOW);
    }
    copy.reserve(0, 0);
    copy.set_recovering(0, false);
}

fn item_count(store: &Store) -> u64 {
    (0..KEYS).filter(|key| holds(store, *key).is_some()).count() as u64
}

/// Clients take so many steps after each page. In the end no more than a share of the items
/// may be apart.
fn check(steps_at: fn(u64) -> u64, apart_max: f64) {
    let mut load = Load {
        dice: Random(0x2545_F491_4F6C_DD1D),
        writes: 0,
        written: BTreeMap::new(),
    };
    let source = store();
    (0..400_000).for_each(|_| load.step(&source, None));
    let items = item_count(&source);
    assert!(items < KEYS / 2, "{items} items: not full");
    let copy = copy_of(&source, &mut load, steps_at);
    let owed = items / OWED_SHARE;
    let apart = |source: &Store, copy: &Store| {
        let differ = |key: &u64| holds(source, *key) != holds(copy, *key);
        (0..KEYS).filter(differ).count()
    };
    assert_eq!(
        load.lacking(owed, &source, &copy),
        [0; 0],
        "at once, of {owed}"
    );
    // Each evicts by itself from now on.
    for round in 0..20 {
        (0..5_000).for_each(|_| load.step(&source, Some(&copy)));
        let lacking = load.lacking(owed, &source, &copy);
        assert_eq!(lacking, [0; 0], "after {round}, of {owed}");
    }
    let share = apart(&source, &copy) as f64 / items as f64;
    assert!(share < apart_max, "{share} of {items}");
}

#[test]
fn a_copy_of_a_full_store_evicts_as_its_source_does() {
    check(|_| 0, 0.01);
}

#[test]
fn so_does_one_that_was_made_while_clients_wrote() {
    // It does not hear of uses while it recovers.
    check(|_| 300, 0.05);
}

#[test]
fn so_does_one_for_which_clients_wrote_before_there_was_much() {
    check(|page| if page < 3 { 5000 } else { 0 }, 0.05);
}

/// How each item of a store was used: whether again, and how long ago.
fn uses(store: &Store) -> BTreeMap<u64, (bool, u16)> {
    let mut uses = BTreeMap::new();
    let mut key = Vec::new();
    let next = store.export(NOW, 0, PLACES, usize::MAX, &mut |exported| {
        key.clear();
        exported.item.append_key(&mut key);
        let bits = exported.recency.bits();
        let number = u64::from_le_bytes(key[..].try_into().unwrap());
        uses.insert(number, (bits & 1 << 2 != 0, bits >> 4));
        1
    });
    assert_eq!(next, Some(PLACES.end));
    uses
}

/// A recovering store that is full leaves out what would be the first to leave, and only
/// that; so it keeps what a store of its size would keep, and installs less than everything.
fn check_small(share: u64) {
    let mut load = Load {
        dice: Random(0x1234_5678_9ABC_DEF1),
        writes: 0,
        written: BTreeMap::new(),
    };
    let source = store();
    (0..400_000).for_each(|_| load.step(&source, None));
    let copy = store_of(MEMORY / share);
    copy_into(&copy, &source, &mut load, |_| 0);
    let (held, kept) = (uses(&source), uses(&copy));
    let counts = copy.stats().counts;
    let installed = counts.mutations[MutationKind::Load as usize].applied;
    let (all, fits) = (held.len() as f64, kept.len() as f64);
    println!(
        "{all} held, {fits} fit, {installed} installed, {} left out, {} evicted",
        counts.copies_skipped, counts.evicted_capacity
    );
    assert_eq!(installed + counts.copies_skipped, held.len() as u64);
    // Of items that come in no order of use, the n-th is among the hottest K with a chance
    // of K / n.
    let expected = fits * (1.0 + (all / fits).ln());
    assert!(
        (installed as f64) < 1.1 * expected,
        "{installed} of {expected}"
    );
    // What is not there is no hotter than what is, but for the few that were the coldest
    // when they were evicted together with others.
    for again in [false, true] {
        let of = |uses: &BTreeMap<u64, (bool, u16)>| -> Vec<u16> {
            let ages = uses.values().filter(|(of, _)| *of == again);
            ages.map(|(_, age)| *age).collect()
        };
        let mut ages = of(&kept);
        ages.sort_unstable();
        let Some(coldest) = ages.get(ages.len() * 98 / 100) else {
            continue;
        };
        let missing = held
            .iter()
            .filter(|(key, (of, age))| *of == again && age < coldest && !kept.contains_key(key));
        let missing = missing.count();
        assert!(
            missing * 10 <= kept.len(),
            "{again}: {missing} are hotter than {coldest}"
        );
    }
    // And nothing is left out of a key of which something is known, or above the floor.
    let left_out: Vec<u64> = held
        .keys()
        .filter(|k| !kept.contains_key(k))
        .copied()
        .collect();
    let of = |key: u64| KeyHasher::default().hash(&name(key));
    let cold = Recency::from_bits(3000 << 4);
    let skips = |key: &u64, at| copy.skips_copy(of(*key), version(at), cold);
    copy.set_recovering(0, true);
    assert!(left_out.iter().any(|key| skips(key, 1)));
    let above = load.writes + 1;
    assert!(
        !left_out.iter().any(|key| skips(key, above)),
        "above the floor"
    );
    assert!(!kept.keys().any(|key| skips(key, 1)), "known");
    let hot = |key: &u64| copy.skips_copy(of(*key), version(1), Recency::default());
    assert!(!left_out.iter().any(hot), "as new as anything");
    copy.set_recovering(0, false);
    assert!(!left_out.iter().any(|key| skips(key, 1)), "it serves");
}

#[test]
fn what_a_full_store_would_evict_next_is_not_copied() {
    check_small(2);
}

#[test]
fn nor_is_it_if_little_fits() {
    check_small(4);
}

/// A process with much less memory than the one it copies from is asked to make its index as
/// large beforehand. Whatever it makes of that, a value has room afterwards.
#[test]
fn an_index_that_was_asked_for_beforehand_leaves_room_for_values() {
    for partitions in [3, 6] {
        for buckets in 1..200 {
            let regions = Regions::heap(96 << 10);
            let store = Store::new(config(96 << 10, partitions), regions).unwrap();
            store.reserve(0, buckets);
            for _ in 0..32 {
                store.maintain(NOW);
            }
            store.reserve(0, 0);
            for _ in 0..32 {
                store.maintain(NOW);
            }
            let outcome = set(&store, b"key", b"value", 1);
            assert_eq!(outcome, Outcome::Applied, "{partitions} {buckets}");
        }
    }
}
