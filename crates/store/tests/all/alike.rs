//! Full replicas hold the same: each evicts by itself, and hears of writes and
//! reads in an order of its own.

use crate::common::{MIB, Random, config, get, set};
use std::collections::{BTreeMap, BTreeSet};
use trefoil_layout::control;
use trefoil_layout::op::Outcome;
use trefoil_layout::{Placement, ShardMap};
use trefoil_region::HugePages;
use trefoil_store::{Access, Now, Regions, Store, StoreConfig};

const COPIES: usize = 3;
const MEMORY: u64 = 32 * MIB;
const PARTITIONS: usize = 9;
const KEYS: u64 = 200_000;
const STEPS: u64 = 400_000;
/// How far a replica may be behind another, in operations.
const BEHIND_MAX: u64 = 200;
const VALUE_LEN: usize = 1000;

/// Few keys are asked for often, most of them seldom.
fn key(dice: &mut Random) -> u64 {
    (KEYS as f64).powf(dice.unit()) as u64 - 1
}

#[derive(Clone, Copy)]
enum Told {
    Read(u64),
    Write(u64, u64),
}

/// A replica, and what it has not been told yet, by the step in which it is.
struct Replica {
    store: Store,
    waiting: BTreeMap<(u64, u64), Told>,
}

impl Replica {
    fn hear(&mut self, until: u64) {
        let later = self.waiting.split_off(&(until, 0));
        for told in std::mem::replace(&mut self.waiting, later).into_values() {
            match told {
                Told::Read(key) => self.touch(key),
                Told::Write(key, step) => {
                    let value = vec![key as u8; VALUE_LEN + (key % 64) as usize];
                    let outcome = set(&self.store, &name(key), &value, step);
                    assert!(!matches!(outcome, Outcome::Rejected(_)), "{outcome:?}");
                }
            }
        }
    }

    /// As those report it who have read the item at the other replicas.
    fn touch(&self, key: u64) {
        let store = &self.store;
        let hash = store.config().hasher.hash(&name(key));
        let shard = store.config().shards.local(hash).unwrap();
        let partition = hash.partition(shard, PARTITIONS / store.shard_count());
        let words = store.regions().control.words();
        let window = control::index_window(&words, partition).unwrap();
        let names = [hash.name(window.bucket_count)];
        let mut room = [0];
        let slots = store.slots_of(partition, window.window_id, &names, &mut room);
        store.touch(partition, window.window_id, slots);
    }

    fn holds(&self, key: u64) -> bool {
        let read = (self.store).read(now(0), &name(key), Access::Peek, |item| item.is_some());
        read.unwrap()
    }
}

fn replica(backend: u32) -> Store {
    let regions = Regions::memfd("alike", MEMORY, HugePages::Off).unwrap();
    let config = StoreConfig {
        shards: ShardMap::new(Placement::new(COPIES, COPIES as u32), backend),
        ..config(MEMORY, PARTITIONS)
    };
    Store::new(config, regions).unwrap()
}

fn now(step: u64) -> Now {
    Now::at(crate::common::START.unix_ns + step * 1_000)
}

fn name(key: u64) -> [u8; 8] {
    key.to_le_bytes()
}

#[test]
fn full_replicas_hold_the_same_whatever_order_they_hear_in() {
    let mut dice = Random(0x2545_F491_4F6C_DD1D);
    let mut replicas: Vec<Replica> = (0..COPIES as u32)
        .map(|backend| Replica {
            store: replica(backend),
            waiting: BTreeMap::new(),
        })
        .collect();
    for step in 1..=STEPS {
        let key = key(&mut dice);
        // What two replicas hold is a hit; anything else is written anew.
        let copies = replicas.iter().filter(|replica| replica.holds(key)).count();
        let told = match copies {
            0 | 1 => Told::Write(key, step),
            _ => Told::Read(key),
        };
        for replica in &mut replicas {
            let due = step + dice.below(BEHIND_MAX);
            replica.waiting.insert((due, step), told);
            replica.hear(step);
            if dice.below(500) == 0 {
                replica.store.maintain(now(step));
            }
        }
    }
    for replica in &mut replicas {
        replica.hear(u64::MAX);
    }
    let mut live = BTreeSet::new();
    let mut apart = 0;
    for key in 0..KEYS {
        let held: Vec<_> = (replicas.iter())
            .map(|replica| get(&replica.store, &name(key)).map(|(version, _)| version))
            .collect();
        if held.iter().any(Option::is_some) {
            live.insert(key);
            apart += u64::from(held.iter().any(|version| *version != held[0]));
        }
    }
    assert!(
        (live.len() as u64) < KEYS / 2,
        "{} keys: not full",
        live.len()
    );
    let share = apart as f64 / live.len() as f64;
    assert!(share < 0.01, "{apart} of {} keys", live.len());
}
