//! Who is to take a backend's place: found, connected to in advance, and waited for.
//!
//! Of the moment in which nobody is the backend, operations wait for what is left of it. So a
//! client connects to the process that is about to come before it has, and then only looks at
//! its memory until that says that it serves. Two do: a thread that was begun for it, because
//! the client may sleep, and the client's own turns, because a thread that is new gets to run
//! milliseconds later where its core is busy. Whoever sees it first has it ([`Claim`]).

use std::collections::HashMap;
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};
use trefoil_driver::{SUCCESSOR_NS, Topology};
use trefoil_fabric::shm::{ConnectError, ConnectOptions, Connection, Early};
use trefoil_layout::TopologyId;

/// How often it is looked whether a backend's successor has come: it comes within a
/// millisecond or two as a rule, and operations wait for it.
const SUCCESSOR_PAUSE: Duration = Duration::from_micros(100);
/// The same once it has not come for so long: the machine is busy.
const SUCCESSOR_PAUSE_LONG: Duration = Duration::from_millis(1);
const SUCCESSOR_LATE: Duration = Duration::from_millis(20);
/// The same of one that was connected to in advance, which is a look at its memory: in the
/// first moment. After that all clients that wait would take the core that it needs.
const SUCCESSOR_PAUSE_SHORT: Duration = Duration::from_micros(30);
const SUCCESSOR_SOON: Duration = Duration::from_millis(1);
/// How often it is looked for one that is to take the place: each time it makes message
/// rings.
const EARLY_PAUSE: Duration = Duration::from_millis(20);
/// Patience with its greeting: it may hang while another one takes the place.
const EARLY_PATIENCE: Duration = Duration::from_millis(50);

/// Connections to processes that are about to take a backend's place, made in advance.
#[derive(Clone, Default)]
pub(crate) struct Foreseen {
    /// `None`: it is being made, and still wanted.
    by_backend: Arc<Mutex<HashMap<u32, Option<Early>>>>,
}

impl Foreseen {
    fn lock(&self) -> MutexGuard<'_, HashMap<u32, Option<Early>>> {
        self.by_backend
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self, backend: u32) {
        self.lock().insert(backend, None);
    }

    /// Kept, unless somebody has taken what there was, or nobody comes any more.
    pub(crate) fn made(&self, backend: u32, early: Option<Early>) {
        if let Some(wanted) = self.lock().get_mut(&backend) {
            *wanted = early;
        }
    }

    pub(crate) fn take(&self, backend: u32) -> Option<Early> {
        self.lock().remove(&backend).flatten()
    }
}

/// What was connected to in advance, for the first who sees that it serves.
#[derive(Clone, Default)]
pub(crate) struct Claim(Arc<Mutex<Claimed>>);

#[derive(Default)]
enum Claimed {
    /// Nobody was connected to in advance.
    #[default]
    Nobody,
    Early(Box<Early>),
    /// Somebody has brought what comes of it.
    Brought,
}

impl Claim {
    pub(crate) fn of(early: Option<Early>) -> Self {
        let claimed = early.map_or(Claimed::Nobody, |early| Claimed::Early(Box::new(early)));
        Claim(Arc::new(Mutex::new(claimed)))
    }

    fn lock(&self) -> MutexGuard<'_, Claimed> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn has_early(&self) -> bool {
        matches!(*self.lock(), Claimed::Early(_))
    }

    fn is_brought(&self) -> bool {
        matches!(*self.lock(), Claimed::Brought)
    }

    /// Another one was found, and connected to.
    fn found(&self, early: Early) {
        let mut claimed = self.lock();
        if !matches!(*claimed, Claimed::Brought) {
            let former = std::mem::replace(&mut *claimed, Claimed::Early(Box::new(early)));
            drop(claimed);
            drop(former);
        }
    }

    /// Who was connected to, if it serves by now; nobody else has it then.
    fn take_serving(&self) -> Option<Early> {
        let mut claimed = self.lock();
        let serves = matches!(&*claimed, Claimed::Early(early) if early.serves());
        match serves.then(|| std::mem::take(&mut *claimed)) {
            Some(Claimed::Early(early)) => Some(*early),
            _ => None,
        }
    }

    /// Whether whoever asks is the first to bring what comes of it.
    fn bring(&self) -> bool {
        !matches!(
            std::mem::replace(&mut *self.lock(), Claimed::Brought),
            Claimed::Brought
        )
    }
}

/// A backend that has moved, for whose successor a client waits.
pub(crate) struct Awaited {
    pub(crate) backend: u32,
    pub(crate) topology: Arc<Topology>,
    pub(crate) claim: Claim,
}

impl Awaited {
    /// Whether it serves, as far as that can be said at once.
    pub(crate) fn serves(&self) -> bool {
        let claimed = match self.claim.0.try_lock() {
            Ok(claimed) => claimed,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The thread is at it.
            Err(TryLockError::WouldBlock) => return false,
        };
        matches!(&*claimed, Claimed::Early(early) if early.serves())
    }

    /// The connection, if it serves and nobody else has it. One that is not what was waited
    /// for is left to the thread.
    pub(crate) fn connection(&self) -> Option<Connection> {
        let connection = self.claim.take_serving()?.begin();
        let is_wanted = !is_former(connection.agreement().topology, self.topology.id());
        (is_wanted && self.claim.bring()).then_some(connection)
    }

    /// Whether its thread has ended, or somebody has brought what comes of it.
    pub(crate) fn is_over(&self) -> bool {
        Arc::strong_count(&self.claim.0) == 1 || self.claim.is_brought()
    }
}

/// Whether nobody is there, or one who is leaving.
fn is_absence(error: &ConnectError) -> bool {
    matches!(
        error,
        ConnectError::NotFound { .. }
            | ConnectError::NobodyListens { .. }
            | ConnectError::HungUp { .. }
    )
}

/// Whether who greets as `found` is not the successor that a client which knows `known` waits
/// for: it is of the cell as it was before, or on its way out.
fn is_former(found: TopologyId, known: TopologyId) -> bool {
    found.is_changing() || found.is_followed_by(known)
}

/// Where a backend is connected to.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) socket: &'a Path,
    pub(crate) backend: u32,
    pub(crate) options: &'a ConnectOptions,
}

/// The thread's side: whoever serves a backend, or is to serve it in a moment.
pub(crate) struct Successor {
    claim: Claim,
    /// The backend has moved to another process, which may not serve yet.
    has_moved: bool,
    /// Connected to before the predecessor had gone, and nothing came of it yet.
    is_foreseen: bool,
    looked: Option<Instant>,
    /// Whoever listens there does not answer.
    hangs: bool,
}

impl Successor {
    pub(crate) fn new(claim: Claim, has_moved: bool) -> Self {
        Successor {
            is_foreseen: claim.has_early(),
            claim,
            has_moved,
            looked: None,
            hangs: false,
        }
    }

    /// Connects to the backend. Where it has moved, nobody's being there is no answer for
    /// [`SUCCESSOR_NS`]. `None`: the client's own turn has got the connection.
    pub(crate) fn connect(
        mut self,
        place: Place<'_>,
        known: TopologyId,
    ) -> Option<Result<Connection, ConnectError>> {
        if self.has_moved {
            // Else a pause of microseconds is as much longer again and more.
            let _ = rustix::thread::set_current_timer_slack(NonZeroU64::new(1));
        }
        let begin = Instant::now();
        let waits = || begin.elapsed() < Duration::from_nanos(SUCCESSOR_NS);
        let result = loop {
            if self.claim.is_brought() {
                return None;
            }
            match self.try_connect(place) {
                // It is not there yet.
                Err(error) if self.has_moved && is_absence(&error) && waits() => {}
                // Nor has the one before it gone yet.
                Ok(connection)
                    if self.has_moved
                        && is_former(connection.agreement().topology, known)
                        && waits() => {}
                result => break result,
            }
            self.pause(begin.elapsed());
        };
        self.claim.bring().then_some(result)
    }

    fn pause(&self, waited: Duration) {
        let is_soon = waited < SUCCESSOR_SOON && self.claim.has_early();
        std::thread::sleep(match waited >= SUCCESSOR_LATE {
            true => SUCCESSOR_PAUSE_LONG,
            false if is_soon => SUCCESSOR_PAUSE_SHORT,
            false => SUCCESSOR_PAUSE,
        });
    }

    /// Where another process is to take its place and has not yet, that one is connected to
    /// in advance, and taken once it serves.
    fn try_connect(&mut self, place: Place<'_>) -> Result<Connection, ConnectError> {
        if let Some(early) = self.claim.take_serving() {
            return Ok(early.begin());
        }
        if self.has_moved
            && self.is_foreseen
            && self.looked.get_or_insert_with(Instant::now).elapsed() < EARLY_PAUSE
        {
            return Err(ConnectError::NotFound {
                path: place.socket.to_owned(),
            });
        }
        // What was connected to in advance may be the successor of who serves by now.
        let connected = Connection::connect(place.socket, place.backend, place.options);
        let is_absent = connected.as_ref().is_err_and(is_absence);
        let is_due = self.looked.is_none_or(|at| at.elapsed() >= EARLY_PAUSE);
        // Another one may have come in the stead of the one that was foreseen.
        let is_wanted = !self.claim.has_early() || self.is_foreseen;
        if self.has_moved && is_absent && is_wanted && is_due && !self.hangs {
            self.looked = Some(Instant::now());
            self.is_foreseen = false;
            self.look_for_another(place);
        }
        connected
    }

    /// Whatever is wrong with it: what counts is who serves in the end.
    fn look_for_another(&mut self, place: Place<'_>) {
        let options = ConnectOptions {
            timeout: EARLY_PATIENCE,
            ..place.options.clone()
        };
        match Early::greet(place.socket, place.backend, &options) {
            Ok(Some(early)) => self.claim.found(early),
            Ok(None) => {}
            // It is not looked for again.
            Err(ConnectError::Timeout { .. }) => self.hangs = true,
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_backend::{ListenOptions, Listeners, RECOVERY_RATE_MIN, Server, ServerOptions};
    use trefoil_cell::{
        BackendConfig, BackendRegistry as _, CellConfig, ConfigStore as _, DirectoryStore, Mode,
    };
    use trefoil_layout::topology::CONFIG_ID_CHANGING;
    use trefoil_layout::{KeyHasher, Version};

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn who_is_leaving_is_no_successor() {
        let of = |config_id| TopologyId { life: 1, config_id };
        assert!(is_former(of(4), of(5)));
        assert!(is_former(of(CONFIG_ID_CHANGING), of(5)));
        assert!(!is_former(of(5), of(5)));
        assert!(!is_former(of(6), of(5)));
    }

    #[test]
    fn what_comes_of_it_is_brought_once() {
        let claim = Claim::default();
        assert!(!claim.is_brought());
        assert!(claim.bring());
        assert!(!claim.bring() && claim.is_brought());
        // Also by a thread that finds out later.
        let nowhere = Place {
            socket: Path::new("/nowhere"),
            backend: 0,
            options: &ConnectOptions::default(),
        };
        let known = TopologyId {
            life: 1,
            config_id: 1,
        };
        for has_moved in [false, true] {
            let thread = Successor::new(claim.clone(), has_moved);
            assert!(thread.connect(nowhere, known).is_none());
        }
    }

    /// Its thread may not have got to run yet.
    #[test]
    fn a_turn_connects_to_the_successor_once_that_serves_and_nobody_else_does() {
        let home = tempfile::tempdir().unwrap();
        let store = DirectoryStore::create(home.path()).unwrap();
        let socket = store.fabric_socket(0).unwrap();
        let listen = ListenOptions {
            unix: Some(home.path().join("rpc.sock")),
            fabric: Some(socket.clone()),
            ..ListenOptions::default()
        };
        let listeners = Listeners::bind(&listen).unwrap();
        let config = CellConfig {
            life: 1,
            config_id: 1,
            cell: "test".to_owned(),
            mode: Mode::R1,
            backends: vec![BackendConfig {
                number: 0,
                addresses: listeners.rpc_addresses(),
                fabric_socket: Some(socket.clone()),
                place: None,
            }],
            hash: KeyHasher::default(),
            value_len_max: 1 << 20,
            eviction: "lru".to_owned(),
            flush_floor: Version::ZERO,
            corpus: None,
        };
        store.compare_and_swap(None, &config).unwrap();
        let options = |store: &DirectoryStore| ServerOptions {
            memory_limit: 1 << 30,
            recovery_rate: Some(RECOVERY_RATE_MIN),
            ..ServerOptions::new(Arc::new(store.clone()), vec![0])
        };
        let with_lock = ServerOptions {
            locks: vec![store.claim(0).unwrap()],
            ..options(&store)
        };
        let predecessor = Server::start(with_lock, listeners).unwrap();

        let (goes, may_go) = std::sync::mpsc::channel::<()>();
        let successor = {
            let (store, listen) = (store.clone(), listen.clone());
            std::thread::spawn(move || {
                Server::take_over(options(&store), &listen, || {
                    may_go.recv_timeout(PATIENCE).unwrap();
                    store.claim(0)
                })
            })
        };
        let begin = Instant::now();
        let early = loop {
            let greeted = Early::greet(&socket, 0, &ConnectOptions::default());
            if let Ok(Some(early)) = greeted {
                break early;
            }
            assert!(begin.elapsed() < PATIENCE, "nobody is there");
            std::thread::sleep(Duration::from_millis(1));
        };
        let topology = Topology::new(Arc::new(config));
        let claim = Claim::of(Some(early));
        let awaited = Awaited {
            backend: 0,
            topology: Arc::new(topology),
            claim: claim.clone(),
        };
        assert!(!awaited.serves() && awaited.connection().is_none() && !awaited.is_over());
        goes.send(()).unwrap();
        let connection = loop {
            if let Some(connection) = awaited.connection() {
                break connection;
            }
            assert!(begin.elapsed() < PATIENCE, "it never serves");
            std::thread::yield_now();
        };
        assert_eq!(connection.agreement().topology.config_id, 1);
        assert!(awaited.is_over() && awaited.connection().is_none());
        assert!(!claim.bring(), "its thread would bring another one");
        drop(successor.join().unwrap().unwrap());
        drop(predecessor);
    }
}
