//! The datapath: a thread that receives, looks and answers, and never waits for
//! anything but sockets. An engine has one or several; each has sessions of its own,
//! which the greeter hands to it.
//!
//! A round takes what epoll names. Lanes of ordered queues are memory: those in which something
//! is to happen of which a client will hear are looked at in each round, and so are the rings of
//! backends that owe answers to messages. Before the loop sleeps, it says so in them, and looks
//! once more; their servers ring then.
//!
//! Each session that is ready receives once, and what
//! it has asked for is carried out and sent, in one call each way for a batch. One that
//! asks for very much goes on in the next round, after the others. After a request the
//! loop looks for more for a while where more come soon, and then sleeps.

use super::backends::Backends;
use super::counters::add;
use super::datagrams::Datagrams;
use super::messages::{LEASE_LOOK_NS, Sender};
use super::meter::Meter;
use super::orders::{Asker, Order};
use super::patience::Patience;
use super::session::{Buffers, End, Session, Turn};
use super::shared::{GivenAway, LoopShare, Shared};
use super::shares;
use super::strangers::Origin;
use crate::vanished;
use rustix::event::{Timespec, epoll};
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_fabric::Idle;

const EVENT_COUNT_MAX: usize = 64;
/// Rounds without a sleep between two looks at what CPU was used.
const ROUNDS_PER_CLOCK: u32 = 1 << 14;
/// Looks in vain for each one at the clock.
const LOOKS_PER_CLOCK: u32 = 8;
/// Between two looks for clients that take no answers, while there may be some.
const SWEEP: Duration = Duration::from_millis(100);
/// A sleep that keeps what is being collected: a client that takes a batch in asks again
/// sooner.
const NAP: Duration = Duration::from_millis(10);
/// Names in epoll events; sockets for datagrams are numbered upwards from the second, and
/// sessions from the last of them.
const BELL: u64 = 0;
const DATAGRAMS_FIRST: u64 = 1;
const SESSION_FIRST: u64 = 1 << 32;
/// Together with a session's name: the bell of its lane.
const OF_LANE: u64 = 1 << 63;
/// Together with a backend's number: the bell of its rings.
pub(super) const OF_BACKEND: u64 = 1 << 62;
/// Between two looks at the leases of backends that owe answers to messages.
const LEASE_LOOK: Duration = Duration::from_nanos(LEASE_LOOK_NS);

const NOW: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 0,
};

/// What a loop does while nothing is asked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rest {
    Looks,
    /// Sleeps for a moment.
    Naps,
    Sleeps,
}

/// See the module.
pub(super) struct EventLoop {
    shared: Arc<Shared>,
    /// Which of the engine's loops it is.
    at: usize,
    epoll: OwnedFd,
    datagrams: Datagrams,
    sessions: HashMap<u64, Session>,
    next_session: u64,
    blocked_count: usize,
    /// Sessions that go on in the next round.
    ready: Vec<u64>,
    /// Sessions whose lanes are looked at.
    watched: Vec<u64>,
    backends: Backends,
    buffers: Buffers,
    swept_at: Instant,
    meter: Meter,
}

impl EventLoop {
    pub(super) fn new(shared: Arc<Shared>, at: usize) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        let bell = epoll::EventData::new_u64(BELL);
        epoll::add(&epoll, shared.loops[at].bell.descriptor(), bell, readable)?;
        Ok(EventLoop {
            backends: Backends::new(Arc::clone(&shared), at, epoll.try_clone()?),
            shared,
            at,
            epoll,
            datagrams: Datagrams::default(),
            sessions: HashMap::new(),
            next_session: SESSION_FIRST,
            blocked_count: 0,
            ready: Vec::new(),
            watched: Vec::new(),
            buffers: Buffers::new(),
            swept_at: Instant::now(),
            meter: Meter::new(Instant::now()),
        })
    }

    /// Its sessions.
    #[cfg(test)]
    pub(super) fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    fn share(&self) -> &LoopShare {
        &self.shared.loops[self.at]
    }

    /// Serves until the engine is stopped.
    pub(super) fn run(mut self) {
        let mut idle = Idle::default();
        let mut patience = Patience::new(self.shared.options.spin);
        let mut looking_since: Option<Instant> = None;
        let mut rest = Rest::Sleeps;
        let (mut rounds, mut looks) = (0u32, 0u32);
        while !self.shared.is_stopped() {
            let timeout = match rest {
                _ if !self.ready.is_empty() || self.datagrams.left_at().is_some() => {
                    Some(Duration::ZERO)
                }
                Rest::Looks => Some(Duration::ZERO),
                Rest::Naps => {
                    add(&self.share().counters.sleeps, 1);
                    Some(NAP)
                }
                Rest::Sleeps if self.meter.is_looking() => Some(Duration::ZERO),
                Rest::Sleeps => {
                    self.backends.flush_touches();
                    self.backends.note_cpu();
                    add(&self.share().counters.sleeps, 1);
                    self.sleep_max()
                }
            };
            let count = self.round(timeout);
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(ROUNDS_PER_CLOCK) {
                self.backends.note_cpu();
            }
            if count > 0 {
                if rest == Rest::Looks {
                    let since = looking_since.take();
                    patience.ended(since.map_or(Duration::ZERO, |since| since.elapsed()));
                }
                // Of nobody nothing is to be expected.
                rest = match !self.sessions.is_empty() && patience.looks() {
                    true => Rest::Looks,
                    false => Rest::Naps,
                };
                idle.begin();
            } else if rest != Rest::Looks {
                rest = Rest::Sleeps;
            } else {
                idle.pause();
                looks = looks.wrapping_add(1);
                if !looks.is_multiple_of(LOOKS_PER_CLOCK) {
                    continue;
                }
                let now = Instant::now();
                let looked = now - *looking_since.get_or_insert(now);
                let is_over = patience.is_over(looked);
                if is_over {
                    patience.ended(looked);
                }
                if is_over || self.sessions.is_empty() {
                    looking_since = None;
                    rest = Rest::Naps;
                }
            }
        }
    }

    /// How long nothing may happen; `None` for ever.
    fn sleep_max(&self) -> Option<Duration> {
        let blocked = (self.blocked_count > 0).then_some(SWEEP);
        let owed = self.backends.awaits_answers().then_some(LEASE_LOOK);
        let all = blocked.into_iter().chain(self.meter.sleep_max());
        all.chain(owed).min()
    }

    /// Serves whoever is ready within `timeout`; how many sessions that were.
    pub(super) fn round(&mut self, timeout: Option<Duration>) -> usize {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()) as _,
        });
        let (mut served, mut timeout) = (0, timeout);
        let mut sleeps = false;
        if !self.watched.is_empty() || self.backends.awaits_answers() {
            sleeps = timeout.is_none_or(|timeout| timeout != NOW);
            if sleeps {
                self.set_waits(true);
            }
            served += self.look_at_lanes();
            served += self.tell_answers();
            if served > 0 {
                timeout = Some(NOW);
            }
        }
        let mut room = [const { MaybeUninit::uninit() }; EVENT_COUNT_MAX];
        // An interrupted wait is a short one.
        let events = match epoll::wait(&self.epoll, &mut room, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(_) => &mut [],
        };
        if sleeps {
            self.set_waits(false);
        }
        let is_idle =
            events.is_empty() && self.ready.is_empty() && self.datagrams.left_at().is_none();
        let began = (!is_idle).then(Instant::now);
        // Before what it is rung for is looked at: the next ring is not lost.
        if events.iter().any(|event| ({ event.data }).u64() == BELL) {
            self.share().bell.silence();
        }
        self.backends.adopt();
        if self.share().must_judge.load(Ordering::Relaxed) {
            self.judge_again();
        }
        self.take_sockets();
        self.take_arrivals();
        self.take_moves();
        self.take_lanes();
        let ready = std::mem::take(&mut self.ready);
        served += ready.len();
        // Before any other socket's turn: there is one inbox.
        if let Some(number) = self.datagrams.left_at() {
            served += self.serve_datagrams(number);
        }
        for event in events.iter() {
            let data = event.data;
            match data.u64() {
                BELL => {}
                name if name & OF_LANE != 0 => {
                    served += 1;
                    self.hear(name & !OF_LANE);
                }
                // Its answers are looked at in the next round.
                name if name & OF_BACKEND != 0 => {
                    served += 1;
                    self.backends.is_heard((name & !OF_BACKEND) as u32);
                }
                name if name < SESSION_FIRST => {
                    served += self.serve_datagrams((name - DATAGRAMS_FIRST) as usize);
                }
                // Those that go on anyway receive nothing before.
                name if !ready.is_empty() && self.goes_on(name) => {}
                // A client that is gone does not wait for room in its lane.
                name if self.is_withheld(name) => {
                    let gone = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
                    if ({ event.flags }).intersects(gone) {
                        self.remove(name, false);
                    }
                }
                name => {
                    served += 1;
                    self.serve(name);
                }
            }
        }
        ready.into_iter().for_each(|name| self.serve(name));
        if self.blocked_count > 0 {
            self.sweep();
        }
        let slept = timeout.is_none_or(|timeout| timeout != NOW);
        self.measure(began.filter(|_| served > 0), slept);
        served
    }

    /// After a round that began then, if it has carried out something, or after a sleep.
    /// Looks at streams belong to the round: others wait for them, too.
    fn measure(&mut self, began: Option<Instant>, slept: bool) {
        let is_looking = self.meter.is_looking();
        if began.is_none() && !slept && !is_looking {
            return;
        }
        let counters = &self.shared.loops[self.at].counters;
        let looks_since = is_looking.then(Instant::now);
        if is_looking {
            self.meter.look(&mut self.sessions, counters);
        }
        let now = Instant::now();
        match (began, looks_since) {
            (Some(began), _) => self.meter.carried_out(began, now, counters),
            (None, Some(began)) => self.meter.was_busy(began, now, counters),
            (None, None) => {}
        }
        self.meter.tick(now, self.sessions.len(), counters);
    }

    fn serve_datagrams(&mut self, number: usize) -> usize {
        let (backends, peers) = (&mut self.backends, &self.shared.peers);
        let counters = &self.shared.loops[self.at].counters;
        self.datagrams.serve(number, peers, backends, counters)
    }

    fn goes_on(&self, name: u64) -> bool {
        let goes_on = |session: &Session| session.is_ready() && !session.is_blocked();
        self.sessions.get(&name).is_some_and(goes_on)
    }

    fn serve(&mut self, name: u64) {
        self.turn(name, |session, backends, buffers| {
            Some(match (session.is_blocked(), session.is_ready()) {
                (true, _) => session.resume(Instant::now(), backends, buffers),
                (false, true) => session.carry_out(backends, buffers),
                (false, false) => session.receive(backends, buffers),
            })
        });
    }

    fn is_withheld(&self, name: u64) -> bool {
        let session = self.sessions.get(&name);
        session.is_some_and(|session| session.is_withheld() && !session.is_blocked())
    }

    /// Looks for what has happened in lanes; how many clients were told.
    fn look_at_lanes(&mut self) -> usize {
        let mut told = 0;
        let mut at = 0;
        while let Some(&name) = self.watched.get(at) {
            told += usize::from(self.turn(name, |session, _, buffers| session.look(buffers)));
            match self.sessions.get_mut(&name) {
                Some(session) if session.is_waiting() => at += 1,
                session => {
                    if let Some(session) = session {
                        session.is_watched = false;
                    }
                    self.watched.swap_remove(at);
                }
            }
        }
        told
    }

    /// Before a sleep, and after it.
    fn set_waits(&mut self, waits: bool) {
        for at in 0..self.watched.len() {
            let name = self.watched[at];
            let lane = self.sessions.get_mut(&name).and_then(Session::lane);
            // One whose server is gone is told so by its bell, which stays readable.
            let _ = lane.map(|lane| lane.set_waits(waits));
        }
        self.backends.set_waits(waits);
    }

    /// Tells clients what came of their messages; how many were told.
    fn tell_answers(&mut self) -> usize {
        if !self.backends.awaits_answers() {
            return 0;
        }
        let mut replies = self.backends.take_replies();
        let mut told = 0;
        if !replies.is_empty() {
            replies.sort();
            for its in replies.by_session() {
                // Nobody hears of those whose session has ended.
                let name = its[0].session;
                told += usize::from(self.turn(name, |session, backends, buffers| {
                    let under_way = &mut backends.sender.under_way;
                    its.iter().for_each(|reply| under_way.ended(reply.cost));
                    Some(session.tell(&replies, its, buffers))
                }));
                // It goes on when its socket has room, and would else be named twice then.
                if self.sessions.get(&name).is_some_and(Session::is_blocked) {
                    self.ready.retain(|ready| *ready != name);
                }
            }
            // What could not go while it had something under way.
            if self.at >= self.shared.active() {
                self.leave();
            }
        }
        self.backends.give_back(replies);
        told
    }

    /// The bell of a session's lane.
    fn hear(&mut self, name: u64) {
        let Some(session) = self.sessions.get_mut(&name) else {
            return;
        };
        let is_gone = session.lane().is_some_and(|lane| !lane.set_waits(false));
        if is_gone {
            // What it did last is in the lane still.
            self.turn(name, |session, _, buffers| Some(session.lane_ends(buffers)));
        }
    }

    /// Takes the lanes that sessions were given.
    fn take_lanes(&mut self) {
        for (name, given) in self.share().take_lanes() {
            // The lane of a session that has ended goes with this.
            self.turn(name, |session, _, _| Some(session.claimed(given)));
            let lane = self.sessions.get_mut(&name).and_then(Session::lane);
            if let Some(lane) = lane {
                let data = epoll::EventData::new_u64(name | OF_LANE);
                if epoll::add(&self.epoll, lane.bell(), data, epoll::EventFlags::IN).is_err() {
                    let is_blocked = self.sessions.get(&name).is_some_and(Session::is_blocked);
                    self.remove(name, is_blocked);
                }
            }
        }
    }

    /// A session's turn, and what follows from it. Whether it had one.
    fn turn(
        &mut self,
        name: u64,
        turn: impl FnOnce(&mut Session, &mut Backends, &mut Buffers) -> Option<Turn>,
    ) -> bool {
        let Some(session) = self.sessions.get_mut(&name) else {
            return false;
        };
        let (was_blocked, was_withheld) = (session.is_blocked(), session.is_withheld());
        let (bytes_in, bytes_out) = (session.bytes_in, session.bytes_out);
        self.backends.sender = Sender {
            session: name,
            may_write: session.may_write,
            under_way: session.messages,
        };
        let turn = turn(session, &mut self.backends, &mut self.buffers);
        session.messages = self.backends.sender.under_way;
        let Some(turn) = turn else {
            return false;
        };
        if turn == Turn::Ready {
            self.ready.push(name);
        }
        let counters = &self.shared.loops[self.at].counters;
        add(&counters.bytes_in, session.bytes_in - bytes_in);
        add(&counters.bytes_out, session.bytes_out - bytes_out);
        session.count_work(session.bytes_in - bytes_in + session.bytes_out - bytes_out);
        let (is_blocked, is_withheld) = (turn == Turn::Blocked, session.is_withheld());
        if (is_blocked, is_withheld) != (was_blocked, was_withheld) {
            // Whoever does not take answers is not asked for more, nor is one whose lane is
            // full.
            let interest = match (is_blocked, is_withheld) {
                (true, _) => epoll::EventFlags::OUT,
                (false, true) => epoll::EventFlags::empty(),
                (false, false) => epoll::EventFlags::IN,
            };
            let data = epoll::EventData::new_u64(name);
            let _ = epoll::modify(&self.epoll, &session.socket, data, interest);
            match (was_blocked, is_blocked) {
                (false, true) => self.blocked_count += 1,
                (true, false) => self.blocked_count -= 1,
                _ => {}
            }
        }
        if !session.is_watched && session.is_waiting() {
            session.is_watched = true;
            self.watched.push(name);
        }
        if let Turn::Claims(claim) = turn {
            let owner = shares::names(&session.who, origin_of(&session.socket));
            let (who, asker) = (session.who.clone(), Asker::new(&session.life, owner));
            // One whose socket is broken already ends without that.
            let _ = vanished::watch_writer(&session.socket);
            let (at, session) = (self.at, name);
            self.shared.order_lane(Order {
                at,
                session,
                claim,
                who,
                asker,
            });
        }
        if let Turn::Ends(end) = turn {
            match end {
                End::Closed => {}
                End::Refused | End::Handshake => add(&counters.refused, 1),
                End::Malformed => add(&counters.malformed, 1),
            }
            self.remove(name, false);
        }
        true
    }

    /// Its socket leaves epoll when it is closed.
    fn remove(&mut self, name: u64, is_blocked: bool) {
        if let Some(mut session) = self.sessions.remove(&name) {
            let counters = &self.shared.loops[self.at].counters;
            self.meter.ends(&mut session, counters);
            self.shared.forget(&session);
            self.blocked_count -= usize::from(is_blocked);
            self.count_sessions();
        }
    }

    /// Takes the sockets for datagrams that were handed over.
    fn take_sockets(&mut self) {
        for socket in self.share().take_sockets() {
            let name = DATAGRAMS_FIRST + self.datagrams.count() as u64;
            let data = epoll::EventData::new_u64(name);
            if let Err(error) = epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN) {
                tracing::error!("datagrams at one address are not heard: {error}");
                continue;
            }
            if let Err(error) = self.datagrams.add(socket) {
                tracing::error!("datagrams at one address are not heard: {error}");
            }
        }
    }

    /// Takes the sessions that were handed over, but for those of clients that have lost
    /// the right to read on the way.
    fn take_arrivals(&mut self) {
        for mut session in self.share().take_arrivals() {
            let name = self.next_session;
            let is_blocked = session.is_blocked();
            let interest = match is_blocked {
                true => epoll::EventFlags::OUT,
                false => epoll::EventFlags::IN,
            };
            let data = epoll::EventData::new_u64(name);
            let may_read = (self.shared.admits)(&session.who);
            session.may_write = (self.shared.writes)(&session.who);
            if !may_read {
                add(&self.share().counters.revoked, 1);
            }
            if may_read && self.at >= self.shared.active() && session.is_movable() {
                // It was on its way when this loop was parked.
                self.shared.hand_over(session);
                continue;
            }
            if !may_read || epoll::add(&self.epoll, &session.socket, data, interest).is_err() {
                self.shared.forget(&session);
                continue;
            }
            self.next_session += 1;
            match is_blocked {
                true => self.blocked_count += 1,
                false if session.is_ready() => self.ready.push(name),
                false => {}
            }
            let counters = &self.shared.loops[self.at].counters;
            self.meter.comes(name, &session, counters);
            self.sessions.insert(name, session);
            self.count_sessions();
        }
    }

    /// Gives sessions to other loops, as it was told to.
    fn take_moves(&mut self) {
        for what in self.share().take_moves() {
            match what {
                // It may be active again.
                GivenAway::All if self.at < self.shared.active() => {}
                GivenAway::All => self.leave(),
                GivenAway::Part { permille, to } => self.give(permille, to),
            }
        }
    }

    /// Gives all sessions away that can be: others are active, this one is not.
    fn leave(&mut self) {
        let sessions = self.sessions.iter();
        let all = sessions.filter(|(_, session)| session.is_movable());
        let all: Vec<u64> = all.map(|(name, _)| *name).collect();
        for name in all {
            if let Some(session) = self.take_out(name) {
                self.shared.hand_over(session);
            }
        }
    }

    /// Gives sessions to the loop `to` that make up this part of the work, or less: one that is
    /// more by itself would only be somewhere else.
    fn give(&mut self, permille: u32, to: usize) {
        let work = self.sessions.values().map(Session::work).sum::<u64>();
        let mut left = work.saturating_mul(permille.into()) / 1000;
        let sessions = self.sessions.iter();
        let theirs = sessions.filter(|(_, session)| session.is_movable() && session.work() > 0);
        let mut theirs: Vec<(u64, u64)> = theirs.map(|(name, of)| (of.work(), *name)).collect();
        theirs.sort_unstable_by(|one, other| other.cmp(one));
        for (work, name) in theirs {
            if work <= left
                && let Some(session) = self.take_out(name)
            {
                left -= work;
                self.shared.hand_to(to, session);
            }
        }
    }

    /// Takes a session out that goes on elsewhere, between two of its turns.
    fn take_out(&mut self, name: u64) -> Option<Session> {
        let session = self.sessions.get(&name)?;
        // The other loop's epoll is another one.
        epoll::delete(&self.epoll, &session.socket).ok()?;
        let session = self.sessions.remove(&name)?;
        self.blocked_count -= usize::from(session.is_blocked());
        self.ready.retain(|ready| *ready != name);
        add(&self.share().counters.sessions_moved, 1);
        let counters = &self.shared.loops[self.at].counters;
        self.meter.leaves(&session, counters);
        self.count_sessions();
        Some(session)
    }

    /// Ends the sessions of those who may not read any more.
    #[cold]
    fn judge_again(&mut self) {
        self.share().must_judge.store(false, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::SeqCst);
        let is_out = |session: &Session| !(self.shared.admits)(&session.who);
        let sessions = self.sessions.iter();
        let out: Vec<(u64, bool)> = sessions
            .filter(|(_, session)| is_out(session))
            .map(|(name, session)| (*name, session.is_blocked()))
            .collect();
        for (name, is_blocked) in out {
            add(&self.share().counters.revoked, 1);
            self.remove(name, is_blocked);
        }
        for session in self.sessions.values_mut() {
            session.may_write = (self.shared.writes)(&session.who);
        }
    }

    fn count_sessions(&self) {
        let count = self.sessions.len() as u64;
        let open = &self.share().counters.sessions_open;
        open.store(count, Ordering::Relaxed);
    }

    /// Ends those that leave their answers untaken for too long.
    fn sweep(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.swept_at) < SWEEP {
            return;
        }
        self.swept_at = now;
        let stuck_max = self.shared.options.stuck_max;
        let is_stuck = |session: &Session| {
            session.is_blocked() && now.saturating_duration_since(session.since) >= stuck_max
        };
        let sessions = self.sessions.iter();
        let stuck: Vec<u64> = sessions
            .filter(|(_, session)| is_stuck(session))
            .map(|(name, _)| *name)
            .collect();
        for name in stuck {
            add(&self.share().counters.stuck, 1);
            self.remove(name, true);
        }
    }
}

/// Where a session comes from, unless it has gone.
fn origin_of(socket: &OwnedFd) -> Option<Origin> {
    let from = rustix::net::getpeername(socket).ok()??;
    let from = SocketAddr::try_from(from).ok()?;
    Some(from.ip().into())
}
