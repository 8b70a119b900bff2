//! A backend that comes back empty recovers, by the product's own machine: what
//! `trefoil-backend` does around it, without threads and sockets. Questions and answers come
//! late and twice.

use super::net::{Errand, Net, Question};
use super::process::{Process, State};
use super::stats::Count;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use trefoil_driver::Topology;
use trefoil_layout::limits::FLOOR_AHEAD_NS_MAX;
use trefoil_recovery::mutants::{self, Mutant};
use trefoil_recovery::{Answer, Ask, Copied, Ended, Recovery};
use trefoil_region::WordBuffer;
use trefoil_store::PLACES;

/// What a question or an answer takes.
const WAY_NS: u64 = 200_000;
/// Before another attempt.
const PAUSE_NS: u64 = 20_000_000;
/// How long an answer is waited for.
const PATIENCE_NS: u64 = 2_000_000_000;
/// Before one that is stopped is asked again.
const STOPPED_NS: u64 = 20_000_000;

/// The shards of one process, one after the other.
pub(super) struct Recoveries {
    now: RefCell<Option<Now>>,
}

struct Now {
    machine: Recovery<Vec<u8>>,
    shard: usize,
    /// Questions so far, and of each peer the one that it owes an answer to.
    questions: u64,
    open: [Option<u64>; 2],
}

impl Recoveries {
    /// Of a process that has lost its memory, or has not.
    pub(super) fn new(has_lost: bool) -> Self {
        let first = Now {
            machine: Recovery::new(0),
            shard: 0,
            questions: 0,
            open: [None; 2],
        };
        Recoveries {
            now: RefCell::new(has_lost.then_some(first)),
        }
    }

    /// Whether every shard votes, and was repaired.
    pub(super) fn are_over(&self) -> bool {
        self.now.borrow().is_none()
    }
}

impl Process {
    /// Fetches what was refused while its predecessor stood still: the machine repairs a
    /// shard that votes.
    pub(super) fn repairs(self: &Rc<Self>, net: &Net) {
        *self.recoveries.now.borrow_mut() = Recoveries::new(true).now.take();
        net.send(net.takes(1_000_000), Errand::Recover(Rc::clone(self)));
    }

    /// Puts the questions that are due.
    pub(super) fn recover(self: &Rc<Self>, net: &Net) {
        if self.state.get() == State::Dead || self.has_retired.get() {
            return;
        }
        let mut recovery = self.recoveries.now.borrow_mut();
        let Some(now) = recovery.as_mut() else { return };
        if self.state.get() == State::Stopped {
            return net.send(PAUSE_NS, Errand::Recover(Rc::clone(self)));
        }
        for peer in 0..2 {
            if let Some(ask) = now.machine.ask(peer) {
                let question = Question {
                    from: Rc::clone(self),
                    cell: self.topology(),
                    token: now.questions,
                    peer,
                    ask,
                };
                now.open[peer] = Some(now.questions);
                now.questions += 1;
                if net.is_struck(net.profile.twice) {
                    let late = net.takes(WAY_NS) + net.takes(net.profile.late_ns);
                    net.send(late, Errand::Ask(question.clone()));
                }
                net.send(net.takes(WAY_NS), Errand::Ask(question));
            }
        }
    }

    /// A peer's answer, or none.
    pub(super) fn take_answer(
        self: &Rc<Self>,
        net: &Net,
        question: &Question,
        answer: Option<Answer<Vec<u8>>>,
    ) {
        if self.state.get() == State::Dead || self.has_retired.get() {
            return;
        }
        let mut recovery = self.recoveries.now.borrow_mut();
        let Some(now) = recovery.as_mut() else { return };
        if now.open[question.peer] != Some(question.token) {
            net.stats.add(Count::StaleReplies);
            return;
        }
        now.open[question.peer] = None;
        let clock = self.now(net);
        let taken = answer.map(|answer| {
            let machine = &mut now.machine;
            machine.answer(question.peer, answer, &self.store, clock)
        });
        if let Some(Err(error)) = &taken {
            // Clocks that are so far apart are told of.
            assert!(2 * net.profile.skew_ns >= FLOOR_AHEAD_NS_MAX, "{error}");
        }
        if !matches!(taken, Some(Ok(()))) {
            now.open = [None; 2];
            if matches!(question.ask, Ask::Standing { .. }) {
                // The peer may know of a later configuration.
                let errand = Errand::CatchUp(Rc::clone(self));
                net.send(net.takes(1_000_000), errand);
            }
            now.machine.failed(0);
            now.machine.failed(1);
            return net.send(PAUSE_NS, Errand::Recover(Rc::clone(self)));
        }
        if let Some(ended) = now.machine.ended() {
            net.trace(None, || {
                format!("backend {} shard {}: {ended:?}", self.number, now.shard)
            });
            // Nobody is killed before the one before has recovered.
            assert_eq!(ended, Ended::Recovered);
            net.stats.add(Count::ShardsRecovered);
            now.shard += 1;
            now.open = [None; 2];
            now.machine = Recovery::new(now.shard);
            if now.shard == self.store.shard_count() {
                *recovery = None;
                return;
            }
        }
        drop(recovery);
        self.recover(net);
    }
}

/// A question arrives at the peer, if there is one.
pub(super) fn ask(net: &Net, question: Question) {
    let (from, cell) = (&question.from, &question.cell);
    let shard = match from.shard_under_way() {
        Some(local) if from.life == net.published.borrow().id().life => {
            from.store.config().shards.shard(local)
        }
        _ => return net.send(WAY_NS, Errand::Answered(question, None)),
    };
    let cohort = cell.placement().cohort_of_shard(shard);
    let others = cohort.as_slice().iter().filter(|n| **n != from.number);
    let number = others.copied().nth(question.peer);
    let peer = number.and_then(|number| net.at(cell, number));
    let answer = match peer {
        Some(peer) if peer.state.get() == State::Stopped => {
            // It answers when it goes on. Nobody waits for so long, perhaps.
            net.send(PATIENCE_NS, Errand::Answered(question.clone(), None));
            return net.send(STOPPED_NS, Errand::Ask(question));
        }
        Some(peer) => answer_named(net, &peer, shard, &question),
        None => None,
    };
    let answer = answer.filter(|_| !net.is_struck(net.profile.call_failure));
    if net.is_struck(net.profile.twice) {
        let late = net.takes(WAY_NS) + net.takes(net.profile.late_ns);
        net.send(late, Errand::Answered(question.clone(), answer.clone()));
    }
    net.send(net.takes(WAY_NS), Errand::Answered(question, answer));
}

/// A shard's name says of which cell it is; who raises an epoch, under which configuration.
fn answer_named(
    net: &Net,
    peer: &Rc<Process>,
    shard: u32,
    question: &Question,
) -> Option<Answer<Vec<u8>>> {
    let (from, cell) = (&question.from, &question.cell);
    let is_other = peer.store.config().shards.placement() != *cell.placement();
    if peer.life != from.life || is_other {
        return None;
    }
    if let Ask::Standing { raise_to } = question.ask {
        let theirs = cell.id().config_id;
        if raise_to > 0 && !agrees_on_config(net, peer, theirs) {
            net.stats.add(Count::RaisesRefused);
            return None;
        }
        let is_moving = {
            let (giving, part) = (peer.giving.borrow(), peer.part.borrow());
            giving.as_ref().is_some_and(|giving| giving.is_frozen())
                || part.as_ref().is_some_and(|part| part.is_frozen())
        };
        // Its successor would not learn of it.
        if is_moving && !mutants::is_on(Mutant::RaisedWhileFrozen) {
            return None;
        }
        raised(net, peer, shard, raise_to);
    }
    answer(net, peer, shard, &question.ask)
}

/// An epoch that is passed on to the others of the cohort, as who has raised it knows them:
/// whoever recovers may die after the first.
pub(super) struct Raised {
    cell: Arc<Topology>,
    number: u32,
    shard: u32,
    epoch: u32,
}

fn raised(net: &Net, peer: &Process, shard: u32, epoch: u32) {
    let local = peer.store.config().shards.local_of(shard);
    if local.is_none_or(|local| epoch <= peer.store.epoch(local)) {
        return;
    }
    let cell = peer.topology();
    let cohort = cell.placement().cohort_of_shard(shard);
    for number in cohort.as_slice().iter().filter(|n| **n != peer.number) {
        let raised = Raised {
            cell: Arc::clone(&cell),
            number: *number,
            shard,
            epoch,
        };
        net.send(net.takes(WAY_NS), Errand::PassOn(raised));
    }
}

/// It arrives.
pub(super) fn pass_on(net: &Net, raised: &Raised) {
    let Some(process) = net.at(&raised.cell, raised.number) else {
        return;
    };
    let shards = &process.store.config().shards;
    let is_moving = {
        let (giving, part) = (process.giving.borrow(), process.part.borrow());
        giving.as_ref().is_some_and(|giving| giving.is_frozen())
            || part.as_ref().is_some_and(|part| part.is_frozen())
    };
    let is_taken = process.state.get() == State::Running
        && shards.placement() == *raised.cell.placement()
        && process.life == raised.cell.id().life
        && !is_moving
        && agrees_on_config(net, &process, raised.cell.id().config_id);
    if let Some(local) = shards.local_of(raised.shard).filter(|_| is_taken) {
        trefoil_recovery::standing(&process.store, local, raised.epoch);
    }
}

/// A replica of an older configuration follows first, one of a later one refuses.
fn agrees_on_config(net: &Net, peer: &Rc<Process>, theirs: u32) -> bool {
    if mutants::is_on(Mutant::ConfigUnnamed) {
        return true;
    }
    let is_reached = !net.is_struck(net.profile.call_failure);
    if theirs > peer.config_id.get() && is_reached {
        peer.catch_up(net);
    }
    peer.config_id.get() == theirs
}

fn answer(net: &Net, peer: &Process, shard: u32, ask: &Ask) -> Option<Answer<Vec<u8>>> {
    let store = &peer.store;
    let shard = store.config().shards.local_of(shard)?;
    Some(match ask {
        Ask::Standing { raise_to } => {
            Answer::Standing(trefoil_recovery::standing(store, shard, *raise_to)?)
        }
        Ask::Items {
            from,
            until,
            values,
        } => {
            let len = 1 + net.rng.below(PLACES.end);
            let places = *from..(*until).min(from + len);
            let now = peer.now(net);
            Answer::Items(Copied::new(store, now, shard).items(places, *values)?)
        }
        Ask::Long { key, version } => {
            let mut bytes = WordBuffer::default();
            let found = store.lookup(peer.now(net), key, &mut bytes).found;
            let is_it = matches!(found, trefoil_layout::op::Found::Present { version: v, .. } if v == *version);
            Answer::Long(is_it.then(|| bytes.bytes().to_vec()))
        }
    })
}

impl Process {
    fn shard_under_way(&self) -> Option<usize> {
        self.recoveries.now.borrow().as_ref().map(|now| now.shard)
    }
}
