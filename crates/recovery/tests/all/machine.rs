//! The machine over real stores, with questions answered on the spot.

use std::collections::HashMap;
use trefoil_layout::data::DataEntry;
use trefoil_layout::op::{Action, Mutation, Outcome, Rejection};
use trefoil_layout::{KeyHasher, Placement, ShardMap, Version, epoch};
use trefoil_recovery::{Answer, Ask, Copied, Data, Ended, Recovery, standing};
use trefoil_region::WordBuffer;
use trefoil_store::{Access, Now, PLACES, Position, Regions, Store, StoreConfig};

const NOW: Now = Now::at(1_700_000_000_000_000_000);

fn version(n: u64) -> Version {
    Version::new(NOW.unix_ns + n, 7, 0)
}

fn store(number: u32, incarnation: u64) -> Store {
    let config = StoreConfig {
        partition_count: 6,
        shards: ShardMap::new(Placement::new(3, 3), number),
        incarnation,
        epoch: epoch::of_incarnation(incarnation as u32, number).unwrap(),
        memory_limit: 16 << 20,
        ..StoreConfig::default()
    };
    Store::new(config, Regions::heap(16 << 20)).unwrap()
}

fn mutation<'a>(action: Action, key: &'a [u8], value: &'a [u8], n: u64) -> Mutation<'a> {
    Mutation {
        action,
        version: version(n),
        entry: DataEntry {
            key,
            value,
            ..DataEntry::default()
        },
    }
}

fn set(store: &Store, key: &str, value: &str, n: u64) -> Outcome {
    let mutation = mutation(Action::Set, key.as_bytes(), value.as_bytes(), n);
    store.mutate(NOW, &mutation).outcome
}

fn get(store: &Store, key: &str) -> Option<String> {
    let read = store.read(NOW, key.as_bytes(), Access::Peek, |item| {
        item.map(|item| {
            let mut value = Vec::new();
            item.append_value(&mut value);
            String::from_utf8(value).unwrap()
        })
    });
    read.unwrap()
}

/// A cohort of which the first has come back empty.
struct Cohort {
    lost: Store,
    peers: [Store; 2],
    /// The cell's number of the shard, and what each of them calls it.
    local: [usize; 3],
    /// Keys of the shard.
    keys: Vec<String>,
    /// What is done to a page before it arrives.
    damage: fn(&mut Answer<Vec<u8>>),
    asked: HashMap<&'static str, u32>,
    /// Long values that a peer does not give: so many times it does not answer.
    silent: [u32; 2],
    /// The second peer tells of so many places at once.
    second_places_max: u64,
}

impl Cohort {
    fn new(count: usize) -> Self {
        let stores = [store(0, 2), store(1, 1), store(2, 1)];
        let placement = Placement::new(3, 3);
        let local = [0, 1, 2].map(|number| ShardMap::new(placement, number).local_of(0).unwrap());
        let is_in = |key: &String| placement.first(KeyHasher::default().hash(key.as_bytes())) == 0;
        let keys = (0..).map(|n| format!("key {n}")).filter(is_in);
        let keys = keys.take(count).collect();
        let [lost, one, other] = stores;
        lost.set_recovering(local[0], true);
        Cohort {
            lost,
            peers: [one, other],
            local,
            keys,
            damage: |_| {},
            asked: HashMap::new(),
            silent: [0; 2],
            second_places_max: u64::MAX,
        }
    }

    fn set_at_both(&self, key: &str, value: &str, n: u64) {
        for peer in &self.peers {
            assert_eq!(set(peer, key, value, n), Outcome::Applied);
        }
    }

    /// One question and its answer; `false` if there is nothing to ask.
    fn step(&mut self, machine: &mut Recovery<Vec<u8>>, peer: usize) -> bool {
        let Some(ask) = machine.ask(peer) else {
            return false;
        };
        if matches!(ask, Ask::Long { .. }) && self.silent[peer] > 0 {
            self.silent[peer] -= 1;
            if !machine.unanswered(peer) {
                // As the driver does.
                machine.failed(0);
                machine.failed(1);
            }
            return true;
        }
        let answer = self.answer(peer, ask);
        machine.answer(peer, answer, &self.lost, NOW).unwrap();
        true
    }

    fn answer(&mut self, peer: usize, ask: Ask) -> Answer<Vec<u8>> {
        let (store, shard) = (&self.peers[peer], self.local[1 + peer]);
        let (what, mut answer) = match ask {
            Ask::Standing { raise_to } => {
                let standing = standing(store, shard, raise_to).unwrap();
                ("standing", Answer::Standing(standing))
            }
            Ask::Items {
                from,
                until,
                values,
            } => {
                let until = match peer {
                    0 => until,
                    _ => until.min(from.saturating_add(self.second_places_max)),
                };
                let page = Copied::new(store, NOW, shard)
                    .items(from..until, values)
                    .unwrap();
                let what = if values { "values" } else { "held" };
                (what, Answer::Items(page))
            }
            Ask::Long { key, version } => {
                let mut bytes = WordBuffer::default();
                let found = store.lookup(NOW, &key, &mut bytes).found;
                let is_it = matches!(found, trefoil_layout::op::Found::Present { version: v, .. } if v == version);
                ("long", Answer::Long(is_it.then(|| bytes.bytes().to_vec())))
            }
        };
        *self.asked.entry(what).or_default() += 1;
        (self.damage)(&mut answer);
        answer
    }

    fn run(&mut self, machine: &mut Recovery<Vec<u8>>) -> Ended {
        loop {
            let moves = [0, 1].map(|peer| self.step(machine, peer));
            if let Some(ended) = machine.ended() {
                return ended;
            }
            assert_ne!(moves, [false; 2], "nothing to ask, and no end");
        }
    }

    fn recover(&mut self) -> Recovery<Vec<u8>> {
        let mut machine = Recovery::new(self.local[0]);
        assert_eq!(self.run(&mut machine), Ended::Recovered);
        assert!(machine.votes());
        assert!(!self.lost.is_recovering(self.local[0]));
        machine
    }
}

#[test]
fn what_both_hold_comes_back_and_nothing_else() {
    let mut cohort = Cohort::new(3000);
    let keys = cohort.keys.clone();
    for key in &keys {
        cohort.set_at_both(key, key, 10);
    }
    // One holds another version, one holds nothing, both hold nothing.
    set(&cohort.peers[0], &keys[0], "newer", 20);
    let erase = mutation(Action::Erase, keys[1].as_bytes(), b"", 20);
    cohort.peers[1].mutate(NOW, &erase);
    let machine = cohort.recover();
    for key in &keys[2..] {
        assert_eq!(get(&cohort.lost, key).as_ref(), Some(key));
    }
    assert_eq!(get(&cohort.lost, &keys[0]), None);
    assert_eq!(get(&cohort.lost, &keys[1]), None);
    assert_eq!(machine.counts().items, 2998);
    assert_eq!(machine.counts().disagreed, 2);
    assert_eq!(machine.counts().repaired, 0);
    // All are in one epoch, in which nobody was before.
    let epochs = [&cohort.lost, &cohort.peers[0], &cohort.peers[1]];
    let epochs: Vec<u32> = (epochs.iter().zip(cohort.local))
        .map(|(store, shard)| store.epoch(shard))
        .collect();
    assert!(epochs[0] > epoch::FIRST && epochs.iter().all(|epoch| *epoch == epochs[0]));
    // What is older than the newest of both is not stored where nothing was copied.
    let outcome = set(&cohort.lost, &keys[1], "late", 15);
    assert!(matches!(outcome, Outcome::Superseded { bound } if bound == version(20)));
    assert_eq!(cohort.lost.check(), Ok(()));
}

#[test]
fn others_have_the_core_between_any_two_values() {
    thread_local! {
        static CALLS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
    }
    let mut cohort = Cohort::new(3000);
    for key in &cohort.keys {
        cohort.set_at_both(key, key, 10);
    }
    let machine = Recovery::new(cohort.local[0]);
    let mut machine = machine.between_values(|| CALLS.set(CALLS.get() + 1));
    assert_eq!(cohort.run(&mut machine), Ended::Recovered);
    // Each was compared, and looked at again after the vote.
    assert!(CALLS.get() >= 2 * 3000, "{}", CALLS.get());
}

#[test]
fn what_is_written_meanwhile_is_kept_or_repaired() {
    let mut cohort = Cohort::new(20);
    let keys = cohort.keys.clone();
    for key in &keys {
        cohort.set_at_both(key, "old", 10);
    }
    let mut machine = Recovery::new(cohort.local[0]);
    // Both epochs are raised; the first page is on its way.
    while !cohort.asked.contains_key("values") {
        cohort.step(&mut machine, 0);
        if !cohort.asked.contains_key("values") {
            cohort.step(&mut machine, 1);
        }
    }
    cohort.set_at_both(&keys[0], "kept", 30);
    let refused = Outcome::Rejected(Rejection::Recovering);
    assert_eq!(set(&cohort.lost, &keys[0], "kept", 30), refused);
    cohort.set_at_both(&keys[1], "missed", 30);
    assert_eq!(cohort.run(&mut machine), Ended::Recovered);
    assert_eq!(get(&cohort.lost, &keys[0]).as_deref(), Some("kept"));
    assert_eq!(get(&cohort.lost, &keys[1]).as_deref(), Some("missed"));
    assert_eq!(machine.counts().repaired, 1);
    // By one who does not know yet that it is back.
    cohort.set_at_both(&keys[2], "missed", 40);
    machine.look_again();
    assert_eq!(machine.ended(), None);
    assert_eq!(cohort.run(&mut machine), Ended::Recovered);
    assert_eq!(get(&cohort.lost, &keys[2]).as_deref(), Some("missed"));
    assert_eq!(machine.counts().repaired, 2);
    assert!(machine.votes());
}

#[test]
fn an_interrupted_copy_goes_on_where_it_was_and_raises_nothing_again() {
    let mut cohort = Cohort::new(3000);
    let keys = cohort.keys.clone();
    let value = "v".repeat(1000);
    for key in &keys {
        cohort.set_at_both(key, &value, 10);
    }
    let mut machine = Recovery::new(cohort.local[0]);
    while machine.place() == 0 {
        cohort.step(&mut machine, 0);
        cohort.step(&mut machine, 1);
    }
    let place = machine.place();
    let epoch = cohort.lost.epoch(cohort.local[0]);
    let _ = machine.ask(0);
    machine.failed(0);
    machine.failed(1);
    assert_eq!(machine.place(), place);
    assert_eq!(cohort.run(&mut machine), Ended::Recovered);
    assert_eq!(cohort.lost.epoch(cohort.local[0]), epoch);
    assert!(keys.iter().all(|key| get(&cohort.lost, key).is_some()));
    let mut again = Cohort::new(3000);
    for key in &keys {
        again.set_at_both(key, &value, 10);
    }
    again.recover();
    assert!(again.asked["values"] > 3, "the shard is several pages");
    assert!(
        cohort.asked["values"] <= again.asked["values"] + 2,
        "{:?} {:?}",
        cohort.asked,
        again.asked
    );
}

#[test]
fn one_damaged_value_costs_itself_only() {
    let mut cohort = Cohort::new(100);
    let keys = cohort.keys.clone();
    for key in &keys {
        cohort.set_at_both(key, key, 10);
    }
    cohort.damage = |answer| {
        if let Answer::Items(page) = answer
            && let Some(item) = page.items.first_mut()
            && let Data::Whole(bytes) = &mut item.data
            && let Some(last) = bytes.last_mut()
        {
            *last ^= 1;
        }
    };
    let machine = cohort.recover();
    assert_eq!(machine.counts().items, 99);
    let lacking = keys.iter().filter(|key| get(&cohort.lost, key).is_none());
    assert_eq!(lacking.count(), 1);
}

#[test]
fn long_values_are_looked_up() {
    let mut cohort = Cohort::new(4);
    let keys = cohort.keys.clone();
    let long = "long".repeat(30_000);
    for key in &keys {
        cohort.set_at_both(key, &long, 10);
    }
    cohort.recover();
    assert_eq!(cohort.asked["long"], 4);
    for key in &keys {
        assert_eq!(get(&cohort.lost, key).as_ref(), Some(&long));
    }
}

#[test]
fn a_long_value_that_one_does_not_give_comes_from_the_other() {
    let long = "long".repeat(30_000);
    for silent in [[1, 0], [7, 0], [2, 1], [3, 5]] {
        let mut cohort = Cohort::new(4);
        let keys = cohort.keys.clone();
        for key in &keys {
            cohort.set_at_both(key, &long, 10);
        }
        cohort.silent = silent;
        let machine = cohort.recover();
        assert_eq!(machine.counts().items, 4, "{silent:?}");
        for key in &keys {
            assert_eq!(get(&cohort.lost, key).as_ref(), Some(&long));
        }
        // After its vote, too.
        let mut machine = machine;
        cohort.set_at_both(&keys[0], &long, 20);
        cohort.silent = silent;
        machine.look_again();
        assert_eq!(cohort.run(&mut machine), Ended::Recovered);
        assert_eq!(machine.counts().repaired, 1, "{silent:?}");
    }
}

#[test]
fn no_shard_votes_while_neither_gives_a_long_value_that_both_hold() {
    let mut cohort = Cohort::new(1);
    let key = cohort.keys[0].clone();
    cohort.set_at_both(&key, &"long".repeat(30_000), 10);
    cohort.silent = [u32::MAX; 2];
    let mut machine = Recovery::new(cohort.local[0]);
    for _ in 0..100 {
        cohort.step(&mut machine, 0);
        cohort.step(&mut machine, 1);
        assert!(!machine.votes());
    }
    assert!(u32::MAX - cohort.silent[1] > 3);
    cohort.silent = [0; 2];
    assert_eq!(cohort.run(&mut machine), Ended::Recovered);
    assert!(get(&cohort.lost, &key).is_some());
}

#[test]
fn a_long_value_that_is_damaged_at_one_comes_from_the_other() {
    let mut cohort = Cohort::new(1);
    let key = cohort.keys[0].clone();
    cohort.set_at_both(&key, &"long".repeat(30_000), 10);
    let mut machine = Recovery::new(cohort.local[0]);
    loop {
        let ask = machine.ask(0);
        if let Some(Ask::Long { .. }) = ask {
            let mut answer = cohort.answer(0, ask.unwrap());
            if let Answer::Long(Some(data)) = &mut answer {
                data[10_000] ^= 1;
            }
            machine.answer(0, answer, &cohort.lost, NOW).unwrap();
            break;
        }
        if let Some(ask) = ask {
            let answer = cohort.answer(0, ask);
            machine.answer(0, answer, &cohort.lost, NOW).unwrap();
        }
        cohort.step(&mut machine, 1);
    }
    assert_eq!(cohort.run(&mut machine), Ended::Recovered);
    assert!(get(&cohort.lost, &key).is_some());
}

#[test]
fn a_long_value_that_is_found_while_another_is_looked_up_is_not_taken_for_it() {
    let mut cohort = Cohort::new(6);
    let keys = cohort.keys.clone();
    let long = "long".repeat(30_000);
    for (at, key) in keys.iter().enumerate() {
        cohort.set_at_both(key, &long, 10 + at as u64);
    }
    // The second tells of them one after another.
    cohort.second_places_max = PLACES.end / 64;
    let mut machine = Recovery::new(cohort.local[0]);
    while machine.ended().is_none() {
        let Some(ask) = machine.ask(0) else {
            assert!(cohort.step(&mut machine, 1), "nothing to ask, and no end");
            continue;
        };
        // Slower than all that the second can tell meanwhile.
        if matches!(ask, Ask::Long { .. }) {
            while cohort.step(&mut machine, 1) {}
        }
        let answer = cohort.answer(0, ask);
        machine.answer(0, answer, &cohort.lost, NOW).unwrap();
    }
    assert_eq!(machine.counts().disagreed, 0);
    for key in &keys {
        assert_eq!(get(&cohort.lost, key).as_ref(), Some(&long));
    }
}

#[test]
fn where_two_of_three_have_lost_the_shard_it_comes_back_empty() {
    let mut cohort = Cohort::new(50);
    let keys = cohort.keys.clone();
    for key in &keys {
        cohort.set_at_both(key, "value", 10);
    }
    cohort.peers[1] = store(2, 2);
    cohort.peers[1].set_recovering(cohort.local[2], true);
    let mut machine = Recovery::new(cohort.local[0]);
    assert_eq!(cohort.run(&mut machine), Ended::Lost);
    assert!(machine.votes());
    assert!(keys.iter().all(|key| get(&cohort.lost, key).is_none()));
    let outcome = set(&cohort.lost, &keys[0], "late", 5);
    assert!(matches!(outcome, Outcome::Superseded { .. }));
    assert_eq!(set(&cohort.lost, &keys[0], "new", 20), Outcome::Applied);
}

/// A cohort of large values, and its machine, when a part of them has been copied.
fn in_mid_copy() -> (Cohort, Recovery<Vec<u8>>) {
    let mut cohort = Cohort::new(3000);
    let value = "v".repeat(1000);
    // The first place alone was written without one of the peers: each lacks one key.
    let place = |key: &String| Position::place_of(KeyHasher::default().hash(key.as_bytes()));
    cohort.keys.sort_by_key(place);
    set(&cohort.peers[0], &cohort.keys[0], &value, 10);
    set(&cohort.peers[1], &cohort.keys[1], &value, 10);
    for key in &cohort.keys[2..] {
        cohort.set_at_both(key, &value, 10);
    }
    let mut machine = Recovery::new(cohort.local[0]);
    while machine.place() == 0 {
        cohort.step(&mut machine, 0);
        cohort.step(&mut machine, 1);
    }
    let hash = |key: &String| KeyHasher::default().hash(key.as_bytes());
    let held = |key: &&String| cohort.lost.held(hash(key)).is_some();
    let copied = cohort.keys.iter().filter(held);
    let copied = copied.count();
    assert!((100..2900).contains(&copied), "{copied}");
    (cohort, machine)
}

/// In the place of a peer there is another memory, of a process that took over from it. What
/// the former one did not hold, it may hold: there, too, where was copied already.
#[test]
fn a_copy_of_which_a_peer_is_another_memory_begins_again() {
    for peer in [0, 1] {
        let (mut cohort, mut machine) = in_mid_copy();
        let epoch = cohort.lost.epoch(cohort.local[0]);
        let other = store(1 + peer as u32, 2);
        for key in &cohort.keys {
            assert_eq!(set(&other, key, &"v".repeat(1000), 10), Outcome::Applied);
        }
        cohort.peers[peer] = other;
        machine.failed(0);
        machine.failed(1);
        assert_eq!(cohort.run(&mut machine), Ended::Recovered);
        let lacking = |key: &&String| get(&cohort.lost, key).is_none();
        let lacking: Vec<&String> = cohort.keys.iter().filter(lacking).collect();
        // All that the two hold from which it was copied last.
        assert_eq!(lacking, [&cohort.keys[peer]], "{peer}");
        assert!(cohort.lost.epoch(cohort.local[0]) > epoch, "{peer}");
        assert_eq!(cohort.lost.check(), Ok(()));
    }
}

/// A peer dies while it is copied from, and comes back empty: two of three have lost the
/// shard. That is said, and then everybody goes on: what was copied was a quorum's, and what
/// the remaining one alone holds can be written anew.
#[test]
fn where_a_peer_loses_the_shard_in_mid_copy_nothing_is_invented_or_refused_for_ever() {
    for peer in [0, 1] {
        let (mut cohort, mut machine) = in_mid_copy();
        let remaining = 1 - peer;
        // One that was copied was written since, without the one that recovers.
        let newer = cohort.keys[5].clone();
        cohort.set_at_both(&newer, "newer", 20);
        cohort.peers[peer] = store(1 + peer as u32, 2);
        let local = cohort.local[1 + peer];
        cohort.peers[peer].set_recovering(local, true);
        machine.failed(0);
        machine.failed(1);
        assert!(!machine.votes());
        assert_eq!(cohort.run(&mut machine), Ended::Lost, "{peer}");
        assert!(machine.votes() && !cohort.lost.is_recovering(cohort.local[0]));
        let (lost, remaining) = (&cohort.lost, &cohort.peers[remaining]);
        let hash = |key: &String| KeyHasher::default().hash(key.as_bytes());
        for key in &cohort.keys {
            let held = lost.held(hash(key));
            let is_newer = key == &newer;
            let is_theirs = held.is_none() || held == remaining.held(hash(key));
            // It has no second vote, and may be older: that of all three is for a repair.
            assert!(is_theirs || is_newer && held == Some(version(10)), "{key}");
            // What is not there comes in no older than what the remaining one knows.
            let late = set(lost, key, "late", if held.is_some() { 9 } else { 15 });
            assert!(
                matches!(late, Outcome::Superseded { .. }),
                "{key}: {late:?}"
            );
        }
        // The other one recovers from these two.
        std::mem::swap(&mut cohort.lost, &mut cohort.peers[peer]);
        cohort.local.swap(0, 1 + peer);
        cohort.recover();
        // All three take what is written anew, and vote for it.
        for key in &cohort.keys {
            for store in [&cohort.lost, &cohort.peers[0], &cohort.peers[1]] {
                assert_eq!(set(store, key, "anew", 30), Outcome::Applied, "{key}");
                assert_eq!(get(store, key).as_deref(), Some("anew"));
            }
        }
    }
}

#[test]
fn bounds_and_epochs_that_cannot_be_are_refused() {
    const SECOND: u64 = 1_000_000_000;
    let second = epoch::shared_above(epoch::FIRST).unwrap();
    // Above the one in which it has begun with nothing.
    let raised = epoch::shared_above(epoch::of_incarnation(2, 0).unwrap()).unwrap();
    let ahead = |seconds| Version::new(NOW.unix_ns + seconds * SECOND, 1, 0);
    let last = Version {
        time_ns: u64::MAX,
        origin: u64::MAX,
    };
    let told = |(epoch, bound_max), is_lost| {
        let mut cohort = Cohort::new(3);
        let key = cohort.keys[0].clone();
        cohort.set_at_both(&key, "value", 10);
        let mut machine = Recovery::<Vec<u8>>::new(cohort.local[0]);
        cohort.step(&mut machine, 1);
        let ask = machine.ask(0).unwrap();
        let mut answer = cohort.answer(0, ask);
        let Answer::Standing(standing) = &mut answer else {
            panic!("{answer:?}");
        };
        (standing.epoch, standing.bound_max, standing.is_lost) = (epoch, bound_max, is_lost);
        let taken = machine.answer(0, answer, &cohort.lost, NOW);
        if taken.is_err() {
            // As the driver does; and then it tells the truth.
            machine.failed(0);
            machine.failed(1);
            assert_eq!(cohort.run(&mut machine), Ended::Recovered);
            assert!(cohort.lost.bound_max(cohort.local[0]) < ahead(1));
            assert_eq!(cohort.lost.epoch(cohort.local[0]), raised);
        }
        taken
    };
    for is_lost in [false, true] {
        assert!(told((second, ahead(10)), is_lost).is_ok());
        for lie in [
            (second, ahead(60)),
            (second, last),
            (epoch::NONE, ahead(0)),
            (u32::MAX, ahead(0)),
        ] {
            assert!(told(lie, is_lost).is_err(), "{lie:?} {is_lost}");
        }
    }
    // One that has lost its memory may begin far behind the other one's epoch.
    let far = epoch::of_incarnation(400_000, 1).unwrap();
    assert!(told((far, ahead(0)), false).is_err());
    assert!(told((far, ahead(0)), true).is_ok());
}

/// The floor of a shard that votes is its own: no clock is a reason not to fetch what was
/// written without it.
#[test]
fn a_shard_that_votes_is_repaired_by_peers_whose_clocks_are_wrong() {
    let mut cohort = Cohort::new(3);
    let mut machine = cohort.recover();
    cohort.set_at_both(&cohort.keys[0].clone(), "missed", 20);
    cohort.damage = |answer| {
        if let Answer::Standing(standing) = answer {
            standing.bound_max.time_ns += 3_600_000_000_000;
        }
    };
    machine.look_again();
    assert_eq!(cohort.run(&mut machine), Ended::Recovered);
    assert_eq!(machine.counts().repaired, 1);
    assert!(cohort.lost.bound_max(cohort.local[0]) <= version(20));
}

#[test]
fn nonsense_is_an_error() {
    let mut cohort = Cohort::new(3);
    let key = cohort.keys[0].clone();
    cohort.set_at_both(&key, "value", 10);
    let mut machine = Recovery::<Vec<u8>>::new(cohort.local[0]);
    while !cohort.asked.contains_key("values") {
        cohort.step(&mut machine, 0);
        if !cohort.asked.contains_key("values") {
            cohort.step(&mut machine, 1);
        }
    }
    let Some(Ask::Items { from, until, .. }) = machine.ask(1) else {
        panic!("the second peer is asked for what it holds");
    };
    for next in [from, until + 1] {
        let mut page = Copied::new(&cohort.peers[1], NOW, cohort.local[2])
            .items(from..until, false)
            .unwrap();
        page.next = next;
        let answer = machine.answer(1, Answer::Items(page), &cohort.lost, NOW);
        assert!(answer.is_err(), "{next}");
    }
}

/// A write that one of both had when the floor was taken, and that reached the other one
/// after its page was compared: the floor hides it from the repair, so it is named.
#[test]
fn a_write_that_reached_both_below_the_floor_is_named() {
    let mut cohort = Cohort::new(3);
    let keys = cohort.keys.clone();
    for key in &keys {
        cohort.set_at_both(key, "old", 10);
    }
    set(&cohort.peers[0], &keys[0], "acknowledged", 20);
    let mut machine = Recovery::new(cohort.local[0]);
    while !machine.votes() {
        cohort.step(&mut machine, 0);
        cohort.step(&mut machine, 1);
    }
    // The client's second try is answered by both, in one epoch.
    cohort.set_at_both(&keys[0], "acknowledged", 20);
    assert_eq!(cohort.run(&mut machine), Ended::Recovered);
    let hash = KeyHasher::default().hash(keys[0].as_bytes());
    assert_eq!(machine.take_hidden(), [hash]);
    assert_eq!(machine.take_hidden(), []);
    // It is named again for as long as it is not repaired.
    machine.look_again();
    assert_eq!(cohort.run(&mut machine), Ended::Recovered);
    assert_eq!(machine.take_hidden(), [hash]);
    let renewed = version(30);
    for store in [&cohort.lost, &cohort.peers[0], &cohort.peers[1]] {
        assert_eq!(set(store, &keys[0], "renewed", 30), Outcome::Applied);
    }
    assert_eq!(cohort.lost.held(hash), Some(renewed));
    machine.look_again();
    assert_eq!(cohort.run(&mut machine), Ended::Recovered);
    assert_eq!(machine.take_hidden(), []);
}

/// What was written while a copy stood still is above the floor that was taken at its
/// beginning, at places that were copied before, too.
#[test]
fn a_copy_that_is_resumed_keeps_its_floor() {
    let (mut cohort, mut machine) = in_mid_copy();
    let key = cohort.keys[0].clone();
    cohort.set_at_both(&key, "meanwhile", 30);
    machine.failed(0);
    machine.failed(1);
    assert_eq!(cohort.run(&mut machine), Ended::Recovered);
    assert_eq!(get(&cohort.lost, &key).as_deref(), Some("meanwhile"));
    assert_eq!(machine.take_hidden(), []);
}
