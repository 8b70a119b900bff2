//! Waiting for answers: spin, then sleep on the socket until the server rings.

use super::channel::Channel;
use super::socket::{self, Peer};
use crate::idle::Idle;
use crate::port::Waited;
use rustix::event::{PollFd, PollFlags, Timespec};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_layout::ring;
use trefoil_layout::words::Words;

/// Channels whose sleep needs no allocation.
const SLEEP_COUNT_INLINE: usize = 8;

/// Waits until one of `channels` has an answer or is closed.
pub fn wait_any(channels: &[&Channel], timeout: Duration) -> Waited {
    if any_ready(channels) {
        return Waited::Ready;
    }
    let Some(spin) = channels.iter().map(|c| c.spin).max() else {
        return Waited::TimedOut;
    };
    let start = Instant::now();
    let spin_end = start + spin.min(timeout);
    let mut idle = Idle::default();
    loop {
        if any_ready(channels) {
            return Waited::Ready;
        }
        if idle.pause().is_some_and(|now| now >= spin_end) {
            break;
        }
    }
    sleep_until(channels, start.checked_add(timeout))
}

#[inline(always)]
fn any_ready(channels: &[&Channel]) -> bool {
    channels.iter().any(|c| c.has_answer() || c.is_closed())
}

/// Sleeps until a bell rings; no end means for ever.
fn sleep_until(channels: &[&Channel], end: Option<Instant>) -> Waited {
    loop {
        channels.iter().for_each(|c| c.arm());
        let waited = if any_ready(channels) {
            Some(Waited::Ready)
        } else {
            let now = Instant::now();
            match end {
                Some(end) if end <= now => Some(Waited::TimedOut),
                Some(end) => sleep(channels, Some(end - now)),
                None => sleep(channels, None),
            }
        };
        channels.iter().for_each(|c| c.disarm());
        if let Some(waited) = waited {
            return waited;
        }
    }
}

/// One sleep; `None` if nothing certain is known after it.
fn sleep(channels: &[&Channel], timeout: Option<Duration>) -> Option<Waited> {
    let timeout = timeout.and_then(|t| Timespec::try_from(t).ok());
    let _ = if let [first, ..] = channels
        && channels.len() <= SLEEP_COUNT_INLINE
    {
        let mut sockets: [PollFd<'_>; SLEEP_COUNT_INLINE] =
            std::array::from_fn(|i| descriptor(channels.get(i).unwrap_or(first)));
        rustix::event::poll(&mut sockets[..channels.len()], timeout.as_ref())
    } else {
        let mut sockets: Vec<_> = channels.iter().map(|channel| descriptor(channel)).collect();
        rustix::event::poll(&mut sockets, timeout.as_ref())
    };
    for channel in channels {
        channel.silence();
    }
    any_ready(channels).then_some(Waited::Ready)
}

fn descriptor(channel: &Channel) -> PollFd<'_> {
    PollFd::from_borrowed_fd(channel.descriptor(), PollFlags::IN)
}

impl Channel {
    /// Waits until an answer has arrived or the server is gone.
    pub fn wait(&self, timeout: Duration) -> Waited {
        wait_any(&[self], timeout)
    }

    /// The socket on which the server rings after [`Channel::arm`]: for
    /// runtimes that wait for readable descriptors.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Asks the server to ring when it answers. The caller then looks at
    /// [`Channel::has_answer`] once more before it sleeps, and calls
    /// [`Channel::disarm`] afterwards.
    pub fn arm(&self) {
        let number = self.waiting.load(Ordering::Relaxed) | 1;
        self.waiting.store(number, Ordering::Relaxed);
        let words = self.rings.words();
        ring::set_waiting(&words, number);
        words.fence_full();
    }

    /// No longer asks for the bell.
    pub fn disarm(&self) {
        let number = self.waiting.load(Ordering::Relaxed);
        let number = number + number % 2;
        self.waiting.store(number, Ordering::Relaxed);
        ring::set_waiting(&self.rings.words(), number);
    }

    /// Takes the bell's bytes off the socket, and finds out whether the server
    /// is still there.
    pub fn silence(&self) {
        if socket::silence(&self.socket) == Peer::Gone {
            self.close();
        }
    }
}
