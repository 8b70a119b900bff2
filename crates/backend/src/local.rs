//! The only backend of a cell, for other code of its own process: no message,
//! no ring, no copy in between.

use crate::clock;
use crate::flush::FlushError;
use crate::memory::MemoryError;
use crate::state::State;
use std::sync::Arc;
use trefoil_layout::Version;
use trefoil_store::{Now, Store};

/// See the module. Cheap to clone; for any thread. Once the server shuts down,
/// everything is refused.
#[derive(Clone)]
pub struct LocalStore {
    state: Arc<State>,
}

impl LocalStore {
    /// `None` unless the one member of this process is the whole cell.
    pub(crate) fn new(state: &Arc<State>) -> Option<Self> {
        let whole = state.members.len() == 1 && state.config().backends.len() == 1;
        whole.then(|| LocalStore {
            state: Arc::clone(state),
        })
    }

    /// The store. The rules of `trefoil_store` hold for whoever enters it, one
    /// copy being its own quorum.
    #[inline]
    pub fn store(&self) -> &Store {
        &self.state.members[0].store
    }

    /// The time, as every request of this backend is given it.
    #[inline]
    pub fn now(&self) -> Now {
        clock::now()
    }

    /// Bound on the process's resident bytes.
    pub fn memory_limit(&self) -> u64 {
        self.state.bound.limit()
    }

    /// Makes everything stored before `at_ms` (milliseconds since the Unix
    /// epoch) invisible; the floor that is in force now.
    pub fn flush(&self, at_ms: u64) -> Result<Version, FlushError> {
        let newest = self.store().newest();
        let floor = trefoil_cell::flush_floor(at_ms, self.now().unix_ms(), newest);
        let config = self.state.raise_flush_floor(floor)?;
        Ok(config.flush_floor)
    }

    /// Changes the bound on the process's resident bytes; returns the old one.
    pub fn set_memory_limit(&self, bytes: u64) -> Result<u64, MemoryError> {
        self.state.set_memory_limit(bytes)
    }
}

impl std::fmt::Debug for LocalStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LocalStore")
            .field("members", &self.state.members)
            .finish_non_exhaustive()
    }
}
