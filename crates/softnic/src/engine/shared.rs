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
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trefoil_fabric::clock::monotonic_ns;
use trefoil_fabric::shm::Connection;
use trefoil_softnic_core::wire::ClaimStatus;

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
        })
    }

    /// Gives it another socket for datagrams.
    pub(super) fn give_socket(&self, socket: UdpSocket) {
        locked(&self.sockets).push(socket);
        self.has_sockets.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// The sockets that were given to it.
    pub(super) fn take_sockets(&self) -> Vec<UdpSocket> {
        match self.has_sockets.swap(false, Ordering::Acquire) {
            true => std::mem::take(&mut *locked(&self.sockets)),
            false => Vec::new(),
        }
    }

    /// What came of its sessions' claims.
    pub(super) fn take_lanes(&self) -> Vec<(u64, Given)> {
        match self.has_lanes.swap(false, Ordering::Acquire) {
            true => std::mem::take(&mut *locked(&self.lanes)),
            false => Vec::new(),
        }
    }

    /// The sessions that were handed over to it.
    pub(super) fn take_arrivals(&self) -> Vec<Session> {
        match self.has_arrivals.swap(false, Ordering::Acquire) {
            true => std::mem::take(&mut *locked(&self.arrivals)),
            false => Vec::new(),
        }
    }
}

/// See the module.
pub(super) struct Shared {
    pub(super) options: EngineOptions,
    pub(super) admits: Admits,
    /// Of the threads that let clients in and map backends.
    pub(super) counters: Counters,
    pub(super) loops: Box<[LoopShare]>,
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
}

/// A thread that has panicked has said so; what it held is as it left it.
pub(super) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Shared {
    pub(super) fn new(
        options: EngineOptions,
        admits: Admits,
        (seats, orders): (Seats, Option<Orders>),
    ) -> io::Result<Self> {
        let count = options.engines.max(1);
        let loops: io::Result<Box<[LoopShare]>> = (0..count).map(|_| LoopShare::new()).collect();
        Ok(Shared {
            options,
            admits,
            counters: Counters::default(),
            loops: loops?,
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
        match self.loops[at].has_adoptions.swap(false, Ordering::Acquire) {
            true => std::mem::take(&mut locked(&self.adoptions)[at]),
            false => Vec::new(),
        }
    }

    /// Gives a session to the loop that has the fewest.
    pub(super) fn hand_over(&self, mut session: Session) {
        let sessions = |share: &&LoopShare| share.session_count.load(Ordering::Acquire);
        let Some(share) = self.loops.iter().min_by_key(sessions) else {
            return;
        };
        session.seat.join(&share.session_count);
        locked(&share.arrivals).push(session);
        share.has_arrivals.store(true, Ordering::Release);
        share.bell.ring();
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
        own.engines
            .store(self.loops.len() as u64, Ordering::Relaxed);
        own.read()
    }
}
