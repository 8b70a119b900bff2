//! Until when a server may be sure of its lease.
//!
//! The assigner counts the lease from when it *takes* a keep-alive; the server
//! counts it from when it *sent* it, on its own clock, less what two clocks may
//! drift apart. So the server's end comes first, whatever time the messages
//! took and whatever the time of day says. The clock is [`BootInstant`], which
//! does not stand still while the machine is suspended.

use crate::clock::BootInstant;
use crate::limits::CLOCK_DRIFT_MAX;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Read by every request in strong mode: one atomic load.
#[derive(Debug)]
pub(crate) struct Lease {
    origin: BootInstant,
    /// Nanoseconds after `origin`; [`ENDED`] for ever after the end.
    end: AtomicU64,
}

/// No lease, and no new one either.
const ENDED: u64 = u64::MAX;

impl Lease {
    pub(crate) fn none() -> Self {
        Lease {
            origin: BootInstant::now(),
            end: AtomicU64::new(0),
        }
    }

    /// A keep-alive sent at `sent` was granted `lease`.
    pub(crate) fn extend(&self, sent: BootInstant, lease: Duration) {
        let sure = lease.mul_f64(1.0 - CLOCK_DRIFT_MAX);
        let end = (sent + sure).saturating_duration_since(self.origin);
        let end = u64::try_from(end.as_nanos()).unwrap_or(ENDED - 1);
        // `ENDED` is the largest, so that nothing comes after it.
        self.end.fetch_max(end, Ordering::AcqRel);
    }

    /// Gives it up.
    pub(crate) fn finish(&self) {
        self.end.store(ENDED, Ordering::Release);
    }

    pub(crate) fn end(&self) -> BootInstant {
        match self.end.load(Ordering::Acquire) {
            ENDED => self.origin,
            nanos => self.origin + Duration::from_nanos(nanos),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_counted_from_when_the_request_was_sent_less_the_drift() {
        let lease = Lease::none();
        assert!(lease.end() <= BootInstant::now());
        let sent = BootInstant::now();
        lease.extend(sent, Duration::from_secs(10));
        let length = lease.end() - sent;
        assert!(length <= Duration::from_millis(9_801), "{length:?}");
        assert!(length >= Duration::from_millis(9_799), "{length:?}");
    }

    #[test]
    fn a_late_answer_to_an_early_request_shortens_nothing() {
        let lease = Lease::none();
        let early = BootInstant::now();
        let late = early + Duration::from_secs(1);
        lease.extend(late, Duration::from_secs(5));
        let end = lease.end();
        lease.extend(early, Duration::from_secs(5));
        assert_eq!(lease.end(), end);
    }

    #[test]
    fn what_was_given_up_does_not_come_back() {
        let lease = Lease::none();
        lease.extend(BootInstant::now(), Duration::from_secs(5));
        lease.finish();
        lease.extend(BootInstant::now(), Duration::from_secs(5));
        assert!(lease.end() <= BootInstant::now());
    }
}
