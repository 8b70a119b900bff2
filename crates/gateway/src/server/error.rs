//! Why a front door could not be opened.

use super::options::Protocol;
use super::tls::TlsError;
use std::io;
use std::net::SocketAddr;
use trefoil_backend::ListenError;

/// Why a front door could not be opened. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// Other machines could reach it, and read along.
    #[error(
        "{address} is reachable from other machines, which requires TLS: give --tls-cert and --tls-key, listen on 127.0.0.1, or pass --plaintext {protocol} if the network is trusted"
    )]
    OffLoopback {
        /// Wanted.
        address: SocketAddr,
        /// What would be spoken there.
        protocol: Protocol,
    },
    /// A socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Users cannot be asked for where nobody had to be one.
    #[error("users cannot be added to a front door that was opened without them: restart it")]
    NoUsersBefore,
    /// Who came in as a user would be nobody.
    #[error("users cannot be taken away from a front door that was opened with them: restart it")]
    UsersBefore,
    /// Certificates.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// Threads, or the system's event queue.
    #[error("cannot start {what}: {source}")]
    System {
        /// What.
        what: &'static str,
        /// The system's reason.
        source: io::Error,
    },
}
