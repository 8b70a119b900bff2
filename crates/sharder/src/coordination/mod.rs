//! Where the assignment in force is kept, and who may change it.
//!
//! An assigner's requests are values, and so are a store's answers; whoever
//! drives both hands them on. So the same assigner works over a store inside
//! the process, over one across a network, and over one in a simulation that
//! loses answers. Implemented here: [`EmbeddedStore`]. The crate
//! `coordination` keeps the same promises over etcd, whose transactions and
//! leases offer just these requests; it also follows what changes.
//!
//! What every store promises:
//!
//! 1. A swap is applied iff the version in force is the expected one, the next
//!    one is newer, and the term is that of the present leader, all three at
//!    one moment.
//! 2. Terms only grow; at any moment at most one candidate holds the present
//!    one. A leader's clock is not trusted with this: a swap of a former term
//!    is refused, however sure of itself the former leader is.
//!
//! What a leader owes to the leases of members: [`LeaseTerms`].

mod embedded;
mod leases;

pub use embedded::EmbeddedStore;
pub use leases::{Forgotten, LeaseTerms, Recovery, Told};

use crate::assignment::Assignment;
use crate::version::AssignmentVersion;
use std::fmt;
use std::time::Duration;

/// Somebody who wants to be the assigner: one life of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CandidateId(pub u64);

impl fmt::Display for CandidateId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "candidate {}", self.0)
    }
}

/// What can be asked of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// The assignment in force.
    Load,
    /// Puts another assignment in force.
    Swap {
        /// The asker's term.
        term: u64,
        /// What has to be in force.
        expected: Option<AssignmentVersion>,
        /// What takes its place.
        next: Assignment,
    },
    /// Asks to lead, or to lead on.
    Campaign {
        /// Who.
        candidate: CandidateId,
        /// For how long from when the store takes the request.
        lease: Duration,
    },
    /// Stops leading, so that somebody else need not wait for the lease.
    Resign {
        /// Who.
        candidate: CandidateId,
        /// In which term.
        term: u64,
    },
}

/// What a store answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// To `Load`; `None` if there is none yet.
    Loaded(Option<Assignment>),
    /// To `Swap`: it is in force.
    Swapped(AssignmentVersion),
    /// To `Campaign`.
    Elected {
        /// The term; the same as before if the candidate led already.
        term: u64,
    },
    /// To `Campaign`: somebody else leads.
    Following {
        /// Who.
        leader: CandidateId,
        /// In which term.
        term: u64,
    },
    /// To `Resign`.
    Resigned,
}

/// Why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// Something else is in force than was expected.
    #[error("expected {} in force, found {}: load it again", or_none(*expected), or_none(*found))]
    Conflict {
        /// What the asker expected.
        expected: Option<AssignmentVersion>,
        /// What there is.
        found: Option<AssignmentVersion>,
    },
    /// Versions only grow.
    #[error("{next} is not newer than {current}")]
    NotNewer {
        /// In force.
        current: AssignmentVersion,
        /// Offered.
        next: AssignmentVersion,
    },
    /// The asker does not lead, or no longer.
    #[error(
        "term {term} is not that of the present leader (the last term was {last}): campaign again"
    )]
    NotLeader {
        /// The asker's.
        term: u64,
        /// The store's.
        last: u64,
    },
    /// The asker knows something newer than the store: the store has lost what
    /// it had acknowledged, or is a copy that lags.
    #[error(
        "the store has {} although {seen} was in use: it lags or was restored from an old copy; \
         if it will not catch up, `trefoil assigner begin-incarnation` goes on from what it has",
        or_none(*store)
    )]
    Behind {
        /// What the store has.
        store: Option<AssignmentVersion>,
        /// What was seen.
        seen: AssignmentVersion,
    },
    /// The store holds something that another release, or somebody else, has
    /// written.
    #[error("the coordination store holds {0}")]
    Unreadable(String),
    /// The store cannot be reached.
    #[error("the coordination store cannot be reached: {0}")]
    Unavailable(String),
}

pub(crate) fn or_none(version: Option<AssignmentVersion>) -> String {
    version.map_or_else(|| "none".to_owned(), |version| version.to_string())
}
