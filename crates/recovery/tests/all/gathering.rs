//! A cell gets another number of backends: one of the new ones, over real stores, with
//! writes between any two of its steps.

use std::collections::BTreeMap;
use std::ops::Range;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome, Rejection};
use trefoil_layout::words::Words as _;
use trefoil_layout::{KeyHash, KeyHasher, Placement, ShardMap, Version, epoch};
use trefoil_recovery::mutants::{self, Mutant};
use trefoil_recovery::{
    Asked, Copied, Data, Gathering, Item, Page, Placed, Question, Reply, What, shard_states,
};
use trefoil_region::WordBuffer;
use trefoil_store::{Access, Now, PLACES, Regions, Store, StoreConfig};

const NOW: Now = Now::at(1_700_000_000_000_000_000);
const MEMORY: u64 = 16 << 20;
const OLD: u32 = 3;
const NEW: u32 = 4;
/// The number of the new backend: some of its keys were elsewhere.
const NUMBER: u32 = 1;

fn version(n: u64) -> Version {
    Version::new(NOW.unix_ns + n, 7, 0)
}

fn store(shards: ShardMap, incarnation: u64) -> Store {
    let config = StoreConfig {
        partition_count: 6,
        shards,
        incarnation,
        memory_limit: MEMORY,
        ..StoreConfig::default()
    };
    Store::new(config, Regions::heap(MEMORY)).unwrap()
}

/// A page with the values that it names, as who maps the memory reads them.
fn read(old: &Store, (mut page, placed): (Page<Vec<u8>>, Vec<Placed>)) -> Page<Vec<u8>> {
    let words = old.regions().data.words();
    let entry = |placed: &Placed| {
        let first = placed.pointer.offset() as usize / 8;
        let words = (first..first + placed.pointer.len() / 8).map(|at| words.load(at));
        words.flat_map(u64::to_le_bytes).collect()
    };
    page.items.extend(placed.iter().map(|placed| Item {
        version: placed.version,
        recency: placed.recency,
        data: Data::Whole(entry(placed)),
    }));
    page
}

/// The cell that is, and a process that is to be a backend of the one to come.
struct Resize {
    old: Vec<Store>,
    new: Store,
    machine: Gathering<Vec<u8>>,
    /// What clients were told, of keys that the new backend is to hold.
    known: BTreeMap<String, Option<Vec<u8>>>,
    clock: u64,
    /// Answers on their way.
    replies: Vec<(u64, Reply<Vec<u8>>)>,
}

impl Resize {
    fn new(count: usize) -> Self {
        let old = |number| store(ShardMap::new(Placement::new(3, OLD), number), 1);
        let new = store(ShardMap::new(Placement::new(3, NEW), NUMBER), 2);
        for shard in 0..new.shard_count() {
            new.set_recovering(shard, true);
        }
        let mut resize = Resize {
            old: (0..OLD).map(old).collect(),
            machine: Gathering::new(Placement::new(3, OLD), &new),
            new,
            known: BTreeMap::new(),
            clock: 0,
            replies: Vec::new(),
        };
        for number in 0..count {
            let value = format!("value {number}");
            assert!(resize.set(&format!("key {number}"), value.as_bytes()));
        }
        resize
    }

    /// A client's mutation, at all replicas.
    fn mutate(&mut self, action: Action, key: &str, value: &[u8]) -> bool {
        self.clock += 1;
        let mutation = Mutation {
            action,
            version: version(self.clock),
            entry: DataEntry {
                key: key.as_bytes(),
                value,
                ..DataEntry::default()
            },
        };
        let mut outcomes = self.old.iter().map(|old| old.mutate(NOW, &mutation));
        let is_taken = outcomes.all(|ack| match ack.outcome {
            Outcome::Applied => true,
            Outcome::Rejected(Rejection::UnknownConfig) => false,
            other => panic!("{other:?}"),
        });
        let shards = self.new.config().shards;
        let is_held = shards.local(KeyHasher::default().hash(key.as_bytes()));
        if is_taken && is_held.is_some() {
            let value = (action == Action::Set).then(|| value.to_vec());
            self.known.insert(key.to_owned(), value);
        }
        is_taken
    }

    fn set(&mut self, key: &str, value: &[u8]) -> bool {
        self.mutate(Action::Set, key, value)
    }

    fn freeze(&self, frozen: bool) {
        for old in &self.old {
            (0..old.shard_count()).for_each(|shard| old.freeze(shard, frozen));
        }
    }

    /// Everybody freezes, and the new backend is told so; the epoch.
    fn last(&mut self) {
        self.freeze(true);
        let epochs = self.old.iter().flat_map(|old| (0..3).map(|s| old.epoch(s)));
        self.machine.last(epochs.max().unwrap());
    }

    fn answer(&self, asked: Asked) -> Reply<Vec<u8>> {
        let old = &self.old[asked.backend as usize];
        match asked.what {
            What::Question(Question::Begin) => {
                (0..old.shard_count()).for_each(|shard| old.watch_changes(shard, true));
                Reply::Shards(shard_states(old))
            }
            What::Question(Question::Changes) => Reply::Shards(shard_states(old)),
            What::Question(Question::Long { key, version }) => {
                let mut bytes = WordBuffer::default();
                let found = old.lookup(NOW, &key, &mut bytes).found;
                let is_it = matches!(found, trefoil_layout::op::Found::Present { version: v, .. } if v == version);
                Reply::Long(is_it.then(|| bytes.bytes().to_vec()))
            }
            What::Question(other) => panic!("{other:?}"),
            What::Items {
                local,
                ranges,
                values,
            } => {
                let shard = self.new.config().shards.shard(local);
                let is_wanted = |hash| Placement::new(3, NEW).first(hash) == shard;
                let source = Copied::new(old, NOW, local);
                // Every other time it reads the memory of who is asked.
                if values && self.clock % 2 == 1 {
                    return Reply::Items(read(old, source.placed_at(&ranges, &is_wanted).unwrap()));
                }
                let page = source.items_at(&ranges, values, &is_wanted);
                Reply::Items(page.unwrap())
            }
        }
    }

    /// Asks everything that it asks now, and takes one answer, the youngest; `false`: there
    /// was none.
    fn step(&mut self) -> bool {
        while let Some((number, asked)) = self.machine.ask() {
            let reply = self.answer(asked);
            self.replies.push((number, reply));
        }
        let Some((number, reply)) = self.replies.pop() else {
            return false;
        };
        self.machine.answer(number, reply, &self.new, NOW).unwrap();
        true
    }

    fn run(&mut self) {
        while self.step() {}
    }

    /// Until little is left to copy.
    fn near(count: usize) -> Self {
        let mut resize = Resize::new(count);
        resize.run();
        assert!(resize.machine.is_near());
        resize
    }

    /// The first key of which the new backend does not know what clients do, once it
    /// serves.
    fn wrong(mut self) -> Option<String> {
        assert!(self.machine.is_done());
        let machine = Gathering::new(Placement::new(3, OLD), &self.new);
        std::mem::replace(&mut self.machine, machine).finish(&self.new);
        let get = |key: &String| {
            let read = self.new.read(NOW, key.as_bytes(), Access::Peek, |item| {
                item.map(|item| {
                    let mut value = Vec::new();
                    item.append_value(&mut value);
                    value
                })
            });
            read.unwrap()
        };
        let mut known = self.known.iter();
        let wrong = known.find(|(key, value)| get(key) != **value);
        wrong.map(|(key, _)| key.clone())
    }
}

/// The page of what is left of some places.
type Pages<'p> = &'p dyn Fn(&[Range<u64>]) -> Page<Vec<u8>>;

/// Page by page, of some places and keys: who reads the memory learns of what others are sent,
/// long values included, and no more of it at once than is good for those who serve.
#[test]
fn what_is_named_is_what_would_be_sent() {
    let mut resize = Resize::new(20_000);
    for number in 0..24 {
        assert!(resize.set(&format!("long {number}"), &[1; 70_000]));
    }
    let old = &resize.old[0];
    let third = PLACES.end / 3;
    let ranges = [0..third, third + 5..2 * third, 2 * third..PLACES.end];
    let is_wanted = |hash: KeyHash| Placement::new(3, NEW).first(hash) == 0;
    let told = |page: Pages<'_>| {
        let (mut left, mut all, mut pages) = (ranges.to_vec(), BTreeMap::new(), 0);
        while !left.is_empty() {
            let page = page(&left);
            pages += 1;
            left.retain(|range| range.end > page.next);
            if let Some(first) = left.first_mut() {
                first.start = first.start.max(page.next);
            }
            let items = page.items.into_iter();
            all.extend(items.map(|item| (item.version, (item.recency, item.data))));
        }
        (all, pages)
    };
    let source = Copied::new(old, NOW, 0);
    let (sent, _) = told(&|left| source.items_at(left, true, &is_wanted).unwrap());
    let (read, pages) = told(&|left| read(old, source.placed_at(left, &is_wanted).unwrap()));
    assert!(sent.len() > 500, "{}", sent.len());
    let is_long = |(_, data): &&(_, Data<Vec<u8>>)| matches!(data, Data::Long { .. });
    assert!(sent.values().any(|item| is_long(&item)));
    assert_eq!(sent.len(), read.len());
    for (version, (recency, data)) in &sent {
        let (named_recency, named) = &read[version];
        assert_eq!(named_recency, recency, "{version:?}");
        match (data, named) {
            // What stands in memory ends with the granule.
            (Data::Whole(data), Data::Whole(named)) => {
                assert!(named.starts_with(data), "{version:?}");
            }
            _ => assert_eq!(named, data, "{version:?}"),
        }
    }
    assert!(pages > 1);
}

#[test]
fn everything_is_copied_and_so_are_floors_and_epochs() {
    let mut resize = Resize::new(3_000);
    let raised = epoch::shared_above(epoch::FIRST).unwrap();
    resize.old.iter().for_each(|old| old.raise_epoch(1, raised));
    resize.set("long", &vec![b'l'; 200_000]);
    resize.run();
    assert!(resize.machine.is_near() && !resize.machine.is_done());
    assert!(resize.mutate(Action::Erase, "key 7", b""));
    resize.last();
    assert!(!resize.set("key 8", b"frozen"));
    resize.run();
    for shard in 0..3 {
        assert_eq!(resize.new.epoch(shard), raised);
        let bounds = resize.old.iter().map(|old| old.bound_max(shard));
        assert!(resize.new.bound_max(shard) >= bounds.min().unwrap());
    }
    assert_eq!(resize.wrong(), None);
}

/// Everybody freezes while a round is under way, some of whose answers are older than that.
fn frozen_in_a_round() -> Resize {
    let mut resize = Resize::near(500);
    for number in 0..200 {
        resize.set(&format!("key {number}"), b"before the round");
    }
    resize.machine.round();
    resize.step();
    for number in 100..300 {
        let key = format!("key {number}");
        match number % 3 {
            0 => resize.mutate(Action::Erase, &key, b""),
            _ => resize.set(&key, b"in the round"),
        };
    }
    resize.last();
    assert!(!resize.machine.is_done());
    resize.run();
    resize
}

#[test]
fn a_freeze_in_the_midst_of_a_round_is_followed_by_the_last_step() {
    assert_eq!(frozen_in_a_round().wrong(), None);
    mutants::set(Some(Mutant::LastSkipped));
    let skipped = frozen_in_a_round().wrong();
    mutants::set(None);
    assert!(
        skipped.is_some(),
        "the round has not asked after the freeze"
    );
}

#[test]
fn what_was_copied_of_an_older_freeze_is_no_end_of_the_next_one() {
    // Told that it is over, or not: the next freeze is another one.
    for (steps, is_told) in [(0, true), (2, true), (99, true), (0, false), (2, false)] {
        let mut resize = Resize::near(500);
        for number in 0..100 {
            resize.set(&format!("key {number}"), b"before the first");
        }
        resize.last();
        for _ in 0..steps {
            resize.step();
        }
        resize.freeze(false);
        if is_told {
            resize.machine.again();
            assert!(!resize.machine.is_done(), "{steps}");
        }
        for number in 50..150 {
            resize.set(&format!("key {number}"), b"before the second");
        }
        resize.last();
        assert!(!resize.machine.is_done(), "{steps}");
        resize.run();
        assert_eq!(resize.wrong(), None, "{steps} {is_told}");
    }
}

#[test]
fn one_that_was_too_late_follows_and_tries_again() {
    let mut resize = Resize::near(500);
    resize.last();
    resize.run();
    assert!(resize.machine.is_done());
    resize.freeze(false);
    resize.machine.again();
    resize.set("key 3", b"later");
    resize.run();
    assert!(resize.machine.is_near() && !resize.machine.is_done());
    resize.set("key 4", b"later still");
    resize.last();
    resize.run();
    assert_eq!(resize.wrong(), None);
}

#[test]
fn bounds_and_epochs_that_cannot_be_are_refused() {
    const SECOND: u64 = 1_000_000_000;
    let second = epoch::shared_above(epoch::FIRST).unwrap();
    let ahead = |seconds| Version::new(NOW.unix_ns + seconds * SECOND, 1, 0);
    let told = |epoch, bound_max| {
        let mut resize = Resize::new(3);
        let (number, asked) = resize.machine.ask().unwrap();
        let mut reply = resize.answer(asked);
        let Reply::Shards(shards) = &mut reply else {
            panic!("{reply:?}");
        };
        (shards[1].epoch, shards[1].bound_max) = (epoch, bound_max);
        resize.machine.answer(number, reply, &resize.new, NOW)
    };
    assert!(told(second, ahead(10)).is_ok());
    for (epoch, bound_max) in [
        (epoch::FIRST, ahead(60)),
        (
            epoch::FIRST,
            Version {
                time_ns: u64::MAX,
                origin: u64::MAX,
            },
        ),
        (epoch::NONE, ahead(0)),
        (u32::MAX, ahead(0)),
    ] {
        assert!(told(epoch, bound_max).is_err(), "{epoch} {bound_max:?}");
    }
    // One that falls.
    let mut resize = Resize::new(3);
    resize.old.iter().for_each(|old| old.raise_epoch(0, second));
    resize.run();
    resize.machine.round();
    let (number, asked) = resize.machine.ask().unwrap();
    let Reply::Shards(mut shards) = resize.answer(asked) else {
        panic!("it asks what has changed");
    };
    shards[0].epoch = epoch::FIRST;
    let reply = Reply::Shards(shards);
    assert!(
        resize
            .machine
            .answer(number, reply, &resize.new, NOW)
            .is_err()
    );
}
