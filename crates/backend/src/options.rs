//! What an operator chooses.

use crate::ending::Ending;
use crate::repair::RepairOptions;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use trefoil_cell::{BackendConfig, BackendLock, ConfigStore, LimitNote, RpcAddress};
use trefoil_layout::limits::LAYOUT_VERSION;

/// How a server is run. What all backends of a cell agree on is in its
/// configuration, which `config_store` holds.
pub struct ServerOptions {
    /// Holds the cell's configuration; it must be there before the start.
    pub config_store: Arc<dyn ConfigStore>,
    /// Numbers of the backends that this process is.
    pub members: Vec<u32>,
    /// The right to be them, where a directory grants it; held until shutdown.
    /// They also count lives: a backend of R=3.2 that comes back empty under the
    /// same configuration gets no vote.
    pub locks: Vec<BackendLock>,
    /// Where the configuration has to name the members, if it matters: a process whose
    /// place was given to another one must not begin ([`ConfigStoreError::PlaceTaken`]).
    ///
    /// [`ConfigStoreError::PlaceTaken`]: trefoil_cell::ConfigStoreError::PlaceTaken
    pub place: Option<OwnPlace>,
    /// The Unix socket at which a process that serves is found by the one that takes it over,
    /// where that is not the first address in the configuration.
    pub local: Option<RpcAddress>,
    /// Bound on the resident bytes of the whole process.
    pub memory_limit: u64,
    /// Where a limit is noted that is set while the process lives, for those who start one
    /// in its place.
    pub limit_note: Option<LimitNote>,
    /// Partitions of each member; `None` for as many as suit its share of the memory
    /// (one for every 128 MiB, 2 to 8).
    pub partition_count: Option<usize>,
    /// Whether to back regions by huge pages if the system has enough reserved.
    pub huge_pages: bool,
    /// Capacity of each member in objects, for hit-ratio experiments.
    pub objects_max: Option<u64>,
    /// Erased keys that each member remembers.
    pub tombstone_count_max: usize,
    /// Corpus of an immutable cell: JSON lines, or CSV if it ends in `.csv`.
    pub load: Option<PathBuf>,
    /// Threads of the RPC service.
    pub rpc_thread_count: usize,
    /// The shared-memory fabric.
    pub fabric: FabricOptions,
    /// Whether clients on this host may commit SETs and ERASEs before they are executed.
    /// With one copy only.
    pub queue: bool,
    /// How the members' own shards are repaired, in a cell with three copies.
    pub repair: RepairOptions,
    /// Bytes a second that are copied from other processes, by one that recovers, takes a
    /// backend's place or is to be one of a resized cell; at least [`RECOVERY_RATE_MIN`], or 0
    /// for as fast as it goes. `None`: a recovery goes as fast as it can, a move so fast that
    /// it disturbs nobody.
    ///
    /// [`RECOVERY_RATE_MIN`]: crate::RECOVERY_RATE_MIN
    pub recovery_rate: Option<u64>,
    /// Says that the process is to end before it serves: what it waits for until then is over.
    pub ending: Ending,
    /// The layout of data entries that this process tells others. Another one than it has
    /// is for tests: it stands for another release.
    #[doc(hidden)]
    pub layout_version: u8,
}

/// Where the configuration names a process as its backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnPlace {
    /// One of the addresses.
    pub address: RpcAddress,
    /// What tells it from others at that address, where there may be others
    /// ([`BackendConfig::place`](trefoil_cell::BackendConfig::place)).
    pub name: Option<String>,
}

impl OwnPlace {
    /// Whether the configuration names this.
    pub fn is(&self, backend: &BackendConfig) -> bool {
        backend.addresses.contains(&self.address) && backend.place == self.name
    }
}

/// How messages over shared memory are served; `None` for the fabric's own defaults.
#[derive(Clone, Copy, Debug, Default)]
pub struct FabricOptions {
    /// How long the poller spins after the last message.
    pub spin: Option<Duration>,
    /// Clients with message rings. Further ones read only, and mutate by RPC.
    pub client_count_max: Option<usize>,
    /// Processor that the poller is pinned to.
    pub cpu: Option<usize>,
}

/// Memory for each partition, where an operator does not say how many there are.
///
/// Partitions spread mutations over locks. Each of them has half-empty pages of every
/// size in use, so with many in little memory a good part of it holds nothing: with
/// values around 1 KB in 256 MiB, two hold 2 % more items than four, and four 2 %
/// more than eight.
const PARTITION_MEMORY: u64 = 128 << 20;
const PARTITIONS_MIN: u64 = 2;
const PARTITIONS_MAX: u64 = 8;

/// Partitions of a member with such a share of the memory.
pub(crate) fn partitions_for(memory: u64) -> usize {
    (memory / PARTITION_MEMORY).clamp(PARTITIONS_MIN, PARTITIONS_MAX) as usize
}

impl ServerOptions {
    /// What each member may hold to begin with.
    pub(crate) fn share(&self) -> u64 {
        self.memory_limit / self.members.len().max(1) as u64
    }

    /// The defaults: `members` of the cell in `config_store`, 1 GiB.
    pub fn new(config_store: Arc<dyn ConfigStore>, members: Vec<u32>) -> Self {
        ServerOptions {
            config_store,
            members,
            locks: Vec::new(),
            place: None,
            local: None,
            memory_limit: 1 << 30,
            limit_note: None,
            partition_count: None,
            huge_pages: true,
            objects_max: None,
            tombstone_count_max: 8192,
            load: None,
            rpc_thread_count: 2,
            fabric: FabricOptions::default(),
            queue: false,
            repair: RepairOptions::default(),
            recovery_rate: None,
            ending: Ending::default(),
            layout_version: LAYOUT_VERSION,
        }
    }
}

impl std::fmt::Debug for ServerOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServerOptions")
            .field("members", &self.members)
            .field("memory_limit", &self.memory_limit)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_follow_the_memory() {
        let counts = [32, 64, 256, 512, 1 << 10, 64 << 10].map(|mib| partitions_for(mib << 20));
        assert_eq!(counts, [2, 2, 2, 4, 8, 8]);
    }
}
