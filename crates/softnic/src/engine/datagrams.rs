//! The engine's datagrams: those that come to a loop's sockets, of all sessions that have
//! keys.

use super::counters::{Counters, add};
use super::session::TURN_LEN;
use crate::channel::Channel;
use crate::datagrams::{Aes, Keys, Side};
use rustix::net::getpeername;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use trefoil_softnic_core::Memory;
use trefoil_softnic_core::datagram::sealed::session_of;
use trefoil_softnic_core::datagram::target::{Buffers, carry_out};
use trefoil_softnic_core::datagram::{DATAGRAM_LEN_MAX, Sealed};

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
    sockets: Vec<UdpSocket>,
    buffers: Buffers,
    out: Vec<u8>,
}

impl Datagrams {
    /// How many sockets there are: the number of the next.
    pub(super) fn count(&self) -> usize {
        self.sockets.len()
    }

    pub(super) fn add(&mut self, socket: UdpSocket) {
        self.sockets.push(socket);
    }

    /// Carries out what has come to one of the sockets; how many datagrams that were.
    pub(super) fn serve(
        &mut self,
        number: usize,
        peers: &Peers,
        memory: &mut impl Memory,
        counters: &Counters,
    ) -> usize {
        let Some(socket) = self.sockets.get(number) else {
            return 0;
        };
        let mut datagram = [0; DATAGRAM_LEN_MAX + 1];
        let (mut count, mut sent_len) = (0, 0);
        while count < TURN_COUNT && sent_len < TURN_LEN {
            let Ok((len, from)) = socket.recv_from(&mut datagram) else {
                break;
            };
            count += 1;
            add(&counters.datagrams_in, 1);
            let peer = session_of(&datagram[..len]).and_then(|name| peers.get(name));
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
            let Ok(payload) = peer.sealed.open(&mut datagram[..len]) else {
                add(&counters.datagrams_dropped, 1);
                continue;
            };
            add(&counters.bytes_in, len as u64);
            let out = &mut self.out;
            let done = carry_out(payload, memory, &mut self.buffers, |payload| {
                peer.sealed.seal(payload, out);
                // Taken or not: sealing is the work.
                sent_len += out.len();
                // What the system does not take is asked for again.
                if let Ok(len) = socket.send_to(out, from) {
                    add(&counters.bytes_out, len as u64);
                }
                add(&counters.datagrams_out, 1);
            });
            match done {
                Ok(0) => {}
                Ok(repeated) => add(&counters.repeated, repeated),
                Err(_) => add(&counters.malformed, 1),
            }
        }
        count
    }
}
