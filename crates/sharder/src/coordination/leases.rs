//! What whoever begins to lead has to respect: leases that others have granted.
//!
//! 1. *The store knows a length that no lease in force exceeds.* A leader has
//!    written the length of its own leases before it grants the first, unless
//!    the store has a longer one; it writes a shorter one only when everything
//!    that its predecessors granted has ended.
//! 2. Nobody is struck off before the longest lease that a predecessor may have
//!    granted has ended, whatever the length of the leader's own: assigners
//!    may be started with different ones.
//! 3. A store that has nothing has perhaps forgotten everything. Nothing is
//!    dealt out before the leases that may exist have ended, and servers that
//!    remember have had the time to say so ([`Forgotten`]).
//!
//! Time is an argument; nothing waits.

use crate::assignment::Assignment;
use crate::server::ServerId;
use crate::version::AssignmentVersion;
use std::collections::BTreeSet;
use std::time::Duration;

/// The leases of members in one term of a leader.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseTerms {
    /// What this leader grants.
    own: Duration,
    /// From when on it could hear every member; predecessors have granted
    /// nothing since.
    since: Duration,
    /// The longest that they may have granted until then.
    former: Duration,
    /// What the store says.
    recorded: Duration,
}

impl LeaseTerms {
    /// A leader that grants `own`, and found `recorded` in the store (nothing:
    /// whoever led before granted the same, or nobody did). Before it grants
    /// anything the store has to say [`LeaseTerms::recorded`].
    pub fn new(own: Duration, now: Duration, recorded: Option<Duration>) -> Self {
        let former = recorded.unwrap_or(own);
        LeaseTerms {
            own,
            since: now,
            former,
            recorded: former.max(own),
        }
    }

    /// The length of the leases that are granted.
    pub fn own(&self) -> Duration {
        self.own
    }

    /// What the store says, or has to say.
    pub fn recorded(&self) -> Duration {
        self.recorded
    }

    /// When a member that was last heard at `heard` can be struck off.
    pub fn ends(&self, heard: Duration) -> Duration {
        let own = heard.saturating_add(self.own);
        own.max(self.since.saturating_add(self.former))
    }

    /// Whether everything that was granted before has ended, and every member
    /// has had the time of a whole lease to be heard.
    pub fn settled(&self, now: Duration) -> bool {
        now >= self.since.saturating_add(self.former.max(self.own))
    }

    /// What the store may say from now on, if that is less than before.
    pub fn shorter(&self, now: Duration) -> Option<Duration> {
        (self.settled(now) && self.recorded > self.own).then_some(self.own)
    }

    /// The store says this now.
    pub fn record(&mut self, recorded: Duration) {
        self.recorded = recorded;
    }

    /// A member says that it was granted this before.
    pub fn heard_of(&mut self, former: Duration) {
        self.former = self.former.max(former);
    }

    /// The leader has stood still for so long: that was nobody's silence.
    pub fn stood_still(&mut self, gap: Duration) {
        self.since = self.since.saturating_add(gap);
    }
}

/// What servers tell a leader whose store has nothing.
///
/// It may go on by itself if the store belongs to one process at one address,
/// and everybody who remembers something had his last lease from that address:
/// then whoever granted it is dead, for two processes cannot listen there.
///
/// It goes on from the newest map that anybody knows, and only with the list of
/// who was a member then: whoever remembers something and is not on that list
/// was struck off, and must not come back with what it holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    seen: Option<AssignmentVersion>,
    told: Option<Told>,
    elsewhere: bool,
    remembering: BTreeSet<ServerId>,
}

/// What a server knows, whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The newest assignment that it was told.
    pub map: Assignment,
    /// Who was a member when that came into force, or later.
    pub members: BTreeSet<ServerId>,
}

/// What to do about a store that has nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Nobody remembers anything: the first assignment may be dealt out.
    Nothing,
    /// Leases may be in force, and servers may still come.
    Wait,
    /// Go on from this map under a new incarnation.
    GoOn {
        /// The newest.
        map: Assignment,
        /// Servers that come back, and were struck off before.
        struck_off: BTreeSet<ServerId>,
    },
    /// Somebody has his lease from elsewhere, where another leader may be
    /// alive; or nobody has sent the newest map. A person has to decide.
    ByHand,
}

impl Forgotten {
    /// This server goes by this version, and has sent what it knows if it was
    /// asked to. `granted_here`: its last lease was granted at this address.
    pub fn hear(
        &mut self,
        server: ServerId,
        known: AssignmentVersion,
        told: Option<Told>,
        granted_here: bool,
    ) {
        self.remembering.insert(server);
        self.seen = self.seen.max(Some(known));
        self.elsewhere |= !granted_here;
        let version = |told: &Told| told.map.version();
        let had = self.told.as_ref().map(version);
        if let Some(told) = told.filter(|told| Some(version(told)) > had) {
            self.seen = self.seen.max(Some(version(&told)));
            self.told = Some(told);
        }
    }

    /// What to do now.
    pub fn recovery(&self, now: Duration, leases: &LeaseTerms) -> Recovery {
        if !leases.settled(now) {
            return Recovery::Wait;
        }
        let Some(seen) = self.seen else {
            return Recovery::Nothing;
        };
        let newest = self.told.as_ref();
        match newest.filter(|told| told.map.version() == seen && !self.elsewhere) {
            None => Recovery::ByHand,
            Some(told) => Recovery::GoOn {
                map: told.map.clone(),
                struck_off: self
                    .remembering
                    .difference(&told.members)
                    .copied()
                    .collect(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_shorter_lease_waits_for_the_longer_ones_of_a_predecessor() {
        let mut terms = LeaseTerms::new(s(1), s(100), Some(s(10)));
        assert_eq!(terms.recorded(), s(10));
        assert_eq!(terms.ends(s(100)), s(110), "granted just before");
        assert_eq!(terms.ends(s(109)), s(110));
        assert_eq!(terms.ends(s(110)), s(111));
        assert!(!terms.settled(s(109)) && terms.settled(s(110)));
        assert_eq!(terms.shorter(s(109)), None);
        assert_eq!(terms.shorter(s(110)), Some(s(1)));
        terms.record(s(1));
        assert_eq!(terms.shorter(s(111)), None);
    }

    #[test]
    fn a_longer_lease_is_recorded_before_it_is_granted() {
        let terms = LeaseTerms::new(s(10), s(100), Some(s(1)));
        assert_eq!(terms.recorded(), s(10));
        assert_eq!(terms.ends(s(100)), s(110));
        assert!(!terms.settled(s(109)), "everybody gets a whole lease");
        assert_eq!(terms.shorter(s(200)), None);
    }

    #[test]
    fn what_stood_still_gives_everybody_the_time() {
        let mut terms = LeaseTerms::new(s(1), s(100), Some(s(10)));
        terms.stood_still(s(50));
        assert_eq!(terms.ends(s(100)), s(160));
    }

    /// Whoever stores or tells it is judged before; a leader that hears it all the same waits,
    /// and does not end.
    #[test]
    fn a_lease_that_never_ends_is_waited_for() {
        let mut terms = LeaseTerms::new(s(1), s(100), Some(Duration::MAX));
        terms.heard_of(Duration::MAX);
        assert_eq!(terms.ends(s(200)), Duration::MAX);
        assert!(!terms.settled(s(200)));
        terms.stood_still(Duration::MAX);
        assert_eq!(terms.ends(Duration::MAX), Duration::MAX);
    }

    fn map(generation: u64) -> Assignment {
        let version = AssignmentVersion {
            incarnation: 1,
            generation,
        };
        Assignment::even(version, &[ServerId(1)], 2, 1)
    }

    fn told(generation: u64) -> Option<Told> {
        Some(Told {
            map: map(generation),
            members: [ServerId(1), ServerId(2)].into(),
        })
    }

    #[test]
    fn a_store_that_has_forgotten_goes_on_by_the_newest_map_after_all_leases() {
        let mut leases = LeaseTerms::new(s(1), s(0), None);
        let mut forgotten = Forgotten::default();
        assert_eq!(forgotten.recovery(s(0), &leases), Recovery::Wait);
        assert_eq!(forgotten.recovery(s(1), &leases), Recovery::Nothing);
        leases.heard_of(s(5));
        forgotten.hear(ServerId(1), map(7).version(), told(7), true);
        forgotten.hear(ServerId(2), map(9).version(), None, true);
        assert_eq!(forgotten.recovery(s(4), &leases), Recovery::Wait);
        assert_eq!(
            forgotten.recovery(s(5), &leases),
            Recovery::ByHand,
            "nobody has sent the newest"
        );
        forgotten.hear(ServerId(2), map(9).version(), told(9), true);
        // It knows nothing of its having been struck off.
        forgotten.hear(ServerId(3), map(8).version(), told(8), true);
        let goes_on = Recovery::GoOn {
            map: map(9),
            struck_off: [ServerId(3)].into(),
        };
        assert_eq!(forgotten.recovery(s(5), &leases), goes_on);
        forgotten.hear(ServerId(1), map(9).version(), told(9), false);
        assert_eq!(forgotten.recovery(s(5), &leases), Recovery::ByHand);
    }
}
