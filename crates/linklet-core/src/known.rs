//! Which assignments this server knows of, and which the others do.

use crate::effect::Effect;
use crate::outbox::Outbox;
use std::collections::BTreeMap;
use std::time::Duration;
use trefoil_sharder::{Assignment, AssignmentVersion, KnownAssignment, Learned, ServerId};

/// The map that this server goes by, and what it heard of the maps of others. It tells the
/// [`Outbox`] of a newer one that is to be fetched, and touches no other part.
///
/// * The map only gets newer.
/// * Nothing is kept of who is dead for ever ([`Known::forget`]).
#[derive(Debug)]
pub(crate) struct Known {
    map: KnownAssignment,
    /// This server was among the living once.
    joined: bool,
    /// A newer assignment that somebody goes by, and when it is asked for again.
    learn: Option<(AssignmentVersion, Duration)>,
    /// The newest assignment that each has claimed by.
    claimed_by: BTreeMap<ServerId, AssignmentVersion>,
    /// The newest assignment by which each is known to have lived. An older one
    /// without it is no news of its death.
    lived: BTreeMap<ServerId, AssignmentVersion>,
    /// What each knew of when it last answered a claim of this server's, or said it since.
    answered: BTreeMap<ServerId, Option<AssignmentVersion>>,
    /// What each was told that this server knows of: its side of `answered`.
    told: BTreeMap<ServerId, Option<AssignmentVersion>>,
}

impl Known {
    pub(crate) fn nothing() -> Self {
        Known {
            map: KnownAssignment::none(),
            joined: false,
            learn: None,
            claimed_by: BTreeMap::new(),
            lived: BTreeMap::new(),
            answered: BTreeMap::new(),
            told: BTreeMap::new(),
        }
    }

    pub(crate) fn version(&self) -> Option<AssignmentVersion> {
        self.map.version()
    }

    pub(crate) fn map(&self) -> Option<&Assignment> {
        self.map.current()
    }

    pub(crate) fn offer(&mut self, assignment: Assignment) -> Learned {
        self.map.offer(assignment)
    }

    /// A list of the living has this server, or not; whether it is dead by that.
    pub(crate) fn is_left_out(&mut self, present: bool) -> bool {
        let left_out = self.joined && !present;
        self.joined |= present;
        left_out
    }

    /// Somebody goes by an assignment that may be newer.
    pub(crate) fn hear_version(
        &mut self,
        now: Duration,
        every: Duration,
        version: AssignmentVersion,
        outbox: &mut Outbox,
    ) {
        if self.map.version() >= Some(version)
            || self.learn.is_some_and(|(wanted, _)| wanted >= version)
        {
            return;
        }
        self.learn = Some((version, now + every));
        outbox.tell(Effect::Learn(version));
    }

    /// An assignment was learned: older ones are not asked for any more.
    pub(crate) fn note_learned(&mut self, version: AssignmentVersion) {
        if self.learn.is_some_and(|(wanted, _)| wanted <= version) {
            self.learn = None;
        }
    }

    /// Asks once more for an assignment that has not come.
    pub(crate) fn ask_again(&mut self, now: Duration, every: Duration, outbox: &mut Outbox) {
        if let Some((version, at)) = self.learn
            && now >= at
        {
            self.learn = Some((version, now + every));
            outbox.tell(Effect::Learn(version));
        }
    }

    /// When `ask_again` has something to do.
    pub(crate) fn next_tick(&self) -> Option<Duration> {
        self.learn.map(|(_, at)| at)
    }

    /// The newest assignment that is known or has been heard of.
    pub(crate) fn newest_heard(&self) -> Option<AssignmentVersion> {
        self.version().max(self.learn.map(|(version, _)| version))
    }

    /// A server that is alive has claimed by this assignment.
    pub(crate) fn note_claim(&mut self, server: ServerId, version: AssignmentVersion) {
        let newest = self.claimed_by.entry(server).or_insert(version);
        *newest = version.max(*newest);
    }

    /// The newest assignment that is known here, or that a server has claimed by.
    pub(crate) fn newest_of(&self, server: ServerId) -> Option<AssignmentVersion> {
        self.claimed_by.get(&server).copied().max(self.version())
    }

    /// A server, which is another one and not dead for ever, has lived by this assignment.
    pub(crate) fn note_lived(&mut self, server: ServerId, version: AssignmentVersion) {
        let lived = self.lived.entry(server).or_insert(version);
        *lived = version.max(*lived);
    }

    /// Whether a server has lived by a newer assignment.
    pub(crate) fn lived_after(&self, server: ServerId, version: AssignmentVersion) -> bool {
        self.lived
            .get(&server)
            .is_some_and(|&lived| lived > version)
    }

    /// Who has said by which assignment he lived.
    pub(crate) fn have_lived(&self) -> impl Iterator<Item = ServerId> {
        self.lived.keys().copied()
    }

    /// A server has said of which assignment it knows.
    pub(crate) fn note_answer(&mut self, server: ServerId, newest: Option<AssignmentVersion>) {
        self.answered.insert(server, newest);
    }

    /// What a server has said that it knows of, if it has said so.
    pub(crate) fn answer_of(&self, server: ServerId) -> Option<Option<AssignmentVersion>> {
        self.answered.get(&server).copied()
    }

    /// A server is told of which assignment this one knows.
    pub(crate) fn note_told(&mut self, server: ServerId, newest: Option<AssignmentVersion>) {
        self.told.insert(server, newest);
    }

    /// What a server was told that this one knows of.
    pub(crate) fn told(&self, server: ServerId) -> Option<AssignmentVersion> {
        self.told.get(&server).copied().flatten()
    }

    /// A server is dead for ever.
    pub(crate) fn forget(&mut self, server: ServerId) {
        self.claimed_by.remove(&server);
        self.lived.remove(&server);
        self.answered.remove(&server);
        self.told.remove(&server);
    }
}
