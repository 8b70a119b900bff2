//! The datapath: one thread that receives, looks and answers, and never waits for
//! anything but sockets.
//!
//! A round takes what epoll names. Each session that is ready receives once, and what
//! it has asked for is carried out and sent, in one call each way for a batch. One that
//! asks for very much goes on in the next round, after the others. After a request the
//! loop looks for more for a while, and then sleeps.

use super::backends::Backends;
use super::counters::add;
use super::datagrams::Datagrams;
use super::session::{Buffers, End, Session, Turn};
use super::{Admits, EngineOptions, Shared};
use crate::channel::Channel;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with, sockopt};
use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_fabric::Idle;
use trefoil_tls::Tls;

const EVENT_COUNT_MAX: usize = 64;
/// Rounds without a sleep between two looks at what CPU was used.
const ROUNDS_PER_CLOCK: u32 = 1 << 14;
/// Connections accepted before others are served.
const ACCEPT_MAX: usize = 64;
/// Connections that have not shown whose they are; the oldest makes room.
const GUESTS_MAX: usize = 128;
/// When to try again after the system had no descriptor for a connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Between two looks for sessions that take too long, while there may be some.
const SWEEP: Duration = Duration::from_millis(100);
/// A client that says nothing for so long is asked by the system whether it is there.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How often, and how long between, it is asked then before it is given up.
const KEEPALIVE_COUNT: u32 = 3;
const KEEPALIVE_PAUSE: Duration = Duration::from_secs(5);

/// Names in epoll events; sessions are numbered upwards from the last of them.
const BELL: u64 = 0;
const LISTENER: u64 = 1;
const DATAGRAMS: u64 = 2;
const SESSION_FIRST: u64 = 3;

/// See the module.
pub(super) struct EventLoop {
    shared: Arc<Shared>,
    options: EngineOptions,
    epoll: OwnedFd,
    listener: TcpListener,
    tls: Option<Tls>,
    /// Where sessions have keys.
    datagrams: Option<Datagrams>,
    /// Not accepted from before then.
    accepts_at: Option<Instant>,
    sessions: HashMap<u64, Session>,
    next_session: u64,
    guest_count: usize,
    blocked_count: usize,
    /// Sessions that go on in the next round.
    ready: Vec<u64>,
    backends: Backends,
    buffers: Buffers,
    swept_at: Instant,
}

impl EventLoop {
    pub(super) fn new(
        shared: Arc<Shared>,
        listener: TcpListener,
        (tls, admits): (Option<Tls>, Admits),
        options: EngineOptions,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        epoll::add(
            &epoll,
            &shared.bell,
            epoll::EventData::new_u64(BELL),
            readable,
        )?;
        epoll::add(
            &epoll,
            &listener,
            epoll::EventData::new_u64(LISTENER),
            readable,
        )?;
        let datagrams = match &tls {
            None => None,
            Some(_) => datagrams_at(&listener, &epoll),
        };
        Ok(EventLoop {
            backends: Backends::new(Arc::clone(&shared), admits, options.sessions_max),
            shared,
            options,
            epoll,
            listener,
            tls,
            datagrams,
            accepts_at: None,
            sessions: HashMap::new(),
            next_session: SESSION_FIRST,
            guest_count: 0,
            blocked_count: 0,
            ready: Vec::new(),
            buffers: Buffers::new(),
            swept_at: Instant::now(),
        })
    }

    /// Serves until the engine is stopped.
    pub(super) fn run(mut self) {
        let mut idle = Idle::default();
        let mut last_request: Option<Instant> = None;
        // Whether it looks or sleeps.
        let mut is_awake = false;
        let mut rounds = 0u32;
        while !self.shared.is_stopped() {
            let timeout = match is_awake || !self.ready.is_empty() {
                true => Some(Duration::ZERO),
                false => {
                    self.backends.flush_touches();
                    self.backends.note_cpu();
                    add(&self.shared.counters.sleeps, 1);
                    self.sleep_max()
                }
            };
            let count = self.round(timeout);
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(ROUNDS_PER_CLOCK) {
                self.backends.note_cpu();
            }
            if count > 0 {
                is_awake = true;
                last_request = None;
                idle.begin();
            } else if is_awake {
                // The clock is read in idle rounds only: the first one after a request
                // starts the count.
                if let Some(now) = idle.pause()
                    && now - *last_request.get_or_insert(now) >= self.options.spin
                {
                    is_awake = false;
                }
            }
        }
    }

    /// How long nothing may happen; `None` for ever.
    fn sleep_max(&self) -> Option<Duration> {
        let has_limits = self.guest_count > 0 || self.blocked_count > 0;
        (has_limits || self.accepts_at.is_some()).then_some(SWEEP)
    }

    /// Serves whoever is ready within `timeout`; how many sessions that were.
    fn round(&mut self, timeout: Option<Duration>) -> usize {
        let timeout = timeout.map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()) as _,
        });
        let mut room = [const { MaybeUninit::uninit() }; EVENT_COUNT_MAX];
        // An interrupted wait is a short one.
        let events = match epoll::wait(&self.epoll, &mut room, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(_) => &mut [],
        };
        self.backends.adopt();
        if self.shared.must_judge.load(Ordering::Relaxed) {
            self.judge_again();
        }
        let ready = std::mem::take(&mut self.ready);
        let mut served = ready.len();
        for event in events.iter() {
            let data = event.data;
            match data.u64() {
                BELL => {
                    let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
                }
                LISTENER => self.accept(),
                DATAGRAMS => served += self.serve_datagrams(),
                // Those that go on anyway receive nothing before.
                name if self.goes_on(name) => {}
                name => {
                    served += 1;
                    self.serve(name);
                }
            }
        }
        ready.into_iter().for_each(|name| self.serve(name));
        if self.guest_count > 0 || self.blocked_count > 0 || self.accepts_at.is_some() {
            self.sweep();
        }
        served
    }

    fn serve_datagrams(&mut self) -> usize {
        let (backends, counters) = (&mut self.backends, &self.shared.counters);
        let datagrams = self.datagrams.as_mut();
        datagrams.map_or(0, |datagrams| datagrams.serve(backends, counters))
    }

    fn goes_on(&self, name: u64) -> bool {
        self.sessions.get(&name).is_some_and(Session::is_ready)
    }

    fn serve(&mut self, name: u64) {
        let Some(session) = self.sessions.get_mut(&name) else {
            return;
        };
        let (was_blocked, was_admitted) = (session.is_blocked(), session.target.is_admitted());
        let (bytes_in, bytes_out) = (session.bytes_in, session.bytes_out);
        let (backends, buffers) = (&mut self.backends, &mut self.buffers);
        let turn = match (was_blocked, session.is_ready()) {
            (true, _) => session.resume(Instant::now(), backends, buffers),
            (false, true) => session.carry_out(backends, buffers),
            (false, false) => session.receive(backends, buffers),
        };
        if turn == Turn::Ready {
            self.ready.push(name);
        }
        add(&self.shared.counters.bytes_in, session.bytes_in - bytes_in);
        add(
            &self.shared.counters.bytes_out,
            session.bytes_out - bytes_out,
        );
        if session.target.is_admitted() && !was_admitted {
            self.guest_count -= 1;
            count_handshake(self.tls.as_ref(), true);
            if let Some(datagrams) = &mut self.datagrams {
                session.datagrams = datagrams.begin(&session.socket, &session.channel);
            }
        }
        let is_blocked = turn == Turn::Blocked;
        if is_blocked != was_blocked {
            // Whoever does not take answers is not asked for more.
            let interest = match is_blocked {
                true => epoll::EventFlags::OUT,
                false => epoll::EventFlags::IN,
            };
            let data = epoll::EventData::new_u64(name);
            let _ = epoll::modify(&self.epoll, &session.socket, data, interest);
            match is_blocked {
                true => self.blocked_count += 1,
                false => self.blocked_count -= 1,
            }
        }
        if let Turn::Ends(end) = turn {
            let counters = &self.shared.counters;
            match end {
                End::Closed => {}
                End::Refused => add(&counters.refused, 1),
                End::Handshake => {
                    add(&counters.refused, 1);
                    count_handshake(self.tls.as_ref(), false);
                }
                End::Malformed => add(&counters.malformed, 1),
            }
            self.remove(name, false);
        }
    }

    /// Its socket leaves epoll when it is closed.
    fn remove(&mut self, name: u64, is_blocked: bool) {
        if let Some(session) = self.sessions.remove(&name) {
            if let (Some(datagrams), Some(name)) = (&mut self.datagrams, session.datagrams) {
                datagrams.end(name);
            }
            match session.target.is_admitted() {
                true => self.backends.admitted -= 1,
                false => self.guest_count -= 1,
            }
            self.blocked_count -= usize::from(is_blocked);
            self.count_sessions();
        }
    }

    /// Ends the sessions of those who may not read any more.
    #[cold]
    fn judge_again(&mut self) {
        self.shared.must_judge.store(false, Ordering::Relaxed);
        std::sync::atomic::fence(Ordering::SeqCst);
        let is_out = |session: &Session| {
            let who = session.who.as_ref();
            who.is_some_and(|who| !self.backends.may_read(who))
        };
        let sessions = self.sessions.iter();
        let out: Vec<(u64, bool)> = sessions
            .filter(|(_, session)| is_out(session))
            .map(|(name, session)| (*name, session.is_blocked()))
            .collect();
        for (name, is_blocked) in out {
            add(&self.shared.counters.revoked, 1);
            self.remove(name, is_blocked);
        }
    }

    fn count_sessions(&self) {
        let count = self.sessions.len() as u64;
        self.shared
            .counters
            .sessions_open
            .store(count, Ordering::Relaxed);
    }

    fn accept(&mut self) {
        if self.accepts_at.is_some() {
            return;
        }
        let now = Instant::now();
        for _ in 0..ACCEPT_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let socket = match accept_with(&self.listener, flags) {
                Ok(socket) => socket,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // It would go on being readable.
                    let data = epoll::EventData::new_u64(LISTENER);
                    let none = epoll::EventFlags::empty();
                    let _ = epoll::modify(&self.epoll, &self.listener, data, none);
                    self.accepts_at = Some(now + ACCEPT_RETRY);
                    return;
                }
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(_) => return,
            };
            if self.guest_count >= GUESTS_MAX {
                self.remove_oldest_guest();
            }
            if prepare(&socket).is_ok() {
                self.begin(socket, now);
            }
        }
    }

    fn begin(&mut self, socket: OwnedFd, now: Instant) {
        let channel = match &self.tls {
            None => Channel::default(),
            Some(tls) => match tls.engine_session() {
                Ok(session) => session.into(),
                Err(error) => return tracing::error!("no TLS session can begin: {error}"),
            },
        };
        let name = self.next_session;
        let data = epoll::EventData::new_u64(name);
        if epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).is_err() {
            return;
        }
        self.next_session += 1;
        self.guest_count += 1;
        self.sessions
            .insert(name, Session::new(socket, channel, now));
        self.count_sessions();
    }

    fn remove_oldest_guest(&mut self) {
        let guests = self
            .sessions
            .iter()
            .filter(|(_, session)| !session.target.is_admitted());
        if let Some(name) = guests.map(|(name, _)| *name).min() {
            add(&self.shared.counters.refused, 1);
            self.remove(name, false);
        }
    }

    /// Ends those that take too long, and accepts again.
    fn sweep(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.swept_at) < SWEEP {
            return;
        }
        self.swept_at = now;
        if self.accepts_at.is_some_and(|at| now >= at) {
            self.accepts_at = None;
            let data = epoll::EventData::new_u64(LISTENER);
            let readable = epoll::EventFlags::IN;
            let _ = epoll::modify(&self.epoll, &self.listener, data, readable);
        }
        let (greeting_max, stuck_max) = (self.options.greeting_max, self.options.stuck_max);
        let waited = |session: &Session| now.saturating_duration_since(session.since);
        let late: Vec<(u64, bool)> = self
            .sessions
            .iter()
            .filter(|(_, session)| match session.target.is_admitted() {
                false => waited(session) >= greeting_max,
                true => session.is_blocked() && waited(session) >= stuck_max,
            })
            .map(|(name, session)| (*name, session.is_blocked()))
            .collect();
        for (name, is_blocked) in late {
            match is_blocked {
                true => add(&self.shared.counters.stuck, 1),
                false => add(&self.shared.counters.refused, 1),
            }
            self.remove(name, is_blocked);
        }
    }
}

/// The socket for datagrams; without it, everything goes by streams.
fn datagrams_at(listener: &TcpListener, epoll: &OwnedFd) -> Option<Datagrams> {
    let bound = listener.local_addr().and_then(Datagrams::bind);
    let added = bound.and_then(|datagrams| {
        let data = epoll::EventData::new_u64(DATAGRAMS);
        epoll::add(epoll, &datagrams, data, epoll::EventFlags::IN)?;
        Ok(datagrams)
    });
    let tell = |error: &io::Error| tracing::warn!("clients are not served over UDP: {error}");
    added.inspect_err(tell).ok()
}

fn count_handshake(tls: Option<&Tls>, is_done: bool) {
    if let Some(tls) = tls {
        tls.count_handshake(is_done);
    }
}

/// Answers go out at once; a client whose host has vanished is found out.
fn prepare(socket: &OwnedFd) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_PAUSE)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_COUNT)
}
