//! Changing: inserting, removing, committing and updating.

use super::admit::Gate;
use super::propose::Shown;
use super::read::Held;
use crate::error::{CommitError, Error};
use crate::event::StateLossReason;
use crate::linklet::Linklet;
use crate::load::Cost;
use crate::spill::Record;
use crate::store::Store;
use crate::table::{Brought, Changed, Entry, Key, NoRoom};
use bytes::Bytes;
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use trefoil_freshness_core::table::Stamp;
use trefoil_linklet_core::{Access, Replication, VALUE_BYTES_MAX};
use trefoil_sharder::AssignmentVersion;

/// A commit that was carried out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Committed {
    /// Fencing token: higher than that of every former owner of the key. A
    /// database that keeps the highest it has seen beside each row can refuse
    /// writes with a lower one.
    pub token: AssignmentVersion,
}

/// What is to become of a key.
pub(crate) enum Plan<V> {
    /// It stays as it is.
    Keep,
    /// This value, with what is known of its freshness.
    Put(Arc<V>, Stamp),
    /// It goes.
    Remove,
}

/// What a plan has to see. A value that is on disk is read only where it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Needs {
    /// Whether there is a value, and which one.
    Nothing,
    /// The value.
    Value,
}

/// A value as a plan sees it.
pub(crate) struct Seen<'a, V> {
    pub(crate) value: Option<&'a Arc<V>>,
    pub(crate) version: u64,
    pub(crate) stamp: Stamp,
}

impl<'a, V> Seen<'a, V> {
    /// The value, for a plan that was said to need it.
    pub(crate) fn value(&self) -> &'a Arc<V> {
        self.value
            .expect("it was said that the plan needs the value")
    }

    /// The entry's, or the one that was brought from disk if the entry is still that one;
    /// otherwise where it has to be read.
    fn of(
        entry: &'a Entry<V>,
        needs: Needs,
        brought: Option<&'a Brought<V>>,
    ) -> Result<Self, Arc<Record>> {
        let value = match needs {
            Needs::Nothing => None,
            Needs::Value => Some(entry.value.look(brought)?),
        };
        Ok(Seen {
            value,
            version: entry.version,
            stamp: entry.stamp,
        })
    }
}

impl From<NoRoom> for Error {
    fn from(refused: NoRoom) -> Self {
        Error::NoRoom {
            weight: refused.weight,
            bound: refused.bound,
        }
    }
}

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Puts an object in, in the place of the one that is there.
    pub async fn insert(&self, key: &[u8], value: V) -> Result<Committed, Error> {
        let value = Arc::new(value);
        let store = &self.inner().store;
        let weight = store.weight(key, &value);
        let (token, ()) = self
            .write(key, Some(weight), |_| {
                (Plan::Put(value, store.fresh.written()), ())
            })
            .await?;
        Ok(Committed { token })
    }

    /// Removes a key; `true` if it was there.
    pub async fn remove(&self, key: &[u8]) -> Result<bool, Error> {
        let (_, was_there) = self
            .write(key, None, |entry| match entry {
                Some(_) => (Plan::Remove, true),
                None => (Plan::Keep, false),
            })
            .await?;
        Ok(was_there)
    }

    /// Puts an object back that was handed out. From then on resharding may
    /// move it. If the key has changed since, or is served elsewhere by now,
    /// nothing is changed and the object comes back with the error.
    pub async fn commit(&self, held: Held<V>) -> Result<Committed, CommitError<V>> {
        let value = Arc::clone(&held.value);
        let weight = self.inner().store.weight(&held.key, &value);
        let (version, stamp) = (held.version, held.stamp);
        let written = self
            .write(&held.key, Some(weight), |entry| match entry {
                Some(entry) if entry.version == version => (Plan::Put(value, stamp), true),
                _ => (Plan::Keep, false),
            })
            .await;
        match written {
            Ok((token, true)) => Ok(Committed { token }),
            Ok((_, false)) => Err(CommitError {
                error: Error::Conflict,
                held,
            }),
            Err(error) => Err(CommitError { error, held }),
        }
    }

    /// Changes an object where it is; `None` if the key is absent. The closure
    /// runs with the key locked and should be brief. If somebody still looks
    /// at the object, or replicas have to confirm, it works on a copy.
    ///
    /// With [`Replication::Strong`] the change is under way once the closure has
    /// run. [`Error::Indeterminate`]: not every replica has confirmed in time;
    /// [`Error::Unsettled`] and [`Error::Conflict`]: nothing was changed. If the
    /// future is dropped meanwhile the change goes on, or was not begun.
    ///
    /// If the closure panics, the object is dropped and reported as lost, for
    /// it may be half changed, and the panic goes on.
    pub async fn update<R>(
        &self,
        key: &[u8],
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>, Error>
    where
        V: Clone,
    {
        let store = &self.inner().store;
        store.fresh.check()?;
        let at = store.key(key);
        let probe = store.meters.probe();
        let result = if store.replication == Replication::Strong {
            let plan = |entry: Option<Seen<'_, V>>| match entry {
                Some(entry) => {
                    let mut value = V::clone(entry.value());
                    let result = change(&mut value);
                    (Plan::Put(Arc::new(value), entry.stamp), Some(result))
                }
                None => (Plan::Keep, None),
            };
            self.propose(Access::Commit, at, Shown::Fresh, Needs::Value, plan)
                .await?
                .1
        } else {
            self.update_in_place(at, change).await?
        };
        store.meters.finish(probe, at.point(), Cost::Each);
        Ok(result)
    }

    /// Changes an object, or the one that `make` returns if the key is absent,
    /// and puts it in.
    pub async fn upsert<R>(
        &self,
        key: &[u8],
        make: impl FnOnce() -> V,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<R, Error>
    where
        V: Clone,
    {
        let store = &self.inner().store;
        store.fresh.check()?;
        let plan = |entry: Option<Seen<'_, V>>| {
            let (mut value, stamp) = match entry {
                Some(entry) => (V::clone(entry.value()), entry.stamp),
                None => (make(), store.fresh.written()),
            };
            let result = change(&mut value);
            (Plan::Put(Arc::new(value), stamp), result)
        };
        let at = store.key(key);
        let probe = store.meters.probe();
        let result = if store.replication == Replication::Strong {
            self.propose(Access::Commit, at, Shown::Fresh, Needs::Value, plan)
                .await?
                .1
        } else {
            self.replace(at, plan).await?.1
        };
        store.meters.finish(probe, at.point(), Cost::Each);
        Ok(result)
    }

    /// Does with a key what `plan` says when it sees it. `weight` is that of
    /// the value that it may put.
    pub(crate) async fn write<R>(
        &self,
        key: &[u8],
        weight: Option<u64>,
        plan: impl FnOnce(Option<Seen<'_, V>>) -> (Plan<V>, R),
    ) -> Result<(AssignmentVersion, R), Error> {
        self.write_as(Access::Commit, key, weight, Needs::Nothing, plan)
            .await
    }

    /// Likewise; [`Access::Refresh`] for what can be had again.
    pub(crate) async fn write_as<R>(
        &self,
        access: Access,
        key: &[u8],
        weight: Option<u64>,
        needs: Needs,
        plan: impl FnOnce(Option<Seen<'_, V>>) -> (Plan<V>, R),
    ) -> Result<(AssignmentVersion, R), Error> {
        let store = &self.inner().store;
        let at = store.key(key);
        let probe = store.meters.probe();
        let result = if store.replication == Replication::Strong {
            // What it takes marshalled is looked at before it is proposed.
            if let Some(weight) = weight.filter(|&weight| weight > store.table.bound()) {
                return Err(Error::NoRoom {
                    weight,
                    bound: store.table.bound(),
                });
            }
            self.propose(access, at, Shown::Fresh, needs, plan).await?
        } else {
            too_long(at, weight.unwrap_or_default())?;
            // Made before the visit, so that it fits when it comes in.
            let mut room = match weight {
                Some(weight) => Some(store.room(at, weight, self.call().patience).await?),
                None => None,
            };
            let (mut plan, mut brought) = (Some(plan), None);
            let (result, old) = loop {
                let done = self
                    .run(at, Access::Commit, |visit, gate| {
                        let seen = visit.get().map(|e| Seen::of(e, needs, brought.as_ref()));
                        let seen = seen.transpose()?;
                        let (plan, result) = planned(&mut plan)(seen);
                        let old = match plan {
                            Plan::Keep => return Ok((token_and(gate, result), None)),
                            Plan::Put(value, stamp) => match room.take() {
                                Some(room) => visit.put(value, stamp, room),
                                None => return Ok((token_and(gate, result), None)),
                            },
                            Plan::Remove => visit.remove(),
                        };
                        note(store, at, gate);
                        Ok((token_and(gate, result), old))
                    })
                    .await?;
                match done {
                    Ok(done) => break done,
                    Err(record) => brought = self.bring(at, record).await?,
                }
            };
            // Outside the lock: it may be large.
            drop(old);
            result
        };
        store.meters.finish(probe, at.point(), Cost::Each);
        Ok(result)
    }

    /// Like `write`, for a value whose weight is known only afterwards, and a plan that needs
    /// the one that is there.
    async fn replace<R>(
        &self,
        at: Key<'_>,
        plan: impl FnOnce(Option<Seen<'_, V>>) -> (Plan<V>, R),
    ) -> Result<(AssignmentVersion, R), Error> {
        let store = &self.inner().store;
        let (mut plan, mut brought) = (Some(plan), None);
        let result = loop {
            let done = self
                .run(at, Access::Commit, |visit, gate| {
                    let seen = visit
                        .get()
                        .map(|e| Seen::of(e, Needs::Value, brought.as_ref()));
                    let seen = seen.transpose()?;
                    let plan = planned(&mut plan);
                    Ok(match catch_unwind(AssertUnwindSafe(|| plan(seen))) {
                        Ok((Plan::Put(value, stamp), result)) => {
                            let weight = store.weight(at.bytes, &value);
                            if let Err(error) = too_long(at, weight) {
                                return Ok(Ok(Err(error)));
                            }
                            visit.put(value, stamp, store.table.room_to_trim(weight));
                            note(store, at, gate);
                            Ok(Ok(token_and(gate, result)))
                        }
                        Ok((Plan::Keep | Plan::Remove, result)) => Ok(Ok(token_and(gate, result))),
                        // Nothing was changed: it worked on a copy.
                        Err(panic) => Err(panic),
                    })
                })
                .await?;
            match done {
                Ok(done) => break done,
                Err(record) => brought = self.bring(at, record).await?,
            }
        };
        store.trim(self.call().patience).await;
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    async fn update_in_place<R>(
        &self,
        at: Key<'_>,
        change: impl FnOnce(&mut V) -> R,
    ) -> Result<Option<R>, Error>
    where
        V: Clone,
    {
        let store = &self.inner().store;
        let (mut change, mut brought) = (Some(change), None);
        let outcome = loop {
            let done: Changed<Result<R, Box<dyn Any + Send>>> = self
                .run(at, Access::Commit, |visit, gate| {
                    let changed = visit.change(brought.take(), |entry| {
                        let change = planned(&mut change);
                        let changed =
                            catch_unwind(AssertUnwindSafe(|| change(entry.value.make_mut())));
                        if let Some(value) = entry.value.here() {
                            entry.weight = store.weight(at.bytes, value);
                        }
                        changed
                    });
                    if let Changed::Done(changed) = &changed {
                        if changed.is_err() {
                            visit.remove();
                        }
                        note(store, at, gate);
                    }
                    changed
                })
                .await?;
            match done {
                Changed::Done(outcome) => break outcome,
                Changed::Absent => return Ok(None),
                Changed::Away(record) => brought = self.bring(at, record).await?,
            }
        };
        let panic = match outcome {
            Ok(result) => {
                store.trim(self.call().patience).await;
                return Ok(Some(result));
            }
            Err(panic) => panic,
        };
        let key = (at.point(), Bytes::copy_from_slice(at.bytes));
        store.leave(|errands| errands.panicked.push(key));
        tracing::error!(
            key = %String::from_utf8_lossy(at.bytes),
            reason = %StateLossReason::UpdatePanicked,
            "a value is dropped"
        );
        resume_unwind(panic)
    }
}

/// What an attempt that goes through does, once.
fn planned<P>(plan: &mut Option<P>) -> P {
    plan.take()
        .expect("an attempt that goes through is the last")
}

/// A value that no other server could take.
pub(crate) fn too_long(key: Key<'_>, value_bytes: u64) -> Result<(), Error> {
    let bytes = key.bytes.len() as u64 + value_bytes;
    match bytes > VALUE_BYTES_MAX as u64 {
        true => Err(Error::TooLong { bytes }),
        false => Ok(()),
    }
}

fn token_and<R>(gate: Gate, result: R) -> (AssignmentVersion, R) {
    match gate {
        Gate::Owned { token, .. } => (token, result),
        // Commits are never let through to a copy.
        Gate::Copy => unreachable!("a commit asks for the key itself"),
    }
}

/// Tells the driver that a key was committed whose copies follow.
fn note<V: 'static>(store: &Store<V>, at: Key<'_>, gate: Gate) {
    if let Gate::Owned { note: true, .. } = gate {
        let key = (at.point(), Bytes::copy_from_slice(at.bytes));
        store.leave(|errands| errands.touched.push(key));
    }
}
