//! What the relay of the database's changes tells: positions grow along the
//! stream, and everything is told at least once.
//!
//! For each change call [`Linklet::invalidate`] or [`Linklet::refresh`], and
//! when all changes up to a position have been told, [`Linklet::progress`].
//! Every server of a corpus is told everything: which keys it has is its own
//! matter, and what it has not yet may be on its way.

use super::propose::Shown;
use super::write::Plan;
use crate::error::Error;
use crate::linklet::Linklet;
use crate::stats::Counters;
use bytes::Bytes;
use std::sync::Arc;
use trefoil_linklet_core::{Access, Replication, Status};
use trefoil_sharder::{KeyPoint, Slice};

use super::admit::Gate;

impl<V: Send + Sync + 'static> Linklet<V> {
    /// The rows behind a key have changed at `position`: an older value is not
    /// served any more once this returns, here or where it is moved to, and a
    /// load that began before is not stored.
    pub async fn invalidate(&self, key: &[u8], position: u64) {
        let store = &self.inner().store;
        store.fresh.changed(store.key(key).hash, position);
        self.change_announced(key, position).await;
    }

    /// The rows behind a key have changed at `position`, and this is what they
    /// come to: takes the place of an older value. A key that is not in memory
    /// stays out of it.
    pub async fn refresh(&self, key: &[u8], value: V, position: u64) {
        let store = &self.inner().store;
        let at = store.key(key);
        store.fresh.changed(at.hash, position);
        store.flights.invalidate(key, position);
        let present = {
            let mut visit = store.table.visit(at);
            let mine = matches!(self.gate(&visit, Access::Commit), Some(Gate::Owned { .. }));
            mine && visit.get().is_some_and(|entry| entry.position < position)
        };
        if present {
            let value = Arc::new(value);
            let weight = store.weight(key, &value);
            let written = self
                .write(key, Some(weight), |entry| match entry {
                    Some(entry) if entry.position < position => (Plan::Put(value, position), ()),
                    _ => (Plan::Keep, ()),
                })
                .await;
            if written.is_ok() {
                return;
            }
        }
        self.change_announced(key, position).await;
    }

    /// All changes up to this position have been told.
    pub fn progress(&self, position: u64) {
        let store = &self.inner().store;
        store.fresh.reached(position);
        store.progress.notify_waiters();
    }

    /// The position up to which all changes have been told.
    pub fn announced(&self) -> u64 {
        self.inner().store.fresh.progress()
    }

    /// Changes up to `position` may have been missed, of the keys that
    /// `covers` holds of: what is older is dropped, to be loaded anew. Without
    /// a loader it is lost, and reported. Returns how many values it was.
    pub fn missed(&self, position: u64, covers: impl Fn(&[u8]) -> bool) -> usize {
        self.missed_in(Slice::ALL, position, covers)
    }

    /// Like [`missed`](Linklet::missed), for a part of the key space.
    pub fn missed_in(&self, slice: Slice, position: u64, covers: impl Fn(&[u8]) -> bool) -> usize {
        let store = &self.inner().store;
        store.fresh.missed(position);
        store.flights.invalidate_where(position, |key| {
            slice.contains(self.point(key)) && covers(key)
        });
        let direct = store.replication != Replication::Strong;
        let mut gone = store.table.remove_slice(slice, |entry, status| {
            direct
                && matches!(status, Status::Owned { .. })
                && entry.position < position
                && covers(&entry.key)
        });
        gone.retain(|entry| !entry.stale);
        // Those that are being moved, or are others' copies, or are taken out
        // together with their replicas.
        let mut withdrawn = Vec::new();
        store.table.mark_slice(slice, |entry| {
            if entry.position < position && !entry.stale && covers(&entry.key) {
                entry.stale = true;
                withdrawn.push(named(entry.hash.place, &entry.key));
            }
        });
        let gone: Vec<_> = gone
            .iter()
            .map(|entry| named(entry.hash.place, &entry.key))
            .collect();
        let count = gone.len() + if direct { 0 } else { withdrawn.len() };
        store.leave(|errands| {
            if !store.has_loader {
                errands.dropped.extend(gone.iter().cloned());
                if !direct {
                    errands.dropped.extend(withdrawn.iter().cloned());
                }
            }
            match store.replication {
                Replication::None => {}
                Replication::Eventual => errands.touched.extend(gone),
                Replication::Strong => errands.withdrawn.extend(withdrawn),
            }
        });
        count
    }

    /// Sees to a value and a load that are older than a change.
    pub(crate) async fn change_announced(&self, key: &[u8], position: u64) {
        let store = &self.inner().store;
        let at = store.key(key);
        store.flights.invalidate(key, position);
        let taken = {
            let mut visit = store.table.visit(at);
            let status = visit.status();
            match visit.peek() {
                Some(entry) if entry.position < position => match status {
                    Status::Owned { propose: false, .. } => visit.remove(),
                    _ => {
                        entry.stale = true;
                        None
                    }
                },
                _ => return,
            }
        };
        Counters::one(&store.counters.invalidations);
        match store.replication {
            Replication::None => {}
            Replication::Eventual => {
                if taken.is_some() {
                    store.leave(|errands| errands.touched.push(named(at.hash.place, key)));
                }
            }
            // Nobody here sees it any more; the replicas are told.
            Replication::Strong => self.withdraw(key, position).await,
        }
    }

    /// Takes a key out of the replicas that is not here any more.
    pub(crate) async fn withdraw_absent(&self, key: &[u8]) {
        self.withdraw(key, 0).await;
    }

    /// Takes a key out together with its replicas, unless it is newer than
    /// `position` by then.
    pub(crate) async fn withdraw(&self, key: &[u8], position: u64) {
        let at = self.inner().store.key(key);
        let withdrawn = self
            .propose(at, Shown::Fresh, |entry| match entry {
                Some(entry) if entry.position >= position => (Plan::Keep, ()),
                _ => (Plan::Remove, ()),
            })
            .await;
        match withdrawn {
            // It goes on, until the replicas have confirmed.
            Ok(_) | Err(Error::Indeterminate(_)) => {}
            // A commit was before it, or came between.
            Err(Error::Unsettled { .. } | Error::Conflict) => {
                self.inner()
                    .store
                    .leave(|errands| errands.withdrawn.push(named(at.hash.place, key)));
            }
            // The key is not this server's any more: who has it is told, too.
            Err(error) => tracing::debug!(%error, "a key was not withdrawn here"),
        }
    }
}

fn named(point: u64, key: &[u8]) -> (KeyPoint, Bytes) {
    (KeyPoint(point), Bytes::copy_from_slice(key))
}
