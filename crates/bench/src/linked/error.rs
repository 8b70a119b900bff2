//! Why the linked store's benchmark has no result.

use std::io;

use crate::hosts::NetworkError;
use crate::peer::PeerError;
use crate::report::ReportError;

/// Why there is no result.
#[derive(Debug, thiserror::Error)]
pub enum LinkedBenchError {
    /// The example service is not built.
    #[error("{path} is missing: build it with `cargo build --release -p address-book`")]
    NoService {
        /// Where it was looked for.
        path: String,
    },
    /// memcached, redis, or figures of a process.
    #[error(transparent)]
    Peer(#[from] PeerError),
    /// A namespace.
    #[error(transparent)]
    Network(#[from] NetworkError),
    /// A server did not come up.
    #[error("{name} did not come up: {problem}")]
    NotReady {
        /// Which.
        name: String,
        /// What was seen.
        problem: String,
    },
    /// The callers' side.
    #[error("cannot {what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// A call that must not fail did.
    #[error("{variant}: {what}: {problem}")]
    Call {
        /// Which form of the service.
        variant: &'static str,
        /// What was asked.
        what: &'static str,
        /// Its answer.
        problem: String,
    },
    /// A form that answered something else.
    #[error("{variant} answered with {found} contacts where {expected} are right, or other ones")]
    Wrong {
        /// Which form of the service.
        variant: &'static str,
        /// Contacts of its answer.
        found: usize,
        /// Contacts expected.
        expected: usize,
    },
    /// A table or plot.
    #[error(transparent)]
    Report(#[from] ReportError),
}
