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
use std::time::Duration;
use trefoil_fabric::clock::monotonic_ns;

/// How long a client may believe a backend that has not renewed its lease. A
/// successor waits as long before it serves.
pub const LEASE: Duration = Duration::from_millis(500);
/// How often the lease is renewed.
pub const RENEWAL_PERIOD: Duration = Duration::from_millis(100);

const _: () = assert!(
    RENEWAL_PERIOD.as_millis() * 4 < LEASE.as_millis(),
    "a few late renewals do not let it lapse"
);

/// Renews until stopped.
pub(crate) fn run(state: &Arc<State>, stop: &Stop) {
    loop {
        renew(state);
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
