//! Saying, once, why a client does not get the fastest carrier.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// What was said already.
#[derive(Default)]
pub(crate) struct Notices {
    said: Mutex<HashSet<(u32, String)>>,
}

/// Reasons that are remembered; what comes after is said every time.
const REASON_COUNT_MAX: usize = 1024;

impl Notices {
    /// Says, once, that a backend is reached more slowly than it could be.
    pub(crate) fn degraded(&self, backend: u32, why: &str) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.len() < REASON_COUNT_MAX && !said.insert((backend, why.to_owned())) {
            return;
        }
        tracing::warn!(backend, why, "slower than shared memory with rings");
    }
}
