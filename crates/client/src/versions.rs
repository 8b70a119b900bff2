//! The versions that a client nominates.

use crate::time;
use trefoil_client_core::clock::VersionClock;
use trefoil_layout::Version;

/// Issues versions under one client id after another.
pub(crate) struct Versions {
    clock: VersionClock,
    last: Version,
}

impl Versions {
    pub(crate) fn new() -> Self {
        Versions {
            clock: VersionClock::new(random_id()),
            last: Version::ZERO,
        }
    }

    /// Issues the next version.
    pub(crate) fn next(&mut self) -> Version {
        let now = time::unix_ns();
        self.last = match self.clock.next(now) {
            Ok(version) => version,
            Err(_) => {
                self.clock.renew(random_id());
                self.clock
                    .next(now)
                    .expect("a fresh client id has sequence numbers")
            }
        };
        self.last
    }

    /// The version that was issued last.
    pub(crate) fn last(&self) -> Version {
        self.last
    }

    /// Takes note of a version seen anywhere: what is issued lies above it.
    #[inline(always)]
    pub(crate) fn observe(&mut self, version: Version) {
        self.clock.observe(version);
    }
}

/// Random bits for a client incarnation: a freshly keyed hasher's.
fn random_id() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = std::hash::RandomState::new().build_hasher();
    hasher.write_u64(time::monotonic_ns());
    hasher.write_u32(std::process::id());
    hasher.finish()
}
