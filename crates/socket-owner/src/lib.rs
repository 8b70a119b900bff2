//! Which user is at the other end of a TCP connection within this host, and which users
//! are believed there.
//!
//! ```text
//!   connection ──► find (netlink, or /proc/net/tcp) ──► client_of, server_of ──► Users::let_in
//! ```
//!
//! The kernel keeps with each socket the user of the process that made it, or, of a
//! connection that came in, of the one that accepted it. Both ends of a connection within a
//! host are sockets of the same kernel, so the other end's is found by its two addresses.
//!
//! 1. A socket that no process has any more, or has not yet, is shown as root's. Only one
//!    that a process holds counts ([`client_of`]): otherwise whoever asks and hangs up at
//!    once would be root.
//! 2. Who connects is connected before anybody has accepted. Then whose listener it is
//!    counts, if nobody has accepted after that was looked up ([`server_of`]): so nobody
//!    can take the connection, close the port and leave it to somebody who is believed.
//! 3. A socket counts as its maker's, also after it was handed to another process; and
//!    what is passed on by a proxy is the proxy's.
//! 4. What is not known is refused.
//!
//! Linux only: elsewhere nobody is known.

#[cfg(target_os = "linux")]
mod diag;
#[cfg(target_os = "linux")]
mod table;
mod users;
#[cfg(not(target_os = "linux"))]
mod without;

#[cfg(target_os = "linux")]
use diag::{find, find_listener};
pub use users::{Users, own_user};
#[cfg(not(target_os = "linux"))]
use without::{find, find_listener};

use std::io;
use std::net::SocketAddr;

/// `TCP_ESTABLISHED` and its like, as the kernel numbers them.
const ESTABLISHED: u8 = 1;
const SYN_RECEIVED: u8 = 3;
const FIN_WAIT_1: u8 = 4;
const FIN_WAIT_2: u8 = 5;
const LISTEN: u8 = 10;

/// What the kernel says of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Found {
    user: u32,
    state: u8,
    /// A process has it.
    is_held: bool,
}

impl Found {
    /// Its connection has been made, and nobody has accepted it yet.
    fn is_waiting(&self) -> bool {
        !self.is_held && matches!(self.state, ESTABLISHED | SYN_RECEIVED)
    }
}

/// Why it is not known who is at the other end.
#[derive(Debug, thiserror::Error)]
pub enum UnknownOwner {
    /// Another host's, or closed.
    #[error("no process of this host has the other end of the connection, {address}")]
    NotHere {
        /// The other end's address.
        address: SocketAddr,
    },
    /// The kernel does not answer.
    #[error("the kernel does not say which user is at {address}: {source}")]
    System {
        /// The other end's address.
        address: SocketAddr,
        /// The system's reason.
        #[source]
        source: io::Error,
    },
    /// A user of whom this process's namespace knows nothing.
    #[error(
        "the user at {address} is shown as {user}, like everybody who has no number in the user \
         namespace of this process: it may be anybody. Where it is this process's own user, or one \
         who is named, run that one as another uid"
    )]
    Unmapped {
        /// The other end's address.
        address: SocketAddr,
        /// The number that stands for all of them.
        user: u32,
    },
}

/// The user who has connected: the one whose socket is at `remote` of a connection that
/// was accepted here at `local`.
///
/// # Errors
/// It is not known.
pub fn client_of(local: SocketAddr, remote: SocketAddr) -> Result<u32, UnknownOwner> {
    let found = look(remote, || find(remote, local))?;
    // Others are of a later connection, which has not been accepted here.
    let is_open = matches!(found.state, ESTABLISHED | FIN_WAIT_1 | FIN_WAIT_2);
    if !found.is_held || !is_open {
        return Err(UnknownOwner::NotHere { address: remote });
    }
    mapped(remote, found.user)
}

/// The user whose server is at `remote`, for who has just connected to it from `local`.
///
/// # Errors
/// It is not known.
pub fn server_of(local: SocketAddr, remote: SocketAddr) -> Result<u32, UnknownOwner> {
    let other_end = || look(remote, || find(remote, local));
    let mut found = other_end()?;
    if found.is_waiting() {
        let listener = look(remote, || find_listener(remote))?;
        found = other_end()?;
        if found.is_waiting() && listener.state == LISTEN && listener.is_held {
            return mapped(remote, listener.user);
        }
    }
    match found.is_held {
        true => mapped(remote, found.user),
        false => Err(UnknownOwner::NotHere { address: remote }),
    }
}

fn look(
    address: SocketAddr,
    find: impl FnOnce() -> io::Result<Option<Found>>,
) -> Result<Found, UnknownOwner> {
    find()
        .map_err(|source| UnknownOwner::System { address, source })?
        .ok_or(UnknownOwner::NotHere { address })
}

fn mapped(address: SocketAddr, user: u32) -> Result<u32, UnknownOwner> {
    match users::is_unmapped(user) {
        true => Err(UnknownOwner::Unmapped { address, user }),
        false => Ok(user),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests;
