//! What the driver asks of the world: clocks, connections, configurations. All of
//! it is begun, never waited for; what comes of it is an [`Event`].

use crate::topology::Topology;
use std::sync::Arc;
use trefoil_fabric::port::Port;
use trefoil_layout::KeyHash;

/// How long it may take until a process serves that has taken another one's place, in
/// nanoseconds. Usually some milliseconds; on an overloaded machine longer than an
/// operation's usual deadline. That operation fails then: it does not take a replica that is
/// late for one that is away, and a key on which the other two differ for a missing one.
pub const SUCCESSOR_NS: u64 = 2_000_000_000;

/// The clocks of a client.
pub trait Clock {
    /// The host's monotonic clock, some milliseconds behind at most, for a few
    /// nanoseconds of CPU.
    fn coarse_ns(&self) -> u64;
    /// The host's monotonic clock.
    fn monotonic_ns(&self) -> u64;
    /// Nanoseconds since the Unix epoch.
    fn unix_ns(&self) -> u64;
    /// Milliseconds since the Unix epoch, a few behind at most.
    fn coarse_unix_ms(&self) -> u64;
}

/// Why the best carrier of a backend could not be had.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NotConnected {
    /// For people.
    pub why: String,
    /// The backend is gone, or hangs: calls do not reach it either. Otherwise
    /// calls are tried.
    pub is_down: bool,
    /// Trying again cannot help: the backend offers nothing better than calls.
    pub is_final: bool,
}

/// What came of something that was begun.
#[derive(Debug)]
pub enum Event<P> {
    /// Of [`Host::connect`].
    Connected {
        /// Backend number.
        backend: u32,
        /// The topology that it was begun under.
        topology: Arc<Topology>,
        /// The way to it.
        result: Result<P, NotConnected>,
    },
    /// Of [`Host::learn`].
    Learned(Result<Arc<Topology>, String>),
}

/// The world of one driver.
pub trait Host: Clock {
    /// What carries operations.
    type Port: Port;

    /// Random bits.
    fn random(&mut self) -> u64;

    /// When this process began to run, or to run again after a pause, its own or the
    /// whole machine's, on the monotonic clock.
    fn running_since_ns(&self) -> u64;

    /// Begins to connect to a backend by its best carrier. Where it has moved to another
    /// process (`has_moved`), that may take its place in a moment only: for
    /// [`SUCCESSOR_NS`] nobody's being there is no answer.
    fn connect(&mut self, topology: &Arc<Topology>, backend: u32, has_moved: bool);

    /// Another process is about to take a backend's place (`is_near`), or no longer is: that
    /// one may be connected to in advance. Of no use to a host that does not.
    fn foresee(&mut self, _topology: &Arc<Topology>, _backend: u32, _is_near: bool) {}

    /// A port that calls a backend, connecting when it is used.
    fn caller(&mut self, topology: &Arc<Topology>, backend: u32) -> Result<Self::Port, String>;

    /// Begins to learn the cell's topology anew.
    fn learn(&mut self);

    /// The next event, if one has come.
    fn next_event(&mut self) -> Option<Event<Self::Port>>;

    /// A backend is reached by something slower than its best carrier.
    fn degraded(&mut self, backend: u32, why: &str);

    /// A backend has been reached. Of no use to a host that tells nobody.
    fn reached(&mut self, _backend: u32) {}

    /// The connection to a backend stands and it lives: said now and then.
    fn stands(&mut self, _backend: u32) {}

    /// Replicas differ on these keys: somebody may repair them. Of no use to a host that
    /// tells nobody.
    fn suspect(&mut self, _topology: &Arc<Topology>, _keys: &[KeyHash]) {}

    /// A backend does not answer any more, or still does not.
    fn unreached(&mut self, _backend: u32, _why: &str) {}
}
