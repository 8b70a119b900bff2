//! Flushing: a configuration with a higher floor is put in force, then served.
//!
//! ```text
//! configuration store: compare and swap (the first backend; others find it)
//!   stores: floors raised           nothing at or below is found or stored
//!   configuration answered          clients who ask learn of it
//!   config ids: requests, buckets   clients who do not ask are made to
//! acknowledged
//! ```

use crate::state::State;
use std::sync::Arc;
use trefoil_cell::{CellConfig, ConfigStoreError};
use trefoil_layout::Version;

/// Why a flush did not happen here. It may be in force at other backends.
#[derive(Debug, thiserror::Error)]
pub enum FlushError {
    /// A corpus that is loaded from a file has nothing to flush.
    #[error("an immutable cell is not flushed: load another file with `trefoil cell reload`")]
    Immutable,
    /// The configuration cannot be read or changed.
    #[error(transparent)]
    ConfigStore(#[from] ConfigStoreError),
    /// It is gone.
    #[error("the cell's configuration is gone")]
    NoConfig,
    /// The cell was started anew, without this process.
    #[error(
        "the cell was started anew (config id {0}): what this backend holds belongs to its former life; stop this process"
    )]
    OtherLife(u32),
    /// More than a flush has changed: backends, mode, hash, limits.
    #[error(
        "the configuration in force (config id {0}) differs in more than a flush from the one that this backend serves: restart the backend"
    )]
    OtherConfig(u32),
    /// Another corpus is served by others.
    #[error(
        "the cell was reloaded (config id {0}), this backend was not: run `trefoil cell reload` again"
    )]
    NotReloaded(u32),
    /// Every flush takes one.
    #[error("the cell's config ids are used up: start it anew")]
    NoConfigId,
}

impl State {
    /// Serves a configuration whose floor is at least `floor`, making one if
    /// need be; that configuration.
    pub(crate) fn raise_flush_floor(&self, floor: Version) -> Result<Arc<CellConfig>, FlushError> {
        if self.config().mode.is_immutable() {
            return Err(FlushError::Immutable);
        }
        loop {
            let stored = self.config_store.load()?.ok_or(FlushError::NoConfig)?;
            if stored.flush_floor >= floor {
                return self.adopt(stored);
            }
            let next = stored.flushed(floor).ok_or(FlushError::NoConfigId)?;
            let swapped = self
                .config_store
                .compare_and_swap(Some(stored.topology_id()), &next);
            match swapped {
                Ok(()) => return self.adopt(next),
                // Somebody else was first, perhaps with this very floor.
                Err(ConfigStoreError::Conflict { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Serves the configuration that is in force, if a flush has changed it
    /// without telling this process. An error says what cannot be followed.
    pub(crate) fn catch_up(&self) -> Result<(), FlushError> {
        let stored = self.config_store.load()?.ok_or(FlushError::NoConfig)?;
        let current = self.config();
        let is_reload = stored.mode.is_immutable()
            && stored.life == current.life
            && stored.flush_floor == current.flush_floor;
        if is_reload && self.members.iter().any(|member| member.is_reloading()) {
            // Its commit is on the way.
            return Ok(());
        }
        self.adopt(stored).map(drop)
    }

    fn adopt(&self, next: CellConfig) -> Result<Arc<CellConfig>, FlushError> {
        // One at a time: ids and floors only grow.
        let _adopting = self.adopting();
        let current = self.config();
        let id = next.config_id;
        if next.life != current.life {
            return Err(FlushError::OtherLife(id));
        }
        if id <= current.config_id {
            return Ok(current);
        }
        if current.differs_by_reload(&next) {
            return Err(FlushError::NotReloaded(id));
        }
        if !current.differs_by_flush(&next) {
            return Err(FlushError::OtherConfig(id));
        }
        for member in &self.members {
            member.store.raise_flush_floor(next.flush_floor);
        }
        self.set_config(next);
        for member in &self.members {
            member.change_config(id);
        }
        tracing::info!(config_id = id, "flushed");
        Ok(self.config())
    }
}
