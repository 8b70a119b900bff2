//! Listening sockets, taken before anything is served, so that mistakes show at
//! once.

use super::error::GatewayError;
use super::options::{DoorAddress, GatewayOptions, Protocol};
use super::tls::Certificates;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::net::{SocketFlags, accept_with, listen, sockopt};
use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use trefoil_backend::{UnixSocket, take_port};

/// Connections that may wait to be accepted: clients tend to come all at once,
/// after a restart.
const BACKLOG: i32 = 4096;

/// Sockets that are bound and listen; connections wait until a gateway accepts
/// them.
#[derive(Debug)]
pub struct Doors {
    pub(super) doors: Vec<OpenDoor>,
}

impl Doors {
    /// Takes the sockets and reads the certificates.
    pub fn open(options: &GatewayOptions) -> Result<Self, GatewayError> {
        let mut doors = Vec::new();
        for door in &options.doors {
            if let DoorAddress::Tcp(address) = door.address
                && !address.ip().is_loopback()
                && door.tls.is_none()
                && !options.plaintext.contains(&door.protocol)
            {
                return Err(GatewayError::OffLoopback {
                    address,
                    protocol: door.protocol,
                });
            }
            let tls = door.tls.as_ref().map(Certificates::read).transpose()?;
            let (socket, address) = match &door.address {
                DoorAddress::Tcp(address) => {
                    let taken = take_port(*address);
                    let option = door.protocol.name();
                    let (listener, address) = taken.map_err(|e| e.with_option(option))?;
                    (Listener::Tcp(listener), DoorAddress::Tcp(address))
                }
                DoorAddress::Unix(path) => {
                    let socket = UnixSocket::bind(path)?;
                    (Listener::Unix(socket), door.address.clone())
                }
            };
            let fail = |e: rustix::io::Errno| GatewayError::System {
                what: "listening",
                source: e.into(),
            };
            if let Listener::Tcp(_) = socket {
                // What is accepted inherits both. Answers are sent whole:
                // nothing is gained by waiting for more.
                sockopt::set_tcp_nodelay(&socket, true).map_err(fail)?;
                sockopt::set_socket_keepalive(&socket, true).map_err(fail)?;
            }
            listen(&socket, BACKLOG).map_err(fail)?;
            doors.push(OpenDoor {
                protocol: door.protocol,
                address,
                socket,
                tls,
            });
        }
        Ok(Doors { doors })
    }

    /// Where they are, with the real ports.
    pub fn addresses(&self) -> Vec<(Protocol, DoorAddress)> {
        let each = |door: &OpenDoor| (door.protocol, door.address.clone());
        self.doors.iter().map(each).collect()
    }
}

#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixSocket),
}

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Listener::Tcp(listener) => listener.as_fd(),
            Listener::Unix(socket) => socket.listener().as_fd(),
        }
    }
}

/// A listening socket and what is spoken there.
pub(super) struct OpenDoor {
    pub(super) protocol: Protocol,
    pub(super) address: DoorAddress,
    pub(super) tls: Option<Arc<Certificates>>,
    socket: Listener,
}

impl OpenDoor {
    /// The next connection that waits.
    pub(super) fn accept(&self) -> io::Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        Ok(accept_with(&self.socket, flags)?)
    }
}

impl AsFd for OpenDoor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl std::fmt::Debug for OpenDoor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenDoor")
            .field("protocol", &self.protocol)
            .field("address", &self.address)
            .field("tls", &self.tls.is_some())
            .finish_non_exhaustive()
    }
}
