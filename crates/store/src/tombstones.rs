//! The tombstone cache: versions of erased keys, as many as the configuration
//! allows, the oldest forgotten first. Whoever is told that one was forgotten
//! raises the floor (rule 2).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use trefoil_layout::{KeyHash, Version};

/// Key hashes are hashed already.
#[derive(Default)]
pub(crate) struct PassHasher(u64);

impl Hasher for PassHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }
    fn write_u64(&mut self, word: u64) {
        self.0 ^= word;
    }
}

#[derive(Debug, Clone, Copy)]
struct Tombstone {
    hash: KeyHash,
    version: Version,
    /// Cleared when the key got a value again.
    live: bool,
}

/// Versions of erased keys.
#[derive(Debug)]
pub(crate) struct Tombstones {
    ring: Vec<Tombstone>,
    /// Oldest of a full ring.
    oldest: usize,
    count_max: usize,
    places: HashMap<KeyHash, u32, BuildHasherDefault<PassHasher>>,
}

impl Tombstones {
    pub(crate) fn new(count_max: usize) -> Self {
        Tombstones {
            ring: Vec::new(),
            oldest: 0,
            count_max: count_max.min(u32::MAX as usize),
            places: HashMap::default(),
        }
    }

    #[inline]
    pub(crate) fn version(&self, hash: KeyHash) -> Option<Version> {
        if self.places.is_empty() {
            return None;
        }
        let place = self.places.get(&hash)?;
        Some(self.ring[*place as usize].version)
    }

    /// Remembers an erased key; returns a version that is no longer remembered.
    #[must_use]
    pub(crate) fn remember(&mut self, hash: KeyHash, version: Version) -> Option<Version> {
        if let Some(place) = self.places.get(&hash) {
            self.ring[*place as usize].version = version;
            return None;
        }
        let new = Tombstone {
            hash,
            version,
            live: true,
        };
        if self.count_max == 0 {
            return Some(version);
        }
        if self.ring.len() < self.count_max {
            self.places.insert(hash, self.ring.len() as u32);
            self.ring.push(new);
            return None;
        }
        let place = self.oldest;
        self.oldest = (place + 1) % self.count_max;
        let old = std::mem::replace(&mut self.ring[place], new);
        if old.live {
            self.places.remove(&old.hash);
        }
        self.places.insert(hash, place as u32);
        old.live.then_some(old.version)
    }

    /// The key has a value again, whose version is its bound now.
    #[inline]
    pub(crate) fn drop_key(&mut self, hash: KeyHash) {
        if self.places.is_empty() {
            return;
        }
        if let Some(place) = self.places.remove(&hash) {
            self.ring[place as usize].live = false;
        }
    }

    /// Erased keys and their versions, by place from `first` on; `None` where a
    /// key has a value again.
    pub(crate) fn iter_from(
        &self,
        first: usize,
    ) -> impl Iterator<Item = Option<(KeyHash, Version)>> + '_ {
        let known = |tombstone: &Tombstone| (tombstone.hash, tombstone.version);
        let ring = self.ring.get(first..).unwrap_or_default().iter();
        ring.map(move |tombstone| tombstone.live.then(|| known(tombstone)))
    }

    /// Erased keys remembered.
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// Private bytes that this takes.
    pub(crate) fn private_len(&self) -> u64 {
        (self.ring.capacity() * size_of::<Tombstone>()
            + self.places.capacity() * (size_of::<KeyHash>() + 8 + 2)) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> KeyHash {
        KeyHash {
            place: n << 20,
            tag: n + 1,
        }
    }

    #[test]
    fn the_oldest_is_forgotten_first_and_told() {
        let version = |n| Version::new(n, 0, 0);
        let mut tombstones = Tombstones::new(3);
        for n in 0..3 {
            assert_eq!(tombstones.remember(hash(n), version(n)), None);
        }
        assert_eq!(
            tombstones.remember(hash(1), version(10)),
            None,
            "raised in place"
        );
        assert_eq!(tombstones.version(hash(1)), Some(version(10)));
        assert_eq!(tombstones.remember(hash(3), version(3)), Some(version(0)));
        assert_eq!(tombstones.version(hash(0)), None);
        tombstones.drop_key(hash(1));
        assert_eq!(
            tombstones.remember(hash(4), version(4)),
            None,
            "its key has a value"
        );
        assert_eq!(tombstones.remember(hash(5), version(5)), Some(version(2)));
        assert_eq!(tombstones.count(), 3);
    }

    #[test]
    fn without_room_everything_is_forgotten_at_once() {
        let mut tombstones = Tombstones::new(0);
        let version = Version::new(1, 0, 0);
        assert_eq!(tombstones.remember(hash(1), version), Some(version));
    }
}
