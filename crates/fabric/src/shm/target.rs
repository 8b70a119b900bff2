//! The target of a process: both threads, and what they share.

use super::client::{Buffers, Client};
use super::export::Export;
use super::listener::Listener;
use super::policy::UserPolicy;
use super::poller::Poller;
use super::socket_file::{ListenError, SocketFile};
use rustix::event::EventfdFlags;
use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use trefoil_layout::ring::Geometry;

/// What an operator may choose.
#[derive(Clone, Debug)]
pub struct TargetOptions {
    /// Socket file.
    pub path: PathBuf,
    /// Lengths of each client's rings.
    pub geometry: Geometry,
    /// Clients with rings; further ones read only, and mutate by RPC.
    pub client_count_max: usize,
    /// Who may connect.
    pub users: UserPolicy,
    /// How long the poller spins after the last message it answered.
    pub spin: Duration,
    /// How long the poller sleeps at most while clients exist: how late
    /// touches are taken in.
    pub sleep_max: Duration,
    /// Processor that the poller is pinned to.
    pub cpu: Option<usize>,
    /// How long a client may take for its hello.
    pub hello_timeout: Duration,
    /// A client that was given rings so long ago and has put nothing into them
    /// loses them to one for whom none are left.
    pub silence_max: Duration,
    /// How long the reply to one for whom no rings are left waits for some.
    pub rings_patience: Duration,
    /// It is to take another process's place ([`Target::take_place`]): clients are greeted
    /// although nothing is served yet. They wait for the lease, which begins then.
    pub is_successor: bool,
}

impl TargetOptions {
    /// The defaults, with a socket file at `path`.
    pub fn new(path: impl Into<PathBuf>) -> Self {
        TargetOptions {
            path: path.into(),
            geometry: Geometry::default(),
            client_count_max: 1024,
            users: UserPolicy::SameUser,
            spin: Duration::from_micros(75),
            sleep_max: Duration::from_millis(100),
            cpu: None,
            hello_timeout: Duration::from_secs(2),
            silence_max: Duration::from_secs(10),
            rings_patience: Duration::from_millis(10),
            is_successor: false,
        }
    }
}

/// Why a target could not start.
#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    /// No socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// No such processor for this process.
    #[error("cannot pin the poller to processor {cpu}: {source}")]
    Cpu {
        /// The one that was asked for.
        cpu: usize,
        /// The system's reason.
        source: io::Error,
    },
    /// Anything else that the system reports.
    #[error("cannot start the shared memory target: {0}")]
    System(#[from] io::Error),
}

/// Counters, as a moment's copy. All but `rings_open` only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Messages taken out of rings.
    pub messages: u64,
    /// Messages that could not be parsed.
    pub malformed: u64,
    /// Times that the poller went to sleep.
    pub sleeps: u64,
    /// Bells of clients that were heard.
    pub bells_heard: u64,
    /// Clients that were woken.
    pub bells_rung: u64,
    /// Clients that were given regions.
    pub greeted: u64,
    /// Clients that were refused.
    pub refused: u64,
    /// Clients with rings, now.
    pub rings_open: u64,
    /// Clients that wanted rings and got none.
    pub rings_refused: u64,
    /// Rings that were closed because of nonsense in them.
    pub rings_broken: u64,
}

/// Whether the poller gets on with its work, as a moment's copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Rounds of the poller.
    pub rounds: u64,
    /// It waits for a bell: there is nothing to do.
    pub is_asleep: bool,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Written by the poller alone.
    rounds: AtomicU64,
    asleep: AtomicBool,
    messages: AtomicU64,
    pub(super) malformed: AtomicU64,
    pub(super) sleeps: AtomicU64,
    pub(super) bells_heard: AtomicU64,
    pub(super) bells_rung: AtomicU64,
    pub(super) greeted: AtomicU64,
    pub(super) refused: AtomicU64,
    pub(super) rings_open: AtomicU64,
    pub(super) rings_refused: AtomicU64,
    pub(super) rings_broken: AtomicU64,
}

impl Counters {
    /// The poller alone counts messages: no read-modify-write needed.
    #[inline(always)]
    pub(super) fn count_message(&self) {
        let messages = self.messages.load(Ordering::Relaxed);
        self.messages.store(messages + 1, Ordering::Relaxed);
    }

    /// The poller begins another round.
    #[inline(always)]
    pub(super) fn count_round(&self) {
        let rounds = self.rounds.load(Ordering::Relaxed);
        self.rounds.store(rounds + 1, Ordering::Relaxed);
    }

    /// The poller goes to sleep, or no longer does.
    pub(super) fn set_asleep(&self, asleep: bool) {
        self.asleep.store(asleep, Ordering::Relaxed);
    }

    fn snapshot(&self) -> Statistics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Acquire);
        Statistics {
            messages: get(&self.messages),
            malformed: get(&self.malformed),
            sleeps: get(&self.sleeps),
            bells_heard: get(&self.bells_heard),
            bells_rung: get(&self.bells_rung),
            greeted: get(&self.greeted),
            refused: get(&self.refused),
            rings_open: get(&self.rings_open),
            rings_refused: get(&self.rings_refused),
            rings_broken: get(&self.rings_broken),
        }
    }
}

/// What listener, poller and their owner share.
pub(super) struct Shared {
    stopped: AtomicBool,
    inbox_full: AtomicBool,
    inbox: Mutex<Vec<Client>>,
    /// See [`TargetOptions::is_successor`].
    is_successor: AtomicBool,
    /// Somebody wants rings, and there are none left. Looked at with the inbox.
    is_short: AtomicBool,
    pub(super) poller_bell: OwnedFd,
    pub(super) listener_bell: OwnedFd,
    pub(super) counters: Arc<Counters>,
}

impl Shared {
    fn new(is_successor: bool) -> rustix::io::Result<Self> {
        let bell = || rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Shared {
            stopped: AtomicBool::new(false),
            inbox_full: AtomicBool::new(false),
            inbox: Mutex::default(),
            is_successor: AtomicBool::new(is_successor),
            is_short: AtomicBool::new(false),
            poller_bell: bell()?,
            listener_bell: bell()?,
            counters: Arc::default(),
        })
    }

    #[inline(always)]
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Whether those are greeted, too, who find nothing served yet.
    pub(super) fn greets_early(&self) -> bool {
        self.is_successor.load(Ordering::Acquire)
    }

    #[inline(always)]
    pub(super) fn has_inbox(&self) -> bool {
        self.inbox_full.load(Ordering::Relaxed)
    }

    pub(super) fn take_inbox(&self) -> Vec<Client> {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        self.inbox_full.store(false, Ordering::Relaxed);
        std::mem::take(&mut inbox)
    }

    pub(super) fn hand_over(&self, client: Client) {
        {
            let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            inbox.push(client);
            self.inbox_full.store(true, Ordering::Relaxed);
        }
        ring_event(&self.poller_bell);
    }

    /// Has the poller take rings back from somebody who does not use them.
    pub(super) fn ask_for_rings(&self) {
        self.is_short.store(true, Ordering::Relaxed);
        {
            // Looked at under the lock, so that no adoption overlooks the flag.
            let _inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
            self.inbox_full.store(true, Ordering::Relaxed);
        }
        ring_event(&self.poller_bell);
    }

    /// Whether that was asked for since the last call.
    pub(super) fn is_short_of_rings(&self) -> bool {
        self.is_short.swap(false, Ordering::Relaxed)
    }

    pub(super) fn silence_poller_bell(&self) {
        let _ = rustix::io::read(&self.poller_bell, &mut [0; 8]);
    }

    fn stop(&self) {
        self.stopped.store(true, Ordering::Relaxed);
        ring_event(&self.poller_bell);
        ring_event(&self.listener_bell);
    }
}

fn ring_event(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

/// A running target. Dropping it stops both threads, hangs up on all clients
/// and removes the socket file.
pub struct Target {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
    path: PathBuf,
    file: Option<SocketFile>,
}

impl Target {
    /// Starts to serve `exports` at `options.path`. Errors are found before it
    /// returns, not in the background.
    pub fn start(options: TargetOptions, exports: Vec<Export>) -> Result<Self, TargetError> {
        let (socket, file) = SocketFile::bind(&options.path, options.users.socket_mode())?;
        let shared = Arc::new(Shared::new(options.is_successor).map_err(io::Error::from)?);
        let shares = Arc::clone(&shared);
        let poller = Poller::new(shares, options.spin, options.sleep_max, options.silence_max)
            .map_err(io::Error::from)?;
        let listener = Listener {
            socket,
            shared: Arc::clone(&shared),
            exports,
            users: options.users,
            geometry: options.geometry,
            client_count_max: options.client_count_max,
            hello_timeout: options.hello_timeout,
            rings_patience: options.rings_patience,
        };
        let mut target = Target {
            shared,
            threads: Vec::with_capacity(2),
            path: options.path,
            file: Some(file),
        };
        let (report, pinned) = std::sync::mpsc::sync_channel(1);
        let cpu = options.cpu;
        target.spawn("trefoil-shm-poll", move || {
            let result = cpu.map_or(Ok(()), pin);
            let serve = result.is_ok();
            let _ = report.send(result);
            if serve {
                poller.run();
            }
        })?;
        if let (Ok(Err(source)), Some(cpu)) = (pinned.recv(), cpu) {
            return Err(TargetError::Cpu { cpu, source });
        }
        target.spawn("trefoil-shm-greet", move || listener.run())?;
        Ok(target)
    }

    fn spawn(&mut self, name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
        let thread = std::thread::Builder::new().name(name.into()).spawn(body)?;
        self.threads.push(thread);
        Ok(())
    }

    /// Removes the socket file, so that a successor can take its place. Clients that have
    /// been greeted are served on.
    pub fn hide(&mut self) {
        drop(self.file.take());
    }

    /// It serves from now on, at `path`, where its predecessor has listened.
    pub fn take_place(&mut self, path: &Path) -> Result<(), ListenError> {
        if let Some(file) = &mut self.file {
            file.move_to(path)?;
        }
        self.path = path.into();
        self.shared.is_successor.store(false, Ordering::Release);
        Ok(())
    }

    /// Where it listens.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether the poller gets on.
    pub fn progress(&self) -> Progress {
        let counters = &self.shared.counters;
        Progress {
            rounds: counters.rounds.load(Ordering::Relaxed),
            is_asleep: counters.asleep.load(Ordering::Relaxed),
        }
    }

    /// What it has done so far.
    pub fn statistics(&self) -> Statistics {
        self.shared.counters.snapshot()
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // Before the listening socket: see `SocketFile`.
        drop(self.file.take());
        self.shared.stop();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
        // Clients that were greeted while the poller was stopping.
        let late = self.shared.take_inbox();
        if !late.is_empty() {
            let mut buffers = Buffers::new();
            late.into_iter()
                .for_each(|client| client.leave(&mut buffers));
        }
    }
}

impl std::fmt::Debug for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Target")
            .field("path", &self.path)
            .field("statistics", &self.statistics())
            .finish_non_exhaustive()
    }
}

/// Pins the calling thread.
fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= rustix::thread::CpuSet::MAX_CPU {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let mut set = rustix::thread::CpuSet::new();
    set.set(cpu);
    rustix::thread::sched_setaffinity(None, &set)?;
    Ok(())
}
