//! Why a call did not come about.

use tonic::Status;
use trefoil_sharder::{AssignmentVersion, KeyPoint};

/// Why there is no server for a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Nobody has joined yet.
    #[error("no server has joined corpus \"{corpus}\" yet")]
    Unassigned {
        /// The corpus.
        corpus: String,
    },
    /// Those who have the key, by the newest assignment, are no members.
    #[error("nobody serves key point {point} for the moment ({version})")]
    Unserved {
        /// Where the key lies.
        point: KeyPoint,
        /// By which assignment.
        version: AssignmentVersion,
    },
}

/// Why a call had no answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CallError {
    /// There is nobody to ask.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// The server answers with an error of its own.
    #[error("{address} answers {:?}: {}", .status.code(), .status.message())]
    Status {
        /// Which server.
        address: String,
        /// The answer.
        status: Status,
    },
    /// The request was redirected a second time: the map was changing faster
    /// than it was learned. Nothing was done.
    #[error("{address} redirects a request that was redirected to it: try again")]
    RedirectedTwice {
        /// Which server.
        address: String,
    },
}

impl CallError {
    /// The server's answer, where there was one.
    pub fn status(&self) -> Option<&Status> {
        match self {
            CallError::Status { status, .. } => Some(status),
            CallError::Route(_) | CallError::RedirectedTwice { .. } => None,
        }
    }
}

impl From<CallError> for Status {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Status { status, .. } => status,
            other => Status::unavailable(other.to_string()),
        }
    }
}
