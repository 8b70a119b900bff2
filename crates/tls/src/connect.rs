//! A client's side of a handshake.
//!
//! In TLS 1.3 a client has ended its handshake before the server has looked at its
//! certificate. So [`connect`] waits for the first byte that the server says inside
//! (HTTP/2 begins with the server's settings): a connection that is handed over is one
//! that the server has accepted, and whoever was refused learns why before anything
//! was sent.

use crate::certificate::{Certificate, time_text};
use crate::identity::NoBackend;
use crate::watched::Tls;
use rustls::pki_types::ServerName;
use rustls::{AlertDescription, CertificateError, OtherError};
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, ReadBuf};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Why there is no encrypted connection. Says what to do.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HandshakeError {
    /// No TLS there.
    #[error(
        "{host} does not speak TLS: its server runs without --certs; leave --certs out here (and TREFOIL_CERTS), or start it with them"
    )]
    Plain {
        /// Who was asked.
        host: String,
    },
    /// The server's certificate has ended, or begins later.
    #[error(
        "the certificate of {host} {problem}: renew it there, or set this machine's clock right"
    )]
    ServerTime {
        /// Who was asked.
        host: String,
        /// Which of the two, and since or until when.
        problem: String,
    },
    /// Nobody who is believed here has signed it.
    #[error(
        "the certificate of {host} is of another authority than those in {authorities}: take both sides' certificates from one authority (trefoil cell certs)"
    )]
    ServerAuthority {
        /// Who was asked.
        host: String,
        /// Whom we believe.
        authorities: PathBuf,
    },
    /// It is another host's.
    #[error(
        "the certificate of {host} is not for that name or address ({problem}): issue it with --host {host}, or connect by a name that it has"
    )]
    ServerName {
        /// Who was asked.
        host: String,
        /// Names that it is for.
        problem: String,
    },
    /// It is a client's, for one.
    #[error(
        "the certificate of {host} is not a backend's: whoever answers there may not; issue the server one by `trefoil cell certs issue --role backend`"
    )]
    ServerRole {
        /// Who was asked.
        host: String,
    },
    /// Our own certificate is not accepted.
    #[error("{host} does not accept the certificate in {certificate}: {reason}")]
    Refused {
        /// Who was asked.
        host: String,
        /// The file of ours.
        certificate: PathBuf,
        /// What the server says of it, and what to do.
        reason: String,
    },
    /// Anything else.
    #[error("no TLS connection to {host}: {problem}")]
    Other {
        /// Who was asked.
        host: String,
        /// What happened.
        problem: String,
    },
}

/// A connection that the server has accepted.
#[derive(Debug)]
pub struct Connected<S> {
    stream: TlsStream<S>,
    /// Read to know that it has.
    first: Option<u8>,
}

impl<S> Connected<S> {
    /// What the server has shown.
    pub fn certificate(&self) -> Option<Certificate> {
        let shown = self.stream.get_ref().1.peer_certificates()?;
        Certificate::parse(shown.first()?)
    }
}

/// Begins TLS with the server that was reached as `host`, a name or an address.
pub async fn connect<S>(tls: &Tls, host: &str, stream: S) -> Result<Connected<S>, HandshakeError>
where
    S: AsyncRead + AsyncWrite + Unpin,
{
    let name = ServerName::try_from(host.to_owned()).map_err(|error| HandshakeError::Other {
        host: host.to_owned(),
        problem: error.to_string(),
    })?;
    let connector = TlsConnector::from(Arc::clone(&tls.identity().client));
    let fail = |error: io::Error| explain(tls, host, &error);
    let mut stream = connector.connect(name, stream).await.map_err(fail)?;
    let mut first = [0];
    match stream.read(&mut first).await.map_err(fail)? {
        0 => Err(HandshakeError::Other {
            host: host.to_owned(),
            problem: "the server has closed it: it may be stopping, or have too many".to_owned(),
        }),
        _ => Ok(Connected {
            stream,
            first: Some(first[0]),
        }),
    }
}

pub(crate) fn explain(tls: &Tls, host: &str, error: &io::Error) -> HandshakeError {
    let host = host.to_owned();
    let cause = error.get_ref();
    let cause = cause.and_then(|cause| cause.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidMessage(_)) => HandshakeError::Plain { host },
        Some(rustls::Error::InvalidCertificate(problem)) => refuse(tls, host, problem),
        Some(rustls::Error::AlertReceived(alert)) => HandshakeError::Refused {
            host,
            certificate: tls.files().certificate.clone(),
            reason: reason(*alert),
        },
        _ => HandshakeError::Other {
            host,
            problem: error.to_string(),
        },
    }
}

/// What is wrong with the server's certificate.
fn refuse(tls: &Tls, host: String, problem: &CertificateError) -> HandshakeError {
    use CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidForName, NotValidForNameContext,
        NotValidYet, NotValidYetContext, UnknownIssuer,
    };
    let time = |host, problem: String| HandshakeError::ServerTime { host, problem };
    match problem {
        Expired => time(host, "has expired".to_owned()),
        ExpiredContext { not_after, .. } => {
            let until = time_text(not_after.as_secs() as i64);
            time(host, format!("has expired: it was valid until {until}"))
        }
        NotValidYet => time(host, "is not valid yet".to_owned()),
        NotValidYetContext { not_before, .. } => {
            let from = time_text(not_before.as_secs() as i64);
            time(host, format!("is not valid yet: it is valid from {from}"))
        }
        UnknownIssuer | BadSignature => HandshakeError::ServerAuthority {
            host,
            authorities: tls.files().authorities.clone(),
        },
        NotValidForName => HandshakeError::ServerName {
            host,
            problem: "it names others".to_owned(),
        },
        NotValidForNameContext { presented, .. } => HandshakeError::ServerName {
            host,
            problem: format!("it is for {}", presented.join(", ")),
        },
        CertificateError::Other(OtherError(other)) if other.is::<NoBackend>() => {
            HandshakeError::ServerRole { host }
        }
        other => HandshakeError::Other {
            host,
            problem: format!("the server's certificate cannot be used: {other}"),
        },
    }
}

/// What a server says of our certificate, and what to do about it.
fn reason(alert: AlertDescription) -> String {
    match alert {
        AlertDescription::CertificateExpired => {
            "by the server's clock it has expired or is not valid yet: renew it (trefoil cell certs renew), or set the clocks right"
        }
        AlertDescription::UnknownCA | AlertDescription::DecryptError => {
            "it is of an authority that the server does not believe: take both sides' certificates from one authority (trefoil cell certs)"
        }
        AlertDescription::CertificateRequired => {
            "the server was shown none: its authorities are others than that of this one"
        }
        AlertDescription::UnsupportedCertificate => {
            "it may not be used by clients: its extended key usage has to include clientAuth"
        }
        other => return format!("the server says {other:?}; its log says more"),
    }
    .to_owned()
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Connected<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if buffer.remaining() > 0
            && let Some(first) = self.first.take()
        {
            buffer.put_slice(&[first]);
            return Poll::Ready(Ok(()));
        }
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Connected<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}
