//! Where a cell's configuration is kept.

mod directory;
mod embedded;
mod ending;
mod file;

pub use directory::{BackendLock, DirectoryStore};
pub use embedded::EmbeddedStore;
pub use ending::is_ending;
pub use file::FileError;

use crate::address::AddressError;
use crate::config::{CellConfig, ConfigError};
use crate::owner::OwnerError;
use std::path::PathBuf;
use std::time::Duration;
use trefoil_layout::TopologyId;

/// Keeps one cell's configuration; changes are compare-and-swap by its identity,
/// so that two writers never both believe that they won. Config ids grow for as
/// long as the store lives, through all lives of the cell.
pub trait ConfigStore: Send + Sync {
    /// The configuration in force; `None` before the first.
    fn load(&self) -> Result<Option<CellConfig>, ConfigStoreError>;

    /// Puts `next` in force if the one in force is `expected` (`None`: if
    /// there is none). `next` must be valid and have a higher id.
    fn compare_and_swap(
        &self,
        expected: Option<TopologyId>,
        next: &CellConfig,
    ) -> Result<(), ConfigStoreError>;

    /// Waits until the configuration in force is another one than `known`
    /// (`None`: until there is one) and returns it; `None` if that took longer
    /// than `timeout`.
    fn wait_for_change(
        &self,
        known: Option<TopologyId>,
        timeout: Duration,
    ) -> Result<Option<CellConfig>, ConfigStoreError>;
}

/// Why the configuration could not be read or changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigStoreError {
    /// Somebody else was first.
    #[error("the configuration was changed by somebody else: expected {}, found {}", id_text(*expected), id_text(*found))]
    Conflict {
        /// What the caller expected.
        expected: Option<TopologyId>,
        /// What is in force.
        found: Option<TopologyId>,
    },
    /// Ids only grow.
    #[error("config id {next} does not follow {current}: every change needs a higher id")]
    NotHigher {
        /// In force.
        current: u32,
        /// Offered.
        next: u32,
    },
    /// The new configuration is not valid.
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    /// The stored configuration cannot be understood.
    #[error("{path} holds no valid configuration: {reason}")]
    Corrupt {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The directory holds no cell.
    #[error("{0} holds no cell: start one with `trefoil cell up --dir {0}`")]
    NoCell(PathBuf),
    /// The cell is another user's, and this one was not let in.
    #[error(
        "Permission denied: {path} may not be read by this user; whoever runs the cell lets others in with --allow-user"
    )]
    Shut {
        /// Which file.
        path: PathBuf,
    },
    /// A file operation failed.
    #[error(transparent)]
    File(#[from] FileError),
    /// The directory is somebody else's.
    #[error(transparent)]
    Owner(#[from] OwnerError),
    /// The directory's path leaves no room for sockets.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The lock on the configuration did not become free.
    #[error("{path} stayed locked by another process for {} s", waited.as_secs())]
    Busy {
        /// Lock file.
        path: PathBuf,
        /// How long was waited.
        waited: Duration,
    },
    /// Another life of the cell has begun.
    #[error("the cell was started anew while backend {number} was starting: start it again")]
    StartedAnew {
        /// Which backend.
        number: u32,
    },
    /// Another process is this backend.
    #[error("backend {number} is already running{} (lock {path}): stop it first", pid_text(*pid))]
    BackendLocked {
        /// Which backend.
        number: u32,
        /// Who holds the lock, if it said so.
        pid: Option<u32>,
        /// Lock file.
        path: PathBuf,
    },
}

fn id_text(id: Option<TopologyId>) -> String {
    id.map_or_else(|| "none".to_owned(), |id| id.to_string())
}

fn pid_text(pid: Option<u32>) -> String {
    pid.map_or_else(String::new, |pid| format!(" as process {pid}"))
}

/// The rule that every store applies while nobody else can change anything.
fn check_swap(
    current: Option<&CellConfig>,
    expected: Option<TopologyId>,
    next: &CellConfig,
) -> Result<(), ConfigStoreError> {
    next.validate()?;
    let found = current.map(CellConfig::topology_id);
    if found != expected {
        return Err(ConfigStoreError::Conflict { expected, found });
    }
    match found {
        Some(TopologyId {
            config_id: current, ..
        }) if next.config_id <= current => Err(ConfigStoreError::NotHigher {
            current,
            next: next.config_id,
        }),
        _ => Ok(()),
    }
}
