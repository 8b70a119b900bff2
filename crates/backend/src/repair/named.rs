//! Keys of which clients have seen that replicas differ: a bounded list. What it has no
//! room for is forgotten; the next scan finds it.

use super::Keys;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};
use trefoil_layout::KeyHash;

/// Keys that are kept: 16 KiB.
const COUNT_MAX: usize = 1024;
/// They are taken together, so often at most: some keys are named again and again, and
/// cannot be repaired.
const PAUSE: Duration = Duration::from_millis(500);

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Named {
    keys: Mutex<Keys>,
    taken_at: Mutex<Option<Instant>>,
    taken: AtomicU64,
    forgotten: AtomicU64,
}

impl Named {
    /// Adds keys, each once.
    pub(crate) fn add(&self, keys: &[KeyHash]) {
        let mut known = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        for key in keys {
            if known.contains(key) {
                continue;
            }
            let count = match known.len() < COUNT_MAX {
                true => {
                    known.push(*key);
                    &self.taken
                }
                false => &self.forgotten,
            };
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// All of them, which are no longer here; none, if some were taken a moment ago.
    pub(crate) fn take(&self) -> Keys {
        let now = Instant::now();
        let mut taken_at = self.taken_at.lock().unwrap_or_else(PoisonError::into_inner);
        if taken_at.is_some_and(|at| now < at + PAUSE) || self.count() == 0 {
            return Keys::new();
        }
        *taken_at = Some(now);
        let mut known = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut *known)
    }

    /// Keys that could not be looked at, as far as there is room.
    pub(crate) fn put_back(&self, mut keys: Keys) {
        let mut known = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        keys.retain(|key| !known.contains(key));
        keys.truncate(COUNT_MAX.saturating_sub(known.len()));
        known.append(&mut keys);
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        let known = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        known.len()
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
}
