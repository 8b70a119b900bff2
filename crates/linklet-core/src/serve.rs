//! What becomes of a request whose key the table does not settle.

use crate::Replication;
use crate::core::Core;
use crate::effect::{Access, Decision, Effect, Refused, Request, Ticket};
use crate::message::Message;
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
        if let Some(&token) = self.owned.get(point) {
            if let Some(&to) = self.leaving.get(point) {
                if self.is_sent_again(to, point) {
                    self.parked.entry(point).or_default().push(ticket);
                    return Decision::Wait;
                }
                return self.redirect_to(to);
            }
            if !self.may_serve(now) {
                return Decision::Refused(Refused::NoLease);
            }
            if self.proposals.is_unsettled(point) {
                self.parked.entry(point).or_default().push(ticket);
                return Decision::Wait;
            }
            if access == Access::Commit
                && let Some(refused) = self.too_few_copies(point)
            {
                return Decision::Refused(refused);
            }
            return Decision::Serve { token };
        }
        let sent = self.transit_at.get(point);
        let sent = sent.and_then(|chunk| self.transit.get(chunk));
        if let Some((to, token)) = sent.and_then(|t| Some((t.to, *t.owned.get(point)?)))
            && !self.wanted.has(point)
        {
            if mutants::is(Mutant::ServedInTransit) {
                return Decision::Serve { token };
            }
            if self.is_sent_again(to, point) {
                self.parked.entry(point).or_default().push(ticket);
                return Decision::Wait;
            }
            return self.redirect_to(to);
        }
        if self.wanted.has(point) {
            if let Some(holder) = self.unstored.holder(point) {
                return self.redirect_to(holder);
            }
            self.parked.entry(point).or_default().push(ticket);
            self.pull(now, point);
            return Decision::Wait;
        }
        let reads = matches!(access, Access::Read | Access::ReadCopy);
        if reads && self.copy_serves(now, point, access) {
            return Decision::ServeCopy;
        }
        // By the newest map that anybody involved knows of.
        let fence = self.fence.get(point).copied();
        let newest = known.max(fence);
        if self.map.version() < newest || self.map.version().is_none() {
            if let Some(newest) = newest {
                self.hear_version(now, newest);
            }
            self.parked_for.push((newest, ticket));
            return Decision::Wait;
        }
        let primary = self.map.current().and_then(|map| {
            let servers = &map.slice_of(point).servers;
            servers.first().copied().filter(|&server| server != self.me)
        });
        Decision::Redirect {
            to: primary,
            version: self.map.version(),
        }
    }

    /// Who was sent a key that this server had, and has not answered: who asks for it waits
    /// for that.
    pub fn sent_to(&self, point: KeyPoint) -> Option<ServerId> {
        let chunk = self.transit_at.get(point)?;
        let transit = self.transit.get(chunk)?;
        (transit.owned.has(point) && !self.wanted.has(point)).then_some(transit.to)
    }

    /// The driver no longer waits for this request.
    pub fn forget_request(&mut self, ticket: Ticket) {
        self.parked.retain(|_, tickets| {
            tickets.retain(|&parked| parked != ticket);
            !tickets.is_empty()
        });
        self.parked_for.retain(|&(_, parked)| parked != ticket);
    }

    fn redirect_to(&self, to: ServerId) -> Decision {
        Decision::Redirect {
            to: Some(to),
            version: self.heard.get(&to).copied().max(self.map.version()),
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
        let Some(copy) = self.copies.get(point) else {
            return false;
        };
        match self.config.replication {
            Replication::None => false,
            Replication::Eventual => access == Access::ReadCopy,
            Replication::Strong => {
                self.struck_off(copy.owner, copy.token).is_none()
                    && self.may_serve(now)
                    && (!self.is_dirty(point) || mutants::is(Mutant::DirtyCopyRead))
            }
        }
    }

    pub(crate) fn is_dirty(&self, point: KeyPoint) -> bool {
        self.dirty
            .range((point, bytes::Bytes::new())..)
            .next()
            .is_some_and(|((at, _), _)| *at == point)
    }

    /// Asks whoever has the key to send it first.
    fn pull(&mut self, now: Duration, point: KeyPoint) {
        let Some(claim) = &self.claim else {
            return;
        };
        // Without an answer yet there is nobody to ask.
        let holders: Vec<ServerId> = claim.holders(point).collect();
        for from in holders {
            let Some(claim) = &mut self.claim else {
                return;
            };
            if claim.pulled.insert((from, point)) {
                let (claim, points) = (claim.id, vec![point]);
                self.say(now, from, Message::Pull { claim, points });
            }
        }
    }

    /// Requests for these ranges are decided anew.
    pub(crate) fn wake(&mut self, ranges: &[Slice]) {
        for slice in ranges {
            let points: Vec<KeyPoint> = self
                .parked
                .range(slice.start()..=slice.last())
                .map(|(&point, _)| point)
                .collect();
            for point in points {
                let tickets = self.parked.remove(&point).unwrap_or_default();
                for ticket in tickets {
                    self.tell(Effect::Wake(ticket));
                }
            }
        }
    }

    /// Requests that waited for what is now somebody else's.
    pub(crate) fn wake_unwanted(&mut self) {
        let wanted = &self.wanted;
        let points: Vec<Slice> = self
            .parked
            .keys()
            .filter(|&&point| !wanted.has(point) && !self.proposals.is_unsettled(point))
            .map(|&point| Slice::of_point(point))
            .collect();
        self.wake(&points);
    }

    /// Requests whose callers knew more than this server.
    pub(crate) fn wake_informed(&mut self, version: AssignmentVersion) {
        let parked = std::mem::take(&mut self.parked_for);
        for (wanted, ticket) in parked {
            if wanted <= Some(version) {
                self.tell(Effect::Wake(ticket));
            } else {
                self.parked_for.push((wanted, ticket));
            }
        }
    }
}
