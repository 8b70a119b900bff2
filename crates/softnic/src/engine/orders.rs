//! Claims that wait for somebody who asks the server of their queue: a list for each queue.
//! What waits in one of them keeps nobody in another waiting.

use super::Who;
use super::shared::{Admits, locked};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};
use trefoil_softnic_core::wire::placing::PLACING_VERSION;
use trefoil_softnic_core::wire::{Claim, ClaimStatus};

/// A session is told within this time what came of its claim. Clients wait a little longer.
pub const CLAIM_WITHIN: Duration = Duration::from_secs(5);

/// For whom a lane is asked.
#[derive(Debug)]
pub struct Asker {
    until: Instant,
    session: Weak<()>,
    owner: [u64; 2],
}

impl Asker {
    /// Of a claim that has just come, by a session that lives as long as this does, of
    /// `owner`.
    pub(super) fn new(session: &Arc<()>, owner: [u64; 2]) -> Self {
        Asker {
            until: Instant::now() + CLAIM_WITHIN,
            session: Arc::downgrade(session),
            owner,
        }
    }

    /// Names their identity, and the host that they come from: the same at every engine of
    /// this release.
    pub fn owner(&self) -> [u64; 2] {
        self.owner
    }

    /// Whether their session has ended: a lane would be nobody's, and its making might close
    /// the one that they have got since by another session.
    pub fn is_gone(&self) -> bool {
        self.session.strong_count() == 0
    }

    /// How much longer they wait.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Whether they wait still.
    pub fn waits(&self) -> bool {
        !self.is_gone() && !self.left().is_zero()
    }
}

/// Somebody wants a lane.
pub(super) struct Order {
    /// Of which loop the session is.
    pub(super) at: usize,
    pub(super) session: u64,
    pub(super) claim: Claim,
    pub(super) who: Who,
    pub(super) asker: Asker,
}

#[derive(Default)]
struct List {
    waiting: Mutex<Vec<Order>>,
    came: Condvar,
}

/// See the module.
pub(super) struct Orders {
    admits: Admits,
    most: usize,
    lists: Box<[List]>,
}

impl Orders {
    /// For so many queues, with so many claims waiting for each of them at most.
    pub(super) fn new(admits: Admits, queues: usize, most: usize) -> Self {
        Orders {
            admits,
            most,
            lists: (0..queues).map(|_| List::default()).collect(),
        }
    }

    /// Has a claim wait, or says at once why there is no lane.
    pub(super) fn put(&self, order: Order) -> Result<(), ClaimStatus> {
        if order.claim.version != PLACING_VERSION {
            return Err(ClaimStatus::Version);
        }
        if !(self.admits)(&order.who) {
            return Err(ClaimStatus::NotAllowed);
        }
        let list = self.lists.get(order.claim.queue as usize);
        let list = list.ok_or(ClaimStatus::NoSuchQueue)?;
        let mut waiting = locked(&list.waiting);
        if waiting.len() >= self.most {
            waiting.retain(|order| !order.asker.is_gone());
        }
        if waiting.len() >= self.most {
            return Err(ClaimStatus::Unreachable);
        }
        waiting.push(order);
        list.came.notify_all();
        Ok(())
    }

    /// Takes all claims of a queue; waits for one, for `pause` at most if it is given, or
    /// until somebody wakes it. Who wakes it has made `is_stopped` true before.
    pub(super) fn take(
        &self,
        queue: usize,
        pause: Option<Duration>,
        is_stopped: impl Fn() -> bool,
    ) -> Vec<Order> {
        let Some(list) = self.lists.get(queue) else {
            return Vec::new();
        };
        let mut waiting = locked(&list.waiting);
        if waiting.is_empty() && !is_stopped() {
            waiting = match pause {
                None => {
                    let woken = list.came.wait(waiting);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
                Some(pause) => match list.came.wait_timeout(waiting, pause) {
                    Ok((waiting, _)) => waiting,
                    Err(poisoned) => poisoned.into_inner().0,
                },
            };
        }
        std::mem::take(&mut *waiting)
    }

    /// Wakes all who wait for claims.
    pub(super) fn wake(&self) {
        for list in &self.lists {
            // Who is about to wait has seen what was changed, or is woken.
            drop(locked(&list.waiting));
            list.came.notify_all();
        }
    }
}
