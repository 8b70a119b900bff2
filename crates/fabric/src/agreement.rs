//! What initiator and target agree upon when they meet.

use trefoil_client_core::mutants::{self, Mutant};
use trefoil_layout::{KeyHash, KeyHasher, TopologyId};

/// Fixed for the life of a connection; a change of any of it needs a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Number of the backend in its cell.
    pub backend: u32,
    /// One life of the backend's process.
    pub incarnation: u64,
    /// The cell's hash function.
    pub hasher: KeyHasher,
    /// Partitions of the backend, those of all shards.
    pub partition_count: usize,
    /// Partitions of each of its shards.
    pub sub_count: usize,
    /// Layout version of its regions.
    pub layout_version: u8,
    /// The cell's life, and the configuration in force when the connection was
    /// made.
    pub topology: TopologyId,
}

impl Agreement {
    /// Partition of a key in whose cohort the backend has place `place`. A place
    /// that the backend cannot have is taken for its last one.
    #[inline(always)]
    pub fn partition(&self, place: usize, hash: KeyHash) -> usize {
        let place = match mutants::is_on(Mutant::PlaceIgnored) {
            true => 0,
            false => place,
        };
        let partition = hash.partition(place, self.sub_count);
        partition.min(self.partition_count - 1)
    }
}
