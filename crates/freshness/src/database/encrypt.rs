//! TLS to the database: whose certificate is believed, and the handshake.
//!
//! The files are read for each connection, so one that was renewed counts from
//! the next connection on, and no session is resumed.

use super::options::{TlsMode, TlsOptions};
use super::{Database, DatabaseError};
use ring::digest;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{
    WebPkiSupportedAlgorithms, ring as provider, verify_tls12_signature, verify_tls13_signature,
};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use std::error::Error;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;
use trefoil_tls::{Certificate, check_private, read_certificates, read_key};

/// What is spoken inside, for servers that ask.
const PROTOCOL: &[u8] = b"postgresql";

/// Begins TLS with a server, by the files as they were when it was made.
#[derive(Clone)]
pub(crate) struct Encryption(Arc<ClientConfig>);

impl Encryption {
    /// Reads the files.
    pub(super) fn read(options: &TlsOptions) -> Result<Self, DatabaseError> {
        let algorithms = provider::default_provider().signature_verification_algorithms;
        let mut judge = Judge {
            believed: None,
            named: options.mode == TlsMode::VerifyFull,
            algorithms,
        };
        if let Some(path) = &options.authorities {
            let option = "sslrootcert";
            let shown = read_certificates(path).map_err(|e| file(option, &e))?;
            let mut roots = RootCertStore::empty();
            // A system's file may hold some that nobody can use.
            let (added, _) = roots.add_parsable_certificates(shown.iter().cloned());
            if added == 0 {
                let problem = format!("{} holds no authority's certificate", path.display());
                return Err(DatabaseError::TlsFile { option, problem });
            }
            judge.believed = Some((roots, shown));
        }
        let builder = ClientConfig::builder_with_provider(provider::default_provider().into());
        let builder = builder.with_safe_default_protocol_versions();
        let builder = builder.map_err(|e| file("sslmode", &e))?;
        let builder = builder
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(judge));
        let mut config = match &options.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let chain = read_certificates(certificate).map_err(|e| file("sslcert", &e))?;
                check_private(key).map_err(|e| file("sslkey", &e))?;
                let read = read_key(key).map_err(|e| file("sslkey", &e))?;
                let built = builder.with_client_auth_cert(chain, read);
                built.map_err(|error| {
                    let (certificate, key) = (certificate.display(), key.display());
                    file(
                        "sslkey",
                        &format!("{key} does not fit {certificate}: {error}"),
                    )
                })?
            }
        };
        config.alpn_protocols = vec![PROTOCOL.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(Encryption(Arc::new(config)))
    }

    pub(super) async fn begin<S>(&self, host: &str, stream: S) -> io::Result<Encrypted<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(host.to_owned());
        let name = name.map_err(|e| io::Error::new(io::ErrorKind::InvalidInput, e))?;
        let connector = TlsConnector::from(Arc::clone(&self.0));
        connector.connect(name, stream).await.map(Encrypted)
    }
}

fn file(option: &'static str, problem: &dyn std::fmt::Display) -> DatabaseError {
    DatabaseError::TlsFile {
        option,
        problem: problem.to_string(),
    }
}

/// Whose certificate is believed.
#[derive(Debug)]
struct Judge {
    /// Authorities, and their certificates as they are; none: everybody's.
    believed: Option<(RootCertStore, Vec<CertificateDer<'static>>)>,
    /// Only for the name that is dialled.
    named: bool,
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for Judge {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        between: &[CertificateDer<'_>],
        name: &ServerName<'_>,
        _ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some((roots, files)) = &self.believed else {
            return Ok(ServerCertVerified::assertion());
        };
        let parsed = ParsedCertificate::try_from(shown)?;
        match files.iter().any(|file| file == shown) {
            // Signed by itself, and named as what is believed.
            true => in_time(shown, now)?,
            false => verify_server_cert_signed_by_trust_anchor(
                &parsed,
                roots,
                between,
                now,
                self.algorithms.all,
            )?,
        }
        if self.named {
            verify_server_name(&parsed, name)?;
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(message, shown, signed, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, shown, signed, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

fn in_time(shown: &CertificateDer<'_>, now: UnixTime) -> Result<(), rustls::Error> {
    let Some(read) = Certificate::parse(shown) else {
        return Err(CertificateError::BadEncoding.into());
    };
    let now_s = i64::try_from(now.as_secs()).unwrap_or(i64::MAX);
    match now_s {
        _ if now_s > read.ends_s => Err(CertificateError::Expired.into()),
        _ if now_s < read.begins_s => Err(CertificateError::NotValidYet.into()),
        _ => Ok(()),
    }
}

impl<S> MakeTlsConnect<S> for Encryption
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = io::Error;

    fn make_tls_connect(&mut self, host: &str) -> io::Result<Handshake> {
        Ok(Handshake {
            encryption: self.clone(),
            host: host.to_owned(),
        })
    }
}

/// A handshake that will begin.
pub(crate) struct Handshake {
    encryption: Encryption,
    host: String,
}

impl<S> TlsConnect<S> for Handshake
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move { self.encryption.begin(&self.host, stream).await })
    }
}

/// A connection inside TLS.
pub(crate) struct Encrypted<S>(tokio_rustls::client::TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        let shown = self.0.get_ref().1.peer_certificates();
        let print = shown.and_then(|shown| fingerprint(shown.first()?));
        print.map_or_else(ChannelBinding::none, ChannelBinding::tls_server_end_point)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// A certificate's digest, by the algorithm that it is signed with (RFC 5929,
/// `tls-server-end-point`). None where the RFC leaves it open.
fn fingerprint(certificate: &CertificateDer<'_>) -> Option<Vec<u8>> {
    // Certificate ::= SEQUENCE { what is signed, SEQUENCE { OID, … }, signature }
    let (whole, _) = element(certificate)?;
    let (_, after) = element(whole)?;
    let (algorithm, _) = element(after)?;
    let (oid, _) = element(algorithm)?;
    let kind = match oid {
        // RSA with MD5 and SHA-1: SHA-256 takes their place.
        b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x04" | b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x05" => {
            &digest::SHA256
        }
        // RSA and ECDSA with SHA-256, -384, -512.
        b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b" | b"\x2a\x86\x48\xce\x3d\x04\x03\x02" => {
            &digest::SHA256
        }
        b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0c" | b"\x2a\x86\x48\xce\x3d\x04\x03\x03" => {
            &digest::SHA384
        }
        b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0d" | b"\x2a\x86\x48\xce\x3d\x04\x03\x04" => {
            &digest::SHA512
        }
        _ => return None,
    };
    Some(digest::digest(kind, certificate).as_ref().to_vec())
}

/// The content of the DER element at the beginning, and what follows it.
fn element(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&[_, length], rest) = bytes.split_first_chunk::<2>()?;
    let (length, rest) = match length {
        0..=0x7f => (usize::from(length), rest),
        0x81..=0x84 => {
            let (number, rest) = rest.split_at_checked(usize::from(length & 0x7f))?;
            let length = number.iter().fold(0_usize, |n, &b| n << 8 | usize::from(b));
            (length, rest)
        }
        _ => return None,
    };
    rest.split_at_checked(length)
}

impl Database {
    /// What an error of a handshake, or of a connection inside TLS, means; none
    /// if TLS has no part in it.
    pub(super) fn tls_error(&self, error: &(dyn Error + 'static)) -> Option<DatabaseError> {
        let mut next = Some(error);
        while let Some(error) = next {
            if let Some(found) = self.tls_cause(error) {
                return Some(found);
            }
            next = error.source();
        }
        None
    }

    fn tls_cause(&self, error: &(dyn Error + 'static)) -> Option<DatabaseError> {
        let inner = error.downcast_ref::<io::Error>();
        let inner = inner.and_then(|error| error.get_ref()?.downcast_ref::<rustls::Error>());
        let database = self.to_string();
        Some(match inner? {
            rustls::Error::InvalidCertificate(problem) => self.certificate_error(problem),
            rustls::Error::AlertReceived(alert) if self.tls.identity.is_some() => {
                let cause = format!("{alert:?}");
                DatabaseError::TlsRefused { database, cause }
            }
            other => DatabaseError::TlsFailed {
                database,
                cause: other.to_string(),
            },
        })
    }

    fn certificate_error(&self, problem: &CertificateError) -> DatabaseError {
        use CertificateError as E;
        let database = self.to_string();
        match problem {
            E::UnknownIssuer | E::BadSignature => DatabaseError::TlsAuthority {
                database,
                authorities: self.tls.authorities.clone().unwrap_or_default(),
            },
            E::NotValidForName => DatabaseError::TlsName {
                database,
                names: "it names others".into(),
            },
            E::NotValidForNameContext { presented, .. } => DatabaseError::TlsName {
                database,
                names: match presented.is_empty() {
                    true => "it has no name but perhaps a common one, which does not count".into(),
                    false => format!("it is for {}", presented.join(", ")),
                },
            },
            E::Expired | E::ExpiredContext { .. } => DatabaseError::TlsTime {
                database,
                problem: "has ended".into(),
            },
            E::NotValidYet | E::NotValidYetContext { .. } => DatabaseError::TlsTime {
                database,
                problem: "is not valid yet".into(),
            },
            other => DatabaseError::TlsFailed {
                database,
                cause: format!("the server's certificate cannot be used: {other}"),
            },
        }
    }

    /// The server has said that it speaks none.
    pub(super) fn tls_missing(&self) -> DatabaseError {
        DatabaseError::TlsMissing {
            database: self.to_string(),
            demand: match self.tls.mode {
                TlsMode::Disable | TlsMode::Prefer => "it is not on this host".into(),
                mode => format!("sslmode={} asks for it", mode.text()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonsense_is_no_certificate() {
        for bytes in [
            &b""[..],
            b"\x30",
            b"\x30\x05",
            b"\x30\x84\xff\xff\xff\xff",
            b"\x30\x80\x00",
            b"\x30\x02\x30\x00",
        ] {
            assert_eq!(fingerprint(&CertificateDer::from(bytes)), None, "{bytes:?}");
        }
    }

    #[test]
    fn a_fingerprint_is_by_the_algorithm_of_the_signature() {
        for (kind, algorithm, len) in [
            (&rcgen::PKCS_ECDSA_P256_SHA256, &digest::SHA256, 32),
            (&rcgen::PKCS_ECDSA_P384_SHA384, &digest::SHA384, 48),
        ] {
            let key = rcgen::KeyPair::generate_for(kind).expect("a key");
            let parameters = rcgen::CertificateParams::new(["a.example".to_owned()]);
            let made = parameters.expect("parameters").self_signed(&key);
            let made = made.expect("a certificate");
            let print = fingerprint(made.der()).expect("a fingerprint");
            assert_eq!(print, digest::digest(algorithm, made.der()).as_ref());
            assert_eq!(print.len(), len);
        }
        let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("a key");
        let parameters = rcgen::CertificateParams::new(["a.example".to_owned()]);
        let made = parameters.expect("parameters").self_signed(&key);
        assert_eq!(fingerprint(made.expect("a certificate").der()), None);
    }
}
