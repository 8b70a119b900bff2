//! Which changes of the database have been announced, for values that come in
//! sideways: from a former owner or a replica's owner, marshalled some time
//! before they arrive. Such a value is fresh as of a position; it is admitted
//! only if no later change of its key has been announced here.
//!
//! Memory is bounded: what is forgotten raises a floor, below which nothing is
//! admitted any more, whether it was changed or not.

use std::collections::{HashMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use trefoil_layout::hash::KeyHash;

/// Changed keys that are remembered.
const CHANGES_MAX: usize = 1 << 16;

#[derive(Debug, Default)]
struct Changes {
    last: HashMap<(u64, u64), u64>,
    order: VecDeque<((u64, u64), u64)>,
    floor: u64,
}

/// See the page of this module.
#[derive(Debug, Default)]
pub(crate) struct Fresh {
    changes: Mutex<Changes>,
    /// Everything up to here has been announced.
    progress: AtomicU64,
}

impl Fresh {
    /// A change of this key has been announced. The values are seen to next,
    /// and `reached` is told last: who reads the progress first and a value
    /// then knows that the value is fresh as of that progress.
    pub(crate) fn changed(&self, hash: KeyHash, position: u64) {
        let id = (hash.place, hash.tag);
        let mut changes = self.changes.lock().unwrap_or_else(|e| e.into_inner());
        let last = changes.last.entry(id).or_insert(0);
        if *last >= position {
            return;
        }
        *last = position;
        changes.order.push_back((id, position));
        while changes.order.len() > CHANGES_MAX {
            let Some((id, position)) = changes.order.pop_front() else {
                break;
            };
            if changes.last.get(&id) == Some(&position) {
                changes.last.remove(&id);
            }
            changes.floor = changes.floor.max(position);
        }
    }

    /// Everything up to this position has been announced.
    pub(crate) fn reached(&self, position: u64) {
        self.progress.fetch_max(position, Ordering::AcqRel);
    }

    /// Changes up to this position may have been missed.
    pub(crate) fn missed(&self, position: u64) {
        let mut changes = self.changes.lock().unwrap_or_else(|e| e.into_inner());
        changes.floor = changes.floor.max(position);
    }

    /// How far the announcements have come.
    pub(crate) fn progress(&self) -> u64 {
        self.progress.load(Ordering::Acquire)
    }

    /// Whether a value that is fresh as of a position still is, as far as is
    /// known here.
    pub(crate) fn admits(&self, hash: KeyHash, as_of: u64) -> bool {
        let changes = self.changes.lock().unwrap_or_else(|e| e.into_inner());
        match changes.last.get(&(hash.place, hash.tag)) {
            Some(&last) => last <= as_of,
            None => changes.floor <= as_of,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(n: u64) -> KeyHash {
        KeyHash { place: n, tag: 1 }
    }

    #[test]
    fn later_changes_keep_older_values_out() {
        let fresh = Fresh::default();
        assert!(fresh.admits(hash(1), 0));
        fresh.changed(hash(1), 10);
        fresh.changed(hash(1), 7);
        assert!(!fresh.admits(hash(1), 9) && fresh.admits(hash(1), 10));
        assert!(fresh.admits(hash(2), 0));
        assert_eq!(fresh.progress(), 0);
        fresh.reached(10);
        fresh.reached(9);
        assert_eq!(fresh.progress(), 10);
        fresh.missed(30);
        assert!(!fresh.admits(hash(2), 29) && fresh.admits(hash(2), 30));
    }

    #[test]
    fn what_is_forgotten_is_refused() {
        let fresh = Fresh::default();
        for n in 0..CHANGES_MAX as u64 + 10 {
            fresh.changed(hash(n), n + 1);
        }
        assert!(
            !fresh.admits(hash(3), 9),
            "it was changed at 4, but who knows"
        );
        assert!(!fresh.admits(hash(u64::MAX), 9));
        assert!(fresh.admits(hash(3), 10));
        let changes = fresh.changes.lock().unwrap();
        assert!(changes.last.len() <= CHANGES_MAX);
    }
}
