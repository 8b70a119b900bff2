//! The relay: follows a publication and tells a sink.
//!
//! ```text
//!   replication connection ──► decode ──► Changes ──► Sink (invalidate, refresh, gap)
//!        ▲ acknowledge                        │ commits
//!        └── what the sink has taken          ▼
//!   connection for snapshots ──────────► Pending ──► Sink (progress)
//!   connection for heartbeats: a message in the log every `heartbeat`
//! ```
//!
//! One task does everything, so the sink sees one order. A heartbeat is a
//! message that is written into the log as a transaction of its own; when it
//! has been told, everything acknowledged before it was begun has been, too.
//!
//! After an interruption the relay goes on where its progress was. A relay that
//! was killed goes on where the slot is: at what the sink had taken.

mod follow;
mod session;

use crate::changes::ChangeCounts;
use crate::database::{Database, DatabaseError};
use crate::event::Sink;
use crate::keymap::KeyMap;
use crate::setup::{self, Slot};
use hdrhistogram::Histogram;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// How to follow a database.
#[derive(Clone, Debug)]
pub struct RelayOptions {
    /// Where it is.
    pub database: Database,
    /// Name of the publication.
    pub publication: String,
    /// How the database remembers where the relay is.
    pub slot: Slot,
    /// What changes mean.
    pub map: KeyMap,
    /// How often a heartbeat is written into the log: with nothing else to
    /// tell, what is kept is known to be no older than this and the time of
    /// delivery. Each is a small transaction.
    pub heartbeat: Duration,
    /// The least time between two looks at what is visible; progress is told
    /// no more often.
    pub settle: Duration,
    /// A restart of the database is a gap: for sessions with
    /// `synchronous_commit = off`, whose commits a crash undoes after others
    /// have seen them.
    pub restart_is_gap: bool,
    /// How long a start waits for a slot that is in use: the database takes a
    /// moment to notice that a relay was killed.
    pub busy_patience: Duration,
    /// Longest wait before connecting again.
    pub retry_max: Duration,
    /// How often it is looked whether the publication still has all rows of
    /// every mapped table. If it has not, the relay ends with the error, and
    /// the next one begins with a gap.
    pub check_every: Duration,
}

impl RelayOptions {
    /// The usual settings.
    pub fn new(database: Database, publication: &str, slot: Slot, map: KeyMap) -> Self {
        RelayOptions {
            database,
            publication: publication.into(),
            slot,
            map,
            heartbeat: Duration::from_millis(100),
            settle: Duration::from_millis(1),
            restart_is_gap: false,
            busy_patience: Duration::from_secs(10),
            retry_max: Duration::from_secs(5),
            check_every: Duration::from_secs(5),
        }
    }
}

/// How a relay is.
#[derive(Clone, Debug, Default)]
pub struct RelayStatus {
    /// Whether it follows the stream at the moment.
    pub connected: bool,
    /// Everything up to here has been told.
    pub position: u64,
    /// Everything up to here may be forgotten by the database.
    pub acknowledged: u64,
    /// Times that the stream began.
    pub begun: u64,
    /// What was seen.
    pub changes: ChangeCounts,
    /// Why the last connection ended.
    pub trouble: Option<String>,
}

/// A relay at work. Dropping it ends it at once; the database keeps what was
/// not acknowledged.
#[derive(Debug)]
pub struct Relay {
    task: JoinHandle<Result<(), DatabaseError>>,
    stop: watch::Sender<bool>,
    shared: Arc<Shared>,
}

/// What the task and its owner share.
#[derive(Debug)]
struct Shared {
    status: watch::Sender<RelayStatus>,
    /// Microseconds from the beginning of a heartbeat until it was told.
    delays: Mutex<Histogram<u64>>,
}

impl Shared {
    fn delayed(&self, delay: Duration) {
        let micros = u64::try_from(delay.as_micros()).unwrap_or(u64::MAX);
        let mut delays = self.delays.lock().unwrap_or_else(PoisonError::into_inner);
        delays.saturating_record(micros);
    }
}

/// Longest delay that is told apart, in microseconds.
const DELAY_US_MAX: u64 = 600_000_000;

/// An empty histogram of delays in microseconds.
pub(crate) fn delays() -> Histogram<u64> {
    let histogram = Histogram::new_with_bounds(1, DELAY_US_MAX, 3);
    histogram.expect("bounds that a histogram can have")
}

impl Relay {
    /// Checks that everything is there, connects, and follows from then on.
    ///
    /// # Errors
    /// The database is not there, or is not set up as it has to be. Later
    /// trouble that may pass is retried; see [`ended`](Self::ended).
    pub async fn start<S: Sink + 'static>(
        options: RelayOptions,
        mut sink: S,
    ) -> Result<Self, DatabaseError> {
        if let Slot::Persistent(slot) = &options.slot {
            setup::check_slot_name(slot)?;
        }
        let shared = Arc::new(Shared {
            status: watch::Sender::new(RelayStatus::default()),
            delays: Mutex::new(delays()),
        });
        let (stop, stopped) = watch::channel(false);
        let mut follower = follow::Follower::new(options, Arc::clone(&shared), stopped);
        let session = follower.open_patiently(&mut sink).await?;
        let task = tokio::spawn(async move { follower.run(session, &mut sink).await });
        Ok(Relay { task, stop, shared })
    }

    /// How it is.
    pub fn status(&self) -> RelayStatus {
        self.look().status()
    }

    /// How it is, and how it becomes.
    pub fn watch(&self) -> watch::Receiver<RelayStatus> {
        self.shared.status.subscribe()
    }

    /// How long heartbeats took from their beginning until they were told, in
    /// microseconds: what delivery takes at the most.
    pub fn delays(&self) -> Histogram<u64> {
        self.look().delays()
    }

    /// Looks at it from elsewhere.
    pub(crate) fn look(&self) -> RelayWatch {
        RelayWatch(Arc::clone(&self.shared))
    }

    /// Stops following, and returns when the connection is closed.
    ///
    /// # Errors
    /// It had ended before.
    pub async fn stop(mut self) -> Result<(), DatabaseError> {
        self.stop.send_replace(true);
        self.ended().await
    }

    /// Returns when following has ended for good: after trouble that does not
    /// pass by itself.
    ///
    /// # Errors
    /// The trouble.
    pub async fn ended(&mut self) -> Result<(), DatabaseError> {
        match (&mut self.task).await {
            Ok(result) => result,
            Err(cause) => Err(DatabaseError::Nonsense {
                database: "the relay's task".into(),
                cause: cause.to_string(),
            }),
        }
    }
}

/// How a relay is, for somebody else than its owner.
pub(crate) struct RelayWatch(Arc<Shared>);

impl RelayWatch {
    pub(crate) fn status(&self) -> RelayStatus {
        self.0.status.borrow().clone()
    }

    pub(crate) fn delays(&self) -> Histogram<u64> {
        let delays = self.0.delays.lock();
        delays.unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.task.abort();
    }
}
