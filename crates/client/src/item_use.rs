//! How an item was used, as its replicas know it.

use crate::client::Client;
use crate::error::OpError;
use crate::time;
use std::time::Duration;
use trefoil_client_core::mode::REPLICAS_MAX;
use trefoil_driver::{Outcome, Owner};
use trefoil_layout::op::ItemUse;

/// What each replica knows; nothing where it has no item or did not answer.
pub type ItemUses = [Option<ItemUse>; REPLICAS_MAX];

impl Client {
    /// Asks the replicas how `key`'s item was used, after this client's own reads
    /// were reported to them: an answer overtakes no report. A hit is reported
    /// to all that hold the item and can be reached, so the use of an item is what
    /// any of them says of its version. Waits for at most `patience`.
    pub fn item_uses(&mut self, key: &[u8], patience: Duration) -> Result<ItemUses, OpError> {
        self.check_lookup(key)?;
        let patience_ns = time::nanoseconds(patience);
        let at = self.driver.begin_uses(key, patience_ns, Owner::Waiter);
        self.wait_for(at);
        let mut unused = std::mem::take(&mut self.held);
        let ended = self.driver.take_ended(at, &mut unused);
        self.held = unused;
        match ended {
            Some((Outcome::Uses(found), _)) => Ok(found),
            other => Err(OpError::Failed(format!("a question ended as {other:?}"))),
        }
    }
}
