//! A scan over three real stores, with questions answered on the spot and counted.

use std::ops::Range;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Ack, Action, Mutation, Outcome, Rejection};
use trefoil_layout::{KeyHash, KeyHasher, Placement, ShardMap, Version, epoch};
use trefoil_recovery::Data;
use trefoil_recovery::scan::{Counts, Ended, Limits, Question, Reply, Scan, answer, just_above};
use trefoil_store::{KeyState, Now, Regions, Store, StoreConfig};

/// The pause between two looks, and from when on something is at rest.
const LIMITS: Limits = Limits {
    pause_ns: 1_000_000_000,
    rest_ns: 500_000_000,
};
const BEGIN_NS: u64 = 1_700_000_000_000_000_000;

/// Versions are nominated so long before the scan.
const AGE_NS: u64 = 60_000_000_000;

fn version(n: u64) -> Version {
    Version::new(BEGIN_NS - AGE_NS + n, 7, 0)
}

/// A cohort, all three of which live.
pub(crate) struct Trio {
    stores: [Store; 3],
    local: [usize; 3],
    keys: Vec<String>,
    value: String,
    time_ns: u64,
    /// Done once, when the first suspects wait for their second look.
    pub(crate) meanwhile: Option<fn(&mut Trio)>,
    /// Bytes of digests, keys' words and states, and of values, as they cross between
    /// two replicas: what the first asks of itself crosses nothing.
    scan_bytes: u64,
    value_bytes: u64,
    /// Bytes of the longest answer.
    answer_len_max: u64,
    questions: u64,
    /// Of versions that a scan has nominated.
    sequence: u32,
}

impl Trio {
    pub(crate) fn new(count: usize) -> Self {
        Self::with_config(count, |config| config)
    }

    fn with_config(count: usize, change: impl Fn(StoreConfig) -> StoreConfig) -> Self {
        let placement = Placement::new(3, 3);
        let limit = (count as u64 * 400).max(16 << 20);
        let store = |number| {
            let config = change(StoreConfig {
                // Another number at each: a place is the same at all.
                partition_count: 3 * (1 + number as usize),
                shards: ShardMap::new(placement, number),
                incarnation: u64::from(number) + 1,
                memory_limit: limit,
                ..StoreConfig::default()
            });
            let memory = config.memory_limit;
            Store::new(config, Regions::heap(memory)).unwrap()
        };
        let is_in = |key: &String| placement.first(KeyHasher::default().hash(key.as_bytes())) == 0;
        let keys = (0..).map(|n| format!("key {n}")).filter(is_in);
        Trio {
            stores: [0, 1, 2].map(store),
            local: [0, 1, 2].map(|number| ShardMap::new(placement, number).local_of(0).unwrap()),
            keys: keys.take(count).collect(),
            value: "value".to_owned(),
            time_ns: BEGIN_NS,
            meanwhile: None,
            scan_bytes: 0,
            value_bytes: 0,
            answer_len_max: 0,
            questions: 0,
            sequence: 0,
        }
    }

    fn now(&self) -> Now {
        Now::at(self.time_ns)
    }

    fn mutate(&self, replica: usize, key: usize, action: Action, n: u64) -> Outcome {
        let value = match action {
            Action::Erase => "",
            _ => &self.value,
        };
        let mutation = Mutation {
            action,
            version: version(n),
            entry: DataEntry {
                key: self.keys[key].as_bytes(),
                value: value.as_bytes(),
                ..DataEntry::default()
            },
        };
        self.stores[replica].mutate(self.now(), &mutation).outcome
    }

    pub(crate) fn set_at(&mut self, replicas: &[usize], keys: Range<usize>, n: u64) {
        for key in keys {
            for replica in replicas {
                let outcome = self.mutate(*replica, key, Action::Set, n);
                assert_eq!(outcome, Outcome::Applied);
            }
            if key.is_multiple_of(1000) {
                for replica in replicas {
                    while self.stores[*replica].maintain(self.now()).more {}
                }
            }
        }
    }

    fn erase_at(&self, replicas: &[usize], key: usize, n: u64) {
        for replica in replicas {
            let outcome = self.mutate(*replica, key, Action::Erase, n);
            assert_eq!(outcome, Outcome::Applied);
        }
    }

    fn hash(&self, key: usize) -> KeyHash {
        KeyHasher::default().hash(self.keys[key].as_bytes())
    }

    fn held(&self, key: usize) -> [Option<Version>; 3] {
        let hash = self.hash(key);
        [0, 1, 2].map(|replica| self.stores[replica].held(hash))
    }

    fn bounds(&self, key: usize) -> [Version; 3] {
        let hash = self.hash(key);
        [0, 1, 2].map(|replica| self.stores[replica].bound(hash).unwrap())
    }

    fn are_clean(&self) -> bool {
        (0..self.keys.len()).all(|key| {
            let [a, b, c] = self.held(key);
            a == b && b == c
        })
    }

    pub(crate) fn scan(&mut self) -> Counts {
        let mut scan = Scan::from(KeyHasher::default(), LIMITS, 0);
        assert_eq!(self.run(&mut scan), Ended::Through);
        assert_eq!(scan.backlog(), 0);
        scan.counts()
    }

    fn scan_keys(&mut self, keys: &[usize]) -> Counts {
        let keys = keys.iter().map(|key| self.hash(*key)).collect();
        let mut scan = Scan::of_keys(KeyHasher::default(), LIMITS, keys);
        assert_eq!(self.run(&mut scan), Ended::Through);
        scan.counts()
    }

    fn run(&mut self, scan: &mut Scan<Vec<u8>>) -> Ended {
        loop {
            if let Some(ended) = scan.ended() {
                return ended;
            }
            if let Some(until_ns) = scan.waits_until_ns() {
                if let Some(meanwhile) = self.meanwhile.take() {
                    meanwhile(self);
                }
                self.time_ns = self.time_ns.max(until_ns);
                scan.wake(self.now());
            }
            if let Some(above) = scan.wants_version_above() {
                self.sequence += 1;
                scan.nominated(just_above(above, 9, self.sequence));
            }
            for replica in 0..3 {
                if let Some(question) = scan.ask(replica) {
                    let (store, shard) = (&self.stores[replica], self.local[replica]);
                    let reply = answer(store, self.now(), shard, &question);
                    self.count(replica, &question, &reply);
                    scan.answer(replica, reply, self.now()).unwrap();
                }
            }
            self.time_ns += 1000;
        }
    }

    fn count(&mut self, replica: usize, question: &Question<Vec<u8>>, reply: &Reply<Vec<u8>>) {
        if replica == 0 {
            return;
        }
        let data = |data: &Data<Vec<u8>>| match data {
            Data::Whole(bytes) | Data::Long { key: bytes } => bytes.len() as u64,
        };
        // What frames a call and its answer.
        let frame = 64;
        let (asked, of_value) = match question {
            Question::Begin => (0, 0),
            Question::Digests { starts, .. } | Question::Held { starts, .. } => {
                (8 * starts.len(), 0)
            }
            Question::States { keys } => (16 * keys.len(), 0),
            Question::Item { .. } => (32, 0),
            Question::Mutate(order) => (32, data(&order.item)),
        };
        let (answered, more_of_value) = match reply {
            Reply::Begin { .. } => (16, 0),
            Reply::Digests { sums, .. } => (8 * sums.len(), 0),
            Reply::Held { held, .. } => (32 * held.len(), 0),
            Reply::States { states, .. } => (40 * states.len(), 0),
            Reply::Item(item) => (0, item.as_ref().map_or(0, data)),
            Reply::Ack(_) => (16, 0),
        };
        self.questions += 1;
        self.scan_bytes += frame + (asked + answered) as u64;
        self.value_bytes += of_value + more_of_value;
        self.answer_len_max = self.answer_len_max.max(answered as u64);
    }
}

#[test]
fn a_clean_shard_costs_a_thousandth_of_a_kilobyte_a_key() {
    let mut trio = Trio::new(100_000);
    trio.set_at(&[0, 1, 2], 0..100_000, 10);
    let counts = trio.scan();
    assert_eq!(
        counts,
        Counts {
            items: 100_000,
            ..Counts::default()
        }
    );
    // Of 1,000 bytes a key: far less than a thousandth.
    assert!(trio.scan_bytes < 100_000 / 10, "{} bytes", trio.scan_bytes);
    assert_eq!(trio.value_bytes, 0);
}

#[test]
fn each_kind_of_difference_is_made_to_agree_as_its_rule_has_it() {
    let mut trio = Trio::new(5_000);
    trio.set_at(&[0, 1, 2], 0..5_000, 10);
    // Missed by each replica in turn.
    trio.set_at(&[1, 2], 0..1, 20);
    trio.set_at(&[0, 2], 1..2, 20);
    trio.set_at(&[0, 1], 2..3, 20);
    // An erasure that the third has missed.
    trio.erase_at(&[1, 2], 3, 20);
    // What reached one alone: newer than what two hold, and with nothing at the others.
    trio.set_at(&[2], 4..5, 20);
    trio.erase_at(&[0], 5, 20);
    trio.erase_at(&[0, 1], 6, 20);
    trio.erase_at(&[2], 6, 21);
    trio.set_at(&[1], 6..7, 30);
    // Three different ones.
    trio.set_at(&[1], 7..8, 20);
    trio.set_at(&[2], 7..8, 30);
    let counts = trio.scan();
    assert!(trio.are_clean());
    assert_eq!(trio.held(0), [Some(version(20)); 3]);
    assert_eq!(trio.held(1), [Some(version(20)); 3]);
    assert_eq!(trio.held(2), [Some(version(20)); 3]);
    assert_eq!(trio.held(3), [None; 3]);
    assert_eq!(trio.bounds(3), [version(20); 3], "at its own version");
    // What two agreed on, at a fresh version: just above what the third knew.
    for key in [4, 5] {
        let [held, ..] = trio.held(key);
        assert!(
            held.is_some_and(|held| held > version(20) && held < version(30)),
            "{held:?}"
        );
    }
    assert_eq!(trio.held(6), [None; 3]);
    assert_eq!(trio.held(7), [None; 3]);
    let expected = Counts {
        items: 4_999,
        suspects: 8,
        dirty: 5,
        inquorate: 3,
        installed: 3,
        erased: 1,
        renewed: 2,
        evicted: 2,
        ..Counts::default()
    };
    assert_eq!(counts, expected);
    // And then it is clean.
    let again = trio.scan();
    assert_eq!(again.suspects, 0);
    for store in &trio.stores {
        assert_eq!(store.check(), Ok(()));
    }
}

#[test]
fn a_hundredth_of_the_keys_is_repaired_at_three_hundredths_of_the_bytes() {
    let count = 50_000;
    let mut trio = Trio::new(count);
    trio.value = "v".repeat(100);
    trio.set_at(&[0, 1, 2], 0..count, 10);
    for key in 0..count / 100 {
        let lacks = key % 3;
        let others: Vec<usize> = (0..3).filter(|replica| *replica != lacks).collect();
        trio.set_at(&others, key * 100..key * 100 + 1, 20);
    }
    let counts = trio.scan();
    assert_eq!(counts.installed, count as u64 / 100);
    assert!(trio.are_clean());
    // Beside the values themselves, of which each crosses once; with values of 1,000
    // bytes they are a hundredth of all.
    let scan_share = trio.scan_bytes as f64 / (count as f64 * 1000.0);
    assert!(scan_share < 0.015, "{scan_share}");
    let values = trio.value_bytes / counts.installed;
    assert!(values < 100 + 64, "{values} bytes for each");
    assert!(trio.answer_len_max < 64 << 10, "{}", trio.answer_len_max);
}

#[test]
fn keys_that_are_being_written_do_not_count() {
    let mut trio = Trio::new(2_000);
    trio.set_at(&[0, 1, 2], 0..2_000, 10);
    trio.set_at(&[0], 0..100, 20);
    trio.meanwhile = Some(|trio| {
        // The messages to the others arrive; some keys are written again.
        trio.set_at(&[1, 2], 0..100, 20);
        trio.set_at(&[0, 1], 0..10, 30);
    });
    let counts = trio.scan();
    assert_eq!((counts.suspects, counts.changed), (100, 100));
    assert_eq!(
        (counts.dirty, counts.inquorate, counts.installed),
        (0, 0, 0)
    );
}

#[test]
fn named_keys_get_two_looks_and_no_walk() {
    let mut trio = Trio::new(20_000);
    trio.set_at(&[0, 1, 2], 0..20_000, 10);
    trio.set_at(&[0, 1], 5..7, 20);
    let counts = trio.scan_keys(&[4, 5]);
    assert_eq!((counts.suspects, counts.installed), (1, 1));
    assert_eq!(trio.held(5), [Some(version(20)); 3]);
    assert_eq!(trio.held(6)[2], Some(version(10)), "nobody has named it");
    assert!(trio.scan_bytes < 2_000, "{}", trio.scan_bytes);
}

#[test]
fn what_may_be_on_its_way_is_left_alone() {
    let mut trio = Trio::new(100);
    // Half a second before the second look.
    let young = AGE_NS + LIMITS.pause_ns;
    trio.set_at(&[1], 0..1, young);
    let counts = trio.scan();
    assert_eq!((counts.suspects, counts.left, counts.evicted), (1, 1, 0));
    assert_eq!(trio.held(0), [None, Some(version(young)), None]);
}

#[test]
fn a_full_replica_gets_back_nothing_that_it_has_evicted() {
    let mut trio = Trio::with_config(6_000, |config| StoreConfig {
        objects_max: match config.incarnation {
            // It has room for a third fewer.
            3 => Some(4_000),
            _ => None,
        },
        ..config
    });
    trio.set_at(&[0, 1, 2], 0..6_000, 10);
    let evictions = |trio: &Trio| trio.stores[2].stats().counts.evicted_capacity;
    let before = evictions(&trio);
    assert!(before > 1_000, "{before}");
    for _ in 0..3 {
        let counts = trio.scan();
        assert_eq!(counts.full, counts.suspects);
        assert_eq!(counts.installed + counts.renewed + counts.evicted, 0);
    }
    assert_eq!(evictions(&trio), before);
    // What was written since, and missed, comes: once.
    trio.set_at(&[0, 1], 0..50, 20);
    let counts = trio.scan();
    assert_eq!(counts.installed, 50);
    assert_eq!(trio.scan().installed, 0);
    assert!(evictions(&trio) <= before + 50);
}

#[test]
fn a_replica_that_recovers_ends_it_and_nothing_is_done() {
    let mut trio = Trio::new(1_000);
    trio.set_at(&[0, 1], 0..1_000, 10);
    trio.stores[2].set_recovering(trio.local[2], true);
    let mut scan = Scan::from(KeyHasher::default(), LIMITS, 0);
    assert_eq!(trio.run(&mut scan), Ended::Interrupted);
    assert_eq!(scan.counts().installed, 0);
    // Or later.
    trio.stores[2].set_recovering(trio.local[2], false);
    trio.meanwhile = Some(|trio| trio.stores[2].set_recovering(trio.local[2], true));
    let mut scan = Scan::from(KeyHasher::default(), LIMITS, 0);
    assert_eq!(trio.run(&mut scan), Ended::Interrupted);
    assert_eq!(scan.counts().installed, 0);
    assert_eq!(scan.place(), 0, "where another one goes on");
}

#[test]
fn many_differences_are_settled_a_part_at_a_time() {
    let mut trio = Trio::new(30_000);
    trio.set_at(&[0, 1, 2], 0..30_000, 10);
    trio.set_at(&[0, 1], 0..30_000, 20);
    let mut scan = Scan::from(KeyHasher::default(), LIMITS, 0);
    assert_eq!(trio.run(&mut scan), Ended::Through);
    assert_eq!(scan.counts().installed, 30_000);
    assert!(trio.are_clean());
}

#[test]
fn a_cas_that_meets_a_write_fails_and_leaves_nothing_behind() {
    let mut trio = Trio::new(10);
    trio.set_at(&[0, 1, 2], 0..10, 10);
    trio.set_at(&[2], 0..1, 20);
    let mut scan = Scan::from(KeyHasher::default(), LIMITS, 0);
    // Until the CAS is under way at the first.
    while scan.ended().is_none() {
        if let Some(until_ns) = scan.waits_until_ns() {
            trio.time_ns = trio.time_ns.max(until_ns);
            scan.wake(trio.now());
        }
        if let Some(above) = scan.wants_version_above() {
            scan.nominated(Version::new(above.time_ns + 5, 9, 0));
            // Meanwhile somebody writes it at the second.
            trio.set_at(&[1], 0..1, 22);
        }
        for replica in 0..3 {
            if let Some(question) = scan.ask(replica) {
                let (store, shard) = (&trio.stores[replica], trio.local[replica]);
                let reply = answer(store, trio.now(), shard, &question);
                scan.answer(replica, reply, trio.now()).unwrap();
            }
        }
    }
    let counts = scan.counts();
    assert_eq!((counts.renewed, counts.left), (0, 1));
    assert_eq!(trio.held(0), [None, Some(version(22)), Some(version(20))]);
}

/// The second of a pair stands still for a while when it is asked to take the CAS: whether
/// all three hold the value in the end.
pub(crate) fn is_held_after_it_was_put_off(rejection: Rejection) -> bool {
    let mut trio = Trio::new(10);
    trio.set_at(&[0, 1], 0..1, 10);
    trio.erase_at(&[2], 0, 20);
    let mut scan = Scan::from(KeyHasher::default(), LIMITS, 0);
    let mut put_off = 0;
    while scan.ended().is_none() {
        if let Some(until_ns) = scan.waits_until_ns() {
            trio.time_ns = trio.time_ns.max(until_ns);
            scan.wake(trio.now());
        }
        if let Some(above) = scan.wants_version_above() {
            scan.nominated(just_above(above, 9, 1));
        }
        for replica in 0..3 {
            let Some(question) = scan.ask(replica) else {
                continue;
            };
            let (store, shard) = (&trio.stores[replica], trio.local[replica]);
            let is_cas = matches!(&question, Question::Mutate(order)
                    if matches!(order.action, Action::Cas(_)));
            let reply = match is_cas && replica == 1 && put_off < 5 {
                true => {
                    put_off += 1;
                    Reply::Ack(Ack {
                        epoch: 1,
                        outcome: Outcome::Rejected(rejection),
                    })
                }
                false => answer(store, trio.now(), shard, &question),
            };
            scan.answer(replica, reply, trio.now()).unwrap();
        }
    }
    let [one, two, three] = trio.held(0);
    one.is_some() && one == two && two == three
}

#[test]
fn a_cas_that_is_put_off_is_put_again_and_a_value_with_a_quorum_stays() {
    for rejection in [
        Rejection::UnknownConfig,
        Rejection::StaleConfig,
        Rejection::WrongShard,
        Rejection::NoMemory,
        Rejection::ClockAhead,
    ] {
        assert!(is_held_after_it_was_put_off(rejection), "{rejection:?}");
    }
}

/// A flush of the moment at which a value is stored anew covers it, whoever hears of it last.
#[test]
fn what_is_stored_anew_lies_below_a_flush_of_this_moment() {
    let mut trio = Trio::new(10);
    trio.set_at(&[0, 1], 0..1, 10);
    trio.erase_at(&[2], 0, 20);
    let flushed = Version::of_flush(trio.time_ns);
    assert_eq!(trio.scan().renewed, 1);
    assert!(trio.held(0)[0].unwrap() <= flushed);
    for store in &trio.stores {
        store.raise_flush_floor(flushed);
        assert_eq!(
            store.key_state(trio.now(), trio.hash(0)).unwrap().held,
            None
        );
    }
}

/// Keys are named all the time: what a scan was begun for ends all the same.
#[test]
fn a_scan_of_named_keys_takes_no_others() {
    let mut trio = Trio::new(3_000);
    trio.set_at(&[0, 1, 2], 0..3_000, 10);
    let mut scan = Scan::<Vec<u8>>::of_keys(KeyHasher::default(), LIMITS, vec![trio.hash(1)]);
    assert!(!scan.takes_names());
    assert_eq!(trio.run(&mut scan), Ended::Through);
    // One of all places takes them until its walk is over, and no more at a time than were
    // named together.
    let mut scan = Scan::<Vec<u8>>::from(KeyHasher::default(), LIMITS, 0);
    assert!(scan.takes_names());
    scan.name(vec![trio.hash(1)]);
    assert!(!scan.takes_names());
    assert_eq!(trio.run(&mut scan), Ended::Through);
    assert!(!scan.takes_names());
}

/// A value that cannot be brought to the one that lacks it does not keep the rest from being
/// repaired.
#[test]
fn a_job_without_an_answer_is_left_and_the_scan_goes_on() {
    let mut trio = Trio::new(100);
    trio.set_at(&[0, 1], 0..3, 10);
    let mut scan = Scan::from(KeyHasher::default(), LIMITS, 0);
    let mut lost = 0;
    while scan.ended().is_none() {
        if let Some(until_ns) = scan.waits_until_ns() {
            trio.time_ns = trio.time_ns.max(until_ns);
            scan.wake(trio.now());
        }
        for replica in 0..3 {
            let Some(question) = scan.ask(replica) else {
                continue;
            };
            if matches!(question, Question::Mutate(_)) && lost == 0 {
                lost += 1;
                assert!(scan.unanswered(trio.now()));
                continue;
            }
            let (store, shard) = (&trio.stores[replica], trio.local[replica]);
            let reply = answer(store, trio.now(), shard, &question);
            scan.answer(replica, reply, trio.now()).unwrap();
        }
    }
    assert_eq!(scan.ended(), Some(Ended::Through));
    let counts = scan.counts();
    assert_eq!((counts.installed, counts.left), (2, 1));
    // Anything else ends it.
    let mut scan = Scan::<Vec<u8>>::from(KeyHasher::default(), LIMITS, 0);
    assert!(scan.ask(0).is_some() && !scan.unanswered(trio.now()));
}

/// A replica whose clock was wrong once, or that has lost its senses, says that it knows of
/// one key what no clock explains. That key is left; the others are repaired.
#[test]
fn a_key_of_which_a_version_cannot_be_is_left_and_the_rest_is_repaired() {
    let last = Version {
        time_ns: u64::MAX,
        origin: u64::MAX,
    };
    let far = Version::new(BEGIN_NS + 3_600_000_000_000, 7, 0);
    type Lie = fn(&mut KeyState, Version);
    let lies: [Lie; 3] = [
        |state, version| state.bound = version,
        |state, version| (state.held, state.bound) = (Some(version), version),
        |state, version| state.flushed = version,
    ];
    for told in [far, last] {
        for lie in lies {
            let mut trio = Trio::new(100);
            trio.set_at(&[0, 1, 2], 0..100, 10);
            trio.set_at(&[0, 1], 3..5, 20);
            let named = vec![trio.hash(3), trio.hash(4)];
            let mut scan = Scan::of_keys(KeyHasher::default(), LIMITS, named);
            while scan.ended().is_none() {
                if let Some(until_ns) = scan.waits_until_ns() {
                    trio.time_ns = trio.time_ns.max(until_ns);
                    scan.wake(trio.now());
                }
                assert_eq!(scan.wants_version_above(), None);
                for replica in 0..3 {
                    let Some(question) = scan.ask(replica) else {
                        continue;
                    };
                    let (store, shard) = (&trio.stores[replica], trio.local[replica]);
                    let mut reply = answer(store, trio.now(), shard, &question);
                    if let (2, Reply::States { states, .. }) = (replica, &mut reply) {
                        lie(&mut states[0], told);
                    }
                    scan.answer(replica, reply, trio.now()).unwrap();
                }
            }
            let counts = scan.counts();
            assert_eq!((counts.installed, counts.left, counts.renewed), (1, 1, 0));
            assert_eq!(trio.held(4), [Some(version(20)); 3]);
        }
    }
}

/// Whoever nominates versions has none above the last one: the key is left, and nobody is
/// asked for a version again and again.
#[test]
fn a_job_for_which_there_is_no_version_ends() {
    let mut trio = Trio::new(100);
    trio.set_at(&[0, 1], 0..1, 10);
    trio.erase_at(&[2], 0, 20);
    let mut scan = Scan::from(KeyHasher::default(), LIMITS, 0);
    let mut wanted = 0;
    while scan.ended().is_none() {
        if let Some(until_ns) = scan.waits_until_ns() {
            trio.time_ns = trio.time_ns.max(until_ns);
            scan.wake(trio.now());
        }
        if let Some(above) = scan.wants_version_above() {
            wanted += 1;
            assert_eq!(wanted, 1, "it is asked for again");
            scan.nominated(above);
        }
        for replica in 0..3 {
            if let Some(question) = scan.ask(replica) {
                let (store, shard) = (&trio.stores[replica], trio.local[replica]);
                let reply = answer(store, trio.now(), shard, &question);
                scan.answer(replica, reply, trio.now()).unwrap();
            }
        }
    }
    assert_eq!(scan.ended(), Some(Ended::Through));
    assert_eq!((wanted, scan.counts().left), (1, 1));
}

/// The walk is paced by how many items there are: one replica's word is not enough for any
/// number.
#[test]
fn a_number_of_items_that_cannot_be_is_not_believed() {
    let items = |said: [u64; 3]| {
        let mut scan = Scan::<Vec<u8>>::from(KeyHasher::default(), LIMITS, 0);
        for (replica, items) in said.into_iter().enumerate() {
            assert_eq!(scan.ask(replica), Some(Question::Begin));
            let reply = Reply::Begin { epoch: 1, items };
            scan.answer(replica, reply, Now::at(BEGIN_NS)).unwrap();
        }
        scan.counts().items
    };
    const MANY: u64 = 1_000_000;
    // It has most that has most; whoever scans knows what it holds itself.
    assert_eq!(items([MANY, MANY - 3, MANY + 3]), MANY + 3);
    assert_eq!(items([MANY, 0, 0]), MANY);
    assert_eq!(items([0, MANY, MANY]), MANY);
    assert_eq!(items([MANY / 10, 0, MANY]), MANY);
    for liar in [1, 2] {
        let mut said = [MANY; 3];
        said[liar] = u64::MAX;
        assert_eq!(items(said), 16 * MANY, "{liar}");
    }
    assert!(items([MANY, u64::MAX, u64::MAX]) <= 1 << 40);
}

#[test]
fn nonsense_is_an_error_or_no_vote() {
    let trio = Trio::new(1);
    let of = |question: &Question<Vec<u8>>| answer(&trio.stores[0], trio.now(), 0, question);
    for (starts, len, parts) in [
        (vec![0], 0, 1),
        (vec![u64::MAX], 16, 1),
        (vec![0], 16, 0),
        (vec![0], 16, 3),
        (vec![0; 300], 16, 16),
    ] {
        let question = Question::Digests { starts, len, parts };
        assert!(matches!(of(&question), Reply::Digests { epoch: 0, .. }));
    }
    let mut scan = Scan::<Vec<u8>>::from(KeyHasher::default(), LIMITS, 0);
    for replica in 0..3 {
        assert_eq!(scan.ask(replica), Some(Question::Begin));
    }
    let begin = |items| Reply::Begin { epoch: 1, items };
    scan.answer(0, begin(1), trio.now()).unwrap();
    scan.answer(1, begin(1), trio.now()).unwrap();
    assert!(scan.answer(2, Reply::Item(None), trio.now()).is_err());
}

/// One of a pair does not answer when it is asked to take the CAS, whether it has taken it or
/// not: the value has no quorum until it is asked again, in this scan or the next.
#[test]
fn a_cas_of_which_the_answer_is_lost_is_put_again() {
    for (pair, third) in [([0, 1], 2), ([1, 2], 0)] {
        for silent in pair {
            for (has_arrived, lost_max) in [(true, 1), (false, 1), (true, 9), (false, 9)] {
                let mut trio = Trio::new(10);
                trio.set_at(&pair, 0..1, 10);
                trio.erase_at(&[third], 0, 20);
                let scans = scans_until_through(&mut trio, silent, has_arrived, lost_max);
                assert_eq!(scans > 1, lost_max > 1, "{scans}");
                let [one, two, three] = trio.held(0);
                let is_whole = one.is_some() && one == two && two == three;
                assert!(
                    is_whole,
                    "{:?} {pair:?} {silent} {has_arrived}",
                    trio.held(0)
                );
            }
        }
    }
}

/// A key of which the CAS is never answered keeps no other one from being repaired.
#[test]
fn a_cas_that_is_never_answered_is_left_in_the_end() {
    let mut trio = Trio::new(10);
    trio.set_at(&[0, 1], 0..1, 10);
    trio.erase_at(&[2], 0, 20);
    let scans = scans_until_through(&mut trio, 1, false, u32::MAX);
    assert!((3..10).contains(&scans), "{scans}");
}

/// Scans until one is through, while a replica does not answer so many times when it is asked
/// to take a CAS. After the first that is broken off, one meets a replica that recovers.
fn scans_until_through(trio: &mut Trio, silent: usize, has_arrived: bool, lost_max: u32) -> u32 {
    let (mut lost, mut scans, mut half_done) = (0, 0, None);
    loop {
        if scans == 1 {
            let scan = Scan::from(KeyHasher::default(), LIMITS, 0);
            let mut scan: Scan<Vec<u8>> = scan.finishing(half_done.take());
            for replica in 0..3 {
                assert!(matches!(scan.ask(replica), Some(Question::Begin)));
                let epoch = if replica == 2 { epoch::NONE } else { 1 };
                let reply = Reply::Begin { epoch, items: 10 };
                scan.answer(replica, reply, trio.now()).unwrap();
            }
            assert_eq!(scan.ended(), Some(Ended::Interrupted));
            // As the driver does.
            scan.failed();
            half_done = scan.take_half_done();
        }
        let mut scan = Scan::from(KeyHasher::default(), LIMITS, 0).finishing(half_done.take());
        scans += 1;
        assert!(scans < 100, "no scan is through");
        while scan.ended().is_none() {
            if let Some(until_ns) = scan.waits_until_ns() {
                trio.time_ns = trio.time_ns.max(until_ns);
                scan.wake(trio.now());
            }
            if let Some(above) = scan.wants_version_above() {
                trio.sequence += 1;
                scan.nominated(just_above(above, 9, trio.sequence));
            }
            for replica in 0..3 {
                let Some(question) = scan.ask(replica) else {
                    continue;
                };
                let (store, shard) = (&trio.stores[replica], trio.local[replica]);
                let is_cas = matches!(&question, Question::Mutate(order)
                    if matches!(order.action, Action::Cas(_)));
                if is_cas && replica == silent && lost < lost_max {
                    lost += 1;
                    if has_arrived {
                        answer(store, trio.now(), shard, &question);
                    }
                    if !scan.unanswered(trio.now()) {
                        scan.failed();
                    }
                    break;
                }
                let reply = answer(store, trio.now(), shard, &question);
                scan.answer(replica, reply, trio.now()).unwrap();
            }
        }
        half_done = scan.take_half_done();
        if scan.ended() == Some(Ended::Through) {
            assert!(half_done.is_none());
            return scans;
        }
    }
}
