//! A deterministic simulation: the real producers and the real merge over simulated
//! memory, under a seed. Clients take their steps between any two accesses of the
//! server.

pub(crate) mod actor;
pub(crate) mod dice;
pub(crate) mod history;
pub(crate) mod memory;
pub(crate) mod stats;

use actor::{Actor, Kind, Notes};
use dice::Dice;
use history::{Executed, Property, Violation};
use memory::Memory;
use stats::Stats;
use std::cell::{Cell, RefCell};
use std::ops::Range;
use std::rc::Rc;
use trefoil_ordered::lane::{self, Terms};
use trefoil_ordered::merge::{LaneId, Merge, PATIENCE_NS, Step, Taken};
use trefoil_ordered::order;
use trefoil_ordered::producer::Producer;
use trefoil_ordered::service::{Answer, Request, Service};

const EPOCH: u64 = 77;
/// Rounds after which everything that was published has to be executed, when nobody
/// begins anything more.
const DRAIN_ROUNDS: usize = 4_000;

/// One access in so many holds up a server that is held up at all. So many clients at most have
/// a turn then, one after the other, of so many steps at most.
const HELD_UP_ONCE_IN: u64 = 30;
const HELD_UP_TURNS_MAX: u64 = 6;
const HELD_UP_STEPS_MAX: u64 = 14;

/// Clients of one run, of all times.
const CLIENTS_MAX: usize = 12;

/// What `variable` says, as FIRST..END, or the usual seeds.
pub(crate) fn seeds(variable: &str, usual: Range<u64>) -> Range<u64> {
    let Ok(text) = std::env::var(variable) else {
        return usual;
    };
    let (first, end) = text.split_once("..").expect("FIRST..END");
    let number = |text: &str| text.parse().expect("a number");
    number(first)..number(end)
}

struct World {
    notes: Notes,
    /// Boxed: they are taken out for each step.
    actors: RefCell<Vec<Option<Box<Actor>>>>,
    now_ns: Cell<u64>,
    /// One access in so many of the server's has somebody step before it.
    pace: u64,
    /// The server has no turn of the processor now and then, for many steps of others between
    /// two of its accesses. Dice of its own.
    held_up: Option<Dice>,
}

impl World {
    /// Before an access of the server's.
    fn between(&self) {
        if let Some(dice) = &self.held_up
            && dice.once_in(HELD_UP_ONCE_IN)
        {
            self.notes.stats.borrow_mut().held_up += 1;
            let count = self.actors.borrow().len() as u64;
            for _ in 0..dice.below(HELD_UP_TURNS_MAX) {
                let at = dice.below(count) as usize;
                for _ in 0..dice.below(HELD_UP_STEPS_MAX) {
                    self.tick_of(at);
                }
            }
        }
        if self.notes.dice.once_in(self.pace) {
            self.tick();
        }
    }

    /// Some client takes a step.
    fn tick(&self) {
        let count = self.actors.borrow().len() as u64;
        self.tick_of(self.notes.dice.below(count) as usize);
    }

    fn tick_of(&self, at: usize) {
        self.notes.step.set(self.notes.step.get() + 1);
        self.now_ns.set(self.now_ns.get() + 100);
        // Whoever steps already does not step within its step.
        let Some(mut actor) = self.actors.borrow_mut()[at].take() else {
            return;
        };
        actor.step(&self.notes);
        self.actors.borrow_mut()[at] = Some(actor);
    }
}

/// Writes down what is executed, and answers with its number.
struct Recorder {
    world: Rc<World>,
    nonsense: Vec<u64>,
    /// When the server first waited for a claim, since it executed anything.
    waits_since_ns: Option<u64>,
    /// Nobody changes turns but as he should.
    is_patience_bound: bool,
    /// The server takes so many requests before it executes them.
    group: u64,
    taken: Vec<(Taken, Vec<u8>)>,
    /// As a delegate, the server holds what it has taken while it waits for a claim, and
    /// executes it now and then. Dice of its own: `None` holds nothing.
    held: Option<Dice>,
}

impl Service for Recorder {
    fn execute(&mut self, request: Request<'_>, answer: &mut Answer) {
        let notes = &self.world.notes;
        let id = request.request_id;
        let mut history = notes.history.borrow_mut();
        let bytes = (history.executed.len() as u64).to_le_bytes();
        answer.put(&bytes).expect("eight bytes");
        notes.answers.borrow_mut().insert(id, bytes.to_vec());
        if self.nonsense.contains(&request.client_id) {
            history.violate(Property::Nonsense, format!("{request:?}"));
            return;
        }
        history.executed.push(Executed {
            id,
            client_id: request.client_id,
            position: request.position,
            is_whole: request.payload == actor::payload(id),
        });
    }
}

/// One run; what it has shown, and what was broken.
pub(crate) fn run(seed: u64) -> (Stats, Vec<Violation>) {
    let dice = Dice::new(seed);
    let slot_count = 2 << dice.below(3);
    let mut kinds = vec![Kind::Honest; 1 + dice.below(4) as usize];
    let is_tampered = dice.once_in(5);
    for (kind, odds) in [(Kind::Teaser, 3), (Kind::Nonsense, 3)] {
        if dice.once_in(odds) {
            kinds.push(kind);
        }
    }
    if is_tampered {
        kinds.push(Kind::Tamperer);
    }
    let order = Memory::new(order::OBJECT_LEN);
    order::initialise(&order);
    let world = Rc::new(World {
        notes: Notes {
            history: RefCell::default(),
            stats: RefCell::default(),
            answers: RefCell::default(),
            next_id: Cell::new(1),
            step: Cell::new(0),
            deaths: [60, 400, u64::MAX][dice.below(3) as usize],
            stalls: [15, 100, u64::MAX][dice.below(3) as usize],
            dice: Dice::new(seed ^ 0xabcd),
        },
        actors: RefCell::default(),
        now_ns: Cell::new(1),
        pace: [1, 2, 8][dice.below(3) as usize],
        held_up: (seed % 4 == 3).then(|| Dice::new(seed ^ 0x5706)),
    });
    let mut merge = Merge::new(PATIENCE_NS);
    let mut recorder = Recorder {
        world: Rc::clone(&world),
        nonsense: Vec::new(),
        waits_since_ns: None,
        is_patience_bound: !is_tampered && !kinds.contains(&Kind::Nonsense),
        group: [0, 0, 3, 9][dice.below(4) as usize],
        taken: Vec::new(),
        held: seed.is_multiple_of(2).then(|| Dice::new(seed ^ 0x1d1e)),
    };
    let mut lanes = Lanes {
        slot_count,
        order,
        of: Vec::new(),
        removed: Vec::new(),
    };
    for kind in &kinds {
        lanes.admit(*kind, &world, &mut merge, &mut recorder);
    }

    let rounds = 40 + dice.below(160);
    let closes_at = dice.once_in(3).then(|| dice.below(rounds));
    for round in 0..rounds {
        for _ in 0..dice.below(12) {
            world.tick();
        }
        let now_ns = world.now_ns.get() + [10, 50_000, 700_000][dice.below(3) as usize];
        world.now_ns.set(now_ns);
        for _ in 0..dice.below(4) {
            step(&world, &mut merge, &mut recorder);
        }
        if closes_at == Some(round) {
            merge.close_all();
        }
        let is_closed = closes_at.is_some_and(|at| at <= round);
        if !is_closed && lanes.of.len() < CLIENTS_MAX && dice.once_in(20) {
            lanes.admit(Kind::Honest, &world, &mut merge, &mut recorder);
        }
        lanes.hang_up(&world, &mut merge, &dice);
        if dice.once_in(4) {
            lanes.part(&world, &mut merge);
        }
    }
    drain(&world, &mut merge, &mut recorder);
    judge_acknowledged(&world, recorder.group > 0);
    let mut left = lanes.of.iter().filter_map(|lane| lane.id);
    if closes_at.is_some() && !left.all(|id| merge.is_drained(id)) {
        let detail = "the end does not come".to_owned();
        let mut history = world.notes.history.borrow_mut();
        history.violate(Property::Committed, detail);
    }

    let mut stats = *world.notes.stats.borrow();
    let counts = merge.counts();
    stats.runs = 1;
    stats.executed = counts.executed;
    stats.skips = counts.skipped;
    stats.broken = counts.broken;
    stats.out_of_order = counts.out_of_order;
    let mut history = world.notes.history.take();
    for lane in &lanes.of {
        let is_broken = lane.is_broken || lane.id.is_some_and(|id| merge.is_broken(id));
        if is_broken && lane.kind != Kind::Nonsense {
            let detail = format!("the lane of {:?} is broken", lane.kind);
            history.violate(Property::Nonsense, detail);
        }
    }
    if counts.out_of_order > 0 && !is_tampered {
        history.violate(Property::Order, format!("{counts:?}"));
    }
    (stats, history.check(!is_tampered))
}

fn step(world: &Rc<World>, merge: &mut Merge<Memory>, recorder: &mut Recorder) -> Step {
    // The server looks at its clock within the step: somewhere between these two times.
    let began_ns = world.now_ns.get();
    let step = match recorder.group {
        0 => merge.step(|| world.now_ns.get(), recorder),
        _ => take(world, merge, recorder),
    };
    if matches!(step, Step::Waiting { .. }) {
        world.notes.stats.borrow_mut().waits += 1;
        let since_ns = *recorder.waits_since_ns.get_or_insert(world.now_ns.get());
        let is_too_long = began_ns > since_ns + PATIENCE_NS;
        if is_too_long && recorder.is_patience_bound {
            let detail = format!("waiting since {since_ns}, at {began_ns}: {step:?}");
            let mut history = world.notes.history.borrow_mut();
            history.violate(Property::Patience, detail);
        }
    } else {
        recorder.waits_since_ns = None;
    }
    step
}

/// Takes a request, and acknowledges and executes what was taken when that is a group, or
/// all that is there.
fn take(world: &Rc<World>, merge: &mut Merge<Memory>, recorder: &mut Recorder) -> Step {
    let mut taken = std::mem::take(&mut recorder.taken);
    let clock = || world.now_ns.get();
    let step = merge.take(clock, |request, bytes| {
        taken.push((request, bytes.to_vec()))
    });
    if step == Step::Executed && (taken.len() as u64) < recorder.group {
        recorder.taken = taken;
        return step;
    }
    if matches!(step, Step::Waiting { .. })
        && let Some(dice) = &recorder.held
        && !dice.once_in(8)
    {
        recorder.taken = taken;
        return step;
    }
    for (request, _) in &taken {
        merge.acknowledge(request.lane, request.sequence);
    }
    let mut answer = Answer::default();
    for (request, bytes) in taken {
        answer.clear();
        let executed = Request {
            position: request.position,
            client_id: request.client_id,
            request_id: request.request_id,
            nilext: request.nilext,
            payload: &bytes,
        };
        recorder.execute(executed, &mut answer);
        merge.complete(request, &answer);
        world.notes.stats.borrow_mut().taken += 1;
    }
    step
}

/// A client's lane, and what the server knows of it.
struct OfClient {
    kind: Kind,
    /// `None`: it is removed.
    id: Option<LaneId>,
    is_gone: bool,
    /// When it was removed.
    is_broken: bool,
}

/// All lanes there have been, in the order of their clients.
struct Lanes {
    slot_count: u32,
    order: Memory,
    of: Vec<OfClient>,
    removed: Vec<LaneId>,
}

impl Lanes {
    fn admit(
        &mut self,
        kind: Kind,
        world: &Rc<World>,
        merge: &mut Merge<Memory>,
        recorder: &mut Recorder,
    ) {
        let terms = Terms {
            epoch: EPOCH,
            client_id: self.of.len() as u64 + 1,
            slot_count: self.slot_count,
        };
        let memory = Memory::new(terms.object_len());
        lane::initialise(&memory, terms);
        assert_eq!(lane::terms(&memory), Some(terms));
        if kind == Kind::Nonsense {
            recorder.nonsense.push(terms.client_id);
        }
        let between = {
            let world = Rc::clone(world);
            Rc::new(move || world.between())
        };
        let id = merge.admit(memory.with(between), terms);
        world.notes.stats.borrow_mut().reused += u64::from(self.removed.contains(&id));
        self.of.push(OfClient {
            kind,
            id: Some(id),
            is_gone: false,
            is_broken: false,
        });
        let producer = Producer::new(memory, terms);
        let actor = Actor::new(kind, producer, self.order.clone());
        world.actors.borrow_mut().push(Some(Box::new(actor)));
    }

    /// The system tells the server of a client that has died, sooner or later.
    fn hang_up(&mut self, world: &World, merge: &mut Merge<Memory>, dice: &Dice) {
        if !dice.once_in(20) {
            return;
        }
        for (at, lane) in self.of.iter_mut().enumerate() {
            let is_dead = {
                let actors = world.actors.borrow();
                actors[at].as_ref().is_some_and(|actor| actor.is_dead)
            };
            if let Some(id) = lane.id.filter(|_| is_dead) {
                merge.close(id);
                lane.is_gone = true;
            }
        }
    }

    /// The server parts from clients of whom nothing will come any more.
    fn part(&mut self, world: &World, merge: &mut Merge<Memory>) {
        for lane in &mut self.of {
            let Some(id) = lane.id else {
                continue;
            };
            let is_broken = merge.is_broken(id);
            if (lane.is_gone || is_broken) && merge.is_drained(id) {
                merge.remove(id);
                (lane.id, lane.is_broken) = (None, is_broken);
                self.removed.push(id);
                world.notes.stats.borrow_mut().removed += 1;
            }
        }
    }
}

/// In the end, whatever was committed is acknowledged, too: by the server that takes
/// requests, or with its execution.
fn judge_acknowledged(world: &World, is_taken: bool) {
    let mut history = world.notes.history.borrow_mut();
    for actor in world.actors.borrow().iter().flatten() {
        let words = actor.lane();
        let acknowledged = match is_taken {
            true => lane::acknowledged(words),
            false => lane::executed(words),
        };
        let last = history.last_committed(actor.client_id());
        if last > acknowledged {
            let detail = format!("{acknowledged} of {last} of client {}", actor.client_id());
            history.violate(Property::Acknowledged, detail);
        }
    }
}

/// Everybody ends what it has begun; what is published has to be executed, with those
/// who died, and those who never publish, as they are.
fn drain(world: &Rc<World>, merge: &mut Merge<Memory>, recorder: &mut Recorder) {
    for actor in world.actors.borrow_mut().iter_mut().flatten() {
        if actor.kind() == Kind::Honest {
            actor.end();
        }
    }
    let mut idle = 0;
    for _ in 0..DRAIN_ROUNDS {
        world.tick();
        world.now_ns.set(world.now_ns.get() + 50_000);
        let is_idle = step(world, merge, recorder) == Step::Idle;
        let is_quiet = world
            .actors
            .borrow()
            .iter()
            .flatten()
            .all(|actor| actor.kind() != Kind::Honest || actor.is_dead || actor.is_between());
        idle = if is_idle && is_quiet { idle + 1 } else { 0 };
        // Marks alone are looked at in most of these, and turns once in 64.
        if idle > 130 {
            break;
        }
    }
    for actor in world.actors.borrow_mut().iter_mut().flatten() {
        if actor.kind() != Kind::Honest || actor.is_dead {
            continue;
        }
        while actor.unanswered() > 0 {
            let before = actor.unanswered();
            actor.take_answer(&world.notes);
            if actor.unanswered() == before {
                let detail = format!("{before} answers did not come");
                let mut history = world.notes.history.borrow_mut();
                history.violate(Property::Answer, detail);
                break;
            }
        }
    }
}
