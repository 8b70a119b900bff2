//! The store against a map that knows every version ever applied. Evictions are
//! the store's choice: the map only follows them, and checks that no bound falls.

use crate::common::*;
use proptest::prelude::*;
use std::collections::HashMap;
use trefoil_layout::Version;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Expected, Mutation, Outcome};
use trefoil_store::{Now, PolicyKind, Regions, Store, StoreConfig};

const KEY_COUNT: u32 = if cfg!(miri) { 10 } else { 60 };

#[derive(Debug, Clone)]
enum Step {
    Set {
        key: u32,
        len: usize,
        age: u64,
        ttl_ms: u64,
    },
    Erase {
        key: u32,
        age: u64,
    },
    Cas {
        key: u32,
        len: usize,
        age: u64,
        exact: bool,
    },
    Add {
        key: u32,
        len: usize,
        age: u64,
    },
    Lookup {
        key: u32,
    },
    Touch {
        slots: Vec<u32>,
    },
    Maintain {
        pause_ms: u64,
    },
    Limit {
        eighths: u64,
    },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let key = 0..KEY_COUNT;
    // How far below the newest version a mutation's version lies.
    let age = prop_oneof![3 => Just(0u64), 1 => 0u64..40];
    let len = prop_oneof![4 => 0usize..200, 2 => 200usize..1500, 1 => 1500usize..9000];
    let ttl_ms = prop_oneof![3 => Just(0u64), 1 => 1u64..3000];
    let step = prop_oneof![
        12 => (key.clone(), len.clone(), age.clone(), ttl_ms)
            .prop_map(|(key, len, age, ttl_ms)| Step::Set { key, len, age, ttl_ms }),
        3 => (key.clone(), age.clone()).prop_map(|(key, age)| Step::Erase { key, age }),
        3 => (key.clone(), len.clone(), age.clone(), any::<bool>())
            .prop_map(|(key, len, age, exact)| Step::Cas { key, len, age, exact }),
        2 => (key.clone(), len, age).prop_map(|(key, len, age)| Step::Add { key, len, age }),
        6 => key.prop_map(|key| Step::Lookup { key }),
        1 => proptest::collection::vec(prop_oneof![0u32..2000, any::<u32>()], 0..20)
            .prop_map(|slots| Step::Touch { slots }),
        2 => (0u64..1500).prop_map(|pause_ms| Step::Maintain { pause_ms }),
        1 => (4u64..=8).prop_map(|eighths| Step::Limit { eighths }),
    ];
    proptest::collection::vec(step, 1..if cfg!(miri) { 40 } else { 250 })
}

/// What is known of a key.
#[derive(Default, Clone)]
struct Known {
    /// Highest version applied: no bound is ever lower.
    newest: Version,
    /// What that version wrote; `None` for an erase.
    value: Option<(Vec<u8>, u64)>,
}

struct Model {
    store: Store,
    now: Now,
    issued: u64,
    keys: HashMap<u32, Known>,
    floors: HashMap<usize, Version>,
}

impl Model {
    fn key(number: u32) -> Vec<u8> {
        format!("key {number}{}", "-".repeat(number as usize % 40)).into_bytes()
    }

    fn version(&mut self, age: u64) -> Version {
        self.issued += 1;
        // Unique even when it is not the newest.
        let time = self.issued.saturating_sub(age);
        Version::new(START.unix_ns + time, self.issued, 0)
    }

    /// The version present, after checking that it is the newest applied one
    /// with its value and not expired.
    fn present(&self, number: u32) -> Option<Version> {
        let key = Self::key(number);
        let found = get_at(&self.store, self.now, &key);
        let known = self.keys.get(&number).cloned().unwrap_or_default();
        let (version, value) = found?;
        assert_eq!(version, known.newest, "{number}");
        let (expected, expiry_ms) = known.value.expect("erased, yet found");
        assert_eq!(value, expected);
        assert!(expiry_ms == 0 || expiry_ms > self.now.unix_ms());
        Some(version)
    }

    fn mutate(&mut self, number: u32, action: Action, version: Version, len: usize, ttl_ms: u64) {
        let key = Self::key(number);
        let value: Vec<u8> = (0..len)
            .map(|at| (version.client_id() as usize + at) as u8)
            .collect();
        let expiry_ms = if ttl_ms == 0 {
            0
        } else {
            self.now.unix_ms() + ttl_ms
        };
        let entry = DataEntry {
            key: &key,
            value: if action == Action::Erase { b"" } else { &value },
            expiry_ms,
            ..DataEntry::default()
        };
        // An expired entry is removed by the look, which only raises floors.
        let present = match action {
            Action::Cas(_) => self.present(number),
            _ => None,
        };
        let floor = self.store.floor(&key).unwrap().1;
        let known = self.keys.entry(number).or_default();
        let newest = known.newest;
        let mutation = Mutation {
            action,
            version,
            entry,
        };
        match self.store.mutate(self.now, &mutation).outcome {
            Outcome::Applied => {
                assert!(version >= newest, "{number}: {version:?} over {newest:?}");
                if let Action::Cas(expected) = action {
                    match expected {
                        Expected::Absent => assert_eq!(present, None),
                        Expected::Version(exact) => assert_eq!(present, Some(exact)),
                    }
                }
                let value = (action != Action::Erase).then_some((value, expiry_ms));
                *known = Known {
                    newest: version,
                    value,
                };
            }
            Outcome::Superseded { bound } => {
                assert!(!matches!(action, Action::Cas(_)));
                assert!(version < bound && bound >= newest);
                assert!(bound == newest || bound >= floor);
            }
            Outcome::Mismatch {
                present: seen,
                bound,
            } => {
                // Its own search for room may have evicted the key first.
                assert!(seen == present || seen.is_none());
                assert!(bound >= newest);
                match action {
                    Action::Cas(Expected::Absent) => assert!(seen.is_some() || version < bound),
                    Action::Cas(Expected::Version(exact)) => {
                        assert!(seen != Some(exact) || version <= bound);
                    }
                    _ => panic!("a mismatch of {action:?}"),
                }
            }
            Outcome::Rejected(rejection) => panic!("{rejection}"),
        }
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Set {
                key,
                len,
                age,
                ttl_ms,
            } => {
                let version = self.version(age);
                self.mutate(key, Action::Set, version, len, ttl_ms);
            }
            Step::Erase { key, age } => {
                let version = self.version(age);
                self.mutate(key, Action::Erase, version, 0, 0);
            }
            Step::Cas {
                key,
                len,
                age,
                exact,
            } => {
                let version = self.version(age);
                let newest = self.keys.get(&key).map_or(Version::ZERO, |k| k.newest);
                let expected = if exact { newest } else { Version::new(1, 1, 1) };
                let action = Action::Cas(Expected::Version(expected));
                self.mutate(key, action, version, len, 0);
            }
            Step::Add { key, len, age } => {
                let version = self.version(age);
                self.mutate(key, Action::Cas(Expected::Absent), version, len, 0);
            }
            Step::Lookup { key } => {
                self.present(key);
            }
            Step::Touch { ref slots } => {
                for partition in 0..self.store.partition_count() + 1 {
                    for window_id in [0, 2, 4, 6] {
                        self.store.touch(partition, window_id, slots);
                    }
                }
            }
            Step::Maintain { pause_ms } => {
                self.now.unix_ns += pause_ms * 1_000_000;
                self.store.maintain(self.now);
            }
            Step::Limit { eighths } => {
                let limit = self.store.regions().memory_max() * eighths / 8;
                self.store.set_memory_limit(limit);
            }
        }
        for number in 0..KEY_COUNT {
            let (partition, floor) = self.store.floor(&Self::key(number)).unwrap();
            let before = self.floors.insert(partition, floor).unwrap_or_default();
            assert!(floor >= before, "a floor fell");
        }
    }
}

fn run(config: StoreConfig, memory_max: u64, steps: &[Step]) {
    let mut model = Model {
        store: Store::new(config, Regions::heap(memory_max)).unwrap(),
        now: START,
        issued: 1000,
        keys: HashMap::new(),
        floors: HashMap::new(),
    };
    for (at, step) in steps.iter().enumerate() {
        model.step(step);
        if at % 16 == 0 {
            model.store.check().unwrap();
        }
    }
    model.store.check().unwrap();
    for number in 0..KEY_COUNT {
        model.present(number);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 3 } else { 200 }, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn follows_the_rules_whatever_is_evicted(
        steps in steps(),
        policy in proptest::sample::select(PolicyKind::ALL.to_vec()),
        partition_count in 1usize..=3,
        tombstone_count_max in 0usize..20,
        objects_max in proptest::option::of(1u64..40),
    ) {
        let memory_max = 128 * KIB;
        let config = StoreConfig {
            policy,
            tombstone_count_max,
            objects_max,
            ..config(memory_max, partition_count)
        };
        run(config, memory_max, &steps);
    }
}
