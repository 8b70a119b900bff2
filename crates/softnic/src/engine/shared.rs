//! What the threads of an engine share.

use super::claimer::Given;
use super::counters::{Counted, Counters};
use super::datagrams::Peers;
use super::orders::{Order, Orders};
use super::seats::Seats;
use super::session::Session;
use super::{EngineOptions, Who};
use rustix::event::{EventfdFlags, eventfd};
use std::io;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trefoil_fabric::clock::monotonic_ns;
use trefoil_fabric::shm::Connection;
use trefoil_sockets::group::spread_by_name;
use trefoil_softnic_core::scaling::Move;
use trefoil_softnic_core::wire::{ClaimStatus, MESSAGE_FRAMES};

/// Decides whether somebody may read. Called by threads that must not wait.
pub type Admits = Arc<dyn Fn(&Who) -> bool + Send + Sync>;

/// A backend that has been mapped, on its way from the mapper to an event loop.
pub(super) struct Adoption {
    pub(super) number: u32,
    /// Another one for each mapping of that number, and the same in all loops: a request
    /// in a datagram may be carried out by any of them.
    pub(super) generation: u32,
    /// `None` if what was mapped is not to be any more.
    pub(super) connection: Option<Connection>,
}

/// A descriptor that others wake a thread by.
pub(super) struct Bell(OwnedFd);

impl Bell {
    fn new() -> io::Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Bell(eventfd(0, flags)?))
    }

    pub(super) fn ring(&self) {
        // A counter that is full wakes as well.
        let _ = rustix::io::write(&self.0, &1u64.to_ne_bytes());
    }

    /// Until it is rung again.
    pub(super) fn silence(&self) {
        let _ = rustix::io::read(&self.0, &mut [0; 8]);
    }

    pub(super) fn descriptor(&self) -> &OwnedFd {
        &self.0
    }
}

/// Loads in the same quarter are alike: the number of sessions decides.
const LOAD_GRAIN: u32 = 250;
/// All of the time.
pub(super) const LOAD_MAX: u32 = 1000;
/// A window is this part of a load: one in which the machine stood still says little.
const LOAD_SMOOTHING: u32 = 8;

/// Whether there is something, of which is taken note with that. A loop asks in every round: the
/// usual answer changes nothing, and so costs no more than a look.
fn is_raised(flag: &AtomicBool) -> bool {
    flag.load(Ordering::Relaxed) && flag.swap(false, Ordering::Acquire)
}

/// What the others have for one event loop.
pub(super) struct LoopShare {
    pub(super) counters: Counters,
    pub(super) bell: Bell,
    /// Sessions that were let in and have not been taken.
    arrivals: Mutex<Vec<Session>>,
    has_arrivals: AtomicBool,
    /// Sockets for datagrams that were opened and have not been taken.
    sockets: Mutex<Vec<UdpSocket>>,
    has_sockets: AtomicBool,
    has_adoptions: AtomicBool,
    /// What came of its sessions' claims, by their names.
    lanes: Mutex<Vec<(u64, Given)>>,
    has_lanes: AtomicBool,
    /// Somebody may have lost the right to read.
    pub(super) must_judge: AtomicBool,
    /// Sessions that it has, those included that it has not taken.
    session_count: Arc<AtomicUsize>,
    /// In how much of the time it was busy lately, in thousandths.
    load: AtomicU32,
    /// What is expected of the sessions that it was given since, and is not in the load yet.
    expected: AtomicU32,
    /// Sessions that it is to give away.
    moves: Mutex<Vec<GivenAway>>,
    has_moves: AtomicBool,
}

/// Which sessions a loop is to give away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivenAway {
    /// All that can be.
    All,
    /// Those that make up this part of its work, to that loop.
    Part { permille: u32, to: usize },
}

impl LoopShare {
    fn new() -> io::Result<Self> {
        Ok(LoopShare {
            counters: Counters::default(),
            bell: Bell::new()?,
            arrivals: Mutex::default(),
            has_arrivals: AtomicBool::new(false),
            sockets: Mutex::default(),
            has_sockets: AtomicBool::new(false),
            has_adoptions: AtomicBool::new(false),
            lanes: Mutex::default(),
            has_lanes: AtomicBool::new(false),
            must_judge: AtomicBool::new(false),
            session_count: Arc::default(),
            load: AtomicU32::new(0),
            expected: AtomicU32::new(0),
            moves: Mutex::default(),
            has_moves: AtomicBool::new(false),
        })
    }

    /// In how much of the time it is going to be busy, in thousandths.
    pub(super) fn load(&self) -> u32 {
        let (load, expected) = (&self.load, &self.expected);
        load.load(Ordering::Relaxed) + expected.load(Ordering::Relaxed)
    }

    /// As much more is expected of it, within bounds: sessions that come may be gone at once.
    fn expect(&self, more: u32) {
        let room = LOAD_MAX.saturating_sub(self.load.load(Ordering::Relaxed));
        let add = |expected: u32| Some(expected.saturating_add(more).min(room));
        let _ = self
            .expected
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// In how much of a window it was busy.
    fn learn_load(&self, busy: f64) {
        let window = ((busy * f64::from(LOAD_MAX)) as u32).min(LOAD_MAX);
        let learn = |value: &AtomicU32, window: u32| {
            let learnt = |before| Some((before * (LOAD_SMOOTHING - 1) + window) / LOAD_SMOOTHING);
            let _ = value.fetch_update(Ordering::Relaxed, Ordering::Relaxed, learnt);
        };
        learn(&self.load, window);
        // What came before is in the load as far as the window is.
        learn(&self.expected, 0);
    }

    #[cfg(test)]
    pub(super) fn session_count(&self) -> usize {
        self.session_count.load(Ordering::Acquire)
    }

    /// Gives it another socket for datagrams.
    pub(super) fn give_socket(&self, socket: UdpSocket) {
        locked(&self.sockets).push(socket);
        self.has_sockets.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// The sockets that were given to it.
    pub(super) fn take_sockets(&self) -> Vec<UdpSocket> {
        match is_raised(&self.has_sockets) {
            true => std::mem::take(&mut *locked(&self.sockets)),
            false => Vec::new(),
        }
    }

    /// What came of its sessions' claims.
    pub(super) fn take_lanes(&self) -> Vec<(u64, Given)> {
        match is_raised(&self.has_lanes) {
            true => std::mem::take(&mut *locked(&self.lanes)),
            false => Vec::new(),
        }
    }

    /// Sessions are to be given away.
    fn order_move(&self, what: GivenAway) {
        locked(&self.moves).push(what);
        self.has_moves.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// What is to be given away.
    pub(super) fn take_moves(&self) -> Vec<GivenAway> {
        match is_raised(&self.has_moves) {
            true => std::mem::take(&mut *locked(&self.moves)),
            false => Vec::new(),
        }
    }

    fn give_session(&self, mut session: Session) {
        session.seat.join(&self.session_count);
        locked(&self.arrivals).push(session);
        self.has_arrivals.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// The sessions that were handed over to it.
    pub(super) fn take_arrivals(&self) -> Vec<Session> {
        match is_raised(&self.has_arrivals) {
            true => std::mem::take(&mut *locked(&self.arrivals)),
            false => Vec::new(),
        }
    }
}

/// See the module.
pub(super) struct Shared {
    pub(super) options: EngineOptions,
    pub(super) admits: Admits,
    /// Decides whether somebody that may read may store and erase, too, by message.
    pub(super) writes: Admits,
    /// Version of the frames for messages; 0 where there are no backends.
    message_frames: u64,
    /// Of the threads that let clients in and map backends.
    pub(super) counters: Counters,
    /// The first ones are active: they are given sessions.
    pub(super) loops: Box<[LoopShare]>,
    active: AtomicUsize,
    /// For each address one of the loops' sockets for datagrams.
    groups: Mutex<Vec<UdpSocket>>,
    /// Sessions that have keys for datagrams.
    pub(super) peers: Peers,
    /// Wakes the greeter.
    pub(super) bell: Bell,
    /// Names this engine.
    pub(super) name: u64,
    began: Instant,
    is_stopped: AtomicBool,
    /// A list for each loop.
    adoptions: Mutex<Box<[Vec<Adoption>]>>,
    /// Of the sessions that it takes.
    pub(super) seats: Arc<Seats>,
    /// Claims that nobody has looked at; `None` where there are no queues.
    orders: Option<Orders>,
    /// Something is wrong with a backend: the mapper is to look at once.
    is_nudged: Mutex<bool>,
    nudge: Condvar,
    /// The scaler waits here.
    stopping: Mutex<()>,
    stopped: Condvar,
}

/// A thread that has panicked has said so; what it held is as it left it.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Datagrams go to the loops that are active, by their sessions' names. Any loop can carry out
/// any: where the system does not do it, those that are parked do their part.
fn spread(group: &UdpSocket, active: usize) {
    if let Err(error) = spread_by_name(group, active) {
        tracing::warn!("datagrams go to all threads of the engine: {error}");
    }
}

impl Shared {
    pub(super) fn new(
        options: EngineOptions,
        (admits, writes): (Admits, Admits),
        (seats, orders): (Seats, Option<Orders>),
    ) -> io::Result<Self> {
        let active = options.engines.max(1);
        let count = options.engines_max.max(active);
        let loops: io::Result<Box<[LoopShare]>> = (0..count).map(|_| LoopShare::new()).collect();
        Ok(Shared {
            options,
            admits,
            writes,
            message_frames: match orders {
                None => MESSAGE_FRAMES,
                Some(_) => 0,
            },
            counters: Counters::default(),
            loops: loops?,
            active: AtomicUsize::new(active),
            groups: Mutex::default(),
            peers: Peers::default(),
            bell: Bell::new()?,
            name: monotonic_ns() ^ u64::from(std::process::id()) << 40,
            began: Instant::now(),
            is_stopped: AtomicBool::new(false),
            adoptions: Mutex::new((0..count).map(|_| Vec::new()).collect()),
            seats: Arc::new(seats),
            orders,
            is_nudged: Mutex::new(false),
            nudge: Condvar::new(),
            stopping: Mutex::default(),
            stopped: Condvar::new(),
        })
    }

    /// Hands a mapping to every loop: one connection for each, or none for each.
    pub(super) fn adopt(&self, number: u32, generation: u32, connections: Vec<Connection>) {
        let mut connections = connections.into_iter();
        {
            // A client that has opened a backend in one loop may ask another one by a
            // datagram: whoever has seen the mapping in one list knows that it is in all.
            let mut lists = locked(&self.adoptions);
            for (list, share) in lists.iter_mut().zip(&self.loops) {
                list.push(Adoption {
                    number,
                    generation,
                    connection: connections.next(),
                });
                share.has_adoptions.store(true, Ordering::Release);
            }
        }
        self.loops.iter().for_each(|share| share.bell.ring());
    }

    /// What the mapper has brought for a loop.
    pub(super) fn take_adoptions(&self, at: usize) -> Vec<Adoption> {
        match is_raised(&self.loops[at].has_adoptions) {
            true => std::mem::take(&mut locked(&self.adoptions)[at]),
            false => Vec::new(),
        }
    }

    /// Gives a session to the active loop that is least busy; of those that are alike, to that
    /// which has the fewest.
    pub(super) fn hand_over(&self, session: Session) {
        let active = &self.loops[..self.active()];
        let sessions = |share: &LoopShare| share.session_count.load(Ordering::Acquire);
        let found = active
            .iter()
            .min_by_key(|share| (share.load() / LOAD_GRAIN, sessions(share)));
        let Some(share) = found else {
            return;
        };
        // Until it shows in the measures, it is taken to be like the others.
        let measured = |share: &LoopShare| share.load.load(Ordering::Relaxed);
        let loads: u32 = active.iter().map(measured).sum();
        let count: usize = active.iter().map(sessions).sum();
        share.expect(loads / u32::try_from(count.max(1)).unwrap_or(u32::MAX));
        share.give_session(session);
    }

    /// Gives a session to this loop.
    pub(super) fn hand_to(&self, to: usize, session: Session) {
        self.loops[to].give_session(session);
    }

    /// How many loops are given sessions: the first ones.
    pub(super) fn active(&self) -> usize {
        self.active.load(Ordering::Acquire)
    }

    /// So many are from now on. Those that are not any more give theirs away.
    pub(super) fn set_active(&self, active: usize) {
        let groups = locked(&self.groups);
        let before = self.active.swap(active, Ordering::AcqRel);
        if before == active {
            return;
        }
        for group in groups.iter() {
            spread(group, active);
        }
        drop(groups);
        for share in self.loops.iter().take(before).skip(active) {
            share.order_move(GivenAway::All);
        }
    }

    /// There are sockets for datagrams at another address, one for each loop, of which this is
    /// one.
    pub(super) fn add_group(&self, socket: UdpSocket) {
        let mut groups = locked(&self.groups);
        spread(&socket, self.active());
        groups.push(socket);
    }

    /// How busy each loop was lately: shares of the time.
    pub(super) fn tell_loads(&self, shares: &[f64]) {
        for (share, busy) in self.loops.iter().zip(shares) {
            share.learn_load(*busy);
        }
    }

    /// Has a loop give sessions to another one.
    pub(super) fn order_move(&self, one: &Move) {
        let (permille, to) = (one.permille, one.to);
        self.loops[one.from].order_move(GivenAway::Part { permille, to });
    }

    /// Waits for so long, or until the engine is stopped: whether it is.
    pub(super) fn await_stop(&self, pause: Duration) -> bool {
        let guard = locked(&self.stopping);
        if !self.is_stopped() {
            drop(self.stopped.wait_timeout(guard, pause));
        }
        self.is_stopped()
    }

    /// Asks for a lane for a session; what comes of it comes to its loop.
    pub(super) fn order_lane(&self, order: Order) {
        let (at, session) = (order.at, order.session);
        let put = match &self.orders {
            None => Err(ClaimStatus::NoSuchQueue),
            Some(orders) => orders.put(order),
        };
        if let Err(status) = put {
            self.give_lane(at, session, Err(status));
        }
    }

    /// Waits for claims of a queue, for `pause` at most if it is given, or until the engine
    /// is stopped.
    pub(super) fn await_orders(&self, queue: usize, pause: Option<Duration>) -> Vec<Order> {
        let orders = self.orders.as_ref();
        orders.map_or_else(Vec::new, |orders| {
            orders.take(queue, pause, || self.is_stopped())
        })
    }

    /// Tells a loop what came of a session's claim.
    pub(super) fn give_lane(&self, at: usize, session: u64, given: Given) {
        let share = &self.loops[at];
        locked(&share.lanes).push((session, given));
        share.has_lanes.store(true, Ordering::Release);
        share.bell.ring();
    }

    /// One ends: its datagrams are nobody's from now on.
    pub(super) fn forget(&self, session: &Session) {
        if let Some(name) = session.datagrams {
            self.peers.end(name);
        }
    }

    /// Has every loop ask again who may read.
    pub(super) fn judge_again(&self) {
        for share in &self.loops {
            share.must_judge.store(true, Ordering::Release);
            share.bell.ring();
        }
    }

    /// Has the mapper look at once.
    #[cold]
    pub(super) fn nudge(&self) {
        *self.nudged() = true;
        self.nudge.notify_all();
    }

    /// Waits for a nudge, for `pause` at most.
    pub(super) fn await_nudge(&self, pause: Duration) {
        let guard = self.nudged();
        let mut guard = match *guard || self.is_stopped() {
            true => guard,
            false => match self.nudge.wait_timeout(guard, pause) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            },
        };
        *guard = false;
    }

    fn nudged(&self) -> MutexGuard<'_, bool> {
        locked(&self.is_nudged)
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.is_stopped.load(Ordering::Acquire)
    }

    /// Ends all threads.
    pub(super) fn stop(&self) {
        self.is_stopped.store(true, Ordering::Release);
        self.bell.ring();
        self.loops.iter().for_each(|share| share.bell.ring());
        if let Some(orders) = &self.orders {
            orders.wake();
        }
        drop(locked(&self.stopping));
        self.stopped.notify_all();
        self.nudge();
    }

    /// What all threads have counted together.
    pub(super) fn counted(&self) -> Counted {
        let counted = self.loops.iter().map(|share| share.counters.read());
        counted.fold(self.counted_by_set_up(), Counted::and)
    }

    /// What those have counted that let clients in and map backends.
    pub(super) fn counted_by_set_up(&self) -> Counted {
        let own = &self.counters;
        let uptime_ms = self.began.elapsed().as_millis() as u64;
        own.uptime_ms.store(uptime_ms, Ordering::Relaxed);
        own.pid.store(std::process::id().into(), Ordering::Relaxed);
        own.engines.store(self.active() as u64, Ordering::Relaxed);
        let most = self.loops.len() as u64;
        own.engines_max.store(most, Ordering::Relaxed);
        let frames = &own.message_frames;
        frames.store(self.message_frames, Ordering::Relaxed);
        own.read()
    }
}
