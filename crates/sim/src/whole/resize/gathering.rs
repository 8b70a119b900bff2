//! The side of the processes that are to be: what `trefoil_backend::Gather` does around
//! [`Gathering`].

use super::{Errand, WAY_NS};
use crate::violation::Property;
use crate::whole::net::Net;
use crate::whole::process::{Process, State};
use crate::whole::stats::Count;
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use trefoil_driver::Topology;
use trefoil_recovery::{Asked, Gathering, Reply};

/// How long an answer is waited for.
const PATIENCE_NS: u64 = 2_000_000_000;
/// When it copies once more what has changed, at the latest.
const ROUND_NS: u64 = 1_000_000;
/// Before one that was stopped looks again.
const PAUSE_NS: u64 = 20_000_000;

/// What a process that is to be a backend is told.
#[derive(Clone, Copy, Debug)]
pub(in crate::whole) enum Word {
    Copy,
    Near(u32),
    /// In which attempt, and the epoch.
    Last(u32, u32),
    Again,
    Begin,
}

/// What it says.
#[derive(Clone, Copy, Debug)]
pub(in crate::whole) enum Said {
    /// Of an attempt; 0: the first copy is made.
    Near(u32),
    Done(u32),
    Serves,
    Ended,
}

/// A question of one of them.
#[derive(Clone)]
pub(in crate::whole) struct Ask {
    new: Rc<Process>,
    old: Arc<Topology>,
    resize: u64,
    number: u64,
    pub(super) asked: Asked,
    /// Its answer goes to nobody.
    pub(super) is_copy: bool,
}

impl Ask {
    /// Who asks.
    pub(super) fn taker(&self) -> Rc<Process> {
        Rc::clone(&self.new)
    }

    pub(super) fn resize(&self) -> u64 {
        self.resize
    }

    /// The cell as who asks knows it.
    pub(super) fn cell(&self) -> &Topology {
        &self.old
    }
}

/// See the module.
pub(in crate::whole) struct Gatherer {
    resize: u64,
    old: Arc<Topology>,
    machine: Option<Gathering<Vec<u8>>>,
    begun: bool,
    owes: Owes,
    inbox: VecDeque<Word>,
    /// Questions without an answer.
    open: BTreeSet<u64>,
    /// What it says comes in order.
    said_ns: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Owes {
    Nothing,
    Near(u32),
    Done(u32),
}

impl Gatherer {
    pub(super) fn new(resize: u64, old: &Arc<Topology>) -> Self {
        Gatherer {
            resize,
            old: Arc::clone(old),
            machine: None,
            begun: false,
            owes: Owes::Near(0),
            inbox: VecDeque::new(),
            open: BTreeSet::new(),
            said_ns: 0,
        }
    }

    fn say(&mut self, net: &Net, number: u32, said: Said) {
        let now = net.now_ns.get();
        self.said_ns = self.said_ns.max(now + net.takes(WAY_NS));
        net.send_resize(self.said_ns - now, Errand::Said(self.resize, number, said));
    }
}

impl Process {
    /// It was told something.
    pub(super) fn hear(self: &Rc<Self>, net: &Net, word: Word) {
        if let Some(gatherer) = self.gathering.borrow_mut().as_mut() {
            gatherer.inbox.push_back(word);
        }
        self.heed(net);
    }

    pub(super) fn heed(self: &Rc<Self>, net: &Net) {
        match self.state.get() {
            State::Dead => return,
            State::Stopped => return net.send_resize(PAUSE_NS, Errand::Heed(Rc::clone(self))),
            State::Running => {}
        }
        loop {
            let mut gathering = self.gathering.borrow_mut();
            let Some(now) = gathering.as_mut() else {
                return;
            };
            let Some(word) = now.inbox.pop_front() else {
                break;
            };
            let old = *now.old.placement();
            let machine = now
                .machine
                .get_or_insert_with(|| Gathering::new(old, &self.store));
            match word {
                Word::Copy => now.begun = true,
                Word::Near(attempt) => {
                    now.owes = Owes::Near(attempt);
                    machine.round();
                }
                Word::Last(attempt, epoch) => {
                    now.owes = Owes::Done(attempt);
                    machine.last(epoch);
                }
                Word::Again => {
                    now.owes = Owes::Nothing;
                    machine.again();
                }
                Word::Begin if machine.is_done() => {
                    drop(gathering);
                    return match net.at(&self.topology(), self.number) {
                        // Somebody else has its number still.
                        Some(_) => {
                            net.send_resize(PAUSE_NS, Errand::Word(Rc::clone(self), Word::Begin))
                        }
                        None => self.begin_resized(net),
                    };
                }
                Word::Begin => {}
            }
        }
        self.gather_on(net);
    }

    /// Asks what can be asked, and says what the others wait for.
    fn gather_on(self: &Rc<Self>, net: &Net) {
        let mut gathering = self.gathering.borrow_mut();
        let Some(now) = gathering.as_mut() else {
            return;
        };
        let Some(machine) = now.machine.as_mut().filter(|_| now.begun) else {
            return;
        };
        while let Some((number, asked)) = machine.ask() {
            let is_page = matches!(asked.what, trefoil_recovery::What::Items { .. });
            let ask = Ask {
                new: Rc::clone(self),
                old: Arc::clone(&now.old),
                resize: now.resize,
                number,
                asked,
                is_copy: false,
            };
            now.open.insert(number);
            if is_page && net.is_struck(net.profile.twice) {
                let copy = Ask {
                    is_copy: true,
                    ..ask.clone()
                };
                net.send_resize(net.takes(WAY_NS) + net.profile.late_ns, Errand::Ask(copy));
            }
            net.send_resize(PATIENCE_NS, Errand::Answered(ask.clone(), None));
            net.send_resize(net.takes(WAY_NS), Errand::Ask(ask));
        }
        let said = match now.owes {
            Owes::Near(attempt) if machine.is_near() => Said::Near(attempt),
            Owes::Done(attempt) if machine.is_done() => Said::Done(attempt),
            _ => return,
        };
        now.owes = Owes::Nothing;
        now.say(net, self.number, said);
        if matches!(said, Said::Near(_)) && net.rng.chance(512) {
            let after = net.rng.below(ROUND_NS);
            net.send_resize(after, Errand::Round(Rc::clone(self)));
        }
    }

    /// What has changed since it was near.
    pub(super) fn round(self: &Rc<Self>, net: &Net) {
        if self.state.get() != State::Running {
            return;
        }
        if let Some(now) = self.gathering.borrow_mut().as_mut()
            && let Some(machine) = now.machine.as_mut().filter(|machine| machine.is_near())
        {
            machine.round();
        }
        self.gather_on(net);
    }

    /// An answer, or none in time. The same may come twice, and after that.
    pub(super) fn answered(self: &Rc<Self>, net: &Net, ask: &Ask, reply: Option<Reply<Vec<u8>>>) {
        match self.state.get() {
            State::Dead => return,
            State::Stopped => {
                let again = Errand::Answered(ask.clone(), reply);
                return net.send_resize(PAUSE_NS, again);
            }
            State::Running => {}
        }
        let mut gathering = self.gathering.borrow_mut();
        let Some(now) = gathering.as_mut() else {
            return;
        };
        if !now.open.remove(&ask.number) {
            if reply.is_some() {
                net.stats.add(Count::StaleReplies);
            }
            return;
        }
        let Some(reply) = reply else {
            drop(gathering);
            return self.fail(net);
        };
        let Some(machine) = now.machine.as_mut() else {
            return;
        };
        let clock = self.now(net);
        let taken = machine.answer(ask.number, reply, &self.store, clock);
        // Its time is that of those whom it asks, whatever its own clock says.
        assert_eq!(taken, Ok(()));
        let is_refused = machine.refused().is_some();
        drop(gathering);
        match is_refused {
            true => self.fail(net),
            false => self.gather_on(net),
        }
    }

    /// It ends, and the cell stays as it was.
    pub(in crate::whole) fn fail(self: &Rc<Self>, net: &Net) {
        let Some(mut now) = self.gathering.take() else {
            return;
        };
        now.say(net, self.number, Said::Ended);
        self.state.set(State::Dead);
        let number = self.number;
        net.trace(None, || format!("who was to be backend {number} has ended"));
    }

    /// The old ones have gone: it serves.
    fn begin_resized(self: &Rc<Self>, net: &Net) {
        let Some(mut now) = self.gathering.take() else {
            return;
        };
        let others = net.others.borrow();
        let gives_votes = |other: &Process| {
            let mut shards = 0..other.store.shard_count();
            shards.any(|shard| !other.store.is_recovering(shard))
        };
        let is_believed =
            |other: &Rc<Process>| other.lease_end_ns.get() > net.now_ns.get() && gives_votes(other);
        if others.iter().any(is_believed) {
            let message = format!("backend {} begins, and an old one is believed", self.number);
            let mut broken = net.broken.borrow_mut();
            broken.get_or_insert((Property::Moved, message));
        }
        drop(others);
        if let Some(machine) = now.machine.take() {
            machine.finish(&self.store);
        }
        now.say(net, self.number, Said::Serves);
        // What was flushed meanwhile, before anything is served.
        let fresh = Arc::clone(&net.published.borrow());
        self.adopt(net, &fresh);
        self.listens.set(true);
        self.renew(net);
        let number = self.number;
        net.trace(None, || format!("backend {number} serves the resized cell"));
    }
}
