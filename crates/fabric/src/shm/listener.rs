//! The thread that greets clients.
//!
//! A client that connects and says nothing, or half of a hello, has a place
//! until its time is over or somebody newer needs the place; nobody waits for
//! it. Replies are shorter than any socket buffer, so sending never waits. One that
//! has its rings and never uses them loses them to one that finds none; that one's
//! reply waits for them a moment, and no other's.

use super::client::{Client, Rings};
use super::export::Export;
use super::policy::UserPolicy;
use super::socket;
use super::target::Shared;
use crate::target::{ClientId, NoLane};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use std::collections::VecDeque;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_layout::hello::{HELLO_LEN, Hello, HelloError, Reply, Status};
use trefoil_layout::ring::Geometry;

/// Clients that have connected and not yet said hello.
const HALF_OPEN_COUNT_MAX: usize = 16;
/// Pause after the system refused to accept (out of descriptors, mostly).
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Clients that wait for rings. Others are answered at once: without.
const SHORT_COUNT_MAX: usize = 64;
/// How often it is looked whether there are rings for those who wait.
const TAKE_BACK_LOOK: Duration = Duration::from_micros(200);

pub(super) struct Listener {
    pub(super) socket: UnixListener,
    pub(super) shared: Arc<Shared>,
    pub(super) exports: Vec<Export>,
    pub(super) users: UserPolicy,
    pub(super) geometry: Geometry,
    pub(super) client_count_max: usize,
    pub(super) hello_timeout: Duration,
    pub(super) rings_patience: Duration,
}

/// A client that wants rings when none are left: until somebody's are taken back, or
/// its time is over.
struct Short {
    socket: UnixStream,
    backend: u32,
    id: ClientId,
    end: Instant,
}

/// A client that has not finished its hello.
struct HalfOpen {
    socket: UnixStream,
    hello: [u8; HELLO_LEN],
    received: usize,
    end: Instant,
}

/// What reading from a half-open client led to.
enum Heard {
    Incomplete,
    Hello([u8; HELLO_LEN]),
    Gone,
}

impl HalfOpen {
    fn hear(&mut self) -> Heard {
        let rest = &mut self.hello[self.received..];
        match rustix::net::recv(&self.socket, rest, RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Heard::Gone,
            Ok((_, count)) => self.received += count,
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => return Heard::Gone,
        }
        if self.received == HELLO_LEN {
            Heard::Hello(self.hello)
        } else {
            Heard::Incomplete
        }
    }
}

impl Listener {
    /// Greets until the target is stopped.
    pub(super) fn run(self) {
        let mut half_open: VecDeque<HalfOpen> = VecDeque::new();
        let mut short: VecDeque<Short> = VecDeque::new();
        let mut next_id = 1;
        loop {
            let ready = self.wait(&half_open, !short.is_empty());
            if self.shared.is_stopped() {
                return;
            }
            let now = Instant::now();
            self.serve_short(&mut short, now);
            // In the order of the descriptors: half-open ones, then the listener.
            let mut heard = ready.iter();
            half_open.retain_mut(|client| {
                let readable = heard.next().is_some_and(|r| *r);
                match if readable {
                    client.hear()
                } else {
                    Heard::Incomplete
                } {
                    Heard::Incomplete => client.end > now,
                    Heard::Gone => false,
                    Heard::Hello(hello) => {
                        // The socket moves on; its place is freed.
                        if let Ok(socket) = client.socket.try_clone() {
                            self.greet(socket, &hello, ClientId(next_id), &mut short);
                            next_id += 1;
                        }
                        false
                    }
                }
            });
            if heard.next().is_some_and(|r| *r) {
                self.accept(&mut half_open, now);
            }
        }
    }

    /// Waits for something to read; tells for each half-open client, then for
    /// the listening socket. Not for long where somebody waits for rings.
    fn wait(&self, half_open: &VecDeque<HalfOpen>, is_short: bool) -> Vec<bool> {
        let mut sockets: Vec<PollFd<'_>> = half_open
            .iter()
            .map(|c| c.socket.as_fd())
            .chain([self.socket.as_fd(), self.shared.listener_bell.as_fd()])
            .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
            .collect();
        let timeout = half_open.iter().map(|c| c.end).min().map(|end| {
            let left = end.saturating_duration_since(Instant::now());
            left + Duration::from_millis(1)
        });
        let timeout = match is_short {
            true => Some(timeout.map_or(TAKE_BACK_LOOK, |left| left.min(TAKE_BACK_LOOK))),
            false => timeout,
        };
        let timeout = timeout.map(|left| Timespec::try_from(left).unwrap_or_default());
        // An interrupted wait finds nothing ready.
        let _ = rustix::event::poll(&mut sockets, timeout.as_ref());
        sockets.iter().map(|s| !s.revents().is_empty()).collect()
    }

    fn accept(&self, half_open: &mut VecDeque<HalfOpen>, now: Instant) {
        // As many as there are places, then the others get to speak.
        for _ in 0..HALF_OPEN_COUNT_MAX {
            let socket = match self.socket.accept() {
                Ok((socket, _)) => socket,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    std::thread::sleep(ACCEPT_PAUSE);
                    return;
                }
            };
            if !self.users.allows_client(&socket) {
                self.refuse(&socket, Status::NotAllowed);
                continue;
            }
            if half_open.len() == HALF_OPEN_COUNT_MAX {
                half_open.pop_front();
            }
            half_open.push_back(HalfOpen {
                socket,
                hello: [0; HELLO_LEN],
                received: 0,
                end: now + self.hello_timeout,
            });
        }
    }

    fn refuse(&self, socket: &UnixStream, status: Status) {
        self.shared.counters.refused.fetch_add(1, Ordering::Relaxed);
        let _ = socket::send_with(socket, &Reply::Refused(status).encode(), &[]);
    }

    /// Answers a complete hello, or has it wait for rings.
    fn greet(
        &self,
        socket: UnixStream,
        hello: &[u8; HELLO_LEN],
        id: ClientId,
        short: &mut VecDeque<Short>,
    ) {
        let hello = match Hello::parse(hello) {
            Ok(hello) => hello,
            Err(HelloError::Malformed) => return self.refuse(&socket, Status::Malformed),
            Err(HelloError::Protocol { .. }) => return self.refuse(&socket, Status::Protocol),
        };
        let Some(export) = self.exports.iter().find(|e| e.backend == hello.backend) else {
            return self.refuse(&socket, Status::NoSuchBackend);
        };
        let has_queue = export.service.marks().is_some();
        if has_queue && !hello.knows_marks {
            return self.refuse(&socket, Status::MarksNeeded);
        }
        if hello.wants_lane {
            return self.grant_lane(&socket, export);
        }
        let finds_none = !short.is_empty() || !self.has_place();
        if !hello.wants_rings || !finds_none || short.len() >= SHORT_COUNT_MAX {
            return self.grant(socket, export, hello.wants_rings, id);
        }
        if short.is_empty() {
            self.shared.ask_for_rings();
        }
        short.push_back(Short {
            socket,
            backend: hello.backend,
            id,
            end: Instant::now() + self.rings_patience,
        });
    }

    /// Answers those who wait for rings and need not wait any longer, in order.
    fn serve_short(&self, short: &mut VecDeque<Short>, now: Instant) {
        while let Some(client) = short.pop_front_if(|c| self.has_place() || c.end <= now) {
            if let Some(export) = self.exports.iter().find(|e| e.backend == client.backend) {
                self.grant(client.socket, export, true, client.id);
            }
            if !short.is_empty() && !self.has_place() {
                self.shared.ask_for_rings();
            }
        }
    }

    /// Gives a client regions, and rings if it wants some and there are any: then it
    /// goes to the poller.
    fn grant(&self, socket: UnixStream, export: &Export, wants_rings: bool, id: ClientId) {
        let rings = match wants_rings {
            true => self.rings(export),
            false => None,
        };
        let granted = export.granted(rings.is_some().then_some(self.geometry));
        if granted.topology.is_changing() && !self.shared.greets_early() {
            // It is leaving its place, or loads another corpus: as if it were not there.
            return;
        }
        let reply = Reply::Granted(granted);
        let mut descriptors = export.descriptors().to_vec();
        descriptors.extend(export.service.marks().map(|marks| marks.object));
        descriptors.extend(rings.as_ref().map(Rings::descriptor));
        if socket::send_with(&socket, &reply.encode(), &descriptors).is_err() {
            return;
        }
        self.shared.counters.greeted.fetch_add(1, Ordering::Relaxed);
        if let Some(rings) = rings {
            let counters = Arc::clone(&self.shared.counters);
            let client = Client::new(id, rings, self.geometry, socket, counters);
            self.shared.hand_over(client);
        }
    }

    /// Makes a client one of the backend's queue.
    fn grant_lane(&self, socket: &UnixStream, export: &Export) {
        let lane = match export.service.admit() {
            Ok(lane) => lane,
            Err(NoLane::NoQueue) => return self.refuse(socket, Status::NoQueue),
            Err(NoLane::Full) => return self.refuse(socket, Status::NoLane),
            Err(NoLane::NotNow) => return self.refuse(socket, Status::Unavailable),
        };
        let mut granted = export.granted(None);
        granted.place = Some(lane.place);
        let mut descriptors = export.descriptors().to_vec();
        let own = [&lane.marks, &lane.order, &lane.lane, &lane.bell];
        descriptors.extend(own.map(|descriptor| descriptor.as_fd()));
        // Who does not get it has its end of the bell closed with it: its place is free.
        if socket::send_with(socket, &Reply::Granted(granted).encode(), &descriptors).is_ok() {
            self.shared.counters.greeted.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether one more client may have rings.
    fn has_place(&self) -> bool {
        let open = self.shared.counters.rings_open.load(Ordering::Acquire);
        open < self.client_count_max as u64
    }

    /// Rings for one more client; `None` makes it read only and mutate by RPC.
    fn rings(&self, export: &Export) -> Option<Rings> {
        let rings = self
            .has_place()
            .then(|| Rings::create(self.geometry, &export.service).ok())
            .flatten();
        if rings.is_none() {
            let refused = &self.shared.counters.rings_refused;
            refused.fetch_add(1, Ordering::Relaxed);
        }
        rings
    }
}
