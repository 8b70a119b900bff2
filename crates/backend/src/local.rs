//! The only backend of a cell, for other code of its own process: no message,
//! no ring, no copy in between.

use crate::clock;
use crate::flush::FlushError;
use crate::memory::MemoryError;
use crate::state::State;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use trefoil_layout::Version;
use trefoil_store::{Now, Store};

/// Keys share turns; two that do wait for one another needlessly.
const TURN_COUNT: usize = 64;
/// Bytes from a key's end that choose its turn.
const TURN_BYTES: usize = 16;

/// See [`LocalStore::turn`].
#[derive(Debug)]
pub(crate) struct Turns([Mutex<()>; TURN_COUNT]);

impl Default for Turns {
    fn default() -> Self {
        Turns([const { Mutex::new(()) }; TURN_COUNT])
    }
}

/// See the module. Cheap to clone; for any thread. Once the server shuts down,
/// everything is refused.
#[derive(Clone)]
pub struct LocalStore {
    state: Arc<State>,
}

impl LocalStore {
    /// `None` unless the one member of this process is the whole cell, and nobody commits what
    /// it has not executed.
    pub(crate) fn new(state: &Arc<State>) -> Option<Self> {
        let whole = state.members.len() == 1 && state.config().backends.len() == 1;
        let has_queue = state.members.iter().any(|m| m.queue.get().is_some());
        (whole && !has_queue).then(|| LocalStore {
            state: Arc::clone(state),
        })
    }

    /// The store. The rules of `trefoil_store` hold for whoever enters it, one
    /// copy being its own quorum.
    #[inline]
    pub fn store(&self) -> &Store {
        &self.state.members[0].store
    }

    /// To be held by whoever reads an item to write what follows from it. Among
    /// writers that each wait for the store twice, one could lose every time
    /// and give up; those who take turns do not get into one another's way.
    pub fn turn(&self, key: &[u8]) -> MutexGuard<'_, ()> {
        let end = &key[key.len().saturating_sub(TURN_BYTES)..];
        let mixed = end.iter().fold(0usize, |mixed, byte| {
            mixed.wrapping_mul(31).wrapping_add(usize::from(*byte))
        });
        let turns = &self.state.turns.0;
        turns[mixed % TURN_COUNT]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
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
        // By the clock that the caller has: what this process knows may be ahead.
        let floor = trefoil_cell::flush_floor(at_ms, clock::host().unix_ms(), newest);
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
