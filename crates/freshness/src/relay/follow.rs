//! The loop: messages in, calls of the sink out.

use super::session::{self, Session};
use super::{RelayOptions, Shared};
use crate::changes::{Changes, StreamError};
use crate::database::{Connection, Database, DatabaseError};
use crate::event::{Event, Progress, Sink};
use crate::pending::Pending;
use crate::pgoutput::{self, DecodeError, Message};
use crate::position::Place;
use crate::setup::{self, Slot};
use crate::snapshot::Snapshot;
use pgwire_replication::{Lsn, ReplicationEvent};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tracing::Instrument as _;

/// Prefix of heartbeats in the log.
const HEARTBEAT: &str = "trefoil.heartbeat";

/// Commits that wait for being visible before nothing more is read.
const PENDING_MAX: usize = 1 << 16;

/// Heartbeats on their way at a time.
const BEATS_MAX: usize = 64;

/// How often the sink is asked what it has taken.
const ACKNOWLEDGE_EVERY: Duration = Duration::from_millis(100);

/// First wait before connecting again.
const RETRY_MIN: Duration = Duration::from_millis(20);

/// How often a slot is tried that is in use.
const BUSY_RETRY: Duration = Duration::from_millis(50);

/// How long the database may say nothing before the connection counts as dead.
/// Heartbeats come back on it, so silence is not for want of news.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Why a stream ended.
enum Ended {
    /// Somebody asked for it.
    Stopped,
    /// Trouble.
    Trouble(DatabaseError),
}

/// Follows a database through all its connections.
pub(super) struct Follower {
    options: RelayOptions,
    shared: Arc<Shared>,
    stopped: watch::Receiver<bool>,
    changes: Changes,
    /// Where the former stream ended.
    former: Option<Place>,
    /// What tells the history from an earlier one, from whose end the database
    /// went back.
    branch: Option<String>,
    /// What has to be finished before there is progress, on this stream or the
    /// next.
    gate: Option<u64>,
    /// Makes this relay's heartbeats and temporary slots its own.
    nonce: u64,
    sessions: u64,
}

/// A look at the visible transactions, on its way.
type Look = Pin<Box<dyn Future<Output = Result<Snapshot, DatabaseError>> + Send>>;

/// A heartbeat that is being written, or a check.
type Beat = Pin<Box<dyn Future<Output = Result<(), DatabaseError>> + Send>>;

impl Follower {
    pub(super) fn new(
        options: RelayOptions,
        shared: Arc<Shared>,
        stopped: watch::Receiver<bool>,
    ) -> Self {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let now = now.map_or(0, |now| now.as_nanos() as u64);
        Follower {
            changes: Changes::new(options.map.clone()),
            options,
            shared,
            stopped,
            former: None,
            branch: None,
            gate: None,
            nonce: now ^ u64::from(std::process::id()).rotate_left(40),
            sessions: 0,
        }
    }

    /// Connects, and tells the sink from where.
    pub(super) async fn open(&mut self, sink: &mut impl Sink) -> Result<Session, DatabaseError> {
        self.sessions += 1;
        let temporary = format!("trefoil_{:016x}_{}", self.nonce, self.sessions);
        let former = self.former.as_ref();
        let (branch, taken) = (&mut self.branch, sink.taken());
        let session = session::open(&self.options, &temporary, former, branch, taken).await?;
        if let Some(gap) = &session.gap {
            tracing::warn!(
                reason = %gap.reason,
                "changes may be missing: what was kept from before is dropped"
            );
            sink.gap(gap);
        }
        sink.begun(&session.place);
        self.changes.begin(&session.place);
        self.former = Some(session.place.clone());
        self.shared.status.send_modify(|status| {
            status.connected = true;
            status.position = session.place.position;
            status.begun += 1;
        });
        tracing::info!(database = %self.options.database, position = %crate::ShownPosition(session.place.position), "following");
        Ok(session)
    }

    /// The same, waiting for whoever holds the slot.
    pub(super) async fn open_patiently(
        &mut self,
        sink: &mut impl Sink,
    ) -> Result<Session, DatabaseError> {
        let begun = Instant::now();
        loop {
            match self.open(sink).await {
                Err(DatabaseError::SlotBusy { .. })
                    if begun.elapsed() < self.options.busy_patience =>
                {
                    tokio::time::sleep(BUSY_RETRY).await;
                }
                opened => return opened,
            }
        }
    }

    /// Follows until somebody stops it, or for as long as trouble passes.
    pub(super) async fn run(
        &mut self,
        mut session: Session,
        sink: &mut impl Sink,
    ) -> Result<(), DatabaseError> {
        loop {
            let begun = Instant::now();
            let span = tracing::info_span!("relay.stream", database = %self.options.database);
            let ended = self.follow(session, sink).instrument(span).await;
            let trouble = match ended {
                Ended::Stopped => return Ok(()),
                Ended::Trouble(trouble) => trouble,
            };
            if let Err(trouble) = self.troubled(&trouble) {
                self.forget(&trouble).await;
                return Err(trouble);
            }
            let mut wait = RETRY_MIN;
            if begun.elapsed() < RETRY_MIN {
                // A stream that ends as soon as it begins is not to spin.
                wait = self.options.retry_max.min(Duration::from_millis(500));
            }
            session = loop {
                tokio::select! {
                    _ = self.stopped.wait_for(|stopped| *stopped) => return Ok(()),
                    () = tokio::time::sleep(wait) => {}
                }
                wait = (wait * 2).min(self.options.retry_max);
                match self.open(sink).await {
                    Ok(session) => break session,
                    Err(trouble) => {
                        if let Err(trouble) = self.troubled(&trouble) {
                            self.forget(&trouble).await;
                            return Err(trouble);
                        }
                    }
                }
            };
        }
    }

    /// The database is not set up any more as it has to be, and changes may
    /// have gone missing since it was: whoever follows next begins with a gap.
    async fn forget(&self, trouble: &DatabaseError) {
        let Slot::Persistent(slot) = &self.options.slot else {
            return;
        };
        if !trouble.loses_changes() {
            return;
        }
        match setup::forget_slot(&self.options.database, slot).await {
            Ok(()) => tracing::warn!(slot, "the slot is removed: the next start is a gap"),
            Err(error) => tracing::error!(
                slot,
                %error,
                "the slot cannot be removed, and does not have all changes: \
                 SELECT pg_drop_replication_slot"
            ),
        }
    }

    /// Notes trouble; gives it back if it does not pass by itself.
    fn troubled(&self, trouble: &DatabaseError) -> Result<(), DatabaseError> {
        let text = trouble.to_string();
        self.shared.status.send_modify(|status| {
            status.connected = false;
            if status.trouble.as_ref() != Some(&text) {
                tracing::warn!(trouble = text, "not following the database");
            }
            status.trouble = Some(text);
        });
        match trouble.passes() {
            true => Ok(()),
            false => Err(trouble.clone()),
        }
    }

    async fn follow(&mut self, session: Session, sink: &mut impl Sink) -> Ended {
        let mut stopped = self.stopped.clone();
        let mut following = Following::new(self, session);
        let ended = tokio::select! {
            _ = stopped.wait_for(|stopped| *stopped) => Ended::Stopped,
            trouble = following.run(sink) => Ended::Trouble(trouble),
        };
        let gate = following.pending.gated();
        let taken = sink.taken().min(following.position);
        let mut stream = following.session.stream;
        stream.update_applied_lsn(Lsn(taken));
        if matches!(ended, Ended::Stopped) {
            let closed = tokio::time::timeout(Duration::from_secs(2), stream.shutdown());
            let _ = closed.await;
        }
        self.gate = gate;
        ended
    }
}

/// One stream being followed.
struct Following<'a> {
    follower: &'a mut Follower,
    session: Session,
    pending: Pending,
    position: u64,
    /// Heartbeats on their way: number and beginning.
    beats: VecDeque<(u64, Instant)>,
    beat_number: u64,
    /// The transaction that is being told is this heartbeat.
    beating: Option<Instant>,
    events: Vec<Event>,
    heard: Instant,
}

impl<'a> Following<'a> {
    fn new(follower: &'a mut Follower, mut session: Session) -> Self {
        let mut pending = Pending::default();
        if let Some(gate) = session.gate.take() {
            pending.gate(&gate);
        } else {
            pending.gate_again(follower.gate);
        }
        Following {
            position: session.place.position,
            follower,
            session,
            pending,
            beats: VecDeque::new(),
            beat_number: 0,
            beating: None,
            events: Vec::new(),
            heard: Instant::now(),
        }
    }

    async fn run(&mut self, sink: &mut impl Sink) -> DatabaseError {
        let mut heartbeat = tokio::time::interval(self.follower.options.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut acknowledge = tokio::time::interval(ACKNOWLEDGE_EVERY);
        acknowledge.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The session has just been checked.
        let check_every = self.follower.options.check_every;
        let first = tokio::time::Instant::now() + check_every;
        let mut check = tokio::time::interval_at(first, check_every);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut checked: Option<Beat> = None;
        let mut look: Option<Look> = None;
        let mut beat: Option<Beat> = None;
        let database = self.follower.options.database.clone();
        let slot = match &self.follower.options.slot {
            Slot::Persistent(slot) => slot.clone(),
            Slot::Temporary => "(temporary)".into(),
        };
        loop {
            if look.is_none() && !self.pending.is_empty() {
                look = Some(self.look());
            }
            let room = self.pending.len() < PENDING_MAX;
            tokio::select! {
                biased;
                snapshot = of(&mut look) => {
                    look = None;
                    match snapshot {
                        Ok(snapshot) => self.looked(&snapshot, sink),
                        Err(trouble) => return trouble,
                    }
                }
                written = of(&mut beat) => {
                    beat = None;
                    if let Err(trouble) = written {
                        return trouble;
                    }
                }
                sound = of(&mut checked) => {
                    checked = None;
                    if let Err(trouble) = sound {
                        return trouble;
                    }
                }
                _ = check.tick() => {
                    if checked.is_none() {
                        checked = Some(self.check());
                    }
                }
                _ = heartbeat.tick() => {
                    if beat.is_none() && self.beats.len() < BEATS_MAX {
                        beat = Some(self.beat());
                    }
                    if self.heard.elapsed() > SILENCE_MAX {
                        return DatabaseError::Unreachable {
                            database: database.to_string(),
                            cause: format!("nothing was heard for {SILENCE_MAX:?}"),
                        };
                    }
                }
                _ = acknowledge.tick() => self.acknowledge(sink),
                event = self.session.stream.recv(), if room => {
                    let event = match event {
                        Ok(Some(event)) => event,
                        Ok(None) => return DatabaseError::Unreachable {
                            database: database.to_string(),
                            cause: "the server ended the stream".into(),
                        },
                        Err(error) => return database.replication_error(&slot, &error),
                    };
                    self.heard = Instant::now();
                    if let Err(error) = self.take(event, sink) {
                        return DatabaseError::Nonsense {
                            database: database.to_string(),
                            cause: error,
                        };
                    }
                }
            }
        }
    }

    /// Takes what the stream brought.
    fn take(&mut self, event: ReplicationEvent, sink: &mut impl Sink) -> Result<(), String> {
        let message = match event {
            ReplicationEvent::KeepAlive { wal_end, .. } => {
                // In between transactions everything up to there has been told.
                if !self.follower.changes.in_transaction() && wal_end.0 > self.position {
                    self.pending.idle(wal_end.0);
                }
                return Ok(());
            }
            ReplicationEvent::StoppedAt { .. } => return Ok(()),
            ReplicationEvent::Begin { final_lsn, xid, .. } => Message::Begin {
                commit: final_lsn.0,
                xid,
            },
            ReplicationEvent::Commit { end_lsn, .. } => Message::Commit { end: end_lsn.0 },
            ReplicationEvent::Message {
                prefix, content, ..
            } => {
                if prefix == HEARTBEAT {
                    self.beaten(&content);
                }
                return Ok(());
            }
            ReplicationEvent::XLogData { data, .. } => {
                pgoutput::decode(data).map_err(|e: DecodeError| e.to_string())?
            }
        };
        let committed = self.follower.changes.handle(message, &mut self.events);
        for event in self.events.drain(..) {
            event.tell(sink);
        }
        if let Some(committed) = committed.map_err(|e: StreamError| e.to_string())? {
            let as_of = self.beating.take();
            self.pending.committed(committed.end, committed.xid, as_of);
        }
        Ok(())
    }

    /// One of our own heartbeats is in the transaction that is being told.
    fn beaten(&mut self, content: &[u8]) {
        let number = std::str::from_utf8(content).ok().and_then(|content| {
            let (nonce, number) = content.split_once(':')?;
            let ours = nonce == format!("{:016x}.{}", self.follower.nonce, self.follower.sessions);
            number.parse::<u64>().ok().filter(|_| ours)
        });
        let Some(number) = number else {
            return;
        };
        while let Some(&(first, begun)) = self.beats.front() {
            if first > number {
                break;
            }
            self.beating = Some(begun);
            self.beats.pop_front();
        }
    }

    /// Begins a heartbeat.
    fn beat(&mut self) -> Beat {
        self.beat_number += 1;
        self.beats.push_back((self.beat_number, Instant::now()));
        let content = format!(
            "{:016x}.{}:{}",
            self.follower.nonce, self.follower.sessions, self.beat_number
        );
        let connection = Arc::clone(&self.session.beats);
        let database = self.follower.options.database.clone();
        Box::pin(write_beat(connection, database, content))
    }

    /// Begins a look at what is visible.
    fn look(&self) -> Look {
        let connection = Arc::clone(&self.session.looks);
        let database = self.follower.options.database.clone();
        let settle = self.follower.options.settle;
        Box::pin(async move {
            tokio::time::sleep(settle).await;
            session::look(&database, &connection).await
        })
    }

    /// Begins a check that everything that is mapped is still published.
    fn check(&self) -> Beat {
        let connection = Arc::clone(&self.session.looks);
        let options = self.follower.options.clone();
        Box::pin(async move {
            setup::check(
                &options.database,
                &connection,
                &options.publication,
                &options.map,
            )
            .await
        })
    }

    /// Tells progress, as far as it is visible.
    fn looked(&mut self, snapshot: &Snapshot, sink: &mut impl Sink) {
        let Some(progress) = self.pending.seen(snapshot) else {
            return;
        };
        self.position = self.position.max(progress.position);
        let progress = Progress {
            position: self.position,
            ..progress
        };
        sink.progress(progress);
        if let Some(former) = &mut self.follower.former {
            former.position = self.position;
        }
        if let Some(begun) = progress.as_of {
            self.follower.shared.delayed(begun.elapsed());
        }
    }

    /// Lets the database forget what the sink has taken.
    fn acknowledge(&mut self, sink: &mut impl Sink) {
        let taken = sink.taken().min(self.position);
        self.session.stream.update_applied_lsn(Lsn(taken));
        let (position, changes) = (self.position, self.follower.changes.counts());
        self.follower.shared.status.send_modify(|status| {
            status.position = position;
            status.acknowledged = taken;
            status.changes = changes;
        });
    }
}

/// Writes a heartbeat into the log, as a transaction of its own.
async fn write_beat(
    connection: Arc<Connection>,
    database: Database,
    content: String,
) -> Result<(), DatabaseError> {
    let query = "SELECT pg_logical_emit_message(true, $1, $2)";
    let client = &connection.client;
    let written = client.execute(query, &[&HEARTBEAT, &content]).await;
    written.map(drop).map_err(|e| database.error(&e))
}

/// What is on its way; never, if nothing is.
async fn of<T>(on_its_way: &mut Option<Pin<Box<dyn Future<Output = T> + Send>>>) -> T {
    match on_its_way {
        Some(future) => future.await,
        None => std::future::pending().await,
    }
}
