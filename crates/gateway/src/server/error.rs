//! Why a front door could not be opened.

use super::tls::TlsError;
use std::io;
use std::net::SocketAddr;
use trefoil_backend::ListenError;

/// Why a front door could not be opened. Nothing is left behind.
#[derive(Debug, thiserror::Error)]
pub enum GatewayError {
    /// Other machines could reach it, and read along.
    #[error(
        "{0} is reachable from other machines, which requires TLS: give --tls-cert and --tls-key, listen on 127.0.0.1, or pass --insecure if the network is trusted"
    )]
    OffLoopback(SocketAddr),
    /// A socket.
    #[error(transparent)]
    Listen(#[from] ListenError),
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
