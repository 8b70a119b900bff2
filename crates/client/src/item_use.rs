//! How an item was used, as its replicas know it.

use crate::client::{Client, check_key};
use crate::error::OpError;
use crate::link::Link;
use crate::rpc::CallAnswer;
use crate::time;
use crate::wait::{AllOutstanding, Event, Outstanding};
use std::time::Duration;
use trefoil_cell::Cohort;
use trefoil_client_core::get::Strategy;
use trefoil_client_core::mode::REPLICAS_MAX;
use trefoil_layout::message::Request;
use trefoil_layout::op::ItemUse;
use trefoil_rpc::v1;

/// What each replica knows; nothing where it has no item or did not answer.
pub type ItemUses = [Option<ItemUse>; REPLICAS_MAX];

impl Client {
    /// Asks the replicas how `key`'s item was used, after this client's own reads
    /// were reported to them: an answer overtakes no report. A hit is reported
    /// to those whose votes made it, so the use of an item is what any of them
    /// says of its version. Waits for at most `patience`.
    pub fn item_uses(&mut self, key: &[u8], patience: Duration) -> Result<ItemUses, OpError> {
        check_key(key)?;
        self.flush_touches();
        self.operation += 1;
        let cohort = self.cohort(self.hash(key));
        let until_ns = time::monotonic_ns() + patience.as_nanos() as u64;
        let mut outstanding = AllOutstanding::default();
        let mut uses = ItemUses::default();
        for (place, number) in cohort.as_slice().iter().enumerate() {
            // One that is down, or does not renew its lease, is not waited for.
            let now = time::monotonic_ns();
            let link = &mut self.links[*number as usize];
            let is_down = link.strategy(self.options.carrier, now) == Strategy::Down;
            let is_alive = |connection| Link::lease_alive(connection, now);
            if !is_down && link.shared().is_none_or(is_alive) {
                outstanding[place] = self.ask_use(key, cohort, place);
            }
        }
        while outstanding.iter().any(|of| *of != Outstanding::Nothing) {
            match self.next_event(cohort, &mut outstanding, until_ns) {
                Some((place, Event::Use(found))) => uses[place] = found,
                Some(_) => {}
                None => break,
            }
        }
        Ok(uses)
    }

    fn ask_use(&mut self, key: &[u8], cohort: Cohort, replica: usize) -> Outstanding {
        let number = cohort.as_slice()[replica];
        if let Some((connection, _)) = self.links[number as usize].shared_and_bytes()
            && let Ok(id) = connection.send(&Request::Use { key })
        {
            return Outstanding::Ring(id);
        }
        let Ok(mut client) = self.shared.rpc.backend(&self.config, number) else {
            return Outstanding::Nothing;
        };
        let request = v1::UseRequest {
            backend: number,
            config_id: self.config.config_id,
            key: key.to_vec().into(),
        };
        let call =
            async move { CallAnswer::Use(client.r#use(request).await.map(|r| r.into_inner())) };
        match self
            .shared
            .rpc
            .start(&self.done.0, self.operation, replica, call)
        {
            Ok(()) => Outstanding::Call,
            Err(_) => Outstanding::Nothing,
        }
    }
}
