//! Reloading an immutable corpus: a second corpus is filled beside the one
//! that is served, under the same memory limit, and takes its place partition
//! by partition. Nothing is evicted for it: where there is no room for both, it is
//! refused ([`Store::is_over_limit`], `NoMemory`) and the first stays whole. Readers of the old one find it poisoned and take the new
//! windows. Nobody sees a key of both in one partition; across partitions the
//! change takes as long as it takes to poison them.

use crate::config::StoreError;
use crate::partition::Partition;
use crate::shared::lock;
use crate::store::{Store, objects_max};
use std::sync::atomic::Ordering;

/// Why a reload could not begin or end.
#[derive(Debug, thiserror::Error)]
pub enum ReloadError {
    /// Another one is under way.
    #[error("a reload is under way already")]
    UnderWay,
    /// None is.
    #[error("no reload is under way")]
    NotUnderWay,
    /// There is no memory for a second index.
    #[error("a second corpus does not fit beside the one that is served: {0}")]
    NoRoom(#[from] StoreError),
}

impl Store {
    /// Begins a second corpus; [`Store::load`] fills it from now on.
    pub fn begin_reload(&self) -> Result<(), ReloadError> {
        if self.reload_under_way() {
            return Err(ReloadError::UnderWay);
        }
        self.shared.reloading.store(true, Ordering::Relaxed);
        for (number, cell) in self.partitions.iter().enumerate() {
            let mut slot = cell.enter();
            let make = |stamp| {
                let objects_max = objects_max(&self.shared.config, number);
                Partition::new(&self.shared, number, stamp, objects_max)
            };
            let stamp = slot.live.stamp();
            let made = make(stamp).or_else(|_| {
                // What an earlier corpus has left.
                self.give_back_unused();
                make(stamp)
            });
            match made {
                Ok(staged) => slot.staged = Some(Box::new(staged)),
                Err(error) => {
                    drop(slot);
                    self.abort_reload();
                    return Err(error.into());
                }
            }
        }
        Ok(())
    }

    /// Serves the second corpus instead of the first.
    pub fn finish_reload(&self) -> Result<(), ReloadError> {
        if !self.reload_under_way() {
            return Err(ReloadError::NotUnderWay);
        }
        for cell in &self.partitions {
            let mut slot = cell.enter();
            if let Some(staged) = slot.staged.take() {
                let mut old = std::mem::replace(&mut slot.live, *staged);
                // Nobody waits: an immutable corpus has no mutations.
                slot.live.restamp(old.stamp());
                while slot.live.stamp_step(&self.shared) {}
                slot.live.replace(&self.shared, &mut old);
            }
        }
        self.shared.reloading.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Gives the second corpus up.
    pub fn abort_reload(&self) {
        for cell in &self.partitions {
            let mut slot = cell.enter();
            if let Some(mut staged) = slot.staged.take() {
                staged.release_all(&self.shared);
            }
        }
        self.give_back_unused();
        self.shared.reloading.store(false, Ordering::Relaxed);
    }

    /// Gives back memory that is resident and holds nothing: an immutable corpus does not
    /// grow into what the one before has left.
    pub fn give_back_unused(&self) {
        let shared = &self.shared;
        let data = &shared.regions.data;
        lock(&shared.runs).drop_spare(data, &shared.budget);
        let all = shared.budget.used();
        lock(&shared.pool).shrink(data, &shared.budget, all);
    }

    /// Items of the second corpus, or of the first where there is no second, that found no
    /// place in the index.
    pub fn loaded_beside(&self) -> u64 {
        let count = |cell: &crate::store::Cell| {
            let slot = cell.enter();
            let loaded = slot.staged.as_deref().unwrap_or(&slot.live);
            loaded.beside_count()
        };
        self.partitions.iter().map(count).sum()
    }

    /// Whether more is held than the limit allows: it was lowered, and who loads a
    /// second corpus has to give it up before anything of the first goes.
    pub fn is_over_limit(&self) -> bool {
        self.shared.budget.excess() > 0
    }

    fn reload_under_way(&self) -> bool {
        self.partitions
            .iter()
            .any(|cell| cell.enter().staged.is_some())
    }
}
