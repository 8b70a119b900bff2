//! A backend that comes back empty recovers, by the product's own machine: what
//! `trefoil-backend` does around it, without threads and sockets.

use super::net::{Errand, Net, Question};
use super::process::{Process, State};
use super::stats::Count;
use std::cell::RefCell;
use std::rc::Rc;
use trefoil_recovery::mutants::{self, Mutant};
use trefoil_recovery::{Answer, Ask, Ended, Recovery};
use trefoil_region::WordBuffer;
use trefoil_store::PLACES;

/// What a question or an answer takes.
const WAY_NS: u64 = 200_000;
/// Before another attempt.
const PAUSE_NS: u64 = 20_000_000;
/// How long an answer is waited for.
const PATIENCE_NS: u64 = 2_000_000_000;

/// The shards of one process, one after the other.
pub(super) struct Recoveries {
    now: RefCell<Option<Now>>,
}

struct Now {
    machine: Recovery<Vec<u8>>,
    shard: usize,
    attempt: u64,
}

impl Recoveries {
    /// Of a process that has lost its memory, or has not.
    pub(super) fn new(has_lost: bool) -> Self {
        let first = Now {
            machine: Recovery::new(0),
            shard: 0,
            attempt: 0,
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
        if self.state.get() == State::Dead {
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
                    attempt: now.attempt,
                    peer,
                    ask,
                };
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
        if self.state.get() == State::Dead {
            return;
        }
        let mut recovery = self.recoveries.now.borrow_mut();
        let Some(now) = recovery.as_mut() else { return };
        if now.attempt != question.attempt {
            return;
        }
        let Some(answer) = answer else {
            now.attempt += 1;
            now.machine.failed(0);
            now.machine.failed(1);
            return net.send(PAUSE_NS, Errand::Recover(Rc::clone(self)));
        };
        let taken = now
            .machine
            .answer(question.peer, answer, &self.store, self.now(net));
        taken.expect("peers speak the same language");
        if let Some(ended) = now.machine.ended() {
            net.trace(None, || {
                format!("backend {} shard {}: {ended:?}", self.number, now.shard)
            });
            // Nobody is killed before the one before has recovered.
            assert_eq!(ended, Ended::Recovered);
            net.stats.add(Count::ShardsRecovered);
            now.shard += 1;
            now.attempt += 1;
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
    let from = &question.from;
    let shards = &from.store.config().shards;
    let shard = match from.shard_under_way() {
        Some(local) if from.life == net.published.borrow().id().life => shards.shard(local),
        _ => return net.send(WAY_NS, Errand::Answered(question, None)),
    };
    let placement = *net.published.borrow().placement();
    let cohort = placement.cohort_of_shard(shard);
    let others = cohort.as_slice().iter().filter(|n| **n != from.number);
    let number = others.copied().nth(question.peer);
    let peer = number.and_then(|number| net.process(number));
    let is_frozen = |peer: &Process| {
        let giving = peer.giving.borrow();
        giving.as_ref().is_some_and(|giving| giving.is_frozen())
    };
    let is_raise = matches!(question.ask, Ask::Standing { .. });
    let answer = match peer {
        // Its successor would not learn of it.
        Some(peer)
            if is_raise && is_frozen(&peer) && !mutants::is_on(Mutant::RaisedWhileFrozen) =>
        {
            None
        }
        Some(peer) if peer.state.get() == State::Running => {
            answer(net, &peer, shard, &question.ask)
        }
        Some(_) => {
            return net.send(PATIENCE_NS, Errand::Answered(question, None));
        }
        None => None,
    };
    let answer = answer.filter(|_| !net.is_struck(net.profile.call_failure));
    net.send(net.takes(WAY_NS), Errand::Answered(question, answer));
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
            Answer::Items(trefoil_recovery::items(store, now, shard, places, *values)?)
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
