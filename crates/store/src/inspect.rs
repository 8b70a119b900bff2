//! A look at the whole store: statistics, and the check of every invariant.

use crate::budget::Kind;
use crate::partition::CheckError;
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
                index: budget.used_for(Kind::Index),
                private: budget.used_for(Kind::Private),
                extra: budget.used_for(Kind::Extra),
            },
            runs: lock(&self.shared.runs).count(),
            ..StoreStats::default()
        };
        for cell in &self.partitions {
            lock(&cell.0).live.add_stats(&mut stats);
        }
        stats
    }

    /// Checks the invariants of every partition and that the account is the sum
    /// of what is charged. For tests: nobody else may enter the store meanwhile.
    pub fn check(&self) -> Result<(), CheckError> {
        let (mut private, mut index) = (0, 0);
        for cell in &self.partitions {
            let slot = lock(&cell.0);
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
