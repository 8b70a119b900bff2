//! What a run did: counts of outcomes, and marks of the rare branches that
//! some run must have reached.

use trefoil_client_core::get::MissReason;
use trefoil_client_core::retry::{RetryCause, RetryCounts};

/// A rare branch or event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(usize)]
pub enum Mark {
    /// Something happened at a backend between two words of a read.
    ReadInterleaved,
    /// A data entry failed its checksum.
    Torn,
    /// A bucket's header moved during the scan.
    Unstable,
    /// A key could be reached by message only.
    Overflow,
    /// A reader met another configuration or a poisoned index.
    ConfigChange,
    /// A GET ended without a quorum.
    Inquorate,
    /// A GET met two replicas that disagree.
    Dirty,
    /// A mutation was superseded and went again.
    Superseded,
    /// Acknowledgements of different epochs did not count together.
    EpochsApart,
    /// A dead backend's memory was read within its lease.
    DeadMemoryRead,
    /// A lease had run out when a read ended.
    LeaseExpired,
    /// A replica recovered and came back.
    Recovered,
    /// A message arrived after its operation had ended.
    LateMessage,
    /// A copy of a message arrived.
    Copy,
    /// A capacity eviction.
    EvictedForCapacity,
    /// An item was removed after its time.
    Expired,
    /// An index was replaced by another.
    IndexReshaped,
    /// Data entries moved to empty a page.
    EntriesMoved,
    /// A CAS succeeded.
    CasStored,
    /// A CAS failed.
    CasFailed,
    /// A CAS looked at what a quorum agrees on.
    CasLooked,
    /// A CAS evicted what a replica held: its own copy, or what survivors
    /// disagreed on.
    CasEvicted,
    /// A CAS's look found survivors that disagree.
    SurvivorsDisagree,
    /// With nobody else at work, one CAS ended what survivors disagreed about.
    Healed,
    /// A CAS ended with neither.
    CasIndeterminate,
    /// A SET or ERASE ended with neither.
    Indeterminate,
    /// A replica refused a version too far ahead.
    ClockAhead,
    /// A fill was superseded.
    FillSuperseded,
    /// A fill that gave way took back what it had left at a replica.
    FillEvicted,
    /// Repair brought a replica what the other two agreed on.
    Repaired,
    /// Repair stored a value anew, by CAS.
    RepairRenewed,
    /// A CAS of repair has failed.
    RepairNotRenewed,
    /// Repair evicted what no two replicas held.
    RepairEvicted,
    /// At the end, all three replicas of a key agreed.
    CleanQuorum,
    /// At the end, exactly two replicas of a key agreed.
    DirtyQuorum,
    /// At the end, no two replicas of a key agreed.
    NoQuorum,
}

impl Mark {
    /// How many there are.
    pub const COUNT: usize = Mark::NoQuorum as usize + 1;

    /// Every mark with its name.
    pub const ALL: [(Mark, &'static str); Mark::COUNT] = [
        (Mark::ReadInterleaved, "read_interleaved"),
        (Mark::Torn, "torn"),
        (Mark::Unstable, "unstable"),
        (Mark::Overflow, "overflow"),
        (Mark::ConfigChange, "config_change"),
        (Mark::Inquorate, "inquorate"),
        (Mark::Dirty, "dirty"),
        (Mark::Superseded, "superseded"),
        (Mark::EpochsApart, "epochs_apart"),
        (Mark::DeadMemoryRead, "dead_memory_read"),
        (Mark::LeaseExpired, "lease_expired"),
        (Mark::Recovered, "recovered"),
        (Mark::LateMessage, "late_message"),
        (Mark::Copy, "copy"),
        (Mark::EvictedForCapacity, "evicted_for_capacity"),
        (Mark::Expired, "expired"),
        (Mark::IndexReshaped, "index_reshaped"),
        (Mark::EntriesMoved, "entries_moved"),
        (Mark::CasStored, "cas_stored"),
        (Mark::CasFailed, "cas_failed"),
        (Mark::CasLooked, "cas_looked"),
        (Mark::CasEvicted, "cas_evicted"),
        (Mark::SurvivorsDisagree, "survivors_disagree"),
        (Mark::Healed, "healed"),
        (Mark::CasIndeterminate, "cas_indeterminate"),
        (Mark::Indeterminate, "indeterminate"),
        (Mark::ClockAhead, "clock_ahead"),
        (Mark::FillSuperseded, "fill_superseded"),
        (Mark::FillEvicted, "fill_evicted"),
        (Mark::Repaired, "repaired"),
        (Mark::RepairRenewed, "repair_renewed"),
        (Mark::RepairNotRenewed, "repair_not_renewed"),
        (Mark::RepairEvicted, "repair_evicted"),
        (Mark::CleanQuorum, "clean_quorum"),
        (Mark::DirtyQuorum, "dirty_quorum"),
        (Mark::NoQuorum, "no_quorum"),
    ];
}

/// Counts of one run, or of many together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Seeds run.
    pub seeds: u64,
    /// Scheduler steps.
    pub steps: u64,
    /// GETs that returned a value.
    pub hits: u64,
    /// GETs that did not, by [`MissReason`] in the order of `MissReason::ALL`.
    pub misses: [u64; MissReason::ALL.len()],
    /// GETs that failed.
    pub get_failures: u64,
    /// Mutations that were stored.
    pub stored: u64,
    /// Mutations that ended in any other way.
    pub not_stored: u64,
    /// Retries by cause.
    pub retries: RetryCounts,
    marks: [u64; Mark::COUNT],
}

impl Default for Stats {
    fn default() -> Self {
        Stats {
            seeds: 0,
            steps: 0,
            hits: 0,
            misses: Default::default(),
            get_failures: 0,
            stored: 0,
            not_stored: 0,
            retries: RetryCounts::default(),
            marks: [0; Mark::COUNT],
        }
    }
}

impl Stats {
    /// How often a mark was reached.
    pub fn mark(&self, mark: Mark) -> u64 {
        self.marks[mark as usize]
    }

    pub(crate) fn add_mark(&mut self, mark: Mark, count: u64) {
        self.marks[mark as usize] += count;
    }

    pub(crate) fn miss(&mut self, reason: MissReason) {
        self.misses[reason as usize] += 1;
    }

    /// Adds another run's counts.
    pub fn merge(&mut self, other: &Stats) {
        self.seeds += other.seeds;
        self.steps += other.steps;
        self.hits += other.hits;
        self.get_failures += other.get_failures;
        self.stored += other.stored;
        self.not_stored += other.not_stored;
        self.retries.merge(&other.retries);
        let mine = self.misses.iter_mut().chain(&mut self.marks);
        for (mine, theirs) in mine.zip(other.misses.iter().chain(&other.marks)) {
            *mine += theirs;
        }
    }

    /// Every count with its name, for tables and JSON.
    pub fn iter(&self) -> impl Iterator<Item = (String, u64)> + '_ {
        let first = [
            ("seeds", self.seeds),
            ("steps", self.steps),
            ("hits", self.hits),
            ("get_failures", self.get_failures),
            ("stored", self.stored),
            ("not_stored", self.not_stored),
        ];
        let misses = MissReason::ALL
            .into_iter()
            .map(|reason| (format!("misses.{reason}"), self.misses[reason as usize]));
        let retries = RetryCause::ALL
            .into_iter()
            .map(|cause| (format!("retries.{cause}"), self.retries.get(cause)));
        let marks = Mark::ALL
            .into_iter()
            .map(|(mark, name)| (format!("marks.{name}"), self.mark(mark)));
        first
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count))
            .chain(misses)
            .chain(retries)
            .chain(marks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_and_reasons_are_listed_in_the_order_of_their_numbers() {
        for (i, (mark, _)) in Mark::ALL.into_iter().enumerate() {
            assert_eq!(mark as usize, i);
        }
        for (i, reason) in MissReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, i);
        }
    }
}
