//! Strong commits: proposed, confirmed by every copy, settled.

use crate::core::Core;
use crate::effect::{Access, Commit, Decision, Effect, Refused, Request, Ticket, Uncertain};
use crate::follow::{Follower, Order};
use crate::message::{CopyOrder, Message, Operation};
use crate::mutants::{self, Mutant};
use crate::ranges::RangeSet;
use crate::values::{self, VALUE_BYTES_MAX, Values};
use crate::{Replication, TooFew};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// One commit under way.
#[derive(Debug)]
struct Proposal {
    /// Who waits; nobody for the last commits of a dead owner, which are
    /// proposed again because copies may differ about them.
    ticket: Option<Ticket>,
    point: KeyPoint,
    key: Bytes,
    operation: Operation,
    token: AssignmentVersion,
    /// It counts only with enough copies.
    lasting: bool,
    /// Servers that have not confirmed.
    waits: BTreeSet<ServerId>,
    /// Of them, those that could not store it, and have kept what they had.
    refused: BTreeSet<ServerId>,
    /// Those that have, and are alive.
    confirmed: BTreeSet<ServerId>,
}

/// Commits of one key that were taken back.
#[derive(Debug, Default)]
struct TakenBack {
    numbers: Vec<u64>,
    /// Servers that could store none of them: their copies are what they were.
    unchanged: BTreeSet<ServerId>,
}

/// All commits under way. Those of one key are settled in order.
#[derive(Debug, Default)]
pub(crate) struct Proposals {
    last: u64,
    pending: BTreeMap<u64, Proposal>,
    by_key: BTreeMap<(KeyPoint, Bytes), VecDeque<u64>>,
    /// Confirmed by everybody, as far as that was asked for.
    ready: BTreeSet<u64>,
    /// To be proposed again.
    fresh: Vec<(KeyPoint, Bytes)>,
    /// Until all copies are what they were before. Copies hear only then that these
    /// are settled: what they have of them is not to be read.
    taken_back: BTreeMap<(KeyPoint, Bytes), TakenBack>,
    /// Keys that are not served before all copies agree about them; how many
    /// at each point.
    unsettled: BTreeMap<KeyPoint, usize>,
    /// Points at which that has changed since the table was published.
    changed: Vec<KeyPoint>,
}

impl Proposals {
    pub(crate) fn unsettle(&mut self, keys: Vec<(KeyPoint, Bytes)>) {
        for (point, key) in keys {
            *self.unsettled.entry(point).or_default() += 1;
            self.changed.push(point);
            self.fresh.push((point, key));
        }
    }

    pub(crate) fn is_unsettled(&self, point: KeyPoint) -> bool {
        self.unsettled.contains_key(&point) && !mutants::is(Mutant::UnsettledServed)
    }

    pub(crate) fn unsettled_points(&self, within: Slice) -> impl Iterator<Item = KeyPoint> {
        let points = self.unsettled.range(within.start()..=within.last());
        points.map(|(&point, _)| point)
    }

    pub(crate) fn take_changed(&mut self) -> Vec<KeyPoint> {
        std::mem::take(&mut self.changed)
    }

    /// A range without the points of commits under way, and these.
    pub(crate) fn apart(&self, slice: Slice) -> (Vec<Slice>, Vec<Slice>) {
        let mut blocked: Vec<Slice> = Vec::new();
        let from = (slice.start(), Bytes::new());
        for (point, _) in self.by_key.range(from..).map(|(key, _)| key) {
            if *point > slice.last() {
                break;
            }
            if blocked.last().is_none_or(|last| last.start() != *point) {
                blocked.push(Slice::of_point(*point));
            }
        }
        if blocked.is_empty() {
            return (vec![slice], blocked);
        }
        let under_way = crate::ranges::RangeSet::of(blocked.iter().copied());
        (under_way.gaps(slice), blocked)
    }

    /// The first point of a range with a commit under way.
    pub(crate) fn first_point_within(&self, slice: Slice) -> Option<KeyPoint> {
        let ((point, _), _) = self.by_key.range((slice.start(), Bytes::new())..).next()?;
        (*point <= slice.last()).then_some(*point)
    }

    /// The commits under way in a range: number, key and operation.
    pub(crate) fn within(&self, slice: Slice) -> Vec<(u64, KeyPoint, Bytes, Operation)> {
        let of = |number: &u64| {
            let proposal = self.pending.get(number)?;
            Some((
                *number,
                proposal.point,
                proposal.key.clone(),
                proposal.operation.clone(),
            ))
        };
        let keys = self.by_key.range((slice.start(), Bytes::new())..);
        let mut found: Vec<_> = keys
            .take_while(|((point, _), _)| *point <= slice.last())
            .flat_map(|(_, numbers)| numbers.iter().filter_map(of))
            .collect();
        found.sort_unstable_by_key(|(number, ..)| *number);
        found
    }

    pub(crate) fn wait_for(&mut self, number: u64, server: ServerId) {
        if let Some(proposal) = self.pending.get_mut(&number) {
            proposal.waits.insert(server);
            proposal.refused.remove(&server);
            self.ready.remove(&number);
        }
    }

    /// It could not store this, and has kept what it had.
    pub(crate) fn refuse(&mut self, number: u64, server: ServerId) {
        if let Some(proposal) = self.pending.get_mut(&number)
            && proposal.waits.contains(&server)
        {
            proposal.refused.insert(server);
        }
    }

    /// The points in a range where a server could not store what is under way, and
    /// has answered all of it; whether anybody waits for that.
    pub(crate) fn refused_within(&self, slice: Slice, server: ServerId) -> Vec<(KeyPoint, bool)> {
        let mut found: BTreeMap<KeyPoint, (bool, bool, bool)> = BTreeMap::new();
        let keys = self.by_key.range((slice.start(), Bytes::new())..);
        for ((point, _), numbers) in keys.take_while(|((point, _), _)| *point <= slice.last()) {
            let (open, refused, asked) = found.entry(*point).or_default();
            for proposal in numbers.iter().filter_map(|number| self.pending.get(number)) {
                let refuses = proposal.refused.contains(&server);
                *open |= proposal.waits.contains(&server) && !refuses;
                *refused |= refuses;
                *asked |= proposal.ticket.is_some();
            }
        }
        let stuck = found
            .into_iter()
            .filter(|(_, (open, refused, _))| *refused && !open);
        stuck.map(|(point, (.., asked))| (point, asked)).collect()
    }

    /// Ends the commits of a point; who waits for them. What is visible is to be
    /// proposed instead.
    fn take_back(&mut self, point: KeyPoint) -> Vec<Ticket> {
        let mut tickets = Vec::new();
        let mut keys = Vec::new();
        for (key, numbers) in self.by_key.range_mut((point, Bytes::new())..) {
            if key.0 != point {
                break;
            }
            let mut unchanged: Option<BTreeSet<ServerId>> = None;
            for number in &*numbers {
                self.ready.remove(number);
                let Some(proposal) = self.pending.remove(number) else {
                    continue;
                };
                tickets.extend(proposal.ticket);
                unchanged = Some(match unchanged {
                    Some(before) => &before & &proposal.refused,
                    None => proposal.refused,
                });
            }
            let taken_back = TakenBack {
                numbers: std::mem::take(numbers).into(),
                unchanged: unchanged.unwrap_or_default(),
            };
            self.taken_back.insert(key.clone(), taken_back);
            keys.push(key.clone());
        }
        for key in &keys {
            self.by_key.remove(key);
        }
        self.unsettle(keys);
        tickets
    }

    /// `kept`: it is in a copy there. One that has dropped its copy has
    /// confirmed, too, but nobody can count on it.
    pub(crate) fn confirm(&mut self, number: u64, server: ServerId, kept: bool) {
        if let Some(proposal) = self.pending.get_mut(&number)
            && proposal.waits.remove(&server)
        {
            proposal.refused.remove(&server);
            if kept {
                proposal.confirmed.insert(server);
            }
            if proposal.waits.is_empty() {
                self.ready.insert(number);
            }
        }
    }

    fn is_unchanged(&self, point: KeyPoint, key: &Bytes, server: ServerId) -> bool {
        let taken_back = self.taken_back.get(&(point, key.clone()));
        let half = mutants::is(Mutant::TakenBackByHalf);
        taken_back.is_some_and(|taken_back| half || taken_back.unchanged.contains(&server))
    }

    /// It is told to drop its copies of these.
    pub(crate) fn dropped(&mut self, server: ServerId, ranges: &RangeSet) {
        for proposal in self.pending.values_mut() {
            if ranges.has(proposal.point) {
                proposal.confirmed.remove(&server);
            }
        }
    }

    /// It is dead: nothing waits for it, and what it had confirmed it has no
    /// more.
    pub(crate) fn forget_server(&mut self, server: ServerId) {
        for (&number, proposal) in &mut self.pending {
            proposal.confirmed.remove(&server);
            proposal.refused.remove(&server);
            if proposal.waits.remove(&server) && proposal.waits.is_empty() {
                self.ready.insert(number);
            }
        }
    }
}

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
            let (ticket, point) = (Some(request.ticket), request.point);
            if self.config.replication == Replication::Strong {
                let lasting = access == Access::Commit;
                self.start(now, values, ticket, point, key, operation, token, lasting);
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
        let proposals = &self.proposals;
        let numbers = proposals.by_key.get(&(point, key.clone()));
        let pending = numbers.into_iter().flatten();
        let waits = pending.filter_map(|number| Some(&proposals.pending.get(number)?.waits));
        let servers: BTreeSet<ServerId> = waits.flatten().copied().collect();
        servers.into_iter().collect()
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
        let keeps = |server: &ServerId| {
            let follower = self.followers.get(server);
            follower.is_some_and(|follower| follower.keeps(point))
        };
        let takes = |server: &ServerId| {
            let follower = self.followers.get(server);
            follower.is_none_or(|follower| follower.takes(point))
        };
        let listed = self.map.current().map(|map| &map.slice_of(point).servers);
        let next = listed.filter(|servers| servers.first() == Some(&self.me));
        let next = next
            .into_iter()
            .flatten()
            .filter(|&server| *server != self.me && self.alive.contains(server) && takes(server));
        let holders = self.followers.keys().filter(|&server| keeps(server));
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
        let assigned = self.map.current()?.slice_of(point);
        let has_copy = |server: &ServerId, follower: &Follower| {
            follower.held.has(point) || assigned.servers.contains(server)
        };
        let mut followers = self.followers.iter();
        let full = followers.find(|(server, f)| f.is_full(assigned.slice) && has_copy(server, f));
        full.map(|(&server, _)| server)
    }

    #[expect(clippy::too_many_arguments, reason = "one call in each of two places")]
    fn start(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        ticket: Option<Ticket>,
        point: KeyPoint,
        key: Bytes,
        operation: Operation,
        token: AssignmentVersion,
        lasting: bool,
    ) {
        // Servers that are to have a copy, and have none of this key yet, get
        // one first: so that all that are alive and assigned confirm.
        let holding = |follower: &Follower| follower.held.has(point);
        let holders = self.followers.iter().filter(|(_, f)| holding(f));
        for server in holders.map(|(&server, _)| server).collect::<Vec<_>>() {
            self.attach_server(now, server);
        }
        self.fill_point(now, values, point, token);
        let proposals = &mut self.proposals;
        proposals.last += 1;
        let number = proposals.last;
        let queue = proposals.by_key.entry((point, key.clone())).or_default();
        queue.push_back(number);
        proposals.ready.insert(number);
        let holders: Vec<ServerId> = self
            .followers
            .iter()
            .filter(|(_, follower)| holding(follower))
            .map(|(&server, _)| server)
            .filter(|server| !self.proposals.is_unchanged(point, &key, *server))
            .collect();
        let proposal = Proposal {
            ticket,
            point,
            key: key.clone(),
            operation: operation.clone(),
            token,
            lasting,
            waits: BTreeSet::new(),
            refused: BTreeSet::new(),
            confirmed: BTreeSet::new(),
        };
        self.proposals.pending.insert(number, proposal);
        for server in holders {
            self.apply_at(now, server, number, point, &key, &operation, token);
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
        for (point, key) in std::mem::take(&mut self.proposals.fresh) {
            let Some(&token) = self.owned.get(point) else {
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
            self.stale.range(Slice::of_point(point));
            self.start(now, values, None, point, key, operation, token, false);
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
        if let Some(count) = self.proposals.unsettled.get_mut(&point) {
            *count -= 1;
            if *count == 0 {
                self.proposals.unsettled.remove(&point);
                self.proposals.changed.push(point);
                self.wake(&[Slice::of_point(point)]);
            }
        }
    }

    /// Settles what everybody has confirmed, while the lease holds.
    pub(crate) fn settle(&mut self, now: Duration, values: &mut dyn Values) {
        let quiet = self.proposals.ready.is_empty() && !self.settled_stale;
        if quiet || !self.may_serve(now) {
            return;
        }
        self.settled_stale = false;
        let mut settled = Vec::new();
        loop {
            let proposals = &self.proposals;
            let first = |number: &&u64| {
                let proposal = proposals.pending.get(number);
                let key = proposal.map(|p| (p.point, p.key.clone()));
                let queue = key.and_then(|key| proposals.by_key.get(&key));
                queue.and_then(VecDeque::front) == Some(*number)
            };
            let Some(&number) = proposals.ready.iter().find(first) else {
                break;
            };
            self.proposals.ready.remove(&number);
            let Some(proposal) = self.proposals.pending.remove(&number) else {
                continue;
            };
            let key = (proposal.point, proposal.key);
            if let Some(queue) = self.proposals.by_key.get_mut(&key) {
                queue.pop_front();
                if queue.is_empty() {
                    self.proposals.by_key.remove(&key);
                }
            }
            settled.push(number);
            if let Some(taken_back) = self.proposals.taken_back.remove(&key) {
                settled.extend(taken_back.numbers);
            }
            match proposal.ticket {
                Some(ticket) => {
                    values.settle(ticket);
                    let token = proposal.token;
                    let (copies, need) = (1 + proposal.confirmed.len(), self.copies_needed());
                    let result = if proposal.lasting && copies < need {
                        Err(Uncertain::TooFewCopies { copies, need })
                    } else {
                        Ok(Commit { token, copies })
                    };
                    self.tell(Effect::Settled { ticket, result });
                }
                None => self.settle_point(proposal.point),
            }
        }
        let mut news = Vec::new();
        for (&server, follower) in &mut self.followers {
            news.extend(follower.settled(&settled).map(|id| (server, id)));
        }
        for (server, id) in news {
            self.say(now, server, Message::Settled { id });
        }
    }

    /// This server was replaced: nobody knows what becomes of these.
    pub(crate) fn give_up_proposals(&mut self) {
        let proposals = std::mem::take(&mut self.proposals);
        for ticket in proposals.pending.into_values().filter_map(|p| p.ticket) {
            self.tell(Effect::Settled {
                ticket,
                result: Err(Uncertain::Replaced),
            });
        }
    }
}
