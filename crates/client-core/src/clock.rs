//! Nominating versions: a hybrid logical clock.

use trefoil_layout::Version;
use trefoil_layout::version::{CLIENT_ID_BITS, SEQUENCE_BITS};

/// All sequence numbers of this client id are used up: call
/// [`VersionClock::renew`] with a new random id and ask again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the client id's sequence numbers are used up")]
pub struct SequenceExhausted;

/// Issues versions that are unique, rise, and lie above every version that
/// this client has observed, whatever its wall clock does. Safety never rests
/// on synchronized clocks; a clock that lags only costs retries.
#[derive(Clone, Debug)]
pub struct VersionClock {
    /// Highest time issued or observed, in nanoseconds since the Unix epoch.
    time_ns: u64,
    client_id: u64,
    sequence: u32,
}

impl VersionClock {
    /// A clock for a new client incarnation. `client_id` is
    /// [`CLIENT_ID_BITS`] random bits, from a source that differs between
    /// incarnations; higher bits are cut off.
    pub const fn new(client_id: u64) -> Self {
        VersionClock {
            time_ns: 0,
            client_id: client_id & ((1 << CLIENT_ID_BITS) - 1),
            sequence: 0,
        }
    }

    /// The next version: its time is the highest of the wall clock, the last
    /// issued + 1 and any observed + 1.
    #[inline]
    pub fn next(&mut self, now_unix_ns: u64) -> Result<Version, SequenceExhausted> {
        if self.sequence >> SEQUENCE_BITS != 0 {
            return Err(SequenceExhausted);
        }
        self.time_ns = now_unix_ns.max(self.time_ns.saturating_add(1));
        let version = Version::new(self.time_ns, self.client_id, self.sequence);
        self.sequence += 1;
        Ok(version)
    }

    /// Takes note of a version seen anywhere: in a hit, a bound, a CAS
    /// mismatch.
    #[inline]
    pub fn observe(&mut self, version: Version) {
        self.time_ns = self.time_ns.max(version.time_ns);
    }

    /// Begins again from the wall clock, as it was set back: what was issued and
    /// observed before is not surpassed any more. The sequence goes on, so that no
    /// version is issued twice, whatever time it carries.
    pub fn begin_again(&mut self) {
        self.time_ns = 0;
    }

    /// Goes on under a new random id, as after a restart.
    pub fn renew(&mut self, client_id: u64) {
        self.client_id = client_id & ((1 << CLIENT_ID_BITS) - 1);
        self.sequence = 0;
    }

    /// The id under which versions are issued now.
    pub const fn client_id(&self) -> u64 {
        self.client_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rises_with_the_wall_clock_and_without_it() {
        let mut clock = VersionClock::new(5);
        let first = clock.next(1_000).unwrap();
        assert_eq!(first, Version::new(1_000, 5, 0));
        assert_eq!(clock.next(1_000).unwrap(), Version::new(1_001, 5, 1));
        assert_eq!(clock.next(10).unwrap(), Version::new(1_002, 5, 2));
        assert_eq!(clock.next(5_000).unwrap(), Version::new(5_000, 5, 3));
    }

    #[test]
    fn stands_above_whatever_was_observed() {
        let mut clock = VersionClock::new(5);
        let seen = Version::new(9_000, u64::MAX, 77);
        clock.observe(seen);
        clock.observe(Version::new(3, 0, 0));
        assert!(clock.next(1).unwrap() > seen);
    }

    #[test]
    fn begins_again_from_the_wall_clock_and_issues_nothing_twice() {
        let mut clock = VersionClock::new(5);
        let first = clock.next(1_000).unwrap();
        clock.observe(Version::new(9_000, 7, 0));
        clock.begin_again();
        let second = clock.next(1_000).unwrap();
        assert_eq!(second, Version::new(1_000, 5, 1));
        assert_ne!(second, first);
        clock.begin_again();
        assert_eq!(clock.next(1_000).unwrap(), Version::new(1_000, 5, 2));
    }

    #[test]
    fn a_used_up_sequence_asks_for_a_new_id() {
        let mut clock = VersionClock::new(5);
        clock.sequence = (1 << SEQUENCE_BITS) - 1;
        let last = clock.next(7).unwrap();
        assert_eq!(clock.next(8), Err(SequenceExhausted));
        clock.renew(6);
        let next = clock.next(7).unwrap();
        assert_eq!((next.client_id(), next.sequence()), (6, 0));
        assert!(next > last);
    }
}
