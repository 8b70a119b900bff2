//! What becomes of a request whose key the table does not settle.

use crate::Replication;
use crate::core::Core;
use crate::effect::{Access, Decision, Refused, Request, Ticket};
use crate::mutants::{self, Mutant};
use crate::values::Values;
use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

impl Core {
    /// Decides about a request. One that is told to wait is remembered until
    /// [`Effect::Wake`]; how long it waits at most is the driver's matter
    /// ([`Core::forget_request`]).
    pub fn request(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        request: &Request,
    ) -> Decision {
        let decision = self.decide(now, request);
        if decision == Decision::Wait {
            self.run(now, values);
        }
        decision
    }

    pub(crate) fn decide(&mut self, now: Duration, request: &Request) -> Decision {
        let Request {
            ticket,
            point,
            access,
            known,
        } = *request;
        if self.replaced {
            return Decision::Refused(Refused::Replaced);
        }
        if let Some(token) = self.authority.token(point) {
            if let Some(&to) = self.giver.leaving().get(point) {
                if self.giver.is_sent_again(to, point) {
                    self.waiting.wait_at(point, ticket);
                    return Decision::Wait;
                }
                return self.redirect_to(to);
            }
            if !self.may_serve(now) {
                return Decision::Refused(Refused::NoLease);
            }
            if self.proposals.is_unsettled(point) {
                self.waiting.wait_at(point, ticket);
                return Decision::Wait;
            }
            if access == Access::Commit
                && let Some(refused) = self.too_few_copies(point)
            {
                return Decision::Refused(refused);
            }
            return Decision::Serve { token };
        }
        if let Some((to, token)) = self.sent(point) {
            if mutants::is(Mutant::ServedInTransit) {
                return Decision::Serve { token };
            }
            if self.giver.is_sent_again(to, point) {
                self.waiting.wait_at(point, ticket);
                return Decision::Wait;
            }
            return self.redirect_to(to);
        }
        if self.receiver.wanted().has(point) {
            if let Some(holder) = self.receiver.holder(point) {
                return self.redirect_to(holder);
            }
            self.waiting.wait_at(point, ticket);
            self.pull(now, point);
            return Decision::Wait;
        }
        let reads = matches!(access, Access::Read | Access::ReadCopy);
        if reads && self.copy_serves(now, point, access) {
            return Decision::ServeCopy;
        }
        // By the newest map that anybody involved knows of.
        let newest = known.max(self.authority.promised_at(point));
        if self.known.version() < newest || self.known.version().is_none() {
            if let Some(newest) = newest {
                self.hear_version(now, newest);
            }
            self.waiting.wait_for(newest, ticket);
            return Decision::Wait;
        }
        let primary = self.known.map().and_then(|map| {
            let servers = &map.slice_of(point).servers;
            servers.first().copied().filter(|&server| server != self.me)
        });
        Decision::Redirect {
            to: primary,
            version: self.known.version(),
        }
    }

    /// Who was sent a key that this server had, and has not answered: who asks for it waits
    /// for that.
    pub fn sent_to(&self, point: KeyPoint) -> Option<ServerId> {
        self.sent(point).map(|(to, _)| to)
    }

    /// Who was sent a key, with its token, if it is not to come back here.
    fn sent(&self, point: KeyPoint) -> Option<(ServerId, AssignmentVersion)> {
        let sent = self.giver.in_transit(point);
        sent.filter(|_| !self.receiver.wanted().has(point))
    }

    /// The driver no longer waits for this request.
    pub fn forget_request(&mut self, ticket: Ticket) {
        self.waiting.forget(ticket);
    }

    fn redirect_to(&self, to: ServerId) -> Decision {
        Decision::Redirect {
            to: Some(to),
            version: self.known.newest_of(to),
        }
    }

    /// Whether the copy of this key may be read.
    ///
    /// Strong: the owner acknowledges no commit that a copy has not confirmed,
    /// unless the copy has confirmed to have been dropped, or is dead, which
    /// it is not before its lease has run out. A copy whose owner is dead waits
    /// for the next one, who hears of it. So a copy is as new as the
    /// newest acknowledged commit while this server has its lease; and no
    /// newer, except for keys with orders that are not settled: those are the
    /// owner's to answer.
    fn copy_serves(&self, now: Duration, point: KeyPoint, access: Access) -> bool {
        let Some(&copy) = self.copies.here().get(point) else {
            return false;
        };
        match self.config.replication {
            Replication::None => false,
            Replication::Eventual => access == Access::ReadCopy,
            Replication::Strong => {
                self.copies.struck_off(copy).is_none()
                    && self.may_serve(now)
                    && (!self.copies.is_dirty(point) || mutants::is(Mutant::DirtyCopyRead))
            }
        }
    }

    /// Requests for these ranges are decided anew.
    pub(crate) fn wake(&mut self, ranges: &[Slice]) {
        self.waiting.wake(ranges, &mut self.outbox);
    }

    /// Requests that waited for what is now somebody else's.
    pub(crate) fn wake_unwanted(&mut self) {
        let (wanted, proposals) = (self.receiver.wanted(), &self.proposals);
        let is_unwanted = |point| !wanted.has(point) && !proposals.is_unsettled(point);
        self.waiting.wake_if(is_unwanted, &mut self.outbox);
    }
}
