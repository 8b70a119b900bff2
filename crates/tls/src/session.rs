//! TLS for those who drive their sockets themselves: engines of the software NIC and
//! their clients. The same certificates, roles and checks as under gRPC.

use crate::accept::Caller;
use crate::certificate::Certificate;
use crate::connect::{HandshakeError, explain};
use crate::watched::Tls;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};
use std::io;
use std::sync::Arc;

impl Tls {
    /// An engine's side of a connection that begins.
    pub fn engine_session(&self) -> Result<ServerConnection, rustls::Error> {
        ServerConnection::new(Arc::clone(&self.identity().engine_server))
    }

    /// A client's side of a connection to the engine that is reached as `host`, a name or
    /// an address.
    pub fn session_with_engine(&self, host: &str) -> Result<ClientConnection, HandshakeError> {
        let other = |problem: String| HandshakeError::Other {
            host: host.to_owned(),
            problem,
        };
        let name = ServerName::try_from(host.to_owned()).map_err(|e| other(e.to_string()))?;
        ClientConnection::new(Arc::clone(&self.identity().engine_client), name)
            .map_err(|e| other(e.to_string()))
    }

    /// What a client's handshake has failed of, and what to do about it.
    pub fn explain(&self, host: &str, error: rustls::Error) -> HandshakeError {
        let error = io::Error::new(io::ErrorKind::InvalidData, error);
        explain(self, host, &error)
    }

    /// Counts a handshake that an engine has ended, or given up.
    pub fn count_handshake(&self, is_done: bool) {
        self.count(is_done);
    }
}

impl Caller {
    /// Who has shown a certificate in this handshake, once it has come to its end.
    pub fn of_session(session: &ServerConnection) -> Option<Caller> {
        let certificate = session.peer_certificates()?.first()?;
        Certificate::parse(certificate).map(Caller::of)
    }
}
