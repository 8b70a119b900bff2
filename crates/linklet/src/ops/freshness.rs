//! What the relay of the database's changes tells.
//!
//! Every server of a corpus is told everything: which keys it has is its own
//! matter, and what it has not yet may be on its way. What is told of a key is
//! done under the lock of the key's part, so that a load that stores its value
//! either is refused, or is found.

use super::propose::Shown;
use super::write::{Needs, Plan};
use crate::error::Error;
use crate::linklet::Linklet;
use crate::marshal::unmarshal;
use crate::stats::Counters;
use crate::store::Store;
use crate::table::{Entry, Visit};
use bytes::Bytes;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_freshness_core::event::{Gap, Progress, Scope, Sink};
use trefoil_freshness_core::position::Place;
use trefoil_freshness_core::table::{Stamp, Sweep, Verdict};
use trefoil_linklet_core::{Access, Replication, Status};
use trefoil_sharder::{KeyPoint, Slice};

/// Makes a value of a key and the bytes that a refresh brings.
type ReadOf<V> = dyn Fn(&[u8], &[u8]) -> Option<V> + Send;

/// Whether a value that is kept contains a change, by what its refresh brings.
type Contains<V> = dyn Fn(&V, &[u8]) -> bool + Send;

/// What refreshes bring.
enum Brings<V> {
    /// A value.
    Value(Box<ReadOf<V>>),
    /// What tells whether a value is older.
    Mark(Box<Contains<V>>),
}

/// Keeps a linklet fresh: to be given to whatever tells of the database's
/// changes, `trefoil_freshness::Subscription::start` for example. Made by
/// [`Linklet::sink`].
pub struct LinkletSink<V> {
    store: Arc<Store<V>>,
    brings: Brings<V>,
}

impl<V> std::fmt::Debug for LinkletSink<V> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LinkletSink").finish_non_exhaustive()
    }
}

impl<V: Send + Sync + 'static> Linklet<V> {
    /// What a relay tells, where refreshes carry values as
    /// [`Marshal`](crate::Marshal) makes them. One for each linklet.
    pub fn sink(&self) -> LinkletSink<V> {
        let store = Arc::clone(&self.inner().store);
        let marshaller = Arc::clone(&store);
        self.sink_reading(move |key, bytes| unmarshal(&*marshaller.marshaller, key, bytes).ok())
    }

    /// The same, with refreshes of another form: where `read` makes no value of
    /// one, or panics, the key is dropped.
    pub fn sink_reading(
        &self,
        read: impl Fn(&[u8], &[u8]) -> Option<V> + Send + 'static,
    ) -> LinkletSink<V> {
        self.sink_of(Brings::Value(Box::new(read)))
    }

    /// The same, where refreshes bring no value but what tells how new the row is:
    /// a version that every change of it raises, for example. What is kept stays if
    /// `contains` says that it has the change, and is dropped otherwise. So changes
    /// that this server has made itself, first in the database and then here, cost
    /// no load when they come back.
    ///
    /// `contains` runs under the lock of a part of the table: keep it short. If it
    /// panics the key is dropped; so is a value that is on disk
    /// ([`Builder::spill`](crate::Builder::spill)).
    ///
    /// ```
    /// # use trefoil_linklet::Linklet;
    /// # use trefoil_linklet::freshness::event::Sink;
    /// struct Cart {
    ///     version: u64,
    /// }
    /// # fn example(carts: &Linklet<Cart>) -> impl Sink {
    /// // trefoil relay … --map cart={id} --refresh cart=version
    /// fn version_of(columns: &[u8]) -> Option<u64> {
    ///     let columns = trefoil_freshness::read_columns(columns).ok()?;
    ///     str::from_utf8(columns.first().copied()??).ok()?.parse().ok()
    /// }
    /// carts.sink_comparing(|cart, columns| {
    ///     version_of(columns).is_some_and(|version| cart.version >= version)
    /// })
    /// # }
    /// ```
    pub fn sink_comparing(
        &self,
        contains: impl Fn(&V, &[u8]) -> bool + Send + 'static,
    ) -> LinkletSink<V> {
        self.sink_of(Brings::Mark(Box::new(contains)))
    }

    fn sink_of(&self, brings: Brings<V>) -> LinkletSink<V> {
        LinkletSink {
            store: Arc::clone(&self.inner().store),
            brings,
        }
    }

    /// Where the stream of changes is, to go on from there after an
    /// interruption; none before anything was told.
    pub fn place(&self) -> Option<Place> {
        self.inner().store.fresh.place()
    }

    /// How old what is kept may be: every commit that was acknowledged longer
    /// ago is contained. None while nothing is known.
    pub fn staleness(&self) -> Option<Duration> {
        self.inner().store.fresh.staleness()
    }

    /// Takes a key out of the replicas that is not here any more, or not to be
    /// seen; whether that has to be tried again.
    pub(crate) async fn withdraw_absent(&self, key: &[u8]) -> bool {
        let at = self.inner().store.key(key);
        let withdrawn = self
            .propose(
                Access::Refresh,
                at,
                Shown::Fresh,
                Needs::Nothing,
                |entry| match entry {
                    Some(_) => (Plan::Keep, ()),
                    None => (Plan::Remove, ()),
                },
            )
            .await;
        match withdrawn {
            // It goes on, until the replicas have confirmed.
            Ok(_) | Err(Error::Indeterminate(_)) => false,
            // The key is not this server's any more: who has it is told, too.
            Err(error @ (Error::NotMine(_) | Error::NotMember)) => {
                tracing::debug!(%error, "a key was not withdrawn here");
                false
            }
            // A commit was before it, or came between; or nothing can be
            // committed at the moment.
            Err(_) => true,
        }
    }

    /// Puts the value of a refresh in, unless the key has gone, or is newer. If
    /// that fails the key is withdrawn; whether that has to be tried again.
    pub(crate) async fn refresh_copied(&self, key: &[u8], value: Arc<V>, stamp: Stamp) -> bool {
        let at = self.inner().store.key(key);
        let refreshed = self
            .propose(
                Access::Refresh,
                at,
                Shown::All,
                Needs::Nothing,
                |entry| match entry {
                    Some(entry) if entry.stamp.position < stamp.position => {
                        (Plan::Put(value, stamp), ())
                    }
                    _ => (Plan::Keep, ()),
                },
            )
            .await;
        match refreshed {
            // It goes on; what is told meanwhile is looked at when it is settled.
            Ok(_) | Err(Error::Indeterminate(_)) => false,
            Err(error) => {
                tracing::debug!(%error, "a key was not refreshed here, and is dropped");
                self.withdraw_absent(key).await
            }
        }
    }
}

impl<V: Send + Sync + 'static> LinkletSink<V> {
    /// What a refresh brings. If making a value of it panics there is none: one
    /// row that cannot be read is not to end the stream of all.
    fn read(&self, key: &[u8], bytes: &[u8]) -> Option<V> {
        let Brings::Value(read) = &self.brings else {
            return None;
        };
        self.tried(key, || read(key, bytes)).flatten()
    }

    /// Whether what is kept has a change. If nobody can tell it has not.
    fn contains(&self, entry: &Entry<V>, bytes: &[u8]) -> bool {
        let (Brings::Mark(contains), Some(value)) = (&self.brings, entry.value.here()) else {
            return false;
        };
        let contains = self.tried(&entry.key, || contains(value, bytes));
        contains.unwrap_or(false)
    }

    /// What the application makes of a refresh; none if it panics.
    fn tried<R>(&self, key: &[u8], make: impl FnOnce() -> R) -> Option<R> {
        let made = catch_unwind(AssertUnwindSafe(make));
        if made.is_err()
            && let Some(count) = self.store.unreadable.tell(Instant::now())
        {
            let key = String::from_utf8_lossy(key);
            tracing::error!(%key, count, "reading a refresh panicked: its key is dropped");
        }
        made.ok()
    }

    /// Drops the value of a key, or hides it where that is not this server's to
    /// do alone.
    fn drop_value(&self, key: &Bytes, mut visit: Visit<'_, V>) {
        let store = &self.store;
        let status = visit.status();
        let Some(entry) = visit.peek().filter(|entry| !entry.stale) else {
            return;
        };
        let point = KeyPoint(entry.hash.place);
        let old = match status {
            Status::Owned { propose: false, .. } => visit.remove(),
            _ => {
                entry.stale = true;
                None
            }
        };
        drop(visit);
        Counters::one(&store.counters.invalidations);
        match store.replication {
            Replication::None => {}
            Replication::Eventual if old.is_some() => {
                store.leave(|errands| errands.touched.push((point, key.clone())));
            }
            Replication::Eventual => {}
            // Nobody here sees it any more; the replicas are told.
            Replication::Strong => {
                store.leave(|errands| errands.withdrawn.push((point, key.clone())));
            }
        }
    }

    fn sweep(&self, sweep: Sweep) {
        if let Sweep::Drop { scope, before } = sweep {
            self.drop_before(&scope, before);
        }
    }

    /// What is older is dropped, to be loaded anew. Without a loader it is lost,
    /// and reported.
    fn drop_before(&self, scope: &Scope, before: u64) {
        let store = &self.store;
        let direct = store.replication != Replication::Strong;
        let mut gone = store.table.remove_slice(Slice::ALL, |entry, status| {
            direct
                && matches!(status, Status::Owned { .. })
                && entry.stamp.position < before
                && scope.covers(&entry.key)
        });
        gone.retain(|entry| !entry.stale);
        // Those that are being moved, or are others' copies, or are taken out
        // together with their replicas.
        let mut withdrawn = Vec::new();
        store.table.mark_slice(Slice::ALL, |entry| {
            if entry.stamp.position < before && !entry.stale && scope.covers(&entry.key) {
                entry.stale = true;
                withdrawn.push(named(entry.hash.place, &entry.key));
            }
        });
        // What has ended is no loss.
        let lost = gone.iter().filter(|entry| !entry.has_ended());
        let lost: Vec<_> = lost
            .map(|entry| named(entry.hash.place, &entry.key))
            .collect();
        let gone: Vec<_> = gone
            .iter()
            .map(|entry| named(entry.hash.place, &entry.key))
            .collect();
        store.leave(|errands| {
            if !store.has_loader {
                errands.dropped.extend(lost);
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
    }
}

impl<V: Send + Sync + 'static> Sink for LinkletSink<V> {
    fn begun(&mut self, place: &Place) {
        let fresh = &self.store.fresh;
        let first = fresh.place().is_none();
        let sweep = fresh.begin(place);
        // What was put in before anything was followed came from no database,
        // where nothing is loaded from one.
        if self.store.has_loader || !first {
            self.sweep(sweep);
        }
        fresh.begun();
    }

    fn invalidate(&mut self, key: &Bytes, position: u64) {
        let at = self.store.key(key);
        let visit = self.store.table.visit(at);
        if self.store.fresh.invalidate(at.hash, position) == Verdict::Drop {
            self.drop_value(key, visit);
        }
    }

    fn refresh(&mut self, key: &Bytes, bytes: &Bytes, position: u64) {
        let store = &self.store;
        let at = store.key(key);
        let value = self.read(key, bytes).map(Arc::new);
        // Made before the visit, so that it fits when it comes in.
        let weight = value.as_ref().map(|value| store.weight(key, value));
        let room = weight.and_then(|weight| store.reserve(at, weight).ok());
        let mut visit = store.table.visit(at);
        let status = visit.status();
        if let Some(entry) = visit.peek()
            && !entry.stale
            && self.contains(entry, bytes)
        {
            entry.stamp = store.fresh.contained(at.hash, position, entry.stamp);
            drop(visit);
            let is_own = matches!(status, Status::Owned { .. });
            if is_own && store.replication == Replication::Eventual {
                // Copies that are on their way are older by their stamps.
                store.leave(|errands| errands.touched.push((at.point(), key.clone())));
            }
            return;
        }
        let there = visit.peek().map(|entry| (entry.stamp, entry.stale));
        let kept = there.filter(|&(_, stale)| !stale).map(|(stamp, _)| stamp);
        let verdict = store.fresh.refresh(at.hash, position, kept);
        let Some(kept) = kept else {
            // An older refresh, or a withdrawal, is under way: this one follows.
            let proposed = matches!(visit.status(), Status::Owned { propose: true, .. });
            if let (Some(_), true, Verdict::Replace(stamp), Some(value)) =
                (there, proposed, verdict, value)
            {
                drop(visit);
                store.leave(|errands| errands.refreshed.push((key.clone(), value, stamp)));
            }
            return;
        };
        let stamp = match verdict {
            Verdict::Keep => return,
            Verdict::Replace(stamp) => Some(stamp),
            // What is kept may be newer; loading it again says which.
            Verdict::Drop if store.has_loader => None,
            Verdict::Drop => Some(Stamp::refreshed(position.max(kept.position))),
        };
        let (Some(stamp), Some(value)) = (stamp, value) else {
            return self.drop_value(key, visit);
        };
        match (visit.status(), room) {
            (Status::Owned { propose: false, .. }, Some(room)) => {
                let old = visit.put(value, stamp, room);
                drop(visit);
                drop(old);
                if store.replication == Replication::Eventual {
                    store.leave(|errands| errands.touched.push((at.point(), key.clone())));
                }
            }
            (Status::Owned { propose: true, .. }, _) => {
                // Not seen any more; the new one once the replicas have it.
                if let Some(entry) = visit.peek() {
                    entry.stale = true;
                }
                drop(visit);
                store.leave(|errands| errands.refreshed.push((key.clone(), value, stamp)));
            }
            _ => self.drop_value(key, visit),
        }
    }

    fn gap(&mut self, gap: &Gap) {
        let sweep = self.store.fresh.gap(gap);
        self.sweep(sweep);
    }

    fn progress(&mut self, progress: Progress) {
        self.store.fresh.progress(progress);
    }

    fn taken(&self) -> u64 {
        self.store.fresh.position()
    }
}

fn named(point: u64, key: &[u8]) -> (KeyPoint, Bytes) {
    (KeyPoint(point), Bytes::copy_from_slice(key))
}
