//! An engine: two threads, stopped when it is dropped.

mod backends;
mod counters;
mod datagrams;
mod event_loop;
mod mapper;
mod session;

pub use counters::Counters;
pub use mapper::{CellPlaces, Place};

use event_loop::EventLoop;
use mapper::Mapper;
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use trefoil_fabric::shm::Connection;
use trefoil_tls::{Caller, Tls};

/// How an engine behaves.
#[derive(Clone, Debug)]
pub struct EngineOptions {
    /// How long it looks for requests after the last one before it sleeps.
    pub spin: Duration,
    /// Clients at a time. Each may make the engine keep a megabyte, if it asks for much
    /// and does not take the answers.
    pub sessions_max: usize,
    /// How long a connection may take to show whose it is.
    pub greeting_max: Duration,
    /// How long a client may leave answers untaken.
    pub stuck_max: Duration,
}

impl Default for EngineOptions {
    fn default() -> Self {
        EngineOptions {
            spin: Duration::from_micros(50),
            sessions_max: 256,
            greeting_max: Duration::from_secs(2),
            stuck_max: Duration::from_secs(10),
        }
    }
}

/// Whose a session is.
#[derive(Clone, PartialEq, Eq)]
pub enum Who {
    /// Theirs who know this token.
    Token(Box<[u8]>),
    /// Theirs who have this certificate, of an authority that is believed.
    Certificate(Arc<Caller>),
}

/// Decides whether somebody may read. Called by the event loop: it must not wait.
pub type Admits = Box<dyn Fn(&Who) -> bool + Send>;

/// Why no engine could be started.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The system's reason.
    #[error("cannot {what}: {source}")]
    System {
        /// Which step.
        what: &'static str,
        /// Why.
        source: io::Error,
    },
}

fn failed<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> EngineError {
    move |source| EngineError::System {
        what,
        source: source.into(),
    }
}

/// A backend that has been mapped, on its way from the mapper to the event loop.
struct Adoption {
    number: u32,
    /// Another one for each mapping of that number.
    generation: u32,
    /// `None` if what was mapped is not to be any more.
    connection: Option<Connection>,
}

/// What the two threads share.
struct Shared {
    counters: Counters,
    adoptions: Mutex<Vec<Adoption>>,
    has_adoptions: AtomicBool,
    is_stopped: AtomicBool,
    /// Somebody may have lost the right to read.
    must_judge: AtomicBool,
    began: Instant,
    /// Wakes the event loop.
    bell: OwnedFd,
    /// Something is wrong with a backend: the mapper is to look at once.
    is_nudged: Mutex<bool>,
    nudge: Condvar,
}

impl Shared {
    fn adopt(&self, adoption: Adoption) {
        self.adoptions().push(adoption);
        self.has_adoptions.store(true, Ordering::Release);
        self.ring();
    }

    fn adoptions(&self) -> MutexGuard<'_, Vec<Adoption>> {
        self.adoptions
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// Has the mapper look at once.
    #[cold]
    fn nudge(&self) {
        *self.nudged() = true;
        self.nudge.notify_all();
    }

    fn nudged(&self) -> MutexGuard<'_, bool> {
        self.is_nudged
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }
}

/// See the module.
pub struct Engine {
    shared: Arc<Shared>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Engine {
    /// Serves on `listener`. `places` says which backends there are; it is asked by a
    /// thread that may wait, now and then and whenever one cannot be found where it was
    /// (then with `true`: what is known may be out of date). With `tls`, everybody speaks
    /// TLS and shows a certificate.
    pub fn start(
        listener: TcpListener,
        (tls, admits): (Option<Tls>, Admits),
        places: impl FnMut(bool) -> CellPlaces + Send + 'static,
        options: EngineOptions,
    ) -> Result<Engine, EngineError> {
        let address = listener
            .local_addr()
            .map_err(failed("ask for the address"))?;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let shared = Arc::new(Shared {
            counters: Counters::default(),
            adoptions: Mutex::default(),
            has_adoptions: AtomicBool::new(false),
            is_stopped: AtomicBool::new(false),
            must_judge: AtomicBool::new(false),
            began: Instant::now(),
            bell: eventfd(0, flags).map_err(failed("make a descriptor to wake by"))?,
            is_nudged: Mutex::new(false),
            nudge: Condvar::new(),
        });
        let event_loop = EventLoop::new(Arc::clone(&shared), listener, (tls, admits), options)
            .map_err(failed("prepare the sockets"))?;
        let mapper = Mapper::new(Arc::clone(&shared), Box::new(places));
        let mut engine = Engine {
            shared,
            address,
            threads: Vec::new(),
        };
        engine.spawn("trefoil-engine", move || event_loop.run())?;
        engine.spawn("trefoil-mapper", move || mapper.run())?;
        Ok(engine)
    }

    fn spawn(
        &mut self,
        name: &str,
        run: impl FnOnce() + Send + 'static,
    ) -> Result<(), EngineError> {
        let builder = std::thread::Builder::new().name(name.to_owned());
        let thread = builder.spawn(run).map_err(failed("start a thread"))?;
        self.threads.push(thread);
        Ok(())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Asks again, of everybody who is in, whether they may read; who may not is out
    /// before the next request.
    pub fn judge_again(&self) {
        self.shared.must_judge.store(true, Ordering::Release);
        self.shared.ring();
    }

    /// What it has counted.
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Release);
        self.shared.ring();
        self.shared.nudge();
        for thread in self.threads.drain(..) {
            // One that has panicked has said so.
            let _ = thread.join();
        }
    }
}
