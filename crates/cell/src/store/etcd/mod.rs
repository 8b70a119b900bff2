//! The configuration of a cell in etcd.
//!
//! | key below the address's path | value | written if |
//! |---|---|---|
//! | `config` | the configuration, and the incarnations of each backend (as `cell.json` of a directory) | it is still the one that was read, by its revision |
//! | `backends/N` | who is backend N; bound to a lease of etcd, extended by that process | nobody is, or a dead process of the same place |
//!
//! `control` has those of spares, and of who gives them dead backends' places; `founding`
//! those of hosts that begin a cell together.
//!
//! ```text
//! caller's thread ── a call ──► runtime (one thread) ── gRPC ──► etcd
//!       ▲                        │ follower: one watch of `config`, says *look*
//!       └──────── answer ────────┘ keeper of each registration: extends its lease
//! ```
//!
//! The trait is for threads; everything asynchronous lives on one thread of this
//! store's own, so that it may be called from anywhere, tasks of another runtime
//! included, and nothing of the caller's has to poll for a lease to be kept.
//!
//! A watch is only a hint. What is told to callers was read at a majority of etcd's
//! members after the hint: so nothing depends on how much of its history etcd has
//! kept, or on which of its members had it.
//!
//! **What goes back is refused.** Config ids grow for as long as a store lives. If etcd
//! names a lower one than this process has seen, or none, it was restored from a
//! backup: nothing is read from it or written to it before somebody mends it
//! ([`EtcdStore::restore`]). The same holds for how often backends have begun.

mod calls;
mod control;
mod follow;
mod founding;
mod keeper;
mod leased;
mod mark;
mod runtime;
mod settings;
mod witness;

pub use calls::Held;
pub use control::{Leadership, SpareRegistration};
pub use founding::{Founder, FounderRegistration, Founders};
pub use settings::EtcdSettings;
pub use trefoil_etcd::{EtcdAccess, TlsFiles};

use super::claim::{BackendLock, Claimed};
use super::document::Incarnations;
use super::{BackendRegistry, ConfigStore, ConfigStoreError, DirectoryStore};
use crate::config::{BackendConfig, CellConfig};
use crate::control::Spare;
use crate::etcd_address::EtcdAddress;
use calls::Calls;
use runtime::OwnRuntime;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use trefoil_layout::TopologyId;

/// A cell in etcd.
#[derive(Clone, Debug)]
pub struct EtcdStore {
    calls: Arc<Calls>,
    runtime: Arc<OwnRuntime>,
    directory: Option<DirectoryStore>,
    /// Backends of a cell on several hosts that are here, as the configuration has to name them.
    here: Arc<BTreeMap<u32, BackendConfig>>,
    lease: Duration,
}

/// What a process is as a backend whose sockets are in a directory.
struct Own {
    local: Option<BackendLock>,
    witness: Option<witness::Witness>,
    place: (keeper::Place, Option<keeper::Given>),
}

impl EtcdStore {
    /// Prepares to ask etcd; connects when it is first asked.
    pub fn open(address: &EtcdAddress, settings: &EtcdSettings) -> Result<Self, ConfigStoreError> {
        let runtime = OwnRuntime::start().map_err(|error| ConfigStoreError::Refused {
            address: address.to_string(),
            reason: format!("cannot start a thread for it: {error}"),
        })?;
        let calls = {
            let _entered = runtime.handle().enter();
            Calls::new(address, settings)?
        };
        Ok(EtcdStore {
            calls: Arc::new(calls),
            runtime: Arc::new(runtime),
            directory: None,
            here: Arc::default(),
            lease: settings.lease,
        })
    }

    /// The same, for backends of a cell on several hosts: a process is one of these only
    /// while the configuration names it so.
    pub fn with_backends_here(mut self, backends: Vec<BackendConfig>) -> Self {
        let backends = backends
            .into_iter()
            .map(|backend| (backend.number, backend));
        self.here = Arc::new(backends.collect());
        self
    }

    /// The same, for backends whose sockets are in `directory`: its locks tell at once
    /// that a former process of theirs is dead, and what they leave there tells when
    /// etcd has forgotten something.
    pub fn in_directory(mut self, directory: DirectoryStore) -> Result<Self, ConfigStoreError> {
        self.check_directory(&directory)?;
        self.directory = Some(directory);
        Ok(self)
    }

    /// Where it is.
    pub fn address(&self) -> &EtcdAddress {
        self.calls.address()
    }

    /// What etcd holds, however old; for those who mend it.
    pub fn look(&self) -> Result<Option<Held>, ConfigStoreError> {
        let calls = Arc::clone(&self.calls);
        self.wait(async move { calls.look().await })?
    }

    /// Writes a configuration and counts over what [`EtcdStore::look`] has found, if
    /// that is still there, and has this store begin anew with it.
    pub fn restore(
        &self,
        found: Option<&Held>,
        config: &CellConfig,
        incarnations: &Incarnations,
    ) -> Result<(), ConfigStoreError> {
        let calls = Arc::clone(&self.calls);
        let (found, config) = (found.cloned(), config.clone());
        let incarnations = incarnations.clone();
        self.wait(async move { calls.restore(found, config, incarnations).await })?
    }

    /// Whether sockets of this cell may be in `directory`: it is no other cell's.
    pub fn check_directory(&self, directory: &DirectoryStore) -> Result<(), ConfigStoreError> {
        match directory.load()? {
            Some(_) => Err(ConfigStoreError::OwnCell(directory.directory().to_owned())),
            None => mark::claim(directory, self.address()),
        }
    }

    /// Becomes backend `number` as `spare`, while the configuration names it there: it was
    /// given the place. What `directory` remembers of the backend's starts, etcd must not
    /// have forgotten.
    pub fn claim_place(
        &self,
        number: u32,
        spare: &Spare,
        directory: &DirectoryStore,
    ) -> Result<BackendLock, ConfigStoreError> {
        let place = keeper::Place::at(&spare.addresses, spare.place.as_deref());
        let witness = witness::Witness::of(directory, number);
        let given = keeper::Given {
            addresses: spare.addresses.clone(),
            place: spare.place.clone(),
        };
        self.register(number, (place, Some(given)), Some(witness), None)
    }

    /// What names the process of backend `number` whose lock is in `directory`, of this boot of
    /// this host: for [`BackendConfig::place`].
    pub fn place_in(directory: &DirectoryStore, number: u32) -> Result<String, ConfigStoreError> {
        keeper::in_directory(directory, number)
    }

    fn register(
        &self,
        number: u32,
        place: (keeper::Place, Option<keeper::Given>),
        witness: Option<witness::Witness>,
        local: Option<BackendLock>,
    ) -> Result<BackendLock, ConfigStoreError> {
        let (calls, lease) = (Arc::clone(&self.calls), self.lease);
        let kept =
            self.wait(async move { keeper::register(calls, number, place, lease).await })??;
        Ok(self.keep(number, kept, witness, local))
    }

    fn keep(
        &self,
        number: u32,
        kept: keeper::Kept,
        witness: Option<witness::Witness>,
        local: Option<BackendLock>,
    ) -> BackendLock {
        let registration = keeper::Registration::new(
            Arc::clone(&self.calls),
            Arc::clone(&self.runtime),
            kept,
            witness,
            local,
        );
        BackendLock::new(number, registration)
    }

    /// The lock of the directory on backend `number`, and what is to be registered.
    fn place_of(&self, number: u32) -> Result<Own, ConfigStoreError> {
        let directory = self.directory.as_ref();
        let local = directory.map(|directory| directory.lock_backend(number));
        let local = local.transpose()?;
        let place = keeper::Place::of(directory, number)?;
        let witness = directory.map(|directory| witness::Witness::of(directory, number));
        let given = self.here.get(&number).map(|backend| keeper::Given {
            addresses: backend.addresses.clone(),
            place: backend.place.clone(),
        });
        Ok(Own {
            local,
            witness,
            place: (place, given),
        })
    }

    /// Has this store take `config` for the newest, whatever was seen before: for those
    /// who know that the cell has begun anew.
    pub fn believe(&self, config: &CellConfig) {
        self.calls.believe(config);
    }

    fn wait<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, ConfigStoreError> {
        self.runtime
            .wait(work)
            .ok_or_else(|| self.calls.unavailable("its thread has ended"))
    }
}

impl ConfigStore for EtcdStore {
    fn load(&self) -> Result<Option<CellConfig>, ConfigStoreError> {
        let calls = Arc::clone(&self.calls);
        self.wait(async move { calls.load().await })?
    }

    fn compare_and_swap(
        &self,
        expected: Option<TopologyId>,
        next: &CellConfig,
    ) -> Result<(), ConfigStoreError> {
        let (calls, next) = (Arc::clone(&self.calls), next.clone());
        self.wait(async move { calls.compare_and_swap(expected, next).await })?
    }

    fn wait_for_change(
        &self,
        known: Option<TopologyId>,
        timeout: Duration,
    ) -> Result<Option<CellConfig>, ConfigStoreError> {
        let calls = Arc::clone(&self.calls);
        self.wait(async move { calls.wait_for_change(known, timeout).await })?
    }

    fn is_remote(&self) -> bool {
        true
    }
}

impl BackendRegistry for EtcdStore {
    fn claim(&self, number: u32) -> Result<BackendLock, ConfigStoreError> {
        let own = self.place_of(number)?;
        self.register(number, own.place, own.witness, own.local)
    }

    fn claim_at_last(&self, number: u32) -> Result<BackendLock, ConfigStoreError> {
        let own = self.place_of(number)?;
        let (calls, lease) = (Arc::clone(&self.calls), self.lease);
        let kept = self.wait(keeper::register_at_last(calls, number, own.place, lease))?;
        Ok(self.keep(number, kept, own.witness, own.local))
    }

    fn claimed(&self) -> Result<Vec<Claimed>, ConfigStoreError> {
        let calls = Arc::clone(&self.calls);
        self.wait(async move { keeper::claimed(&calls).await })?
    }

    fn incarnations(&self) -> Result<Incarnations, ConfigStoreError> {
        Ok(self
            .look()?
            .map_or_else(Incarnations::new, |held| held.incarnations))
    }
}
