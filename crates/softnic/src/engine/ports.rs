//! The sockets for datagrams. Answers have to come from the address that was asked, which
//! an engine that listens on all addresses of its host cannot tell from a datagram that
//! such a socket takes: so each address that a client's stream has come to gets sockets of
//! its own, one in every loop.

use super::shared::Shared;
use rustix::net::{
    AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt,
};
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;

/// Addresses of this host, at most; clients at others ask by their streams.
const ADDRESS_COUNT_MAX: usize = 64;

/// See the module.
pub(super) struct Ports {
    listen: SocketAddr,
    /// Those that were tried, and whether they have sockets.
    known: Vec<(SocketAddr, bool)>,
}

impl Ports {
    /// Beside a listener at `listen`.
    pub(super) fn begin(listen: SocketAddr, shared: &Shared) -> Self {
        let known = Vec::new();
        let mut ports = Ports { listen, known };
        // Found out at the start, where it is one address.
        if !listen.ip().is_unspecified() {
            ports.open(listen, shared);
        }
        ports
    }

    /// Whether a client with this stream may send datagrams.
    pub(super) fn open_for(&mut self, stream: &OwnedFd, shared: &Shared) -> bool {
        let address = match self.listen.ip().is_unspecified() {
            false => Some(self.listen),
            true => getsockname(stream)
                .ok()
                .and_then(|address| SocketAddr::try_from(address).ok()),
        };
        let Some(address) = address else {
            return false;
        };
        match self.known.iter().find(|(known, _)| *known == address) {
            Some((_, is_open)) => *is_open,
            None if self.known.len() >= ADDRESS_COUNT_MAX => false,
            None => self.open(address, shared),
        }
    }

    fn open(&mut self, address: SocketAddr, shared: &Shared) -> bool {
        let is_shared = shared.loops.len() > 1;
        let sockets = shared.loops.iter().map(|_| socket_at(address, is_shared));
        let sockets: io::Result<Vec<UdpSocket>> = sockets.collect();
        let tell = |error: &io::Error| {
            tracing::warn!("clients are not served over UDP at {address}: {error}");
        };
        let is_open = match sockets.inspect_err(tell) {
            Err(_) => false,
            Ok(sockets) => {
                if is_shared && let Some(Ok(one)) = sockets.first().map(UdpSocket::try_clone) {
                    shared.add_group(one);
                }
                for (socket, share) in sockets.into_iter().zip(&shared.loops) {
                    share.give_socket(socket);
                }
                true
            }
        };
        self.known.push((address, is_open));
        is_open
    }
}

/// With others of this engine at the same address, if it `is_shared`: then the name of the
/// session decides which of them gets a datagram ([`Shared::add_group`]).
fn socket_at(address: SocketAddr, is_shared: bool) -> io::Result<UdpSocket> {
    let family = match address {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::DGRAM, flags, None)?;
    if is_shared {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    bind(&socket, &address)?;
    Ok(socket.into())
}
