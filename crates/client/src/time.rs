//! The clocks of a driver. The machines below take time as an argument.

use rustix::time::{ClockId, clock_gettime};
use std::time::Duration;

fn read(clock: ClockId) -> u64 {
    let time = clock_gettime(clock);
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

/// The host's monotonic clock, a few milliseconds behind at most, for a few
/// nanoseconds of CPU: decides leases (with a margin) and deadlines.
#[inline]
pub(crate) fn coarse_ns() -> u64 {
    read(ClockId::MonotonicCoarse)
}

/// The host's monotonic clock.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    read(ClockId::Monotonic)
}

/// A duration in nanoseconds; longer ones are as good as for ever.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Nanoseconds since the Unix epoch.
#[inline]
pub(crate) fn unix_ns() -> u64 {
    read(ClockId::Realtime)
}

/// Milliseconds since the Unix epoch, a few behind at most.
#[inline]
pub(crate) fn coarse_unix_ms() -> u64 {
    read(ClockId::RealtimeCoarse) / 1_000_000
}
