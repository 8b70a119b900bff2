//! Why a server could not start.

use crate::corpus::CorpusError;
use crate::listen::ListenError;
use crate::memory::MemoryError;
use std::path::PathBuf;
use trefoil_cell::{ConfigStoreError, Mode};
use trefoil_fabric::shm::TargetError;
use trefoil_region::ObjectError;
use trefoil_store::StoreError;
use trefoil_store::policy::UnknownPolicy;

/// Why a server could not start. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration changed while the server was starting.
    #[error(transparent)]
    Flush(#[from] crate::flush::FlushError),
    /// The configuration cannot be had.
    #[error(transparent)]
    ConfigStore(#[from] ConfigStoreError),
    /// It was told to ([`Ending`](crate::Ending)).
    #[error("it was told to end before it served")]
    Ended,
    /// There is none.
    #[error("the cell has no configuration yet")]
    NoConfig,
    /// No backend to be.
    #[error("no backend number was given for this process")]
    NoMembers,
    /// A number that the cell does not have, or one twice.
    #[error(
        "backend {number} cannot run here: the cell has backends 0 to {last}, and each runs once"
    )]
    Member {
        /// Asked for.
        number: u32,
        /// Highest of the cell.
        last: u32,
    },
    /// Every restart of a backend begins in an epoch of its own; there are
    /// 524,288 of them in one life of a cell.
    #[error(
        "backend {number} has been started {count} times without its cell: restart the whole cell"
    )]
    IncarnationsUsedUp {
        /// Which.
        number: u32,
        /// How often.
        count: u32,
    },
    /// Eviction policy of another release.
    #[error(transparent)]
    Policy(#[from] UnknownPolicy),
    /// A socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The memory limit.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// A member's store.
    #[error("backend {number}: {source}")]
    Store {
        /// Which.
        number: u32,
        /// Why.
        source: StoreError,
    },
    /// A member's regions cannot be handed out.
    #[error("backend {number}: {source}")]
    Export {
        /// Which.
        number: u32,
        /// Why.
        source: ObjectError,
    },
    /// The shared-memory fabric.
    #[error(transparent)]
    Fabric(#[from] TargetError),
    /// A corpus for a cell that takes mutations.
    #[error("a corpus is loaded by immutable cells (R=2) only; this one is {0}")]
    NotImmutable(Mode),
    /// An immutable cell without one.
    #[error("an immutable cell (R=2) needs a corpus to load: name a file of JSON lines or CSV")]
    NoCorpus,
    /// A queue where it would promise what it does not keep.
    #[error(
        "there is nothing to commit (--queue) in a cell that nobody writes to; this one is {0}"
    )]
    Queue(Mode),
    /// The queue's memory.
    #[error("backend {number}: {source}")]
    QueueSetUp {
        /// Which.
        number: u32,
        /// Why.
        source: trefoil_ordered::SetUpError,
    },
    /// The corpus.
    #[error("{path}: {source}")]
    Corpus {
        /// Its file.
        path: PathBuf,
        /// Why.
        source: CorpusError,
    },
    /// The backend that this process was to take over from.
    #[error(transparent)]
    Handover(#[from] crate::handover::HandoverError),
    /// The cell that this process was to be a backend of.
    #[error(transparent)]
    Resize(#[from] crate::resize::ResizeError),
    /// Threads or the runtime.
    #[error("cannot start {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// The system's reason.
        source: std::io::Error,
    },
}

impl StartError {
    /// What the configuration store has said, if that is why.
    pub fn of_config_store(&self) -> Option<&ConfigStoreError> {
        match self {
            StartError::ConfigStore(error)
            | StartError::Flush(crate::flush::FlushError::ConfigStore(error)) => Some(error),
            _ => None,
        }
    }

    /// Whether the backend's place is another process's by now.
    pub fn is_place_taken(&self) -> bool {
        matches!(
            self,
            StartError::ConfigStore(ConfigStoreError::PlaceTaken { .. })
                | StartError::Flush(crate::flush::FlushError::PlaceTaken { .. })
        )
    }
}
