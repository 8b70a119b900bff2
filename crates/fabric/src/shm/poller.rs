//! The one thread that serves the rings of all clients of all backends in a
//! process.
//!
//! # Thread safety
//! The poller owns every [`Client`]; new ones come through the inbox. It spins
//! for a while after the last message that wanted an answer (touches want
//! none, so readers do not keep it awake), or until a stranger wants its core, then
//! sleeps:
//! 1. it announces the sleep in every ring, with a number of its own;
//! 2. full fence;
//! 3. it looks at every ring, the inbox and the stop flag once more;
//! 4. it waits for a bell on any socket or its own event descriptor.
//!
//! A client that writes after (3) sees the announcement of (1), by its own full
//! fence, and rings. While clients exist a sleep ends after a while in any case:
//! that is when touches are taken in.

use super::client::{Buffers, Client};
use super::socket::{self, Peer};
use super::target::Shared;
use crate::idle::{Idle, Rest};
use rustix::event::{Timespec, epoll};
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

/// Rounds between two looks at the sockets while the poller does not sleep.
const SOCKET_ROUNDS: u32 = 8192;
/// Names the poller's own bell in epoll events; no client has this id.
const OWN_BELL: u64 = 0;
const EVENT_COUNT_MAX: usize = 64;
/// How long a turn of this thread should be where it shares its core: the least that the
/// system knows.
const TURN: Duration = Duration::from_micros(100);

pub(super) struct Poller {
    shared: Arc<Shared>,
    epoll: OwnedFd,
    clients: Vec<Client>,
    buffers: Buffers,
    spin: Duration,
    sleep_max: Timespec,
    silence_max: Duration,
    sleep_number: u64,
}

impl Poller {
    pub(super) fn new(
        shared: Arc<Shared>,
        spin: Duration,
        sleep_max: Duration,
        silence_max: Duration,
    ) -> rustix::io::Result<Self> {
        // Longer than the system can count is for ever.
        let sleep_max = Timespec::try_from(sleep_max).unwrap_or(Timespec {
            tv_sec: i64::MAX,
            tv_nsec: 0,
        });
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let data = epoll::EventData::new_u64(OWN_BELL);
        epoll::add(&epoll, &shared.poller_bell, data, epoll::EventFlags::IN)?;
        Ok(Poller {
            shared,
            epoll,
            clients: Vec::new(),
            buffers: Buffers::new(),
            spin,
            sleep_max,
            silence_max,
            sleep_number: 0,
        })
    }

    /// Serves until the target is stopped.
    pub(super) fn run(mut self) {
        trefoil_region::take_short_turns(TURN);
        let mut idle = Idle::default();
        let mut last_answer: Option<Instant> = None;
        let mut rounds = 0u32;
        while !self.shared.is_stopped() {
            self.shared.counters.count_round();
            if self.shared.has_inbox() {
                self.adopt();
            }
            let (answered, silent) = self.round();
            rounds = rounds.wrapping_add(1);
            if rounds.is_multiple_of(SOCKET_ROUNDS) {
                self.look_at_sockets(Some(&Timespec::default()));
            }
            if answered > 0 {
                last_answer = None;
                idle.begin();
                continue;
            }
            if silent > 0 {
                continue;
            }
            // The clock is read in idle rounds only: the first one after an
            // answer starts the count.
            let is_over = match idle.rest() {
                Rest::Look => false,
                Rest::Yielded(now) => now - *last_answer.get_or_insert(now) >= self.spin,
                Rest::Sleep => true,
            };
            if is_over {
                self.sleep();
            }
        }
        for client in self.clients.drain(..) {
            client.leave(&mut self.buffers);
        }
    }

    /// Gives every client one turn; messages answered and not to be answered.
    #[inline]
    fn round(&mut self) -> (usize, usize) {
        let (mut answered, mut silent) = (0, 0);
        let mut at = 0;
        while at < self.clients.len() {
            match self.clients[at].turn(&mut self.buffers) {
                Ok(turn) => {
                    answered += turn.answered;
                    silent += turn.silent;
                    at += 1;
                }
                Err(_) => {
                    self.shared
                        .counters
                        .rings_broken
                        .fetch_add(1, Ordering::Relaxed);
                    self.clients.swap_remove(at);
                }
            }
        }
        (answered, silent)
    }

    #[cold]
    fn adopt(&mut self) {
        for client in self.shared.take_inbox() {
            let data = epoll::EventData::new_u64(client.id().0);
            let flags = epoll::EventFlags::IN | epoll::EventFlags::RDHUP;
            // Without its bell the client could not be served when asleep.
            if epoll::add(&self.epoll, client.socket(), data, flags).is_ok() {
                self.clients.push(client);
            }
        }
        if self.shared.is_short_of_rings() {
            self.take_back();
        }
    }

    /// Hangs up on the one that has held its rings for longest without ever using
    /// them. It may connect again.
    fn take_back(&mut self) {
        let silent = |client: &&Client| client.silence() >= Some(self.silence_max);
        let oldest = self.clients.iter().filter(silent).map(Client::id).min();
        if let Some(at) = self.clients.iter().position(|c| Some(c.id()) == oldest) {
            self.clients.swap_remove(at).finish(&mut self.buffers);
        }
    }

    fn sleep(&mut self) {
        self.sleep_number += 1;
        self.announce();
        fence(Ordering::SeqCst);
        let ready = self.shared.is_stopped()
            || self.shared.has_inbox()
            || self.clients.iter_mut().any(Client::is_ready);
        if !ready {
            let timeout = (!self.clients.is_empty()).then_some(self.sleep_max);
            self.shared.counters.set_asleep(true);
            self.look_at_sockets(timeout.as_ref());
            self.shared.counters.set_asleep(false);
            self.shared.counters.sleeps.fetch_add(1, Ordering::Relaxed);
        }
        self.sleep_number += 1;
        self.announce();
    }

    fn announce(&mut self) {
        for client in &mut self.clients {
            client.announce_sleep(self.sleep_number);
        }
    }

    /// Waits for bells and hang-ups; no timeout means for ever.
    fn look_at_sockets(&mut self, timeout: Option<&Timespec>) {
        let mut room = [const { MaybeUninit::uninit() }; EVENT_COUNT_MAX];
        // An interrupted wait is a short one.
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut room, timeout) else {
            return;
        };
        let mut bells = 0;
        for event in events {
            let data = event.data;
            if data.u64() == OWN_BELL {
                self.shared.silence_poller_bell();
                continue;
            }
            let Some(at) = self.clients.iter().position(|c| c.id().0 == data.u64()) else {
                continue;
            };
            bells += 1;
            if socket::silence(self.clients[at].socket()) == Peer::Gone {
                self.clients.swap_remove(at).finish(&mut self.buffers);
            }
        }
        self.shared
            .counters
            .bells_heard
            .fetch_add(bells, Ordering::Relaxed);
    }
}
