//! Saying, once, why a client does not get the fastest carrier.

use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};

/// What was said already.
#[derive(Default)]
pub(crate) struct Notices {
    said: Mutex<HashSet<(u32, String)>>,
}

/// Reasons that are remembered. With one more all are forgotten, and each is said once more.
const REASON_COUNT_MAX: usize = 1024;

impl Notices {
    /// Says, once, that a backend is reached more slowly than it could be.
    pub(crate) fn degraded(&self, backend: u32, why: &str) {
        if self.is_new(backend, why) {
            tracing::warn!(backend, why, "slower than shared memory with rings");
        }
    }

    fn is_new(&self, backend: u32, why: &str) -> bool {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        let reason = (backend, why.to_owned());
        if said.contains(&reason) {
            return false;
        }
        if said.len() >= REASON_COUNT_MAX {
            said.clear();
        }
        said.insert(reason)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_is_said_once_however_many_there_were() {
        let notices = Notices::default();
        for backend in 0..2 * REASON_COUNT_MAX as u32 {
            assert!(notices.is_new(backend, "why"));
            assert!(!notices.is_new(backend, "why"), "{backend}");
        }
    }
}
