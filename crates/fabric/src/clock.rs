//! The clock of leases.

use rustix::time::{ClockId, clock_gettime};

/// The host's monotonic clock, in nanoseconds: the one that leases in a
/// control region are written in. The same for all processes of a host.
#[inline]
pub fn monotonic_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
