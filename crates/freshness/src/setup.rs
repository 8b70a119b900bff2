//! Is everything there that a relay needs: the checks, and the slot.
//!
//! What would make changes go missing silently is an error before anything
//! starts: a table that is mapped but not published, a publication without
//! deletes, keys of columns whose old values the log does not hold.

use crate::database::{Connection, Database, DatabaseError};
use crate::keymap::KeyMap;
use crate::position::parse_position;
use pgwire_replication::ReplicationClient;
use std::collections::HashMap;
use std::time::Duration;
use tokio_postgres::Client;

/// How often a slot is tried that is to be removed.
const FORGET_EVERY: Duration = Duration::from_millis(100);
const FORGET_ATTEMPTS_MAX: u32 = 50;

/// How the database remembers where the relay is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Slot {
    /// It keeps its log until the relay has taken it, also while no relay
    /// runs. Limit that with the server's `max_slot_wal_keep_size`.
    Persistent(String),
    /// It forgets the relay with the connection: every start is a gap.
    Temporary,
}

/// What is known of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SlotState {
    Missing,
    /// It has lost what it should have retained.
    Lost,
    /// Everything after this position is retained.
    At(u64),
}

pub(crate) async fn check(
    database: &Database,
    connection: &Connection,
    publication: &str,
    map: &KeyMap,
) -> Result<(), DatabaseError> {
    let client = &connection.client;
    let error = |e: tokio_postgres::Error| database.error(&e);
    let level = client.query_one("SHOW wal_level", &[]).await;
    let found: String = level.map_err(error)?.get(0);
    if found != "logical" {
        let database = database.to_string();
        return Err(DatabaseError::NotLogical { database, found });
    }
    let kinds = "SELECT pubinsert AND pubupdate AND pubdelete AND pubtruncate \
                 FROM pg_publication WHERE pubname = $1";
    let kinds = client.query_opt(kinds, &[&publication]).await;
    let Some(kinds) = kinds.map_err(error)? else {
        let tables: Vec<&str> = map.tables().map(|(name, _)| name).collect();
        return Err(DatabaseError::NoPublication {
            database: database.to_string(),
            name: publication.into(),
            tables: tables.join(", "),
        });
    };
    if !kinds.get::<_, bool>(0) {
        return Err(DatabaseError::PublicationPartial {
            name: publication.into(),
        });
    }
    // Versions before 15 have no row filters, and no such column.
    let published = "SELECT schemaname || '.' || tablename, to_jsonb(t) ->> 'rowfilter' \
                     FROM pg_publication_tables t WHERE pubname = $1";
    let published = client.query(published, &[&publication]).await;
    let published = published.map_err(error)?;
    let published: HashMap<String, Option<String>> = published
        .iter()
        .map(|row| (row.get(0), row.get(1)))
        .collect();
    for (table, maps) in map.tables() {
        match published.get(table) {
            Some(None) => {}
            Some(Some(filter)) => {
                return Err(DatabaseError::TableFiltered {
                    name: publication.into(),
                    table: table.into(),
                    filter: filter.clone(),
                });
            }
            None => {
                return Err(DatabaseError::TableUnpublished {
                    name: publication.into(),
                    table: table.into(),
                });
            }
        }
        let columns = columns(client, table).await.map_err(error)?;
        for column in maps
            .iter()
            .filter_map(|map| map.key_template())
            .flat_map(|template| template.columns())
        {
            match columns.get(column) {
                Some(true) => {}
                Some(false) => {
                    return Err(DatabaseError::NotIdentity {
                        table: table.into(),
                        column: column.into(),
                    });
                }
                None => {
                    return Err(DatabaseError::NoColumn {
                        table: table.into(),
                        column: column.into(),
                    });
                }
            }
        }
    }
    Ok(())
}

/// Says which tables are published and concern no key.
pub(crate) async fn note_unmapped(
    database: &Database,
    connection: &Connection,
    publication: &str,
    map: &KeyMap,
) -> Result<(), DatabaseError> {
    let published = "SELECT schemaname || '.' || tablename FROM pg_publication_tables \
                     WHERE pubname = $1";
    let published = connection.client.query(published, &[&publication]).await;
    for row in published.map_err(|e| database.error(&e))? {
        let table: String = row.get(0);
        if map.of(&table).is_none() {
            tracing::warn!(
                table,
                "published, but not mapped: its changes concern no key"
            );
        }
    }
    Ok(())
}

/// A table's columns, each with whether it is in the replica identity.
async fn columns(
    client: &Client,
    table: &str,
) -> Result<HashMap<String, bool>, tokio_postgres::Error> {
    let query = "SELECT a.attname::text, c.relreplident = 'f' OR coalesce(( \
                   SELECT a.attnum = ANY (i.indkey) FROM pg_index i \
                   WHERE i.indrelid = c.oid AND \
                     CASE c.relreplident WHEN 'd' THEN i.indisprimary \
                                         WHEN 'i' THEN i.indisreplident ELSE false END \
                 ), false) \
                 FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace \
                 JOIN pg_attribute a ON a.attrelid = c.oid \
                 WHERE n.nspname || '.' || c.relname = $1 \
                   AND a.attnum > 0 AND NOT a.attisdropped";
    let rows = client.query(query, &[&table]).await?;
    Ok(rows.iter().map(|row| (row.get(0), row.get(1))).collect())
}

/// When the server was started.
pub(crate) async fn started(
    database: &Database,
    connection: &Connection,
) -> Result<String, DatabaseError> {
    let query = "SELECT pg_postmaster_start_time()::text";
    let row = connection.client.query_one(query, &[]).await;
    Ok(row.map_err(|e| database.error(&e))?.get(0))
}

/// What the database knows of the slot.
pub(crate) async fn slot_state(
    database: &Database,
    connection: &Connection,
    slot: &str,
) -> Result<SlotState, DatabaseError> {
    let query = "SELECT plugin = 'pgoutput' AND database = current_database() AND NOT temporary, \
                 coalesce(wal_status, ''), confirmed_flush_lsn::text \
                 FROM pg_replication_slots WHERE slot_name = $1";
    let row = connection.client.query_opt(query, &[&slot]).await;
    let Some(row) = row.map_err(|e| database.error(&e))? else {
        return Ok(SlotState::Missing);
    };
    if row.get::<_, Option<bool>>(0) != Some(true) {
        return Err(DatabaseError::SlotForeign { slot: slot.into() });
    }
    if row.get::<_, &str>(1) == "lost" {
        return Ok(SlotState::Lost);
    }
    match row.get::<_, Option<&str>>(2).map(parse_position) {
        Some(Ok(position)) => Ok(SlotState::At(position)),
        _ => Ok(SlotState::Lost),
    }
}

/// Removes a slot that has lost what it should have retained.
pub(crate) async fn drop_slot(
    database: &Database,
    connection: &Connection,
    slot: &str,
) -> Result<(), DatabaseError> {
    let query = "SELECT pg_drop_replication_slot($1)";
    let dropped = connection.client.query(query, &[&slot]).await;
    dropped.map(drop).map_err(|e| database.error(&e))
}

/// Removes the slot of a relay that has found changes to be missing: the next
/// one then begins with a gap instead of going on as if nothing had been. It is
/// in use until the database has noticed that the stream has ended.
pub(crate) async fn forget_slot(database: &Database, slot: &str) -> Result<(), DatabaseError> {
    let connection = database.connect().await?;
    let mut left = FORGET_ATTEMPTS_MAX;
    loop {
        match drop_slot(database, &connection, slot).await {
            Ok(()) => return Ok(()),
            Err(error) if left == 0 => return Err(error),
            Err(_) => left -= 1,
        }
        tokio::time::sleep(FORGET_EVERY).await;
    }
}

/// Creates a slot on a replication connection that has not started; returns
/// the position from which it follows. Waits for the transactions that are
/// open.
pub(crate) async fn create_slot(
    database: &Database,
    stream: &mut ReplicationClient,
    slot: &str,
    temporary: bool,
) -> Result<u64, DatabaseError> {
    let kind = if temporary { " TEMPORARY" } else { "" };
    let query =
        format!("CREATE_REPLICATION_SLOT \"{slot}\"{kind} LOGICAL pgoutput NOEXPORT_SNAPSHOT");
    let rows = stream.simple_query(&query).await;
    let rows = rows.map_err(|e| database.replication_error(slot, &e))?;
    let position = rows.first().and_then(|row| row.get(1)?.as_ref());
    let position = position.and_then(|text| std::str::from_utf8(text).ok());
    let nonsense = |cause: String| DatabaseError::Nonsense {
        database: database.to_string(),
        cause,
    };
    let position = position.ok_or_else(|| nonsense("a new slot has no position".into()))?;
    parse_position(position).map_err(|e| nonsense(e.to_string()))
}

/// Refuses what is no name of a slot.
pub(crate) fn check_slot_name(slot: &str) -> Result<(), DatabaseError> {
    let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_';
    if (1..=63).contains(&slot.len()) && slot.bytes().all(plain) {
        return Ok(());
    }
    Err(DatabaseError::SlotName { slot: slot.into() })
}
