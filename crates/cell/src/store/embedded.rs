//! The configuration of a cell that lives in one process.

use super::{ConfigStore, ConfigStoreError, check_swap};
use crate::config::CellConfig;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use trefoil_layout::TopologyId;

/// Keeps the configuration in memory.
#[derive(Debug, Default)]
pub struct EmbeddedStore {
    current: Mutex<Option<CellConfig>>,
    changed: Condvar,
}

impl EmbeddedStore {
    /// A store without a configuration.
    pub fn new() -> Self {
        Self::default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<CellConfig>> {
        // A panicking writer leaves either the old or the new configuration.
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConfigStore for EmbeddedStore {
    fn load(&self) -> Result<Option<CellConfig>, ConfigStoreError> {
        Ok(self.lock().clone())
    }

    fn compare_and_swap(
        &self,
        expected: Option<TopologyId>,
        next: &CellConfig,
    ) -> Result<(), ConfigStoreError> {
        let mut current = self.lock();
        check_swap(current.as_ref(), expected, next)?;
        *current = Some(next.clone());
        self.changed.notify_all();
        Ok(())
    }

    fn wait_for_change(
        &self,
        known: Option<TopologyId>,
        timeout: Duration,
    ) -> Result<Option<CellConfig>, ConfigStoreError> {
        let same = |current: &mut Option<CellConfig>| {
            current.as_ref().map(CellConfig::topology_id) == known
        };
        let (current, waited) = self
            .changed
            .wait_timeout_while(self.lock(), timeout, same)
            .unwrap_or_else(PoisonError::into_inner);
        Ok(current.clone().filter(|_| !waited.timed_out()))
    }
}
