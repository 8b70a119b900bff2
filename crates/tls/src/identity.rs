//! A directory's files, judged as a whole: what somebody shows in handshakes, and
//! whom they believe.

use crate::certificate::Certificate;
use crate::error::CertError;
use crate::file::{self, Secrecy};
use crate::role::Role;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{Resumption, WebPkiServerVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, InconsistentKeys, OtherError,
    RootCertStore, ServerConfig, SignatureScheme, version,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Names of the files in a directory.
pub const AUTHORITY_FILE: &str = "ca.pem";
/// See [`AUTHORITY_FILE`].
pub const CERTIFICATE_FILE: &str = "cert.pem";
/// See [`AUTHORITY_FILE`].
pub const KEY_FILE: &str = "key.pem";

/// What is spoken inside: HTTP/2, as gRPC needs it.
const PROTOCOL: &[u8] = b"h2";
/// The same with engines of the software NIC.
const ENGINE_PROTOCOL: &[u8] = b"trefoil-engine";

/// Where certificates and their key stand, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertFiles {
    /// Authorities that are believed: one, or several while one follows another.
    pub authorities: PathBuf,
    /// Our certificate, and those between it and its authority.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
}

impl CertFiles {
    /// `ca.pem`, `cert.pem` and `key.pem` of a directory.
    pub fn in_directory(directory: &Path) -> Self {
        CertFiles {
            authorities: directory.join(AUTHORITY_FILE),
            certificate: directory.join(CERTIFICATE_FILE),
            key: directory.join(KEY_FILE),
        }
    }

    pub(crate) fn all(&self) -> [&Path; 3] {
        [&self.authorities, &self.certificate, &self.key]
    }
}

/// What a part of a cell shows in handshakes, and whom it believes.
#[derive(Clone, Debug)]
pub struct Identity {
    /// What our certificate says.
    pub certificate: Certificate,
    pub(crate) server: Arc<ServerConfig>,
    pub(crate) client: Arc<ClientConfig>,
    pub(crate) engine_server: Arc<ServerConfig>,
    pub(crate) engine_client: Arc<ClientConfig>,
}

impl Identity {
    /// Reads and judges what stands there now. `needed`: the role that its owner has
    /// to have; `None` for any.
    pub fn read(files: &CertFiles, needed: Option<Role>) -> Result<Identity, CertError> {
        file::check(&files.authorities, Secrecy::Shown)?;
        file::check(&files.certificate, Secrecy::Shown)?;
        file::check(&files.key, Secrecy::Secret)?;
        let roots = Arc::new(file::read_roots(&files.authorities)?);
        let chain = file::read_certificates(&files.certificate)?;
        let key = file::read_key(&files.key)?;
        let unusable = |path: &Path, problem: String| CertError::Unusable {
            path: path.to_owned(),
            problem,
        };
        let none = || unusable(&files.certificate, "it is no X.509 certificate".to_owned());
        let certificate = Certificate::parse(&chain[0]).ok_or_else(none)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let certified = CertifiedKey::from_der(chain.clone(), key.clone_key(), &provider);
        certified.map_err(|error| match error {
            rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                CertError::KeyMismatch {
                    key: files.key.clone(),
                    certificate: files.certificate.clone(),
                }
            }
            error => unusable(&files.key, error.to_string()),
        })?;
        judge(files, &certificate, &chain, &roots, &provider)?;
        let path = files.certificate.clone();
        if certificate.roles.is_empty() {
            return Err(CertError::NoRole { path });
        }
        if let Some(needed) = needed.filter(|role| !certificate.roles.has(*role)) {
            let has = certificate.roles;
            return Err(CertError::WrongRole { path, has, needed });
        }
        let fail = |error: rustls::Error| unusable(&files.certificate, error.to_string());
        let server = server_config(&roots, &provider, chain.clone(), key.clone_key());
        let client = client_config(&roots, &provider, chain, key);
        let (server, client) = (server.map_err(fail)?, client.map_err(fail)?);
        // The same certificates, and another protocol inside.
        let (mut engine_server, mut engine_client) = (server.clone(), client.clone());
        engine_server.alpn_protocols = vec![ENGINE_PROTOCOL.to_vec()];
        engine_client.alpn_protocols = vec![ENGINE_PROTOCOL.to_vec()];
        Ok(Identity {
            certificate,
            server: Arc::new(server),
            client: Arc::new(client),
            engine_server: Arc::new(engine_server),
            engine_client: Arc::new(engine_client),
        })
    }
}

/// Whether the others will believe our certificate, as far as it can be known here.
fn judge(
    files: &CertFiles,
    certificate: &Certificate,
    chain: &[CertificateDer<'static>],
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
) -> Result<(), CertError> {
    let path = files.certificate.clone();
    let unusable = |problem: String| CertError::Unusable {
        path: files.certificate.clone(),
        problem,
    };
    let believed =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider));
    let believed = believed.build().map_err(|e| unusable(e.to_string()))?;
    let verdict = believed.verify_client_cert(&chain[0], &chain[1..], UnixTime::now());
    let Err(error) = verdict else {
        return Ok(());
    };
    use CertificateError::{
        BadSignature, Expired, ExpiredContext, NotValidYet, NotValidYetContext, UnknownIssuer,
    };
    let rustls::Error::InvalidCertificate(problem) = error else {
        return Err(unusable(error.to_string()));
    };
    Err(match problem {
        Expired => CertError::Expired {
            path,
            ended_s: certificate.ends_s,
        },
        ExpiredContext { not_after, .. } => CertError::Expired {
            path,
            ended_s: not_after.as_secs() as i64,
        },
        NotValidYet => CertError::NotYetValid {
            path,
            begins_s: certificate.begins_s,
        },
        NotValidYetContext { not_before, .. } => CertError::NotYetValid {
            path,
            begins_s: not_before.as_secs() as i64,
        },
        // The signature of an authority that has the same name.
        UnknownIssuer | BadSignature => CertError::OtherAuthority {
            path,
            authorities: files.authorities.clone(),
        },
        problem => unusable(problem.to_string()),
    })
}

fn server_config(
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
    chain: Vec<CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
) -> Result<ServerConfig, rustls::Error> {
    let verifier =
        WebPkiClientVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider));
    let verifier = verifier
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut config = ServerConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&version::TLS13])?
        .with_client_cert_verifier(verifier)
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    // A session that is resumed would bring a certificate that nobody judges again.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(config)
}

fn client_config(
    roots: &Arc<RootCertStore>,
    provider: &Arc<CryptoProvider>,
    chain: Vec<CertificateDer<'static>>,
    key: rustls::pki_types::PrivateKeyDer<'static>,
) -> Result<ClientConfig, rustls::Error> {
    let believed =
        WebPkiServerVerifier::builder_with_provider(Arc::clone(roots), Arc::clone(provider));
    let believed = believed
        .build()
        .map_err(|error| rustls::Error::General(error.to_string()))?;
    let mut config = ClientConfig::builder_with_provider(Arc::clone(provider))
        .with_protocol_versions(&[&version::TLS13])?
        // Stricter than rustls' own: the same, and a role.
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(BackendsOnly(believed)))
        .with_client_auth_cert(chain, key)?;
    config.alpn_protocols = vec![PROTOCOL.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(config)
}

/// Believes servers with the certificate of a backend, and nobody else: who has a
/// client's certificate must not be able to answer other clients.
#[derive(Debug)]
struct BackendsOnly(Arc<WebPkiServerVerifier>);

/// A server whose certificate is not a backend's.
#[derive(Debug, thiserror::Error)]
#[error("its certificate is not a backend's")]
pub(crate) struct NoBackend;

impl ServerCertVerifier for BackendsOnly {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let verified = self.0.verify_server_cert(
            end_entity,
            intermediates,
            server_name,
            ocsp_response,
            now,
        )?;
        let certificate = Certificate::parse(end_entity);
        match certificate.is_some_and(|certificate| certificate.roles.has(Role::Backend)) {
            true => Ok(verified),
            false => Err(CertificateError::Other(OtherError(Arc::new(NoBackend))).into()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
