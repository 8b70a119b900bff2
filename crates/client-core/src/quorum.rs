//! What votes and acknowledgements decide: pure functions. Their decision
//! tables are text cases in `tests/all/decisions/`.

use crate::mutants::{self, Mutant};
use trefoil_layout::Version;
use trefoil_layout::op::Rejection;

/// A replica's vote in a GET.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vote {
    /// Not known yet; it may still become anything.
    Open,
    /// The key is present.
    Present {
        /// At this version.
        version: Version,
        /// In this epoch of the replica.
        epoch: u32,
    },
    /// The key is absent.
    Absent {
        /// In this epoch of the replica.
        epoch: u32,
    },
    /// The replica gives no vote: it is down, or recovering.
    None,
}

/// What a GET's votes decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VoteDecision {
    /// The open votes may still decide it.
    Open,
    /// Enough replicas agree on a version, in one epoch (rule 5).
    Present {
        /// The agreed version.
        version: Version,
        /// The replicas that agree, as a bit set: the data must come from one
        /// of them.
        members: u8,
    },
    /// Enough replicas know no value. Their epochs do not matter: a miss needs
    /// no rule.
    Absent,
    /// No quorum, whatever the open votes become.
    Inquorate,
}

/// Judges votes; `quorum` of them must agree.
#[inline(always)]
pub fn decide_votes(votes: &[Vote], quorum: usize) -> VoteDecision {
    let open = votes.iter().filter(|vote| **vote == Vote::Open).count();
    let absent = votes
        .iter()
        .filter(|vote| matches!(vote, Vote::Absent { .. }))
        .count();
    if absent >= quorum {
        return VoteDecision::Absent;
    }
    let mut largest = absent;
    for vote in votes {
        let Vote::Present { version, .. } = *vote else {
            continue;
        };
        let members = agreeing(votes, vote);
        let count = members.count_ones() as usize;
        if count >= quorum {
            return VoteDecision::Present { version, members };
        }
        largest = largest.max(count);
    }
    if largest + open >= quorum {
        VoteDecision::Open
    } else {
        VoteDecision::Inquorate
    }
}

/// The replicas that vote exactly as `wanted` does.
#[inline(always)]
fn agreeing(votes: &[Vote], wanted: &Vote) -> u8 {
    let mut members = 0;
    for (replica, vote) in votes.iter().enumerate() {
        if vote == wanted
            || (mutants::is_on(Mutant::VotesAcrossEpochs) && same_version(vote, wanted))
        {
            members |= 1 << replica;
        }
    }
    members
}

fn same_version(a: &Vote, b: &Vote) -> bool {
    matches!((a, b), (Vote::Present { version: a, .. }, Vote::Present { version: b, .. }) if a == b)
}

/// Whether two votes name one version, in different epochs.
pub(crate) fn differ_by_epoch(votes: &[Vote]) -> bool {
    let mut pairs = votes
        .iter()
        .enumerate()
        .flat_map(|(at, a)| votes[at + 1..].iter().map(move |b| (a, b)));
    pairs.any(|(a, b)| a != b && same_version(a, b))
}

/// Where a SET or ERASE stands at one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckState {
    /// Sent, or about to be; no answer yet.
    Open,
    /// It holds there.
    Applied {
        /// In this epoch of the replica.
        epoch: u32,
    },
    /// Something at least as new is known there.
    Superseded {
        /// The replica's bound.
        bound: Version,
    },
    /// Refused for good; nothing was done.
    Rejected(Rejection),
    /// Sent, and the answer will not come: unknown.
    Lost,
    /// Not received, or not taken in at present; nothing was done.
    Down,
    /// Not sent: it is known that it would not be taken here ([`crate::fill`]).
    Unwilling,
}

/// What acknowledgements decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AckDecision {
    /// The open answers may still decide it.
    Open,
    /// A quorum applied it, in one epoch (rule 4).
    Stored,
    /// Enough replicas applied it, but not in one epoch: send the same
    /// version again to those of the older epochs.
    AskAgain {
        /// The newest epoch among them.
        epoch: u32,
    },
    /// No quorum at this version: something newer is known.
    Superseded {
        /// The highest bound that was named.
        bound: Version,
    },
    /// No quorum, because replicas refuse it for good.
    Rejected(Rejection),
    /// No quorum, because replicas do not answer; the same version may be
    /// sent to them again.
    Unreachable,
}

/// Judges the answers to a SET or ERASE.
pub fn decide_acks(acks: &[AckState], quorum: usize) -> AckDecision {
    let count = |wanted: fn(&AckState) -> bool| acks.iter().filter(|ack| wanted(ack)).count();
    let (together, newest) = applied_together(acks.iter().map(|ack| match ack {
        AckState::Applied { epoch } => Some(*epoch),
        _ => None,
    }));
    if together >= quorum {
        return AckDecision::Stored;
    }
    let open = count(|ack| matches!(ack, AckState::Open));
    if together + open >= quorum {
        return AckDecision::Open;
    }
    let bounds = acks.iter().filter_map(|ack| match ack {
        AckState::Superseded { bound } => Some(*bound),
        _ => None,
    });
    let bound = bounds.max();
    let applied = count(|ack| matches!(ack, AckState::Applied { .. }));
    if applied >= quorum {
        // One that came back empty stays in an epoch of its own: who has a peer in
        // the other's epoch gets on only above that peer's bound.
        return match bound {
            Some(bound) => AckDecision::Superseded { bound },
            None => AckDecision::AskAgain { epoch: newest },
        };
    }
    if applied + open >= quorum {
        return AckDecision::Open;
    }
    if let Some(bound) = bound {
        return AckDecision::Superseded { bound };
    }
    let silent = count(|ack| matches!(ack, AckState::Lost | AckState::Down));
    let rejection = acks.iter().find_map(|ack| match ack {
        AckState::Rejected(rejection) => Some(*rejection),
        _ => None,
    });
    match rejection {
        Some(rejection) if applied + open + silent < quorum => AckDecision::Rejected(rejection),
        // One more refusal settles it: not worth a repeated message.
        Some(_) if open > 0 && applied + silent < quorum => AckDecision::Open,
        _ => AckDecision::Unreachable,
    }
}

/// Where a CAS stands at one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CasState {
    /// Not sent yet.
    Unsent,
    /// Sent; no answer yet.
    Open,
    /// It holds there.
    Applied {
        /// In this epoch of the replica.
        epoch: u32,
    },
    /// What was expected is not there.
    Refused {
        /// What is there instead.
        present: Option<Version>,
    },
    /// Refused for another reason; nothing was done.
    Rejected(Rejection),
    /// Sent, and the answer will not come: unknown for ever (rule 14).
    Lost,
    /// Certainly not received. It is sent there again only where the others do not decide it.
    Down,
    /// Nothing was done: it stands still, serves another configuration or is another
    /// process in a moment, and may be asked again then.
    PutOff,
    /// The same of one that may hold it from before: the process that it was sent to has gone
    /// without an answer, and the one in its place is to be asked.
    Awaited,
}

impl CasState {
    /// Whether it holds here, as far as is known.
    pub const fn is_applied(&self) -> bool {
        matches!(self, CasState::Applied { .. })
    }

    /// Whether it holds here, or may, or may yet.
    pub(crate) const fn may_be_held(&self) -> bool {
        matches!(
            self,
            CasState::Applied { .. } | CasState::Lost | CasState::Awaited
        )
    }

    /// Whether the CAS certainly neither holds here nor ever will.
    const fn is_refusal(&self) -> bool {
        matches!(
            self,
            CasState::Refused { .. } | CasState::Rejected(_) | CasState::Down
        )
    }
}

/// What a CAS's answers decide.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CasDecision {
    /// The previous answer is still open.
    Open,
    /// Send it to this replica (its place in the order of asking).
    Ask(usize),
    /// One holds it: send it to those that have put it off, in a moment. Giving it up would
    /// take away one of two copies of what is expected.
    Later,
    /// A quorum applied it, in one epoch.
    Stored,
    /// So many replicas refused it that it can never be seen.
    Exists {
        /// The highest version that a replica named as present instead.
        present: Option<Version>,
    },
    /// As `Exists`, but no replica compared: they refused it outright.
    Rejected(Rejection),
    /// As `Exists`, but it reached no replica that could compare.
    Unreached,
    /// Neither: it may or may not be seen.
    Indeterminate,
}

/// Judges the answers to a CAS, in the order in which the replicas are asked.
pub fn decide_cas(states: &[CasState], quorum: usize) -> CasDecision {
    let (together, _) = applied_together(states.iter().map(|state| match state {
        CasState::Applied { epoch } => Some(*epoch),
        _ => None,
    }));
    let enough = if mutants::is_on(Mutant::OneApplicationStores) {
        1
    } else {
        quorum
    };
    if together >= enough {
        return CasDecision::Stored;
    }
    let count = |wanted: fn(&CasState) -> bool| states.iter().filter(|s| wanted(s)).count();
    // Where nobody holds it, those that have put it off have left nothing: as if refused.
    let put_off = count(|state| *state == CasState::PutOff);
    let awaited = count(|state| *state == CasState::Awaited);
    let is_held = count(CasState::is_applied) + awaited > 0;
    let refusals = count(CasState::is_refusal) + if is_held { 0 } else { put_off };
    // Two of three: the third alone is no quorum.
    let fatal = if mutants::is_on(Mutant::OneRefusalFails) {
        1
    } else {
        states.len() - quorum + 1
    };
    if refusals >= fatal {
        return refused(states);
    }
    if states.contains(&CasState::Open) {
        return CasDecision::Open;
    }
    let unsent = count(|state| *state == CasState::Unsent);
    if together + unsent >= enough
        && let Some(next) = states.iter().position(|s| *s == CasState::Unsent)
    {
        return CasDecision::Ask(next);
    }
    if is_held && together + awaited + put_off >= enough {
        return CasDecision::Later;
    }
    // Whoever is left could not make it a success that is known, but could be
    // what splits the cohort between two contenders: nobody else is asked.
    let held = count(CasState::may_be_held);
    if held < quorum {
        return refused(states);
    }
    CasDecision::Indeterminate
}

fn refused(states: &[CasState]) -> CasDecision {
    let mut compared = false;
    let mut highest = None;
    let mut rejected = None;
    for state in states {
        match state {
            CasState::Refused { present } => {
                compared = true;
                highest = highest.max(*present);
            }
            CasState::Rejected(rejection) => rejected = Some(*rejection),
            CasState::PutOff => rejected = Some(Rejection::UnknownConfig),
            _ => {}
        }
    }
    match rejected {
        _ if compared => CasDecision::Exists { present: highest },
        Some(rejection) => CasDecision::Rejected(rejection),
        None => CasDecision::Unreached,
    }
}

/// How many applications stand in one epoch at most, and the newest epoch.
fn applied_together(epochs: impl Iterator<Item = Option<u32>> + Clone) -> (usize, u32) {
    let applied = epochs.flatten();
    let newest = applied.clone().max().unwrap_or(0);
    if mutants::is_on(Mutant::AcksAcrossEpochs) {
        return (applied.count(), newest);
    }
    let together = applied
        .clone()
        .map(|epoch| applied.clone().filter(|other| *other == epoch).count())
        .max();
    (together.unwrap_or(0), newest)
}
