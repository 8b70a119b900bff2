//! The engine's datagrams: one socket for all sessions that have keys.

use super::counters::{Counters, add};
use super::session::TURN_LEN;
use crate::channel::Channel;
use crate::datagrams::{Aes, Keys, Side};
use rustix::net::getpeername;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use trefoil_softnic_core::Memory;
use trefoil_softnic_core::datagram::sealed::session_of;
use trefoil_softnic_core::datagram::target::{Buffers, carry_out};
use trefoil_softnic_core::datagram::{DATAGRAM_LEN_MAX, Sealed};

/// Datagrams carried out before others have their turn; answers of a session's turn end it,
/// too.
const TURN_COUNT: usize = 64;

/// See the module.
pub(super) struct Datagrams {
    socket: UdpSocket,
    peers: HashMap<u64, Peer>,
    buffers: Buffers,
    out: Vec<u8>,
}

struct Peer {
    sealed: Sealed<Aes>,
    /// Of its stream: datagrams from elsewhere are not its own.
    ip: IpAddr,
}

impl Datagrams {
    /// At the address of the engine's listener.
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = UdpSocket::bind(address)?;
        socket.set_nonblocking(true)?;
        Ok(Datagrams {
            socket,
            peers: HashMap::new(),
            buffers: Buffers::default(),
            out: Vec::new(),
        })
    }

    /// A session that was let in; its name here, if it has keys.
    pub(super) fn begin(&mut self, socket: &OwnedFd, channel: &Channel) -> Option<u64> {
        let keys = Keys::draw(channel)?;
        let name = keys.session;
        let peer = SocketAddr::try_from(getpeername(socket).ok()??).ok()?;
        let sealed = keys.into_end(Side::Engine)?;
        let ip = peer.ip().to_canonical();
        // Nobody's name is drawn twice.
        self.peers.insert(name, Peer { sealed, ip });
        Some(name)
    }

    /// It has ended.
    pub(super) fn end(&mut self, name: u64) {
        self.peers.remove(&name);
    }

    /// Carries out what has come; how many datagrams that were.
    pub(super) fn serve(&mut self, memory: &mut impl Memory, counters: &Counters) -> usize {
        let mut datagram = [0; DATAGRAM_LEN_MAX + 1];
        let (mut count, mut sent_len) = (0, 0);
        while count < TURN_COUNT && sent_len < TURN_LEN {
            let Ok((len, from)) = self.socket.recv_from(&mut datagram) else {
                break;
            };
            count += 1;
            add(&counters.datagrams_in, 1);
            let peer = session_of(&datagram[..len]).and_then(|name| self.peers.get_mut(&name));
            let peer = peer.filter(|peer| peer.ip == from.ip().to_canonical());
            // Nothing is said to who has no key.
            let Some(peer) = peer else {
                add(&counters.datagrams_dropped, 1);
                continue;
            };
            let Ok(payload) = peer.sealed.open(&mut datagram[..len]) else {
                add(&counters.datagrams_dropped, 1);
                continue;
            };
            add(&counters.bytes_in, len as u64);
            let (socket, out) = (&self.socket, &mut self.out);
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
            if done.is_err() {
                add(&counters.malformed, 1);
            }
        }
        count
    }
}

impl AsFd for Datagrams {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
