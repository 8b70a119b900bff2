//! Starting everything in the right order, and stopping it.
//!
//! ```text
//! sockets taken ─► regions and stores ─► corpus loaded ─► a whole lease has
//! passed ─► own lease renewed ─► fabric ─► RPC answers
//! ```
//!
//! A predecessor that died just before held a lease for at most [`LEASE`]:
//! readers may believe its memory until then, so this process neither answers
//! nor votes before.

use crate::access::Tokens;
use crate::background;
use crate::behind::Behind;
use crate::corpus;
use crate::descriptors::{SERVER_DESCRIPTORS, raise_descriptor_limit};
use crate::ending::Ending;
use crate::error::StartError;
use crate::follow;
use crate::handover;
use crate::lease::{self, LEASE};
use crate::lending::Lending;
use crate::listen::{ListenError, ListenOptions, Listeners};
use crate::local::LocalStore;
use crate::member::Member;
use crate::memory::{MemoryBound, MemoryError};
use crate::oom;
use crate::options::{FabricOptions, ServerOptions, partitions_for};
use crate::pace::CopyPace;
use crate::process::{Machine, Resident, usual_baseline};
use crate::queue::CellQueue;
use crate::recovery;
use crate::repair::{self, RepairOptions, Tally};
use crate::reporter::{MetricSource, Reporter};
use crate::resize::{self, Gather};
use crate::state::State;
use crate::stop::Stop;
use crate::tend;
use crate::transport::{self, TcpAccess};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::{Notify, watch};
use trefoil_cell::{
    BackendLock, CellConfig, ConfigStoreError, Incarnations, LimitNote, Mode, TokenFile,
};
use trefoil_fabric::Service as FabricService;
use trefoil_fabric::shm::{Export, Target, TargetError, TargetOptions, UserPolicy, successor_path};
use trefoil_layout::limits::PARTITION_COUNT_MAX;
use trefoil_layout::{ShardMap, Version, epoch};
use trefoil_region::{HugePages, ProgramPages};
use trefoil_rpc::v1::StatsResponse;
use trefoil_store::policy::PolicyKind;
use trefoil_store::{Regions, Store, StoreConfig};

/// How long calls in flight may take after a shutdown has begun.
const FAREWELL: Duration = Duration::from_secs(1);
/// How often it is looked whether they have ended.
const FAREWELL_LOOK: Duration = Duration::from_millis(1);
/// How often, and how long between, it is tried to take a predecessor's port for metrics.
const METRICS_LOOKS: u32 = 100;
const METRICS_PAUSE: Duration = Duration::from_millis(50);
/// The same after so many.
const METRICS_PAUSE_LONG: Duration = Duration::from_secs(1);
/// How long a predecessor that has let go may take to close its port, before it is told.
const PORT_PATIENCE: Duration = Duration::from_secs(1);
const PORT_PAUSE: Duration = Duration::from_millis(20);
/// Bytes of a huge page.
const HUGE_PAGE_LEN: u64 = 2 << 20;
/// Members with less than this do without huge pages: their memory comes and goes in too
/// small parts.
const HUGE_SHARE_MIN: u64 = 256 << 20;
/// An index page for every partition may take this share of the limit at most.
const HUGE_INDEX_SHARE: u64 = 16;
/// Client id of the versions that a first load gives: no client draws 0 bits.
const LOADER_ID: u64 = 1;

/// A running server. Dropping it shuts it down.
#[derive(Debug)]
pub struct Server {
    running: Running,
    tcp_address: Option<SocketAddr>,
    metrics_address: Option<SocketAddr>,
}

struct Running {
    state: Arc<State>,
    /// Taken when it ends.
    runtime: Option<Runtime>,
    stopping: watch::Sender<bool>,
    stop: Arc<Stop>,
    threads: Vec<JoinHandle<()>>,
    token_file: Option<TokenFile>,
    /// Of an immutable cell: what this process was started with.
    corpus_file: Option<PathBuf>,
    /// Of a process that takes another one's place, until it has.
    early: Option<Target>,
    /// Whoever it has copied from has gone: nothing but what was said ends it.
    has_only_copy: bool,
}

impl Server {
    /// Starts a server on sockets that were taken before. Returns when it
    /// serves, which is at least [`LEASE`] later.
    pub fn start(options: ServerOptions, listeners: Listeners) -> Result<Self, StartError> {
        let exclusive_since = Instant::now();
        let mut running = Running::prepare(&options, &|config, number| {
            first_epoch(&options.locks, config, number)
        })?;
        let config = running.state.config();
        for member in running
            .state
            .members
            .iter()
            .filter(|m| m.standing.is_some())
        {
            // Who was there before has lost what may not be that file's any more.
            let is_first = running.state.begun().get(&member.number) <= Some(&1);
            match (&options.load, &config.corpus) {
                (Some(path), corpus) if is_first || corpus.is_none() => {
                    load_corpus(member, &config, path)?;
                }
                _ => member.lacks_corpus(),
            }
        }
        running.corpus_file.clone_from(&options.load);
        running.state.doors().locks = options.locks;
        // The rest of the predecessor's lease; loading has taken some of it.
        std::thread::sleep(LEASE.saturating_sub(exclusive_since.elapsed()));

        // What was flushed while this process was starting.
        running.state.catch_up()?;

        running.tend(options.huge_pages)?;
        running.begin_leases()?;
        running.serve((options.fabric, options.repair), listeners)
    }

    /// The same in the place of a process that serves: copies all that it knows, has it
    /// go, takes its lock and its sockets, and goes on. If it cannot be had to go, it goes
    /// on, and this returns why; once it has gone, this waits for what can be mended, or until
    /// the process is to end ([`ServerOptions::ending`]). Metrics are served a moment later
    /// than the rest: their port belongs to the predecessor until it has ended.
    pub fn take_over(
        options: ServerOptions,
        listen: &ListenOptions,
        lock: impl Fn() -> Result<BackendLock, ConfigStoreError>,
    ) -> Result<Self, StartError> {
        let mut running = Running::prepare(&options, &|config, _| {
            Ok(Begins {
                // The predecessor's, once it is copied.
                epoch: epoch::FIRST,
                recovers: config.mode == Mode::R32,
                count: 0,
            })
        })?;
        // While the predecessor still serves.
        listen.check()?;
        running.tend(options.huge_pages)?;
        running.greet_early(&options.fabric, listen);
        let mut taken = Vec::new();
        if let Some(runtime) = &running.runtime {
            for member in &running.state.members {
                taken.push(handover::take(&running.state, member, runtime)?);
            }
        }
        running.unless_ended()?;
        running.hold_only_copy();
        // Nobody is the backend until its lease runs: nothing that can wait comes before.
        let lock = handover::await_lock(lock, &options.ending)?;
        running.state.doors().locks = vec![lock];
        // What was flushed meanwhile.
        running.state.catch_up_at_last()?;
        for member in &running.state.members {
            member.begin_service();
        }
        running.begin_leases()?;
        let members = running.state.members.iter();
        let finish = |(member, taken): (&Arc<Member>, handover::Taken)| taken.finish(member);
        let tools: Vec<_> = members.zip(taken).map(finish).collect();
        running.take_fabric_socket(&options.fabric, listen)?;
        // The rest may have to wait for a port, however long.
        drop(tools);
        let listen_at = ListenOptions {
            metrics: None,
            ..listen.clone()
        };
        let listeners = bind_after_predecessor(&listen_at, &options.ending)?;
        let server = running.serve((options.fabric, options.repair), listeners)?;
        if let Some(address) = listen.metrics {
            server.running.serve_metrics_soon(address);
        }
        Ok(server)
    }

    /// The same as a backend of a cell that is to have another size
    /// ([`crate::resize`](crate::Gather)): copies what it is to hold from those of the cell
    /// that is, and serves when it is told to begin. `claim` takes its number, `begun` says
    /// how often that has begun. By then those that it has copied from have gone: from the
    /// order to begin on it waits for whatever is in the way, and tells what that is.
    pub fn gather(
        options: ServerOptions,
        listen: &ListenOptions,
        gather: Gather,
        (claim, begun): (
            impl Fn() -> Result<BackendLock, ConfigStoreError>,
            impl Fn() -> Result<u32, ConfigStoreError>,
        ),
    ) -> Result<Self, StartError> {
        let new = gather.new.clone();
        let mut running = Running::prepare_for(&options, new, &|config, _| {
            Ok(Begins {
                // That of the old ones, once they are copied.
                epoch: epoch::FIRST,
                // What old ones took while others were frozen already is at two of three.
                recovers: config.mode == Mode::R32,
                count: 0,
            })
        })?;
        // While the old ones still serve.
        listen.check()?;
        running.tend(options.huge_pages)?;
        let member = running.state.members.first().map(Arc::clone);
        let runtime = running.runtime.as_ref().map(|of| of.handle().clone());
        if let (Some(runtime), Some(member)) = (runtime, member) {
            let pace = CopyPace::of_move(options.recovery_rate);
            resize::gather(&runtime, &running.state, &member, gather, pace)?;
            running.unless_ended()?;
            running.hold_only_copy();
            let lock = running.at_last(&claim)?;
            running.state.doors().locks = vec![lock];
            let begun = running.at_last(&begun)?;
            running.state.set_begun(member.number, begun);
        }
        // The configuration that was put in force, whatever was flushed meanwhile.
        running.state.catch_up_at_last()?;
        running.begin_leases()?;
        running.take_fabric_socket(&options.fabric, listen)?;
        let listen_at = ListenOptions {
            metrics: None,
            ..listen.clone()
        };
        let listeners = bind_after_predecessor(&listen_at, &options.ending)?;
        let server = running.serve((options.fabric, options.repair), listeners)?;
        if let Some(address) = listen.metrics {
            server.running.serve_metrics_soon(address);
        }
        Ok(server)
    }

    /// Rung when the backend's number has moved to another process: nothing is served here
    /// any more, and the process should end.
    pub fn retirement(&self) -> Arc<Notify> {
        Arc::clone(&self.running.state.retirement)
    }

    /// Why nothing is served here any more, where that is because another process was given
    /// the backend's place.
    pub fn place_taken(&self) -> Option<&str> {
        self.running.state.place_taken.get().map(String::as_str)
    }

    /// Where the RPC service listens over TCP.
    pub fn tcp_address(&self) -> Option<SocketAddr> {
        self.tcp_address
    }

    /// Where metrics are served.
    pub fn metrics_address(&self) -> Option<SocketAddr> {
        self.metrics_address
    }

    /// The store, if this process is the whole cell.
    pub fn local(&self) -> Option<LocalStore> {
        LocalStore::new(&self.running.state)
    }

    /// What `Stats` answers.
    pub fn statistics(&self) -> StatsResponse {
        crate::service::statistics(&self.running.state)
    }

    /// Reports a front door of this process beside the backends. One only: a
    /// second is ignored.
    pub fn report(&self, reporter: Arc<dyn Reporter>) {
        self.running.state.set_reporter(reporter);
    }

    /// Serves the metrics of another part of this process beside the backends' own.
    pub fn add_metrics(&self, source: Arc<dyn MetricSource>) {
        self.running.state.add_metric_source(source);
    }

    /// What its threads share.
    #[cfg(test)]
    pub(crate) fn state(&self) -> &Arc<State> {
        &self.running.state
    }

    /// Stops: readers at once, then messages, then calls in flight.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Running {
    /// Everything but what serves: regions and stores, and what all threads share.
    fn prepare(
        options: &ServerOptions,
        begins: &dyn Fn(&CellConfig, u32) -> Result<Begins, StartError>,
    ) -> Result<Self, StartError> {
        let config = options.config_store.load()?.ok_or(StartError::NoConfig)?;
        check_place(options, &config)?;
        Self::prepare_for(options, config, begins)
    }

    /// The same under a configuration that may not be in force yet.
    fn prepare_for(
        options: &ServerOptions,
        config: CellConfig,
        begins: &dyn Fn(&CellConfig, u32) -> Result<Begins, StartError>,
    ) -> Result<Self, StartError> {
        trefoil_region::return_long_blocks();
        trefoil_region::share_heaps();
        if let Err(descriptors) = raise_descriptor_limit(SERVER_DESCRIPTORS) {
            tracing::info!(
                descriptors,
                "the system allows few descriptors: clients beyond them go without shared memory, or are refused; raise the limit (ulimit -n)"
            );
        }
        check(options, &config)?;
        let runtime = start_runtime(options.rpc_thread_count)?;
        let machine = Machine::now();
        let plan = plan_regions(options, &config, &machine);
        // What parsing the command line has touched is not what it takes to serve.
        ProgramPages::find().give_back();
        let baseline = Resident::now().total();
        let count = options.members.len();
        let usual = usual_baseline();
        let bound = |limit| MemoryBound::new(limit, plan.limit_max, baseline, usual, count);
        let bound = match bound(options.memory_limit) {
            // What others were given last, by command: this program needs more for itself.
            Err(MemoryError::TooSmall { needed, .. })
                if options.limit_note.as_ref().and_then(LimitNote::read)
                    == Some(options.memory_limit) =>
            {
                tracing::warn!(
                    limit = options.memory_limit,
                    needed,
                    "the limit that was set last is too small for this process: it has what it needs"
                );
                bound(needed)?
            }
            bound => bound?,
        };
        let incarnation = rand::random::<u64>() | 1;
        let stop = Arc::<Stop>::default();
        let behind = Arc::new(Behind::new(Arc::clone(&stop)));
        let lending = Arc::<Lending>::default();
        let mut begun = Incarnations::new();
        let members = options
            .members
            .iter()
            .map(|&number| {
                let share = bound.share();
                let begins = begins(&config, number)?;
                begun.insert(number, begins.count);
                let task = Task {
                    number,
                    epoch: begins.epoch,
                    incarnation,
                    share,
                };
                let store = make_store(options, &config, task, plan)?;
                let (behind, lending) = (Arc::clone(&behind), Arc::clone(&lending));
                let recovers = begins.recovers;
                let interval = options.repair.interval;
                let is_repaired = config.mode == Mode::R32 && !interval.is_zero();
                let repair = is_repaired.then(|| Tally::new(interval));
                let member = Member::new(number, &config, store, behind, lending, recovers, repair);
                Ok(Arc::new(member))
            })
            .collect::<Result<Vec<_>, StartError>>()?;
        if options.queue {
            for member in &members {
                let number = member.number;
                let queue = CellQueue::start(member);
                let queue = queue.map_err(|source| StartError::QueueSetUp { number, source })?;
                let _ = member.queue.set(queue);
            }
        }
        let config_store = options.config_store.clone();
        let mut state = State::new(members, bound, config_store, config, begun, behind, lending);
        state.layout_version = options.layout_version.into();
        state.recovery_rate = options.recovery_rate;
        state.local = options.local.clone();
        state.limit_note.clone_from(&options.limit_note);
        state.ending = options.ending.clone();
        let (stopping, _) = watch::channel(false);
        Ok(Running {
            state: Arc::new(state),
            runtime: Some(runtime),
            stopping,
            stop,
            threads: Vec::new(),
            token_file: None,
            corpus_file: None,
            early: None,
            has_only_copy: false,
        })
    }

    /// From now on nobody else knows what this process knows.
    fn hold_only_copy(&mut self) {
        self.has_only_copy = true;
        oom::put_back();
    }

    /// Nothing is waited for by a process that is to end.
    fn unless_ended(&self) -> Result<(), StartError> {
        match self.state.ending.is_said() {
            true => Err(StartError::Ended),
            false => Ok(()),
        }
    }

    /// Has the stores tended from now on.
    fn tend(&mut self, huge_pages: bool) -> Result<(), StartError> {
        self.spawn("trefoil-tend", move |state, stop| {
            tend::run(state, stop, huge_pages)
        })
    }

    /// Has clients map the stores of a process that is to take another one's place, before it
    /// does: in the moment in which nobody is the backend they would all have to. Nothing is
    /// executed here and no lease runs until then. Without it they come later.
    fn greet_early(&mut self, fabric: &FabricOptions, listen: &ListenOptions) {
        let Some(path) = &listen.fabric else {
            return;
        };
        for member in &self.state.members {
            member.keep_closed();
        }
        let path = successor_path(path);
        let options = TargetOptions {
            is_successor: true,
            ..target_options(fabric, &path, &listen.users)
        };
        match start_fabric(options, &self.state) {
            Ok(target) => self.early = Some(target),
            Err(error) => {
                tracing::info!(%error, "clients are not greeted before this process serves");
            }
        }
    }

    /// Listens where the predecessor has given its memory to clients. This process has the only
    /// copy by now, so it waits for as long as that takes.
    fn take_fabric_socket(
        &mut self,
        fabric: &FabricOptions,
        listen: &ListenOptions,
    ) -> Result<(), StartError> {
        let Some(path) = &listen.fabric else {
            return Ok(());
        };
        fn tell(error: &impl std::fmt::Display) {
            tracing::warn!(%error, "clients that come now are not served before this is mended");
        }
        let pause = |pause| self.state.ending.pause(pause);
        let target = match self.early.take() {
            Some(mut target) => {
                let take = || target.take_place(path);
                let taken = trefoil_cell::wait_out(take, |_| true, tell, pause);
                taken.map_err(TargetError::from)?;
                target
            }
            None => {
                let options = target_options(fabric, path, &listen.users);
                let start = || start_fabric(options.clone(), &self.state);
                trefoil_cell::wait_out(start, |_| true, tell, pause)?
            }
        };
        let _ = self.state.target.set(Mutex::new(Some(target)));
        Ok(())
    }

    /// From now on this process is its backends, for clients that know its memory, and
    /// follows what the configuration becomes: they act on it before its sockets are there.
    fn begin_leases(&mut self) -> Result<(), StartError> {
        lease::renew(&self.state);
        self.spawn_at_last("trefoil-lease", || Ok(lease::run))?;
        match self.state.config_store.is_remote() {
            true => self.spawn_at_last("trefoil-config", || Ok(follow::run)),
            false => Ok(()),
        }
    }

    /// Tries until it succeeds, in a process that may be the only one that knows what it
    /// knows: it waits for whatever is in the way. Any other ends with its first failure, and
    /// nothing is lost.
    fn at_last<T, E: std::fmt::Display>(
        &self,
        attempt: impl FnMut() -> Result<T, E>,
    ) -> Result<T, E> {
        let tell = |error: &E| {
            tracing::warn!(%error, "nothing else is begun before this has passed or is mended");
        };
        let pause = |pause| self.state.ending.pause(pause);
        trefoil_cell::wait_out(attempt, |_| self.has_only_copy, tell, pause)
    }

    /// The same for a thread.
    fn spawn_at_last<W>(
        &mut self,
        name: &'static str,
        work: impl Fn() -> Result<W, StartError>,
    ) -> Result<(), StartError>
    where
        W: FnOnce(&Arc<State>, &Stop) + Send + 'static,
    {
        let thread = self.at_last(|| self.thread(name, work()?))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Readers, messages, calls, for everybody.
    fn serve(
        mut self,
        (fabric, repair): (FabricOptions, RepairOptions),
        listeners: Listeners,
    ) -> Result<Server, StartError> {
        if let Some(tls) = &listeners.tls {
            let _ = self.state.tls.set(tls.clone());
        }
        if let Some(path) = listeners.fabric_socket()
            && self.state.target.get().is_none()
        {
            let options = target_options(&fabric, path, &listeners.users);
            let target = start_fabric(options, &self.state)?;
            let _ = self.state.target.set(Mutex::new(Some(target)));
        }
        if self.state.members.iter().any(|m| m.recovery.is_some()) {
            self.spawn_at_last("trefoil-recover", || {
                let runtime = runtime_for("the recovery")?;
                Ok(move |state: &Arc<State>, stop: &Stop| recovery::run(state, stop, &runtime))
            })?;
        }
        if let Some(runtime) = &self.runtime
            && self.state.members.iter().any(|m| m.standing.is_some())
        {
            let (runtime, file) = (runtime.handle().clone(), self.corpus_file.take());
            self.spawn("trefoil-corpus", move |state, stop| {
                corpus::run(state, stop, &runtime, file);
            })?;
        }
        for member in &self.state.members.clone() {
            if member.repair.is_some() {
                self.spawn_at_last("trefoil-repair", || {
                    let (runtime, member) = (runtime_for("repair")?, Arc::clone(member));
                    Ok(move |state: &Arc<State>, stop: &Stop| {
                        repair::run(state, stop, &member, (repair, &runtime));
                    })
                })?;
            }
        }
        let (tcp_address, metrics_address) = (listeners.tcp_address(), listeners.metrics_address());
        if let Some(address) = metrics_address {
            let _ = self.state.metrics_address.set(address);
        }
        self.listen(listeners)?;
        let members: Vec<u32> = self.state.members.iter().map(|m| m.number).collect();
        tracing::info!(
            cell = self.state.config().cell,
            ?members,
            ?tcp_address,
            "serving"
        );
        Ok(Server {
            running: self,
            tcp_address,
            metrics_address,
        })
    }

    /// Serves metrics when the port is free.
    fn serve_metrics_soon(&self, address: SocketAddr) {
        let Some(runtime) = &self.runtime else {
            return;
        };
        let (state, stopping) = (Arc::clone(&self.state), self.stopping.subscribe());
        runtime.spawn(async move {
            let mut looks = 0u32;
            let listener = loop {
                let taken = tokio::net::TcpListener::bind(address).await;
                looks = looks.saturating_add(1);
                match taken {
                    Ok(listener) => {
                        let _ = state.metrics_address.set(address);
                        break listener;
                    }
                    Err(error) if looks == METRICS_LOOKS => {
                        tracing::error!(%address, %error, "metrics are not served before the port is free");
                    }
                    Err(_) => {}
                }
                let pause = match looks < METRICS_LOOKS {
                    true => METRICS_PAUSE,
                    false => METRICS_PAUSE_LONG,
                };
                tokio::select! {
                    () = transport::stopped(stopping.clone()) => return,
                    () = tokio::time::sleep(pause) => {}
                }
            };
            transport::metrics_over_tcp(listener, state, stopping).await;
        });
    }

    fn spawn(
        &mut self,
        name: &'static str,
        run: impl FnOnce(&Arc<State>, &Stop) + Send + 'static,
    ) -> Result<(), StartError> {
        let thread = self.thread(name, run)?;
        self.threads.push(thread);
        Ok(())
    }

    fn thread(
        &self,
        name: &'static str,
        run: impl FnOnce(&Arc<State>, &Stop) + Send + 'static,
    ) -> Result<JoinHandle<()>, StartError> {
        let (state, stop) = (Arc::clone(&self.state), Arc::clone(&self.stop));
        std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || run(&state, &stop))
            .map_err(|source| StartError::System { what: name, source })
    }

    fn listen(&mut self, listeners: Listeners) -> Result<(), StartError> {
        let stopping = self.stopping.subscribe();
        let fail = |source| StartError::System {
            what: "listening",
            source,
        };
        let Some(runtime) = &self.runtime else {
            return Ok(());
        };
        let _entered = runtime.enter();
        let Listeners {
            tcp,
            unix,
            metrics,
            users,
            token,
            token_rights,
            token_file,
            tls,
            ..
        } = listeners;
        self.token_file = token_file;
        if let Some(tcp) = tcp {
            let listener = tokio::net::TcpListener::from_std(tcp).map_err(fail)?;
            let state = Arc::clone(&self.state);
            let access = match &tls {
                None => TcpAccess::Token(Tokens {
                    own: Arc::new(token),
                    listed: token_rights,
                }),
                Some(tls) => TcpAccess::Certificates(tls.clone()),
            };
            let closing = state.closing.subscribe();
            tokio::spawn(transport::rpc_over_tcp(
                listener,
                access,
                state,
                (stopping.clone(), closing),
            ));
        }
        if let Some(unix) = unix {
            let listener = unix.listener.try_clone().map_err(fail)?;
            let listener = tokio::net::UnixListener::from_std(listener).map_err(fail)?;
            let state = Arc::clone(&self.state);
            tokio::spawn(transport::rpc_over_unix(
                listener,
                users,
                state,
                stopping.clone(),
            ));
            self.state.doors().unix = Some(unix);
        }
        if let Some(tls) = tls {
            tokio::spawn(transport::watch_certificates(tls, stopping.clone()));
        }
        if let Some(metrics) = metrics {
            let listener = tokio::net::TcpListener::from_std(metrics).map_err(fail)?;
            let state = Arc::clone(&self.state);
            tokio::spawn(transport::metrics_over_tcp(listener, state, stopping));
        }
        Ok(())
    }
}

impl Running {
    /// Waits for the calls in flight, and for clients to hang up: each connection holds a
    /// receiver until it has ended. With the runtime they would be cut off instead, and who
    /// had called would not know what became of it.
    fn await_connections(&self) {
        let by = Instant::now() + FAREWELL;
        while self.stopping.receiver_count() > 0 && Instant::now() < by {
            std::thread::sleep(FAREWELL_LOOK);
        }
    }
}

impl Drop for Running {
    /// Also ends what a start that failed half-way had begun.
    fn drop(&mut self) {
        tracing::info!("shutting down");
        self.state.begin_stopping();
        // At once: clients go elsewhere with their next call, and calls in flight end while
        // the threads do.
        let _ = self.stopping.send(true);
        drop(self.state.doors().unix.take());
        drop(self.token_file.take());
        // First the renewals, or one would follow the revocation.
        self.stop.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        for member in &self.state.members {
            member.end_queue();
            member.store.revoke();
        }
        drop(self.early.take());
        if let Some(target) = self.state.target.get() {
            drop(target.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
        self.await_connections();
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(FAREWELL);
        }
        for member in &self.state.members {
            member.store.give_back();
        }
        // Last: a successor may begin once the locks are free.
        self.state.doors().locks.clear();
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("members", &self.state.members)
            .finish_non_exhaustive()
    }
}

/// Takes the sockets of a predecessor that has let go of them a moment ago. This process has
/// the only copy by now, so it waits for as long as it takes; clients with shared memory are
/// served meanwhile.
fn bind_after_predecessor(
    options: &ListenOptions,
    ending: &Ending,
) -> Result<Listeners, ListenError> {
    let by = Instant::now() + PORT_PATIENCE;
    while Instant::now() < by {
        match Listeners::bind(options) {
            Err(error) if error.is_port_in_use() && ending.pause(PORT_PAUSE) => {}
            Err(_) => break,
            taken => return taken,
        }
    }
    let tell = |error: &ListenError| {
        tracing::warn!(%error, "only clients with shared memory are served until this is mended");
    };
    let pause = |pause| ending.pause(pause);
    trefoil_cell::wait_out(|| Listeners::bind(options), |_| true, tell, pause)
}

fn check(options: &ServerOptions, config: &CellConfig) -> Result<(), StartError> {
    if options.members.is_empty() {
        return Err(StartError::NoMembers);
    }
    for (index, &number) in options.members.iter().enumerate() {
        if config.backend(number).is_none() || options.members[..index].contains(&number) {
            let last = config.backends.len() as u32 - 1;
            return Err(StartError::Member { number, last });
        }
    }
    if options.queue && config.mode.is_immutable() {
        return Err(StartError::Queue(config.mode));
    }
    match (config.mode.is_immutable(), &options.load) {
        (true, None) => Err(StartError::NoCorpus),
        (false, Some(_)) => Err(StartError::NotImmutable(config.mode)),
        _ => Ok(()),
    }
}

/// Refuses a place that another process was given since whoever starts this one looked. From
/// here on the configuration is followed, and a change of the place is noticed as one.
fn check_place(options: &ServerOptions, config: &CellConfig) -> Result<(), ConfigStoreError> {
    let Some(own) = &options.place else {
        return Ok(());
    };
    for &number in &options.members {
        if let Some(place) = config.backend(number)
            && !own.is(place)
        {
            let texts: Vec<String> = place.addresses.iter().map(ToString::to_string).collect();
            let holder = texts.join(", ");
            return Err(ConfigStoreError::PlaceTaken { number, holder });
        }
    }
    Ok(())
}

/// For a thread that works beside what is served.
fn runtime_for(what: &'static str) -> Result<Runtime, StartError> {
    background::runtime().map_err(|source| StartError::System { what, source })
}

fn start_runtime(thread_count: usize) -> Result<Runtime, StartError> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(thread_count.max(1))
        .max_blocking_threads(8)
        .thread_name("trefoil-rpc")
        .enable_all()
        .build()
        .map_err(|source| StartError::System {
            what: "the RPC service's threads",
            source,
        })
}

/// Partitions of each member: about as many as were asked for, but as many of
/// each shard.
fn partition_count(options: &ServerOptions, config: &CellConfig) -> usize {
    let copies = config.mode.copy_count();
    let asked = options.partition_count;
    let asked = asked.unwrap_or_else(|| partitions_for(options.share()));
    let fits = asked.next_multiple_of(copies) <= PARTITION_COUNT_MAX;
    match fits || asked > PARTITION_COUNT_MAX {
        true => asked.next_multiple_of(copies),
        false => asked / copies * copies,
    }
}

/// How the members' regions are made.
#[derive(Clone, Copy)]
struct RegionPlan {
    /// Of each member.
    partitions: usize,
    huge: HugePages,
    /// The highest limit of the process that can be set while it lives.
    limit_max: u64,
}

/// Huge pages are used if the system has enough of them free; then all that
/// are free bound the limit. A small store does without: every partition's
/// index takes at least one.
fn plan_regions(options: &ServerOptions, config: &CellConfig, machine: &Machine) -> RegionPlan {
    let partitions = partition_count(options, config);
    let frames = (options.members.len() * partitions) as u64 * HUGE_PAGE_LEN;
    let is_large =
        options.share() >= HUGE_SHARE_MIN && options.memory_limit / HUGE_INDEX_SHARE >= frames;
    if options.huge_pages && is_large && machine.huge_free >= options.memory_limit {
        RegionPlan {
            partitions,
            huge: HugePages::Auto,
            limit_max: machine.huge_free,
        }
    } else {
        RegionPlan {
            partitions,
            huge: HugePages::Off,
            limit_max: machine.memory,
        }
    }
}

/// What tells a member's store from those of its cohort, and from its own in
/// another incarnation.
#[derive(Clone, Copy)]
struct Task {
    number: u32,
    epoch: u32,
    incarnation: u64,
    share: u64,
}

/// How a backend begins.
#[derive(Clone, Copy)]
struct Begins {
    /// In the cell's life, from 1.
    count: u32,
    epoch: u32,
    /// It has forgotten what it acknowledged.
    recovers: bool,
}

/// The epoch that a backend begins with: the first one in its first incarnation of a
/// cell's life. One that comes back empty has forgotten what it acknowledged: it begins
/// in an epoch of its own, whose votes pair with nobody's, and has no vote at all until
/// it has recovered and raised its cohorts' epochs.
fn first_epoch(
    locks: &[BackendLock],
    config: &CellConfig,
    number: u32,
) -> Result<Begins, StartError> {
    let lock = locks.iter().find(|lock| lock.number() == number);
    let count = lock.map_or(Ok(1), |lock| lock.begin_incarnation(config.life))?;
    let recovers = count > 1 && config.mode == Mode::R32;
    if recovers {
        tracing::info!(
            backend = number,
            incarnation = count,
            "restarted empty: it recovers"
        );
    }
    let used_up = StartError::IncarnationsUsedUp { number, count };
    let epoch = epoch::of_incarnation(count, number).ok_or(used_up)?;
    Ok(Begins {
        count,
        epoch,
        recovers,
    })
}

fn make_store(
    options: &ServerOptions,
    config: &CellConfig,
    task: Task,
    plan: RegionPlan,
) -> Result<Store, StartError> {
    let number = task.number;
    let fail = |source| StartError::Store { number, source };
    let policy: PolicyKind = config.eviction.parse()?;
    let store_config = StoreConfig {
        partition_count: plan.partitions,
        shards: ShardMap::new(config.placement(), number),
        config_id: config.config_id,
        epoch: task.epoch,
        incarnation: task.incarnation,
        hasher: config.hash,
        policy,
        memory_limit: task.share,
        value_len_max: config.value_len_max as usize,
        objects_max: options.objects_max,
        tombstone_count_max: options.tombstone_count_max.div_ceil(plan.partitions.max(1)),
        immutable: config.mode.is_immutable(),
        flush_floor: config.flush_floor,
    };
    let name = format!("trefoil-{}-{number}", config.cell);
    let region_max = plan.limit_max / options.members.len() as u64;
    let regions = Regions::memfd(&name, region_max.max(task.share), plan.huge).map_err(fail)?;
    Store::new(store_config, regions).map_err(fail)
}

/// Fills an immutable member. All replicas give the same versions, because they derive
/// from the configuration and the order of the file.
fn load_corpus(member: &Member, config: &CellConfig, path: &Path) -> Result<(), StartError> {
    let fail = |source| StartError::Corpus {
        path: path.to_owned(),
        source,
    };
    let value_len_max = config.value_len_max as usize;
    let corpus = config.corpus.as_ref();
    let first = corpus.map_or(
        Version::new(u64::from(config.config_id), LOADER_ID, 0),
        |corpus| corpus.first,
    );
    // As a second corpus beside an empty one: nothing of it is evicted while it loads.
    let store = &member.store;
    store.begin_reload().map_err(|e| fail(e.into()))?;
    let loaded = corpus::load_file(member, path, corpus, (first, value_len_max), &|| None);
    let loaded = loaded.map_err(fail)?;
    store.finish_reload().map_err(|e| fail(e.into()))?;
    member.has_corpus(config.corpus.clone());
    tracing::info!(
        backend = member.number,
        items = loaded.items,
        lines = loaded.lines,
        "corpus loaded"
    );
    Ok(())
}

fn target_options(fabric: &FabricOptions, path: &Path, users: &UserPolicy) -> TargetOptions {
    let usual = TargetOptions::new(path);
    TargetOptions {
        spin: fabric.spin.unwrap_or(usual.spin),
        client_count_max: fabric.client_count_max.unwrap_or(usual.client_count_max),
        cpu: fabric.cpu,
        users: users.clone(),
        ..usual
    }
}

fn start_fabric(options: TargetOptions, state: &State) -> Result<Target, StartError> {
    let export = |member: &Arc<Member>| {
        let number = member.number;
        let fail = |source| StartError::Export { number, source };
        let regions = member.store.regions();
        let (Some(control), Some(index), Some(data)) = (
            regions.control.object(),
            regions.index.object(),
            regions.data.object(),
        ) else {
            return Ok(None);
        };
        let service: Arc<dyn FabricService> = Arc::clone(member) as _;
        let hasher = member.store.config().hasher;
        let objects = [control, index, data];
        Export::new(number, hasher, member.shape(), objects, service)
            .map(Some)
            .map_err(fail)
    };
    let exports: Result<Vec<Option<Export>>, StartError> =
        state.members.iter().map(export).collect();
    let exports = exports?.into_iter().flatten().collect();
    Ok(Target::start(options, exports)?)
}
