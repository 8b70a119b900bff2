//! SETs and ERASEs that are acknowledged when they stand in their backend's queue, and executed
//! afterwards (`docs/ordered.md`, *In a cell*). On the backend's host, in cells of one copy.

use crate::client::{Client, check_key};
use crate::error::{Mutated, NotCommittable, OpError};
use crate::mutate::SetOptions;
use crate::time;
use std::collections::HashMap;
use std::time::Duration;
use trefoil_client_core::mode::Mode;
use trefoil_driver::Item;
use trefoil_fabric::shm::{ConnectError, ConnectOptions, Seat};
use trefoil_layout::KeyHash;
use trefoil_layout::data::DataEntry;
use trefoil_layout::message::{Request, RequestHead};
use trefoil_layout::op::{Action, Mutation};
use trefoil_ordered::slot::PAYLOAD_LEN_MAX;

/// When a SET or an ERASE is done for its caller.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Commit {
    /// When a quorum has executed it.
    #[default]
    Executed,
    /// When it stands in the backend's queue: no GET that begins later misses it. It is lost
    /// if the backend's process dies before it has executed it, as everything is that a backend
    /// of one copy holds. What is too long for a slot of the queue, or finds it full or
    /// ending, is executed instead.
    Acknowledged,
}

/// How long a backend may take to give a place at its queue, unless the client's deadline is
/// shorter.
const WELCOME: Duration = Duration::from_secs(2);
/// After it gave none, nobody asks for so long.
const RETRY_NS: u64 = 100_000_000;
/// The same after it has said nothing: each attempt costs its caller a deadline.
const RETRY_SILENT_NS: u64 = 2_000_000_000;

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
    /// The backend's lease has ended meanwhile.
    Unknown,
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
        if topology.mode() != Mode::R1 {
            return Err(NotCommittable::Mode(topology.mode()).into());
        }
        let hash = topology.hash(key);
        let cohort = topology.cohort(hash);
        let (backend, config_id) = (cohort.as_slice()[0], topology.id().config_id);
        if !self.has_seat(backend)? {
            return Ok(false);
        }
        let version = self.driver.nominate();
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
        let attempt = self.seats.commit(backend, hash, &bytes);
        self.seats.bytes = bytes;
        match attempt {
            Attempt::Committed => Ok(true),
            Attempt::Refused => Ok(false),
            Attempt::Unknown => Err(OpError::Indeterminate(format!(
                "backend {backend} was away when this was committed to its queue"
            ))),
        }
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
}
