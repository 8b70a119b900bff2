//! What every thread of the process shares.

use crate::admission::Gate;
use crate::behind::Behind;
use crate::ending::Ending;
use crate::lending::Lending;
use crate::listen::UnixSocket;
use crate::local::Turns;
use crate::member::Member;
use crate::memory::{Known, MemoryBound, MemoryError, measured_together};
use crate::process::Resident;
use crate::reporter::{MetricSource, Reporter};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::time::Instant;
use tokio::sync::{Notify, watch};
use trefoil_cell::{BackendLock, CellConfig, ConfigStore, Incarnations, LimitNote, RpcAddress};
use trefoil_fabric::shm::{Progress, Target};
use trefoil_layout::control;
use trefoil_layout::limits::LAYOUT_VERSION;
use trefoil_tls::Tls;

/// Least time between two looks at the memory that messages cause.
const LOOK_PAUSE_MS: u64 = 10;

/// Calls through gRPC, and renewals.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) rpc_mutations: AtomicU64,
    pub(crate) rpc_lookups: AtomicU64,
    pub(crate) rpc_touches: AtomicU64,
    pub(crate) rpc_other: AtomicU64,
    pub(crate) lease_renewals: AtomicU64,
    pub(crate) lease_renewals_late: AtomicU64,
}

/// See the module.
pub(crate) struct State {
    pub(crate) members: Vec<Arc<Member>>,
    pub(crate) counters: Counters,
    pub(crate) bound: MemoryBound,
    pub(crate) lending: Arc<Lending>,
    pub(crate) gate: Gate,
    /// When [`State::look_at_memory`] did, in milliseconds since `started`.
    looked_ms: AtomicU64,
    pub(crate) config_store: Arc<dyn ConfigStore>,
    /// How often each member has begun in the cell's life, this time included.
    begun: Mutex<Incarnations>,
    pub(crate) boot_id: String,
    /// Of the data entries that it tells others.
    pub(crate) layout_version: u32,
    /// Of copies from other processes: bytes a second, if there is a limit.
    pub(crate) recovery_rate: Option<u64>,
    /// Says that the process is to end before it serves.
    pub(crate) ending: Ending,
    pub(crate) started: Instant,
    /// Set once, if metrics are served.
    pub(crate) metrics_address: OnceLock<SocketAddr>,
    /// Set once, when the fabric's target runs; taken out to stop it.
    pub(crate) target: OnceLock<Mutex<Option<Target>>>,
    /// Set once, by whoever opens a front door.
    reporter: OnceLock<Arc<dyn Reporter>>,
    /// Others of this process that have metrics.
    metric_sources: Mutex<Vec<Arc<dyn MetricSource>>>,
    /// What is spoken over TCP, with clients and with other backends, if it is TLS.
    pub(crate) tls: OnceLock<Tls>,
    config: RwLock<Arc<CellConfig>>,
    /// Held while another configuration is adopted.
    adopting: Mutex<()>,
    /// A configuration with a corpus that this process has not loaded, in force already.
    newer: Mutex<Option<CellConfig>>,
    pub(crate) turns: Turns,
    pub(crate) behind: Arc<Behind>,
    /// Of a configuration store on other machines: it does not answer.
    pub(crate) store_away: AtomicBool,
    /// What it says is not believed, or cannot be followed.
    pub(crate) store_refused: AtomicBool,
    /// Why this process serves nothing any more, if its backend's place is another's.
    pub(crate) place_taken: OnceLock<String>,
    stopping: AtomicBool,
    /// What only one process has that is this backend.
    pub(crate) doors: Mutex<Doors>,
    /// Rung when the backend's number has moved to another process.
    pub(crate) retirement: Arc<Notify>,
    /// Turns true when nobody else is to come in over TCP.
    pub(crate) closing: watch::Sender<bool>,
    /// The Unix socket at which a process of this backend on this host is found, where the
    /// configuration does not say.
    pub(crate) local: Option<RpcAddress>,
    /// See [`ServerOptions::limit_note`](crate::ServerOptions::limit_note).
    pub(crate) limit_note: Option<LimitNote>,
}

/// See [`State::doors`].
#[derive(Debug, Default)]
pub(crate) struct Doors {
    pub(crate) unix: Option<UnixSocket>,
    pub(crate) locks: Vec<BackendLock>,
    /// Nothing is served any more: leases are not renewed.
    pub(crate) retired: bool,
}

impl State {
    pub(crate) fn new(
        members: Vec<Arc<Member>>,
        bound: MemoryBound,
        config_store: Arc<dyn ConfigStore>,
        config: CellConfig,
        begun: Incarnations,
        behind: Arc<Behind>,
        lending: Arc<Lending>,
    ) -> Self {
        lending.connect(&members);
        lending.set_all_len(bound.stores_len_max());
        let gate = Gate::new(lending.stores_len());
        State {
            members,
            counters: Counters::default(),
            bound,
            lending,
            gate,
            looked_ms: AtomicU64::new(0),
            config_store,
            begun: Mutex::new(begun),
            boot_id: crate::process::boot_id(),
            layout_version: LAYOUT_VERSION.into(),
            recovery_rate: None,
            ending: Ending::default(),
            started: Instant::now(),
            metrics_address: OnceLock::new(),
            target: OnceLock::new(),
            reporter: OnceLock::new(),
            metric_sources: Mutex::default(),
            tls: OnceLock::new(),
            config: RwLock::new(Arc::new(config)),
            adopting: Mutex::default(),
            newer: Mutex::default(),
            turns: Turns::default(),
            behind,
            store_away: AtomicBool::new(false),
            store_refused: AtomicBool::new(false),
            place_taken: OnceLock::new(),
            stopping: AtomicBool::new(false),
            doors: Mutex::default(),
            retirement: Arc::default(),
            closing: watch::channel(false).0,
            local: None,
            limit_note: None,
        }
    }

    /// The member with this number.
    pub(crate) fn member(&self, number: u32) -> Option<&Arc<Member>> {
        self.members.iter().find(|member| member.number == number)
    }

    /// The configuration that was committed last.
    pub(crate) fn config(&self) -> Arc<CellConfig> {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&config)
    }

    /// Answers clients with `config` from now on, unless a later one is known.
    pub(crate) fn set_config(&self, config: CellConfig) {
        let mut current = self.config.write().unwrap_or_else(PoisonError::into_inner);
        if config.config_id > current.config_id {
            *current = Arc::new(config);
        }
    }

    /// The front door of this process, if it has one.
    pub(crate) fn reporter(&self) -> Option<&Arc<dyn Reporter>> {
        self.reporter.get()
    }

    /// The first one stays.
    pub(crate) fn set_reporter(&self, reporter: Arc<dyn Reporter>) {
        let _ = self.reporter.set(reporter);
    }

    /// Whatever else of this process has metrics, the front door included.
    pub(crate) fn metric_sources(&self) -> Vec<Arc<dyn MetricSource>> {
        let sources = self.metric_sources.lock();
        let others = sources.unwrap_or_else(PoisonError::into_inner).clone();
        let door = self.reporter().map(|door| Arc::clone(door) as _);
        door.into_iter().chain(others).collect()
    }

    pub(crate) fn add_metric_source(&self, source: Arc<dyn MetricSource>) {
        let sources = self.metric_sources.lock();
        sources.unwrap_or_else(PoisonError::into_inner).push(source);
    }

    pub(crate) fn adopting(&self) -> MutexGuard<'_, ()> {
        self.adopting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Another corpus is in force than is served here.
    pub(crate) fn note_newer(&self, config: CellConfig) {
        let mut newer = self.newer.lock().unwrap_or_else(PoisonError::into_inner);
        *newer = Some(config);
    }

    /// Whether another corpus is in force, and nobody has looked at it yet.
    pub(crate) fn has_newer(&self) -> bool {
        let newer = self.newer.lock().unwrap_or_else(PoisonError::into_inner);
        newer.is_some()
    }

    /// The same, once.
    pub(crate) fn take_newer(&self) -> Option<CellConfig> {
        let mut newer = self.newer.lock().unwrap_or_else(PoisonError::into_inner);
        newer.take()
    }

    pub(crate) fn doors(&self) -> MutexGuard<'_, Doors> {
        self.doors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves the backend's place to another process: leases end at once, and sockets and
    /// locks are free. Clients that are connected hear for a moment longer that nothing is
    /// taken here; those that come now are not greeted.
    ///
    /// Nobody adopts a configuration meanwhile, nor afterwards: that would have the members
    /// serve again. When this returns all of it is done, by this call or by one before;
    /// `false`: by one before.
    pub(crate) fn retire(&self, _adopting: &MutexGuard<'_, ()>) -> bool {
        let mut doors = self.doors();
        if doors.retired {
            return false;
        }
        doors.retired = true;
        drop(doors.unix.take());
        self.closing.send_replace(true);
        if let Some(target) = self.target.get() {
            let mut target = target.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(target) = target.as_mut() {
                target.hide();
            }
        }
        // What takes time is done: from here on there is no backend until another begins.
        for member in &self.members {
            member.renew_lease(control::LEASE_MOVED_NS);
            // Lookups by message, too: a successor may store something newer at once.
            member.end_service();
        }
        // Last: a successor may begin once the locks are free.
        doors.locks.clear();
        true
    }

    /// What is to be told of another process that is registered as a backend of this one.
    pub(crate) fn usurper(&self) -> Option<String> {
        self.doors().locks.iter().find_map(BackendLock::usurper)
    }

    /// Whether that is done.
    pub(crate) fn has_retired(&self) -> bool {
        self.doors().retired
    }

    /// How often each member has begun in the cell's life, this time included.
    pub(crate) fn begun(&self) -> Incarnations {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.clone()
    }

    /// A member that was taken over has begun as often as its predecessor.
    pub(crate) fn set_begun(&self, number: u32, count: u32) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.insert(number, count);
    }

    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(crate) fn begin_stopping(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Whether the fabric's poller gets on; nothing where no target runs.
    pub(crate) fn fabric_progress(&self) -> Option<Progress> {
        let target = self.target.get()?;
        let target = target.lock().unwrap_or_else(PoisonError::into_inner);
        target.as_ref().map(Target::progress)
    }

    /// The fabric's counters; zeros where no target runs.
    pub(crate) fn fabric_statistics(&self) -> trefoil_fabric::shm::Statistics {
        let target = self.target.get();
        let target = target.map(|t| t.lock().unwrap_or_else(PoisonError::into_inner));
        target
            .as_ref()
            .and_then(|target| target.as_ref().map(Target::statistics))
            .unwrap_or_default()
    }

    /// Changes the bound on the process's memory; returns the old one.
    pub(crate) fn set_memory_limit(&self, bytes: u64) -> Result<u64, MemoryError> {
        let previous = self.bound.set_limit(bytes)?;
        tracing::info!(previous, bytes, "memory limit changed");
        self.lending.set_all_len(self.bound.stores_len_max());
        self.share_out(self.bound.share());
        Ok(previous)
    }

    /// Notes what was set by command: it holds for whoever is started in the place of this
    /// process, too.
    pub(crate) fn note_memory_limit(&self, bytes: u64) {
        if let Some(note) = &self.limit_note
            && let Err(error) = note.write(bytes)
        {
            tracing::warn!(
                %error,
                "the memory limit is set, and cannot be noted: a backend that is started again after a death has the former one"
            );
        }
    }

    /// Bytes that the process holds. The system counts what is mapped: of memory
    /// objects that shrink it leaves out, until they are touched again, the rest of
    /// huge pages in which holes were made. The stores know what they have.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let mapped = trefoil_region::maps_foreign();
        let (resident, objects) = (Resident::now(), self.known().shared);
        own(mapped, resident, objects).total_with(objects)
    }

    /// What the stores and long messages account for.
    fn known(&self) -> Known {
        let mut stores = Known::default();
        for member in &self.members {
            let resident = member.store.stats().resident;
            stores.private += resident.private;
            stores.shared += resident.total() - resident.private;
        }
        // Long messages are on the stores' accounts, and private, as far as they
        // have arrived.
        let transient = &self.bound.transient;
        stores.moved = transient.moved();
        stores.private += transient.resident();
        stores.shared = stores.shared.saturating_sub(transient.charged());
        stores
    }

    /// Measures what the process holds and corrects the stores' shares. Returns what it
    /// holds privately and no store knows of, in bytes.
    pub(crate) fn correct_memory(&self) -> u64 {
        let share = self.lending.mean_share();
        let now_ms = self.now_ms();
        let mapped = trefoil_region::maps_foreign();
        let (resident, known) = measured_together(Resident::now, || self.known());
        let resident = own(mapped, resident, known.most.shared);
        match self.bound.correct(resident, known, share, now_ms) {
            Some(share) => {
                tracing::debug!(share, "memory share corrected");
                self.share_out(share);
            }
            None => self.lending.settle(),
        }
        resident.private.saturating_sub(known.most.private)
    }

    /// Whether long messages come just now.
    pub(crate) fn expects_long_messages(&self) -> bool {
        self.bound.expects_message(self.now_ms())
    }

    fn now_ms(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    /// The same, if nobody has for a moment: for whoever is about to make much
    /// resident at once, a long message.
    pub(crate) fn look_at_memory(&self) {
        let now_ms = self.now_ms();
        self.bound.expect_message(now_ms);
        let looked_ms = self.looked_ms.load(Ordering::Relaxed);
        if now_ms < looked_ms + LOOK_PAUSE_MS {
            return;
        }
        let is_mine = self
            .looked_ms
            .compare_exchange(looked_ms, now_ms, Ordering::Relaxed, Ordering::Relaxed)
            .is_ok();
        if is_mine {
            self.correct_memory();
        }
    }

    fn share_out(&self, share: u64) {
        self.lending.apply(share);
        self.gate.resize(self.lending.stores_len());
    }
}

/// What of it is this process's own: memory of others was mapped before it was measured, or
/// is now, which holds `objects` bytes of memory objects.
fn own(mapped_before: bool, resident: Resident, objects: u64) -> Resident {
    match mapped_before || trefoil_region::maps_foreign() {
        true => resident.without_foreign(objects),
        false => resident,
    }
}
