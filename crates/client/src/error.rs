//! What can go wrong, in the caller's words.

use std::sync::Arc;
use trefoil_cell::{AddressError, ConfigStoreError, WireError};
use trefoil_client_core::get::GetFailure;
use trefoil_client_core::mode::Mode;
use trefoil_layout::Version;
use trefoil_layout::op::Rejection;
use trefoil_tls::{CertError, HandshakeError};

/// Why no client of a cell could be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The address cannot be understood.
    #[error("cannot use the cell address \"{address}\": {source}")]
    Address {
        /// As it was given.
        address: String,
        /// What is wrong with it.
        source: AddressError,
    },
    /// The directory's configuration cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigStoreError),
    /// None of the servers answered.
    #[error(
        "cannot reach the cell at {address}: {reason}{}",
        if *is_refusal { "" } else { "; is it up?" }
    )]
    Unreachable {
        /// Servers that were tried.
        address: String,
        /// The last one's error.
        reason: String,
        /// It did answer, and does not serve this user.
        is_refusal: bool,
    },
    /// This side's certificates cannot be used.
    #[error(transparent)]
    Certificates(#[from] CertError),
    /// No TLS connection could be made.
    #[error("cannot reach the cell at {address}: {source}")]
    Handshake {
        /// Servers that were tried.
        address: String,
        /// The last one's error.
        source: HandshakeError,
    },
    /// Something listens there that speaks no gRPC.
    #[error(
        "{address} does not answer as a cell does ({reason}): give the RPC address of the cell's server (its --listen, port 7411 unless told otherwise), not that of its memcached, Redis or metrics clients"
    )]
    NoCell {
        /// The server.
        address: String,
        /// What was wrong with its answer.
        reason: String,
    },
    /// A server's configuration makes no sense to this release.
    #[error("the cell at {address} sent a configuration that this release cannot use: {source}")]
    Wire {
        /// The server.
        address: String,
        /// What is wrong with it.
        source: WireError,
    },
    /// A build without etcd.
    #[error(
        "{0}: this program was built without cells in etcd: build trefoil-client with its feature `etcd`, or name a server (host:port) or a cell's directory"
    )]
    EtcdLeftOut(String),
    /// No runtime for RPC could be started.
    #[error("cannot start the RPC runtime: {0}")]
    Runtime(std::io::Error),
    /// What befell one look at the configuration, for several threads that had waited for it.
    #[error(transparent)]
    Shared(Arc<ConnectError>),
}

impl ConnectError {
    /// Whether nobody is there who could have answered: a cell that is starting
    /// looks like that.
    pub fn is_absence(&self) -> bool {
        match self {
            ConnectError::Address { source, .. } => {
                matches!(source, AddressError::NothingThere(_))
            }
            ConnectError::Config(error) => error.is_no_cell() || error.is_outage(),
            ConnectError::Unreachable { is_refusal, .. } => !is_refusal,
            // One that is ending closes connections before it answers, too.
            ConnectError::NoCell { .. } => true,
            ConnectError::Shared(error) => error.is_absence(),
            _ => false,
        }
    }
}

/// Why an operation has failed while a cell's backends are all away.
pub const UNREACHABLE: &str = "no backend of the cell can be reached";

/// Why an operation has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpError {
    /// Nothing can have been changed.
    #[error("{0}")]
    Failed(String),
    /// A replica refused it; nothing was changed.
    #[error("{0}")]
    Rejected(#[from] Rejection),
    /// A mutation may or may not have taken effect, now or later.
    #[error("the outcome is unknown: {0}")]
    Indeterminate(String),
    /// It was to be acknowledged before it is executed, and this cell does not do so;
    /// nothing was sent.
    #[error(transparent)]
    NotCommittable(#[from] NotCommittable),
}

/// Why nothing can be acknowledged before it is executed ([`Commit::Acknowledged`]).
///
/// [`Commit::Acknowledged`]: crate::Commit::Acknowledged
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NotCommittable {
    /// An immutable one.
    #[error("nobody writes to this cell: its mode is {0}")]
    Mode(Mode),
    /// It was not started with one.
    #[error("backend {0} has no queue: start the cell with `--queue`")]
    NoQueue(u32),
    /// Commits are written into shared memory, and it gives this user none.
    #[error("backend {0} shares no memory with this user's processes")]
    NotShared(u32),
}

impl From<GetFailure> for OpError {
    fn from(failure: GetFailure) -> Self {
        match failure {
            GetFailure::Rejected(rejection) => OpError::Rejected(rejection),
            GetFailure::GaveUp(why) => OpError::Failed(format!("no replica answered: {why}")),
        }
    }
}

/// How a mutation ended, if it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutated {
    /// It holds at a quorum.
    Stored {
        /// Its version: a later CAS expects this.
        version: Version,
    },
    /// It stands in the queue of the backend ([`Commit::Acknowledged`](crate::Commit)). The
    /// version that it gets is known when it is executed.
    Committed,
    /// Something newer is there (fills only: other mutations are retried above it).
    Superseded {
        /// The highest bound seen.
        bound: Version,
    },
    /// A CAS did not find what it expected.
    Exists {
        /// What a quorum holds instead; `None` for no value, and where no quorum
        /// agrees on one: read again.
        present: Option<Version>,
    },
}
