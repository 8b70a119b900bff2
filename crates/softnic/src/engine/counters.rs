//! What an engine counts. One thread writes each; anybody reads.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// See the module.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// Each with its name, as of now.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Buckets scanned for clients.
    scans,
    /// Ranges read for clients.
    reads,
    /// Items that clients have reported as read.
    touches,
    /// Scans and reads of a backend whose lease had ended.
    lapsed,
    /// Scans and reads under a handle that is no longer good.
    gone,
    /// Bytes received.
    bytes_in,
    /// Bytes sent.
    bytes_out,
    /// Times that the loop slept.
    sleeps,
    /// Clients that were let in, ever.
    sessions_total,
    /// Connections now, those included that have not shown whose they are.
    sessions_open,
    /// Connections that were not let in: for want of a token or of room, of another
    /// version, or too slow.
    refused,
    /// Connections that did not keep to the protocol.
    malformed,
    /// Clients that did not take their answers.
    stuck,
    /// Backends mapped, ever.
    mapped_total,
}

/// Counts.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}
