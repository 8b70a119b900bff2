//! What is served and whether: epoch, cell configuration, the end.

use crate::shared::lock;
use crate::store::Store;
use std::sync::atomic::Ordering;
use trefoil_layout::control;

impl Store {
    /// Raises the shard's epoch: every bucket header and window record is
    /// rewritten, one partition after the other.
    pub fn raise_epoch(&self, epoch: u32) {
        for cell in &self.partitions {
            let mut slot = lock(&cell.0);
            let config_id = slot.live.config_id();
            if !self.is_revoked() && epoch > slot.live.epoch() {
                slot.live.restamp(&self.shared, config_id, epoch);
            }
        }
    }

    /// Serves another cell configuration from now on. Id 0 is ignored: it is
    /// never issued.
    pub fn set_config_id(&self, id: u32) {
        if id == 0 || self.is_revoked() {
            return;
        }
        for cell in &self.partitions {
            let mut slot = lock(&cell.0);
            let epoch = slot.live.epoch();
            slot.live.restamp(&self.shared, id, epoch);
        }
        control::set_config_id(&self.shared.regions.control.words(), id);
    }

    /// A clean end: every bucket is poisoned and the lease revoked, so that
    /// clients who still map the memory stop at once. Everything is refused
    /// from now on.
    pub fn revoke(&self) {
        self.revoked.store(true, Ordering::Release);
        let control = self.shared.regions.control.words();
        control::set_lease_end_ns(&control, 0);
        control::set_config_id(&control, 0);
        for cell in &self.partitions {
            lock(&cell.0).live.poison(&self.shared);
        }
    }
}
