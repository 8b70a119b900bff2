//! One backend process: a store as production makes it, the configuration it
//! serves, the rings of its clients. What `trefoil-backend` does around a store,
//! without threads and sockets.

use super::moves::{Giving, Taking};
use super::net::{BEGIN_UNIX_NS, Call, Errand, LEASE_NS, Net};
use super::port::Ring;
use super::recovery::Recoveries;
use super::resize::{Gatherer, Part};
use super::stats::Count;
use std::cell::{Cell, RefCell};
use std::cmp::Ordering;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use trefoil_cell::{CONFIG_ID_CHANGING, RpcAddress};
use trefoil_client_core::clock::VersionClock;
use trefoil_client_core::outcome::SendFailure;
use trefoil_driver::Topology;
use trefoil_fabric::{Agreement, AnswerSink, RegionView};
use trefoil_layout::data::DataEntry;
use trefoil_layout::message::{
    Answer, ErrorCode, Request, TOUCH_COUNT_MAX, parse_answer, parse_request,
};
use trefoil_layout::op::{Ack, Action, Found, LookupAnswer, Mutation, Outcome, Rejection};
use trefoil_layout::{KeyHash, ShardMap, TopologyId, control, epoch};
use trefoil_region::WordBuffer;
use trefoil_store::{Now, Regions, Store, StoreConfig};

/// How often a backend tends its store.
const TEND_NS: u64 = 40_000_000;
/// Steps of an index's reshaping that it takes then, at most.
const STEPS_MAX: u64 = 6;
/// Requests of one client that a backend executes before it looks at the next.
const BATCH: usize = 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Running,
    /// By a signal: it does nothing, and its sockets still take connections.
    Stopped,
    /// Its memory stays readable for those who have mapped it.
    Dead,
}

/// See the module.
pub(super) struct Process {
    pub(super) number: u32,
    /// Where it listens.
    pub(super) address: RpcAddress,
    /// One that is to be a backend listens to nobody yet, one that has retired no more.
    pub(super) listens: Cell<bool>,
    /// Others are the backends now.
    pub(super) has_retired: Cell<bool>,
    pub(super) store: Store,
    pub(super) state: Cell<State>,
    pub(super) life: u64,
    pub(super) config_id: Cell<u32>,
    /// The configuration that it serves.
    topology: RefCell<Arc<Topology>>,
    agreement: Agreement,
    skew_ns: Cell<i64>,
    pub(super) lease_end_ns: Cell<u64>,
    rings: RefCell<Vec<Weak<Ring>>>,
    is_polling: Cell<bool>,
    is_behind: Cell<bool>,
    parked: RefCell<Vec<Call>>,
    filler_clock: RefCell<VersionClock>,
    pub(super) recoveries: Recoveries,
    pub(super) giving: RefCell<Option<Giving>>,
    pub(super) taking: RefCell<Option<Taking>>,
    pub(super) part: RefCell<Option<Part>>,
    pub(super) gathering: RefCell<Option<Gatherer>>,
    message: RefCell<WordBuffer>,
    scratch: RefCell<WordBuffer>,
}

impl Process {
    /// Starts a backend of the cell, empty, in its `count`th incarnation of the
    /// cell's life.
    pub(super) fn start(net: &Net, topology: &Arc<Topology>, number: u32, count: u32) -> Rc<Self> {
        let process = Self::make(net, topology, number, count, count > 1);
        if !process.recoveries.are_over() {
            let errand = Errand::Recover(Rc::clone(&process));
            net.send(net.takes(1_000_000), errand);
        }
        process.renew(net);
        net.trace(None, || {
            format!(
                "backend {number} starts, life {:x}, config {}, incarnation {count}",
                process.life,
                process.config_id.get()
            )
        });
        net.send(net.rng.below(TEND_NS), Errand::Tend(Rc::clone(&process)));
        process
    }

    /// Starts one that is to take a backend's place: it serves nobody yet.
    pub(super) fn start_successor(
        net: &Net,
        topology: &Arc<Topology>,
        number: u32,
        count: u32,
    ) -> Rc<Self> {
        let process = Self::make(net, topology, number, count, false);
        let shards = 0..process.store.shard_count();
        shards.for_each(|shard| process.store.set_recovering(shard, true));
        net.trace(None, || format!("backend {number} begins to move"));
        net.send(net.rng.below(TEND_NS), Errand::Tend(Rc::clone(&process)));
        process
    }

    /// Starts one that is to be a backend of a cell of another size.
    pub(super) fn start_joiner(
        net: &Net,
        topology: &Arc<Topology>,
        number: u32,
        gatherer: Gatherer,
    ) -> Rc<Self> {
        let process = Self::make(net, topology, number, 1, false);
        let shards = 0..process.store.shard_count();
        shards.for_each(|shard| process.store.set_recovering(shard, true));
        process.listens.set(false);
        *process.gathering.borrow_mut() = Some(gatherer);
        net.send(net.rng.below(TEND_NS), Errand::Tend(Rc::clone(&process)));
        process
    }

    fn make(
        net: &Net,
        topology: &Arc<Topology>,
        number: u32,
        count: u32,
        is_later: bool,
    ) -> Rc<Self> {
        let profile = &net.profile;
        let config = topology.config();
        let shards = ShardMap::new(*topology.placement(), number);
        let incarnation = net.incarnations.get() + 1;
        net.incarnations.set(incarnation);
        let partition_count = profile.partitions * shards.shard_count();
        let store_config = StoreConfig {
            partition_count,
            shards,
            config_id: config.config_id,
            epoch: match is_later || count == 1 {
                true => epoch::of_incarnation(count, number).expect("few incarnations"),
                // Its predecessor's, once it is copied.
                false => epoch::FIRST,
            },
            incarnation,
            hasher: config.hash,
            memory_limit: profile.memory_max,
            value_len_max: config.value_len_max as usize,
            tombstone_count_max: profile.tombstones,
            flush_floor: config.flush_floor,
            ..StoreConfig::default()
        };
        let regions = Regions::heap_of_pages(profile.memory_max);
        let store = Store::new(store_config, regions).expect("memory for an empty store");
        let has_lost = is_later && shards.shard_count() > 1;
        if has_lost {
            (0..shards.shard_count()).for_each(|shard| store.set_recovering(shard, true));
        }
        let agreement = Agreement {
            backend: number,
            incarnation,
            hasher: config.hash,
            partition_count,
            sub_count: profile.partitions,
            layout_version: trefoil_layout::limits::LAYOUT_VERSION,
            topology: topology.id(),
        };
        let place = config.backend(number).expect("a backend of the cell");
        Rc::new(Process {
            number,
            address: place.addresses[0].clone(),
            listens: Cell::new(true),
            has_retired: Cell::new(false),
            store,
            state: Cell::new(State::Running),
            life: config.life,
            config_id: Cell::new(config.config_id),
            topology: RefCell::new(Arc::clone(topology)),
            agreement,
            skew_ns: Cell::new(net.skew()),
            lease_end_ns: Cell::new(0),
            rings: RefCell::default(),
            is_polling: Cell::new(false),
            is_behind: Cell::new(false),
            parked: RefCell::default(),
            filler_clock: RefCell::new(VersionClock::new(incarnation)),
            recoveries: Recoveries::new(has_lost),
            giving: RefCell::default(),
            taking: RefCell::default(),
            part: RefCell::default(),
            gathering: RefCell::default(),
            message: RefCell::default(),
            scratch: RefCell::default(),
        })
    }

    /// Which memory it is.
    pub(super) fn incarnation(&self) -> u64 {
        self.agreement.incarnation
    }

    /// The configuration that it serves.
    pub(super) fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology.borrow())
    }

    /// Whether it serves as its backend; one that is to take a place does not yet.
    fn is_backend(&self) -> bool {
        self.taking.borrow().is_none()
            && self.gathering.borrow().is_none()
            && !self.has_retired.get()
    }

    fn is_running(&self) -> bool {
        self.state.get() == State::Running
    }

    pub(super) fn now(&self, net: &Net) -> Now {
        let unix_ns = BEGIN_UNIX_NS + net.now_ns.get();
        Now::at(unix_ns.saturating_add_signed(self.skew_ns.get()))
    }

    /// From now on its time is at least that of one whose place it is to take.
    pub(super) fn follow_time_of(&self, old: &Process) {
        self.skew_ns.set(self.skew_ns.get().max(old.skew_ns.get()));
    }

    pub(super) fn renew(&self, net: &Net) {
        if self.is_running() && self.is_backend() {
            self.set_lease(net.now_ns.get() + LEASE_NS);
        }
    }

    fn set_lease(&self, end_ns: u64) {
        self.lease_end_ns.set(end_ns);
        control::set_lease_end_ns(&self.store.regions().control.words(), end_ns);
    }

    /// What a client that maps the memory sees.
    pub(super) fn view(&self) -> RegionView {
        let regions = self.store.regions();
        // A process greets with the configuration that it serves by then.
        let topology = TopologyId {
            life: self.life,
            config_id: self.config_id.get(),
        };
        RegionView::new(
            Agreement {
                topology,
                ..self.agreement
            },
            regions.control.mapping(),
            regions.index.mapping(),
            regions.data.mapping(),
        )
    }

    /// Partition of a key in whose cohort this backend has place `place`.
    pub(super) fn partition(&self, place: usize, hash: KeyHash) -> usize {
        self.agreement.partition(place, hash)
    }

    pub(super) fn attach(&self, ring: &Rc<Ring>) {
        self.rings.borrow_mut().push(Rc::downgrade(ring));
    }

    /// Something was put into a ring.
    pub(super) fn ring(self: &Rc<Self>, net: &Net) {
        if !self.is_polling.replace(true) {
            let after = net.takes(5_000);
            net.send(after, Errand::Poll(Rc::clone(self)));
        }
    }

    /// Executes what the rings hold.
    pub(super) fn poll(self: &Rc<Self>, net: &Net) {
        self.is_polling.set(false);
        if !self.is_running() {
            return;
        }
        self.rings
            .borrow_mut()
            .retain(|ring| ring.strong_count() > 0);
        let rings: Vec<Rc<Ring>> = self
            .rings
            .borrow()
            .iter()
            .filter_map(Weak::upgrade)
            .collect();
        let mut has_more = false;
        for ring in rings {
            for _ in 0..BATCH {
                let Some(bytes) = ring.next_request() else {
                    break;
                };
                self.execute_from(net, &ring, &bytes);
            }
            has_more |= ring.has_request();
        }
        if has_more {
            self.ring(net);
        }
    }

    fn execute_from(&self, net: &Net, ring: &Rc<Ring>, bytes: &[u8]) {
        let head = parse_request(bytes).expect("a client encodes well").0;
        let under = TopologyId {
            life: self.life,
            config_id: head.config_id,
        };
        let max = net.profile.message_len_max;
        if let Some(answer) = self.execute(net, under, bytes, max) {
            ring.put_answer(net, answer);
        }
    }

    /// Executes one request, by the rules of a backend's member.
    fn execute(
        &self,
        net: &Net,
        under: TopologyId,
        bytes: &[u8],
        len_max: usize,
    ) -> Option<Vec<u8>> {
        let (head, request) = parse_request(bytes).expect("a client encodes well");
        let (mut message, mut scratch) = (self.message.borrow_mut(), self.scratch.borrow_mut());
        let mut sink = AnswerSink::new(head.id, &mut message, &mut scratch);
        let refusal = self.check(net, under).err();
        let now = self.now(net);
        match request {
            Request::Mutate(mutation) => {
                let ack = match refusal {
                    Some(rejection) => Ack {
                        epoch: epoch::NONE,
                        outcome: Outcome::Rejected(rejection),
                    },
                    None => self.store.mutate(now, &mutation),
                };
                net.trace(None, || {
                    format!(
                        "backend {} executes {:?} {:?} of \"{}\": {:?} in epoch {}",
                        self.number,
                        mutation.action,
                        mutation.version,
                        String::from_utf8_lossy(mutation.entry.key),
                        ack.outcome,
                        ack.epoch
                    )
                });
                sink.ack(ack);
            }
            Request::Lookup { key } => sink.lookup(|into| match refusal {
                Some(rejection) => LookupAnswer {
                    epoch: epoch::NONE,
                    found: Found::Rejected(rejection),
                },
                None => self.store.lookup(now, key, into),
            }),
            Request::Touch {
                partition,
                window_id,
                slots,
                names,
            } => {
                let mut numbers = [0; TOUCH_COUNT_MAX];
                let partition = usize::from(partition);
                let slots = slots.copy_to(&mut numbers);
                self.store.touch(partition, window_id, slots);
                let mut room = [0; TOUCH_COUNT_MAX];
                let names = names.copy_to(&mut numbers);
                let slots = self.store.slots_of(partition, window_id, names, &mut room);
                self.store.touch(partition, window_id, slots);
            }
            Request::Use { key } => {
                let found = match refusal {
                    Some(_) => None,
                    None => self.store.item_use(now, key),
                };
                sink.item_use(found);
            }
            Request::Ping => sink.pong(),
        }
        if !sink.is_answered() {
            return None;
        }
        let answer = message.bytes();
        if answer.len() > len_max {
            let answer = Answer::Error(ErrorCode::TooLarge);
            let mut bytes = vec![0; answer.encoded_len()];
            answer.encode(head.id, &mut bytes);
            return Some(bytes);
        }
        debug_assert!(parse_answer(answer).is_ok());
        Some(answer.to_vec())
    }

    fn check(&self, net: &Net, under: TopologyId) -> Result<(), Rejection> {
        if under.life != self.life {
            return Err(Rejection::OtherLife);
        }
        if self.config_id.get() == CONFIG_ID_CHANGING {
            return Err(Rejection::UnknownConfig);
        }
        match under.config_id.cmp(&self.config_id.get()) {
            Ordering::Less => Err(Rejection::StaleConfig),
            Ordering::Greater => {
                net.wake_catch_up(self);
                Err(Rejection::UnknownConfig)
            }
            Ordering::Equal => Ok(()),
        }
    }

    /// Serves the configuration in force, if a flush has changed it, or somebody else's
    /// place; ends, if the cell has another size or its own place is another's.
    pub(super) fn catch_up(self: &Rc<Self>, net: &Net) {
        self.is_behind.set(false);
        let fresh = Arc::clone(&net.published.borrow());
        if !self.is_running() || fresh.id().life != self.life {
            return;
        }
        let is_resized = *fresh.placement() != self.store.config().shards.placement();
        let place = fresh.config().backend(self.number);
        let has_place = place.is_some_and(|place| place.addresses[0] == self.address);
        match is_resized || !has_place {
            true if self.is_backend() => self.heed_resize(net),
            true => {}
            false => self.adopt(net, &fresh),
        }
    }

    pub(super) fn adopt(&self, net: &Net, fresh: &Arc<Topology>) {
        let id = fresh.id();
        if id.life != self.life || id.config_id <= self.config_id.get() {
            return;
        }
        *self.topology.borrow_mut() = Arc::clone(fresh);
        self.store.raise_flush_floor(fresh.flush_floor());
        self.config_id.set(id.config_id);
        self.store.set_config_id(id.config_id);
        net.trace(None, || {
            format!("backend {} serves config {}", self.number, id.config_id)
        });
    }

    /// A call's message has arrived.
    pub(super) fn take_call(&self, net: &Net, call: Call) {
        match self.state.get() {
            State::Running => self.execute_call(net, &call),
            State::Stopped => self.parked.borrow_mut().push(call),
            State::Dead => {
                let end = Err((SendFailure::Lost, "the backend has ended"));
                if !call.is_copy {
                    call.calls.end_after(net, call.token, end);
                }
            }
        }
    }

    fn execute_call(&self, net: &Net, call: &Call) {
        let answer = self.execute(net, call.under, &call.bytes, usize::MAX);
        if call.is_copy {
            return;
        }
        let lost = net.is_struck(net.profile.call_failure);
        let end = match answer {
            Some(answer) if !lost => Ok(answer),
            _ => Err((SendFailure::Lost, "the connection broke")),
        };
        call.calls.end_after(net, call.token, end);
    }

    /// What happens here beside a client's read.
    pub(super) fn disturb(self: &Rc<Self>, net: &Net) {
        if !self.is_running() {
            return;
        }
        net.stats.add(Count::Interleaved);
        if self.is_polling.get() && net.rng.chance(512) {
            // Its errand finds less to do.
            return self.poll(net);
        }
        match net.rng.index(3) {
            0 => {
                let partition = net.rng.index(self.store.partition_count());
                self.store.reshape_one_step(partition);
            }
            1 => self.maintain(net),
            _ => self.fill_one(net),
        }
    }

    /// Tends the store, and writes what fills it.
    pub(super) fn tend(self: &Rc<Self>, net: &Net) {
        if self.state.get() == State::Dead {
            return;
        }
        if self.is_running() {
            self.look_at_giving(net);
            self.look_at_part(net);
            self.maintain(net);
            if self.is_backend() && !net.is_idle.get() && net.is_struck(net.profile.filler) {
                for _ in 0..net.profile.burst {
                    self.fill_one(net);
                }
            }
        }
        // Where nothing is written any more there is hardly anything to tend.
        let interval = match net.is_calm.get() {
            true => 4 * TEND_NS,
            false => TEND_NS,
        };
        let after = interval / 2 + net.rng.below(interval);
        net.send(after, Errand::Tend(Rc::clone(self)));
    }

    /// A few steps of what the indexes need, or, where they need nothing, of the rest:
    /// production takes all steps, with others between them.
    fn maintain(&self, net: &Net) {
        let step_count = 1 + net.rng.below(STEPS_MAX);
        let mut is_at_rest = true;
        for partition in 0..self.store.partition_count() {
            for _ in 0..step_count {
                if !self.store.reshape_one_step(partition) {
                    break;
                }
                is_at_rest = false;
            }
        }
        if is_at_rest {
            self.store.maintain(self.now(net));
        }
    }

    /// Writes a key that nobody watches, at this backend alone.
    fn fill_one(&self, net: &Net) {
        if net.is_calm.get() {
            return;
        }
        let number = net.rng.below(net.profile.filler_keys);
        let len = net.rng.index(net.profile.filler_len + 1);
        self.write_filler(net, number, len);
    }

    fn write_filler(&self, net: &Net, number: u64, len: usize) {
        static VALUE: [u8; 1_500] = [0; 1_500];
        let now = self.now(net);
        let mut clock = self.filler_clock.borrow_mut();
        let version = clock.next(now.unix_ns).expect("few fillers");
        let key = format!("filler-{number}");
        let mutation = Mutation {
            action: Action::Set,
            version,
            entry: DataEntry {
                key: key.as_bytes(),
                value: &VALUE[..len],
                ..DataEntry::default()
            },
        };
        self.store.mutate(now, &mutation);
    }

    /// Fills the memory, or puts so much there: as a cell is found that has served
    /// for a while.
    pub(super) fn fill(&self, net: &Net) {
        let len = net.profile.filler_len;
        for number in 0..net.profile.fillers_first {
            self.write_filler(net, number, len);
        }
        if !net.profile.is_full {
            return;
        }
        for number in 0.. {
            self.write_filler(net, number, len);
            if number % 16 == 0 && self.store.stats().counts.evicted_capacity > 0 {
                return;
            }
        }
    }

    /// Stops it as a signal does.
    pub(super) fn stop(&self, net: &Net) {
        if self.is_running() {
            self.state.set(State::Stopped);
            net.trace(None, || format!("backend {} is stopped", self.number));
        }
    }

    /// Lets it go on.
    pub(super) fn go_on(self: &Rc<Self>, net: &Net) {
        if self.state.get() != State::Stopped {
            return;
        }
        self.state.set(State::Running);
        net.trace(None, || format!("backend {} goes on", self.number));
        // Whoever is first: the thread that renews the lease, or that of the rings.
        if net.rng.chance(512) {
            self.renew(net);
        }
        self.ring(net);
        for call in self.parked.take() {
            self.execute_call(net, &call);
        }
        net.send(net.rng.below(30_000_000), Errand::CatchUp(Rc::clone(self)));
    }

    /// Ends it: killed, or by its own will with its memory poisoned.
    pub(super) fn end(&self, net: &Net, is_clean: bool) {
        if self.state.get() == State::Dead {
            return;
        }
        net.trace(None, || {
            let how = if is_clean { "ends" } else { "is killed" };
            format!("backend {} {how}", self.number)
        });
        self.state.set(State::Dead);
        if is_clean {
            self.store.revoke();
            self.lease_end_ns.set(0);
        }
        for call in self.parked.take() {
            let end = Err((SendFailure::Lost, "the backend has ended"));
            if !call.is_copy {
                call.calls.end_after(net, call.token, end);
            }
        }
        self.disconnect(net, is_clean);
    }

    /// Every client finds its connection closed.
    pub(super) fn disconnect(&self, net: &Net, is_clean: bool) {
        for ring in self.rings.take().iter().filter_map(Weak::upgrade) {
            ring.close(net, is_clean);
        }
    }

    pub(super) fn begin_behind(&self) -> bool {
        !self.is_behind.replace(true)
    }
}

impl Net {
    /// How far a process's wall clock is off.
    pub(super) fn skew(&self) -> i64 {
        let skew = self.profile.skew_ns;
        if skew == 0 {
            return 0;
        }
        self.rng.below(2 * skew) as i64 - skew as i64
    }

    fn wake_catch_up(&self, process: &Process) {
        if process.begin_behind() {
            let is_it = |found: &Rc<Process>| std::ptr::eq(&**found, process);
            if let Some(found) = self.everybody().into_iter().find(is_it) {
                self.send(self.takes(5_000_000), Errand::CatchUp(found));
            }
        }
    }
}
