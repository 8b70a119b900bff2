//! Reading, and handing objects out.

use crate::error::Error;
use crate::linklet::Linklet;
use crate::load::Cost;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use trefoil_freshness_core::table::Stamp;
use trefoil_linklet_core::Access;
use trefoil_sharder::AssignmentVersion;

use super::admit::Gate;

/// An object that was handed out: a snapshot that stays valid whatever happens
/// to the key. To change the object, [`edit`](Held::edit) it and
/// [`commit`](Linklet::commit) it; the commit says if ownership has ended or
/// somebody else has changed the key meanwhile.
pub struct Held<V> {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Arc<V>,
    pub(crate) version: u64,
    pub(crate) stamp: Stamp,
    pub(crate) token: Option<AssignmentVersion>,
}

impl<V> Held<V> {
    /// The key.
    pub fn key(&self) -> &[u8] {
        &self.key
    }

    /// The object, to be changed. Nobody sees the change before the commit: if
    /// the object is shared, which is the rule, it is copied first.
    pub fn edit(&mut self) -> &mut V
    where
        V: Clone,
    {
        Arc::make_mut(&mut self.value)
    }

    /// Puts another object in its place.
    pub fn replace(&mut self, value: V) {
        self.value = Arc::new(value);
    }

    /// The object, shared.
    pub fn shared(&self) -> Arc<V> {
        Arc::clone(&self.value)
    }

    /// The position in the database's stream of changes that the object is
    /// fresh as of.
    pub fn position(&self) -> u64 {
        self.stamp.position
    }

    /// Fencing token of the owner that handed the object out, for writes to a
    /// database that refuses those of former owners; `None` for a copy.
    pub fn token(&self) -> Option<AssignmentVersion> {
        self.token
    }
}

impl<V> Deref for Held<V> {
    type Target = V;

    fn deref(&self) -> &V {
        &self.value
    }
}

impl<V: fmt::Debug> fmt::Debug for Held<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Held")
            .field("key", &String::from_utf8_lossy(&self.key))
            .field("value", &self.value)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Looks at an object. The closure runs on this thread with no lock held;
    /// `None` if the key is absent.
    pub async fn read<R>(
        &self,
        key: &[u8],
        look: impl FnOnce(&V) -> R,
    ) -> Result<Option<R>, Error> {
        if let Some(result) = self.shared_now(key, Access::Read) {
            return Ok(self.look(key, result, look));
        }
        let value = self.shared(key, Access::Read).await?;
        Ok(self.look(key, value, look))
    }

    /// Like [`read`](Linklet::read), also from a copy that may be a little old.
    pub async fn read_copy<R>(
        &self,
        key: &[u8],
        look: impl FnOnce(&V) -> R,
    ) -> Result<Option<R>, Error> {
        let value = self.shared(key, Access::ReadCopy).await?;
        Ok(self.look(key, value, look))
    }

    /// Hands an object out; `None` if the key is absent.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Held<V>>, Error> {
        let probe = self.inner().store.meters.probe();
        let at = self.inner().store.key(key);
        let found = self
            .run(at, Access::Read, |visit, gate| {
                let served = self.inner().store.fresh.check();
                let token = match gate {
                    Gate::Owned { token, .. } => Some(token),
                    Gate::Copy => None,
                };
                let found = visit
                    .get()
                    .map(|entry| (entry.value.found(), entry.version, entry.stamp, token));
                found.map(|found| served.map(|()| found)).transpose()
            })
            .await??;
        let held = match found {
            None => None,
            Some((value, version, stamp, token)) => {
                let value = self.have(at, value).await?;
                value.map(|value| Held {
                    key: key.to_vec(),
                    value,
                    version,
                    stamp,
                    token,
                })
            }
        };
        self.inner()
            .store
            .meters
            .finish(probe, at.point(), Cost::Shared);
        Ok(held)
    }

    /// Whether this server still owns what it handed out, unchanged.
    pub fn is_current(&self, held: &Held<V>) -> bool {
        let key = self.inner().store.key(&held.key);
        let mut visit = self.inner().store.table.visit(key);
        self.gate(&visit, Access::Read).is_some()
            && visit
                .get()
                .is_some_and(|entry| entry.version == held.version)
    }

    /// The object, if the rules are clear about the key.
    #[inline]
    fn shared_now(&self, key: &[u8], access: Access) -> Option<Option<Arc<V>>> {
        let key = self.inner().store.key(key);
        let mut visit = self.inner().store.table.visit(key);
        self.gate(&visit, access)?;
        let is_late = self.inner().store.fresh.is_late();
        let found = match visit.get() {
            None => None,
            // On disk: the other way reads it.
            Some(entry) => Some(Arc::clone(entry.value.here()?)),
        };
        // The other way says why.
        (!is_late || found.is_none()).then_some(found)
    }

    async fn shared(&self, key: &[u8], access: Access) -> Result<Option<Arc<V>>, Error> {
        let key = self.inner().store.key(key);
        let found = self
            .run(key, access, |visit, _| {
                let served = self.inner().store.fresh.check();
                let found = visit.get().map(|entry| entry.value.found());
                found.map(|value| served.map(|()| value)).transpose()
            })
            .await??;
        match found {
            None => Ok(None),
            Some(found) => self.have(key, found).await,
        }
    }

    #[inline]
    fn look<R>(&self, key: &[u8], value: Option<Arc<V>>, look: impl FnOnce(&V) -> R) -> Option<R> {
        let meters = &self.inner().store.meters;
        match meters.probe() {
            None => value.map(|value| look(&value)),
            probe => {
                let result = value.map(|value| look(&value));
                meters.finish(probe, self.point(key), Cost::Shared);
                result
            }
        }
    }
}
