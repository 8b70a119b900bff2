//! A backend's number moves to another process, by the product's own machine
//! ([`trefoil_recovery::Handover`]): what `trefoil-backend` does around it on both sides,
//! without threads and sockets. Either side may be killed at any moment, the one that goes
//! may hang, pages come late and twice.
//!
//! What is checked where the number moves: the process that goes is the backend no more;
//! the one that comes is in its epochs, has no lower bound, and holds of the keys that are
//! watched what the other one held.

use super::client::key_name;
use super::net::{Errand, Net};
use super::process::{Process, State};
use super::stats::Count;
use crate::violation::Property;
use std::rc::Rc;
use std::sync::Arc;
use trefoil_layout::Version;
use trefoil_layout::op::Found;
use trefoil_recovery::mutants::{self, Mutant};
use trefoil_recovery::{Copied, Handover, Question, Reply, ShardState, shard_states};
use trefoil_region::WordBuffer;

/// What a question or an answer takes.
const WAY_NS: u64 = 200_000;
/// How long an answer is waited for.
const PATIENCE_NS: u64 = 2_000_000_000;
/// How long the one that goes takes no mutation.
const FROZEN_NS: u64 = 250_000_000;
/// One that was not heard of for so long is given up.
const SILENCE_NS: u64 = 5_000_000_000;
/// How often the rest is copied, and the pause between.
const ATTEMPTS_MAX: u32 = 8;
const ATTEMPT_PAUSE_NS: u64 = 100_000_000;
/// Chance of 1,024 that a page comes without its values, once in a move and before
/// changes are asked for: a defect that the machine has to notice by comparing.
const FORGOTTEN: u32 = 100;

/// To whom a process gives its number.
pub(super) struct Giving {
    to: u64,
    heard_ns: u64,
    frozen_until_ns: Option<u64>,
    /// It has asked for changes: what a page does not tell of from then on is gone.
    is_again: bool,
    has_forgotten: bool,
}

impl Giving {
    pub(super) fn is_frozen(&self) -> bool {
        self.frozen_until_ns.is_some()
    }
}

/// What the process that comes is doing.
pub(super) struct Taking {
    old: Rc<Process>,
    machine: Handover<Vec<u8>>,
    is_releasing: bool,
    attempts: u32,
}

/// A question of the one that comes.
#[derive(Clone)]
pub(super) struct Step {
    new: Rc<Process>,
    old: Rc<Process>,
    what: What,
    is_copy: bool,
}

impl Step {
    pub(super) fn successor(&self) -> Rc<Process> {
        Rc::clone(&self.new)
    }
}

#[derive(Clone)]
enum What {
    Ask(u64, Question),
    Release,
    Abandon,
    /// After a pause it goes on.
    Again,
}

/// What the one that goes says.
pub(super) enum Said {
    Reply(Reply<Vec<u8>>),
    Released(Held),
    Late,
}

/// What it held when it went.
pub(super) struct Held {
    shards: Vec<ShardState>,
    keys: Vec<Option<Version>>,
    has_evicted: bool,
}

impl Held {
    fn of(net: &Net, process: &Process) -> Self {
        let counts = process.store.stats().counts;
        let held = |key| {
            let mut bytes = WordBuffer::default();
            let found = process
                .store
                .peek(process.now(net), &key_name(key), &mut bytes);
            match found.found {
                Found::Present { version, .. } => Some(version),
                _ => None,
            }
        };
        Held {
            keys: (0..net.profile.keys).map(held).collect(),
            has_evicted: counts.evicted_capacity + counts.evicted_associativity > 0,
            shards: shard_states(&process.store),
        }
    }
}

/// Begins to move backend `number`; whether it could begin.
pub(super) fn begin(net: &Net, number: u32, count: u32) -> bool {
    let Some(old) = net.process(number) else {
        return false;
    };
    let mut shards = 0..old.store.shard_count();
    let is_busy = old.giving.borrow().is_some()
        || old.part.borrow().is_some()
        || net.successor.borrow().is_some()
        || net.resize.borrow().is_some();
    if is_busy || old.state.get() != State::Running || shards.any(|s| old.store.is_recovering(s)) {
        return false;
    }
    let topology = Arc::clone(&net.published.borrow());
    let new = Process::start_successor(net, &topology, number, count);
    new.follow_time_of(&old);
    *new.taking.borrow_mut() = Some(Taking {
        old,
        machine: Handover::new(),
        is_releasing: false,
        attempts: 1,
    });
    *net.successor.borrow_mut() = Some(Rc::clone(&new));
    new.ask_on(net);
    true
}

impl Process {
    /// Asks whatever can be asked.
    fn ask_on(self: &Rc<Self>, net: &Net) {
        let mut taking = self.taking.borrow_mut();
        let Some(now) = taking.as_mut() else { return };
        let step = |what| Step {
            new: Rc::clone(self),
            old: Rc::clone(&now.old),
            what,
            is_copy: false,
        };
        let mut steps = Vec::new();
        while let Some((number, question)) = now.machine.ask() {
            steps.push(step(What::Ask(number, question)));
        }
        let is_done = now.machine.is_done() && !now.is_releasing;
        if is_done && mutants::is_on(Mutant::BegunEarly) {
            let old = Rc::clone(&now.old);
            drop(taking);
            let held = Held::of(net, &old);
            return self.become_backend(net, &held);
        }
        if is_done {
            now.machine.make_ready(&self.store);
            steps.push(step(What::Release));
            now.is_releasing = true;
        }
        for step in steps {
            // Steps change what the other one does, and go over one connection: once.
            let is_page = matches!(
                step.what,
                What::Ask(_, Question::Items { .. } | Question::Long { .. })
            );
            if is_page && net.is_struck(net.profile.twice) {
                let copy = Step {
                    is_copy: true,
                    ..step.clone()
                };
                net.send(net.takes(WAY_NS) + net.profile.late_ns, Errand::Step(copy));
            }
            net.send(net.takes(WAY_NS), Errand::Step(step));
        }
    }

    /// Goes on as before if the other process does not.
    pub(super) fn look_at_giving(&self, net: &Net) {
        let now_ns = net.now_ns.get();
        let mut giving = self.giving.borrow_mut();
        let Some(to) = giving.as_mut() else { return };
        if now_ns >= to.heard_ns + SILENCE_NS {
            *giving = None;
            self.thaw();
            self.watch(false);
        } else if to.frozen_until_ns.is_some_and(|until| now_ns >= until) {
            to.frozen_until_ns = None;
            self.thaw();
        }
    }

    pub(super) fn thaw(&self) {
        (0..self.store.shard_count()).for_each(|shard| self.store.freeze(shard, false));
    }

    pub(super) fn watch(&self, watches: bool) {
        let shards = 0..self.store.shard_count();
        shards.for_each(|shard| self.store.watch_changes(shard, watches));
    }

    /// What the process that goes does with a step.
    fn give(&self, net: &Net, step: &Step) -> Option<Said> {
        self.look_at_giving(net);
        let now_ns = net.now_ns.get();
        let token = step.new.incarnation();
        let mut giving = self.giving.borrow_mut();
        if let What::Ask(_, Question::Begin) = step.what {
            if giving.is_some() {
                return None;
            }
            *giving = Some(Giving {
                to: token,
                heard_ns: now_ns,
                frozen_until_ns: None,
                is_again: false,
                has_forgotten: false,
            });
            self.watch(true);
            return Some(Said::Reply(Reply::Shards(shard_states(&self.store))));
        }
        let to = giving.as_mut().filter(|to| to.to == token)?;
        to.heard_ns = now_ns;
        Some(match &step.what {
            What::Ask(_, Question::Begin) | What::Again => return None,
            What::Ask(_, Question::Changes) => {
                to.is_again = true;
                Said::Reply(Reply::Shards(shard_states(&self.store)))
            }
            What::Ask(_, Question::Freeze) => {
                (0..self.store.shard_count()).for_each(|shard| self.store.freeze(shard, true));
                to.frozen_until_ns = Some(now_ns + FROZEN_NS);
                Said::Reply(Reply::Shards(shard_states(&self.store)))
            }
            What::Ask(
                _,
                Question::Items {
                    shard,
                    places,
                    values,
                },
            ) => {
                let now = self.now(net);
                let page =
                    Copied::new(&self.store, now, *shard).items_at(places, *values, &|_| true);
                let mut page = page.expect("one that has ended is asked nothing");
                let is_first = !to.is_again && !to.has_forgotten;
                if *values && is_first && net.is_struck(FORGOTTEN) {
                    to.has_forgotten = true;
                    page.items.clear();
                }
                Said::Reply(Reply::Items(page))
            }
            What::Ask(_, Question::Long { key, version }) => {
                let mut bytes = WordBuffer::default();
                let found = self.store.lookup(self.now(net), key, &mut bytes).found;
                let is_it = matches!(found, Found::Present { version: v, .. } if v == *version);
                Said::Reply(Reply::Long(is_it.then(|| bytes.bytes().to_vec())))
            }
            What::Release if to.frozen_until_ns.is_some_and(|until| now_ns < until) => {
                *giving = None;
                drop(giving);
                let held = Held::of(net, self);
                self.end(net, true);
                Said::Released(held)
            }
            What::Release => Said::Late,
            What::Abandon => {
                *giving = None;
                self.thaw();
                self.watch(false);
                return None;
            }
        })
    }

    /// What the process that comes does with an answer, or with none.
    pub(super) fn stepped(self: &Rc<Self>, net: &Net, step: &Step, said: Option<Said>) {
        if self.state.get() != State::Running {
            return;
        }
        let mut taking = self.taking.borrow_mut();
        let Some(now) = taking.as_mut() else { return };
        match (&step.what, said) {
            (What::Again, _) => now.machine.again(&self.store),
            (What::Ask(number, _), Some(Said::Reply(reply))) => {
                let taken = now
                    .machine
                    .answer(*number, reply, &self.store, self.now(net));
                // Its time is that of who goes, whatever its own clock says.
                assert_eq!(taken, Ok(()));
                if now.machine.moved().refused.is_some() {
                    drop(taking);
                    return self.give_up(net);
                }
            }
            (_, Some(Said::Released(held))) => {
                drop(taking);
                return self.become_backend(net, &held);
            }
            (_, Some(Said::Late)) if now.attempts < ATTEMPTS_MAX => {
                now.attempts += 1;
                now.is_releasing = false;
                let again = Step {
                    what: What::Again,
                    ..step.clone()
                };
                return net.send(ATTEMPT_PAUSE_NS, Errand::Stepped(again, None));
            }
            _ => {
                drop(taking);
                return self.give_up(net);
            }
        }
        drop(taking);
        self.ask_on(net);
    }

    /// It ends, and the other one goes on.
    pub(super) fn give_up(self: &Rc<Self>, net: &Net) {
        let Some(taking) = self.taking.borrow_mut().take() else {
            return;
        };
        net.stats.add(Count::MovesGivenUp);
        net.trace(None, || format!("backend {} does not move", self.number));
        let abandon = Step {
            new: Rc::clone(self),
            old: taking.old,
            what: What::Abandon,
            is_copy: true,
        };
        net.send(net.takes(WAY_NS), Errand::Step(abandon));
        self.state.set(State::Dead);
        net.successor.borrow_mut().take();
    }

    /// The number is its own.
    fn become_backend(self: &Rc<Self>, net: &Net, held: &Held) {
        let Some(taking) = self.taking.borrow_mut().take() else {
            return;
        };
        net.successor.borrow_mut().take();
        let check = |holds: bool, what: &str| {
            if !holds {
                let message = format!("backend {} moves, and {what}", self.number);
                net.broken
                    .borrow_mut()
                    .get_or_insert((Property::Moved, message));
            }
        };
        check(
            taking.old.state.get() == State::Dead,
            "its former process is the backend, too",
        );
        // What was flushed meanwhile, before anything is served.
        let fresh = Arc::clone(&net.published.borrow());
        self.adopt(net, &fresh);
        let own = Held::of(net, self);
        for (old, new) in held.shards.iter().zip(&own.shards) {
            check(old.epoch == new.epoch, "is in another epoch");
            check(new.bound_max >= old.bound_max, "forgets a bound");
        }
        taking.machine.finish(&self.store);
        let own = Held::of(net, self);
        // A flush may have come to one of them only.
        let are_alike = net.profile.flushes == 0 && net.profile.expiry == 0;
        for (old, new) in held.keys.iter().zip(&own.keys).filter(|_| are_alike) {
            // What either evicts by itself may be gone.
            let is_more = old.is_none() && new.is_some();
            check(!is_more || held.has_evicted, "holds what was erased");
            let is_less = new < old;
            check(!is_less || own.has_evicted, "lacks a value");
        }
        self.renew(net);
        if self.store.shard_count() > 1 {
            self.repairs(net);
        }
        net.stats.add(Count::Moved);
        net.trace(None, || format!("backend {} has moved", self.number));
        if let Some(place) = net.processes.borrow_mut().get_mut(self.number as usize) {
            *place = Rc::clone(self);
        }
    }
}

/// A step arrives at the process that goes.
pub(super) fn arrive(net: &Net, step: Step) {
    let old = Rc::clone(&step.old);
    let after = match old.state.get() {
        State::Stopped => PATIENCE_NS,
        _ => net.takes(WAY_NS),
    };
    let said = match old.state.get() {
        State::Running => old.give(net, &step),
        _ => None,
    };
    if step.is_copy {
        return;
    }
    // A release whose answer is lost is a second failure.
    let is_lost =
        !matches!(step.what, What::Release) && net.is_struck(net.profile.call_failure / 8);
    let said = said.filter(|_| !is_lost);
    net.send(after, Errand::Stepped(step, said));
}
