//! A cell gets another number of backends while it serves, by the product's own machine
//! ([`trefoil_recovery::Gathering`]): what `trefoil cell resize` does around it, without
//! threads and sockets. The other two sides are `gathering` and `giving`.
//!
//! Any process may be killed or hang at any moment, and whoever resizes hangs, too. Orders
//! and pages come late and twice, a flush may change the configuration in between.
//!
//! What is checked at the swap of the configuration: each new backend has all shards in one
//! epoch, no bound of it is lower than at those that it has copied, and of the keys that are
//! watched it holds what the one at the same place of the old cohort holds. When one begins,
//! nobody believes an old one any more.

mod gathering;
mod giving;

pub(super) use gathering::Gatherer;
pub(super) use giving::Part;

use super::client::key_name;
use super::net::{LEASE_NS, Net};
use super::process::{Process, State};
use super::stats::Count;
use super::world::{address, backend_at};
use crate::violation::Property;
use gathering::{Ask, Said, Word};
use giving::{Order, Refusal, What};
use std::rc::Rc;
use std::sync::Arc;
use trefoil_driver::Topology;
use trefoil_recovery::mutants::{self, Mutant};
use trefoil_recovery::{Reply, one_epoch};

/// What an order, or a word, takes.
const WAY_NS: u64 = 200_000;
/// How long old backends take no mutation at most, at a time; and what is left of it when
/// the configuration is swapped.
const FROZEN_NS: u64 = 500_000_000;
const SWAP_RESERVE_NS: u64 = 100_000_000;
/// How long one may take to freeze, and to retire.
const STEP_PATIENCE_NS: u64 = 400_000_000;
const RETIRE_PATIENCE_NS: u64 = 500_000_000;
const RETIRE_PAUSE_NS: u64 = 20_000_000;
const ATTEMPTS_MAX: u32 = 20;
const ATTEMPT_PAUSE_NS: u64 = 100_000_000;
/// Whoever resizes hangs for so long: long enough for the others to break off.
const HANGS_NS: u64 = 1_500_000_000;
/// Chance of 1,024 that he does, between the last answer and the swap.
const HANGS: u32 = 100;

/// What is on its way in a resize.
pub(super) enum Errand {
    /// To a process that is to be a backend.
    Word(Rc<Process>, Word),
    /// It looks at what it was told.
    Heed(Rc<Process>),
    /// It copies what has changed while others are waited for.
    Round(Rc<Process>),
    /// What it says, in the resize of this number.
    Said(u64, u32, Said),
    /// It asks a backend of the cell that is.
    Ask(Ask),
    Answered(Ask, Option<Reply<Vec<u8>>>),
    /// Such a backend is told what to do; its answer.
    Order(Order),
    Ordered(Order, Result<Vec<u32>, Refusal>),
    /// Whoever resizes looks at the time.
    Look(u64),
    /// He swaps the configuration.
    Commit(u64),
    /// A frozen backend has heard nothing in time.
    BreakOff(Rc<Process>),
    /// One that has retired ends.
    Leave(Rc<Process>),
}

/// A resize that is under way.
pub(super) struct Resize {
    number: u64,
    old: Arc<Topology>,
    joiners: Vec<Joiner>,
    /// The backends of the cell as it was.
    givers: Vec<Rc<Process>>,
    stage: Stage,
}

/// A process that is to be a backend.
struct Joiner {
    process: Rc<Process>,
    copies: bool,
    near: Option<u32>,
    done: Option<u32>,
    serves: bool,
    has_ended: bool,
    /// Words come in order.
    told_ns: u64,
}

enum Stage {
    Copies,
    Near {
        attempt: u32,
    },
    Freezes {
        attempt: u32,
        base: Arc<Topology>,
        begun_ns: u64,
        answers: Vec<Option<Result<Vec<u32>, Refusal>>>,
    },
    Last {
        attempt: u32,
        base: Arc<Topology>,
        by_ns: u64,
    },
    Commits {
        attempt: u32,
        base: Arc<Topology>,
    },
    Pauses {
        attempt: u32,
        until_ns: u64,
    },
    Retires {
        config: Arc<Topology>,
        by_ns: u64,
        have_retired: Vec<bool>,
    },
    /// Those who hung were killed.
    Waits {
        until_ns: u64,
    },
    Begins,
}

/// Begins to resize the cell; whether it could begin.
pub(super) fn begin(net: &Net, backends: u32) -> bool {
    let old = Arc::clone(&net.published.borrow());
    let givers = net.processes.borrow().clone();
    let is_free = |process: &Rc<Process>| {
        process.state.get() == State::Running
            && process.giving.borrow().is_none()
            && process.part.borrow().is_none()
            && !process.hinders()
    };
    let is_busy = net.resize.borrow().is_some() || net.successor.borrow().is_some();
    if is_busy || backends as usize == givers.len() || !givers.iter().all(is_free) {
        return false;
    }
    let number = net.resizes.get() + 1;
    net.resizes.set(number);
    let next = next(&old, backends);
    let joiner = |number_to_be| Joiner {
        process: Process::start_joiner(net, &next, number_to_be, Gatherer::new(number, &old)),
        copies: false,
        near: None,
        done: None,
        serves: false,
        has_ended: false,
        told_ns: 0,
    };
    let joiners: Vec<_> = (0..backends).map(joiner).collect();
    for joiner in &joiners {
        net.others.borrow_mut().push(Rc::clone(&joiner.process));
    }
    net.trace(None, || {
        format!(
            "resize {number} from {} to {backends} backends begins",
            givers.len()
        )
    });
    let mut resize = Resize {
        number,
        old,
        joiners,
        givers,
        stage: Stage::Copies,
    };
    resize.go_on(net);
    *net.resize.borrow_mut() = Some(resize);
    true
}

/// The cell of the new size, after `base`.
fn next(base: &Topology, backends: u32) -> Arc<Topology> {
    let backends = (0..backends).map(|number| backend_at(number, address(number)));
    let next = base.config().resized(backends.collect());
    Arc::new(Topology::new(Arc::new(next.expect("ids are left"))))
}

/// What is due of a resize.
pub(super) fn run(net: &Net, errand: Errand) {
    match errand {
        Errand::Word(process, word) => process.hear(net, word),
        Errand::Heed(process) => process.heed(net),
        Errand::Round(process) => process.round(net),
        Errand::Ask(ask) => giving::asked(net, ask),
        Errand::Answered(ask, reply) => ask.taker().answered(net, &ask, reply),
        Errand::Order(order) => giving::ordered(net, order),
        Errand::BreakOff(process) => process.break_off(net),
        Errand::Leave(process) => process.end(net, true),
        Errand::Said(number, of, said) => of_this(net, number, |resize| resize.hear(net, of, said)),
        Errand::Ordered(order, answer) => {
            of_this(net, order.resize(), |resize| {
                resize.answered(net, &order, answer)
            });
        }
        Errand::Look(number) => of_this(net, number, |resize| resize.look(net)),
        Errand::Commit(number) => of_this(net, number, |resize| resize.commit(net)),
    }
}

/// What came of an event for whoever resizes.
#[derive(PartialEq, Eq)]
enum Came {
    GoesOn,
    /// It was given up.
    Ends,
    /// The new ones serve.
    Serves,
}

fn of_this(net: &Net, number: u64, act: impl FnOnce(&mut Resize) -> Came) {
    let mut resize = net.resize.borrow_mut();
    let Some(now) = resize.as_mut().filter(|now| now.number == number) else {
        return;
    };
    let came = match act(now) {
        Came::GoesOn => now.go_on(net),
        came => came,
    };
    match came {
        Came::GoesOn => {}
        Came::Ends => {
            now.give_up(net);
            *resize = None;
        }
        Came::Serves => {
            net.stats.add(Count::Resized);
            net.trace(None, || format!("resize {number} has ended"));
            *resize = None;
        }
    }
}

impl Resize {
    /// Nobody is started now who would be a backend of the cell as it was.
    pub(super) fn is_critical(&self) -> bool {
        matches!(
            self.stage,
            Stage::Freezes { .. } | Stage::Last { .. } | Stage::Commits { .. }
        )
    }

    pub(super) fn is_committed(&self) -> bool {
        matches!(
            self.stage,
            Stage::Retires { .. } | Stage::Waits { .. } | Stage::Begins
        )
    }

    /// Whether an old process holds the backend's number still.
    pub(super) fn is_held(&self, number: u32) -> bool {
        let giver = self.givers.get(number as usize);
        giver.is_some_and(|giver| giver.state.get() != State::Dead && !giver.has_retired.get())
    }

    /// A process that is to be backend `number`, if it lives and is none yet.
    pub(super) fn joiner(&self, number: u32) -> Option<&Rc<Process>> {
        let joiner = self.joiners.get(number as usize)?;
        (!joiner.serves && !joiner.has_ended).then_some(&joiner.process)
    }

    /// The cell as it was.
    pub(super) fn before(&self) -> &Arc<Topology> {
        &self.old
    }

    fn tell(&mut self, net: &Net, number: usize, word: Word) {
        let joiner = &mut self.joiners[number];
        let now = net.now_ns.get();
        joiner.told_ns = joiner.told_ns.max(now + net.takes(WAY_NS));
        let errand = Errand::Word(Rc::clone(&joiner.process), word);
        net.send_resize(joiner.told_ns - now, errand);
    }

    fn tell_all(&mut self, net: &Net, word: Word) {
        for number in 0..self.joiners.len() {
            self.tell(net, number, word);
        }
    }

    fn order(&self, net: &Net, giver: usize, what: What) {
        let order = Order::new(self.number, &self.old, giver, what);
        if net.is_struck(net.profile.twice) {
            let late = net.takes(WAY_NS) + net.profile.late_ns;
            net.send_resize(late, Errand::Order(order.copy()));
        }
        net.send_resize(net.takes(WAY_NS), Errand::Order(order));
    }

    fn order_all(&self, net: &Net, what: &What) {
        for giver in 0..self.givers.len() {
            self.order(net, giver, what.clone());
        }
    }

    fn look_at(&self, net: &Net, at_ns: u64) {
        let after = at_ns.saturating_sub(net.now_ns.get());
        net.send_resize(after, Errand::Look(self.number));
    }

    /// A new process has said something.
    fn hear(&mut self, _: &Net, number: u32, said: Said) -> Came {
        let is_committed = self.is_committed();
        let joiner = &mut self.joiners[number as usize];
        match said {
            Said::Near(attempt) => joiner.near = Some(attempt),
            Said::Done(attempt) => joiner.done = Some(attempt),
            Said::Serves => joiner.serves = true,
            Said::Ended => {
                joiner.has_ended = true;
                if !is_committed {
                    return Came::Ends;
                }
            }
        }
        Came::GoesOn
    }

    /// Whatever can be done now.
    fn go_on(&mut self, net: &Net) -> Came {
        match &self.stage {
            Stage::Copies => {
                if self.joiners.iter().all(|joiner| joiner.near.is_some()) {
                    return self.attempt(net, 1);
                }
                // One after the other.
                let copies = |joiner: &Joiner| joiner.copies && joiner.near.is_none();
                if !self.joiners.iter().any(copies)
                    && let Some(next) = self.joiners.iter().position(|joiner| !joiner.copies)
                {
                    self.joiners[next].copies = true;
                    self.tell(net, next, Word::Copy);
                }
            }
            Stage::Near { attempt } => {
                let attempt = *attempt;
                let is_near = |joiner: &Joiner| joiner.near == Some(attempt);
                if self.joiners.iter().all(is_near) {
                    return self.freeze(net, attempt);
                }
            }
            Stage::Last { attempt, base, .. } => {
                let (attempt, base) = (*attempt, Arc::clone(base));
                let is_done = |joiner: &Joiner| joiner.done == Some(attempt);
                if self.joiners.iter().all(is_done) {
                    self.stage = Stage::Commits { attempt, base };
                    let hangs = match net.is_struck(HANGS) {
                        true => net.rng.below(HANGS_NS),
                        false => 0,
                    };
                    net.send_resize(hangs + net.takes(WAY_NS), Errand::Commit(self.number));
                }
            }
            Stage::Retires { have_retired, .. } => {
                if have_retired.iter().all(|has| *has) {
                    self.begin(net);
                }
            }
            Stage::Begins => {
                let is_over = |joiner: &Joiner| joiner.serves || joiner.has_ended;
                if self.joiners.iter().all(is_over) {
                    return Came::Serves;
                }
            }
            Stage::Freezes { .. }
            | Stage::Commits { .. }
            | Stage::Pauses { .. }
            | Stage::Waits { .. } => {}
        }
        Came::GoesOn
    }

    fn attempt(&mut self, net: &Net, attempt: u32) -> Came {
        self.stage = Stage::Near { attempt };
        self.tell_all(net, Word::Near(attempt));
        Came::GoesOn
    }

    fn freeze(&mut self, net: &Net, attempt: u32) -> Came {
        // Before anybody freezes: whoever breaks off swaps it, too.
        let base = Arc::clone(&net.published.borrow());
        let is_it = base.config().backends == self.old.config().backends
            && base.id().life == self.old.id().life;
        let processes = net.processes.borrow();
        let mut both = self.givers.iter().zip(processes.iter());
        let are_they =
            both.all(|(giver, now)| Rc::ptr_eq(giver, now) && giver.state.get() != State::Dead);
        if !is_it || !are_they {
            return Came::Ends;
        }
        let begun_ns = net.now_ns.get();
        self.stage = Stage::Freezes {
            attempt,
            base,
            begun_ns,
            answers: (0..self.givers.len()).map(|_| None).collect(),
        };
        self.order_all(net, &What::Freeze(attempt));
        self.look_at(net, begun_ns + STEP_PATIENCE_NS);
        Came::GoesOn
    }

    /// An old backend has answered.
    fn answered(&mut self, net: &Net, order: &Order, answer: Result<Vec<u32>, Refusal>) -> Came {
        match (&mut self.stage, order.what()) {
            (
                Stage::Freezes {
                    attempt, answers, ..
                },
                What::Freeze(of),
            ) if attempt == of => {
                answers[order.giver()].get_or_insert(answer);
                if answers.iter().all(Option::is_some) {
                    return self.decide(net);
                }
            }
            (
                Stage::Retires {
                    config,
                    by_ns,
                    have_retired,
                },
                What::Retire(of),
            ) if config.id() == of.id() => match answer {
                Ok(_) => have_retired[order.giver()] = true,
                // Elsewhere it is killed when the time is over.
                Err(refusal) if refusal.passes && net.now_ns.get() + RETIRE_PAUSE_NS < *by_ns => {
                    let again = Errand::Order(order.copy_that_answers());
                    net.send_resize(RETIRE_PAUSE_NS + net.takes(WAY_NS), again);
                }
                Err(_) => {}
            },
            _ => {}
        }
        Came::GoesOn
    }

    /// All have answered, or had time to.
    fn decide(&mut self, net: &Net) -> Came {
        let Stage::Freezes {
            attempt,
            base,
            begun_ns,
            answers,
        } = &mut self.stage
        else {
            return Came::GoesOn;
        };
        let (attempt, base) = (*attempt, Arc::clone(base));
        let by_ns = *begun_ns + FROZEN_NS - SWAP_RESERVE_NS;
        let mut epochs = Vec::new();
        let mut is_late = false;
        for answer in std::mem::take(answers) {
            match answer {
                Some(Ok(of)) => epochs.push(of),
                Some(Err(refusal)) if !refusal.passes => return Came::Ends,
                Some(Err(_)) | None => is_late = true,
            }
        }
        if is_late {
            return self.late(net, attempt);
        }
        match one_epoch(&epochs).expect("epochs of one cell") {
            Some(epoch) => {
                self.stage = Stage::Last {
                    attempt,
                    base,
                    by_ns,
                };
                self.tell_all(net, Word::Last(attempt, epoch));
                self.look_at(net, by_ns);
                Came::GoesOn
            }
            None => self.late(net, attempt),
        }
    }

    /// Everybody goes on; it is tried again.
    fn late(&mut self, net: &Net, attempt: u32) -> Came {
        net.trace(None, || format!("attempt {attempt} to resize is too late"));
        net.stats.add(Count::ResizedLate);
        self.order_all(net, &What::Thaw(attempt));
        if attempt == ATTEMPTS_MAX {
            return Came::Ends;
        }
        self.tell_all(net, Word::Again);
        let until_ns = net.now_ns.get() + ATTEMPT_PAUSE_NS * u64::from(attempt.min(10));
        self.stage = Stage::Pauses { attempt, until_ns };
        self.look_at(net, until_ns);
        Came::GoesOn
    }

    fn look(&mut self, net: &Net) -> Came {
        let now = net.now_ns.get();
        match &self.stage {
            Stage::Freezes { begun_ns, .. } if now >= begun_ns + STEP_PATIENCE_NS => {
                self.decide(net)
            }
            Stage::Last { attempt, by_ns, .. } if now >= *by_ns => {
                let attempt = *attempt;
                self.late(net, attempt)
            }
            Stage::Pauses { attempt, until_ns } if now >= *until_ns => {
                let next = attempt + 1;
                self.attempt(net, next)
            }
            Stage::Retires {
                by_ns,
                have_retired,
                ..
            } if now >= *by_ns => {
                for (giver, has_retired) in self.givers.iter().zip(have_retired) {
                    if !has_retired {
                        net.stats.add(Count::RetiredByKill);
                        giver.end(net, false);
                    }
                }
                // Its memory is believed for as long.
                let until_ns = now + LEASE_NS;
                self.stage = Stage::Waits { until_ns };
                self.look_at(net, until_ns);
                Came::GoesOn
            }
            Stage::Waits { until_ns } if now >= *until_ns => {
                self.begin(net);
                Came::GoesOn
            }
            _ => Came::GoesOn,
        }
    }

    /// Swaps the configuration, if nobody has done so since.
    fn commit(&mut self, net: &Net) -> Came {
        let Stage::Commits { attempt, base } = &self.stage else {
            return Came::GoesOn;
        };
        let (attempt, base) = (*attempt, Arc::clone(base));
        if net.published.borrow().id() != base.id() {
            return self.late(net, attempt);
        }
        let config = next(&base, self.joiners.len() as u32);
        self.check(net);
        net.trace(None, || {
            let id = config.id().config_id;
            format!("config {id} is in force: {} backends", self.joiners.len())
        });
        *net.published.borrow_mut() = Arc::clone(&config);
        let joiners = self.joiners.iter().map(|joiner| Rc::clone(&joiner.process));
        let joiners: Vec<_> = joiners.collect();
        let mut others = net.others.borrow_mut();
        others.retain(|other| !joiners.iter().any(|joiner| Rc::ptr_eq(joiner, other)));
        others.extend(net.processes.replace(joiners));
        drop(others);
        let by_ns = net.now_ns.get() + RETIRE_PATIENCE_NS;
        self.stage = Stage::Retires {
            config: Arc::clone(&config),
            by_ns,
            have_retired: vec![false; self.givers.len()],
        };
        self.order_all(net, &What::Retire(config));
        self.look_at(net, by_ns);
        if mutants::is_on(Mutant::ResizedEarly) {
            self.begin(net);
        }
        Came::GoesOn
    }

    fn begin(&mut self, net: &Net) {
        self.stage = Stage::Begins;
        self.tell_all(net, Word::Begin);
    }

    /// The cell stays as it was.
    fn give_up(&mut self, net: &Net) {
        net.trace(None, || format!("resize {} is given up", self.number));
        net.stats.add(Count::ResizesGivenUp);
        if self.is_committed() {
            return;
        }
        self.order_all(net, &What::Abandon);
        for joiner in &self.joiners {
            joiner.process.state.set(State::Dead);
        }
    }

    /// What the new ones know at the swap, compared with what the old ones do.
    fn check(&self, net: &Net) {
        let check = |holds: bool, number: u32, what: &str| {
            if !holds {
                let message = format!("backend {number} of the resized cell {what}");
                let mut broken = net.broken.borrow_mut();
                broken.get_or_insert((Property::Moved, message));
            }
        };
        let has_evicted = |process: &Process| {
            let counts = process.store.stats().counts;
            counts.evicted_capacity + counts.evicted_associativity > 0
        };
        let new = |number: u32| &self.joiners[number as usize].process;
        let first = &self.joiners[0].process.store;
        let flushed = net.published.borrow().flush_floor();
        for joiner in &self.joiners {
            let process = &joiner.process;
            for source in
                trefoil_recovery::sources(*self.old.placement(), process.store.config().shards)
            {
                let old = &self.givers[source.backend as usize].store;
                for local in source.locals {
                    // What is flushed is known before anything is served.
                    let bound = process.store.bound_max(local).max(flushed);
                    check(
                        bound >= old.bound_max(local),
                        process.number,
                        "forgets a bound",
                    );
                    let epoch = process.store.epoch(local);
                    let is_one = epoch == first.epoch(0) && epoch >= old.epoch(local);
                    check(is_one, process.number, "is in another epoch");
                }
            }
        }
        // A flush may have come to one of them only.
        if net.profile.flushes > 0 || net.profile.expiry > 0 {
            return;
        }
        let placement = new(0).store.config().shards.placement();
        for key in 0..net.profile.keys {
            let hash = self.old.hash(&key_name(key));
            let (from, to) = (self.old.cohort(hash), placement.cohort(hash));
            for (from, to) in from.as_slice().iter().zip(to.as_slice()) {
                let (old, new) = (&self.givers[*from as usize], new(*to));
                let (before, after) = (old.store.held(hash), new.store.held(hash));
                let is_more = before.is_none() && after.is_some() && !has_evicted(old);
                check(!is_more, *to, "holds what was erased");
                let is_less = after < before && !has_evicted(new);
                check(!is_less, *to, "lacks a value");
            }
        }
    }
}
