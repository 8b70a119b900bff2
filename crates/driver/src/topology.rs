//! All that a client believes of a cell: one immutable value, swapped whole.

use std::sync::Arc;
use trefoil_cell::{CellConfig, Cohort, Placement};
use trefoil_client_core::mode::Mode;
use trefoil_client_core::mutants::{self, Mutant};
use trefoil_layout::{KeyHash, KeyHasher, TopologyId, Version};

/// See the module. Identified by the cell's life and the config id.
#[derive(Debug)]
pub struct Topology {
    config: Arc<CellConfig>,
    id: TopologyId,
    mode: Mode,
    hasher: KeyHasher,
    placement: Placement,
}

impl Topology {
    /// What a validated configuration says.
    pub fn new(config: Arc<CellConfig>) -> Self {
        Topology {
            id: config.topology_id(),
            mode: match config.mode {
                trefoil_cell::Mode::R1 => Mode::R1,
                trefoil_cell::Mode::R2 => Mode::R2Immutable,
                trefoil_cell::Mode::R32 => Mode::R32,
            },
            hasher: config.hash,
            placement: config.placement(),
            config,
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Arc<CellConfig> {
        &self.config
    }

    /// What identifies it.
    #[inline(always)]
    pub fn id(&self) -> TopologyId {
        self.id
    }

    /// Copies and quorum.
    #[inline(always)]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// The cell's hash function.
    pub fn hasher(&self) -> KeyHasher {
        self.hasher
    }

    /// Where keys are.
    #[inline(always)]
    pub fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The hash of a key.
    #[inline(always)]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        self.hasher.hash(key)
    }

    /// The backends that hold the key with this hash.
    #[inline(always)]
    pub fn cohort(&self, hash: KeyHash) -> Cohort {
        self.placement.cohort(hash)
    }

    /// Items at or below this version were flushed.
    #[inline(always)]
    pub fn flush_floor(&self) -> Version {
        self.config.flush_floor
    }

    /// Whether `other` is to take this one's place: another life, or a later
    /// configuration of the same one.
    pub fn gives_way_to(&self, other: &Topology) -> bool {
        let is_ignored = mutants::is_on(Mutant::LifeIgnored) && self.id.life != other.id.life;
        self.id != other.id && !other.id.is_followed_by(self.id) && !is_ignored
    }

    /// Whether each replica of a key is the same one in both, in whatever process: a cell
    /// that is resized moves them place by place. Where a place was given away, its new
    /// holder knows nothing of what the former one said.
    pub fn moves_to(&self, other: &Topology) -> bool {
        self.id.life == other.id.life
            && self.hasher == other.hasher
            && self.mode == other.mode
            && self.placement.backend_count() != other.placement.backend_count()
    }

    /// Whether keys stand at the same backends, under the same hash, in both.
    pub fn places_as(&self, other: &Topology) -> bool {
        self.id.life == other.id.life
            && self.hasher == other.hasher
            && self.placement == other.placement
            && self.mode == other.mode
    }
}
