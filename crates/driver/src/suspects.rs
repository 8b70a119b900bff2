//! Keys of which an operation has seen that replicas differ, or has left them so: the
//! backend that repairs their shard is told of them, so that it need not find them itself.
//!
//! ```text
//! lookups that differ ────────────────┐
//! third copies refused, lost (late) ──┼─► Suspects ─► Host::suspect, twice a second at most
//! missed while a backend was down ────┘
//!    (link), once it is connected and votes
//! ```
//!
//! A hint, and no more: bounded lists. What has no room is forgotten, and what is lost is
//! lost: the next scan finds it. Lookups that two replicas answer alike, and mutations that
//! three have taken, which is nearly all, do not come here.

use crate::driver::{Driver, wait_for_room};
use crate::host::Host;
use crate::late::Via;
use crate::op::{Op, Owed};
use crate::room::Way;
use crate::slab::{Came, Last};
use trefoil_client_core::mode::REPLICAS_MAX;
use trefoil_layout::KeyHash;

/// Keys that are told of at once: 4 KiB.
const COUNT_MAX: usize = 256;
/// Between two messages.
const PAUSE_NS: u64 = 500_000_000;

/// See the module.
#[derive(Debug)]
pub(crate) struct Suspects {
    keys: Vec<KeyHash>,
    /// Nothing is sent before, on the host's monotonic clock.
    next_ns: u64,
}

impl Default for Suspects {
    fn default() -> Self {
        Suspects {
            keys: Vec::with_capacity(COUNT_MAX),
            next_ns: 0,
        }
    }
}

impl Suspects {
    /// Adds a key, once, if there is room.
    fn add(&mut self, hash: KeyHash) {
        if self.has_room() && !self.keys.contains(&hash) {
            self.keys.push(hash);
        }
    }

    fn has_room(&self) -> bool {
        self.keys.len() < COUNT_MAX
    }

    /// Whether it is time to tell of what there is.
    #[inline]
    fn is_due(&self, now_ns: u64) -> bool {
        !self.keys.is_empty() && now_ns >= self.next_ns
    }

    /// When it is.
    #[inline]
    pub(crate) fn due_ns(&self) -> u64 {
        match self.keys.is_empty() {
            true => u64::MAX,
            false => self.next_ns,
        }
    }

    /// They name nothing any more.
    pub(crate) fn clear(&mut self) {
        self.keys.clear();
    }
}

impl<H: Host> Driver<H> {
    /// Replicas were seen to differ on the key with this hash.
    #[cold]
    pub fn suspect(&mut self, hash: KeyHash) {
        if self.topology.mode().replica_count() < REPLICAS_MAX {
            // Nobody repairs it.
            return;
        }
        self.suspects.add(hash);
        self.tell_suspects(self.host.coarse_ns());
    }

    /// Tells of what there is, if it is time to.
    #[inline]
    pub(crate) fn tell_suspects(&mut self, now_ns: u64) {
        if self.suspects.is_due(now_ns) {
            self.suspects.next_ns = now_ns.saturating_add(PAUSE_NS);
            self.tell_all_suspects();
        }
    }

    /// The same at once: nobody comes back to tell of it later.
    pub fn tell_all_suspects(&mut self) {
        if !self.suspects.keys.is_empty() {
            self.host.suspect(&self.topology, &self.suspects.keys);
            self.suspects.clear();
        }
    }

    /// A replica lacks what two others hold. One that is down is told of when it is back:
    /// before, nothing can be repaired. But one that was found down just now may have been
    /// for long, and may be back already.
    #[cold]
    pub(crate) fn lacks(&mut self, number: u32, hash: KeyHash) {
        let now_ns = self.host.coarse_ns();
        let Some(link) = self.links.get_mut(number as usize) else {
            return;
        };
        if link.is_down() {
            link.misses(hash);
            if !link.was_lost_at(now_ns) {
                return;
            }
        }
        self.suspect(hash);
    }

    /// A mutation that is stored has ended: who lacks it, or may yet.
    #[inline]
    pub(crate) fn watch_copies(&mut self, op: &mut Op, now_ns: u64) {
        if op.topology != self.topology_count {
            // What the others of its replicas have said, nobody will hear.
            return self.suspect(self.topology.hash(&op.key));
        }
        for replica in 0..op.cohort.as_slice().len() {
            let number = op.cohort.as_slice()[replica];
            match op.owed[replica] {
                Owed::Near(_) | Owed::Far(_) | Owed::Leaving(_) => {
                    self.expect_late(op, replica, now_ns);
                }
                // It is still to be sent.
                Owed::Room(_) | Owed::Last(_) => {}
                Owed::Nothing | Owed::Connection | Owed::Topology => {
                    if op.machine.lacks(replica) {
                        self.lacks(number, op.hash);
                    }
                }
            }
        }
    }

    /// A stored mutation's answer is still to come: it comes to the table of those.
    #[inline]
    pub(crate) fn expect_late(&mut self, op: &mut Op, replica: usize, now_ns: u64) {
        if let Owed::Near(token) = op.owed[replica]
            && self.is_indirect(op.cohort.as_slice()[replica] as usize)
        {
            op.owed[replica] = Owed::Last(token);
            return;
        }
        let (token, via) = match std::mem::take(&mut op.owed[replica]) {
            Owed::Near(token) => (token, Via::Near),
            Owed::Far(token) => (token, Via::Far),
            Owed::Leaving(token) => (token, Via::Leaving),
            owed => return op.owed[replica] = owed,
        };
        let number = op.cohort.as_slice()[replica];
        self.slab.late.expect(token, op.hash, number, via);
        let link = self.links.get(number as usize);
        let has_lapsed = |link: &crate::link::Link<H::Port>| {
            link.view().is_some_and(|view| !view.lease_alive(now_ns))
        };
        if via == Via::Near && link.is_some_and(has_lapsed) {
            // Into the ring of one that has died, most likely. Who writes seldom would not
            // see that before the next time.
            self.suspect(op.hash);
        }
    }

    /// What a backend will not answer any more by that way.
    #[cold]
    pub(crate) fn lose_late(&mut self, number: usize, via: Via) {
        for hash in self.slab.late.take_lost(number as u32, via) {
            self.lacks(number as u32, hash);
        }
        if via == Via::Near {
            self.lose_lasts(number);
        }
    }

    /// Takes what was answered to operations that are over.
    #[inline]
    pub(crate) fn take_refused(&mut self) {
        while let Some((number, hash)) = self.slab.late.next_refused() {
            self.lacks(number, hash);
        }
        while let Some(last) = self.slab.lasts.pop() {
            self.take_last(last);
        }
    }

    /// A third copy that another process was to hand on. One that it has refused is not given up:
    /// it goes by a call.
    #[cold]
    fn take_last(&mut self, Last { token, at, came }: Last) {
        let Some(op) = self.slab.get_mut(at) else {
            return;
        };
        let owed = op.owed.iter().position(|owed| *owed == Owed::Last(token));
        let Some(replica) = owed else {
            return;
        };
        op.owed[replica] = Owed::Nothing;
        let (number, hash) = (op.cohort.as_slice()[replica], op.hash);
        let is_known = op.topology == self.topology_count;
        let link = self.links.get_mut(number as usize).filter(|_| is_known);
        match (came, link) {
            (Came::Taken, _) => {}
            (Came::NotSent, Some(link)) => {
                // Where nobody can be called, that queue is given up.
                let _ = link.far(&mut self.host, &self.topology);
                let now_ns = self.host.monotonic_ns();
                wait_for_room(link, Way::Far, at, op, replica, Owed::Nothing, now_ns);
                return self.send_blocked(number as usize, Way::Far);
            }
            (Came::Refused, Some(_)) => self.lacks(number, hash),
            (Came::Refused | Came::NotSent, None) => {
                let hash = self.topology.hash(&op.key);
                self.suspect(hash);
            }
        }
        self.end_of_room(at);
    }

    /// Of what third copies came, which another process was to hand on, nobody will say.
    #[cold]
    fn lose_lasts(&mut self, number: usize) {
        let mut lost = Vec::new();
        for (at, op) in self.slab.all() {
            for (of, owed) in op.cohort.as_slice().iter().zip(&op.owed) {
                if let Owed::Last(token) = *owed
                    && *of as usize == number
                {
                    let came = Came::Refused;
                    lost.push(Last { token, at, came });
                }
            }
        }
        lost.into_iter().for_each(|last| self.take_last(last));
    }

    /// What backends have missed that are back.
    #[cold]
    pub(crate) fn take_missed(&mut self, now_ns: u64) {
        for number in 0..self.links.len() {
            while self.suspects.has_room()
                && let Some(hash) = self.links[number].missed()
                && self.votes(number, hash, now_ns)
            {
                self.suspects.add(hash);
                self.links[number].forget_missed();
            }
        }
        self.tell_suspects(now_ns);
    }

    /// Whether a backend is there and, as far as is seen here, votes on this key: one that
    /// recovers learns of it from the others, or can be repaired afterwards only.
    fn votes(&self, number: usize, hash: KeyHash, now_ns: u64) -> bool {
        let link = &self.links[number];
        let cohort = self.topology.cohort(hash);
        let place = cohort
            .as_slice()
            .iter()
            .position(|of| *of as usize == number);
        match (link.view(), place) {
            _ if link.is_down() => false,
            (Some(view), Some(place)) => {
                let vote = view.index_vote(place, hash);
                let is_recovering =
                    matches!(vote, trefoil_client_core::vote::IndexVote::Recovering);
                !is_recovering && link.stands(now_ns)
            }
            _ => true,
        }
    }

    /// Keys stand elsewhere: what is open is answered by nobody, and what the replicas have
    /// made of it moves with them.
    #[cold]
    pub(crate) fn suspect_all_open(&mut self) {
        for hash in self.slab.late.take_all() {
            self.suspects.add(hash);
        }
        for link in &mut self.links {
            while let Some(hash) = link.missed() {
                self.suspects.add(hash);
                link.forget_missed();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_is_kept_once_and_no_more_than_there_is_room_for() {
        let hash = |place| KeyHash { place, tag: 1 };
        let mut suspects = Suspects::default();
        assert!(!suspects.is_due(5));
        assert_eq!(suspects.due_ns(), u64::MAX);
        suspects.next_ns = 7;
        for place in 0..1000 {
            suspects.add(hash(place));
            suspects.add(hash(place));
        }
        assert_eq!(suspects.keys.len(), COUNT_MAX);
        assert_eq!(suspects.keys[..2], [hash(0), hash(1)]);
        assert_eq!(suspects.due_ns(), 7);
        assert!(!suspects.is_due(6) && suspects.is_due(7));
    }
}
