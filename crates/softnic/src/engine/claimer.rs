//! Set-up of lanes: asks the server of a queue for one when a session wants to place
//! requests. Each queue has a thread for that, because a server that naps or hangs lets one
//! wait: claims of other queues do not wait for it, and its own no longer than
//! [`CLAIM_WITHIN`](super::CLAIM_WITHIN). What is placed later waits for no server.

use super::Admits;
use super::lane::QueueLane;
use super::orders::{Asker, Order};
use super::shared::Shared;
use super::shares::Shares;
use std::sync::Arc;
use std::time::Duration;
use trefoil_ordered::Queue;
use trefoil_softnic_core::wire::{Claim, ClaimStatus, Claimed};

/// Between two attempts at a lane whose former one is not empty yet.
const AGAIN: Duration = Duration::from_millis(1);

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
    /// Clients that its server takes at a time.
    pub places: u64,
}

/// Asks the server of a queue for a lane; may wait as long as the asker does.
pub type GiveLane = dyn FnMut(&Claim, &Asker) -> Result<GivenLane, ClaimStatus> + Send;

/// The queues beside an engine.
pub struct Queues {
    /// Decides whether somebody that may read may place requests, too.
    pub admits: Admits,
    /// Where lanes come from, of each queue: clients name one by its place here.
    pub claims: Vec<Box<GiveLane>>,
    /// Most lanes of each queue that clients of one identity have at a time: a certificate's
    /// name, or a token. Half of them all if it is not chosen.
    pub lanes_max: Option<usize>,
}

/// What came of it.
pub(super) type Given = Result<(QueueLane, Claimed), ClaimStatus>;

/// See the module.
pub(super) struct Claimer {
    shared: Arc<Shared>,
    /// Which queue it is for.
    queue: usize,
    give: Box<GiveLane>,
    shares: Shares,
    /// Tried again.
    draining: Vec<Order>,
}

impl Claimer {
    pub(super) fn new(
        shared: Arc<Shared>,
        queue: usize,
        (give, shares): (Box<GiveLane>, Shares),
    ) -> Self {
        Claimer {
            shared,
            queue,
            give,
            shares,
            draining: Vec::new(),
        }
    }

    pub(super) fn run(mut self) {
        while !self.shared.is_stopped() {
            let pause = (!self.draining.is_empty()).then_some(AGAIN);
            let orders = self.shared.await_orders(self.queue, pause);
            let again = std::mem::take(&mut self.draining);
            for order in orders.into_iter().chain(again) {
                self.carry_out(order);
            }
        }
    }

    fn carry_out(&mut self, order: Order) {
        if order.asker.is_gone() {
            return;
        }
        // One that has waited for others in vain is not asked for.
        let given = match order.asker.left().is_zero() {
            true => Err(ClaimStatus::Unreachable),
            false => self.claim(&order),
        };
        match given {
            Err(ClaimStatus::Draining) if !order.asker.left().is_zero() => {
                self.draining.push(order);
            }
            given => self.shared.give_lane(order.at, order.session, given),
        }
    }

    fn claim(&mut self, order: &Order) -> Given {
        let (who, producer) = (&order.who, order.claim.producer);
        if !self.shares.has_room(who, producer) {
            return Err(ClaimStatus::Share);
        }
        let lane = (self.give)(&order.claim, &order.asker)?;
        let claimed = Claimed {
            server_commits: super::lane::server_commits(&lane.queue),
            slot_count: lane.slot_count,
            epoch: lane.epoch,
            placed: lane.placed,
            about: lane.about,
        };
        if order
            .claim
            .returns
            .is_some_and(|back| back.epoch != lane.epoch)
        {
            return Err(ClaimStatus::Forgotten);
        }
        let place = self.shares.take(who, producer, lane.places);
        Ok((QueueLane::new(lane.queue, lane.placed, place), claimed))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Engine, EngineOptions, Who};
    use super::*;
    use crate::{DatagramUse, EngineAddress, RemoteQueue};
    use std::net::TcpListener;
    use std::sync::mpsc;

    /// Nobody asks for a lane for who has gone while others' servers let them wait.
    #[test]
    fn nobody_asks_for_those_who_have_gone() {
        let (came, comes) = mpsc::channel();
        let (go, goes_on) = mpsc::channel::<()>();
        let give = move |claim: &Claim, _: &Asker| {
            came.send(claim.producer).expect("the test lives");
            let _ = goes_on.recv();
            Err(ClaimStatus::Full)
        };
        let admits: Admits = Arc::new(|who| *who == Who::Token(b"t"[..].into()));
        let queues = Queues {
            admits: Arc::clone(&admits),
            claims: vec![Box::new(give)],
            lanes_max: None,
        };
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let options = EngineOptions::default();
        let engine = Engine::start_for_queues(listener, (None, admits), queues, options);
        let engine = engine.expect("an engine");
        let address = EngineAddress {
            address: engine.address(),
            host: "localhost".into(),
            tls: None,
            datagrams: DatagramUse::No,
            token: b"t"[..].into(),
        };
        let claim = |within| RemoteQueue::connect(address.clone(), 0, within).map(drop);
        let long = Duration::from_secs(4);
        std::thread::scope(|scope| {
            let first = scope.spawn(|| claim(long));
            comes.recv().expect("the first claim");
            let waits = Duration::from_millis(100);
            claim(waits).expect_err("no lane so soon");
            while engine
                .counted_by_engine()
                .map(|of| of.get("sessions_open"))
                .sum::<u64>()
                > 1
            {
                std::thread::yield_now();
            }
            let third = scope.spawn(|| claim(long));
            // It is behind the second one.
            std::thread::sleep(waits);
            go.send(()).expect("an engine");
            comes.recv().expect("the third claim");
            go.send(()).expect("an engine");
            for claim in [first, third] {
                let error = claim.join().expect("no panic").expect_err("no lane");
                assert!(error.to_string().contains("as many"), "{error}");
            }
        });
        drop(engine);
        assert_eq!(comes.iter().count(), 0, "the second one was asked for");
    }
}
