//! The key hash: 128 bits of the key, whose disjoint, independently mixed
//! parts pick every place that a key has.
//!
//! | part | from | used for |
//! |---|---|---|
//! | `tag` | low 64 bits (0 is mapped to 1) | recognises the key inside a bucket; its upper half also picks the home slot |
//! | `place` | high 64 bits | upper 48 bits: bucket; lower 16 bits: partition of the shard; remixed as a whole: shard |
//!
//! The kind and the seed are the cell's configuration and are agreed when a
//! client connects: every client of a cell must hash alike.

use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher as _;
use twox_hash::XxHash3_128;

/// Which function hashes keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum HashKind {
    /// XXH3, 128 bits: the fastest; an attacker who chooses keys can collide them.
    #[default]
    Xxh3 = 1,
    /// SipHash-1-3, 128 bits: for keys that strangers choose.
    Sip13 = 2,
}

impl HashKind {
    /// The kind with this number in the shared formats.
    pub const fn from_number(number: u8) -> Option<Self> {
        match number {
            1 => Some(HashKind::Xxh3),
            2 => Some(HashKind::Sip13),
            _ => None,
        }
    }
}

/// A cell's hash function: kind and seed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct KeyHasher {
    /// Which function.
    pub kind: HashKind,
    /// Its seed; XXH3 uses the first word only.
    pub seed: [u64; 2],
}

impl KeyHasher {
    /// Hashes a key.
    #[inline]
    pub fn hash(&self, key: &[u8]) -> KeyHash {
        let wide = match self.kind {
            HashKind::Xxh3 => XxHash3_128::oneshot_with_seed(self.seed[0], key),
            HashKind::Sip13 => {
                let mut hasher = SipHasher13::new_with_keys(self.seed[0], self.seed[1]);
                hasher.write(key);
                hasher.finish128().as_u128()
            }
        };
        KeyHash::from_u128(wide)
    }
}

/// 128 bits of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct KeyHash {
    /// Picks shard, partition and bucket.
    pub place: u64,
    /// Recognises the key in its bucket; never 0.
    pub tag: u64,
}

/// Bits of a place that a listing tells apart.
pub const LISTED_PLACE_BITS: u32 = 40;

impl KeyHash {
    /// Splits 128 hashed bits.
    #[inline]
    pub const fn from_u128(wide: u128) -> Self {
        let tag = wide as u64;
        KeyHash {
            place: (wide >> 64) as u64,
            tag: if tag == 0 { 1 } else { tag },
        }
    }

    /// 64 bits for consistent placement on shards, independent of the bits
    /// that pick partition and bucket.
    #[inline]
    pub const fn shard_bits(self) -> u64 {
        // The finaliser of MurmurHash3: every input bit moves every output bit.
        let mut x = self.place;
        x ^= x >> 33;
        x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
        x ^= x >> 33;
        x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
        x ^ (x >> 33)
    }

    /// The partition within its shard, of `count`.
    #[inline]
    pub const fn sub_partition(self, count: usize) -> usize {
        (((self.place & 0xffff) * count as u64) >> 16) as usize
    }

    /// The partition at the backend that has this place in the key's cohort and
    /// `sub_count` partitions for each of its shards.
    #[inline]
    pub const fn partition(self, place: usize, sub_count: usize) -> usize {
        place * sub_count + self.sub_partition(sub_count)
    }

    /// Where the key stands in a listing of its shard, which goes through the shard's
    /// partitions (`sub_count` of them) in their order, and in each by places: below 2^48.
    #[inline]
    pub const fn listed_at(self, sub_count: usize) -> u64 {
        (self.sub_partition(sub_count) as u64) << LISTED_PLACE_BITS
            | self.place >> (u64::BITS - LISTED_PLACE_BITS)
    }

    /// The home bucket, of `count` (any number, not only powers of two, so
    /// that an index can grow by small steps).
    #[inline]
    pub const fn bucket(self, count: u64) -> u64 {
        (((self.place >> 16) as u128 * count as u128) >> 48) as u64
    }

    /// 32 bits that name the key within an index of `count` buckets: its home
    /// bucket, and as many of the tag's upper bits as there is room for
    /// ([`name_tag_bits`]). Another key of that bucket may have the same name: good
    /// for statistics only.
    #[inline]
    pub const fn name(self, count: u64) -> u32 {
        let bits = name_tag_bits(count);
        (self.bucket(count) << bits | self.tag >> (u64::BITS - bits)) as u32
    }

    /// The slot where the scan of a bucket begins. Starting at a hashed slot
    /// lets a reader of shared memory find most entries in one cache line
    /// beside the header.
    #[inline]
    pub const fn home_slot(self) -> usize {
        (((self.tag >> 32) * crate::bucket::SLOT_COUNT as u64) >> 32) as usize
    }
}

/// Bits of the tag in the names of an index of `count` buckets: 1 to 32.
#[inline]
pub const fn name_tag_bits(count: u64) -> u32 {
    let bucket_bits = u64::BITS - count.saturating_sub(1).leading_zeros();
    if bucket_bits < u32::BITS {
        u32::BITS - bucket_bits
    } else {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "too many hashes for an interpreter")]
    fn parts_spread_evenly_and_stay_in_range() {
        for kind in [HashKind::Xxh3, HashKind::Sip13] {
            let hasher = KeyHasher { kind, seed: [3, 4] };
            let mut partitions = [0u32; 7];
            let mut slots = [0u32; crate::bucket::SLOT_COUNT];
            let mut buckets = [0u32; 10];
            for i in 0..70_000u32 {
                let hash = hasher.hash(format!("key-{i}").as_bytes());
                partitions[hash.sub_partition(7)] += 1;
                slots[hash.home_slot()] += 1;
                buckets[hash.bucket(10) as usize] += 1;
            }
            for counts in [&partitions[..], &slots[..], &buckets[..]] {
                let mean = 70_000 / counts.len() as u32;
                assert!(
                    counts.iter().all(|c| c.abs_diff(mean) < mean / 10),
                    "{kind:?} {counts:?}"
                );
            }
        }
    }

    #[test]
    fn seed_and_kind_change_the_hash() {
        let a = KeyHasher {
            kind: HashKind::Xxh3,
            seed: [1, 0],
        }
        .hash(b"k");
        assert_ne!(
            a,
            KeyHasher {
                kind: HashKind::Xxh3,
                seed: [2, 0]
            }
            .hash(b"k")
        );
        assert_ne!(
            a,
            KeyHasher {
                kind: HashKind::Sip13,
                seed: [1, 0]
            }
            .hash(b"k")
        );
    }

    #[test]
    fn names_lead_to_their_buckets_and_tell_their_keys_apart() {
        let hash = KeyHash {
            place: u64::MAX / 5 * 3,
            tag: 0xfedc_ba98_7654_3210,
        };
        for (count, bits) in [
            (1, 32),
            (2, 31),
            (5, 29),
            (1 << 20, 12),
            ((1 << 20) + 1, 11),
        ] {
            assert_eq!(name_tag_bits(count), bits);
            let name = u64::from(hash.name(count));
            assert_eq!(name >> bits, hash.bucket(count));
            assert_eq!(name & ((1 << bits) - 1), hash.tag >> (64 - bits));
        }
        // No index is so large; nothing overflows.
        for count in [0, 1 << 31, 1 << 32, u64::MAX] {
            assert_eq!(name_tag_bits(count), if count == 0 { 32 } else { 1 });
            hash.name(count);
        }
    }

    #[test]
    fn tag_zero_is_never_used() {
        assert_eq!(KeyHash::from_u128(5 << 64).tag, 1);
    }
}
