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
use crate::version::AssignmentVersion;
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
        (heard + self.own).max(self.since + self.former)
    }

    /// Whether everything that was granted before has ended, and every member
    /// has had the time of a whole lease to be heard.
    pub fn settled(&self, now: Duration) -> bool {
        now >= self.since + self.former.max(self.own)
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
        self.since += gap;
    }
}

/// What servers tell a leader whose store has nothing.
///
/// It may go on by itself if the store belongs to one process at one address,
/// and everybody who remembers something had his last lease from that address:
/// then whoever granted it is dead, for two processes cannot listen there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Forgotten {
    seen: Option<AssignmentVersion>,
    map: Option<Assignment>,
    elsewhere: bool,
}

/// What to do about a store that has nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// Nobody remembers anything: the first assignment may be dealt out.
    Nothing,
    /// Leases may be in force, and servers may still come.
    Wait,
    /// Go on from this map, or from a new deal if nobody has sent one, under a
    /// new incarnation.
    GoOn(Option<Assignment>),
    /// Somebody has his lease from elsewhere, where another leader may be
    /// alive: a person has to say that it is not.
    ByHand,
}

impl Forgotten {
    /// A server goes by this version, and has sent the map if it was asked to.
    /// `granted_here`: its last lease was granted at this address.
    pub fn hear(
        &mut self,
        known: AssignmentVersion,
        map: Option<Assignment>,
        granted_here: bool,
    ) {
        self.seen = self.seen.max(Some(known));
        self.elsewhere |= !granted_here;
        let had = self.map.as_ref().map(Assignment::version);
        if let Some(map) = map.filter(|map| Some(map.version()) > had) {
            self.map = Some(map);
        }
    }

    /// What to do now.
    pub fn recovery(&self, now: Duration, leases: &LeaseTerms) -> Recovery {
        match self.seen {
            _ if !leases.settled(now) => Recovery::Wait,
            None => Recovery::Nothing,
            Some(_) if self.elsewhere => Recovery::ByHand,
            Some(_) => Recovery::GoOn(self.map.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::ServerId;

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

    fn map(generation: u64) -> Assignment {
        let version = AssignmentVersion {
            incarnation: 1,
            generation,
        };
        Assignment::even(version, &[ServerId(1)], 2, 1)
    }

    #[test]
    fn a_store_that_has_forgotten_goes_on_by_the_newest_map_after_all_leases() {
        let mut leases = LeaseTerms::new(s(1), s(0), None);
        let mut forgotten = Forgotten::default();
        assert_eq!(forgotten.recovery(s(0), &leases), Recovery::Wait);
        assert_eq!(forgotten.recovery(s(1), &leases), Recovery::Nothing);
        leases.heard_of(s(5));
        forgotten.hear(map(7).version(), Some(map(7)), true);
        forgotten.hear(map(9).version(), None, true);
        forgotten.hear(map(8).version(), Some(map(8)), true);
        forgotten.hear(map(7).version(), Some(map(7)), true);
        assert_eq!(forgotten.recovery(s(4), &leases), Recovery::Wait);
        assert_eq!(
            forgotten.recovery(s(5), &leases),
            Recovery::GoOn(Some(map(8)))
        );
        forgotten.hear(map(9).version(), Some(map(9)), false);
        assert_eq!(forgotten.recovery(s(5), &leases), Recovery::ByHand);
    }
}
