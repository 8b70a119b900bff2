//! The places that a client has at the queues of backends, and what it publishes there
//! (`commit.rs` says by which rules).

use crate::error::NotCommittable;
use crate::time;
use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use trefoil_client_core::mode::REPLICAS_MAX;
use trefoil_driver::Topology;
use trefoil_fabric::shm::{ConnectError, ConnectOptions, Seat};
use trefoil_layout::KeyHash;
use trefoil_layout::message::{Request, RequestHead};
use trefoil_layout::op::Mutation;
use trefoil_ordered::slot::PAYLOAD_LEN_MAX;

/// How long a backend may take to give a place, unless the client's deadline is shorter.
const WELCOME: Duration = Duration::from_secs(2);
/// How long one may take that has given none, or has been away: others wait for it in vain.
const WELCOME_AGAIN: Duration = Duration::from_millis(50);
/// After it gave none, nobody asks for so long.
const RETRY_NS: u64 = 100_000_000;
/// The same after it has said nothing: each attempt costs its caller a deadline.
const RETRY_SILENT_NS: u64 = 2_000_000_000;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    /// By the backend's number.
    by_backend: Vec<Option<Seat>>,
    /// Who is not asked before when, and what it is taken for until then.
    put_off: HashMap<u32, (u64, Option<NotCommittable>)>,
    /// The request that is to be published.
    bytes: Vec<u8>,
}

/// What came of an attempt to commit.
pub(crate) enum Attempt {
    /// It stands everywhere.
    Committed,
    /// Nothing was sent that will ever be executed.
    Refused,
    /// It may be executed: a backend's lease has ended meanwhile, say.
    Unknown,
}

/// Whether a place is there.
pub(crate) enum Place {
    /// It is.
    Taken,
    /// Not at present: the backend is away, or full, or serves another topology.
    Missing,
    /// There is none for this client.
    None(NotCommittable),
}

impl Seats {
    #[inline]
    fn seat(&mut self, backend: u32) -> Option<&mut Seat> {
        self.by_backend.get_mut(backend as usize)?.as_mut()
    }

    fn leave(&mut self, backend: u32) {
        if let Some(seat) = self.by_backend.get_mut(backend as usize) {
            *seat = None;
        }
    }

    /// Whether there is a place at the backend's queue; asks for one, for so long at most.
    #[inline]
    pub(crate) fn take(
        &mut self,
        backend: u32,
        topology: &Topology,
        options: impl FnOnce() -> ConnectOptions,
        (now_ns, deadline_ns): (u64, u64),
    ) -> Place {
        if let Some(seat) = self.seat(backend) {
            if seat.view.lease_alive(now_ns) {
                return Place::Taken;
            }
            self.leave(backend);
            self.put_off.insert(backend, (0, None));
        }
        self.ask(backend, topology, options, (now_ns, deadline_ns))
    }

    #[cold]
    fn ask(
        &mut self,
        backend: u32,
        topology: &Topology,
        options: impl FnOnce() -> ConnectOptions,
        (now_ns, deadline_ns): (u64, u64),
    ) -> Place {
        if let Some((until_ns, why)) = self.put_off.get(&backend)
            && now_ns < *until_ns
        {
            return why.map_or(Place::Missing, Place::None);
        }
        let welcome = match self.put_off.contains_key(&backend) {
            true => WELCOME_AGAIN,
            false => WELCOME,
        };
        let left_ns = deadline_ns.saturating_sub(now_ns);
        if left_ns == 0 {
            return Place::Missing;
        }
        let socket = topology.config().backend(backend);
        let socket = socket.and_then(|backend| backend.fabric_socket.as_ref());
        let Some(socket) = socket else {
            return Place::None(NotCommittable::NotShared(backend));
        };
        let options = ConnectOptions {
            timeout: welcome.min(Duration::from_nanos(left_ns)),
            ..options()
        };
        let (pause_ns, why) = match Seat::take(socket, backend, &options) {
            // Where a key belongs is known by the topology alone: a backend of a cell that was
            // resized meanwhile would acknowledge keys that are another's by now. What is
            // executed is refused instead, and so this client learns of the newer one.
            Ok(seat) if seat.view.agreement().topology == topology.id() => {
                let at = backend as usize;
                if self.by_backend.len() <= at {
                    self.by_backend.resize_with(at + 1, || None);
                }
                self.by_backend[at] = Some(seat);
                self.put_off.remove(&backend);
                return Place::Taken;
            }
            // An older server does not know what is asked for.
            Err(ConnectError::NoQueue { .. } | ConnectError::Hello { .. }) => {
                (RETRY_NS, Some(NotCommittable::NoQueue(backend)))
            }
            Err(
                ConnectError::Permission { .. }
                | ConnectError::ForeignServer { .. }
                | ConnectError::NotAllowed { .. },
            ) => (RETRY_NS, Some(NotCommittable::NotShared(backend))),
            Err(ConnectError::Timeout { .. }) => (RETRY_SILENT_NS, None),
            _ => (RETRY_NS, None),
        };
        // The attempt took its time.
        let until_ns = time::monotonic_ns().saturating_add(pause_ns);
        self.put_off.insert(backend, (until_ns, why));
        why.map_or(Place::Missing, Place::None)
    }

    /// Makes this the request that is published next. `false`: it is too long for a slot.
    pub(crate) fn write(&mut self, mutation: Mutation<'_>, config_id: u32) -> bool {
        let request = Request::Mutate(mutation);
        let len = request.encoded_len();
        if len > PAYLOAD_LEN_MAX {
            return false;
        }
        self.bytes.clear();
        self.bytes.resize(len, 0);
        request.encode(RequestHead { id: 0, config_id }, &mut self.bytes);
        true
    }

    /// What these backends know of the key. `None`: one of them would not count at present, or
    /// has no room.
    pub(crate) fn ask_all(
        &mut self,
        cohort: &[u32],
        hash: KeyHash,
        config_id: u32,
    ) -> Option<Known> {
        let mut known = Known::default();
        let mut epochs = OneEpoch::default();
        for (place, backend) in cohort.iter().enumerate() {
            let seat = self.seat(*backend)?;
            let counts = epochs.takes(seat.epoch(place, hash, config_id));
            if !counts || seat.queue.is_closed() || !seat.queue.has_room() {
                return None;
            }
            // Before the versions.
            known.conditional[place] = seat.marker.conditional(hash.tag)?;
            let executed_ns = seat.view.newest_ns(seat.view.partition(place, hash));
            known.time_ns = known.time_ns.max(executed_ns).max(seat.marker.nominated());
        }
        Some(known)
    }

    /// Publishes the request that was written at its only backend.
    pub(crate) fn commit(&mut self, backend: u32, hash: KeyHash) -> Attempt {
        if !self.publish(backend, hash) {
            return Attempt::Refused;
        }
        match self.all_live(&[backend]) {
            true => Attempt::Committed,
            false => Attempt::Unknown,
        }
    }

    /// Publishes the request that was written, whose version has this time, at all of them.
    pub(crate) fn commit_to_all(
        &mut self,
        cohort: &[u32],
        hash: KeyHash,
        config_id: u32,
        (known, time_ns): (&Known, u64),
    ) -> Attempt {
        // Whoever asks from now on comes behind this.
        for backend in cohort {
            if let Some(seat) = self.seat(*backend) {
                seat.marker.nominate(time_ns);
            }
        }
        for (at, backend) in cohort.iter().enumerate() {
            if !self.publish(*backend, hash) {
                return match at {
                    0 => Attempt::Refused,
                    _ => Attempt::Unknown,
                };
            }
        }
        // A backend raises its epoch, or says that it executes a CAS, and then looks for what
        // is published.
        fence(Ordering::SeqCst);
        let mut epochs = OneEpoch::default();
        for (place, backend) in cohort.iter().enumerate() {
            let Some(seat) = self.seat(*backend) else {
                return Attempt::Unknown;
            };
            let is_between = seat.marker.conditional(hash.tag) != Some(known.conditional[place]);
            if is_between || !epochs.takes(seat.epoch(place, hash, config_id)) {
                return Attempt::Unknown;
            }
        }
        match self.all_live(cohort) {
            true => Attempt::Committed,
            false => Attempt::Unknown,
        }
    }

    /// Whether all leases go on. To be asked last: whoever takes a backend's place begins when
    /// its lease is over.
    fn all_live(&mut self, backends: &[u32]) -> bool {
        let now_ns = time::monotonic_ns();
        let mut backends = backends.iter();
        backends.all(|backend| {
            let seat = self.seat(*backend);
            seat.is_some_and(|seat| seat.view.lease_alive(now_ns))
        })
    }

    /// Marks the key and publishes `self.bytes`. `false`: it was refused, and left no trace.
    #[inline]
    fn publish(&mut self, backend: u32, hash: KeyHash) -> bool {
        let Seats {
            by_backend, bytes, ..
        } = self;
        let Some(Some(seat)) = by_backend.get_mut(backend as usize) else {
            return false;
        };
        seat.marker.mark(hash.tag);
        if seat.queue.submit(bytes, true).is_ok() {
            seat.marker.commit(hash.tag);
            return true;
        }
        seat.marker.withdraw(hash.tag);
        if seat.queue.is_closed() {
            self.leave(backend);
        }
        false
    }
}

/// What the backends of a key say before a version is nominated.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// No version that any of them knows, or is about to, has a later time.
    pub(crate) time_ns: u64,
    /// By place: see [`Marker::conditional`](trefoil_ordered::marks::Marker::conditional).
    conditional: [u64; REPLICAS_MAX],
}

/// Epochs that count together.
#[derive(Default)]
struct OneEpoch(Option<u32>);

impl OneEpoch {
    #[inline]
    fn takes(&mut self, epoch: Option<u32>) -> bool {
        epoch.is_some_and(|epoch| *self.0.get_or_insert(epoch) == epoch)
    }
}
