//! SETs and ERASEs that are acknowledged when they stand in the queues of their backends, and
//! executed afterwards (`docs/ordered.md`, *In a cell*). On the backends' host.
//!
//! # Three copies
//! Each backend executes in an order of its own, and versions decide, as everywhere. So a commit
//! must not be below anything that was acknowledged before it, and has to stand where it will
//! survive:
//! 1. **Ask first.** Its version is above whatever is known at each of the three, executed or
//!    published (`newest_ns`, `nominated`). Where that is too far ahead of the clock, it is
//!    executed instead.
//! 2. **Publish at each**, or at none: all three have room.
//! 3. **Look last.** It counts if all three leases go on and all three acknowledge in one epoch.
//!    A backend that loses its memory copies from the other two under a higher epoch, and they
//!    execute what stood in their queues before they let it.
//!
//! `spec/Queue.tla` is the same, with each rule left out once.

use crate::client::{Client, check_key};
use crate::error::{Mutated, NotCommittable, OpError};
use crate::mutate::SetOptions;
use crate::time;
use std::collections::HashMap;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;
use trefoil_client_core::mode::Mode;
use trefoil_driver::Item;
use trefoil_fabric::shm::{ConnectError, ConnectOptions, Seat};
use trefoil_layout::data::DataEntry;
use trefoil_layout::limits::CLOCK_AHEAD_NS_MAX;
use trefoil_layout::message::{Request, RequestHead};
use trefoil_layout::op::{Action, Mutation};
use trefoil_layout::{KeyHash, Version};
use trefoil_ordered::slot::PAYLOAD_LEN_MAX;

/// When a SET or an ERASE is done for its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commit {
    /// When a quorum has executed it.
    #[default]
    Executed,
    /// When it stands in the queues of the key's backends: no GET that begins later misses it.
    /// With one copy it is lost if the backend's process dies before it has executed it, as
    /// everything is that such a backend holds; with three, one may die. What is too long for a
    /// slot of a queue, or finds one full or ending, is executed instead; so is whatever comes
    /// while one of three backends is away, or recovers.
    Acknowledged,
}

/// How long a backend may take to give a place at its queue, unless the client's deadline is
/// shorter.
const WELCOME: Duration = Duration::from_secs(2);
/// After it gave none, nobody asks for so long.
const RETRY_NS: u64 = 100_000_000;
/// The same after it has said nothing: each attempt costs its caller a deadline.
const RETRY_SILENT_NS: u64 = 2_000_000_000;

/// Versions from further ahead of the host's clock are not committed: backends refuse what is
/// 10 s ahead, and clocks may be set back a little before they execute it.
const AHEAD_NS_MAX: u64 = CLOCK_AHEAD_NS_MAX - 2_000_000_000;

/// The places that a client has at queues.
#[derive(Debug, Default)]
pub(crate) struct Seats {
    by_backend: HashMap<u32, Seat>,
    /// By backend: before when it is not asked again.
    silent_until_ns: HashMap<u32, u64>,
    bytes: Vec<u8>,
}

/// What came of an attempt to commit.
enum Attempt {
    Committed,
    /// Nothing was sent that will ever be executed.
    Refused,
    /// It may be executed: a backend's lease has ended meanwhile, say.
    Unknown,
}

impl Attempt {
    /// One that got no further after it was published so many times.
    fn after(published: usize) -> Self {
        match published {
            0 => Attempt::Refused,
            _ => Attempt::Unknown,
        }
    }
}

impl Client {
    /// When SETs and ERASEs of this client are done, unless a call says otherwise.
    pub fn set_commit(&mut self, commit: Commit) {
        self.commit = commit;
    }

    /// [`Client::set`], done when this says.
    pub fn set_by(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
        commit: Commit,
    ) -> Result<Mutated, OpError> {
        if commit == Commit::Executed {
            return self.set_executed(key, value, options);
        }
        let item = self.check(key, value, options)?;
        match self.commit(Action::Set, key, value, item)? {
            true => Ok(Mutated::Committed),
            false => self.set_executed(key, value, options),
        }
    }

    /// [`Client::erase`], done when this says.
    pub fn erase_by(&mut self, key: &[u8], commit: Commit) -> Result<Mutated, OpError> {
        if commit == Commit::Executed {
            return self.erase_executed(key);
        }
        check_key(key)?;
        self.check_process()?;
        self.settle_topology();
        match self.commit(Action::Erase, key, &[], Item::default())? {
            true => Ok(Mutated::Committed),
            false => self.erase_executed(key),
        }
    }

    /// Commits, or `false`: it has to be executed instead.
    fn commit(
        &mut self,
        action: Action,
        key: &[u8],
        value: &[u8],
        item: Item,
    ) -> Result<bool, OpError> {
        let topology = self.driver.topology();
        if topology.mode() == Mode::R2Immutable {
            return Err(NotCommittable::Mode(topology.mode()).into());
        }
        let hash = topology.hash(key);
        let cohort = topology.cohort(hash);
        let (cohort, config_id) = (cohort.as_slice(), topology.id().config_id);
        for &backend in cohort {
            if !self.has_seat(backend)? {
                return Ok(false);
            }
        }
        let version = match cohort.len() {
            1 => self.driver.nominate(),
            _ => match self.nominate_for_all(cohort, hash) {
                Some(version) => version,
                None => return Ok(false),
            },
        };
        let mutation = Mutation {
            action,
            version,
            entry: DataEntry {
                key,
                value,
                expiry_ms: item.expiry_ms,
                client_flags: item.client_flags,
                item_flags: item.item_flags,
                unique: item.unique,
            },
        };
        let request = Request::Mutate(mutation);
        let len = request.encoded_len();
        if len > PAYLOAD_LEN_MAX {
            return Ok(false);
        }
        let head = RequestHead { id: 0, config_id };
        let mut bytes = std::mem::take(&mut self.seats.bytes);
        bytes.clear();
        bytes.resize(len, 0);
        request.encode(head, &mut bytes);
        let attempt = match *cohort {
            [backend] => self.seats.commit(backend, hash, &bytes),
            _ => self.seats.commit_to_all(cohort, hash, version, &bytes),
        };
        self.seats.bytes = bytes;
        match attempt {
            Attempt::Committed => Ok(true),
            Attempt::Refused => Ok(false),
            Attempt::Unknown => Err(OpError::Indeterminate(format!(
                "one of backends {cohort:?} was away, or lost its memory, when this was \
                 committed to its queue"
            ))),
        }
    }

    /// A version above whatever is known of this key at all of its backends. `None`: none that
    /// they would all take.
    fn nominate_for_all(&mut self, cohort: &[u32], hash: KeyHash) -> Option<Version> {
        let known_ns = self.seats.known_ns(cohort, hash)?;
        let version = self.driver.nominate_above(Version {
            time_ns: known_ns,
            origin: u64::MAX,
        });
        // The host's clock, whatever this client's says: it is what the backends go by.
        let latest_ns = time::unix_ns().saturating_add(AHEAD_NS_MAX);
        (version.time_ns <= latest_ns).then_some(version)
    }

    /// Whether this client has a place at the backend's queue; it asks for one.
    #[inline]
    fn has_seat(&mut self, backend: u32) -> Result<bool, OpError> {
        if let Some(seat) = self.seats.by_backend.get(&backend) {
            if seat.view.lease_alive(time::monotonic_ns()) {
                return Ok(true);
            }
            self.seats.by_backend.remove(&backend);
        }
        self.take_seat(backend)
    }

    #[cold]
    fn take_seat(&mut self, backend: u32) -> Result<bool, OpError> {
        let now = time::monotonic_ns();
        let silent_until = self.seats.silent_until_ns.get(&backend);
        if silent_until.is_some_and(|until| now < *until) {
            return Ok(false);
        }
        let config = self.driver.topology().config();
        let socket = config.backend(backend);
        let socket = socket.and_then(|backend| backend.fabric_socket.clone());
        let socket = socket.ok_or(NotCommittable::NotShared(backend))?;
        let left_ns = self.driver.limits(now).deadline_ns.saturating_sub(now);
        if left_ns == 0 {
            return Ok(false);
        }
        let options = ConnectOptions {
            servers: self.shared.servers.clone(),
            timeout: WELCOME.min(Duration::from_nanos(left_ns)),
            ..ConnectOptions::default()
        };
        match Seat::take(&socket, backend, &options) {
            // Where a key belongs is known by the topology alone: a backend of a cell that was
            // resized meanwhile would acknowledge keys that are another's by now. What is
            // executed is refused instead, and so this client learns of the newer one.
            Ok(seat) if seat.view.agreement().topology == self.driver.topology().id() => {
                self.seats.by_backend.insert(backend, seat);
                Ok(true)
            }
            // An older server does not know what is asked for.
            Err(ConnectError::NoQueue { .. } | ConnectError::Hello { .. }) => {
                Err(NotCommittable::NoQueue(backend).into())
            }
            Err(
                ConnectError::Permission { .. }
                | ConnectError::ForeignServer { .. }
                | ConnectError::NotAllowed { .. },
            ) => Err(NotCommittable::NotShared(backend).into()),
            // It is not there at present, or full, or serves another topology.
            attempt => {
                let pause_ns = match attempt {
                    Err(ConnectError::Timeout { .. }) => RETRY_SILENT_NS,
                    _ => RETRY_NS,
                };
                // The attempt took its time.
                let until = time::monotonic_ns().saturating_add(pause_ns);
                self.seats.silent_until_ns.insert(backend, until);
                Ok(false)
            }
        }
    }
}

impl Seats {
    fn commit(&mut self, backend: u32, hash: KeyHash, bytes: &[u8]) -> Attempt {
        let Some(seat) = self.by_backend.get_mut(&backend) else {
            return Attempt::Refused;
        };
        seat.marker.mark(hash.tag);
        if seat.queue.submit(bytes, true).is_err() {
            seat.marker.withdraw(hash.tag);
            if seat.queue.is_closed() {
                self.by_backend.remove(&backend);
            }
            return Attempt::Refused;
        }
        seat.marker.commit(hash.tag);
        // After the commit: whoever takes the backend's place begins when its lease is over.
        match seat.view.lease_alive(time::monotonic_ns()) {
            true => Attempt::Committed,
            false => Attempt::Unknown,
        }
    }

    /// The latest time of a version that any of these backends knows of the key, or is to. `None`:
    /// one of them would not count, or has no room.
    fn known_ns(&mut self, cohort: &[u32], hash: KeyHash) -> Option<u64> {
        let mut known_ns = 0;
        let mut epoch = None;
        for (place, backend) in cohort.iter().enumerate() {
            let seat = self.by_backend.get_mut(backend)?;
            let current = seat.epoch(place, hash)?;
            if *epoch.get_or_insert(current) != current || !seat.queue.has_room() {
                return None;
            }
            let executed_ns = seat.view.newest_ns(seat.view.partition(place, hash));
            known_ns = known_ns.max(executed_ns).max(seat.marker.nominated());
        }
        Some(known_ns)
    }

    /// See the module, rules 2 and 3.
    fn commit_to_all(
        &mut self,
        cohort: &[u32],
        hash: KeyHash,
        version: Version,
        bytes: &[u8],
    ) -> Attempt {
        // Whoever asks from now on comes behind this.
        for backend in cohort {
            if let Some(seat) = self.by_backend.get(backend) {
                seat.marker.nominate(version.time_ns);
            }
        }
        for (at, backend) in cohort.iter().enumerate() {
            let Some(seat) = self.by_backend.get_mut(backend) else {
                return Attempt::after(at);
            };
            seat.marker.mark(hash.tag);
            if seat.queue.submit(bytes, true).is_err() {
                seat.marker.withdraw(hash.tag);
                if seat.queue.is_closed() {
                    self.by_backend.remove(backend);
                }
                return Attempt::after(at);
            }
            seat.marker.commit(hash.tag);
        }
        // Between what was published and what is looked at: a backend raises its epoch, and
        // then looks at what is published.
        fence(Ordering::SeqCst);
        let mut epoch = None;
        let counts = cohort.iter().enumerate().all(|(place, backend)| {
            let Some(seat) = self.by_backend.get_mut(backend) else {
                return false;
            };
            let current = seat.epoch(place, hash);
            let is_same = current.is_some_and(|e| *epoch.get_or_insert(e) == e);
            is_same && seat.view.lease_alive(time::monotonic_ns())
        });
        match counts {
            true => Attempt::Committed,
            false => Attempt::Unknown,
        }
    }
}
