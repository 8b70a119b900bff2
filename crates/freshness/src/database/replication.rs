//! Replication connections, inside TLS too.
//!
//! ```text
//! ReplicationClient ── Unix socket of this process ── carry ── TLS ── the server
//! ```
//!
//! The library that speaks the replication protocol has TLS of its own, with
//! another provider of algorithms, errors that are texts, and no way to be given
//! a stream. So it connects to a socket in a folder that only this user can
//! enter and that is removed as soon as it has, and what it says is carried on
//! inside TLS as all other connections have it.

use super::encrypt::Encrypted;
use super::options::TlsMode;
use super::{Database, DatabaseError};
use pgwire_replication::{ReplicationClient, ReplicationConfig};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy, split};
use tokio::net::{TcpStream, UnixListener};
use tokio::time::timeout;
use tokio_postgres::config::{ChannelBinding, SslNegotiation};

/// "May I speak TLS?": a length, and a number that is no version.
const REQUEST: [u8; 8] = [0, 0, 0, 8, 0x04, 0xd2, 0x16, 0x2f];

/// How long the library may take to come to its socket.
const COMING_MAX: Duration = Duration::from_secs(10);

/// How long the server may take to end a connection that we have ended.
const LINGER: Duration = Duration::from_secs(10);

/// Where a folder for the socket may be: the second one is there, and may be
/// written to, where nothing else may.
const FALLBACK: &str = "/dev/shm";

impl Database {
    /// Settings for a replication connection.
    pub(crate) fn replication(&self, slot: &str, publication: &str) -> ReplicationConfig {
        let password = self.config.get_password().unwrap_or_default();
        // Quoted, because the server folds the case of plain names.
        let publication = format!("\"{}\"", publication.replace('"', "\"\""));
        ReplicationConfig::new(
            self.target(),
            self.config.get_user().unwrap_or_default(),
            String::from_utf8_lossy(password),
            self.name(),
            slot,
            publication,
        )
        .with_port(self.port)
        .with_application_name("trefoil-relay")
    }

    /// A replication connection that waits before its start.
    pub(crate) async fn replicate(
        &self,
        mut config: ReplicationConfig,
    ) -> Result<ReplicationClient, DatabaseError> {
        if self.config.get_channel_binding() == ChannelBinding::Require {
            return Err(DatabaseError::TlsOption {
                option: "channel_binding",
                problem: "replication connections have none: leave it out; \
                          sslmode=verify-full shows that the server is the right one"
                    .into(),
            });
        }
        if let Some(stream) = self.encrypted().await? {
            config.host = carry(stream, self.port).map_err(|error| DatabaseError::TlsFailed {
                database: self.to_string(),
                cause: format!("no socket for the replication connection: {error}"),
            })?;
        }
        let slot = config.slot.clone();
        self.within(self.connect_timeout(), async {
            let stream = ReplicationClient::connect_gated(config).await;
            stream.map_err(|error| self.replication_error(&slot, &error))
        })
        .await
    }

    /// Where the server is dialled: an address, a name, or a folder.
    fn target(&self) -> String {
        let address = self.config.get_hostaddrs().first();
        address.map_or_else(|| self.host.clone(), ToString::to_string)
    }

    /// A connection inside TLS; none if it is to be without.
    async fn encrypted(&self) -> Result<Option<Encrypted<TcpStream>>, DatabaseError> {
        if self.tls.mode == TlsMode::Disable {
            return Ok(None);
        }
        let encryption = self.encryption()?;
        let patience = self.connect_timeout();
        let begin = async {
            let mut stream = TcpStream::connect((self.target(), self.port)).await?;
            stream.set_nodelay(true)?;
            if self.config.get_ssl_negotiation() == SslNegotiation::Postgres {
                stream.write_all(&REQUEST).await?;
                // One byte, and no more: what follows is TLS.
                match stream.read_u8().await? {
                    b'S' => {}
                    b'N' => return Ok(None),
                    _ => return Err(io::Error::other("the server answered something else")),
                }
            }
            encryption.begin(&self.host, stream).await.map(Some)
        };
        let begun = timeout(patience, begin).await;
        let begun = begun.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        match begun {
            Ok(None) if !self.falls_back() => Err(self.tls_missing()),
            Ok(stream) => Ok(stream),
            Err(error) => {
                Err(self
                    .tls_error(&error)
                    .unwrap_or_else(|| DatabaseError::Unreachable {
                        database: self.to_string(),
                        cause: error.to_string(),
                    }))
            }
        }
    }
}

/// Carries what is said at a socket to the server and back; returns the
/// socket's folder.
fn carry(stream: Encrypted<TcpStream>, port: u16) -> io::Result<String> {
    let folder = folder(&std::env::temp_dir()).or_else(|_| folder(Path::new(FALLBACK)))?;
    let listener = UnixListener::bind(socket(&folder, port))?;
    let host = folder.path().to_str().map(str::to_owned);
    let host = host.ok_or(io::ErrorKind::InvalidFilename)?;
    tokio::spawn(async move {
        let carried = carry_on(folder, listener, stream).await;
        if let Err(error) = carried {
            tracing::warn!(%error, "a replication connection was broken off");
        }
    });
    Ok(host)
}

fn folder(inside: &Path) -> io::Result<TempDir> {
    tempfile::Builder::new()
        .prefix("tf-pg-")
        .permissions(std::fs::Permissions::from_mode(0o700))
        .tempdir_in(inside)
}

fn socket(folder: &TempDir, port: u16) -> PathBuf {
    folder.path().join(format!(".s.PGSQL.{port}"))
}

async fn carry_on(
    folder: TempDir,
    listener: UnixListener,
    stream: Encrypted<TcpStream>,
) -> io::Result<()> {
    let own = i32::try_from(std::process::id()).ok();
    let local = timeout(COMING_MAX, async {
        loop {
            let (local, _) = listener.accept().await?;
            // Nobody else of this user's has to come here.
            if local.peer_cred()?.pid() == own {
                return io::Result::Ok(local);
            }
        }
    });
    let local = local.await??;
    drop((listener, folder));
    let (mut said, mut told) = split(local);
    let (mut incoming, mut outgoing) = split(stream);
    let up = async {
        copy(&mut said, &mut outgoing).await?;
        outgoing.shutdown().await
    };
    let down = async {
        copy(&mut incoming, &mut told).await?;
        told.shutdown().await
    };
    let mut down = std::pin::pin!(down);
    tokio::select! {
        ended = &mut down => return ended,
        ended = up => ended?,
    }
    timeout(LINGER, down).await?
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Only this user comes in, also where temporary folders cannot be made.
    #[test]
    fn the_folder_of_the_socket_is_closed_to_others() {
        assert!(folder(Path::new("/nowhere")).is_err());
        for place in [std::env::temp_dir(), FALLBACK.into()] {
            let made = folder(&place).expect("a folder");
            let mode = made.path().metadata().expect("it is there").permissions();
            assert_eq!(mode.mode() & 0o777, 0o700, "{}", place.display());
        }
    }
}
