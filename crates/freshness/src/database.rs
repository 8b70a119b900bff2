//! Connections to the database, and errors that say what to do. Passwords and
//! addresses with passwords never get into a text.

use pgwire_replication::{PgWireError, ReplicationConfig};
use std::fmt;
use std::path::Path;
use std::str::FromStr;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::config::{Host, SslMode};
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Config, NoTls};

/// How long a connection may take to come about.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the database is, and who we are to it.
#[derive(Clone)]
pub struct Database {
    config: Config,
    host: String,
    port: u16,
}

/// Why something cannot be done with the database.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DatabaseError {
    /// The address has another form.
    #[error(
        "not a Postgres address: expected postgres://user:password@host:port/database \
         or key=value pairs with host and user"
    )]
    Address,
    /// Transport encryption was asked for.
    #[error("sslmode {0} is not supported: use a Unix socket, a tunnel or sslmode=disable")]
    Tls(&'static str),
    /// There is no connection, or it broke.
    #[error("{database}: no connection: {cause}")]
    Unreachable {
        /// The address, without the password.
        database: String,
        /// What the system said.
        cause: String,
    },
    /// The server does not let us in.
    #[error("{database}: the server refused to log in: {cause}")]
    Login {
        /// The address, without the password.
        database: String,
        /// What the server said.
        cause: String,
    },
    /// The server has no logical replication.
    #[error(
        "{database}: wal_level is {found}, logical replication needs wal_level=logical: \
         ALTER SYSTEM SET wal_level = 'logical', then restart the server \
         (or follow it by LISTEN/NOTIFY)"
    )]
    NotLogical {
        /// The address, without the password.
        database: String,
        /// What the setting is.
        found: String,
    },
    /// The role may not do what is needed.
    #[error(
        "{database}: permission denied: {cause}; the role needs the right \
         to replicate: ALTER ROLE … REPLICATION"
    )]
    Permission {
        /// The address, without the password.
        database: String,
        /// What the server said.
        cause: String,
    },
    /// There is no such publication.
    #[error(
        "{database}: there is no publication {name}: CREATE PUBLICATION {name} FOR TABLE {tables}"
    )]
    NoPublication {
        /// The address, without the password.
        database: String,
        /// What was looked for.
        name: String,
        /// The tables that are mapped.
        tables: String,
    },
    /// The publication leaves changes out.
    #[error(
        "publication {name} does not publish every kind of change: \
         ALTER PUBLICATION {name} SET (publish = 'insert, update, delete, truncate')"
    )]
    PublicationPartial {
        /// Which one.
        name: String,
    },
    /// A mapped table is not published: its changes would be missed.
    #[error(
        "table {table} is mapped, but publication {name} does not publish it: \
         ALTER PUBLICATION {name} ADD TABLE {table} (for a partitioned table also \
         SET (publish_via_partition_root = true))"
    )]
    TableUnpublished {
        /// Which publication.
        name: String,
        /// Which table.
        table: String,
    },
    /// Some rows of a mapped table are not published.
    #[error(
        "publication {name} publishes only some rows of {table} (WHERE {filter}), and changes of \
         the others would go missing: ALTER PUBLICATION {name} SET TABLE without WHERE"
    )]
    TableFiltered {
        /// Which publication.
        name: String,
        /// Which table.
        table: String,
        /// Which rows.
        filter: String,
    },
    /// A key is made of a column that the table has not, or does not publish.
    #[error("table {table} has no published column {column}, which its keys are made of")]
    NoColumn {
        /// Which table.
        table: String,
        /// Which column.
        column: String,
    },
    /// A key is made of a column whose old value the log does not hold.
    #[error(
        "keys of table {table} are made of column {column}, which is not in its replica \
         identity, so that deletes would not tell their keys: \
         ALTER TABLE {table} REPLICA IDENTITY FULL"
    )]
    NotIdentity {
        /// Which table.
        table: String,
        /// Which column.
        column: String,
    },
    /// The slot belongs to something else.
    #[error("replication slot {slot} is not one of pgoutput in this database: choose another name")]
    SlotForeign {
        /// Which slot.
        slot: String,
    },
    /// The slot's name is none.
    #[error("{slot:?} is no name of a slot: 1 to 63 of a-z, 0-9 and _")]
    SlotName {
        /// What was given.
        slot: String,
    },
    /// Somebody else reads from the slot.
    #[error("replication slot {slot} is in use: is another relay running with this name?")]
    SlotBusy {
        /// Which slot.
        slot: String,
    },
    /// The server has no slot or connection left.
    #[error(
        "{database}: {cause}: drop a slot that nobody uses, or raise \
         max_replication_slots and max_wal_senders"
    )]
    TooMany {
        /// The address, without the password.
        database: String,
        /// What the server said.
        cause: String,
    },
    /// The slot cannot be read any more.
    #[error("replication slot {slot} has lost what it should have retained: {cause}")]
    SlotLost {
        /// Which slot.
        slot: String,
        /// What the server said.
        cause: String,
    },
    /// The server answered with an error.
    #[error("{database}: the server answered: {cause}")]
    Server {
        /// The address, without the password.
        database: String,
        /// What the server said.
        cause: String,
    },
    /// The server answered something that cannot be understood.
    #[error("{database}: the server's answer makes no sense: {cause}")]
    Nonsense {
        /// The address, without the password.
        database: String,
        /// What was wrong.
        cause: String,
    },
}

impl DatabaseError {
    /// Whether changes may have gone missing before it was noticed.
    pub(crate) fn loses_changes(&self) -> bool {
        use DatabaseError::{
            NoColumn, NoPublication, NotIdentity, PublicationPartial, TableFiltered,
            TableUnpublished,
        };
        matches!(
            self,
            NoColumn { .. }
                | NoPublication { .. }
                | NotIdentity { .. }
                | PublicationPartial { .. }
                | TableFiltered { .. }
                | TableUnpublished { .. }
        )
    }

    /// Whether trying again later may help without anybody doing anything.
    pub fn passes(&self) -> bool {
        use DatabaseError::{Nonsense, Server, SlotBusy, SlotLost, TooMany, Unreachable};
        matches!(
            self,
            Unreachable { .. }
                | SlotBusy { .. }
                | SlotLost { .. }
                | TooMany { .. }
                | Server { .. }
                | Nonsense { .. }
        )
    }
}

impl FromStr for Database {
    type Err = DatabaseError;

    fn from_str(text: &str) -> Result<Self, DatabaseError> {
        // The parser's own words may quote the text, password included.
        let mut config: Config = text.parse().map_err(|_| DatabaseError::Address)?;
        match config.get_ssl_mode() {
            SslMode::Disable | SslMode::Prefer => {}
            _ => return Err(DatabaseError::Tls("require")),
        }
        config.ssl_mode(SslMode::Disable);
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(CONNECT_TIMEOUT);
        }
        if config.get_user().is_none() {
            return Err(DatabaseError::Address);
        }
        let host = match config.get_hosts() {
            [Host::Tcp(name)] => name.clone(),
            [Host::Unix(path)] => unix(path)?,
            _ => return Err(DatabaseError::Address),
        };
        let port = config.get_ports().first().copied().unwrap_or(5432);
        Ok(Database { config, host, port })
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
        let connected = self.config.connect(NoTls).await;
        let (client, connection) = connected.map_err(|error| self.error(&error))?;
        let driver = tokio::spawn(async move {
            // Whoever waits for an answer is told by the client.
            let _ = connection.await;
        });
        Ok(Connection { client, driver })
    }

    /// The same settings for `tokio_postgres`.
    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The same settings for a replication connection.
    pub(crate) fn replication(&self, slot: &str, publication: &str) -> ReplicationConfig {
        let password = self.config.get_password().unwrap_or_default();
        // Quoted, because the server folds the case of plain names.
        let publication = format!("\"{}\"", publication.replace('"', "\"\""));
        ReplicationConfig::new(
            self.host.clone(),
            self.config.get_user().unwrap_or_default(),
            String::from_utf8_lossy(password),
            self.name(),
            slot,
            publication,
        )
        .with_port(self.port)
        .with_application_name("trefoil-relay")
    }

    /// What an error of an ordinary statement means.
    pub fn error(&self, error: &tokio_postgres::Error) -> DatabaseError {
        match error.as_db_error() {
            Some(told) => self.told(told.code().code(), told.message()),
            None => DatabaseError::Unreachable {
                database: self.to_string(),
                cause: causes(error),
            },
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
        let tls = "host=a user=b sslmode=require".parse::<Database>();
        assert!(matches!(tls, Err(DatabaseError::Tls(_))));
    }
}
