//! What wakes a client that sleeps: calls, connections and configurations that have
//! come.

use rustix::event::EventfdFlags;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// One client's bell. Rung by any thread; heard by the one that drives the client.
#[derive(Debug)]
pub(crate) struct Bell {
    /// None if the system had no descriptor left: the client then looks now and
    /// then.
    descriptor: Option<OwnedFd>,
    armed: AtomicBool,
}

impl Bell {
    pub(crate) fn new() -> Self {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Bell {
            descriptor: rustix::event::eventfd(0, flags).ok(),
            armed: AtomicBool::new(false),
        }
    }

    /// After something was put where its listener looks.
    pub(crate) fn ring(&self) {
        if self.armed.swap(false, Ordering::SeqCst)
            && let Some(descriptor) = &self.descriptor
        {
            let _ = rustix::io::write(descriptor, &1u64.to_ne_bytes());
        }
    }

    /// Before the last look that precedes a sleep.
    pub(crate) fn arm(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    /// After it.
    pub(crate) fn disarm(&self) {
        if !self.armed.swap(false, Ordering::SeqCst)
            && let Some(descriptor) = &self.descriptor
        {
            let _ = rustix::io::read(descriptor, &mut [0; 8]);
        }
    }

    pub(crate) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.descriptor.as_ref().map(AsFd::as_fd)
    }
}
