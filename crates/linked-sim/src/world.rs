//! One run: an event queue in virtual time.

use crate::callers::{Attempt, Caller, Outcome};
use crate::coordination::{Coordination, Renewal, View};
use crate::elections::Elections;
use crate::ledger::{Answer, Ask};
use crate::many::Ends;
use crate::profile::{
    CUT_S, DRIFT_PPM_MAX, END, FREEZE, LEASE, OWNED_AGAIN, PEACE, Profile, SMALL, TROUBLE, believed,
};
use crate::queue::Queue;
use crate::rng::Rng;
use crate::server::Server;
use crate::stats::Stats;
use crate::truth::{Broken, KeyTruth, Truth};
use crate::violation::Property;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use trefoil_linklet_core::{
    Effect, Extent, Frame, Loss, LossReason, Message, Ticket, Uncertain, Wire,
};
use trefoil_sharder::{Assignment, KeyPoint, ServerId, Slice};

/// The keys' names; static, since nothing is copied more often.
const NAMES: &[u8] = b"0123456789abcdef";
/// The same where there are more keys than that.
static LONG_NAMES: [[u8; 2]; 2048] = long_names();

const fn long_names() -> [[u8; 2]; 2048] {
    let mut names = [[0; 2]; 2048];
    let mut at = 0;
    while at < names.len() {
        names[at] = (at as u16).to_be_bytes();
        at += 1;
    }
    names
}

/// One event in so many is followed by a look at all that a server has worked out.
const OVERLOOKED_EVERY: u64 = 128;

/// Copies that a map has are made within this time, where nothing else goes wrong.
const RESTORED_IN: Duration = Duration::from_millis(600);

/// After a death requests may wait for so long: a lease, and what comes after it.
const DISTURBED: Duration = Duration::from_millis(4_000);

/// When servers with little memory come, in runs of what stays.
const SMALL_COME: Duration = Duration::from_millis(1_200);

/// How often is looked whether everything is owned, when nothing goes wrong any more.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// For how long it is, before the last one dies, or the run ends.
const OWNED_FOR: Duration = Duration::from_millis(300);

/// What was refused for so long the assigner hears of.
const REFUSED_FOR: Duration = Duration::from_millis(400);

/// Receives a line for every step.
pub(crate) type Trace<'a> = Option<&'a mut dyn FnMut(&str)>;

#[derive(Debug)]
pub(crate) enum Event {
    Frame(usize, ServerId, Box<Frame>),
    Request(usize, usize),
    Again(usize, Ticket),
    Reply(usize, Outcome),
    Tick(usize),
    Renew(usize),
    /// To a server: a renewed lease until then on its clock, and the view.
    Told(usize, Option<Duration>, Arc<View>),
    /// To a server: a lease before there is a view.
    Leased(usize, Duration),
    Ended(usize),
    CallerTold(usize, Arc<Assignment>),
    Act(usize),
    Timeout(usize),
    /// To a server: the caller of an attempt has gone.
    Cancel(usize, usize),
    Assign,
    /// A candidate looks at what is due.
    Turn(usize),
    /// The store takes what a candidate asks.
    Asked(usize, Box<Ask>),
    Answered(usize, Box<Answer>),
    /// A candidate sees what has come into force.
    See(usize, Arc<View>),
    /// A candidate is stopped or cut off, and not any more.
    Topple,
    Restore(usize),
    Fault,
    Resume(usize),
    Uncut(usize),
    Mend(ServerId, ServerId),
    Die,
    Calm,
    Freeze,
    Crash,
    /// Everything has to be owned by now.
    Owned,
    /// Whether it is already.
    LookWhetherOwned,
    /// It was: if it still is, the last one dies, or the run ends.
    End,
}

pub(crate) struct World<'a> {
    pub(crate) profile: Profile,
    pub(crate) rng: Rng,
    /// What becomes of frames that are passed on: apart, so that seeds in which none gets
    /// through stay what they are.
    passes: Rng,
    pub(crate) now: Duration,
    queue: Queue<Event>,
    pub(crate) servers: Vec<Server>,
    pub(crate) coordination: Coordination,
    /// Where two assigners lead by election.
    pub(crate) elections: Option<Elections>,
    /// Events for servers that are stopped.
    deferred: Vec<(usize, Event)>,
    /// From whom to whom nothing comes through.
    parted: BTreeSet<(ServerId, ServerId)>,
    /// Until then requests may wait for a dead server, where links are cut for long.
    pub(crate) disturbed_until: Duration,
    pub(crate) callers: Vec<Caller>,
    pub(crate) attempts: Vec<Attempt>,
    /// When something came into force last.
    pub(crate) told_at: Duration,
    /// Keys that somebody has begun to fill, where there are hundreds.
    pub(crate) filled: usize,
    pub(crate) truth: Truth,
    /// Servers that crashed or expired.
    pub(crate) deaths: usize,
    pub(crate) calm: bool,
    pub(crate) ends: Ends,
    /// When one died after the trouble, and nothing else goes wrong.
    pub(crate) last_death: Option<Duration>,
    is_over: bool,
    pub(crate) stats: Stats,
    trace: Trace<'a>,
}

fn delay(rng: &mut Rng, late: u32) -> Duration {
    if rng.chance(late) {
        rng.micros(3_000, 300_000)
    } else {
        rng.micros(200, 3_000)
    }
}

/// Writes a trace line, if anybody reads it.
macro_rules! trace {
    ($world:expr, $($arg:tt)*) => {
        if $world.traced() {
            let line = format!($($arg)*);
            $world.line(&line);
        }
    };
}
pub(crate) use trace;

pub(crate) fn run(
    profile: Profile,
    rng: Rng,
    ends: Ends,
    trace: Trace<'_>,
) -> (Stats, Result<(), Broken>) {
    let passes = Rng::new(!rng.clone().next());
    let mut world = World {
        coordination: Coordination::new(&profile),
        elections: None,
        profile,
        rng,
        passes,
        now: Duration::ZERO,
        queue: Queue::new(),
        servers: Vec::new(),
        deferred: Vec::new(),
        parted: BTreeSet::new(),
        disturbed_until: Duration::ZERO,
        callers: Vec::new(),
        attempts: Vec::new(),
        told_at: Duration::ZERO,
        filled: 0,
        truth: Truth::default(),
        deaths: 0,
        calm: false,
        ends,
        last_death: None,
        is_over: false,
        stats: Stats::default(),
        trace,
    };
    world.set_up();
    let result = world.go();
    world.stats.seeds = 1;
    (world.stats, result)
}

impl World<'_> {
    fn set_up(&mut self) {
        let profile = format!("{:?}", self.profile);
        trace!(self, "{profile}");
        for at in 0..self.profile.keys {
            // Now and then two keys at one point.
            let before = self.truth.keys.last().map(|truth| truth.point);
            let point = match before.filter(|_| self.rng.chance(60)) {
                Some(point) => point,
                None => KeyPoint(self.rng.next()),
            };
            self.truth.keys.push(KeyTruth {
                point,
                key: Bytes::from_static(match self.profile.crowd {
                    true => &LONG_NAMES[at],
                    false => &NAMES[at..=at],
                }),
                current: None,
                epoch: None,
                copies: 0,
                deaths: 0,
                thin_at: Duration::ZERO,
            });
        }
        for _ in 0..self.profile.servers {
            self.start_server();
        }
        for at in 0..self.profile.callers {
            self.callers.push(Caller::default());
            let first = self.rng.micros(600_000, 900_000);
            self.after(first, Event::Act(at));
        }
        if !self.set_up_elections() {
            self.after(Duration::from_millis(50), Event::Assign);
        }
        if !self.profile.fault_every.is_zero() {
            let first = match () {
                () if self.profile.stays => 1_600,
                () if self.profile.hangs => 2_600,
                () => 1_000,
            };
            self.after(Duration::from_millis(first), Event::Fault);
        }
        if self.profile.hangs {
            // Nothing moves but for death, so that it is known who waits for whom.
            self.after(Duration::from_millis(1_800), Event::Freeze);
        }
        let longer = self.profile.longer;
        self.after(longer + TROUBLE, Event::Calm);
        self.after(longer + FREEZE, Event::Freeze);
        self.after(longer + PEACE, Event::Crash);
        self.after(longer + PEACE + OWNED_AGAIN, Event::Owned);
    }

    pub(crate) fn start_server(&mut self) {
        let at = self.servers.len();
        let drift = self.rng.below(2 * DRIFT_PPM_MAX as usize) as i64 - DRIFT_PPM_MAX;
        let offset = self.rng.micros(0, 1_000_000_000);
        let id = ServerId(at as u64 + 1);
        let mut server = Server::new(id, &self.profile, drift, offset);
        if self.calm || (self.profile.stays && at >= SMALL) {
            server.memory.room = None;
        }
        if self.profile.picky > 0 && !self.calm {
            server.memory.picky = self.rng.chance(self.profile.picky);
        }
        self.servers.push(server);
        let first = self.rng.micros(0, 20_000);
        // With little memory they come when keys are there, to be given some.
        let late = self.profile.stays && at < SMALL;
        let begin = if late { SMALL_COME } else { Duration::ZERO };
        self.after(begin + first, Event::Renew(at));
    }

    pub(crate) fn after(&mut self, delay: Duration, event: Event) {
        self.queue.push(self.now + delay, event);
    }

    pub(crate) fn traced(&self) -> bool {
        self.trace.is_some()
    }

    pub(crate) fn line(&mut self, line: &str) {
        let now = self.now.as_secs_f64();
        if let Some(trace) = &mut self.trace {
            trace(&format!("{now:9.6} {line}"));
        }
    }

    fn go(&mut self) -> Result<(), Broken> {
        while let Some((at, event)) = self.queue.pop() {
            self.now = at;
            if self.is_over || self.now > self.profile.longer + END {
                break;
            }
            self.stats.events += 1;
            self.step(event)?;
        }
        self.check_end()
    }

    /// The server that an event is for.
    fn addressee(event: &Event) -> Option<usize> {
        match event {
            Event::Frame(at, ..)
            | Event::Request(at, _)
            | Event::Cancel(at, _)
            | Event::Again(at, _)
            | Event::Tick(at)
            | Event::Renew(at)
            | Event::Ended(at)
            | Event::Leased(at, _)
            | Event::Told(at, ..) => Some(*at),
            _ => None,
        }
    }

    fn step(&mut self, event: Event) -> Result<(), Broken> {
        if let Event::Tick(at) = event
            && self.servers[at].tick_at != Some(self.now)
        {
            // An earlier one was scheduled since, and has seen to it.
            return Ok(());
        }
        if let Some(at) = Self::addressee(&event) {
            if !self.servers[at].is_up() {
                return Ok(());
            }
            if self.servers[at].paused {
                self.deferred.push((at, event));
                return Ok(());
            }
            // A driver looks at its clock before anything else.
            let server = &mut self.servers[at];
            let clock = server.clock(self.now);
            if server.due.is_some_and(|tick| tick <= clock) {
                server.core.tick(clock, &mut server.memory);
                self.pump(at)?;
                if !self.servers[at].is_up() {
                    return Ok(());
                }
            }
        }
        match event {
            Event::Frame(at, from, frame) => {
                if let Some(Message::Pass(pass)) = &frame.message
                    && pass.to == self.servers[at].id
                {
                    self.stats.passed += 1;
                }
                let server = &mut self.servers[at];
                let clock = server.clock(self.now);
                // One of before reads nothing else in what others say that they speak.
                let former = self.profile.is_former(from) || self.profile.is_former(server.id);
                let wire = if former { Wire::UNSAID } else { Wire::OWN };
                if let Err(error) = server.core.meet(from, wire) {
                    return Err((Property::Panic, error.to_string()));
                }
                server.core.receive(clock, &mut server.memory, from, *frame);
                self.pump(at)
            }
            Event::Request(at, attempt) => self.serve(at, attempt),
            Event::Again(at, ticket) => self.serve(at, ticket.0 as usize),
            Event::Reply(attempt, outcome) => self.replied(attempt, outcome),
            Event::Tick(at) => {
                self.servers[at].tick_at = None;
                self.schedule(at);
                Ok(())
            }
            Event::Renew(at) if self.elections.is_some() => {
                self.renew_by_election(at);
                Ok(())
            }
            Event::Renew(at) => {
                self.renew(at);
                Ok(())
            }
            Event::Told(at, lease, view) => self.told(at, lease, &view),
            Event::Leased(at, until) => self.leased(at, until),
            Event::Ended(at) => {
                let server = &mut self.servers[at];
                server.core.expire(&mut server.memory);
                self.pump(at)
            }
            Event::CallerTold(at, map) => {
                self.callers[at].learn(&map);
                Ok(())
            }
            Event::Act(at) => {
                self.act(at);
                Ok(())
            }
            Event::Timeout(attempt) => self.timed_out(attempt),
            Event::Cancel(at, attempt) => {
                self.cancelled(at, attempt);
                Ok(())
            }
            Event::Assign => {
                self.assign();
                Ok(())
            }
            Event::Turn(at) => {
                self.candidate_turn(at);
                Ok(())
            }
            Event::Asked(at, ask) => self.asked(at, *ask),
            Event::Answered(at, answer) => {
                self.answered(at, *answer);
                Ok(())
            }
            Event::See(at, view) => {
                self.see(at, &view);
                Ok(())
            }
            Event::Topple => {
                self.topple();
                Ok(())
            }
            Event::Restore(at) => {
                self.restore(at);
                Ok(())
            }
            Event::Fault => {
                self.fault();
                Ok(())
            }
            Event::Resume(at) => {
                self.resume(at);
                Ok(())
            }
            Event::Uncut(at) => {
                self.servers[at].cut = false;
                let id = self.servers[at].id;
                if self.profile.dies_when_back && !self.calm && self.coordination.has_ended(id) {
                    trace!(self, "{id} comes back, and the coordination dies");
                    self.coordination
                        .fail_until(self.now + Duration::from_millis(300));
                }
                Ok(())
            }
            Event::Mend(a, b) => {
                self.parted.remove(&(a, b));
                self.parted.remove(&(b, a));
                Ok(())
            }
            Event::Die => {
                self.die();
                Ok(())
            }
            Event::Calm => {
                self.calm_down();
                if self.ends == Ends::Early {
                    self.after(LOOK_EVERY, Event::LookWhetherOwned);
                }
                Ok(())
            }
            Event::Freeze => {
                self.freeze();
                Ok(())
            }
            // It has happened before where it need not wait.
            Event::Crash if self.last_death.is_some() => Ok(()),
            Event::Crash => self.last_crash(),
            Event::Owned => self.check_owned(),
            Event::LookWhetherOwned => self.look_whether_owned(),
            Event::End => self.come_to_end(),
        }
    }

    /// Does what a server wants done.
    pub(crate) fn pump(&mut self, at: usize) -> Result<(), Broken> {
        let mut losses: Vec<Loss> = Vec::new();
        let mut gained: Vec<Slice> = Vec::new();
        while let Some(effect) = self.servers[at].core.poll() {
            if self.traced() && !matches!(effect, Effect::Send { .. }) {
                let id = self.servers[at].id;
                trace!(self, "{id}: {effect:?}");
            }
            match effect {
                Effect::Send { to, frame } => self.send(at, to, frame)?,
                Effect::Wake(ticket) => self.after(Duration::ZERO, Event::Again(at, ticket)),
                Effect::Settled { ticket, result } => {
                    let outcome = match result {
                        Ok(commit) => {
                            self.settled(at, ticket, commit.token)?;
                            Outcome::Done
                        }
                        Err(why) => {
                            match why {
                                Uncertain::TooFewCopies { .. } => self.settled_thin(at, ticket)?,
                                Uncertain::TakenBack => {
                                    self.servers[at].memory.proposed.remove(&ticket);
                                    self.stats.taken_back += 1;
                                }
                                Uncertain::Replaced => {}
                            }
                            Outcome::Unknown
                        }
                    };
                    self.end_turn(at, ticket.0 as usize);
                    self.reply(ticket.0 as usize, outcome);
                }
                Effect::Loss(loss) => losses.push(loss),
                Effect::Gained(slices) => gained.extend(slices),
                Effect::NotMoved { points, .. } => self.stats.unmoved += points.len() as u64,
                Effect::Gave(_) | Effect::NotCopied { .. } | Effect::Detour { .. } => {}
                Effect::Learn(_) => {
                    let server = &self.servers[at];
                    if !server.cut
                        && !self.coordination.is_down(self.now)
                        && let Some(view) = self.coordination.told()
                    {
                        let delay = self.rng.micros(300, 5_000);
                        self.after(delay, Event::Told(at, None, view));
                    }
                }
                Effect::Drained => self.drained(at),
                Effect::Replaced => self.replaced(at, &losses)?,
            }
        }
        // It looks at everything, which is slow.
        if self.stats.events.is_multiple_of(OVERLOOKED_EVERY)
            && let Some(what) = self.servers[at].core.overlooked()
        {
            let message = format!("{}: {what}", self.servers[at].id);
            return Err((Property::Overlooked, message));
        }
        self.stats.losses += losses.len() as u64;
        self.check_gained(at, &gained, &losses)?;
        self.schedule(at);
        Ok(())
    }

    fn schedule(&mut self, at: usize) {
        let server = &mut self.servers[at];
        server.due = server.core.next_tick();
        if let Some(tick) = server.due {
            let when = server.when(tick).max(self.now);
            if server.tick_at.is_none_or(|scheduled| when < scheduled) {
                self.servers[at].tick_at = Some(when);
                self.after(when - self.now, Event::Tick(at));
            }
        }
    }

    pub(crate) fn delay(&mut self) -> Duration {
        delay(&mut self.rng, self.profile.late)
    }

    fn send(&mut self, at: usize, to: ServerId, frame: Frame) -> Result<(), Broken> {
        let from = self.servers[at].id;
        trace!(self, "{from} -> {to}: {frame:?}");
        let former = self.profile.is_former(from) || self.profile.is_former(to);
        if let Some(message) = &frame.message
            && former
            && message.since() > Wire::UNSAID
        {
            let message =
                format!("{from} says to {to} what one of before does not know: {message:?}");
            return Err((Property::Former, message));
        }
        let index = to.0 as usize - 1;
        if index >= self.servers.len() || self.parted.contains(&(from, to)) {
            return Ok(());
        }
        self.stats.frames += 1;
        if let Some(Message::Chunk(chunk)) = &frame.message {
            self.stats.chunks += 1;
            self.stats.chunk_keys += chunk.entries.len() as u64;
        }
        let (profile, rng) = (&self.profile, &mut self.rng);
        let rng = match &frame.message {
            Some(Message::Pass(_)) => &mut self.passes,
            // A greeting.
            None if frame.confirmed == 0 => &mut self.passes,
            _ => rng,
        };
        if rng.chance(profile.lost) {
            return Ok(());
        }
        let again = rng
            .chance(profile.repeated)
            .then(|| delay(rng, profile.late));
        let delay = delay(rng, profile.late);
        if let Some(again) = again {
            self.after(again, Event::Frame(index, from, Box::new(frame.clone())));
        }
        self.after(delay, Event::Frame(index, from, Box::new(frame)));
        Ok(())
    }

    fn renew(&mut self, at: usize) {
        // Four times in a lease, about.
        let lease = self.servers[at].granted.unwrap_or(LEASE).as_micros() as u64;
        let again = self.rng.micros(lease / 5, lease * 3 / 10);
        self.after(again, Event::Renew(at));
        let server = &self.servers[at];
        if server.cut {
            return;
        }
        let (id, draining) = (server.id, server.draining);
        // It gets there some time after it was sent, which is when the
        // server's own reckoning begins.
        let sent = server.clock(self.now);
        let knows = server.knows.clone();
        let renewal =
            self.coordination
                .renew(self.now, id, draining, server.granted, knows.as_deref());
        match renewal {
            Renewal::Away | Renewal::Behind => {}
            Renewal::Ended => {
                let delay = self.delay();
                self.after(delay, Event::Ended(at));
            }
            Renewal::Granted(lease) => {
                let Some(view) = self.coordination.told() else {
                    return;
                };
                self.servers[at].granted = Some(lease);
                let delay = self.delay();
                let until = Some(sent + believed(lease));
                self.after(delay, Event::Told(at, until, view));
            }
        }
    }

    fn told(&mut self, at: usize, lease: Option<Duration>, view: &Arc<View>) -> Result<(), Broken> {
        let now = self.now;
        let server = &mut self.servers[at];
        if server.cut {
            return Ok(());
        }
        // A member has its lease before it hears of anything.
        let is_member = lease.is_some() || !server.lease_until.is_zero();
        if self.elections.is_some() && !is_member {
            return Ok(());
        }
        let clock = server.clock(now);
        if server.view < view.number {
            server.view = view.number;
            server.knows = Some(Arc::clone(view));
            let (core, memory) = (&mut server.core, &mut server.memory);
            core.learn(clock, memory, &view.assignment, &view.alive);
            server.learn(&view.assignment);
            if view.draining.contains(&server.id) {
                server.core.drain(clock, &mut server.memory);
            }
        }
        match lease {
            Some(until) => self.leased(at, until),
            None => self.pump(at),
        }
    }

    fn leased(&mut self, at: usize, until: Duration) -> Result<(), Broken> {
        let server = &mut self.servers[at];
        if !server.cut {
            let clock = server.clock(self.now);
            server.lease_until = server.lease_until.max(until);
            server.core.lease(clock, &mut server.memory, until);
        }
        self.pump(at)
    }

    fn assign(&mut self) {
        self.after(Duration::from_millis(100), Event::Assign);
        let before = self.coordination.view.clone();
        let new_deals = self.coordination.new_deals;
        if self.profile.unstored_told {
            for server in self.servers.iter().filter(|server| server.is_up()) {
                let refusals = server.core.refusals(server.clock(self.now), REFUSED_FOR);
                self.coordination.unstored.insert(server.id, refusals);
            }
        }
        let expired = self.coordination.step(self.now, &mut self.rng, self.calm);
        for id in expired {
            self.expire(id);
        }
        if self.coordination.new_deals > new_deals {
            trace!(self, "everything is dealt anew");
            self.truth.begin_anew();
        }
        let Some(view) = self.coordination.view.clone() else {
            return;
        };
        let small = |id: &ServerId| id.0 <= SMALL as u64;
        let dead = |id: &ServerId| !self.servers[id.0 as usize - 1].is_up();
        for truth in &mut self.truth.keys {
            let servers = &view.assignment.slice_of(truth.point).servers;
            if servers.len() < 2 || servers[1..].iter().any(small) || servers.iter().any(dead) {
                truth.thin_at = self.now;
            }
        }
        self.tell_news(before);
    }

    /// The coordination has struck a server off.
    pub(crate) fn expire(&mut self, id: ServerId) {
        trace!(self, "{id} has expired");
        let server = &mut self.servers[id.0 as usize - 1];
        server.expired = true;
        if !server.crashed {
            self.deaths += 1;
        }
    }

    /// Whoever is there hears of what has come into force since.
    pub(crate) fn tell_news(&mut self, before: Option<Arc<View>>) {
        let Some(view) = self.coordination.view.clone() else {
            return;
        };
        let news = before.is_none_or(|before| !Arc::ptr_eq(&before, &view));
        if !news {
            return;
        }
        self.stats.maps += 1;
        self.told_at = self.now;
        for truth in &mut self.truth.keys {
            if view.is_thin(truth.point) {
                truth.copies = 0;
            }
        }
        if self.traced() {
            let slices = view.assignment.slices().iter();
            let map: Vec<String> = slices
                .map(|assigned| {
                    let servers = assigned.servers.iter().map(|server| server.0);
                    format!(
                        "{:x}:{:?}",
                        assigned.slice.start().0 >> 48,
                        servers.collect::<Vec<_>>()
                    )
                })
                .collect();
            trace!(
                self,
                "{}: {} alive {:?}",
                view.assignment.version(),
                map.join(" "),
                view.alive
            );
        }
        for at in 0..self.servers.len() {
            if self.servers[at].is_up() && !self.servers[at].cut {
                let delay = self.delay();
                self.after(delay, Event::Told(at, None, Arc::clone(&view)));
            }
        }
        for at in 0..self.callers.len() {
            let delay = self.rng.micros(2_000, 200_000);
            self.after(delay, Event::CallerTold(at, Arc::clone(&view.assignment)));
        }
        self.tell_candidates(&view);
    }

    fn up(&self) -> Vec<usize> {
        (0..self.servers.len())
            .filter(|&at| self.servers[at].is_up())
            .collect()
    }

    /// How many servers a map may name.
    fn staying(&self) -> usize {
        let stays = |server: &&Server| server.is_up() && !server.draining && !server.expired;
        self.servers.iter().filter(stays).count()
    }

    fn fault(&mut self) {
        if self.calm {
            return;
        }
        if self.profile.stays {
            self.one_by_one();
            return;
        }
        if self.profile.cuts {
            self.cut_for_long();
            return;
        }
        if self.profile.hangs {
            self.stand_still();
            return;
        }
        let every = self.profile.fault_every.as_micros() as u64;
        let next = self.rng.micros(every / 2, every * 3 / 2);
        self.after(next, Event::Fault);
        let up = self.up();
        if up.is_empty() {
            self.start_server();
            return;
        }
        let at = self.rng.pick(&up);
        let id = self.servers[at].id;
        let choice = if self.profile.pauses_only {
            1
        } else if self.profile.elections {
            // The assigners have their own troubles.
            self.rng.pick(&[0, 1, 1, 3, 4, 5, 6])
        } else if self.profile.outages_only {
            self.rng.pick(&[1, 3, 3, 5, 7, 7])
        } else {
            self.rng.below(8)
        };
        match choice {
            0 if up.len() > 1 => self.crash(at),
            1 | 2 => {
                // Around the length of the lease, or short.
                let length = if self.profile.pauses_only || self.rng.chance(500) {
                    self.rng.micros(1_000_000, 3_000_000)
                } else {
                    self.rng.micros(20_000, 500_000)
                };
                if !self.servers[at].paused {
                    trace!(self, "{id} is stopped for {length:?}");
                    self.servers[at].paused = true;
                    self.servers[at].paused_at = self.now;
                    self.after(length, Event::Resume(at));
                }
            }
            3 => {
                let length = self.rng.micros(100_000, 3_000_000);
                trace!(self, "{id} is cut off from the coordination for {length:?}");
                self.servers[at].cut = true;
                self.after(length, Event::Uncut(at));
            }
            4 => {
                let other = self.rng.pick(&up);
                let other = self.servers[other].id;
                let (one, other) = (id.min(other), id.max(other));
                let length = self.rng.micros(50_000, 2_000_000);
                trace!(self, "{one} and {other} are parted for {length:?}");
                self.parted.extend([(one, other), (other, one)]);
                self.after(length, Event::Mend(one, other));
            }
            5 if self.servers.len() < 9 => self.start_server(),
            6 if self.staying() > 2 => {
                trace!(self, "{id} drains");
                self.servers[at].draining = true;
            }
            7 => {
                let length = self.rng.micros(200_000, 2_500_000);
                trace!(self, "the coordination is down for {length:?}");
                self.coordination.fail_until(self.now + length);
            }
            _ => {}
        }
    }

    /// A link is cut in both directions or in one, for far longer than a lease, which its
    /// servers have meanwhile. Now and then a server dies in that time.
    fn cut_for_long(&mut self) {
        let up = self.up();
        let one = self.rng.pick(&up);
        let other = self.rng.pick(&up);
        let (one, other) = (self.servers[one].id, self.servers[other].id);
        let [from, to] = CUT_S.map(|seconds| seconds * 1_000_000);
        let length = self.rng.micros(from, to);
        if one != other {
            let both = self.rng.chance(512);
            trace!(
                self,
                "from {one} to {other} nothing comes through for {length:?}, or back: {both}"
            );
            self.parted.insert((one, other));
            if both {
                self.parted.insert((other, one));
            }
            self.after(length, Event::Mend(one, other));
        }
        let pause = self.rng.micros(100_000, 1_000_000);
        self.after(length + pause, Event::Fault);
        // In the middle of it.
        if self.rng.chance(200) {
            let within = self.rng.micros(0, length.as_micros() as u64);
            self.after(within, Event::Die);
        }
    }

    /// A server stands still, for less than its lease.
    fn stand_still(&mut self) {
        self.after(self.profile.fault_every, Event::Fault);
        let up = self.up();
        let at = self.rng.pick(&up);
        let length = self.rng.micros(400_000, 900_000);
        let id = self.servers[at].id;
        trace!(self, "{id} stands still for {length:?}");
        self.servers[at].paused = true;
        self.servers[at].paused_at = self.now;
        self.after(length, Event::Resume(at));
    }

    fn die(&mut self) {
        if self.calm || self.staying() < 3 {
            return;
        }
        let up = self.up();
        let at = self.rng.pick(&up);
        self.crash(at);
        self.start_server();
        self.disturbed_until = self.now + DISTURBED;
    }

    /// One server dies, or is told to stop, when all is whole again after the last one.
    /// Another one takes its place.
    fn one_by_one(&mut self) {
        self.after(self.profile.fault_every, Event::Fault);
        let mut big = self.up();
        big.retain(|&at| at >= SMALL && !self.servers[at].draining);
        let at = self.rng.pick(&big);
        let drains = self.deaths > 0 && self.rng.chance(350);
        if drains && self.staying() == self.up().len() {
            let id = self.servers[at].id;
            trace!(self, "{id} drains");
            self.servers[at].draining = true;
        } else {
            self.look_whether_restored();
            self.count_staying(at);
            self.crash(at);
        }
        self.start_server();
    }

    /// What stays where the map does not have it, when a server dies.
    fn count_staying(&mut self, dies: usize) {
        let has_copy = |server: &Server, point| {
            let copies = server.core.copies();
            copies.iter().any(|slice| slice.contains(point))
        };
        for at in self.up() {
            for point in self.servers[at].core.what_stays() {
                let others = self.servers.iter().filter(|server| server.is_up());
                let copied = others.filter(|server| has_copy(server, point)).count();
                self.stats.stays += 1;
                self.stats.stays_copied += u64::from(copied > 0);
                let concerned = at == dies || has_copy(&self.servers[dies], point);
                self.stats.stays_struck += u64::from(concerned);
            }
        }
    }

    /// What has an owner has all of its copies again: so the next death loses nothing.
    fn look_whether_restored(&mut self) {
        for key in 0..self.truth.keys.len() {
            let point = self.truth.keys[key].point;
            let owns = |server: &Server| server.is_up() && server.token(point).is_some();
            let thin_at = self.truth.keys[key].thin_at;
            if self.now > thin_at + RESTORED_IN && self.servers.iter().any(owns) {
                self.truth.restored(key, self.deaths);
            }
        }
    }

    fn crash(&mut self, at: usize) {
        let id = self.servers[at].id;
        trace!(self, "{id} crashes");
        self.servers[at].crashed = true;
        self.deaths += 1;
        self.stats.crashes += 1;
    }

    fn resume(&mut self, at: usize) {
        if !std::mem::take(&mut self.servers[at].paused) {
            return;
        }
        let id = self.servers[at].id;
        trace!(self, "{id} goes on");
        let server = &mut self.servers[at];
        server.suspended += self.now.saturating_sub(server.paused_at);
        server.resumed_at = self.now;
        self.stats.pauses += 1;
        let deferred = std::mem::take(&mut self.deferred);
        for (server, event) in deferred {
            if server == at {
                self.after(Duration::ZERO, event);
            } else {
                self.deferred.push((server, event));
            }
        }
        self.servers[at].tick_at = Some(self.now);
        self.after(Duration::ZERO, Event::Tick(at));
    }

    /// Nothing goes wrong any more.
    fn calm_down(&mut self) {
        trace!(self, "calm");
        self.calm = true;
        self.profile.lost = 0;
        self.profile.repeated = 0;
        self.profile.late = 0;
        self.coordination.recover(self.now);
        self.calm_elections();
        self.parted.clear();
        for at in 0..self.servers.len() {
            self.servers[at].cut = false;
            self.servers[at].memory.picky = false;
            self.servers[at].memory.room = None;
            self.resume(at);
        }
        while self.staying() < 2 {
            self.start_server();
        }
    }

    fn drained(&mut self, at: usize) {
        let id = self.servers[at].id;
        trace!(self, "{id} leaves");
        self.servers[at].left = true;
        match self.elections {
            Some(_) => self.leave_by_election(id),
            None => self.coordination.leave(id),
        }
        self.stats.drains += 1;
    }

    fn replaced(&mut self, at: usize, losses: &[Loss]) -> Result<(), Broken> {
        self.check_replaced(self.servers[at].id)?;
        let server = &mut self.servers[at];
        server.replaced = true;
        self.stats.replaced += 1;
        for key in std::mem::take(&mut server.void) {
            let truth = &self.truth.keys[key];
            let mut named = losses
                .iter()
                .filter(|loss| loss.reason == LossReason::Replaced)
                .flat_map(|loss| &loss.keys);
            if !named.any(|(_, name)| *name == truth.key) {
                return Err((
                    Property::Named,
                    format!(
                        "{} was replaced and does not name key {key}, which it had committed",
                        self.servers[at].id
                    ),
                ));
            }
        }
        // Another life of the same process.
        if self.servers.len() < 9 {
            self.start_server();
        }
        Ok(())
    }

    /// A server has become the owner of ranges: compares its values with the
    /// truth, and the differences with what was reported.
    fn check_gained(&mut self, at: usize, gained: &[Slice], losses: &[Loss]) -> Result<(), Broken> {
        if gained.is_empty() {
            return Ok(());
        }
        for key in 0..self.truth.keys.len() {
            let truth = &self.truth.keys[key];
            let point = truth.point;
            if !gained.iter().any(|slice| slice.contains(point)) {
                continue;
            }
            self.stats.moves += 1;
            let server = &self.servers[at];
            let id = server.id;
            // If somebody else had claimed it already, it was passed on within
            // the same step, with what was lost on the way here.
            let Some(token) = server.token(point).or(server.core.version()) else {
                continue;
            };
            // Taken for dead and not knowing it: what it takes over now is void.
            let lapsed = server.clock(self.now) >= server.lease_until;
            if truth.epoch > Some(token) && lapsed {
                continue;
            }
            if truth.epoch >= Some(token) {
                let message = format!("{id} took key {key} by {token}, after {:?}", truth.epoch);
                return Err((Property::Token, message));
            }
            let strong = self.profile.replication == trefoil_linklet_core::Replication::Strong;
            let unstored =
                |loss: &&Loss| matches!(loss.reason, LossReason::NoRoom | LossReason::Unreadable);
            let unstored: Vec<Loss> = losses.iter().filter(unstored).cloned().collect();
            if strong && self.truth.reports(key, &unstored) > 0 {
                let message =
                    format!("{id} could not store key {key}, which is lost with its move");
                return Err((Property::Moved, message));
            }
            let actual = server.memory.read(point, &truth.key);
            let expected = truth.current;
            let reports = self.truth.reports(key, losses);
            let own = |loss: &Loss| {
                matches!(
                    loss.reason,
                    LossReason::OwnerDied(_) | LossReason::HandoverBroken(_)
                )
            };
            // What it could not marshal or store is lost without a death.
            let by_death: Vec<Loss> = losses.iter().filter(|l| own(l)).cloned().collect();
            let blamed = self.truth.reports(key, &by_death) > 0;
            if reports > 1 {
                let message = format!("{id} reported the loss of key {key} {reports} times");
                return Err((Property::Reported, message));
            }
            if blamed && expected.is_some() && self.deaths == 0 {
                let message = format!("{id} reported key {key} as lost, but nobody has died");
                return Err((Property::Moved, message));
            }
            let all = |loss: &Loss| loss.extent == Extent::All && own(loss);
            if reports > 0 && losses.iter().any(all) {
                self.stats.keys_lost += 1;
            }
            self.truth.keys[key].epoch = Some(token);
            if actual == expected || self.truth.reveals(key, actual).is_some() {
                continue;
            }
            let truth = &self.truth.keys[key];
            if reports == 0 {
                let message = format!(
                    "{id} took key {key} with {actual:?} instead of {expected:?}, unreported"
                );
                return Err((Property::Reported, message));
            }
            if strong && expected.is_some() && truth.copies >= 2 && self.deaths - truth.deaths <= 1
            {
                let message = format!(
                    "{id} lost the commit {expected:?} of key {key}, which {} servers had, by {} deaths",
                    truth.copies,
                    self.deaths - truth.deaths
                );
                return Err((Property::Undone, message));
            }
            self.truth.keys[key].current = actual;
        }
        Ok(())
    }

    fn last_crash(&mut self) -> Result<(), Broken> {
        let listed = |id: ServerId| {
            let slices = self.coordination.view.iter();
            let mut slices = slices.flat_map(|view| view.assignment.slices());
            slices.any(|assigned| assigned.servers.contains(&id))
        };
        for server in &self.servers {
            // How fast the balancer assigns it to others is the balancer's.
            if server.draining && server.is_up() && !listed(server.id) {
                return Err((
                    Property::Drained,
                    format!(
                        "{} has been draining for {:?}, owns {:?} and has copies of {:?}",
                        server.id,
                        PEACE - TROUBLE,
                        server.core.table().owned(),
                        server.core.copies()
                    ),
                ));
            }
        }
        let up = self.up();
        if up.len() > 1 {
            if self.profile.stays {
                self.look_whether_restored();
            }
            let at = self.rng.pick(&up);
            self.crash(at);
        }
        self.last_death = Some(self.now);
        Ok(())
    }

    fn look_whether_owned(&mut self) -> Result<(), Broken> {
        let too_late = |death| self.now > death + OWNED_AGAIN;
        let drains = |server: &Server| server.draining && server.is_up();
        if !self.is_owned_again() {
            if self.last_death.is_some_and(too_late) {
                return self.check_owned();
            }
            self.after(LOOK_EVERY, Event::LookWhetherOwned);
        } else if self.last_death.is_none() && self.servers.iter().any(drains) {
            self.after(LOOK_EVERY, Event::LookWhetherOwned);
        } else {
            self.after(OWNED_FOR, Event::End);
        }
        Ok(())
    }

    /// Everything was owned a moment ago.
    fn come_to_end(&mut self) -> Result<(), Broken> {
        let is_owned = self.is_owned_again();
        if is_owned && self.last_death.is_some() {
            self.is_over = true;
            return self.check_owned();
        }
        // A map may have come meanwhile.
        if is_owned {
            self.freeze();
            self.last_crash()?;
        }
        self.after(LOOK_EVERY, Event::LookWhetherOwned);
        Ok(())
    }

    /// Whether all deaths are known, and every key has its owner.
    fn is_owned_again(&self) -> bool {
        let Some(view) = &self.coordination.view else {
            return false;
        };
        let is_owned = |truth: &KeyTruth| {
            let primary = view.assignment.slice_of(truth.point).servers.first();
            let server = primary.map(|id| &self.servers[id.0 as usize - 1]);
            server.is_some_and(|server| server.is_up() && server.token(truth.point).is_some())
        };
        let mut crashed = self.servers.iter().filter(|server| server.crashed);
        // Where nobody led it may never have been a member.
        let is_known = |server: &Server| {
            let was_none = self.elections.is_some() && !view.alive.contains(&server.id);
            server.expired || was_none
        };
        crashed.all(is_known) && self.truth.keys.iter().all(is_owned)
    }

    /// Every key has exactly one owner, by the map, with the right value.
    fn check_owned(&mut self) -> Result<(), Broken> {
        let Some(view) = self.coordination.view.clone() else {
            return Err((Property::OwnedAgain, "there is no map".to_owned()));
        };
        for key in 0..self.truth.keys.len() {
            let truth = &self.truth.keys[key];
            let primary = view.assignment.slice_of(truth.point).servers.first();
            let Some(at) = primary.map(|id| id.0 as usize - 1) else {
                return Err((Property::OwnedAgain, format!("nobody has key {key}")));
            };
            let server = &self.servers[at];
            let (id, actual) = (server.id, server.memory.read(truth.point, &truth.key));
            if !server.is_up() || server.token(truth.point).is_none() {
                let message = format!(
                    "{id} is to have key {key} (wants {:?}), and has not",
                    server.core.wanted()
                );
                return Err((Property::OwnedAgain, message));
            }
            self.truth.read(key, actual)?;
        }
        Ok(())
    }

    fn check_end(&mut self) -> Result<(), Broken> {
        self.stats.commits = self.truth.commits();
        self.stats.recoveries = self.coordination.recoveries;
        self.stats.new_deals = self.coordination.new_deals;
        if let Some(elections) = &self.elections {
            self.stats.elections = elections.ledger.elections;
            self.stats.usurpers = elections.ledger.refused;
        }
        Ok(())
    }
}
