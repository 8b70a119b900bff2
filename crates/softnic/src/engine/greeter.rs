//! Lets clients in: a thread of its own accepts connections, carries out their TLS
//! handshakes, and hands those that have shown whose they are to an event loop. What
//! strangers do costs the loops nothing.

use super::Who;
use super::counters::{add, note_cpu};
use super::guest::{Guest, Step};
use super::ports::Ports;
use super::seats::Seat;
use super::session::{End, Session};
use super::shared::Shared;
use super::strangers::{Origin, Strangers, Verdict};
use crate::channel::Channel;
use crate::vanished;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{SocketFlags, acceptfrom_with, sockopt};
use std::collections::BTreeMap;
use std::io;
use std::mem::MaybeUninit;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_softnic_core::limits::WINDOW_LEN;
use trefoil_softnic_core::wire::{RefusalCode, Welcome};
use trefoil_tls::Tls;

const EVENT_COUNT_MAX: usize = 64;
/// Bytes received at a time.
const RECEIVE_LEN: usize = 64 << 10;
/// Connections accepted before those that are there have their turn.
const ACCEPT_MAX: usize = 64;
/// When to try again after the system had no descriptor for a connection.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);
/// Between two looks for guests that take too long, while there are some.
const SWEEP: Duration = Duration::from_millis(100);

/// Names in epoll events; guests are numbered upwards from the last of them.
const BELL: u64 = 0;
const LISTENER: u64 = 1;
const GUEST_FIRST: u64 = 2;

/// See the module.
pub(super) struct Greeter {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    listener: TcpListener,
    tls: Option<Tls>,
    /// Where sessions have keys.
    ports: Option<Ports>,
    /// Not accepted from before then.
    accepts_at: Option<Instant>,
    /// In the order in which they came.
    guests: BTreeMap<u64, Guest>,
    strangers: Strangers,
    next_guest: u64,
    received: Box<[u8]>,
    swept_at: Instant,
}

impl Greeter {
    pub(super) fn new(
        shared: Arc<Shared>,
        listener: TcpListener,
        tls: Option<Tls>,
    ) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let readable = epoll::EventFlags::IN;
        let bell = epoll::EventData::new_u64(BELL);
        epoll::add(&epoll, shared.bell.descriptor(), bell, readable)?;
        let name = epoll::EventData::new_u64(LISTENER);
        epoll::add(&epoll, &listener, name, readable)?;
        let ports = match &tls {
            None => None,
            Some(_) => Some(Ports::begin(listener.local_addr()?, &shared)),
        };
        Ok(Greeter {
            shared,
            epoll,
            listener,
            tls,
            ports,
            accepts_at: None,
            guests: BTreeMap::new(),
            strangers: Strangers::default(),
            next_guest: GUEST_FIRST,
            received: vec![0; RECEIVE_LEN].into_boxed_slice(),
            swept_at: Instant::now(),
        })
    }

    /// Lets clients in until the engine is stopped.
    pub(super) fn run(mut self) {
        while !self.shared.is_stopped() {
            note_cpu(&self.shared.counters.greeting_cpu_us);
            self.round();
            self.sweep();
        }
    }

    fn round(&mut self) {
        let has_limits = !self.guests.is_empty() || self.accepts_at.is_some();
        let timeout = has_limits.then_some(Timespec {
            tv_sec: 0,
            tv_nsec: SWEEP.as_nanos() as _,
        });
        let mut room = [const { MaybeUninit::uninit() }; EVENT_COUNT_MAX];
        // An interrupted wait is a short one.
        let events = match epoll::wait(&self.epoll, &mut room, timeout.as_ref()) {
            Ok((events, _)) => events,
            Err(_) => &mut [],
        };
        for event in events.iter() {
            let data = event.data;
            match data.u64() {
                BELL => self.shared.bell.silence(),
                LISTENER => self.accept(),
                name => self.serve(name),
            }
        }
    }

    fn serve(&mut self, name: u64) {
        let Some(guest) = self.guests.get_mut(&name) else {
            return;
        };
        let was_blocked = guest.is_blocked();
        let (bytes_in, bytes_out) = (guest.bytes_in, guest.bytes_out);
        let shared = &self.shared;
        let step = guest.step(&mut self.received, |who| admit(shared, who));
        let counters = &shared.counters;
        add(&counters.bytes_in, guest.bytes_in - bytes_in);
        add(&counters.bytes_out, guest.bytes_out - bytes_out);
        match step {
            Step::Waits if guest.is_blocked() != was_blocked => {
                let mut interest = epoll::EventFlags::IN;
                interest.set(epoll::EventFlags::OUT, guest.is_blocked());
                let data = epoll::EventData::new_u64(name);
                let _ = epoll::modify(&self.epoll, &guest.socket, data, interest);
            }
            Step::Waits => {}
            Step::Comes(admitted) => self.hand_over(name, admitted),
            Step::Ends(end) => {
                match end {
                    End::Closed => {}
                    End::Refused => add(&counters.refused, 1),
                    End::Handshake => {
                        add(&counters.refused, 1);
                        self.count_handshake(false);
                    }
                    End::Malformed => add(&counters.malformed, 1),
                }
                self.remove(name);
            }
        }
    }

    /// Gives one that was let in to a loop.
    fn hand_over(&mut self, name: u64, (who, seat): (Who, Seat)) {
        self.strangers.comes_in(name);
        let Some(guest) = self.remove(name) else {
            return;
        };
        self.count_handshake(true);
        // The loop's epoll is another one.
        if epoll::delete(&self.epoll, &guest.socket).is_err() {
            return;
        }
        let shared = &self.shared;
        let ports = self.ports.as_mut();
        let datagrams = match ports.is_some_and(|ports| ports.open_for(&guest.socket, shared)) {
            true => shared.peers.begin(&guest.socket, &guest.channel),
            false => None,
        };
        let session = Session::begin(guest, (who, seat), datagrams);
        self.shared.hand_over(session);
    }

    /// Its socket leaves epoll when it is closed.
    fn remove(&mut self, name: u64) -> Option<Guest> {
        let guest = self.guests.remove(&name);
        self.strangers.leaves(name);
        self.count_guests();
        guest
    }

    fn count_guests(&self) {
        let open = &self.shared.counters.sessions_open;
        open.store(self.guests.len() as u64, Ordering::Relaxed);
    }

    fn count_handshake(&self, is_done: bool) {
        if let Some(tls) = &self.tls {
            tls.count_handshake(is_done);
        }
    }

    fn accept(&mut self) {
        if self.accepts_at.is_some() {
            return;
        }
        let now = Instant::now();
        for _ in 0..ACCEPT_MAX {
            let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
            let (socket, from) = match acceptfrom_with(&self.listener, flags) {
                Ok(accepted) => accepted,
                Err(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => {
                    // Strangers make room first.
                    if self.evict() {
                        continue;
                    }
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
            let from = from.and_then(|from| SocketAddr::try_from(from).ok());
            if let Some(from) = from
                && prepare(&socket).is_ok()
            {
                self.begin(socket, from.ip().into(), now);
            }
        }
    }

    fn begin(&mut self, socket: OwnedFd, origin: Origin, now: Instant) {
        let name = self.next_guest;
        match self.strangers.arrives(name, origin, now) {
            Verdict::Stays => {}
            Verdict::InsteadOf(other) => {
                add(&self.shared.counters.refused, 1);
                self.remove(other);
            }
            Verdict::TurnedAway => return add(&self.shared.counters.turned_away, 1),
        }
        self.next_guest += 1;
        if self.greet(name, socket, now).is_none() {
            self.strangers.leaves(name);
        }
    }

    fn greet(&mut self, name: u64, socket: OwnedFd, now: Instant) -> Option<()> {
        let channel = match &self.tls {
            None => Channel::default(),
            Some(tls) => match tls.engine_session() {
                Ok(session) => session.into(),
                Err(error) => {
                    tracing::error!("no TLS session can begin: {error}");
                    return None;
                }
            },
        };
        let data = epoll::EventData::new_u64(name);
        epoll::add(&self.epoll, &socket, data, epoll::EventFlags::IN).ok()?;
        self.guests.insert(name, Guest::new(socket, channel, now));
        self.count_guests();
        Some(())
    }

    /// Ends one that has not shown whose it is, if there is any.
    fn evict(&mut self) -> bool {
        let Some(name) = self.strangers.to_evict() else {
            return false;
        };
        add(&self.shared.counters.refused, 1);
        self.remove(name);
        true
    }

    /// Ends those that take too long, and accepts again.
    fn sweep(&mut self) {
        let now = Instant::now();
        if now.duration_since(self.swept_at) < SWEEP {
            return;
        }
        self.swept_at = now;
        self.strangers.tidy(now);
        if self.accepts_at.is_some_and(|at| now >= at) {
            self.accepts_at = None;
            let data = epoll::EventData::new_u64(LISTENER);
            let readable = epoll::EventFlags::IN;
            let _ = epoll::modify(&self.epoll, &self.listener, data, readable);
        }
        let patience = self.shared.options.greeting_max;
        let is_late = |guest: &Guest| now.saturating_duration_since(guest.since) >= patience;
        // Names and times grow together.
        while let Some((name, guest)) = self.guests.first_key_value()
            && is_late(guest)
        {
            let name = *name;
            add(&self.shared.counters.refused, 1);
            self.remove(name);
        }
    }
}

/// Whether somebody comes in, and where they sit.
fn admit(shared: &Shared, who: Who) -> Result<(Welcome, (Who, Seat)), RefusalCode> {
    if !(shared.admits)(&who) {
        return Err(RefusalCode::Token);
    }
    let seat = shared.seats.take(&who)?;
    let total = &shared.counters.sessions_total;
    add(total, 1);
    let welcome = Welcome {
        window: WINDOW_LEN,
        engine: shared.name,
        session: total.load(Ordering::Relaxed),
    };
    Ok((welcome, (who, seat)))
}

/// Answers go out at once; a client whose host has vanished is found out.
fn prepare(socket: &OwnedFd) -> rustix::io::Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    vanished::watch(socket)
}
