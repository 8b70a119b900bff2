//! The thread that renews the members' leases.
//!
//! Memory that clients have mapped stays readable after its backend has died,
//! so they believe it only until the lease in the control region ends. It does
//! nothing else: whatever holds it up for longer than [`LEASE`] stops every
//! reader on this host.

use crate::state::State;
use crate::stop::Stop;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use trefoil_fabric::clock::monotonic_ns;

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

/// Renews until stopped.
pub(crate) fn run(state: &Arc<State>, stop: &Stop) {
    let mut renewed = Instant::now();
    loop {
        renew(state);
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
    let end_ns = monotonic_ns() + LEASE.as_nanos() as u64;
    for member in &state.members {
        member.renew_lease(end_ns);
    }
    let renewals = &state.counters.lease_renewals;
    renewals.fetch_add(1, Ordering::Relaxed);
}
