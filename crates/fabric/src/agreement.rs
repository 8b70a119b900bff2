//! What initiator and target agree upon when they meet.

use trefoil_layout::KeyHasher;

/// Fixed for the life of a connection; a change of any of it needs a new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// Number of the backend in its cell.
    pub backend: u32,
    /// One life of the backend's process.
    pub incarnation: u64,
    /// The cell's hash function.
    pub hasher: KeyHasher,
    /// Partitions of the backend.
    pub partition_count: usize,
    /// Layout version of its regions.
    pub layout_version: u8,
    /// Configuration in force when the connection was made.
    pub config_id: u32,
}
