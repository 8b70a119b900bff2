//! Much in one system call: answers on many sockets ([`Batch`]), and datagrams that come and
//! go together ([`datagrams`]).
//!
//! A server that has answers for several clients goes into the kernel once for each.
//! [`Batch`] goes there once for all of them, by io_uring: of what it costs to answer
//! a small request over TCP, that is about a twelfth. Nothing is left to the kernel for
//! later: each socket takes what it has room for at once, as by `send` without waiting,
//! and when the call is over nobody else reads the bytes.
//!
//! [`group`] spreads datagrams over sockets at one address, and [`stream`] asks the system how a connection gets on.
//!
//! io_uring is missing on old systems, and often forbidden: in containers, by
//! `kernel.io_uring_disabled`. Whoever uses this can always send one by one instead.

#[cfg(target_os = "linux")]
pub mod datagrams;
#[cfg(target_os = "linux")]
pub mod group;
#[cfg(target_os = "linux")]
mod refusals;
#[cfg(target_os = "linux")]
mod ring;
#[cfg(target_os = "linux")]
pub mod stream;
#[cfg(not(target_os = "linux"))]
mod without;

#[cfg(target_os = "linux")]
pub use ring::Batch;
#[cfg(not(target_os = "linux"))]
pub use without::Batch;

use rustix::fd::BorrowedFd;
use rustix::io::Errno;

/// Messages that leave together, at most.
pub const BATCH_MAX: usize = 16;

/// Something to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    /// On this socket.
    pub socket: BorrowedFd<'a>,
    /// These bytes.
    pub bytes: &'a [u8],
}

/// How much of a message the socket has taken, 0 if it is full; an error is the end of the
/// connection. `None`: it was not tried, send it otherwise.
pub type Sent = Option<Result<usize, Errno>>;
