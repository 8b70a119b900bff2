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
use super::write::{Needs, Plan, Seen, too_long};
use crate::error::{Error, Indeterminate};
use crate::fresh::Sent;
use crate::life::Settlement;
use crate::lifetime::Over;
use crate::linklet::Linklet;
use crate::stats::Counters;
use crate::table::{Entry, Key};
use crate::values::{Kept, Staged, stamped};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::oneshot;
use tracing::Instrument as _;
use trefoil_freshness_core::table::Stamp;
use trefoil_linklet_core::{Access, Commit, Operation};
use trefoil_sharder::{AssignmentVersion, ServerId};

/// What stood in the table when a plan was made.
struct Base<V> {
    /// Where the plan needs it.
    value: Option<Arc<V>>,
    version: u64,
    stamp: Stamp,
    stale: bool,
    /// By its own account.
    ended: bool,
}

impl<V> Base<V> {
    fn of(entry: &Entry<V>) -> Self {
        Base {
            value: None,
            version: entry.version,
            stamp: entry.stamp,
            stale: entry.stale,
            ended: entry.has_ended(),
        }
    }

    fn is_shown(&self, shown: Shown) -> bool {
        shown == Shown::All || !(self.stale || self.ended)
    }

    fn seen(&self) -> Seen<'_, V> {
        Seen {
            value: self.value.as_ref(),
            version: self.version,
            stamp: self.stamp,
        }
    }
}

/// What was looked at before a change.
pub(crate) struct Looked<V> {
    token: AssignmentVersion,
    base: Option<Base<V>>,
    /// What was told of the database's changes is in what was seen.
    sent: Sent,
    /// That the stamps belong to. Whether they are still good is looked at when the
    /// commit is settled.
    history: u64,
}

impl<V> Looked<V> {
    /// What a plan is shown.
    pub(crate) fn seen(&self, shown: Shown) -> Option<Seen<'_, V>> {
        let base = self.base.as_ref();
        base.filter(|base| base.is_shown(shown)).map(Base::seen)
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

/// A change that is about to begin.
pub(crate) struct Change {
    pub(crate) access: Access,
    pub(crate) shown: Shown,
    /// It removes what is over.
    pub(crate) over: Option<Over>,
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
        needs: Needs,
        plan: impl FnOnce(Option<Seen<'_, V>>) -> (Plan<V>, R),
    ) -> Result<(AssignmentVersion, R), Error> {
        let change = Change {
            access,
            shown,
            over: None,
        };
        let began = Instant::now();
        let span =
            tracing::debug_span!("linklet.commit", corpus = self.corpus(), point = %key.point());
        let proposed = self.propose_once(change, key, needs, plan).instrument(span);
        let result = proposed.await;
        self.count(&result);
        if access == Access::Commit {
            self.count_ended(began, &result);
        }
        result
    }

    /// Counts a commit, and how long it took.
    pub(crate) fn count_ended<R>(&self, began: Instant, result: &Result<R, Error>) {
        let counters = &self.inner().store.counters;
        Counters::time(&counters.commit_us, began);
        if result.is_ok() {
            Counters::one(&counters.commits);
        }
    }

    /// Counts what went wrong with a commit.
    pub(crate) fn count<R>(&self, result: &Result<R, Error>) {
        let counters = &self.inner().store.counters;
        match &result {
            Err(Error::TooFewCopies { .. }) => Counters::one(&counters.commits_refused),
            Err(Error::Indeterminate(_) | Error::Unsettled { .. }) => {
                Counters::one(&counters.commits_indeterminate);
            }
            _ => {}
        }
    }

    /// Removes an object of this server's that is over, with its copies. If that
    /// fails the next sweep finds it again.
    pub(crate) async fn remove_over(&self, key: &[u8], over: Over) {
        let change = Change {
            access: Access::Refresh,
            shown: Shown::Fresh,
            over: Some(over),
        };
        let plan = |entry: Option<Seen<'_, V>>| match (over, entry) {
            (Over::Ended, None) | (Over::Idle, Some(_)) => (Plan::Remove, ()),
            _ => (Plan::Keep, ()),
        };
        let key = self.inner().store.key(key);
        let removed = self.propose_once(change, key, Needs::Nothing, plan);
        if let Err(error) = removed.await {
            tracing::debug!(%error, ?over, "an object that is over was not taken out yet");
        }
    }

    async fn propose_once<R>(
        &self,
        change: Change,
        key: Key<'_>,
        needs: Needs,
        plan: impl FnOnce(Option<Seen<'_, V>>) -> (Plan<V>, R),
    ) -> Result<(AssignmentVersion, R), Error> {
        let mut wait = Wait::new(self.call().patience);
        let turn = self.turn(key, &wait).await?;
        let looked = self.look_at(change.access, key, needs, &mut wait).await?;
        let (plan, result) = plan(looked.seen(change.shown));
        let token = self
            .carry_out(change, key, looked, plan, turn, &mut wait)
            .await?;
        Ok((token, result))
    }

    /// Waits for the turn of a key.
    pub(crate) async fn turn(&self, key: Key<'_>, wait: &Wait) -> Result<Turn, Error> {
        let turns = &self.inner().turns;
        if let Some(turn) = wait.within(turns.take(key.bytes)).await {
            return Ok(turn);
        }
        let waited = self.call().patience;
        if turns.is_busy(key.bytes) {
            return Err(Error::Busy { waited });
        }
        Err(Error::Unsettled {
            waited,
            by: self.awaited(key),
        })
    }

    /// Looks at a key that is about to be changed.
    pub(crate) async fn look_at(
        &self,
        access: Access,
        key: Key<'_>,
        needs: Needs,
        wait: &mut Wait,
    ) -> Result<Looked<V>, Error> {
        let fresh = &self.inner().store.fresh;
        loop {
            let look = |visit: &mut crate::table::Visit<'_, V>, gate| {
                if access == Access::Commit {
                    // It is being used.
                    let _ = visit.get();
                }
                let found = |entry: &mut Entry<V>| {
                    let value = (needs == Needs::Value).then(|| entry.value.found());
                    (Base::of(entry), value)
                };
                (gate, visit.peek().map(found))
            };
            // First this, then the value: what was told up to there is in what is
            // seen, or has hidden it.
            let sent = fresh.sent();
            let (gate, found) = self.run_within(key, access, wait, look).await?;
            let Gate::Owned { token, .. } = gate else {
                return Err(Error::NotMember);
            };
            let base = match found {
                None => None,
                Some((base, None)) => Some(base),
                Some((mut base, Some(found))) => {
                    base.value = self.have(key, found).await?;
                    if base.value.is_none() {
                        // It could not be read, and is there no more.
                        continue;
                    }
                    Some(base)
                }
            };
            return Ok(Looked {
                token,
                base,
                sent,
                history: fresh.history(),
            });
        }
    }

    /// Does what was planned, and waits for the replicas.
    pub(crate) async fn carry_out(
        &self,
        change: Change,
        key: Key<'_>,
        looked: Looked<V>,
        plan: Plan<V>,
        turn: Turn,
        wait: &mut Wait,
    ) -> Result<AssignmentVersion, Error> {
        let inner = self.inner();
        let (operation, value) = match plan {
            Plan::Keep => return Ok(looked.token),
            Plan::Remove => (Operation::Remove, None),
            Plan::Put(value, stamp) => {
                let weight = inner.store.weight(key.bytes, &value);
                let bound = inner.store.table.bound();
                let patience = self.call().patience;
                if !inner.store.has_room(key, weight, patience).await {
                    // Where it is larger than all of it no replica could keep it either,
                    // and the key would wait for one that can.
                    return Err(Error::NoRoom { weight, bound });
                }
                let Looked { sent, history, .. } = looked;
                let bytes = stamped(sent.history, &*inner.store.marshaller, key.bytes, &*value)
                    .map_err(Error::Marshal)?;
                too_long(key, bytes.len() as u64)?;
                // A replica that has heard of a change in the meantime hides what
                // may not contain it. A refresh contains what came with it.
                let position = match change.shown {
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
                    over_stale: looked.base.as_ref().is_some_and(|base| base.stale),
                    refreshed: change.shown == Shown::All,
                };
                (operation, Some(kept))
            }
        };
        let staged = Staged {
            key: Bytes::copy_from_slice(key.bytes),
            value,
            over: change.over,
        };
        let base = looked.base.as_ref();
        let settled = self
            .put_forward(change.access, key, base, operation, staged, turn, wait)
            .await?;
        // Replicas have all of the patience from here on: what was spent until the
        // commit could begin says nothing of them, and who is not told in time
        // does not know whether it counts.
        match Wait::new(self.call().patience).within(settled).await {
            Some(Ok(Ok(commit))) => {
                if change.access == Access::Commit {
                    self.note_copies(&commit);
                }
                Ok(commit.token)
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

    /// Whether the key is as it was when the plan was made, and has not ended
    /// since. If so its end waits for the change that begins now; where that
    /// removes what is idle, everybody else does.
    fn is_as_seen(&self, key: Key<'_>, base: Option<&Base<V>>, over: Option<Over>) -> bool {
        let mut visit = self.inner().store.table.visit(key);
        if over == Some(Over::Idle) && visit.over() != over {
            return false;
        }
        match (visit.peek(), base) {
            (None, None) => true,
            (Some(entry), Some(base)) => {
                let ended = entry.has_ended();
                let same = entry.version == base.version
                    && entry.stale == base.stale
                    && ended == base.ended;
                // By this server's clock, which may be set back.
                entry.ended |= same && ended;
                entry.leaving = same && over == Some(Over::Idle);
                entry.pinned = same && !ended && !entry.leaving;
                same
            }
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
        staged: Staged<V>,
        turn: Turn,
        wait: &mut Wait,
    ) -> Result<oneshot::Receiver<Settlement>, Error> {
        let inner = self.inner();
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
                    Ok(Some(Gate::Owned { .. })) if !self.is_as_seen(key, base, staged.over) => {
                        return Err(Error::Conflict);
                    }
                    Ok(Some(Gate::Owned { .. })) => {
                        let request = self.request(life, key, access);
                        let settled = life.expect(request.ticket, turn.take(), staged.clone());
                        let (key, operation) = (staged.key.clone(), operation.clone());
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
            self.wait_until(key, wait, pause).await?;
        }
    }
}
