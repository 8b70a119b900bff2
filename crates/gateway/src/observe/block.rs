//! The counters of one loop, and their sums.

use super::histogram::{Durations, Histogram};
use crate::keyspace::CommitCounts;
use std::sync::atomic::{AtomicU64, Ordering};
use trefoil_gateway_core::keyspace::Fault;
use trefoil_gateway_core::world::{Command, Done, Ending};
use trefoil_layout::size_class::{self, SIZE_CLASS_MAX};

/// Commands, in the order of the tables here, with their names in reports.
pub(super) const COMMANDS: [(Command, &str); 10] = [
    (Command::Get, "get"),
    (Command::GetAndTouch, "gat"),
    (Command::Touch, "touch"),
    (Command::Set, "set"),
    (Command::Cas, "cas"),
    (Command::Delete, "delete"),
    (Command::Incr, "incr"),
    (Command::Decr, "decr"),
    (Command::Flush, "flush"),
    (Command::Other, "other"),
];

/// How they end.
pub(super) const ENDINGS: [(Ending, &str); 5] = [
    (Ending::Hit, "hit"),
    (Ending::Miss, "miss"),
    (Ending::Refused, "refused"),
    (Ending::ClientError, "client_error"),
    (Ending::ServerError, "server_error"),
];

/// What is counted by the size of the item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClassEvent {
    GetHit,
    Store,
    DeleteHit,
    IncrHit,
    DecrHit,
    CasHit,
    CasBadValue,
    TouchHit,
}

const CLASS_EVENT_COUNT: usize = 8;

/// The same, by command and ending.
static CLASS_COUNTED: [[&[ClassEvent]; ENDINGS.len()]; COMMANDS.len()] = {
    use ClassEvent::{CasBadValue, CasHit, DecrHit, DeleteHit, GetHit, IncrHit, Store, TouchHit};
    const NONE: &[ClassEvent] = &[];
    [
        [&[GetHit], NONE, NONE, NONE, NONE],
        [&[TouchHit], NONE, NONE, NONE, NONE],
        [&[TouchHit], NONE, NONE, NONE, NONE],
        [&[Store], &[Store], &[Store], NONE, NONE],
        [
            &[Store, CasHit],
            &[Store],
            &[Store, CasBadValue],
            NONE,
            NONE,
        ],
        [&[DeleteHit], NONE, NONE, NONE, NONE],
        [&[IncrHit], NONE, NONE, NONE, NONE],
        [&[DecrHit], NONE, NONE, NONE, NONE],
        [NONE; ENDINGS.len()],
        [NONE; ENDINGS.len()],
    ]
};

/// Counters by class.
#[derive(Clone, Debug)]
struct Classes<C>([[C; CLASS_EVENT_COUNT]; SIZE_CLASS_MAX + 1]);

impl<C: Default> Default for Classes<C> {
    fn default() -> Self {
        Classes(std::array::from_fn(|_| Default::default()))
    }
}

/// Why operations had no result.
pub(super) const FAULTS: [&str; 6] = [
    "inquorate",
    "unavailable",
    "indeterminate",
    "contended",
    "rejected",
    "unsupported",
];

/// The place of a command in the tables.
#[inline]
pub(super) fn command_index(command: Command) -> usize {
    match command {
        Command::Get => 0,
        Command::GetAndTouch => 1,
        Command::Touch => 2,
        Command::Set => 3,
        Command::Cas => 4,
        Command::Delete => 5,
        Command::Incr => 6,
        Command::Decr => 7,
        Command::Flush => 8,
        Command::Other => 9,
    }
}

#[inline]
fn ending_index(ending: Ending) -> usize {
    match ending {
        Ending::Hit => 0,
        Ending::Miss => 1,
        Ending::Refused => 2,
        Ending::ClientError => 3,
        Ending::ServerError => 4,
    }
}

fn fault_index(fault: &Fault) -> usize {
    match fault {
        Fault::Inquorate => 0,
        Fault::Unavailable(_) => 1,
        Fault::Indeterminate => 2,
        Fault::Contended => 3,
        Fault::Rejected(_) => 4,
        Fault::Unsupported(_) => 5,
    }
}

/// Adds to a counter that only this thread writes.
#[inline]
pub(super) fn bump(counter: &AtomicU64, more: u64) {
    let before = counter.load(Ordering::Relaxed);
    counter.store(before.wrapping_add(more), Ordering::Relaxed);
}

macro_rules! plain_counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Written by one thread, read by anybody; in cache lines of its own.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub(super) struct Block {
            done: [[AtomicU64; ENDINGS.len()]; COMMANDS.len()],
            classes: Classes<AtomicU64>,
            took: [Histogram; COMMANDS.len()],
            /// From when the loop learnt of a ready connection until its turn.
            pub(super) waited: Histogram,
            /// Rounds of the loop: who becomes ready meanwhile is not noticed.
            pub(super) rounds: Histogram,
            /// The longest of those, in nanoseconds.
            pub(super) round_ns_max: AtomicU64,
            faults: [AtomicU64; FAULTS.len()],
            $($(#[$doc])* pub(super) $name: AtomicU64,)*
        }

        /// Sums over all loops.
        #[derive(Clone, Debug, Default)]
        pub(super) struct Sums {
            done: [[u64; ENDINGS.len()]; COMMANDS.len()],
            classes: Classes<u64>,
            pub(super) took: [Durations; COMMANDS.len()],
            pub(super) waited: Durations,
            pub(super) rounds: Durations,
            pub(super) round_ns_max: u64,
            /// Counted elsewhere, and left whole, too.
            pub(super) commits: CommitCounts,
            pub(super) faults: [u64; FAULTS.len()],
            $($(#[$doc])* pub(super) $name: u64,)*
        }

        impl Block {
            pub(super) fn add_to(&self, sums: &mut Sums) {
                for (sums, counters) in sums.done.iter_mut().zip(&self.done) {
                    add(sums, counters);
                }
                for (sums, counters) in sums.classes.0.iter_mut().zip(&self.classes.0) {
                    add(sums, counters);
                }
                for (sum, histogram) in sums.took.iter_mut().zip(&self.took) {
                    histogram.add_to(sum);
                }
                self.waited.add_to(&mut sums.waited);
                self.rounds.add_to(&mut sums.rounds);
                let longest = self.round_ns_max.load(Ordering::Relaxed);
                sums.round_ns_max = sums.round_ns_max.max(longest);
                add(&mut sums.faults, &self.faults);
                $(sums.$name += self.$name.load(Ordering::Relaxed);)*
            }
        }

        impl Sums {
            /// What has happened since `earlier`. Durations are left whole.
            pub(super) fn since(&self, earlier: &Sums) -> Sums {
                let mut sums = self.clone();
                subtract(sums.done.as_flattened_mut(), earlier.done.as_flattened());
                subtract(
                    sums.classes.0.as_flattened_mut(),
                    earlier.classes.0.as_flattened(),
                );
                subtract(&mut sums.faults, &earlier.faults);
                $(sums.$name = sums.$name.saturating_sub(earlier.$name);)*
                sums
            }
        }
    };
}

plain_counters! {
    /// Bytes from clients.
    bytes_read,
    /// Bytes to clients.
    bytes_written,
    /// Connections accepted.
    opened,
    /// Connections that have ended.
    closed,
    /// Connections sent away because there were too many.
    refused,
    /// Connections that were idle for too long.
    timed_out,
    /// Connections that would have taken too much memory.
    overflowed,
    /// Names and passwords that were right.
    authenticated,
    /// Those that were not.
    unauthenticated,
    /// Commands beyond the slow log's threshold.
    slow,
    /// Commands that had to wait for an operation of the keyspace, counted each
    /// time.
    parked,
    /// Those that have gone on.
    resumed,
}

fn subtract(sums: &mut [u64], before: &[u64]) {
    for (sum, before) in sums.iter_mut().zip(before) {
        *sum = sum.saturating_sub(*before);
    }
}

fn add(sums: &mut [u64], counters: &[AtomicU64]) {
    for (sum, counter) in sums.iter_mut().zip(counters) {
        *sum += counter.load(Ordering::Relaxed);
    }
}

impl Block {
    #[inline]
    pub(super) fn done(&self, done: &Done<'_>, ns: u64) {
        let command = command_index(done.command);
        bump(&self.done[command][ending_index(done.ending)], 1);
        self.took[command].record(ns);
        let in_class = &CLASS_COUNTED[command][ending_index(done.ending)];
        if !in_class.is_empty() {
            let class = size_class::of_item(done.key.len(), done.value_len);
            for event in *in_class {
                bump(&self.classes.0[class][*event as usize], 1);
            }
        }
    }

    /// Another thread may count faults beside the loop.
    pub(super) fn fault(&self, fault: &Fault) {
        self.faults[fault_index(fault)].fetch_add(1, Ordering::Relaxed);
    }
}

impl Sums {
    pub(super) fn of(&self, command: Command, ending: Ending) -> u64 {
        self.done[command_index(command)][ending_index(ending)]
    }

    /// Events on items of a class.
    pub(super) fn of_class(&self, class: usize, event: ClassEvent) -> u64 {
        self.classes.0[class][event as usize]
    }

    /// All events on items of a class.
    pub(super) fn all_of_class(&self, class: usize) -> u64 {
        self.classes.0[class].iter().sum()
    }

    /// However they ended.
    pub(super) fn all(&self, command: Command) -> u64 {
        self.done[command_index(command)].iter().sum()
    }

    /// Connections open now.
    pub(super) fn connections(&self) -> u64 {
        self.opened.saturating_sub(self.closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_in_the_order_of_their_indexes() {
        for (index, (command, _)) in COMMANDS.iter().enumerate() {
            assert_eq!(command_index(*command), index);
        }
        for (index, (ending, _)) in ENDINGS.iter().enumerate() {
            assert_eq!(ending_index(*ending), index);
        }
        assert_eq!(FAULTS[fault_index(&Fault::Inquorate)], "inquorate");
        assert_eq!(FAULTS[fault_index(&Fault::Unsupported("x"))], "unsupported");
    }

    #[test]
    fn sums_are_over_all_loops_and_since_a_reset() {
        let blocks = [Block::default(), Block::default()];
        let done = |ending, value_len| Done {
            command: Command::Get,
            ending,
            key: b"key",
            value_len,
        };
        for block in &blocks {
            block.done(&done(Ending::Hit, 5), 500);
            block.done(&done(Ending::Miss, 0), 500);
            bump(&block.bytes_read, 7);
        }
        let sum = || {
            let mut sums = Sums::default();
            blocks.iter().for_each(|block| block.add_to(&mut sums));
            sums
        };
        let before = sum();
        assert_eq!((before.all(Command::Get), before.bytes_read), (4, 14));
        assert_eq!(before.took[0].count(), 4);
        assert_eq!(before.of_class(1, ClassEvent::GetHit), 2);
        blocks[1].done(&done(Ending::Hit, 66_560), 500);
        let since = sum().since(&before);
        let of_class = |class| since.of_class(class, ClassEvent::GetHit);
        assert_eq!((of_class(1), of_class(31)), (0, 1));
        assert_eq!(since.of(Command::Get, Ending::Hit), 1);
        assert_eq!(
            (since.of(Command::Get, Ending::Miss), since.bytes_read),
            (0, 0)
        );
    }
}
