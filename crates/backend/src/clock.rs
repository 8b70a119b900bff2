//! The clocks, which the store does not have.

use std::time::{SystemTime, UNIX_EPOCH};
use trefoil_store::Now;

/// The time of day.
#[inline]
pub(crate) fn now() -> Now {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    Now {
        unix_ns: since.map_or(0, |since| since.as_nanos() as u64),
    }
}
