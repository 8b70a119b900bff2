//! The tombstone cache: versions of erased keys, as many as the configuration
//! allows, the oldest forgotten first. Whoever is told that one was forgotten
//! raises the floor (rule 2).

use trefoil_layout::{KeyHash, Version};

#[derive(Debug, Clone, Copy)]
struct Tombstone {
    /// With tag 0, which no key has, once the key got a value again.
    hash: KeyHash,
    version: Version,
}

/// A place of the table that holds nothing.
const VACANT: u32 = u32::MAX;
/// Places of the table for each tombstone: an odd one out is found soon.
const PLACES_SHARE: usize = 2;

/// Versions of erased keys.
#[derive(Debug)]
pub(crate) struct Tombstones {
    ring: Vec<Tombstone>,
    /// Oldest of a full ring.
    oldest: usize,
    count_max: usize,
    /// Where in the ring a key's tombstone is: an open hash table, whose length
    /// is a power of two. Key hashes are hashed already.
    places: Vec<u32>,
    /// Keys in it.
    count: usize,
}

impl Tombstones {
    pub(crate) fn new(count_max: usize) -> Self {
        Tombstones {
            ring: Vec::new(),
            oldest: 0,
            count_max: count_max.min(VACANT as usize / PLACES_SHARE),
            places: Vec::new(),
            count: 0,
        }
    }

    /// Where the table's search for a key begins.
    #[inline]
    fn home(&self, hash: KeyHash) -> usize {
        hash.tag as usize & (self.places.len() - 1)
    }

    #[inline]
    fn after(&self, at: usize) -> usize {
        (at + 1) & (self.places.len() - 1)
    }

    /// Where in the table the key is.
    #[inline]
    fn find(&self, hash: KeyHash) -> Option<usize> {
        if self.count == 0 {
            return None;
        }
        let mut at = self.home(hash);
        while self.places[at] != VACANT {
            if self.ring[self.places[at] as usize].hash == hash {
                return Some(at);
            }
            at = self.after(at);
        }
        None
    }

    /// Puts a place of the ring into the table.
    fn enter(&mut self, place: usize) {
        let mut at = self.home(self.ring[place].hash);
        while self.places[at] != VACANT {
            at = self.after(at);
        }
        self.places[at] = place as u32;
        self.count += 1;
    }

    /// Takes what is at `vacant` out of the table. What a search for another key
    /// would not find behind the gap moves into it.
    fn take_out(&mut self, mut vacant: usize) {
        self.count -= 1;
        let mut at = vacant;
        loop {
            at = self.after(at);
            if self.places[at] == VACANT {
                break;
            }
            let mask = self.places.len() - 1;
            let home = self.home(self.ring[self.places[at] as usize].hash);
            if at.wrapping_sub(home) & mask >= at.wrapping_sub(vacant) & mask {
                self.places[vacant] = self.places[at];
                vacant = at;
            }
        }
        self.places[vacant] = VACANT;
    }

    #[inline]
    pub(crate) fn version(&self, hash: KeyHash) -> Option<Version> {
        let at = self.find(hash)?;
        Some(self.ring[self.places[at] as usize].version)
    }

    /// Remembers an erased key; returns a version that is no longer remembered.
    #[must_use]
    pub(crate) fn remember(&mut self, hash: KeyHash, version: Version) -> Option<Version> {
        if let Some(at) = self.find(hash) {
            self.ring[self.places[at] as usize].version = version;
            return None;
        }
        if self.count_max == 0 {
            return Some(version);
        }
        let new = Tombstone { hash, version };
        if self.ring.len() < self.count_max {
            self.ring.push(new);
            if self.ring.len() * PLACES_SHARE > self.places.len() {
                self.lengthen();
            } else {
                self.enter(self.ring.len() - 1);
            }
            return None;
        }
        let place = self.oldest;
        self.oldest = (place + 1) % self.count_max;
        let old = self.ring[place];
        let known = self.find(old.hash);
        if let Some(at) = known {
            self.take_out(at);
        }
        self.ring[place] = new;
        self.enter(place);
        known.map(|_| old.version)
    }

    /// Makes the table longer and enters everything anew.
    #[cold]
    fn lengthen(&mut self) {
        let len = (self.ring.capacity() * PLACES_SHARE).next_power_of_two();
        self.places = vec![VACANT; len];
        self.count = 0;
        for place in 0..self.ring.len() {
            if self.ring[place].hash.tag != 0 {
                self.enter(place);
            }
        }
    }

    /// The key has a value again, whose version is its bound now.
    #[inline]
    pub(crate) fn drop_key(&mut self, hash: KeyHash) {
        if let Some(at) = self.find(hash) {
            let place = self.places[at] as usize;
            self.take_out(at);
            self.ring[place].hash.tag = 0;
        }
    }
    /// Erased keys remembered.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// Private bytes that this takes.
    pub(crate) fn private_len(&self) -> u64 {
        (self.ring.capacity() * size_of::<Tombstone>() + self.places.capacity() * size_of::<u32>())
            as u64
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

    /// Against a list, with hashes that collide.
    #[test]
    fn it_remembers_what_a_list_would() {
        let mut tombstones = Tombstones::new(37);
        // Key, version, and whether it still counts; the oldest first.
        let mut list: Vec<(u64, u64, bool)> = Vec::new();
        let mut state = 1u64;
        for n in 1..=20_000u64 {
            state = state.wrapping_mul(6_364_136_223_846_793_005) + 1;
            let key = (state >> 33) % 90;
            let hash = KeyHash {
                place: key,
                tag: 1 + key % 7 + (key / 7) * 64,
            };
            let known = list.iter_mut().find(|(k, _, live)| *live && *k == key);
            if state >> 60 < 5 {
                tombstones.drop_key(hash);
                if let Some(known) = known {
                    known.2 = false;
                }
            } else {
                let version = Version::new(n, 0, 0);
                let forgotten = tombstones.remember(hash, version);
                if let Some(known) = known {
                    known.1 = n;
                    assert_eq!(forgotten, None);
                } else {
                    list.push((key, n, true));
                    let gone = (list.len() > 37).then(|| list.remove(0));
                    let gone = gone.filter(|(_, _, live)| *live);
                    assert_eq!(forgotten, gone.map(|(_, n, _)| Version::new(n, 0, 0)));
                }
            }
            let found = list.iter().find(|(k, _, live)| *live && *k == key);
            let found = found.map(|(_, n, _)| Version::new(*n, 0, 0));
            assert_eq!(tombstones.version(hash), found, "{n}: {key}");
            let live = list.iter().filter(|(_, _, live)| *live).count();
            assert_eq!(tombstones.count(), live);
        }
    }

    #[test]
    fn without_room_everything_is_forgotten_at_once() {
        let mut tombstones = Tombstones::new(0);
        let version = Version::new(1, 0, 0);
        assert_eq!(tombstones.remember(hash(1), version), Some(version));
    }
}
