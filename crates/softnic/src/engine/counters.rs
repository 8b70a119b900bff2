//! What an engine counts. One thread writes each; anybody reads.

use std::sync::atomic::{AtomicU64, Ordering};
use trefoil_softnic_core::wire::CounterValues;

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// See the module.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[doc = $doc])* pub $name: AtomicU64,)*
        }

        impl Counters {
            /// Each with its name, as of now.
            pub fn all(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }

            /// The same with what each counts, for people.
            pub fn described(&self) -> Vec<(&'static str, &'static str, u64)> {
                vec![$((
                    stringify!($name),
                    concat!($($doc),*).trim_ascii(),
                    self.$name.load(Ordering::Relaxed),
                ),)*]
            }

            /// In the order of [`COUNTER_NAMES`].
            pub(super) fn values(&self) -> CounterValues {
                [$(self.$name.load(Ordering::Relaxed),)*]
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
    /// Datagrams received.
    datagrams_in,
    /// Datagrams that were not believed: forged, damaged, seen before, or of nobody.
    datagrams_dropped,
    /// Datagrams sent.
    datagrams_out,
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
    /// Sessions ended because their client may not read any more.
    revoked,
    /// Backends mapped, ever.
    mapped_total,
    /// Backends mapped now.
    backends_mapped,
    /// What the event loop has used of a core, in microseconds; as of its last sleep.
    cpu_us,
    /// Since the engine began, in milliseconds; likewise.
    uptime_ms,
    /// The engine's process.
    pid,
}

/// Counts.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;
    use trefoil_softnic_core::wire::COUNTER_NAMES;

    #[test]
    fn the_wire_names_them_in_the_same_order() {
        let names: Vec<&str> = Counters::default().all().iter().map(|of| of.0).collect();
        assert_eq!(names, COUNTER_NAMES);
    }
}
