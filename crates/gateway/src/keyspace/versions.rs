//! Versions for a writer in the backend's own process.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use trefoil_client_core::clock::VersionClock;
use trefoil_layout::Version;

/// Nominates versions: a client's clock under a random id of its own.
#[derive(Debug)]
pub(super) struct Nominator(VersionClock);

impl Nominator {
    pub(super) fn new() -> Self {
        Nominator(VersionClock::new(random_bits()))
    }

    /// The next version.
    #[inline]
    pub(super) fn next(&mut self, now_unix_ns: u64) -> Version {
        loop {
            match self.0.next(now_unix_ns) {
                Ok(version) => return version,
                Err(_) => self.0.renew(random_bits()),
            }
        }
    }

    /// The next version lies above this one.
    pub(super) fn observe(&mut self, version: Version) {
        self.0.observe(version);
    }
}

/// Bits of a freshly keyed hasher: different for every call.
pub(super) fn random_bits() -> u64 {
    RandomState::new().build_hasher().finish()
}
