//! Callers: they go by a map, follow a redirect, and try again; and what the
//! servers do with their requests.

use crate::many::Ends;
use crate::profile::{FREEZE, PEACE};
use crate::server::{Server, Stored};
use crate::truth::Broken;
use crate::violation::Property;
use crate::world::{Event, World, trace};
use std::sync::Arc;
use std::time::Duration;
use trefoil_linklet_core::{Access, Decision, Replication, Request, Status, Ticket};
use trefoil_sharder::{Assignment, AssignmentVersion, ServerId};

const TIMEOUT: Duration = Duration::from_millis(350);
/// After which a caller turns to something else.
const PATIENCE: Duration = Duration::from_millis(2_500);
/// Nobody waits longer for a server that can be reached through another one: until that is
/// tried (eight times 80 ms), and for what is said then.
const HELD: Duration = Duration::from_millis(1_500);
/// How long it takes until nothing is left of that a server stood still, or a map came.
const AFTERWARDS: Duration = Duration::from_millis(500);
const ANSWER: Duration = Duration::from_millis(300);
/// From then on maps are stable.
const STABLE: Duration = FREEZE.saturating_add(Duration::from_millis(400));

/// What a caller wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    ReadCopy,
    Put,
    Remove,
}

/// One request on its way.
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    caller: usize,
    key: usize,
    kind: Kind,
    /// The write, if it is one.
    write: u64,
    stored: Option<Stored>,
    /// What it was computed from, once that was looked at.
    base: Option<Option<u64>>,
    /// It was begun, refused or given up: nothing comes of it any more.
    over: bool,
    known: Option<AssignmentVersion>,
    redirects: u32,
    server: usize,
    sent: Duration,
}

/// What comes back.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Done,
    /// Nothing was done; somebody else has it, and this is the newest map.
    Redirect(Option<ServerId>, Option<Arc<Assignment>>),
    /// Nothing was done.
    Refused,
    Unknown,
}

/// One caller; it does one thing after the other.
#[derive(Debug, Default)]
pub(crate) struct Caller {
    map: Option<Arc<Assignment>>,
    /// The attempt that it waits for, and since when it tries.
    waits: Option<usize>,
    since: Duration,
}

impl Caller {
    pub(crate) fn learn(&mut self, map: &Arc<Assignment>) {
        let newer = |known: &Arc<Assignment>| known.version() < map.version();
        if self.map.as_ref().is_none_or(newer) {
            self.map = Some(Arc::clone(map));
        }
    }
}

impl World<'_> {
    /// Whether maps are stable. One who has just been elected waits for a whole lease, so
    /// that they may not be before the last death.
    fn stable(&self, since: Duration) -> bool {
        let longer = self.profile.longer;
        !self.profile.elections
            && since >= longer + STABLE
            && self.now < longer + PEACE
            && self.last_death.is_none()
    }

    /// Whether there is little to find any more: the trouble is over, and not much is asked
    /// of what it has left behind.
    fn is_quiet(&self) -> bool {
        self.calm && self.ends == Ends::Early
    }

    /// A caller begins something.
    pub(crate) fn act(&mut self, at: usize) {
        if self.callers[at].waits.is_some() {
            return;
        }
        self.callers[at].since = self.now;
        if self.profile.crowd && self.filled < self.truth.keys.len() {
            self.filled += 1;
            self.attempt(at, self.filled - 1, Kind::Put);
            return;
        }
        let key = self.rng.below(self.truth.keys.len());
        let kind = match self.rng.below(16) {
            0..7 => Kind::Put,
            7 => Kind::Remove,
            drawn if drawn < 16 - self.profile.copy_reads => Kind::Read,
            _ => Kind::ReadCopy,
        };
        self.attempt(at, key, kind);
    }

    fn attempt(&mut self, caller: usize, key: usize, kind: Kind) {
        let point = self.truth.keys[key].point;
        let Some(map) = self.callers[caller].map.clone() else {
            self.pause(caller);
            return;
        };
        let servers = &map.slice_of(point).servers;
        if servers.is_empty() {
            self.pause(caller);
            return;
        }
        let server = match kind {
            Kind::ReadCopy => self.rng.pick(servers),
            _ => servers[0],
        };
        let write = match kind {
            Kind::Put => self.truth.ask(key, false),
            Kind::Remove => self.truth.ask(key, true),
            _ => 0,
        };
        let stored = (kind == Kind::Put).then(|| Stored {
            write,
            unmarshallable: self.rng.chance(self.profile.unmarshallable),
            unreadable: self.rng.chance(self.profile.unreadable),
        });
        self.ask(Attempt {
            caller,
            key,
            kind,
            write,
            stored,
            base: None,
            over: false,
            known: Some(map.version()),
            redirects: 0,
            server: server.0 as usize - 1,
            sent: self.now,
        });
    }

    fn ask(&mut self, attempt: Attempt) {
        let number = self.attempts.len();
        self.callers[attempt.caller].waits = Some(number);
        let server = attempt.server;
        trace!(self, "caller asks {}: {number} {attempt:?}", server + 1);
        self.attempts.push(attempt);
        self.stats.requests += 1;
        self.after(TIMEOUT, Event::Timeout(number));
        if !self.rng.chance(self.profile.lost) {
            let delay = self.rng.micros(100, 2_000);
            self.after(delay, Event::Request(server, number));
        }
    }

    fn pause(&mut self, caller: usize) {
        self.callers[caller].waits = None;
        // Bursts, and quiet in between.
        let next = if self.profile.crowd {
            match self.filled < self.truth.keys.len() {
                true => self.rng.micros(100, 1_000),
                false => self.rng.micros(20_000, 300_000),
            }
        } else if self.rng.chance(600) && !self.is_quiet() {
            self.rng.micros(500, 6_000)
        } else {
            self.rng.micros(60_000, 400_000)
        };
        self.after(next, Event::Act(caller));
    }

    pub(crate) fn reply(&mut self, attempt: usize, outcome: Outcome) {
        if !self.rng.chance(self.profile.lost) {
            let delay = self.rng.micros(100, 2_000);
            self.after(delay, Event::Reply(attempt, outcome));
        }
    }

    pub(crate) fn replied(&mut self, number: usize, outcome: Outcome) -> Result<(), Broken> {
        let attempt = self.attempts[number].clone();
        if self.callers[attempt.caller].waits != Some(number) {
            return Ok(());
        }
        trace!(self, "caller has the answer to {number}: {outcome:?}");
        match outcome {
            Outcome::Done => {
                self.stats.answers += 1;
                self.pause(attempt.caller);
            }
            Outcome::Redirect(to, map) => {
                if let Some(map) = map {
                    self.callers[attempt.caller].learn(&map);
                }
                self.stats.redirects += 1;
                let redirects = attempt.redirects + 1;
                if redirects > 1 && self.stable(self.callers[attempt.caller].since) {
                    return Err((
                        Property::Redirected,
                        format!("request {number} was redirected {redirects} times"),
                    ));
                }
                let known = self.callers[attempt.caller].map.as_ref();
                let known = known.map(|map| map.version());
                match to {
                    Some(to) if redirects < 8 => self.ask(Attempt {
                        redirects,
                        known,
                        server: to.0 as usize - 1,
                        sent: self.now,
                        base: None,
                        over: false,
                        ..attempt
                    }),
                    _ => self.again(&attempt),
                }
            }
            // It may be so for long: without enough servers for copies.
            Outcome::Refused => self.pause(attempt.caller),
            Outcome::Unknown => self.again(&attempt),
        }
        Ok(())
    }

    /// Tries anew, as another write: what became of the former is unknown.
    fn again(&mut self, attempt: &Attempt) {
        let caller = attempt.caller;
        if self.now - self.callers[caller].since > PATIENCE {
            self.pause(caller);
        } else {
            self.attempt(caller, attempt.key, attempt.kind);
        }
    }

    pub(crate) fn timed_out(&mut self, number: usize) -> Result<(), Broken> {
        let attempt = self.attempts[number].clone();
        if self.callers[attempt.caller].waits != Some(number) {
            return Ok(());
        }
        if self.stable(self.callers[attempt.caller].since) && self.now - attempt.sent >= ANSWER {
            return Err((
                Property::OwnedAgain,
                format!("request {number} got no reply in peace: {attempt:?}"),
            ));
        }
        self.check_held(number)?;
        if self.profile.updates && self.rng.chance(700) {
            let delay = self.rng.micros(100, 2_000);
            self.after(delay, Event::Cancel(attempt.server, number));
        }
        self.again(&attempt);
        Ok(())
    }

    fn check_held(&self, number: usize) -> Result<(), Broken> {
        self.check_not_concerned(number)?;
        let attempt = &self.attempts[number];
        let since = self.callers[attempt.caller].since;
        let held = self.profile.cuts && !self.calm && since >= self.disturbed_until;
        if held && self.now - since > HELD {
            let waited = self.now - since;
            let message = format!("request {number} has waited for {waited:?}: {attempt:?}");
            return Err((Property::Held, message));
        }
        Ok(())
    }

    /// Where servers stand still: a request has an answer if those that have its key do not
    /// and have not for a while, by a map that is not new.
    fn check_not_concerned(&self, number: usize) -> Result<(), Broken> {
        let attempt = &self.attempts[number];
        let point = self.truth.keys[attempt.key].point;
        let Some(view) = self
            .coordination
            .view
            .as_ref()
            .filter(|_| self.profile.hangs)
        else {
            return Ok(());
        };
        let servers = &view.assignment.slice_of(point).servers;
        let since = attempt.sent.saturating_sub(AFTERWARDS);
        let stands_still = |server: &Server| server.paused || server.resumed_at > since;
        let is_well = |id: &ServerId| {
            let server = &self.servers[id.0 as usize - 1];
            server.is_up() && !stands_still(server)
        };
        // What a map has changed was done before anybody stood still.
        let settled = self.told_at + AFTERWARDS;
        let is_settled = |server: &Server| !stands_still(server) || settled <= server.paused_at;
        let asked = &self.servers[attempt.server];
        let is_concerned = servers.first() != Some(&asked.id)
            || asked.token(point).is_none()
            || settled > attempt.sent
            || !servers.iter().all(is_well)
            || !self.servers.iter().all(is_settled);
        if is_concerned {
            return Ok(());
        }
        let message = format!(
            "request {number} has no answer, and all is well with {servers:?}: {attempt:?}"
        );
        Err((Property::Held, message))
    }

    /// Its caller has gone, which drops the call.
    pub(crate) fn cancelled(&mut self, at: usize, number: usize) {
        let key = self.attempts[number].key;
        if self.servers[at].turns.cancel(key, number) {
            trace!(self, "server {} drops {number}", at + 1);
            self.servers[at].core.forget_request(Ticket(number as u64));
            self.end_turn(at, number);
        }
    }

    /// An attempt has come to its end at a server: the next one looks at the key.
    pub(crate) fn end_turn(&mut self, at: usize, number: usize) {
        let key = self.attempts[number].key;
        self.attempts[number].over = true;
        if let Some(next) = self.servers[at].turns.end(key, number) {
            self.after(Duration::ZERO, Event::Request(at, next));
        }
    }

    /// A change that depends on what is there: its turn, a look, and some time later
    /// the proposal. `None`: it may be proposed now.
    fn update(
        &mut self,
        at: usize,
        number: usize,
        request: &Request,
    ) -> Option<Result<(), Broken>> {
        let key = self.attempts[number].key;
        if self.attempts[number].over {
            // Woken twice.
            return Some(Ok(()));
        }
        if !self.servers[at].turns.take(key, number) {
            return Some(Ok(()));
        }
        let point = request.point;
        let name = self.truth.keys[key].key.clone();
        let seen = self.servers[at].memory.read(point, &name);
        match self.attempts[number].base {
            Some(base) if base == seen => None,
            Some(_) => {
                // It was moved or lost in between: a conflict.
                self.end_turn(at, number);
                self.reply(number, Outcome::Refused);
                Some(self.pump(at))
            }
            None => {
                let server = &mut self.servers[at];
                let clock = server.clock(self.now);
                let decision = server.core.request(clock, &mut server.memory, request);
                let result = match decision {
                    Decision::Serve { token } => self.look(at, number, token, seen),
                    Decision::Wait => Ok(()),
                    Decision::Redirect { to, .. } => {
                        self.end_turn(at, number);
                        let map = self.servers[at].map.clone();
                        self.reply(number, Outcome::Redirect(to, map));
                        Ok(())
                    }
                    Decision::ServeCopy | Decision::Refused(_) => {
                        self.end_turn(at, number);
                        self.reply(number, Outcome::Refused);
                        Ok(())
                    }
                };
                Some(result.and_then(|()| self.pump(at)))
            }
        }
    }

    fn look(
        &mut self,
        at: usize,
        number: usize,
        token: AssignmentVersion,
        seen: Option<u64>,
    ) -> Result<(), Broken> {
        let key = self.attempts[number].key;
        if self.is_owner(at, key, token)? {
            self.truth.read(key, seen)?;
        }
        trace!(self, "{number} is computed from {seen:?}");
        self.attempts[number].base = Some(seen);
        let delay = self.rng.micros(0, 1_500);
        self.after(delay, Event::Request(at, number));
        Ok(())
    }

    /// A change takes effect: of what was it computed?
    fn check_base(&self, number: usize) -> Result<(), Broken> {
        let Attempt {
            key, write, base, ..
        } = self.attempts[number];
        let current = self.truth.keys[key].current;
        match base {
            Some(base) if base != current => Err((
                Property::Lost,
                format!(
                    "write {write} of key {key} was computed from {base:?}, and took the place of {current:?}"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// A server deals with a request, as the runtime does: by the table, and
    /// by the core where the table says so.
    pub(crate) fn serve(&mut self, at: usize, number: usize) -> Result<(), Broken> {
        let attempt = self.attempts[number].clone();
        let (point, key) = {
            let truth = &self.truth.keys[attempt.key];
            (truth.point, truth.key.clone())
        };
        let request = Request {
            ticket: Ticket(number as u64),
            point,
            access: match attempt.kind {
                Kind::Read => Access::Read,
                Kind::ReadCopy => Access::ReadCopy,
                Kind::Put | Kind::Remove => Access::Commit,
            },
            known: attempt.known,
        };
        let commits = request.access == Access::Commit;
        let updates = commits && self.profile.updates;
        if updates && let Some(done) = self.update(at, number, &request) {
            return done;
        }
        let server = &mut self.servers[at];
        let clock = server.clock(self.now);
        let table = server.core.table();
        let in_time = table.serve_until().is_none_or(|until| clock < until);
        let decision = match table.status(point) {
            Status::Owned {
                propose: true,
                token,
                ..
            } if in_time && !commits => Decision::Serve { token },
            Status::Owned {
                propose: false,
                token,
                note,
            } if in_time => {
                if commits {
                    self.truth.begin(attempt.write);
                    server.memory.write(point, &key, attempt.stored);
                    if note {
                        let memory = &mut server.memory;
                        server.core.touched(clock, memory, point, key.clone());
                    }
                    return self.committed(at, number, token, note);
                }
                Decision::Serve { token }
            }
            Status::Copy if attempt.kind == Kind::ReadCopy => Decision::ServeCopy,
            _ if commits => {
                let operation = Server::operation(attempt.stored);
                let proposed = (point, key.clone(), attempt.stored);
                server.memory.proposed.insert(request.ticket, proposed);
                let memory = &mut server.memory;
                let decision = server
                    .core
                    .propose(clock, memory, &request, key.clone(), operation);
                if matches!(decision, Decision::Serve { .. }) {
                    self.truth.begin(attempt.write);
                    server.turns.propose(attempt.key, number);
                    self.attempts[number].over = true;
                } else {
                    server.memory.proposed.remove(&request.ticket);
                }
                decision
            }
            _ => server.core.request(clock, &mut server.memory, &request),
        };
        trace!(
            self,
            "server {} decides about {number}: {decision:?}",
            at + 1
        );
        if updates && matches!(decision, Decision::Redirect { .. } | Decision::Refused(_)) {
            self.end_turn(at, number);
        }
        match decision {
            Decision::Serve { .. } if commits => {}
            Decision::Serve { token } => self.read(at, number, token)?,
            Decision::ServeCopy => {
                self.stats.copy_reads += 1;
                if self.profile.replication == Replication::Strong {
                    let seen = self.servers[at].memory.read(point, &key);
                    trace!(self, "copy read {seen:?}");
                    self.truth.read(attempt.key, seen)?;
                }
                self.reply(number, Outcome::Done);
            }
            Decision::Wait => self.stats.waits += 1,
            Decision::Redirect { to, .. } => {
                let map = self.servers[at].map.clone();
                self.reply(number, Outcome::Redirect(to, map));
            }
            Decision::Refused(_) => self.reply(number, Outcome::Refused),
        }
        self.pump(at)
    }

    /// Whether a server that serves a key is its newest owner; an error if it
    /// must not serve because it is not.
    fn is_owner(
        &mut self,
        at: usize,
        key: usize,
        token: AssignmentVersion,
    ) -> Result<bool, Broken> {
        let server = &self.servers[at];
        let truth = &self.truth.keys[key];
        if truth.epoch == Some(token) {
            return Ok(true);
        }
        let lease = server.clock(self.now) < server.lease_until;
        let strict = self.profile.replication == Replication::Strong || self.profile.lease_required;
        // In transit or given away is never served, whatever the lease.
        if lease || strict {
            let message = format!(
                "{} serves key {key} by {token}, the newest owner's is {:?}",
                server.id, truth.epoch
            );
            return Err((Property::OneOwner, message));
        }
        Ok(false)
    }

    fn read(&mut self, at: usize, number: usize, token: AssignmentVersion) -> Result<(), Broken> {
        let key = self.attempts[number].key;
        if self.is_owner(at, key, token)? {
            let truth = &self.truth.keys[key];
            let seen = self.servers[at].memory.read(truth.point, &truth.key);
            trace!(self, "read {seen:?}");
            self.truth.read(key, seen)?;
        }
        self.reply(number, Outcome::Done);
        Ok(())
    }

    /// A commit in a mode that does not wait for copies.
    fn committed(
        &mut self,
        at: usize,
        number: usize,
        token: AssignmentVersion,
        noted: bool,
    ) -> Result<(), Broken> {
        let Attempt { key, write, .. } = self.attempts[number];
        if self.is_owner(at, key, token)? {
            self.truth.done(write);
        } else if noted {
            self.stats.void += 1;
            self.servers[at].void.push(key);
        }
        self.reply(number, Outcome::Done);
        self.pump(at)
    }

    /// A proposed commit was made visible, but too few servers have it.
    pub(crate) fn settled_thin(&mut self, at: usize, ticket: Ticket) -> Result<(), Broken> {
        let Attempt { key, write, .. } = self.attempts[ticket.0 as usize];
        let truth = &self.truth.keys[key];
        if self.servers[at].token(truth.point) == truth.epoch {
            self.check_base(ticket.0 as usize)?;
            self.truth.done(write);
            self.truth.keys[key].copies = 0;
            self.stats.thin += 1;
        }
        Ok(())
    }

    /// A proposed commit was made visible.
    pub(crate) fn settled(
        &mut self,
        at: usize,
        ticket: Ticket,
        token: AssignmentVersion,
    ) -> Result<(), Broken> {
        let Attempt {
            key: index,
            write,
            stored,
            ..
        } = self.attempts[ticket.0 as usize];
        let has_value = stored.is_some();
        let owner = self.is_owner(at, index, token)?;
        if !owner {
            self.servers[at].void.push(index);
            self.stats.void += 1;
            return Ok(());
        }
        self.check_base(ticket.0 as usize)?;
        self.truth.done(write);
        let expected = has_value.then_some(write);
        let truth = &self.truth.keys[index];
        let (point, key) = (truth.point, &truth.key);
        // Whoever has confirmed it has it, or what came after it, whether it has
        // died since or not.
        let has = |server: &&Server| {
            let actual = server.memory.read(point, key);
            actual == expected || self.truth.reveals(index, actual).is_some()
        };
        let holders = self.servers.iter().filter(has).count();
        if has_value && holders < self.profile.copies_min {
            let id = self.servers[at].id;
            let message =
                format!("{id} acknowledged the commit of key {index} with {holders} copies");
            return Err((Property::Undone, message));
        }
        let copies = self
            .servers
            .iter()
            .filter(|server| server.is_up() && !server.expired)
            .filter(|server| server.memory.read(point, key) == expected)
            .count();
        let view = self.coordination.view.as_ref();
        // Where the newest map has a single server, the other copies are about
        // to be dropped, though the owner may not know it yet.
        let promised = has_value && view.is_some_and(|view| !view.is_thin(point));
        // Who confirmed it and died before it was settled, unnoticed, is one that
        // the owner counts on: he dies after the commit.
        let map = self.servers[at].core.assignment();
        let listed = map.map_or(&[][..], |map| &map.slice_of(point).servers);
        let dead = |id: &&ServerId| {
            let server = &self.servers[id.0 as usize - 1];
            server.crashed || server.expired
        };
        let unnoticed = listed.iter().filter(dead).count();
        let lacks = |id: &&ServerId| {
            let server = &self.servers[id.0 as usize - 1];
            let member = server.is_up() && !server.expired;
            // Told by an older map to drop it: nobody counts on its copy before it
            // has been given another one.
            let dropping = self.servers[at].core.is_dropping(**id, point);
            member && !dropping && server.memory.read(point, key) != expected
        };
        // Later commits may have got there already.
        let memory = &self.servers[at].memory;
        let mut proposed = memory.proposed.values();
        let last = memory.read(point, key) == expected
            && !proposed.any(|(at, of, _)| (*at, of) == (point, key));
        // What is being given away is the next owner's to copy.
        let stays = self.servers[at].core.table().is_owned(point);
        if last
            && stays
            && listed.first() == Some(&self.servers[at].id)
            && let Some(lacks) = listed[1..].iter().find(lacks)
        {
            let message =
                format!("{lacks} is to have key {index}, and lacks an acknowledged commit");
            return Err((Property::Copied, message));
        }
        let truth = &mut self.truth.keys[index];
        truth.copies = if promised { copies } else { 0 };
        truth.deaths = self.deaths - unnoticed;
        Ok(())
    }
}
