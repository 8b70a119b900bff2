//! How a request that is ahead of this process makes it catch up.

use crate::stop::Stop;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether a request has named a configuration that is not served here yet.
#[derive(Debug)]
pub(crate) struct Behind {
    noticed: AtomicBool,
    /// Ends the tending thread's wait.
    stop: Arc<Stop>,
}

impl Behind {
    pub(crate) fn new(stop: Arc<Stop>) -> Self {
        Behind {
            noticed: AtomicBool::new(false),
            stop,
        }
    }

    /// Has the tending thread look into the configuration store soon.
    pub(crate) fn notice(&self) {
        if !self.noticed.swap(true, Ordering::Relaxed) {
            self.stop.nudge();
        }
    }

    /// Whether it was noticed since the last [`Behind::clear`].
    pub(crate) fn is_noticed(&self) -> bool {
        self.noticed.load(Ordering::Relaxed)
    }

    /// Before looking: what is noticed from now on wants another look.
    pub(crate) fn clear(&self) {
        self.noticed.store(false, Ordering::Relaxed);
    }
}
