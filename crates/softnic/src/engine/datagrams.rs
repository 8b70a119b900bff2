//! The engine's datagrams: those that come to a loop's sockets, of all sessions that have
//! keys. They are received in batches, and the answers of one turn leave together.

use super::counters::{Counters, add};
use super::session::TURN_LEN;
use crate::channel::Channel;
use crate::datagrams::{Aes, Keys, Side};
use rustix::net::getpeername;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use trefoil_sockets::datagrams::{self, Inbox, Outbox, RECEIPT_COUNT_MAX};
use trefoil_softnic_core::Memory;
use trefoil_softnic_core::datagram::Sealed;
use trefoil_softnic_core::datagram::sealed::session_of;
use trefoil_softnic_core::datagram::target::{Buffers, carry_out};

/// Datagrams carried out before others have their turn; answers of a session's turn end it,
/// too.
const TURN_COUNT: usize = 64;

/// Sessions that have keys, by the names that stand in their datagrams. Whatever loop
/// takes a datagram finds its session here.
#[derive(Default)]
pub(super) struct Peers(RwLock<HashMap<u64, Arc<Mutex<Peer>>>>);

pub(super) struct Peer {
    sealed: Sealed<Aes>,
    /// Of its stream: datagrams from elsewhere are not its own.
    ip: IpAddr,
}

impl Peers {
    /// A session that was let in; its name here, if it has keys.
    pub(super) fn begin(&self, socket: &OwnedFd, channel: &Channel) -> Option<u64> {
        let keys = Keys::draw(channel)?;
        let name = keys.session;
        let peer = SocketAddr::try_from(getpeername(socket).ok()??).ok()?;
        let sealed = keys.into_end(Side::Engine)?;
        let ip = peer.ip().to_canonical();
        let peer = Arc::new(Mutex::new(Peer { sealed, ip }));
        let mut peers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        // Nobody's name is drawn twice.
        peers.insert(name, peer);
        Some(name)
    }

    /// It has ended.
    pub(super) fn end(&self, name: u64) {
        let mut peers = self.0.write().unwrap_or_else(PoisonError::into_inner);
        peers.remove(&name);
    }

    fn get(&self, name: u64) -> Option<Arc<Mutex<Peer>>> {
        let peers = self.0.read().unwrap_or_else(PoisonError::into_inner);
        peers.get(&name).cloned()
    }
}

/// A loop's sockets.
#[derive(Default)]
pub(super) struct Datagrams {
    sockets: Vec<datagrams::Datagrams>,
    /// Of one socket at a time; there is none before the first.
    inbox: Option<Inbox>,
    /// That what is left in the inbox has come to.
    left_at: Option<usize>,
    outbox: Outbox,
    buffers: Buffers,
    out: Vec<u8>,
}

/// What a turn has done.
#[derive(Clone, Copy, Default)]
struct Done {
    count: usize,
    /// Bytes of answers.
    len: usize,
}

impl Done {
    fn is_enough(&self) -> bool {
        self.count >= TURN_COUNT || self.len >= TURN_LEN
    }
}

impl Datagrams {
    /// How many sockets there are: the number of the next.
    pub(super) fn count(&self) -> usize {
        self.sockets.len()
    }

    pub(super) fn add(&mut self, socket: UdpSocket) -> io::Result<()> {
        self.sockets.push(datagrams::Datagrams::new(socket)?);
        Ok(())
    }

    /// The socket of which something was received that nobody has looked at.
    pub(super) fn left_at(&self) -> Option<usize> {
        self.left_at
    }

    /// Carries out what has come to one of the sockets, or what is left of another one; how
    /// many datagrams that were.
    pub(super) fn serve(
        &mut self,
        number: usize,
        peers: &Peers,
        memory: &mut impl Memory,
        counters: &Counters,
    ) -> usize {
        let mut done = Done::default();
        let number = self.left_at.unwrap_or(number);
        let mut may_be_more = true;
        while !done.is_enough() && may_be_more && self.has_next(number) {
            self.serve_received(peers, memory, counters, &mut done);
            // Those that wait for these answers need not wait for a look that finds nothing:
            // what comes meanwhile has the next turn.
            may_be_more = self.inbox.as_ref().is_some_and(Inbox::was_filled);
        }
        let has_left = self.inbox.as_ref().is_some_and(Inbox::has_next);
        self.left_at = has_left.then_some(number);
        if !self.outbox.is_empty()
            && let Some(socket) = self.sockets.get_mut(number)
        {
            // What the system does not take is asked for again.
            let sent = socket.send(&mut self.outbox);
            add(&counters.bytes_out, sent.len as u64);
        }
        done.count
    }

    /// Whether there is something in the inbox, which is filled if it is empty.
    fn has_next(&mut self, number: usize) -> bool {
        let Some(socket) = self.sockets.get(number) else {
            return false;
        };
        let inbox = || Inbox::new(RECEIPT_COUNT_MAX);
        let inbox = self.inbox.get_or_insert_with(inbox);
        inbox.has_next() || socket.receive(inbox)
    }

    fn serve_received(
        &mut self,
        peers: &Peers,
        memory: &mut impl Memory,
        counters: &Counters,
        done: &mut Done,
    ) {
        let Some(inbox) = &mut self.inbox else {
            return;
        };
        while !done.is_enough()
            && let Some((from, datagram)) = inbox.take_next()
        {
            done.count += 1;
            add(&counters.datagrams_in, 1);
            let len = datagram.len();
            let peer = session_of(datagram).and_then(|name| peers.get(name));
            // Nothing is said to who has no key.
            let Some(peer) = peer else {
                add(&counters.datagrams_dropped, 1);
                continue;
            };
            let mut peer = peer.lock().unwrap_or_else(PoisonError::into_inner);
            if peer.ip != from.ip().to_canonical() {
                add(&counters.datagrams_dropped, 1);
                continue;
            }
            let Ok(payload) = peer.sealed.open(datagram) else {
                add(&counters.datagrams_dropped, 1);
                continue;
            };
            add(&counters.bytes_in, len as u64);
            let (out, outbox) = (&mut self.out, &mut self.outbox);
            let carried_out = carry_out(payload, memory, &mut self.buffers, |payload| {
                peer.sealed.seal(payload, out);
                // Taken or not: sealing is the work.
                done.len += out.len();
                outbox.push(from, out);
                add(&counters.datagrams_out, 1);
            });
            match carried_out {
                Ok(0) => {}
                Ok(repeated) => add(&counters.repeated, repeated),
                Err(_) => add(&counters.malformed, 1),
            }
        }
    }
}
