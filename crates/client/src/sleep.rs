//! How a thread waits for its client's answers: awake for a moment, then asleep until
//! one of them rings.

use crate::client::Client;
use crate::time;
use rustix::event::{PollFd, PollFlags, Timespec};
use smallvec::SmallVec;
use trefoil_driver::Driver;
use trefoil_fabric::port::Port as _;

/// How long a wait spins (and yields) before it sleeps. Longer than one wake-up of
/// a server on another core, which takes a virtual machine 50 to 150 us, so that
/// its answer is usually caught: it would cost a second wake-up, of this side.
const SPIN_NS: u64 = 200_000;
/// Pauses up to this long are spent awake: a sleep takes longer.
const PAUSE_AWAKE_NS: u64 = 20_000;
/// Longest sleep without a descriptor that calls could ring.
const BLIND_NS: u64 = 1_000_000;
/// Descriptors whose sleep needs no allocation.
const SLEEP_COUNT_INLINE: usize = 8;

impl Client {
    /// Waits until a turn of the driver would find something, or until `end` on the
    /// monotonic clock.
    pub(crate) fn sleep(&mut self, end: u64) {
        if self.is_ready() {
            return;
        }
        let start = time::monotonic_ns();
        let spin = match self.driver.ports().next() {
            Some(_) => SPIN_NS,
            None if end.saturating_sub(start) > PAUSE_AWAKE_NS => 0,
            None => PAUSE_AWAKE_NS,
        };
        let spin_end = end.min(start + spin);
        if start < spin_end {
            self.sleeper.idle.begin();
            loop {
                // A look is as short as can be: a few hundred of them go before the
                // core is given to others. What threads bring is looked for then.
                if self.driver.is_ready() {
                    return;
                }
                if self.sleeper.idle.pause().is_some()
                    && (self.driver.host_ref().is_ready() || time::monotonic_ns() >= spin_end)
                {
                    break;
                }
            }
            if self.is_ready() {
                return;
            }
        }
        if spin_end < end {
            self.sleep_until(end);
        }
    }

    #[inline]
    pub(crate) fn is_ready(&self) -> bool {
        self.driver.is_ready() || self.driver.host_ref().is_ready()
    }

    #[cold]
    fn sleep_until(&mut self, end: u64) {
        let driver = &self.driver;
        arm(driver);
        if !self.is_ready() {
            let now = time::monotonic_ns();
            let mut left = end.saturating_sub(now);
            let bell = driver.host_ref().descriptor();
            if bell.is_none() {
                left = left.min(BLIND_NS);
            }
            let mut descriptors: SmallVec<[PollFd<'_>; SLEEP_COUNT_INLINE]> = driver
                .ports()
                .filter_map(|port| port.descriptor())
                .chain(bell)
                .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
                .collect();
            let timeout = Timespec {
                tv_sec: (left / 1_000_000_000) as i64,
                tv_nsec: (left % 1_000_000_000) as _,
            };
            let _ = rustix::event::poll(&mut descriptors, Some(&timeout));
        }
        disarm(&self.driver);
    }
}

/// Asks everything that owes something to ring.
pub(crate) fn arm(driver: &Driver<crate::host::ClientHost>) {
    driver.host_ref().bell().arm();
    driver.ports().for_each(|port| port.arm());
}

/// No longer asks for it. Also whoever owes nothing may have rung before: its bell
/// would go on waking a loop that sleeps on all descriptors.
pub(crate) fn silence(driver: &Driver<crate::host::ClientHost>) {
    driver.near_ports().for_each(|port| port.disarm());
    driver.host_ref().bell().disarm();
}

/// No longer asks for it, of those who owe something.
pub(crate) fn disarm(driver: &Driver<crate::host::ClientHost>) {
    driver.ports().for_each(|port| port.disarm());
    driver.host_ref().bell().disarm();
}
