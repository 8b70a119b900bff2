//! Clocks that stand until a test moves them, and backends that do what it says.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use trefoil_cell::{BackendConfig, CellConfig, Mode, RpcAddress};
use trefoil_client_core::outcome::{MutationOutcome, SendFailure};
use trefoil_client_core::retry::Limits;
use trefoil_client_core::touch::TouchBatch;
use trefoil_client_core::vote::IndexVote;
use trefoil_driver::{
    CarrierInUse, Clock, Driver, Event, Host, Item, NotConnected, OWED_NS_MIN, Options, Outcome,
    Owner, Purpose, Topology,
};
use trefoil_fabric::port::{Closed, Completion, OutOfWindow, Port, Progress, SendError, Token};
use trefoil_fabric::{Agreement, RegionView};
use trefoil_layout::control::{self, ControlShape};
use trefoil_layout::data::DataEntry;
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_layout::message::{Answer, ErrorCode, Request};
use trefoil_layout::op::{Ack, Expected, Found, LookupAnswer, Outcome as Applied};
use trefoil_layout::topology::CONFIG_ID_CHANGING;
use trefoil_layout::{KeyHash, KeyHasher, Pointer, TopologyId, Version};
use trefoil_region::{Mapping, WordBuffer};

const MS: u64 = 1_000_000;
/// Of a backend's memory.
const LEASE_NS: u64 = 500 * MS;

/// What comes of connecting to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Connects {
    /// A carrier of messages.
    Near,
    /// The same, and its memory, in which nothing is found.
    Mapped,
    /// Calls, and nothing better.
    Far,
    Down,
    /// Nothing, ever.
    Silent,
}

/// A backend. It applies whatever it is sent, unless a test says otherwise.
#[derive(Debug)]
pub(crate) struct Backend {
    pub(crate) connects: Cell<Connects>,
    /// There is no room on the way to it.
    pub(crate) is_full: Cell<bool>,
    /// It answers others, who keep the way full.
    pub(crate) answers_others: Cell<bool>,
    /// Bytes of others on their way to it.
    pub(crate) len_under_way: Cell<u64>,
    pub(crate) is_given_up: Cell<bool>,
    /// It has not got round to what it was sent.
    pub(crate) is_quiet: Cell<bool>,
    /// What it answers to mutations.
    pub(crate) answers: Cell<Applied>,
    /// When what it holds was written, if it holds anything.
    pub(crate) holds: Cell<Option<u64>>,
    /// Calls do not reach it.
    pub(crate) is_away: Cell<bool>,
    /// It ends: calls are not executed, and it says so.
    pub(crate) is_ending: Cell<bool>,
    /// Messages reach it by another process.
    pub(crate) is_indirect: Cell<bool>,
    /// Which refuses to hand them on.
    pub(crate) is_refused: Cell<bool>,
    /// Calls that were made.
    pub(crate) called: Cell<u64>,
    /// Values are too long for its rings.
    pub(crate) has_short_rings: Cell<bool>,
    /// Its control region.
    control: Mapping,
    /// What does not run any more renews no lease.
    pub(crate) has_stopped: Cell<bool>,
    /// How many greetings more are those of a process that leaves.
    pub(crate) leaving_greetings: Cell<u32>,
    /// Raised when its process ends.
    life: Cell<u32>,
    /// How long it takes to answer what it was sent by message, and reports that.
    pub(crate) takes_ms: Cell<u64>,
    /// Lookups that it was sent.
    pub(crate) asked: Cell<u64>,
    /// With the time from which on it answers.
    owes: RefCell<VecDeque<(Token, bool, u64)>>,
    /// Questions by call, with the time from which on their calls have ended.
    questions: RefCell<VecDeque<(Token, u64)>>,
}

impl Backend {
    /// Its process is stopped.
    pub(crate) fn stops(&self) {
        self.is_quiet.set(true);
        self.has_stopped.set(true);
    }

    /// It moves to another process, which is late.
    pub(crate) fn moves(&self) {
        self.has_stopped.set(true);
        control::set_lease_end_ns(&self.control.words(), control::LEASE_MOVED_NS);
        self.connects.set(Connects::Silent);
    }

    fn renews_lease(&self, now_ns: u64) {
        if !self.has_stopped.get() {
            control::set_lease_end_ns(&self.control.words(), now_ns + LEASE_NS);
        }
    }

    fn view(&self, agreement: Agreement) -> Arc<RegionView> {
        let empty = || Mapping::heap(4096);
        let view = RegionView::new(agreement, self.control.clone(), empty(), empty());
        Arc::new(view)
    }

    /// Its process ends, with all that it has not got round to.
    pub(crate) fn dies(&self) {
        self.life.set(self.life.get() + 1);
        self.owes.borrow_mut().clear();
        self.connects.set(Connects::Down);
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct World {
    now_ns: Cell<u64>,
    running_since_ns: Cell<u64>,
    pub(crate) backends: Vec<Rc<Backend>>,
    events: RefCell<VecDeque<Event<TestPort>>>,
    pub(crate) learned: Cell<u32>,
    /// Keys that were told of, by message.
    pub(crate) suspects: RefCell<Vec<Vec<KeyHash>>>,
}

#[derive(Debug)]
pub(crate) struct TestPort {
    of: Rc<Backend>,
    /// The process that it leads to; none that ends, where it makes calls.
    life: Option<u32>,
    world: Rc<World>,
    agreement: Option<Agreement>,
    view: Option<Arc<RegionView>>,
}

impl TestPort {
    fn is_closed(&self) -> bool {
        self.life.is_some_and(|life| life != self.of.life.get())
    }
}

pub(crate) struct TestHost(Rc<World>);

/// One client.
pub(crate) struct Client {
    pub(crate) world: Rc<World>,
    driver: Driver<TestHost>,
    at: u32,
    /// Of lookups side by side.
    pub(crate) retries_max: u16,
}

impl Client {
    /// In a cell whose backends can be connected to like this.
    pub(crate) fn new(mode: Mode, connects: &[Connects]) -> Client {
        let backend = |connects: &Connects| {
            Rc::new(Backend {
                connects: Cell::new(*connects),
                is_full: Cell::new(false),
                answers_others: Cell::new(false),
                len_under_way: Cell::new(0),
                is_given_up: Cell::new(false),
                is_quiet: Cell::new(false),
                answers: Cell::new(Applied::Applied),
                holds: Cell::new(None),
                is_away: Cell::new(false),
                is_ending: Cell::new(false),
                is_indirect: Cell::new(false),
                is_refused: Cell::new(false),
                called: Cell::new(0),
                has_short_rings: Cell::new(false),
                control: control_region(),
                has_stopped: Cell::new(false),
                leaving_greetings: Cell::new(0),
                life: Cell::new(0),
                takes_ms: Cell::new(0),
                asked: Cell::new(0),
                owes: RefCell::default(),
                questions: RefCell::default(),
            })
        };
        let world = Rc::new(World {
            now_ns: Cell::new(1_000_000 * MS),
            running_since_ns: Cell::new(0),
            backends: connects.iter().map(backend).collect(),
            events: RefCell::default(),
            learned: Cell::new(0),
            suspects: RefCell::default(),
        });
        let topology = topology(mode, connects.len() as u32, 1);
        let options = Options {
            deadline: Duration::from_secs(60),
            ..Options::default()
        };
        let mut driver = Driver::new(TestHost(Rc::clone(&world)), topology, options, 0);
        driver.turn();
        let retries_max = driver.limits(0).retries_max;
        Client {
            world,
            driver,
            at: 0,
            retries_max,
        }
    }

    pub(crate) fn begin_set(&mut self) {
        self.begin_set_of(KEY);
    }

    pub(crate) fn begin_set_of(&mut self, key: &[u8]) {
        let item = Item::default();
        self.at = self.driver.begin_set(key, b"value", item, Owner::Waiter);
    }

    /// One of a key that nobody holds.
    pub(crate) fn begin_cas(&mut self) {
        let (expected, item) = (Expected::Absent, Item::default());
        let owner = Owner::Waiter;
        self.at = self.driver.begin_cas(expected, KEY, b"value", item, owner);
    }

    pub(crate) fn begin_get(&mut self) {
        let now = self.world.now_ns.get();
        let limits = self.driver.limits(now);
        let begun = self
            .driver
            .get(KEY, now, limits, Purpose::Use, Owner::Waiter);
        self.at = begun.expect_err("nothing is mapped");
    }

    /// So many lookups are begun side by side, of which the first is waited for; their
    /// places.
    pub(crate) fn begin_batch(&mut self, count: usize, patience_ms: u64) -> Vec<u32> {
        let now = self.world.now_ns.get();
        let limits = Limits {
            deadline_ns: now + patience_ms * MS,
            retries_max: self.retries_max,
        };
        let begin = |_| {
            let owner = Owner::Batch;
            let begun = self.driver.get(KEY, now, limits, Purpose::Use, owner);
            begun.expect_err("nothing is mapped")
        };
        let places: Vec<u32> = (0..count).map(begin).collect();
        self.at = places[0];
        places
    }

    pub(crate) fn outcome_of(&self, at: u32) -> Option<Outcome> {
        self.driver.ended(at).map(|ended| ended.outcome)
    }

    /// So many lookups are begun, and abandoned before they have ended.
    pub(crate) fn begin_and_abandon(&mut self, count: u64) {
        let now = self.world.now_ns.get();
        let limits = self.driver.limits(now);
        for token in 0..count {
            let owner = Owner::Token(token);
            let begun = self.driver.get(KEY, now, limits, Purpose::Use, owner);
            begun.expect_err("nothing is mapped");
        }
        for token in 0..count {
            self.driver.abandon(token);
        }
    }

    /// A SET that two have acknowledged.
    #[track_caller]
    pub(crate) fn set(&mut self, key: &[u8]) {
        self.begin_set_of(key);
        self.pass(1);
        self.is_stored();
    }

    #[track_caller]
    pub(crate) fn is_stored(&mut self) {
        let outcome = self.outcome();
        let is_stored = matches!(
            outcome,
            Some(Outcome::Mutated(MutationOutcome::Stored { .. }))
        );
        assert!(is_stored, "{outcome:?}");
        self.driver.release(self.at);
    }

    /// The cell gets another size: each of its backends is another process.
    pub(crate) fn is_resized(&mut self) {
        let (mode, count) = (self.driver.topology().mode(), self.world.backends.len());
        assert_eq!(mode, trefoil_client_core::mode::Mode::R32);
        let config_id = self.driver.topology().id().config_id + 1;
        let resized = topology(Mode::R32, count as u32, config_id);
        self.driver.adopt(resized);
    }

    /// Operations that have a place.
    pub(crate) fn under_way(&self) -> usize {
        self.driver.in_flight()
    }

    /// Backends that are away are tried again.
    pub(crate) fn tend(&mut self) {
        self.driver.tend();
    }

    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        self.driver.topology().hash(key)
    }

    /// What was told of since the last call.
    pub(crate) fn told(&self) -> Vec<KeyHash> {
        self.world.suspects.take().concat()
    }

    /// In how many milliseconds there is something to do.
    pub(crate) fn next_work_ms(&mut self) -> u64 {
        let next = self.driver.next_work_ns();
        next.saturating_sub(self.world.now_ns.get()).div_ceil(MS)
    }

    pub(crate) fn pass(&mut self, ms: u64) {
        for _ in 0..ms {
            let now_ns = self.world.now_ns.get() + MS;
            self.world.now_ns.set(now_ns);
            for backend in &self.world.backends {
                backend.renews_lease(now_ns);
            }
            self.driver.turn_for(self.at);
        }
    }

    /// Nobody uses the client for so long.
    pub(crate) fn rests(&mut self, ms: u64) {
        let now_ns = self.world.now_ns.get() + ms * MS;
        self.world.now_ns.set(now_ns);
    }

    /// The client's process does not run for so long.
    pub(crate) fn pauses(&mut self, ms: u64) {
        let now_ns = self.world.now_ns.get() + ms * MS;
        self.world.now_ns.set(now_ns);
        self.world.running_since_ns.set(now_ns);
        self.driver.turn_for(self.at);
    }

    /// It has ended, and its place is free.
    pub(crate) fn release(&mut self) {
        self.driver.release(self.at);
    }

    pub(crate) fn outcome(&self) -> Option<Outcome> {
        self.outcome_of(self.at)
    }

    pub(crate) fn carrier(&self, number: usize) -> CarrierInUse {
        self.driver.carriers()[number].carrier
    }
}

pub(crate) const KEY: &[u8] = b"key";

fn control_region() -> Mapping {
    let region = Mapping::heap(control::CONTROL_LEN as u64);
    let shape = ControlShape {
        partition_count: 1,
        shard_count: 1,
        incarnation: 1,
    };
    control::initialise(&region.words(), shape, 1);
    region
}

fn topology(mode: Mode, count: u32, config_id: u32) -> Arc<Topology> {
    Arc::new(Topology::new(Arc::new(config(mode, count, config_id))))
}

fn config(mode: Mode, count: u32, config_id: u32) -> CellConfig {
    let backend = |number| BackendConfig {
        number,
        addresses: vec![RpcAddress::Unix(format!("/nowhere/{config_id}").into())],
        fabric_socket: None,
        place: None,
    };
    CellConfig {
        life: 1,
        config_id,
        cell: "test".to_owned(),
        mode,
        backends: (0..count).map(backend).collect(),
        hash: KeyHasher::default(),
        value_len_max: 16 << 20,
        eviction: "lru".to_owned(),
        flush_floor: Version::ZERO,
        corpus: None,
    }
}

impl Backend {
    fn is_leaving(&self) -> bool {
        let left = self.leaving_greetings.get();
        self.leaving_greetings.set(left.saturating_sub(1));
        left > 0
    }

    /// Its answer to a lookup, and its data entry.
    fn found(&self, on: &mut impl FnMut(Found<'_>)) {
        let Some(time_ns) = self.holds.get() else {
            return on(Found::Absent);
        };
        let version = Version::new(time_ns, 1, 0);
        let entry = DataEntry {
            key: KEY,
            value: b"value",
            ..DataEntry::default()
        };
        let mut data = vec![0; entry.encoded_len()];
        entry.encode(&mut data, KeyHasher::default().hash(KEY).tag, version);
        on(Found::Present {
            version,
            data: &data,
        });
    }
}

fn agreement(topology: &Topology, backend: u32, is_leaving: bool) -> Agreement {
    let id = topology.id();
    Agreement {
        backend,
        incarnation: 1,
        hasher: topology.hasher(),
        partition_count: 1,
        sub_count: 1,
        layout_version: LAYOUT_VERSION,
        topology: match is_leaving {
            true => TopologyId {
                config_id: CONFIG_ID_CHANGING,
                ..id
            },
            false => id,
        },
    }
}

impl Clock for TestHost {
    fn coarse_ns(&self) -> u64 {
        self.0.now_ns.get()
    }

    fn monotonic_ns(&self) -> u64 {
        self.0.now_ns.get()
    }

    fn unix_ns(&self) -> u64 {
        self.0.now_ns.get()
    }

    fn coarse_unix_ms(&self) -> u64 {
        self.0.now_ns.get() / MS
    }
}

impl Host for TestHost {
    type Port = TestPort;

    fn random(&mut self) -> u64 {
        7
    }

    fn running_since_ns(&self) -> u64 {
        self.0.running_since_ns.get()
    }

    fn connect(&mut self, topology: &Arc<Topology>, backend: u32, _has_moved: bool) {
        let of = &self.0.backends[backend as usize];
        let result = match of.connects.get() {
            connects @ (Connects::Near | Connects::Mapped) => {
                let agreement = agreement(topology, backend, of.is_leaving());
                of.renews_lease(self.0.now_ns.get());
                Ok(TestPort {
                    of: Rc::clone(of),
                    life: Some(of.life.get()),
                    world: Rc::clone(&self.0),
                    agreement: Some(agreement),
                    view: (connects == Connects::Mapped).then(|| of.view(agreement)),
                })
            }
            Connects::Far => Err(NotConnected {
                why: "calls only".to_owned(),
                is_down: false,
                is_final: true,
            }),
            Connects::Down => Err(NotConnected::down("nobody listens")),
            Connects::Silent => return,
        };
        self.0.events.borrow_mut().push_back(Event::Connected {
            backend,
            topology: Arc::clone(topology),
            result,
        });
    }

    fn caller(&mut self, _: &Arc<Topology>, backend: u32) -> Result<TestPort, String> {
        Ok(TestPort {
            of: Rc::clone(&self.0.backends[backend as usize]),
            life: None,
            world: Rc::clone(&self.0),
            agreement: None,
            view: None,
        })
    }

    fn learn(&mut self) {
        self.0.learned.set(self.0.learned.get() + 1);
        let nothing = Event::Learned(Err("nobody knows".to_owned()));
        self.0.events.borrow_mut().push_back(nothing);
    }

    fn next_event(&mut self) -> Option<Event<TestPort>> {
        self.0.events.borrow_mut().pop_front()
    }

    fn degraded(&mut self, _: u32, _: &str) {}

    fn suspect(&mut self, _: &Arc<Topology>, keys: &[KeyHash]) {
        self.0.suspects.borrow_mut().push(keys.to_vec());
    }
}

impl Port for TestPort {
    fn view(&self) -> Option<&Arc<RegionView>> {
        self.view.as_ref()
    }

    fn agreement(&self) -> Option<&Agreement> {
        self.agreement.as_ref()
    }

    fn has_messages(&self) -> bool {
        true
    }

    fn is_indirect(&self) -> bool {
        self.life.is_some() && self.of.is_indirect.get()
    }

    fn answer_ns(&self) -> u64 {
        self.of.takes_ms.get() * MS
    }

    fn backlog_ns(&self) -> u64 {
        0
    }

    fn prefers_votes(&self) -> bool {
        false
    }

    fn submit_index(&mut self, _: Token, _: usize, _: KeyHash) -> Progress<IndexVote> {
        match &self.view {
            Some(_) => Progress::Done(IndexVote::Absent { epoch: 1 }),
            None => Progress::Refused,
        }
    }

    fn submit_data(
        &mut self,
        _: Token,
        _: Pointer,
        _: &mut WordBuffer,
    ) -> Progress<Result<(), OutOfWindow>> {
        Progress::Refused
    }

    fn send(
        &mut self,
        token: Token,
        _: TopologyId,
        request: &Request<'_>,
    ) -> Result<(), SendError> {
        if self.is_closed() {
            return Err(SendError::Closed);
        }
        if self.of.is_full.get() {
            return Err(SendError::Full);
        }
        if self.life.is_some() && self.of.has_short_rings.get() {
            return Err(SendError::TooLarge);
        }
        if self.life.is_none() {
            self.of.called.set(self.of.called.get() + 1);
        }
        let is_lookup = matches!(request, Request::Lookup { .. });
        self.of
            .asked
            .set(self.of.asked.get() + u64::from(is_lookup));
        let at_ns = self.world.now_ns.get() + self.of.takes_ms.get() * MS;
        self.of
            .owes
            .borrow_mut()
            .push_back((token, is_lookup, at_ns));
        Ok(())
    }

    fn ask(
        &mut self,
        token: Token,
        under: TopologyId,
        request: &Request<'_>,
        until_ns: u64,
    ) -> Result<(), SendError> {
        let ends_ns = until_ns.max(self.world.now_ns.get() + OWED_NS_MIN);
        self.send(token, under, request)?;
        (self.of.questions.borrow_mut()).push_back((token, ends_ns));
        Ok(())
    }

    fn touch(&mut self, _: usize, _: TouchBatch<'_>) {}

    fn others_have_moved(&mut self) -> bool {
        self.of.answers_others.get()
    }

    fn len_under_way(&self) -> u64 {
        self.of.len_under_way.get()
    }

    fn give_up(&mut self) {
        self.of.is_given_up.set(true);
    }

    fn poll(&mut self, mut on: impl FnMut(Completion<'_>)) -> Result<usize, Closed> {
        if self.is_closed() {
            return Err(Closed::LOST);
        }
        let mut count = 0;
        let now_ns = self.world.now_ns.get();
        let is_over = |question: &mut (Token, u64)| question.1 <= now_ns;
        loop {
            let over = self.of.questions.borrow_mut().pop_front_if(is_over);
            let Some((token, ends_ns)) = over else {
                break;
            };
            let is_quiet = self.of.is_quiet.get();
            let is_late = |owed: &(Token, bool, u64)| is_quiet || owed.2 > ends_ns;
            let mut owes = self.of.owes.borrow_mut();
            let place = owes.iter().position(|owed| owed.0 == token);
            if let Some(at) = place.filter(|&at| is_late(&owes[at])) {
                owes.remove(at);
                drop(owes);
                count += 1;
                on(Completion::Expired(token));
            }
        }
        if self.of.is_quiet.get() {
            return Ok(count);
        }
        let due = |owed: &mut (Token, bool, u64)| owed.2 <= now_ns;
        loop {
            let owed = self.of.owes.borrow_mut().pop_front_if(due);
            let Some((token, is_lookup, _)) = owed else {
                break;
            };
            count += 1;
            self.of
                .questions
                .borrow_mut()
                .retain(|asked| asked.0 != token);
            let epoch = 1;
            if self.is_indirect() && self.of.is_refused.get() {
                let refused = Answer::Error(ErrorCode::TooLarge);
                on(Completion::Answer(token, refused));
            } else if self.of.is_away.get() {
                on(Completion::NoAnswer(token, SendFailure::NotSent, "away"));
            } else if self.of.is_ending.get() {
                on(Completion::NoAnswer(token, SendFailure::Moving, "it ends"));
            } else if is_lookup {
                self.of.found(&mut |found| {
                    let answer = LookupAnswer { epoch, found };
                    on(Completion::Answer(token, Answer::Lookup(answer)));
                });
            } else {
                let outcome = self.of.answers.get();
                let ack = Ack { epoch, outcome };
                on(Completion::Answer(token, Answer::Ack(ack)));
            }
        }
        Ok(count)
    }

    fn is_ready(&self) -> bool {
        let owes = self.of.owes.borrow();
        let now_ns = self.world.now_ns.get();
        let is_due = owes.front().is_some_and(|(_, _, at_ns)| *at_ns <= now_ns);
        let questions = self.of.questions.borrow();
        let is_over = questions.front().is_some_and(|(_, at_ns)| *at_ns <= now_ns);
        self.is_closed() || is_over || is_due && !self.of.is_quiet.get()
    }

    fn arm(&self) {}

    fn disarm(&self) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}
