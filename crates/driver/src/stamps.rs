//! What a miss leaves for a fill: see `trefoil_client_core::fill`.

use crate::driver::{Driver, Inline};
use crate::host::Host;
use crate::inline;
use crate::link::Link;
use trefoil_client_core::fill::{Stamps, index_is_vacant};
use trefoil_client_core::get::{GetOutcome, MissReason};
use trefoil_client_core::vote::IndexVote;
use trefoil_layout::{KeyHash, Version};

/// Looks at a bucket that is being written.
const LOOKS_MAX: usize = 4;

impl<H: Host> Driver<H> {
    /// What a miss that ended in place leaves for a fill.
    #[inline]
    pub fn missed(&self, inline: &Inline) -> Stamps {
        let absent = GetOutcome::Miss {
            reason: MissReason::Absent,
        };
        match inline.outcome == absent {
            true => self.stamps_unseen(inline.hash),
            false => self.stamps(inline.hash, inline.dead, |_| None),
        }
    }

    /// What a miss that has found nothing leaves for a fill.
    #[inline]
    pub fn stamps_unseen(&self, hash: KeyHash) -> Stamps {
        inline::stamps_unseen(&self.topology, hash, |_, number| {
            let link = self.links.get(number as usize)?;
            link.view().map(|view| &**view)
        })
    }

    /// Whether the replica at this place in the key's cohort says now that it holds
    /// nothing.
    pub(crate) fn is_vacant(&self, hash: KeyHash, place: usize) -> bool {
        let cohort = self.topology.cohort(hash);
        let number = cohort.as_slice().get(place).copied();
        let link = number.and_then(|number| self.links.get(number as usize));
        let Some(view) = link.and_then(Link::view) else {
            return false;
        };
        // As in `inline::stamp_of`.
        if view.is_pending(hash) {
            return false;
        }
        (0..LOOKS_MAX)
            .map(|_| view.index_vote(place, hash))
            .find(|vote| *vote != IndexVote::Unstable)
            .is_some_and(index_is_vacant)
    }

    /// Fetches what [`Driver::stamps_unseen`] will read.
    pub fn prefetch_stamps(&self, hash: KeyHash) {
        let cohort = self.topology.cohort(hash);
        for (place, number) in cohort.as_slice().iter().enumerate() {
            if let Some(view) = self.links.get(*number as usize).and_then(Link::view) {
                view.prefetch_stamp(place, hash);
            }
        }
    }

    /// What a miss of the key with this hash leaves for a fill: the stamps that this
    /// side can read, else those that answers brought. `dead` is what it has found
    /// expired or flushed, or zero.
    pub fn stamps(
        &self,
        hash: KeyHash,
        dead: Version,
        heard: impl Fn(usize) -> Option<u64>,
    ) -> Stamps {
        inline::stamps(&self.topology, hash, |place, number| {
            match self.links.get(number as usize).and_then(Link::view) {
                Some(view) => inline::stamp_of(view, place, hash, dead, || self.host.unix_ns()),
                None => heard(place),
            }
        })
    }
}
