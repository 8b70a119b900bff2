//! Examinations of real stores, with questions answered on the spot.

use super::*;
use crate::page::{self, Data, Page};
use std::collections::BTreeMap;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Found, Mutation, Outcome};
use trefoil_layout::{KeyHasher, Placement, ShardMap, Version};
use trefoil_region::WordBuffer;
use trefoil_store::{Now, PLACES, Regions, Store, StoreConfig};

const START: Now = Now::at(1_700_000_000_000_000_000);
const PAUSE_MS: u64 = 1000;

fn store(copies: u32, number: u32) -> Store {
    let config = StoreConfig {
        partition_count: 6,
        shards: ShardMap::new(Placement::new(copies as usize, copies), number),
        incarnation: u64::from(number) + 1,
        memory_limit: 32 << 20,
        ..StoreConfig::default()
    };
    Store::new(config, Regions::heap(32 << 20)).unwrap()
}

/// What happens between two questions.
type Meanwhile<'a> = &'a mut dyn FnMut(u64, &Replicas);

/// The replicas of one shard, and who of them cannot be read.
struct Replicas {
    stores: Vec<Store>,
    away: Vec<usize>,
    /// Values of these keys are damaged on the way, as if they lay there so.
    damaged: BTreeMap<usize, Vec<u8>>,
}

impl Replicas {
    fn new(copies: u32) -> Self {
        Replicas {
            stores: (0..copies).map(|number| store(copies, number)).collect(),
            away: Vec::new(),
            damaged: BTreeMap::new(),
        }
    }

    fn set_at(&self, replicas: &[usize], key: &str, value: &str, n: u64) {
        self.put(replicas, key, value, n, 0);
    }

    fn put(&self, replicas: &[usize], key: &str, value: &str, n: u64, expiry_ms: u64) {
        let entry = DataEntry {
            key: key.as_bytes(),
            value: value.as_bytes(),
            expiry_ms,
            ..DataEntry::default()
        };
        self.mutate(replicas, Action::Set, entry, n);
    }

    fn erase_at(&self, replicas: &[usize], key: &str, n: u64) {
        let entry = DataEntry {
            key: key.as_bytes(),
            ..DataEntry::default()
        };
        self.mutate(replicas, Action::Erase, entry, n);
    }

    fn mutate(&self, replicas: &[usize], action: Action, entry: DataEntry<'_>, n: u64) {
        let version = Version::new(START.unix_ns + n, 7, 0);
        let mutation = Mutation {
            action,
            version,
            entry,
        };
        for replica in replicas {
            let ack = self.stores[*replica].mutate(START, &mutation);
            assert_eq!(ack.outcome, Outcome::Applied);
        }
    }

    fn all(&self) -> Vec<usize> {
        (0..self.stores.len()).collect()
    }

    /// Keys of the first shard only: the one that is examined.
    fn keys(&self) -> impl Iterator<Item = String> {
        let shards = self.stores[0].config().shards;
        let hasher = self.stores[0].config().hasher;
        let names = (0..).map(|n| format!("key-{n}"));
        names.filter(move |name| shards.local(hasher.hash(name.as_bytes())) == Some(0))
    }

    fn local(&self, replica: usize) -> usize {
        self.stores[replica].config().shards.local_of(0).unwrap()
    }

    fn answer(&self, replica: usize, question: Question, now: Now) -> Option<Reply<Vec<u8>>> {
        if self.away.contains(&replica) {
            return None;
        }
        let store = &self.stores[replica];
        let damage = |data: &mut Vec<u8>| {
            let entry = DataEntry::decode(data).unwrap();
            let last = entry.encoded_len() - 1;
            if self
                .damaged
                .get(&replica)
                .is_some_and(|key| key == entry.key)
            {
                data[last] ^= 1;
            }
        };
        Some(match question {
            Question::Page {
                from,
                until,
                values,
            } => {
                let mut page = page::Copied::new(store, now, self.local(replica))
                    .items(from..until, values)?;
                for item in &mut page.items {
                    if let Data::Whole(data) = &mut item.data {
                        damage(data);
                    }
                }
                Reply::Page(page)
            }
            Question::Long { key, version } => {
                let mut buffer = WordBuffer::default();
                Reply::Long(match store.peek(now, &key, &mut buffer).found {
                    Found::Present { version: at, data } if at == version => {
                        let mut data = data.to_vec();
                        damage(&mut data);
                        Some(data)
                    }
                    _ => None,
                })
            }
        })
    }

    fn plan(&self, values: bool) -> Plan {
        Plan {
            copies: self.stores.len(),
            hasher: KeyHasher::default(),
            places: vec![PLACES],
            values,
            pause_ms: PAUSE_MS,
            example_count: 3,
        }
    }

    fn examine(&self, values: bool) -> Examination {
        self.run(self.plan(values), &mut |_, _| {})
    }

    /// Runs it to its end. Each question takes a millisecond.
    fn run(&self, plan: Plan, meanwhile: Meanwhile<'_>) -> Examination {
        let mut examination = Examination::new(plan);
        let mut ms = 0;
        while !examination.is_done() {
            meanwhile(ms, self);
            let mut was_asked = false;
            for replica in self.all() {
                let moment = Moment {
                    monotonic_ms: ms,
                    unix_ms: START.unix_ns / 1_000_000 + ms,
                };
                let Some(question) = examination.ask(replica, moment) else {
                    continue;
                };
                was_asked = true;
                ms += 1;
                let now = Now::at(START.unix_ns + ms * 1_000_000);
                match self.answer(replica, question, now) {
                    Some(reply) => examination.answer(replica, reply, moment).unwrap(),
                    None => examination.lose(replica, moment),
                }
            }
            if !was_asked {
                let wakes_at = examination.wakes_at_ms();
                ms = ms.max(wakes_at.expect("it waits, or asks, or is done"));
            }
            assert!(ms < 1_000_000, "it never ends: {:?}", examination.keys());
        }
        assert_eq!(examination.suspect_count(), 0);
        examination
    }
}

fn counted(examination: &Examination) -> String {
    let keys = examination.keys();
    let mut text = format!("clean {}", keys.clean);
    for ((replica, how), count) in &keys.dirty {
        text += &format!(", {count} dirty: {replica} {how:?}").to_lowercase();
    }
    for (name, count) in [
        ("inquorate", keys.inquorate),
        ("corrupt", keys.corrupt),
        ("short", keys.short),
        ("unsettled", keys.unsettled),
    ] {
        if count > 0 {
            text += &format!(", {count} {name}");
        }
    }
    text
}

/// Many pages, values that are too long for a page among them.
fn fill(replicas: &Replicas, count: usize) -> Vec<String> {
    let names: Vec<String> = replicas.keys().take(count).collect();
    for (n, key) in names.iter().enumerate() {
        let len = if n % 5000 == 17 { 100_000 } else { 100 };
        let value = format!("{n} ").repeat(len / 4);
        replicas.set_at(&replicas.all(), key, &value, n as u64);
    }
    names
}

#[test]
fn replicas_that_agree_are_clean_in_every_mode() {
    for (copies, count) in [(1, 3000), (2, 3000), (3, 20_000)] {
        let replicas = Replicas::new(copies);
        assert_eq!(counted(&replicas.examine(true)), "clean 0");
        fill(&replicas, count);
        for values in [true, false] {
            let examination = replicas.examine(values);
            assert_eq!(counted(&examination), format!("clean {count}"));
            assert_eq!(examination.fraction(), 1.0);
            assert!(examination.examples().is_empty());
        }
    }
}

/// Exactly what differs is found, and how, and whose it is.
#[test]
fn each_kind_of_difference_is_named() {
    let replicas = Replicas::new(3);
    let keys = fill(&replicas, 10_000);
    let late = 1 << 20;
    // Replica 2 missed these; 0 and 1 have them, or no longer.
    for key in &keys[..100] {
        replicas.set_at(&[0, 1], key, "newer", late);
    }
    for key in &keys[100..130] {
        replicas.erase_at(&[0, 1], key, late);
    }
    // 1 has evicted these.
    for key in &keys[130..150] {
        replicas.erase_at(&[1], key, late);
    }
    // Three versions.
    replicas.set_at(&[0], &keys[200], "a", late + 1);
    replicas.set_at(&[1], &keys[200], "b", late + 2);
    // Nobody missed anything.
    replicas.erase_at(&[0, 1, 2], &keys[300], late);
    for values in [true, false] {
        let examination = replicas.examine(values);
        assert_eq!(
            counted(&examination),
            "clean 9848, 20 dirty: 1 lacks, 100 dirty: 2 older, 30 dirty: 2 holds, 1 inquorate"
        );
        let examples = examination.examples();
        assert_eq!(
            examples.len(),
            4,
            "three dirty ones, and one without quorum"
        );
        for example in examples {
            let key = String::from_utf8(example.key.clone().unwrap().into()).unwrap();
            let at = keys.iter().position(|known| *known == key).unwrap();
            assert_eq!(example.verdict == Verdict::Inquorate, at == 200, "{key}");
            assert!(at < 150 || at == 200, "{key}");
            assert_eq!(judge(&example.copies), example.verdict);
        }
    }
}

#[test]
fn a_damaged_value_is_corrupt_and_says_where() {
    for copies in [1, 2, 3] {
        for at in [3, 17] {
            let mut replicas = Replicas::new(copies);
            let keys = fill(&replicas, 200);
            let victim = copies as usize - 1;
            replicas
                .damaged
                .insert(victim, keys[at].clone().into_bytes());
            let examination = replicas.examine(true);
            assert_eq!(counted(&examination), "clean 199, 1 corrupt");
            assert_eq!(examination.keys().corrupt_copies[victim], 1);
            let example = &examination.examples()[0];
            assert_eq!(example.key.as_deref(), Some(keys[at].as_bytes()));
            assert!(matches!(example.copies[victim], Copy::Corrupt { .. }));
            // Who reads no values finds none.
            assert_eq!(counted(&replicas.examine(false)), "clean 200");
        }
    }
}

/// The last replica hears of everything a moment later, all the time.
#[test]
fn keys_under_writes_are_not_called_dirty() {
    let replicas = Replicas::new(3);
    let keys = fill(&replicas, 5000);
    let mut n = 1 << 20;
    let mut late = Vec::new();
    let examination = replicas.run(replicas.plan(true), &mut |ms, replicas| {
        if ms > 4000 {
            // Somebody who stops writes everything that he has begun.
            for (key, n) in late.drain(..) {
                replicas.set_at(&[2], key, "written", n);
            }
            return;
        }
        for _ in 0..20 {
            n += 1;
            let key = &keys[(n as usize * 7919) % keys.len()];
            replicas.set_at(&[0, 1], key, "written", n);
            late.push((key, n));
        }
        while late.len() > 40 {
            let (key, n) = late.remove(0);
            replicas.set_at(&[2], key, "written", n);
        }
    });
    let found = examination.keys();
    assert_eq!(
        found.clean + found.unsettled,
        5000,
        "{}",
        counted(&examination)
    );
    assert_eq!(found.dirty_count() + found.inquorate + found.corrupt, 0);
}

/// One key is never the same at two looks.
#[test]
fn what_never_rests_is_unsettled() {
    let replicas = Replicas::new(3);
    let keys = fill(&replicas, 50);
    let mut n = 1 << 20;
    let examination = replicas.run(replicas.plan(true), &mut |_, replicas| {
        n += 1;
        replicas.set_at(&[0, 1], &keys[0], "always another", n);
    });
    assert_eq!(counted(&examination), "clean 49, 1 unsettled");
}

#[test]
fn a_replica_that_cannot_be_read_leaves_the_others() {
    let mut replicas = Replicas::new(3);
    let keys = fill(&replicas, 1000);
    replicas.erase_at(&[0], &keys[5], 1 << 20);
    replicas.away = vec![2];
    // Two that disagree have no third one to ask.
    assert_eq!(
        counted(&replicas.examine(true)),
        "clean 0, 1 inquorate, 999 short"
    );
    replicas.away = vec![1, 2];
    assert_eq!(counted(&replicas.examine(true)), "clean 0, 999 short");
    replicas.away = vec![0, 1, 2];
    let examination = replicas.examine(true);
    assert_eq!(counted(&examination), "clean 0");
    assert_eq!(examination.fraction(), 0.0, "nothing was looked at");
}

/// It dies between the first look and the second one.
#[test]
fn a_replica_that_goes_away_meanwhile_does_not_make_findings() {
    let mut replicas = Replicas::new(3);
    let keys = fill(&replicas, 1000);
    replicas.erase_at(&[2], &keys[5], 1 << 20);
    let mut examination = Examination::new(replicas.plan(true));
    let mut ms = 0;
    while !examination.is_done() {
        ms += 10;
        let moment = Moment {
            monotonic_ms: ms,
            unix_ms: ms,
        };
        if examination.wakes_at_ms().is_some() {
            replicas.away = vec![2];
        }
        for replica in 0..3 {
            if let Some(question) = examination.ask(replica, moment) {
                match replicas.answer(replica, question, START) {
                    Some(reply) => examination.answer(replica, reply, moment).unwrap(),
                    None => examination.lose(replica, moment),
                }
            }
        }
    }
    assert_eq!(counted(&examination), "clean 999, 1 short");
}

/// Replicas drop what has expired one after another.
#[test]
fn what_expires_is_no_finding() {
    let replicas = Replicas::new(3);
    let now_ms = START.unix_ns / 1_000_000;
    let mut keys = replicas.keys();
    let (gone, soon, later) = (keys.next(), keys.next(), keys.next());
    replicas.put(&[0, 1], &gone.unwrap(), "v", 1, now_ms - 1);
    replicas.put(&[0, 1], &soon.unwrap(), "v", 2, now_ms + 8_000);
    replicas.put(&[0, 1], &later.unwrap(), "v", 3, now_ms + 100_000);
    assert_eq!(
        counted(&replicas.examine(true)),
        "clean 0, 1 dirty: 2 lacks, 1 unsettled"
    );
}

#[test]
fn a_part_of_the_places_is_a_part_of_the_keys() {
    let replicas = Replicas::new(3);
    fill(&replicas, 10_000);
    let stripe = PLACES.end / 100;
    let places = (0..100).map(|n| n * stripe..n * stripe + stripe / 10);
    let plan = Plan {
        places: places.collect(),
        ..replicas.plan(true)
    };
    let examination = replicas.run(plan, &mut |_, _| {});
    let clean = examination.keys().clean;
    assert!((800..1200).contains(&clean), "{clean} of about 1000");
    let nothing = Plan {
        places: Vec::new(),
        ..replicas.plan(true)
    };
    assert!(Examination::new(nothing).is_done());
}

#[test]
fn what_is_no_answer_is_refused() {
    let replicas = Replicas::new(1);
    let moment = Moment {
        monotonic_ms: 0,
        unix_ms: 0,
    };
    let page = |next| {
        Reply::Page(Page::<Vec<u8>> {
            next,
            ..Page::default()
        })
    };
    let mut examination = Examination::new(replicas.plan(true));
    for nonsense in [page(0), page(PLACES.end + 1)] {
        assert!(examination.ask(0, moment).is_some());
        assert!(examination.answer(0, nonsense, moment).is_err());
    }
    assert!(examination.ask(0, moment).is_some());
    assert_eq!(examination.ask(0, moment), None, "one question at a time");
    examination.answer(0, page(PLACES.end), moment).unwrap();
    assert!(examination.is_done());
}
