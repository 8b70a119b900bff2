//! Why something was refused or did not work.

use trefoil_sharder::coordination::StoreError;
use trefoil_sharder::{AssignmentVersion, ServerId};

/// What an assigner answers instead of doing what it was asked to.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Somebody else leads, or nobody does for the moment.
    #[error("this assigner does not lead{}", leader(.address.as_deref()))]
    NotLeading {
        /// Who does, if that is known.
        address: Option<String>,
    },
    /// The member's lease has ended and its slices were given to others: what
    /// it still holds is out of date. It may join again under another id.
    #[error("the lease has ended: drop what is held and join again as a new server")]
    Expired,
    /// The assigner does not know the member, and knows too little to say that
    /// its lease has ended: it is to register again.
    #[error("the assigner does not know this member: register again")]
    Unknown,
    /// Another life of the server has registered at the same address.
    #[error("{by} has registered at the same address: this one is a former life of it")]
    Superseded {
        /// The new one.
        by: ServerId,
    },
    /// The id belongs to another process, which is alive.
    #[error("the id is in use by the server at {address}: choose another one")]
    IdInUse {
        /// Where that one is.
        address: String,
    },
    /// The asker knows something newer than the store.
    #[error("{}", StoreError::Behind { store: *.store, seen: *.seen })]
    Behind {
        /// What the store has.
        store: Option<AssignmentVersion>,
        /// What was seen.
        seen: AssignmentVersion,
    },
    /// The assigner serves certain corpora, and this one is not among them.
    #[error("there is no corpus of this name here; there are: {known}")]
    UnknownCorpus {
        /// Those that there are.
        known: String,
    },
    /// The request makes no sense.
    #[error("{0}")]
    Invalid(String),
    /// The coordination store cannot be reached or fails.
    #[error("{0}")]
    Store(String),
}

fn leader(address: Option<&str>) -> String {
    address.map_or_else(
        || ", and nobody else is known to".to_owned(),
        |address| format!("; the one at {address} does"),
    )
}

impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Behind { store, seen } => Refusal::Behind { store, seen },
            StoreError::NotLeader { .. } => Refusal::NotLeading { address: None },
            other => Refusal::Store(other.to_string()),
        }
    }
}

/// Why joining, opening or steering did not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoordinationError {
    /// No address of an assigner or a store.
    #[error("\"{address}\" is no {what}: {reason}")]
    Address {
        /// What was given.
        address: String,
        /// What it should have been.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The assigner said no.
    #[error("the assigner refuses corpus \"{corpus}\": {refusal}")]
    Refused {
        /// Of which corpus.
        corpus: String,
        /// Why.
        refusal: Refusal,
    },
    /// No assigner could be reached in time.
    #[error("no assigner answers at {addresses}: {reason}")]
    Unreachable {
        /// Where it was tried.
        addresses: String,
        /// What came of the last attempt.
        reason: String,
    },
    /// The store could not be opened.
    #[error("the coordination store {store} cannot be used: {reason}")]
    Store {
        /// Which.
        store: String,
        /// Why not.
        reason: String,
    },
    /// The assigner cannot work as it was configured.
    #[error("the assigner cannot be configured like this: {what}: {reason}")]
    Option {
        /// Which option.
        what: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The service could not listen.
    #[error("cannot listen at {address}: {reason}")]
    Listen {
        /// Where.
        address: String,
        /// Why not.
        reason: String,
    },
}
