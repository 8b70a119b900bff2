//! A full replica's copy evicts what its source would: what was used lately stays.

use crate::common::{MIB, Random, config, set, version};
use std::collections::BTreeMap;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome, Rejection};
use trefoil_layout::{KeyHasher, Version};
use trefoil_region::HugePages;
use trefoil_store::{Access, Now, PLACES, Regions, Store};

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
    let regions = Regions::memfd("copied", MEMORY, HugePages::Off).unwrap();
    Store::new(config(MEMORY, PARTITIONS), regions).unwrap()
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
    for (version, recency, bytes) in page {
        let entry = DataEntry::decode(&bytes).unwrap();
        let mutation = Mutation {
            action: Action::Set,
            version,
            entry,
        };
        let outcome = copy.import(NOW, &mutation, recency).outcome;
        let is_known = matches!(outcome, Outcome::Superseded { .. });
        assert!(is_known || outcome == Outcome::Applied, "{outcome:?}");
    }
    next.unwrap()
}

/// A copy of the source, while clients go on.
fn copy_of(source: &Store, load: &mut Load, steps_at: fn(u64) -> u64) -> Store {
    let copy = store();
    copy.set_recovering(0, true);
    copy.keep_writes(0, version(load.writes));
    copy.reserve(0, source.bucket_count(0));
    while copy.maintain(NOW).more {}
    let mut from = 0;
    for page in 0.. {
        if from == PLACES.end {
            break;
        }
        from = copy_page(source, &copy, from);
        (0..steps_at(page)).for_each(|_| load.step(source, Some(&copy)));
        copy.maintain(NOW);
    }
    copy.reserve(0, 0);
    copy.set_recovering(0, false);
    copy
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
