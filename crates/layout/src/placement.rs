//! Which backends hold a key: jump consistent hash (Lamping and Veach, 2014)
//! onto i, then i + 1 and i + 2, modulo the number of backends.
//!
//! When the number of backends grows from n to n + 1, a fraction of
//! 1 / (n + 1) of the keys changes its first backend, all of them to the new
//! one.
//!
//! The keys with one first backend are a *shard*, which has that backend's
//! number. A backend holds as many shards as there are copies: its own and
//! those of the backends before it. It numbers them by its place in their
//! cohorts, so that a client, which knows the place it asks, needs to compute
//! nothing to find the shard.

use crate::hash::KeyHash;

/// Most copies that any mode keeps.
pub const COPY_COUNT_MAX: usize = 3;

/// Places keys on the backends of one configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    backend_count: u32,
    copy_count: u8,
}

/// The backends holding copies of one key, the first one first.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cohort {
    numbers: [u32; COPY_COUNT_MAX],
    count: u8,
}

impl Placement {
    /// `copy_count` copies of each key on `backend_count` backends.
    ///
    /// # Panics
    /// If there are fewer backends than copies, or other numbers of copies
    /// than 1 to [`COPY_COUNT_MAX`]: a validated configuration has neither.
    pub const fn new(copy_count: usize, backend_count: u32) -> Self {
        assert!(copy_count >= 1 && copy_count <= COPY_COUNT_MAX);
        assert!(backend_count as usize >= copy_count);
        Placement {
            backend_count,
            copy_count: copy_count as u8,
        }
    }

    /// The backends that hold the key with this hash.
    #[inline(always)]
    pub fn cohort(&self, hash: KeyHash) -> Cohort {
        self.cohort_of_shard(self.first(hash))
    }

    /// The first of the backends that hold the key with this hash.
    #[inline(always)]
    pub fn first(&self, hash: KeyHash) -> u32 {
        jump(hash.shard_bits(), self.backend_count)
    }

    /// The backends that hold the keys whose first backend is `shard`.
    #[inline]
    pub fn cohort_of_shard(&self, shard: u32) -> Cohort {
        let mut numbers = [0; COPY_COUNT_MAX];
        let mut number = shard;
        for slot in numbers.iter_mut().take(usize::from(self.copy_count)) {
            *slot = number;
            number += 1;
            if number == self.backend_count {
                number = 0;
            }
        }
        Cohort {
            numbers,
            count: self.copy_count,
        }
    }

    /// Whether every backend holds every key, so that no hash needs computing.
    pub const fn is_total(&self) -> bool {
        self.backend_count == self.copy_count as u32
    }

    /// Backends of the cell.
    pub const fn backend_count(&self) -> u32 {
        self.backend_count
    }

    /// Copies of each key.
    pub const fn copy_count(&self) -> usize {
        self.copy_count as usize
    }
}

/// Which shards one backend holds, and how it numbers them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShardMap {
    placement: Placement,
    backend: u32,
}

impl ShardMap {
    /// One copy on one backend: one shard with all keys.
    pub const WHOLE: ShardMap = ShardMap::new(Placement::new(1, 1), 0);

    /// The shards of backend number `backend`.
    ///
    /// # Panics
    /// If there is no such backend.
    pub const fn new(placement: Placement, backend: u32) -> Self {
        assert!(backend < placement.backend_count);
        ShardMap { placement, backend }
    }

    /// Where keys are placed.
    pub const fn placement(&self) -> Placement {
        self.placement
    }

    /// Shards that the backend holds.
    pub const fn shard_count(&self) -> usize {
        self.placement.copy_count()
    }

    /// The backend's own number for the key's shard: its place in the key's
    /// cohort. `None` if it is not of that cohort.
    #[inline]
    pub fn local(&self, hash: KeyHash) -> Option<usize> {
        if self.placement.backend_count == 1 {
            return Some(0);
        }
        self.local_of(self.placement.first(hash))
    }

    /// The cell's number of the shard that this backend numbers `local`.
    ///
    /// # Panics
    /// If the backend holds fewer shards.
    pub const fn shard(&self, local: usize) -> u32 {
        assert!(local < self.shard_count());
        let (count, local) = (self.placement.backend_count, local as u32);
        if self.backend >= local {
            self.backend - local
        } else {
            self.backend + count - local
        }
    }

    /// The backend's own number for shard number `shard` of the cell.
    #[inline]
    pub const fn local_of(&self, shard: u32) -> Option<usize> {
        let count = self.placement.backend_count;
        if shard >= count {
            return None;
        }
        let place = if self.backend >= shard {
            self.backend - shard
        } else {
            self.backend + count - shard
        };
        if place < self.placement.copy_count as u32 {
            Some(place as usize)
        } else {
            None
        }
    }
}

impl Cohort {
    /// Backend numbers, the first one first.
    #[inline]
    pub fn as_slice(&self) -> &[u32] {
        &self.numbers[..usize::from(self.count)]
    }

    /// Whether backend `number` holds a copy.
    #[inline]
    pub fn contains(&self, number: u32) -> bool {
        self.as_slice().contains(&number)
    }
}

impl std::fmt::Debug for Cohort {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.as_slice()).finish()
    }
}

/// The bucket of `key` among `count` buckets; `count` is at least 1.
#[inline]
fn jump(mut key: u64, count: u32) -> u32 {
    if count == 1 {
        // One copy on one backend is common, and a division costs as much as
        // the rest of a lookup's arithmetic.
        return 0;
    }
    let mut bucket = 0;
    let mut next = 0i64;
    while next < i64::from(count) {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        let step = (1u64 << 31) as f64 / ((key >> 33) + 1) as f64;
        next = ((bucket + 1) as f64 * step) as i64;
    }
    bucket as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::KeyHasher;

    fn hashes(count: usize) -> impl Iterator<Item = KeyHash> {
        let hasher = KeyHasher::default();
        (0..count).map(move |i| hasher.hash(format!("key-{i}").as_bytes()))
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many hashes for an interpreter")]
    fn shards_are_balanced() {
        for count in [1, 2, 3, 5, 8, 100] {
            let mut keys = vec![0i64; count];
            for hash in hashes(count * 5_000) {
                keys[jump(hash.shard_bits(), count as u32) as usize] += 1;
            }
            // Five standard deviations of a binomial with mean 5,000.
            assert!(keys.iter().all(|&k| (k - 5_000).abs() < 354), "{keys:?}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "too many hashes for an interpreter")]
    fn growth_moves_keys_only_to_the_new_backend_and_only_its_share() {
        for count in 1..12 {
            let mut moved = 0;
            for hash in hashes(20_000) {
                let before = jump(hash.shard_bits(), count);
                let after = jump(hash.shard_bits(), count + 1);
                if before != after {
                    assert_eq!(after, count);
                    moved += 1;
                }
            }
            let share = 20_000 / (count + 1);
            assert!(share.abs_diff(moved) < share / 8 + 100, "{count}: {moved}");
        }
    }

    /// Fixed by everything already placed: a change here moves every key.
    #[test]
    fn known_places() {
        assert_eq!([jump(0, 1), jump(u64::MAX, 1)], [0, 0]);
        // Examples published with other implementations of the algorithm.
        assert_eq!(jump(1, 1), 0);
        assert_eq!(jump(42, 57), 43);
        assert_eq!(jump(0xdead_10cc, 1), 0);
        assert_eq!(jump(0xdead_10cc, 666), 361);
        assert_eq!(jump(256, 1024), 520);
    }

    #[test]
    fn cohorts_are_neighbours_and_wrap() {
        let placement = Placement::new(3, 5);
        assert_eq!(placement.cohort_of_shard(1).as_slice(), [1, 2, 3]);
        assert_eq!(placement.cohort_of_shard(3).as_slice(), [3, 4, 0]);
        assert_eq!(placement.cohort_of_shard(4).as_slice(), [4, 0, 1]);
        assert!(placement.cohort_of_shard(4).contains(1));
        assert!(!placement.cohort_of_shard(4).contains(2));
        assert!(!placement.is_total());
        assert!(Placement::new(3, 3).is_total());
        assert_eq!(Placement::new(1, 2).cohort_of_shard(1).as_slice(), [1]);
        assert_eq!(Placement::new(2, 2).cohort_of_shard(1).as_slice(), [1, 0]);
    }

    #[test]
    fn a_backend_numbers_its_shards_by_its_place_in_their_cohorts() {
        for (copies, count) in [(1, 1), (1, 4), (2, 2), (2, 5), (3, 3), (3, 5)] {
            let placement = Placement::new(copies, count);
            for backend in 0..count {
                let map = ShardMap::new(placement, backend);
                for shard in 0..count {
                    let cohort = placement.cohort_of_shard(shard);
                    let place = cohort.as_slice().iter().position(|n| *n == backend);
                    assert_eq!(map.local_of(shard), place);
                    assert!(place.is_none_or(|place| map.shard(place) == shard));
                }
                assert_eq!(map.local_of(count), None);
                let held = (0..count).filter_map(|shard| map.local_of(shard)).count();
                assert_eq!(held, map.shard_count());
                for hash in hashes(50) {
                    assert_eq!(map.local(hash), map.local_of(placement.first(hash)));
                }
            }
        }
    }
}
