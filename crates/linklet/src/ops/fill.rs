//! Loading what is not in memory: once, however many ask for it.

use super::read::Held;
use crate::error::Error;
use crate::flight::{Turn, outcome};
use crate::fresh::Wanted;
use crate::linklet::{Landed, Linklet};
use crate::load::Cost;
use crate::loader::Loader;
use crate::stats::Counters;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tracing::Instrument as _;
use trefoil_freshness_core::position::Place;
use trefoil_freshness_core::table::{FillToken, Refused, Stamp};
use trefoil_linklet_core::Access;

use super::write::{Needs, Plan};

/// Loads of one key that may be overtaken by changes before it is not kept.
const ATTEMPTS_MAX: usize = 8;
/// A change that was told is visible, as a rule, well before this.
const VISIBLE_SOON: Duration = Duration::from_millis(20);

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Hands an object out, loading it if it is not in memory; `None` if the
    /// loader says that there is none. Concurrent calls for one key run the
    /// loader once.
    pub async fn get_or_load(&self, key: &[u8]) -> Result<Option<Held<V>>, Error> {
        let found = self.fetch(key, None).await?;
        Ok(found.map(|(value, stamp)| self.hold(key, value, stamp)))
    }

    /// Like [`read`](Linklet::read), loading the object if it is not in memory.
    pub async fn read_or_load<R>(
        &self,
        key: &[u8],
        look: impl FnOnce(&V) -> R,
    ) -> Result<Option<R>, Error> {
        let found = self.fetch(key, None).await?;
        let meters = &self.inner().store.meters;
        let probe = meters.probe();
        let result = found.map(|(value, _)| look(&value));
        meters.finish(probe, self.point(key), Cost::Shared);
        Ok(result)
    }

    /// Hands an object out that contains the commits up to a place in the
    /// database's log: for who has just written and wants to see it. Where the
    /// announcements have not come so far, the object is loaded anew; without a
    /// loader it is waited for them.
    ///
    /// A place belongs to a history. After a failover, or when a backup was
    /// restored, one from before can be compared with nothing: the object is loaded
    /// anew, or [`Error::OtherHistory`] says so where there is no loader and the
    /// history is not followed in time.
    pub async fn get_at_least(&self, key: &[u8], place: &Place) -> Result<Option<Held<V>>, Error> {
        if self.inner().loader.is_none() {
            self.wait_for_progress(place).await?;
            return self.get(key).await;
        }
        let found = self.fetch(key, Some(place)).await?;
        Ok(found.map(|(value, stamp)| self.hold(key, value, stamp)))
    }

    async fn wait_for_progress(&self, place: &Place) -> Result<(), Error> {
        let fresh = &self.inner().store.fresh;
        let mut reached = fresh.watch();
        let there = async {
            loop {
                // First this, then the history: a new one begins at nothing.
                let position = *reached.borrow_and_update();
                if fresh.wanted(Some(place)).admits(position) && position == fresh.reached() {
                    return;
                }
                if position != fresh.reached() {
                    continue;
                }
                // The sender lives as long as `self`.
                let _ = reached.changed().await;
            }
        };
        let patience = self.call().patience;
        if tokio::time::timeout(patience, there).await.is_ok() {
            return Ok(());
        }
        match fresh.place() {
            Some(at) if at.history == place.history => Err(Error::Moving { waited: patience }),
            at => Err(Error::OtherHistory {
                asked: place.history.clone(),
                followed: at.map(|at| at.history),
            }),
        }
    }

    fn hold(&self, key: &[u8], value: Arc<V>, stamp: Stamp) -> Held<V> {
        // The version is that of the entry which has this very value; a value
        // that could not be stored has none, and cannot be committed.
        let at = self.inner().store.key(key);
        let mut visit = self.inner().store.table.visit(at);
        let token = match visit.status() {
            trefoil_linklet_core::Status::Owned { token, .. } => Some(token),
            _ => None,
        };
        let version = visit
            .get()
            .filter(|entry| {
                let here = entry.value.here();
                here.is_some_and(|here| Arc::ptr_eq(here, &value))
            })
            .map_or(0, |entry| entry.version);
        drop(visit);
        Held {
            key: key.to_vec(),
            value,
            version,
            stamp,
            token,
        }
    }

    /// The value in memory, if it is fresh enough.
    async fn found(&self, key: &[u8], place: Option<&Place>) -> Landed<V> {
        let store = &self.inner().store;
        let wanted = store.fresh.wanted(place);
        if wanted == Wanted::Anew {
            return Ok(None);
        }
        // First this, then the value: what was told up to there has been seen to.
        let reached = store.fresh.reached();
        let at = store.key(key);
        let found = self
            .run(at, Access::Read, |visit, _| {
                let is_late = store.fresh.is_late();
                visit
                    .get()
                    .filter(|_| !is_late)
                    .map(|entry| (entry.value.found(), entry.stamp))
            })
            .await?;
        let found = match found {
            None => None,
            Some((found, stamp)) => {
                let value = self.have(at, found).await?;
                value.map(|value| (value, stamp))
            }
        };
        Ok(found
            .map(|(value, mut stamp)| {
                stamp.position = stamp.position.max(reached);
                (value, stamp)
            })
            .filter(|(_, stamp)| wanted.admits(stamp.position))
            // Another history may have begun meanwhile.
            .filter(|_| store.fresh.wanted(place) == wanted))
    }

    async fn fetch(&self, key: &[u8], place: Option<&Place>) -> Landed<V> {
        let inner = self.inner();
        let counters = &inner.store.counters;
        if let Some(found) = self.found(key, place).await? {
            Counters::one(&counters.hits);
            return Ok(Some(found));
        }
        let Some(loader) = &inner.loader else {
            // It may be here, and not to be served.
            inner.store.fresh.check()?;
            return Err(Error::NoLoader);
        };
        Counters::one(&counters.misses);
        let deadline = Deadline::after(inner.load_within);
        loop {
            match inner.store.flights.join(key) {
                Turn::Follow(done) => match deadline.bound(outcome(done)).await? {
                    // It may have been read before the caller's change.
                    Some(Ok(found))
                        if !contains(found.as_ref(), inner.store.fresh.wanted(place)) => {}
                    Some(landed) => return landed,
                    // Who was loading it went away, or may not share it.
                    None => {}
                },
                Turn::Lead(lead) => {
                    let (landed, shared) = self.load(key, place, &**loader).await;
                    if shared {
                        lead.land(landed.clone());
                    }
                    return landed;
                }
            }
        }
    }

    /// Loads a value, and whether it may be told to who came later.
    ///
    /// What was read before a change was visible is not kept, and is told to
    /// nobody who came after it: it is loaded again once the change is visible.
    async fn load(
        &self,
        key: &[u8],
        place: Option<&Place>,
        loader: &dyn Loader<V>,
    ) -> (Landed<V>, bool) {
        let store = &self.inner().store;
        // Another load may have landed between the look and the lead.
        match self.found(key, place).await {
            Ok(None) => {}
            found => return (found, true),
        }
        let mut reached = store.fresh.watch();
        let mut last = None;
        // For all attempts together: others wait for what this comes to.
        let deadline = Deadline::after(self.inner().load_within);
        for _ in 0..ATTEMPTS_MAX {
            reached.mark_unchanged();
            let (mut token, wanted) = store.fresh.token(place);
            Counters::one(&store.counters.loads);
            let began = Instant::now();
            let span = tracing::debug_span!("linklet.load", corpus = self.corpus(), point = %self.point(key));
            let load = loader.load(key.to_vec()).instrument(span);
            let loaded = deadline.bound(load).await;
            Counters::time(&store.counters.load_us, began);
            let loaded = match loaded.and_then(|loaded| loaded.map_err(Error::Load)) {
                Ok(loaded) => loaded,
                Err(error) => {
                    Counters::one(&store.counters.load_failures);
                    return (Err(error), true);
                }
            };
            if let Some(place) = loaded.as_ref().and_then(|loaded| loaded.place.as_ref()) {
                token = store.fresh.contains(token, place);
            }
            let value = loaded.map(|loaded| Arc::new(loaded.value));
            if store.fresh.is_late() {
                // It would not be served to anybody; what is there stays until the relay is
                // heard, which tells whether it was changed.
                let stamp = store.fresh.unkept(token);
                return (Ok(value.map(|value| (value, stamp))), true);
            }
            let stored = match &value {
                Some(value) => self.store_loaded(key, wanted, value, token).await,
                None => Ok(store
                    .fresh
                    .admit(store.key(key).hash, token)
                    .map(|stamp| (None, stamp))),
            };
            let refused = match stored {
                Ok(Ok((value, stamp))) => return (Ok(value.map(|value| (value, stamp))), true),
                Ok(Err(refused)) => refused,
                // Somebody else has the key, or nobody knows who: that one's may be newer.
                Err(
                    error @ (Error::NotMine(_)
                    | Error::NotMember
                    | Error::NoLease
                    | Error::Moving { .. }
                    | Error::Sent { .. }),
                ) => return (Err(error), true),
                // It is good, whatever kept it from being stored: no room, a copy that does
                // not confirm, a marshaller that cannot write it.
                Err(error) => {
                    tracing::debug!(%error, "a value that was loaded is served, and not kept");
                    let stamp = store.fresh.unkept(token);
                    return (Ok(value.map(|value| (value, stamp))), false);
                }
            };
            Counters::one(&store.counters.loads_overtaken);
            let stamp = store.fresh.unkept(token);
            last = Some(value.map(|value| (value, stamp)));
            match refused {
                // Nothing is told at the moment: loads share what they read.
                Refused::NotFollowing => return (Ok(last.flatten()), true),
                Refused::Gap => {}
                Refused::Changed => {
                    // In a moment the change is visible to who begins to read.
                    let visible = reached.changed();
                    let _ = tokio::time::timeout(VISIBLE_SOON, visible).await;
                }
            }
        }
        // As fresh as any read of the database; nobody else's, and not kept.
        (Ok(last.flatten()), false)
    }

    /// Keeps a loaded value, unless a change has come between; or what somebody
    /// has put in meanwhile, which is newer.
    async fn store_loaded(
        &self,
        key: &[u8],
        wanted: Wanted,
        value: &Arc<V>,
        token: FillToken,
    ) -> Result<Result<(Option<Arc<V>>, Stamp), Refused>, Error> {
        let store = &self.inner().store;
        let at = store.key(key);
        let weight = store.weight(key, value);
        let (_, kept) = self
            .write_as(
                Access::Refresh,
                key,
                Some(weight),
                Needs::Value,
                |entry| match entry {
                    Some(entry) if wanted.admits(entry.stamp.position) => {
                        let there = (Some(Arc::clone(entry.value())), entry.stamp);
                        (Plan::Keep, Ok(there))
                    }
                    _ => match store.fresh.admit(at.hash, token) {
                        Ok(stamp) => {
                            let value = Arc::clone(value);
                            let kept = (Some(Arc::clone(&value)), stamp);
                            (Plan::Put(value, stamp), Ok(kept))
                        }
                        Err(refused) => (Plan::Keep, Err(refused)),
                    },
                },
            )
            .await?;
        Ok(kept)
    }
}

/// When a load, or a wait for somebody else's, is given up.
struct Deadline {
    limit: Duration,
    at: Option<tokio::time::Instant>,
}

impl Deadline {
    fn after(limit: Duration) -> Self {
        // A time that is too long for the clock never ends.
        let at = tokio::time::Instant::now().checked_add(limit);
        Deadline { limit, at }
    }

    async fn bound<T>(&self, wait: impl Future<Output = T>) -> Result<T, Error> {
        let Some(at) = self.at else {
            return Ok(wait.await);
        };
        let over = |_| Error::LoadOverran { limit: self.limit };
        tokio::time::timeout_at(at, wait).await.map_err(over)
    }
}

/// Whether what somebody else's load came to will do. What is not there says nothing
/// of when it was looked for.
fn contains<V>(found: Option<&(Arc<V>, Stamp)>, wanted: Wanted) -> bool {
    wanted == Wanted::Any || found.is_some_and(|(_, stamp)| wanted.admits(stamp.position))
}
