//! How background threads are told to end.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A flag that can be waited for.
#[derive(Debug, Default)]
pub(crate) struct Stop {
    said: Mutex<Said>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Said {
    stopped: bool,
    /// How often waits were ended without an end.
    nudges: u64,
}

impl Stop {
    fn lock(&self) -> MutexGuard<'_, Said> {
        self.said.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Ends every wait, now and later.
    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Ends the waits that are under way: there is something to do.
    pub(crate) fn nudge(&self) {
        self.lock().nudges += 1;
        self.changed.notify_all();
    }

    /// Waits for `period`, or until stopped or nudged; whether it was stopped.
    pub(crate) fn wait(&self, period: Duration) -> bool {
        let said = self.lock();
        let before = said.nudges;
        let (said, _) = self
            .changed
            .wait_timeout_while(said, period, |said| !said.stopped && said.nudges == before)
            .unwrap_or_else(PoisonError::into_inner);
        said.stopped
    }
}
