//! Keys of which clients have seen that replicas differ: a bounded list. What it has no
//! room for is forgotten; the next scan finds it.

use super::Keys;
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trefoil_layout::KeyHash;

/// Keys that are kept: some tens of KiB. No message has more of use, either: a longer one is
/// cut, so that whoever names keys by the ten thousand keeps nobody waiting.
const COUNT_MAX: usize = 1024;
/// They are taken together, so often at most: some keys are named again and again, and
/// cannot be repaired.
const PAUSE: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Named {
    known: Mutex<Known>,
    taken_at: Mutex<Option<Instant>>,
    taken: AtomicU64,
    forgotten: AtomicU64,
}

/// Keys in the order in which they came, and the same for looking whether one is there.
#[derive(Debug, Default)]
struct Known {
    keys: Keys,
    set: HashSet<KeyHash>,
}

/// What became of a key that was named.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Added {
    New,
    KnownBefore,
    NoRoom,
}

impl Known {
    fn add(&mut self, key: KeyHash) -> Added {
        if self.set.contains(&key) {
            return Added::KnownBefore;
        }
        if self.keys.len() >= COUNT_MAX {
            return Added::NoRoom;
        }
        self.set.insert(key);
        self.keys.push(key);
        Added::New
    }
}

impl Named {
    /// Adds keys, each once.
    pub(crate) fn add(&self, keys: &[KeyHash]) {
        let (keys, rest) = keys.split_at(keys.len().min(COUNT_MAX));
        let (mut taken, mut forgotten) = (0, rest.len() as u64);
        let mut known = self.known();
        for key in keys {
            match known.add(*key) {
                Added::New => taken += 1,
                Added::KnownBefore => {}
                Added::NoRoom => forgotten += 1,
            }
        }
        drop(known);
        self.taken.fetch_add(taken, Ordering::Relaxed);
        self.forgotten.fetch_add(forgotten, Ordering::Relaxed);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, which are no longer here; none, if some were taken a moment ago.
    pub(crate) fn take(&self) -> Keys {
        let now = Instant::now();
        let mut taken_at = self.taken_at.lock().unwrap_or_else(PoisonError::into_inner);
        if taken_at.is_some_and(|at| now < at + PAUSE) || self.count() == 0 {
            return Keys::new();
        }
        *taken_at = Some(now);
        std::mem::take(&mut *self.known()).keys
    }

    /// Keys that could not be looked at, as far as there is room.
    pub(crate) fn put_back(&self, keys: Keys) {
        let mut known = self.known();
        for key in keys {
            known.add(key);
        }
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.known().keys.len()
    }

    /// How many came, and how many were forgotten.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        (get(&self.taken), get(&self.forgotten))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_kept_once_and_not_more_than_there_is_room_for() {
        let named = Named::default();
        let keys = (0..2000).map(|place| KeyHash { place, tag: 1 });
        let keys: Vec<KeyHash> = keys.collect();
        named.add(&keys[..10]);
        named.add(&keys[..20]);
        assert_eq!((named.count(), named.counts()), (20, (20, 0)));
        named.add(&keys);
        assert_eq!(named.counts(), (1024, 976));
        assert_eq!(named.take(), keys[..1024]);
        assert_eq!(named.count(), 0);
        named.add(&keys[..3]);
        assert!(named.take().is_empty(), "a moment ago");
        named.put_back(keys.clone());
        assert_eq!(named.count(), 1024);
    }

    #[test]
    fn of_a_long_message_no_more_is_looked_at_than_there_can_be_room_for() {
        let named = Named::default();
        let keys = (0..65_000).map(|place| KeyHash { place, tag: 1 });
        let keys: Vec<KeyHash> = keys.collect();
        let again = [keys[0]; 65_000];
        named.add(&again);
        // Each is one that is known: the rest was not even looked at.
        assert_eq!((named.count(), named.counts()), (1, (1, 65_000 - 1024)));
        named.add(&keys);
        assert_eq!(named.count(), 1024);
        assert_eq!(named.counts(), (1024, 2 * (65_000 - 1024)));
        // What was taken can be named again.
        assert_eq!(named.take(), keys[..1024]);
        named.add(&keys[..3]);
        assert_eq!(named.count(), 3);
    }
}
