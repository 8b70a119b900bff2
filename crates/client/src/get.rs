//! GET: carries out the steps of `client-core`'s machine.

use crate::client::{Client, check_key};
use crate::error::OpError;
use crate::link::Link;
use crate::mutate::FillTicket;
use crate::rpc::CallAnswer;
use crate::time;
use crate::wait::{AllOutstanding, Event, Outstanding};
use std::time::Duration;
use trefoil_cell::Cohort;
use trefoil_client_core::data::DataCheck;
use trefoil_client_core::get::{Failure, Get, GetOutcome, GetStep, MissReason, Plan, Strategy};
use trefoil_client_core::mode::Mode;
use trefoil_client_core::retry::Limits;
use trefoil_layout::data::DataEntry;
use trefoil_layout::message::Request;
use trefoil_layout::op::{Found, LookupAnswer};
use trefoil_layout::{KeyHash, Version};
use trefoil_rpc::v1;

/// What a lookup found.
#[derive(Debug)]
pub enum Lookup<'a> {
    /// A value.
    Hit(Hit<'a>),
    /// None, and why.
    Miss(Miss),
}

/// A value and what belongs to it.
#[derive(Clone, Copy, Debug)]
pub struct Hit<'a> {
    /// The value's bytes, in the client's own memory.
    pub value: &'a [u8],
    /// The mutation that wrote it: what a CAS expects.
    pub version: Version,
    /// Opaque to the cell.
    pub client_flags: u32,
    /// Milliseconds since the Unix epoch; 0 never expires.
    pub expiry_ms: u64,
    /// `layout::data::ITEM_STALE`, `ITEM_WIN_GIVEN`.
    pub item_flags: u8,
    /// CAS unique that its writer supplied.
    pub unique: Option<u64>,
}

/// No value.
#[derive(Clone, Copy, Debug)]
pub struct Miss {
    /// Why.
    pub reason: MissReason,
    /// For [`Client::fill`]: a value computed after this miss does not
    /// overwrite what was written since.
    pub fill: FillTicket,
}

impl Miss {
    #[inline]
    pub(crate) fn new(reason: MissReason, version: Version) -> Self {
        Miss {
            reason,
            fill: FillTicket::new(version),
        }
    }
}

impl<'a> Hit<'a> {
    #[inline(always)]
    pub(crate) fn new(entry: DataEntry<'a>, version: Version) -> Self {
        Hit {
            value: entry.value,
            version,
            client_flags: entry.client_flags,
            expiry_ms: entry.expiry_ms,
            item_flags: entry.item_flags,
            unique: entry.unique,
        }
    }
}

impl Client {
    /// Looks a key up.
    pub fn get(&mut self, key: &[u8]) -> Result<Lookup<'_>, OpError> {
        self.reports_uses = true;
        let now = time::coarse_ns();
        self.look_up(key, now, self.limits(now))
    }

    #[inline(always)]
    fn look_up(&mut self, key: &[u8], now_ns: u64, limits: Limits) -> Result<Lookup<'_>, OpError> {
        check_key(key)?;
        match self.mode {
            Mode::R1 => self.get_of::<1>(key, now_ns, limits),
            Mode::R2Immutable => self.get_of::<2>(key, now_ns, limits),
            Mode::R32 => self.get_of::<3>(key, now_ns, limits),
        }
    }

    /// Looks a key up without telling the backends that it is in use.
    pub fn peek(&mut self, key: &[u8]) -> Result<Lookup<'_>, OpError> {
        let now = time::coarse_ns();
        self.peek_within(key, self.limits(now))
    }

    /// The same as a part of an operation that has its limits already.
    pub(crate) fn peek_within(
        &mut self,
        key: &[u8],
        limits: Limits,
    ) -> Result<Lookup<'_>, OpError> {
        self.reports_uses = false;
        self.look_up(key, time::coarse_ns(), limits)
    }

    /// A lookup where each key has `N` copies.
    #[inline(always)]
    fn get_of<const N: usize>(
        &mut self,
        key: &[u8],
        now: u64,
        limits: Limits,
    ) -> Result<Lookup<'_>, OpError> {
        self.operation += 1;
        let hash = self.hash(key);
        let cohort = self.cohort(hash);
        let plan = self.plan::<N>(cohort, now);
        self.prefetch(hash, cohort, &plan);
        let mut get = Get::new(&plan, hash, limits, now);
        let outcome = self.drive(&mut get, key, hash, cohort, now);
        if !get.is_clean() {
            self.counters.get_retries.merge(&get.retries());
        }
        self.conclude(&get, outcome, hash, cohort)
    }

    /// Whether every replica of `key` is read one-sidedly as things stand.
    pub(crate) fn reads_without_waiting(&mut self, key: &[u8]) -> bool {
        let cohort = self.cohort(self.hash(key));
        let now = time::coarse_ns();
        cohort.as_slice().iter().all(|number| {
            self.links[*number as usize].strategy(self.options.carrier, now) == Strategy::TwoReads
        })
    }

    /// Who is asked, and how, as things stand.
    #[inline]
    pub(crate) fn plan<const N: usize>(&mut self, cohort: Cohort, now_ns: u64) -> Plan<N> {
        let mut plan = Plan::frugal(self.preferred());
        for (strategy, number) in plan.strategies.iter_mut().zip(cohort.as_slice()) {
            *strategy = self.links[*number as usize].strategy(self.options.carrier, now_ns);
        }
        if plan.strategies.contains(&Strategy::Rpc) {
            // Over a network all are asked at once.
            plan.fan_out = N;
        }
        plan
    }

    /// Under a quorum the buckets of two replicas are needed: let their cache
    /// misses overlap.
    #[inline(always)]
    pub(crate) fn prefetch<const N: usize>(&self, hash: KeyHash, cohort: Cohort, plan: &Plan<N>) {
        let copies = cohort.as_slice();
        if plan.fan_out < 2 {
            return;
        }
        for rank in 0..2.min(copies.len()) {
            let place = (plan.preferred + rank) % copies.len();
            if let Some(connection) = self.links[copies[place] as usize].shared() {
                connection.prefetch_bucket(hash);
            }
        }
    }

    #[inline]
    fn drive<const N: usize>(
        &mut self,
        get: &mut Get<N>,
        key: &[u8],
        hash: KeyHash,
        cohort: Cohort,
        mut now: u64,
    ) -> GetOutcome {
        let check = DataCheck {
            key,
            now_ms: time::coarse_unix_ms(),
            flush_floor: self.config.flush_floor,
        };
        let mut outstanding = AllOutstanding::default();
        loop {
            match get.poll(now) {
                GetStep::ReadIndex { replica } => {
                    let link = &mut self.links[cohort.as_slice()[replica] as usize];
                    let Some((connection, _)) = link.shared_and_bytes() else {
                        get.handle_failure(replica, Failure::Connection);
                        continue;
                    };
                    let vote = connection.index_vote(hash);
                    now = time::coarse_ns();
                    if Link::lease_alive(connection, now) {
                        get.handle_index(replica, vote);
                    } else {
                        link.set_down(now);
                        get.handle_failure(replica, Failure::Lease);
                    }
                }
                GetStep::ReadData {
                    replica, pointer, ..
                } => {
                    let link = &mut self.links[cohort.as_slice()[replica] as usize];
                    let Some((connection, bytes)) = link.shared_and_bytes() else {
                        get.handle_failure(replica, Failure::Connection);
                        continue;
                    };
                    if connection.read_data(pointer, bytes).is_err() {
                        get.handle_out_of_window(replica);
                        continue;
                    }
                    now = time::coarse_ns();
                    // After the reads: what was flushed before they began is known.
                    let check = DataCheck {
                        flush_floor: check.flush_floor.max(connection.reader().flush_floor()),
                        ..check
                    };
                    if Link::lease_alive(connection, now) {
                        get.handle_data(replica, bytes.bytes(), &check);
                    } else {
                        link.set_down(now);
                        get.handle_failure(replica, Failure::Lease);
                    }
                }
                GetStep::Done(outcome) => return outcome,
                step => {
                    self.rare_step(get, step, &check, hash, cohort, &mut outstanding);
                    now = time::monotonic_ns();
                }
            }
        }
    }

    /// Everything that shared memory does not need when all is well.
    #[cold]
    fn rare_step<const N: usize>(
        &mut self,
        get: &mut Get<N>,
        step: GetStep,
        check: &DataCheck<'_>,
        hash: KeyHash,
        cohort: Cohort,
        outstanding: &mut AllOutstanding,
    ) {
        match step {
            GetStep::Ask { replica, by_rpc } => {
                outstanding[replica] = self.ask(check.key, cohort, replica, by_rpc);
                if outstanding[replica] == Outstanding::Nothing {
                    get.handle_failure(replica, Failure::Connection);
                }
            }
            GetStep::Refresh { replica, .. } => {
                let link = &mut self.links[cohort.as_slice()[replica] as usize];
                match link.shared_and_bytes() {
                    Some((connection, _)) => {
                        connection.refresh();
                        let id = connection.config_id();
                        if id > self.config.config_id {
                            self.refresh_config();
                        }
                    }
                    None => self.refresh_config(),
                }
                get.handle_refreshed(replica);
            }
            GetStep::Reconnect { replica } => {
                let now = time::monotonic_ns();
                let link = &mut self.links[cohort.as_slice()[replica] as usize];
                if !link.reconnect(now) {
                    get.handle_failure(replica, Failure::Connection);
                } else if link.is_rpc() {
                    let plan = self.plan::<N>(cohort, now);
                    *outstanding = AllOutstanding::default();
                    get.restart(&plan, now);
                } else {
                    get.handle_reconnected(replica);
                }
            }
            GetStep::Pause { ns } => pause(ns),
            GetStep::Wait { until_ns } => {
                if let Some((replica, event)) = self.next_event(cohort, outstanding, until_ns) {
                    self.lookup_event(get, check, cohort, outstanding, replica, event);
                }
            }
            GetStep::Scan { replica } => {
                // No fabric of this release scans at the far side.
                get.handle_failure(replica, Failure::Connection);
            }
            GetStep::ReadIndex { .. } | GetStep::ReadData { .. } | GetStep::Done(_) => {
                unreachable!("carried out by the caller; {hash:?}")
            }
        }
    }

    /// Sends a lookup by message, or by RPC where messages do not go.
    fn ask(&mut self, key: &[u8], cohort: Cohort, replica: usize, by_rpc: bool) -> Outstanding {
        let number = cohort.as_slice()[replica];
        if !by_rpc
            && let Some((connection, _)) = self.links[number as usize].shared_and_bytes()
            && let Ok(id) = connection.send(&Request::Lookup { key })
        {
            return Outstanding::Ring(id);
        }
        let Ok(mut client) = self.shared.rpc.backend(&self.config, number) else {
            return Outstanding::Nothing;
        };
        let request = v1::LookupRequest {
            backend: number,
            config_id: self.config.config_id,
            key: key.to_vec().into(),
        };
        let call =
            async move { CallAnswer::Lookup(client.lookup(request).await.map(|r| r.into_inner())) };
        match self
            .shared
            .rpc
            .start(&self.done.0, self.operation, replica, call)
        {
            Ok(()) => Outstanding::Call,
            Err(_) => Outstanding::Nothing,
        }
    }

    fn lookup_event<const N: usize>(
        &mut self,
        get: &mut Get<N>,
        check: &DataCheck<'_>,
        cohort: Cohort,
        outstanding: &mut AllOutstanding,
        replica: usize,
        event: Event,
    ) {
        let (epoch, found) = match event {
            Event::Present { epoch, version } => {
                let data = self.links[cohort.as_slice()[replica] as usize]
                    .bytes
                    .bytes();
                (epoch, Found::Present { version, data })
            }
            Event::Absent { epoch } => (epoch, Found::Absent),
            Event::Refused { epoch, rejection } => (epoch, Found::Rejected(rejection)),
            Event::TooLarge => {
                outstanding[replica] = self.ask(check.key, cohort, replica, true);
                if outstanding[replica] == Outstanding::Nothing {
                    get.handle_failure(replica, Failure::Connection);
                }
                return;
            }
            Event::Ack(_) | Event::Use(_) | Event::Gone(..) => {
                return get.handle_failure(replica, Failure::Connection);
            }
        };
        get.handle_answer(replica, &LookupAnswer { epoch, found }, check);
    }

    /// Turns the machine's outcome into the caller's result; counts, touches.
    #[inline]
    pub(crate) fn conclude<const N: usize>(
        &mut self,
        get: &Get<N>,
        outcome: GetOutcome,
        hash: KeyHash,
        cohort: Cohort,
    ) -> Result<Lookup<'_>, OpError> {
        match outcome {
            GetOutcome::Hit { version, replica } => {
                self.counters.hits += 1;
                if self.reports_uses {
                    self.touch(get, hash, cohort);
                }
                self.versions.observe(version);
                let bytes = self.links[cohort.as_slice()[replica] as usize]
                    .bytes
                    .bytes();
                match DataEntry::decode(bytes) {
                    Some(entry) => Ok(Lookup::Hit(Hit::new(entry, version))),
                    None => Err(OpError::Failed("a validated entry does not decode".into())),
                }
            }
            GetOutcome::Miss { reason } => {
                self.counters.misses += 1;
                self.counters.inquorate += u64::from(reason == MissReason::Inquorate);
                Ok(Lookup::Miss(self.miss(reason)))
            }
            GetOutcome::Failed { cause } => {
                self.counters.failed += 1;
                Err(cause.into())
            }
        }
    }

    /// A miss, with the version that a fill after it stores under.
    pub(crate) fn miss(&mut self, reason: MissReason) -> Miss {
        Miss::new(reason, self.versions.next())
    }

    /// Tells every replica that voted for the hit that it was read.
    #[inline(always)]
    pub(crate) fn touch<const N: usize>(&mut self, get: &Get<N>, hash: KeyHash, cohort: Cohort) {
        for (place, number) in cohort.as_slice().iter().enumerate() {
            if let Some(slot) = get.touched_slot(place) {
                let link = &mut self.links[*number as usize];
                if let Some(connection) = link.shared() {
                    let partition = connection.partition(hash);
                    link.touch(partition, slot);
                }
            }
        }
    }
}

/// Lets others finish: spinning for what is shorter than a sleep.
pub(crate) fn pause(ns: u64) {
    if ns > 20_000 {
        std::thread::sleep(Duration::from_nanos(ns));
        return;
    }
    let end = time::monotonic_ns() + ns;
    while time::monotonic_ns() < end {
        std::hint::spin_loop();
    }
}
