//! The state of one server, and the ways in and out.

use crate::Replication;
use crate::authority::Authority;
use crate::bulk::Bulk;
use crate::config::{Config, ConfigError};
use crate::copies::Copies;
use crate::drain::Drain;
use crate::effect::Effect;
use crate::followers::Followers;
use crate::giver::Giver;
use crate::known::Known;
use crate::lease::Lease;
use crate::link::Haste;
use crate::loss::{Extent, LossReason};
use crate::message::{Frame, Message};
use crate::outbox::Outbox;
use crate::peers::Peers;
use crate::proposals::Proposals;
use crate::published::Published;
use crate::ranges::differing;
use crate::receiver::Receiver;
use crate::table::Table;
use crate::values::{NotStored, Values};
use crate::waiting::Waiting;
use crate::wire::{Wire, WireError};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use trefoil_sharder::{
    AssignedSlice, Assignment, AssignmentVersion, KeyPoint, Learned, ServerId, Slice,
};

/// See the first page of this crate.
///
/// | part | what it holds |
/// |---|---|
/// | `Known` | the map, and what the others know of maps |
/// | `Peers` | who lives, and the links to them |
/// | `Lease` | until when this server may serve |
/// | `Authority` | what is owned here, and what was promised |
/// | `Receiver` | what is to come here |
/// | `Giver` | what others have claimed, and what is on its way to them |
/// | `Copies` | copies of others' values |
/// | `Followers` | who has copies of what is owned here |
/// | `Proposals` | strong commits under way |
/// | `Waiting` | requests that wait |
/// | `Published` | the table |
/// | `Bulk`, `Drain` | what goes in turns; how far this server has come with stopping |
/// | `Outbox` | what the driver is to do |
///
/// Each part keeps its own fields and says what holds of them. What concerns several is here,
/// and in the modules of their roles: methods of `Core` that borrow one part beside another.
#[derive(Debug)]
pub struct Core {
    pub(crate) me: ServerId,
    pub(crate) config: Config,
    /// The others have taken this server for dead.
    pub(crate) replaced: bool,
    /// When everything that follows was last worked out.
    pub(crate) ran_at: Duration,
    pub(crate) known: Known,
    pub(crate) peers: Peers,
    pub(crate) lease: Lease,
    pub(crate) authority: Authority,
    pub(crate) receiver: Receiver,
    pub(crate) giver: Giver,
    pub(crate) copies: Copies,
    pub(crate) followers: Followers,
    pub(crate) proposals: Proposals,
    pub(crate) waiting: Waiting,
    pub(crate) published: Published,
    pub(crate) bulk: Bulk,
    pub(crate) drain: Drain,
    pub(crate) outbox: Outbox,
}

impl Core {
    /// One that knows nothing and has nothing. `me` is this life of the
    /// process; another life has another.
    pub fn new(me: ServerId, config: Config) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Core {
            me,
            replaced: false,
            ran_at: Duration::ZERO,
            known: Known::nothing(),
            peers: Peers::nobody(me, &config),
            lease: Lease::default(),
            authority: Authority::default(),
            receiver: Receiver::default(),
            giver: Giver::default(),
            copies: Copies::nothing(config.replication),
            followers: Followers::default(),
            proposals: Proposals::default(),
            waiting: Waiting::default(),
            published: Published::nothing(),
            bulk: Bulk::default(),
            drain: Drain::default(),
            outbox: Outbox::default(),
            config,
        })
    }

    /// Which life this is.
    pub fn id(&self) -> ServerId {
        self.me
    }

    /// The assignment that it goes by.
    pub fn version(&self) -> Option<AssignmentVersion> {
        self.known.version()
    }

    /// The assignment that it goes by, for callers that have an older one.
    pub fn assignment(&self) -> Option<&Assignment> {
        self.known.map()
    }

    /// The table published last.
    pub fn table(&self) -> &Arc<Table> {
        self.published.table()
    }

    /// The fencing token of a key whose authority is here.
    pub fn token(&self, point: KeyPoint) -> Option<AssignmentVersion> {
        self.authority.token(point)
    }

    /// Whether all that is assigned to this server has arrived.
    pub fn is_complete(&self) -> bool {
        self.receiver.wanted().is_empty()
    }

    /// What is assigned to this server and has not arrived, ascending.
    pub fn wanted(&self) -> Vec<Slice> {
        self.receiver.wanted().slices()
    }

    /// The ranges of which this server has copies, ascending.
    pub fn copies(&self) -> Vec<Slice> {
        self.copies.here().slices()
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
        let before = self.known.map().cloned();
        let learned = self.known.offer(assignment.clone());
        if self.replaced || !matches!(learned, Learned::Adopted | Learned::Same) {
            return learned;
        }
        let mut living = alive.clone();
        let named = assignment.slices().iter().flat_map(|slice| &slice.servers);
        living.extend(named);
        let present = living.remove(&self.me);
        if self.known.is_left_out(present) {
            self.retire(values);
            return learned;
        }
        let version = assignment.version();
        // A frame of a server alone says nothing of when it lived: it may have come
        // since. Who is dead was alive here before, or has said by which assignment.
        let alive_before = self.peers.hear_of_living(living);
        let known: BTreeSet<ServerId> = self.known.have_lived().chain(alive_before).collect();
        let mut asked_died = false;
        for server in known {
            if !self.peers.is_alive(server) && !self.known.lived_after(server, version) {
                asked_died |= self.receiver.has_asked(server);
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
        self.known.note_learned(version);
        self.waiting.wake_informed(version, &mut self.outbox);
        self.wake_unwanted();
        self.conclude(now, values);
        self.run(now, values);
        learned
    }

    /// Goes by a new map, and looks only at what it changes: amid a move there are tens
    /// of thousands of ranges, and a map may come twice a second.
    fn adopt(&mut self, now: Duration, before: Option<&Assignment>) {
        let Some(map) = self.known.map() else {
            return;
        };
        let all = [Slice::ALL];
        let changed = |same: &dyn Fn(&AssignedSlice, &AssignedSlice) -> bool| match before {
            Some(before) => differing(before.slices(), map.slices(), same),
            None => all.to_vec(),
        };
        let first = changed(&|a, b| a.servers.first() == b.servers.first());
        let servers = changed(&|a, b| a.servers == b.servers);
        // A claim by a map that was not known here was not judged by it.
        let unknown = before.is_none_or(|before| self.giver.has_claim_after(before.version()));
        match unknown {
            true => self.redirect_claims(&all),
            false => self.redirect_claims(&first),
        }
        self.followers.try_refused_again();
        if !self.claim_stays(before) {
            self.claim_anew(now, before);
        }
        for &slice in &servers {
            self.followers.stale.range(slice);
            if self.config.replication == Replication::Eventual {
                self.published.stale.range(slice);
            }
        }
        self.published.stale.touch();
    }

    /// The coordination has renewed this server's lease until then on its own
    /// clock: already shortened by what clocks may drift.
    pub fn lease(&mut self, now: Duration, values: &mut dyn Values, until: Duration) {
        if self.lease.renew(until) {
            self.published.stale.touch();
        }
        self.look_at_lease(now);
        self.conclude(now, values);
        self.run(now, values);
    }

    /// Hears what a server speaks, before its first frame: what both know is used from now
    /// on. One that is never met is taken for one of before versions were said. Frames of
    /// one with which there is no understanding are not to be taken.
    pub fn meet(&mut self, peer: ServerId, wire: Wire) -> Result<Wire, WireError> {
        self.peers.meet(peer, wire)
    }

    /// Takes a frame from another server: its own, or one that it passes on.
    pub fn receive(
        &mut self,
        now: Duration,
        values: &mut dyn Values,
        from: ServerId,
        frame: Frame,
    ) {
        if self.replaced || !self.peers.may_live(from) {
            return;
        }
        let (peers, outbox) = (&mut self.peers, &mut self.outbox);
        let (from, frame) = match frame.message {
            Some(Message::Pass(pass)) => match peers.hear_pass(now, outbox, from, pass) {
                Some(passed) => passed,
                None => return,
            },
            ref message => {
                let says_nothing = message.is_none();
                peers.note_heard(now, outbox, from, says_nothing);
                (from, frame)
            }
        };
        peers.receive(now, from, frame);
        while let Some(message) = self.peers.next(from) {
            self.hear(now, values, from, message);
        }
        self.run(now, values);
        self.peers.confirm(now, &mut self.outbox, from);
    }

    /// Bytes of messages on their way to other servers, which are kept until they
    /// are confirmed. For each server about [`Config::window_bytes`] at most, but
    /// for commits under way and what somebody waits for.
    pub fn unconfirmed_bytes(&self) -> usize {
        self.peers.unconfirmed_bytes()
    }

    /// Servers that are reached through others only.
    pub fn detours(&self, now: Duration) -> usize {
        self.peers.detours(now)
    }

    fn hear(&mut self, now: Duration, values: &mut dyn Values, from: ServerId, message: Message) {
        match message {
            Message::Claim(claim) => self.hear_claim(now, from, claim),
            Message::ClaimAnswer(answer) => self.hear_answer(now, values, from, answer),
            Message::Gone { claim, ranges } => self.hear_gone(now, values, from, claim, &ranges),
            Message::Pull { claim, points } => self.hear_pull(from, claim, points),
            Message::Recover { claim, ranges } => self.giver.hear_recover(from, claim, &ranges),
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
            Message::Settled { id } => self.copies.hear_settled(from, id),
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
        self.peers.tick(now, &mut self.outbox);
        let every = self.config.resend_after;
        self.known.ask_again(now, every, &mut self.outbox);
        self.run(now, values);
        self.send_bulk(now, values);
    }

    /// When `tick` has something to do.
    pub fn next_tick(&self) -> Option<Duration> {
        if self.replaced {
            return None;
        }
        let ticks = [
            self.peers.next_tick(),
            self.lease.next_tick(),
            self.bulk_at(),
            self.receiver.next_tick(),
            self.giver.next_tick(),
            self.followers.next_tick(),
            self.known.next_tick(),
        ];
        ticks.into_iter().flatten().min()
    }

    /// The next thing to do.
    pub fn poll(&mut self) -> Option<Effect> {
        self.outbox.poll()
    }

    /// This server is about to stop: [`Effect::Drained`] says when nothing is
    /// left here. To be called once the coordination is known to have taken
    /// note, and the assignment of that time or a later one was learned: an
    /// older one may lack what was given to this server meanwhile.
    pub fn drain(&mut self, now: Duration, values: &mut dyn Values) {
        self.drain.ask();
        self.run(now, values);
    }

    /// Whether it serves without a lease, or may serve with the one it has.
    pub(crate) fn may_serve(&self, now: Duration) -> bool {
        !self.config.needs_lease()
            || self.lease.holds(now)
            || crate::mutants::is(crate::mutants::Mutant::LeaseIgnored)
    }

    /// A commit of an owned key that the table wants to be told of.
    pub fn touched(&mut self, now: Duration, values: &mut dyn Values, point: KeyPoint, key: Bytes) {
        self.look_at_lease(now);
        if self.lease.is_out() && self.authority.owned().has(point) {
            self.lease.note_commit(point, key.clone());
        }
        self.followers.touch(point, key);
        self.run(now, values);
    }

    fn look_at_lease(&mut self, now: Duration) {
        if self.lease.look(now) {
            self.published.stale.all();
        }
    }

    /// What is served of this, and who is to have copies of it, may have changed.
    pub(crate) fn look_at(&mut self, slice: Slice) {
        self.published.stale.range(slice);
        self.followers.stale.range(slice);
    }

    /// Where copies of what stays are to be depends on all of the map, and on who is alive.
    fn look_at_staying(&mut self) {
        for point in self.giver.unmoved_within(Slice::ALL) {
            self.followers.stale.range(Slice::of_point(point));
        }
    }

    /// Everything that follows from what has changed.
    pub(crate) fn run(&mut self, now: Duration, values: &mut dyn Values) {
        if self.replaced {
            return;
        }
        self.ran_at = now;
        self.try_unstored_again(now, values);
        self.try_unmoved_again(now);
        self.publish(values);
        self.follow(now, values);
        self.settle(now, values);
        self.give(now, values);
        self.publish(values);
        self.bulk.look();
        self.outbox.flush_losses();
        self.look_whether_drained(now);
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
        let gave = self.authority.cede_all();
        let (void, last) = (LossReason::Replaced, Extent::LastCommits);
        match self.lease.take_provisional() {
            None => self.lose(void, last, gave.clone(), Vec::new()),
            Some(keys) if keys.is_empty() => {}
            Some(keys) => self.lose(void, last, Vec::new(), keys.into_iter().collect()),
        }
        self.outbox.flush_losses();
        self.giver.forget_all();
        self.receiver.forget_all();
        self.followers.fill_nobody();
        self.copies.remove_all();
        self.published.withdraw(values);
        self.give_up_proposals();
        self.waiting.wake_all(&mut self.outbox);
        if !gave.is_empty() {
            self.tell(Effect::Gave(gave));
        }
        self.tell(Effect::Replaced);
    }

    /// A server is dead for ever.
    fn bury(&mut self, now: Duration, server: ServerId, values: &mut dyn Values) {
        self.peers.bury(server);
        self.known.forget(server);
        self.forget_claimant(now, server, values);
        self.receiver.forget_source(server);
        self.forget_follower(server);
        self.drain.forget_server(server);
    }

    /// A server has lived by this assignment.
    pub(crate) fn note_lived(&mut self, server: ServerId, version: AssignmentVersion) {
        // Of itself it knows better.
        if self.peers.may_live(server) {
            self.known.note_lived(server, version);
        }
    }

    /// Says something to somebody who is not known to be dead.
    pub(crate) fn say_with(&mut self, now: Duration, to: ServerId, haste: Haste, message: Message) {
        self.peers.say(now, &mut self.outbox, to, haste, message);
    }

    /// The same, where somebody waits for it.
    pub(crate) fn say(&mut self, now: Duration, to: ServerId, message: Message) {
        self.say_with(now, to, Haste::Urgent, message);
    }

    pub(crate) fn tell(&mut self, effect: Effect) {
        self.outbox.tell(effect);
    }

    /// Somebody goes by an assignment that may be newer.
    pub(crate) fn hear_version(&mut self, now: Duration, version: AssignmentVersion) {
        let every = self.config.resend_after;
        self.known
            .hear_version(now, every, version, &mut self.outbox);
    }

    /// Notes a loss, unless there was nothing to lose before the first map.
    pub(crate) fn lose(
        &mut self,
        reason: LossReason,
        extent: Extent,
        ranges: Vec<Slice>,
        keys: Vec<(KeyPoint, Bytes)>,
    ) {
        if let Some(version) = self.known.version() {
            self.outbox.lose(version, reason, extent, ranges, keys);
        }
    }
}
