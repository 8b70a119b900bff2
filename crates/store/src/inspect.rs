//! A look at the whole store: statistics, and the check of every invariant.

use crate::budget::Kind;
use crate::partition::{CheckError, Stepped};
use crate::shared::lock;
use crate::stats::{Resident, StoreStats};
use crate::store::Store;

impl Store {
    /// State and counts.
    pub fn stats(&self) -> StoreStats {
        let budget = &self.shared.budget;
        let mut stats = StoreStats {
            memory_limit: budget.limit(),
            resident: Resident {
                pages: budget.used_for(Kind::Pages),
                pages_free: lock(&self.shared.pool).free_bytes(),
                runs: budget.used_for(Kind::Runs),
                index: budget.used_for(Kind::Index) + budget.used_for(Kind::Leaving),
                private: budget.used_for(Kind::Private),
                extra: budget.used_for(Kind::Extra),
            },
            runs: lock(&self.shared.runs).count(),
            ..StoreStats::default()
        };
        for cell in &self.partitions {
            cell.enter().live.add_stats(&self.shared, &mut stats);
        }
        stats
    }

    /// The most slots and headers that were gone over for an index's sake under
    /// one hold of a partition's lock: for tests of the bound on it.
    #[doc(hidden)]
    pub fn reshape_work_max(&self) -> u64 {
        let work = |cell: &crate::store::Cell| cell.enter().live.work_max();
        self.partitions.iter().map(work).max().unwrap_or_default()
    }

    /// The most items that were evicted or moved, and pages given back, for room
    /// under one hold of a partition's lock, and the bound on it, which the items of
    /// one page may exceed: for tests.
    #[doc(hidden)]
    pub fn room_work_max(&self) -> (u64, u64) {
        let work = |cell: &crate::store::Cell| cell.enter().live.room_work_max();
        let most = self.partitions.iter().map(work).max();
        (most.unwrap_or_default(), crate::partition::ROOM_WORK_MAX)
    }

    /// Takes one step of what the index of a partition needs, as maintenance
    /// does; `false` if there is nothing to do. For tests of what is between two
    /// steps.
    #[doc(hidden)]
    pub fn reshape_one_step(&self, partition: usize) -> bool {
        self.reshape_one_step_while(partition, || {})
    }

    /// The same; `meanwhile` happens where others may, with no lock held, before the
    /// system is asked for memory.
    #[doc(hidden)]
    pub fn reshape_one_step_while(&self, partition: usize, meanwhile: impl FnOnce()) -> bool {
        match self.reshape_step_of(&self.partitions[partition], meanwhile) {
            Stepped::Done(retired) | Stepped::Aborted(retired) => retired.release(&self.shared),
            Stepped::Went => {}
            Stepped::Idle | Stepped::Blocked(_) | Stepped::Populates(_) => return false,
        }
        true
    }

    /// Checks the invariants of every partition and that the account is the sum
    /// of what is charged. For tests: nobody else may enter the store meanwhile.
    pub fn check(&self) -> Result<(), CheckError> {
        let (mut private, mut index) = (0, 0);
        for cell in &self.partitions {
            let slot = cell.enter();
            for partition in std::iter::once(&slot.live).chain(slot.staged.as_deref()) {
                partition.check(&self.shared)?;
                let charged = partition.charged(&self.shared);
                private += charged.0;
                index += charged.1;
            }
        }
        let budget = &self.shared.budget;
        let pages = lock(&self.shared.pool).resident_len();
        for (kind, sum) in [
            (Kind::Private, private),
            (Kind::Index, index),
            (Kind::Leaving, self.shared.leaving.resident_len()),
            (Kind::Promised, 0),
            (Kind::Pages, pages),
        ] {
            if budget.used_for(kind) != sum {
                return Err(CheckError {
                    partition: usize::MAX,
                    what: format!(
                        "{kind:?}: {} bytes on the account, {sum} counted",
                        budget.used_for(kind)
                    ),
                });
            }
        }
        Ok(())
    }
}
