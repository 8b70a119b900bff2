//! The last thing that a server does: seeing that nothing is left here, and
//! nothing on its way here.

use crate::core::Core;
use crate::effect::Effect;
use crate::message::{Claim, Message};
use std::collections::BTreeSet;
use std::time::Duration;
use trefoil_sharder::ServerId;

/// How far this server has come with stopping. It touches no other part.
///
/// It is done once everybody alive has answered a claim of nothing that was made when nothing
/// was here: what was on its way came before that.
#[derive(Debug, Default)]
pub(crate) struct Drain {
    is_asked: bool,
    is_done: bool,
    /// The claim of nothing that ends all others, and who has not answered.
    farewell: Option<(u64, BTreeSet<ServerId>)>,
}

impl Drain {
    pub(crate) fn ask(&mut self) {
        self.is_asked = true;
    }

    /// Somebody has answered a claim.
    pub(crate) fn hear_answer(&mut self, from: ServerId, claim: u64) {
        if let Some((farewell, awaited)) = &mut self.farewell
            && *farewell == claim
        {
            awaited.remove(&from);
        }
    }

    /// A server is dead for ever: nobody waits for its answer.
    pub(crate) fn forget_server(&mut self, server: ServerId) {
        if let Some((_, awaited)) = &mut self.farewell {
            awaited.remove(&server);
        }
    }

    fn is_answered(&self) -> bool {
        let farewell = self.farewell.as_ref();
        farewell.is_some_and(|(_, awaited)| awaited.is_empty())
    }
}

impl Core {
    /// Whether nothing is here, and the map gives nothing to this server.
    fn is_empty(&self) -> bool {
        let Some(map) = self.known.map() else {
            return false;
        };
        self.authority.owned().is_empty()
            && !self.giver.has_transit()
            && self.receiver.wanted().is_empty()
            // Also those of dead owners: they may be all that is left.
            && self.copies.here().is_empty()
            && !map
                .slices()
                .iter()
                .any(|assigned| assigned.servers.contains(&self.me))
    }

    /// Values may still be on their way here, claimed by a former map. So this
    /// server claims nothing, from everybody: an answer comes after everything
    /// that was sent before it.
    pub(crate) fn look_whether_drained(&mut self, now: Duration) {
        if !self.drain.is_asked || self.drain.is_done {
            return;
        }
        if !self.is_empty() {
            self.drain.farewell = None;
            return;
        }
        if self.drain.farewell.is_none()
            && let Some(version) = self.known.version()
        {
            let claim = Claim {
                id: self.receiver.next_claim(),
                version,
                ranges: Vec::new(),
                alive: self.peers.with_me(),
            };
            let everybody = self.peers.alive().clone();
            for &to in &everybody {
                self.say(now, to, Message::Claim(claim.clone()));
            }
            self.drain.farewell = Some((claim.id, everybody));
        }
        if self.drain.is_answered() && self.peers.is_settled() {
            self.drain.is_done = true;
            self.tell(Effect::Drained);
        }
    }
}
