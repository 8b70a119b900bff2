//! Loading what is not in memory: once, however many ask for it.

use super::read::Held;
use crate::error::Error;
use crate::flight::{Lead, Turn, outcome};
use crate::linklet::{Landed, Linklet};
use crate::load::Cost;
use crate::loader::{Loader, LoaderError};
use crate::stats::Counters;
use std::sync::Arc;
use trefoil_linklet_core::Access;

use super::write::Plan;

/// Loads of one key that may be overtaken by changes before it is given up.
const ATTEMPTS_MAX: usize = 16;

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Hands an object out, loading it if it is not in memory; `None` if the
    /// loader says that there is none. Concurrent calls for one key run the
    /// loader once.
    pub async fn get_or_load(&self, key: &[u8]) -> Result<Option<Held<V>>, Error> {
        let found = self.fetch(key, 0).await?;
        Ok(found.map(|(value, position)| self.hold(key, value, position)))
    }

    /// Like [`read`](Linklet::read), loading the object if it is not in memory.
    pub async fn read_or_load<R>(
        &self,
        key: &[u8],
        look: impl FnOnce(&V) -> R,
    ) -> Result<Option<R>, Error> {
        let found = self.fetch(key, 0).await?;
        let meters = &self.inner().store.meters;
        let probe = meters.probe();
        let result = found.map(|(value, _)| look(&value));
        meters.finish(probe, self.point(key), Cost::Shared);
        Ok(result)
    }

    /// Hands an object out that is fresh at least as of `position` in the
    /// database's stream of changes: for who has just written and wants to see
    /// it. Where the announcements have not come so far, the object is loaded
    /// anew; without a loader it is waited for them.
    pub async fn get_at_least(&self, key: &[u8], position: u64) -> Result<Option<Held<V>>, Error> {
        if self.inner().loader.is_none() {
            self.wait_for_progress(position).await?;
            return self.get(key).await;
        }
        let found = self.fetch(key, position).await?;
        Ok(found.map(|(value, position)| self.hold(key, value, position)))
    }

    async fn wait_for_progress(&self, position: u64) -> Result<(), Error> {
        let store = &self.inner().store;
        let wait = async {
            loop {
                let news = store.progress.notified();
                if store.fresh.progress() >= position {
                    return;
                }
                news.await;
            }
        };
        let patience = self.call().patience;
        tokio::time::timeout(patience, wait)
            .await
            .map_err(|_| Error::Moving { waited: patience })
    }

    fn hold(&self, key: &[u8], value: Arc<V>, position: u64) -> Held<V> {
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
            .filter(|entry| Arc::ptr_eq(&entry.value, &value))
            .map_or(0, |entry| entry.version);
        drop(visit);
        Held {
            key: key.to_vec(),
            value,
            version,
            position,
            token,
        }
    }

    /// The value in memory, if it is fresh enough, with its position.
    async fn found(&self, key: &[u8], at_least: u64) -> Landed<V> {
        let store = &self.inner().store;
        let announced = store.fresh.progress();
        let at = store.key(key);
        let found = self
            .run(at, Access::Read, |visit, _| {
                visit
                    .get()
                    .map(|entry| (Arc::clone(&entry.value), entry.position))
            })
            .await?;
        Ok(found
            .map(|(value, position)| (value, position.max(announced)))
            .filter(|(_, position)| *position >= at_least))
    }

    async fn fetch(&self, key: &[u8], at_least: u64) -> Landed<V> {
        let inner = self.inner();
        let counters = &inner.store.counters;
        if let Some(found) = self.found(key, at_least).await? {
            Counters::one(&counters.hits);
            return Ok(Some(found));
        }
        let loader = inner.loader.as_ref().ok_or(Error::NoLoader)?;
        Counters::one(&counters.misses);
        if at_least > inner.store.fresh.progress() {
            // What is being loaded may have been read before the change.
            self.change_announced(key, at_least).await;
        }
        loop {
            match inner.store.flights.join(key) {
                Turn::Follow(done) => match outcome(done).await {
                    Some(Ok(Some((_, position)))) if position < at_least => {}
                    Some(landed) => return landed,
                    // Who was loading it went away.
                    None => {}
                },
                Turn::Lead(lead) => {
                    let landed = self.load(key, at_least, &lead, &**loader).await;
                    lead.land(landed.clone());
                    return landed;
                }
            }
        }
    }

    async fn load(
        &self,
        key: &[u8],
        at_least: u64,
        lead: &Lead<'_, Landed<V>>,
        loader: &dyn Loader<V>,
    ) -> Landed<V> {
        let store = &self.inner().store;
        // Another load may have landed between the look and the lead.
        if let Some(found) = self.found(key, at_least).await? {
            return Ok(Some(found));
        }
        let mut as_of = at_least;
        for _ in 0..ATTEMPTS_MAX {
            as_of = as_of.max(store.fresh.progress());
            Counters::one(&store.counters.loads);
            let loaded = match loader.load(key.to_vec()).await {
                Ok(Some(loaded)) => loaded,
                Ok(None) if lead.overtaken(as_of) => {
                    as_of = as_of.max(lead.restart());
                    continue;
                }
                Ok(None) => return Ok(None),
                Err(error) => {
                    Counters::one(&store.counters.load_failures);
                    return Err(Error::Load(error));
                }
            };
            let position = loaded.position.unwrap_or(as_of);
            let value = Arc::new(loaded.value);
            let weight = store.weight(key, &value);
            let offered = Arc::clone(&value);
            let written = self
                .write(key, Some(weight), |entry| match entry {
                    _ if lead.overtaken(position) => (Plan::Keep, None),
                    // Somebody has put one in meanwhile: his is newer.
                    Some(entry) if entry.position >= at_least => {
                        (Plan::Keep, Some((Arc::clone(entry.value), entry.position)))
                    }
                    _ => {
                        let kept = Arc::clone(&offered);
                        (Plan::Put(offered, position), Some((kept, position)))
                    }
                })
                .await;
            match written {
                Ok((_, Some(found))) => return Ok(Some(found)),
                Ok((_, None)) => {
                    Counters::one(&store.counters.loads_overtaken);
                    as_of = as_of.max(lead.restart());
                }
                // It is good, though it cannot be kept.
                Err(Error::NoRoom { .. }) if !lead.overtaken(position) => {
                    return Ok(Some((value, position)));
                }
                Err(Error::NoRoom { .. }) => as_of = as_of.max(lead.restart()),
                Err(error) => return Err(error),
            }
        }
        Err(Error::Load(LoaderError::new(
            "the key changes faster than it can be loaded",
        )))
    }
}
