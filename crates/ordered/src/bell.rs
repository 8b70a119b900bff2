//! The bell of a lane: a pair of connected sockets, an end at each side. A byte wakes
//! who sleeps on the other end, and the kernel tells each of the other's death. Nobody
//! else can silence it, as one could who shared an event descriptor.

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use std::os::fd::AsFd;
use std::time::Duration;

/// Whether the other side is still there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    Alive,
    Gone,
}

/// Reads of one silencing. A peer that writes faster is heard again next time.
const SILENCE_COUNT_MAX: usize = 8;

/// Rings. A full socket means that it rings already; a dead one is noticed by who
/// waits for it.
pub(crate) fn ring(socket: impl AsFd) {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let _ = rustix::io::retry_on_intr(|| rustix::net::send(&socket, &[1], flags));
}

/// Silences the bell.
pub(crate) fn silence(socket: impl AsFd) -> Peer {
    let mut bytes = [0u8; 64];
    for _ in 0..SILENCE_COUNT_MAX {
        match rustix::net::recv(&socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((_, 0)) => return Peer::Gone,
            Ok((_, count)) if count < bytes.len() => return Peer::Alive,
            Ok(_) | Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Peer::Alive,
            Err(_) => return Peer::Gone,
        }
    }
    Peer::Alive
}

/// Sleeps until a bell rings, at most so long. Calls `on` with the places of those that
/// ring, or hang up.
pub(crate) fn wait<S: AsFd>(sockets: &[S], timeout: Duration, mut on: impl FnMut(usize)) {
    let mut polled: Vec<PollFd<'_>> = sockets
        .iter()
        .map(|socket| PollFd::new(socket, PollFlags::IN))
        .collect();
    // Longer than the system can count is for ever.
    let timeout = Timespec::try_from(timeout).ok();
    // An interrupted wait is a short one.
    if rustix::event::poll(&mut polled, timeout.as_ref()).unwrap_or(0) == 0 {
        return;
    }
    for (at, polled) in polled.iter().enumerate() {
        if !polled.revents().is_empty() {
            on(at);
        }
    }
}
