//! Commits that replicas confirm before anybody sees them.
//!
//! ```text
//!   the key's turn ─► look (the key's part) ─► plan, marshal ─► propose (protocol)
//!                      no closure of the application's runs under a lock ─┘
//! ```
//!
//! Between the look and the proposal nobody else proposes for the key, for the
//! turn is here. The key may have been moved, evicted or invalidated meanwhile;
//! the proposal finds that out and changes nothing.

use super::admit::{Gate, Pause, Wait, Woken};
use super::turns::Turn;
use super::write::{Plan, Seen};
use crate::error::{Error, Indeterminate};
use crate::life::Settlement;
use crate::linklet::Linklet;
use crate::stats::Counters;
use crate::table::{Entry, Key};
use crate::values::{Kept, Staged, stamped};
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::oneshot;
use trefoil_freshness_core::table::Stamp;
use trefoil_linklet_core::{Access, Commit, Operation};
use trefoil_sharder::{AssignmentVersion, ServerId};

/// What stood in the table when a plan was made.
struct Base<V> {
    value: Arc<V>,
    version: u64,
    stamp: Stamp,
    stale: bool,
}

impl<V> Base<V> {
    fn of(entry: &Entry<V>) -> Self {
        Base {
            value: Arc::clone(&entry.value),
            version: entry.version,
            stamp: entry.stamp,
            stale: entry.stale,
        }
    }

    fn seen(&self) -> Seen<'_, V> {
        Seen {
            value: &self.value,
            version: self.version,
            stamp: self.stamp,
        }
    }
}

/// Which values a plan is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    /// Those that may be served.
    Fresh,
    /// Also one that is out of date, and about to go.
    All,
}

impl<V: Send + Sync + 'static> Linklet<V> {
    /// Does with a key what `plan` says when it sees it, once every replica has
    /// confirmed. Until then readers see what was there before. One at a time
    /// for each key, so that `plan` sees what the one before has done: also one
    /// whose caller has gone. [`Access::Refresh`]: it can be had again, and needs
    /// no copies.
    pub(crate) async fn propose<R>(
        &self,
        access: Access,
        key: Key<'_>,
        shown: Shown,
        plan: impl FnOnce(Option<Seen<'_, V>>) -> (Plan<V>, R),
    ) -> Result<(AssignmentVersion, R), Error> {
        let result = self.propose_once(access, key, shown, plan).await;
        let counters = &self.inner().store.counters;
        match &result {
            Err(Error::TooFewCopies { .. }) => Counters::one(&counters.commits_refused),
            Err(Error::Indeterminate(_) | Error::Unsettled { .. }) => {
                Counters::one(&counters.commits_indeterminate);
            }
            _ => {}
        }
        result
    }

    async fn propose_once<R>(
        &self,
        access: Access,
        key: Key<'_>,
        shown: Shown,
        plan: impl FnOnce(Option<Seen<'_, V>>) -> (Plan<V>, R),
    ) -> Result<(AssignmentVersion, R), Error> {
        let inner = self.inner();
        let mut wait = Wait::new(self.call().patience);
        let Some(turn) = wait.within(inner.turns.take(key.bytes)).await else {
            return Err(Error::Unsettled {
                waited: self.call().patience,
                by: self.awaited(key),
            });
        };
        let look = |visit: &mut crate::table::Visit<'_, V>, gate| {
            // It is being used.
            let _ = visit.get();
            (gate, visit.peek().map(|entry| Base::of(entry)))
        };
        // First this, then the value: what was told up to there is in what is
        // seen, or has hidden it.
        let sent = inner.store.fresh.sent();
        let (gate, base) = self.run_within(key, access, &mut wait, look).await?;
        let Gate::Owned { token, .. } = gate else {
            return Err(Error::NotMember);
        };
        let visible = base.as_ref();
        let visible = visible.filter(|base| shown == Shown::All || !base.stale);
        // Whether the stamp is still good is looked at when the commit is settled.
        let history = inner.store.fresh.history();
        let (plan, result) = plan(visible.map(Base::seen));
        let (operation, value) = match plan {
            Plan::Keep => return Ok((token, result)),
            Plan::Remove => (Operation::Remove, None),
            Plan::Put(value, stamp) => {
                let bytes = stamped(sent.history, &*inner.store.marshaller, key.bytes, &*value)
                    .map_err(Error::Marshal)?;
                // A replica that has heard of a change in the meantime hides what
                // may not contain it. A refresh contains what came with it.
                let position = match shown {
                    Shown::Fresh => stamp.position.max(sent.reached),
                    Shown::All => stamp.position,
                };
                let operation = Operation::Put {
                    version: position,
                    value: bytes,
                };
                let kept = Kept {
                    value,
                    stamp,
                    history,
                    over_stale: base.as_ref().is_some_and(|base| base.stale),
                    refreshed: shown == Shown::All,
                };
                (operation, Some(kept))
            }
        };
        let settled = self
            .put_forward(
                access,
                key,
                base.as_ref(),
                operation,
                value,
                turn,
                &mut wait,
            )
            .await?;
        // Replicas have all of the patience from here on: what was spent until the
        // commit could begin says nothing of them, and who is not told in time
        // does not know whether it counts.
        match Wait::new(self.call().patience).within(settled).await {
            Some(Ok(Ok(commit))) => {
                if access == Access::Commit {
                    self.note_copies(&commit);
                }
                Ok((commit.token, result))
            }
            Some(Ok(Err(uncertain))) => Err(Error::Indeterminate(uncertain.into())),
            Some(Err(_)) => Err(Error::Indeterminate(Indeterminate::Replaced)),
            None => Err(Error::Indeterminate(Indeterminate::Unconfirmed {
                waited: self.call().patience,
                by: self.awaited(key),
            })),
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

    /// Who has not confirmed the commits of a key that are under way.
    fn awaited(&self, key: Key<'_>) -> Vec<ServerId> {
        let bytes = Bytes::copy_from_slice(key.bytes);
        let life = self.inner().life();
        life.as_ref()
            .map_or_else(Vec::new, |life| life.core().awaited(key.point(), &bytes))
    }

    /// Whether the key is as it was when the plan was made.
    fn is_as_seen(&self, key: Key<'_>, base: Option<&Base<V>>) -> bool {
        let mut visit = self.inner().store.table.visit(key);
        match (visit.peek(), base) {
            (None, None) => true,
            (Some(entry), Some(base)) => entry.version == base.version && entry.stale == base.stale,
            _ => false,
        }
    }

    /// Proposes it to the protocol. The turn stays with the proposal.
    #[expect(clippy::too_many_arguments, reason = "the parts of one proposal")]
    async fn put_forward(
        &self,
        access: Access,
        key: Key<'_>,
        base: Option<&Base<V>>,
        operation: Operation,
        value: Option<Kept<V>>,
        turn: Turn,
        wait: &mut Wait,
    ) -> Result<oneshot::Receiver<Settlement>, Error> {
        let inner = self.inner();
        let bytes = Bytes::copy_from_slice(key.bytes);
        let mut turn = Some(turn);
        loop {
            let pause = {
                let mut guard = inner.life();
                let life = guard.as_mut().ok_or(Error::NotMember)?;
                let asked = self.request(life, key, access);
                let decision = life.drive(|core, now, values| core.request(now, values, &asked));
                match self.decided(life, decision) {
                    Ok(Some(Gate::Copy)) => return Err(Error::NotMember),
                    Ok(None) => Pause::Woken(Woken::new(inner, life, asked.ticket)),
                    Err(error) => self.again(error)?,
                    // It can be moved only by who has the protocol's lock.
                    Ok(Some(Gate::Owned { .. })) if !self.is_as_seen(key, base) => {
                        return Err(Error::Conflict);
                    }
                    Ok(Some(Gate::Owned { .. })) => {
                        let request = self.request(life, key, access);
                        let staged = Staged {
                            key: bytes.clone(),
                            value: value.clone(),
                        };
                        let settled = life.expect(request.ticket, turn.take(), staged);
                        let (key, operation) = (bytes.clone(), operation.clone());
                        let decision = life.drive(|core, now, values| {
                            core.propose(now, values, &request, key, operation)
                        });
                        let decided = self.decided(life, decision);
                        if matches!(decided, Ok(Some(_))) {
                            return Ok(settled);
                        }
                        turn = life.forget(request.ticket);
                        match decided {
                            Err(error) => self.again(error)?,
                            _ => Pause::Woken(Woken::new(inner, life, request.ticket)),
                        }
                    }
                }
            };
            wait.until(pause).await?;
        }
    }
}
