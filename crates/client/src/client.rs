//! A thread's client: a driver, and a thread that waits for it.

use crate::asynchronous::{Reach, Signals};
use crate::cell::Shared;
use crate::commit::Commit;
use crate::error::{OpError, UNREACHABLE};
use crate::host::ClientHost;
use crate::rpc::Bell;
use crate::seats::Seats;
use crate::submit::Sleeper;
use crate::time;
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_cell::CellConfig;
use trefoil_driver::{
    CarrierInUse, Counters, Driver, ItemRead, Link, LinkStatus, Options, Topology,
};
use trefoil_layout::Version;
use trefoil_layout::limits::KEY_LEN_MAX;
use trefoil_layout::op::Rejection;
use trefoil_region::{ForkMark, WordBuffer};

/// How long a new client waits for the connections that it begins.
const GREETING_PATIENCE: Duration = Duration::from_secs(1);

/// How long a client that goes waits for what it has sent to be taken out of the
/// rings: the copy that nobody waited for.
const DROP_PATIENCE: Duration = Duration::from_millis(200);

/// A client of one cell for one thread.
pub struct Client {
    pub(crate) shared: Arc<Shared>,
    pub(crate) driver: Driver<ClientHost>,
    pub(crate) sleeper: Sleeper,
    /// What a group of [`Client::get_many`] has read.
    pub(crate) group_bytes: Vec<WordBuffer>,
    /// The latest hit of a lookup that had to wait; what it borrows.
    pub(crate) held: WordBuffer,
    /// When SETs and ERASEs are done.
    pub(crate) commit: Commit,
    pub(crate) seats: Seats,
    /// [`Shared::changes`] when the topology was taken.
    seen_changes: u64,
    /// The process that made it: a forked child must not use its rings.
    process: ForkMark,
}

impl Client {
    pub(crate) fn new(shared: Arc<Shared>, options: Options, number: usize) -> Self {
        let mut client = Client::begin(shared, options, number);
        client.connect();
        client
    }

    /// The same without waiting for anybody: the connections are being made.
    pub(crate) fn begin(shared: Arc<Shared>, options: Options, number: usize) -> Self {
        let host = ClientHost::new(Arc::clone(&shared), &options);
        // Before the topology: what changes in between is taken twice.
        let seen_changes = shared.changes();
        let topology = shared.topology();
        let mut client = Client {
            shared,
            driver: Driver::new(host, topology, options, number),
            sleeper: Sleeper::default(),
            group_bytes: Vec::new(),
            held: WordBuffer::default(),
            commit: Commit::default(),
            seats: Seats::default(),
            seen_changes,
            process: ForkMark::new(),
        };
        client.driver.turn();
        client
    }

    /// Waits a while for the connections that have been begun.
    fn connect(&mut self) {
        let end = time::monotonic_ns() + GREETING_PATIENCE.as_nanos() as u64;
        while self.driver.is_connecting() {
            let now = time::monotonic_ns();
            if now >= end {
                return;
            }
            self.sleep(end);
            self.driver.turn();
        }
    }

    /// What this client has counted so far.
    pub fn counters(&self) -> Counters {
        *self.driver.counters()
    }

    /// Starts counting anew.
    pub fn reset_counters(&mut self) {
        *self.driver.counters_mut() = Counters::default();
    }

    /// Reports the touches that are still being collected. Called when the
    /// client is dropped; of use before it goes idle.
    pub fn flush_touches(&mut self) {
        if !self.is_forked() {
            self.driver.flush_touches();
        }
    }

    /// How each backend is reached, and why not faster.
    pub fn carriers(&self) -> Vec<LinkStatus> {
        self.driver.carriers()
    }

    /// Waits, for at most `patience`, until what this client has sent was
    /// received: a mutation is acknowledged by a majority, and its third copy may
    /// still be under way. To be called before a process ends; dropping the last
    /// [`crate::Cell`] waits for calls, too, but not where async tasks run.
    /// `false` if something is still under way.
    pub fn finish(&mut self, patience: Duration) -> bool {
        let begin = Instant::now();
        self.flush_touches();
        self.settle(patience);
        let left = patience.saturating_sub(begin.elapsed());
        self.shared.rpc.finish(left) && self.driver.is_settled()
    }

    /// Waits, for at most `patience`, until the replicas that were not waited for
    /// have executed this client's mutations, too: a mutation is acknowledged by
    /// a majority. Of use before counting what the replicas hold. Looks at rings
    /// only: what went by gRPC is not waited for.
    pub fn settle(&mut self, patience: Duration) {
        if self.is_forked() {
            return;
        }
        let end = time::monotonic_ns().saturating_add(time::nanoseconds(patience));
        self.driver.turn();
        while !self.driver.is_settled() {
            let now = time::monotonic_ns();
            if now >= end {
                return;
            }
            let until = end.min(self.driver.next_work_ns());
            self.sleep(until);
            self.driver.turn();
        }
    }

    /// Whether the replicas that were not waited for have executed this client's
    /// mutations, too: see [`Client::settle`]. As of the last [`Client::poll`].
    pub fn is_settled(&self) -> bool {
        self.driver.is_settled()
    }

    /// The version that was nominated last. After an indeterminate CAS, finding
    /// it tells that the CAS was applied.
    pub fn last_version(&self) -> Version {
        self.driver.last_version()
    }

    /// For tests: another [`Options::clock_offset_ms`], as if the host's clock were set.
    #[doc(hidden)]
    pub fn set_clock_offset_ms(&mut self, offset_ms: i64) {
        self.driver.host_mut().set_clock_offset_ms(offset_ms);
    }

    /// The cell's configuration, as this client knows it.
    pub fn config(&self) -> &CellConfig {
        self.driver.topology().config()
    }

    /// Begins to reach backends that are to be tried again, though no operation of
    /// this client asks for it. [`Client::poll`] takes what comes of it.
    pub fn tend(&mut self) {
        if !self.is_forked() {
            self.driver.tend();
        }
    }

    /// Learns of a configuration that is newer than the known one.
    pub fn refresh(&mut self) {
        if let Ok(topology) = self.shared.learn() {
            self.driver.adopt(topology);
        }
    }

    /// Before an operation: takes the topology that others have learned, and the
    /// connections that were made anew. Who only reads may never turn.
    #[inline(always)]
    pub(crate) fn settle_topology(&mut self) {
        if self.shared.changes() != self.seen_changes {
            self.take_topology();
        }
        if self.driver.host_ref().has_event() {
            self.driver.take_events();
        }
    }

    /// How often the cell's topology had changed when this client took it.
    pub(crate) fn seen_changes(&self) -> u64 {
        self.seen_changes
    }

    #[cold]
    fn take_topology(&mut self) {
        self.seen_changes = self.shared.changes();
        let topology = self.shared.topology();
        self.driver.adopt(topology);
    }

    /// Refuses keys that no backend takes, and a fork's child.
    #[inline(always)]
    pub(crate) fn check_lookup(&self, key: &[u8]) -> Result<(), OpError> {
        check_key(key)?;
        self.check_process()
    }

    /// Refuses a fork's child, before anything is read or sent.
    #[inline(always)]
    pub(crate) fn check_process(&self) -> Result<(), OpError> {
        match self.is_forked() {
            true => Err(forked()),
            false => Ok(()),
        }
    }

    /// Whether this is no longer the process that made the client: a fork's child
    /// shares the rings with its parent, and has a copy of their cursors.
    #[inline(always)]
    pub(crate) fn is_forked(&self) -> bool {
        self.process.is_child()
    }

    /// Goes on until the operation at `at`, which has just been begun, has ended.
    pub(crate) fn wait_for(&mut self, at: u32) {
        while !self.driver.has_ended(at) {
            let until = self.driver.wake_ns(at).min(self.driver.next_work_ns());
            self.sleep(until);
            self.driver.turn_for(at);
        }
    }
}

/// What the async client's thread needs.
impl Client {
    /// A failure, told alike in whatever way an operation met it if no backend can be
    /// reached. That is what the process's clients found, each by itself; where this one
    /// stands in connection with a backend that lives, the others were wrong.
    #[cold]
    pub(crate) fn explained(&self, error: OpError) -> OpError {
        if !matches!(error, OpError::Failed(_)) || !self.shared.is_unreachable() {
            return error;
        }
        let now = time::monotonic_ns();
        let mut is_reached = false;
        for (number, link) in self.driver.links().iter().enumerate() {
            if link.stands(now) {
                self.shared.reaches.answered(number as u32);
                is_reached = true;
            }
        }
        match is_reached {
            true => error,
            false => OpError::Failed(UNREACHABLE.to_owned()),
        }
    }

    /// Counts as ready while there are signals.
    pub(crate) fn wakes_for(&mut self, signals: Arc<Signals>) {
        self.driver.host_mut().signals = Some(signals);
    }

    /// What is submitted from now on ends by this time, which counts from when its
    /// task came; `u64::MAX` for no such time.
    pub(crate) fn end_by(&mut self, deadline_ns: u64) {
        self.driver.end_by(deadline_ns);
    }

    /// Places of operations, used and free.
    pub(crate) fn places(&self) -> usize {
        self.driver.places()
    }

    /// Whether connections that were begun may still come in time to be waited for.
    pub(crate) fn is_connecting(&self) -> bool {
        self.driver.is_connecting()
    }

    /// Whether everything that was sent has been received: what [`Client::finish`]
    /// waits for. As of the last [`Client::poll`].
    pub(crate) fn has_finished(&self) -> bool {
        self.driver.is_settled() && self.shared.rpc.is_finished()
    }

    pub(crate) fn bell(&self) -> Arc<Bell> {
        Arc::clone(self.driver.host_ref().bell())
    }

    pub(crate) fn observe(&mut self, version: Version) {
        self.driver.observe_sanely(version);
    }

    pub(crate) fn view_count(&self) -> u64 {
        self.driver.view_count()
    }

    pub(crate) fn views(&self) -> (Arc<Topology>, Vec<Reach>) {
        let reach = |link: &Link<_>| match (link.view(), link.status().carrier) {
            (Some(view), _) => Reach::Mapped(Arc::clone(view)),
            (None, CarrierInUse::Down) => Reach::Down,
            (None, _) => Reach::Called,
        };
        let views = self.driver.links().iter().map(reach).collect();
        (Arc::clone(self.driver.topology()), views)
    }

    /// Reports a read of another thread, through the views of `view_count`.
    pub(crate) fn pass_read(&mut self, read: ItemRead, view_count: u64) {
        if view_count == self.driver.view_count() {
            self.driver.item_read(read);
        } else {
            self.driver.item_read_before(read);
        }
    }

    /// Sleeps; submissions do not count while no more of them are begun.
    pub(crate) fn sleep_for(&mut self, until_ns: u64, ignores_submissions: bool) {
        self.driver.host_mut().ignores_queue = ignores_submissions;
        self.sleep(until_ns);
        self.driver.host_mut().ignores_queue = false;
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        if self.is_forked() {
            return;
        }
        self.flush_touches();
        if !self.driver.is_settled() {
            self.settle(DROP_PATIENCE);
        }
        self.driver.tell_all_suspects();
    }
}

#[cold]
pub(crate) fn forked() -> OpError {
    OpError::Failed(
        "this process was forked from the one that made the client: make a client of its own"
            .to_owned(),
    )
}

/// Refuses keys that no backend takes.
#[inline(always)]
pub(crate) fn check_key(key: &[u8]) -> Result<(), Rejection> {
    if key.is_empty() {
        return Err(Rejection::KeyEmpty);
    }
    if key.len() > KEY_LEN_MAX {
        return Err(Rejection::KeyTooLong);
    }
    Ok(())
}
