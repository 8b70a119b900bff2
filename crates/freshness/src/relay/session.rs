//! Connecting: checks, the slot, and where the stream begins.

use super::RelayOptions;
use crate::database::{Connection, DatabaseError};
use crate::event::{Gap, GapReason, Scope};
use crate::position::{History, Place, ShownPosition};
use crate::setup::{self, Slot, SlotState};
use crate::snapshot::Snapshot;
use pgwire_replication::{Lsn, ReplicationClient};
use std::sync::Arc;
use std::time::Duration;

/// Messages between the connection and the relay.
const BUFFER_EVENTS: usize = 1024;

/// How often the database is told at most what may be forgotten.
const STATUS_INTERVAL: Duration = Duration::from_millis(500);

/// How long the database may take to answer before the stream begins. A new slot has
/// no limit: it waits for the transactions that are open.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// A stream that has begun.
pub(super) struct Session {
    pub(super) stream: ReplicationClient,
    /// For snapshots.
    pub(super) looks: Arc<Connection>,
    /// For heartbeats, which wait for the disk.
    pub(super) beats: Arc<Connection>,
    pub(super) place: Place,
    /// What to tell the sink before the stream.
    pub(super) gap: Option<Gap>,
    /// All transactions that it knows of have to be finished before there is
    /// progress.
    pub(super) gate: Option<Snapshot>,
}

/// `temporary`: a name that no other session has. `branch`: what tells the
/// history from one of the same cluster and timeline, if there was another.
pub(super) async fn open(
    options: &RelayOptions,
    temporary: &str,
    former: Option<&Place>,
    branch: &mut Option<String>,
    taken: u64,
) -> Result<Session, DatabaseError> {
    let database = &options.database;
    let looks = database.connect().await?;
    let checked = setup::check(database, &looks, &options.publication, &options.map);
    database.within(ANSWER_MAX, checked).await?;
    if former.is_none() {
        let noted = setup::note_unmapped(database, &looks, &options.publication, &options.map);
        database.within(ANSWER_MAX, noted).await?;
    }
    let (slot, kept) = match &options.slot {
        Slot::Temporary => (temporary, false),
        Slot::Persistent(slot) => (slot.as_str(), true),
    };
    let state = match kept {
        true => {
            let state = setup::slot_state(database, &looks, slot);
            database.within(ANSWER_MAX, state).await?
        }
        false => SlotState::Missing,
    };
    if state == SlotState::Lost {
        setup::drop_slot(database, &looks, slot).await?;
    }
    let found = match state {
        SlotState::At(position) => Some(position),
        SlotState::Missing | SlotState::Lost => None,
    };
    // Within one history a stream goes on where the former one ended; the
    // slot may be earlier, as it only knows what the sink has taken.
    let resumed = former.map_or(0, |former| former.position);
    let gated_at = async |resumed, taken| {
        let opened = gated(options, &looks, slot, found, resumed, taken);
        database.within(ANSWER_MAX, opened).await
    };
    let (mut stream, mut server) = gated_at(resumed, taken).await?;
    if let Some(former) =
        former.filter(|former| former.history == server.history(branch.as_deref()))
        && server.end < former.position
    {
        // What was told is in the log of a cluster that is no more: an older
        // state of its disk was put back. Timelines do not tell them apart.
        tracing::error!(
            was = %ShownPosition(former.position),
            is = %ShownPosition(server.end),
            "the database has gone back to an earlier state: another history begins"
        );
        *branch = Some(temporary.into());
    }
    let history = server.history(branch.as_deref());
    let changed = former.is_some_and(|former| former.history != history);
    if changed {
        // Positions of the former history mean nothing in this one.
        drop(stream);
        (stream, server) = gated_at(0, 0).await?;
    }
    let history = server.history(branch.as_deref());
    let position = match found {
        Some(found) if changed => found,
        Some(found) => found.max(resumed),
        None => {
            tracing::info!(
                slot,
                "creating the slot; waits for transactions that are open"
            );
            setup::create_slot(database, &mut stream, slot, !kept).await?
        }
    };
    let place = Place { history, position };
    let reason = match (former, state) {
        _ if changed => Some(GapReason::HistoryChanged),
        (_, SlotState::Lost) => Some(GapReason::SlotLost),
        (Some(_), SlotState::Missing) if kept => Some(GapReason::SlotLost),
        (_, SlotState::Missing) => Some(GapReason::SlotNew),
        _ => None,
    };
    let gap = reason.map(|reason| Gap {
        from: resumed,
        to: place.clone(),
        reason,
        tables: Vec::new(),
        scope: Scope::All,
    });
    let gate = match gap {
        Some(_) => Some(look(database, &looks).await?),
        None => None,
    };
    let error = |e| database.replication_error(slot, &e);
    stream.start().await.map_err(error)?;
    stream.wait_started().await.map_err(error)?;
    let beats = database.connect().await?;
    Ok(Session {
        stream,
        looks: Arc::new(looks),
        beats: Arc::new(beats),
        place,
        gap,
        gate,
    })
}

/// Who a database is.
struct Server {
    /// Cluster and timeline.
    name: String,
    /// Up to where its log is on its disk. Nothing later was ever told of it.
    end: u64,
}

impl Server {
    fn history(&self, branch: Option<&str>) -> History {
        let name = &self.name;
        History(branch.map_or_else(|| name.clone(), |branch| format!("{name}/{branch}")))
    }
}

/// A replication connection that waits before its start, and whose server it
/// is. `found`: where the slot is, if there is one.
async fn gated(
    options: &RelayOptions,
    looks: &Connection,
    slot: &str,
    found: Option<u64>,
    resumed: u64,
    taken: u64,
) -> Result<(ReplicationClient, Server), DatabaseError> {
    let database = &options.database;
    let mut config = database
        .replication(slot, &options.publication)
        .with_buffer_size(BUFFER_EVENTS)
        .with_status_interval(STATUS_INTERVAL);
    if let Some(found) = found {
        let start = found.max(resumed);
        config = config
            .with_start_lsn(Lsn(start))
            .with_ack_lsn(Lsn(found.max(taken.min(start))));
    }
    let error = |e| database.replication_error(slot, &e);
    let mut stream = database.replicate(config).await?;
    let identity = stream.identify_system().await.map_err(error)?;
    let mut name = format!("{}/{}", identity.system_id, identity.timeline);
    if options.restart_is_gap {
        name = format!("{name}/{}", setup::started(database, looks).await?);
    }
    let end = identity.xlogpos.0;
    Ok((stream, Server { name, end }))
}

/// Which transactions are visible now.
pub(super) async fn look(
    database: &crate::database::Database,
    connection: &Connection,
) -> Result<Snapshot, DatabaseError> {
    let query = "SELECT pg_current_snapshot()::text";
    let row = connection.client.query_one(query, &[]).await;
    let row = row.map_err(|e| database.error(&e))?;
    Snapshot::parse(row.get(0)).map_err(|e| DatabaseError::Nonsense {
        database: database.to_string(),
        cause: e.to_string(),
    })
}
