//! The versions that a client nominates.

use trefoil_client_core::clock::VersionClock;
use trefoil_layout::Version;
use trefoil_layout::limits::CLOCK_AHEAD_NS_MAX;

/// Issues versions under one client id after another.
#[derive(Debug)]
pub struct Versions {
    clock: VersionClock,
    last: Version,
    /// The highest time observed or issued, and the latest time that was told: what
    /// lies below needs no clock to be judged.
    known_ns: u64,
    told_ns: u64,
}

impl Versions {
    /// Under a random client id.
    pub fn new(random_id: u64) -> Self {
        Versions {
            clock: VersionClock::new(random_id),
            last: Version::ZERO,
            known_ns: 0,
            told_ns: 0,
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
        self.told_ns = unix_ns;
        self.known_ns = self.last.time_ns;
        self.last
    }

    /// The same above `bound`. A bound from so far in the future that it is not
    /// believed is surpassed this once: later versions do not follow it.
    pub fn next_above(
        &mut self,
        bound: Version,
        unix_ns: u64,
        random: impl FnOnce() -> u64,
    ) -> Version {
        self.observe_sanely(bound, || unix_ns);
        let next = self.next(unix_ns, random);
        if next <= bound {
            self.last = Version {
                time_ns: bound.time_ns.saturating_add(1),
                ..next
            };
        }
        self.last
    }

    /// Begins again from the wall clock: a version of ours was refused for lying too
    /// far in the future, so it is stored nowhere that could know it, or the cell is
    /// another one. What is stored above answers so, and is surpassed then.
    pub fn begin_again(&mut self) {
        self.clock.begin_again();
        self.known_ns = 0;
        self.told_ns = 0;
    }

    /// The version that was issued last.
    pub fn last(&self) -> Version {
        self.last
    }

    /// The latest time that a version names which was seen or issued; 0 if there was none.
    #[inline(always)]
    pub fn known_ns(&self) -> u64 {
        self.known_ns
    }

    /// Takes note of a version seen anywhere: what is issued lies above it. One from
    /// so far in the future that every later mutation of ours would be refused is
    /// passed over: a backend whose clock is wrong, or that means ill, must not move
    /// this clock for ever. `unix_ns` is asked only where the time told last does not
    /// decide it.
    #[inline(always)]
    pub fn observe_sanely(&mut self, version: Version, unix_ns: impl FnOnce() -> u64) {
        if version.time_ns > self.known_ns {
            self.observe_newer(version, unix_ns);
        }
    }

    #[inline]
    fn observe_newer(&mut self, version: Version, unix_ns: impl FnOnce() -> u64) {
        if version.time_ns > self.told_ns.saturating_add(CLOCK_AHEAD_NS_MAX) {
            self.told_ns = unix_ns();
            if version.time_ns > self.told_ns.saturating_add(CLOCK_AHEAD_NS_MAX) {
                return;
            }
        }
        self.known_ns = version.time_ns;
        self.clock.observe(version);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1 << 60;

    fn at(time_ns: u64) -> Version {
        Version { time_ns, origin: 9 }
    }

    #[test]
    fn a_version_from_the_far_future_moves_nothing_for_long() {
        let mut versions = Versions::new(1);
        let far = at(NOW + 2 * CLOCK_AHEAD_NS_MAX);
        versions.observe_sanely(far, || NOW);
        assert_eq!(versions.next(NOW, || 0).time_ns, NOW);
        // Who has to surpass it does, once.
        let above = versions.next_above(far, NOW, || 0);
        assert!(above > far && versions.last() == above);
        assert!(versions.next(NOW, || 0).time_ns < NOW + 10);
        let near = at(NOW + CLOCK_AHEAD_NS_MAX);
        assert!(versions.next_above(near, NOW, || 0) > near);
        assert!(versions.next(NOW, || 0) > near);
    }

    #[test]
    fn a_wall_clock_that_was_set_back_is_followed() {
        const HOUR_NS: u64 = 3_600_000_000_000;
        let mut versions = Versions::new(1);
        let ahead = versions.next(NOW + HOUR_NS, || 0);
        assert!(versions.next(NOW, || 0) > ahead, "until somebody objects");
        versions.begin_again();
        let again = versions.next(NOW, || 0);
        assert_eq!(again.time_ns, NOW);
        assert_ne!(again.origin, ahead.origin, "the sequence goes on");
        // Nor is the hour taken for sane any more.
        versions.begin_again();
        versions.observe_sanely(ahead, || NOW);
        assert_eq!(versions.next(NOW, || 0).time_ns, NOW);
    }

    #[test]
    fn what_is_known_needs_no_clock() {
        let mut versions = Versions::new(1);
        versions.observe_sanely(at(NOW), || NOW);
        versions.observe_sanely(at(NOW), || panic!("it is known"));
        versions.observe_sanely(at(NOW + 5), || panic!("the time told decides it"));
        assert_eq!(versions.next(NOW, || 0).time_ns, NOW + 6);
    }
}
