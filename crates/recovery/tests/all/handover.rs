//! A backend's number moves to another store while everything goes on: the machine over
//! real stores, with writes between any two of its steps.

use std::collections::BTreeMap;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Expected, Mutation, Outcome, Rejection};
use trefoil_layout::{Placement, ShardMap, Version, epoch};
use trefoil_recovery::mutants::{self, Mutant};
use trefoil_recovery::{Copied, Data, Handover, Question, Reply, shard_states};
use trefoil_region::WordBuffer;
use trefoil_store::{Access, Now, Position, Regions, Store, StoreConfig};

const NOW: Now = Now::at(1_700_000_000_000_000_000);
const MEMORY: u64 = 16 << 20;

fn version(n: u64) -> Version {
    Version::new(NOW.unix_ns + n, 7, 0)
}

fn store(incarnation: u64) -> Store {
    let config = StoreConfig {
        partition_count: 6,
        shards: ShardMap::new(Placement::new(3, 3), 0),
        incarnation,
        memory_limit: MEMORY,
        ..StoreConfig::default()
    };
    Store::new(config, Regions::heap(MEMORY)).unwrap()
}

fn mutate(store: &Store, action: Action, key: &str, value: &[u8], n: u64) -> Outcome {
    let entry = DataEntry {
        key: key.as_bytes(),
        value,
        ..DataEntry::default()
    };
    let mutation = Mutation {
        action,
        version: version(n),
        entry,
    };
    store.mutate(NOW, &mutation).outcome
}

fn get(store: &Store, key: &str) -> Option<Vec<u8>> {
    let read = store.read(NOW, key.as_bytes(), Access::Peek, |item| {
        item.map(|item| {
            let mut value = Vec::new();
            item.append_value(&mut value);
            value
        })
    });
    read.unwrap()
}

/// Two processes, of which the second takes over, and what a client knows.
struct Move {
    old: Store,
    new: Store,
    machine: Handover<Vec<u8>>,
    known: BTreeMap<String, Option<Vec<u8>>>,
    clock: u64,
    ranges_max: usize,
    /// Questions of each kind.
    asked: BTreeMap<&'static str, u32>,
    /// Pages of values that come empty.
    forgets: u32,
    /// Keys whose entries are damaged there, and how.
    damaged: BTreeMap<String, Damage>,
}

#[derive(Clone, Copy)]
enum Damage {
    /// It says that its value is longer than it is.
    Length,
    Value,
}

impl Damage {
    fn befalls(self, bytes: &mut [u8]) {
        match (self, bytes) {
            // Its length is in the second word.
            (Damage::Length, bytes) => bytes[8..16].fill(0xff),
            (Damage::Value, [.., last]) => *last ^= 1,
            (Damage::Value, []) => {}
        }
    }
}

impl Move {
    fn new(count: usize) -> Self {
        let (old, new) = (store(1), store(2));
        let raised = epoch::shared_above(epoch::FIRST).unwrap();
        old.raise_epoch(1, raised);
        for shard in 0..new.shard_count() {
            new.set_recovering(shard, true);
        }
        let mut moving = Move {
            old,
            new,
            machine: Handover::new(),
            known: BTreeMap::new(),
            clock: 0,
            ranges_max: 512,
            asked: BTreeMap::new(),
            forgets: 0,
            damaged: BTreeMap::new(),
        };
        for number in 0..count {
            moving.set(
                &format!("key {number}"),
                format!("value {number}").as_bytes(),
            );
        }
        moving
    }

    /// A client's SET, which is answered, one way or the other.
    fn set(&mut self, key: &str, value: &[u8]) -> bool {
        self.clock += 1;
        match mutate(&self.old, Action::Set, key, value, self.clock) {
            Outcome::Applied => {
                self.known.insert(key.to_owned(), Some(value.to_vec()));
                true
            }
            Outcome::Rejected(Rejection::UnknownConfig) => false,
            other => panic!("{other:?}"),
        }
    }

    fn erase(&mut self, key: &str) -> bool {
        self.clock += 1;
        match mutate(&self.old, Action::Erase, key, b"", self.clock) {
            Outcome::Applied => {
                self.known.insert(key.to_owned(), None);
                true
            }
            Outcome::Rejected(Rejection::UnknownConfig) => false,
            other => panic!("{other:?}"),
        }
    }

    /// One question and its answer; what it was, `None` if there is nothing to ask.
    fn step(&mut self) -> Option<&'static str> {
        let (number, question) = self.machine.ask()?;
        let (what, reply) = self.reply(question);
        *self.asked.entry(what).or_default() += 1;
        self.machine.answer(number, reply, &self.new, NOW).unwrap();
        Some(what)
    }

    fn reply(&mut self, question: Question) -> (&'static str, Reply<Vec<u8>>) {
        match question {
            Question::Begin => {
                (0..self.old.shard_count()).for_each(|shard| self.old.watch_changes(shard, true));
                ("begin", Reply::Shards(shard_states(&self.old)))
            }
            Question::Items {
                shard,
                places,
                values,
            } => {
                assert!(places.len() <= self.ranges_max, "{places:?}");
                assert!(values || places.len() == 1, "{places:?}");
                let page = Copied::new(&self.old, NOW, shard).items_at(&places, values, &|_| true);
                let mut page = page.unwrap();
                if values && self.forgets > 0 {
                    self.forgets -= 1;
                    page.items.clear();
                }
                for item in &mut page.items {
                    let Data::Whole(bytes) = &mut item.data else {
                        continue;
                    };
                    let key = DataEntry::decode(bytes).map(|entry| entry.key.to_vec());
                    let key = String::from_utf8(key.unwrap()).unwrap();
                    if let Some(damage) = self.damaged.get(&key) {
                        damage.befalls(bytes);
                        assert!(
                            DataEntry::decode(bytes).is_none() || matches!(damage, Damage::Value)
                        );
                    }
                }
                (if values { "items" } else { "held" }, Reply::Items(page))
            }
            Question::Long { key, version } => {
                let mut bytes = WordBuffer::default();
                let found = self.old.lookup(NOW, &key, &mut bytes).found;
                let is_it = matches!(found, trefoil_layout::op::Found::Present { version: v, .. } if v == version);
                ("long", Reply::Long(is_it.then(|| bytes.bytes().to_vec())))
            }
            Question::Changes => ("changes", Reply::Shards(shard_states(&self.old))),
            Question::Freeze => {
                (0..self.old.shard_count()).for_each(|shard| self.old.freeze(shard, true));
                ("freeze", Reply::Shards(shard_states(&self.old)))
            }
        }
    }

    /// To the end, with `between` after each step.
    fn run(&mut self, mut between: impl FnMut(&mut Self, &'static str)) {
        while let Some(what) = self.step() {
            between(self, what);
        }
        assert!(self.machine.is_done());
        std::mem::take(&mut self.machine).finish(&self.new);
    }

    /// The first key of which the successor does not know what the client does.
    fn wrong(&self) -> Option<&String> {
        let mut known = self.known.iter();
        known
            .find(|(key, value)| get(&self.new, key) != **value)
            .map(|(key, _)| key)
    }
}

#[test]
fn everything_moves_and_so_do_floors_and_epochs() {
    let mut moving = Move::new(3_000);
    let long = vec![b'l'; 200_000];
    moving.set("long", &long);
    assert!(moving.erase("key 7"));
    moving.run(|_, _| {});
    assert_eq!(moving.wrong(), None);
    assert_eq!(get(&moving.new, "long"), Some(long));
    for shard in 0..3 {
        assert_eq!(moving.new.epoch(shard), moving.old.epoch(shard));
        assert!(!moving.new.is_recovering(shard));
        assert!(moving.new.bound_max(shard) >= moving.old.bound_max(shard));
    }
    // What comes late is as old there as it was here.
    let late = mutate(&moving.new, Action::Set, "key 7", b"old", 5);
    assert!(matches!(late, Outcome::Superseded { .. }), "{late:?}");
    let unknown = mutate(&moving.new, Action::Set, "never seen", b"old", 5);
    assert!(matches!(unknown, Outcome::Superseded { .. }), "{unknown:?}");
    moving.clock += 1;
    let next = mutate(&moving.new, Action::Set, "key 7", b"new", moving.clock);
    assert_eq!(next, Outcome::Applied);
}

/// What a floor and an epoch are is believed at no step, whoever says it: the successor would
/// hand them on.
#[test]
fn bounds_and_epochs_that_cannot_be_are_refused() {
    const SECOND: u64 = 1_000_000_000;
    let ahead = |seconds| Version::new(NOW.unix_ns + seconds * SECOND, 1, 0);
    let last = Version {
        time_ns: u64::MAX,
        origin: u64::MAX,
    };
    let raised = epoch::shared_above(epoch::FIRST).unwrap();
    let is_taken = |when, epoch, bound_max| {
        let mut moving = Move::new(3);
        loop {
            let (number, question) = moving.machine.ask().expect("it is not over yet");
            let (what, mut reply) = moving.reply(question);
            if what == when {
                let Reply::Shards(shards) = &mut reply else {
                    panic!("{what}: {reply:?}");
                };
                (shards[2].epoch, shards[2].bound_max) = (epoch, bound_max);
            }
            let taken = moving.machine.answer(number, reply, &moving.new, NOW);
            if what == when {
                let is_raised = moving.new.bound_max(2) == bound_max;
                assert_eq!(is_raised, taken.is_ok() && when == "freeze", "{when}");
                return taken.is_ok();
            }
            taken.unwrap();
        }
    };
    for when in ["begin", "changes", "freeze"] {
        // Its clock is a little ahead.
        assert!(is_taken(when, raised, ahead(10)), "{when}");
        for (epoch, bound_max) in [
            (raised, ahead(60)),
            (raised, last),
            (epoch::NONE, ahead(0)),
            (u32::MAX, ahead(0)),
        ] {
            let is_taken = is_taken(when, epoch, bound_max);
            assert!(!is_taken, "{when}: {epoch} {bound_max:?}");
        }
    }
}

#[test]
fn what_is_written_meanwhile_moves_too() {
    let mut moving = Move::new(2_000);
    let mut round = 0;
    let mut refused = 0;
    moving.run(|moving, _| {
        for _ in 0..20 {
            round += 1;
            let key = format!("key {}", (round * 7919) % 2_500);
            let taken = match round % 5 {
                0 => moving.erase(&key),
                _ => moving.set(&key, format!("round {round}").as_bytes()),
            };
            refused += u32::from(!taken);
        }
    });
    assert!(refused > 0, "the last copy is made while nothing changes");
    assert!(moving.asked["changes"] >= 1, "{:?}", moving.asked);
    assert_eq!(moving.wrong(), None);
}

/// What was flushed or has expired stands in the index until it is found there: its own
/// version must not be the bound of a key that was erased at a higher one.
#[test]
fn what_is_dead_there_and_was_erased_here_is_as_old_there_as_it_was_here() {
    let mut moving = Move::new(2_000);
    let mut flushed = 0;
    moving.run(|moving, what| {
        if what != "changes" || flushed > 0 {
            return;
        }
        flushed = moving.clock;
        let floor = Version::of_flush(version(flushed).time_ns);
        for store in [&moving.old, &moving.new] {
            store.raise_flush_floor(floor);
        }
        moving.known.clear();
        moving.clock += 100;
        for number in 0..200 {
            assert!(moving.erase(&format!("key {number}")));
        }
    });
    assert!(flushed > 0);
    for number in 0..200 {
        let key = format!("key {number}");
        let late = mutate(&moving.new, Action::Set, &key, b"late", flushed + 50);
        assert!(
            matches!(late, Outcome::Superseded { .. }),
            "{key}: {late:?}"
        );
    }
}

#[test]
fn what_was_erased_meanwhile_is_as_old_there_as_it_was_here() {
    let mut moving = Move::new(500);
    let mut erased = BTreeMap::new();
    let mut steps = 0;
    moving.run(|moving, _| {
        // Keys that have been copied, and some that have not.
        steps += 1;
        let key = format!("key {}", steps * 7 % 500);
        if moving.erase(&key) {
            erased.insert(key, moving.clock);
        }
    });
    assert!(erased.len() > 10, "{}", erased.len());
    for (key, clock) in erased {
        let late = mutate(&moving.new, Action::Set, &key, b"late", clock - 1);
        assert!(
            matches!(late, Outcome::Superseded { .. }),
            "{key}: {late:?}"
        );
        assert_eq!(get(&moving.new, &key), None);
    }
}

#[test]
fn a_cas_while_it_moves_is_seen_by_the_successor() {
    let mut moving = Move::new(100);
    let mut counter = 0u64;
    let mut at = Version::ZERO;
    moving.run(|moving, _| {
        moving.clock += 1;
        let expected = match counter {
            0 => Expected::Absent,
            _ => Expected::Version(at),
        };
        let value = (counter + 1).to_string();
        let outcome = mutate(
            &moving.old,
            Action::Cas(expected),
            "counter",
            value.as_bytes(),
            moving.clock,
        );
        if outcome == Outcome::Applied {
            counter += 1;
            at = version(moving.clock);
        }
    });
    assert!(counter > 3);
    let value = counter.to_string().into_bytes();
    assert_eq!(get(&moving.new, "counter"), Some(value));
}

#[test]
fn one_that_writes_faster_than_is_copied_is_stopped_at_last() {
    let mut moving = Move::new(4_000);
    let mut round = 0u64;
    moving.run(|moving, what| {
        if what == "changes" {
            // All over the places, again and again.
            for _ in 0..3_000 {
                round += 1;
                moving.set(&format!("key {}", round % 4_000), b"again");
            }
        }
    });
    assert!(moving.asked["changes"] <= 9, "{:?}", moving.asked);
    assert_eq!(moving.wrong(), None);
}

#[test]
fn what_is_written_as_fast_as_it_is_copied_is_not_copied_again_and_again() {
    let mut moving = Move::new(4_000);
    let mut round = 0u64;
    moving.run(|moving, what| {
        // The same thousand keys.
        if what == "changes" {
            for _ in 0..1_000 {
                round += 1;
                moving.set(&format!("key {}", round % 1_000), b"again");
            }
        }
    });
    assert!(moving.asked["changes"] <= 3, "{:?}", moving.asked);
    assert_eq!(moving.wrong(), None);
}

#[test]
fn one_that_knows_one_range_at_a_time_is_asked_so() {
    let mut moving = Move::new(2_000);
    moving.machine = std::mem::take(&mut moving.machine).one_range_at_a_time();
    moving.ranges_max = 1;
    moving.forgets = 1;
    let mut round = 0u64;
    moving.run(|moving, _| {
        round += 1;
        moving.set(&format!("key {}", round * 7 % 2_000), b"meanwhile");
    });
    assert_eq!(moving.wrong(), None);
}

#[test]
fn one_that_was_too_late_copies_what_has_changed_since_and_tries_again() {
    let mut moving = Move::new(1_000);
    while moving.step().is_some() {}
    assert!(moving.machine.is_done());
    moving.machine.make_ready(&moving.new);
    assert!(!moving.new.is_recovering(0));
    // Nobody came for it in time.
    (0..moving.old.shard_count()).for_each(|shard| moving.old.freeze(shard, false));
    assert!(moving.set("key 3", b"later"));
    assert!(moving.erase("key 4"));
    moving.machine.again(&moving.new);
    assert!(moving.new.is_recovering(0));
    moving.run(|_, _| {});
    assert_eq!(moving.wrong(), None);
    assert_eq!(get(&moving.new, "key 3"), Some(b"later".to_vec()));
}

#[test]
fn each_rule_of_a_handover_is_needed() {
    let writes = |moving: &mut Move, what: &'static str| {
        if what == "items" || what == "changes" {
            moving.set("key 1", format!("at {}", moving.clock).as_bytes());
            // Of these, some have been copied by then.
            for _ in 0..20 {
                let number = 10 + moving.clock % 480;
                moving.erase(&format!("key {number}"));
            }
        }
    };
    let with = |mutant: Option<Mutant>| {
        mutants::set(mutant);
        let mut moving = Move::new(500);
        moving.run(writes);
        let late = mutate(&moving.new, Action::Set, "never seen", b"old", 1);
        mutants::set(None);
        (moving.wrong().cloned(), late == Outcome::Applied)
    };
    assert_eq!(with(None), (None, false));
    assert_eq!(with(Some(Mutant::NeverFrozen)).0.as_deref(), Some("key 1"));
    assert!(with(Some(Mutant::ErasedStays)).0.is_some());
    assert!(with(Some(Mutant::FloorLeftBehind)).1);
}

/// Another key whose changes are noted together with those of `key`.
fn neighbour(store: &Store, key: &str) -> String {
    let config = store.config();
    let noted_with = |key: &str| {
        let hash = config.hasher.hash(key.as_bytes());
        let range = Position::place_of(hash) >> (Position::PLACE_BITS - 16);
        (config.shards.local(hash), range)
    };
    let mut others = (0..).map(|number| format!("near {number}"));
    let wanted = noted_with(key);
    others.find(|other| noted_with(other) == wanted).unwrap()
}

#[test]
fn what_is_damaged_there_after_it_was_copied_stays() {
    for damage in [Damage::Length, Damage::Value] {
        let mut moving = Move::new(500);
        let near = neighbour(&moving.old, "key 1");
        moving.run(|moving, what| {
            if what != "held" || !moving.damaged.is_empty() {
                return;
            }
            // Everything has been copied. From now on two cannot be read any more, of which
            // one is written once more.
            for key in ["key 1", "key 2"] {
                moving.damaged.insert(key.to_owned(), damage);
            }
            moving.set(&near, b"new");
            moving.set("key 2", b"replaced");
        });
        assert_eq!(get(&moving.new, "key 1"), Some(b"value 1".to_vec()));
        // What it was before is no longer true.
        assert_eq!(get(&moving.new, "key 2"), None);
        moving.known.insert("key 2".to_owned(), None);
        assert_eq!(moving.wrong(), None);
    }
}

#[test]
fn what_the_first_walk_has_missed_is_noticed_and_copied() {
    let mut moving = Move::new(3_000);
    moving.forgets = 4;
    moving.run(|_, _| {});
    assert_eq!(moving.wrong(), None);
    let mut moving = Move::new(3_000);
    moving.forgets = 4;
    while moving.machine.moved().missed == 0 {
        assert!(moving.step().is_some());
    }
}

#[test]
fn nothing_is_missed_while_indexes_grow_on_both_sides() {
    for count in (100..6_000).step_by(613) {
        let mut moving = Move::new(count);
        let mut number = count;
        moving.run(|moving, _| {
            for _ in 0..3 {
                moving.old.maintain(NOW);
                number += 1;
                moving.set(&format!("key {number}"), b"new");
                moving.new.maintain(NOW);
            }
        });
        while moving.new.maintain(NOW).more {}
        assert_eq!(moving.wrong(), None, "of {count}");
    }
}

#[test]
fn what_is_used_most_is_not_the_first_to_leave_there() {
    let mut moving = Move::new(0);
    // Full, and a part of it used again and again.
    let value = vec![b'v'; 1000];
    for number in 0..9_000u32 {
        moving.set(&format!("key {number}"), &value);
    }
    let used: Vec<String> = (8_000..9_000)
        .step_by(4)
        .map(|n| format!("key {n}"))
        .collect();
    for key in &used {
        moving
            .old
            .read(NOW, key.as_bytes(), Access::Use, |item| {
                assert!(item.is_some())
            })
            .unwrap();
    }
    moving.run(|_, _| {});
    for number in 0..3_000u32 {
        moving.clock += 1;
        let key = format!("later {number}");
        mutate(&moving.new, Action::Set, &key, &value, moving.clock);
    }
    let stays = used
        .iter()
        .filter(|key| get(&moving.new, key).is_some())
        .count();
    assert!(stays * 100 >= used.len() * 98, "{stays} of {}", used.len());
}
