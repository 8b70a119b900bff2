//! A vote's epoch is of the same moment as its entry (rule 5): a bucket whose header
//! moves during the scan is read again. What that is for takes a crash, a recovery
//! and a late message between two words of one scan, so it is driven step by step.

use std::cell::Cell;
use trefoil_client_core::data::DataCheck;
use trefoil_client_core::get::{Failure, Get, GetOutcome, GetStep, Plan};
use trefoil_client_core::mutants::{self, Mutant};
use trefoil_client_core::retry::Limits;
use trefoil_client_core::vote::{IndexVote, index_vote};
use trefoil_layout::bucket::BUCKET_LEN;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome};
use trefoil_layout::words::Words;
use trefoil_layout::{KeyHash, KeyHasher, Pointer, Version, control, epoch};
use trefoil_region::WordBuffer;
use trefoil_sim::words::Interrupted;
use trefoil_store::{Now, Recency, Regions, Store, StoreConfig};

const KEY: &[u8] = b"key";
const CONFIG: u32 = 1;
const NOW: Now = Now::at(10);
/// Loads of a scan, more or less.
const LOADS: u64 = 48;

fn store() -> Store {
    let config = StoreConfig {
        partition_count: 1,
        config_id: CONFIG,
        memory_limit: 256 << 10,
        value_len_max: 1 << 10,
        ..StoreConfig::default()
    };
    Store::new(config, Regions::heap(256 << 10)).expect("memory for a small store")
}

fn version(time_ns: u64) -> Version {
    Version::new(time_ns, 1, 0)
}

fn set(time_ns: u64) -> Mutation<'static> {
    Mutation {
        action: Action::Set,
        version: version(time_ns),
        entry: DataEntry {
            key: KEY,
            value: b"value",
            ..DataEntry::default()
        },
    }
}

/// A scan of the key's bucket; the event happens before the load of that number.
fn vote(store: &Store, hash: KeyHash, event: Option<(u64, &dyn Fn())>) -> IndexVote {
    let regions = store.regions();
    let window = control::index_window(&regions.control.words(), 0).expect("an index");
    let loads_left = Cell::new(event.map_or(u64::MAX, |(at, _)| at));
    let before_load = || {
        let left = loads_left.get();
        loads_left.set(left.wrapping_sub(1));
        if left == 0
            && let Some((_, event)) = event
        {
            event();
        }
    };
    index_vote(hash, CONFIG, window.bucket_count, |bucket| {
        let at = window.offset + bucket * BUCKET_LEN as u64;
        Interrupted {
            words: (regions.index.words().slice(at, BUCKET_LEN)).expect("inside the region"),
            before_load: &before_load,
        }
    })
}

fn read(store: &Store, pointer: Pointer, into: &mut WordBuffer) {
    let words = store.regions().data.words();
    let source = (words.slice(pointer.offset(), pointer.len())).expect("inside the region");
    for (index, word) in into.prepare(pointer.len()).iter_mut().enumerate() {
        *word = source.load(index);
    }
}

/// Three replicas, and the one that takes the first one's place.
struct Cohort {
    replicas: [Store; 3],
    successor: Store,
    has_crashed: Cell<bool>,
}

impl Cohort {
    /// All hold version 1; version 2 has reached the first replica.
    fn new() -> Self {
        let cohort = Cohort {
            replicas: [store(), store(), store()],
            successor: store(),
            has_crashed: Cell::new(false),
        };
        for replica in &cohort.replicas {
            assert_eq!(replica.mutate(NOW, &set(1)).outcome, Outcome::Applied);
        }
        cohort.replicas[0].mutate(NOW, &set(2));
        cohort
    }

    /// The first replica dies, and its lease ends. Its successor recovers by rules 6
    /// to 10, and then the late message with version 2 arrives at the second.
    fn crash_and_recover(&self) {
        self.has_crashed.set(true);
        let [_, second, third] = &self.replicas;
        self.successor.set_recovering(0, true);
        let above = second.epoch(0).max(third.epoch(0));
        let epoch = epoch::shared_above(above).expect("few recoveries");
        self.successor.raise_epoch(0, epoch);
        second.raise_epoch(0, epoch);
        third.raise_epoch(0, epoch);
        // Both peers hold version 1.
        self.successor.import(NOW, &set(1), Recency::default());
        self.successor.set_recovering(0, false);
        assert_eq!(second.mutate(NOW, &set(2)).outcome, Outcome::Applied);
    }

    /// A GET; `event` is what happens at a load of its scan of the second replica.
    fn get(&self, event: Option<u64>) -> GetOutcome {
        let hash = KeyHasher::default().hash(KEY);
        let crash = || self.crash_and_recover();
        let mut event = event.map(|at| (at, &crash as &dyn Fn()));
        let mut knows_successor = self.has_crashed.get();
        let mut get = Get::<3>::new(&Plan::frugal(0), hash, Limits::until(u64::MAX), 0);
        let mut bytes = WordBuffer::default();
        let check = DataCheck {
            key: KEY,
            now_ms: 0,
            flush_floor: Version::ZERO,
        };
        loop {
            let store = |replica: usize| match replica {
                0 if knows_successor => &self.successor,
                replica => &self.replicas[replica],
            };
            // Whose lease has ended is not believed.
            let is_over = |replica| replica == 0 && self.has_crashed.get() && !knows_successor;
            match get.poll(0) {
                GetStep::ReadIndex { replica } if is_over(replica) => {
                    get.handle_failure(replica, Failure::Lease);
                }
                GetStep::ReadIndex { replica } => {
                    let event = event.take_if(|_| replica == 1);
                    get.handle_index(replica, vote(store(replica), hash, event));
                }
                GetStep::ReadData { replica, .. } if is_over(replica) => {
                    get.handle_failure(replica, Failure::Lease);
                }
                GetStep::ReadData { replica, pointer } => {
                    read(store(replica), pointer, &mut bytes);
                    get.handle_data(replica, bytes.bytes(), &check);
                }
                GetStep::Reconnect { replica } => {
                    knows_successor |= replica == 0;
                    get.handle_reconnected(replica);
                }
                GetStep::Ask { replica, .. } => {
                    let answer = store(replica).lookup(NOW, KEY, &mut bytes);
                    get.handle_answer(replica, &answer, &check);
                }
                GetStep::Await { replica } => get.handle_failure(replica, Failure::Connection),
                GetStep::Pause { .. } => {}
                GetStep::Done(outcome) => return outcome,
                step => panic!("{step:?}"),
            }
        }
    }
}

/// Whether the second of two GETs goes back behind the first, whatever load of the
/// first it is between.
fn goes_back() -> bool {
    (0..LOADS).any(|at| {
        let cohort = Cohort::new();
        let before = cohort.get(Some(at));
        if !cohort.has_crashed.get() {
            // The scan was over by then.
            cohort.crash_and_recover();
        }
        let after = cohort.get(None);
        match (before, after) {
            (
                GetOutcome::Hit {
                    version: before, ..
                },
                GetOutcome::Hit { version: after, .. },
            ) => after < before,
            _ => false,
        }
    })
}

#[test]
fn a_vote_is_of_the_epoch_of_its_entry() {
    mutants::set(None);
    assert!(!goes_back());
    mutants::set(Some(Mutant::StabilityIgnored));
    let shows = goes_back();
    mutants::set(None);
    assert!(shows, "a header that moves is believed, and nothing shows");
}
