//! Commits that replicas confirm before anybody sees them.

use super::admit::{Gate, Pause, Wait, Woken};
use super::write::Plan;
use crate::error::Error;
use crate::life::{Life, Settlement};
use crate::linklet::Linklet;
use crate::marshal::marshal;
use crate::stats::Counters;
use crate::table::{Entry, Key};
use crate::values::Staged;
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use trefoil_linklet_core::{Access, Commit, Operation};
use trefoil_sharder::AssignmentVersion;

/// How far an attempt came.
enum Step<'a, V: Send + Sync + 'static, R> {
    /// Nothing had to be changed.
    Done(AssignmentVersion, R),
    /// The key is on its way here.
    Wait(Pause<'a, V>),
    /// It is under way to the replicas.
    Proposed(oneshot::Receiver<Settlement>, R),
}

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Does with a key what `plan` says when it sees it, once every replica has
    /// confirmed. Until then readers see what was there before. `plan` runs
    /// under the protocol's lock, so that the key is not moved between the look
    /// and the proposal; and one at a time for each key, so that it sees what
    /// the one before has done.
    pub(crate) async fn propose<R>(
        &self,
        key: Key<'_>,
        plan: impl FnOnce(Option<&Entry<V>>) -> (Plan<V>, R),
    ) -> Result<(AssignmentVersion, R), Error> {
        self.propose_as(Access::Commit, key, plan).await
    }

    /// Likewise; [`Access::Refresh`] for what can be had again.
    pub(crate) async fn propose_as<R>(
        &self,
        access: Access,
        key: Key<'_>,
        plan: impl FnOnce(Option<&Entry<V>>) -> (Plan<V>, R),
    ) -> Result<(AssignmentVersion, R), Error> {
        let inner = self.inner();
        let _turn = inner.turns[key.hash.tag as usize % inner.turns.len()]
            .lock()
            .await;
        let mut wait = Wait::new(self.call().patience);
        let mut plan = Some(plan);
        loop {
            match self.look_and_propose(access, key, &mut plan)? {
                Step::Done(token, result) => return Ok((token, result)),
                Step::Wait(pause) => wait.until(pause).await?,
                Step::Proposed(settled, result) => {
                    return match settled.await {
                        Ok(Ok(commit)) => {
                            if access == Access::Commit {
                                self.note_copies(&commit);
                            }
                            Ok((commit.token, result))
                        }
                        Ok(Err(_)) | Err(_) => Err(Error::Uncertain),
                    };
                }
            }
        }
    }

    /// Says that a commit has fewer copies than it should have: somebody chose
    /// that it counts all the same.
    fn note_copies(&self, commit: &Commit) {
        let inner = self.inner();
        let need = inner.config.copies_min;
        if commit.copies < need
            && let Some(count) = Counters::one_told(&inner.store.counters.commits_thin)
        {
            tracing::warn!(
                copies = commit.copies,
                need,
                count,
                "strong commits have too few copies: the next death may take them"
            );
        }
    }

    fn look_and_propose<R, P>(
        &self,
        access: Access,
        key: Key<'_>,
        plan: &mut Option<P>,
    ) -> Result<Step<'_, V, R>, Error>
    where
        P: FnOnce(Option<&Entry<V>>) -> (Plan<V>, R),
    {
        let inner = self.inner();
        let mut guard = inner.life();
        let life = guard.as_mut().ok_or(Error::NotMember)?;
        let request = self.request(life, key, access);
        let decision = life.drive(|core, now, values| core.request(now, values, &request));
        let token = match self.decided(life, decision) {
            Ok(Some(Gate::Owned { token, .. })) => token,
            Ok(Some(Gate::Copy)) => return Err(Error::NotMember),
            Ok(None) => {
                let woken = Woken::new(inner, life, request.ticket);
                return Ok(Step::Wait(Pause::Woken(woken)));
            }
            Err(error) => return Ok(Step::Wait(self.again(error)?)),
        };
        let plan = plan.take().expect("it is used when the loop ends");
        let (plan, result) = plan(inner.store.table.visit(key).get());
        let (operation, value) = match plan {
            Plan::Keep => return Ok(Step::Done(token, result)),
            Plan::Remove => (Operation::Remove, None),
            Plan::Put(value, position) => {
                let bytes = marshal(&*inner.store.marshaller, key.bytes, &*value)
                    .map_err(Error::Marshal)?;
                let operation = Operation::Put {
                    version: position,
                    value: Bytes::from(bytes),
                };
                (operation, Some((value, position)))
            }
        };
        let settled = self.put_forward(life, access, key, operation, value)?;
        Ok(Step::Proposed(settled, result))
    }

    /// Proposes it to the protocol, which has just said that it may be.
    fn put_forward(
        &self,
        life: &mut Life<V>,
        access: Access,
        key: Key<'_>,
        operation: Operation,
        value: Option<(Arc<V>, u64)>,
    ) -> Result<oneshot::Receiver<Settlement>, Error> {
        let request = self.request(life, key, access);
        let ticket = request.ticket;
        let bytes = Bytes::copy_from_slice(key.bytes);
        let settled = life.expect(ticket);
        let staged = Staged {
            key: bytes.clone(),
            value,
        };
        life.objects.staged.insert(ticket, staged);
        let decision =
            life.drive(|core, now, values| core.propose(now, values, &request, bytes, operation));
        match self.decided(life, decision) {
            Ok(Some(_)) => Ok(settled),
            Ok(None) => {
                life.forget(ticket);
                Err(Error::Moving {
                    waited: Duration::ZERO,
                })
            }
            Err(error) => {
                life.forget(ticket);
                Err(error)
            }
        }
    }
}
