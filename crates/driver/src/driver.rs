//! The driver: one client's links, and the operations under way on them.
//!
//! # Calling order
//!
//! ```text
//! submit_*                    begins an operation; nothing waits
//! turn                        goes on with everything that can go on
//! next_done / hand_out        what has ended
//! ports, next_deadline_ns     what to sleep on, and until when at most
//! ```
//!
//! A caller that waits for one operation (`Owner::Waiter`) turns and sleeps until
//! it has ended. Nothing here blocks, and no time passes but by the host's clocks.

use crate::host::{Clock, Host};
use crate::inline::{self, OneSided};
use crate::link::Link;
use crate::op::{GetMachine, Item, Machine, Message, Op, Outcome, Owed, Owner, suit, waits};
use crate::options::Options;
use crate::room::{Waiter, Way};
use crate::slab::Slab;
use crate::step::Flow;
use crate::suspects::Suspects;
use crate::topology::Topology;
use crate::uses::ItemRead;
use crate::versions::Versions;
use std::sync::Arc;
use trefoil_cell::Cohort;
use trefoil_client_core::cas::Cas;
use trefoil_client_core::data::DataCheck;
use trefoil_client_core::fill::{FillTicket, OtherKey};
use trefoil_client_core::get::{Get, GetOutcome, GetStep, Plan, Strategy};
use trefoil_client_core::mode::{Mode, REPLICAS_MAX};
use trefoil_client_core::mutate::Mutate;
use trefoil_client_core::outcome::SendFailure;
use trefoil_client_core::retry::{Limits, RetryCounts};
use trefoil_fabric::RegionView;
use trefoil_fabric::port::{Port, SendError};
use trefoil_layout::copied;
use trefoil_layout::op::Action;
use trefoil_layout::{KeyHash, Version};
use trefoil_region::WordBuffer;

/// How many lookups begin at the same replica before the next one's turn: its memory
/// stays in the cache for a while.
const PREFERRED_TURN: u64 = 64;
/// What a client has counted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    /// Lookups that returned a value.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Of the misses, those without a quorum.
    pub inquorate: u64,
    /// Operations without a result.
    pub failed: u64,
    /// Mutations whose outcome is unknown.
    pub indeterminate: u64,
    /// Retries of lookups, by cause.
    pub get_retries: RetryCounts,
    /// Retries of mutations, by cause.
    pub mutation_retries: RetryCounts,
    /// Operations that retried at all: one that waits for a backend on its way to another
    /// process asks a few times.
    pub retried: u64,
}

impl Counters {
    /// A lookup has ended.
    pub(crate) fn lookup_retried(&mut self, retries: &RetryCounts) {
        self.get_retries.merge(retries);
        self.retried += u64::from(retries.total() > 0);
    }

    /// A mutation has ended.
    pub(crate) fn mutation_retried(&mut self, retries: &RetryCounts) {
        self.mutation_retries.merge(retries);
        self.retried += u64::from(retries.total() > 0);
    }
}

/// Which replica is asked first.
#[derive(Debug)]
pub struct Turns {
    /// Always this one.
    preferred: Option<usize>,
    /// Lookups so far, and the client's own start.
    count: u64,
}

impl Turns {
    /// For client number `number` of its process.
    pub fn new(preferred: Option<usize>, number: usize) -> Self {
        Turns {
            preferred,
            count: number as u64 * PREFERRED_TURN,
        }
    }

    /// Whether any may be first.
    pub(crate) fn are_free(&self) -> bool {
        self.preferred.is_none()
    }

    /// The place in a cohort of `copies` that is asked first.
    #[inline(always)]
    pub fn next(&mut self, copies: usize) -> usize {
        if copies == 1 {
            return 0;
        }
        if let Some(preferred) = self.preferred {
            return preferred % copies;
        }
        self.count += 1;
        (self.count / PREFERRED_TURN % copies as u64) as usize
    }
}

/// See the module.
pub struct Driver<H: Host> {
    pub(crate) host: H,
    pub(crate) topology: Arc<Topology>,
    /// How many topologies there were whose keys stood elsewhere.
    pub(crate) topology_count: u64,
    /// The count from which on the replicas of a key were the same, in whatever process.
    pub(crate) replicas_since: u64,
    /// The config id under which keys began to stand where they do, as far as is known: a
    /// backend that serves an older one is of the cell as it was before it was resized.
    pub(crate) placed_since: u32,
    /// Connections to backends that serve a later configuration than is known here, of
    /// which topology, and how often that was asked for since.
    pub(crate) early: Vec<(u32, Arc<Topology>, H::Port, u32)>,
    pub(crate) options: Options,
    pub(crate) links: Vec<Link<H::Port>>,
    /// When a slow replica is asked again.
    pub(crate) probe_at_ns: u64,
    pub(crate) versions: Versions,
    pub(crate) counters: Counters,
    pub(crate) turns: Turns,
    pub(crate) slab: Slab,
    pub(crate) is_learning: bool,
    pub(crate) learn_again_ns: u64,
    /// Raised with everything that readers of other threads should know: views,
    /// topology.
    pub(crate) view_count: u64,
    pub(crate) looks_at_all: bool,
    /// No operation that begins has a later deadline.
    latest_ns: u64,
    /// When backends that owe nothing are looked at next.
    pub(crate) idle_look_ns: u64,
    pub(crate) suspects: Suspects,
}

/// What a lookup is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// The item is used: the backends are told.
    Use,
    /// Nobody is told.
    Peek,
    /// Something is written on the strength of what is found. Nobody is told.
    Basis,
}

/// A lookup that has to wait, and the step at which it does.
struct Left<const N: usize> {
    hash: KeyHash,
    cohort: Cohort,
    get: Get<N>,
    step: GetStep,
}

/// A lookup that ended where it was begun.
#[derive(Clone, Copy, Debug)]
pub struct Inline {
    /// How.
    pub outcome: GetOutcome,
    /// The backend whose buffer holds a hit's data.
    pub backend: u32,
    /// Of the key.
    pub(crate) hash: KeyHash,
    /// Of a miss: what it has found expired or flushed, or zero.
    pub(crate) dead: Version,
}

/// Which SET or ERASE begins.
enum Form {
    /// At a version of its own.
    Fresh(Action),
    /// At a version of its own, with the stamps of the miss before it.
    Fill([Option<u64>; REPLICAS_MAX]),
    /// At a version that replicas may have already.
    Again(Action, Version),
}

impl<H: Host> Driver<H> {
    /// A driver of a client that is the `number`th of its process. Begins to connect
    /// to every backend.
    pub fn new(mut host: H, topology: Arc<Topology>, options: Options, number: usize) -> Self {
        let versions = Versions::new(host.random());
        let mut driver = Driver {
            host,
            topology,
            topology_count: 0,
            replicas_since: 0,
            placed_since: 0,
            early: Vec::new(),
            options,
            links: Vec::new(),
            versions,
            counters: Counters::default(),
            probe_at_ns: 0,
            turns: Turns::new(options.preferred, number),
            slab: Slab::default(),
            is_learning: false,
            learn_again_ns: 0,
            view_count: 0,
            looks_at_all: false,
            latest_ns: u64::MAX,
            idle_look_ns: 0,
            suspects: Suspects::default(),
        };
        driver.make_links();
        driver.connect_all();
        driver
    }

    pub(crate) fn make_links(&mut self) {
        let count = self.topology.config().backends.len() as u32;
        self.links = (0..count)
            .map(|number| Link::new(number, &self.options))
            .collect();
        self.view_count += 1;
    }

    pub(crate) fn connect_all(&mut self) {
        for link in &mut self.links {
            link.begin_connecting(&mut self.host, &self.topology);
        }
    }

    /// The world that it was made for.
    #[inline(always)]
    pub fn host_ref(&self) -> &H {
        &self.host
    }

    /// The same, to be changed.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }

    /// The cell, as this client knows it.
    #[inline(always)]
    pub fn topology(&self) -> &Arc<Topology> {
        &self.topology
    }

    /// The settings.
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Every backend, by number.
    #[inline(always)]
    pub fn links(&self) -> &[Link<H::Port>] {
        &self.links
    }

    /// What was counted.
    #[inline(always)]
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The same, to count more.
    #[inline(always)]
    pub fn counters_mut(&mut self) -> &mut Counters {
        &mut self.counters
    }

    /// The version that was issued last.
    pub fn last_version(&self) -> Version {
        self.versions.last()
    }

    /// Which replica is asked first.
    #[inline(always)]
    pub fn turns(&mut self) -> &mut Turns {
        &mut self.turns
    }

    /// Raised whenever a view or the topology has changed.
    #[inline(always)]
    pub fn view_count(&self) -> u64 {
        self.view_count
    }

    /// The versions that were issued and seen.
    #[inline(always)]
    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Issues a version.
    pub fn nominate(&mut self) -> Version {
        let now = self.host.unix_ns();
        self.versions.next(now, || self.host.random())
    }

    /// Issues a version above `bound`.
    pub fn nominate_above(&mut self, bound: Version) -> Version {
        let now = self.host.unix_ns();
        self.versions.next_above(bound, now, || self.host.random())
    }

    /// Takes note of a version, unless it is from too far in the future.
    #[inline(always)]
    pub fn observe_sanely(&mut self, version: Version) {
        self.versions
            .observe_sanely(version, || self.host.unix_ns());
    }

    /// What an operation that begins now may spend.
    #[inline(always)]
    pub fn limits(&self, now_ns: u64) -> Limits {
        Limits {
            deadline_ns: now_ns
                .saturating_add(u64::try_from(self.options.deadline.as_nanos()).unwrap_or(u64::MAX))
                .min(self.latest_ns),
            retries_max: self.options.retries_max,
        }
    }

    /// What begins from now on ends by this time on the monotonic clock, if its own
    /// deadline is later: for operations that have waited before they begin.
    /// `u64::MAX` for no such time. Returns what was so before.
    pub fn end_by(&mut self, latest_ns: u64) -> u64 {
        std::mem::replace(&mut self.latest_ns, latest_ns)
    }

    /// Begins to connect to backends that are to be tried again by now, though no
    /// operation asks for one.
    pub fn tend(&mut self) {
        let now = self.host.monotonic_ns();
        for link in &mut self.links {
            let by = (self.options.carrier, self.options.strategy);
            link.strategy(by, &mut self.host, &self.topology, now);
        }
    }

    /// Places of operations, used and free.
    pub fn places(&self) -> usize {
        self.slab.places()
    }

    /// How the replica at `place` is looked up now.
    #[inline]
    pub(crate) fn strategy(&mut self, cohort: Cohort, place: usize, now_ns: u64) -> Strategy {
        let number = cohort.as_slice()[place] as usize;
        match self.links.get_mut(number) {
            Some(link) => {
                let by = (self.options.carrier, self.options.strategy);
                link.strategy(by, &mut self.host, &self.topology, now_ns)
            }
            None => Strategy::Down,
        }
    }

    /// Who is asked, and how, as things stand.
    #[inline(always)]
    fn plan<const N: usize>(&mut self, cohort: Cohort, now_ns: u64) -> Plan<N> {
        let mut plan = Plan::frugal(self.turns.next(N));
        for place in 0..N {
            plan.strategies[place] = self.strategy(cohort, place, now_ns);
        }
        let order = match N > 1 && waits(&plan.strategies) {
            true => Some(self.order(cohort, now_ns)),
            false => None,
        };
        suit(&mut plan, order);
        plan
    }

    /// Looks a key up by one-sided reads, in place; an error is where it has to wait.
    #[inline(always)]
    #[expect(clippy::result_large_err, reason = "inlined: nothing is moved")]
    fn get_inline<const N: usize>(
        &mut self,
        key: &[u8],
        now: u64,
        limits: Limits,
        purpose: Purpose,
    ) -> Result<Inline, Left<N>> {
        let hash = self.topology.hash(key);
        let cohort = self.topology.cohort(hash);
        let now_ms = self.host.coarse_unix_ms();
        let plan = self.plan::<N>(cohort, now);
        let plan = match purpose {
            Purpose::Basis => plan.careful(self.host.unix_ns(), Version::ZERO),
            // A wall clock that is behind would find nothing at rest.
            _ => plan.at((now_ms * 1_000_000).max(self.versions.known_ns())),
        };
        self.prefetch(hash, cohort, &plan);
        let mut get = Get::new(&plan, hash, limits, now);
        let check = DataCheck {
            key,
            now_ms,
            flush_floor: self.topology.flush_floor(),
        };
        let mut source = OnLinks {
            links: &mut self.links,
            host: &self.host,
            cohort,
            known_config_id: self.topology.id().config_id,
            lapsed: 0,
            refreshed: false,
        };
        let result = inline::run(&mut source, &mut get, hash, &check, now);
        if source.lapsed != 0 || source.refreshed {
            let lapsed = source.lapsed;
            self.inline_aftermath(cohort, lapsed);
        }
        match result {
            Ok(outcome) => {
                if !get.is_clean() {
                    self.counters.lookup_retried(&get.retries());
                }
                if get.is_dirty() {
                    self.suspect(hash);
                }
                let mut backend = 0;
                if let GetOutcome::Hit { version, replica } = outcome {
                    backend = cohort.as_slice()[replica];
                    self.observe_sanely(version);
                    if purpose == Purpose::Use {
                        let mut slots = [None; REPLICAS_MAX];
                        for (place, slot) in slots.iter_mut().enumerate().take(N) {
                            *slot = get.touched_slot(place);
                        }
                        self.item_read(ItemRead {
                            hash,
                            cohort,
                            slots,
                        });
                    }
                }
                let dead = match outcome {
                    GetOutcome::Miss { .. } => get.dead_version(),
                    GetOutcome::Hit { .. } | GetOutcome::Failed { .. } => Version::ZERO,
                };
                Ok(Inline {
                    outcome,
                    backend,
                    hash,
                    dead,
                })
            }
            Err(step) => Err(Left {
                hash,
                cohort,
                get,
                step,
            }),
        }
    }

    #[cold]
    fn inline_aftermath(&mut self, cohort: Cohort, lapsed: u8) {
        self.view_count += 1;
        for (place, number) in cohort.as_slice().iter().enumerate() {
            if lapsed & 1 << place != 0 {
                self.lose(*number as usize, "its lease has ended");
            }
        }
    }

    /// Gives a lookup that has to wait a place of its own.
    #[cold]
    fn goes_on<const N: usize>(
        &mut self,
        key: &[u8],
        left: Left<N>,
        limits: Limits,
        purpose: Purpose,
        owner: Owner,
    ) -> u32
    where
        GetMachine: From<Get<N>>,
    {
        let (at, mut op) = self.admit_as((left.hash, left.cohort), key, owner, limits);
        op.reports_use = purpose == Purpose::Use;
        op.is_careful = purpose == Purpose::Basis;
        op.machine = Machine::Get(left.get.into());
        // What was read stays with the lookup that read it.
        for (buffer, number) in op.buffers.iter_mut().zip(left.cohort.as_slice()) {
            std::mem::swap(buffer, &mut self.links[*number as usize].bytes);
        }
        let now = self.host.monotonic_ns();
        op.begun_ns = now;
        if let Flow::Pause(ns) = self.carry_out(at, &mut op, left.step, now) {
            op.pause_until_ns = now + ns;
        }
        self.slab.put(at, op);
        // All that it asks goes together: before anybody looks for answers.
        self.step(at, now);
        at
    }

    /// A place for an operation on `key`, filled in but for its machine.
    fn admit(&mut self, key: &[u8], owner: Owner, limits: Limits) -> (u32, Box<Op>) {
        let hash = self.topology.hash(key);
        let cohort = self.topology.cohort(hash);
        self.admit_as((hash, cohort), key, owner, limits)
    }

    /// The same of a key whose hash is known.
    fn admit_as(
        &mut self,
        (hash, cohort): (KeyHash, Cohort),
        key: &[u8],
        owner: Owner,
        limits: Limits,
    ) -> (u32, Box<Op>) {
        let (at, mut op) = self.slab.admit(cohort);
        op.key.extend_from_slice(key);
        op.hash = hash;
        op.limits = limits;
        op.owner = owner;
        op.topology = self.topology_count;
        op.flush_floor = self.topology.flush_floor();
        op.now_ms = self.host.coarse_unix_ms();
        op.reports_use = false;
        op.is_careful = false;
        op.is_queued = false;
        (at, op)
    }

    fn begin(&mut self, at: u32, mut op: Box<Op>, now_ns: u64) -> u32 {
        op.begun_ns = now_ns;
        self.slab.put(at, op);
        self.step(at, now_ns);
        at
    }

    /// Begins a SET at a version of its own.
    pub fn begin_set(&mut self, key: &[u8], value: &[u8], item: Item, owner: Owner) -> u32 {
        let form = Form::Fresh(Action::Set);
        self.begin_mutation(form, key, value, item, owner)
    }

    /// Begins an ERASE at a version of its own.
    pub fn begin_erase(&mut self, key: &[u8], owner: Owner) -> u32 {
        let form = Form::Fresh(Action::Erase);
        self.begin_mutation(form, key, &[], Item::default(), owner)
    }

    /// Begins a SET or ERASE that replicas may have under this very version already
    /// ([`Mutate::again`]).
    pub fn begin_again(
        &mut self,
        (action, version): (Action, Version),
        key: &[u8],
        value: &[u8],
        item: Item,
        owner: Owner,
    ) -> u32 {
        let form = Form::Again(action, version);
        self.begin_mutation(form, key, value, item, owner)
    }

    /// Begins to store what was computed after a miss, at a version of its own, unless
    /// the key was written since.
    pub fn begin_fill(
        &mut self,
        ticket: FillTicket,
        key: &[u8],
        value: &[u8],
        item: Item,
        owner: Owner,
    ) -> Result<u32, OtherKey> {
        let hash = self.topology.hash(key);
        let is_vacant = |place| self.is_vacant(hash, place);
        let stamps = ticket.redeem(self.topology.id(), hash, is_vacant)?;
        Ok(self.begin_mutation(Form::Fill(stamps), key, value, item, owner))
    }

    fn begin_mutation(
        &mut self,
        form: Form,
        key: &[u8],
        value: &[u8],
        item: Item,
        owner: Owner,
    ) -> u32 {
        let now = self.host.monotonic_ns();
        let limits = self.limits(now);
        let mode = self.topology.mode();
        let (action, machine) = match form {
            Form::Fresh(action) => (action, Mutate::new(mode, self.nominate(), limits)),
            Form::Fill(stamps) => {
                let fill = Mutate::fill(mode, self.nominate(), stamps, limits);
                (Action::Set, fill)
            }
            Form::Again(action, version) => (action, Mutate::again(mode, version, limits)),
        };
        let (at, mut op) = self.admit(key, owner, limits);
        copied::append(&mut op.value, value);
        op.item = item;
        op.action = action;
        op.machine = Machine::Mutate(machine);
        self.begin(at, op, now)
    }

    /// Begins a CAS at a version of its own.
    pub fn begin_cas(
        &mut self,
        expected: trefoil_layout::op::Expected,
        key: &[u8],
        value: &[u8],
        item: Item,
        owner: Owner,
    ) -> u32 {
        let version = match expected {
            trefoil_layout::op::Expected::Version(version) => self.nominate_above(version),
            trefoil_layout::op::Expected::Absent => self.nominate(),
        };
        let now = self.host.monotonic_ns();
        let limits = self.limits(now);
        let (at, mut op) = self.admit(key, owner, limits);
        copied::append(&mut op.value, value);
        op.item = item;
        op.action = Action::Cas(expected);
        let cohort = op.cohort;
        op.machine = Machine::Cas {
            machine: self.new_cas(expected, version, cohort, limits),
            look: None,
        };
        self.begin(at, op, now)
    }

    /// A CAS that begins now.
    pub(crate) fn new_cas(
        &mut self,
        expected: trefoil_layout::op::Expected,
        version: Version,
        cohort: Cohort,
        limits: Limits,
    ) -> Cas {
        let mut machine = Cas::new(self.topology.mode(), expected, version, limits);
        let now = self.host.monotonic_ns();
        for place in 0..cohort.as_slice().len() {
            if self.strategy(cohort, place, now) == Strategy::Down {
                machine.look_first();
                break;
            }
        }
        machine
    }

    /// Begins to ask the replicas how `key`'s item was used, after this client's own
    /// reads were reported to them.
    pub fn begin_uses(&mut self, key: &[u8], patience_ns: u64, owner: Owner) -> u32 {
        self.flush_touches();
        let now = self.host.monotonic_ns();
        let until_ns = now.saturating_add(patience_ns);
        let (at, mut op) = self.admit(key, owner, Limits::until(until_ns));
        op.machine = Machine::Uses {
            asked: false,
            until_ns,
            found: Default::default(),
        };
        self.begin(at, op, now)
    }

    /// Under a quorum the buckets of two replicas are needed: let their cache
    /// misses overlap.
    #[inline(always)]
    fn prefetch<const N: usize>(&self, hash: KeyHash, cohort: Cohort, plan: &Plan<N>) {
        if plan.fan_out < 2 {
            return;
        }
        for rank in 0..2.min(N) {
            let place = (plan.preferred + rank) % N;
            let number = cohort.as_slice()[place] as usize;
            if let Some(view) = self.links[number].view() {
                view.prefetch_bucket(place, hash);
            }
        }
    }

    /// Sends one replica its message, near if that goes, else by a call. The
    /// machine hears of a failure.
    pub(crate) fn send(
        &mut self,
        at: u32,
        op: &mut Op,
        replica: usize,
        message: Message,
        far: bool,
        now: u64,
    ) {
        op.messages[replica] = message;
        let owed_before = op.owed[replica];
        op.owed[replica] = Owed::Nothing;
        let token = self.slab.token(at);
        let under = self.topology.id();
        let number = op.cohort.as_slice()[replica];
        let Some(link) = self.links.get_mut(number as usize) else {
            op.no_answer(replica, SendFailure::NotSent, "the backend is no more");
            return;
        };
        // What is sent to one that has left may be lost, and whether it was executed would
        // not be known.
        if !far && link.view().is_some_and(|view| view.has_moved()) {
            let why = "it has moved to another process";
            self.lose(number as usize, why);
            return match op.machine {
                Machine::Mutate(_) => {
                    let link = &mut self.links[number as usize];
                    wait_for_room(link, Way::Near, at, op, replica, owed_before, now);
                }
                _ => op.no_answer(replica, SendFailure::Moving, why),
            };
        }
        if !far && let Some(near) = link.near.as_mut() {
            match near.send(token, under, &op.request(message)) {
                Ok(()) => {
                    op.owed[replica] = Owed::Near(token);
                    link.owes_near(now);
                    return;
                }
                Err(SendError::Full) => {
                    return wait_for_room(link, Way::Near, at, op, replica, owed_before, now);
                }
                Err(SendError::TooLarge | SendError::NoMessages) => {}
                Err(error @ SendError::Closed) if near.is_indirect() => {
                    // That says nothing of the backend, and nobody has got it: it is called.
                    self.lose(number as usize, &error.to_string());
                }
                Err(error @ SendError::Closed) => {
                    self.lose(number as usize, &error.to_string());
                    op.no_answer(replica, SendFailure::NotSent, &error.to_string());
                    return;
                }
            }
        }
        let link = &mut self.links[number as usize];
        let is_queued = !link.room(Way::Far).is_empty();
        let far = match link.far(&mut self.host, &self.topology) {
            Ok(far) => far,
            Err(why) => return op.no_answer(replica, SendFailure::NotSent, &why),
        };
        // Nobody is overtaken: who waits here competes with other clients.
        let sent = match is_queued {
            true => Err(SendError::Full),
            false => op.call(far, token, under, message),
        };
        match sent {
            Ok(()) => {
                op.owed[replica] = Owed::Far(token);
                link.owes_far(now);
            }
            Err(SendError::Full) => {
                wait_for_room(link, Way::Far, at, op, replica, owed_before, now);
            }
            Err(error) => {
                let why = format!("backend {number}: {error}");
                op.no_answer(replica, SendFailure::NotSent, &why);
            }
        }
    }

    /// Looks a key up. `Ok` if that ended in place; else the place where it goes on,
    /// for `owner`. The key is one that backends take.
    #[inline(always)]
    pub fn get(
        &mut self,
        key: &[u8],
        now_ns: u64,
        limits: Limits,
        purpose: Purpose,
        owner: Owner,
    ) -> Result<Inline, u32> {
        match self.topology.mode() {
            Mode::R1 => self
                .get_inline::<1>(key, now_ns, limits, purpose)
                .map_err(|left| self.goes_on(key, left, limits, purpose, owner)),
            Mode::R2Immutable => self
                .get_inline::<2>(key, now_ns, limits, purpose)
                .map_err(|left| self.goes_on(key, left, limits, purpose, owner)),
            Mode::R32 => self
                .get_inline::<3>(key, now_ns, limits, purpose)
                .map_err(|left| self.goes_on(key, left, limits, purpose, owner)),
        }
    }

    /// The same if it ends in place; `None` if it has to wait: then it is over.
    #[inline(always)]
    pub fn get_now(
        &mut self,
        key: &[u8],
        now_ns: u64,
        limits: Limits,
        purpose: Purpose,
    ) -> Option<Inline> {
        let inline = match self.topology.mode() {
            Mode::R1 => self.get_inline::<1>(key, now_ns, limits, purpose).ok(),
            Mode::R2Immutable => self.get_inline::<2>(key, now_ns, limits, purpose).ok(),
            Mode::R32 => self.get_inline::<3>(key, now_ns, limits, purpose).ok(),
        };
        // Whoever may wait may yet reach somebody.
        inline.filter(|inline| !matches!(inline.outcome, GetOutcome::Failed { .. }))
    }

    /// Hands a lookup that ended in place out like one that had to wait.
    pub fn keep(&mut self, inline: &Inline, purpose: Purpose, token: u64) {
        let at = self.keep_for(inline, purpose, Owner::Token(token));
        self.slab.done.push_back(at);
    }

    /// Whether the lookup at `at` is one on whose strength something is written.
    pub fn is_basis(&self, at: u32) -> bool {
        self.slab.get(at).is_some_and(|op| op.is_careful)
    }

    /// Whether the mutation at `at` is one of [`Driver::begin_again`].
    pub fn is_again(&self, at: u32) -> bool {
        let op = self.slab.get(at);
        op.is_some_and(|op| matches!(&op.machine, Machine::Mutate(machine) if machine.is_again()))
    }

    /// The same for somebody who waits for it; returns its place.
    pub fn keep_for_waiter(&mut self, inline: &Inline) -> u32 {
        self.keep_for(inline, Purpose::Use, Owner::Waiter)
    }

    fn keep_for(&mut self, inline: &Inline, purpose: Purpose, owner: Owner) -> u32 {
        self.counters.add(&inline.outcome);
        let cohort = self.topology.placement().cohort_of_shard(0);
        let (at, mut op) = self.slab.admit(cohort);
        op.owner = owner;
        op.topology = self.topology_count;
        op.is_careful = purpose == Purpose::Basis;
        op.hit_replica = 0;
        op.outcome = Some(match inline.outcome {
            GetOutcome::Hit { version, .. } => {
                let bytes = &mut self.links[inline.backend as usize].bytes;
                std::mem::swap(bytes, &mut op.buffers[0]);
                Outcome::Hit { version }
            }
            GetOutcome::Miss { reason } => Outcome::Miss {
                reason,
                stamps: self.missed(inline),
            },
            GetOutcome::Failed { cause } => Outcome::Failed { cause },
        });
        self.slab.put(at, op);
        at
    }

    /// The data entry of a hit that ended in place, until the next lookup.
    #[inline(always)]
    pub fn inline_bytes(&self, inline: &Inline) -> &[u8] {
        self.links[inline.backend as usize].bytes.bytes()
    }
}

/// A message waits for room. One that waits there already, for the same replica, keeps
/// its turn.
#[cold]
pub(crate) fn wait_for_room<P: Port>(
    link: &mut Link<P>,
    way: Way,
    at: u32,
    op: &mut Op,
    replica: usize,
    owed_before: Owed,
    now_ns: u64,
) {
    op.owed[replica] = Owed::Room(way);
    if owed_before != Owed::Room(way) {
        let waiter = Waiter::new(at, replica, op.value.len());
        link.waits(way, waiter, now_ns);
    }
}

/// The links of one key's cohort.
struct OnLinks<'a, H: Host> {
    links: &'a mut [Link<H::Port>],
    host: &'a H,
    cohort: Cohort,
    known_config_id: u32,
    /// Places whose lease has ended, as a bit set.
    lapsed: u8,
    refreshed: bool,
}

impl<H: Host> Clock for OnLinks<'_, H> {
    #[inline(always)]
    fn coarse_ns(&self) -> u64 {
        self.host.coarse_ns()
    }
    fn monotonic_ns(&self) -> u64 {
        self.host.monotonic_ns()
    }
    fn unix_ns(&self) -> u64 {
        self.host.unix_ns()
    }
    fn coarse_unix_ms(&self) -> u64 {
        self.host.coarse_unix_ms()
    }
}

impl<H: Host> OneSided for OnLinks<'_, H> {
    #[inline(always)]
    fn read(&mut self, replica: usize) -> Option<(&RegionView, &mut WordBuffer)> {
        if self.lapsed & 1 << replica != 0 {
            return None;
        }
        let number = self.cohort.as_slice()[replica] as usize;
        self.links[number].view_and_bytes()
    }

    #[inline(always)]
    fn known_config_id(&self) -> u32 {
        self.known_config_id
    }

    fn lapsed(&mut self, replica: usize) {
        self.lapsed |= 1 << replica;
    }

    fn is_resuming(&self) -> bool {
        let now = self.host.monotonic_ns();
        let has_moved = |number: &u32| {
            let link = &self.links[*number as usize];
            link.awaits_successor(now) || link.view().is_some_and(|view| view.has_moved())
        };
        self.cohort.as_slice().iter().any(has_moved)
            || inline::is_resuming(self.host.running_since_ns(), now)
    }

    fn refresh(&mut self, replica: usize) -> bool {
        let number = self.cohort.as_slice()[replica] as usize;
        let Some(near) = self.links[number].near.as_mut() else {
            return false;
        };
        self.refreshed = true;
        near.refresh();
        near.view()
            .is_some_and(|view| view.config_id() <= self.known_config_id)
    }
}
