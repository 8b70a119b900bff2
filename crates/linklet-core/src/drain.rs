//! The last thing that a server does: seeing that nothing is left here, and
//! nothing on its way here.

use crate::core::Core;
use crate::effect::Effect;
use crate::link::Link;
use crate::message::{Claim, Message};
use std::time::Duration;

impl Core {
    /// Whether nothing is here, and the map gives nothing to this server.
    fn is_empty(&self) -> bool {
        let Some(map) = self.map.current() else {
            return false;
        };
        self.owned.is_empty()
            && self.transit.is_empty()
            && self.wanted.is_empty()
            // Also those of dead owners: they may be all that is left.
            && self.copies.is_empty()
            && !map
                .slices()
                .iter()
                .any(|assigned| assigned.servers.contains(&self.me))
    }

    /// Values may still be on their way here, claimed by a former map. So this
    /// server claims nothing, from everybody: an answer comes after everything
    /// that was sent before it.
    pub(crate) fn look_whether_drained(&mut self, now: Duration) {
        if !self.draining || self.drained {
            return;
        }
        if !self.is_empty() {
            self.farewell = None;
            return;
        }
        if self.farewell.is_none()
            && let Some(version) = self.map.version()
        {
            self.claim_ids += 1;
            let claim = Claim {
                id: self.claim_ids,
                version,
                ranges: Vec::new(),
                alive: self.alive.iter().copied().chain([self.me]).collect(),
            };
            for to in self.alive.clone() {
                self.say(now, to, Message::Claim(claim.clone()));
            }
            self.farewell = Some((self.claim_ids, self.alive.clone()));
        }
        let answered = self
            .farewell
            .as_ref()
            .is_some_and(|(_, awaited)| awaited.is_empty());
        if answered && self.links.values().all(Link::is_settled) {
            self.drained = true;
            self.tell(Effect::Drained);
        }
    }
}
