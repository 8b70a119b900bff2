//! One connection for many threads: the server has a lane for each connection, not for each
//! client. Each thread holds the connection for as long as a request takes to be published,
//! so requests of one thread are in its order, and a nilext commit stays one step.
//!
//! A request that waits for its answer holds a slot and not the connection.

use crate::carrier::Carrier;
use crate::producer::{Committed, Refused};
use crate::queue::{NoAnswer, Queue};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use trefoil_region::ForkMark;

/// Looks before a thread that waits gives its core away.
const LOOKS: u32 = 16;
/// Time after which it sleeps between two looks.
const AWAKE: Duration = Duration::from_micros(50);
/// The longest of these sleeps.
const SLEEP_MAX: Duration = Duration::from_millis(1);

/// A handle of one thread; clones share the connection.
#[derive(Clone, Debug)]
pub struct Shared {
    queue: Arc<Mutex<Queue>>,
    /// A fork's child does not even look at the lock: a thread that it has no copy of may have
    /// held it.
    process: ForkMark,
}

impl Shared {
    /// Shares a connection.
    pub fn new(queue: Queue) -> Self {
        Shared {
            queue: Arc::new(Mutex::new(queue)),
            process: ForkMark::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        // A queue is whole between any two of its calls.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks until it finds something; others use the connection between two looks.
    fn wait<T>(
        &self,
        timeout: Duration,
        mut look: impl FnMut(&mut Queue) -> Option<T>,
    ) -> Result<T, NoAnswer> {
        if self.process.is_child() {
            return Err(NoAnswer::OtherProcess);
        }
        let start = Instant::now();
        let mut looks = 0u32;
        let mut sleep = AWAKE;
        loop {
            let mut queue = self.lock();
            if let Some(found) = look(&mut queue) {
                return Ok(found);
            }
            looks += 1;
            if looks.is_multiple_of(LOOKS) {
                let waited = start.elapsed();
                if queue.is_server_gone() {
                    // What it did last is seen after its end.
                    return look(&mut queue).ok_or(NoAnswer::ServerGone);
                }
                if waited >= timeout {
                    return Err(NoAnswer::TimedOut(timeout));
                }
                drop(queue);
                if waited > AWAKE {
                    std::thread::sleep(sleep);
                    sleep = (sleep * 2).min(SLEEP_MAX);
                } else {
                    std::thread::yield_now();
                }
            }
        }
    }
}

impl Carrier for Shared {
    #[inline]
    fn submit(&mut self, request: &[u8], nilext: bool) -> Result<Committed, Refused> {
        if self.process.is_child() {
            return Err(Refused::OtherProcess);
        }
        self.lock().submit(request, nilext)
    }

    fn committed(&mut self, request: Committed, timeout: Duration) -> Result<(), NoAnswer> {
        self.wait(timeout, |queue| queue.is_committed(request).then_some(()))
    }

    fn answer(
        &mut self,
        to: Committed,
        into: &mut Vec<u8>,
        timeout: Duration,
    ) -> Result<(), NoAnswer> {
        self.wait(timeout, |queue| {
            if !queue.is_executed(to) {
                return None;
            }
            let found = queue.answer(to, Duration::ZERO);
            Some(found.map(|answer| {
                into.clear();
                into.extend_from_slice(answer);
            }))
        })?
    }

    fn forget(&mut self, to: Committed) {
        if !self.process.is_child() {
            self.lock().forget(to);
        }
    }

    fn wait_for_room(&mut self, timeout: Duration) -> Result<(), NoAnswer> {
        self.wait(timeout, |queue| queue.has_room().then_some(()))
    }
}
