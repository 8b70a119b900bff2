//! The state of one server, and the ways in and out.

use crate::bulk::Bulk;
use crate::claim::MyClaim;
use crate::config::{Config, ConfigError};
use crate::copies::CopyState;
use crate::detour::{Passed, Ways};
use crate::effect::{Effect, Ticket};
use crate::follow::Follower;
use crate::give::Transit;
use crate::link::{Haste, Link};
use crate::loss::{Extent, Loss, LossReason};
use crate::message::{Claim, Frame, Message};
use crate::ranges::{RangeMap, RangeSet, differing};
use crate::recover::Recovery;
use crate::settle::Proposals;
use crate::table::{Run, SEGMENTS, Segment, Stale, Status, Table};
use crate::unmoved::{Unmoved, Unstored};
use crate::values::{NotStored, Values};
use crate::wire::{Wire, WireError};
use bytes::Bytes;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;
use trefoil_sharder::{
    AssignedSlice, Assignment, AssignmentVersion, KeyPoint, KnownAssignment, Learned, ServerId,
    Slice,
};

/// Keys remembered that were committed without a lease; beyond it their
/// ranges are reported.
const PROVISIONAL_KEYS_MAX: usize = 100_000;

/// See the first page of this crate.
#[derive(Debug)]
pub struct Core {
    pub(crate) me: ServerId,
    pub(crate) config: Config,
    pub(crate) map: KnownAssignment,
    /// Everybody alive but this server.
    pub(crate) alive: BTreeSet<ServerId>,
    /// This server was among the living once.
    joined: bool,
    lease_until: Option<Duration>,
    lease_lapsed: bool,
    pub(crate) replaced: bool,
    pub(crate) draining: bool,
    pub(crate) drained: bool,
    /// The claim of nothing that ends all others, and who has not answered.
    pub(crate) farewell: Option<(u64, BTreeSet<ServerId>)>,

    pub(crate) links: BTreeMap<ServerId, Link>,
    /// What others speak that have said it.
    wires: BTreeMap<ServerId, Wire>,
    pub(crate) ways: BTreeMap<ServerId, Ways>,
    pub(crate) passed: Passed,
    /// Dead for ever.
    pub(crate) gone: BTreeSet<ServerId>,
    /// The newest assignment that each has claimed by.
    pub(crate) heard: BTreeMap<ServerId, AssignmentVersion>,
    /// The newest assignment by which each is known to have lived. An older one
    /// without it is no news of its death.
    pub(crate) lived: BTreeMap<ServerId, AssignmentVersion>,
    /// What each knew of when it last answered a claim of this server's, or said it since.
    pub(crate) answered: BTreeMap<ServerId, Option<AssignmentVersion>>,
    /// What each was told that this server knows of: its side of `answered`.
    pub(crate) told_newest: BTreeMap<ServerId, Option<AssignmentVersion>>,
    /// A newer assignment that somebody goes by.
    learn: Option<(AssignmentVersion, Duration)>,

    /// Where the authority is here, with its token.
    pub(crate) owned: RangeMap<AssignmentVersion>,
    /// The parts of `owned` that were claimed, by whom; not served any more.
    pub(crate) leaving: RangeMap<ServerId>,
    /// Sent, and not confirmed yet; neither owned nor forgotten.
    pub(crate) transit: BTreeMap<u64, Transit>,
    /// Of each point that is in transit, the chunk.
    pub(crate) transit_at: RangeMap<u64>,
    pub(crate) chunks: u64,
    /// Who has claimed something of `leaving`, and perhaps some who have all of theirs.
    pub(crate) giving: BTreeSet<ServerId>,
    pub(crate) bulk: Bulk,
    /// When everything that follows was last worked out.
    pub(crate) ran_at: Duration,
    /// Others' claims, the newest of each.
    pub(crate) claims: BTreeMap<ServerId, Claim>,
    pub(crate) urgent: BTreeMap<ServerId, BTreeSet<KeyPoint>>,
    /// What claimants could not store.
    pub(crate) unmoved: BTreeMap<ServerId, Unmoved>,
    /// Copies that claimants have asked for, and that were not sent yet.
    pub(crate) recoveries: BTreeMap<ServerId, Recovery>,

    /// Assigned to this server, and not here yet.
    pub(crate) wanted: RangeSet,
    pub(crate) claim: Option<MyClaim>,
    /// Of `wanted`, what could not be stored here.
    pub(crate) unstored: Unstored,
    /// Wanted, and to be looked at: nobody may have it any more.
    pub(crate) conclude_stale: RangeSet,
    pub(crate) claim_ids: u64,
    /// The newest assignment that anybody has claimed by, and who was alive by
    /// it.
    pub(crate) roll: Option<(AssignmentVersion, BTreeSet<ServerId>)>,
    /// The newest claim for each point, of anybody.
    pub(crate) fence: RangeMap<AssignmentVersion>,
    /// Who had promised to send what is wanted.
    pub(crate) promised: RangeMap<ServerId>,
    /// Who the map before said was the owner of what is wanted.
    pub(crate) former: RangeMap<ServerId>,

    /// Copies of others' values.
    pub(crate) copies: RangeMap<CopyState>,
    /// Orders with a lower token are refused.
    pub(crate) copy_floor: RangeMap<AssignmentVersion>,
    /// Keys of copies changed by orders not declared settled: by whom, which.
    pub(crate) dirty: BTreeMap<(KeyPoint, Bytes), (ServerId, u64)>,

    /// Who has, or may have, copies of what is owned here.
    pub(crate) followers: BTreeMap<ServerId, Follower>,
    /// Where copies may not be what they should be.
    pub(crate) follow_stale: Stale,
    /// Where copies are to be sent when it is a server's turn.
    pub(crate) fill_waiting: BTreeMap<ServerId, Stale>,
    /// Committed, and not sent to the copies yet.
    pub(crate) touched: BTreeSet<(KeyPoint, Bytes)>,
    pub(crate) proposals: Proposals,
    /// Copies are to be told what is settled.
    pub(crate) settled_stale: bool,
    provisional: BTreeSet<(KeyPoint, Bytes)>,
    provisional_overflow: bool,

    pub(crate) parked: BTreeMap<KeyPoint, Vec<Ticket>>,
    /// Wait for this server to learn of an assignment.
    pub(crate) parked_for: Vec<(Option<AssignmentVersion>, Ticket)>,
    effects: VecDeque<Effect>,
    losses: Vec<Loss>,
    table: Arc<Table>,
    pub(crate) stale: Stale,
    pub(crate) segments_looked_at: u64,
}

impl Core {
    /// One that knows nothing and has nothing. `me` is this life of the
    /// process; another life has another.
    pub fn new(me: ServerId, config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Core {
            me,
            config,
            map: KnownAssignment::none(),
            alive: BTreeSet::new(),
            joined: false,
            lease_until: None,
            lease_lapsed: false,
            replaced: false,
            draining: false,
            drained: false,
            farewell: None,
            links: BTreeMap::new(),
            wires: BTreeMap::new(),
            ways: BTreeMap::new(),
            passed: Passed::default(),
            gone: BTreeSet::new(),
            heard: BTreeMap::new(),
            lived: BTreeMap::new(),
            answered: BTreeMap::new(),
            told_newest: BTreeMap::new(),
            learn: None,
            owned: RangeMap::default(),
            leaving: RangeMap::default(),
            transit: BTreeMap::new(),
            transit_at: RangeMap::default(),
            chunks: 0,
            giving: BTreeSet::new(),
            bulk: Bulk::default(),
            ran_at: Duration::ZERO,
            claims: BTreeMap::new(),
            urgent: BTreeMap::new(),
            unmoved: BTreeMap::new(),
            recoveries: BTreeMap::new(),
            wanted: RangeSet::default(),
            claim: None,
            unstored: Unstored::default(),
            conclude_stale: RangeSet::default(),
            claim_ids: 0,
            roll: None,
            fence: RangeMap::default(),
            promised: RangeMap::default(),
            former: RangeMap::default(),
            copies: RangeMap::default(),
            copy_floor: RangeMap::default(),
            dirty: BTreeMap::new(),
            followers: BTreeMap::new(),
            follow_stale: Stale::default(),
            fill_waiting: BTreeMap::new(),
            touched: BTreeSet::new(),
            proposals: Proposals::default(),
            settled_stale: false,
            provisional: BTreeSet::new(),
            provisional_overflow: false,
            parked: BTreeMap::new(),
            parked_for: Vec::new(),
            effects: VecDeque::new(),
            losses: Vec::new(),
            table: Arc::new(Table::nothing()),
            stale: Stale::default(),
            segments_looked_at: 0,
        })
    }

    /// Which life this is.
    pub fn id(&self) -> ServerId {
        self.me
    }

    /// The assignment that it goes by.
    pub fn version(&self) -> Option<AssignmentVersion> {
        self.map.version()
    }

    /// The assignment that it goes by, for callers that have an older one.
    pub fn assignment(&self) -> Option<&Assignment> {
        self.map.current()
    }

    /// The table published last.
    pub fn table(&self) -> &Arc<Table> {
        &self.table
    }

    /// The fencing token of a key whose authority is here.
    pub fn token(&self, point: KeyPoint) -> Option<AssignmentVersion> {
        self.owned.get(point).copied()
    }

    /// Whether all that is assigned to this server has arrived.
    pub fn is_complete(&self) -> bool {
        self.wanted.is_empty()
    }

    /// What is assigned to this server and has not arrived, ascending.
    pub fn wanted(&self) -> Vec<Slice> {
        self.wanted.slices()
    }

    /// The ranges of which this server has copies, ascending.
    pub fn copies(&self) -> Vec<Slice> {
        self.copies.slices()
    }

    /// Hears of an assignment, and of who is alive. Servers that the assignment
    /// names count as alive. Older assignments, and what comes with them, are
    /// refused.
    ///
    /// What safety rests on: the list is no older than the assignment, and no
    /// older than any list given before with the same assignment; and a server
    /// that was alive is missing only when its lease has run out for ever. A
    /// coordinator that has just started, and waits for servers to report,
    /// does not know who is alive: it must not publish that nobody is.
    pub fn learn(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        assignment: &Assignment,
        alive: &BTreeSet<ServerId>,
    ) -> Learned {
        let before = self.map.current().cloned();
        let learned = self.map.offer(assignment.clone());
        if self.replaced || !matches!(learned, Learned::Adopted | Learned::Same) {
            return learned;
        }
        let mut living = alive.clone();
        let named = assignment.slices().iter().flat_map(|slice| &slice.servers);
        living.extend(named);
        let present = living.remove(&self.me);
        if self.joined && !present {
            self.retire(values);
            return learned;
        }
        self.joined |= present;
        let version = assignment.version();
        // A frame of a server alone says nothing of when it lived: it may have come
        // since. Who is dead was alive here before, or has said by which assignment.
        let known: BTreeSet<ServerId> = self
            .alive
            .iter()
            .chain(self.lived.keys())
            .copied()
            .collect();
        self.alive = living;
        let mut asked_died = false;
        for server in known {
            let newer = self
                .lived
                .get(&server)
                .is_some_and(|&lived| lived > version);
            if !self.alive.contains(&server) && !newer {
                asked_died |= self.claim.as_ref().is_some_and(|c| c.has_asked(server));
                self.bury(now, server, values);
            }
        }
        self.look_at_staying();
        if learned == Learned::Adopted {
            self.adopt(now, before.as_ref());
        } else if asked_died {
            // It may have had copies made since the others answered.
            self.claim_anew(now, before.as_ref());
        }
        if self.learn.is_some_and(|(wanted, _)| wanted <= version) {
            self.learn = None;
        }
        self.wake_informed(version);
        self.wake_unwanted();
        self.conclude(now, values);
        self.run(now, values);
        learned
    }

    /// Goes by a new map, and looks only at what it changes: amid a move there are tens
    /// of thousands of ranges, and a map may come twice a second.
    fn adopt(&mut self, now: Duration, before: Option<&Assignment>) {
        let Some(map) = self.map.current().cloned() else {
            return;
        };
        let all = [Slice::ALL];
        let changed = |same: &dyn Fn(&AssignedSlice, &AssignedSlice) -> bool| match before {
            Some(before) => differing(before.slices(), map.slices(), same),
            None => all.to_vec(),
        };
        let first = changed(&|a, b| a.servers.first() == b.servers.first());
        // A claim by a map that was not known here was not judged by it.
        let unknown = |claim: &Claim| before.is_none_or(|before| claim.version > before.version());
        match self.claims.values().any(unknown) {
            true => self.redirect_claims(&all),
            false => self.redirect_claims(&first),
        }
        self.try_refused_again();
        if !self.claim_stays(before) {
            self.claim_anew(now, before);
        }
        let servers = changed(&|a, b| a.servers == b.servers);
        for &slice in &servers {
            self.follow_stale.range(slice);
            if self.config.replication == crate::Replication::Eventual {
                self.stale.range(slice);
            }
        }
        self.stale.touch();
    }

    /// The coordination has renewed this server's lease until then on its own
    /// clock: already shortened by what clocks may drift.
    pub fn lease(&mut self, now: Duration, values: &mut dyn Values, until: Duration) {
        if self.lease_until.is_none_or(|had| had < until) {
            self.lease_until = Some(until);
            self.stale.touch();
        }
        self.look_at_lease(now);
        self.conclude(now, values);
        self.run(now, values);
    }

    /// Hears what a server speaks, before its first frame: what both know is used from now
    /// on. One that is never met is taken for one of before versions were said. Frames of
    /// one with which there is no understanding are not to be taken.
    pub fn meet(&mut self, peer: ServerId, wire: Wire) -> Result<Wire, WireError> {
        let agreed = Wire::agree(wire)?;
        if !self.gone.contains(&peer) {
            self.wires.insert(peer, agreed);
        }
        Ok(agreed)
    }

    /// Whether a server knows what there is since a version.
    pub(crate) fn knows(&self, peer: ServerId, since: Wire) -> bool {
        self.wires.get(&peer).copied().unwrap_or(Wire::UNSAID) >= since
    }

    /// Whether a server has said what it speaks.
    pub(crate) fn has_met(&self, peer: ServerId) -> bool {
        self.wires.contains_key(&peer)
    }

    /// Takes a frame from another server: its own, or one that it passes on.
    pub fn receive(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        frame: Frame,
    ) {
        if self.replaced || from == self.me || self.gone.contains(&from) {
            return;
        }
        let (from, frame) = match frame.message {
            Some(Message::Pass(pass)) => match self.hear_pass(now, from, pass) {
                Some(passed) => passed,
                None => return,
            },
            ref message => {
                let says_nothing = message.is_none();
                self.note_heard(now, from, says_nothing);
                (from, frame)
            }
        };
        let every = self.config.resend_after;
        self.links
            .entry(from)
            .or_default()
            .receive(now, every, frame);
        while let Some(message) = self.links.get_mut(&from).and_then(Link::next) {
            self.hear(now, values, from, message);
        }
        self.run(now, values);
        if let Some(link) = self.links.get_mut(&from) {
            let again = link.go_on();
            for frame in again.into_iter().chain(link.confirm(now)) {
                self.send_frame(now, from, frame, false);
            }
        }
    }

    /// Bytes of messages on their way to other servers, which are kept until they
    /// are confirmed. For each server about [`Config::window_bytes`] at most, but
    /// for commits under way and what somebody waits for.
    pub fn unconfirmed_bytes(&self) -> usize {
        self.links.values().map(Link::unconfirmed_bytes).sum()
    }

    fn hear(&mut self, now: Duration, values: &mut dyn Values, from: ServerId, message: Message) {
        match message {
            Message::Claim(claim) => self.hear_claim(now, from, claim),
            Message::ClaimAnswer(answer) => self.hear_answer(now, values, from, answer),
            Message::Gone { claim, ranges } => self.hear_gone(now, values, from, claim, &ranges),
            Message::Pull { claim, points } => self.hear_pull(from, claim, points),
            Message::Recover { claim, ranges } => self.hear_recover(from, claim, &ranges),
            Message::Chunk(chunk) => self.hear_chunk(now, values, from, chunk),
            Message::Taken { chunk } => self.hear_taken(now, values, from, chunk),
            Message::NotTaken { chunk } => self.hear_not_taken(from, chunk),
            Message::TakenInPart {
                chunk,
                unreadable,
                no_room,
            } => {
                let refused = [
                    (NotStored::Unreadable, unreadable),
                    (NotStored::NoRoom, no_room),
                ];
                self.hear_taken_in_part(now, values, from, chunk, refused);
            }
            Message::Copy { id, token, order } => {
                self.hear_copy(now, values, from, id, token, order);
            }
            Message::CopyDone { id } => self.hear_done(from, id),
            Message::CopyFailed {
                id,
                points,
                kept,
                no_room,
            } => {
                self.hear_failed(now, from, id, &points, kept, no_room);
            }
            Message::CopyRefused { id, newest, ranges } => {
                self.hear_refused(now, from, id, newest, &ranges);
            }
            Message::Attached {
                id,
                missing,
                unsettled,
            } => self.hear_attached(now, values, from, id, &missing, unsettled),
            Message::Settled { id } => self.hear_settled(from, id),
            // It is unpacked before it gets to a link.
            Message::Pass(_) => {}
        }
    }

    /// Time has passed, or it is the turn of a chunk that nobody waits for.
    pub fn tick(&mut self, now: Duration, values: &mut dyn Values) {
        if self.replaced {
            return;
        }
        self.look_at_lease(now);
        let every = self.config.resend_after;
        for to in self.links.keys().copied().collect::<Vec<_>>() {
            let Some(link) = self.links.get_mut(&to) else {
                continue;
            };
            let (again, confirm) = (link.resend(now, every), link.confirm(now));
            let vain = !again.is_empty() && link.is_in_vain();
            for frame in again {
                self.send_frame(now, to, frame, true);
            }
            if let Some(frame) = confirm {
                self.send_frame(now, to, frame, false);
            }
            if vain {
                self.ask_for_way(now, to);
            }
        }
        if let Some((version, at)) = self.learn
            && now >= at
        {
            self.learn = Some((version, now + every));
            self.effects.push_back(Effect::Learn(version));
        }
        self.run(now, values);
        self.send_bulk(now, values);
    }

    /// When `tick` has something to do.
    pub fn next_tick(&self) -> Option<Duration> {
        if self.replaced {
            return None;
        }
        let lapse = self.lease_until.filter(|_| !self.lease_lapsed);
        self.links
            .values()
            .filter_map(Link::next_tick)
            .chain(lapse)
            .chain(self.bulk_at())
            .chain(self.unmoved_at())
            .chain(self.followers.values().filter_map(|f| f.retry_at))
            .chain(
                self.followers
                    .values()
                    .filter_map(|f| f.declined.again_at()),
            )
            .chain(self.learn.map(|(_, at)| at))
            .min()
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// This server is about to stop: [`Effect::Drained`] says when nothing is
    /// left here. To be called once the coordination is known to have taken
    /// note, and the assignment of that time or a later one was learned: an
    /// older one may lack what was given to this server meanwhile.
    pub fn drain(&mut self, now: Duration, values: &mut dyn Values) {
        self.draining = true;
        self.run(now, values);
    }

    /// Whether it serves without a lease, or may serve with the one it has.
    pub(crate) fn may_serve(&self, now: Duration) -> bool {
        !self.config.needs_lease()
            || self.lease_until.is_some_and(|until| now < until)
            || crate::mutants::is(crate::mutants::Mutant::LeaseIgnored)
    }

    /// A commit of an owned key that the table wants to be told of.
    pub fn touched(&mut self, now: Duration, values: &mut dyn Values, point: KeyPoint, key: Bytes) {
        self.look_at_lease(now);
        if self.lease_lapsed && self.owned.has(point) {
            if self.provisional.len() < PROVISIONAL_KEYS_MAX {
                self.provisional.insert((point, key.clone()));
            } else {
                self.provisional_overflow = true;
            }
        }
        if self.followers.values().any(|f| f.held.has(point)) {
            self.touched.insert((point, key));
        }
        self.run(now, values);
    }

    /// Whether it had a lease, and has none any more.
    pub(crate) fn lease_lapsed(&self, now: Duration) -> bool {
        self.lease_until.is_some_and(|until| now >= until)
    }

    fn look_at_lease(&mut self, now: Duration) {
        let lapsed = self.lease_lapsed(now);
        if lapsed != self.lease_lapsed {
            self.lease_lapsed = lapsed;
            self.stale.all();
            if !lapsed {
                // Still a member: nobody has taken over.
                self.provisional.clear();
                self.provisional_overflow = false;
            }
        }
    }

    /// Everything that follows from what has changed.
    pub(crate) fn run(&mut self, now: Duration, values: &mut dyn Values) {
        if self.replaced {
            return;
        }
        self.ran_at = now;
        self.try_unmoved_again(now, values);
        self.publish(values);
        self.follow(now, values);
        self.settle(now, values);
        self.give(now, values);
        self.publish(values);
        self.look_for_bulk();
        self.flush_losses();
        self.look_whether_drained(now);
    }

    /// Publishes the table if something in it has changed.
    pub(crate) fn publish(&mut self, values: &mut dyn Values) {
        for point in self.proposals.take_changed() {
            self.stale.range(Slice::of_point(point));
        }
        let stale = std::mem::take(&mut self.stale);
        if !stale.is_any() {
            return;
        }
        let until = self
            .config
            .needs_lease()
            .then_some(self.lease_until.unwrap_or_default());
        self.segments_looked_at += stale.count();
        let table = self
            .table
            .with(self.anew(stale.segments()), until, self.map.version());
        if !self.table.is(&table) {
            self.table = Arc::new(table);
            values.publish(Arc::clone(&self.table));
        }
    }

    /// What is not as it would be if all of it were worked out anew, and not only where
    /// something has changed: for tests.
    #[doc(hidden)]
    pub fn overlooked(&self) -> Option<&'static str> {
        let all = self.anew(0..SEGMENTS);
        let whole = self
            .table
            .with(all, self.table.serve_until(), self.table.version());
        let rules = [
            (self.table.is(&whole), "a part of the table is old"),
            (
                self.leaving == self.to_leave(Slice::ALL),
                "who is to have what was claimed",
            ),
            (
                self.are_copies_whole(),
                "copies that are to be made or dropped",
            ),
        ];
        let broken = rules.iter().find(|(holds, _)| !holds && !self.replaced);
        broken.map(|(_, what)| *what)
    }

    /// 256ths of the key space that were looked at so far, for the table and for copies:
    /// for tests.
    #[doc(hidden)]
    pub fn segments_looked_at(&self) -> u64 {
        self.segments_looked_at
    }

    /// What is served of segments of the key space: ascending numbers.
    fn anew(
        &self,
        segments: impl Iterator<Item = usize>,
    ) -> impl Iterator<Item = (usize, Segment)> {
        let mut run = None;
        segments.map(move |index| (index, Segment::new(index, &mut run, |at| self.served(at))))
    }

    /// What holds of a point and of those behind it: as far as is easily seen, for it may hold
    /// further on, too.
    fn served(&self, point: KeyPoint) -> Run {
        let run = |status, is_owned, last| Run {
            status,
            is_owned,
            last,
        };
        let (leaves, mut last) = self.leaving.run(point);
        if leaves.is_some() {
            return run(Status::Ask, false, last);
        }
        let (token, end) = self.owned.run(point);
        last = last.min(end);
        let eventual = self.config.replication == crate::Replication::Eventual;
        let status = match token {
            Some(&token) => {
                let mut note = self.lease_lapsed;
                if eventual && !note {
                    let noted = self.noted(point);
                    (note, last) = (noted.0, last.min(noted.1));
                }
                Status::Owned {
                    token,
                    note,
                    propose: self.config.replication == crate::Replication::Strong,
                }
            }
            None if eventual => {
                let (copy, end) = self.copies.run(point);
                last = last.min(end);
                copy.map_or(Status::Ask, |_| Status::Copy)
            }
            None => Status::Ask,
        };
        let is_owned = token.is_some();
        match self
            .proposals
            .unsettled_points(Slice::spanning(point, last))
            .next()
        {
            Some(first) if first == point => run(Status::Ask, is_owned, point),
            Some(first) => run(status, is_owned, KeyPoint(first.0 - 1)),
            None => run(status, is_owned, last),
        }
    }

    /// Whether commits of a point that is owned are noted for its copies, from before one is
    /// made, and up to where.
    fn noted(&self, point: KeyPoint) -> (bool, KeyPoint) {
        let mut last = KeyPoint(u64::MAX);
        if let Some(map) = self.map.current() {
            let assigned = map.slice_of(point);
            if assigned.servers.len() > 1 {
                return (true, assigned.slice.last());
            }
            last = assigned.slice.last();
        }
        for follower in self.followers.values() {
            let (held, end) = follower.held.run(point);
            if held.is_some() {
                return (true, end);
            }
            last = last.min(end);
        }
        (false, last)
    }

    /// The coordination has ended this server's membership: as if a view
    /// without it had been learned. [`Effect::Replaced`] follows.
    pub fn expire(&mut self, values: &mut dyn Values) {
        if !self.replaced {
            self.retire(values);
        }
    }

    /// The others take this server for dead.
    fn retire(&mut self, values: &mut dyn Values) {
        self.replaced = true;
        if self.provisional_overflow {
            let ranges = self.owned.slices();
            self.lose(
                LossReason::Replaced,
                Extent::LastCommits,
                ranges,
                Vec::new(),
            );
        } else if !self.provisional.is_empty() {
            let keys = std::mem::take(&mut self.provisional).into_iter().collect();
            self.lose(LossReason::Replaced, Extent::LastCommits, Vec::new(), keys);
        }
        self.flush_losses();
        let gave = self.owned.slices();
        self.owned = RangeMap::default();
        self.leaving = RangeMap::default();
        self.giving.clear();
        self.unmoved.clear();
        self.unstored = Unstored::default();
        self.fill_waiting.clear();
        self.recoveries.clear();
        self.copies = RangeMap::default();
        self.wanted = RangeSet::default();
        self.transit.clear();
        self.transit_at = RangeMap::default();
        self.table = Arc::new(Table::nothing());
        values.publish(Arc::clone(&self.table));
        self.give_up_proposals();
        for (_, tickets) in std::mem::take(&mut self.parked) {
            self.effects.extend(tickets.into_iter().map(Effect::Wake));
        }
        for (_, ticket) in std::mem::take(&mut self.parked_for) {
            self.effects.push_back(Effect::Wake(ticket));
        }
        if !gave.is_empty() {
            self.effects.push_back(Effect::Gave(gave));
        }
        self.effects.push_back(Effect::Replaced);
    }

    /// A server is dead for ever.
    fn bury(&mut self, now: Duration, server: ServerId, values: &mut dyn Values) {
        self.gone.insert(server);
        self.links.remove(&server);
        self.wires.remove(&server);
        self.ways.remove(&server);
        self.fill_waiting.remove(&server);
        self.giving.remove(&server);
        self.heard.remove(&server);
        self.lived.remove(&server);
        self.answered.remove(&server);
        self.told_newest.remove(&server);
        self.forget_claimant(now, server, values);
        self.forget_source(server);
        self.forget_follower(server);
        if let Some((_, awaited)) = &mut self.farewell {
            awaited.remove(&server);
        }
    }

    /// A server has lived by this assignment.
    pub(crate) fn note_lived(&mut self, server: ServerId, version: AssignmentVersion) {
        // Of itself it knows better.
        if server != self.me && !self.gone.contains(&server) {
            let lived = self.lived.entry(server).or_insert(version);
            *lived = version.max(*lived);
        }
    }

    /// Whether more may be sent to this server that can wait.
    pub(crate) fn is_open(&self, server: ServerId) -> bool {
        let link = self.links.get(&server);
        link.is_none_or(|link| link.is_open(self.config.window_bytes))
    }

    /// Says something to somebody who is not known to be dead.
    pub(crate) fn say_with(&mut self, now: Duration, to: ServerId, haste: Haste, message: Message) {
        if self.gone.contains(&to) {
            return;
        }
        debug_assert!(self.knows(to, message.since()), "to {to}: {message:?}");
        let link = self.links.entry(to).or_default();
        let frame = link.send(now, self.config.resend_after, haste, message);
        self.send_frame(now, to, frame, false);
    }

    /// The same, where somebody waits for it.
    pub(crate) fn say(&mut self, now: Duration, to: ServerId, message: Message) {
        self.say_with(now, to, Haste::Urgent, message);
    }

    pub(crate) fn tell(&mut self, effect: Effect) {
        self.effects.push_back(effect);
    }

    /// Somebody goes by an assignment that may be newer.
    pub(crate) fn hear_version(&mut self, now: Duration, version: AssignmentVersion) {
        if self.map.version() >= Some(version)
            || self.learn.is_some_and(|(wanted, _)| wanted >= version)
        {
            return;
        }
        self.learn = Some((version, now + self.config.resend_after));
        self.effects.push_back(Effect::Learn(version));
    }

    /// The newest assignment that is known or has been heard of.
    pub(crate) fn newest_heard(&self) -> Option<AssignmentVersion> {
        self.map
            .version()
            .max(self.learn.map(|(version, _)| version))
    }

    /// Notes a loss; those of one kind are reported together.
    pub(crate) fn lose(
        &mut self,
        reason: LossReason,
        extent: Extent,
        ranges: Vec<Slice>,
        keys: Vec<(KeyPoint, Bytes)>,
    ) {
        let Some(version) = self.map.version() else {
            return;
        };
        let same = self
            .losses
            .iter_mut()
            .find(|loss| (loss.reason, loss.extent, loss.version) == (reason, extent, version));
        match same {
            Some(loss) => {
                loss.ranges.extend(ranges);
                loss.keys.extend(keys);
            }
            None => self.losses.push(Loss {
                reason,
                extent,
                version,
                ranges,
                keys,
            }),
        }
    }

    fn flush_losses(&mut self) {
        for mut loss in std::mem::take(&mut self.losses) {
            loss.ranges.sort_unstable();
            loss.ranges = crate::ranges::joined(loss.ranges);
            self.effects.push_back(Effect::Loss(loss));
        }
    }
}
