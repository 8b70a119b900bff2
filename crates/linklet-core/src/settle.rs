//! Strong commits: proposed, confirmed by every copy, settled.

use crate::core::Core;
use crate::effect::{Access, Commit, Decision, Effect, Refused, Request, Uncertain};
use crate::followers::{Follower, Order};
use crate::message::{CopyOrder, Message, Operation};
use crate::mutants::{self, Mutant};
use crate::proposals::{Begun, Settled};
use crate::values::{self, VALUE_BYTES_MAX, Values};
use crate::{Replication, TooFew};
use bytes::Bytes;
use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

impl Core {
    /// A commit that is to be confirmed by every copy before it is seen.
    /// [`Decision::Serve`] means that it is under way: [`Values::settle`] and
    /// [`Effect::Settled`] follow, at once if there are no copies. Everything
    /// else is as for [`Core::request`], and nothing was changed.
    pub fn propose(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        request: &Request,
        key: Bytes,
        operation: Operation,
    ) -> Decision {
        let access = match request.access {
            Access::Refresh => Access::Refresh,
            _ => Access::Commit,
        };
        let request = Request { access, ..*request };
        let mut decision = self.decide(now, &request);
        if let Decision::Serve { .. } = decision
            && let Operation::Put { value, .. } = &operation
            && key.len() + value.len() > VALUE_BYTES_MAX
        {
            let bytes = key.len() + value.len();
            decision = Decision::Refused(Refused::TooLong { bytes });
        }
        if let Decision::Serve { .. } = decision
            && let Operation::Put { .. } = operation
            && let Some(by) = self.full_copy(request.point)
            && values.get(request.point, &key).is_none()
        {
            decision = Decision::Refused(Refused::NoRoom { by });
        }
        if let Decision::Serve { token } = decision {
            let point = request.point;
            if self.config.replication == Replication::Strong {
                let commit = Begun {
                    ticket: Some(request.ticket),
                    point,
                    key,
                    operation,
                    token,
                    lasting: access == Access::Commit,
                };
                self.start(now, values, commit);
            } else {
                values.settle(request.ticket);
                self.tell(Effect::Settled {
                    ticket: request.ticket,
                    result: Ok(Commit { token, copies: 1 }),
                });
                self.touched(now, values, point, key);
            }
        }
        self.run(now, values);
        decision
    }

    /// Who has not confirmed the commits of a key that are under way.
    pub fn awaited(&self, point: KeyPoint, key: &Bytes) -> Vec<ServerId> {
        self.proposals.awaited(point, key).into_iter().collect()
    }

    /// Servers that have to have a commit before it is acknowledged.
    fn copies_needed(&self) -> usize {
        let early = mutants::is(Mutant::AcknowledgedEarly) || mutants::is(Mutant::ThinAcknowledged);
        match self.config.too_few {
            TooFew::Refuse if !early => self.config.copies_min,
            TooFew::Refuse | TooFew::Acknowledge => 1,
        }
    }

    /// Whether a strong commit of this key, which is owned here, would have too
    /// few copies: counted are the servers that will have to confirm it.
    pub(crate) fn too_few_copies(&self, point: KeyPoint) -> Option<Refused> {
        if self.config.replication != Replication::Strong {
            return None;
        }
        let takes = |server: ServerId| {
            let follower = self.followers.get(server);
            follower.is_none_or(|follower| follower.takes(point))
        };
        let listed = self.known.map().map(|map| &map.slice_of(point).servers);
        let next = listed.filter(|servers| servers.first() == Some(&self.me));
        let next = next
            .into_iter()
            .flatten()
            .filter(|&&server| server != self.me && self.peers.is_alive(server) && takes(server));
        let holders = self.followers.iter().filter(|(_, f)| f.keeps(point));
        let (have, need) = (1 + holders.count() + next.count(), self.copies_needed());
        (have < need).then_some(Refused::TooFewCopies { have, need })
    }

    /// Who is to have a copy of a point, and has no room for new keys there. A commit of
    /// one would stay under way with its value until there is room, beyond all bounds if
    /// many were begun.
    fn full_copy(&self, point: KeyPoint) -> Option<ServerId> {
        if self.config.replication != Replication::Strong {
            return None;
        }
        let assigned = self.known.map()?.slice_of(point);
        let has_copy = |server: ServerId, follower: &Follower| {
            follower.held.has(point) || assigned.servers.contains(&server)
        };
        let mut followers = self.followers.iter();
        let full = followers.find(|(server, f)| f.is_full(assigned.slice) && has_copy(*server, f));
        full.map(|(server, _)| server)
    }

    fn start(&mut self, now: Duration, values: &mut dyn Values, commit: Begun) {
        // Servers that are to have a copy, and have none of this key yet, get
        // one first: so that all that are alive and assigned confirm.
        for server in self.followers.holders(commit.point) {
            self.attach_server(now, server);
        }
        self.fill_point(now, values, commit.point, commit.token);
        let (point, key) = (commit.point, commit.key.clone());
        let (operation, token) = (commit.operation.clone(), commit.token);
        let number = self.proposals.begin(commit);
        for server in self.followers.holders(point) {
            if !self.proposals.is_unchanged(point, &key, server) {
                self.apply_at(now, server, number, point, &key, &operation, token);
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one order")]
    pub(crate) fn apply_at(
        &mut self,
        now: Duration,
        server: ServerId,
        number: u64,
        point: KeyPoint,
        key: &Bytes,
        operation: &Operation,
        token: AssignmentVersion,
    ) {
        if !mutants::is(Mutant::AcknowledgedEarly) {
            self.proposals.wait_for(number, server);
        }
        let order = CopyOrder::Apply {
            point,
            key: key.clone(),
            operation: operation.clone(),
        };
        let note = Order::Apply {
            point,
            key: key.clone(),
            proposal: Some(number),
        };
        self.order(now, server, token, order, note);
    }

    /// The last commits of a dead owner are made those of all copies.
    pub(crate) fn repropose(&mut self, now: Duration, values: &mut dyn Values) {
        for (point, key) in self.proposals.take_fresh() {
            let Some(token) = self.authority.token(point) else {
                self.settle_point(point);
                continue;
            };
            let operation = match values::get(values, point, &key) {
                Some(entry) => match entry.value {
                    Some(value) => Operation::Put {
                        version: entry.version,
                        value,
                    },
                    None => Operation::Remove,
                },
                None => Operation::Remove,
            };
            self.published.stale.range(Slice::of_point(point));
            let commit = Begun {
                ticket: None,
                point,
                key,
                operation,
                token,
                lasting: false,
            };
            self.start(now, values, commit);
        }
    }

    /// Takes back the commits of a point that are under way, so that it can be given
    /// away: all copies are made what is visible here. Whoever waits for them hears
    /// that at once; should this server die before that is done, they may be seen.
    pub(crate) fn take_back(&mut self, now: Duration, values: &mut dyn Values, point: KeyPoint) {
        for ticket in self.proposals.take_back(point) {
            let result = Err(Uncertain::TakenBack);
            self.tell(Effect::Settled { ticket, result });
        }
        self.repropose(now, values);
    }

    fn settle_point(&mut self, point: KeyPoint) {
        if self.proposals.settle_point(point) {
            self.wake(&[Slice::of_point(point)]);
        }
    }

    /// Settles what everybody has confirmed, while the lease holds.
    pub(crate) fn settle(&mut self, now: Duration, values: &mut dyn Values) {
        let quiet = self.proposals.is_quiet() && !self.followers.is_settled_stale();
        if quiet || !self.may_serve(now) {
            return;
        }
        let mut settled = Vec::new();
        while let Some(commit) = self.proposals.next_settled(&mut settled) {
            match commit.ticket {
                Some(ticket) => {
                    values.settle(ticket);
                    let Settled { token, copies, .. } = commit;
                    let need = self.copies_needed();
                    let result = if commit.lasting && copies < need {
                        Err(Uncertain::TooFewCopies { copies, need })
                    } else {
                        Ok(Commit { token, copies })
                    };
                    self.tell(Effect::Settled { ticket, result });
                }
                None => self.settle_point(commit.point),
            }
        }
        for (server, id) in self.followers.settle(&settled) {
            self.say(now, server, Message::Settled { id });
        }
    }

    /// This server was replaced: nobody knows what becomes of these.
    pub(crate) fn give_up_proposals(&mut self) {
        for ticket in self.proposals.give_up() {
            self.outbox.tell(Effect::Settled {
                ticket,
                result: Err(Uncertain::Replaced),
            });
        }
    }
}
