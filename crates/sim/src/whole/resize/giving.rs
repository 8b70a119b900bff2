//! The side of the backends that are: what `trefoil_backend::resize::giving` does around
//! the store.

use super::gathering::Ask;
use super::{Errand, FROZEN_NS, WAY_NS};
use crate::whole::net::Net;
use crate::whole::process::{Process, State};
use crate::whole::stats::Count;
use std::rc::Rc;
use std::sync::Arc;
use trefoil_cell::CONFIG_ID_CHANGING;
use trefoil_driver::Topology;
use trefoil_layout::op::Found;
use trefoil_layout::{Placement, Version, control};
use trefoil_recovery::mutants::{self, Mutant};
use trefoil_recovery::{Copied, Notes, Question, Reply, What as Wanted, shard_states};
use trefoil_region::WordBuffer;

/// One that was not heard of for so long is given up.
const SILENCE_NS: u64 = 30_000_000_000;
/// How long one that has retired answers those who are connected: told to, and by itself.
const LINGER_NS: u64 = 30_000_000;
const HEED_LINGER_NS: u64 = 400_000_000;
/// Before one that is stopped is asked again, and the configuration store.
const PAUSE_NS: u64 = 20_000_000;
const BREAK_OFF_PAUSE_NS: u64 = 100_000_000;

/// The resize that a backend takes part in.
pub(in crate::whole) struct Part {
    resize: u64,
    heard_ns: u64,
    notes: Notes,
    attempt: u32,
    phase: Phase,
    abandoned: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Open,
    Frozen { until_ns: u64 },
    BreaksOff,
    Retired,
}

impl Part {
    pub(in crate::whole) fn is_frozen(&self) -> bool {
        self.phase != Phase::Open
    }
}

/// What a backend is told.
#[derive(Clone)]
pub(super) enum What {
    Freeze(u32),
    Thaw(u32),
    Retire(Arc<Topology>),
    Abandon,
}

/// Why it does not do it; it may a moment later.
pub(in crate::whole) struct Refusal {
    pub(super) passes: bool,
}

const PASSES: Refusal = Refusal { passes: true };
const STAYS: Refusal = Refusal { passes: false };

/// An order on its way.
pub(in crate::whole) struct Order {
    resize: u64,
    old: Arc<Topology>,
    giver: usize,
    what: What,
    /// Its answer goes to nobody.
    is_copy: bool,
}

impl Order {
    pub(super) fn new(resize: u64, old: &Arc<Topology>, giver: usize, what: What) -> Self {
        Order {
            resize,
            old: Arc::clone(old),
            giver,
            what,
            is_copy: false,
        }
    }

    pub(super) fn copy(&self) -> Self {
        Order {
            is_copy: true,
            ..self.copy_that_answers()
        }
    }

    pub(super) fn copy_that_answers(&self) -> Self {
        Order::new(self.resize, &self.old, self.giver, self.what.clone())
    }

    pub(super) fn resize(&self) -> u64 {
        self.resize
    }

    pub(super) fn giver(&self) -> usize {
        self.giver
    }

    pub(super) fn what(&self) -> &What {
        &self.what
    }
}

/// An order arrives. What arrives at one that is stopped is carried out when it goes on, in
/// any order.
pub(super) fn ordered(net: &Net, order: Order) {
    let answer = match net.at(&order.old, order.giver as u32) {
        Some(process) if process.state.get() == State::Stopped => {
            let after = PAUSE_NS + net.takes(WAY_NS);
            return net.send_resize(after, Errand::Order(order));
        }
        Some(process) => process.obey(net, &order),
        None => Err(PASSES),
    };
    let is_lost = order.is_copy || net.is_struck(net.profile.call_failure / 8);
    if !is_lost {
        net.send_resize(net.takes(WAY_NS), Errand::Ordered(order, answer));
    }
}

/// A question arrives.
pub(super) fn asked(net: &Net, ask: Ask) {
    let reply = match net.at(ask.cell(), ask.asked.backend) {
        Some(process) if process.state.get() == State::Stopped => {
            let after = PAUSE_NS + net.takes(WAY_NS);
            return net.send_resize(after, Errand::Ask(ask));
        }
        Some(process) => process.tell(net, &ask),
        None => None,
    };
    if ask.is_copy {
        return;
    }
    if let Some(reply) = reply.as_ref().filter(|_| net.is_struck(net.profile.twice)) {
        let late = net.takes(WAY_NS) + net.takes(net.profile.late_ns);
        net.send_resize(late, Errand::Answered(ask.clone(), Some(reply.clone())));
    }
    net.send_resize(net.takes(WAY_NS), Errand::Answered(ask, reply));
}

impl Process {
    /// What it tells one that copies from it.
    fn tell(self: &Rc<Self>, net: &Net, ask: &Ask) -> Option<Reply<Vec<u8>>> {
        self.look_at_part(net);
        let (now, store) = (self.now(net), &self.store);
        let taker = ask.taker().number;
        let of = ask.taker().store.config().shards;
        match &ask.asked.what {
            Wanted::Items {
                local,
                ranges,
                values,
            } => {
                // Pages end wherever they do.
                let mut ranges = ranges.clone();
                if net.rng.chance(512) {
                    ranges.truncate(1 + net.rng.index(ranges.len()));
                    let last = ranges.last_mut()?;
                    last.end = last.start + 1 + net.rng.below(last.end - last.start);
                }
                let new: Placement = of.placement();
                let is_wanted = |hash| new.first(hash) == of.shard(*local);
                Copied::new(store, now, *local)
                    .items_at(&ranges, *values, &is_wanted)
                    .map(Reply::Items)
            }
            Wanted::Question(Question::Long { key, version }) => {
                let mut bytes = WordBuffer::default();
                let found = store.peek(now, key, &mut bytes).found;
                let is_it = matches!(found, Found::Present { version: v, .. } if v == *version);
                Some(Reply::Long(is_it.then(|| bytes.bytes().to_vec())))
            }
            Wanted::Question(Question::Begin) => {
                ask.taker().follow_time_of(self);
                self.begin_giving(net, ask.resize(), taker)
            }
            Wanted::Question(Question::Changes) => {
                let mut part = self.part.borrow_mut();
                let part = part.as_mut().filter(|part| part.resize == ask.resize())?;
                part.heard_ns = net.now_ns.get();
                let mut states = shard_states(store);
                part.notes.note(&states);
                let changes = part.notes.take(taker)?;
                for (state, changes) in states.iter_mut().zip(changes) {
                    state.changes = changes;
                }
                Some(Reply::Shards(states))
            }
            Wanted::Question(Question::Items { .. } | Question::Freeze) => None,
        }
    }

    fn begin_giving(&self, net: &Net, resize: u64, taker: u32) -> Option<Reply<Vec<u8>>> {
        let mut part = self.part.borrow_mut();
        let is_other = part.as_ref().is_some_and(|part| part.resize != resize);
        if self.hinders() || self.giving.borrow().is_some() || is_other || self.has_retired.get() {
            return None;
        }
        let heard_ns = net.now_ns.get();
        let part = part.get_or_insert_with(|| {
            self.watch(true);
            Part {
                resize,
                heard_ns,
                notes: Notes::default(),
                attempt: 0,
                phase: Phase::Open,
                abandoned: false,
            }
        });
        part.heard_ns = heard_ns;
        let mut states = shard_states(&self.store);
        part.notes.note(&states);
        part.notes.begin(taker, states.len());
        states.iter_mut().for_each(|state| state.changes.clear());
        Some(Reply::Shards(states))
    }

    /// Nothing can be copied from here just now.
    pub(super) fn hinders(&self) -> bool {
        if mutants::is_on(Mutant::EpochsMixed) {
            return false;
        }
        let mut shards = 0..self.store.shard_count();
        shards.any(|shard| self.store.is_recovering(shard))
    }

    fn obey(self: &Rc<Self>, net: &Net, order: &Order) -> Result<Vec<u32>, Refusal> {
        self.look_at_part(net);
        let now = net.now_ns.get();
        let mut held = self.part.borrow_mut();
        let part = held.as_mut().filter(|part| part.resize == order.resize);
        let part = part.ok_or(STAYS)?;
        part.heard_ns = now;
        match &order.what {
            What::Freeze(attempt) => {
                if *attempt <= part.attempt || part.phase != Phase::Open || self.hinders() {
                    return Err(PASSES);
                }
                part.attempt = *attempt;
                part.phase = Phase::Frozen {
                    until_ns: now + FROZEN_NS,
                };
                (0..self.store.shard_count()).for_each(|shard| self.store.freeze(shard, true));
                let states = shard_states(&self.store);
                part.notes.note(&states);
                return Ok(states.iter().map(|state| state.epoch).collect());
            }
            What::Thaw(attempt) => {
                part.attempt = part.attempt.max(*attempt);
                if matches!(part.phase, Phase::Frozen { .. }) {
                    part.phase = Phase::Open;
                    self.thaw();
                }
            }
            What::Retire(told) => {
                drop(held);
                return self.retire_as_told(net, told);
            }
            What::Abandon => match part.phase {
                Phase::Open | Phase::Frozen { .. } => {
                    *held = None;
                    self.thaw();
                    self.watch(false);
                }
                Phase::BreaksOff => part.abandoned = true,
                Phase::Retired => {}
            },
        }
        Ok(Vec::new())
    }

    fn retire_as_told(self: &Rc<Self>, net: &Net, told: &Topology) -> Result<Vec<u32>, Refusal> {
        let stored = Arc::clone(&net.published.borrow());
        let is_it = stored.config().backends == told.config().backends
            && stored.id().config_id >= told.id().config_id
            && *stored.placement() != self.store.config().shards.placement();
        match is_it || self.has_retired.get() {
            true => {
                self.retire(net, LINGER_NS);
                Ok(Vec::new())
            }
            false => Err(STAYS),
        }
    }

    /// The cell is of another size: this process is no backend of it.
    pub(in crate::whole) fn heed_resize(self: &Rc<Self>, net: &Net) {
        self.retire(net, HEED_LINGER_NS);
    }

    /// Nobody believes it from now on, and its place is free.
    pub(in crate::whole) fn retire(self: &Rc<Self>, net: &Net, linger_ns: u64) {
        if !self.has_retired.replace(true) {
            let number = self.number;
            net.trace(None, || format!("backend {number} retires"));
            self.listens.set(false);
            self.lease_end_ns.set(0);
            let words = self.store.regions().control.words();
            control::set_lease_end_ns(&words, control::LEASE_MOVED_NS);
            self.config_id.set(CONFIG_ID_CHANGING);
            if let Some(part) = self.part.borrow_mut().as_mut() {
                part.phase = Phase::Retired;
            }
        }
        net.send_resize(linger_ns, Errand::Leave(Rc::clone(self)));
    }

    /// Goes on as before if whoever resizes the cell does not.
    pub(in crate::whole) fn look_at_part(self: &Rc<Self>, net: &Net) {
        let now = net.now_ns.get();
        let mut held = self.part.borrow_mut();
        let Some(part) = held.as_mut() else { return };
        match part.phase {
            Phase::Frozen { until_ns } if now >= until_ns => {
                part.phase = Phase::BreaksOff;
                net.send_resize(net.takes(WAY_NS), Errand::BreakOff(Rc::clone(self)));
            }
            Phase::Open if now >= part.heard_ns + SILENCE_NS => {
                *held = None;
                self.watch(false);
            }
            _ => {}
        }
    }

    /// Goes on, once nobody can resize the cell any more, or retires, if somebody has.
    pub(super) fn break_off(self: &Rc<Self>, net: &Net) {
        match self.state.get() {
            State::Dead => return,
            State::Stopped => return net.send_resize(PAUSE_NS, Errand::BreakOff(Rc::clone(self))),
            State::Running if net.is_struck(net.profile.call_failure) => {
                // The configuration store is away.
                let after = BREAK_OFF_PAUSE_NS;
                return net.send_resize(after, Errand::BreakOff(Rc::clone(self)));
            }
            State::Running => {}
        }
        let stored = Arc::clone(&net.published.borrow());
        if *stored.placement() != self.store.config().shards.placement() {
            return self.heed_resize(net);
        }
        net.stats.add(Count::BrokenOff);
        let number = self.number;
        net.trace(None, || format!("backend {number} breaks the resize off"));
        if !mutants::is_on(Mutant::BrokenOffUnsaid) {
            let next = stored
                .config()
                .flushed(Version::ZERO)
                .expect("ids are left");
            net.publish(Topology::new(Arc::new(next)));
            self.catch_up(net);
        }
        let mut held = self.part.borrow_mut();
        match held.as_mut().filter(|part| !part.abandoned) {
            Some(part) => part.phase = Phase::Open,
            None => {
                *held = None;
                self.watch(false);
            }
        }
        self.thaw();
    }
}
