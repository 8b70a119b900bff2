//! What runs did: counts of outcomes and of rare events that some run must reach.

use std::cell::RefCell;
use trefoil_client_core::get::MissReason;
use trefoil_client_core::outcome::MutationOutcome;

macro_rules! counts {
    ($($(#[$about:meta])* $count:ident $name:literal,)*) => {
        /// What is counted.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(usize)]
        pub enum Count {
            $($(#[$about])* $count,)*
        }

        impl Count {
            /// Every count with its name.
            pub const ALL: &[(Count, &'static str)] = &[$((Count::$count, $name),)*];
        }
    };
}

counts! {
    /// Seeds run.
    Seeds "seeds",
    /// Operations begun.
    Operations "operations",
    /// Lookups that returned a value.
    Hits "hits",
    /// Lookups that found none: none is known.
    Absent "misses.absent",
    /// Or only what has expired.
    Expired "misses.expired",
    /// Or only what was flushed.
    Flushed "misses.flushed",
    /// Or no two replicas agreed.
    Inquorate "misses.inquorate",
    /// Lookups without a result.
    GetFailed "get_failed",
    /// Lookups that ended where they were begun.
    Inline "inline",
    /// Mutations that were stored.
    Stored "stored",
    /// Mutations that gave way.
    Superseded "superseded",
    /// CAS that found something else.
    Exists "exists",
    /// Mutations of which nothing is known.
    Indeterminate "indeterminate",
    /// Mutations that were refused.
    Rejected "rejected",
    /// Mutations that were not done.
    Failed "failed",
    /// Operations that their caller abandoned.
    Abandoned "abandoned",
    /// Events at a backend beside a read.
    Interleaved "interleaved",
    /// Shards that backends came back without and recovered.
    ShardsRecovered "shards.recovered",
    /// Sends that found a ring full.
    RingFull "ring_full",
    /// Calls that found too many under way.
    CallsFull "calls_full",
    /// Messages too long for a ring.
    TooLarge "too_large",
    /// Calls.
    Calls "calls",
    /// Backends killed.
    Killed "killed",
    /// Backends that moved to another process.
    Moved "moved",
    /// Moves that came to nothing.
    MovesGivenUp "moves_given_up",
    /// Cells that got another size.
    Resized "resized",
    /// Resizes that came to nothing.
    ResizesGivenUp "resizes_given_up",
    /// Last steps of a resize that took too long.
    ResizedLate "resized_late",
    /// Frozen backends that went on by themselves.
    BrokenOff "broken_off",
    /// Backends that did not retire, and were killed.
    RetiredByKill "retired_by_kill",
    /// Places given to other processes.
    Replaced "replaced",
    /// Processes that began under a configuration that was in force no more.
    BegunLate "begun_late",
    /// Raises of an epoch that were refused, for another configuration is served.
    RaisesRefused "raises_refused",
    /// Answers that came to a client once more.
    AnswersTwice "answers_twice",
    /// Answers that nobody waited for any more.
    StaleReplies "stale_replies",
    /// Backends stopped for a while.
    Stopped "stopped",
    /// Cells started anew.
    Restarted "restarted",
    /// Flushes acknowledged.
    Flushes "flushes",
    /// Clients that died.
    ClientDied "client_died",
    /// Connections closed by a backend that lives.
    Disconnected "disconnected",
    /// Keys that ended without a quorum, until somebody touched them.
    Healed "healed",
}

/// Counts of one run, or of many together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WholeStats {
    counts: Vec<u64>,
}

impl Default for WholeStats {
    fn default() -> Self {
        WholeStats {
            counts: vec![0; Count::ALL.len()],
        }
    }
}

impl WholeStats {
    /// One of them.
    pub fn get(&self, count: Count) -> u64 {
        self.counts[count as usize]
    }

    /// Adds another run's counts.
    pub fn merge(&mut self, other: &WholeStats) {
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine += theirs;
        }
    }

    /// Every count with its name, for tables and JSON.
    pub fn iter(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        Count::ALL
            .iter()
            .map(|(count, name)| ((*name).to_owned(), self.get(*count)))
    }
}

/// Counts through a shared reference.
#[derive(Default)]
pub(super) struct Counting(RefCell<WholeStats>);

impl Counting {
    pub(super) fn add(&self, count: Count) {
        self.0.borrow_mut().counts[count as usize] += 1;
    }

    pub(super) fn miss(&self, reason: MissReason) {
        self.add(match reason {
            MissReason::Absent => Count::Absent,
            MissReason::Expired => Count::Expired,
            MissReason::Flushed => Count::Flushed,
            MissReason::Inquorate => Count::Inquorate,
        });
    }

    pub(super) fn mutated(&self, outcome: &MutationOutcome) {
        self.add(match outcome {
            MutationOutcome::Stored { .. } => Count::Stored,
            MutationOutcome::Superseded { .. } => Count::Superseded,
            MutationOutcome::Exists { .. } => Count::Exists,
            MutationOutcome::Indeterminate => Count::Indeterminate,
            MutationOutcome::Rejected(_) => Count::Rejected,
            MutationOutcome::Failed { .. } => Count::Failed,
        });
    }

    pub(super) fn take(&self) -> WholeStats {
        self.0.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_listed_in_the_order_of_their_numbers() {
        for (number, (count, _)) in Count::ALL.iter().enumerate() {
            assert_eq!(*count as usize, number);
        }
    }
}
