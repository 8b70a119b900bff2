//! Connections to the database, inside TLS or not, and errors that say what to
//! do. Passwords and addresses with passwords never get into a text.
//!
//! | module | what it holds |
//! |---|---|
//! | `options` | what an address says of TLS |
//! | `encrypt` | whose certificate is believed; handshakes |
//! | `replication` | replication connections |
//! | `error` | what can go wrong, and what to do |

mod encrypt;
mod error;
mod options;
mod replication;
#[cfg(test)]
mod tests_tls;

pub use error::DatabaseError;

use encrypt::{Encrypted, Encryption};
use options::{TlsMode, TlsOptions};
use pgwire_replication::PgWireError;
use std::fmt;
use std::net::IpAddr;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, Socket};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the database is, and who we are to it.
///
/// Read from an address as libpq has it, a URL or `key=value` pairs, with
/// `sslmode`, `sslrootcert`, `sslcert` and `sslkey` for TLS:
///
/// | `sslmode` | against who listens | against who takes the server's place |
/// |---|---|---|
/// | `disable` | | |
/// | `prefer` (as if none is given) | on other hosts, and where the server has TLS | |
/// | `require` | yes | |
/// | `require` with `sslrootcert`, `verify-ca` | yes | but for others of the same authority |
/// | `verify-full` | yes | yes |
///
/// Nothing is sent in the clear to another host unless the address says
/// `sslmode=disable`: with `prefer` a server without TLS is refused there. A
/// Unix socket is on this host; as with libpq, nothing is encrypted there. The
/// files are read for each connection: what has changed counts from the next
/// one.
#[derive(Clone)]
pub struct Database {
    config: Config,
    host: String,
    port: u16,
    tls: TlsOptions,
}

impl FromStr for Database {
    type Err = DatabaseError;

    fn from_str(text: &str) -> Result<Self, DatabaseError> {
        let (text, mut tls) = options::take(text)?;
        // The parser's own words may quote the text, password included.
        let mut config: Config = text.parse().map_err(|_| DatabaseError::Address)?;
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_user().is_none() {
            return Err(DatabaseError::Address);
        }
        let host = match config.get_hosts() {
            [Host::Tcp(name)] => name.clone(),
            [Host::Unix(path)] => {
                tls.mode = TlsMode::Disable;
                unix(path)?
            }
            _ => return Err(DatabaseError::Address),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        let mut database = Database {
            config,
            host,
            port,
            tls,
        };
        let mode = match database.tls.mode {
            TlsMode::Disable => SslMode::Disable,
            _ if database.falls_back() => SslMode::Prefer,
            _ => SslMode::Require,
        };
        database.config.ssl_mode(mode);
        Ok(database)
    }
}

fn unix(path: &Path) -> Result<String, DatabaseError> {
    let path = path.to_str().ok_or(DatabaseError::Address)?;
    Ok(path.into())
}

/// The address without the password.
impl fmt::Display for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let user = self.config.get_user().unwrap_or_default();
        write!(f, "{user}@{}:{}/{}", self.host, self.port, self.name())
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Database({self})")
    }
}

/// A connection for ordinary statements; ends with the value.
pub struct Connection {
    /// Sends statements.
    pub client: Client,
    driver: JoinHandle<()>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

impl Database {
    fn name(&self) -> &str {
        let user = self.config.get_user().unwrap_or_default();
        self.config.get_dbname().unwrap_or(user)
    }

    /// Connects, for ordinary statements.
    ///
    /// # Errors
    /// There is no server, or it does not let us in.
    pub async fn connect(&self) -> Result<Connection, DatabaseError> {
        let (client, connection) = self.dial().await?;
        let driver = tokio::spawn(async move {
            // Whoever waits for an answer is told by the client.
            let _ = connection.await;
        });
        Ok(Connection { client, driver })
    }

    /// A connection that whoever asks drives.
    pub(crate) async fn dial(
        &self,
    ) -> Result<
        (
            Client,
            tokio_postgres::Connection<Socket, Encrypted<Socket>>,
        ),
        DatabaseError,
    > {
        let encryption = self.encryption()?;
        // The library's own limit is for the socket alone, not for the login.
        self.within(self.connect_timeout(), async {
            let connected = self.config.connect(encryption).await;
            connected.map_err(|error| self.error(&error))
        })
        .await
    }

    /// How long connecting may take, with the login: what the address says, or the usual.
    fn connect_timeout(&self) -> Duration {
        let said = self.config.get_connect_timeout();
        said.copied().unwrap_or(CONNECT_TIMEOUT)
    }

    /// A server that takes longer than that is not there.
    pub(crate) async fn within<T, E: From<DatabaseError>>(
        &self,
        limit: Duration,
        work: impl Future<Output = Result<T, E>>,
    ) -> Result<T, E> {
        let done = tokio::time::timeout(limit, work).await;
        done.unwrap_or_else(|_| {
            Err(E::from(DatabaseError::Unreachable {
                database: self.to_string(),
                cause: format!("it has not answered within {limit:?}"),
            }))
        })
    }

    /// How TLS begins, by the files as they are. None are read where there will
    /// be no TLS.
    fn encryption(&self) -> Result<Encryption, DatabaseError> {
        match self.tls.mode {
            TlsMode::Disable => Encryption::read(&TlsOptions {
                mode: TlsMode::Disable,
                authorities: None,
                identity: None,
            }),
            _ => Encryption::read(&self.tls),
        }
    }

    /// Whether it is spoken to in the clear if it has no TLS: on this host only.
    fn falls_back(&self) -> bool {
        let address = self.config.get_hostaddrs().first().copied();
        let address = address.or_else(|| self.host.parse::<IpAddr>().ok());
        let is_here = address.map_or(self.host == "localhost", |ip| ip.is_loopback());
        is_here && self.tls.mode == TlsMode::Prefer
    }

    /// What an error of an ordinary statement means.
    pub fn error(&self, error: &tokio_postgres::Error) -> DatabaseError {
        if let Some(told) = error.as_db_error() {
            return self.told(told.code().code(), told.message());
        }
        if let Some(found) = self.tls_error(error) {
            return found;
        }
        let cause = causes(error);
        // The library's words: it has no kind for this.
        if cause.ends_with("server does not support TLS") {
            return self.tls_missing();
        }
        DatabaseError::Unreachable {
            database: self.to_string(),
            cause,
        }
    }

    /// What an error of a replication connection means.
    pub(crate) fn replication_error(&self, slot: &str, error: &PgWireError) -> DatabaseError {
        let cause = error.to_string();
        let database = self.to_string();
        match error {
            PgWireError::Io(_) | PgWireError::Task(_) => {
                DatabaseError::Unreachable { database, cause }
            }
            PgWireError::Auth(_) | PgWireError::Tls(_) => DatabaseError::Login { database, cause },
            PgWireError::Server(text) => {
                let code = text.split("SQLSTATE ").nth(1).unwrap_or_default();
                let code = code.get(..5).unwrap_or_default();
                let slot = slot.to_owned();
                match SqlState::from_code(code) {
                    SqlState::OBJECT_IN_USE => DatabaseError::SlotBusy { slot },
                    SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE => {
                        DatabaseError::SlotLost { slot, cause }
                    }
                    _ => self.told(code, text),
                }
            }
            _ => DatabaseError::Nonsense { database, cause },
        }
    }

    fn told(&self, code: &str, cause: &str) -> DatabaseError {
        let (database, cause) = (self.to_string(), cause.to_owned());
        let code = SqlState::from_code(code);
        match code {
            SqlState::INVALID_PASSWORD
            | SqlState::INVALID_AUTHORIZATION_SPECIFICATION
            | SqlState::INVALID_CATALOG_NAME => DatabaseError::Login { database, cause },
            SqlState::INSUFFICIENT_PRIVILEGE => DatabaseError::Permission { database, cause },
            SqlState::CONFIGURATION_LIMIT_EXCEEDED | SqlState::TOO_MANY_CONNECTIONS => {
                DatabaseError::TooMany { database, cause }
            }
            _ => DatabaseError::Server {
                database,
                cause: format!("{cause} ({})", code.code()),
            },
        }
    }
}

/// An error with all that caused it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_are_not_shown() {
        let address = "postgres://me:geheim@db.example:7777/shop";
        let database: Database = address.parse().expect("an address");
        let shown = format!("{database} {database:?}");
        assert_eq!(
            shown,
            "me@db.example:7777/shop Database(me@db.example:7777/shop)"
        );
        let bad = "postgres://me:geheim@db.example/shop?geheim=1";
        let error = bad.parse::<Database>().expect_err("not an address");
        assert!(!error.to_string().contains("geheim"), "{error}");
    }

    /// In the clear to another host only if the address says so.
    #[test]
    fn where_it_may_be_plain() {
        for (text, expected) in [
            ("host=127.0.0.1 user=a", SslMode::Prefer),
            ("host=localhost user=a sslmode=prefer", SslMode::Prefer),
            ("host=::1 user=a", SslMode::Prefer),
            ("host=db1 hostaddr=127.0.0.1 user=a", SslMode::Prefer),
            ("host=localhost hostaddr=10.0.0.1 user=a", SslMode::Require),
            ("host=db1 user=a", SslMode::Require),
            ("host=10.0.0.1 user=a sslmode=prefer", SslMode::Require),
            ("host=10.0.0.1 user=a sslmode=disable", SslMode::Disable),
            ("host=127.0.0.1 user=a sslmode=require", SslMode::Require),
            ("host=/run user=a sslmode=require", SslMode::Disable),
        ] {
            let database: Database = text.parse().expect(text);
            assert_eq!(database.config.get_ssl_mode(), expected, "{text}");
        }
    }

    /// Its kernel takes connections all the same.
    #[tokio::test]
    async fn a_server_that_hangs_is_not_waited_for() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let address = format!("host=127.0.0.1 port={port} user=a connect_timeout=1");
        let database: Database = address.parse().expect("an address");
        let tried = tokio::time::timeout(Duration::from_secs(60), database.connect()).await;
        let error = tried.expect("it gives up").err().expect("nobody answers");
        assert!(
            matches!(error, DatabaseError::Unreachable { .. }) && error.passes(),
            "{error}"
        );
    }

    #[test]
    fn what_is_no_address() {
        for text in [
            "",
            "postgres://",
            "host=a",
            "user=a",
            "nonsense",
            "host=a,b user=c",
        ] {
            let error = text.parse::<Database>().expect_err(text);
            assert!(matches!(error, DatabaseError::Address), "{text}: {error}");
        }
        let tls = "host=a user=b sslmode=allow".parse::<Database>();
        assert!(matches!(tls, Err(DatabaseError::TlsOption { .. })));
    }
}
