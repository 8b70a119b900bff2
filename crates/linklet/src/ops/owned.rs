//! Going through what a server owns.

use crate::linklet::Linklet;
use crate::store::Store;
use std::sync::Arc;
use trefoil_linklet_core::{Status, Table as Rules};
use trefoil_sharder::{KeyPoint, Slice};

/// Objects taken out of a part at a time.
const COUNT: usize = 256;

/// Whether the rules leave a key to this server now.
pub(super) fn is_mine<V: 'static>(store: &Store<V>, status: Status, rules: &Rules) -> bool {
    let in_time = || rules.serve_until().is_none_or(|end| store.clock() < end);
    matches!(status, Status::Owned { .. }) && in_time()
}

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Shows every object that this server owns, in the order of their points. No lock
    /// is held while `look` runs. What is changed, or comes and goes, meanwhile is shown
    /// as it was or as it is, or not at all; what stays is shown once. All servers
    /// together have all objects, but for what is being moved at the time.
    pub fn each_owned(&self, mut look: impl FnMut(&[u8], &V)) {
        let store = &self.inner().store;
        let mut rest = Slice::ALL;
        loop {
            let mine = |status, rules: &Rules| is_mine(store, status, rules);
            let (found, last) = store.table.scan_served(rest, COUNT, mine, |entry| {
                (Arc::clone(&entry.key), Arc::clone(&entry.value))
            });
            for (key, value) in &found {
                look(key, value);
            }
            match last.0.checked_add(1) {
                Some(next) => rest = Slice::spanning(KeyPoint(next), Slice::ALL.last()),
                None => return,
            }
        }
    }
}
