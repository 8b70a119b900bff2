//! A server's side of a handshake.

use crate::certificate::{Certificate, unix_s};
use crate::corpora::Corpora;
use crate::role::Roles;
use crate::watched::Tls;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// The first byte of a TLS record that begins a handshake.
const HANDSHAKE: u8 = 0x16;

/// Who is at the other end of a connection, by their certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The certificate's serial number, in hexadecimal digits.
    pub serial: String,
    /// The certificate's common name.
    pub name: String,
    /// What they may be taken for.
    pub roles: Roles,
    /// The linked store's corpora that they have to do with.
    pub corpora: Corpora,
    /// Until when, in seconds since the Unix epoch.
    pub ends_s: i64,
}

impl Caller {
    /// Of a certificate that rustls has verified.
    pub(crate) fn of(certificate: Certificate) -> Self {
        Caller {
            serial: certificate.serial,
            name: certificate.name,
            roles: certificate.roles,
            corpora: certificate.corpora,
            ends_s: certificate.ends_s,
        }
    }

    /// How long the certificate is still valid.
    pub fn left(&self, now: SystemTime) -> Duration {
        Duration::from_secs((self.ends_s - unix_s(now)).max(0) as u64)
    }
}

/// A server's side of an encrypted connection.
pub type ServerStream = TlsStream<TcpStream>;

/// A connection that is encrypted.
#[derive(Debug)]
pub struct Accepted {
    /// What is said on it.
    pub stream: ServerStream,
    /// With whom.
    pub caller: Caller,
}

/// Why a connection was not accepted.
#[derive(Debug, thiserror::Error)]
pub enum AcceptError {
    /// The other end speaks without TLS. It can be told so.
    #[error("it speaks without TLS")]
    Plain(TcpStream),
    /// No TLS, or no certificate that is believed here.
    #[error(transparent)]
    Failed(#[from] io::Error),
}

/// Waits for the other end to begin, and for their certificate. The caller bounds the
/// time that this may take.
pub async fn accept(tls: &Tls, stream: TcpStream) -> Result<Accepted, AcceptError> {
    let result = handshake(tls, stream).await;
    tls.count(result.is_ok());
    result
}

async fn handshake(tls: &Tls, stream: TcpStream) -> Result<Accepted, AcceptError> {
    let mut first = [0];
    let len = stream.peek(&mut first).await?;
    if len == 1 && first != [HANDSHAKE] {
        return Err(AcceptError::Plain(stream));
    }
    let acceptor = TlsAcceptor::from(Arc::clone(&tls.identity().server));
    let stream = acceptor.accept(stream).await?;
    let shown = stream.get_ref().1.peer_certificates();
    let certificate = shown.and_then(|chain| Certificate::parse(chain.first()?));
    let none = || io::Error::new(io::ErrorKind::InvalidData, "the certificate cannot be read");
    let certificate = certificate.ok_or_else(none)?;
    let caller = Caller::of(certificate);
    if tls.is_revoked(&caller) {
        let problem = "the certificate has been revoked";
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, problem).into());
    }
    Ok(Accepted { stream, caller })
}
