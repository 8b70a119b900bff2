//! A whole durable queue over a simulated disk: lanes, journal, service and clients, while
//! power is cut, processes are killed and accesses fail. What clients send is not idempotent:
//! each request counts, and puts its number into a list.

use crate::sim::dice::{self, Dice};
use crate::sim::seeds;
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;
use trefoil_journal::Log;
use trefoil_ordered::mutants::{self, Mutant};
use trefoil_ordered::{
    Answer, Committed, DurableError, DurableService, DurableWorker, Options, Queue, Request,
    Service,
};

#[path = "../../../journal/tests/all/sim/disk.rs"]
#[allow(dead_code, reason = "the journal's own simulation uses more of it")]
mod disk;

use disk::SimDisk;

/// `TREFOIL_TEST_CUTS_SEEDS=FIRST..END` for others.
const SEEDS: Range<u64> = 0..1_500;
/// Seeds within which a broken rule must show.
const MUTANT_SEEDS: u64 = 1_000;
const QUEUE: u64 = 0xc075;
const BLOCKS: u64 = 132;
/// Bytes that a request has behind its numbers, at most.
const PADDING_MAX: u64 = 1_300;

/// What does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Property {
    /// An acknowledged or answered request has no effect in the end.
    Acknowledged,
    /// A request has its effect twice, or out of its client's order, or was not sent.
    Once,
    /// An answer is not what its client has to be told.
    Answer,
    /// A journal that was only interrupted does not open.
    Opens,
}

/// For each name, a counter and a list of numbers.
#[derive(Clone, Debug, Default)]
struct State {
    position: u64,
    of: BTreeMap<u64, (u64, Vec<u64>)>,
}

/// The service: what it has executed, and what of that is persistent.
struct Lists {
    volatile: State,
    /// What is on its way to be persistent, beside the requests.
    advancing: Option<State>,
    persistent: Rc<RefCell<State>>,
    disk: SimDisk,
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("eight bytes"))
}

impl Service for Lists {
    fn execute(&mut self, request: Request<'_>, answer: &mut Answer) {
        let (name, number) = (word(request.payload, 0), word(request.payload, 1));
        let (count, numbers) = self.volatile.of.entry(name).or_default();
        *count += 1;
        numbers.push(number);
        answer.put(&count.to_le_bytes()).expect("eight bytes");
        self.volatile.position = request.position;
    }
}

#[derive(Debug, thiserror::Error)]
#[error("the process is dead")]
struct Dead;

impl DurableService for Lists {
    type Error = Dead;

    fn persistent_position(&self) -> u64 {
        self.persistent.borrow().position
    }

    /// Both or neither: the process may die before it, and not amid it.
    fn checkpoint(&mut self, position: u64) -> Result<(), Dead> {
        self.disk.step_of_another().map_err(|_| Dead)?;
        self.volatile.position = position;
        *self.persistent.borrow_mut() = self.volatile.clone();
        self.advancing = None;
        Ok(())
    }

    /// What was begun in one call is there in a later one.
    fn advance(&mut self, position: u64) -> Result<(), Dead> {
        self.disk.step_of_another().map_err(|_| Dead)?;
        self.volatile.position = position;
        match self.advancing.take() {
            Some(state) => *self.persistent.borrow_mut() = state,
            None => self.advancing = Some(self.volatile.clone()),
        }
        Ok(())
    }
}

/// A client of one life.
struct Client {
    queue: Queue,
    name: u64,
    sent: u64,
    acknowledged: u64,
    under_way: VecDeque<(u64, Committed, bool)>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Stats {
    lives: u64,
    cuts: u64,
    ends: u64,
    acknowledged: u64,
    more: u64,
    answers: u64,
    laps: u64,
}

struct World {
    dice: Dice,
    disk: SimDisk,
    persistent: Rc<RefCell<State>>,
    next_name: u64,
    /// For each name, how many were sent, and how many acknowledged.
    known: BTreeMap<u64, (u64, u64)>,
    stats: Stats,
    violation: Option<(Property, String)>,
}

impl World {
    fn violate(&mut self, property: Property, detail: String) {
        self.violation.get_or_insert((property, detail));
    }

    fn open(&mut self, lists: &mut Lists) -> Result<DurableWorker<SimDisk>, DurableError<Dead>> {
        let options = Options {
            slot_count: 8,
            spin: Duration::ZERO,
            nap: Duration::ZERO,
            ..Options::default()
        };
        let disk = self.disk.clone();
        DurableWorker::open(options, lists, |executed, replay| {
            Log::open(disk, QUEUE, executed, replay)
        })
    }

    fn lists(&self) -> Lists {
        Lists {
            volatile: self.persistent.borrow().clone(),
            advancing: None,
            persistent: Rc::clone(&self.persistent),
            disk: self.disk.clone(),
        }
    }

    /// One life, until something ends it.
    fn live(&mut self) -> Result<(), DurableError<Dead>> {
        self.stats.lives += 1;
        let mut lists = self.lists();
        let mut worker = self.open(&mut lists)?;
        let mut clients = Vec::new();
        for _ in 0..1 + self.dice.below(3) {
            let mut queue = Queue::join(worker.admit()?)?;
            queue.set_spin(Duration::ZERO);
            self.next_name += 1;
            clients.push(Client {
                queue,
                name: self.next_name,
                sent: 0,
                acknowledged: 0,
                under_way: VecDeque::new(),
            });
        }
        let mut ended = Ok(());
        for _ in 0..10 + self.dice.below(60) {
            for client in &mut clients {
                self.send(client);
            }
            ended = worker.run_once(&mut lists).map(|_| ());
            for client in &mut clients {
                self.look(client);
            }
            if ended.is_err() {
                break;
            }
        }
        if ended.is_ok() && self.dice.once_in(4) {
            self.stats.ends += 1;
            ended = worker.finish(&mut lists);
            for client in &mut clients {
                self.look(client);
            }
        }
        for client in clients {
            self.known
                .insert(client.name, (client.sent, client.acknowledged));
        }
        ended
    }

    fn send(&mut self, client: &mut Client) {
        for _ in 0..self.dice.below(5) {
            if !client.queue.has_room() {
                return;
            }
            let mut bytes = client.name.to_le_bytes().to_vec();
            bytes.extend(client.sent.to_le_bytes());
            bytes.resize(16 + self.dice.below(PADDING_MAX) as usize, 7);
            let nilext = !self.dice.once_in(3);
            let sent = client.queue.submit(&bytes, nilext).expect("room");
            client.under_way.push_back((client.sent, sent, nilext));
            client.sent += 1;
        }
    }

    /// What the client knows by now.
    fn look(&mut self, client: &mut Client) {
        while let Some(&(number, sent, nilext)) = client.under_way.front() {
            let queue = &mut client.queue;
            let is_done = match nilext {
                true => queue.is_committed(sent),
                false => queue.is_executed(sent),
            };
            if !is_done {
                return;
            }
            if !nilext {
                let expected = (number + 1).to_le_bytes();
                let answer = queue.answer(sent, Duration::ZERO).map(<[u8]>::to_vec);
                self.stats.answers += 1;
                if answer.as_deref() != Ok(&expected[..]) {
                    let detail = format!("{number} of {}: {answer:?}", client.name);
                    self.violate(Property::Answer, detail);
                }
            }
            client.under_way.pop_front();
            client.acknowledged = number + 1;
        }
    }

    /// The last opening, undisturbed, and what came of it all.
    fn judge(&mut self) {
        self.disk.calm();
        let mut lists = self.lists();
        if let Err(error) = self.open(&mut lists) {
            self.violate(Property::Opens, error.to_string());
            return;
        }
        for (name, (sent, acknowledged)) in self.known.clone() {
            let (count, numbers) = lists.volatile.of.get(&name).cloned().unwrap_or_default();
            let expected: Vec<u64> = (0..count).collect();
            if numbers != expected || count > sent {
                let detail = format!("{name}: {count} of {sent}: {numbers:?}");
                self.violate(Property::Once, detail);
            }
            if count < acknowledged {
                let detail = format!("{name}: {count} of {acknowledged} acknowledged");
                self.violate(Property::Acknowledged, detail);
            }
            self.stats.acknowledged += acknowledged;
            self.stats.more += count.saturating_sub(acknowledged);
        }
    }
}

fn run(seed: u64) -> (Stats, Option<(Property, String)>) {
    let dice = Dice::new(seed);
    let mut disk = SimDisk::new(BLOCKS, Dice::new(seed ^ 0xd15c));
    Log::format(&mut disk, QUEUE, seed).expect("a calm disk");
    let mut world = World {
        disk,
        dice,
        persistent: Rc::default(),
        next_name: 0,
        known: BTreeMap::new(),
        stats: Stats::default(),
        violation: None,
    };
    for _ in 0..1 + world.dice.below(5) {
        world.disk.calm();
        if !world.dice.once_in(4) {
            world.disk.crash_soon(1 + world.dice.below(150));
        }
        world.disk.fail_sometimes(world.dice.once_in(4));
        let _ = world.live();
        // The process is gone, or the power.
        if world.dice.once_in(2) {
            world.stats.cuts += 1;
            world.disk.cut_power();
        }
        if world.violation.is_some() {
            break;
        }
    }
    world.judge();
    world.stats.laps = world.disk.laps();
    (world.stats, world.violation)
}

#[test]
fn what_was_acknowledged_is_there_once_after_power_cuts() {
    let seeds = seeds("TREFOIL_TEST_CUTS_SEEDS", SEEDS);
    let mut sum = Stats::default();
    for seed in seeds.clone() {
        let (stats, violation) = run(seed);
        assert!(
            violation.is_none(),
            "{violation:?}\nto see it again: TREFOIL_TEST_CUTS_SEEDS={seed}..{} \
             cargo test --profile tested -p trefoil-ordered --test all cuts",
            seed + 1
        );
        sum.lives += stats.lives;
        sum.cuts += stats.cuts;
        sum.ends += stats.ends;
        sum.acknowledged += stats.acknowledged;
        sum.more += stats.more;
        sum.answers += stats.answers;
        sum.laps += stats.laps;
    }
    println!("{sum:?}");
    let count = seeds.end - seeds.start;
    if count < SEEDS.end {
        return;
    }
    for (what, times) in [
        ("lives", sum.lives),
        ("power cuts", sum.cuts),
        ("orderly ends", sum.ends),
        ("acknowledged", sum.acknowledged),
        ("executed, never acknowledged", sum.more),
        ("answers", sum.answers),
        ("laps of the ring", sum.laps),
    ] {
        assert!(times > count / 50, "{what}: {times} in {count} runs");
    }
}

#[track_caller]
fn shows(mutant: Mutant, property: Property) {
    mutants::set(Some(mutant));
    let found = (0..MUTANT_SEEDS).find_map(|seed| {
        let (found, detail) = run(seed).1?;
        (found == property).then_some((seed, detail))
    });
    mutants::set(None);
    let found = found.unwrap_or_else(|| panic!("{mutant:?} was not noticed"));
    println!("{mutant:?}: {found:?}");
}

#[test]
fn rule_1_acknowledged_is_persistent() {
    shows(Mutant::DurableAcknowledgesEarly, Property::Acknowledged);
}

#[test]
fn rule_2_nobody_is_told_of_an_effect_before() {
    shows(Mutant::DurableAnswersEarly, Property::Acknowledged);
}

#[test]
fn rule_3_room_is_given_back_after_the_checkpoint() {
    shows(Mutant::DurableReleasesEarly, Property::Opens);
}
