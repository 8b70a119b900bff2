//! Keys of which an operation has seen that replicas differ: the backend that repairs
//! their shard is told of some of them, so that it need not find them itself.
//!
//! A hint, and no more: a bounded list, sent once a second at most, when another such key
//! is met. What has no room is forgotten, and what is lost is lost. Lookups that
//! two replicas answer alike, which is nearly all, do not come here.

use crate::driver::Driver;
use crate::host::Host;
use trefoil_client_core::mode::REPLICAS_MAX;
use trefoil_layout::KeyHash;

/// Keys that are told of at once.
const COUNT_MAX: usize = 32;
/// Between two messages.
const PAUSE_NS: u64 = 1_000_000_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Suspects {
    keys: [KeyHash; COUNT_MAX],
    count: usize,
    /// Nothing is sent before, on the host's monotonic clock.
    next_ns: u64,
}

impl Default for Suspects {
    fn default() -> Self {
        Suspects {
            keys: [KeyHash { place: 0, tag: 0 }; COUNT_MAX],
            count: 0,
            next_ns: 0,
        }
    }
}

impl Suspects {
    /// Adds a key; all of them, if it is time to tell of them.
    fn add(&mut self, hash: KeyHash, now_ns: u64) -> Option<&[KeyHash]> {
        let known = &self.keys[..self.count];
        if !known.contains(&hash) && self.count < COUNT_MAX {
            self.keys[self.count] = hash;
            self.count += 1;
        }
        if now_ns < self.next_ns {
            return None;
        }
        self.next_ns = now_ns.saturating_add(PAUSE_NS);
        let count = std::mem::take(&mut self.count);
        Some(&self.keys[..count])
    }
}

impl<H: Host> Driver<H> {
    /// Replicas were seen to differ on the key with this hash.
    #[cold]
    pub fn suspect(&mut self, hash: KeyHash) {
        if self.topology.mode().replica_count() < REPLICAS_MAX {
            // Nobody repairs it.
            return;
        }
        let now_ns = self.host.coarse_ns();
        if let Some(keys) = self.suspects.add(hash, now_ns) {
            self.host.suspect(&self.topology, keys);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_told_of_once_a_second_and_no_more_than_there_is_room_for() {
        let hash = |place| KeyHash { place, tag: 1 };
        let mut suspects = Suspects::default();
        assert_eq!(suspects.add(hash(1), 5), Some(&[hash(1)][..]));
        for place in 0..100 {
            assert_eq!(suspects.add(hash(place), 6), None);
            assert_eq!(suspects.add(hash(place), 7), None);
        }
        let told = suspects.add(hash(0), 5 + PAUSE_NS).unwrap();
        assert_eq!(told.len(), COUNT_MAX);
        assert_eq!(told[..2], [hash(0), hash(1)]);
        assert_eq!(suspects.add(hash(3), 6 + PAUSE_NS), None);
    }
}
