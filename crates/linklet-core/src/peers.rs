//! The other servers: who lives, what each speaks, and how it is reached, by a way round
//! (`detour`) if need be.

mod detour;

use crate::config::Config;
use crate::link::{Haste, Link};
use crate::message::{Frame, Message};
use crate::mutants::{self, Mutant};
use crate::outbox::Outbox;
use crate::wire::{Wire, WireError};
use detour::{Passed, Ways};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use trefoil_sharder::ServerId;

/// Everybody but this server, with the links to them. Frames go to the [`Outbox`]; it touches
/// no other part.
///
/// * Who is dead for ever is never alive again, is told nothing, and has no link.
/// * What is said to somebody alive arrives once and in order ([`Link`]).
#[derive(Debug)]
pub(crate) struct Peers {
    me: ServerId,
    window_bytes: usize,
    bulk_bytes: usize,
    resend_after: Duration,
    /// Everybody alive but this server.
    alive: BTreeSet<ServerId>,
    /// Dead for ever.
    gone: BTreeSet<ServerId>,
    links: BTreeMap<ServerId, Link>,
    /// What others speak that have said it.
    wires: BTreeMap<ServerId, Wire>,
    ways: BTreeMap<ServerId, Ways>,
    passed: Passed,
}

impl Peers {
    pub(crate) fn nobody(me: ServerId, config: &Config) -> Self {
        Peers {
            me,
            window_bytes: config.window_bytes,
            bulk_bytes: config.bulk_bytes,
            resend_after: config.resend_after,
            alive: BTreeSet::new(),
            gone: BTreeSet::new(),
            links: BTreeMap::new(),
            wires: BTreeMap::new(),
            ways: BTreeMap::new(),
            passed: Passed::default(),
        }
    }

    /// Everybody alive but this server.
    pub(crate) fn alive(&self) -> &BTreeSet<ServerId> {
        &self.alive
    }

    /// These others are alive now; who was before. Whoever is dead for ever is buried then.
    pub(crate) fn hear_of_living(&mut self, living: BTreeSet<ServerId>) -> BTreeSet<ServerId> {
        std::mem::replace(&mut self.alive, living)
    }

    pub(crate) fn is_alive(&self, server: ServerId) -> bool {
        self.alive.contains(&server)
    }

    /// Whether it is dead for ever.
    pub(crate) fn is_gone(&self, server: ServerId) -> bool {
        self.gone.contains(&server)
    }

    /// Whether it is another server, and not known to be dead for ever.
    pub(crate) fn may_live(&self, server: ServerId) -> bool {
        server != self.me && !self.is_gone(server)
    }

    /// Everybody alive, this server among them.
    pub(crate) fn with_me(&self) -> Vec<ServerId> {
        self.alive.iter().copied().chain([self.me]).collect()
    }

    /// A server is dead for ever.
    pub(crate) fn bury(&mut self, server: ServerId) {
        self.gone.insert(server);
        self.links.remove(&server);
        self.wires.remove(&server);
        self.ways.remove(&server);
    }

    /// What a server speaks; what both know is used from now on.
    pub(crate) fn meet(&mut self, peer: ServerId, wire: Wire) -> Result<Wire, WireError> {
        let agreed = Wire::agree(wire)?;
        if !self.is_gone(peer) {
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

    /// Says something to somebody who is not known to be dead.
    pub(crate) fn say(
        &mut self,
        now: Duration,
        outbox: &mut Outbox,
        to: ServerId,
        haste: Haste,
        message: Message,
    ) {
        if self.is_gone(to) {
            return;
        }
        debug_assert!(self.knows(to, message.since()), "to {to}: {message:?}");
        let link = self.links.entry(to).or_default();
        let frame = link.send(now, self.resend_after, haste, message);
        self.send_frame(now, outbox, to, frame, false);
    }

    /// Takes a frame of a server. The messages whose turn has come are then fetched with
    /// `next`, and after that it is answered with `confirm`.
    pub(crate) fn receive(&mut self, now: Duration, from: ServerId, frame: Frame) {
        let link = self.links.entry(from).or_default();
        link.receive(now, self.resend_after, frame);
    }

    /// The next message of a server.
    pub(crate) fn next(&mut self, from: ServerId) -> Option<Message> {
        self.links.get_mut(&from)?.next()
    }

    /// Sends a server what it may be sent after a frame of it, and confirms that if it is due.
    pub(crate) fn confirm(&mut self, now: Duration, outbox: &mut Outbox, from: ServerId) {
        if let Some(link) = self.links.get_mut(&from) {
            let again = link.go_on();
            for frame in again.into_iter().chain(link.confirm(now)) {
                self.send_frame(now, outbox, from, frame, false);
            }
        }
    }

    /// Sends what is due again, and confirmations that are.
    pub(crate) fn tick(&mut self, now: Duration, outbox: &mut Outbox) {
        let every = self.resend_after;
        for to in self.links.keys().copied().collect::<Vec<_>>() {
            let Some(link) = self.links.get_mut(&to) else {
                continue;
            };
            let (again, confirm) = (link.resend(now, every), link.confirm(now));
            let vain = !again.is_empty() && link.is_in_vain();
            for frame in again {
                self.send_frame(now, outbox, to, frame, true);
            }
            if let Some(frame) = confirm {
                self.send_frame(now, outbox, to, frame, false);
            }
            if vain {
                self.ask_for_way(now, outbox, to);
            }
        }
    }

    /// When `tick` has something to do.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        self.links.values().filter_map(Link::next_tick).min()
    }

    /// Bytes on their way to all servers.
    pub(crate) fn unconfirmed_bytes(&self) -> usize {
        self.links.values().map(Link::unconfirmed_bytes).sum()
    }

    /// Bytes on their way to a server.
    pub(crate) fn unconfirmed_bytes_to(&self, server: ServerId) -> usize {
        let link = self.links.get(&server);
        link.map_or(0, Link::unconfirmed_bytes)
    }

    /// Whether everything that was said has arrived.
    pub(crate) fn is_settled(&self) -> bool {
        self.links.values().all(Link::is_settled)
    }

    /// Whether more may be sent to a server that can wait.
    pub(crate) fn is_open(&self, server: ServerId) -> bool {
        let link = self.links.get(&server);
        link.is_none_or(|link| link.is_open(self.window_bytes))
    }

    /// Whether a chunk may be sent to a server that nobody waits for.
    pub(crate) fn is_open_for_bulk(&self, server: ServerId) -> bool {
        if mutants::is(Mutant::WindowIgnored) {
            return true;
        }
        let link = self.links.get(&server);
        link.is_none_or(|link| link.is_open_for_bulk(self.window_bytes, self.bulk_bytes))
    }
}
