//! The versions that a client nominates.

use trefoil_client_core::clock::VersionClock;
use trefoil_layout::Version;
use trefoil_layout::limits::CLOCK_AHEAD_NS_MAX;

/// Issues versions under one client id after another.
#[derive(Debug)]
pub struct Versions {
    clock: VersionClock,
    last: Version,
}

impl Versions {
    /// Under a random client id.
    pub fn new(random_id: u64) -> Self {
        Versions {
            clock: VersionClock::new(random_id),
            last: Version::ZERO,
        }
    }

    /// Issues the next version; `random` is asked when a client id is used up.
    pub fn next(&mut self, unix_ns: u64, random: impl FnOnce() -> u64) -> Version {
        self.last = match self.clock.next(unix_ns) {
            Ok(version) => version,
            Err(_) => {
                self.clock.renew(random());
                self.clock
                    .next(unix_ns)
                    .expect("a fresh client id has sequence numbers")
            }
        };
        self.last
    }

    /// The version that was issued last.
    pub fn last(&self) -> Version {
        self.last
    }

    /// Takes note of a version seen anywhere: what is issued lies above it.
    #[inline(always)]
    pub fn observe(&mut self, version: Version) {
        self.clock.observe(version);
    }

    /// The same, unless it is from so far in the future that every later mutation
    /// of ours would be refused.
    pub fn observe_sanely(&mut self, version: Version, unix_ns: u64) {
        if version.time_ns <= unix_ns + CLOCK_AHEAD_NS_MAX {
            self.clock.observe(version);
        }
    }
}
