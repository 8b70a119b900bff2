//! What a store is told when it is made, and why it may refuse to be made.

use crate::policy::PolicyKind;
use trefoil_layout::hash::KeyHasher;
use trefoil_layout::limits::{PARTITION_COUNT_MAX, VALUE_LEN_LIMIT, VALUE_LEN_MAX_DEFAULT};
use trefoil_layout::{ShardMap, Version, epoch};
use trefoil_region::{MappingError, ObjectError};

/// The time, given by the caller: the store has no clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Now {
    /// Nanoseconds since the Unix epoch. It never goes back: versions are judged
    /// by it, and how long ago something was.
    pub unix_ns: u64,
    /// How far the host's clock lies behind that, in nanoseconds: it was set back.
    pub set_back_ns: u64,
}

impl Now {
    /// The time where the host's clock has not been set back; nanoseconds since the
    /// Unix epoch.
    #[inline]
    pub const fn at(unix_ns: u64) -> Self {
        Now {
            unix_ns,
            set_back_ns: 0,
        }
    }

    /// Milliseconds since the Unix epoch, as a time that never goes back.
    #[inline]
    pub const fn unix_ms(self) -> u64 {
        self.unix_ns / 1_000_000
    }

    /// Nanoseconds since the Unix epoch as the host's clock has it: versions that are
    /// nominated on this host come from that clock.
    #[inline]
    pub const fn host_ns(self) -> u64 {
        self.unix_ns.saturating_sub(self.set_back_ns)
    }

    /// Milliseconds since the Unix epoch as the host's clock has it: expiries are
    /// judged by it, because who writes an item computes its expiry from that clock.
    #[inline]
    pub const fn host_ms(self) -> u64 {
        self.host_ns() / 1_000_000
    }
}

/// What a store is told when it is made.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Units of mutual exclusion, those of all shards: a multiple of the number
    /// of shards.
    pub partition_count: usize,
    /// Which shards this backend holds.
    pub shards: ShardMap,
    /// Cell configuration that the buckets carry; not 0.
    pub config_id: u32,
    /// Every shard's epoch at the start; see [`trefoil_layout::epoch`].
    pub epoch: u32,
    /// One life of the process; stands in the control region.
    pub incarnation: u64,
    /// The cell's hash function.
    pub hasher: KeyHasher,
    /// Who is evicted first.
    pub policy: PolicyKind,
    /// Bound on all resident bytes: data, index, private metadata and charged extras.
    pub memory_limit: u64,
    /// Longest value accepted, in bytes.
    pub value_len_max: usize,
    /// Capacity in objects, split over the partitions: for hit-ratio experiments.
    pub objects_max: Option<u64>,
    /// Erased keys whose versions a partition remembers.
    pub tombstone_count_max: usize,
    /// Mutations are refused; [`crate::Store::load`] alone fills it.
    pub immutable: bool,
    /// The cell's flush floor at the start; see [`crate::Store::raise_flush_floor`].
    pub flush_floor: Version,
}

impl StoreConfig {
    /// A partition's place in an order that does not depend on how this backend
    /// numbers its shards: what the first partitions have more than others, they have
    /// for the same keys at all replicas that hold the same shards.
    pub(crate) fn partition_rank(&self, number: usize) -> usize {
        let shard_count = self.shards.shard_count();
        let sub_count = self.partition_count / shard_count;
        let (local, sub) = (number / sub_count, number % sub_count);
        let shard = self.shards.shard(local);
        let others = (0..shard_count).map(|local| self.shards.shard(local));
        sub * shard_count + others.filter(|other| *other < shard).count()
    }
}

impl Default for StoreConfig {
    fn default() -> Self {
        StoreConfig {
            partition_count: 8,
            shards: ShardMap::WHOLE,
            config_id: 1,
            epoch: epoch::FIRST,
            incarnation: 1,
            hasher: KeyHasher::default(),
            policy: PolicyKind::default(),
            memory_limit: 1 << 30,
            value_len_max: VALUE_LEN_MAX_DEFAULT,
            objects_max: None,
            tombstone_count_max: 1024,
            immutable: false,
            flush_floor: Version::ZERO,
        }
    }
}

/// Why a store or its memory could not be made.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// A memory object could not be made or changed.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A memory object could not be mapped.
    #[error(transparent)]
    Mapping(#[from] MappingError),
    /// No bucket is ever valid under config id 0.
    #[error("config id 0 marks invalid buckets and cannot be served")]
    ConfigId,
    /// More partitions than the control region has windows, or none.
    #[error("{0} partitions were asked for; 1 to {PARTITION_COUNT_MAX} are possible")]
    PartitionCount(usize),
    /// Shards of one backend are alike.
    #[error(
        "{partition_count} partitions were asked for; {shard_count} shards need a multiple of it"
    )]
    PartitionsOfShards {
        /// Partitions asked for.
        partition_count: usize,
        /// Shards of the backend.
        shard_count: usize,
    },
    /// Longer values than the data entry can describe.
    #[error("values of {0} bytes were asked for; at most {VALUE_LEN_LIMIT} are possible")]
    ValueLen(usize),
    /// The limit does not even hold the empty store.
    #[error(
        "a memory limit of {limit} bytes is too small: {needed} are needed for {partition_count} partitions"
    )]
    LimitTooSmall {
        /// Bytes allowed.
        limit: u64,
        /// Bytes without which nothing can be stored.
        needed: u64,
        /// Partitions that share them.
        partition_count: usize,
    },
    /// The limit is beyond what the regions were made for.
    #[error("a memory limit of {limit} bytes is beyond the {max} that the regions were made for")]
    LimitTooLarge {
        /// Bytes allowed.
        limit: u64,
        /// See [`crate::Regions`].
        max: u64,
    },
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_layout::Placement;

    #[test]
    fn partitions_of_the_same_keys_have_one_rank_at_all_replicas() {
        let count = 9;
        let mut ranks_of = [[usize::MAX; 3]; 3];
        for backend in 0..3 {
            let config = StoreConfig {
                partition_count: count,
                shards: ShardMap::new(Placement::new(3, 3), backend),
                ..StoreConfig::default()
            };
            let mut ranks = Vec::new();
            for number in 0..count {
                let rank = config.partition_rank(number);
                ranks.push(rank);
                let shard = config.shards.shard(number / 3) as usize;
                let known = &mut ranks_of[shard][number % 3];
                assert!(backend == 0 || *known == rank, "{number} of {backend}");
                *known = rank;
            }
            ranks.sort_unstable();
            assert!(ranks.into_iter().eq(0..count));
        }
    }
}
