//! Postgres behind the memory: one row for each book.
//!
//! A book is written only over the version that the change was made of, so that a
//! server whose memory is behind, or that has lost its keys to another, cannot undo
//! a change. Whoever changes rows by other means has to raise their version.

use address_book_contract::v1::AddressBook;
use prost::Message as _;
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio_postgres::Statement;
use trefoil_freshness::{Database as Postgres, Place};

const SCHEMA: &str = "create table if not exists books (
    owner text primary key, version bigint not null, book bytea not null)";
const LOAD: &str = "select book from books where owner = $1";
const CREATE: &str = "insert into books (owner, version, book) values ($1, $2, $3)
    on conflict (owner) do nothing";
const REPLACE: &str = "update books set version = $2, book = $3 where owner = $1 and version = $4";

/// Why the database did not do it. Never holds the URL, which may have a
/// password.
#[derive(Debug, thiserror::Error)]
pub enum DatabaseError {
    /// A statement failed.
    #[error("database: {}", told(.0))]
    Postgres(#[from] tokio_postgres::Error),
    /// No connection.
    #[error(transparent)]
    Unreachable(#[from] trefoil_freshness::DatabaseError),
    /// A row that holds no book.
    #[error("the database holds no book for {owner}: {source}")]
    NoBook {
        /// Whose.
        owner: String,
        /// What is wrong with it.
        source: prost::DecodeError,
    },
}

/// The library's words for an error leave out what the server said.
fn told(error: &tokio_postgres::Error) -> String {
    match error.as_db_error() {
        Some(said) => format!("{error}: {}", said.message()),
        None => error.to_string(),
    }
}

/// The books of all users.
#[derive(Clone)]
pub struct Database {
    postgres: Postgres,
    connection: Arc<Mutex<Option<Arc<Connection>>>>,
}

struct Connection {
    postgres: trefoil_freshness::Connection,
    load: Statement,
    create: Statement,
    replace: Statement,
}

impl Database {
    /// Connects and makes the table if it is not there.
    pub async fn connect(url: &str) -> Result<Self, DatabaseError> {
        let database = Database {
            postgres: url.parse()?,
            connection: Arc::default(),
        };
        database.connection().await?;
        Ok(database)
    }

    /// A user's book, if there is one.
    pub async fn load(&self, owner: &str) -> Result<Option<AddressBook>, DatabaseError> {
        let connection = self.connection().await?;
        let row = connection
            .postgres
            .client
            .query_opt(&connection.load, &[&owner])
            .await?;
        let Some(row) = row else { return Ok(None) };
        let bytes: &[u8] = row.try_get(0)?;
        let book = AddressBook::decode(bytes).map_err(|source| DatabaseError::NoBook {
            owner: owner.to_owned(),
            source,
        })?;
        Ok(Some(book))
    }

    /// Writes a book that was made of the version `of`, 0 if there was none; says
    /// whether the database still had that one.
    pub async fn save(&self, book: &AddressBook, of: u64) -> Result<bool, DatabaseError> {
        let connection = self.connection().await?;
        let client = &connection.postgres.client;
        let number = |version| i64::try_from(version).unwrap_or(i64::MAX);
        let (version, of) = (number(book.version), number(of));
        let bytes = book.encode_to_vec();
        let written = if of == 0 {
            let create = &connection.create;
            client
                .execute(create, &[&book.owner, &version, &bytes])
                .await?
        } else {
            let replace = &connection.replace;
            client
                .execute(replace, &[&book.owner, &version, &bytes, &of])
                .await?
        };
        Ok(written > 0)
    }

    /// Where the database's log is: whoever reads from now on sees every commit
    /// that was acknowledged up to there.
    pub async fn place(&self) -> Result<Place, DatabaseError> {
        let connection = self.connection().await?;
        let place = trefoil_freshness::place_now(&connection.postgres.client).await;
        Ok(place.map_err(|error| error.of(&self.postgres))?)
    }

    /// Has the database tell of changes of books, under the publication's name.
    pub async fn publish(&self, publication: &str) -> Result<(), DatabaseError> {
        let connection = self.connection().await?;
        let publish = format!("create publication \"{publication}\" for table books");
        Ok(connection.postgres.client.batch_execute(&publish).await?)
    }

    /// The connection, made again if the last one is gone.
    async fn connection(&self) -> Result<Arc<Connection>, DatabaseError> {
        let mut kept = self.connection.lock().await;
        if let Some(connection) = &*kept
            && !connection.postgres.client.is_closed()
        {
            return Ok(connection.clone());
        }
        // With TLS as the relay has it; statements fail when the server closes.
        let postgres = self.postgres.connect().await?;
        postgres.client.batch_execute(SCHEMA).await?;
        let connection = Arc::new(Connection {
            load: postgres.client.prepare(LOAD).await?,
            create: postgres.client.prepare(CREATE).await?,
            replace: postgres.client.prepare(REPLACE).await?,
            postgres,
        });
        *kept = Some(connection.clone());
        Ok(connection)
    }
}
