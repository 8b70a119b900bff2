//! What an engine counts: each of its threads for itself. Anybody reads.

use std::sync::atomic::{AtomicU64, Ordering};
use trefoil_softnic_core::wire::{COUNTER_NAMES, CounterValues};

macro_rules! counters {
    ($($(#[doc = $doc:literal])* $name:ident,)*) => {
        /// Those of one thread. One writes each.
        #[derive(Debug, Default)]
        pub(super) struct Counters {
            $($(#[doc = $doc])* pub(super) $name: AtomicU64,)*
        }

        impl Counters {
            /// As of now, in the order of [`COUNTER_NAMES`].
            pub(super) fn read(&self) -> Counted {
                Counted([$(self.$name.load(Ordering::Relaxed),)*])
            }
        }

        /// What each counts, for people, in the order of [`COUNTER_NAMES`].
        const MEANINGS: [&str; COUNTER_NAMES.len()] = [
            $(concat!($($doc),*).trim_ascii(),)*
        ];

        #[cfg(test)]
        const NAMES: [&str; COUNTER_NAMES.len()] = [$(stringify!($name),)*];
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
    /// What the threads that read have used of a core, in microseconds; as of their last
    /// sleep.
    cpu_us,
    /// Since the engine began, in milliseconds.
    uptime_ms,
    /// The engine's process.
    pid,
    /// Threads that read now.
    engines,
    /// What the thread that lets clients in has used of a core, in microseconds; likewise.
    greeting_cpu_us,
    /// Connections that were closed at once: too many of their address came to nothing.
    turned_away,
    /// Requests in datagrams that were asked before: they or their answers were lost or late.
    repeated,
    /// Time in which the loop carried out requests, in microseconds.
    busy_us,
    /// Times that it carried out what was there.
    rounds,
    /// The longest of these in the last seconds, in microseconds: so long a request may
    /// have waited for those that were there before it.
    lag_us_max,
    /// Bytes of answers on streams that no client has acknowledged; as of the last look.
    in_flight_bytes,
    /// Bytes that TCP lets these streams have under way; likewise.
    window_bytes,
    /// Segments of TCP that were sent again on streams of clients.
    retransmitted,
    /// Threads that read under load, at most.
    engines_max,
    /// Times that one more thread was to read, because the others were busy.
    scaled_out,
    /// Times that one less was.
    scaled_in,
    /// Sessions that were given to another thread.
    sessions_moved,
    /// Messages of clients that backends on this host were handed.
    messages,
    /// Messages that were not executed: their client may not, or the backend was not there, or
    /// had no room.
    messages_refused,
    /// Messages that were handed over, and whose answer did not come.
    messages_lost,
    /// Version of the frames for messages.
    message_frames,
}

/// These are counted by the threads that let clients in and map backends, and by no other.
const OF_SET_UP: [&str; 11] = [
    "sessions_total",
    "mapped_total",
    "uptime_ms",
    "pid",
    "engines",
    "greeting_cpu_us",
    "turned_away",
    "engines_max",
    "scaled_out",
    "scaled_in",
    "message_frames",
];
/// These are counted by those threads as well.
const OF_BOTH: [&str; 5] = [
    "sessions_open",
    "refused",
    "malformed",
    "bytes_in",
    "bytes_out",
];
/// Of these, all threads together count what most one of them does.
const SHARED: [&str; 7] = [
    "backends_mapped",
    "uptime_ms",
    "pid",
    "engines",
    "lag_us_max",
    "engines_max",
    "message_frames",
];
/// Of these, the value now counts; the others only grow.
const GAUGES: [&str; 10] = [
    "sessions_open",
    "backends_mapped",
    "uptime_ms",
    "pid",
    "engines",
    "lag_us_max",
    "in_flight_bytes",
    "window_bytes",
    "engines_max",
    "message_frames",
];

/// What was counted, by one thread or by all together.
#[derive(Clone, Copy, Debug)]
pub struct Counted(pub(super) CounterValues);

/// One of them.
#[derive(Clone, Copy, Debug)]
pub struct Count {
    /// Its name.
    pub name: &'static str,
    /// What it counts.
    pub meaning: &'static str,
    /// Whether it goes down as well.
    pub is_gauge: bool,
    /// Its value.
    pub value: u64,
}

impl Counted {
    /// Each of them, in the order in which they go over the wire.
    pub fn all(&self) -> impl Iterator<Item = Count> {
        let count = |(at, value)| Count {
            name: COUNTER_NAMES[at],
            meaning: MEANINGS[at],
            is_gauge: GAUGES.contains(&COUNTER_NAMES[at]),
            value,
        };
        self.0.into_iter().enumerate().map(count)
    }

    /// Those that the threads count that let clients in and map backends.
    pub fn of_set_up(&self) -> impl Iterator<Item = Count> {
        let is_theirs = |name| OF_SET_UP.contains(&name) || OF_BOTH.contains(&name);
        self.all().filter(move |count| is_theirs(count.name))
    }

    /// Those that the threads count that read.
    pub fn of_engine(&self) -> impl Iterator<Item = Count> {
        self.all().filter(|count| !OF_SET_UP.contains(&count.name))
    }

    /// The one with this name; 0 if there is none.
    pub fn get(&self, name: &str) -> u64 {
        let found = COUNTER_NAMES.iter().position(|known| *known == name);
        found.map_or(0, |at| self.0[at])
    }

    /// What both have counted.
    pub(super) fn and(mut self, other: Counted) -> Counted {
        for (at, name) in COUNTER_NAMES.iter().enumerate() {
            self.0[at] = match SHARED.contains(name) {
                true => self.0[at].max(other.0[at]),
                false => self.0[at] + other.0[at],
            };
        }
        self
    }
}

/// Counts.
pub(super) fn add(counter: &AtomicU64, count: u64) {
    counter.fetch_add(count, Ordering::Relaxed);
}

/// Counts for the only thread that does so here: cheaper.
pub(super) fn add_own(counter: &AtomicU64, count: u64) {
    let before = counter.load(Ordering::Relaxed);
    counter.store(before + count, Ordering::Relaxed);
}

/// Notes a value as of now.
pub(super) fn note(counter: &AtomicU64, value: u64) {
    counter.store(value, Ordering::Relaxed);
}

/// Notes what CPU the thread that calls has used.
pub(super) fn note_cpu(counter: &AtomicU64) {
    let cpu = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    let cpu_us = cpu.tv_sec as u64 * 1_000_000 + cpu.tv_nsec as u64 / 1000;
    counter.store(cpu_us, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wire_names_them_in_the_same_order() {
        assert_eq!(NAMES, COUNTER_NAMES);
        let known = |name: &&str| COUNTER_NAMES.contains(name);
        for names in [&SHARED[..], &GAUGES, &OF_SET_UP, &OF_BOTH] {
            assert!(names.iter().all(known), "{names:?}");
        }
    }

    #[test]
    fn what_threads_have_counted_is_added_but_for_what_they_share() {
        let (one, other) = (Counters::default(), Counters::default());
        add(&one.scans, 3);
        add(&other.scans, 4);
        one.backends_mapped.store(3, Ordering::Relaxed);
        other.backends_mapped.store(2, Ordering::Relaxed);
        let both = one.read().and(other.read());
        assert_eq!((both.get("scans"), both.get("backends_mapped")), (7, 3));
        assert_eq!(both.get("nonsense"), 0);
    }
}
