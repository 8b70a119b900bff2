//! Calls of one client to one backend, whatever process answers there.

use super::net::{Call, Errand, Net};
use super::port::{deliver_again, encode, keep_for_again};
use super::stats::Count;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use trefoil_client_core::outcome::SendFailure;
use trefoil_driver::Topology;
use trefoil_fabric::port::{Completion, SendError, Token};
use trefoil_layout::TopologyId;
use trefoil_layout::message::{Request, parse_answer};
use trefoil_layout::op::{Action, Mutation};

/// Patience with a call, in nanoseconds.
const PATIENCE_NS: u64 = 2_000_000_000;
/// What a call takes one way, usually.
const WAY_NS: u64 = 60_000;

type End = Result<Vec<u8>, (SendFailure, &'static str)>;

/// See the module.
pub(super) struct Calls {
    net: Rc<Net>,
    client: usize,
    backend: u32,
    /// That says where it is.
    topology: Arc<Topology>,
    /// Calls without an end.
    open: RefCell<BTreeSet<Token>>,
    /// One was refused since a call has ended.
    is_refused: Cell<bool>,
    /// And one has ended since.
    has_room: Cell<bool>,
    ended: RefCell<VecDeque<(Token, End)>>,
    /// Answers that were taken, and come once more.
    again: RefCell<VecDeque<Vec<u8>>>,
}

impl Calls {
    pub(super) fn new(
        net: &Rc<Net>,
        client: usize,
        topology: &Arc<Topology>,
        backend: u32,
    ) -> Self {
        Calls {
            net: Rc::clone(net),
            client,
            backend,
            topology: Arc::clone(topology),
            open: RefCell::default(),
            is_refused: Cell::default(),
            has_room: Cell::default(),
            ended: RefCell::default(),
            again: RefCell::default(),
        }
    }

    pub(super) fn send(
        self: &Rc<Self>,
        token: Token,
        under: TopologyId,
        request: &Request<'_>,
    ) -> Result<(), SendError> {
        let net = &self.net;
        if net.is_struck(net.profile.call_failure) {
            return Err(
                match net.rng.chance(512) && !self.open.borrow().is_empty() {
                    true => self.refuse(),
                    false => SendError::Closed,
                },
            );
        }
        if self.open.borrow().len() >= net.profile.ring_len {
            return Err(self.refuse());
        }
        net.stats.add(Count::Calls);
        self.open.borrow_mut().insert(token);
        let Some(process) = net.at(&self.topology, self.backend) else {
            let end = Err((SendFailure::NotSent, "nobody listens"));
            self.end_after(net, token, end);
            return Ok(());
        };
        let call = Call {
            process,
            calls: Rc::clone(self),
            token,
            under,
            bytes: Rc::new(encode(token, under.config_id, request)),
            is_copy: false,
        };
        let is_cas = matches!(
            request,
            Request::Mutate(Mutation {
                action: Action::Cas(_),
                ..
            })
        );
        if !is_cas && net.is_struck(net.profile.twice) {
            let copy = Call {
                is_copy: true,
                ..call.clone()
            };
            net.send(net.takes(WAY_NS) + net.takes(WAY_NS), Errand::Call(copy));
        }
        net.send(net.takes(WAY_NS), Errand::Call(call));
        let end = Errand::CallEnds {
            calls: Rc::clone(self),
            token,
            end: Err((SendFailure::Lost, "the call's deadline has passed")),
        };
        net.send(PATIENCE_NS, end);
        Ok(())
    }

    /// There is room when one of those under way has ended.
    fn refuse(&self) -> SendError {
        self.net.stats.add(Count::CallsFull);
        self.is_refused.set(true);
        SendError::Full
    }

    /// The answer is on its way back.
    pub(super) fn end_after(self: &Rc<Self>, net: &Net, token: Token, end: End) {
        let calls = Rc::clone(self);
        net.send(net.takes(WAY_NS), Errand::CallEnds { calls, token, end });
    }

    /// It is there; each call ends once.
    pub(super) fn end(&self, net: &Net, token: Token, end: End) {
        if self.open.borrow_mut().remove(&token) {
            self.ended.borrow_mut().push_back((token, end));
            if self.is_refused.take() {
                self.has_room.set(true);
            }
            net.wake(self.client, net.rng.below(3_000));
        }
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "calls to backend {}: {} open, {} ended",
            self.backend,
            self.open.borrow().len(),
            self.ended.borrow().len()
        )
    }

    pub(super) fn is_ready(&self) -> bool {
        self.has_room.get() || !self.ended.borrow().is_empty()
    }

    pub(super) fn poll(&self, mut on: impl FnMut(Completion<'_>)) -> usize {
        self.has_room.set(false);
        let mut count = 0;
        deliver_again(&self.net, &self.again, &mut on);
        loop {
            let Some((token, end)) = self.ended.borrow_mut().pop_front() else {
                return count;
            };
            count += 1;
            match end {
                Ok(bytes) => {
                    let (_, answer) = parse_answer(&bytes).expect("a backend encodes well");
                    on(Completion::Answer(token, answer));
                    keep_for_again(&self.net, &self.again, bytes);
                }
                Err((failure, why)) => on(Completion::NoAnswer(token, failure, why)),
            }
        }
    }
}
