//! Whether this server may do something with a key now.

use crate::error::Error;
use crate::life::Life;
use crate::linklet::{Inner, Linklet};
use crate::stats::Counters;
use crate::table::{Key, Visit};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use trefoil_linklet_core::{Access, Decision, Refused, Request, Status, Ticket};
use trefoil_sharder::AssignmentVersion;

/// On what terms a key may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// It is this server's. Commits carry the token; they are noted for the
    /// copies if `note`, and go through the protocol if `propose`.
    Owned {
        token: AssignmentVersion,
        note: bool,
        propose: bool,
    },
    /// It may be read, and may be a little old.
    Copy,
}

impl<V: Send + Sync + 'static> Linklet<V> {
    /// What the rules say, for those keys that they are clear about.
    #[inline]
    pub(crate) fn gate(&self, visit: &Visit<'_, V>, access: Access) -> Option<Gate> {
        if self.call().known.is_some() && self.call().known > visit.rules().version() {
            return None;
        }
        self.allowed(visit, access)
    }

    /// The same, for whom the protocol has told that the map is new enough.
    #[inline]
    fn allowed(&self, visit: &Visit<'_, V>, access: Access) -> Option<Gate> {
        if visit.is_leaving() {
            return None;
        }
        let rules = visit.rules();
        match visit.status() {
            Status::Owned {
                token,
                note,
                propose,
            } => match rules.serve_until() {
                Some(until) if self.inner().store.clock() >= until => None,
                _ => Some(Gate::Owned {
                    token,
                    note,
                    propose,
                }),
            },
            Status::Copy if access == Access::ReadCopy && visit.copy_answers() => Some(Gate::Copy),
            Status::Copy | Status::Ask => None,
        }
    }

    /// Does something with a key under its lock, once this server may. `act`
    /// runs at most once.
    #[inline]
    pub(crate) async fn run<'a, R>(
        &'a self,
        key: Key<'a>,
        access: Access,
        act: impl FnOnce(&mut Visit<'a, V>, Gate) -> R,
    ) -> Result<R, Error> {
        {
            let mut visit = self.inner().store.table.visit(key);
            if let Some(gate) = self.gate(&visit, access) {
                return Ok(act(&mut visit, gate));
            }
        }
        self.ask(key, access, &mut Wait::new(self.call().patience), act)
            .await
    }

    /// The same, within a wait that has begun.
    pub(crate) async fn run_within<'a, R>(
        &'a self,
        key: Key<'a>,
        access: Access,
        wait: &mut Wait,
        act: impl FnOnce(&mut Visit<'a, V>, Gate) -> R,
    ) -> Result<R, Error> {
        {
            let mut visit = self.inner().store.table.visit(key);
            if let Some(gate) = self.gate(&visit, access) {
                return Ok(act(&mut visit, gate));
            }
        }
        self.ask(key, access, wait, act).await
    }

    #[cold]
    async fn ask<'a, R>(
        &'a self,
        key: Key<'a>,
        access: Access,
        wait: &mut Wait,
        act: impl FnOnce(&mut Visit<'a, V>, Gate) -> R,
    ) -> Result<R, Error> {
        let inner = self.inner();
        Counters::one(&inner.store.counters.asked);
        loop {
            let leaving = inner.store.table.visit(key).is_leaving();
            if leaving {
                // Whoever removes it has its turn until it is gone, or stays.
                drop(self.turn(key, wait).await?);
            }
            let pause = {
                let mut guard = inner.life();
                let life = guard.as_mut().ok_or(Error::NotMember)?;
                let request = self.request(life, key, access);
                let decision = life.drive(|core, now, values| core.request(now, values, &request));
                match self.decided(life, decision) {
                    // A closure of the application's, or a look that the rules
                    // allow by now: under the key's lock alone.
                    Ok(Some(Gate::Owned { .. })) => {
                        drop(guard);
                        let mut visit = inner.store.table.visit(key);
                        if let Some(gate) = self.allowed(&visit, access) {
                            return Ok(act(&mut visit, gate));
                        }
                        // It was claimed, or the lease ended, in between.
                        continue;
                    }
                    Ok(Some(gate)) => {
                        // The rules do not speak of copies that may be read:
                        // the protocol's lock is held until it is done.
                        let mut visit = inner.store.table.visit(key);
                        if visit.copy_answers() {
                            return Ok(act(&mut visit, gate));
                        }
                        drop(visit);
                        self.again(self.to_owner(life, key))?
                    }
                    Ok(None) => Pause::Woken(Woken::new(inner, life, request.ticket)),
                    Err(error) => self.again(error)?,
                }
            };
            self.wait_until(key, wait, pause).await?;
        }
    }

    /// Waits until it is worth another attempt, or says what it waited for.
    pub(crate) async fn wait_until(
        &self,
        key: Key<'_>,
        wait: &mut Wait,
        pause: Pause<'_, V>,
    ) -> Result<(), Error> {
        let Err(error) = wait.until(pause).await else {
            return Ok(());
        };
        let Error::Moving { waited } = error else {
            return Err(error);
        };
        let life = self.inner().life();
        let to = life
            .as_ref()
            .and_then(|life| life.core().sent_to(key.point()));
        Err(match to {
            Some(to) => Error::Sent { to, waited },
            None => Error::Moving { waited },
        })
    }

    /// A copy does not know the answer.
    fn to_owner(&self, life: &Life<V>, key: Key<'_>) -> Error {
        let map = life.core().assignment();
        let owner = map.and_then(|map| map.slice_of(key.point()).servers.first().copied());
        let version = map.map(|map| map.version());
        self.inner()
            .redirect(life, self.call().known, owner, version)
    }

    /// Whether a request that is sent on elsewhere is to be tried again here.
    pub(crate) fn again(&self, error: Error) -> Result<Pause<'_, V>, Error> {
        match error {
            Error::NotMine(_) if self.call().redirected => Ok(Pause::Again(error)),
            // Another server is being given the key, most likely.
            Error::TooFewCopies { .. } => Ok(Pause::Again(error)),
            error => Err(error),
        }
    }

    pub(crate) fn request(&self, life: &mut Life<V>, key: Key<'_>, access: Access) -> Request {
        Request {
            ticket: life.new_ticket(),
            point: key.point(),
            access,
            known: self.call().known,
        }
    }

    /// What the protocol's decision means: the terms, `None` for waiting, or an
    /// error.
    pub(crate) fn decided(
        &self,
        life: &Life<V>,
        decision: Decision,
    ) -> Result<Option<Gate>, Error> {
        let strong = self.inner().config.replication == trefoil_linklet_core::Replication::Strong;
        match decision {
            Decision::Serve { token } => Ok(Some(Gate::Owned {
                token,
                note: !strong,
                propose: strong,
            })),
            Decision::ServeCopy => Ok(Some(Gate::Copy)),
            Decision::Wait => Ok(None),
            Decision::Redirect { to, version } => {
                Err(self.inner().redirect(life, self.call().known, to, version))
            }
            Decision::Refused(Refused::NoLease) => Err(Error::NoLease),
            Decision::Refused(Refused::Replaced) => Err(Error::NotMember),
            Decision::Refused(Refused::TooFewCopies { have, need }) => {
                Err(Error::TooFewCopies { have, need })
            }
            Decision::Refused(Refused::NoRoom { by }) => Err(Error::NoRoomForCopy { by }),
            Decision::Refused(Refused::TooLong { bytes }) => Err(Error::TooLong {
                bytes: bytes as u64,
            }),
        }
    }
}

/// Waiting for the protocol, within the caller's patience.
pub(crate) struct Wait {
    patience: Duration,
    /// `None` if that is beyond the clock.
    deadline: Option<Instant>,
}

impl Wait {
    pub(crate) fn new(patience: Duration) -> Self {
        Wait {
            patience,
            deadline: Instant::now().checked_add(patience),
        }
    }

    /// Waits for something; `None` if it did not come in time.
    pub(crate) async fn within<F: Future>(&self, future: F) -> Option<F::Output> {
        match self.deadline {
            Some(deadline) => timeout_at(deadline, future).await.ok(),
            None => Some(future.await),
        }
    }

    /// Waits until it is worth another attempt. If the membership ends
    /// meanwhile, that attempt says so.
    pub(crate) async fn until<V: Send + Sync + 'static>(
        &mut self,
        pause: Pause<'_, V>,
    ) -> Result<(), Error> {
        match pause {
            Pause::Woken(mut woken) => match self.within(&mut woken.woken).await {
                Some(_) => Ok(()),
                None => Err(Error::Moving {
                    waited: self.patience,
                }),
            },
            Pause::Again(error)
                if self
                    .deadline
                    .is_some_and(|deadline| Instant::now() + LEARN_EVERY >= deadline) =>
            {
                Err(error)
            }
            Pause::Again(_) => {
                tokio::time::sleep(LEARN_EVERY).await;
                Ok(())
            }
        }
    }
}

/// A request that may not be redirected again looks this often whether the
/// servers have agreed on who has the key.
const LEARN_EVERY: Duration = Duration::from_millis(5);

/// What an attempt has to wait for.
pub(crate) enum Pause<'a, V: Send + Sync + 'static> {
    /// The protocol's word.
    Woken(Woken<'a, V>),
    /// A newer map; with what to answer if there is none in time.
    Again(Error),
}

/// A request that the protocol remembers; forgotten with it.
pub(crate) struct Woken<'a, V: Send + Sync + 'static> {
    inner: &'a Inner<V>,
    ticket: Ticket,
    woken: oneshot::Receiver<()>,
}

impl<'a, V: Send + Sync + 'static> Woken<'a, V> {
    pub(crate) fn new(inner: &'a Inner<V>, life: &mut Life<V>, ticket: Ticket) -> Self {
        Woken {
            inner,
            ticket,
            woken: life.wait(ticket),
        }
    }
}

impl<V: Send + Sync + 'static> Drop for Woken<'_, V> {
    fn drop(&mut self) {
        // Woken, or its life has ended: then nobody remembers it.
        if self.woken.is_terminated() {
            return;
        }
        if let Some(life) = self.inner.life().as_mut() {
            life.forget_request(self.ticket);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn patience_beyond_the_clock_is_patience_for_ever() {
        let wait = Wait::new(Duration::MAX);
        assert_eq!(wait.within(async { 7 }).await, Some(7));
        let none = Wait::new(Duration::ZERO);
        assert_eq!(none.within(std::future::pending::<u8>()).await, None);
    }
}
