//! Operations that are submitted, and completed by a later poll: for event loops
//! and for whoever has many operations under way on one client.
//!
//! ```text
//! client.submit_get(key, token)            any number of operations; nothing waits
//! client.poll(|token, completion| ...)     what has completed so far
//! if client.arm() { sleep }                on client.descriptor(), until
//!                                          client.next_deadline_ns() at most
//! client.poll(...)
//! ```
//!
//! * A token is the caller's; it may repeat. Completions come in any order, each
//!   operation's exactly once, with the client's own deadline as the latest time.
//! * What commits at its acknowledgement ([`Commit::Acknowledged`]) has completed by the next
//!   poll. A place at a backend's queue takes a greeting: a thread asks for it, and until it has
//!   one, what is submitted is executed.
//! * Bytes that are submitted are copied where they are needed later.
//! * The descriptor is one for the life of the client: it becomes readable when a
//!   poll would do something, while the client is armed.
//! * Blocking calls may be mixed in: what was submitted goes on meanwhile.

use crate::client::Client;
use crate::commit::{Commit, perhaps};
use crate::error::{Mutated, OpError};
use crate::get::{Lookup, Miss, failed, hit};
use crate::item_use::ItemUses;
use crate::look::{Basis, basis, missed, unfinished};
use crate::mutate::{SetOptions, concluded};
use crate::sleep::{arm, silence};
use crate::time;
use rustix::event::epoll;
use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;
use trefoil_client_core::fill::FillTicket;
use trefoil_client_core::get::GetOutcome;
use trefoil_driver::{Outcome, Owner, Purpose};
use trefoil_fabric::Idle;
use trefoil_fabric::port::Port as _;
use trefoil_layout::op::Expected;

/// What a submitted operation came to.
#[derive(Debug)]
pub enum Completion<'a> {
    /// Of `submit_get` and `submit_peek`.
    Lookup(Result<Lookup<'a>, OpError>),
    /// Of `submit_look`.
    Basis(Result<Basis<'a>, OpError>),
    /// Of `submit_set`, `submit_fill`, `submit_erase` and `submit_cas`.
    Mutated(Result<Mutated, OpError>),
    /// Of `submit_item_uses`.
    ItemUses(Result<ItemUses, OpError>),
}

/// Which of them an operation would complete as.
#[derive(Clone, Copy)]
enum Kind {
    Lookup,
    Basis,
    Mutation,
    ItemUses,
}

/// How an operation ended where it was submitted.
enum Ended {
    Refused(Kind, OpError),
    Mutated(Result<Mutated, OpError>),
}

/// What an event loop needs of a client.
#[derive(Default)]
pub(crate) struct Sleeper {
    /// Holds the bell and every backend's socket.
    epoll: Option<OwnedFd>,
    /// The driver's count of views when the sockets were put into it.
    registered: Option<u64>,
    is_armed: bool,
    /// How the latest wait has found the core.
    pub(crate) idle: Idle,
    /// Operations that ended where they were submitted.
    ended: VecDeque<(u64, Ended)>,
}

impl Client {
    /// Begins [`Client::get`].
    pub fn submit_get(&mut self, key: &[u8], token: u64) {
        self.submit_lookup(key, token, Purpose::Use);
    }

    /// Begins [`Client::peek`].
    pub fn submit_peek(&mut self, key: &[u8], token: u64) {
        self.submit_lookup(key, token, Purpose::Peek);
    }

    /// Begins [`Client::look`].
    pub fn submit_look(&mut self, key: &[u8], token: u64) {
        self.submit_lookup(key, token, Purpose::Basis);
    }

    /// [`Client::get`] if that ends at once; else it is begun, and completes under
    /// `token`.
    #[inline]
    pub fn get_or_submit(&mut self, key: &[u8], token: u64) -> Option<Result<Lookup<'_>, OpError>> {
        self.look_up_or_submit(key, token, Purpose::Use)
    }

    /// The same for [`Client::peek`].
    #[inline]
    pub fn peek_or_submit(
        &mut self,
        key: &[u8],
        token: u64,
    ) -> Option<Result<Lookup<'_>, OpError>> {
        self.look_up_or_submit(key, token, Purpose::Peek)
    }

    #[inline]
    fn look_up_or_submit(
        &mut self,
        key: &[u8],
        token: u64,
        purpose: Purpose,
    ) -> Option<Result<Lookup<'_>, OpError>> {
        if let Err(error) = self.check_lookup(key) {
            return Some(Err(error));
        }
        self.settle_topology();
        let now = time::coarse_ns();
        let limits = self.driver.limits(now);
        let owner = Owner::Token(token);
        let inline = self.driver.get(key, now, limits, purpose, owner).ok()?;
        self.driver.counters_mut().add(&inline.outcome);
        Some(match inline.outcome {
            GetOutcome::Hit { version, .. } => hit(self.driver.inline_bytes(&inline), version),
            GetOutcome::Miss { reason } => {
                Ok(Lookup::Miss(Miss::new(reason, self.driver.missed(&inline))))
            }
            GetOutcome::Failed { cause } => Err(self.explained(failed(cause, None))),
        })
    }

    fn submit_lookup(&mut self, key: &[u8], token: u64, purpose: Purpose) {
        if let Err(error) = self.check_lookup(key) {
            let kind = match purpose {
                Purpose::Basis => Kind::Basis,
                Purpose::Use | Purpose::Peek => Kind::Lookup,
            };
            return self.refuse(token, kind, error);
        }
        self.settle_topology();
        let now = time::coarse_ns();
        let limits = self.driver.limits(now);
        let owner = Owner::Token(token);
        if let Ok(inline) = self.driver.get(key, now, limits, purpose, owner) {
            self.driver.keep(&inline, purpose, token);
        }
    }

    /// Begins [`Client::set`].
    pub fn submit_set(&mut self, key: &[u8], value: &[u8], options: SetOptions, token: u64) {
        self.submit_set_by(key, value, options, self.commit, token);
    }

    /// Begins [`Client::set_by`].
    pub fn submit_set_by(
        &mut self,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
        commit: Commit,
        token: u64,
    ) {
        if let Some(ended) = self.set_or_submit(key, value, options, commit, token) {
            self.sleeper.ended.push_back((token, Ended::Mutated(ended)));
        }
    }

    /// Begins [`Client::fill`].
    pub fn submit_fill(
        &mut self,
        ticket: FillTicket,
        key: &[u8],
        value: &[u8],
        options: SetOptions,
        token: u64,
    ) {
        let begun = self.begin_fill(ticket, key, value, options, Owner::Token(token));
        self.begun(begun, token);
    }

    /// Begins [`Client::erase`].
    pub fn submit_erase(&mut self, key: &[u8], token: u64) {
        self.submit_erase_by(key, self.commit, token);
    }

    /// Begins [`Client::erase_by`].
    pub fn submit_erase_by(&mut self, key: &[u8], commit: Commit, token: u64) {
        if let Some(ended) = self.erase_or_submit(key, commit, token) {
            self.sleeper.ended.push_back((token, Ended::Mutated(ended)));
        }
    }

    /// Begins [`Client::cas`].
    pub fn submit_cas(
        &mut self,
        key: &[u8],
        expected: Expected,
        value: &[u8],
        options: SetOptions,
        token: u64,
    ) {
        let begun = self.begin_cas(key, expected, value, options, Owner::Token(token));
        self.begun(begun, token);
    }

    /// Begins [`Client::item_uses`].
    pub fn submit_item_uses(&mut self, key: &[u8], patience: Duration, token: u64) {
        if let Err(error) = self.check_lookup(key) {
            return self.refuse(token, Kind::ItemUses, error);
        }
        let patience_ns = time::nanoseconds(patience);
        self.driver
            .begin_uses(key, patience_ns, Owner::Token(token));
    }

    fn begun(&mut self, begun: Result<u32, OpError>, token: u64) {
        if let Err(error) = begun {
            self.refuse(token, Kind::Mutation, error);
        }
    }

    fn refuse(&mut self, token: u64, kind: Kind, error: OpError) {
        let ended = Ended::Refused(kind, error);
        self.sleeper.ended.push_back((token, ended));
    }

    /// The caller does not want to know what becomes of the operation that it
    /// submitted under `token`: no completion follows. A lookup ends; a mutation
    /// that was begun goes on, to all replicas.
    pub fn abandon(&mut self, token: u64) {
        self.driver.abandon(token);
        self.sleeper.ended.retain(|(of, ..)| *of != token);
    }

    /// Goes on with everything that was submitted, and hands out what has
    /// completed; returns how many operations that were. Never waits.
    pub fn poll(&mut self, on: &mut dyn FnMut(u64, Completion<'_>)) -> usize {
        let is_own = !self.is_forked();
        if is_own {
            if std::mem::take(&mut self.sleeper.is_armed) {
                silence(&self.driver);
                self.driver.look_at_all();
            }
            self.driver.turn();
        }
        let mut count = 0;
        while let Some((token, ended)) = self.sleeper.ended.pop_front() {
            count += 1;
            let completion = match ended {
                Ended::Mutated(mutated) => Completion::Mutated(mutated),
                Ended::Refused(kind, error) => match kind {
                    Kind::Lookup => Completion::Lookup(Err(error)),
                    Kind::Basis => Completion::Basis(Err(error)),
                    Kind::Mutation => Completion::Mutated(Err(error)),
                    Kind::ItemUses => Completion::ItemUses(Err(error)),
                },
            };
            on(token, completion);
        }
        while is_own && let Some((at, token)) = self.driver.next_done() {
            let is_look = self.driver.is_basis(at);
            let is_again = self.driver.is_again(at);
            let mut held = std::mem::take(&mut self.held);
            let ended = self.driver.take_ended(at, &mut held);
            self.held = held;
            let Some((outcome, why)) = ended else {
                continue;
            };
            count += 1;
            let why = why.as_deref();
            let explained = |error| self.explained(error);
            let completion = match outcome {
                Outcome::Hit { version } if is_look => {
                    Completion::Basis(basis(hit(self.held.bytes(), version)))
                }
                Outcome::Miss { reason, .. } if is_look => Completion::Basis(Ok(missed(reason))),
                Outcome::Failed { cause } if is_look => {
                    Completion::Basis(unfinished(cause, why).map_err(explained))
                }
                Outcome::Hit { version } => Completion::Lookup(hit(self.held.bytes(), version)),
                Outcome::Miss { reason, stamps } => {
                    Completion::Lookup(Ok(Lookup::Miss(Miss::new(reason, stamps))))
                }
                Outcome::Failed { cause } => Completion::Lookup(Err(explained(failed(cause, why)))),
                Outcome::Mutated(outcome) => {
                    let mutated = concluded(outcome, why).map_err(explained);
                    Completion::Mutated(match is_again {
                        true => mutated.map_err(perhaps),
                        false => mutated,
                    })
                }
                Outcome::Uses(uses) => Completion::ItemUses(Ok(uses)),
            };
            on(token, completion);
        }
        count
    }

    /// Operations that were submitted and not handed out yet, and those of which
    /// nobody wants to know but that still have something to send.
    pub fn in_flight(&self) -> usize {
        self.driver.in_flight() + self.sleeper.ended.len()
    }

    /// Before the caller sleeps on [`Client::descriptor`]: asks for it to become
    /// readable. `false` if there is something to poll already.
    pub fn arm(&mut self) -> bool {
        if self.is_forked() || self.has_completed() {
            return false;
        }
        self.register();
        arm(&self.driver);
        self.sleeper.is_armed = true;
        !self.is_ready()
    }

    fn has_completed(&self) -> bool {
        !self.sleeper.ended.is_empty() || self.driver.has_work() || self.is_ready()
    }

    /// Readable when there is something to poll, while the client is armed. The
    /// same one for the life of the client. An error is the system's: no
    /// descriptor is left.
    pub fn descriptor(&mut self) -> std::io::Result<BorrowedFd<'_>> {
        if self.sleeper.epoll.is_none() {
            self.sleeper.epoll = Some(epoll::create(epoll::CreateFlags::CLOEXEC)?);
            self.register();
        }
        let epoll = self.sleeper.epoll.as_ref();
        Ok(epoll.expect("it was made above").as_fd())
    }

    /// Puts new connections' sockets into the descriptor. Those of connections that
    /// have ended left it when they were closed.
    fn register(&mut self) {
        let (Some(epoll), now) = (&self.sleeper.epoll, self.driver.view_count()) else {
            return;
        };
        if self.sleeper.registered == Some(now) {
            return;
        }
        self.sleeper.registered = Some(now);
        let sockets = self
            .driver
            .near_ports()
            .filter_map(|port| port.descriptor())
            .chain(self.driver.host_ref().descriptor());
        for socket in sockets {
            // One that is in there already stays.
            let _ = epoll::add(
                epoll,
                socket,
                epoll::EventData::new_u64(0),
                epoll::EventFlags::IN,
            );
        }
    }

    /// When, on the host's monotonic clock, [`Client::poll`] is to be called even
    /// if nothing has arrived: a deadline, a pause that ends, a backend to be tried
    /// again. `None` if there is no such time.
    pub fn next_deadline_ns(&mut self) -> Option<u64> {
        Some(self.driver.next_deadline_ns()).filter(|at| *at != u64::MAX)
    }
}
