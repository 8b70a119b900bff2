//! The checksum that makes a data entry validate itself.
//!
//! XXH3-64 over the entry's bytes, bound to the index entry's tag and version
//! by a keyed finish: data found through another key's index entry, or through
//! an older version's, fails like a torn read (CliqueMap section 3).

use crate::version::Version;
use std::hash::Hasher as _;
use twox_hash::XxHash3_64;

/// Checksum of `bytes` (a data entry after its checksum word) under the index
/// entry that points at it.
#[inline]
pub fn checksum(bytes: &[u8], tag: u64, version: Version) -> u64 {
    bind(XxHash3_64::oneshot(bytes), tag, version)
}

/// [`checksum`] of bytes that come in parts.
#[derive(Clone, Default)]
pub struct Checksum(XxHash3_64);

impl std::fmt::Debug for Checksum {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checksum").finish_non_exhaustive()
    }
}

impl Checksum {
    /// The next bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// Of all of them.
    pub fn finish(&self, tag: u64, version: Version) -> u64 {
        bind(self.0.finish(), tag, version)
    }
}

/// Folds tag and version into a plain hash. Each step is a bijection of the
/// running value, so a difference in any single input always shows.
#[inline]
fn bind(mut x: u64, tag: u64, version: Version) -> u64 {
    for word in [tag, version.time_ns, version.origin] {
        x = (x ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        x ^= x >> 32;
    }
    x
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_add_up() {
        let version = Version::new(1, 2, 3);
        let bytes: Vec<u8> = (0..5_000u32).map(|n| (n * 7) as u8).collect();
        for len in [0, 1, 200, 241, 1024, 5_000] {
            for part in [1, 64, 1000] {
                let mut sum = Checksum::default();
                bytes[..len].chunks(part).for_each(|part| sum.write(part));
                assert_eq!(sum.finish(9, version), checksum(&bytes[..len], 9, version));
            }
        }
    }

    #[test]
    fn every_input_counts() {
        let version = Version::new(1, 2, 3);
        let base = checksum(b"abc", 9, version);
        assert_ne!(base, checksum(b"abd", 9, version));
        assert_ne!(base, checksum(b"abc", 8, version));
        assert_ne!(base, checksum(b"abc", 9, Version::new(2, 2, 3)));
        assert_ne!(base, checksum(b"abc", 9, Version::new(1, 2, 4)));
    }
}
