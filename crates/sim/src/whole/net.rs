//! The host that all processes share: time, what is on its way, the cell's
//! configuration. Reached through shared references: things go on at the backends
//! while a client is in the middle of a lookup.

use super::calls::Calls;
use super::engine::Scan;
use super::host::Mailbox;
use super::moves::{self, Said, Step};
use super::process::{Process, State};
use super::profile::Profile;
use super::recovery;
use super::resize::{self, Resize};
use crate::history::Broken;
use crate::rng::Rng;
use std::cell::{Cell, RefCell};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::rc::Rc;
use std::sync::Arc;
use trefoil_client_core::outcome::SendFailure;
use trefoil_driver::Topology;
use trefoil_fabric::Token;
use trefoil_layout::TopologyId;
use trefoil_recovery::{Answer, Ask};

/// The moment at which every run begins, in nanoseconds since the Unix epoch.
pub(super) const BEGIN_UNIX_NS: u64 = 1_700_000_000_000_000_000;
/// How long a client believes a backend that does not renew its lease.
pub(super) const LEASE_NS: u64 = 500_000_000;
/// How often a backend renews it.
pub(super) const RENEWAL_NS: u64 = 100_000_000;
/// What one look at a clock takes.
const LOOK_NS: u64 = 50;

/// A line of a run's trace, and the key that it is about.
pub(super) type Line = (Option<usize>, String);

/// Receives a run's trace. Outlives the run, also one that panics.
#[derive(Default)]
pub(super) struct Log {
    is_on: bool,
    lines: RefCell<Vec<Line>>,
}

impl Log {
    pub(super) fn new(is_on: bool) -> Self {
        Log {
            is_on,
            lines: RefCell::default(),
        }
    }

    pub(super) fn take(&self) -> Vec<Line> {
        self.lines.take()
    }
}

/// Something that is on its way.
pub(super) enum Errand {
    /// A backend looks at its rings.
    Poll(Rc<Process>),
    /// A backend tends its store.
    Tend(Rc<Process>),
    /// All backends renew their leases.
    Renew,
    /// A backend learns the configuration in force.
    CatchUp(Rc<Process>),
    /// An engine scans a bucket.
    Scan(Scan),
    /// A call's message arrives.
    Call(Call),
    /// A call has ended.
    CallEnds {
        calls: Rc<Calls>,
        token: Token,
        end: Result<Vec<u8>, (SendFailure, &'static str)>,
    },
    /// A client knocks at a backend.
    Connect {
        to: Rc<Mailbox>,
        topology: Arc<Topology>,
        backend: u32,
        since_ns: u64,
    },
    /// A client asks for the configuration.
    Learn(Rc<Mailbox>),
    /// A backend that recovers asks its peers what it wants to know.
    Recover(Rc<Process>),
    /// A peer is asked.
    Ask(Question),
    /// Its answer arrives; `None` if it did not get there.
    Answered(Question, Option<Answer<Vec<u8>>>),
    /// A raised epoch is passed on to another one of the cohort.
    PassOn(recovery::Raised),
    /// A process that takes another one's place asks it.
    Step(Step),
    /// The answer arrives; `None` if there is none.
    Stepped(Step, Option<Said>),
    /// Of a resize.
    Resize(resize::Errand),
}

/// What a recovering backend asks a peer.
#[derive(Clone)]
pub(super) struct Question {
    pub(super) from: Rc<Process>,
    /// The configuration under which it recovers.
    pub(super) cell: Arc<Topology>,
    /// An answer counts for the question that it answers, once.
    pub(super) token: u64,
    /// Which of the two peers.
    pub(super) peer: usize,
    pub(super) ask: Ask,
}

/// A call on its way to a backend.
#[derive(Clone)]
pub(super) struct Call {
    pub(super) process: Rc<Process>,
    pub(super) calls: Rc<Calls>,
    pub(super) token: Token,
    pub(super) under: TopologyId,
    pub(super) bytes: Rc<Vec<u8>>,
    pub(super) is_copy: bool,
}

/// Errands by the time at which they are due, those of one time in the order in which
/// they were sent. What is ordered is small: errands are long.
#[derive(Default)]
struct Queue {
    /// Time, number, and place of the errand.
    due: BinaryHeap<Reverse<(u64, u64, u32)>>,
    errands: Vec<Option<Errand>>,
    free: Vec<u32>,
    sent: u64,
}

impl Queue {
    fn push(&mut self, at_ns: u64, errand: Errand) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.errands.push(None);
            self.errands.len() as u32 - 1
        });
        self.errands[place as usize] = Some(errand);
        self.due.push(Reverse((at_ns, self.sent, place)));
        self.sent += 1;
    }

    fn next_ns(&self) -> u64 {
        self.due.peek().map_or(u64::MAX, |due| due.0.0)
    }

    /// The next errand, if it is due by then.
    fn pop(&mut self, now_ns: u64) -> Option<Errand> {
        if self.next_ns() > now_ns {
            return None;
        }
        let Reverse((_, _, place)) = self.due.pop()?;
        self.free.push(place);
        self.errands[place as usize].take()
    }
}

/// See the module.
pub(super) struct Net {
    pub(super) profile: Profile,
    pub(super) rng: Rng,
    /// By which way clients ask engines.
    pub(super) ways: Rng,
    pub(super) log: Rc<Log>,
    pub(super) now_ns: Cell<u64>,
    queue: RefCell<Queue>,
    /// The latest process of each backend's number.
    pub(super) processes: RefCell<Vec<Rc<Process>>>,
    /// One that takes a backend's place, and is not it yet.
    pub(super) successor: RefCell<Option<Rc<Process>>>,
    /// Processes that may live beside these: backends that are to be, or were.
    pub(super) others: RefCell<Vec<Rc<Process>>>,
    pub(super) resize: RefCell<Option<Resize>>,
    /// Resizes so far.
    pub(super) resizes: Cell<u64>,
    /// What was found wrong in the middle of it.
    pub(super) broken: RefCell<Option<Broken>>,
    /// The configuration in force.
    pub(super) published: RefCell<Arc<Topology>>,
    /// When each client acts next.
    pub(super) wakes: Vec<Cell<u64>>,
    /// No new faults: the run is coming to its end.
    pub(super) is_calm: Cell<bool>,
    /// Every operation has been begun and has ended: backends are waited for.
    pub(super) is_idle: Cell<bool>,
    /// Something goes on at a backend beside a read.
    is_interleaving: Cell<bool>,
    /// Incarnations so far.
    pub(super) incarnations: Cell<u64>,
    pub(super) stats: super::stats::Counting,
}

impl Net {
    pub(super) fn new(profile: Profile, rng: Rng, log: Rc<Log>, first: Arc<Topology>) -> Self {
        Net {
            log,
            now_ns: Cell::new(1_000_000_000),
            queue: RefCell::default(),
            processes: RefCell::default(),
            successor: RefCell::default(),
            others: RefCell::default(),
            resize: RefCell::default(),
            resizes: Cell::new(0),
            broken: RefCell::default(),
            published: RefCell::new(first),
            wakes: (0..profile.clients).map(|_| Cell::new(0)).collect(),
            is_calm: Cell::new(false),
            is_idle: Cell::new(false),
            is_interleaving: Cell::new(false),
            incarnations: Cell::new(0),
            stats: Default::default(),
            profile,
            ways: rng.beside(),
            rng,
        }
    }

    /// A line of the trace, about one key or about none in particular.
    #[inline(always)]
    pub(super) fn trace(&self, key: Option<usize>, text: impl FnOnce() -> String) {
        if self.log.is_on {
            let at = self.now_ns.get() as f64 / 1e6;
            let line = match key {
                Some(key) => format!("{at:10.3} ms key {key}: {}", text()),
                None => format!("{at:10.3} ms {}", text()),
            };
            self.log.lines.borrow_mut().push((key, line));
        }
    }

    /// Whether a fault happens now.
    pub(super) fn is_struck(&self, chance: u32) -> bool {
        chance > 0 && !self.is_calm.get() && self.rng.chance(chance)
    }

    /// How long something takes that usually takes up to `usual_ns`.
    pub(super) fn takes(&self, usual_ns: u64) -> u64 {
        let late = match self.is_struck(self.profile.late) {
            true => self.rng.below(self.profile.late_ns),
            false => 0,
        };
        1 + self.rng.below(usual_ns) + late
    }

    pub(super) fn send(&self, after_ns: u64, errand: Errand) {
        let at_ns = self.now_ns.get() + after_ns;
        self.queue.borrow_mut().push(at_ns, errand);
    }

    /// When the next errand is due.
    pub(super) fn next_due_ns(&self) -> u64 {
        self.queue.borrow().next_ns()
    }

    /// A look at the monotonic clock: some time passes, and others go on.
    pub(super) fn look(&self) -> u64 {
        let now = self.now_ns.get() + LOOK_NS;
        self.now_ns.set(now);
        self.run_due();
        now
    }

    /// A client is in the middle of a read: perhaps something goes on at a backend.
    pub(super) fn beside(&self) {
        if self.is_struck(self.profile.torn) && !self.is_interleaving.replace(true) {
            let process = {
                let processes = self.processes.borrow();
                Rc::clone(&processes[self.rng.index(processes.len())])
            };
            process.disturb(self);
            self.is_interleaving.set(false);
        }
    }

    /// Carries out what is due.
    pub(super) fn run_due(&self) {
        loop {
            let errand = self.queue.borrow_mut().pop(self.now_ns.get());
            match errand {
                Some(errand) => self.run(errand),
                None => return,
            }
        }
    }

    fn run(&self, errand: Errand) {
        match errand {
            Errand::Poll(process) => process.poll(self),
            Errand::Tend(process) => process.tend(self),
            Errand::CatchUp(process) => process.catch_up(self),
            Errand::Renew => {
                self.others
                    .borrow_mut()
                    .retain(|process| process.state.get() != State::Dead);
                for process in self.everybody() {
                    process.renew(self);
                }
                self.send(RENEWAL_NS, Errand::Renew);
            }
            Errand::Scan(scan) => scan.carry_out(self),
            Errand::Call(call) => {
                let process = Rc::clone(&call.process);
                process.take_call(self, call);
            }
            Errand::CallEnds { calls, token, end } => calls.end(self, token, end),
            Errand::Connect {
                to,
                topology,
                backend,
                since_ns,
            } => to.knock(self, topology, backend, since_ns),
            Errand::Learn(to) => to.learn(self),
            Errand::Recover(process) => process.recover(self),
            Errand::Resize(errand) => resize::run(self, errand),
            Errand::Step(step) => moves::arrive(self, step),
            Errand::Stepped(step, said) => {
                let process = step.successor();
                process.stepped(self, &step, said);
            }
            Errand::PassOn(raised) => recovery::pass_on(self, &raised),
            Errand::Ask(question) => recovery::ask(self, question),
            Errand::Answered(question, answer) => {
                let process = Rc::clone(&question.from);
                process.take_answer(self, &question, answer);
            }
        }
    }

    /// A client has something to look at.
    pub(super) fn wake(&self, client: usize, after_ns: u64) {
        let at = self.now_ns.get() + after_ns;
        let wake = &self.wakes[client];
        wake.set(wake.get().min(at));
    }

    /// Ends the run: what is on its way refers to this.
    pub(super) fn clear(&self) {
        self.queue.take();
        self.processes.borrow_mut().clear();
        self.successor.take();
        self.others.borrow_mut().clear();
        self.resize.take();
    }

    pub(super) fn send_resize(&self, after_ns: u64, errand: resize::Errand) {
        self.send(after_ns, Errand::Resize(errand));
    }

    /// Every process, whether it is a backend, is to be one or was.
    pub(super) fn everybody(&self) -> Vec<Rc<Process>> {
        let (processes, others) = (self.processes.borrow(), self.others.borrow());
        processes.iter().chain(others.iter()).cloned().collect()
    }

    /// Puts a configuration in force; backends serve it as they learn of it.
    pub(super) fn publish(&self, next: Topology) -> Arc<Topology> {
        let next = Arc::new(next);
        *self.published.borrow_mut() = Arc::clone(&next);
        for process in self.processes.borrow().iter() {
            let errand = Errand::CatchUp(Rc::clone(process));
            self.send(self.takes(2_000_000), errand);
        }
        next
    }

    /// Who listens where a configuration says that a backend is.
    pub(super) fn at(&self, topology: &Topology, number: u32) -> Option<Rc<Process>> {
        let place = topology.config().backend(number)?;
        let is_there = |process: &Rc<Process>| {
            process.state.get() != State::Dead
                && process.listens.get()
                && process.address == place.addresses[0]
        };
        self.everybody().into_iter().find(is_there)
    }

    /// The process that serves as a backend now, if it has not ended.
    pub(super) fn process(&self, backend: u32) -> Option<Rc<Process>> {
        let processes = self.processes.borrow();
        let process = processes.get(backend as usize)?;
        let is_there = process.state.get() != State::Dead && process.listens.get();
        is_there.then(|| Rc::clone(process))
    }
}
