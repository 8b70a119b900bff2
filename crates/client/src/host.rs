//! The client library as the driver's world: the system's clocks, connections made
//! by threads of their own, configurations loaded likewise.

use crate::asynchronous::Signals;
use crate::cell::Shared;
use crate::engines::{By, NoHello, engine_address, engine_of};
use crate::port::ClientPort;
use crate::pulse;
use crate::rpc::{Bell, Rpc, RpcPort, is_refused};
use crate::successor::{Awaited, Claim, Foreseen, Place, Successor};
use crate::time;
use std::collections::{HashMap, HashSet, VecDeque};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use trefoil_cell::RpcAddress;
use trefoil_driver::{Clock, Event, Host, NotConnected, Options, Topology};
use trefoil_fabric::shm::{ConnectError, ConnectOptions, Early};
use trefoil_layout::KeyHash;
use trefoil_rpc::v1;
use trefoil_softnic::{DatagramUse, EngineAddress, EnginePort, Sessions};

/// Patience with an empty call to a backend that was silent.
const PING_PATIENCE: Duration = Duration::from_millis(500);

/// Patience with a backend that is asked for its engine, and with the greeting of an engine.
const ENGINE_PATIENCE: Duration = Duration::from_millis(500);
/// Patience with both together the first time, when operations wait for it: after that they
/// go by calls, and the engine is looked for again as soon as the link is tried anew.
const FIRST_ENGINE_PATIENCE: Duration = Duration::from_millis(200);
/// What an engine is left of it at least.
const ENGINE_PATIENCE_MIN: Duration = Duration::from_millis(20);

/// Patience with the greeting of one that was silent a moment ago.
const HUSHED_PATIENCE: Duration = Duration::from_millis(100);

/// Events that threads have brought.
#[derive(Default)]
struct Mailbox {
    events: Mutex<VecDeque<Event<ClientPort>>>,
    count: AtomicUsize,
}

impl Mailbox {
    fn put(&self, event: Event<ClientPort>, bell: &Bell) {
        self.lock().push_back(event);
        self.count.fetch_add(1, Ordering::SeqCst);
        bell.ring();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Event<ClientPort>>> {
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a thread is to bring. Something comes whatever becomes of the thread, also if it
/// panics or there is none: the driver does not begin again what it believes under way.
struct Owed {
    mailbox: Arc<Mailbox>,
    bell: Arc<Bell>,
    event: Option<Event<ClientPort>>,
}

impl Owed {
    /// Has `bring` find out what comes, in a thread of its own. `None`: somebody else has
    /// brought it.
    fn by_thread(
        self,
        name: &'static str,
        bring: impl FnOnce() -> Option<Event<ClientPort>> + Send + 'static,
    ) {
        let spawned = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || self.bring(bring()));
        if let Err(error) = spawned {
            tracing::warn!(name, %error, "no thread");
        }
    }

    fn bring(mut self, event: Option<Event<ClientPort>>) {
        self.event = event;
    }
}

impl Drop for Owed {
    fn drop(&mut self) {
        if let Some(event) = self.event.take() {
            self.mailbox.put(event, &self.bell);
        }
    }
}

/// Why nothing has come of a thread.
const NO_THREAD: &str = "its thread has died, or there was none";

/// See the module. One belongs to each client.
pub(crate) struct ClientHost {
    shared: Arc<Shared>,
    foreseen: Foreseen,
    awaited: Vec<Awaited>,
    mailbox: Arc<Mailbox>,
    bell: Arc<Bell>,
    clock_offset_ns: i64,
    /// Where an engine listens, if one is to be used.
    engine: Option<SocketAddr>,
    /// Whether it is asked over UDP.
    datagrams: DatagramUse,
    /// Whether messages go by engines, too.
    messages: bool,
    /// With engines.
    sessions: Arc<Sessions>,
    /// Backends that were connected to before: where only calls reach one, the next
    /// time is because it was silent.
    knocked: HashSet<u32>,
    /// What [`Reaches::reached`](crate::reaches::Reaches::reached) said of those that
    /// this client has a connection to.
    seen: HashMap<u32, u64>,
    /// What else to be ready for, and whether its queue does not count just now.
    pub(crate) signals: Option<Arc<Signals>>,
    pub(crate) ignores_queue: bool,
}

impl ClientHost {
    pub(crate) fn new(shared: Arc<Shared>, options: &Options) -> Self {
        pulse::begin();
        ClientHost {
            shared,
            foreseen: Foreseen::default(),
            awaited: Vec::new(),
            mailbox: Arc::default(),
            bell: Arc::new(Bell::new()),
            clock_offset_ns: options.clock_offset_ms.saturating_mul(1_000_000),
            engine: options.engine,
            datagrams: match (options.engine_datagrams, options.engine_paced) {
                (false, _) => DatagramUse::No,
                (true, true) => DatagramUse::Yes,
                (true, false) => DatagramUse::Unpaced,
            },
            messages: options.engine_messages,
            sessions: Arc::default(),
            knocked: HashSet::new(),
            seen: HashMap::new(),
            signals: None,
            ignores_queue: false,
        }
    }

    /// What calls and threads ring when something has come.
    pub(crate) fn bell(&self) -> &Arc<Bell> {
        &self.bell
    }

    /// Whether an event has come, or a submission.
    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.has_event()
            || self.signals.as_ref().is_some_and(|signals| {
                signals.dropped.load(Ordering::SeqCst) > 0
                    || !self.ignores_queue && signals.queued.load(Ordering::SeqCst) > 0
            })
    }

    /// The wall clock is set.
    pub(crate) fn set_clock_offset_ms(&mut self, offset_ms: i64) {
        self.clock_offset_ns = offset_ms.saturating_mul(1_000_000);
    }

    #[inline]
    pub(crate) fn has_event(&self) -> bool {
        self.mailbox.count.load(Ordering::SeqCst) > 0 || self.awaited.iter().any(Awaited::serves)
    }

    /// A successor serves, and its thread has not got to run since.
    fn successor_event(&mut self) -> Option<Event<ClientPort>> {
        let connected = self.awaited.iter().find_map(|awaited| {
            let connection = awaited.serves().then(|| awaited.connection())??;
            Some(Event::Connected {
                backend: awaited.backend,
                topology: Arc::clone(&awaited.topology),
                result: Ok(ClientPort::Shm(connection)),
            })
        });
        self.awaited.retain(|awaited| !awaited.is_over());
        connected
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.bell.descriptor()
    }
}

impl ClientHost {
    /// What a thread is to bring; `otherwise` if it does not.
    fn owed(&self, otherwise: Event<ClientPort>) -> Owed {
        Owed {
            mailbox: Arc::clone(&self.mailbox),
            bell: Arc::clone(&self.bell),
            event: Some(otherwise),
        }
    }

    /// The same of a connection.
    fn owed_connection(
        &self,
        topology: &Arc<Topology>,
        backend: u32,
        otherwise: NotConnected,
    ) -> Owed {
        self.owed(Event::Connected {
            backend,
            topology: Arc::clone(topology),
            result: Err(otherwise),
        })
    }

    /// By way of an engine. One that is away, or does not read this backend, says nothing
    /// of the backend: that is asked by a call.
    fn connect_engine(
        &self,
        topology: &Arc<Topology>,
        backend: u32,
        engine: SocketAddr,
        is_first: bool,
    ) {
        let owed = self.owed_connection(topology, backend, NotConnected::down(NO_THREAD));
        let (rpc, reaches) = (
            Arc::clone(&self.shared.rpc),
            Arc::clone(&self.shared.reaches),
        );
        let thread_topology = Arc::clone(topology);
        let (datagrams, messages) = (self.datagrams, self.messages);
        let sessions = Arc::clone(&self.sessions);
        let connect = move || {
            let life = thread_topology.id().life;
            let mut address = engine_address(engine, engine.ip().to_string(), rpc.tls());
            address.datagrams = datagrams;
            let port = EnginePort::connect(&address, (backend, life), messages, ENGINE_PATIENCE);
            let port = port.map(|port| sessions.join(&address, port));
            let result = port.map(|port| ClientPort::Engine(Box::new(port)));
            let result = result.map_err(|error| match is_first {
                true => Ok(error),
                // A backend that does not run is not called, either.
                false => ask(&rpc, &thread_topology, backend).map(|()| {
                    reaches.answered(backend);
                    error
                }),
            });
            let result = result.map_err(|error| match error {
                Ok(error) => NotConnected {
                    why: error.to_string(),
                    is_down: false,
                    is_final: false,
                },
                Err(why) => silent(&why),
            });
            Some(Event::Connected {
                backend,
                topology: thread_topology,
                result,
            })
        };
        owed.by_thread("trefoil-connect", connect);
    }
}

impl Clock for ClientHost {
    #[inline(always)]
    fn coarse_ns(&self) -> u64 {
        time::coarse_ns()
    }

    #[inline(always)]
    fn monotonic_ns(&self) -> u64 {
        time::monotonic_ns()
    }

    #[inline(always)]
    fn unix_ns(&self) -> u64 {
        time::unix_ns().saturating_add_signed(self.clock_offset_ns)
    }

    #[inline(always)]
    fn coarse_unix_ms(&self) -> u64 {
        time::coarse_unix_ms()
    }
}

impl Host for ClientHost {
    type Port = ClientPort;

    fn random(&mut self) -> u64 {
        random()
    }

    fn running_since_ns(&self) -> u64 {
        pulse::running_since_ns()
    }

    /// In a thread of its own: a process that hangs lets one knock and does not
    /// answer.
    fn connect(&mut self, topology: &Arc<Topology>, backend: u32, has_moved: bool) {
        let Some(config) = topology.config().backend(backend) else {
            let none = NotConnected::down("no such backend");
            return drop(self.owed_connection(topology, backend, none));
        };
        let is_first = self.knocked.insert(backend);
        let foreseen = self.foreseen.take(backend);
        if let Some(engine) = self.engine {
            return self.connect_engine(topology, backend, engine, is_first);
        }
        let socket = config.fabric_socket.clone();
        if socket.is_none() && is_first {
            return drop(self.owed_connection(topology, backend, no_shared_memory()));
        }
        let is_remote = |a: &RpcAddress| matches!(a, RpcAddress::Tcp { .. }) && !a.is_local();
        let is_reached_elsewhere = config.addresses.iter().any(is_remote);
        let thread_topology = Arc::clone(topology);
        let (datagrams, messages) = (self.datagrams, self.messages);
        let sessions = Arc::clone(&self.sessions);
        let (rpc, reaches) = (
            Arc::clone(&self.shared.rpc),
            Arc::clone(&self.shared.reaches),
        );
        let mut options = ConnectOptions {
            servers: self.shared.servers.clone(),
            ..ConnectOptions::default()
        };
        if self.shared.hushed.holds(backend) {
            options.timeout = HUSHED_PATIENCE;
        }
        let claim = Claim::of(foreseen);
        if has_moved {
            self.awaited.push(Awaited {
                backend,
                topology: Arc::clone(topology),
                claim: claim.clone(),
            });
        }
        let connect = move || {
            let connected = match &socket {
                None => Err(no_shared_memory()),
                Some(socket) => {
                    let options = &options;
                    let place = Place {
                        socket,
                        backend,
                        options,
                    };
                    let successor = Successor::new(claim, has_moved);
                    match successor.connect(place, thread_topology.id())? {
                        Err(error) => Err(judge(&error, is_reached_elsewhere)),
                        Ok(connection) if connection.agreement().topology.is_changing() => {
                            Err(NotConnected::down("the backend is leaving its place"))
                        }
                        Ok(connection) => {
                            let found = connection.agreement().topology.life;
                            let is_ours = found == thread_topology.id().life;
                            match is_ours || !is_reached_elsewhere {
                                true => Ok(connection),
                                false => Err(another_cells()),
                            }
                        }
                    }
                }
            };
            let result = match connected {
                Ok(connection) => Ok(ClientPort::Shm(connection)),
                Err(error) if error.is_down => Err(error),
                // It may be on another host, which may have an engine.
                Err(error) => {
                    let (config, asked) = (thread_topology.config(), Instant::now());
                    let patience = match is_first {
                        true => FIRST_ENGINE_PATIENCE,
                        false => ENGINE_PATIENCE,
                    };
                    let has_answered = || {
                        reaches.answered(backend);
                        Err(error.clone())
                    };
                    match engine_of(&rpc, config, backend, By::Network, patience) {
                        Ok(None) | Err(NoHello::Refused) => has_answered(),
                        Ok(Some(mut engine)) => {
                            reaches.answered(backend);
                            engine.datagrams = datagrams;
                            let patience = match is_first {
                                true => patience.saturating_sub(asked.elapsed()),
                                false => patience,
                            };
                            let life = thread_topology.id().life;
                            let patience = patience.max(ENGINE_PATIENCE_MIN);
                            by_engine((&engine, messages), &sessions, (backend, life), patience)
                        }
                        Err(_) if is_first => Err(error),
                        Err(NoHello::NotAsked) => match ask(&rpc, &thread_topology, backend) {
                            Ok(()) => has_answered(),
                            Err(why) => Err(silent(&why)),
                        },
                        // Who does not say this does not say anything else, either.
                        Err(NoHello::Silent(why)) => Err(silent(&why)),
                    }
                }
            };
            Some(Event::Connected {
                backend,
                topology: thread_topology,
                result,
            })
        };
        self.owed_connection(topology, backend, NotConnected::down(NO_THREAD))
            .by_thread("trefoil-connect", connect);
    }

    /// In a thread of its own, as above.
    fn foresee(&mut self, topology: &Arc<Topology>, backend: u32, is_near: bool) {
        let config = topology.config().backend(backend);
        let socket = config.and_then(|config| config.fabric_socket.clone());
        let (Some(socket), true, None) = (socket, is_near, self.engine) else {
            drop(self.foreseen.take(backend));
            return;
        };
        self.foreseen.begin(backend);
        let foreseen = self.foreseen.clone();
        let options = ConnectOptions {
            servers: self.shared.servers.clone(),
            ..ConnectOptions::default()
        };
        let greet = move || {
            // Whatever is wrong with it: it is looked for again when its time has come.
            let early = Early::greet(&socket, backend, &options);
            foreseen.made(backend, early.ok().flatten());
        };
        // Without a thread it is connected to later.
        let _ = std::thread::Builder::new()
            .name("trefoil-foresee".to_owned())
            .spawn(greet);
    }

    fn caller(&mut self, topology: &Arc<Topology>, backend: u32) -> Result<ClientPort, String> {
        Ok(ClientPort::Rpc(Box::new(RpcPort::new(
            backend,
            Arc::clone(topology.config()),
            &self.shared,
            Arc::clone(&self.bell),
        ))))
    }

    fn learn(&mut self) {
        let shared = Arc::clone(&self.shared);
        let learn = move || {
            let learned = shared.learn().map_err(|error| error.to_string());
            Some(Event::Learned(learned))
        };
        self.owed(Event::Learned(Err(NO_THREAD.to_owned())))
            .by_thread("trefoil-learn", learn);
    }

    fn next_event(&mut self) -> Option<Event<ClientPort>> {
        if !self.has_event() {
            return None;
        }
        if let Some(event) = self.successor_event() {
            return Some(event);
        }
        let event = self.mailbox.lock().pop_front();
        if event.is_some() {
            self.mailbox.count.fetch_sub(1, Ordering::SeqCst);
        }
        event
    }

    fn degraded(&mut self, backend: u32, why: &str) {
        self.shared.notices.degraded(backend, why);
    }

    fn reached(&mut self, backend: u32) {
        let seen = self.shared.reaches.reached(backend);
        self.seen.insert(backend, seen);
    }

    /// Another client may have found it away, and asked nobody since.
    fn stands(&mut self, backend: u32) {
        if self.shared.reaches.is_any_away() {
            self.reached(backend);
        }
    }

    /// The first of a key's cohort repairs it.
    fn suspect(&mut self, topology: &Arc<Topology>, keys: &[KeyHash]) {
        let first = |key: &KeyHash| topology.cohort(*key).as_slice()[0];
        let mut by_backend: Vec<(u32, Vec<KeyHash>)> = Vec::new();
        for key in keys {
            let backend = first(key);
            match by_backend.iter_mut().find(|(number, _)| *number == backend) {
                Some((_, keys)) => keys.push(*key),
                None => by_backend.push((backend, vec![*key])),
            }
        }
        for (backend, keys) in by_backend {
            let request = v1::SuspectRequest {
                shard: Some(v1::ShardName {
                    backend,
                    shard: backend,
                    life: topology.id().life,
                    incarnation: 0,
                    backends: topology.placement().backend_count(),
                }),
                keys: Some(v1::ScanKeys {
                    hashes: trefoil_rpc::encode_hashes(&keys),
                }),
            };
            self.shared.rpc.suspect(topology.config(), backend, request);
        }
    }

    fn unreached(&mut self, backend: u32, why: &str) {
        match self.seen.remove(&backend) {
            Some(seen) => self.shared.reaches.lost(backend, why, seen),
            None => self.shared.reaches.unreached(backend, why),
        }
    }
}

/// Of a backend that is reached by TCP from elsewhere: it may be on another host. If it
/// is this one's, in another life, calls say so.
fn another_cells() -> NotConnected {
    NotConnected {
        why: "another cell's server is at its socket's path on this host".to_owned(),
        is_down: false,
        is_final: false,
    }
}

fn no_shared_memory() -> NotConnected {
    NotConnected {
        why: "the backend offers no shared memory".to_owned(),
        is_down: false,
        is_final: true,
    }
}

fn silent(why: &str) -> NotConnected {
    NotConnected::down(&format!("the backend does not answer: {why}"))
}

/// By way of the engine that a backend tells of. One that is away says nothing of the
/// backend.
fn by_engine(
    (engine, messages): (&EngineAddress, bool),
    sessions: &Sessions,
    (backend, life): (u32, u64),
    patience: Duration,
) -> Result<ClientPort, NotConnected> {
    let port = EnginePort::connect(engine, (backend, life), messages, patience);
    port.map(|port| ClientPort::Engine(Box::new(sessions.join(engine, port))))
        .map_err(|error| NotConnected {
            why: error.to_string(),
            is_down: false,
            is_final: false,
        })
}

/// An empty call to a backend; why it does not answer that, if so. One that does not let this
/// side do anything is there: what is called for says why.
fn ask(rpc: &Rpc, topology: &Topology, backend: u32) -> Result<(), String> {
    let mut client = rpc.backend(topology.config(), backend)?;
    let call = async move {
        match client.ping(v1::PingRequest {}).await {
            Err(status) if is_refused(&status) => Ok(()),
            answer => answer.map(drop),
        }
    };
    rpc.wait(call, PING_PATIENCE)
}

/// What a failed greeting says of the backend.
fn judge(error: &ConnectError, is_reached_elsewhere: bool) -> NotConnected {
    let is_down = match error {
        // The backend on this host is gone, or hangs, or is on its way out; or another
        // life of the cell, or other backends of it, stand there.
        ConnectError::Timeout { .. } | ConnectError::HungUp { .. } => true,
        // Or it is on another host, and this one has a server of its own at that path, or
        // had one.
        ConnectError::NobodyListens { .. }
        | ConnectError::NoSuchBackend { .. }
        | ConnectError::NotFound { .. } => !is_reached_elsewhere,
        // Another host's socket, another user's, another release's layout: RPC
        // reaches it, or says why not.
        _ => false,
    };
    NotConnected {
        why: error.to_string(),
        is_down,
        is_final: false,
    }
}

/// Random bits: a freshly keyed hasher's.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u64(time::monotonic_ns());
    hasher.write_u32(std::process::id());
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One that a driver believes under way for ever would never be begun again.
    #[test]
    fn a_thread_that_panics_brings_word_of_it() {
        let (mailbox, bell) = (Arc::<Mailbox>::default(), Arc::new(Bell::new()));
        let owed = Owed {
            mailbox: Arc::clone(&mailbox),
            bell,
            event: Some(Event::Learned(Err("nothing came".to_owned()))),
        };
        owed.by_thread("panics", || panic!("as a test wants it"));
        let begin = Instant::now();
        let event = loop {
            if let Some(event) = mailbox.lock().pop_front() {
                break event;
            }
            assert!(begin.elapsed() < Duration::from_secs(60));
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(matches!(event, Event::Learned(Err(why)) if why == "nothing came"));
    }
}
