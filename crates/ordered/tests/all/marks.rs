//! Readers past the queue, beside simulated clients and a server, each of which may be
//! interrupted by the others at any access.

use crate::sim::dice::Dice;
use crate::sim::memory::Memory;
use crate::sim::seeds;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::rc::{Rc, Weak};
use trefoil_layout::words::WordsMut;
use trefoil_ordered::lane::{self, Terms};
use trefoil_ordered::marks::{self, Clearer, Directory, Marker, PLACES, Past};
use trefoil_ordered::merge::{LaneId, Merge, PATIENCE_NS, Step};
use trefoil_ordered::mutants::{self, Mutant};
use trefoil_ordered::producer::{Producer, Refused, Written};
use trefoil_ordered::{Answer, Request, Service, order};

/// `TREFOIL_TEST_MARKS_SEEDS=FIRST..END` for others.
const SEEDS: std::ops::Range<u64> = 0..20_000;
/// Seeds within which a broken rule must show.
const MUTANT_SEEDS: u64 = 4_000;
/// Steps of the server in a row that find nothing: turns are looked at in two of them.
const IDLE_STEPS: u64 = 130;
const EPOCH: u64 = 5;
/// Interruptions of interruptions.
const DEPTH_MAX: u32 = 3;
const KEYS: u64 = 3;

/// What does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Property {
    /// A reader has missed an acknowledged mutation.
    Missed,
    /// Nothing is pending, and a mark says so all the same.
    Stuck,
}

#[derive(Clone, Copy)]
enum At {
    Between,
    Marked,
    Written(Written),
    Claimed(Written),
    Ticketed(Written, u64),
    Published(u64),
}

struct Client {
    /// As the server has called it.
    id: u64,
    producer: Producer<Memory>,
    marker: Marker<Memory>,
    at: At,
    key: u64,
    number: u64,
    stalled: u64,
}

struct Server {
    merge: Merge<Memory>,
    directory: Directory<Memory>,
    /// By the client's number.
    clearers: BTreeMap<u64, Admitted>,
    admissions: u64,
}

struct Admitted {
    lane: LaneId,
    clearer: Clearer<Memory>,
    /// It takes nothing more.
    is_gone: bool,
}

struct World {
    own: Weak<World>,
    dice: Dice,
    depth: Cell<u32>,
    now_ns: Cell<u64>,
    is_ending: Cell<bool>,
    /// Steps of the server, since one that found something.
    idle_steps: Cell<u64>,
    clients: RefCell<Vec<Rc<RefCell<Client>>>>,
    server: RefCell<Server>,
    marks: Memory,
    /// By key, the highest position that was acknowledged.
    acknowledged: RefCell<HashMap<u64, u64>>,
    /// By key, the position that was executed last: the state behind the queue.
    state: RefCell<HashMap<u64, u64>>,
    order: Memory,
    reads: Cell<u64>,
    pending: Cell<u64>,
    skipped: Cell<u64>,
    violation: RefCell<Option<(Property, String)>>,
}

/// Executes for the world, and clears marks.
struct Execution<'w> {
    world: &'w World,
    clearers: &'w mut BTreeMap<u64, Admitted>,
}

impl Service for Execution<'_> {
    fn execute(&mut self, request: Request<'_>, _: &mut Answer) {
        let key = u64::from_le_bytes(request.payload.try_into().expect("a key"));
        let admitted = self.clearers.get_mut(&request.client_id);
        let mut clearer = admitted.map(|admitted| &mut admitted.clearer);
        let is_early = mutants::is_on(Mutant::ClearedEarly);
        if let Some(clearer) = clearer.as_mut().filter(|_| is_early) {
            clearer.clear(key);
        }
        self.world.tick();
        self.world.state.borrow_mut().insert(key, request.position);
        self.world.tick();
        if let Some(clearer) = clearer.filter(|_| !is_early) {
            clearer.clear(key);
        }
    }
}

impl World {
    /// Somebody takes a step.
    fn tick(&self) {
        if self.depth.get() >= DEPTH_MAX {
            return;
        }
        self.depth.set(self.depth.get() + 1);
        self.now_ns.set(self.now_ns.get() + 100);
        match self.dice.below(4) {
            0 => self.serve(),
            1 => self.read(),
            _ => self.send(),
        }
        self.depth.set(self.depth.get() - 1);
    }

    fn serve(&self) {
        let Ok(mut server) = self.server.try_borrow_mut() else {
            return;
        };
        release(&mut server);
        let Server {
            merge, clearers, ..
        } = &mut *server;
        let mut service = Execution {
            world: self,
            clearers,
        };
        if self.dice.once_in(8) {
            self.now_ns.set(self.now_ns.get() + PATIENCE_NS);
        }
        let step = merge.step(|| self.now_ns.get(), &mut service);
        self.idle_steps.set(match step {
            Step::Idle => self.idle_steps.get() + 1,
            _ => 0,
        });
    }

    fn read(&self) {
        let key = self.dice.below(KEYS);
        let before = self.acknowledged.borrow().get(&key).copied().unwrap_or(0);
        let found = marks::read(&self.marks.with(self.between()), key, || {
            self.tick();
            self.state.borrow().get(&key).copied().unwrap_or(0)
        });
        match found {
            Past::Read(position) => {
                self.reads.set(self.reads.get() + 1);
                if position < before {
                    let detail = format!("key {key}: {position} read, {before} acknowledged");
                    let mut violation = self.violation.borrow_mut();
                    violation.get_or_insert((Property::Missed, detail));
                }
            }
            Past::Pending => self.pending.set(self.pending.get() + 1),
        }
    }

    fn send(&self) {
        let count = self.clients.borrow().len() as u64;
        if count == 0 {
            return;
        }
        let client = Rc::clone(&self.clients.borrow()[self.dice.below(count) as usize]);
        let Ok(mut client) = client.try_borrow_mut() else {
            return;
        };
        if client.stalled > 0 {
            client.stalled -= 1;
            return;
        }
        if self.dice.once_in(40) && !self.is_ending.get() {
            client.stalled = self.dice.below(60);
        }
        self.advance(&mut client);
    }

    fn advance(&self, client: &mut Client) {
        let is_late = mutants::is_on(Mutant::MarkedLate);
        let refused = |client: &mut Client, refused: Refused| {
            if refused == Refused::Skipped {
                self.skipped.set(self.skipped.get() + 1);
            }
            client.marker.withdraw(client.key);
            At::Between
        };
        client.at = match client.at {
            At::Between if self.is_ending.get() => At::Between,
            At::Between => {
                client.key = self.dice.below(KEYS);
                client.number += 1;
                if !is_late {
                    client.marker.mark(client.key);
                }
                At::Marked
            }
            At::Marked => {
                let bytes = client.key.to_le_bytes();
                match client.producer.write(client.number, &bytes, true) {
                    Ok(written) => At::Written(written),
                    Err(error) => refused(client, error),
                }
            }
            At::Written(written) => match client.producer.claim() {
                Ok(()) => At::Claimed(written),
                Err(error) => refused(client, error),
            },
            At::Claimed(written) => match client.producer.ticket(&self.order) {
                Ok(position) => At::Ticketed(written, position),
                Err(error) => refused(client, error),
            },
            At::Ticketed(written, position) => match client.producer.publish(written, position) {
                Ok(committed) => {
                    let mut acknowledged = self.acknowledged.borrow_mut();
                    let highest = acknowledged.entry(client.key).or_default();
                    *highest = (*highest).max(position);
                    drop(acknowledged);
                    if is_late {
                        self.tick();
                        client.marker.mark(client.key);
                    }
                    client.marker.commit(client.key);
                    At::Published(committed.sequence)
                }
                Err(error) => refused(client, error),
            },
            At::Published(sequence) => {
                client.producer.mark(sequence);
                At::Between
            }
        };
    }

    /// Whether nobody is amid a request.
    fn is_quiet(&self) -> bool {
        let clients = self.clients.borrow();
        clients
            .iter()
            .all(|client| matches!(client.borrow().at, At::Between))
    }

    /// Others have their turns now and then.
    fn between(&self) -> Rc<dyn Fn()> {
        let world = self.own.clone();
        Rc::new(move || {
            if let Some(world) = world.upgrade()
                && world.dice.once_in(2)
            {
                world.tick();
            }
        })
    }

    /// A client dies, wherever it is: the server learns of it, and gives its place to the
    /// next one when nothing of it is left.
    fn die(&self) {
        let Ok(mut server) = self.server.try_borrow_mut() else {
            return;
        };
        let count = self.clients.borrow().len() as u64;
        if count < 2 {
            return;
        }
        let at = self.dice.below(count) as usize;
        let id = match self.clients.borrow()[at].try_borrow() {
            Ok(client) => client.id,
            Err(_) => return,
        };
        self.clients.borrow_mut().remove(at);
        let Server {
            merge, clearers, ..
        } = &mut *server;
        if let Some(admitted) = clearers.get_mut(&id) {
            merge.close(admitted.lane);
            admitted.is_gone = true;
        }
        release(&mut server);
    }

    /// Another client: in the directory before it has its lane.
    fn admit(self: &Rc<Self>) {
        let Ok(mut server) = self.server.try_borrow_mut() else {
            return;
        };
        let Some(clearer) = server.directory.take() else {
            return;
        };
        let place = clearer.place();
        server.admissions += 1;
        let id = server.admissions;
        let terms = Terms {
            epoch: EPOCH,
            client_id: id,
            slot_count: 4,
        };
        let between = || self.between();
        let lane = Memory::new(terms.object_len());
        lane::initialise(&lane, terms);
        let admitted = Admitted {
            lane: server.merge.admit(lane.with(between()), terms),
            clearer,
            is_gone: false,
        };
        server.clearers.insert(id, admitted);
        drop(server);
        let client = Client {
            id,
            producer: Producer::new(lane.with(between()), terms),
            marker: Marker::new(self.marks.clone(), place),
            at: At::Between,
            key: 0,
            number: 0,
            stalled: 0,
        };
        self.clients
            .borrow_mut()
            .push(Rc::new(RefCell::new(client)));
    }
}

/// Places whose clients are gone, and have left nothing, are free.
fn release(server: &mut Server) {
    let Server {
        merge,
        directory,
        clearers,
        ..
    } = server;
    let is_early = mutants::is_on(Mutant::ReleasedEarly);
    let is_over = |of: &Admitted| of.is_gone && (is_early || merge.is_drained(of.lane));
    let over: Vec<u64> = clearers
        .iter()
        .filter(|(_, of)| is_over(of))
        .map(|(id, _)| *id)
        .collect();
    for id in over {
        if let Some(of) = clearers.remove(&id) {
            directory.release(of.clearer);
            // The early one leaves the lane to be executed.
            if !is_early {
                merge.remove(of.lane);
            }
        }
    }
}

/// Others have a turn amid what the server does to whole rows.
fn now_and_then(world: &Weak<World>) -> Rc<dyn Fn()> {
    let world = world.clone();
    Rc::new(move || {
        if let Some(world) = world.upgrade()
            && world.dice.once_in(64)
        {
            world.tick();
        }
    })
}

/// One run: reads past the queue, reads that had to go through it, skips.
fn run(seed: u64) -> ([u64; 3], Option<(Property, String)>) {
    let marks = Memory::new(marks::OBJECT_LEN);
    marks::initialise(&marks);
    let order = Memory::new(order::OBJECT_LEN);
    order::initialise(&order);
    let world = Rc::new_cyclic(|own| World {
        own: own.clone(),
        dice: Dice::new(seed),
        depth: Cell::new(0),
        now_ns: Cell::new(0),
        is_ending: Cell::new(false),
        idle_steps: Cell::new(0),
        clients: RefCell::default(),
        server: RefCell::new(Server {
            merge: Merge::new(PATIENCE_NS),
            directory: Directory::new(marks.with(now_and_then(own))),
            clearers: BTreeMap::new(),
            admissions: 0,
        }),
        marks,
        acknowledged: RefCell::default(),
        state: RefCell::default(),
        order,
        reads: Cell::new(0),
        pending: Cell::new(0),
        skipped: Cell::new(0),
        violation: RefCell::default(),
    });
    world.admit();
    for _ in 0..100 + world.dice.below(300) {
        world.tick();
        if world.dice.once_in(80) {
            world.admit();
        }
        if world.dice.once_in(80) {
            world.die();
        }
        if world.violation.borrow().is_some() {
            break;
        }
    }
    world.is_ending.set(true);
    for client in world.clients.borrow().iter() {
        client.borrow_mut().stalled = 0;
    }
    for _ in 0..3_000 {
        world.tick();
        if !world.is_quiet() {
            world.idle_steps.set(0);
        }
        if world.idle_steps.get() > IDLE_STEPS {
            break;
        }
    }
    // Everybody has ended what was begun: nothing is pending.
    for key in 0..KEYS {
        if marks::read(&world.marks, key, || ()) != Past::Read(()) {
            let detail = format!("key {key}");
            let mut violation = world.violation.borrow_mut();
            violation.get_or_insert((Property::Stuck, detail));
        }
    }
    let counts = [&world.reads, &world.pending, &world.skipped].map(Cell::get);
    let found = world.violation.borrow().clone();
    (counts, found)
}

#[test]
fn a_reader_past_the_queue_misses_nothing_that_was_acknowledged() {
    let mut sums = [0; 3];
    let seeds = seeds("TREFOIL_TEST_MARKS_SEEDS", SEEDS);
    for seed in seeds.clone() {
        let (counts, found) = run(seed);
        assert!(
            found.is_none(),
            "{found:?}\nto see it again: TREFOIL_TEST_MARKS_SEEDS={seed}..{} \
             cargo test --profile tested -p trefoil-ordered --test all marks",
            seed + 1
        );
        for (sum, count) in sums.iter_mut().zip(counts) {
            *sum += count;
        }
    }
    println!("reads, pending, skipped: {sums:?}");
    let count = seeds.end - seeds.start;
    if count < SEEDS.end {
        return;
    }
    assert!(sums.iter().all(|sum| *sum > count / 10), "{sums:?}");
}

#[track_caller]
fn shows(mutant: Mutant, property: Property) {
    mutants::set(Some(mutant));
    let found = (0..MUTANT_SEEDS).find_map(|seed| {
        let (found, detail) = run(seed).1?;
        (found == property).then_some((seed, detail))
    });
    mutants::set(None);
    let found =
        found.unwrap_or_else(|| panic!("{mutant:?} was not noticed in {MUTANT_SEEDS} seeds"));
    println!("{mutant:?}: {found:?}");
}

#[test]
fn rule_1_marked_before_published() {
    shows(Mutant::MarkedLate, Property::Missed);
}

#[test]
fn rule_2_cleared_after_executed() {
    shows(Mutant::ClearedEarly, Property::Missed);
}

#[test]
fn rule_3_marks_before_the_state() {
    shows(Mutant::MarksLast, Property::Missed);
}

#[test]
fn rule_4_the_directory_first() {
    shows(Mutant::DirectoryIgnored, Property::Missed);
}

#[test]
fn rule_4_the_directory_has_every_place_that_is_taken() {
    shows(Mutant::DirectoryFallsShort, Property::Missed);
}

/// After a burst of clients readers look at no more rows than before it.
#[test]
fn the_directory_falls_when_its_topmost_places_are_free() {
    let words = Memory::new(marks::OBJECT_LEN);
    marks::initialise(&words);
    let mut directory = Directory::new(words.clone());
    let mut clearers: Vec<_> = (0..PLACES).map(|_| directory.take().unwrap()).collect();
    assert!(directory.take().is_none() && !directory.has_room());
    assert_eq!(marks::places(&words), PLACES);
    // A mark that is left behind holds nobody up.
    Marker::new(words.clone(), 1).mark(7);
    assert!(marks::is_pending(&words, 7));
    // One that is not the topmost changes nothing, and is given again before others.
    directory.release(clearers.remove(1));
    assert!(!marks::is_pending(&words, 7));
    assert_eq!(marks::places(&words), PLACES);
    clearers.insert(1, directory.take().unwrap());
    assert_eq!(clearers[1].place(), 1);
    for clearer in clearers.drain(3..) {
        directory.release(clearer);
    }
    assert_eq!(marks::places(&words), 3);
    // What a client has written there is no number of the server's.
    words.store(1, PLACES as u64);
    directory.release(clearers.remove(1));
    assert_eq!(marks::places(&words), 3);
    directory.release(clearers.remove(1));
    assert_eq!(marks::places(&words), 1);
    directory.release(clearers.remove(0));
    assert_eq!(marks::places(&words), 0);
}

#[test]
fn rule_5_refused_is_unmarked() {
    shows(Mutant::NotWithdrawn, Property::Stuck);
}

#[test]
fn rule_6_a_place_is_free_when_its_lane_is_empty() {
    shows(Mutant::ReleasedEarly, Property::Missed);
}
