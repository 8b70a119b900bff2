//! TLS: certificates from files, and one connection's encryption.
//!
//! rustls keeps the bytes in between (at most a record that is not complete
//! yet, and what the socket did not take), so a connection sees only plain text
//! and the socket's answers.

use super::options::TlsFiles;
use rustix::fd::OwnedFd;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustls::server::WebPkiClientVerifier;
use rustls::{ServerConfig, ServerConnection};
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use trefoil_tls::FileError;

/// Why TLS cannot be had with these files.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of certificates or of a key.
    #[error(transparent)]
    File(#[from] FileError),
    /// The key does not fit the certificate, or either is of an unknown kind.
    #[error("{path}: {source}")]
    Certificate {
        /// The certificate's file.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::Error,
    },
    /// The clients' authorities.
    #[error("{path}: {problem}")]
    Authorities {
        /// Their file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}

/// A door's certificates and key, which can be read again while it is open.
pub(super) struct Certificates {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
}

impl Certificates {
    pub(super) fn read(files: &TlsFiles) -> Result<Arc<Self>, TlsError> {
        Ok(Arc::new(Certificates {
            config: RwLock::new(configure(files)?),
            files: files.clone(),
        }))
    }

    /// What new connections get.
    pub(super) fn config(&self) -> Arc<ServerConfig> {
        let config = self.config.read().unwrap_or_else(PoisonError::into_inner);
        Arc::clone(&config)
    }

    /// Reads the files again; to be put in place by [`Certificates::replace`].
    pub(super) fn read_again(&self) -> Result<Arc<ServerConfig>, TlsError> {
        configure(&self.files)
    }

    pub(super) fn replace(&self, config: Arc<ServerConfig>) {
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }
}

/// What a door needs to speak TLS.
fn configure(files: &TlsFiles) -> Result<Arc<ServerConfig>, TlsError> {
    let chain = trefoil_tls::read_certificates(&files.certificate)?;
    let key = trefoil_tls::read_key(&files.key)?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let fail = |source| TlsError::Certificate {
        path: files.certificate.clone(),
        source,
    };
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(fail)?;
    let builder = match &files.client_authorities {
        None => builder.with_no_client_auth(),
        Some(path) => {
            let fail = |problem: String| TlsError::Authorities {
                path: path.clone(),
                problem,
            };
            let roots = trefoil_tls::read_roots(path)?;
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
                .build()
                .map_err(|e| fail(e.to_string()))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    builder
        .with_single_cert(chain, key)
        .map(Arc::new)
        .map_err(fail)
}

/// Most that is kept encrypted because the socket is full.
const UNSENT_LEN_MAX: usize = 64 << 10;
/// A record that has not come to its end, and the state of its keys.
const RECORD_LEN_MAX: usize = 18 << 10;

/// A connection's encryption.
pub(super) struct TlsStream {
    tls: ServerConnection,
}

impl TlsStream {
    pub(super) fn new(config: &Arc<ServerConfig>) -> Result<Self, rustls::Error> {
        let mut tls = ServerConnection::new(Arc::clone(config))?;
        tls.set_buffer_limit(Some(UNSENT_LEN_MAX));
        Ok(TlsStream { tls })
    }

    pub(super) fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    /// Plain text that has come; 0 bytes are the end. `WouldBlock` means that
    /// the socket has nothing more.
    pub(super) fn receive(&mut self, socket: &OwnedFd, into: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(into) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                // Ended without a goodbye: a protocol here has its own ends.
                Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                other => return other,
            }
            if self.tls.read_tls(&mut Plain(socket))? == 0 {
                return Ok(0);
            }
            let processed = self.tls.process_new_packets();
            // Answers of the handshake, or the alert that says what is wrong.
            match self.flush(socket) {
                Err(e) if e.kind() != io::ErrorKind::WouldBlock => return Err(e),
                _ => {}
            }
            processed.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        }
    }

    /// Takes plain text to send; how much of it, which is nothing while the
    /// socket is full (`WouldBlock`).
    pub(super) fn transmit(&mut self, socket: &OwnedFd, bytes: &[u8]) -> io::Result<usize> {
        let mut taken = 0;
        while taken < bytes.len() {
            let len = self.tls.writer().write(&bytes[taken..])?;
            taken += len;
            match self.flush(socket) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock && taken > 0 => break,
                other => other?,
            }
        }
        Ok(taken)
    }

    /// Sends what is encrypted already; `WouldBlock` if some of it stays.
    pub(super) fn flush(&mut self, socket: &OwnedFd) -> io::Result<()> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut Plain(socket))?;
        }
        Ok(())
    }

    /// Says goodbye, as far as the socket takes it.
    pub(super) fn close(&mut self, socket: &OwnedFd) {
        self.tls.send_close_notify();
        let _ = self.flush(socket);
    }

    pub(super) fn has_unsent(&self) -> bool {
        self.tls.wants_write()
    }

    /// Bytes that it keeps, at most.
    pub(super) fn kept(&self) -> usize {
        let unsent = if self.has_unsent() { UNSENT_LEN_MAX } else { 0 };
        RECORD_LEN_MAX + unsent
    }
}

/// The socket, as rustls wants to see it.
struct Plain<'a>(&'a OwnedFd);

impl Read for Plain<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let (len, _) = recv(self.0, into, RecvFlags::empty())?;
        Ok(len)
    }
}

impl Write for Plain<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(send(self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
