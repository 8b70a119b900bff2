//! Reloading an immutable corpus: a second corpus is filled beside the one
//! that is served, under the same memory limit, and takes its place partition
//! by partition. Readers of the old one find it poisoned and take the new
//! windows. Nobody sees a key of both in one partition; across partitions the
//! change takes as long as it takes to poison them.

use crate::config::StoreError;
use crate::partition::Partition;
use crate::store::{Store, objects_max};

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
        for (number, cell) in self.partitions.iter().enumerate() {
            let mut slot = cell.enter();
            let made = Partition::new(
                &self.shared,
                number,
                slot.live.stamp(),
                objects_max(&self.shared.config, number),
            );
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
    }

    fn reload_under_way(&self) -> bool {
        self.partitions
            .iter()
            .any(|cell| cell.enter().staged.is_some())
    }
}
