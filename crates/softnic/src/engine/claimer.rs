//! Set-up of lanes: asks the servers of queues for one when a session wants to place
//! requests. A thread of its own, because a server that naps or hangs lets one wait. What
//! is placed later waits for no server.

use super::shared::Shared;
use super::{Admits, Who};
use std::sync::Arc;
use std::time::{Duration, Instant};
use trefoil_ordered::Queue;
use trefoil_softnic_core::wire::placing::PLACING_VERSION;
use trefoil_softnic_core::wire::{Claim, ClaimStatus, Claimed};

/// Between two attempts at a lane whose former one is not empty yet.
const AGAIN: Duration = Duration::from_millis(1);
/// How long it is tried.
const DRAINED_WITHIN: Duration = Duration::from_secs(5);

/// A lane as its server has given it.
#[derive(Debug)]
pub struct GivenLane {
    /// The client's end of it.
    pub queue: Queue,
    /// Of the producer's last request, which is executed.
    pub placed: u64,
    /// Which life of the queue.
    pub epoch: u64,
    /// Slots of the lane.
    pub slot_count: u32,
    /// What serves it, for clients.
    pub about: u64,
}

/// Asks the server of a queue for a lane; may wait for a second.
pub type GiveLane = dyn FnMut(&Claim) -> Result<GivenLane, ClaimStatus> + Send;

/// The queues beside an engine.
pub struct Queues {
    /// Decides whether somebody that may read may place requests, too.
    pub admits: Admits,
    /// Where lanes come from.
    pub claim: Box<GiveLane>,
}

/// Somebody wants a lane.
pub(super) struct Order {
    /// Of which loop the session is.
    pub(super) at: usize,
    pub(super) session: u64,
    pub(super) claim: Claim,
    pub(super) who: Who,
}

/// What came of it.
pub(super) type Given = Result<(Queue, Claimed), ClaimStatus>;

/// See the module.
pub(super) struct Claimer {
    shared: Arc<Shared>,
    queues: Queues,
    /// Tried again.
    draining: Vec<(Order, Instant)>,
}

impl Claimer {
    pub(super) fn new(shared: Arc<Shared>, queues: Queues) -> Self {
        Claimer {
            shared,
            queues,
            draining: Vec::new(),
        }
    }

    pub(super) fn run(mut self) {
        while !self.shared.is_stopped() {
            let pause = (!self.draining.is_empty()).then_some(AGAIN);
            for order in self.shared.await_orders(pause) {
                self.carry_out(order, Instant::now() + DRAINED_WITHIN);
            }
            for (order, until) in std::mem::take(&mut self.draining) {
                self.carry_out(order, until);
            }
        }
    }

    fn carry_out(&mut self, order: Order, until: Instant) {
        let given = self.claim(&order);
        if matches!(given, Err(ClaimStatus::Draining)) && Instant::now() < until {
            self.draining.push((order, until));
        } else {
            self.shared.give_lane(order.at, order.session, given);
        }
    }

    fn claim(&mut self, order: &Order) -> Given {
        if order.claim.version != PLACING_VERSION {
            return Err(ClaimStatus::Version);
        }
        if !(self.queues.admits)(&order.who) {
            return Err(ClaimStatus::NotAllowed);
        }
        let lane = (self.queues.claim)(&order.claim)?;
        let claimed = Claimed {
            server_commits: super::lane::server_commits(&lane.queue),
            slot_count: lane.slot_count,
            epoch: lane.epoch,
            placed: lane.placed,
            about: lane.about,
        };
        if order
            .claim
            .returns_to
            .is_some_and(|epoch| epoch != lane.epoch)
        {
            return Err(ClaimStatus::Forgotten);
        }
        Ok((lane.queue, claimed))
    }
}
