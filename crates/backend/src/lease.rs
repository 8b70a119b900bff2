//! The thread that renews the members' leases.
//!
//! Memory that clients have mapped stays readable after its backend has died,
//! so they believe it only until the lease in the control region ends. It does
//! little else: whatever holds it up for longer than [`LEASE`] stops every
//! reader on this host.
//!
//! It vouches for the process, so it renews only while the fabric's poller gets on
//! with its work: writers must not wait for a backend whose readers go on believing
//! it. It also thaws a backend whose successor has not come for what it asked for.

use crate::resize;
use crate::state::State;
use crate::stop::Stop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_fabric::clock::monotonic_ns;
use trefoil_fabric::shm::Progress;

/// How long a client may believe a backend that has not renewed its lease. A
/// successor waits as long before it serves.
pub const LEASE: Duration = Duration::from_millis(500);
/// How often the lease is renewed.
pub const RENEWAL_PERIOD: Duration = Duration::from_millis(100);

/// A renewal this long after the one before is counted as late: whatever holds
/// this thread up may one day hold it up for a whole lease.
const LATE: Duration = Duration::from_millis(2 * RENEWAL_PERIOD.as_millis() as u64);

const _: () = assert!(
    RENEWAL_PERIOD.as_millis() * 4 < LEASE.as_millis(),
    "a few late renewals do not let it lapse"
);

/// How long the poller may stand still, at work, before nobody vouches for it any
/// more. A busy machine may let it wait; no request takes a tenth of this.
const STALL: Duration = Duration::from_secs(1);

/// What was last seen of the poller.
struct Watch {
    last: Progress,
    /// For how long it has stood still while this thread looked.
    stood: Duration,
    looked: Instant,
}

impl Watch {
    fn new(now: Instant) -> Self {
        Watch {
            last: Progress::default(),
            stood: Duration::ZERO,
            looked: now,
        }
    }

    /// Whether the poller gets on, or sleeps because there is nothing to do. While
    /// this thread did not run, the poller may not have been able to either: after a
    /// pause of the machine that time does not count.
    fn gets_on(&mut self, progress: Progress, now: Instant) -> bool {
        let passed = now.saturating_duration_since(self.looked);
        self.looked = now;
        self.stood = match progress.is_asleep || progress != self.last {
            true => Duration::ZERO,
            false => self.stood + passed.min(RENEWAL_PERIOD),
        };
        self.last = progress;
        self.stood < STALL
    }
}

/// Renews until stopped.
pub(crate) fn run(state: &Arc<State>, stop: &Stop) {
    let mut renewed = Instant::now();
    let mut watch = Watch::new(renewed);
    let mut stalled = false;
    loop {
        let gets_on = state
            .fabric_progress()
            .is_none_or(|progress| watch.gets_on(progress, Instant::now()));
        if gets_on {
            renew(state);
        }
        for member in &state.members {
            member.giving.look(member, Instant::now());
            resize::Giving::look(state, member, Instant::now());
        }
        if stalled == gets_on {
            stalled = !gets_on;
            match stalled {
                true => tracing::error!(
                    "messages have not been served for {} s: the lease is not renewed, clients use the other backends",
                    STALL.as_secs()
                ),
                false => tracing::warn!("messages are served again: the lease is renewed"),
            }
        }
        let late = &state.counters.lease_renewals_late;
        late.fetch_add(u64::from(renewed.elapsed() > LATE), Ordering::Relaxed);
        renewed = Instant::now();
        if stop.wait(RENEWAL_PERIOD) {
            return;
        }
    }
}

/// Renews every member's lease once.
pub(crate) fn renew(state: &State) {
    let doors = state.doors();
    if doors.retired {
        return;
    }
    let end_ns = monotonic_ns() + LEASE.as_nanos() as u64;
    for member in &state.members {
        member.renew_lease(end_ns);
    }
    drop(doors);
    let renewals = &state.counters.lease_renewals;
    renewals.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_poller_that_stands_still_at_work_is_not_vouched_for() {
        let begin = Instant::now();
        let mut watch = Watch::new(begin);
        let mut after = |ms: u64, rounds, is_asleep| {
            let progress = Progress { rounds, is_asleep };
            watch.gets_on(progress, begin + Duration::from_millis(ms))
        };
        assert!(
            (0..10).all(|tenth| after(100 * tenth, 7, false)),
            "a busy machine"
        );
        assert!((10..90).all(|tenth| !after(100 * tenth, 7, false)), "hung");
        assert!(after(9_000, 8, false), "it has gone on");
        assert!(
            (91..990).all(|tenth| after(100 * tenth, 8, true)),
            "nothing to do"
        );
        assert!((990..1_000).all(|tenth| after(100 * tenth, 8, false)));
        assert!(!after(100_000, 8, false));
        assert!(after(100_100, 9, false));
        assert!(after(105_000, 9, false), "who looks has not run either");
        assert!((1..9).all(|look| after(105_000 + 300 * look, 9, false)));
        assert!(!after(108_000, 9, false), "late each time");
    }
}
