//! Counters of one linklet.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub(crate) $name: AtomicU64,)*
        }

        /// What a linklet has counted since it was started, and what it holds.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Stats {
            /// Values, copies for other servers included.
            pub entries: u64,
            /// Bytes that they count as.
            pub bytes: u64,
            /// The bound of these bytes.
            pub bytes_max: u64,
            /// Loads under way.
            pub loading: u64,
            /// Of the values, those that are on disk alone
            /// ([`Builder::spill`](crate::Builder::spill)).
            pub spilled: u64,
            /// Bytes on disk of these.
            pub spill_bytes: u64,
            /// Bytes of all files of spilled values.
            pub spill_disk_bytes: u64,
            /// The bound of these bytes; 0 if nothing is spilled.
            pub spill_bytes_max: u64,
            /// These files.
            pub spill_segments: u64,
            $($(#[$doc])* pub $name: u64,)*
        }

        impl Stats {
            /// Everything that is counted, by name.
            pub fn counters(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name)),*]
            }
        }

        impl Counters {
            pub(crate) fn fill(&self, stats: &mut Stats) {
                $(stats.$name = self.$name.load(Ordering::Relaxed);)*
            }
        }
    };
}

counters! {
    /// Gets with a loader that found the value in memory.
    hits,
    /// Gets with a loader that had to load, or to wait for a load.
    misses,
    /// Runs of the loader.
    loads,
    /// Runs of the loader that failed.
    load_failures,
    /// Loaded values that a change overtook before they could be stored.
    loads_overtaken,
    /// Values that had to make room.
    evictions,
    /// Values that have ended ([`Builder::expires`](crate::Builder::expires)) and
    /// were taken out.
    ended,
    /// Values that nobody has used for long ([`Builder::idle`](crate::Builder::idle)).
    idled,
    /// Values removed because their database rows changed.
    invalidations,
    /// Requests that had to ask the protocol: their keys were being moved.
    asked,
    /// Requests sent elsewhere.
    redirects,
    /// Values that came from other servers.
    received,
    /// Values marshalled for other servers.
    sent,
    /// Copies that a replica could not store: unreadable there, or no room. With
    /// strong replication their commits are not acknowledged.
    copies_refused,
    /// Values that their next owner could not store, each time that they were sent to it:
    /// unreadable there, or no room. With strong replication they stay where they are.
    /// Both servers count.
    moves_refused,
    /// Frames that could not be sent at once; the protocol repeats them.
    frames_dropped,
    /// Frames of other servers passed on to servers that those cannot reach.
    frames_passed,
    /// Streams of other servers that were refused: who opened them is no member, or says to be
    /// this server itself.
    streams_refused,
    /// Strong commits acknowledged with fewer copies than there should be
    /// ([`Builder::too_few`](crate::Builder::too_few)).
    commits_thin,
    /// Strong commits refused because too few servers could have copies, after they
    /// had waited for them.
    commits_refused,
    /// Strong commits of which it is not known what becomes
    /// ([`Error::Indeterminate`](crate::Error)), or that waited in vain for one of
    /// these ([`Error::Unsettled`](crate::Error)).
    commits_indeterminate,
    /// Strong commits acknowledged.
    commits,
    /// Microseconds that strong commits have taken, from the caller's call until it
    /// was told what came of them.
    commit_us,
    /// Microseconds that runs of the loader have taken.
    load_us,
    /// Values written to disk for want of memory ([`Builder::spill`](crate::Builder::spill)).
    spill_writes,
    /// Values read back from disk for whoever asked for them.
    spill_reads,
    /// Values copied on disk, because little of their file was still needed.
    spill_copies,
    /// Times that nothing was spilled because the bound on disk was reached.
    spill_full,
    /// Writes of spilled values that have failed.
    spill_write_failures,
    /// Spilled values that could not be read back.
    spill_read_failures,
    /// Losses reported to the listeners.
    losses,
    /// Ranges in these reports.
    lost_ranges,
    /// Keys in these reports by name.
    lost_keys,
    /// Slices that have become this server's.
    slices_gained,
    /// Slices that are not this server's any more.
    slices_lost,
}

impl Counters {
    pub(crate) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn add(counter: &AtomicU64, more: usize) {
        counter.fetch_add(more as u64, Ordering::Relaxed);
    }

    /// Counts the time that has gone by.
    pub(crate) fn time(counter: &AtomicU64, since: Instant) {
        let us = u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX);
        counter.fetch_add(us, Ordering::Relaxed);
    }

    /// Counts one; how many there are now, where that is worth a line in the
    /// log: at first often, then ever more rarely.
    pub(crate) fn one_told(counter: &AtomicU64) -> Option<u64> {
        let count = counter.fetch_add(1, Ordering::Relaxed) + 1;
        count.is_power_of_two().then_some(count)
    }
}
