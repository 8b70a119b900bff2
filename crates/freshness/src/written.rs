//! Positions for read-your-writes: asked for after a commit, handed to whoever
//! reads next.

use crate::database::{Database, DatabaseError};
use crate::position::{History, Place, parse_position};
use tokio_postgres::Client;

/// A position that every commit acknowledged before this call is at or before.
/// To be called after the commit, on any connection to the same server; pass it
/// on to `get_at_least`.
///
/// It is where the log is being written, other sessions' unfinished work
/// included, so it is right whatever their `synchronous_commit`.
///
/// # Errors
/// The server's, or it is a standby, which writes no log.
pub async fn position_now(client: &Client) -> Result<u64, PositionNowError> {
    let query = "SELECT pg_current_wal_insert_lsn()::text";
    let row = client.query_one(query, &[]).await?;
    let text: &str = row.get(0);
    parse_position(text).map_err(|_| PositionNowError::Nonsense(text.into()))
}

/// The same with the history of the log, for a linklet's `get_at_least` and for what
/// its loader returns: after a failover, or when a backup was restored, a position
/// from before says nothing.
///
/// A relay that takes every start of the server for a gap
/// ([`RelayOptions::restart_is_gap`](crate::RelayOptions)) follows histories of
/// another name: there a linklet loads anew whatever is asked for like this.
///
/// # Errors
/// Those of [`position_now`].
pub async fn place_now(client: &Client) -> Result<Place, PositionNowError> {
    // The name of the log's file begins with the timeline. The text is what the
    // server answers to IDENTIFY_SYSTEM, from which the relay has its history.
    let query = "SELECT system_identifier::text, left(pg_walfile_name(lsn), 8), lsn::text \
                 FROM pg_control_system(), pg_current_wal_insert_lsn() AS lsn";
    let row = client.query_one(query, &[]).await?;
    let [system, timeline, position]: [&str; 3] = [row.get(0), row.get(1), row.get(2)];
    let nonsense = || PositionNowError::Nonsense(format!("{system} {timeline} {position}"));
    let timeline = u32::from_str_radix(timeline, 16).map_err(|_| nonsense())?;
    Ok(Place {
        history: History(format!("{system}/{timeline}")),
        position: parse_position(position).map_err(|_| nonsense())?,
    })
}

/// The log's position cannot be told.
#[derive(Debug, thiserror::Error)]
pub enum PositionNowError {
    /// The server did not answer, or with an error.
    #[error("asking for the log's position: {0}")]
    Database(#[from] tokio_postgres::Error),
    /// The answer has another form.
    #[error("asking for the log's position: the answer was {0:?}")]
    Nonsense(String),
}

impl PositionNowError {
    /// The same as an error of this database.
    pub fn of(self, database: &Database) -> DatabaseError {
        match self {
            PositionNowError::Database(error) => database.error(&error),
            PositionNowError::Nonsense(_) => DatabaseError::Nonsense {
                database: database.to_string(),
                cause: self.to_string(),
            },
        }
    }
}
