//! The configuration of a cell that lives in one process.

use super::claim::{BackendLock, Claim, Claimed};
use super::document::{Document, Incarnations};
use super::{BackendRegistry, ConfigStore, ConfigStoreError, check_swap};
use crate::config::CellConfig;
use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trefoil_layout::TopologyId;

/// Keeps the configuration in memory.
#[derive(Debug, Default)]
pub struct EmbeddedStore {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    held: Mutex<Held>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Held {
    current: Option<Document>,
    claimed: BTreeSet<u32>,
}

impl Held {
    fn config(&self) -> Option<&CellConfig> {
        self.current.as_ref().map(|document| &document.config)
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Held> {
        // A panicking writer leaves either the old or the new configuration.
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EmbeddedStore {
    /// A store without a configuration.
    pub fn new() -> Self {
        Self::default()
    }
}

impl ConfigStore for EmbeddedStore {
    fn load(&self) -> Result<Option<CellConfig>, ConfigStoreError> {
        Ok(self.shared.lock().config().cloned())
    }

    fn compare_and_swap(
        &self,
        expected: Option<TopologyId>,
        next: &CellConfig,
    ) -> Result<(), ConfigStoreError> {
        let mut held = self.shared.lock();
        check_swap(held.config(), expected, next)?;
        held.current = Some(Document::after(held.current.as_ref(), next));
        self.shared.changed.notify_all();
        Ok(())
    }

    fn wait_for_change(
        &self,
        known: Option<TopologyId>,
        timeout: Duration,
    ) -> Result<Option<CellConfig>, ConfigStoreError> {
        let same = |held: &mut Held| held.config().map(CellConfig::topology_id) == known;
        let (held, waited) = self
            .shared
            .changed
            .wait_timeout_while(self.shared.lock(), timeout, same)
            .unwrap_or_else(PoisonError::into_inner);
        Ok(held.config().cloned().filter(|_| !waited.timed_out()))
    }
}

impl BackendRegistry for EmbeddedStore {
    fn claim(&self, number: u32) -> Result<BackendLock, ConfigStoreError> {
        if !self.shared.lock().claimed.insert(number) {
            return Err(ConfigStoreError::BackendLocked {
                number,
                pid: Some(std::process::id()),
                path: "in memory".into(),
            });
        }
        let shared = Arc::clone(&self.shared);
        Ok(BackendLock::new(number, Member { shared, number }))
    }

    fn claimed(&self) -> Result<Vec<Claimed>, ConfigStoreError> {
        let process = Some(std::process::id());
        let claimed = |&number: &u32| Claimed { number, process };
        Ok(self.shared.lock().claimed.iter().map(claimed).collect())
    }

    fn incarnations(&self) -> Result<Incarnations, ConfigStoreError> {
        let held = self.shared.lock();
        Ok(held
            .current
            .as_ref()
            .map_or_else(Incarnations::new, |d| d.incarnations.clone()))
    }
}

/// One of the process's backends.
#[derive(Debug)]
struct Member {
    shared: Arc<Shared>,
    number: u32,
}

impl Claim for Member {
    fn begin_incarnation(&self, number: u32, life: u64) -> Result<u32, ConfigStoreError> {
        let mut held = self.shared.lock();
        let none = || ConfigStoreError::NoCell("in memory".into());
        held.current
            .as_mut()
            .ok_or_else(none)?
            .begin_incarnation(number, life)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        self.shared.lock().claimed.remove(&self.number);
    }
}
